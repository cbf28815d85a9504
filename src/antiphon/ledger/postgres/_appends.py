"""Appends: admitted in Python, written in groups, with as few round trips as possible.

**Fast path.** The waiting appends of a process form a group. `ledger._admission` decides on each append from the cached state
of its thread. One statement then does everything else: it locks all threads, in the order of their keys; compares the sequence
number, the hash and the epoch of each with the cached values; and writes the rows of the threads that match. A thread that
another process has changed does not match, and nothing of it is written. The statement is its own transaction, so an append of
an owner costs one round trip and one commit. A group of one message, as a single writer makes it, uses a statement without
arrays, which is less work for the server (see `_group_append`).

**Two groups at once.** While the server writes one group, this process admits and encodes the next, for other threads, and
sends it over a second connection. The appends to one thread stay in order: a group contains no thread of the other group. A
large number of waiting appends is divided, so that both the server and this process have work.

**One append at a time.** If the last group was one append, the next append is probably alone too. Then its caller writes it,
without a writer in between: a task, and two iterations of the event loop, cost more than the checks of the append. Appends
that arrive meanwhile wait for a writer, as always. If the caller is cancelled, whether the append was written is unknown, and
a writer settles it as after a lost answer.

**Careful path.** It is a transaction that locks the threads, reads their rows, and looks up the ids and invocations that the
admission may need. These appends use it: appends to a thread that is new or not cached here; those that did not match; those
that would otherwise be refused; imported histories, and appends to branches; and all later appends to the same thread, to keep
the order. A repeated message is rare, so the fast path looks up no ids: the unique index of ids makes the statement fail, and
the careful path is used.

**Order.** The locks are taken before anything is written, and kept until the end of the transaction. So of two transactions
that write one thread, the one with the smaller id commits first: transaction ids follow the order of every thread. Row locks
alone do not suffice: a transaction gets its id at its first write, and may then wait for the lock of another row.

**A lost answer.** If the connection breaks, an append may have been committed. It is retried on the careful path, which finds
its messages by their ids.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeAlias

import asyncpg

from antiphon.errors import LedgerError, LedgerUnavailableError
from antiphon.ledger._admission import admit
from antiphon.ledger._records import Record
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._signals import ANYBODY, EVERYBODY
from antiphon.ledger._sql.appends import CachedThread, CarefulAppends
from antiphon.ledger._stored import Thread, split
from antiphon.ledger.postgres._connection import Pool, Session
from antiphon.ledger.postgres._driver import answered
from antiphon.ledger.postgres._group_append import PreparedAppend, statement_of

_MOST_REMEMBERED = 10_000
"""The number of threads whose state is cached."""
_MOST_APPENDS = 200
"""The largest number of appends in a group. Each thread takes one of the server's locks, of which it has 6,400 by default."""
_MOST_BYTES = 8 * 1024 * 1024
_MOST_GROUPS = 2
"""Groups that are written at the same time."""
_FEWEST_DIVIDED = 64
"""The number of waiting appends from which on they are divided into two groups."""
_MOST_LOOKED_AT = 1000
"""The number of waiting appends that are examined for a group, because appends to busy threads are skipped."""


class WaitingAppend(NamedTuple):
    """An append that waits, and the caller that waits for it."""

    request: AppendRequest
    done: asyncio.Future[tuple[Record, ...]]


_Prepared: TypeAlias = tuple[WaitingAppend, PreparedAppend]


