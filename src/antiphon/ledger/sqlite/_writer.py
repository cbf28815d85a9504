"""The writer: one thread, one connection, and as many changes in one commit as are waiting.

A change waits in a queue; the thread takes all that are there, makes them inside one transaction, and commits once, so that
many callers share one wait for the disk. Appends, claims and releases are decided before they write anything (see
`_appends`); every other change is a function over the connection, run inside a savepoint. Where they could not be written
together, they are made again, each inside a savepoint too. Either way, one that is refused harms no other. No caller gets an
answer before the commit has returned.

What is queued is done: cancelling the caller does not withdraw it, because it may be in the middle of a commit.

After an error of the file or the machine, the whole batch gets the error, the connection is thrown away, and the next batch
begins with a new one. If the disk failed to sync, what is in the log may be visible and yet not on the disk, and syncing again
says nothing about it; so everything in the log is first copied into the file and that is synced, before anything more is
acknowledged (a repeated append, above all, that finds its messages "there already").
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeAlias, TypeVar, cast

import apsw

from antiphon.errors import LedgerCorruptError, LedgerError, LedgerUnavailableError
from antiphon.ledger._chain import Record
from antiphon.ledger._request import AppendRequest
from antiphon.ledger.sqlite._appends import Appends, ThreadChange
from antiphon.ledger.sqlite._connection import FATAL, UNEXPECTED, LedgerFile, connect, translated
from antiphon.ledger.sqlite._rows import Thread as StoredThread
from antiphon.ledger.sqlite._sql import Connection

_MOST_CHANGES = 1000
"""In one commit: enough that the wait for the disk is nothing, and few enough that no caller waits long."""
_MOST_BYTES = 16 * 1024 * 1024
"""In one commit."""
_ROOM = 64 * 1024 * 1024
"""Bytes that may wait; then callers do."""
_LOG_PAGES = 2000
"""Pages in the write-ahead log from which on they are copied into the file: 4 MiB, as SQLite itself does."""
_PATIENCE = 200
"""Milliseconds to wait for readers when the log is to begin anew."""

ResultT = TypeVar("ResultT")
_Work: TypeAlias = AppendRequest | ThreadChange | Callable[[Connection], Any]


class _Change:
    """Something to be done, and who waits for it."""

    __slots__ = ("done", "outcome", "thread_id", "weight", "work")

    def __init__(
        self,
        work: _Work,
        done: asyncio.Future[Any],
        weight: int,
        thread_id: str | None,
    ) -> None:
        self.work = work
        self.done = done
        self.weight = weight
        self.thread_id = thread_id
        """The thread whose row is all that it changes; None if it may change anything."""
        self.outcome: Any = None


class _Failed:
    """The outcome of a change that raised."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Writer:
    """Makes changes to a ledger's file, one after the other, many to a commit."""

    def __init__(self, place: LedgerFile, connection: Connection, on_commit: Callable[[], None]) -> None:
        self._place = place
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Change | None] = SimpleQueue()
        self._room = _ROOM
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        self._connection: Connection | None = connection
        self._is_suspect = False
        self._log_pages = 0
        self._copy_at = _LOG_PAGES
        self._appends = Appends()
        connection.set_wal_hook(self._count_log)
        self._thread = Thread(target=self._run, name="antiphon-ledger-writer", daemon=True)
        self._thread.start()

    async def do(self, work: Callable[[Connection], ResultT], weight: int = 1024) -> ResultT:
        """Have a change made, and return what it returned once it is durable.

        Raises:
            LedgerError: it was refused, or the store cannot be used.
        """
        return cast("ResultT", await self._queued(work, weight))

    async def change_thread(self, thread_id: str, work: ThreadChange) -> StoredThread:
        """Have the row of one thread changed, and return the thread once that is durable.

        Raises:
            LedgerError: it was refused, or the store cannot be used.
        """
        return cast("StoredThread", await self._queued(work, 1024, thread_id))

    async def append(self, request: AppendRequest) -> tuple[Record, ...]:
        """Have an append made, and return the records once they are durable.

        Raises:
            LedgerError: it was refused, or the store cannot be used.
        """
        return cast("tuple[Record, ...]", await self._queued(request, request.weight))

    async def _queued(self, work: _Work, weight: int, thread_id: str | None = None) -> Any:
        if asyncio.get_running_loop() is not self._loop:
            raise LedgerUnavailableError("the ledger belongs to the event loop that it was opened in; open it in this one too")
        while self._room < weight and self._room < _ROOM:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter
        if self._is_closed:
            raise LedgerUnavailableError("the ledger is closed; open it again")
        self._room -= weight
        change = _Change(work, self._loop.create_future(), weight, thread_id)
        self._queue.put(change)
        return await change.done

    async def close(self) -> None:
        """Finish what is waiting, and close the file."""
        self._is_closed = True
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _settle(self, batch: Sequence[_Change]) -> None:
        """Tell the callers, in their own thread."""
        for change in batch:
            self._room += change.weight
            if change.done.done():
                continue  # the caller was cancelled
            if isinstance(change.outcome, _Failed):
                change.done.set_exception(change.outcome.error)
            else:
                change.done.set_result(change.outcome)
        while self._waiting and self._room > 0:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
        self._on_commit()

    # ------------------------------------------------------------ in the thread

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._take()
            if batch:
                self._commit(batch)
                with suppress(RuntimeError):  # the loop was closed: no caller is left
                    self._loop.call_soon_threadsafe(self._settle, batch)
            self._copy_log()
        self._disconnect()

    def _take(self) -> tuple[list[_Change], bool]:
        """Return what is waiting, and whether more may come."""
        batch: list[_Change] = []
        weight = 0
        change = self._queue.get()
        while change is not None:
            batch.append(change)
            weight += change.weight
            # Only this thread takes from the queue: what is in it stays there until it is taken.
            if len(batch) == _MOST_CHANGES or weight >= _MOST_BYTES or self._queue.empty():
                return batch, True
            change = self._queue.get()
        return batch, False

    def _commit(self, batch: Sequence[_Change]) -> None:
        try:
            connection = self._connected()
            try:
                self._attempt(connection, batch, is_careful=False)
            except FATAL:
                raise
            except Exception:  # noqa: BLE001 (a message is there already, or one of them cannot be written: see which)
                if connection.in_transaction:  # some errors have rolled back already
                    connection.run("ROLLBACK")
                self._attempt(connection, batch, is_careful=True)
        except Exception as exc:  # noqa: BLE001 (the callers get it)
            for change in batch:
                change.outcome = _Failed(self._translated(exc))
            self._give_up(exc)

    def _attempt(self, connection: Connection, batch: Sequence[_Change], *, is_careful: bool) -> None:
        connection.run("BEGIN IMMEDIATE")
        self._appends.begin(connection, is_careful=is_careful)
        for change in batch:
            self._try(connection, change, is_careful=is_careful)
        self._appends.flush(connection)
        connection.run("COMMIT")
        self._appends.end(connection)

    def _translated(self, exc: Exception) -> Exception:
        is_refusal = isinstance(exc, ValueError)  # a change may refuse what it was given
        is_ours = is_refusal or not isinstance(exc, (apsw.Error, *UNEXPECTED))
        return exc if is_ours else translated(exc, self._place.path)

    def _give_up(self, exc: Exception) -> None:
        """Throw the connection away, unless another process had the lock and nothing was begun."""
        self._appends.forget()
        connection = self._connection
        if connection is not None and isinstance(exc, apsw.BusyError) and not connection.in_transaction:
            return
        self._is_suspect = self._is_suspect or connection is not None
        self._disconnect()

    def _try(self, connection: Connection, change: _Change, *, is_careful: bool) -> None:
        is_decided_first = isinstance(change.work, AppendRequest) or change.thread_id is not None
        if is_decided_first and not is_careful:  # a refusal leaves nothing to undo
            try:
                change.outcome = self._decided(connection, change)
            except LedgerCorruptError:
                raise  # something may be written
            except LedgerError as exc:
                change.outcome = _Failed(exc)
            return
        self._appends.flush(connection)
        self._appends.forget()
        connection.run("SAVEPOINT change")
        try:
            if is_decided_first:
                change.outcome = self._decided(connection, change)
                self._appends.flush(connection)
            else:
                change.outcome = cast("Callable[[Connection], Any]", change.work)(connection)
        except FATAL:
            raise
        except Exception as exc:  # noqa: BLE001 (the caller gets it)
            self._appends.forget()
            connection.run("ROLLBACK TO change")
            change.outcome = _Failed(self._translated(exc))
        connection.run("RELEASE change")

    def _decided(self, connection: Connection, change: _Change) -> Any:
        """Make a change that raises before it writes anything, or not at all."""
        if isinstance(change.work, AppendRequest):
            return self._appends.take(connection, change.work)
        return self._appends.change_thread(connection, change.thread_id or "", cast("ThreadChange", change.work))

    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._place)
            self._connection.set_wal_hook(self._count_log)
            self._appends = Appends()  # versions that another connection gave mean nothing to this one
        if self._is_suspect:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._is_suspect = False
        return self._connection

    def _count_log(self, connection: apsw.Connection, name: str, pages: int) -> int:
        if pages < self._log_pages:
            self._copy_at = _LOG_PAGES  # it has begun anew
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _copy_log(self) -> None:
        """Copy the log into the file when it has grown, so that it begins anew; after the callers were told."""
        if self._connection is None or self._log_pages < self._copy_at:
            return
        # A log that has grown much further is held by readers who take turns: then stop new ones for a moment.
        mode = apsw.SQLITE_CHECKPOINT_RESTART if self._log_pages > 4 * _LOG_PAGES else apsw.SQLITE_CHECKPOINT_PASSIVE
        self._copy_at = self._log_pages + _LOG_PAGES
        try:
            self._connection.set_busy_timeout(_PATIENCE)
            self._connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            pass  # another process does it, or a reader has not finished: next time
        except apsw.Error as exc:
            self._give_up(exc)
            return
        self._connection.set_busy_timeout(int(self._place.busy_timeout * 1000))

    def _disconnect(self) -> None:
        if self._connection is not None:
            with suppress(apsw.Error):
                self._connection.close(force=True)
            self._connection = None
            self._log_pages = 0
            self._copy_at = _LOG_PAGES
