"""The members of a team under its orchestrator: `ManagerActor` and `TeamWorkerActor`.

**A manager** divides a phase into parts, delegates them to its workers, and records the outcome as a synthesis.

**A worker** carries out a task with its agent, or runs the steps of a script, and stops an agent without progress. A task ends
with a `final`, or with an `error` if an exception was raised, a limit was reached, or the agent reports a failure. A tool
result that reports a problem is an observation like any other.

`Guards` check a run each time its model calls tools again, so they never stop an agent that has finished. They read the run's
own history, so a run that continues after a crash gets the same verdict.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, cast

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from pydantic_ai.models import ModelRequestContext
from typing_extensions import override

from antiphon.dialects.agent_framework import ScriptPlanContent, ScriptStep
from antiphon.errors import BudgetExceededError, DeliveryError, HistoryMismatchError, ParkedError, RefusedError
from antiphon.messages import Json, OptionResultPayload, thaw
from antiphon.patterns.cast import Answer
from antiphon.patterns.cast._cast import tool_uses
from antiphon.patterns.cast._handling import AgentActor, side_by_side
from antiphon.patterns.cast._pattern import ThreadHistory, json_text
from antiphon.patterns.teams._plans import (
    DISPLAY_MESSAGE,
    Finished,
    ScriptDraft,
    Segment,
    StepsDraft,
    finished_of,
    problems_of,
    segments_of,
    steps_of,
)
from antiphon.patterns.teams._roster import (
    DelegationEnd,
    DoTeamTask,
    LeadPhase,
    ManagerSpec,
    PhaseDone,
    Roster,
    Status,
    TeamLimits,
    TeamTaskDone,
    delegate,
    end_open_calls,
)
from antiphon.patterns.teams._transcript import OUTPUT, Transcript, at_work
from antiphon.runtime import Context, handles

# ---------------------------------------------------------------- managers

_TRIES = 2
"""How often a model may write a script; the second time, it gets the errors of the first."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The task of one worker."""

    worker: str
    task: str
    suggested: Json = None
    script: Json = None

    @classmethod
    def of(cls, segment: Segment) -> Assignment:
        """Return a segment of a script as a task."""
        if segment.is_direct:
            return cls(segment.worker, segment.task, script=segment.script())
        return cls(segment.worker, segment.task, suggested=segment.suggested())


class ManagerActor(AgentActor):
    """One manager, for all threads."""

    def __init__(self, roster: Roster, name: str) -> None:
        self._roster = roster
        self._spec = roster.managers[name]
        self._form = steps_of(self._spec.workers, roster.limits.steps)

    @handles
    async def lead_phase(self, request: LeadPhase, context: Context) -> PhaseDone:
        """Carry out a phase of a plan."""
        async with at_work(context, self._spec.name, request.turn, request.untrusted) as transcript:
            history = await self._roster.history(request.history, transcript.taint)
            return await _Phase(self._roster, self._spec, self._form, request, context, transcript, history).lead()


