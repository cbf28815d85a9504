"""Appends: admitted in Python, written together, with as few round trips as possible.

**The quick way.** The appends that wait in a process are taken together. `ledger._admission` decides on each from the state of
its thread that this process remembers. One statement then does everything else: it locks all threads, in the order of their
keys; compares the sequence number, the hash and the epoch of each with what was remembered; and writes the rows of those that
match. A thread that another process has changed does not match, and nothing of it is written. The statement is its own
transaction, so an append of an owner costs one round trip and one commit.

**Two groups at once.** While the server writes one group, this process admits and encodes the next, for other threads, and
sends it over a second connection. The appends to one thread stay in order: a group takes none of a thread that is in the
other group. Many appends that wait together are divided, so that both the server and this process have work.

**The careful way.** It is a transaction that locks the threads, reads their rows, and looks up the ids and invocations that
the admission may ask for. These appends take it: those to a thread that is new or unknown here; those that did not match;
those that would be refused otherwise; imported histories, and appends to branches; and all later appends to the same thread,
so that the order stays. A repeated message is rare, so the quick way looks up no ids: the unique index of ids refuses the
statement, and the careful way is taken.

**Order.** The locks are taken before anything is written, and kept until the end of the transaction. So of two transactions
that write one thread, the one with the smaller id commits first: transaction ids follow the order of every thread. Row locks
alone would not do: a transaction gets its id at its first write, and may then wait for the lock of another row.

**A lost answer.** If the connection breaks, an append may have been committed. It is tried again the careful way, which finds
its messages by their ids.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import asyncpg

from antiphon.errors import LedgerError, LedgerUnavailableError
from antiphon.ledger._admission import Admission, admit
from antiphon.ledger._chain import Record, snapshot_hash
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._signals import ANYBODY, EVERYBODY
from antiphon.ledger._stored import Thread, split
from antiphon.ledger._vault import Vault
from antiphon.ledger.postgres._careful import CarefulAppends, KnownThread, lock_of, message_columns
from antiphon.ledger.postgres._connection import Pool, Session

_MOST_REMEMBERED = 10_000
"""Threads whose state is remembered."""
_MOST_APPENDS = 200
"""Appends that are written together. Each thread takes one of the server's locks, of which it has 6,400 by default."""
_MOST_BYTES = 8 * 1024 * 1024
_MOST_GROUPS = 2
"""Groups that are written at the same time."""
_FEWEST_DIVIDED = 64
"""Appends from which on what waits is divided into two groups."""
_MOST_LOOKED_AT = 1000
"""Waiting appends that are looked at for a group, if those of busy threads are passed over."""


class WaitingAppend(NamedTuple):
    """An append that waits, and the caller that waits for it."""

    request: AppendRequest
    done: asyncio.Future[tuple[Record, ...]]


class PreparedAppend(NamedTuple):
    """An admitted append: the state before, the admission, and what it may write."""

    waiting: WaitingAppend
    request: AppendRequest
    admission: Admission


