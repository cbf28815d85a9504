"""Courses: the numbered effects of a run and of its parts, and where they are done.

A run is a course of effects outside of actors. `RunPart` is a part of it that numbers its own effects.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

from typing_extensions import override

from antiphon.errors import EffectFailedError, FencedError, ParkedError, RefusedError
from antiphon.messages import Json, Message
from antiphon.messages._keys import as_key, child_id, counted
from antiphon.runtime._course import Course, CoursePart


class EffectKeys:
    """Numbers effects of the same name, so that each has its own key."""

    delivery: None = None

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next_key(self, name: str | None = None) -> str:
        """Return the key of the next effect of a name."""
        key = as_key(name or "effect")
        self._counts[key] += 1
        count = self._counts[key]
        return counted(key, count)

    def peek_key(self, name: str) -> str:
        """Return the key that the next effect of a name will have, without counting it."""
        key = as_key(name)
        return counted(key, self._counts[key] + 1)


Mark: TypeAlias = Literal["beside", "unwinding"]
"""How a step was asked for, if not in the order of its course: by another task, or while an exception ended the work."""
MARK: Final = "asked"
_OUTCOMES: Final = (EffectFailedError, RefusedError)
"""The errors that are recorded outcomes of steps: a program that runs again gets the same one at the same place."""


class Place:
    """Where the work of a course is done: in one task, whose steps come one after the other."""

    def __init__(self) -> None:
        self._task = _current()
        self._error = sys.exc_info()[1]
        """The exception that is handled around the work, such as by a program that starts a run again."""

    def mark(self) -> Mark | None:
        """Return how the current task asks for a step; None: after the steps before it."""
        task, home = asyncio.current_task(), self._task()
        if home is None or home.done():  # a block without `async` does each of its steps in a task of its own
            self._task = _current()
        elif home is not task:
            return "beside"
        error = sys.exc_info()[1]
        is_unwinding = error is not None and error is not self._error and not isinstance(error, _OUTCOMES)
        return "unwinding" if is_unwinding or (task is not None and task.cancelling()) else None


def _current() -> Callable[[], asyncio.Task[Any] | None]:
    task = asyncio.current_task()
    return (lambda: None) if task is None else weakref.ref(task)


class RunCourse(EffectKeys):
    """A run: the effects of a program in a thread, outside of actors."""

    def __init__(self, thread_id: str, invocation_id: str, to: str, attempt: int) -> None:
        super().__init__()
        self.thread_id: str | None = thread_id
        self.invocation_id = invocation_id
        self.to = to
        self.attempt = attempt
        self.open_effects: tuple[Message, ...] = ()
        self.evicted: FencedError | None = None
        self.is_over = False
        self.parked: ParkedError | None = None
        self.parked_in: set[str] = set()
        self.doubt: ParkedError | None = None
        self.place = Place()
        self.reached: set[str] = set()
        """The effects that the program has reached in this attempt."""

    @override
    def next_key(self, name: str | None = None) -> str:
        key = super().next_key(name)
        self.reached.add(child_id(self.invocation_id, key))
        return key

    def note_parked(self, error: ParkedError, inside: tuple[str, ...] = ()) -> None:
        """Note that an effect of it waits for a person: nothing more of it starts in this attempt."""
        self.parked = self.parked or error
        self.parked_in.update(inside)

    def note_doubt(self, error: ParkedError) -> None:
        """Note that an effect of it may have been done."""
        self.doubt = self.doubt or error

    def wait(self, change: int) -> None:
        """Do nothing: a run has no mailbox whose waiting is counted."""


class RunPart(EffectKeys, CoursePart):
    """A part of a course that numbers its own effects: the run of one agent, or the work of one tool."""

    def __init__(self, course: Course, invocation_id: str, to: str, *, is_agent: bool = False) -> None:
        """Make it; `is_agent`: an agent decides about its steps, so their order is not that of a program."""
        EffectKeys.__init__(self)
        CoursePart.__init__(self, course)
        self.place = None if is_agent else Place()
        self.invocation_id = invocation_id
        self.to = to
        self.reached: set[str] = getattr(course, "reached", set())

    @override
    def next_key(self, name: str | None = None) -> str:
        key = super().next_key(name)
        self.reached.add(child_id(self.invocation_id, key))
        return key

    @override
    def note_parked(self, error: ParkedError, inside: tuple[str, ...] = ()) -> None:
        """Note it in the whole course, with the effect or agent that this part is."""
        super().note_parked(error, (*inside, self.invocation_id))

    @override
    def __repr__(self) -> str:
        return f"<Part {self.invocation_id!r}>"


class RetriedCourse(RunPart):
    """The course of a message that failed, continued by the handler of a RETRY: what the ledger has of it counts."""

    @property
    @override
    def attempt(self) -> int:
        """At least the second, so that recorded effects are looked up."""
        return self._whole.attempt + 1


def asked(place: Place | None) -> dict[str, Json]:
    """Return what an intent records of how its step was asked for; nothing, if it came after the steps before it."""
    mark = None if place is None else place.mark()
    return {} if mark is None else {MARK: mark}
