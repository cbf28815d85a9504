"""Process host: this process as a host, for what it does outside of systems: durable runs and subscriptions.

All of them on one ledger and one event loop share one host, so the process beats once, however many they are. The host begins
with the first claim, and leaves the ledger when the last of them ends: its threads are then free at once. After a crash
another process may claim them as soon as the ledger sees that this one has ended, or when the lease is over.

A thread is given up alone while others go on, and by the end of the host otherwise. That saves a commit for a program that
has one run.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from antiphon.errors import LedgerError
from antiphon.ledger import Host
from antiphon.runtime._hosting import Lease
from antiphon.runtime._reporting import LOG, log_fields, log_text
from antiphon.runtime._settings import Settings

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from antiphon.ledger import Ledger

_SETTINGS = Settings()


class ProcessHost:
    """The host of the runs and subscriptions of this process on one ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._users = 0
        self._build: str | None = None
        self._kinds: Counter[str] = Counter()
        self._lease = self._new_lease()
        self._beats: asyncio.Task[None] | None = None
        self._ending = asyncio.Lock()
        """Held while the host leaves the ledger."""

    def _new_lease(self) -> Lease:
        settings = _SETTINGS if self._build is None else replace(_SETTINGS, build=self._build)
        return Lease(self._ledger, settings, lambda: tuple(self._kinds))

    def set_build(self, build: str) -> None:
        """Set the version of the program, where its main file does not say it: a command that runs programs of other files.

        It counts from the next beginning of the host on.
        """
        self._build = build
        if self._beats is None:
            self._lease = self._new_lease()

    async def join(self, kind: str | None = None) -> None:
        """Add a user of the host, which runs threads of a kind. Call `leave` for it, also if this raises."""
        self._users += 1
        if kind is not None:
            self._kinds[kind] += 1
        # A host that is leaving frees all its threads: what is claimed before it has left would be lost.
        async with self._ending:
            pass

    async def leave(self, release: Callable[[], Awaitable[None]] | None = None, *, kind: str | None = None) -> None:
        """Remove a user. The last one ends the host; for any other, `release` gives up its thread."""
        self._users -= 1
        if kind is not None:
            self._kinds -= Counter((kind,))
        if self._users == 0 and await self._has_ended():
            return
        if release is not None:
            with suppress(LedgerError):  # the thread is then free when this host leaves
                await release()

    async def host(self, *, renew: bool = False) -> Host:
        """Return this process as a host, with a lease that lasts. The first call starts the beats.

        Raises:
            LedgerError: the ledger cannot be written.
        """
        host = await self._lease.host(renew=renew)
        if self._beats is None:
            self._beats = asyncio.create_task(self._beat(), name="antiphon-host")
        return host

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
        lease, self._lease = self._lease, self._new_lease()
        beats, self._beats = self._beats, None
        if beats is not None:
            beats.cancel()
            await asyncio.wait((beats,))  # a beat after `leave` would begin the host anew
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
    """Whether a host is, or was, a system or the runs of this process."""
    own = Host("this", "1")  # each new value names the process that made it
    return host.instance.rpartition("/")[0] == own.instance.rpartition("/")[0]