class Appender:
    """Takes the appends of a process, and writes them in groups."""

    def __init__(self, pool: Pool, committed: Callable[[], None]) -> None:
        self._pool = pool
        self._committed = committed
        self._known: dict[str, KnownThread] = {}
        self._waiting: deque[WaitingAppend] = deque()
        self._writers: set[asyncio.Task[None]] = set()
        self._is_starting = False
        """Whether a writer was created that has not begun: what arrives until then is in its first group."""
        self._busy: set[str] = set()
        """The threads of the groups that are being written."""
        self._is_closed = False

    async def append(self, request: AppendRequest) -> tuple[Record, ...]:
        """Append, and return the records once they are committed. Cancelling the caller does not withdraw the append.

        It cancels only the future that the caller waits for.
        """
        if self._is_closed:
            raise LedgerUnavailableError("the ledger is closed")
        done: asyncio.Future[tuple[Record, ...]] = asyncio.get_running_loop().create_future()
        self._waiting.append(WaitingAppend(request, done))
        self._start_writer()
        return await done

    async def close(self) -> None:
        """Write what waits, and refuse later appends."""
        self._is_closed = True
        while self._writers:
            await asyncio.wait(self._writers)

    def remember(self, thread: Thread) -> None:
        """Take over the row of a thread that a claim or release has written."""
        known = self._known.get(thread.state.thread_id)
        if known is not None and known.state.seq == thread.state.seq and known.state.hash == thread.state.hash:
            known.thread = thread
            known.state = thread.state
        elif thread.open_calls or thread.base is not None:
            self.forget(thread.state.thread_id)
        else:
            self._known[thread.state.thread_id] = KnownThread(thread, ())

    def owner_of(self, thread_id: str) -> str:
        """Return whom a hint about a thread concerns, to which this process has just appended."""
        known = self._known.get(thread_id)
        owner = None if known is None else known.state.owner
        return EVERYBODY if known is None else ANYBODY if owner is None else str(owner)

    def forget(self, thread_id: str) -> None:
        """Forget a thread: the next append reads its row."""
        self._known.pop(thread_id, None)

    def forget_all(self) -> None:
        """Forget all threads."""
        self._known.clear()

    # ------------------------------------------------------------ groups

    def _start_writer(self) -> None:
        if not self._is_starting and len(self._writers) < _MOST_GROUPS:
            self._is_starting = True
            writer = asyncio.create_task(self._work())
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)

    async def _work(self) -> None:
        # Appends that arrive while groups are written form the next one: this is the whole of group commit.
        self._is_starting = False
        while group := self._next_group():
            names = {waiting.request.thread_id for waiting in group}
            self._busy |= names
            if self._waiting:
                self._start_writer()
            try:
                await self._write(group)
            except BaseException as exc:
                self._known.clear()
                for waiting in group:
                    _fail(waiting, exc)
                if not isinstance(exc, Exception):
                    raise
            finally:
                self._busy -= names
            if len(self._known) > _MOST_REMEMBERED:
                self._known.clear()

    def _next_group(self) -> list[WaitingAppend]:
        """Take the next appends to threads that are in no other group."""
        count = len(self._waiting)
        most = (count + 1) // 2 if count >= _FEWEST_DIVIDED and not self._busy else count
        group: list[WaitingAppend] = []
        passed: list[WaitingAppend] = []
        weight = 0
        while self._waiting and len(group) < min(most, _MOST_APPENDS) and len(passed) < _MOST_LOOKED_AT:
            if weight >= _MOST_BYTES:
                break
            waiting = self._waiting.popleft()
            if waiting.request.thread_id in self._busy:
                passed.append(waiting)
                continue
            group.append(waiting)
            weight += waiting.request.weight
        self._waiting.extendleft(reversed(passed))
        return group

    async def _write(self, group: Sequence[WaitingAppend]) -> None:
        quick, careful = self._prepare(group)
        if quick:
            careful = await self._write_quickly(quick) + careful
        if careful:
            await self._write_carefully(careful)

    def _prepare(self, group: Sequence[WaitingAppend]) -> tuple[list[PreparedAppend], list[WaitingAppend]]:
        """Admit the appends to known threads; return them, and those that take the careful way."""
        quick: list[PreparedAppend] = []
        careful: list[WaitingAppend] = []
        held: set[str] = set()
        """Threads with an append on the careful way: later appends must follow it."""
        for waiting in group:
            name = waiting.request.thread_id
            prepared = None if name in held else self._admitted(waiting)
            if prepared is None:
                held.add(name)
                careful.append(waiting)
            else:
                quick.append(prepared)
        return quick, careful

    def _admitted(self, waiting: WaitingAppend) -> PreparedAppend | None:
        known = self._known.get(waiting.request.thread_id)
        if known is None or known.thread.base is not None or waiting.request.allow_foreign or waiting.request.is_outside:
            return None
        if not known.is_keyed and self._pool.vault.master is not None:
            return None  # whether the thread is encrypted is looked up first
        try:
            request = waiting.request.for_thread(known.state.is_redacted)
            admission = admit(known.state, known.open_calls, request, known, known.cipher)
        except LedgerError:
            return None  # what is remembered may be out of date: only the careful way refuses
        if not admission.is_new or request.is_empty or any(split(row.record.stored)[1] for row in admission.rows):
            return None
        known.take_over(admission)
        return PreparedAppend(waiting, request, admission)

    async def _write_quickly(self, prepared: Sequence[PreparedAppend]) -> list[WaitingAppend]:
        """Write appends in one statement, and return those whose threads were not what they were taken for."""
        threads = {each.request.thread_id: self._known[each.request.thread_id] for each in prepared}
        rows = _GroupRows(self._pool.tenant, self._pool.vault)
        for each in prepared:
            rows.add(self._known[each.request.thread_id], each)
        statement, values = rows.statement(threads.values())
        try:
            async with self._pool.session() as session:
                written: set[int] = {row["key"] for row in await session.fetch(statement, *values)}
        except LedgerError as exc:
            if isinstance(exc.__cause__, (asyncpg.LockNotAvailableError, TimeoutError)):
                raise  # the careful way would wait as long again; if it was written, the caller's next attempt finds it
            # A repeated id, a broken connection, or a deadlock: whether anything was written is unknown.
            written = set()
        missed: list[WaitingAppend] = []
        for each in prepared:
            known = threads[each.request.thread_id]
            if known.thread.key in written:
                known.thread = known.row
                _succeed(each.waiting, each.admission.records)
            else:
                self.forget(each.request.thread_id)
                missed.append(each.waiting)
        if written:
            self._committed()
        return missed

    async def _write_carefully(self, group: Sequence[WaitingAppend]) -> None:
        async def work(session: Session) -> tuple[CarefulAppends, list[tuple[Record, ...] | LedgerError]]:
            appends = CarefulAppends(session)
            return appends, await appends.write([waiting.request for waiting in group])

        appends, outcomes = await self._pool.change(work)
        self._known |= appends.known
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
        waiting.done.exception()  # a caller that was cancelled does not look at it


