"""Slots: how many calls of a tool may be at work at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

__all__ = ["Slots"]


class Slots:
    """So many at a time; the others wait. One number for each event loop: a toolkit may outlive many."""

    def __init__(self, number: int | None) -> None:
        """Take a number; None: there is no end of them.

        Raises:
            ValueError: it is less than one.
        """
        if number is not None and number < 1:
            raise ValueError(f"at least one call may be at work, not {number}")
        self._number = number
        self._semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    @asynccontextmanager
    async def take(self) -> AsyncGenerator[None]:
        """Wait for one, and hold it."""
        if self._number is None:
            yield
            return
        async with self._semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._number)):
            yield
