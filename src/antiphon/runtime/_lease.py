"""The lease of a host, and the process host, which serves runs and subscriptions outside of systems.

**Lease.** A host renews its lease in the ledger every few seconds (`beat`). Until the lease expires, no other host takes its
threads. The first claim of a thread waits for the first beat; a system that never uses a thread is not a host.

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
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from antiphon.errors import LedgerError
from antiphon.ledger import Host, instance_at
from antiphon.runtime._permits import Permits
from antiphon.runtime._reporting import LOG, log_fields, log_text
from antiphon.runtime._settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from antiphon.ledger import Ledger

# ---------------------------------------------------------------- the lease

_numbers = count(1)
"""Numbers the systems of one process."""


class Lease:
    """A system as a host in the ledger, and the beats that renew its lease."""

    def __init__(self, ledger: Ledger, settings: Settings, kinds: Callable[[], tuple[str, ...]]) -> None:
        """Make it; `kinds` returns the kinds of actors that the system has, which change while it is set up."""
        self._ledger = ledger
        self._settings = settings
        self._kinds = kinds
        self._name: str | None = settings.host
        self._host: Host | None = None
        self._first_beat: asyncio.Task[Host] | None = None
        self._renewal: asyncio.Task[None] | None = None
        self._beaten_at = 0.0
        self.term = 0
        """Counts how often a lease may have ended before it was renewed."""

    @property
    def name(self) -> str:
        """The name of this host in the ledger."""
        if self._name is None:
            self._name = f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}"
        return self._name

    @property
    def build(self) -> str:
        """The version of this program."""
        return self._settings.build or default_build()

    async def host(self, *, renew: bool = False) -> Host:
        """Return this host, with a valid lease. The first call registers it with the ledger.

        An idle host does not beat; `renew`: the ledger has reported that its lease has expired.

        Raises:
            HostNameTakenError: another living host has the name.
            LedgerError: the ledger cannot be written.
        """
        if self._host is None:
            if self._first_beat is None or self._first_beat.done():
                self._first_beat = asyncio.create_task(self._register())
            return await asyncio.shield(self._first_beat)  # shielded, because other claims wait for the same beat
        if renew or asyncio.get_running_loop().time() - self._beaten_at >= self._settings.heartbeat:
            if self._renewal is None or self._renewal.done():
                self._renewal = asyncio.create_task(self.beat())
            await asyncio.shield(self._renewal)  # one beat for all waiting claims
        return self._host

    async def _register(self) -> Host:
        host = Host(self.name, self.build, self._kinds(), self._settings.heartbeat * BEATS_A_LEASE)
        if self._settings.address is not None:
            host = replace(host, instance=instance_at(self._settings.address))
        await self._beat(host)
        return host

    def has_lapsed(self) -> bool:
        """Whether the lease may have expired: the process was suspended, or its event loop was blocked."""
        return self._host is not None and asyncio.get_running_loop().time() - self._beaten_at >= self._host.lease

    async def beat(self) -> None:
        """Renew the lease, and register new kinds of actors with the ledger.

        Raises:
            LedgerError: the ledger cannot be written.
        """
        if self._host is not None:
            await self._beat(replace(self._host, kinds=self._kinds()))

    async def _beat(self, host: Host) -> None:
        began = asyncio.get_running_loop().time()  # read before the beat: the lease must not seem to last longer than it does
        await self._ledger.beat(host)
        # Compared with the previous beat, so before that is replaced: if the lease had expired in between, another host may
        # have taken threads or permits, and whatever was leased in the old term no longer counts.
        self.term += self.has_lapsed()
        self._host, self._beaten_at = host, began

    async def end(self) -> None:
        """End the lease, which releases all threads of this host at once."""
        if self._host is not None:
            with suppress(LedgerError):  # then the lease expires by itself
                await self._ledger.leave(self._host)


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


# ---------------------------------------------------------------- a process outside of systems

_SETTINGS = Settings()


class ProcessHost:
    """The host of the runs and subscriptions of this process on one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._users = 0
        self._build: str | None = None
        self._kinds: Counter[str] = Counter()
        self._lease = self._new_lease()
        self.permits = Permits(ledger, self, _SETTINGS.permit_patience)
        """The permits for model requests of this process."""
        self._beats: asyncio.Task[None] | None = None
        self._ending = asyncio.Lock()
        """Held while the host leaves the ledger."""

    def _new_lease(self) -> Lease:
        settings = _SETTINGS if self._build is None else replace(_SETTINGS, build=self._build)
        return Lease(self._ledger, settings, lambda: tuple(self._kinds))

    def set_build(self, build: str) -> None:
        """Set the version of the program, for a command that runs programs from files other than its main file.

        It takes effect when the host starts the next time.
        """
        self._build = build
        if self._beats is None:
            self._lease = self._new_lease()

    async def join(self, kind: str | None = None) -> None:
        """Add a user of the host, which runs threads of a kind. Call `leave` for it, even if this raises."""
        # Counted before the wait: `_has_ended` checks the number under the lock, and must not end a host that has a new user.
        self._users += 1
        if kind is not None:
            self._kinds[kind] += 1
        # A leaving host releases all its threads: a thread that is claimed before it has left would be lost.
        async with self._ending:
            pass

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

    async def host(self, *, renew: bool = False) -> Host:
        """Return this process as a host, with a valid lease. The first call starts the beats.

        Raises:
            LedgerError: the ledger cannot be written.
        """
        host = await self._lease.host(renew=renew)
        if self._beats is None:
            self._beats = asyncio.create_task(self._beat(), name="antiphon-host")
        return host

    @property
    def term(self) -> int:
        """See `Lease.term`."""
        return self._lease.term

    def has_lapsed(self) -> bool:
        """Whether the lease may have expired."""
        return self._lease.has_lapsed()

    @property
    def name(self) -> str:
        """The name of this host in the ledger."""
        return self._lease.name

    @property
    def build(self) -> str:
        """The version of this program."""
        return self._lease.build

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_SETTINGS.heartbeat)
            try:
                await self._lease.beat()
            except LedgerError as exc:
                LOG.warning("this host is late: %s", log_text(exc), extra=log_fields(error=exc))

    async def _has_ended(self) -> bool:
        """End the host, unless another user has joined meanwhile; return whether it has ended."""
        async with self._ending:
            if self._users == 0:
                await self._end()
                return True
        return False

    async def _end(self) -> None:
        # Permits first, while the host is registered: the ledger refuses the exchange of an unknown host. The lease and the
        # beats are replaced before anything else is awaited, so a late call of `host` starts a new host, and does not revive
        # this one.
        await self.permits.close()
        lease, self._lease = self._lease, self._new_lease()
        beats, self._beats = self._beats, None
        if beats is not None:
            beats.cancel()
            await asyncio.wait((beats,))  # a beat after `leave` would start the host again
        await lease.end()
        if self._users == 0:
            _hosts().pop(self._ledger, None)


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakKeyDictionary[Ledger, ProcessHost]] = WeakKeyDictionary()


def _hosts() -> WeakKeyDictionary[Ledger, ProcessHost]:
    return _loops.setdefault(asyncio.get_running_loop(), WeakKeyDictionary())


def process_host(ledger: Ledger) -> ProcessHost:
    """Return this process as a host on a ledger, for the running event loop."""
    hosts = _hosts()
    if (host := hosts.get(ledger)) is None:
        host = hosts[ledger] = ProcessHost(ledger)
    return host


def is_of_this_process(host: Host) -> bool:
    """Whether a host belongs, or belonged, to this process."""
    own = Host("this", "1")  # each new value names the process that made it
    return host.instance.rpartition("/")[0] == own.instance.rpartition("/")[0]
