"""The writer: one thread with one connection, which commits many changes at once.

Callers put changes into a queue. The thread takes all changes that wait, makes them inside one transaction, and commits once,
so many callers share one wait for the disk. An append, a claim or a release is decided before it writes anything (see
`_appends`). Every other change is a function over the connection, which runs inside a savepoint. If the changes of a batch
cannot be written together, the thread rolls back and repeats the batch with a savepoint for each change. In both cases a
refused change does not affect the others. No caller gets an answer before the commit has returned.

Cancelling a caller does not withdraw its change: the change may be in the middle of a commit.

After an error of the file or the machine, all callers of the batch get the error. The writer closes the connection, and the
next batch opens a new one. If the disk failed to sync, rows in the write-ahead log may be visible and yet not on the disk, and
a second sync may succeed without having written them. So the writer first copies the whole log into the file and syncs the
file, before it acknowledges anything more. This matters most for a repeated append, which finds its messages in the log.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeAlias, TypeVar, cast

import apsw
from typing_extensions import override

from antiphon.errors import LedgerCorruptError, LedgerError, LedgerFullError, LedgerUnavailableError
from antiphon.ledger._records import Record
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._stored import Thread as StoredThread
from antiphon.ledger.sqlite._appends import Appends, ThreadChange
from antiphon.ledger.sqlite._connection import FATAL, LedgerFile, connect, is_of_store, translated
from antiphon.ledger.sqlite._sql import Connection

_MOST_CHANGES = 1000
"""Changes in one commit: enough to make the wait for the disk negligible, few enough that no caller waits long."""
_MOST_BYTES = 16 * 1024 * 1024
"""Bytes in one commit."""
_ROOM = 64 * 1024 * 1024
"""Bytes that the queue holds; when it is full, callers wait."""
_LOG_PAGES = 2000
"""Checkpoint the write-ahead log when it has this many pages: 4 MiB, SQLite's own default."""
_PATIENCE = 200
"""Milliseconds that a checkpoint waits for readers."""

ResultT = TypeVar("ResultT")
_Work: TypeAlias = AppendRequest | ThreadChange | Callable[[Connection], Any]


class _Change:
    """A queued change, and the future that its caller waits for: of the event loop, or of another thread."""

    __slots__ = ("done", "outcome", "thread_id", "weight", "work")

    def __init__(
        self,
        work: _Work,
        done: asyncio.Future[Any] | concurrent.futures.Future[Any] | None,
        weight: int,
        thread_id: str | None,
    ) -> None:
        self.work = work
        self.done = done
        self.weight = weight
        self.thread_id = thread_id
        """The thread whose row is all that it changes; None if it may change anything."""
        self.outcome: Any = None

    def settle(self) -> None:
        """Give the caller the outcome."""
        assert self.done is not None  # noqa: S101 (a caller that waits has a future)
        if isinstance(self.outcome, _Failed):
            self.done.set_exception(self.outcome.error)
        else:
            self.done.set_result(self.outcome)


