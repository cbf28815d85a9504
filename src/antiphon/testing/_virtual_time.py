"""VirtualLoop: an event loop in which time passes only when all tasks wait, and whose order is chosen by a seed.

When nothing else can run, time jumps to the next timer, even if it is due in an hour. The seed decides which of the runnable
tasks is next. Callbacks that are not steps of tasks keep their order, as asyncio promises. The loop uses no clock and no I/O
of the machine, so a run is a function of the seed and the program.

Tasks belong to the *node* in which they were started. When a node is cut off, none of its code ever runs again: no step, no
callback, no `finally`, as if its process had been killed. While a node sleeps, none of its code runs, as if its process had
been stopped by a signal. `freeze` stops the running node in the middle of a step, between two instructions.

`VirtualPort` returns ids and times of the loop; `CountingPort` returns ids and times that count up.
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
    """No task can run any more, or a run has not ended within its limit."""


_numbers = count(1)


class Node:
    """A simulated process: it can be cut off, like a killed process, and it can sleep, like a stopped one."""

    def __init__(self, name: str, *, is_far: bool = False) -> None:
        """Make a node; `is_far`: it is on another machine, so other nodes cannot see that it was cut off."""
        self.name = name
        self.number = next(_numbers)
        self.is_far = is_far
        self.is_alive = True
        self.is_asleep = False
        self.held: list[tuple[asyncio.Handle, bool]] = []
        """The handles that became ready while it slept, in order."""
        self.after_step: Callable[[], None] | None = None
        """Called after each of its steps: where its process waits, or another task of it could run."""


_OUTSIDE = Node("outside")

_node: ContextVar[Node | None] = ContextVar("antiphon_simulated_node", default=None)


def current_node() -> Node:
    """Return the node of the running task; outside of all nodes, one that is never cut off."""
    return _node.get() or _OUTSIDE


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop for one thread, with no input and output, in virtual time."""

    is_virtual = True
    """Its time is independent of the machine's."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = None if seed is None else Random(seed)  # noqa: S311 (not for secrets)
        self._ready: deque[tuple[asyncio.Handle, bool]] = deque()
        """The handles that can run, each with whether it is a task's step."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._count = 0
        self._now = 0.0
        self._is_running = False
        self._is_closed = False
        self._is_stopping = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """All tasks that ever ran. They are kept, because a collected task runs its `finally`, at a time that varies."""
        self._generators: list[AsyncGenerator[Any, Any]] = []
        """The asynchronous generators, kept for the same reason."""
        self.errors: list[dict[str, Any]] = []
        """The contexts that the exception handler got."""
        self._nodes: dict[int, Node] = {}
        """The simulated processes whose names were requested, by number."""

    # ------------------------------------------------------------ processes

    @property
    def process_name(self) -> str:
        """The name of the simulated process that runs now (see `antiphon.ledger.LeaseClock`)."""
        node = current_node()
        self._nodes[node.number] = node
        return f"{'far' if node.is_far else 'node'}-{node.number}"

    def has_ended(self, process: str) -> bool:
        """Whether a simulated process was cut off. A process of another loop ended with that loop."""
        kind, _, number = process.partition("-")
        if kind != "node":
            return False
        node = self._nodes.get(int(number))
        return node is None or not node.is_alive

    def wake(self, node: Node) -> None:
        """Wake a sleeping node: the handles that became ready meanwhile run first."""
        node.is_asleep = False
        self._ready.extend(node.held)
        node.held.clear()

    def freeze(self, seconds: float) -> None:
        """Let time pass for all other nodes, in the middle of a step of the running node: it notices nothing.

        Call it from code of a node that is not cut off meanwhile. If another node is frozen meanwhile, both wake up with the
        later one.
        """
        node, task = current_node(), asyncio.current_task(self)
        thawed: list[bool] = []
        self.call_later(seconds, thawed.append, True, context=Context())  # of no node
        node.is_asleep = True
        if task is not None:
            asyncio.tasks._leave_task(self, task)
        try:
            while not thawed:
                self._run_next()
        finally:
            if task is not None:
                asyncio.tasks._enter_task(self, task)
            self.wake(node)

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
        """Return the next handle: the first, or a random task step if the first is one. If there is none, let time pass."""
        ready = self._ready
        if not ready:
            self._wait()
        if len(ready) == 1 or self._random is None or not ready[0][1]:
            return ready.popleft()
        steps = [place for place, (_, is_step) in enumerate(ready) if is_step]
        place = steps[int(self._random.random() * len(steps))]
        handle = ready[place]
        del ready[place]
        return handle

    def _wait(self) -> None:
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heappop(timers)
        if not timers:
            raise StuckError("deadlock: no task can run and no timer is set")
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
        """Return None: there is no task factory. Libraries check before they make their own tasks."""

    def start_in(self, node: Node, coro: Coroutine[Any, Any, ResultT]) -> asyncio.Task[ResultT]:
        """Start a task in a node; the tasks that it starts belong to the node too."""
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
                self._run_next()
            return main.result()
        finally:
            self._is_running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def _run_next(self) -> None:
        handle, is_step = self._next()
        node: Node | None = cast("Any", handle)._context.get(_node)
        if handle.cancelled() or (node is not None and not node.is_alive):
            return
        if node is not None and node.is_asleep:
            node.held.append((handle, is_step))
            return
        handle._run()
        if node is not None and node.after_step is not None:
            node.after_step()

    @override
    def is_running(self) -> bool:
        return self._is_running

    @override
    def is_closed(self) -> bool:
        return self._is_closed

    @override
    def close(self) -> None:
        """Discard the remaining tasks. The run is over: the effects of their `finally` are not observed."""
        self._is_closed = True
        shut: set[asyncio.Task[Any]] = set()
        asyncio._set_running_loop(self)
        try:
            while tasks := asyncio.all_tasks(self) - shut:  # closing one may start others
                shut |= tasks
                for task in tasks:
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
    """A port with the time of a virtual event loop; ids count up, and random numbers come from a seed."""

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
    """Drop an asynchronous generator without its `finally`: its node is dead, or the run is over."""


def _shut(task: asyncio.Task[Any]) -> None:
    shut: Any = task
    shut._log_destroy_pending = False
    with suppress(BaseException):  # the simulation is over
        shut.get_coro().close()


class CountingPort:
    """Ids count up (`id-1`, `id-2`, …); each call of `now` advances the time by `tick`."""

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
