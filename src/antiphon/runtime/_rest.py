"""Rests: actors that nobody needs are let go of, and come back with the next message for them.

Only actors of a registered kind rest: the tree knows how to make them anew. What such an actor knows that is not in the
ledger is gone then, as after a restart. One that says it has nothing left to do (`context.rest()`) goes as soon as it is
idle; others when they have been idle for `Settings.idle_after`, looked after by one timer for all.

An idle cell is taken out of the tree in one step of the event loop, so a message either finds it there or makes the next
one. Whoever has found it and must wait before the message is in the mailbox holds it (`Cell.held`), and it stays.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from antiphon.runtime._actor import Actor
from antiphon.runtime._lifecycle import let_go, rest

if TYPE_CHECKING:
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._kernel import Kernel

__all__ = ["Rests"]

_AT_ONCE: Final = 1000
"""How many are let go of before others have a turn."""


_LEAST: Final = 0.01
"""Seconds between two looks: what cannot go yet is looked at again, and others must have a turn meanwhile."""


class Rests:
    """The idle actors that may rest, the one that has been idle longest first."""

    def __init__(self, kernel: Kernel, after: float | None) -> None:
        self._kernel = kernel
        self._after = None if after is None else max(after, _LEAST)
        self._since: dict[str, float] = {}
        """By address, since when it is idle."""
        self._timer: asyncio.TimerHandle | None = None

    def idle(self, cell: Cell, *, was_used: bool = True) -> None:
        """Take note that an actor has nothing to do; `was_used`: it had, and not only a heartbeat."""
        if cell.wants_rest and self._put_to_rest(cell):
            return
        if self._after is not None and (was_used or cell.address not in self._since):
            self._since.pop(cell.address, None)
            self._since[cell.address] = self._kernel.loop.time()
            self._arm()

    def close(self) -> None:
        """Let go of nobody any more: the system ends."""
        if self._timer is not None:
            self._timer.cancel()
        self._since.clear()

    def _arm(self) -> None:
        if self._timer is None and self._after is not None and self._since and not self._kernel.is_closing:
            oldest = next(iter(self._since.values()))
            self._timer = self._kernel.loop.call_at(oldest + self._after, self._look)

    def _look(self) -> None:
        self._timer = None
        now, after = self._kernel.loop.time(), self._after or 0.0
        for address in [address for address, _ in zip(self._since, range(_AT_ONCE), strict=False)]:
            if self._since[address] + after > now:
                break
            del self._since[address]
            cell = self._kernel.tree.cells.get(address)
            if cell is not None and not cell.drains and not self._put_to_rest(cell):
                self.idle(cell)  # one that is at work comes here by itself when it is idle
        self._arm()

    def _put_to_rest(self, cell: Cell) -> bool:
        """Let go of an actor, if nothing keeps it; say whether that is so."""
        kernel = self._kernel
        may = cell.props.may_rest and cell.state == "active" and cell.is_idle
        if not may or kernel.is_closing or kernel.tree.is_changing(cell.address):
            return False
        self._since.pop(cell.address, None)
        if cell.actor is None or type(cell.actor).stopped is Actor.stopped:
            let_go(cell)
        else:
            kernel.start(rest(cell))
        return True
