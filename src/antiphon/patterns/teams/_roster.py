"""Roster: the members of a team, their specs, limits and addresses, the state that they share, and delegation between them.

**Delegation.** A member of a team gives a task to another. It ends exactly once, even if the other member fails. The
`delegation` is recorded before the request, and its end after that, as its answer: an `observation` for a result, an `error`
for anything else. The caller closes the calls that a stopped member left open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from antiphon import errors
from antiphon.agents._config import known_names
from antiphon.agents.toolkit._taint import Taint
from antiphon.dialects.agent_framework import BaseMessageStore, ScriptStep
from antiphon.errors import RefusedError, SetupError
from antiphon.messages import Json, thaw
from antiphon.patterns.cast import AgentSpec, Answer, Cast, _handling
from antiphon.patterns.cast._handling import UNHURRIED, stopped
from antiphon.patterns.cast._pattern import ThreadHistory, read_history
from antiphon.patterns.teams._plans import DISPLAY_MESSAGE
from antiphon.patterns.teams._transcript import DIALECT, Transcript
from antiphon.protocol import ErrorCode, Notice, Reply, Request
from antiphon.protocol._automaton import Pattern, Repeat, Sequence
from antiphon.protocol.flows import Flow, Step, choice, repeat, sequence
from antiphon.runtime import Context

# ---------------------------------------------------------------- requests

Status: TypeAlias = Literal["completed", "failed"]
HistoryPlace: TypeAlias = tuple[str, str]
"""A thread and a message id: the history of the thread before that message."""


class TurnDone(Reply, frozen=True, type="TEAM_TURN_DONE"):
    """The answer of the orchestrator."""

    status: Status
    response: str
    error_code: str | None = None
    error_message: str | None = None
    final: Any = None
    """The content of the turn's `final`, if there is one."""


class RunTurn(Request[TurnDone], frozen=True, type="TEAM_RUN_TURN", family="team"):
    """Do a request of a user."""

    text: str


class EndTurn(Notice, frozen=True, type="TEAM_END_TURN", family="team"):
    """The caller of a turn was cancelled: close the calls that the turn left open."""

    turn: str


class PhaseDone(Reply, frozen=True, type="TEAM_PHASE_DONE"):
    """The answer of a manager. Its synthesis is recorded, whatever the status."""

    status: Status
    synthesis: str
    error_code: str | None = None
    untrusted: str | None = None
    """The source of untrusted content that was read for it; None: there was none."""
    final: Any = None
    """The content of the phase's `final`, if there is one."""


class LeadPhase(Request[PhaseDone], frozen=True, type="TEAM_LEAD_PHASE", family="team"):
    """Do a phase of a plan."""

    phase_id: int
    """Its place among all phases of the plan, from 0."""
    name: str
    goals: str
    notes: str | None = None
    previous: str | None = None
    """The synthesis of the phase before."""
    untrusted: str | None = None
    turn: str
    history: HistoryPlace | None = None
    """The history that the agents read; None: there is none."""


class TeamTaskDone(Reply, frozen=True, type="TEAM_TASK_DONE"):
    """The answer of a worker. A failed task is an error instead. The complete result is its `final`."""

    summary: str
    untrusted: str | None = None
    final: Any = None
    """The content of its `final`."""


class DoTeamTask(Request[TeamTaskDone], frozen=True, type="TEAM_DO_TASK", family="team"):
    """Do a task: with the agent's model, perhaps with suggested steps; or by a script, without a model."""

    task: str
    manager: str
    goal: str
    previous: str | None = None
    suggested: Any = None
    """Steps, as in a `suggested_plan`."""
    script: Any = None
    """Steps, as in a `script_plan`, all of this worker, to be run unchanged."""
    untrusted: str | None = None
    turn: str
    history: HistoryPlace | None = None


# ---------------------------------------------------------------- specs and limits


class ManagerSpec(AgentSpec):
    """The configuration of one manager: an agent that delegates to workers."""

    workers: tuple[str, ...] = Field(min_length=1)
    """The names of its workers."""
    plans: Literal["steps", "script", "whole"] = "steps"
    """How it breaks a phase down: into steps, each a task in words; into a script of tool calls; or not at all, so that each
    of its workers gets the whole.
    """
    script: tuple[ScriptStep, ...] | None = None
    """A fixed script for all its phases; without it, a model writes one."""
    is_global: bool = True
    """Whether its syntheses are broadcast: seen by every agent, and told to the next phase. If not, only the orchestrator
    gets them.
    """


