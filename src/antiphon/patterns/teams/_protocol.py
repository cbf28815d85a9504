"""Requests, specs, limits and flows of a team."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from antiphon.dialects.agent_framework import ScriptStep
from antiphon.patterns.cast import AgentSpec
from antiphon.protocol import Notice, Reply, Request
from antiphon.protocol.flows import Flow, Pattern, Repeat, Sequence, Step, choice, repeat, sequence

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


def _asked(sender: str, receiver: str, request: str, reply: str, *meanwhile: Pattern) -> Sequence:
    answers = choice(Step(receiver, sender, reply), Step(receiver, sender, "ERROR"))
    return sequence(Step(sender, receiver, request), _ASIDE, *meanwhile, answers, _ASIDE)


def _steps(part: Sequence) -> tuple[Pattern, ...]:
    """Return the messages of an exchange, in any order."""
    return tuple(each for each in part.parts if each is not _ASIDE)


_TASK = _asked("manager", "worker", "TEAM_DO_TASK", "TEAM_TASK_DONE")
_OWN_TASK = _asked("orchestrator", "worker", "TEAM_DO_TASK", "TEAM_TASK_DONE")
_PHASE = _asked("orchestrator", "manager", "TEAM_LEAD_PHASE", "TEAM_PHASE_DONE", repeat(_TASK))
_PARTS = (_TASK, _OWN_TASK, _asked("orchestrator", "manager", "TEAM_LEAD_PHASE", "TEAM_PHASE_DONE"))


def _turn(*meanwhile: Pattern) -> Repeat:
    return repeat(_asked("client", "orchestrator", "TEAM_RUN_TURN", "TEAM_TURN_DONE", *meanwhile), least=1)


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
