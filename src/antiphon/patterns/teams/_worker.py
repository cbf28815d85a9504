"""TeamWorkerActor: carries out a task with its agent, or runs the steps of a script, and stops an agent without progress.

A task ends with a `final`, or with an `error` if an exception was raised, a limit was reached, or the agent reports a failure.
A tool result that reports a problem is an observation like any other.

`Guards` check a run each time its model calls tools again, so they never stop an agent that has finished. They read the run's
own history, so a run that continues after a crash gets the same verdict.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, cast

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestContext
from typing_extensions import override

from antiphon.dialects.agent_framework import ScriptStep
from antiphon.errors import BudgetExceededError, DeliveryError, HistoryMismatchError, ParkedError, RefusedError
from antiphon.messages import Json, Message, OptionResultPayload, thaw
from antiphon.patterns.cast import Answer, model_messages
from antiphon.patterns.teams._delegation import end_open_calls
from antiphon.patterns.teams._plans import DISPLAY_MESSAGE, Finished, finished_of
from antiphon.patterns.teams._protocol import DoTeamTask, TeamLimits, TeamTaskDone
from antiphon.patterns.teams._roster import Roster
from antiphon.patterns.teams._transcript import OUTPUT, Transcript, at_work
from antiphon.runtime import Actor, Context, handles

# ---------------------------------------------------------------- guards


class Deed(NamedTuple):
    """An action and its result."""

    action: str
    result: str
    has_failed: bool = False


class Guards(AbstractCapability[object]):
    """Stops agents that make no progress."""

    def __init__(self, limits: TeamLimits) -> None:
        self._limits = limits

    @override
    async def after_model_request(
        self, ctx: RunContext[object], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        tools = {tool.name for tool in request_context.model_request_parameters.function_tools}
        if any(isinstance(part, ToolCallPart) and part.tool_name in tools for part in response.parts):
            rounds = sum(_uses(message, tools) for message in request_context.messages)
            judge(deeds_in(request_context.messages, tools), rounds, self._limits)
        return response


def judge(deeds: Sequence[Deed], rounds: int, limits: TeamLimits) -> None:
    """Check whether an agent with these actions may continue.

    Raises:
        RefusedError: LOOP, STAGNATION or ITERATION_LIMIT.
    """
    for deed, count in Counter(deeds[-limits.window :]).items():
        if count >= limits.repeats:
            reason = f"the same action had the same result {count} times: {deed.action[:200]}"
            raise RefusedError(reason, "LOOP")
    if _in_vain(deeds) >= limits.stagnation:
        raise RefusedError(f"the last {limits.stagnation} actions have told nothing new", "STAGNATION")
    if rounds >= limits.iterations:
        raise RefusedError(f"it has used tools {rounds} times and is not through", "ITERATION_LIMIT")


def _in_vain(deeds: Sequence[Deed]) -> int:
    """Return how many of the latest actions have failed, or had known results."""
    known: set[str] = set()
    count = 0
    for deed in deeds:
        is_new = not deed.has_failed and deed.result not in known
        known.add(deed.result)
        count = 0 if is_new else count + 1
    return count


def deeds_in(messages: Sequence[ModelMessage], tools: set[str]) -> list[Deed]:
    """Return the tool uses of a run, in the order of the results.

    A model may reuse an id in a later answer: a result belongs to the latest call of its id.
    """
    calls: dict[str, ToolCallPart] = {}
    deeds: list[Deed] = []
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolCallPart) and part.tool_name in tools:
            calls[part.tool_call_id] = part
        elif isinstance(part, ToolReturnPart) and part.tool_call_id in calls:
            deeds.append(Deed(_action(calls[part.tool_call_id]), _stable_text(part.content), part.outcome != "success"))
    return deeds


def _uses(message: ModelMessage, tools: set[str]) -> bool:
    return any(isinstance(part, ToolCallPart) and part.tool_name in tools for part in message.parts)


def _action(call: ToolCallPart) -> str:
    return f"{call.tool_name} {_stable_text(call.args_as_dict())}"


def _stable_text(value: Any) -> str:
    """Return a value as text that is the same for the same value."""
    return json.dumps(value, sort_keys=True, default=repr)


# ---------------------------------------------------------------- the actor


_SHOWN = 500
"""The maximum length of a result in the record of a script, in characters."""


class _Result(NamedTuple):
    summary: str
    payload: dict[str, Any]
    operation: str = DISPLAY_MESSAGE


class TeamWorkerActor(Actor):
    """One worker, for all threads."""

    concurrency = 1000

    def __init__(self, roster: Roster, name: str) -> None:
        self._roster = roster
        self._name = name
        self._form = finished_of(roster.operations)

    @classmethod
    def ordering_key(cls, message: Message) -> str | None:
        """Handle tasks of one thread in parallel, if they are delegated in parallel."""
        return message.id

    @handles
    async def do_task(self, request: DoTeamTask, context: Context) -> TeamTaskDone:
        """Do a task."""
        async with at_work(context, self._name, request.turn, request.untrusted) as transcript:
            task = {"type": "task", "content": request.task, "agent_key": self._name, "call_id": transcript.call_id("task")}
            await self._begin(transcript, request, task)
            try:
                is_script = request.script is not None
                done = await (self._run(transcript, _steps(request.script)) if is_script else self._think(transcript, request))
            except (ParkedError, HistoryMismatchError):
                raise
            except DeliveryError as exc:
                if isinstance(exc, BudgetExceededError) and exc.limit is not None:
                    raise  # it continues with a new budget
                await self._fail(transcript, task, exc)
            content = {"operation": done.operation, "payload": done.payload, "human_readable_summary": done.summary}
            await transcript.answer(task, "final", "final", content=content)
            return TeamTaskDone(summary=done.summary, untrusted=transcript.taint.untrusted, final=content)

    async def _begin(self, transcript: Transcript, request: DoTeamTask, task: dict[str, Any]) -> None:
        await transcript.say("task", "task", content=request.task, call_id=task["call_id"], from_manager=request.manager)
        if request.suggested is not None:
            await transcript.say("suggested_plan", "suggested", content={"steps": request.suggested})
        bundle = {
            "manager_goal": request.goal,
            "worker_task": request.task,
            "worker_key": self._name,
            "script_steps": request.script,
            "suggested_plan": None if request.suggested is None else {"steps": request.suggested},
            "assembled_context": _prompt(request),
        }
        await transcript.say(
            "injected_context", "context", content={key: value for key, value in bundle.items() if value is not None}
        )

    async def _fail(self, transcript: Transcript, task: dict[str, Any], error: DeliveryError) -> NoReturn:
        await end_open_calls(transcript.run, transcript.run.course.invocation_id, error, besides=task["call_id"])
        said: Any = error.details if isinstance(error, RefusedError) else None
        content = {
            "error_message": error.reason,
            "error_type": error.code,
            **({} if said is None else {"details": thaw(said)}),
        }
        await transcript.answer(task, "error", "final", content=content)
        if isinstance(error, RefusedError):  # the error may quote untrusted content
            raise RefusedError(error.reason, error.code, details={"untrusted": transcript.taint.untrusted}) from error
        raise error

    # ------------------------------------------------------------ with its agent

    async def _think(self, transcript: Transcript, request: DoTeamTask) -> _Result:
        """Do the task with the agent.

        Raises:
            RefusedError: its models do not answer, a guard has stopped it, or it reports failure.
        """
        told = model_messages(await self._roster.history(request.history, transcript.taint), self._name)
        answer: Answer[Finished] = await self._roster.cast.ask(self._name, _prompt(request), output=self._form, history=told)
        said = answer.output
        if said.status == "failed":
            raise RefusedError(said.summary, "TASK_FAILED", details=said.data or None)
        last = None if said.chosen is not None else _response_in(_last_return(answer))
        payload = {"message": said.summary, **({} if last is None else last.payload), **said.data}
        return _Result(said.summary, payload, said.chosen or (DISPLAY_MESSAGE if last is None else last.operation))

    # ------------------------------------------------------------ by a script

    async def _run(self, transcript: Transcript, steps: Sequence[ScriptStep]) -> _Result:
        """Run the steps in order, without a model, up to the first failure.

        Raises:
            RefusedError: one has failed; the details are all steps so far.
        """
        records: list[dict[str, Any]] = []
        last: _Response | None = None
        for number, step in enumerate(steps):
            outcome = await self._step(transcript, number, step)
            last = _response_in(thaw(outcome.result))
            status = "FAILED" if outcome.is_error else "SUCCESS"
            result = outcome.error_message if outcome.is_error else _short(thaw(outcome.result))
            record = {"index": number, "name": step.name, "worker": self._name, "tool": step.tool_name}
            records.append({**record, "status": status, "args": thaw(step.args), "result": result})
            if outcome.is_error:
                reason = f"step {number} ({step.name}) failed: {outcome.error_message}"
                raise RefusedError(reason, "SCRIPT_FAILED", details={"overall_status": "FAILED", "steps": records})
        summary = "\n".join(f"{each['name']}: {_text(each['result'])}" for each in records)
        payload = {"overall_status": "SUCCESS", "steps": records}
        return _Result(summary, payload) if last is None else _Result(summary, {**payload, **last.payload}, last.operation)

    async def _step(self, transcript: Transcript, number: int, step: ScriptStep) -> OptionResultPayload:
        key = f"action-{number}"
        said = {"type": "action", "tool": step.tool_name, "args": thaw(step.args), "call_id": transcript.call_id(key)}
        await transcript.say(key=key, **said)
        outcome = await self._roster.cast.toolkit.call(
            self._name, step.tool_name, step.args, invocation_id=transcript.call_id(key)
        )
        if outcome.is_error:
            failure = {"error_message": outcome.error_message or "", "error_type": outcome.error_type, "tool": step.tool_name}
            await transcript.answer({**said, "agent_key": self._name}, "error", f"result-{number}", content=failure)
        else:
            result = thaw(outcome.result)
            await transcript.answer({**said, "agent_key": self._name}, "observation", f"result-{number}", content=result)
        return outcome


class _Response(NamedTuple):
    """The operation that a tool requests from the client."""

    operation: str
    payload: dict[str, Any]


def _last_return(answer: Answer[Finished]) -> Any:
    """Return the result of the agent's last tool call; None: there is none."""
    given = [part for message in answer.run.new_messages() if isinstance(message, ModelRequest) for part in message.parts]
    returns = [part.content for part in given if isinstance(part, ToolReturnPart) and not part.tool_name.startswith(OUTPUT)]
    return returns[-1] if returns else None


