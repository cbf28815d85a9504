"""The flows of a team, declared as data: what client, orchestrator, managers and workers ask of each other, in what order."""

from __future__ import annotations

from antiphon.protocol.flows import Flow, Pattern, Repeat, Sequence, Step, choice, repeat, sequence

__all__ = ["SIDE_BY_SIDE", "TEAM_FLOWS", "TURN"]


_ASIDE = repeat(Step("somebody", "somebody else", "ERROR"))
"""What goes wrong in between: a tool that fails, a task or a delegation that ends so."""


def _asked(sender: str, receiver: str, request: str, reply: str, *meanwhile: Pattern) -> Sequence:
    answers = choice(Step(receiver, sender, reply), Step(receiver, sender, "ERROR"))
    return sequence(Step(sender, receiver, request), _ASIDE, *meanwhile, answers, _ASIDE)


def _steps(part: Sequence) -> tuple[Pattern, ...]:
    """Return what can be said in an exchange, in whatever order."""
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