# ---------------------------------------------------------------- the quick way

_CHANGED = """
WITH locked AS MATERIALIZED (
    SELECT count(pg_advisory_xact_lock(lock)) AS locks FROM unnest($2::text::bigint[]) AS lock
), wanted AS MATERIALIZED (
    SELECT * FROM unnest(
        $3::text::bigint[], $4::text::bigint[], $5::bytea[], $6::text::bigint[], $7::text::bigint[], $8::bytea[],
        $9::text::bigint[], $10::text::bigint[], $11::text[], $12::text[], $13::text::bigint[], $14::text::bigint[],
        $15::text::bigint[], $16::text[], $17::text[], $18::text::bigint[], $19::text::bigint[], $20::text::bigint[],
        $21::text::boolean[]
    ) AS w (
        key, old_seq, old_hash, epoch, seq, hash,
        run, open_from, status, pattern, updated_at, input_tokens,
        output_tokens, cost, kind, due_at, posted, open_calls,
        is_encrypted
    ) LIMIT $32
), changed AS (
    UPDATE antiphon.threads AS t
    SET seq = w.seq, hash = w.hash, run = w.run, open_from = w.open_from, status = w.status, pattern = w.pattern,
        updated_at = w.updated_at, input_tokens = w.input_tokens, output_tokens = w.output_tokens, cost = w.cost,
        kind = w.kind, due_at = w.due_at, posted = w.posted, open_calls = w.open_calls
    FROM wanted AS w, locked
    WHERE locked.locks >= 0 AND t.tenant = $1 AND t.key = w.key
        AND t.seq = w.old_seq AND t.hash = w.old_hash AND t.epoch = w.epoch
        AND (w.is_encrypted OR NOT EXISTS (
            SELECT 1 FROM antiphon.thread_keys AS k
            WHERE k.tenant = $1 AND (k.thread = t.key OR k.thread = 0 AND w.old_seq = 0)
        ))
    RETURNING t.key
), written AS (
    INSERT INTO antiphon.messages (
        tenant, thread, seq, era, xid, ord, id_key, invocation_key, correlation_key, open_from, recorded_at, hash, media, body
    )
    SELECT $1, m.thread, m.seq, (SELECT era FROM antiphon.ledger), pg_current_xact_id()::text::bigint, m.ord, m.id_key,
        m.invocation_key, m.correlation_key, m.open_from, m.recorded_at, m.hash, NULL, m.body
    FROM unnest(
        $22::text::bigint[], $23::text::bigint[], $24::text::integer[], $25::text::bigint[], $26::text::bigint[],
        $27::text::bigint[], $28::text::bigint[], $29::text::bigint[], $30::bytea[], $31::bytea[]
    ) AS m (thread, seq, ord, id_key, invocation_key, correlation_key, open_from, recorded_at, hash, body)
    WHERE m.thread = ANY(ARRAY(SELECT key FROM changed))
)
"""
"""Writes threads and messages.

The `LIMIT` limits nothing: it makes the planner expect one row. So it finds each thread by the primary key. Else it would read
all threads of a tenant, as long as nobody has analysed the table. Whole numbers come as the text of an array, which takes
asyncpg a sixth of the time that it takes for a list.
"""

_OPENED = """, opened AS (
    INSERT INTO antiphon.open_calls (tenant, thread, seq, option_key, call, era, xid, ord)
    SELECT $1, o.thread, o.seq, o.option_key, o.call, (SELECT era FROM antiphon.ledger), pg_current_xact_id()::text::bigint,
        o.ord
    FROM unnest($a::text::bigint[], $b::text::bigint[], $c::text::bigint[], $d::bytea[], $e::text::integer[])
        AS o (thread, seq, option_key, call, ord)
    WHERE o.thread = ANY(ARRAY(SELECT key FROM changed))
)
"""
_CLOSED = """, closed AS (
    DELETE FROM antiphon.open_calls AS o USING unnest($a::text::bigint[], $b::text::bigint[]) AS c (thread, seq)
    WHERE c.thread = ANY(ARRAY(SELECT key FROM changed)) AND o.tenant = $1 AND o.thread = c.thread AND o.seq = c.seq
)
"""
_KEPT = """, kept AS (
    INSERT INTO antiphon.snapshots (tenant, thread, fold, seq, hash, state)
    SELECT $1, s.thread, s.fold, s.seq, s.hash, s.state
    FROM unnest($a::text::bigint[], $b::text[], $c::text::bigint[], $d::bytea[], $e::bytea[])
        AS s (thread, fold, seq, hash, state)
    WHERE s.thread = ANY(ARRAY(SELECT key FROM changed))
    ON CONFLICT (tenant, thread, fold) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, state = excluded.state
)
"""
_VALUES = 32
"""Values of `_CHANGED`."""


