"""What client, orchestrator, managers and workers ask of each other: typed, and durable because they are asked in a thread."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from antiphon.protocol import Notice, Reply, Request

__all__ = ["DoTask", "EndTurn", "HistoryPlace", "LeadPhase", "PhaseDone", "RunTurn", "Status", "TaskDone", "TurnDone"]

Status: TypeAlias = Literal["completed", "failed"]
HistoryPlace: TypeAlias = tuple[str, str]
"""A thread and a message in it: the thread's history before that message."""


class TurnDone(Reply, frozen=True, type="TEAM_TURN_DONE"):
    """What the orchestrator answers."""

    status: Status
    response: str
    error_code: str | None = None
    error_message: str | None = None
    final: Any = None
    """The content of the `final` that the turn came to, if it was one."""


class RunTurn(Request[TurnDone], frozen=True, type="TEAM_RUN_TURN", family="team"):
    """Have the team do what a user says."""

    text: str


class EndTurn(Notice, frozen=True, type="TEAM_END_TURN", family="team"):
    """Nobody waits for a turn any more: end what it has left open."""

    turn: str


class PhaseDone(Reply, frozen=True, type="TEAM_PHASE_DONE"):
    """What a manager gives back. Its synthesis is said, whatever the status."""

    status: Status
    synthesis: str
    error_code: str | None = None
    untrusted: str | None = None
    """Where words of strangers come from that were read for it; None: there were none."""
    final: Any = None
    """The content of the `final` that the phase came to, if it was one."""


class LeadPhase(Request[PhaseDone], frozen=True, type="TEAM_LEAD_PHASE", family="team"):
    """Lead a phase of a plan."""

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
    """What the agents are told before; None: there is none."""


class TaskDone(Reply, frozen=True, type="TEAM_TASK_DONE"):
    """What a worker gives back that has done its task; a task that failed is refused instead. The whole is its `final`."""

    summary: str
    untrusted: str | None = None
    final: Any = None
    """The content of its `final`."""


class DoTask(Request[TaskDone], frozen=True, type="TEAM_DO_TASK", family="team"):
    """Do a task: by thinking, perhaps with steps that are suggested; or by a script, without."""

    task: str
    manager: str
    goal: str
    previous: str | None = None
    suggested: Any = None
    """Steps, as in a `suggested_plan`."""
    script: Any = None
    """Steps, as in a `script_plan`, all of this worker and to be run as they are."""
    untrusted: str | None = None
    turn: str
    history: HistoryPlace | None = None