@dataclass(frozen=True, slots=True)
class _Phase:
    """One phase that is being carried out."""

    _roster: Roster
    _spec: ManagerSpec
    _form: type[StepsDraft]
    _request: LeadPhase
    _context: Context
    _transcript: Transcript
    _history: ThreadHistory

    async def lead(self) -> PhaseDone:
        brief = await self._director_context()
        await self._transcript.say("director_context", "director", content=brief)
        try:
            assignments, is_parallel = await self._assignments(brief)
        except _UnfitScriptError as exc:
            await self._transcript.say("error", "unfit", content={"error_message": str(exc), "error_type": "INVALID_SCRIPT"})
            return await self._synthesise("failed", f"The script cannot be run: {exc}", "INVALID_SCRIPT")
        ends = await self._run(assignments, is_parallel=is_parallel)
        failed = next((end for end in ends if not end.is_result), None)
        summary = await self._summary(brief, ends)
        final = ends[0].final if len(ends) == 1 else None
        return await self._synthesise("failed" if failed else "completed", summary, failed.code if failed else None, final)

    # ------------------------------------------------------------ planning

    async def _director_context(self) -> str:
        request = self._request
        parts = [f"Goal of phase {request.phase_id} ({request.name}): {request.goals}"]
        if request.notes:
            parts.append(f"Notes: {request.notes}")
        parts.append(f"Your workers:\n{await self._roster.described(self._spec.workers)}")
        if request.previous:
            parts.append(f"Outcome of the previous phase:\n{request.previous}")
        return "\n\n".join(parts)

    async def _assignments(self, brief: str) -> tuple[list[Assignment], bool]:
        """Return the tasks, and whether they run in parallel."""
        goals, workers = self._request.goals, self._spec.workers
        if self._spec.script is not None or self._spec.plans == "script":
            return [Assignment.of(segment) for segment in segments_of(await self._script(brief))], False
        if self._spec.plans == "whole":
            return [Assignment(name, goals) for name in workers], True
        prompt = f"{brief}\n\nBreak the phase into steps, each for one worker."
        draft = await self._roster.answer(self._spec.name, prompt, self._form, self._history)
        if draft is None:
            return [Assignment(workers[0], goals)], False  # without a plan, the first worker gets the whole phase
        return [Assignment(step.worker, step.task) for step in draft.steps], draft.parallel

    async def _script(self, brief: str) -> ScriptPlanContent:
        """Return a valid script, recorded as a `script_plan`."""
        problems: list[str] = []
        for number in range(1 if self._spec.script is not None else _TRIES):
            script = await self._write_script(brief, problems)
            await self._transcript.say("script_plan", f"script-{number}", content=script.to_dict())
            problems = await self._check_script(script)
            if not problems:
                return script
        raise _UnfitScriptError("; ".join(problems))

    async def _write_script(self, brief: str, problems: Sequence[str]) -> ScriptPlanContent:
        if self._spec.script is not None:
            return ScriptPlanContent(goal=self._request.goals, steps=self._spec.script)
        prompt = f"{brief}\n\nWrite the phase as a script of tool calls."
        if problems:
            prompt += "\n\nThe last script could not be run:\n" + "\n".join(problems)
        name, history = self._spec.name, self._history.quoted(self._spec.name)
        answer: Answer[ScriptDraft] = await self._roster.cast.ask(name, prompt, output=ScriptDraft, history=history)
        return ScriptPlanContent.model_validate(answer.output.model_dump(exclude_none=True))

    async def _check_script(self, script: ScriptPlanContent) -> list[str]:
        """Return the errors of a script: as an effect, because the available tools may change before a restart."""

        async def check(key: str) -> list[str]:
            if len(script.steps) > self._roster.limits.steps:
                return [f"it has more than {self._roster.limits.steps} steps"]
            return list(await problems_of(script, self._spec.workers, self._roster.cast))

        return await self._transcript.run.effect("check-script", {}, check, effects="none")

    # ------------------------------------------------------------ delegation

    async def _run(self, assignments: Sequence[Assignment], *, is_parallel: bool) -> list[DelegationEnd]:
        """Delegate the tasks: all in parallel, or one after the other up to the first failure."""
        if is_parallel:
            return await side_by_side(self._delegate(number, task, None) for number, task in enumerate(assignments))
        ends: list[DelegationEnd] = []
        for number, assignment in enumerate(assignments):
            ends.append(await self._delegate(number, assignment, ends[-1] if ends else None))
            if not ends[-1].is_result:
                break
        return ends

    async def _delegate(self, number: int, assignment: Assignment, before: DelegationEnd | None) -> DelegationEnd:
        findings = [self._request.previous, before and f"{before.worker}: {before.summary}"]
        request = DoTeamTask(
            task=assignment.task,
            manager=self._spec.name,
            goal=self._request.goals,
            previous="\n".join(finding for finding in findings if finding) or None,
            suggested=assignment.suggested,
            script=assignment.script,
            untrusted=self._transcript.taint.untrusted,
            turn=self._request.turn,
            history=self._request.history,
        )
        delegation = await delegate(
            self._roster,
            self._context,
            self._transcript,
            assignment.worker,
            request,
            task=assignment.task,
            key=f"step-{number}",
            among=self._spec.workers,
        )
        return delegation.end

    # ------------------------------------------------------------ the synthesis

    async def _summary(self, brief: str, ends: Sequence[DelegationEnd]) -> str:
        """Return the outcome of a phase as text: the result of the only worker, or the manager's summary of all."""
        joined = " | ".join(_line(end) for end in ends)
        if len(ends) == 1:
            return ends[0].summary
        prompt = f"{brief}\n\nYour workers say:\n{joined}\n\nSum up what was reached."
        return await self._roster.answer(self._spec.name, prompt, str, self._history) or joined

    async def _synthesise(self, status: Status, summary: str, code: str | None, final: Any = None) -> PhaseDone:
        await self._transcript.say(
            "synthesis",
            "synthesis",
            content=summary,
            from_manager=self._spec.name,
            phase_id=self._request.phase_id,
            is_global=None if self._spec.is_global else False,
        )
        untrusted = self._transcript.taint.untrusted
        return PhaseDone(status=status, synthesis=summary, error_code=code, untrusted=untrusted, final=final)


