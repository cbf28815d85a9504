"""ManagerActor: divides a phase into parts, delegates them to its workers, and records the outcome as a synthesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.dialects.agent_framework import ScriptPlanContent
from antiphon.messages import Conversation, Json, Message
from antiphon.patterns.cast import Answer, model_messages
from antiphon.patterns.teams._delegation import DelegationEnd, delegate, side_by_side
from antiphon.patterns.teams._plans import ScriptDraft, Segment, StepsDraft, problems_of, segments_of, steps_of
from antiphon.patterns.teams._protocol import DoTeamTask, LeadPhase, ManagerSpec, PhaseDone, Status
from antiphon.patterns.teams._roster import Roster
from antiphon.patterns.teams._transcript import Transcript, at_work
from antiphon.runtime import Actor, Context, handles

_TRIES = 2
"""How often a model may write a script; the second time, it gets the errors of the first."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The task of one worker."""

    worker: str
    task: str
    suggested: Json = None
    script: Json = None


class ManagerActor(Actor):
    """One manager, for all threads."""

    concurrency = 1000

    def __init__(self, roster: Roster, name: str) -> None:
        self._roster = roster
        self._spec = roster.managers[name]
        self._form = steps_of(self._spec.workers, roster.limits.steps)

    @classmethod
    def ordering_key(cls, message: Message) -> str | None:
        """Handle phases of one thread in parallel, if the plan requires it."""
        return message.id

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
    _history: Conversation

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
            return [_of_segment(each) for each in segments_of(await self._script(brief))], False
        if self._spec.plans == "whole":
            return [Assignment(name, goals) for name in workers], True
        prompt = f"{brief}\n\nBreak the phase into steps, each for one worker."
        draft = await self._roster.answer(self._spec.name, prompt, self._form, self._history)
        if draft is None:
            return [Assignment(workers[0], goals)], False  # without a plan, the first worker gets the whole phase
        return [Assignment(step.worker, step.task) for step in draft.steps], draft.parallel

    async def _script(self, brief: str) -> ScriptPlanContent:
        """Return a valid script, recorded as a `script_plan`.

        Raises:
            _UnfitScriptError: there is none.
        """
        problems: list[str] = []
        for number in range(1 if self._spec.script is not None else _TRIES):
            script = await self._written(brief, problems)
            await self._transcript.say("script_plan", f"script-{number}", content=script.to_dict())
            problems = await self._checked(script)
            if not problems:
                return script
        raise _UnfitScriptError("; ".join(problems))

    async def _written(self, brief: str, problems: Sequence[str]) -> ScriptPlanContent:
        if self._spec.script is not None:
            return ScriptPlanContent(goal=self._request.goals, steps=self._spec.script)
        prompt = f"{brief}\n\nWrite the phase as a script of tool calls."
        if problems:
            prompt += "\n\nThe last script could not be run:\n" + "\n".join(problems)
        told = model_messages(self._history, self._spec.name)
        answer: Answer[ScriptDraft] = await self._roster.cast.ask(self._spec.name, prompt, output=ScriptDraft, history=told)
        return ScriptPlanContent.model_validate(answer.output.model_dump(exclude_none=True))

    async def _checked(self, script: ScriptPlanContent) -> list[str]:
        """Return the errors of a script: as an effect, because the available tools may change before a restart."""

        async def check(key: str) -> Json:
            if len(script.steps) > self._roster.limits.steps:
                return [f"it has more than {self._roster.limits.steps} steps"]
            return list(await problems_of(script, self._spec.workers, self._roster.cast))

        found: list[str] = await self._transcript.run.effect("check-script", {}, check, effects="none")
        return found

    # ------------------------------------------------------------ delegation

    async def _run(self, assignments: Sequence[Assignment], *, is_parallel: bool) -> list[DelegationEnd]:
        """Delegate the tasks: all in parallel, or one after the other up to the first failure."""
        if is_parallel:
            return await side_by_side(self._delegated(number, each, None) for number, each in enumerate(assignments))
        ends: list[DelegationEnd] = []
        for number, each in enumerate(assignments):
            ends.append(await self._delegated(number, each, ends[-1] if ends else None))
            if not ends[-1].is_result:
                break
        return ends

    async def _delegated(self, number: int, assignment: Assignment, before: DelegationEnd | None) -> DelegationEnd:
        found = [self._request.previous, before and f"{before.worker}: {before.summary}"]
        more: dict[str, Any] = {
            "suggested": assignment.suggested,
            "script": assignment.script,
            "history": self._request.history,
        }
        request = DoTeamTask(
            task=assignment.task,
            manager=self._spec.name,
            goal=self._request.goals,
            previous="\n".join(each for each in found if each) or None,
            untrusted=self._transcript.taint.untrusted,
            turn=self._request.turn,
            **{name: value for name, value in more.items() if value is not None},
        )
        given = self._roster, self._context, self._transcript, assignment.worker, request
        return (await delegate(*given, task=assignment.task, key=f"step-{number}", among=self._spec.workers)).end

    # ------------------------------------------------------------ the synthesis

    async def _summary(self, brief: str, ends: Sequence[DelegationEnd]) -> str:
        """Return the outcome of a phase as text: the result of the only worker, or the manager's summary of all."""
        joined = " | ".join(_line(end) for end in ends)
        if len(ends) == 1:
            return ends[0].summary
        prompt = f"{brief}\n\nYour workers say:\n{joined}\n\nSum up what was reached."
        return await self._roster.answer(self._spec.name, prompt, str, self._history) or joined

    async def _synthesise(self, status: Status, summary: str, code: str | None, final: Any = None) -> PhaseDone:
        said: dict[str, Any] = {"from_manager": self._spec.name, "phase_id": self._request.phase_id}
        if not self._spec.is_global:
            said["is_global"] = False
        await self._transcript.say("synthesis", "synthesis", content=summary, **said)
        more: dict[str, Any] = {} if final is None else {"final": final}
        return PhaseDone(status=status, synthesis=summary, error_code=code, untrusted=self._transcript.taint.untrusted, **more)


class _UnfitScriptError(Exception):
    """A script is invalid; the text has the reason."""


def _of_segment(segment: Segment) -> Assignment:
    if segment.is_direct:
        return Assignment(segment.worker, segment.task, script=segment.script())
    return Assignment(segment.worker, segment.task, suggested=segment.suggested())


def _line(end: DelegationEnd) -> str:
    return f"{end.worker}: {end.summary}" if end.is_result else f"{end.worker}: {end.status}: {end.summary}"
