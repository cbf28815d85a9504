"""VirtualLoop: an event loop in which time passes only when everybody waits, and whose order is chosen by a seed.

A timer that is due in an hour is due as soon as nothing else can run. Which of the tasks that can run is next is drawn from the
seed; callbacks that are not steps of tasks keep their order, as asyncio promises. Nothing here asks the machine for anything, so a run
is a function of the seed and the program.

Tasks belong to the *node* that they were started in. When a node is cut off, nothing of it runs ever again: no step, no callback, no
`finally`; as if its process had been killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from heapq import heappop, heappush
from random import Random  # noqa: TID251 (seeded)
from typing import Any, TypeVar, cast

from typing_extensions import override

__all__ = ["Node", "StuckError", "VirtualLoop"]

ResultT = TypeVar("ResultT")

_log = logging.getLogger("antiphon.testing")


class StuckError(AssertionError):
    """Nothing can run any more, or has not come to an end in the time it was given."""


class Node:
    """Something that can be cut off as a whole, as a process can be killed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_alive = True


_node: ContextVar[Node | None] = ContextVar("antiphon_simulated_node", default=None)


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop for one thread, with no input and output, in virtual time."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = None if seed is None else Random(seed)  # noqa: S311 (not for secrets)
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._now = 0.0
        self._is_running = False
        self._is_closed = False
        self._is_stopping = False
        self._dropped: list[asyncio.Handle] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.errors: list[dict[str, Any]] = []
        """What was given to the exception handler."""

    # ------------------------------------------------------------ time and turns

    @override
    def time(self) -> float:
        return self._now

    @override
    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    @override
    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    @override
    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    @override
    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heappush(self._timers, (when, self._count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: cancelled timers are skipped when they are due."""

    def _turn(self) -> None:
        """Run one thing; let time pass first, if nothing can run now."""
        if not self._ready:
            self._wait()
        handle = self._pick()
        if _is_cut_off(handle):
            self._dropped.append(handle)  # kept: what is collected would run its `finally`
        elif not handle.cancelled():
            handle._run()  # pyright: ignore[reportPrivateUsage]

    def _wait(self) -> None:
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)
        if not self._timers:
            raise StuckError("nothing can run any more, and no timer is set: somebody waits for what nobody will do")
        self._now = max(self._now, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heappop(self._timers)[2])

    def _pick(self) -> asyncio.Handle:
        """Take the first, or any task's step if the first is one."""
        if self._random is None or len(self._ready) == 1 or _task_of(self._ready[0]) is None:
            return self._ready.popleft()
        steps = [place for place, handle in enumerate(self._ready) if _task_of(handle) is not None]
        place = self._random.choice(steps)
        handle = self._ready[place]
        del self._ready[place]
        return handle

    # ------------------------------------------------------------ futures and tasks

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    @override
    def create_task(
        self, coro: Coroutine[Any, Any, ResultT], *, name: str | None = None, context: Context | None = None, **kwargs: Any
    ) -> asyncio.Task[ResultT]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def start_in(self, node: Node, coro: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Begin a task that belongs to a node, with everything that it begins in turn."""
        token = _node.set(node)
        try:
            return self.create_task(coro)
        finally:
            _node.reset(token)

    # ------------------------------------------------------------ running

    @override
    def run_until_complete(self, future: Any) -> Any:
        main = asyncio.ensure_future(future, loop=self)
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not main.done():
                self._turn()
            return main.result()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)

    @override
    def is_running(self) -> bool:
        return self._is_running

    @override
    def is_closed(self) -> bool:
        return self._is_closed

    @override
    def close(self) -> None:
        """Throw away what is left. The world is over: whatever a `finally` does now is seen by nobody."""
        self._is_closed = True
        for task in asyncio.all_tasks(self):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _shut(task)
        self._dropped.clear()
        self._ready.clear()
        self._timers.clear()

    @override
    def get_debug(self) -> bool:
        return False

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)
        _log.error("%s", context.get("message"), exc_info=cast("Any", context.get("exception")))

    @override
    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        raise RuntimeError("a simulation has one thread: do not use other threads in it")


def _task_of(handle: asyncio.Handle) -> asyncio.Task[Any] | None:
    """Return the task whose step this is, if it is one."""
    owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]  # pyright: ignore
    return owner if isinstance(owner, asyncio.Task) else None


def _is_cut_off(handle: asyncio.Handle) -> bool:
    context: Context = handle._context  # type: ignore[attr-defined]  # pyright: ignore
    node = context.get(_node)
    return node is not None and not node.is_alive


def _shut(task: asyncio.Task[Any]) -> None:
    try:
        task.get_coro().close()  # type: ignore[union-attr]  # pyright: ignore
    except BaseException:  # noqa: BLE001, S110 (the world is over)
        pass
