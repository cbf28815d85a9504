"""PostgresLedger: a ledger in a PostgreSQL database, for any number of processes on any number of machines.

A handle belongs to one tenant: it sees and changes only the threads of that tenant. `_appends` writes, the other modules read
and change. Each call is one transaction, and those that read several times see one snapshot of the database.

**Wake-ups.** A reader of `tail` waits for a hint, and so does a host without work (`hints.wait`). A process sends hints with
`NOTIFY`, or with the given carrier; `_signals` explains how many, and to whom. A hint may be lost, so a reader also polls once
a second. Behind a pooler in transaction mode, LISTEN does not work, so all readers poll once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

from typing_extensions import override

from antiphon.errors import LedgerUnavailableError
from antiphon.ledger._encryption import Keyring, Mastering
from antiphon.ledger._hosts import Host, LeaseClock
from antiphon.ledger._records import Pairing, Record, to_micros
from antiphon.ledger._redaction import LedgerRedaction, Redacting
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._signals import NoSignals, ProcessHints, ScopedSignals, Signalling, Signals, carrying, signal_subject
from antiphon.ledger._sql import hosts, lists
from antiphon.ledger._sql.keys import ledger_key
from antiphon.ledger._sql.rows import CommitPlace
from antiphon.ledger._sql.statements import Verb
from antiphon.ledger._sql.store import SqlLedger
from antiphon.ledger._stored import Thread
from antiphon.ledger._terms import TermIndex, TermMatches
from antiphon.ledger._values import (
    Diagnosis,
    Head,
    ThreadSummary,
)
from antiphon.ledger.postgres import _search, _terms, _verify
from antiphon.ledger.postgres._appends import Appender
from antiphon.ledger.postgres._connection import NotifySignals, Pool, open_pool, shown_url, tenant_in
from antiphon.ledger.postgres._driver import answered, running
from antiphon.ledger.postgres._schema import check_format, prepare

ResultT = TypeVar("ResultT")

_LOOK_AGAIN = 1.0
_HELD_BACK = 0.02
"""Seconds between two polls of readers without a hint, and while a running transaction holds back messages."""
_DEFAULT_TENANT = "default"
_TOLERATED = timedelta(seconds=0.5)
"""A clock of a host that differs less from the clock of the database is used as it is."""


class PostgresLedger(SqlLedger):
    """A ledger in a PostgreSQL database, as one tenant sees it."""

    _check_words = staticmethod(_verify.words_damage)

    def __init__(
        self,
        url: str,
        name: str,
        pool: Pool,
        redaction: LedgerRedaction,
        *,
        signals: Signals | None = None,
    ) -> None:
        self._url = url
        self._pool = pool
        self._keyring = pool.keyring
        self.rules = redaction
        self.name = name
        """The name that the ledger got when it was created; a restored dump keeps it."""
        self._carrier: Signals = NotifySignals(pool) if signals is None else signals
        subject = signal_subject("antiphon", name, pool.tenant)
        is_own = isinstance(self._carrier, NotifySignals)
        carrier = None if is_own or isinstance(self._carrier, NoSignals) else ScopedSignals(self._carrier, subject)
        self._hints = ProcessHints(self._carrier, subject, is_scarce=is_own, signals=carrier)
        self._commits = self._hints.commits
        self._appender = Appender(pool, self._hints.note_commit)

    @property
    @override
    def hints(self) -> ProcessHints:
        return self._hints

    @property
    def url(self) -> str:
        """The URL that opens the same ledger, without the password."""
        return shown_url(self._url, None if self.tenant == _DEFAULT_TENANT else self.tenant)

    @property
    def has_password(self) -> bool:
        """Whether the URL that opened it has a password, which `url` leaves out."""
        return shown_url(self._url) != self._url

    @property
    def tenant(self) -> str:
        """The tenant whose threads this handle sees."""
        return self._pool.tenant

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        tenant: str | None = None,
        create: bool = True,
        redaction: Redacting = None,
        patience: float = 10.0,
        clock: LeaseClock | None = None,
        master_key: Mastering = None,
        signals: Signalling = None,
    ) -> AsyncGenerator[PostgresLedger, None]:
        """Open the ledger in a database. If it has none, the tables are created, unless `create` is False.

        The tenant is given as `tenant`, or in the URL as `?tenant=acme`; by default it is `default`. `patience` is how many
        seconds a call waits for a server that is restarting or cannot be reached. `clock` measures the leases of hosts, by
        default the clock of the database. `signals` carries hints between processes. The errors are those of `open_ledger`.
        """
        rules, keyring = LedgerRedaction.of(redaction), Keyring.of(master_key)
        url, named = tenant_in(url)
        if named is not None and tenant not in (None, named):
            raise ValueError(f"the URL names the tenant {named!r}, and {tenant!r} is given; leave one of them out")
        tenant = tenant if tenant is not None else named
        tenant = _DEFAULT_TENANT if tenant is None else tenant
        async with carrying(signals) as carrier, open_pool(url, tenant, patience, keyring, clock) as pool:
            async with pool.session() as session:
                name = await prepare(session.connection, create=create)
            pool.guard_format(check_format)
            keyring.check(await pool.read(running(ledger_key)))
            ledger = cls(url, name, pool, rules, signals=carrier)
            await ledger._compare_clocks()
            try:
                yield ledger
            finally:
                await ledger._close()

    async def _close(self) -> None:
        await self.hints.close()
        if isinstance(self._carrier, NotifySignals):
            await self._carrier.close()
        await self._appender.close()
        self.hints.wake_all()  # each `tail` wakes, reads, and gets the error that the ledger is closed

    # ------------------------------------------------------------ time

    async def _compare_clocks(self) -> None:
        """Measure how far the clock of this process is from the clock of the database."""
        before = datetime.now(UTC)  # noqa: TID251 (the clocks themselves are compared)
        async with self._pool.session() as session:
            there: datetime = await session.connection.fetchval("SELECT clock_timestamp()")
        here = before + (datetime.now(UTC) - before) / 2  # noqa: TID251
        skew = there - here
        self._skew = skew if abs(skew) > _TOLERATED else timedelta()

    def _at_database_time(self, request: AppendRequest) -> AppendRequest:
        if not self._skew:
            return request
        now = request.now + self._skew
        unredacted = None if request.unredacted is None else request.unredacted._replace(now=now, micros=to_micros(now))
        return request._replace(now=now, micros=to_micros(now), unredacted=unredacted)

    # ------------------------------------------------------------ verbs

    async def _read(self, make: Callable[[], Verb[ResultT]]) -> ResultT:
        return await self._pool.read(running(make))

    async def _look(self, make: Callable[[], Verb[ResultT]]) -> ResultT:
        return await self._pool.look(running(make))

    async def _change(self, make: Callable[[], Verb[ResultT]], weight: int = 1024) -> ResultT:
        return await self._pool.change(running(make))

    async def _change_once(
        self,
        make: Callable[[], Verb[ResultT]],
        is_stored: Callable[[ResultT], Verb[bool]] | None = None,
        weight: int = 1024,
    ) -> ResultT:
        if is_stored is None:
            return await self._pool.change_once(running(make))
        return await self._pool.change_once(running(make), lambda session, result: answered(session, is_stored(result)))

    async def _change_thread(self, thread_id: str, make: Callable[[Thread | None], Verb[tuple[Thread, ResultT]]]) -> ResultT:
        # The appender knows the thread, but not whether another process has changed it since: the verb reads its row, locked.
        thread, result = await self._change_once(partial(make, None), lambda changed: hosts.is_owned_so([changed[0]]))
        self._appender.remember(thread)
        return result

    async def _append(self, request: AppendRequest) -> tuple[Record, ...]:
        return await self._appender.append(self._at_database_time(request))

    @override
    def _owner_of(self, thread_id: str) -> str:
        return self._appender.owner_of(thread_id)

    def _remember(self, threads: Iterable[Thread]) -> None:
        for thread in threads:
            self._appender.remember(thread)

    async def _forgotten(self, names: tuple[str, ...] | None) -> None:
        if names is None:
            self._appender.forget_all()
        for name in names or ():
            self._appender.forget(name)

    async def branch(self, head: Head, at: int, pairing: Pairing, closing: AppendRequest) -> ThreadSummary:
        return await super().branch(head, at, pairing, self._at_database_time(closing))

    async def beat(self, host: Host) -> datetime:
        await self._compare_clocks()
        return await super().beat(host)

    def renew(self, host: Host) -> bool:
        return asyncio.run(self._renew(host))

    async def _renew(self, host: Host) -> bool:
        # Over a connection of its own: those of the pool belong to the event loop, which may be blocked.
        try:
            async with (
                asyncio.timeout(host.lease),
                open_pool(self._url, self.tenant, host.lease, self._keyring, self._pool.clock) as pool,
            ):
                renewed = await pool.change(running(partial(hosts.renew, host, self._now(), self.rules)))
        except TimeoutError:
            reason = f"the database has not answered within {host.lease:g} seconds"
            raise LedgerUnavailableError(reason) from None
        return renewed is not None

    # ------------------------------------------------------------ reading

    @override
    async def _since(self, place: CommitPlace, thread_id: str | None) -> lists.TailPage:
        self.hints.listen()  # before the read: a hint that comes in between then ends the wait at once
        return await super()._since(place, thread_id)

    @override
    async def _wait_for_commit(self, seen: int, is_more_coming: bool) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_HELD_BACK if is_more_coming else _LOOK_AGAIN):
                await self._commits.wait(seen)

    # ------------------------------------------------------------ words and terms

    _words = _search
    _terms = _terms

    @override
    async def _find_terms(self, index: TermIndex, terms: Sequence[str], source: str | None, limit: int) -> TermMatches:
        after: CommitPlace | None = None
        while (after := await self._change(partial(_terms.update, index, after))) is not None:
            pass  # in steps, so that appends get in between
        return await self._read(partial(_terms.find, index, terms, source, limit))

    # ------------------------------------------------------------ maintenance

    async def diagnose(self) -> tuple[Diagnosis, ...]:
        """Examine the server, its settings and its clock."""
        await self._compare_clocks()
        now = to_micros(self._now())
        return await self._read(lambda: _verify.diagnose(self._skew, now))

    async def backup(self, path: str | Path) -> None:
        raise ValueError(
            "a ledger in PostgreSQL is copied by the server's own tools, all tenants together: "
            f"pg_dump -Fc -f {path!s} {shown_url(self._url)} as a superuser, or a user with BYPASSRLS"
        )
