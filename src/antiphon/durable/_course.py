"""Courses: the numbered effects of a run and of its parts, and where they are done; and the ids of the agents' runs in them.

A run is a course of effects outside of actors. `RunPart` is a part of it that numbers its own effects.

A run of an agent has its id from the agent's name (`AgentRuns`). One after the other, the runs of a name have their ids in
order. Side by side, they may begin in another order when the program runs again, so each takes the recorded run with its
question, or a new id. The question is known a moment after the agent has started: until then, it has a provisional id.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from typing_extensions import override

from antiphon.errors import EffectFailedError, FencedError, HistoryMismatchError, RefusedError
from antiphon.messages import Json, JsonObject, Message, OptionCallPayload, current_port
from antiphon.messages.keys import as_key, base_of, child_id, counted, last_key, parent_of
from antiphon.runtime._course import Course, OpenWork

if TYPE_CHECKING:
    from antiphon.durable._opened import Opened

Mark: TypeAlias = Literal["beside", "unwinding"]
"""How a step was asked for, if not in the order of its course: by another task, or while an exception ended the work."""
MARK: Final = "asked"
_OUTCOMES: Final = (EffectFailedError, RefusedError)
"""The errors that are recorded outcomes of steps: a program that runs again gets the same one at the same place."""


class Place:
    """Where the work of a course is done: in one task, whose steps come one after the other."""

    def __init__(self) -> None:
        self._task = _current_task()
        self._error = sys.exc_info()[1]
        """The exception that is handled around the work, such as by a program that starts a run again."""

    def mark(self) -> Mark | None:
        """Return how the current task asks for a step; None: after the steps before it."""
        task, home = asyncio.current_task(), self._task()
        if home is None or home.done():  # a block without `async` does each of its steps in a task of its own
            self._task = _current_task()
        elif home is not task:
            return "beside"
        error = sys.exc_info()[1]
        is_unwinding = error is not None and error is not self._error and not isinstance(error, _OUTCOMES)
        return "unwinding" if is_unwinding or (task is not None and task.cancelling()) else None


def _current_task() -> Callable[[], asyncio.Task[Any] | None]:
    task = asyncio.current_task()
    return (lambda: None) if task is None else weakref.ref(task)


class EffectKeys:
    """Numbers the effects of a course, so that each of the same name has its own key, and notes which were reached."""

    delivery: None = None

    def __init__(self, invocation_id: str, place: Place | None, reached: set[str]) -> None:
        self.invocation_id = invocation_id
        self.place = place
        """Where its work is done; None if an agent decides about its steps, so that their order is not that of a program."""
        self.reached = reached
        """The effects that the program has reached in this attempt, in all parts of the course."""
        self._counts: Counter[str] = Counter()

    def next_key(self, name: str | None = None) -> str:
        """Return the key of the next effect of a name."""
        name = as_key(name or "effect")
        self._counts[name] += 1
        key = counted(name, self._counts[name])
        self.reached.add(child_id(self.invocation_id, key))
        return key

    def peek_key(self, name: str) -> str:
        """Return the key that the next effect of a name will have, without counting it."""
        key = as_key(name)
        return counted(key, self._counts[key] + 1)


class RunCourse(EffectKeys):
    """A run: the effects of a program in a thread, outside of actors."""

    inside: tuple[str, ...] = ()

    def __init__(self, thread_id: str, invocation_id: str, to: str, attempt: int) -> None:
        super().__init__(invocation_id, Place(), set())
        self.thread_id = thread_id
        self.to = to
        self.attempt = attempt
        self.work = OpenWork()
        self.evicted: FencedError | None = None
        self.is_over = False

    def wait(self, change: int) -> None:
        """Do nothing: a run has no mailbox whose waiting is counted."""


class RunPart(EffectKeys):
    """A part of a course that numbers its own effects: the run of one agent, or the work of one tool."""

    def __init__(
        self, course: Course, invocation_id: str, to: str, *, attempt: int | None = None, is_agent: bool = False
    ) -> None:
        """Make it; `attempt` is by default that of the course."""
        super().__init__(invocation_id, None if is_agent else Place(), getattr(course, "reached", set()))
        self._whole = course
        self.thread_id = course.thread_id
        self.to = to
        self.attempt = attempt or course.attempt
        self.work = course.work
        self.wait = course.wait

    @property
    def inside(self) -> tuple[str, ...]:
        """Itself, which a restart may have renamed, and the parts around it."""
        return (self.invocation_id, *self._whole.inside)

    @property
    def evicted(self) -> FencedError | None:
        return self._whole.evicted

    @property
    def is_over(self) -> bool:
        return self._whole.is_over

    @override
    def __repr__(self) -> str:
        return f"<Part {self.invocation_id!r}>"


def place_of(course: Course) -> Place | None:
    """Return where the work of a course is done; None in a handler, and if an agent decides about its steps."""
    return getattr(course, "place", None)


def reached_in(course: Course) -> Collection[str]:
    """Return the effects that the program has reached in this attempt at a course; none in a handler."""
    return getattr(course, "reached", ())


def asked(place: Place | None) -> dict[str, Json]:
    """Return what an intent records of how its step was asked for; nothing, if it came after the steps before it."""
    mark = None if place is None else place.mark()
    return {} if mark is None else {MARK: mark}


def recorded_arguments(message: Message) -> JsonObject | None:
    """Return the arguments that identify an effect, from its intent; None for any other row."""
    payload = message.payload
    if message.lane != "effect" or not isinstance(payload, OptionCallPayload):
        return None
    arguments = payload.arguments.get("arguments")
    return arguments if isinstance(arguments, JsonObject) else None


# ---------------------------------------------------------------- the runs of agents in a run


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
