"""VirtualLoop: an event loop in which time passes only when all tasks wait, and whose order is chosen by a seed.

A timer that is due in an hour is due as soon as nothing else can run. Which of the tasks that can run is next is drawn
from the seed; callbacks that are not steps of tasks keep their order, as asyncio promises. Nothing here asks the
machine for anything, so a run is a function of the seed and the program.

Tasks belong to the *node* that they were started in. When a node is cut off, nothing of it runs ever again: no step, no
callback, no `finally`; as if its process had been killed. Nothing of a node that sleeps runs before it is woken; as if its
process had been stopped by a signal.

`VirtualPort` gives ids and times of the loop; `CountingPort` gives ids and times that count up.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import suppress
from contextvars import Context, ContextVar
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from itertools import count
from random import Random  # noqa: TID251 (seeded)
from typing import Any, TypeVar, TypeVarTuple, cast

from typing_extensions import override

ResultT = TypeVar("ResultT")
ArgsT = TypeVarTuple("ArgsT")

_log = logging.getLogger("antiphon.testing")


class StuckError(AssertionError):
    """Nothing can run any more, or has not come to an end in the time it was given."""


_numbers = count(1)


class Node:
    """Something that can be cut off as a whole, as a process can be killed; or that sleeps, as a process can be stopped."""

    def __init__(self, name: str, *, is_far: bool = False) -> None:
        """Make it; `is_far`: it is on another machine, so nobody sees that it was cut off."""
        self.name = name
        self.number = next(_numbers)
        self.is_far = is_far
        self.is_alive = True
        self.is_asleep = False
        self.held: list[tuple[asyncio.Handle, bool]] = []
        """What could have run while it slept, in its order."""


_OUTSIDE = Node("outside")

_node: ContextVar[Node | None] = ContextVar("antiphon_simulated_node", default=None)


def current_node() -> Node:
    """Return the node that the running task belongs to; outside of all, one that is never cut off."""
    return _node.get() or _OUTSIDE


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop for one thread, with no input and output, in virtual time."""

    is_virtual = True
    """Time here has nothing to do with the machine's."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = None if seed is None else Random(seed)  # noqa: S311 (not for secrets)
        self._ready: deque[tuple[asyncio.Handle, bool]] = deque()
        """What can run, and whether it is a task's step."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._now = 0.0
        self._is_running = False
        self._is_closed = False
        self._is_stopping = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """All that ever ran, kept: one that is collected, and when is left to the machine, runs its `finally`."""
        self._generators: list[AsyncGenerator[Any, Any]] = []
        """The asynchronous ones, for the same reason."""
        self.errors: list[dict[str, Any]] = []
        """What was given to the exception handler."""
        self._nodes: dict[int, Node] = {}
        """The simulated processes that were asked for their names."""

    # ------------------------------------------------------------ processes

    @property
    def process_name(self) -> str:
        """The name of the simulated process that runs now (see `antiphon.ledger.LeaseClock`)."""
        node = current_node()
        self._nodes[node.number] = node
        return f"{'far' if node.is_far else 'node'}-{node.number}"

    def has_ended(self, process: str) -> bool:
        """Whether a simulated process was cut off. One of another loop has ended with that."""
        kind, _, number = process.partition("-")
        if kind != "node":
            return False
        node = self._nodes.get(int(number))
        return node is None or not node.is_alive

    def wake(self, node: Node) -> None:
        """Let a node that sleeps go on: first with what it could have done meanwhile."""
        node.is_asleep = False
        self._ready.extend(node.held)
        node.held.clear()

    # ------------------------------------------------------------ time and turns

    @override
    def time(self) -> float:
        return self._now

    @override
    def call_soon(self, callback: Callable[[*ArgsT], object], *args: *ArgsT, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        task = getattr(callback, "__self__", None)
        is_step = isinstance(task, asyncio.Task)
        if is_step:
            self._tasks[cast("asyncio.Task[Any]", task)] = None
        self._ready.append((handle, is_step))
        return handle

    @override
    def call_soon_threadsafe(
        self, callback: Callable[[*ArgsT], object], *args: *ArgsT, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    @override
    def call_later(
        self, delay: float, callback: Callable[[*ArgsT], object], *args: *ArgsT, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    @override
    def call_at(
        self, when: float, callback: Callable[[*ArgsT], object], *args: *ArgsT, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._count += 1
        heappush(self._timers, (when, self._count, handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing to do: cancelled timers are skipped when they are due."""

    def _next(self) -> tuple[asyncio.Handle, bool]:
        """Take what can run: the first, or any task's step if the first is one. If nothing can, let time pass."""
        ready = self._ready
        if not ready:
            self._wait()
        if len(ready) == 1 or self._random is None or not ready[0][1]:
            return ready.popleft()
        steps = [place for place, (_, is_step) in enumerate(ready) if is_step]
        place = steps[int(self._random.random() * len(steps))]
        found = ready[place]
        del ready[place]
        return found

    def _wait(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not timers:
            raise StuckError("nothing can run any more, and no timer is set: somebody waits for what nobody will do")
        self._now = max(self._now, timers[0][0])
        while timers and timers[0][0] <= self._now:
            self._ready.append((heappop(timers)[2], False))

    # ------------------------------------------------------------ futures and tasks

    @override
    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    @override
    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None, **kwargs: Any) -> Any:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    @override
    def get_task_factory(self) -> None:
        """Return that there is none: tasks are made as above. Libraries look before they make tasks of their own."""

    def start_in(self, node: Node, coro: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Begin a task that belongs to a node, with everything that it begins in turn."""
        token = _node.set(node)
        try:
            return asyncio.Task(coro, loop=self)
        finally:
            _node.reset(token)

    # ------------------------------------------------------------ running

    @override
    def run_until_complete(self, future: Any) -> Any:
        main = asyncio.ensure_future(future, loop=self)
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(firstiter=self._generators.append, finalizer=_leave)
        asyncio._set_running_loop(self)
        self._is_running = True
        try:
            while not main.done():
                handle, is_step = self._next()
                node: Node | None = cast("Any", handle)._context.get(_node)
                if handle.cancelled() or (node is not None and not node.is_alive):
                    continue
                if node is not None and node.is_asleep:
                    node.held.append((handle, is_step))
                else:
                    handle._run()
            return main.result()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    @override
    def is_running(self) -> bool:
        return self._is_running

    @override
    def is_closed(self) -> bool:
        return self._is_closed

    @override
    def close(self) -> None:
        """Throw away what is left. The world is over: what a `finally` does now is not seen."""
        self._is_closed = True
        shut: set[asyncio.Task[Any]] = set()
        asyncio._set_running_loop(self)
        try:
            while left := asyncio.all_tasks(self) - shut:  # shutting one may begin others
                shut |= left
                for task in left:
                    _shut(task)
        finally:
            asyncio._set_running_loop(None)
        self._tasks.clear()
        self._generators.clear()
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
    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*ArgsT], ResultT], *args: *ArgsT
    ) -> asyncio.Future[ResultT]:
        raise RuntimeError("a simulation has one thread: do not use other threads in it")


class VirtualPort:
    """A port in the time of a virtual event loop; ids count up, and chance is drawn from a seed."""

    def __init__(self, loop: VirtualLoop, seed: int = 0, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._loop = loop
        self._start = start
        self._count = 0
        self._random = Random(seed)  # noqa: S311 (not for secrets)

    def new_id(self) -> str:
        self._count += 1
        return f"id-{self._count}"

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._loop.time())

    def random(self) -> float:
        return self._random.random()


def _leave(generator: AsyncGenerator[Any, Any]) -> None:
    """Let an asynchronous generator go without its `finally`: the node that it was of is dead, or the world is over."""


def _shut(task: asyncio.Task[Any]) -> None:
    shut: Any = task
    shut._log_destroy_pending = False
    with suppress(BaseException):  # the world is over
        shut.get_coro().close()


class CountingPort:
    """Ids count up (`id-1`, `id-2`, …); each look at the clock moves it on by `tick`."""

    def __init__(
        self, *, prefix: str = "id", start: datetime = datetime(2026, 1, 1, tzinfo=UTC), tick: timedelta = timedelta(seconds=1)
    ) -> None:
        self._prefix = prefix
        self._count = 0
        self._now = start - tick
        self._tick = tick

    def new_id(self) -> str:
        self._count += 1
        return f"{self._prefix}-{self._count}"

    def now(self) -> datetime:
        self._now += self._tick
        return self._now
