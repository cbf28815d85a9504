"""Courses: the numbered effects of a run and of its parts, and where they are done.

A run is a course of effects outside of actors. `RunPart` is a part of it that numbers its own effects.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any, Final, Literal, TypeAlias

from typing_extensions import override

from antiphon.errors import EffectFailedError, FencedError, RefusedError
from antiphon.messages import Json, JsonObject, Message, OptionCallPayload
from antiphon.messages._keys import as_key, child_id, counted
from antiphon.runtime._course import Course
from antiphon.runtime._work import OpenWork

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