class _UnfitScriptError(Exception):
    """A script is invalid; the text has the reason."""


def _line(end: DelegationEnd) -> str:
    return f"{end.worker}: {end.summary}" if end.is_result else f"{end.worker}: {end.status}: {end.summary}"


# ---------------------------------------------------------------- workers: guards


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
        if _uses(response, tools):
            responses = [message for message in request_context.messages if isinstance(message, ModelResponse)]
            rounds = sum(_uses(response, tools) for response in responses)
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
    results: set[str] = set()
    in_vain = 0
    for deed in deeds:
        is_new = not deed.has_failed and deed.result not in results
        results.add(deed.result)
        in_vain = 0 if is_new else in_vain + 1
    if in_vain >= limits.stagnation:
        raise RefusedError(f"the last {limits.stagnation} actions have told nothing new", "STAGNATION")
    if rounds >= limits.iterations:
        raise RefusedError(f"it has used tools {rounds} times and is not through", "ITERATION_LIMIT")


def deeds_in(messages: Sequence[ModelMessage], tools: set[str]) -> list[Deed]:
    """Return the uses of these tools in a run that have a result."""
    return [
        Deed(
            f"{call.tool_name} {_stable_text(call.args_as_dict())}", _stable_text(result.content), result.outcome != "success"
        )
        for call, result in tool_uses(messages)
        if call.tool_name in tools and result is not None
    ]


def _uses(response: ModelResponse, tools: set[str]) -> bool:
    return any(isinstance(part, ToolCallPart) and part.tool_name in tools for part in response.parts)


def _stable_text(value: Any) -> str:
    """Return a value as text that is the same for the same value."""
    return json.dumps(value, sort_keys=True, default=repr)


# ---------------------------------------------------------------- workers: the actor

_SHOWN = 500
"""The maximum length of a result in the record of a script, in characters."""


class _Result(NamedTuple):
    summary: str
    payload: dict[str, Any]
    operation: str = DISPLAY_MESSAGE


