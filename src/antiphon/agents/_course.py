"""Courses: what effects are part of outside of actors, and the parts that a course has."""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256

from typing_extensions import override

from antiphon.messages import Message
from antiphon.runtime import Course

__all__ = ["Keys", "Part", "RunCourse", "as_key"]

_FORBIDDEN = re.compile("[/#~=]")
_LENGTH = 120


def as_key(name: str) -> str:
    """Return a name as a key: itself, where it can be one, else a digest of it."""
    if name and len(name) <= _LENGTH and not _FORBIDDEN.search(name) and not name.isdigit():
        return name
    return f"sha256:{sha256(name.encode(errors='replace')).hexdigest()[:32]}"


class Keys:
    """What was done, by name, so that the second of a name is told from the first."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next_key(self, name: str | None = None) -> str:
        """Return what the next thing of a name is known by."""
        key = as_key(name or "effect")
        self._counts[key] += 1
        count = self._counts[key]
        return key if count == 1 else f"{key}={count}"


class RunCourse(Keys):
    """A run: what a program does in a thread, outside of actors."""

    def __init__(self, thread_id: str, invocation_id: str, to: str, attempt: int) -> None:
        super().__init__()
        self.thread_id: str | None = thread_id
        self.invocation_id = invocation_id
        self.to = to
        self.attempt = attempt
        self.open_effects: tuple[Message, ...] = ()

    def wait(self, change: int) -> None:
        """Nothing: nobody watches what is no actor."""


class Part(Keys):
    """A part of a course, which numbers what it does for itself: an agent's run, or what a tool does."""

    def __init__(self, whole: Course, invocation_id: str, to: str) -> None:
        super().__init__()
        self._whole = whole
        self.invocation_id = invocation_id
        self.to = to

    @property
    def thread_id(self) -> str | None:
        """That of the whole."""
        return self._whole.thread_id

    @property
    def attempt(self) -> int:
        """That of the whole."""
        return self._whole.attempt

    @property
    def open_effects(self) -> tuple[Message, ...]:
        """Those of the whole."""
        return self._whole.open_effects

    @open_effects.setter
    def open_effects(self, rows: tuple[Message, ...]) -> None:
        self._whole.open_effects = rows

    def wait(self, change: int) -> None:
        """Have the whole wait."""
        self._whole.wait(change)

    @override
    def __repr__(self) -> str:
        return f"<Part {self.invocation_id!r}>"