class TeamLimits(BaseModel):
    """The limits of a team. Work that reaches a limit fails."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    iterations: int = Field(default=10, ge=1)
    """How often a worker may use tools for one task before it must answer."""
    window: int = Field(default=5, ge=1)
    repeats: int = Field(default=3, ge=2)
    """How often the same action may have the same result among the last `window` actions."""
    stagnation: int = Field(default=6, ge=2)
    """How many actions in a row may fail, or have known results."""
    phases: int = Field(default=12, ge=1)
    """How many phases a plan may have."""
    steps: int = Field(default=24, ge=1)
    """How many steps a phase may have."""
    conversation: int = Field(default=8, ge=0)
    """How many messages of the conversation the orchestrator is shown: messages, not turns."""
    phase_seconds: float | None = Field(default=None, gt=0)
    """Seconds that a manager may take for a phase; None: no limit."""
    task_seconds: float | None = Field(default=None, gt=0)
    """Seconds that a worker may take for a task."""


# ---------------------------------------------------------------- flows

_ASIDE = repeat(Step("somebody", "somebody else", "ERROR"))
"""Errors of a tool, a task or a delegation, in between."""


def _asked_step(sender: str, receiver: str, request: str, reply: str, *meanwhile: Pattern) -> Sequence:
    answers = choice(Step(receiver, sender, reply), Step(receiver, sender, "ERROR"))
    return sequence(Step(sender, receiver, request), _ASIDE, *meanwhile, answers, _ASIDE)


def _steps(part: Sequence) -> tuple[Pattern, ...]:
    """Return the messages of an exchange, in any order."""
    return tuple(step for step in part.parts if step is not _ASIDE)


_TASK = _asked_step("manager", "worker", "TEAM_DO_TASK", "TEAM_TASK_DONE")
_OWN_TASK = _asked_step("orchestrator", "worker", "TEAM_DO_TASK", "TEAM_TASK_DONE")
_PHASE = _asked_step("orchestrator", "manager", "TEAM_LEAD_PHASE", "TEAM_PHASE_DONE", repeat(_TASK))
_PARTS = (_TASK, _OWN_TASK, _asked_step("orchestrator", "manager", "TEAM_LEAD_PHASE", "TEAM_PHASE_DONE"))


def _turn(*meanwhile: Pattern) -> Repeat:
    return repeat(_asked_step("client", "orchestrator", "TEAM_RUN_TURN", "TEAM_TURN_DONE", *meanwhile), least=1)


_ROLES = tuple((role, role) for role in ("client", "orchestrator", "manager", "worker"))

TURN = Flow(
    "team-turn",
    "A client has a team do something: the orchestrator has phases led by managers, who have workers do tasks, and answers.",
    _turn(repeat(choice(_PHASE, _OWN_TASK))),
    _ROLES,
)

SIDE_BY_SIDE = Flow(
    "team-side-by-side",
    "The same where phases or tasks are done side by side: all of it happens between the question and the answer.",
    _turn(repeat(choice(*(step for part in _PARTS for step in _steps(part)), _ASIDE))),
    _ROLES,
)

TEAM_FLOWS: tuple[Flow, ...] = (TURN, SIDE_BY_SIDE)
"""Every flow that is declared here."""


# ---------------------------------------------------------------- the roster

OutputT = TypeVar("OutputT")

Role: TypeAlias = Literal["orchestrator", "manager", "worker"]
ROLES: tuple[Role, ...] = ("orchestrator", "manager", "worker")


@dataclass(frozen=True)
class Roster:
    """The members of a team."""

    cast: Cast
    orchestrator: AgentSpec
    managers: Mapping[str, ManagerSpec]
    workers: Mapping[str, AgentSpec]
    limits: TeamLimits
    roles: Collection[Role] = field(default=ROLES)
    """The roles whose actors run in this process."""
    message_store: BaseMessageStore | None = None
    """The host's store of the conversation; None: the thread."""
    operations: tuple[str, ...] = (DISPLAY_MESSAGE,)
    """The operations on a result that a worker may request from a client."""

    def __post_init__(self) -> None:
        """Check that the workers of managers exist."""
        for manager in self.managers.values():
            if missing := [name for name in manager.workers if name not in self.workers]:
                hint = known_names(missing[0], self.workers, "there are", "none")
                raise SetupError(f"manager {manager.name!r} has no worker {missing[0]!r}{hint}")
            for step in manager.script or ():
                if step.worker not in manager.workers:
                    hint = known_names(step.worker, manager.workers, "it has", "none")
                    raise SetupError(
                        f"the script of manager {manager.name!r} names {step.worker!r}, who is no worker of its own{hint}"
                    )
        if not self.workers:
            raise SetupError("a team has workers: give it at least one")
        if not self.operations:
            raise SetupError("a team has operations: give it at least one, or leave them out for display_message")

    @property
    def assignees(self) -> tuple[str, ...]:
        """The members that can get a phase: managers, then workers without a manager. The first gets unplanned requests."""
        managed = {worker for manager in self.managers.values() for worker in manager.workers}
        return (*self.managers, *(name for name in self.workers if name not in managed))

    def role_of(self, name: str) -> Role | None:
        """Return the role of a member; None: there is no such member."""
        if name == self.orchestrator.name:
            return "orchestrator"
        return "manager" if name in self.managers else "worker" if name in self.workers else None

    def address(self, name: str) -> str:
        """Return the address of a member."""
        return f"{self.role_of(name)}/{name}"

    def is_elsewhere(self, name: str) -> bool:
        """Whether the actor of a member runs in another process."""
        return self.role_of(name) not in self.roles

    def seconds(self, name: str) -> float | None:
        """Return the time limit of a member for a delegated task, in seconds; None: no limit."""
        return self.limits.phase_seconds if name in self.managers else self.limits.task_seconds

    async def history(self, place: HistoryPlace | None, taint: Taint) -> ThreadHistory:
        """Return the history at a place, and taint the reader with the untrusted content in it."""
        if place is None:
            return ThreadHistory()
        thread_id, message_id = place
        history = await read_history(self.cast.ledger, thread_id, until=message_id)
        taint.mark(history.untrusted)
        return history

    async def answer(self, name: str, prompt: str, output: type[OutputT], history: ThreadHistory) -> OutputT | None:
        """Ask the agent of a member; None: its models give no answer or an invalid one."""
        try:
            answer: Answer[OutputT] = await self.cast.ask(name, prompt, output=output, history=history.quoted(name))
        except RefusedError as exc:
            if exc.code != ErrorCode.AGENT_ERROR:
                raise
            return None
        return answer.output

    async def described(self, names: Iterable[str]) -> str:
        """Return the members with their instructions and tools, as lines of text."""
        return "\n".join([await self._line(name) for name in names])

    async def _line(self, name: str) -> str:
        spec = self.managers.get(name) or self.workers[name]
        instructions = f": {spec.instructions}" if spec.instructions else ""
        if isinstance(spec, ManagerSpec):
            return f"- {name} (manager of {', '.join(spec.workers)}){instructions}"
        tools = f" [tools: {', '.join(spec.tools)}]" if spec.tools else ""
        return f"- {name}{instructions}{tools}"


