"""The runs of agents in a run of a program: which recorded one each is, and which are active.

A run of an agent has its id from the agent's name. One after the other, the runs of a name have their ids in order. Side by
side, they may begin in another order when the program runs again, so each takes the recorded run with its question, or a new
id. The question is known a moment after the agent has started: until then, it has a provisional id.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from antiphon.durable._opened import Opened
from antiphon.errors import HistoryMismatchError
from antiphon.messages import Json, current_port
from antiphon.messages._keys import as_key, base_of, counted, last_key, parent_of


@dataclass(frozen=True, slots=True)
class Namesake:
    """Another run of an agent with the same name."""

    id: str
    is_at_work: bool
    has_same_question: bool


class AgentBegin(NamedTuple):
    """How a run of an agent begins."""

    id: str
    """Its id in the thread."""
    run_id: str
    """Its id for the agent and in its messages: the same, unless the program has named it."""
    asked: Mapping[str, Json]
    """How the program asked for it, as its first intent records it; empty: after the steps before it."""


class AgentRuns:
    """The runs of agents in a run of a program, or in a part of it."""

    def __init__(self) -> None:
        self._expected: dict[str, Mapping[str, Json]] = {}
        """By provisional id, how the program asked for the agent."""
        self._begun: set[str] = set()
        self._active: dict[str, object] = {}
        """The active runs of agents, each with its question."""

    def expect(self, parent: str, asked: Mapping[str, Json]) -> str:
        """Return a provisional id for a run that starts now. No message of an earlier attempt has it."""
        run_id = f"{parent}/{current_port().new_id()}"
        self._expected[run_id] = asked
        return run_id

    def begin(self, opened: Opened, parent: str, run_id: str, name: str, question: str | None) -> AgentBegin:
        """Return the id of a run in the thread. A run that the program has named itself keeps its name."""
        asked = self._expected.pop(run_id, None)
        if asked is not None:
            agent = run_id = self._choose(opened, parent, name, question, is_beside=bool(asked))
        else:
            agent = run_id if run_id.startswith(f"{parent}/") else f"{parent}/{as_key(run_id)}"
        self._begun.add(agent)
        return AgentBegin(agent, run_id, asked or {})

    def _choose(self, opened: Opened, parent: str, name: str, question: str | None, *, is_beside: bool) -> str:
        agents = [step for step in opened.recorded.steps if step.is_agent]
        recorded = [step for step in agents if step.course == parent and last_key(step.id) == as_key(name)]
        free = [step for step in recorded if step.id not in self._begun]
        if not is_beside:
            if in_order := [step for step in free if step.mark is None] or free:
                return in_order[0].id
        elif same := [step for step in free if opened.recorded.agents[step.id] == question]:
            return same[0].id
        elif free and len(free) == len(recorded):
            return free[0].id  # none was matched: the questions have changed, and the first request says how
        taken = {step.id for step in recorded} | self._begun
        numbered = (f"{parent}/{counted(as_key(name), number)}" for number in count(1))
        return next(agent for agent in numbered if agent not in taken)

    @contextmanager
    def active(self, id: str, question: object) -> Generator[None, None, None]:
        """Register a run and its question while it is active."""
        self._active[id] = question
        try:
            yield
        finally:
            self._active.pop(id, None)

    def namesakes(self, opened: Opened, id: str) -> list[Namesake]:
        """Return the other runs of a name: those that are recorded or active."""
        runs = dict.fromkeys((*sorted(opened.recorded.agents), *self._active))
        same = [run for run in runs if run != id and parent_of(run) == parent_of(id) and last_key(run) == last_key(id)]
        question = self._active.get(id)
        return [Namesake(run, run in self._active, run in self._active and self._active[run] == question) for run in same]

    def check(self, opened: Opened, deed: str, agents: Collection[str]) -> None:
        """Refuse to continue or to end without an agent that ran before."""
        prefix = f"{opened.course.invocation_id}/"
        # A restarted agent has the name of the one before it.
        absent = [agent for agent in agents if agent.startswith(prefix) and base_of(agent) not in self._begun]
        missing = sorted(
            agent for agent in absent if agent in opened.recorded.agents and "/" not in agent.removeprefix(prefix)
        )
        if missing:
            reason = f"the program {deed}, and thread {opened.course.thread_id!r} says that {missing[0]!r} ran before that"
            advice = "a choice of the program, such as a time limit, is made in run.effect(…)"
            raise HistoryMismatchError(
                f"{reason}. Run the same agents: {advice}. For other work, give the run another id", opened.course.to
            )
