"""SqliteLedger: a ledger in one file, for any number of tasks, threads and processes on one machine.

One writer thread makes the changes (see `_writer`), and a few reader threads read (see `_connection`). This class implements
the contract with them. Several processes may use one file: SQLite's lock lets one process write at a time, and epoch, version,
ids and the last link are compared inside the transaction that writes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar
from weakref import WeakValueDictionary

import apsw
from typing_extensions import override

from antiphon.errors import LedgerError, LedgerFullError, LedgerUnavailableError
from antiphon.ledger._encryption import Keyring, Mastering
from antiphon.ledger._hosts import Host, LeaseClock
from antiphon.ledger._records import Record
from antiphon.ledger._redaction import LedgerRedaction, Redacting
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._signals import CommitSignal
from antiphon.ledger._sql import hosts, lists
from antiphon.ledger._sql.keys import ledger_key
from antiphon.ledger._sql.rows import CommitPlace
from antiphon.ledger._sql.statements import Verb
from antiphon.ledger._sql.store import SqlLedger
from antiphon.ledger._stored import Thread
from antiphon.ledger._terms import TermIndex, TermMatches
from antiphon.ledger._values import (
    Damage,
    Diagnosis,
    ThreadFilter,
)
from antiphon.ledger.sqlite import _queries, _search, _terms, _verify
from antiphon.ledger.sqlite._connection import InlineReader, LedgerFile, Readers, connect, translated
from antiphon.ledger.sqlite._driver import run
from antiphon.ledger.sqlite._sql import Connection
from antiphon.ledger.sqlite._writer import InlineWriter, Writer

_LOOK_AGAIN = 0.05
"""Seconds between two checks for commits of other processes, while a `tail` waits."""

_SHARED_FOR: Final = 1.0
"""Seconds for which readers of the same place get the same page: data that another process deletes is read no longer than
that."""

_MOST_REMEMBERED = 10_000
"""The number of threads in the cache that says whether they are redacted."""

ResultT = TypeVar("ResultT")


class _TailPage:
    """Records that readers of `tail` share, until all of them have read them."""

    __slots__ = ("__weakref__", "at", "page")

    def __init__(self, page: lists.TailPage, at: float) -> None:
        self.page = page
        self.at = at
        """When it was read."""


class SqliteStore(SqlLedger):
    """A ledger in a SQLite database, whoever reads and writes it."""

    def __init__(
        self,
        redaction: LedgerRedaction,
        keyring: Keyring,
        readers: Readers | InlineReader,
        writer: Writer | InlineWriter,
        commits: CommitSignal,
    ) -> None:
        self.rules = redaction
        self._keyring = keyring
        self._readers = readers
        self._writer = writer
        self._commits = commits
        self._redacted: dict[str, bool] = {}
        """By thread that was claimed here, whether it is redacted: an owner need not read that from the file."""
        self._pages: WeakValueDictionary[tuple[CommitPlace, str | None], _TailPage] = WeakValueDictionary()
        self._reading: dict[tuple[CommitPlace, str | None, int], asyncio.Future[_TailPage]] = {}
        """The shared pages and the pending reads of readers of `tail`."""

    # ------------------------------------------------------------ verbs

    async def _read(self, make: Callable[[], Verb[ResultT]]) -> ResultT:
        return await self._readers.do(lambda connection: run(connection, make()))

    async def _change(self, make: Callable[[], Verb[ResultT]], weight: int = 1024) -> ResultT:
        return await self._writer.do(lambda connection: run(connection, make()), weight)

    async def _change_thread(self, thread_id: str, make: Callable[[Thread | None], Verb[tuple[Thread, ResultT]]]) -> ResultT:
        changed: tuple[Thread, ResultT] = await self._writer.change_thread(thread_id, make)
        thread, result = changed
        if len(self._redacted) >= _MOST_REMEMBERED:
            self._redacted.clear()
        self._redacted[thread_id] = bool(thread.state.is_redacted)
        return result

    async def _append(self, request: AppendRequest) -> tuple[Record, ...]:
        return await self._writer.append(request)

    @override
    async def _is_redacted(self, thread_id: str) -> bool | None:
        is_redacted = self._redacted.get(thread_id)
        return await super()._is_redacted(thread_id) if is_redacted is None else is_redacted

    async def _forgotten(self, names: tuple[str, ...] | None) -> None:
        self._pages.clear()  # no reader of `tail` gets deleted records
        for name in names or ():
            self._redacted.pop(name, None)

    # ------------------------------------------------------------ reading

    _planner = staticmethod(_queries.plan)

    @override
    async def _prepare_list(self, filter: ThreadFilter) -> None:
        if _queries.is_indexed(filter) and await self._read(_queries.lacks_indexes):
            with suppress(LedgerUnavailableError):  # the file is read-only: the list takes longer
                await self._change(_queries.add_indexes)

    @override
    async def _since(self, place: CommitPlace, thread_id: str | None) -> lists.TailPage:
        return (await self._shared_page(place, thread_id)).page

    @override
    async def _wait_for_commit(self, seen: int, is_more_coming: bool) -> None:
        self._watch_others()
        await self._commits.wait(seen)

    async def _shared_page(self, place: CommitPlace, thread_id: str | None) -> _TailPage:
        """Return the records after a place.

        Readers of the same place share one read: a thousand readers cost as much as one.
        """
        seen = self._commits.count
        now, key = asyncio.get_running_loop().time(), (place, thread_id)
        page = self._pages.get(key)
        if page is not None and now - page.at < _SHARED_FOR:
            return page
        # Join only a read that started after the same commits: an earlier read may lack records for which this reader will not
        # be woken.
        pending = (*key, seen)
        while (reading := self._reading.get(pending)) is not None:
            await asyncio.wait((reading,))
            if not reading.cancelled():
                return reading.result()
        self._reading[pending] = reading = asyncio.get_running_loop().create_future()
        try:
            page = _TailPage(await self._read(partial(lists.since, place, thread_id)), now)
            reading.set_result(page)
        finally:
            del self._reading[pending]
            if not reading.done():  # the waiting readers then read themselves, and get their own error
                reading.cancel()
        if page.page.records:
            self._pages[key] = page
        return page

    def _watch_others(self) -> None:
        """Begin to wake the readers when another process has committed."""

    # ------------------------------------------------------------ words and terms

    _words = _search
    _terms = _terms

    @override
    async def _find_terms(self, index: TermIndex, terms: Sequence[str], source: str | None, limit: int) -> TermMatches:
        # In one transaction: most searches find the index up to date, and need not ask twice.
        look = partial(_terms.find_or_update, index, terms, source, limit)
        while not isinstance(answer := await self._read(look), TermMatches):
            await self._change(partial(_terms.store, index, answer))
        return answer


class SqliteLedger(SqliteStore):
    """A ledger in one SQLite file."""

    _readers: Readers
    _writer: Writer

    def __init__(self, place: LedgerFile, connection: Connection, redaction: LedgerRedaction) -> None:
        self._place = place
        commits = CommitSignal()
        super().__init__(redaction, place.keyring, Readers(place), Writer(place, connection, commits.notify), commits)
        self._watch: asyncio.Task[None] | None = None

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
        machine was started. The errors are those of `open_ledger`.
        """
        rules = LedgerRedaction.of(redaction)
        place = LedgerFile(os.fspath(path), busy_timeout, vfs, Keyring.of(master_key), clock)
        ledger = cls(place, await asyncio.to_thread(_opened, place, create), rules)
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

    def renew(self, host: Host) -> bool:
        verb = partial(hosts.renew, host, self._now(), self.rules)
        return self._writer.do_in_thread(lambda connection: run(connection, verb()), host.lease) is not None

    @override
    async def _forgotten(self, names: tuple[str, ...] | None) -> None:
        """Empty the write-ahead log, which may still hold deleted rows. A reader may prevent that until a later checkpoint."""
        await super()._forgotten(names)
        await asyncio.to_thread(_emptied, self._place)

    @override
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

    # ------------------------------------------------------------ maintenance

    async def _damages_before(self) -> list[Damage]:
        return await self._readers.do(_verify.damages_of_schema)

    async def _damages_outside(self) -> list[Damage]:
        # A fresh connection: one that searched before a deletion may report the index of words as damaged, because FTS5 caches
        # parts of it.
        return await self._readers.do(_verify.damages_of_file, anew=True)

    async def diagnose(self) -> tuple[Diagnosis, ...]:
        """Examine the file, its settings and its surroundings."""

        def written_with(connection: Connection) -> int:
            return int(connection.setting("synchronous"))

        try:
            synchronous = await self._writer.do(written_with)
        except LedgerUnavailableError:
            synchronous = 2  # a read-only file loses nothing
        return await self._readers.do(lambda connection: tuple(_verify.diagnose(connection, synchronous)))

    async def backup(self, path: str | Path) -> None:
        await asyncio.to_thread(_copied, self._place, Path(path))


def _opened(place: LedgerFile, create: bool) -> Connection:
    """Open the first connection, which creates the tables of a new file."""
    if create:
        folder = Path(place.path).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise LedgerUnavailableError(f"the folder {str(folder)!r} cannot be created: {exc}; check the path") from exc
    elif not Path(place.path).exists():
        return connect(place)
    connection = connect(place, create=True)
    try:
        place.keyring.check(run(connection, ledger_key()))
    except LedgerError:
        connection.close(force=True)
        raise
    return connection


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
