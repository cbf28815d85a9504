"""PostgresLedger: a ledger in a PostgreSQL database, for any number of processes on any number of machines.

A handle belongs to one tenant: it sees and changes only the threads of that tenant. `_appends` writes, the other modules read
and change. Each call is one transaction, and those that read several times see one snapshot of the database.

**Wake-ups.** A reader of `tail` waits for a hint, and so does a host without work (`hinted`). A process sends hints with
`NOTIFY`, or with the given carrier; `_signals` explains how many, and to whom. A hint may be lost, so a reader also polls once
a second. Behind a pooler in transaction mode, LISTEN does not work, so all readers poll once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType

from antiphon._listeners import listener
from antiphon.errors import LedgerCorruptError, LedgerUnavailableError, UnknownThreadError
from antiphon.ledger._admission import new_state
from antiphon.ledger._encryption import EncryptionStatus, Keyring, Mastering, MasterKey, WrappedKey
from antiphon.ledger._hosts import Epoch, Host, HostStatus, LeaseClock, TakenThread, Woken
from antiphon.ledger._listing import head_of, is_newest_first, order_of, page_start
from antiphon.ledger._ownership import check_host, check_kind, kinds_wanted, make_release, standing_of
from antiphon.ledger._permits import Limit, LimitStatus, PermitGrant, PermitWants, check_limited
from antiphon.ledger._records import Pairing, Record, to_micros
from antiphon.ledger._redaction import LedgerRedaction, Redacting, Redaction, RedactionRules
from antiphon.ledger._request import AppendRequest, check_limit, check_name, make_post, make_request
from antiphon.ledger._signals import (
    ANYBODY,
    EVERYBODY,
    Hints,
    NoSignals,
    ScopedSignals,
    Signalling,
    Signals,
    carrying,
    signal_subject,
)
from antiphon.ledger._stored import PageOfThread, PageRequest, Subject, TakeRequest, read_pages
from antiphon.ledger._terms import TermIndex, TermMatch, TermMatches, VectorSpace, check_terms
from antiphon.ledger._values import (
    CallOrder,
    CallPage,
    Damage,
    Diagnosis,
    Head,
    Hit,
    Snapshot,
    Tailed,
    ThreadCount,
    ThreadFilter,
    ThreadJournal,
    ThreadOrder,
    ThreadPage,
    ThreadStanding,
    ThreadSummary,
    Verification,
)
from antiphon.ledger._verbs import Verbs
from antiphon.ledger._verification import missing_threads, proven
from antiphon.ledger.postgres import _changes, _hosts, _keys, _queries, _terms, _verify
from antiphon.ledger.postgres._appends import Appender
from antiphon.ledger.postgres._connection import NotifySignals, Pool, Session, open_pool, shown_url, tenant_in
from antiphon.ledger.postgres._rows import (
    CommitPlace,
    find_open_calls,
    find_thread,
    lineage,
    open_from,
    page_of_thread,
    place_of,
    records_by_key,
)
from antiphon.ledger.postgres._schema import check_format, prepare
from antiphon.messages import Json, Message, current_port

_LOOK_AGAIN = 1.0
_HELD_BACK = 0.02
"""Seconds between two polls of readers without a hint, and while a running transaction holds back messages."""
_DEFAULT_TENANT = "default"
_TOLERATED = timedelta(seconds=0.5)
"""A clock of a host that differs less from the clock of the database is used as it is."""


class PostgresLedger(Verbs):
    """A ledger in a PostgreSQL database, as one tenant sees it."""

    def __init__(
        self,
        url: str,
        name: str,
        pool: Pool,
        redaction: LedgerRedaction,
        *,
        clock: LeaseClock | None = None,
        signals: Signals | None = None,
    ) -> None:
        self._url = url
        self._pool = pool
        self._clock = clock
        self.redaction = redaction
        self.name = name
        """The name that the ledger got when it was created; a restored dump keeps it."""
        self._skew = timedelta()
        """The difference between the clocks of the database and of this process, if it is too large; else 0."""
        self._carrier: Signals = NotifySignals(pool) if signals is None else signals
        subject = signal_subject("antiphon", name, pool.tenant)
        if not isinstance(self._carrier, NotifySignals | NoSignals):
            self.signals = ScopedSignals(self._carrier, subject)
        self._hints = Hints(self._carrier, subject, is_scarce=isinstance(self._carrier, NotifySignals))
        self._appender = Appender(pool, self._hints.note_commit)

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
        default the clock of the database. `signals` carries hints between processes: see `open_ledger`.

        Raises:
            LedgerCorruptError: the tables were altered.
            LedgerFormatError: a later version made them, which this one cannot use.
            LedgerUnavailableError: the database cannot be reached or used.
            SetupError: the URL of the signals is wrong, or the server of the signals refuses the password.
            WrongMasterKeyError: the keys of the tenant are wrapped by another master key.
            ValueError: the tenant is not a valid name, or the URL names another.
        """
        rules, keyring = LedgerRedaction.of(redaction), Keyring.of(master_key)
        url, named = tenant_in(url)
        if named is not None and tenant not in (None, named):
            raise ValueError(f"the URL names the tenant {named!r}, and {tenant!r} is given; leave one of them out")
        tenant = tenant if tenant is not None else named
        tenant = _DEFAULT_TENANT if tenant is None else tenant
        async with carrying(signals) as carrier, open_pool(url, tenant, patience, keyring) as pool:
            async with pool.session() as session:
                name = await prepare(session.connection, create=create)
            pool.guard_format(check_format)
            keyring.check(await pool.read(_keys.ledger_key))
            ledger = cls(url, name, pool, rules, clock=clock, signals=carrier)
            await ledger._compare_clocks()
            try:
                yield ledger
            finally:
                await ledger._close()

    async def _close(self) -> None:
        await self._hints.close()
        if isinstance(self._carrier, NotifySignals):
            await self._carrier.close()
        await self._appender.close()
        self._hints.wake_all()  # each `tail` wakes, reads, and gets the error that the ledger is closed

    # ------------------------------------------------------------ time

    async def _compare_clocks(self) -> None:
        """Measure how far the clock of this process is from the clock of the database."""
        before = datetime.now(UTC)  # noqa: TID251 (the clocks themselves are compared)
        async with self._pool.session() as session:
            there: datetime = await session.connection.fetchval("SELECT clock_timestamp()")
        here = before + (datetime.now(UTC) - before) / 2  # noqa: TID251
        skew = there - here
        self._skew = skew if abs(skew) > _TOLERATED else timedelta()

    def _now(self) -> datetime:
        return current_port().now() + self._skew

    def _at_database_time(self, request: AppendRequest) -> AppendRequest:
        if not self._skew:
            return request
        now = request.now + self._skew
        unredacted = None if request.unredacted is None else request.unredacted._replace(now=now, micros=to_micros(now))
        return request._replace(now=now, micros=to_micros(now), unredacted=unredacted)

    # ------------------------------------------------------------ writing

    async def append(
        self,
        thread_id: str,
        messages: Iterable[Message],
        *,
        expected_version: int | None = None,
        epoch: int | None = None,
        snapshot: Snapshot | None = None,
        status: str | None = None,
        pattern: str | None = None,
        allow_foreign: bool = False,
        outside: bool = False,
    ) -> tuple[Record, ...]:
        request = make_request(
            thread_id,
            messages,
            redaction=self.redaction,
            expected_version=expected_version,
            epoch=epoch,
            snapshot=snapshot,
            status=status,
            pattern=pattern,
            allow_foreign=allow_foreign,
            outside=outside,
        )
        return await self._appender.append(self._at_database_time(request))

    async def post(self, thread_id: str, message: Message, *, by: str | None = None) -> Record:
        request = make_post(thread_id, message, redaction=self.redaction, by=by)
        record = (await self._appender.append(self._at_database_time(request)))[0]
        # After the commit: a host that a hint wakes earlier finds no work, and polls again only after a while.
        self._hints.note_work(self._appender.owner_of(thread_id))
        return record

    async def redaction_of(self, thread_id: str) -> Redaction | None:
        if not self.redaction.is_on:
            return None
        async with self._pool.session() as session:
            thread = await find_thread(session, thread_id)
        return self.redaction.rules if thread is None else self.redaction.for_thread(thread.state.is_redacted)

    async def redaction_rules(self) -> RedactionRules:
        return self.redaction.beside(await self._pool.read(_hosts.rules))

    async def adopt_redaction(self) -> RedactionRules:
        now = self._now()
        await self._pool.change(lambda session: _hosts.adopt_rules(session, self.redaction, now, self._clock))
        return self.redaction.beside(self.redaction.digest)

    # ------------------------------------------------------------ hosts and owners

    async def beat(self, host: Host) -> datetime:
        check_host(host, self.redaction)
        await self._compare_clocks()
        now = self._now()
        found = await self._pool.change(lambda session: _hosts.renew(session, host, now, self._clock, self.redaction))
        if found is None:
            found = await self._pool.change(lambda session: _hosts.beat(session, host, now, self._clock, self.redaction))
        elif found.is_littered:
            await self._pool.change(lambda session: _hosts.forget_dead(session, host, self._clock))
        self._hints.note_host(host, found.key, found.hosts)
        return now + timedelta(seconds=host.lease)

    def renew(self, host: Host) -> bool:
        return asyncio.run(self._renew(host))

    async def _renew(self, host: Host) -> bool:
        # Over a connection of its own: those of the pool belong to the event loop, which may be blocked.
        try:
            async with (
                asyncio.timeout(host.lease),
                open_pool(self._url, self.tenant, host.lease, self._pool.keyring) as pool,
            ):
                renewed = await pool.change(
                    lambda session: _hosts.renew(session, host, self._now(), self._clock, self.redaction)
                )
        except TimeoutError:
            reason = f"the database has not answered within {host.lease:g} seconds"
            raise LedgerUnavailableError(reason) from None
        return renewed is not None

    async def leave(self, host: Host) -> None:
        now = to_micros(self._now())
        await self._pool.change(lambda session: _hosts.leave(session, host, now, self._clock))
        self._hints.forget_host(host)
        self._hints.note_work(ANYBODY)  # its threads are free now

    async def hosts(self) -> tuple[HostStatus, ...]:
        now = self._now()
        return await self._pool.read(lambda session: _hosts.hosts(session, now, self._clock))

    async def claim(self, thread_id: str, *, by: Host | None = None, kind: str | None = None) -> Epoch:
        check_name(thread_id, "a thread's id")
        check_kind(kind, self.redaction)
        wanted = _hosts.ClaimRequest(thread_id, by, kind, self._now(), self.redaction)
        thread, taken_from = await self._pool.change_once(
            lambda session: _hosts.claim_thread(session, wanted, self._clock),
            lambda session, claim: _hosts.is_owned_so(session, [claim[0]]),
        )
        self._appender.remember(thread)
        return Epoch(thread.state.epoch, thread.state.seq, taken_from)

    async def release(
        self,
        thread_id: str,
        *,
        epoch: int,
        seen: int | None = None,
        wake_at: datetime | None = None,
        unfit: str | None = None,
        reason: str | None = None,
    ) -> None:
        how = make_release(
            thread_id, redaction=self.redaction, epoch=epoch, seen=seen, wake_at=wake_at, unfit=unfit, reason=reason
        )
        skew = self._skew // timedelta(microseconds=1)
        how = how._replace(now=how.now + skew, wake_at=None if how.wake_at is None else how.wake_at + skew)
        released = await self._pool.change_once(
            lambda session: _hosts.release(session, thread_id, how),
            lambda session, thread: _hosts.is_owned_so(session, [thread]),
        )
        self._appender.remember(released)
        if unfit is not None:
            self._hints.note_work(EVERYBODY)  # only hosts of other builds take it
        elif wake_at is not None and wake_at <= current_port().now():
            self._hints.note_work(ANYBODY)

    async def take(self, by: Host, *, kinds: Iterable[str | None] | None = None, limit: int = 10) -> tuple[TakenThread, ...]:
        check_limit(limit)
        wanted = TakeRequest(by, kinds_wanted(by, kinds), limit, self._now())
        if not await self._pool.look(lambda session: _hosts.has_due(session, wanted, self._clock)):
            return ()
        taken = await self._pool.change_once(
            lambda session: _hosts.take(session, wanted, self._clock),
            lambda session, some: _hosts.is_owned_so(session, [thread for thread, _ in some]),
        )
        for thread, _ in taken:
            self._appender.remember(thread)
        return tuple(told for _, told in taken)

    async def woken(self, by: Host, *, seen: Mapping[str, int] = MappingProxyType({})) -> tuple[Woken, ...]:
        if not seen:
            return await self._pool.look(lambda session: _hosts.woken(session, by))
        changed, found = await self._pool.change(lambda session: _hosts.note_seen(session, by, seen))
        for thread in changed:
            self._appender.remember(thread)
        return found

    async def set_limit(self, limit: Limit) -> None:
        check_limited(limit, self.redaction)
        await self._pool.change(lambda session: _hosts.set_limit(session, limit))

    async def limits(self) -> tuple[LimitStatus, ...]:
        now = self._now()
        return await self._pool.read(lambda session: _hosts.limits(session, now, self._clock))

    async def permits(self, by: Host, wants: Mapping[str, PermitWants]) -> Mapping[str, PermitGrant]:
        now = self._now()
        return await self._pool.change_once(lambda session: _hosts.permits(session, by, wants, now, self._clock))

    async def branch(self, head: Head, at: int, pairing: Pairing, closing: AppendRequest) -> ThreadSummary:
        """Create the branch that `fork` has prepared."""
        request = self._at_database_time(closing)
        made = await self._pool.change_once(lambda session: _changes.branch(session, head, at, pairing, request))
        self._hints.note_commit()
        return made.summary

    async def move(self, thread_id: str, *, to: str) -> ThreadStanding:
        check_name(to, "the place of a ledger")
        now = self._now()
        thread = await self._pool.change(lambda session: _hosts.move(session, thread_id, to, now, self._clock))
        self._appender.remember(thread)
        return standing_of(thread.state)

    async def restore(self, journals: Iterable[ThreadJournal], heads: Iterable[Head]) -> tuple[ThreadSummary, ...]:
        chosen = proven(journals, heads)
        made = await self._pool.change_once(lambda session: _changes.restore(session, chosen, self.redaction))
        self._hints.note_commit()
        return tuple(thread.summary for thread in made)

    async def delete(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        names = await self._pool.change_once(lambda session: _changes.delete(session, thread_id, with_branches))
        return self._forgotten(names)

    async def forget(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        names = await self._pool.change_once(lambda session: _changes.forget(session, thread_id, with_branches))
        self._pool.keyring.drop()
        return self._forgotten(names)

    async def rotate(self, new: MasterKey) -> int:
        self._pool.keyring.begin_rotation(new)
        count = await self._pool.change(lambda session: _keys.rotate(session, new))
        self._pool.keyring.end_rotation(new)
        self._appender.forget_all()
        return count

    async def encryption(self) -> EncryptionStatus | None:
        return await self._pool.read(_keys.status)

    async def wrapped_key(self, thread_id: str) -> WrappedKey | None:
        """Return the wrapped key of a thread, if it is encrypted."""

        async def look(session: Session) -> WrappedKey | None:
            thread = await find_thread(session, thread_id)
            return None if thread is None else await _keys.find_key(session, thread.key)

        return await self._pool.read(look)

    async def expire(self, before: datetime) -> tuple[str, ...]:
        micros, gone = to_micros(before), list[str]()
        for batch in await self._pool.read(lambda session: _changes.old_threads(session, micros)):
            names = await self._pool.change_once(lambda session: _changes.expire(session, batch, micros))  # noqa: B023
            gone += self._forgotten(names)
        return tuple(sorted(gone))

    def _forgotten(self, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            self._appender.forget(name)
        return names

    # ------------------------------------------------------------ reading

    def read(self, thread_id: str, after: int = 0, before: int | None = None, reverse: bool = False) -> AsyncIterator[Record]:
        return read_pages(partial(self._page, thread_id), after, before, reverse)

    async def _page(self, thread_id: str, request: PageRequest) -> PageOfThread | None:
        """Return the next messages of a thread.

        Raises:
            UnknownThreadError: the thread was deleted during the read.
        """

        async def look(session: Session) -> PageOfThread | None:
            thread = await find_thread(session, thread_id)
            if request.key is not None and (thread is None or thread.key != request.key):
                raise UnknownThreadError("it was deleted while it was read", thread_id)
            records = [each.record for each in await page_of_thread(session, thread, request)]
            return PageOfThread(thread.key, thread.state.seq, records) if thread is not None and records else None

        return await self._pool.read(look)

    async def head(self, thread_id: str) -> Head:
        async with self._pool.session() as session:
            thread = await find_thread(session, thread_id)
        return head_of(new_state(thread_id, 0) if thread is None else thread.state)

    async def heads(self) -> tuple[Head, ...]:
        return await self._pool.read(_queries.heads)

    async def thread(self, thread_id: str) -> ThreadSummary | None:
        async with self._pool.session() as session:
            thread = await find_thread(session, thread_id)
        return None if thread is None else thread.summary

    async def threads(
        self,
        filter: ThreadFilter = ThreadFilter(),  # noqa: B008 (frozen)
        order: ThreadOrder = "-updated_at",
        page: str | None = None,
        limit: int = 100,
    ) -> ThreadPage:
        check_limit(limit)
        order_of(order)
        if page is not None:
            page_start(page)
        return await self._pool.read(lambda session: _queries.threads(session, filter, order, page, limit))

    async def count_threads(self, *, system: bool | None = None) -> tuple[ThreadCount, ...]:
        return await self._pool.read(lambda session: _queries.count_threads(session, system))

    async def tail(self, after: str | None = None, *, thread_id: str | None = None) -> AsyncIterator[Tailed]:
        place = place_of(after)
        self._hints.listen()
        while True:
            seen = (
                self._hints.commits.count
            )  # before the read: a commit between the read and the wait then ends the wait at once
            page = await self._since(place, thread_id)
            for each, record in page.found:
                yield Tailed(record, str(each))
            is_end, place = page.upto == place, page.upto
            if is_end:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HELD_BACK if page.is_more_coming else _LOOK_AGAIN):
                        await self._hints.commits.wait(seen)

    async def _since(self, place: CommitPlace, thread_id: str | None) -> _queries.TailPage:
        return await self._pool.look(lambda session: _queries.since(session, place, thread_id))

    async def horizon(self) -> str:
        return str(await self._pool.read(_queries.horizon))

    async def tail_lag(self) -> float:
        now = to_micros(self._now())
        return await self._pool.read(lambda session: _queries.tail_lag(session, now))

    async def hinted(self, after: int, within: float) -> int:
        return await self._hints.hinted(after, within)

    # ------------------------------------------------------------ lookups

    async def by_invocation(self, invocation_id: str, *, thread_id: str | None = None) -> tuple[Record, ...]:
        return await self._by("invocation", invocation_id, lambda each: each.invocation_id == invocation_id, thread_id)

    async def by_correlation(self, correlation_id: str, *, thread_id: str | None = None) -> tuple[Record, ...]:
        return await self._by("correlation", correlation_id, lambda each: each.correlation_id == correlation_id, thread_id)

    async def _by(self, kind: str, name: str, fits: Callable[[Message], bool], thread_id: str | None) -> tuple[Record, ...]:
        async def look(session: Session) -> tuple[Record, ...]:
            segments = None
            if thread_id is not None:
                thread = await find_thread(session, thread_id)
                segments = [] if thread is None else await lineage(session, thread)
            found = await records_by_key(session, kind, [name], segments)
            return tuple(record for record in found if fits(record.message))

        return await self._pool.look(look)

    async def open_calls(self, thread_id: str) -> tuple[Record, ...]:
        async def look(session: Session) -> tuple[Record, ...]:
            thread = await find_thread(session, thread_id)
            calls = {} if thread is None else await find_open_calls(session, [thread])
            if thread is not None and not calls:
                await _keys.check_remembered(session, thread)
            found: list[Record] = []
            for call in [] if thread is None else calls.get(thread.key, ()):
                page = await page_of_thread(session, thread, PageRequest(None, call.seq, call.seq))
                found += [each.record for each in page]
            return tuple(found)

        return await self._pool.look(look)

    async def open_calls_of(
        self, option_name: str, *, order: CallOrder = "recorded_at", page: str | None = None, limit: int = 100
    ) -> CallPage:
        check_limit(limit)
        is_reversed = is_newest_first(order)
        place_of(page)
        return await self._pool.read(lambda session: _queries.open_calls_of(session, option_name, is_reversed, page, limit))

    async def search(self, text: str, *, thread_id: str | None = None, limit: int = 20) -> tuple[Hit, ...]:
        check_limit(limit)
        after: CommitPlace | None = None
        while True:
            start = after
            after = await self._pool.change(lambda session: _queries.index_words(session, start))  # noqa: B023
            if after is None:
                break
        return await self._pool.read(lambda session: _queries.find(session, text, thread_id, limit))

    # ------------------------------------------------------------ terms and vectors

    async def find_terms(
        self, index: TermIndex, terms: Iterable[str], *, source: str | None = None, limit: int = 100
    ) -> TermMatches:
        check_limit(limit)
        wanted = check_terms(terms)
        await self._update_terms(index)
        return await self._pool.read(lambda session: _terms.find(session, index, wanted, source, limit))

    async def rebuild_terms(self, index: TermIndex) -> int:
        await self._pool.change(lambda session: _terms.drop(session, index.name))
        return (await self.find_terms(index, (), limit=0)).entries

    async def without_vectors(self, index: TermIndex, space: VectorSpace, *, limit: int = 100) -> tuple[Record, ...]:
        await self._update_terms(index)
        return await self._pool.read(lambda session: _terms.without_vectors(session, index, space, limit))

    async def store_vectors(self, index: TermIndex, space: VectorSpace, vectors: Mapping[str, Sequence[float]]) -> None:
        await self._pool.change(lambda session: _terms.store_vectors(session, index, space, vectors))

    async def find_vectors(
        self, index: TermIndex, space: VectorSpace, vector: Sequence[float], *, source: str | None = None, limit: int = 100
    ) -> tuple[TermMatch, ...]:
        check_limit(limit)
        await self._update_terms(index)
        return await self._pool.read(
            lambda session: _terms.find_vectors(session, index, space, vector, source=source, limit=limit)
        )

    async def drop_vectors(self, index: TermIndex) -> None:
        await self._pool.change(lambda session: _terms.drop_vectors(session, index.name))

    async def _update_terms(self, index: TermIndex) -> None:
        """Add missing messages to an index."""
        after: CommitPlace | None = None
        while True:
            start = after
            after = await self._pool.change(lambda session: _terms.update(session, index, start))  # noqa: B023
            if after is None:
                return

    # ------------------------------------------------------------ lookups for the verbs

    async def open_from(self, thread_id: str, seq: int) -> int | None:
        """Return the place of the first call since no call was open, as of a message."""

        async def look(session: Session) -> int | None:
            thread = await find_thread(session, thread_id)
            return None if thread is None else await open_from(session, thread, seq)

        return await self._pool.read(look)

    async def latest_snapshot(self, thread_id: str, fold: str, upto: int) -> tuple[int, Json] | None:
        """Return the place and the state of a fold's latest snapshot up to a message."""
        return await self._pool.look(lambda session: _queries.snapshot(session, thread_id, fold, upto))

    # ------------------------------------------------------------ maintenance

    async def verify(
        self,
        thread_id: str | None = None,
        *,
        heads: Iterable[Head] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Verification:
        progress = listener(progress)
        names, total = await self._pool.read(_verify.names)
        if thread_id is not None and thread_id not in names:
            raise UnknownThreadError("there is no such thread", thread_id)
        known = {head.thread_id: head for head in heads if thread_id in (None, head.thread_id)}
        damages, messages = missing_threads(known, names), 0
        chosen = names if thread_id is None else [thread_id]
        for name in chosen:
            damage, looked_at = await self._examine(name, known)
            messages += looked_at
            damages += [] if damage is None else [damage]
            if progress is not None:
                progress(messages, total)
        if thread_id is None:
            damages += await self._pool.read(_verify.damages_outside)
        return Verification(len(chosen), messages, tuple(damages))

    async def _examine(self, name: str, heads: dict[str, Head]) -> tuple[Damage | None, int]:
        try:
            subject = await self._pool.read(lambda session: _verify.begin(session, name))
            if not isinstance(subject, Subject):
                return subject, 0
            after: int | Damage | None = subject.thread.base_seq
            while isinstance(after, int):
                start = after
                after = await self._pool.read(
                    lambda session: _verify.look(session, subject, start, heads)  # noqa: B023
                )
            if after is not None and await self.thread(name) is None:
                after = None  # the thread was deleted meanwhile, not damaged
        except LedgerCorruptError as exc:
            return Damage(name, exc.seq, str(exc)), 0
        return after, subject.examination.looked_at

    async def diagnose(self) -> tuple[Diagnosis, ...]:
        """Examine the server, its settings and its clock."""
        await self._compare_clocks()
        now = to_micros(self._now())
        return await self._pool.read(lambda session: _verify.diagnose(session, self._skew, now))

    async def backup(self, path: str | Path) -> None:
        raise ValueError(
            "a ledger in PostgreSQL is copied by the server's own tools, all tenants together: "
            f"pg_dump -Fc -f {path!s} {shown_url(self._url)} as a superuser, or a user with BYPASSRLS"
        )
