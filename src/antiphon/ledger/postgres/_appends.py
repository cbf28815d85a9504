"""Appends: admitted in Python, written in groups, with as few round trips as possible.

**Fast path.** The waiting appends of a process form a group. `ledger._admission` decides on each append from the cached state
of its thread. One statement then does everything else: it locks all threads, in the order of their keys; compares the sequence
number, the hash and the epoch of each with the cached values; and writes the rows of the threads that match. A thread that
another process has changed does not match, and nothing of it is written. The statement is its own transaction, so an append of
an owner costs one round trip and one commit. A group of one message, as a single writer makes it, uses a statement without
arrays: `_ONE` does the same as `_GROUP`, with less work for the server.

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
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import asyncpg
import orjson

from antiphon.errors import LedgerError, LedgerUnavailableError
from antiphon.ledger._admission import Admission, admit
from antiphon.ledger._encryption import Keyring
from antiphon.ledger._records import Record
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._signals import ANYBODY, EVERYBODY
from antiphon.ledger._stored import Thread, split
from antiphon.ledger.postgres._connection import Pool, Session
from antiphon.ledger.postgres._driver import answered, lock_of
from antiphon.ledger.postgres._schema import ERA
from antiphon.ledger.sql.appends import CarefulAppends, KnownThread, message_keys

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


class PreparedAppend(NamedTuple):
    """An admitted append: its caller, its thread, the request in the form for the thread, and the admission."""

    waiting: WaitingAppend
    known: KnownThread
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
        while running := [each for each in (*self._writers, self._alone) if each is not None and not each.done()]:
            await asyncio.wait(running)

    def remember(self, thread: Thread) -> None:
        """Take over the row of a thread that a claim or release has written."""
        known = self._known.get(thread.state.thread_id)
        if known is not None and known.state.seq == thread.state.seq and known.state.hash == thread.state.hash:
            known.thread = thread
            known.state = thread.state
        # A row that is older than the appends written since is harmless: the next statement does not match, and the careful
        # path reads the thread again.
        elif thread.open_calls or thread.base is not None:
            self.forget(thread.state.thread_id)
        else:
            self._known[thread.state.thread_id] = KnownThread(thread, ())

    def owner_of(self, thread_id: str) -> str:
        """Return the addressee of a hint about a thread to which this process has just appended."""
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
            self._known.clear()  # the cached states include admissions that may not be written
            for waiting in group:
                _fail(waiting, exc)
            if not isinstance(exc, Exception):
                raise
        finally:
            self._busy -= names

    def _next_group(self) -> list[WaitingAppend]:
        """Take the next appends to threads that are in no other group."""
        left, busy = self._waiting, self._busy
        # A single append that is being written leaves the server with as little work as none.
        is_divided = len(left) >= _FEWEST_DIVIDED and len(busy) <= 1
        most = min((len(left) + 1) // 2 if is_divided else len(left), _MOST_APPENDS)
        group: list[WaitingAppend] = []
        passed: list[WaitingAppend] = []
        weight = 0
        while left and len(group) < most and len(passed) < _MOST_LOOKED_AT and weight < _MOST_BYTES:
            waiting = left.popleft()
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
        if len(self._known) > _MOST_REMEMBERED:
            self._known.clear()

    def _prepare(self, group: Sequence[WaitingAppend]) -> tuple[list[PreparedAppend], list[WaitingAppend]]:
        """Admit the appends to cached threads; return them, and the appends for the careful path."""
        quick: list[PreparedAppend] = []
        careful: list[WaitingAppend] = []
        held: set[str] = set()
        """Threads with an append on the careful path: later appends must follow it."""
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
        if not known.is_keyed and self._pool.keyring.master is not None:
            return None  # whether the thread is encrypted is looked up first
        try:
            request = waiting.request.for_thread(known.state.is_redacted)
            admission = admit(known.state, known.open_calls, request, known, known.cipher)
        except LedgerError:
            return None  # the cached state may be out of date: only the careful path refuses
        if not admission.is_new or request.is_empty or any(split(row.record.stored)[1] for row in admission.rows):
            return None
        # Before the write, so that the next append of this group to the thread is admitted after this one. If the statement
        # does not write the rows, the thread is forgotten.
        known.take_over(admission)
        return PreparedAppend(waiting, known, request, admission)

    async def _write_quickly(self, prepared: Sequence[PreparedAppend]) -> list[WaitingAppend]:
        """Write appends in one statement, and return those whose threads did not match the cached state."""
        is_one = len(prepared) == 1 and len(prepared[0].admission.rows) == 1
        sql, values = (_one if is_one else _group)(self._pool.tenant, self._pool.keyring, prepared)
        try:
            written: set[int] = {row["key"] for row in await self._pool.fetch(sql, *values)}
        except LedgerError as exc:
            if isinstance(exc.__cause__, (asyncpg.LockNotAvailableError, TimeoutError)):
                # The careful path would wait as long again; if the append was written, the caller's next attempt finds it.
                raise
            # A repeated id, a broken connection, or a deadlock: whether anything was written is unknown.
            written = set()
        missed: list[WaitingAppend] = []
        for each in prepared:
            if each.known.thread.key in written:
                each.known.thread, each.known.is_keyed = each.known.row, True
                _succeed(each.waiting, each.admission.records)
            else:
                self.forget(each.request.thread_id)
                missed.append(each.waiting)
        if written:
            self._committed()
        return missed

    async def _write_carefully(self, group: Sequence[WaitingAppend]) -> None:
        async def work(session: Session) -> tuple[CarefulAppends, list[tuple[Record, ...] | LedgerError]]:
            appends = CarefulAppends()
            return appends, await answered(session, appends.write([waiting.request for waiting in group]))

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
        waiting.done.exception()  # a cancelled caller does not read it


# ---------------------------------------------------------------- the fast path

_CHANGED = """
WITH locked AS MATERIALIZED (
    SELECT count(pg_advisory_xact_lock(lock)) AS locks FROM unnest($2::text::bigint[]) AS lock
), wanted AS MATERIALIZED (
    SELECT w.*, substring($5::bytea FROM 32 * n::integer - 31 FOR 32) AS old_hash,
        substring($8::bytea FROM 32 * n::integer - 31 FOR 32) AS hash
    FROM unnest(
        $3::text::bigint[], $4::text::bigint[], $6::text::bigint[], $7::text::bigint[], $9::text::bigint[],
        $10::text::bigint[], $11::text::text[], $12::text::text[], $13::text::bigint[], $14::text::bigint[],
        $15::text::bigint[], $16::text::text[], $17::text::text[], $18::text::bigint[], $19::text::bigint[],
        $20::text::bigint[], $21::text::boolean[]
    ) WITH ORDINALITY AS w (
        key, old_seq, epoch, seq, run,
        open_from, status, pattern, updated_at, input_tokens,
        output_tokens, cost, kind, due_at, posted,
        open_calls, is_sure, n
    )
    WHERE w.is_sure OR NOT EXISTS (
        SELECT 1 FROM antiphon.thread_keys AS k
        WHERE k.tenant = $1 AND k.thread = ANY(ARRAY[w.key, CASE WHEN w.old_seq = 0 THEN 0 ELSE w.key END])
    )
    LIMIT $33
), changed AS (
    UPDATE antiphon.threads AS t
    SET seq = w.seq, hash = w.hash, run = w.run, open_from = w.open_from, status = w.status, pattern = w.pattern,
        updated_at = w.updated_at, input_tokens = w.input_tokens, output_tokens = w.output_tokens, cost = w.cost,
        kind = w.kind, due_at = w.due_at, posted = w.posted, open_calls = w.open_calls
    FROM wanted AS w, locked
    WHERE locked.locks >= 0 AND t.tenant = $1 AND t.key = w.key
        AND t.seq = w.old_seq AND t.hash = w.old_hash AND t.epoch = w.epoch
    RETURNING t.key
), written AS (
    INSERT INTO antiphon.messages (
        tenant, thread, seq, era, xid, ord, id_key, invocation_key, correlation_key, open_from, recorded_at, hash, media, body
    )
    SELECT $1, m.thread, m.seq, <era>, pg_current_xact_id()::text::bigint, m.ord, m.id_key,
        m.invocation_key, m.correlation_key, m.open_from, m.recorded_at,
        substring($31::bytea FROM 32 * m.ord::integer - 31 FOR 32), NULL, substring($32::bytea FROM m.place FOR m.length)
    FROM unnest(
        $22::text::bigint[], $23::text::bigint[], $24::text::bigint[], $25::text::bigint[], $26::text::bigint[],
        $27::text::bigint[], $28::text::bigint[], $29::text::integer[], $30::text::integer[]
    ) WITH ORDINALITY AS m (thread, seq, id_key, invocation_key, correlation_key, open_from, recorded_at, place, length, ord)
    WHERE m.thread = ANY(ARRAY(SELECT key FROM changed))
)
""".replace("<era>", ERA)
"""Writes threads and messages.

