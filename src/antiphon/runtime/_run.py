"""run: a program with systems in it, as a process that ends in good order when it is told to.

Watchdog: notices from another thread that the event loop is blocked, and by whom.

An actor that computes for seconds without awaiting stops everybody, heartbeats and deadlines included; only another
thread can tell. It says so while it happens, with the place in the code; the supervisor of the actor decides what
follows.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import traceback
from collections.abc import Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from antiphon.runtime._failures import LOG, about

if TYPE_CHECKING:
    from antiphon.runtime._system import Kernel

ResultT = TypeVar("ResultT")

OPEN: WeakSet[Kernel] = WeakSet()
"""The systems that live, of all event loops."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_COLLECTED = (50_000, 20, 20)
"""How much is made before the garbage collector looks."""


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a program as `asyncio.run` does, and end it in good order when its process is told to.

    At the first SIGTERM or SIGINT the program is cancelled, so that its `async with System(…)` blocks end: each actor has
    its grace, and what threads have not finished is left to the next process. At the second, nobody has any grace, and
    what was being done is taken up as after a crash. A third kills the process.

    The garbage collector looks less often meanwhile: with a thousand threads at work, what Python has set takes as long as
    all the rest.

    Raises:
        SystemExit: it was told to end; the code is 128 and the number of the signal, as shells have it.
    """
    told: list[int] = []
    try:
        with _collecting_less():
            return asyncio.run(_until_told(main, told))
    except asyncio.CancelledError:
        if not told:
            raise
        raise SystemExit(128 + told[0]) from None


@contextmanager
def _collecting_less() -> Generator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTED)
    gc.freeze()  # what was imported stays, and need not be looked at
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


async def _until_told(main: Coroutine[Any, Any, ResultT], told: list[int]) -> ResultT:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 (this is one)

    def tell(number: int) -> None:
        told.append(number)
        if len(told) > 1:
            _listen_no_more(loop)
        for kernel in tuple(OPEN):
            if kernel.loop is loop:
                kernel.begin_to_end()
        task.cancel()

    with suppress(NotImplementedError):  # of Windows, where nobody sends SIGTERM, and asyncio sees to Ctrl-C
        for number in _SIGNALS:
            loop.add_signal_handler(number, tell, number)
    try:
        return await main
    finally:
        _listen_no_more(loop)


def _listen_no_more(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(NotImplementedError):
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


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
