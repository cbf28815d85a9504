"""Points: named places in the course of an effect and of its owner, at which a test stops the world.

An operating system may suspend a process between any two instructions, for longer than its lease. What must hold then is
different before and after each step of ownership, so each step has a point. A point is reached by a call beside the code that
it names. Nothing happens there, unless a test has called `stop_at`: its function is called on the spot, and may suspend the
process, or let the time of a simulation pass.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeAlias


class Point(StrEnum):
    """A place in the course of an effect, in the order in which an owner reaches them."""

    CLAIMED = "claimed"
    """The host has claimed the thread, and has written nothing to it."""
    INTENT_SENT = "intent sent"
    """The row that every start follows is about to be written: the intent, or the row of another attempt."""
    INTENT_STORED = "intent stored"
    """That row is stored."""
    STARTING = "starting"
    """The lease is about to be checked, right before a start. What waits after a check is checked again before it starts."""
    STARTED = "started"
    """The lease was checked. After the last check, the effect begins: the one gap that no check can close."""
    ENDED = "ended"
    """The outcome is known here, and nothing says so."""
    OUTCOME_QUEUED = "outcome queued"
    """The outcome is stored, or waits for the next row of the thread."""
    RELEASED = "released"
    """The host has released the thread, or all of its threads."""


Stop: TypeAlias = Callable[[Point, str, str], None]
"""Called with the point, the thread (empty: all threads of the host), and the effect (empty: none)."""

_stop: Stop | None = None


def reached(point: Point, thread_id: str, effect_id: str = "") -> None:
    """Do nothing, outside of tests."""
    if _stop is not None:
        _stop(point, thread_id, effect_id)


@contextmanager
def stop_at(stop: Stop) -> Generator[None]:
    """Call a function at every point of this process that is reached in the block."""
    global _stop  # noqa: PLW0603 (one for the process: what it does concerns the whole process)
    _stop = stop
    try:
        yield
    finally:
        _stop = None