The `LIMIT` limits nothing: it makes the planner expect one row. So it finds each thread by the primary key. Otherwise it would
read the whole table, if the plan was made while the table was small (see `_schema` on statistics). Columns are passed as the
text of an array, which takes asyncpg a sixth of the time of a list; all links, and all bodies, are concatenated to one value.
"""

_OPENED = """, opened AS (
    INSERT INTO antiphon.open_calls (tenant, thread, seq, option_key, call, era, xid, ord)
    SELECT $1, o.thread, o.seq, o.option_key, o.call, <era>, pg_current_xact_id()::text::bigint,
        o.ord
    FROM unnest($a::text::bigint[], $b::text::bigint[], $c::text::bigint[], $d::bytea[], $e::text::integer[])
        AS o (thread, seq, option_key, call, ord)
    WHERE o.thread = ANY(ARRAY(SELECT key FROM changed))
)
""".replace("<era>", ERA)
_CLOSED = """, closed AS (
    DELETE FROM antiphon.open_calls AS o
    USING (SELECT * FROM unnest($a::text::bigint[], $b::text::bigint[]) AS u (thread, seq) LIMIT $33) AS c
    WHERE c.thread = ANY(ARRAY(SELECT key FROM changed)) AND o.tenant = $1 AND o.thread = c.thread AND o.seq = c.seq
)
"""
_KEPT = """, kept AS (
    INSERT INTO antiphon.snapshots (tenant, thread, fold, seq, hash, state)
    SELECT $1, s.thread, s.fold, s.seq, s.hash, s.state
    FROM unnest($a::text::bigint[], $b::text::text[], $c::text::bigint[], $d::bytea[], $e::bytea[])
        AS s (thread, fold, seq, hash, state)
    WHERE s.thread = ANY(ARRAY(SELECT key FROM changed))
    ON CONFLICT (tenant, thread, fold) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, state = excluded.state
)
"""
_NO_LIMIT = 2**31
"""More than the number of rows of a group."""

# The lock is taken before the row is changed, because the update joins the locked row. The snapshot of the statement is older
# than the lock, so PostgreSQL compares the row again if another transaction has changed it meanwhile.
_ONE_CHANGED = """
WITH changed AS (
    UPDATE antiphon.threads AS t
    SET seq = $7, hash = $8, run = $9, open_from = $10, status = $11, pattern = $12, updated_at = $13, input_tokens = $14,
        output_tokens = $15, cost = $16, kind = $17, due_at = $18, posted = $19, open_calls = $20
    FROM (SELECT pg_advisory_xact_lock($2) IS NOT NULL AS is_taken OFFSET 0) AS lock
    WHERE lock.is_taken AND t.tenant = $1 AND t.key = $3 AND t.seq = $4 AND t.hash = $5 AND t.epoch = $6
    RETURNING <era> AS era, pg_current_xact_id()::text::bigint AS xid
)
""".replace("<era>", ERA)
_ONE_UNENCRYPTED = _ONE_CHANGED.replace(
    "    RETURNING",
    """\
        AND NOT EXISTS (
            SELECT 1 FROM antiphon.thread_keys AS k
            WHERE k.tenant = $1 AND k.thread = ANY(ARRAY[$3, CASE WHEN $4 = 0 THEN 0 ELSE $3 END])
        )
    RETURNING""",
)
"""The same for a thread that another process may have encrypted. The further condition takes a tenth of the server's time."""
_ONE_WRITTEN = """
INSERT INTO antiphon.messages (
    tenant, thread, seq, era, xid, ord, id_key, invocation_key, correlation_key, open_from, recorded_at, hash, media, body
)
SELECT $1, $3, $7, era, xid, 1, $21::bigint, $22::bigint, $23::bigint, $10, $13, $8, NULL, $24::bytea
FROM changed
RETURNING thread AS key
"""
"""Writes one message, as most appends do: the same as `_CHANGED`, with a sixth less of the server's time.

The thread's row has the place, link and time of its last message, so these are passed once.
"""
_ONE_OPENED = """, opened AS (
    INSERT INTO antiphon.open_calls (tenant, thread, seq, option_key, call, era, xid, ord)
    SELECT $1, $a::bigint, $b::bigint, $c::bigint, $d::bytea, era, xid, $e::integer FROM changed
)
"""
_ONE_CLOSED = """, closed AS (
    DELETE FROM antiphon.open_calls AS o USING changed WHERE o.tenant = $1 AND o.thread = $a AND o.seq = $b
)
"""
_ONE_KEPT = """, kept AS (
    INSERT INTO antiphon.snapshots (tenant, thread, fold, seq, hash, state)
    SELECT $1, $a::bigint, $b::text, $c::bigint, $d::bytea, $e::bytea FROM changed
    ON CONFLICT (tenant, thread, fold) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, state = excluded.state
)
"""


