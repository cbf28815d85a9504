"""Rows that go to their thread with the next that are written there, or by themselves within a few milliseconds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from antiphon.errors import FencedError
from antiphon.messages import Message

__all__ = ["Soon"]

_DELAY = 0.005
"""Seconds after which rows go by themselves: an agent at work has begun the next thing long before."""
_PAUSE = 1.0
"""Seconds after which that is tried again, where it could not be done."""


class Soon:
    """The rows that wait, and those that are on their way, by thread."""

    def __init__(self, flush: Callable[[str], None]) -> None:
        self._flush = flush
        """Called with a thread whose rows have waited long enough."""
        self._rows: dict[str, list[Message]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._landings: dict[str, asyncio.Future[bool]] = {}

    @property
    def threads(self) -> list[str]:
        """The threads of which anything waits or is on its way."""
        return [*self._rows, *self._landings]

    def count(self, thread_id: str) -> int:
        """Return how many rows of a thread wait."""
        return len(self._rows.get(thread_id, ()))

    def landing(self, thread_id: str) -> asyncio.Future[bool] | None:
        """Return what says whether all rows of a thread were written that are on their way; None if there are none."""
        return self._landings.get(thread_id)

    def put(self, thread_id: str, rows: Sequence[Message]) -> None:
        """Have rows wait, after those that do."""
        self._rows.setdefault(thread_id, []).extend(rows)
        if thread_id not in self._timers:
            self._timers[thread_id] = asyncio.get_running_loop().call_later(_DELAY, self._flush, thread_id)

    def try_again(self, thread_id: str) -> None:
        """Have the rows of a thread go by themselves later, which could not be written now."""
        if thread_id in self._rows and thread_id not in self._timers:
            self._timers[thread_id] = asyncio.get_running_loop().call_later(_PAUSE, self._flush, thread_id)

    @contextmanager
    def taken(self, thread_id: str) -> Generator[list[Message], None, None]:
        """Take the rows of a thread, to be written in the block; if it raises, those that are left in the list wait again.

        If another owner has the thread now, they are his to find out about. Rows that were on their way before have landed
        if that is known when the block ends.
        """
        if (timer := self._timers.pop(thread_id, None)) is not None:
            timer.cancel()
        rows, before = self._rows.pop(thread_id), self.landing(thread_id)
        landing = self._landings[thread_id] = asyncio.get_running_loop().create_future()
        has_landed = False
        try:
            yield rows
            has_landed = True
        except FencedError:
            raise
        except BaseException:
            self._put_back(thread_id, rows)
            raise
        finally:
            landing.set_result(has_landed and (before is None or (before.done() and before.result())))
            if self._landings.get(thread_id) is landing:
                del self._landings[thread_id]

    def _put_back(self, thread_id: str, rows: list[Message]) -> None:
        """Have rows wait for whoever writes next; if they were written after all, they will be no news."""
        if rows:
            self._rows[thread_id] = [*rows, *self._rows.get(thread_id, ())]
