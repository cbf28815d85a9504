"""Watchdog: notices from another thread that the event loop is blocked, and by whom.

An actor that computes for seconds without awaiting stops everybody, heartbeats and deadlines included; only another
thread can tell. It says so while it happens, with the place in the code; the supervisor of the actor decides what
follows.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from antiphon.runtime._logs import LOG, about

if TYPE_CHECKING:
    from antiphon.runtime._kernel import Kernel

__all__ = ["Watchdog"]


class Watchdog:
    """A thread that expects a sign of life from the event loop, again and again."""

    def __init__(self, kernel: Kernel, limit: float) -> None:
        self._kernel = kernel
        self._limit = limit
        self._loop = kernel.loop
        self._loop_thread = threading.get_ident()
        self._alive_at = kernel.loop.time()
        self._is_told = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="antiphon-watchdog", daemon=True)
        self._beat()
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._ended.set()
        self._thread.join()
        self._timer.cancel()

    def _beat(self) -> None:
        self._alive_at = self._loop.time()
        self._is_told = False
        self._timer = self._loop.call_later(self._limit / 4, self._beat)

    def _watch(self) -> None:
        while not self._ended.wait(self._limit / 4):
            late = self._loop.time() - self._alive_at
            if late > self._limit and not self._is_told:
                self._is_told = True
                self._tell(late)

    def _tell(self, late: float) -> None:
        task = asyncio.current_task(self._loop)
        address = "" if task is None else task.get_name()
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        where = "" if frame is None else "".join(traceback.format_stack(frame, 3)).strip()
        text = "the event loop is blocked for %.1f s by %s:\n%s"
        LOG.error(text, late, address or "no actor", where, extra=about(address))
        last = "" if frame is None else f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        self._loop.call_soon_threadsafe(self._kernel.care.blocked, address, late, last)