class _Statement(NamedTuple):
    """A statement assembled from parts: each part costs the server time, even without a row."""

    first: str
    last: str
    values: int
    """The number of values of the first and the last part."""
    opened: str
    closed: str
    kept: str

    def sql(self, *parts: str) -> str:
        """Return the statement with some of the further parts."""
        return _statement(self.first, self.last, self.values, *parts)


@lru_cache(maxsize=32)
def _statement(first: str, last: str, used: int, *parts: str) -> str:
    sql = first
    for part in parts:
        letters = [letter for letter in "abcde" if f"${letter}" in part]
        numbered = part
        for number, letter in enumerate(letters, used + 1):
            numbered = numbered.replace(f"${letter}", f"${number}")
        sql += numbered
        used += len(letters)
    return sql + last


_GROUP = _Statement(_CHANGED, "SELECT key FROM changed", 33, _OPENED, _CLOSED, _KEPT)
_ONE = _Statement(_ONE_CHANGED, _ONE_WRITTEN, 24, _ONE_OPENED, _ONE_CLOSED, _ONE_KEPT)
_ONE_UNSURE = _ONE._replace(first=_ONE_UNENCRYPTED)


def _numbers(values: Sequence[int | None]) -> str:
    """Return whole numbers as the text of an array. PostgreSQL reads `null`, `true` and `false` as JSON spells them."""
    return f"{{{orjson.dumps(values)[1:-1].decode()}}}"


