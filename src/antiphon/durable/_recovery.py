"""Recovery: continue the runs of given programs that a dead or stopped process has left, once or as a host.

**Which runs are taken.** Runs of the given programs that have no owner and wait for no person (`RunStatus.is_left`), unless
this build has given them up. A run that a failure outside has stopped is taken by `recover_runs`, because a person requests
it, and not by `host_runs`, which would call a failing provider again and again. A failed run is taken only if the caller
requests it: its program has seen the error. Two processes that recover at the same time do not collide: the ledger gives the
thread to one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from antiphon._listeners import listener
from antiphon.durable._changes import is_allowed
from antiphon.durable._history import RUN_KIND
from antiphon.durable._programs import RunProgram, programs_by_name
from antiphon.durable._status import RunState, RunStatus, living_hosts, matching_threads, runs_of
from antiphon.errors import AntiphonError, LedgerError, OwnedError
from antiphon.ledger import Owners, ThreadFilter, ThreadSummary
from antiphon.runtime._lease import process_host, takes_another_build
from antiphon.runtime._rows import error_text, text_of
from antiphon.runtime._settings import Settings

AT_ONCE: Final = 10
_LOOK: Final = 1.0
"""Seconds between two polls of a host."""
_LOOK_AGAIN: Final = 60.0
"""Seconds after which an unchanged thread is checked again: an approval may have expired."""


@dataclass(frozen=True, slots=True)
class RecoveredRun:
    """A run that was continued, and its state afterwards."""

    thread_id: str
    id: str
    name: str
    status: RunState
    reason: str | None = None
    """Why it is not completed."""


async def recover_runs(
    ledger: Owners,
    programs: Iterable[RunProgram[Any]],
    *,
    with_failed: bool = False,
    at_once: int = AT_ONCE,
    build: str | None = None,
) -> tuple[RecoveredRun, ...]:
    """Continue the runs that a dead or stopped process has left, and return how each ended, in the order in which they ended.

    A run that this build has given up is tried once more, which costs nothing: the difference may have been fixed since.
    `with_failed` also continues failed runs. `at_once` is the number of threads that are continued at the same time; the runs
    of one thread are continued one after the other. `build` is the version of the programs, by default that of the main file.

    Raises:
        SetupError: one of the values is not a program, or two have the same name.
    """
    recovery = _Recovery(ledger, programs, with_failed=with_failed, with_stopped=True, at_once=at_once)
    async with recovery.hosting(build):
        work = [recovery.start(thread_id, runs) async for thread_id, runs in recovery.unfinished()]
        await asyncio.gather(*work)
    return tuple(recovery.done)


async def host_runs(
    ledger: Owners,
    programs: Iterable[RunProgram[Any]],
    *,
    hear: Callable[[RecoveredRun], None] | None = None,
    ready: Callable[[str], Awaitable[None]] | None = None,
    stop: asyncio.Event | None = None,
    at_once: int = AT_ONCE,
    build: str | None = None,
    drain: float | None = None,
    draining: Callable[[int], None] | None = None,
) -> None:
    """Continue runs that dead or stopped processes leave, until `stop` is set. Then the active runs are left to other hosts.

    If a living host has another build, which may be unable to continue them, the runs at work end here first, for at most
    `drain` seconds; None is the default of `Settings`.

    `ready` is awaited once, with the name of this host in the ledger; `hear` with each run that was continued; `draining` with
    the number of threads whose runs end here first.

    Raises:
        SetupError: one of the values is not a program, or two have the same name.
    """
    stop = stop or asyncio.Event()
    draining = listener(draining)
    recovery = _Recovery(ledger, programs, with_failed=False, at_once=at_once, hear=listener(hear))
    async with recovery.hosting(build) as name:
        if ready is not None:
            await ready(name)
        work: set[asyncio.Task[None]] = set()
        try:
            while not stop.is_set():
                with suppress(LedgerError):  # the ledger is temporarily unavailable, or a thread was deleted meanwhile
                    work |= {recovery.start(thread_id, runs) async for thread_id, runs in recovery.unfinished()}
                work = {task for task in work if not task.done()}
                await _wait(stop, _LOOK)
            await recovery.drain(work, Settings().drain if drain is None else drain, draining)
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


class _Recovery:
    """Finds runs without an owner, and continues them."""

    def __init__(
        self,
        ledger: Owners,
        programs: Iterable[RunProgram[Any]],
        *,
        with_failed: bool,
        at_once: int,
        with_stopped: bool = False,
        hear: Callable[[RecoveredRun], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._programs = programs_by_name(programs)
        self._also = frozenset((*(("failed",) if with_failed else ()), *(("stopped",) if with_stopped else ())))
        """The statuses of runs that are taken, besides those without an owner."""
        self._turns = asyncio.Semaphore(at_once)
        self._hear = hear
        self._at_work: set[str] = set()
        self._running = 0
        """Threads whose turn it is."""
        self._is_ending = False
        """Whether no other run is begun."""
        self._looked: dict[str, tuple[object, float]] = {}
        """By thread that had no run to continue: its state and the time of the check."""
        self.done: list[RecoveredRun] = []

    @asynccontextmanager
    async def hosting(self, build: str | None) -> AsyncGenerator[str, None]:
        """Register a host with the kinds of the programs for the duration of the block; yield its name."""
        host = process_host(self._ledger)
        if build is not None:
            host.set_build(build)
        kinds = [f"{RUN_KIND}/{name}" for name in self._programs]
        joined: list[str] = []
        try:
            for kind in kinds:
                joined.append(kind)
                await host.join(kind)
            await host.lease.host()
            yield host.lease.name
        finally:
            for kind in joined:
                await host.leave(kind=kind)

    async def drain(self, work: Collection[asyncio.Task[None]], seconds: float, tell: Callable[[int], None] | None) -> None:
        """Let runs end for some seconds, if a host of another build lives: it may be unable to continue them."""
        self._is_ending = True
        kinds, build = [f"{RUN_KIND}/{name}" for name in self._programs], process_host(self._ledger).lease.build
        if not self._running or seconds <= 0 or not await takes_another_build(self._ledger, kinds, build):
            return
        if tell is not None:
            tell(self._running)
        await asyncio.wait(work, timeout=seconds)

    async def unfinished(self) -> AsyncIterator[tuple[str, Sequence[RunStatus]]]:
        """Yield the threads with runs that these programs may continue, each with those runs, oldest first."""
        alive = living_hosts(await self._ledger.hosts())
        now = asyncio.get_running_loop().time()
        seen: set[str] = set()
        async for thread in matching_threads(self._ledger, ThreadFilter(open_calls=True, system=False)):
            seen.add(thread.thread_id)
            state = (thread.messages, thread.owner, thread.status, thread.unfit)
            before, at = self._looked.get(thread.thread_id, (None, 0.0))
            is_known = before == state and now - at < _LOOK_AGAIN
            if thread.owner in alive or thread.thread_id in self._at_work or is_known:
                continue
            runs = [run for run in await runs_of(self._ledger, thread, alive) if await self._may_continue(run, thread)]
            if runs:
                yield thread.thread_id, sorted(runs, key=lambda run: run.began_at)
            else:
                self._looked[thread.thread_id] = (state, now)
        self._looked = {name: state for name, state in self._looked.items() if name in seen}

    async def _may_continue(self, run: RunStatus, thread: ThreadSummary) -> bool:
        if run.name not in self._programs or not (run.is_left or run.status in self._also):
            return False
        if "stopped" in self._also:
            return True  # a person has requested it: something may be fixed that the build does not show
        build = process_host(self._ledger).lease.build
        marks = [mark.at for mark in thread.unfit if mark.build == build]
        # This build has given the run up. Since then, a person may have allowed it to continue.
        return not marks or await is_allowed(self._ledger, run.thread_id, f"{run.thread_id}/{run.id}", marks[0])

    def start(self, thread_id: str, runs: Sequence[RunStatus]) -> asyncio.Task[None]:
        """Start to continue the runs of a thread."""
        self._at_work.add(thread_id)
        return asyncio.create_task(self._continue(thread_id, runs), name=f"antiphon-recover-{thread_id}")

    async def _continue(self, thread_id: str, runs: Sequence[RunStatus]) -> None:
        try:
            async with self._turns:
                self._running += 1
                try:
                    for run in runs:
                        if not self._is_ending:
                            await self._continue_one(run)
                finally:
                    self._running -= 1
        finally:
            self._at_work.discard(thread_id)

    async def _continue_one(self, run: RunStatus) -> None:
        program = self._programs[run.name or ""]
        reason: str | None = None
        try:
            await program.run(run.thread_id, id=run.id, ledger=self._ledger, on_busy="raise")
        except OwnedError:
            return  # another process was faster
        except AntiphonError as exc:
            reason = text_of(exc)
        except Exception as exc:  # noqa: BLE001 (the program's; it is recorded with the run, and reported below)
            reason = error_text(exc)
        ended = RecoveredRun(run.thread_id, run.id, program.name, *await self._after(run, reason))
        self.done.append(ended)
        if self._hear is not None:
            self._hear(ended)

    async def _after(self, run: RunStatus, error: str | None) -> tuple[RunState, str | None]:
        """Return the state of a continued run from the ledger."""
        try:
            thread = await self._ledger.thread(run.thread_id)
            runs = () if thread is None else await runs_of(self._ledger, thread, ())
        except LedgerError as exc:
            return "waiting", error or text_of(exc)
        state = next((other for other in runs if other.id == run.id), None)
        return ("completed", None) if state is None else (state.status, error or state.reason)