# ---------------------------------------------------------------- calls that a stopped member left open

end_open_calls = partial(_handling.end_open_calls, fields=lambda _: {"metadata": {DIALECT: {"type": "error"}}})


# ---------------------------------------------------------------- delegation

ReplyT = TypeVar("ReplyT", PhaseDone, TeamTaskDone)

Ending: TypeAlias = Literal["result", "failure", "timeout", "cancelled", "down"]

_ENDINGS: Final[tuple[tuple[type[errors.DeliveryError], Ending], ...]] = (
    (errors.ReplyTimeoutError, "timeout"),
    (errors.WithdrawnError, "cancelled"),
    (errors.UndeliverableError, "down"),
    (errors.ActorStoppedError, "down"),
    (errors.ActorFailedError, "down"),
    (errors.EscalatedError, "down"),
)


@dataclass(frozen=True, slots=True)
class DelegationEnd:
    """The end of a delegation."""

    worker: str
    status: Ending
    summary: str
    code: str | None = None
    """The code of the error; None for a result."""
    untrusted: str | None = None
    """The source of untrusted content that was read for it, if any."""
    final: Any = None
    """The content of its `final`, if there is one."""

    @classmethod
    def of(cls, worker: str, error: errors.DeliveryError) -> DelegationEnd:
        """Return the end of a delegation that raised an error."""
        endings: list[Ending] = [ending for kind, ending in _ENDINGS if isinstance(error, kind)]
        status: Ending = endings[0] if endings else "failure"
        match error:
            case errors.RefusedError(details={"untrusted": str(source)}):
                return cls(worker, status, error.reason, error.code, source)
            case _:
                return cls(worker, status, error.reason, error.code)

    @classmethod
    def with_reply(cls, worker: str, reply: PhaseDone | TeamTaskDone) -> DelegationEnd:
        """Return the end of a delegation with a reply; a failed phase may also have a reply."""
        if isinstance(reply, PhaseDone):
            code = None if reply.status == "completed" else reply.error_code or "PHASE_FAILED"
            status: Ending = "result" if code is None else "failure"
            return cls(worker, status, reply.synthesis, code, reply.untrusted, thaw(reply.final))
        return cls(worker, "result", reply.summary, untrusted=reply.untrusted, final=thaw(reply.final))

    @property
    def is_result(self) -> bool:
        """Whether there is a result."""
        return self.status == "result"

    def entry(self) -> tuple[str, dict[str, Any]]:
        """Return the type and the content of the message that records it."""
        if self.is_result:
            content = {"worker": self.worker, "status": self.status, "human_readable_summary": self.summary}
            return "observation", content
        details = {"worker": self.worker, "status": self.status}
        return "error", {"error_message": self.summary, "error_type": self.code or "ERROR", "details": details}


