"""The lease of a host, and the process host, which serves runs and subscriptions outside of systems.

**Lease.** A host renews its lease in the ledger every few seconds (`beat`). Until the lease expires, no other host takes its
threads. The first claim of a thread waits for the first beat; a system that never uses a thread is not a host. While the event
loop is blocked, the watchdog renews the lease from its own thread.

**Process host.** Durable runs and subscriptions are outside of systems. Those on one ledger and one event loop share one host,
so one heartbeat per process suffices. The host starts with the first claim, and leaves the ledger when the last of them ends:
its threads are then free at once. After a crash, another process may claim them as soon as the ledger detects that this
process has ended, or when the lease expires. While other runs continue, a thread is released on its own; the last one is
released by the end of the host, which saves a commit for a program with one run.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from antiphon.errors import HostError, LedgerError
from antiphon.ledger import Host
from antiphon.runtime._permits import Permits
from antiphon.runtime._points import Point, reached
from antiphon.runtime._reporting import warn
from antiphon.runtime._settings import Settings
from antiphon.runtime._watchdog import BlockReport, Watchdog, watchdog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from antiphon.errors import HistoryMismatchError
    from antiphon.ledger import Owners

ResultT = TypeVar("ResultT")

# ---------------------------------------------------------------- the lease

_numbers = count(1)
"""Numbers the systems of one process."""


class Lease:
    """A system or a process as a host in the ledger, the beats that renew its lease, and the permits that it leases with it.

    Whoever writes threads needs one: `Journal` claims them by it, and confirms by it that they are still owned.
    """

    def __init__(self, ledger: Owners, settings: Settings, kinds: Callable[[], tuple[str, ...]]) -> None:
        """Make it; `kinds` returns the kinds of threads that the host can run, which change while it is set up."""
        self.ledger = ledger
        self._settings = settings
        self.kinds = kinds
        self._name: str | None = settings.host
        self._build = settings.build
        self.permits = Permits(ledger, self, settings.permit_patience)
        """The permits for model requests of this host."""
        self._host: Host | None = None
        self._clock: Callable[[], float] = lambda: 0.0
        self._first_beat: asyncio.Task[Host] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._watchdog: Watchdog | None = None
        self.beaten = Beat(0.0, 0.0, 0)
        """The last beat. The event loop and the watchdog both replace it, holding the lock."""
        self._noting = Lock()

    @property
    def name(self) -> str:
        """The name of this host in the ledger."""
        if self._name is None:
            self._name = f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        return self._name

    @property
    def build(self) -> str:
        """The version of this program. A change takes effect when the host registers the next time."""
        return self._build or default_build()

    @build.setter
    def build(self, build: str) -> None:
        self._build = build

    @property
    def heartbeat(self) -> float:
        """The seconds between two beats."""
        return self._settings.heartbeat

    async def host(self, *, renew: bool = False) -> Host:
        """Return this host, with a valid lease. The first call registers it with the ledger.

        An idle host does not beat; `renew`: the ledger has reported that its lease has expired.

        Raises:
            HostError: another living host has the name.
            LedgerError: the ledger cannot be written.
        """
        if self._leaving is not None:  # otherwise its own name would be taken
            await asyncio.wait((self._leaving,))
        if self._host is None:
            if self._first_beat is None or self._first_beat.done():
                self._first_beat = asyncio.create_task(self._register())
            return await asyncio.shield(self._first_beat)  # shielded, because other claims wait for the same beat
        if renew or self._clock() - self.beaten.at >= self._settings.heartbeat:
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self.beat())
            await asyncio.shield(self._renewal)  # one beat for all waiting claims
        self._watch()  # also without a beat: it may have rested meanwhile
        return self._host

    async def as_host(self, verb: Callable[[Host], Awaitable[ResultT]]) -> ResultT:
        """Call a verb of the ledger that needs a living host; once more, if the lease has expired there.

        That happens after the machine was suspended, or the ledger was restored.
        """
        host = await self.host()
        try:
            return await verb(host)
        except HostError:
            return await verb(await self.host(renew=True))

    async def _register(self) -> Host:
        host = Host(self.name, self.build, self.kinds(), self._settings.heartbeat * BEATS_A_LEASE)
        self._clock = asyncio.get_running_loop().time
        await self._beat(host)
        return host

    def has_lapsed(self) -> bool:
        """Whether the lease may have expired: the process or the machine was suspended, or the ledger could not be reached."""
        host = self._host
        return host is not None and self._age(self.beaten) >= host.lease

    def lasts_in(self, term: int | None) -> bool:
        """Whether a term has not ended, and certainly lasts for another moment, in which an effect may start.

        The moment is a sixth of the lease: one second by default. A process that is suspended for longer than that, right
        between this check and the start of an effect, starts it although another host may have its thread. No check can close
        that gap. The receiver can: it gets the same idempotency key from both.
        """
        host, beaten = self._host, self.beaten  # read once: the watchdog may note a beat of a new term at any moment
        return host is not None and beaten.term == term and self._age(beaten) < host.lease * _SURE

    def _age(self, beaten: Beat) -> float:
        """Return the seconds since a beat, sleep of the machine included."""
        slept = slept_seconds() - beaten.slept
        return self._clock() - beaten.at + (slept if slept > _SLACK else 0.0)

    async def beat(self) -> None:
        """Renew the lease, and register new kinds of actors with the ledger."""
        if self._host is not None:
            await self._beat(replace(self._host, kinds=self.kinds()))

    async def _beat(self, host: Host) -> None:
        # Read before the beat: the lease must not seem to last longer than it does.
        began = self._clock(), slept_seconds()
        await self.ledger.beat(host)
        self._note(*began)
        self._host = host
        self._watch()

    def renew_if_late(self) -> None:
        """Renew the lease, if the event loop has missed a beat. The watchdog calls it, in its own thread."""
        host = self._host
        if host is None or self._clock() - self.beaten.at < self._settings.heartbeat * _LATE:
            return
        began = self._clock(), slept_seconds()
        try:
            is_renewed = self.ledger.renew(host)
        except LedgerError as exc:
            warn("the lease of %s cannot be renewed: %s", host.name, error=exc)
            return
        if is_renewed:
            self._note(*began)

    def _note(self, began: float, slept: float) -> None:
        with self._noting:  # two beats at once must not lose an end of the term
            if self._host is not None and began < self.beaten.at:
                return  # a later beat has overtaken this one
            # Compared with the previous beat, so before that is replaced: if the lease had expired in between, another host
            # may have taken threads or permits, and whatever was leased in the old term no longer counts.
            self.beaten = Beat(began, slept, self.beaten.term + self.has_lapsed())

    def _watch(self) -> None:
        """Let the watchdog renew the lease whenever the event loop misses a beat."""
        if self._watchdog is None and (watch := watchdog()) is not None:
            self._watchdog = watch
            watch.add(self)

    def rest(self) -> None:
        """Let the lease expire, because this host owns nothing. The next call of `host` renews it."""
        watch, self._watchdog = self._watchdog, None
        if watch is not None:
            watch.remove(self)

    async def end(self) -> None:
        """End the lease, which releases all threads of this host at once. A later call of `host` registers it again."""
        # Permits first, while the host is registered: the ledger refuses the exchange of an unknown host.
        await self.permits.close()
        pending = [each for each in (self._first_beat, self._renewal) if each is not None and not each.done()]
        if pending:  # a beat after `leave` would register the host again
            await asyncio.wait(pending)
        host, self._host = self._host, None
        self.rest()
        if host is None:
            return
        self.beaten = self.beaten._replace(term=self.beaten.term + 1)  # nothing that was confirmed so far holds any longer
        self._leaving = asyncio.create_task(self._leave(host))
        await asyncio.shield(self._leaving)

    async def _leave(self, host: Host) -> None:
        try:
            with suppress(LedgerError):  # then the lease expires by itself
                await self.ledger.leave(host)
                reached(Point.RELEASED, "")
        finally:
            self._leaving = None


class Beat(NamedTuple):
    """A renewal of the lease."""

    at: float
    """When it began, by the clock of the event loop."""
    slept: float
    """How long the machine had slept before."""
    term: int
    """How often the lease may have ended before it was renewed.

    What the ledger has confirmed in a term, such as the ownership of a thread, holds while `Lease.lasts_in`: no other host can
    have taken it in between. What was confirmed in an earlier term must be confirmed again.
    """


_BOOT_CLOCK: int | None = getattr(time, "CLOCK_BOOTTIME", None)
_SLACK = 1.0
"""Seconds: two clocks cannot be read at the same moment."""


def slept_seconds() -> float:
    """Return for how long the machine has slept since it was started, as far as the system tells.

    The clock of the event loop stands still meanwhile, and the clock of leases does not.
    """
    if _BOOT_CLOCK is None:
        return 0.0
    return time.clock_gettime(_BOOT_CLOCK) - time.monotonic()  # noqa: TID251 (nobody sets them)


def default_build() -> str:
    """Return the version of this program: `ANTIPHON_BUILD`, or a hash of its main file."""
    if named := os.environ.get("ANTIPHON_BUILD"):
        return named
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return sha256(Path(path or "").read_bytes()).hexdigest()[:12]
    except OSError:
        return "unknown"


BEATS_A_LEASE = 3
"""A host may miss two beats. G15: its threads are taken over within three beats."""
_SURE = 5 / 6
"""The part of a lease in which effects may start."""
_LATE = 1.5
"""The number of heartbeats without a beat after which the watchdog renews a lease."""


# ---------------------------------------------------------------- a process outside of systems

_SETTINGS = Settings()


class ProcessHost:
    """The users of this process on one ledger, its runs and subscriptions, and the lease that they share."""

    def __init__(self, ledger: Owners) -> None:
        self._ledger = ledger
        self._users = 0
        self._kinds: Counter[str] = Counter()
        self.lease = Lease(ledger, _SETTINGS, lambda: tuple(self._kinds))
        self._beats: asyncio.Task[None] | None = None
        self._block_report = BlockReport(_SETTINGS.heartbeat)
        self._ending = asyncio.Lock()
        """Held while the host leaves the ledger."""

    def set_build(self, build: str) -> None:
        """Set the version of the program, for a command that runs programs from files other than its main file.

        It takes effect when the host starts the next time.
        """
        self.lease.build = build

    async def join(self, kind: str | None = None) -> None:
        """Add a user of the host, which runs threads of a kind. Call `leave` for it, even if this raises."""
        # Counted before the wait: `_has_ended` checks the number under the lock, and must not end a host that has a new user.
        self._users += 1
        if kind is not None:
            self._kinds[kind] += 1
        # A leaving host releases all its threads: a thread that is claimed before it has left would be lost.
        async with self._ending:
            if self._beats is None:
                self._beats = asyncio.create_task(self._beat(), name="antiphon-host")
                if (watch := watchdog()) is not None:
                    watch.add(self._block_report)

    async def leave(self, release: Callable[[], Awaitable[None]] | None = None, *, kind: str | None = None) -> None:
        """Remove a user. The last user ends the host; for other users, `release` releases the thread."""
        self._users -= 1
        if kind is not None:
            self._kinds -= Counter((kind,))
        if self._users == 0 and await self._has_ended():
            return
        if release is not None:
            with suppress(LedgerError):  # the thread is then released when this host leaves
                await release()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_SETTINGS.heartbeat)
            try:
                await self.lease.beat()
            except LedgerError as exc:
                warn("this host is late: %s", error=exc)

    async def _has_ended(self) -> bool:
        """End the host, unless another user has joined meanwhile; return whether it has ended."""
        async with self._ending:
            if self._users:
                return False
            beats, self._beats = self._beats, None
            if beats is not None:
                beats.cancel()
                await asyncio.wait((beats,))  # a beat after `leave` would register the host again
            if (watch := watchdog()) is not None:
                watch.remove(self._block_report)
            await self.lease.end()
            if self._users == 0:
                _hosts().pop(self._ledger, None)
            return True


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Owners, ProcessHost]] = WeakKeyDictionary()


def _hosts() -> WeakKeyDictionary[Owners, ProcessHost]:
    return _loops.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())


def process_host(ledger: Owners) -> ProcessHost:
    """Return this process as a host on a ledger, for the running event loop."""
    hosts = _hosts()
    if (host := hosts.get(ledger)) is None:
        host = hosts[ledger] = ProcessHost(ledger)
    return host


def is_of_this_process(host: Host) -> bool:
    """Whether a host belongs, or belonged, to this process."""
    host_of_process = Host("this", "1")  # each new value names the process that made it
    return host.instance.rpartition("/")[0] == host_of_process.instance.rpartition("/")[0]


# ---------------------------------------------------------------- hosts of other builds


async def has_other_build(ledger: Owners, thread_id: str, build: str) -> bool:
    """Whether a living host of another build has the kind of a thread."""
    summary = await ledger.thread(thread_id)
    kind = None if summary is None else summary.kind
    return any(
        each.is_alive and each.host.build != build and (kind is None or kind in each.host.kinds)
        for each in await ledger.hosts()
    )


async def takes_another_build(ledger: Owners, kinds: Collection[str], build: str) -> bool:
    """Whether a living host of another build takes threads of some kinds; yes, if the ledger does not answer."""
    try:
        hosts = await ledger.hosts()
    except LedgerError:
        return True
    return any(each.is_alive and each.host.build != build and not {*kinds}.isdisjoint(each.host.kinds) for each in hosts)


def unfit_reason(error: HistoryMismatchError) -> str:
    """Return why a build cannot continue a thread, in the form that the ledger stores."""
    return f"{error.code}: {error.reason}"
