"""Team: the public class of the pattern; and its orchestrator, which plans a request in phases and answers the user.

The orchestrator delegates each phase. All phases run, in order or in parallel, according to the plan. A phase that cannot run,
because the plan names an unknown agent, fails like any other: its error is recorded, the next phase gets it, and the turn
fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Unpack

from typing_extensions import override

from antiphon.dialects.agent_framework import BaseMessageStore, Phase, RecordingMessageStore, StrategicPlanContent
from antiphon.durable import ledger_run
from antiphon.errors import ActorStoppedError, DeliveryError, WithdrawnError
from antiphon.ledger import Ledger
from antiphon.messages import current_port, thaw
from antiphon.messages._arguments import check_each, check_type
from antiphon.patterns.cast import AgentSpec, Cast, MessageHistory, Outcome, Pattern, PatternOptions, Task
from antiphon.patterns.cast._handling import UNHURRIED, request_key, side_by_side, stopped
from antiphon.patterns.cast._pattern import TaskInput, ThreadHistory, failed, read_answer
from antiphon.patterns.teams._members import Guards, ManagerActor, TeamWorkerActor
from antiphon.patterns.teams._plans import DISPLAY_MESSAGE, PhaseDraft, PlanDraft, plan_of
from antiphon.patterns.teams._roster import (
    ROLES,
    DoTeamTask,
    EndTurn,
    HistoryPlace,
    LeadPhase,
    ManagerSpec,
    Role,
    Roster,
    RunTurn,
    TeamLimits,
    TurnDone,
    delegate,
    end_open_calls,
)
from antiphon.patterns.teams._transcript import PATTERN, Entry, TeamStore, Transcript, at_work, read_conversation
from antiphon.runtime import Actor, Context, System, handles

# ---------------------------------------------------------------- the orchestrator

_SHOWN: Final = 500
"""The maximum length of a shown earlier message, in characters."""


@dataclass(frozen=True, slots=True)
class _PhaseEnd:
    phase: Phase
    summary: str
    code: str | None = None
    """The code of the error; None: the phase is completed."""
    is_global: bool = True
    """Whether the next phase gets it."""
    final: Any = None
    """The content of its `final`, if there is one."""

    @property
    def line(self) -> str:
        return f"{self.phase.name}: {self.summary}" if self.code is None else f"{self.phase.name} has failed: {self.summary}"


class OrchestratorActor(Actor):
    """The orchestrator, for all threads."""

    concurrency = 1000

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._form = plan_of(roster.assignees, roster.limits.phases)

    @handles
    async def run_turn(self, request: RunTurn, context: Context) -> TurnDone:
        """Carry out a request of a user, and answer."""
        name, turn = self._roster.orchestrator.name, context.course.invocation_id
        async with at_work(context, name, turn, None) as transcript:
            done = await _Turn(self._roster, self._form, context, transcript).take(request.text)
            transcript.handler.status = done.status
            return done

    @handles
    async def end_turn(self, notice: EndTurn, context: Context) -> None:
        """Close the calls that a cancelled turn left open."""
        async with ledger_run(context) as run:
            await stopped(run, notice.turn)
            await end_open_calls(run, notice.turn, WithdrawnError("the caller was cancelled"))
            thread = await run.ledger.thread(run.thread_id)
            if thread is not None and (thread.pattern, thread.status) == (PATTERN, "processing"):
                await run.journal.write(run.thread_id, (), status="cancelled")


class _Turn:
    """A turn of the conversation, from the request to the answer."""

    def __init__(self, roster: Roster, form: type[PlanDraft], context: Context, transcript: Transcript) -> None:
        self._roster, self._form, self._context, self._transcript = roster, form, context, transcript
        self._name = roster.orchestrator.name
        self._history = ThreadHistory()
        self._place: HistoryPlace | None = None

    async def take(self, text: str) -> TurnDone:
        place = self._transcript.run.thread_id, self._context.message.id
        self._history = await self._roster.history(place, self._transcript.taint)
        self._place = place if self._history else None
        record = await self._transcript.say("user_message", "user", content=text, agent_key=None)
        brief = await self._director_context(text, before=record.seq)
        await self._transcript.say("director_context", "director", content=brief)
        plan = await self._plan(text, brief)
        await self._transcript.say("strategic_plan", "plan", content=plan.to_dict())
        ends = await self._run(plan, text)
        answer = await self._answer(text, ends)
        failed = [end for end in ends if end.code is not None]
        untrusted = self._transcript.taint.untrusted
        marks = None if untrusted is None else {"untrusted": untrusted}
        await self._transcript.say("assistant_message", "answer", content=answer, agent_key=None, metadata=marks)
        if not failed:
            final = ends[0].final if len(ends) == 1 else None  # several phases have no common one
            return TurnDone(status="completed", response=answer, final=final)
        message = "; ".join(end.line for end in failed)
        return TurnDone(status="failed", response=answer, error_code=failed[0].code, error_message=message)

    # ------------------------------------------------------------ planning

    async def _director_context(self, text: str, *, before: int) -> str:
        """Return the prompt for the plan: the members, the earlier conversation, and the request."""
        roster = self._roster
        parts = [f"Your team:\n{await roster.described(roster.assignees)}"]
        conversation = await self._conversation(text, before=before)
        for entry in conversation:
            self._transcript.taint.mark(entry.get("metadata", {}).get("untrusted"))
        if conversation:
            lines = [f"{entry['type'].removesuffix('_message')}: {_short(entry['content'])}" for entry in conversation]
            parts.append("\n".join(("Earlier in this conversation:", *lines)))
        return "\n\n".join((*parts, f"Request: {text}"))

    async def _conversation(self, text: str, *, before: int) -> list[Entry]:
        """Return the earlier conversation: from the host's store at the start of the turn, else from the thread."""
        run, limit, store = self._transcript.run, self._roster.limits.conversation, self._roster.message_store
        if store is None:
            return await TeamStore(run.ledger).get_conversation_messages(run.thread_id, limit, before=before)

        async def read(key: str) -> list[Entry]:
            entries = await read_conversation(store, run.thread_id, limit=limit, request=text)
            # Shortened here, so that the plan uses the recorded form, even if the turn continues after a crash.
            return [{**entry, "content": _short(entry["content"])} for entry in entries]

        return await run.effect("read-store", {}, read, effects="none")

    async def _plan(self, text: str, brief: str) -> StrategicPlanContent:
        """Return the plan of the agent; without one, the first member gets the whole request."""
        prompt = f"{brief}\n\nPlan in phases what your team is to reach."
        draft = await self._roster.answer(self._name, prompt, self._form, self._history)
        if draft is None:
            phase = PhaseDraft(name="Whole request", worker=self._roster.assignees[0], goals=text)
            why = "No plan could be read, so the first of the team gets the whole request."
            draft = PlanDraft(refined_intent=text, phases=[phase], rationale=why)
        return draft.content()

    # ------------------------------------------------------------ phases

    async def _run(self, plan: StrategicPlanContent, text: str) -> list[_PhaseEnd]:
        phases = plan.plan.phases
        if (plan.plan.model_extra or {}).get("parallel"):
            return await side_by_side(self._phase(number, phase, text, None) for number, phase in enumerate(phases))
        ends: list[_PhaseEnd] = []
        for number, phase in enumerate(phases):
            ends.append(await self._phase(number, phase, text, ends[-1] if ends else None))
        return ends

    async def _phase(self, number: int, phase: Phase, text: str, before: _PhaseEnd | None) -> _PhaseEnd:
        """Delegate a phase to its manager or worker. A synthesis is recorded in any case."""
        goals, turn, untrusted = phase.goals or text, self._transcript.turn, self._transcript.taint.untrusted
        previous = before.line if before is not None and before.is_global else None
        roster, key = self._roster, f"phase-{number}"
        if roster.role_of(phase.worker) == "manager":
            lead = LeadPhase(
                phase_id=number,
                name=phase.name,
                goals=goals,
                notes=phase.notes,
                previous=previous,
                untrusted=untrusted,
                turn=turn,
                history=self._place,
            )
            led = await delegate(
                roster, self._context, self._transcript, phase.worker, lead, task=goals, key=key, among=roster.assignees
            )
            if led.reply is not None:  # the manager has recorded its synthesis
                is_global = roster.managers[phase.worker].is_global
                return _PhaseEnd(phase, led.end.summary, led.end.code, is_global, led.end.final)
            end = led.end
        else:
            do = DoTeamTask(
                task=goals,
                manager=self._name,
                goal=text,
                previous=previous,
                untrusted=untrusted,
                turn=turn,
                history=self._place,
            )
            done = await delegate(
                roster, self._context, self._transcript, phase.worker, do, task=goals, key=key, among=roster.workers
            )
            end = done.end
        await self._transcript.say(
            "synthesis", f"synthesis-{number}", content=end.summary, from_manager=self._name, phase_id=number
        )
        return _PhaseEnd(phase, end.summary, end.code, final=end.final)

    # ------------------------------------------------------------ the answer

    async def _answer(self, text: str, ends: Sequence[_PhaseEnd]) -> str:
        """Return the answer to the user: the result of the only phase, or the orchestrator's summary of all."""
        if len(ends) == 1 and ends[0].code is None:
            return ends[0].summary
        joined = "\n".join(end.line for end in ends)
        if len(ends) == 1:
            return joined
        prompt = f"Request: {text}\n\nWhat your team has reached:\n{joined}\n\nAnswer the request."
        return await self._roster.answer(self._name, prompt, str, self._history) or joined


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# ---------------------------------------------------------------- the public class

