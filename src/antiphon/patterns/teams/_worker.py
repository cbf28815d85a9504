"""WorkerActor: does a task with its agent, or runs the steps of a script; what it does on the way stands in the thread.

A task ends with a `final`, or with an `error` where something was raised, a limit was reached, or the agent says that it
could not do it. What a tool gives back that has done its work and found something wrong is an observation like any other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, cast

from pydantic_ai.messages import ModelRequest, ToolReturnPart

from antiphon.dialects.agent_framework import ScriptStep
from antiphon.errors import DeliveryError, HistoryMismatchError, ParkedError, RefusedError
from antiphon.messages import Json, Message, OptionResultPayload, thaw
from antiphon.patterns.cast import Answer, model_messages
from antiphon.patterns.teams._crew import Crew
from antiphon.patterns.teams._endings import end_open_calls
from antiphon.patterns.teams._plans import DISPLAY_MESSAGE, Finished, finished_of
from antiphon.patterns.teams._requests import DoTask, TaskDone
from antiphon.patterns.teams._store import OUTPUT
from antiphon.patterns.teams._voice import Voice, at_work
from antiphon.runtime import Actor, Context, handles

__all__ = ["WorkerActor"]

_SHOWN = 500
"""Characters of a result that are shown in the record of a script."""


class _Result(NamedTuple):
    summary: str
    payload: dict[str, Any]
    operation: str = DISPLAY_MESSAGE


class WorkerActor(Actor):
    """One worker, for all threads."""

    concurrency = 1000

    def __init__(self, crew: Crew, name: str) -> None:
        self._crew = crew
        self._name = name
        self._form = finished_of(crew.operations)

    @classmethod
    def ordering_key(cls, message: Message) -> str | None:
        """Let tasks of one thread be done side by side, if they are delegated so."""
        return message.id

    @handles
    async def do_task(self, request: DoTask, context: Context) -> TaskDone:
        """Do a task."""
        async with at_work(context, self._name, request.turn, request.untrusted) as voice:
            task = {"type": "task", "content": request.task, "agent_key": self._name, "call_id": voice.call_id("task")}
            await self._begin(voice, request, task)
            try:
                is_script = request.script is not None
                done = await (self._run(voice, _steps(request.script)) if is_script else self._think(voice, request))
            except (ParkedError, HistoryMismatchError):
                raise
            except DeliveryError as exc:
                await self._fail(voice, task, exc)
            content = {"operation": done.operation, "payload": done.payload, "human_readable_summary": done.summary}
            await voice.answer(task, "final", "final", content=content)
            return TaskDone(summary=done.summary, untrusted=voice.taint.untrusted, final=content)

    async def _begin(self, voice: Voice, request: DoTask, task: dict[str, Any]) -> None:
        await voice.say("task", "task", content=request.task, call_id=task["call_id"], from_manager=request.manager)
        if request.suggested is not None:
            await voice.say("suggested_plan", "suggested", content={"steps": request.suggested})
        bundle = {
            "manager_goal": request.goal,
            "worker_task": request.task,
            "worker_key": self._name,
            "script_steps": request.script,
            "suggested_plan": None if request.suggested is None else {"steps": request.suggested},
            "assembled_context": _prompt(request),
        }
        await voice.say(
            "injected_context", "context", content={key: value for key, value in bundle.items() if value is not None}
        )

    async def _fail(self, voice: Voice, task: dict[str, Any], error: DeliveryError) -> NoReturn:
        await end_open_calls(voice.run, voice.run.course.invocation_id, error, besides=task["call_id"])
        said: Any = error.details if isinstance(error, RefusedError) else None
        content = {
            "error_message": error.reason,
            "error_type": error.code,
            **({} if said is None else {"details": thaw(said)}),
        }
        await voice.answer(task, "error", "final", content=content)
        if isinstance(error, RefusedError):  # what it says may be in a stranger's words
            raise RefusedError(error.reason, error.code, details={"untrusted": voice.taint.untrusted}) from error
        raise error

    # ------------------------------------------------------------ with its agent

    async def _think(self, voice: Voice, request: DoTask) -> _Result:
        """Have the agent do it.

        Raises:
            RefusedError: its models do not answer, a guard has stopped it, or it says that it has failed.
        """
        told = model_messages(await self._crew.history(request.history, voice.taint), self._name)
        answer: Answer[Finished] = await self._crew.cast.ask(self._name, _prompt(request), output=self._form, history=told)
        said = answer.output
        if said.status == "failed":
            raise RefusedError(said.summary, "TASK_FAILED", details=said.data or None)
        last = None if said.chosen is not None else _response_in(_last_return(answer))
        payload = {"message": said.summary, **({} if last is None else last.payload), **said.data}
        return _Result(said.summary, payload, said.chosen or (DISPLAY_MESSAGE if last is None else last.operation))

    # ------------------------------------------------------------ by a script

    async def _run(self, voice: Voice, steps: Sequence[ScriptStep]) -> _Result:
        """Run the steps one after the other, without a model, up to the first that fails.

        Raises:
            RefusedError: one has failed; the details are all steps so far.
        """
        records: list[dict[str, Any]] = []
        last: _Response | None = None
        for number, step in enumerate(steps):
            outcome = await self._step(voice, number, step)
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

    async def _step(self, voice: Voice, number: int, step: ScriptStep) -> OptionResultPayload:
        key = f"action-{number}"
        said = {"type": "action", "tool": step.tool_name, "args": thaw(step.args), "call_id": voice.call_id(key)}
        await voice.say(key=key, **said)
        outcome = await self._crew.cast.toolkit.call(self._name, step.tool_name, step.args, invocation_id=voice.call_id(key))
        if outcome.is_error:
            failure = {"error_message": outcome.error_message or "", "error_type": outcome.error_type, "tool": step.tool_name}
            await voice.answer({**said, "agent_key": self._name}, "error", f"result-{number}", content=failure)
        else:
            result = thaw(outcome.result)
            await voice.answer({**said, "agent_key": self._name}, "observation", f"result-{number}", content=result)
        return outcome


class _Response(NamedTuple):
    """What a tool says that a client is to do with its result."""

    operation: str
    payload: dict[str, Any]


def _last_return(answer: Answer[Finished]) -> Any:
    """Return what the last tool gave back that the agent has called; None where it has called none."""
    given = [part for message in answer.run.new_messages() if isinstance(message, ModelRequest) for part in message.parts]
    returns = [part.content for part in given if isinstance(part, ToolReturnPart) and not part.tool_name.startswith(OUTPUT)]
    return returns[-1] if returns else None


def _response_in(result: Any) -> _Response | None:
    """Return the response that a tool's result is, by its `operation` and `payload`; None for any other result."""
    given = cast("dict[str, Any]", result) if isinstance(result, dict) else {}
    operation, payload = given.get("operation"), given.get("payload")
    if isinstance(operation, str) and isinstance(payload, dict):
        return _Response(operation, cast("dict[str, Any]", payload))
    return None


def _steps(script: Any) -> list[ScriptStep]:
    return [ScriptStep.model_validate(thaw(step)) for step in script]


def _prompt(request: DoTask) -> str:
    """Return what the agent is asked: the task, what it is for, and what others have found."""
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
    """Return what a tool gave, or the beginning of that: the whole is its observation."""
    text = _text(result)
    return result if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _text(result: Json) -> str:
    """Return what a tool gave as people and models read it: a text as it is, anything else as JSON."""
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


def _suggestion(step: Any) -> str:
    return f"{step['name']} ({step['notes']})" if step.get("notes") else str(step["name"])