def _response_in(result: Any) -> _Response | None:
    """Return a tool result with `operation` and `payload` as a response; None for any other result."""
    given = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    operation, payload = given.get("operation"), given.get("payload")
    if isinstance(operation, str) and isinstance(payload, dict):
        return _Response(operation, cast("dict[str, Any]", payload))
    return None


def _steps(script: Any) -> list[ScriptStep]:
    return [ScriptStep.model_validate(thaw(step)) for step in script]


def _prompt(request: DoTeamTask) -> str:
    """Return the prompt: the task, its purpose, and the findings of others."""
    parts = [f"Task: {request.task}"]
    if request.goal != request.task:
        parts.append(f"It is part of: {request.goal}")
    if request.suggested:
        steps = "\n".join(f"{number}. {_suggestion(step)}" for number, step in enumerate(request.suggested, 1))
        parts.append(f"Suggested plan:\n{steps}")
    if request.previous:
        parts.append(f"Found so far:\n{request.previous}")
    return "\n\n".join(parts)


def _short(result: Json) -> Json:
    """Return a tool result, truncated: the observation has all of it."""
    text = _text(result)
    return result if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _text(result: Json) -> str:
    """Return a tool result as text: a text unchanged, anything else as JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _suggestion(step: Any) -> str:
    return f"{step['name']} ({step['notes']})" if step.get("notes") else str(step["name"])