_ORCHESTRATOR: Final = AgentSpec(name="orchestrator", instructions="You plan what a team does, and answer for it.")


class Team(Pattern):
    """An orchestrator that plans in phases, managers that divide them, and workers that act."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        workers: Iterable[AgentSpec] = (),
        *,
        managers: Iterable[ManagerSpec] = (),
        orchestrator: AgentSpec = _ORCHESTRATOR,
        roles: Collection[Role] = ROLES,
        message_store: BaseMessageStore | None = None,
        operations: Sequence[str] = (DISPLAY_MESSAGE,),
        limits: TeamLimits = TeamLimits(),  # noqa: B008 (frozen)
        **common: Unpack[PatternOptions],
    ) -> None:
        """Make it; nothing runs before the `async with` block.

        `roles` are the roles whose actors run in this process. Workers may run in another process, which opens the same team
        with `roles=["worker"]` on the same ledger, and hosts threads (`await team.system.host()`).

        `message_store` is the host's own store of the conversation. If it has an `add_message`, it receives the messages of
        a turn before `run` returns. `operations` are the operations on its result that a worker may request from a client. The
        other options are those of every pattern: see `Pattern` and `Cast`.

        Raises:
            SetupError: two agents have the same name, a manager names an unknown worker, a tool does not exist, or there are
                no workers or operations.
        """
        super().__init__(ledger, **common)
        check_type("limits", limits, TeamLimits, "TeamLimits(phases=3)")
        check_type("orchestrator", orchestrator, AgentSpec, 'AgentSpec(name="ada")')
        managers = check_each("managers", managers, ManagerSpec, 'ManagerSpec(name="ada", workers=("bob",))')
        workers = check_each("workers", workers, AgentSpec, 'AgentSpec(name="bob")')
        cast = Cast(self.ledger, (orchestrator, *managers, *workers), capabilities=[Guards(limits)], **self.cast_options)
        self.roster = Roster(
            cast,
            orchestrator,
            {manager.name: manager for manager in managers},
            {worker.name: worker for worker in workers},
            limits,
            roles,
            message_store,
            check_each("operations", operations, str, '"display_message"'),
        )
        self.store = TeamStore(self.ledger)
        """The messages of the team, in several views."""

    @override
    def casts(self) -> Iterable[Cast]:
        return (self.roster.cast,)

    @override
    def host(self, system: System) -> None:
        """Start the actors of the roles that run in this process."""
        roster = self.roster
        if "orchestrator" in roster.roles:
            system.spawn(roster.address(roster.orchestrator.name), partial(OrchestratorActor, roster))
        for name in roster.managers if "manager" in roster.roles else ():
            system.spawn(roster.address(name), partial(ManagerActor, roster, name))
        for name in roster.workers if "worker" in roster.roles else ():
            system.spawn(roster.address(name), partial(TeamWorkerActor, roster, name))

    @override
    async def run(self, task: Task, *, thread_id: str | None = None, message_history: MessageHistory = ()) -> Outcome:
        """Carry out a request of a user, and return the outcome. All agents that are asked read the history.

        The same task in the same thread continues where it stopped, or returns the recorded outcome.

        Raises:
            Exception: an error of the host store's `add_message`; the same task passes the messages to it again.
        """
        thread_id = thread_id or current_port().new_id()
        address = self.roster.address(self.roster.orchestrator.name)
        request = TaskInput.of(task, message_history)
        turn = request_key("turn", address, thread_id, *request.identity)
        await request.hand_over(self.system, thread_id, turn)
        try:
            done = await self.system.ask(address, RunTurn(text=request.text), within=UNHURRIED, thread_id=thread_id, id=turn)
        except asyncio.CancelledError:
            # Shielded: a second cancellation of the caller would leave the calls of the turn open.
            await asyncio.shield(self._give_up(address, thread_id, turn))
            raise
        except DeliveryError as exc:
            outcome = failed(thread_id, exc)
        else:
            outcome = Outcome(
                thread_id,
                done.status,
                done.response,
                done.error_code,
                done.error_message,
                data=thaw(done.final),
                messages=await read_answer(self.ledger, thread_id, lambda message: message.id == f"{turn}/answer"),
            )
        store: object = self.roster.message_store
        if isinstance(store, RecordingMessageStore):
            for entry in await self.store.get_messages(thread_id, turn=turn):
                if (adding := store.add_message(thread_id, entry)) is not None:
                    await adding
        return outcome

    async def _give_up(self, address: str, thread_id: str, turn: str) -> None:
        """Close the calls that a cancelled turn left open. In a closed system they stay open for the next one."""
        with suppress(ActorStoppedError):
            await self.system.tell(address, EndTurn(turn=turn), thread_id=thread_id, id=f"{turn}.end")
