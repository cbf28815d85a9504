"""Deadlines: what is to be given up when its time is over, in coarse buckets with one timer for all.

A timer of the event loop for every ask would cost as much as the ask. So deadlines are rounded up to the next tick, all of
one tick share a bucket, and only the earliest bucket has a timer. Those far away are rounded more, to a five-hundredth of the
time that is left, so that there are never more than some thousand buckets, however long people are willing to wait.
"""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from antiphon.runtime._envelope import Envelope

__all__ = ["Deadlines"]

_TICK = 0.02
"""How late a deadline may be noticed, in seconds; of one that is more than ten seconds away, relatively."""
_FINE = 9
"""How many binary digits of the ticks that are left are kept."""


class Deadlines:
    """The envelopes that somebody waits for, by when to stop waiting."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[Envelope, None]] = {}
        self._ticks: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0

    def add(self, envelope: Envelope, deadline: float) -> None:
        """Let an envelope expire at its deadline, unless it is taken out of its bucket before."""
        tick = int(deadline / _TICK) + 1
        coarseness = (tick - int(self._loop.time() / _TICK)).bit_length() - _FINE
        if coarseness > 0:
            tick = ((tick >> coarseness) + 1) << coarseness
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heappush(self._ticks, tick)
            if self._timer is None or tick < self._armed:
                self._arm(tick)
        bucket[envelope] = None
        envelope.bucket = bucket

    def close(self) -> None:
        """Forget them all."""
        if self._timer is not None:
            self._timer.cancel()
        self._buckets.clear()
        self._ticks.clear()

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = tick
        self._timer = self._loop.call_at(tick * _TICK, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._ticks and self._ticks[0] * _TICK <= now:
            for envelope in self._buckets.pop(heappop(self._ticks)):
                envelope.expire()
        if self._ticks:
            self._arm(self._ticks[0])
