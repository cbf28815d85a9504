"""News: wakes those who wait for the next commit."""

from __future__ import annotations

import asyncio

__all__ = ["News"]


class News:
    """A bell. Whoever reads remembers how often it had rung before, so that a ring in between is not missed."""

    def __init__(self) -> None:
        self.rung = 0
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def is_awaited(self) -> bool:
        """Whether somebody is waiting."""
        return bool(self._waiting)

    def ring(self) -> None:
        """Wake everybody."""
        self.rung += 1
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
        self._waiting.clear()

    async def wait(self, rung: int) -> None:
        """Wait until it has rung more often than that."""
        if self.rung > rung:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(waiter)
        try:
            await waiter
        finally:
            self._waiting.discard(waiter)
