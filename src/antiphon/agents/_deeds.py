"""Deeds: the tool calls of a block that must not be made again."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar


class Deeds:
    """The tool calls of a block that must not be made again: its work cannot be repeated from the beginning."""

    def __init__(self, around: Deeds | None) -> None:
        self._around = around
        self.calls: list[str] = []

    def add(self, call: str) -> None:
        """Add the id of a call, also to the blocks around this one."""
        self.calls.append(call)
        if self._around is not None:
            self._around.add(call)


_deeds: ContextVar[Deeds | None] = ContextVar("antiphon.agents.deeds", default=None)


@contextmanager
def counting_deeds() -> Generator[Deeds, None, None]:
    """Collect the tool calls in a `with` block that have effects, recorded ones included."""
    deeds = Deeds(_deeds.get())
    token = _deeds.set(deeds)
    try:
        yield deeds
    finally:
        _deeds.reset(token)


def note_deed(call: str) -> None:
    """Note that a tool call has effects, or has other agents at work."""
    if (deeds := _deeds.get()) is not None:
        deeds.add(call)


def has_deeds() -> bool:
    """Whether the innermost `counting_deeds` block has any so far."""
    deeds = _deeds.get()
    return deeds is not None and bool(deeds.calls)