def _texts(values: Iterable[str | None]) -> str:
    """Return texts as the text of an array."""
    return f"{{{','.join(['NULL' if value is None else _quoted(value) for value in values])}}}"


@lru_cache(maxsize=1024)
def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _one(tenant: str, keyring: Keyring, prepared: Sequence[PreparedAppend]) -> tuple[str, list[Any]]:
    """Return the statement of one message and its values."""
    ((_, known, request, admission),) = prepared
    record, message, _, _ = admission.rows[0]
    values: list[Any] = [
        tenant,
        lock_of(tenant, request.thread_id),
        *_changed(known),
        *message_keys(message),
        record.stored,
    ]
    parts: list[str] = []
    key, pairing = known.thread.key, admission.pairing
    for call in pairing.opened.values():
        parts.append(_ONE.opened)
        values += (key, call.seq, *known.dump_call(keyring, call), 1)
    for seq in pairing.closed:
        parts.append(_ONE.closed)
        values += (key, seq)
    if request.snapshot is not None:
        parts.append(_ONE.kept)
        values += known.snapshot_row(request.snapshot, admission.state.seq, admission.state.hash)
    return (_ONE if known.is_sure else _ONE_UNSURE).sql(*parts), values


def _group(tenant: str, keyring: Keyring, prepared: Sequence[PreparedAppend]) -> tuple[str, list[Any]]:
    """Return the statement of several appends and its values."""
    rows = _GroupRows(keyring)
    for each in prepared:
        rows.add(each)
    threads = {each.request.thread_id: each.known for each in prepared}
    locks = sorted({lock_of(tenant, thread_id) for thread_id in threads})
    values: list[Any] = [
        tenant,
        _numbers(locks),
        *_columns([(*_changed(known), known.is_sure) for known in threads.values()], _THREAD_COLUMNS),
    ]
    parts, further = rows.parts()
    return _GROUP.sql(*parts), [*values, *rows.messages(), _NO_LIMIT, *further]