class _Failed:
    """The outcome of a change that raised."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


class Committer:
    """Makes a batch of changes in one transaction over one connection, so that a refused change affects no other."""

    def __init__(self, place: LedgerFile, connection: Connection) -> None:
        self._place = place
        self._connection: Connection | None = connection
        self._appends = Appends()
        self.trouble: LedgerFullError | None = None
        """The error of the last commit, if the disk was full; None after a commit that succeeded."""

    def _connected(self) -> Connection:
        assert self._connection is not None  # noqa: S101 (only a writer of a file gives its connection up)
        return self._connection

    def _give_up(self, exc: Exception) -> None:
        """Undo what an error of the machine has left."""
        self._appends.forget()  # its cached threads were not committed
        connection = self._connected()
        if connection.in_transaction:
            connection.run("ROLLBACK")

    def commit(self, batch: Sequence[_Change]) -> None:
        try:
            connection = self._connected()
            try:
                self._attempt(connection, batch, is_careful=False)
            except FATAL:
                raise  # the file or the machine failed, not one change: all callers get the error
            except Exception:  # noqa: BLE001 (a message is stored already, or one change cannot be written: find out which)
                # Undo the whole first attempt: it may have written rows of any change of the batch.
                if connection.in_transaction:  # some errors have rolled back already
                    connection.run("ROLLBACK")
                self._attempt(connection, batch, is_careful=True)
            self.trouble = None
        except Exception as exc:  # noqa: BLE001 (the callers get it)
            for change in batch:
                change.outcome = _Failed(self._translated(exc))
            error = self._translated(exc)
            self.trouble = error if isinstance(error, LedgerFullError) else None
            self._give_up(exc)

    def _attempt(self, connection: Connection, batch: Sequence[_Change], *, is_careful: bool) -> None:
        # IMMEDIATE takes the write lock before anything is read. So every epoch, version and id that an admission compares is
        # still current when its rows are written, whatever other processes do.
        connection.run("BEGIN IMMEDIATE")
        self._appends.begin(connection, is_careful=is_careful)  # inside the transaction: no other process commits after it
        for change in batch:
            self._try(connection, change, is_careful=is_careful)
        self._appends.flush(connection)
        connection.run("COMMIT")
        self._appends.end(connection)  # after the commit, which changes the version that it remembers

    def _translated(self, exc: Exception) -> Exception:
        is_refusal = isinstance(exc, ValueError)  # a change may refuse its arguments
        return translated(exc, self._place.path) if is_of_store(exc) and not is_refusal else exc

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
        # Flush before the savepoint: rolling back to it must undo this change only, not the appends that were admitted before
        # it. Forget, because the change may alter the threads that are remembered.
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
            self._appends.forget()  # its pending rows too: the next flush must not write them
            connection.run("ROLLBACK TO change")
            change.outcome = _Failed(self._translated(exc))
        connection.run("RELEASE change")  # also after ROLLBACK TO, which leaves the savepoint open

    def _decided(self, connection: Connection, change: _Change) -> Any:
        """Make a change that raises before it writes anything, or not at all."""
        if isinstance(change.work, AppendRequest):
            return self._appends.take(connection, change.work)
        return self._appends.change_thread(connection, change.thread_id or "", cast("ThreadChange", change.work))


class InlineWriter(Committer):
    """Makes each change at once, in the thread that calls: for a database that is in memory, and waits for nothing."""

    def __init__(self, place: LedgerFile, connection: Connection, on_commit: Callable[[], None]) -> None:
        super().__init__(place, connection)
        self._on_commit = on_commit

    async def do(self, work: Callable[[Connection], ResultT], weight: int = 1024) -> ResultT:
        return cast("ResultT", self._commit_one(work, None))

    async def change_thread(self, thread_id: str, work: ThreadChange) -> tuple[StoredThread, Any]:
        return cast("tuple[StoredThread, Any]", self._commit_one(work, thread_id))

    async def append(self, request: AppendRequest) -> tuple[Record, ...]:
        return cast("tuple[Record, ...]", self._commit_one(request, None))

    def _commit_one(self, work: _Work, thread_id: str | None) -> Any:
        change = _Change(work, None, 0, thread_id)
        self.commit((change,))
        if isinstance(change.outcome, _Failed):
            raise change.outcome.error
        self._on_commit()
        return change.outcome


def _settle_threads(batch: Sequence[_Change]) -> None:
    """Answer the callers in other threads: not through the event loop, which may be blocked."""
    for change in batch:  # in a function of its own: in the loop of the writer, the name would keep the last change alive
        if isinstance(change.done, concurrent.futures.Future):
            change.settle()


class Writer(Committer):
    """Makes changes to a ledger's file in a thread, one after the other, many to a commit."""

    def __init__(self, place: LedgerFile, connection: Connection, on_commit: Callable[[], None]) -> None:
        super().__init__(place, connection)
        self._on_commit = on_commit
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Change | None] = SimpleQueue()
        self._room = _ROOM
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        self._closing = Lock()
        self._is_suspect = False
        self._log_pages = 0
        self._copy_at = _LOG_PAGES
        connection.set_wal_hook(self._count_log)
        self._thread = Thread(target=self._run, name="antiphon-ledger-writer", daemon=True)
        self._thread.start()

    async def do(self, work: Callable[[Connection], ResultT], weight: int = 1024) -> ResultT:
        """Queue a change, and return its result once it is durable.

        Raises:
            LedgerError: it was refused, or the store cannot be used.
        """
        return cast("ResultT", await self._queued(work, weight))

    async def change_thread(self, thread_id: str, work: ThreadChange) -> tuple[StoredThread, Any]:
        """Queue a change of the row of one thread, and return the thread and the result once they are durable.

        Raises:
            LedgerError: it was refused, or the store cannot be used.
        """
        return cast("tuple[StoredThread, Any]", await self._queued(work, 1024, thread_id))

    async def append(self, request: AppendRequest) -> tuple[Record, ...]:
        """Queue an append, and return its records once they are durable.

        Raises:
            LedgerError: it was refused, or the store cannot be used.
        """
        return cast("tuple[Record, ...]", await self._queued(request, request.weight))

    async def _queued(self, work: _Work, weight: int, thread_id: str | None = None) -> Any:
        if asyncio.get_running_loop() is not self._loop:
            raise LedgerUnavailableError("the ledger belongs to the event loop that it was opened in; open it in this one too")
        # A change that is larger than the whole queue waits only until the queue is empty.
        while self._room < weight and self._room < _ROOM:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter
        # Nothing awaits between this check and `put`. Otherwise `close` could put its end mark in between: the thread would
        # end without making the change, and the caller would wait for ever.
        if self._is_closed:
            raise LedgerUnavailableError("the ledger is closed; open it again")
        self._room -= weight
        done: asyncio.Future[Any] = self._loop.create_future()
        self._queue.put(_Change(work, done, weight, thread_id))
        return await done

    def do_in_thread(self, work: Callable[[Connection], ResultT], within: float) -> ResultT:
        """Queue a change from a thread other than that of the event loop, and return its result once it is durable.

        `within` is how many seconds it waits; then the change may still be made.

        Raises:
            LedgerError: it was refused, or the store cannot be used.
        """
        done: concurrent.futures.Future[ResultT] = concurrent.futures.Future()
        with self._closing:  # `close` must not put its end mark between the check and `put`
            if self._is_closed:
                raise LedgerUnavailableError("the ledger is closed; open it again")
            self._queue.put(_Change(work, done, 0, None))
        try:
            return done.result(within)
        except TimeoutError:
            raise LedgerUnavailableError(f"the ledger has not written within {within:g} seconds") from None

    async def close(self) -> None:
        """Make the changes that wait, and close the file."""
        with self._closing:
            self._is_closed = True  # before the end mark: no change may be queued behind it
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _settle(self, batch: Sequence[_Change]) -> None:
        """Give the callers their outcomes, in the thread of the event loop."""
        for change in batch:
            self._room += change.weight  # first, and also for a cancelled caller: its change has left the queue
            # Otherwise the caller was cancelled, or waits in another thread.
            if change.done is not None and not change.done.done():
                change.settle()
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
                self.commit(batch)
                _settle_threads(batch)
                with suppress(RuntimeError):  # the loop was closed: no caller is left
                    self._loop.call_soon_threadsafe(self._settle, batch)
            del batch  # while the thread waits for the next one, nobody needs what was written
            # After the callers have their answers: the commit is durable without a checkpoint, which may wait for readers.
            self._copy_log()
        self._disconnect()

    def _take(self) -> tuple[list[_Change], bool]:
        """Wait for changes, and return the next batch, and whether more may come."""
        batch: list[_Change] = []
        weight = 0
        change = self._queue.get()
        while change is not None:
            batch.append(change)
            weight += change.weight
            # Only this thread takes from the queue. So if it is not empty here, the `get` below does not block.
            if len(batch) == _MOST_CHANGES or weight >= _MOST_BYTES or self._queue.empty():
                return batch, True
            change = self._queue.get()
        return batch, False

    @override
    def _give_up(self, exc: Exception) -> None:
        """Close the connection, unless another process held the lock and no transaction has begun."""
        self._appends.forget()  # its cached threads were not committed
        connection = self._connection
        if connection is not None and isinstance(exc, apsw.BusyError) and not connection.in_transaction:
            return
        self._is_suspect = self._is_suspect or connection is not None
        self._disconnect()

    @override
    def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = connect(self._place)
            self._connection.set_wal_hook(self._count_log)
            self._appends = Appends()  # versions that another connection gave mean nothing to this one
        # Before anything is read or acknowledged: a sync may have failed (see the top of this file).
        if self._is_suspect:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            self._is_suspect = False
        return self._connection

    def _count_log(self, connection: apsw.Connection, name: str, pages: int) -> int:
        if pages < self._log_pages:
            self._copy_at = _LOG_PAGES  # SQLite has started again at the beginning of the log
        self._log_pages = pages
        return apsw.SQLITE_OK

    def _copy_log(self) -> None:
        """Checkpoint the log when it has grown: copy it into the file, so that SQLite can start again at its beginning."""
        if self._connection is None or self._log_pages < self._copy_at:
            return
        # A log that has grown much further is held by overlapping readers. RESTART makes new readers wait for a moment.
        mode = apsw.SQLITE_CHECKPOINT_RESTART if self._log_pages > 4 * _LOG_PAGES else apsw.SQLITE_CHECKPOINT_PASSIVE
        self._copy_at = self._log_pages + _LOG_PAGES
        try:
            self._connection.set_busy_timeout(_PATIENCE)
            self._connection.wal_checkpoint(mode=mode)
        except apsw.BusyError:
            pass  # another process checkpoints, or a reader has not finished: try again when the log has grown
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
