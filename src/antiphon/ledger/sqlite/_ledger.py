"""SqliteLedger: a ledger in one file, for any number of tasks, threads and processes on one machine.

One writer thread makes the changes (see `_writer`), and a few reader threads read (see `_connection`). This class implements
the contract with them. Several processes may use one file: SQLite's lock lets one process write at a time, and epoch, version,
ids and the last link are compared inside the transaction that writes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final
from weakref import WeakValueDictionary

import apsw

from antiphon._listeners import listener
from antiphon.errors import LedgerCorruptError, LedgerError, LedgerFullError, LedgerUnavailableError, UnknownThreadError
from antiphon.ledger._admission import new_state
from antiphon.ledger._encryption import EncryptionStatus, Keyring, Mastering, MasterKey, WrappedKey
from antiphon.ledger._hosts import BootClock, Epoch, Host, HostStatus, LeaseClock, TakenThread, Woken
from antiphon.ledger._listing import cursor_position, head_of, is_newest_first, order_of, page_start
from antiphon.ledger._ownership import check_host, check_kind, kinds_wanted, make_release, standing_of
from antiphon.ledger._permits import Limit, LimitStatus, PermitGrant, PermitWants, check_limited
from antiphon.ledger._records import Pairing, Record, to_micros
from antiphon.ledger._redaction import LedgerRedaction, Redacting, Redaction, RedactionRules
from antiphon.ledger._request import AppendRequest, check_limit, check_name, make_post, make_request
from antiphon.ledger._signals import CommitSignal
from antiphon.ledger._stored import PageOfThread, PageRequest, Subject, TakeRequest, Thread, ThreadSegment, read_pages
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
from antiphon.ledger.sqlite import _changes, _hosts, _keys, _queries, _terms, _verify
from antiphon.ledger.sqlite._connection import LedgerFile, Readers, connect, translated
from antiphon.ledger.sqlite._rows import (
    find_open_calls,
    find_thread,
    line_to,
    lineage,
    page_of_thread,
    records_by_number,
    records_since,
    seq_at,
)
from antiphon.ledger.sqlite._sql import Connection
from antiphon.ledger.sqlite._writer import Writer
from antiphon.messages import Json, Message, current_port

_MOST_REMEMBERED = 10_000
"""The number of threads in the cache that says whether they are redacted."""
_LOOK_AGAIN = 0.05
"""Seconds between two checks for commits of other processes, while a `tail` waits."""


_SHARED_FOR: Final = 1.0
"""Seconds for which readers of the same place get the same page: data that another process deletes is read no longer than
that."""


class _TailPage:
    """Records that readers of `tail` share, until all of them have read them."""

    __slots__ = ("__weakref__", "at", "records")

    def __init__(self, records: list[tuple[int, Record]], at: float) -> None:
        self.records = records
        self.at = at
        """When it was read."""


class SqliteLedger(Verbs):
    """A ledger in one SQLite file."""

    def __init__(
        self, place: LedgerFile, connection: Connection, redaction: LedgerRedaction, clock: LeaseClock | None = None
    ) -> None:
        self._place = place
        self._clock = BootClock() if clock is None else clock
        self.redaction = redaction
        self._redacted: dict[str, bool] = {}
        """By thread that was claimed here, whether it is redacted: an owner need not read that from the file."""
        self._commits = CommitSignal()
        self._readers = Readers(place)
        self._writer = Writer(place, connection, self._commits.notify)
        self._watch: asyncio.Task[None] | None = None
        self._pages: WeakValueDictionary[tuple[int, str | None], _TailPage] = WeakValueDictionary()
        self._reading: dict[tuple[int, str | None, int], asyncio.Future[_TailPage]] = {}
        """The shared pages and the pending reads of readers of `tail`."""

    @property
    def url(self) -> str:
        """The URL that opens the same ledger from any folder."""
        return f"sqlite:///{os.path.abspath(self._place.path)}"

    @property
    def trouble(self) -> LedgerFullError | None:
        """The error of the last commit, if the disk was full; callers wait until there is space."""
        return self._writer.trouble

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: str | Path,
        *,
        create: bool = True,
        redaction: Redacting = None,
        busy_timeout: float = 10.0,
        vfs: str | None = None,
        clock: LeaseClock | None = None,
        master_key: Mastering = None,
    ) -> AsyncGenerator[SqliteLedger, None]:
        """Open the ledger in a file. If there is no such file, it is created, unless `create` is False.

        `redaction` is by default `STANDARD_REDACTION`. `clock` measures the leases of hosts, by default in seconds since the
        machine was started.

        Raises:
            LedgerCorruptError: the schema of the file was altered.
            LedgerFormatError: the file is not a ledger, or a later version wrote it.
            LedgerUnavailableError: it cannot be opened.
            WrongMasterKeyError: the keys of the ledger are wrapped by another master key.
        """
        rules = LedgerRedaction.of(redaction)
        place = LedgerFile(os.fspath(path), busy_timeout, vfs, Keyring.of(master_key))
        ledger = cls(place, await asyncio.to_thread(_opened, place, create), rules, clock)
        try:
            yield ledger
        finally:
            await ledger._close()

    async def _close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        try:
            await self._writer.close()
        finally:
            await self._readers.close()
            self._commits.notify()  # last: each `tail` wakes, reads, and gets the error that the ledger is closed

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
        return await self._writer.append(request)

    async def post(self, thread_id: str, message: Message, *, by: str | None = None) -> Record:
        request = make_post(thread_id, message, redaction=self.redaction, by=by)
        return (await self._writer.append(request))[0]

    async def redaction_of(self, thread_id: str) -> Redaction | None:
        if not self.redaction.is_on:
            return None
        if thread_id not in self._redacted:

            def look(connection: Connection) -> Thread | None:
                return find_thread(connection, thread_id)

            thread = await self._readers.do(look)
            return self.redaction.rules if thread is None else self.redaction.for_thread(thread.state.is_redacted)
        return self.redaction.for_thread(self._redacted[thread_id])

    async def redaction_rules(self) -> RedactionRules:
        return self.redaction.beside(await self._readers.do(_hosts.rules))

    async def adopt_redaction(self) -> RedactionRules:
        now = current_port().now()
        await self._writer.do(lambda connection: _hosts.adopt_rules(connection, self.redaction, now, self._clock))
        return self.redaction.beside(self.redaction.digest)

    # ------------------------------------------------------------ hosts and owners

    async def beat(self, host: Host) -> datetime:
        check_host(host, self.redaction)
        now = current_port().now()
        await self._writer.do(lambda connection: _hosts.beat(connection, host, now, self._clock, self.redaction))
        return now + timedelta(seconds=host.lease)

    def renew(self, host: Host) -> bool:
        now = to_micros(current_port().now())
        return self._writer.do_in_thread(lambda connection: _hosts.renew(connection, host, now, self._clock), host.lease)

    async def leave(self, host: Host) -> None:
        now = to_micros(current_port().now())
        await self._writer.do(lambda connection: _hosts.leave(connection, host, now, self._clock))

    async def hosts(self) -> tuple[HostStatus, ...]:
        now = current_port().now()
        return await self._readers.do(lambda connection: _hosts.hosts(connection, now, self._clock))

    async def claim(self, thread_id: str, *, by: Host | None = None, kind: str | None = None) -> Epoch:
        check_name(thread_id, "a thread's id")
        check_kind(kind, self.redaction)
        now = current_port().now()
        taken_from: str | None = None

        def change(connection: Connection, thread: Thread | None) -> Thread:
            nonlocal taken_from
            found, taken_from = _hosts.claim(
                connection, thread, thread_id, by=by, kind=kind, now=now, clock=self._clock, redaction=self.redaction
            )
            return found

        state = (await self._writer.change_thread(thread_id, change)).state
        if len(self._redacted) >= _MOST_REMEMBERED:
            self._redacted.clear()
        self._redacted[thread_id] = state.is_redacted
        return Epoch(state.epoch, state.seq, taken_from)

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

        def change(connection: Connection, thread: Thread | None) -> Thread:
            return _hosts.release(connection, thread, thread_id, how)

        await self._writer.change_thread(thread_id, change)

    async def take(self, by: Host, *, kinds: Iterable[str | None] | None = None, limit: int = 10) -> tuple[TakenThread, ...]:
        check_limit(limit)
        wanted = TakeRequest(by, kinds_wanted(by, kinds), limit, current_port().now())
        # A reader checks first, so a host that polls an idle ledger never takes the write lock. Another host may be faster
        # between the two calls: `take` checks again inside its own transaction.
        if not await self._readers.do(lambda connection: _hosts.has_due(connection, wanted, self._clock)):
            return ()
        return await self._writer.do(lambda connection: _hosts.take(connection, wanted, self._clock))

    async def woken(self, by: Host, *, seen: Mapping[str, int] = MappingProxyType({})) -> tuple[Woken, ...]:
        if seen:
            return await self._writer.do(lambda connection: _hosts.note_seen(connection, by, seen))
        return await self._readers.do(lambda connection: _hosts.woken(connection, by))

    async def set_limit(self, limit: Limit) -> None:
        check_limited(limit, self.redaction)
        await self._writer.do(lambda connection: _hosts.set_limit(connection, limit))

    async def limits(self) -> tuple[LimitStatus, ...]:
        now = current_port().now()
        return await self._readers.do(lambda connection: _hosts.limits(connection, now, self._clock))

    async def permits(self, by: Host, wants: Mapping[str, PermitWants]) -> Mapping[str, PermitGrant]:
        now = current_port().now()
        return await self._writer.do(lambda connection: _hosts.permits(connection, by, wants, now, self._clock))

    async def branch(self, head: Head, at: int, pairing: Pairing, closing: AppendRequest) -> ThreadSummary:
        """Create the branch that `fork` has prepared."""
        return await self._writer.do(
            lambda connection: _changes.branch(connection, head, at, pairing, closing).summary, closing.weight
        )

    async def move(self, thread_id: str, *, to: str) -> ThreadStanding:
        check_name(to, "the place of a ledger")
        now = current_port().now()

        def change(connection: Connection, thread: Thread | None) -> Thread:
            return _hosts.move(connection, thread, thread_id, to=to, now=now, clock=self._clock)

        return standing_of((await self._writer.change_thread(thread_id, change)).state)

    async def restore(self, journals: Iterable[ThreadJournal], heads: Iterable[Head]) -> tuple[ThreadSummary, ...]:
        chosen = proven(journals, heads)
        weight = sum(len(record.body) + 100 for journal, _ in chosen for record in journal.records)
        made = await self._writer.do(lambda connection: _changes.restore(connection, chosen, self.redaction), weight)
        return tuple(thread.summary for thread in made)

    async def delete(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        names = await self._writer.do(lambda connection: _changes.delete(connection, thread_id, with_branches))
        await self._forget_log()
        return names

    async def forget(self, thread_id: str, *, with_branches: bool = False) -> tuple[str, ...]:
        names = await self._writer.do(lambda connection: _changes.forget(connection, thread_id, with_branches))
        self._place.keyring.drop()
        await self._forget_log()
        return names

    async def rotate(self, new: MasterKey) -> int:
        self._place.keyring.begin_rotation(new)
        count = await self._writer.do(lambda connection: _keys.rotate(connection, new))
        self._place.keyring.end_rotation(new)
        await self._forget_log()
        return count

    async def encryption(self) -> EncryptionStatus | None:
        return await self._readers.do(_keys.status)

    async def wrapped_key(self, thread_id: str) -> WrappedKey | None:
        """Return the wrapped key of a thread, if it is encrypted."""

        def look(connection: Connection) -> WrappedKey | None:
            thread = find_thread(connection, thread_id)
            return None if thread is None else _keys.find_key(connection, thread.key)

        return await self._readers.do(look)

    async def expire(self, before: datetime) -> tuple[str, ...]:
        micros = to_micros(before)
        names = await self._writer.do(lambda connection: _changes.expire(connection, micros))
        await self._forget_log()
        return names

    async def _forget_log(self) -> None:
        """Empty the write-ahead log, which may still hold deleted rows. A reader may prevent that until a later checkpoint."""
        self._pages.clear()  # no reader of `tail` gets deleted records
        await asyncio.to_thread(_emptied, self._place)

    # ------------------------------------------------------------ reading

    def read(self, thread_id: str, after: int = 0, before: int | None = None, reverse: bool = False) -> AsyncIterator[Record]:
        return read_pages(partial(self._page, thread_id), after, before, reverse)

    async def _page(self, thread_id: str, request: PageRequest) -> PageOfThread | None:
        """Return the next messages of a thread.

        Raises:
            UnknownThreadError: the thread was deleted during the read.
        """

        def look(connection: Connection) -> PageOfThread | None:
            thread = find_thread(connection, thread_id)
            if request.key is not None and (thread is None or thread.key != request.key):
                raise UnknownThreadError("it was deleted while it was read", thread_id)
            records = [record for _, record in page_of_thread(connection, thread, request)]
            return PageOfThread(thread.key, thread.state.seq, records) if thread is not None and records else None

        return await self._readers.do(look)

    async def head(self, thread_id: str) -> Head:
        def look(connection: Connection) -> Head:
            thread = find_thread(connection, thread_id)
            return head_of(new_state(thread_id, 0) if thread is None else thread.state)

        return await self._readers.do(look)

    async def heads(self) -> tuple[Head, ...]:
        return await self._readers.do(_queries.heads)

    async def thread(self, thread_id: str) -> ThreadSummary | None:
        def look(connection: Connection) -> ThreadSummary | None:
            thread = find_thread(connection, thread_id)
            return None if thread is None else thread.summary

        return await self._readers.do(look)

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
        if _queries.is_indexed(filter) and await self._readers.do(_queries.lacks_indexes):
            with suppress(LedgerUnavailableError):  # the file is read-only: the list takes longer
                await self._writer.do(_queries.add_indexes)
        return await self._readers.do(lambda connection: _queries.threads(connection, filter, order, page, limit))

    async def count_threads(self, *, system: bool | None = None) -> tuple[ThreadCount, ...]:
        return await self._readers.do(lambda connection: _queries.count_threads(connection, system))

    async def tail(self, after: str | None = None, *, thread_id: str | None = None) -> AsyncIterator[Tailed]:
        position = cursor_position(after)
        while True:
            seen = self._commits.count  # before the read: a commit between the read and the wait then ends the wait at once
            page = await self._since(position, thread_id, seen)
            for position, record in page.records:
                yield Tailed(record, str(position))
            if not page.records:
                self._watch_others()
                await self._commits.wait(seen)

    async def _since(self, position: int, thread_id: str | None, seen: int) -> _TailPage:
        """Return the records after a position.

        Readers of the same place share one read: a thousand readers cost as much as one.
        """
        now, key = asyncio.get_running_loop().time(), (position, thread_id)
        page = self._pages.get(key)
        if page is not None and now - page.at < _SHARED_FOR:
            return page
        # Join only a read that started after the same commits: an earlier read may lack records for which this reader will not
        # be woken.
        own = (*key, seen)
        while (reading := self._reading.get(own)) is not None:
            await asyncio.wait((reading,))
            if not reading.cancelled():
                return reading.result()
        self._reading[own] = reading = asyncio.get_running_loop().create_future()
        try:
            page = _TailPage(await self._read_since(position, thread_id), now)
            reading.set_result(page)
        finally:
            del self._reading[own]
            if not reading.done():  # the waiting readers then read themselves, and get their own error
                reading.cancel()
        if page.records:
            self._pages[key] = page
        return page

    async def _read_since(self, position: int, thread_id: str | None) -> list[tuple[int, Record]]:
        def look(connection: Connection) -> list[tuple[int, Record]]:
            if thread_id is None:
                return records_since(connection, position)
            thread = find_thread(connection, thread_id)
            return page_of_thread(connection, thread, PageRequest(None, seq_at(connection, thread, position) + 1))

        return await self._readers.do(look)

    def _watch_others(self) -> None:
        if self._watch is None or self._watch.done():
            self._watch = asyncio.create_task(self._look_for_others())

    async def _look_for_others(self) -> None:
        """Wake the readers when another process has committed, as long as a reader waits."""
        seen: str | None = None  # so the first round always wakes them: another process may have committed since they read
        while self._commits.is_awaited:
            now: str | None = None
            with suppress(LedgerError):  # the reader is woken, reads, and gets the error
                now = await self.horizon()
            if now is None or now != seen:
                seen = now
                self._commits.notify()
            await asyncio.sleep(_LOOK_AGAIN)

    async def horizon(self) -> str:
        sql = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'"
        return str(await self._readers.do(lambda connection: connection.value(sql)))

    async def tail_lag(self) -> float:
        return 0.0  # one writer at a time: a committed record is the next one

    async def by_invocation(self, invocation_id: str, *, thread_id: str | None = None) -> tuple[Record, ...]:
        return await self._by("invocation", invocation_id, lambda each: each.invocation_id == invocation_id, thread_id)

    async def by_correlation(self, correlation_id: str, *, thread_id: str | None = None) -> tuple[Record, ...]:
        return await self._by("correlation", correlation_id, lambda each: each.correlation_id == correlation_id, thread_id)

    async def _by(self, kind: str, name: str, fits: Callable[[Message], bool], thread_id: str | None) -> tuple[Record, ...]:
        def look(connection: Connection) -> tuple[Record, ...]:
            segments: list[ThreadSegment] | None = None
            if thread_id is not None:
                thread = find_thread(connection, thread_id)
                segments = [] if thread is None else lineage(connection, thread)
            found = records_by_number(connection, kind, name, segments)
            return tuple(record for record in found if fits(record.message))

        return await self._readers.do(look)

    async def open_calls(self, thread_id: str) -> tuple[Record, ...]:
        def look(connection: Connection) -> tuple[Record, ...]:
            thread = find_thread(connection, thread_id)
            calls = [] if thread is None else find_open_calls(connection, thread)
            if thread is not None and not calls:
                _keys.check_remembered(connection, thread.key, thread_id)
            pages = (page_of_thread(connection, thread, PageRequest(None, call.seq, call.seq)) for call in calls)
            return tuple(record for page in pages for _, record in page)

        return await self._readers.do(look)

    async def open_calls_of(
        self, option_name: str, *, order: CallOrder = "recorded_at", page: str | None = None, limit: int = 100
    ) -> CallPage:
        check_limit(limit)
        is_reversed, start = is_newest_first(order), None if page is None else cursor_position(page)
        return await self._readers.do(
            lambda connection: _queries.open_calls_of(connection, option_name, is_reversed, start, limit)
        )

    async def search(self, text: str, *, thread_id: str | None = None, limit: int = 20) -> tuple[Hit, ...]:
        check_limit(limit)
        while await self._writer.do(_queries.index_some):
            pass
        return await self._readers.do(lambda connection: _queries.find(connection, text, thread_id, limit))

    async def find_terms(
        self, index: TermIndex, terms: Iterable[str], *, source: str | None = None, limit: int = 100
    ) -> TermMatches:
        check_limit(limit)
        wanted = check_terms(terms)

        def look(connection: Connection) -> TermMatches | _terms.TermUpdate:
            # In one transaction: most searches find the index up to date, and need not ask twice.
            return _terms.next_update(connection, index) or _terms.find(connection, index, wanted, source, limit)

        while not isinstance(found := await self._readers.do(look), TermMatches):
            await self._writer.do(partial(_terms.store, index=index, update=found))
        return found

    async def rebuild_terms(self, index: TermIndex) -> int:
        await self._writer.do(lambda connection: _terms.drop(connection, index.name))
        await self._update_terms(index)
        return (await self._readers.do(lambda connection: _terms.find(connection, index, (), None, 0))).entries

    async def without_vectors(self, index: TermIndex, space: VectorSpace, *, limit: int = 100) -> tuple[Record, ...]:
        await self._update_terms(index)
        return await self._readers.do(lambda connection: _terms.without_vectors(connection, index, space, limit))

    async def store_vectors(self, index: TermIndex, space: VectorSpace, vectors: Mapping[str, Sequence[float]]) -> None:
        await self._writer.do(lambda connection: _terms.store_vectors(connection, index, space, vectors))

    async def find_vectors(
        self, index: TermIndex, space: VectorSpace, vector: Sequence[float], *, source: str | None = None, limit: int = 100
    ) -> tuple[TermMatch, ...]:
        check_limit(limit)
        await self._update_terms(index)
        return await self._readers.do(
            lambda connection: _terms.find_vectors(connection, index, space, vector, source=source, limit=limit)
        )

    async def drop_vectors(self, index: TermIndex) -> None:
        await self._writer.do(lambda connection: _terms.drop_vectors(connection, index.name))

    async def _update_terms(self, index: TermIndex) -> None:
        """Add missing messages to an index. A reader checks first: most searches need not write."""
        while update := await self._readers.do(lambda connection: _terms.next_update(connection, index)):
            # Entries that another process has stored meanwhile may end before the messages of this call: then check again.
            is_stored = await self._writer.do(partial(_terms.store, index=index, update=update))
            if is_stored and update.is_last:
                return

    # ------------------------------------------------------------ lookups for the verbs

    async def open_from(self, thread_id: str, seq: int) -> int | None:
        """Return the place of the first call since no call was open, as of a message."""

        def look(connection: Connection) -> int | None:
            thread = find_thread(connection, thread_id)
            line = [] if thread is None else line_to(connection, thread.key, seq)
            sql = "SELECT open_from FROM messages WHERE thread = ? AND seq = ?"
            found: int | None = connection.value(sql, (line[-1].key, seq)) if line else None
            return found

        return await self._readers.do(look)

    async def latest_snapshot(self, thread_id: str, fold: str, upto: int) -> tuple[int, Json] | None:
        """Return the place and the state of a fold's latest snapshot up to a message."""
        return await self._readers.do(lambda connection: _queries.snapshot(connection, thread_id, fold, upto))

    # ------------------------------------------------------------ maintenance

    async def verify(
        self,
        thread_id: str | None = None,
        *,
        heads: Iterable[Head] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> Verification:
        progress = listener(progress)
        if damages := await self._readers.do(_verify.damages_of_schema):
            return Verification(0, 0, tuple(damages))
        names, total = await self._readers.do(_verify.names)
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
            # A fresh connection: one that searched before a deletion may report the index of words as damaged, because FTS5
            # caches parts of it.
            damages += await self._readers.do(_verify.damages_of_file, anew=True)
        return Verification(len(chosen), messages, tuple(damages))

    async def _examine(self, name: str, heads: dict[str, Head]) -> tuple[Damage | None, int]:
        try:
            return await self._examined(name, heads)
        except LedgerCorruptError as exc:
            return Damage(name, exc.seq, str(exc)), 0

    async def _examined(self, name: str, heads: dict[str, Head]) -> tuple[Damage | None, int]:
        subject = await self._readers.do(lambda connection: _verify.begin(connection, name))
        if not isinstance(subject, Subject):
            return subject, 0
        after: int | Damage | None = subject.thread.base_seq
        while isinstance(after, int):
            start = after
            after = await self._readers.do(lambda connection: _verify.look(connection, subject, start, heads))  # noqa: B023
        if after is not None and not await self._readers.do(lambda connection: _verify.is_there(connection, subject)):
            after = None  # the thread was deleted meanwhile, not damaged
        return after, subject.examination.looked_at

    async def diagnose(self) -> tuple[Diagnosis, ...]:
        """Examine the file, its settings and its surroundings."""

        def written_with(connection: Connection) -> int:
            return int(connection.setting("synchronous"))

        try:
            synchronous = await self._writer.do(written_with)
        except LedgerUnavailableError:
            synchronous = 2  # a read-only file loses nothing
        return await self._readers.do(lambda connection: _verify.diagnose(connection, synchronous))

    async def backup(self, path: str | Path) -> None:
        await asyncio.to_thread(_copied, self._place, Path(path))


def _opened(place: LedgerFile, create: bool) -> Connection:
    """Open the first connection, which migrates the file to the current format."""
    if create:
        _make_folder(Path(place.path).parent)
    elif not Path(place.path).exists():
        return connect(place)
    connection = connect(place, create=True)
    try:
        place.keyring.check(_keys.ledger_key(connection))
    except LedgerError:
        connection.close(force=True)
        raise
    return connection


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as exc:
        raise LedgerUnavailableError(f"the folder {str(folder)!r} cannot be created: {exc}; check the path") from exc


def _emptied(place: LedgerFile) -> None:
    with suppress(apsw.Error, LedgerError):  # the deletion is committed: an error here must not tell the caller otherwise
        connection = connect(place._replace(busy_timeout=1.0))
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            connection.close()


def _copied(place: LedgerFile, target: Path) -> None:
    """Write a copy under another name, sync it, and only then rename it.

    In any other order, a power cut could leave an incomplete file under the name of the backup.
    """
    if target.exists():
        raise FileExistsError(f"{str(target)!r} is there already; a backup is written to a new file")
    partial = target.with_name(target.name + ".partial")
    partial.unlink(missing_ok=True)
    connection = connect(place)
    try:
        # SQLite applies `query_only` to the new file as well. A file that this process must not write is opened read-only.
        connection.setting("query_only", False)
        connection.run("VACUUM INTO ?", (os.fspath(partial),))
    except apsw.CantOpenError as exc:
        reason = f"the backup {str(target)!r} cannot be written: {exc}"
        raise LedgerUnavailableError(f"{reason}; choose a folder that this process may write") from exc
    except apsw.Error as exc:
        partial.unlink(missing_ok=True)
        raise translated(exc, os.fspath(target)) from exc
    finally:
        connection.close()
    _sync(partial)
    partial.rename(target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