class Appender:
    """Takes the appends of a process, and writes them in groups."""

    def __init__(self, pool: Pool, committed: Callable[[], None]) -> None:
        self._pool = pool
        self._committed = committed
        self._threads: dict[str, CachedThread] = {}
        self._waiting: deque[WaitingAppend] = deque()
        self._writers: set[asyncio.Task[None]] = set()
        self._working = 0
        """How many writers have not ended. A writer that has ended is removed from the set an iteration of the event loop
        later. If it counted until then, an append that comes in between would wait for the next append of this process."""
        self._starting: asyncio.Task[None] | None = None
        """The writer that was created and has not started: appends that arrive until then are in its first group."""
        self._busy: set[str] = set()
        """The threads of the groups that are being written."""
        self._is_quiet = False
        """Whether the last group was one append, and no other append has come meanwhile."""
        self._alone: asyncio.Future[tuple[Record, ...]] | None = None
        """The append that its caller writes, or has written last."""
        self._is_closed = False

    def append(self, request: AppendRequest) -> Awaitable[tuple[Record, ...]]:
        """Return an awaitable of the records, to be awaited at once; it ends when they are committed.

        A caller that is cancelled does not withdraw the append.
        """
        if self._is_closed:
            raise LedgerUnavailableError("the ledger is closed")
        waiting = WaitingAppend(request, asyncio.get_running_loop().create_future())
        if self._is_quiet and not (self._waiting or self._busy):
            return self._append_alone(waiting)
        self._is_quiet = False
        self._waiting.append(waiting)
        self._start_writer()
        return waiting.done

    async def _append_alone(self, waiting: WaitingAppend) -> tuple[Record, ...]:
        """Write an append in the task of its caller."""
        name, self._alone = waiting.request.thread_id, waiting.done
        self._busy.add(name)
        try:
            await self._write([waiting])
        except BaseException as exc:
            self.forget(name)  # the cached state includes an admission that may not be written
            if isinstance(exc, asyncio.CancelledError):
                self._waiting.appendleft(waiting)  # whether it was written is unknown: a writer settles that
            else:
                _fail(waiting, exc)
            raise
        finally:
            self._busy.discard(name)
            if self._waiting:
                self._start_writer()
        return waiting.done.result()

    async def close(self) -> None:
        """Write the waiting appends, and refuse later ones."""
        self._is_closed = True
        while running := [write for write in (*self._writers, self._alone) if write is not None and not write.done()]:
            await asyncio.wait(running)

    def remember(self, thread: Thread) -> None:
        """Take over the row of a thread that a claim or release has written."""
        cached = self._threads.get(thread.state.thread_id)
        if cached is not None and cached.state.seq == thread.state.seq and cached.state.hash == thread.state.hash:
            cached.thread = thread
            cached.state = thread.state
        # A row that is older than the appends written since is harmless: the next statement does not match, and the careful
        # path reads the thread again.
        elif thread.open_calls or thread.base is not None:
            self.forget(thread.state.thread_id)
        else:
            self._threads[thread.state.thread_id] = CachedThread(thread, ())

    def owner_of(self, thread_id: str) -> str:
        """Return the addressee of a hint about a thread to which this process has just appended."""
        cached = self._threads.get(thread_id)
        owner = None if cached is None else cached.state.owner
        return EVERYBODY if cached is None else ANYBODY if owner is None else str(owner)

    def forget(self, thread_id: str) -> None:
        """Forget a thread: the next append reads its row."""
        self._threads.pop(thread_id, None)

    def forget_all(self) -> None:
        """Forget all threads."""
        self._threads.clear()

    # ------------------------------------------------------------ groups

    def _start_writer(self) -> None:
        if self._starting is None and self._working < _MOST_GROUPS:
            self._working += 1
            writer = self._starting = asyncio.create_task(self._work())
            self._writers.add(writer)
            writer.add_done_callback(self._writer_ended)

    def _writer_ended(self, writer: asyncio.Task[None]) -> None:
        self._writers.discard(writer)
        if self._starting is writer:  # it was cancelled before it started
            self._starting = None
            self._working -= 1

    async def _work(self) -> None:
        # Appends that arrive while groups are written form the next group: that is all of group commit.
        self._starting = None
        try:
            while group := self._next_group():
                await self._write_group(group)
                self._is_quiet = len(group) == 1 and not self._waiting
        finally:
            self._working -= 1

    async def _write_group(self, group: Sequence[WaitingAppend]) -> None:
        names = {waiting.request.thread_id for waiting in group}
        # Before a second writer starts: it must not take appends to these threads, which would then be written out of order.
        self._busy |= names
        if self._waiting:
            self._start_writer()
        try:
            await self._write(group)
        except BaseException as exc:
            self._threads.clear()  # the cached states include admissions that may not be written
            for waiting in group:
                _fail(waiting, exc)
            if not isinstance(exc, Exception):
                raise
        finally:
            self._busy -= names

    def _next_group(self) -> list[WaitingAppend]:
        """Take the next appends to threads that are in no other group."""
        queue, busy = self._waiting, self._busy
        # A single append that is being written leaves the server with as little work as none.
        is_divided = len(queue) >= _FEWEST_DIVIDED and len(busy) <= 1
        most = min((len(queue) + 1) // 2 if is_divided else len(queue), _MOST_APPENDS)
        group: list[WaitingAppend] = []
        passed: list[WaitingAppend] = []
        weight = 0
        while queue and len(group) < most and len(passed) < _MOST_LOOKED_AT and weight < _MOST_BYTES:
            waiting = queue.popleft()
            if waiting.request.thread_id in busy:
                passed.append(waiting)
                continue
            group.append(waiting)
            weight += waiting.request.weight
        # In front again, in their order: appends to one thread stay in order.
        self._waiting.extendleft(reversed(passed))
        return group

    async def _write(self, group: Sequence[WaitingAppend]) -> None:
        quick, careful = self._prepare(group)
        if quick:
            # The missed appends first: appends of the careful path to the same threads were queued after them.
            careful = await self._write_quickly(quick) + careful
        if careful:
            await self._write_carefully(careful)
        if len(self._threads) > _MOST_REMEMBERED:
            self._threads.clear()

    def _prepare(self, group: Sequence[WaitingAppend]) -> tuple[list[_Prepared], list[WaitingAppend]]:
        """Admit the appends to cached threads; return them, and the appends for the careful path."""
        quick: list[_Prepared] = []
        careful: list[WaitingAppend] = []
        delayed: set[str] = set()
        """Threads with an append on the careful path: later appends must follow it."""
        for waiting in group:
            name = waiting.request.thread_id
            prepared = None if name in delayed else self._admitted(waiting)
            if prepared is None:
                delayed.add(name)
                careful.append(waiting)
            else:
                quick.append(prepared)
        return quick, careful

    def _admitted(self, waiting: WaitingAppend) -> _Prepared | None:
        cached = self._threads.get(waiting.request.thread_id)
        if cached is None or cached.thread.base is not None or waiting.request.allow_foreign or waiting.request.is_outside:
            return None
        if not cached.is_keyed and self._pool.keyring.master is not None:
            return None  # whether the thread is encrypted is looked up first
        try:
            request = waiting.request.for_thread(cached.state.is_redacted)
            admission = admit(cached.state, cached.open_calls, request, cached, cached.cipher)
        except LedgerError:
            return None  # the cached state may be out of date: only the careful path refuses
        if not admission.is_new or request.is_empty or any(split(row.record.stored)[1] for row in admission.rows):
            return None
        # Before the write, so that the next append of this group to the thread is admitted after this one. If the statement
        # does not write the rows, the thread is forgotten.
        cached.take_over(admission)
        return waiting, PreparedAppend(cached, request, admission)

    async def _write_quickly(self, prepared: Sequence[_Prepared]) -> list[WaitingAppend]:
        """Write appends in one statement, and return those whose threads did not match the cached state."""
        sql, values = statement_of(self._pool.tenant, self._pool.keyring, [append for _, append in prepared])
        try:
            written: set[int] = {row["key"] for row in await self._pool.fetch(sql, *values)}
        except LedgerError as exc:
            if isinstance(exc.__cause__, (asyncpg.LockNotAvailableError, TimeoutError)):
                # The careful path would wait as long again; if the append was written, the caller's next attempt finds it.
                raise
            # A repeated id, a broken connection, or a deadlock: whether anything was written is unknown.
            written = set()
        missed: list[WaitingAppend] = []
        for waiting, (cached, request, admission) in prepared:
            if cached.thread.key in written:
                cached.thread, cached.is_keyed = cached.row, True
                _succeed(waiting, admission.records)
            else:
                self.forget(request.thread_id)
                missed.append(waiting)
        if written:
            self._committed()
        return missed

    async def _write_carefully(self, group: Sequence[WaitingAppend]) -> None:
        async def work(session: Session) -> tuple[CarefulAppends, list[tuple[Record, ...] | LedgerError]]:
            appends = CarefulAppends()
            return appends, await answered(session, appends.write([waiting.request for waiting in group]))

        appends, outcomes = await self._pool.change(work)
        self._threads |= appends.threads
        self._committed()
        for waiting, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, tuple):
                _succeed(waiting, outcome)
            else:
                _fail(waiting, outcome)


def _succeed(waiting: WaitingAppend, records: tuple[Record, ...]) -> None:
    if not waiting.done.done():
        waiting.done.set_result(records)


def _fail(waiting: WaitingAppend, exc: BaseException) -> None:
    if not waiting.done.done():
        waiting.done.set_exception(exc)
        waiting.done.exception()  # a cancelled caller does not read it