class TeamWorkerActor(AgentActor):
    """One worker, for all threads."""

    def __init__(self, roster: Roster, name: str) -> None:
        self._roster = roster
        self._name = name
        self._form = finished_of(roster.operations)

    @handles
    async def do_task(self, request: DoTeamTask, context: Context) -> TeamTaskDone:
        """Do a task."""
        async with at_work(context, self._name, request.turn, request.untrusted) as transcript:
            task = {"type": "task", "content": request.task, "agent_key": self._name, "call_id": transcript.call_id("task")}
            await self._begin(transcript, request, task)
            try:
                if request.script is None:
                    done = await self._think(transcript, request)
                else:
                    steps = [ScriptStep.model_validate(thaw(step)) for step in request.script]
                    done = await self._run(transcript, steps)
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
        content: dict[str, Any] = {"error_message": error.reason, "error_type": error.code}
        details: Any = error.details if isinstance(error, RefusedError) else None
        if details is not None:
            content["details"] = thaw(details)
        await transcript.answer(task, "error", "final", content=content)
        if isinstance(error, RefusedError):  # the error may quote untrusted content
            raise RefusedError(error.reason, error.code, details={"untrusted": transcript.taint.untrusted}) from error
        raise error

    # ------------------------------------------------------------ with its agent

    async def _think(self, transcript: Transcript, request: DoTeamTask) -> _Result:
        """Do the task with the agent."""
        history = (await self._roster.history(request.history, transcript.taint)).quoted(self._name)
        answer: Answer[Finished] = await self._roster.cast.ask(
            self._name, _prompt(request), output=self._form, history=history
        )
        finished = answer.output
        if finished.status == "failed":
            raise RefusedError(finished.summary, "TASK_FAILED", details=finished.data or None)
        last = None if finished.chosen is not None else _response_in(_last_return(answer))
        payload = {"message": finished.summary, **({} if last is None else last.payload), **finished.data}
        operation = finished.chosen or (DISPLAY_MESSAGE if last is None else last.operation)
        return _Result(finished.summary, payload, operation)

    # ------------------------------------------------------------ by a script

    async def _run(self, transcript: Transcript, steps: Sequence[ScriptStep]) -> _Result:
        """Run the steps in order, without a model, up to the first failure."""
        records: list[dict[str, Any]] = []
        last: _Response | None = None
        for number, step in enumerate(steps):
            outcome = await self._run_step(transcript, number, step)
            last = _response_in(thaw(outcome.result))
            status = "FAILED" if outcome.is_error else "SUCCESS"
            result = outcome.error_message if outcome.is_error else _short(thaw(outcome.result))
            heading = {"index": number, "name": step.name, "worker": self._name, "tool": step.tool_name}
            records.append({**heading, "status": status, "args": thaw(step.args), "result": result})
            if outcome.is_error:
                reason = f"step {number} ({step.name}) failed: {outcome.error_message}"
                raise RefusedError(reason, "SCRIPT_FAILED", details={"overall_status": "FAILED", "steps": records})
        summary = "\n".join(f"{record['name']}: {json_text(record['result'])}" for record in records)
        payload = {"overall_status": "SUCCESS", "steps": records}
        return _Result(summary, payload) if last is None else _Result(summary, {**payload, **last.payload}, last.operation)

    async def _run_step(self, transcript: Transcript, number: int, step: ScriptStep) -> OptionResultPayload:
        key = f"action-{number}"
        action = {"type": "action", "tool": step.tool_name, "args": thaw(step.args), "call_id": transcript.call_id(key)}
        await transcript.say(key=key, **action)
        outcome = await self._roster.cast.toolkit.call(
            self._name, step.tool_name, step.args, invocation_id=transcript.call_id(key)
        )
        if outcome.is_error:
            failure = {"error_message": outcome.error_message or "", "error_type": outcome.error_type, "tool": step.tool_name}
            await transcript.answer({**action, "agent_key": self._name}, "error", f"result-{number}", content=failure)
        else:
            result = thaw(outcome.result)
            await transcript.answer({**action, "agent_key": self._name}, "observation", f"result-{number}", content=result)
        return outcome


class _Response(NamedTuple):
    """The operation that a tool requests from the client."""

    operation: str
    payload: dict[str, Any]


def _last_return(answer: Answer[Finished]) -> Any:
    """Return the result of the agent's last tool call; None: there is none."""
    requests = [message for message in answer.run.new_messages() if isinstance(message, ModelRequest)]
    returns = [part for request in requests for part in request.parts if isinstance(part, ToolReturnPart)]
    contents = [part.content for part in returns if not part.tool_name.startswith(OUTPUT)]
    return contents[-1] if contents else None


def _response_in(result: Any) -> _Response | None:
    """Return a tool result with `operation` and `payload` as a response; None for any other result."""
    match result:
        case {"operation": str(operation), "payload": dict()}:
            return _Response(operation, cast("dict[str, Any]", result["payload"]))
        case _:
            return None


def _prompt(request: DoTeamTask) -> str:
    """Return the prompt: the task, its purpose, and the findings of others."""
    parts = [f"Task: {request.task}"]
    if request.goal != request.task:
        parts.append(f"It is part of: {request.goal}")
    if request.suggested:
        lines = [
            f"{number}. {step['name']}{f' ({notes})' if (notes := step.get('notes')) else ''}"
            for number, step in enumerate(request.suggested, 1)
        ]
        parts.append("\n".join(("Suggested plan:", *lines)))
    if request.previous:
        parts.append(f"Found so far:\n{request.previous}")
    return "\n\n".join(parts)


def _short(result: Json) -> Json:
    """Return a tool result, truncated: the observation has all of it."""
    text = json_text(result)
    return result if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