class _GroupRows:
    """The rows of several appends, column by column."""

    def __init__(self, keyring: Keyring) -> None:
        self._keyring = keyring
        self._messages: list[tuple[Any, ...]] = []
        self._opened: dict[tuple[int, int], tuple[Any, ...]] = {}
        self._closed: list[tuple[int, int]] = []
        self._snapshots: dict[tuple[int, str], tuple[Any, ...]] = {}

    def add(self, prepared: PreparedAppend) -> None:
        """Add the rows of an append."""
        _, known, request, admission = prepared
        key, micros = known.thread.key, request.micros
        before = len(self._messages) + 1 - admission.rows[0].record.seq if admission.rows else 0
        for row in admission.rows:
            record, message, digest, open_from = row
            seq = record.seq
            columns = message_keys(message)
            self._messages.append((key, seq, *columns, open_from, micros, digest, record.stored))
        for call in admission.pairing.opened.values():
            self._opened[key, call.seq] = (key, call.seq, *known.dump_call(self._keyring, call), before + call.seq)
        for seq in admission.pairing.closed:
            # A call that an earlier append of the same group has opened is not in the table yet.
            if self._opened.pop((key, seq), None) is None:
                self._closed.append((key, seq))
        if request.snapshot is not None:
            state = admission.state
            self._snapshots[key, request.snapshot[0]] = known.snapshot_row(request.snapshot, state.seq, state.hash)

    def parts(self) -> tuple[list[str], list[Any]]:
        """Return the further parts of the statement, and their values."""
        parts: list[str] = []
        values: list[Any] = []
        for part, rows, kind in (
            (_GROUP.opened, self._opened.values(), "nnnbn"),
            (_GROUP.closed, self._closed, "nn"),
            (_GROUP.kept, self._snapshots.values(), "ntnbb"),
        ):
            if rows:
                parts.append(part)
                values += _columns(rows, kind)
        return parts, values

    def messages(self) -> list[Any]:
        """Return the values of the messages: the columns, all links concatenated, and all bodies concatenated."""
        if not self._messages:
            return [*["{}"] * 9, b"", b""]
        *columns, links, bodies = zip(*self._messages, strict=True)
        lengths = [len(body) for body in bodies]
        places = list(accumulate(lengths[:-1], initial=1))
        return [*map(_numbers, (*columns, places, lengths)), b"".join(links), b"".join(bodies)]


_THREAD_COLUMNS = "nnhnnhnnttnnnttnnnn"
"""The kinds of columns: whole numbers, texts, hashes, or anything else."""


def _changed(known: KnownThread) -> tuple[Any, ...]:
    """Return the values of a thread's row."""
    before, after = known.thread.state, known.state
    return (
        *(known.thread.key, before.seq, before.hash, before.epoch),
        *(after.seq, after.hash, after.run, after.open_from, after.status, after.pattern, after.updated_at),
        *(after.input_tokens, after.output_tokens, after.cost, after.kind, after.due_at, after.posted),
        len(known.open_calls),
    )


_VALUE: dict[str, Callable[[Any], Any]] = {"n": _numbers, "t": _texts, "h": b"".join, "b": list}
"""For each kind of column, the function that makes a value of a statement."""


def _columns(rows: Collection[tuple[Any, ...]], kinds: str) -> list[Any]:
    """Return rows as the values of a statement: a value for each column."""
    return [_VALUE[kind](column) for kind, column in zip(kinds, zip(*rows, strict=True), strict=True)]
