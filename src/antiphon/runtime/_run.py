"""run: a process with systems in it, which shuts down gracefully on SIGTERM and SIGINT.

`Lifetime` belongs to one system: its event loop, the tasks that belong to no message, and whether it is closing.

`Watchdog` notices from another OS thread that the event loop is blocked, and by which actor. An actor that computes for
seconds without an `await` stops all others, heartbeats and deadlines included; only another thread can see that. It logs it
while it happens, with the line of code; the supervisor of the actor decides what follows.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Any, TypeVar
from weakref import WeakSet

from antiphon.errors import AntiphonError
from antiphon.runtime._failures import LOG, log_fields, log_text, traceback_of

ResultT = TypeVar("ResultT")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_COLLECTED = (50_000, 20, 20)
"""The thresholds of the garbage collector."""


class Lifetime:
    """The event loop of a system, its background tasks, and whether it is closing."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = copy_context()
        """The context of handlers: they see the port of the system, and not the variables of their sender."""
        self.failure: AntiphonError | None = None
        """Why the whole system has failed."""
        self._owner = asyncio.current_task()
        self._tasks: dict[asyncio.Task[None], None] = {}
        """Background tasks: decisions, commands, heartbeats."""
        self._closing_since: float | None = None

    def open(self) -> None:
        """Open: from now on, a signal closes it gracefully."""
        OPEN.add(self)

    def begin_closing(self) -> None:
        """Start no more work. From now on, messages of threads that are cancelled stay open for the next system."""
        if self._closing_since is None:
            self._closing_since = self.loop.time()

    @property
    def is_closing(self) -> bool:
        """Whether the system is closing."""
        return self._closing_since is not None

    def remaining_grace(self, grace: float) -> float:
        """Return the rest of an actor's grace. When the system closes, the grace of all actors runs from the same moment."""
        return grace if self._closing_since is None else max(0.0, self._closing_since + grace - self.loop.time())

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a background task until it ends, or the system closes."""
        task = self.loop.create_task(work, context=self.context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error(
                "the runtime itself has failed: %s\n%s", log_text(error), traceback_of(error), extra=log_fields(error=error)
            )

    def fail_system(self, failure: AntiphonError) -> None:
        """Fail the whole system: the root supervisor has given up."""
        if self.failure is None:
            self.failure = failure
            if self._owner is not None:
                self._owner.cancel()

    def forget(self) -> None:
        """Ignore signals from now on. It needs no event loop, which may be gone."""
        OPEN.discard(self)

    async def close(self) -> None:
        """Cancel the background tasks, and wait for them."""
        self.forget()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


OPEN: WeakSet[Lifetime] = WeakSet()
"""The open systems, of all event loops."""


def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run a program as `asyncio.run` does, and shut it down gracefully on SIGTERM and SIGINT.

    The first signal cancels the program, so that its `async with System(…)` blocks end: each actor has its grace, and
    unfinished messages of threads stay open for the next process. The second ends all grace; the next process recovers as
    after a crash. The third kills the process.

    The garbage collector runs less often meanwhile: with a thousand busy threads and Python's thresholds, it takes as long
    as everything else.

    Raises:
        SystemExit: a signal ended the program; the code is 128 plus the number of the signal, as in shells.
    """
    told: list[int] = []
    try:
        with _fewer_collections():
            return asyncio.run(_until_signalled(main, told))
    except asyncio.CancelledError:
        if not told:
            raise
        raise SystemExit(128 + told[0]) from None


@contextmanager
def _fewer_collections() -> Generator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECTED)
    gc.freeze()  # imported modules stay: the collector need not visit them
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


async def _until_signalled(main: Coroutine[Any, Any, ResultT], told: list[int]) -> ResultT:
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None  # noqa: S101 (this is one)

    def tell(number: int) -> None:
        told.append(number)
        if len(told) > 1:
            _stop_listening(loop)
        for lifetime in tuple(OPEN):
            if lifetime.loop is loop:
                lifetime.begin_closing()
        task.cancel()

    with suppress(NotImplementedError):  # on Windows: there is no SIGTERM, and asyncio handles Ctrl-C
        for number in _SIGNALS:
            loop.add_signal_handler(number, tell, number)
    try:
        return await main
    finally:
        _stop_listening(loop)


def _stop_listening(loop: asyncio.AbstractEventLoop) -> None:
    with suppress(NotImplementedError):
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


class Watchdog:
    """An OS thread that checks whether the event loop runs.

    `_alive_at` and `_is_told` are written by one thread and read by the other without a lock. Each is a single assignment, and
    a stale read only delays a warning.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, blocked: Callable[[str, float, str], None]) -> None:
        """Start it; `blocked` is called on the event loop with the actor, the seconds, and the line of code."""
        self._blocked = blocked
        self._limit = limit
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._alive_at = loop.time()
        self._is_told = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="antiphon-watchdog", daemon=True)
        self._beat()
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
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
        LOG.error(text, late, address or "no actor", where, extra=log_fields(address))
        last = "" if frame is None else f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        self._loop.call_soon_threadsafe(self._blocked, address, late, last)
