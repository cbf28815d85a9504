"""Watchdog: an OS thread beside an event loop. While the loop is blocked, it says so, and renews the leases of its hosts.

A function that computes for seconds without an `await` stops everything else on the loop, heartbeats and deadlines included.
That is a fault of liveness, and must not cost the process its threads: another host would take them, and the work here would
be lost or, worse, doubled. So the two are kept apart. The leases of a blocked loop are renewed from here, over the ledger's
own means for other threads (`Ledger.renew`). The blockage is reported with its line of code, and in a system the supervisor of
the actor decides what to do.

A loop that has not run for five minutes counts as dead: its leases end, so that other hosts continue its threads. If it wakes
up after all, it starts no effect before it has asked the ledger (`Journal.confirm`).
"""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from antiphon.runtime._reporting import LOG, log_fields

_DEAD_AFTER: Final = 300.0
"""Seconds without a turn of the event loop after which its leases are no longer renewed."""

OnBlock = Callable[[str, float, str], None]
"""Called on the event loop, when it runs again, with the name of the blocking task, the seconds, and the line of code."""


class Renewable(Protocol):
    """A lease that can be renewed from another thread."""

    @property
    def heartbeat(self) -> float:
        """The seconds between two beats."""
        ...

    def renew_if_late(self) -> None:
        """Renew it, if the event loop has missed a beat. It raises nothing."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class BlockReport:
    """Who wants to be told that the event loop is blocked for some seconds."""

    limit: float
    on_block: OnBlock | None = None


class Watchdog:
    """The thread beside one event loop. It runs while there is anything to watch.

    `_alive_at` and `_told` are written by one thread and read by the other without a lock. Each is a single assignment,
    and a stale read only delays a report. The watched things are replaced as a whole, never changed in place.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._leases: tuple[Renewable, ...] = ()
        self._reports: tuple[BlockReport, ...] = ()
        self._alive_at = 0.0
        self._told: tuple[BlockReport, ...] = ()
        """Who was told of the present blockage."""
        self._timer: asyncio.TimerHandle | None = None
        self._ended: threading.Event | None = None
        """Ends the running thread; None while nothing is watched."""

    def add(self, watched: Renewable | BlockReport) -> None:
        """Watch for a lease, or for somebody who wants reports."""
        if isinstance(watched, BlockReport):
            self._reports += (watched,)
        else:
            self._leases += (watched,)
        self._turn()
        if self._ended is None:
            self._ended = threading.Event()
            threading.Thread(target=self._watch, args=(self._ended,), name="antiphon-watchdog", daemon=True).start()

    def remove(self, watched: Renewable | BlockReport) -> None:
        """Stop to watch for it. The thread ends with the last one; nobody waits for it, because it may be renewing a lease."""
        self._reports = tuple(each for each in self._reports if each is not watched)
        self._leases = tuple(each for each in self._leases if each is not watched)
        if not (self._reports or self._leases) and self._ended is not None:
            self._ended.set()
            self._ended = None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            _watchdogs.pop(self._loop, None)  # it refers to the loop, which would never be collected

    @property
    def _step(self) -> float:
        """The seconds between two looks: short enough to notice a blockage at its limit, and a missed beat soon."""
        limits = [each.limit for each in self._reports] + [each.heartbeat for each in self._leases]
        return min(limits, default=1.0) / 4

    def _turn(self) -> None:
        """Note that the loop runs."""
        self._alive_at = self._loop.time()
        self._told = ()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(self._step, self._turn)

    # ------------------------------------------------------------ in the thread

    def _watch(self, ended: threading.Event) -> None:
        while not ended.wait(self._step):
            late = self._loop.time() - self._alive_at
            if late < _DEAD_AFTER:
                for lease in self._leases:
                    lease.renew_if_late()
            # A loop that does not run is not blocked: a program without one enters its block with `with`.
            if not self._loop.is_running():
                continue
            if due := tuple(each for each in self._reports if late > each.limit and each not in self._told):
                self._report(late, due, is_logged=bool(self._told))
                self._told += due

    def _report(self, late: float, due: tuple[BlockReport, ...], *, is_logged: bool) -> None:
        task = asyncio.current_task(self._loop)
        name = "" if task is None else task.get_name()
        frame = sys._current_frames().get(self._loop_thread)  # pyright: ignore[reportPrivateUsage]
        where = "" if frame is None else "".join(traceback.format_stack(frame, 3)).strip()
        text = "the event loop is blocked for %.1f s by %s:\n%s"
        if not is_logged:
            LOG.error(text, late, name or "no actor", where, extra=log_fields(name))
        line = "" if frame is None else f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        with suppress(RuntimeError):  # the loop was closed meanwhile
            for each in due:
                if each.on_block is not None:
                    self._loop.call_soon_threadsafe(each.on_block, name, late, line)


_watchdogs: WeakKeyDictionary[asyncio.AbstractEventLoop, Watchdog] = WeakKeyDictionary()


def watchdog() -> Watchdog | None:
    """Return the watchdog of the running event loop, to watch for something.

    None if the time of the loop is virtual: a simulation has one thread.
    """
    loop = asyncio.get_running_loop()
    if getattr(loop, "is_virtual", False):
        return None
    if (watchdog_of_loop := _watchdogs.get(loop)) is None:
        watchdog_of_loop = _watchdogs[loop] = Watchdog(loop)
    return watchdog_of_loop