@dataclass(frozen=True, slots=True)
class Delegation(Generic[ReplyT]):
    """The end of a delegation, and the reply if there is one."""

    end: DelegationEnd
    reply: ReplyT | None = None


async def delegate(
    roster: Roster,
    context: Context,
    transcript: Transcript,
    to: str,
    request: Request[ReplyT],
    *,
    task: str,
    key: str,
    among: Collection[str],
) -> Delegation[ReplyT]:
    """Delegate a task, and return its end; `among` are the members that can be asked."""
    delegation_key = f"delegation-{key}"
    entry = {"type": "delegation", "worker": to, "task": task, "call_id": transcript.call_id(delegation_key)}
    await transcript.say(key=delegation_key, **entry)
    delegation: Delegation[ReplyT]
    try:
        if to not in among:
            raise errors.RefusedError(f"there is no {to!r} to delegate to; there are {', '.join(among)}", "UNKNOWN_WORKER")
        address, within = roster.address(to), roster.seconds(to) or UNHURRIED
        if roster.is_elsewhere(to):
            reply = await _ask_elsewhere(context, address, request, within, key)
        else:
            reply = await context.ask(address, request, within=within, key=key)
        delegation = Delegation(DelegationEnd.with_reply(to, reply), reply)
    except (errors.ParkedError, errors.HistoryMismatchError):
        raise
    except errors.DeliveryError as exc:
        delegation = Delegation(DelegationEnd.of(to, exc))
        request_id = f"{context.course.invocation_id}/{key}"
        # First wait for the member's handler: a call that it makes after the open ones were ended would stay open for ever.
        await stopped(transcript.run, request_id)
        await end_open_calls(transcript.run, request_id, exc)
    transcript.taint.mark(delegation.end.untrusted)
    kind, content = delegation.end.entry()
    await transcript.answer(entry, kind, f"end-{key}", content=content)
    return delegation


async def _ask_elsewhere(context: Context, address: str, request: Request[ReplyT], within: float, key: str) -> ReplyT:
    """Ask a member whose actor another host has, in a separate thread: a thread has one host."""

    async def ask(id: str) -> Json:
        thread_id = f"{context.thread_id}:{sha256(id.encode()).hexdigest()[:16]}"
        try:
            reply = await context.system.ask(
                address, request, within=within, thread_id=thread_id, sender=context.address, id=id
            )
        except (errors.ParkedError, errors.HistoryMismatchError):
            raise
        except errors.DeliveryError as exc:
            end = DelegationEnd.of(address, exc)
            return {"code": exc.code, "reason": exc.reason, "status": end.status, "untrusted": end.untrusted}
        return {"data": reply.to_data()}

    outcome = await context.effect(key, {"to": address, "data": request.to_data()}, ask, effects="idempotent")
    if "data" in outcome:
        return request.reply_class().from_data(outcome["data"])
    reason, code = outcome["reason"], outcome["code"]
    kind = next((kind for kind, ending in _ENDINGS if ending == outcome["status"]), None)
    if kind is None:
        raise errors.RefusedError(reason, code, details={"untrusted": outcome["untrusted"]}, address=address)
    error = kind(reason, address)
    error.code = code
    raise error