@lru_cache(maxsize=8)
def _statement(*parts: str) -> str:
    """Return the statement with some of the further parts: each of them costs the server time, even without a row."""
    sql, used = _CHANGED, _VALUES
    for part in parts:
        letters = [letter for letter in "abcde" if f"${letter}" in part]
        numbered = part
        for number, letter in enumerate(letters, used + 1):
            numbered = numbered.replace(f"${letter}", f"${number}")
        sql += numbered
        used += len(letters)
    return f"{sql}SELECT key FROM changed"  # noqa: S608 (parts of ours)


def _numbers(values: Iterable[int | None]) -> str:
    """Return whole numbers as the text of an array."""
    return f"{{{','.join(map(str, values))}}}".replace("None", "NULL")


class _GroupRows:
    """The rows of several appends, column by column, and the statement that writes them."""

    def __init__(self, tenant: str, vault: Vault) -> None:
        self._tenant = tenant
        self._vault = vault
        self._messages: list[tuple[Any, ...]] = []
        self._opened: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._closed: list[tuple[int, int]] = []
        self._snapshots: dict[tuple[int, str], tuple[Any, ...]] = {}

    def add(self, known: KnownThread, prepared: PreparedAppend) -> None:
        """Add the rows of an append."""
        key, admission, micros = known.thread.key, prepared.admission, prepared.request.micros
        before = len(self._messages) + 1 - admission.rows[0].record.seq if admission.rows else 0
        for row in admission.rows:
            record, message, digest, open_from = row
            seq = record.seq
            columns = message_columns(message)
            self._messages.append((key, seq, before + seq, *columns, open_from, micros, digest, record.stored))
        for call in admission.pairing.opened.values():
            self._opened[key, call.seq] = (key, call.seq, *known.dump_call(self._vault, call), before + call.seq)
        for seq in admission.pairing.closed:
            # A call that an earlier append of the same group has opened is not in the table yet.
            if self._opened.pop((key, seq), None) is None:
                self._closed.append((key, seq))
        if prepared.request.snapshot is not None:
            state = admission.state
            fold, value = known.kept(prepared.request.snapshot, state.seq)
            self._snapshots[key, fold] = (key, fold, state.seq, snapshot_hash(state.hash, fold, value), value)

    def statement(self, threads: Collection[KnownThread]) -> tuple[str, list[Any]]:
        """Return the statement and its values."""
        locks = sorted({lock_of(self._tenant, known.state.thread_id) for known in threads})
        values: list[Any] = [_numbers(locks), *_columns([_changed(known) for known in threads], _THREAD_COLUMNS)]
        values += [*_columns(self._messages, _MESSAGE_COLUMNS), len(threads)]
        parts: list[str] = []
        further: list[tuple[str, Collection[tuple[Any, ...]], str]] = [
            (_OPENED, self._opened.values(), "nnnbn"),
            (_CLOSED, self._closed, "nn"),
            (_KEPT, self._snapshots.values(), "nbnbb"),
        ]
        for part, rows, kinds in further:
            if rows:
                parts.append(part)
                values += _columns(rows, kinds)
        return _statement(*parts), values


_THREAD_COLUMNS, _MESSAGE_COLUMNS = "nnbnnbnnbbnnnbbnnnn", "nnnnnnnnbb"
"""The kinds of columns: whole numbers, or anything else."""


def _changed(known: KnownThread) -> tuple[Any, ...]:
    """Return the values of a thread's row."""
    before, after = known.thread.state, known.state
    return (
        *(known.thread.key, before.seq, before.hash, before.epoch),
        *(after.seq, after.hash, after.run, after.open_from, after.status, after.pattern, after.updated_at),
        *(after.input_tokens, after.output_tokens, after.cost, after.kind, after.due_at, after.posted),
        *(len(known.open_calls), known.cipher is not None),
    )


def _columns(rows: Collection[tuple[Any, ...]], kinds: str) -> list[Any]:
    """Return rows as the values of a statement: a value for each column."""
    if not rows:
        return ["{}" if kind == "n" else [] for kind in kinds]
    columns = zip(*rows, strict=True)
    return [_numbers(column) if kind == "n" else column for kind, column in zip(kinds, columns, strict=True)]
