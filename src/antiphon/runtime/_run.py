"""run: a program with systems in it, as a process that ends in good order when it is told to.

`Lifetime` is what a system shares with this: its event loop, the tasks that run on behalf of no single message, and
whether the system ends.

`Watchdog` notices from another thread that the event loop is blocked, and by whom. An actor that computes for seconds
without awaiting stops everybody, heartbeats and deadlines included; only another thread can tell. It says so while it
happens, with the place in the code; the supervisor of the actor decides what follows.
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
"""How much is made before the garbage collector looks."""


class Lifetime:
    """How long a system lives: its event loop, its tasks, and its end."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = copy_context()
        """What handlers run in, so that they have the system's port and not their sender's variables."""
        self.failure: AntiphonError | None = None
        """Why the whole system has failed."""
        self._owner = asyncio.current_task()
        self._tasks: dict[asyncio.Task[None], None] = {}
        """What runs on behalf of no single message: decisions, commands, heartbeats."""
        self._closing_since: float | None = None

    def open(self) -> None:
        """Begin: from now on, a signal ends it in good order."""
        OPEN.add(self)

    def begin_closing(self) -> None:
        """Take nothing up any more: the system ends. What is withdrawn in a thread from now on is left to the next one."""
        if self._closing_since is None:
            self._closing_since = self.loop.time()

    @property
    def is_closing(self) -> bool:
        """Whether the system ends."""
        return self._closing_since is not None

    def remaining_grace(self, grace: float) -> float:
        """Return how much of an actor's grace is left: at the end of the system it runs for all at once."""
        return grace if self._closing_since is None else max(0.0, self._closing_since + grace - self.loop.time())

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something until it ends, or the system does."""
        task = self.loop.create_task(work, context=self.context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            LOG.error(
                "the runtime itself has failed: %s\n%s", log_text(error), traceback_of(error), extra=log_fields(error=error)
            )

    def fail_system(self, failure: AntiphonError) -> None:
        """End the whole system: the first supervisor has given up."""
        if self.failure is None:
            self.failure = failure
            if self._owner is not None:
                self._owner.cancel()

    def forget(self) -> None:
        """End without the event loop, which may be gone: no signal concerns it any more."""
        OPEN.discard(self)

    async def close(self) -> None:
        """End the tasks."""
        self.forget()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


OPEN: WeakSet[Lifetime] = WeakSet()
"""The systems that live, of all event loops."""


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
    gc.freeze()  # what was imported stays, and need not be looked at
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

    with suppress(NotImplementedError):  # of Windows, where nobody sends SIGTERM, and asyncio sees to Ctrl-C
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
    """A thread that expects a sign of life from the event loop, again and again."""

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: float, blocked: Callable[[str, float, str], None]) -> None:
        """Begin to watch; `blocked` is called on the event loop with the actor, the seconds, and the place in the code."""
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
        LOG.error(text, late, address or "no actor", where, extra=log_fields(address))
        last = "" if frame is None else f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        self._loop.call_soon_threadsafe(self._blocked, address, late, last)
