"""The careful path of appends, which reads the database first, and the statements that write threads and messages.

Everything here runs in a transaction that has locked its threads (see `lock_threads`), so what it reads stays true until it
commits. `_appends` explains which appends use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import Any

from antiphon.errors import AppendRefusedError, LedgerError
from antiphon.ledger._admission import Admission, AdmittedRow, State, admit, new_state
from antiphon.ledger._encryption import Keyring, ThreadKey, WrappedKey
from antiphon.ledger._records import OpenCall, OpenCalls, Record, snapshot_hash
from antiphon.ledger._request import AppendRequest, not_executed
from antiphon.ledger._stored import Thread, split
from antiphon.ledger.postgres._connection import TRANSACTION, Session
from antiphon.ledger.postgres._keys import hold_master, ledger_key, store_key
from antiphon.ledger.postgres._rows import (
    THREAD,
    CommitPlace,
    dump_call,
    find_open_calls,
    key_of,
    lineage,
    records_by_key,
    records_with_ids,
    thread_of,
)
from antiphon.ledger.postgres._schema import ERA
from antiphon.messages import Message


class KnownThread:
    """A cached thread, with its state after all appends of this process. It answers the lookups of the admission."""

    __slots__ = ("blinding", "called", "cipher", "is_keyed", "lock", "open_calls", "state", "there", "thread")

    def __init__(self, thread: Thread, open_calls: Iterable[OpenCall]) -> None:
        self.thread = thread
        """Its row as last written or read."""
        self.state = thread.state
        self.open_calls = OpenCalls(open_calls)
        self.there: dict[str, list[Record]] = {}
        """Stored messages by id, as far as they were looked up."""
        self.called: set[tuple[bool, str]] = set()
        """Invocations that were called, as far as they were looked up."""
        self.is_keyed = False
        """Whether it is known whether the thread is encrypted."""
        self.lock: WrappedKey | None = None
        """The wrapped key of an encrypted thread."""
        self.cipher: ThreadKey | None = None
        """The key of an encrypted thread."""
        self.blinding: WrappedKey | None = None
        """The key of the tenant, which hides the names of options."""

    def with_id(self, id: str) -> Sequence[Record]:
        return self.there.get(id, ())

    def was_called(self, is_effect: bool, invocation_id: str) -> bool:
        return (is_effect, invocation_id) in self.called

    def dump_call(self, keyring: Keyring, call: OpenCall) -> tuple[int, bytes]:
        """Return an open call as stored: the key of its option in the index, and the call itself."""
        if self.cipher is None or self.blinding is None:
            return key_of(call.option_name), dump_call(call)
        return key_of(keyring.blind(self.blinding, call.option_name)), self.cipher.seal_call(call)

    def kept(self, snapshot: tuple[str, bytes], seq: int) -> tuple[str, bytes]:
        """Return a snapshot as it is stored."""
        fold, value = snapshot
        return fold, value if self.cipher is None else self.cipher.seal_snapshot(fold, seq, value)

    def take_over(self, admission: Admission) -> None:
        """Take over the state after an append."""
        self.state = admission.state
        self.open_calls.change(admission.pairing.changed)

    @property
    def is_sure(self) -> bool:
        """Whether no other process can have encrypted the thread: a thread with unencrypted messages stays without a key."""
        return self.cipher is not None or (self.is_keyed and self.thread.state.seq > 0)

    @property
    def row(self) -> Thread:
        """Its row as it is to be written."""
        key, _, _, base, base_seq, checksum, owner = self.thread
        return Thread(key, self.state, len(self.open_calls), base, base_seq, checksum, owner)


@lru_cache(maxsize=10_000)
def lock_of(tenant: str, thread_id: str) -> int:
    """Return the advisory lock of a thread. If two threads have the same number, they only wait for each other."""
    return int.from_bytes(blake2b(f"{tenant}\n{thread_id}".encode(), digest_size=8).digest(), "big", signed=True)


async def lock_threads(session: Session, thread_ids: Iterable[str]) -> None:
    """Lock threads until the end of the transaction, before anything is written.

    All transactions lock in the same order, so there is no deadlock.
    """
    locks = sorted({lock_of(session.tenant, thread_id) for thread_id in thread_ids})
    await session.connection.execute("SELECT pg_advisory_xact_lock(lock) FROM unnest($1::bigint[]) AS lock", locks)


_INDEXES = "\nindexes"
"""In the place of a thread, whose name it cannot be: the lock of the indexes of words and terms."""


async def hold_indexes(session: Session) -> None:
    """Keep the indexes until the end of the transaction: a deletion waits for it before it removes words.

    Otherwise the words of a message that is deleted meanwhile would stay in the index. Transactions that index do not wait for
    each other.
    """
    lock = lock_of(session.tenant, _INDEXES)
    await session.connection.execute("SELECT pg_advisory_xact_lock_shared($1)", lock)


async def lock_indexes(session: Session) -> None:
    """Wait for all that index messages, and keep others from beginning until the end of the transaction."""
    await lock_threads(session, [_INDEXES])


# ---------------------------------------------------------------- appends


class CarefulAppends:
    """Admits and writes appends, one after the other, in one transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._writer = RowWriter(session)
        self._blinding: WrappedKey | None = None
        self.known: dict[str, KnownThread] = {}
        """The threads that were appended to, in their state after the commit."""

    async def write(self, requests: Sequence[AppendRequest]) -> list[tuple[Record, ...] | LedgerError]:
        """Write appends, and return the records or the refusal of each."""
        names = {request.thread_id for request in requests}
        await lock_threads(self._session, names)
        # `FOR UPDATE`: a claim takes no advisory lock, and must not change the epoch before this transaction is committed.
        rows = await self._session.fetch(_THREADS_AND_KEYS, sorted(names))
        locks = {row["key"]: WrappedKey(row["master"], row["wrapped"]) for row in rows if row["master"] is not None}
        self._blinding = None if rows[0]["own_master"] is None else WrappedKey(rows[0]["own_master"], rows[0]["own_wrapped"])
        threads = [thread_of(row, _KEY_COLUMNS) for row in rows if row["key"] is not None]
        readable = [each for each in threads if each.key not in locks or self._can_open(locks[each.key])]
        calls = await find_open_calls(self._session, readable)
        for each in threads:
            known = self.known[each.state.thread_id] = KnownThread(each, calls.get(each.key, ()))
            known.lock = locks.get(each.key)
        return [await self._outcome(request) for request in requests]

    def _can_open(self, lock: WrappedKey) -> bool:
        """Whether the calls of a thread can be decrypted; if not, its appends are refused later."""
        master = self._session.keyring.master
        return lock.wrapped is not None and master is not None and lock.master == master.id

    async def _outcome(self, request: AppendRequest) -> tuple[Record, ...] | LedgerError:
        try:
            return await self.append(request)
        except LedgerError as exc:
            if exc.__cause__ is not None:
                raise  # PostgreSQL failed, so the transaction is over
            return exc

    async def append(self, request: AppendRequest) -> tuple[Record, ...]:
        """Admit an append, write its rows, and return its records.

        Raises:
            LedgerError: it is refused; nothing was written.
        """
        known = self.known.get(request.thread_id)
        if known is None:
            state = new_state(request.thread_id, request.micros, is_redacted=request.redaction.is_on)
            known = KnownThread(Thread(0, state, 0, None, 0), ())
        request = request.for_thread(known.state.is_redacted)
        is_new_key = await self._look_for_key(known)
        admission = await self._admitted(known, request)
        if admission.is_new and not request.is_empty:
            if not known.thread.key:
                known.thread = known.thread._replace(key=await insert_thread(self._session, known.thread))
                self.known[request.thread_id] = known
            if is_new_key and known.lock is not None:
                await store_key(self._session, known.thread.key, known.lock)
                known.blinding = await ledger_key(self._session)
            await self._write(known, admission, request)
        return admission.records

    async def _look_for_key(self, known: KnownThread) -> bool:
        """Look up the key of a thread, or make one for a new thread in a ledger with a master key; return whether it is new.

        Raises:
            EncryptionError: the key was forgotten, or the master key is missing or wrong.
            LedgerCorruptError: the key was altered.
        """
        if known.is_keyed:
            return False
        before, is_new = known.lock, not known.state.seq and known.thread.base is None
        known.lock, known.cipher = self._session.keyring.key_to_write(
            known.state.thread_id, before, self._blinding, is_new=is_new
        )
        is_new_key = known.lock is not None and before is None
        if is_new_key and known.lock is not None:
            await hold_master(self._session, known.lock)
        known.blinding, known.is_keyed = self._blinding, True
        return is_new_key

    async def _admitted(self, known: KnownThread, request: AppendRequest) -> Admission:
        if known.thread.key:
            ids = set(_ids_in(request))
            segments = await lineage(self._session, known.row)
            known.there = await records_with_ids(self._session, ids, segments)
        try:
            return admit(known.state, known.open_calls, request, known, known.cipher)
        except AppendRefusedError:
            # Whether an invocation was called before only decides which error is raised, so it is looked up only here.
            await self._look_up_calls(known, request)
            return admit(known.state, known.open_calls, request, known, known.cipher)

    async def _look_up_calls(self, known: KnownThread, request: AppendRequest) -> None:
        names = {entry.message.invocation_id for entry in request.entries if entry.message.kind == "option_result"} - {None}
        if not known.thread.key or not names:
            return
        segments = await lineage(self._session, known.row)
        wanted = [name for name in names if name is not None]
        found = await records_by_key(self._session, "invocation", wanted, segments)
        calls = (record.message for record in found if record.message.kind == "option_call")
        known.called = {(call.lane == "effect", call.invocation_id or "") for call in calls}

    async def _write(self, known: KnownThread, admission: Admission, request: AppendRequest) -> None:
        key = known.thread.key
        places = await self._writer.messages(key, admission.rows, request.micros)
        await self._writer.open_calls(known, admission.pairing.opened.values(), places)
        if admission.pairing.closed:
            sql = "DELETE FROM antiphon.open_calls WHERE tenant = $1 AND thread = $2 AND seq = ANY($3::bigint[])"
            await self._session.execute(sql, key, admission.pairing.closed)
        known.take_over(admission)
        known.thread = known.row
        await update_thread(self._session, known.thread)
        if request.snapshot is not None:
            fold, value = known.kept(request.snapshot, known.state.seq)
            digest = snapshot_hash(known.state.hash, fold, value)
            await self._session.execute(_SNAPSHOT, key, fold, known.state.seq, digest, value)


def _ids_in(request: AppendRequest) -> Iterable[str]:
    """Yield the ids that the admission may look up."""
    for entry in (*request.entries, *request.foreign):
        yield entry.message.id
        if entry.row is not None:
            yield entry.row.message.id
        if request.is_outside and entry.message.kind == "option_call":
            yield not_executed(entry.message, entry.body, request.thread_id).id


# ---------------------------------------------------------------- statements

_KEY_COLUMNS = 4
_THREADS_AND_KEYS = f"""
WITH found AS MATERIALIZED (
    {THREAD} WHERE t.tenant = $1 AND t.thread_id = ANY($2::text[]) ORDER BY t.key FOR UPDATE OF t
)
SELECT found.*, k.master, k.wrapped, own.master AS own_master, own.wrapped AS own_wrapped
FROM (VALUES (1)) AS one
LEFT JOIN found ON true
LEFT JOIN antiphon.thread_keys AS k ON k.tenant = $1 AND k.thread = found.key
LEFT JOIN antiphon.thread_keys AS own ON own.tenant = $1 AND own.thread = 0
"""  # noqa: S608 (columns of ours)
"""The rows of threads, locked, each with its wrapped key and that of the tenant; without a thread, one row with the latter."""

_NEW_THREAD = f"""
INSERT INTO antiphon.threads (
    tenant, thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens, output_tokens,
    cost, forked_from, forked_at, is_redacted, owner, kind, due_at, posted, unfit, open_calls, base, base_seq
) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, $25)
RETURNING key, {TRANSACTION}
"""  # noqa: S608 (text of ours)
_THREAD = f"""
UPDATE antiphon.threads SET seq = $3, hash = $4, epoch = $5, run = $6, open_from = $7, status = $8, pattern = $9,
    updated_at = $10, input_tokens = $11, output_tokens = $12, cost = $13, owner = $14, kind = $15, due_at = $16, posted = $17,
    unfit = $18, open_calls = $19
WHERE tenant = $1 AND key = $2
RETURNING {TRANSACTION}
"""  # noqa: S608 (text of ours)
_SNAPSHOT = """
INSERT INTO antiphon.snapshots (tenant, thread, fold, seq, hash, state) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, thread, fold) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, state = excluded.state
"""
_MESSAGES = """
INSERT INTO antiphon.messages (
    tenant, thread, seq, era, xid, ord, id_key, invocation_key, correlation_key, open_from, recorded_at, hash, media, body
)
SELECT $1, $2, m.seq, <era>, pg_current_xact_id()::text::bigint, m.ord, m.id_key, m.invocation_key,
    m.correlation_key, m.open_from, m.recorded_at, m.hash, m.media, m.body
FROM unnest(
    $3::bigint[], $4::integer[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bytea[],
    $11::integer[], $12::bytea[]
) AS m (seq, ord, id_key, invocation_key, correlation_key, open_from, recorded_at, hash, media, body)
RETURNING era, xid
""".replace("<era>", ERA)
_TAKEN = "SELECT id_key FROM antiphon.messages WHERE tenant = $1 AND thread = $2 AND id_key = ANY($3::bigint[])"
_OPENED = """
INSERT INTO antiphon.open_calls (tenant, thread, seq, option_key, call, era, xid, ord)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
"""


async def insert_thread(session: Session, thread: Thread) -> int:
    """Insert a thread, and return its key."""
    values = (*thread.state, thread.open_calls, thread.base, thread.base_seq)
    made = await session.fetchrow(_NEW_THREAD, *values)
    assert made is not None  # noqa: S101 (one row is inserted)
    key, session.transaction = made
    return int(key)


async def update_thread(session: Session, thread: Thread) -> None:
    """Write the row of a thread."""
    session.transaction = await session.fetchval(_THREAD, *_thread_values(thread))


async def update_threads(session: Session, threads: Iterable[Thread]) -> None:
    """Write the rows of some threads, which are sent together and cost one round trip."""
    await session.connection.executemany(_THREAD, [(session.tenant, *_thread_values(each)) for each in threads])


def _thread_values(thread: Thread) -> tuple[Any, ...]:
    state: State = thread.state
    return (
        thread.key,
        state.seq,
        state.hash,
        state.epoch,
        state.run,
        state.open_from,
        state.status,
        state.pattern,
        state.updated_at,
        state.input_tokens,
        state.output_tokens,
        state.cost,
        state.owner,
        state.kind,
        state.due_at,
        state.posted,
        state.unfit,
        thread.open_calls,
    )


def message_columns(message: Message) -> tuple[int, int | None, int | None]:
    """Return the index keys of a message: of its id, its invocation and its correlation."""
    payload, correlation = message.payload, message.correlation_id
    return (
        key_of(message.id),
        None if payload.kind == "parts" else key_of(payload.invocation_id),
        None if correlation is None else key_of(correlation),
    )


class RowWriter:
    """Writes messages and open calls, and numbers the messages of its transaction."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._written = 0

    async def messages(self, thread: int, rows: Sequence[AdmittedRow], micros: int | Sequence[int]) -> dict[int, CommitPlace]:
        """Write messages of a thread with their media, and return the place of each."""
        if not rows:
            return {}
        times = [micros] * len(rows) if isinstance(micros, int) else micros
        keys = await self._free_keys(thread, rows)
        columns: list[tuple[Any, ...]] = []
        for row, id_key, time in zip(rows, keys, times, strict=True):
            self._written += 1
            rest, holes = split(row.record.stored)
            _, *names = message_columns(row.message)
            columns.append(
                (row.record.seq, self._written, id_key, *names, row.open_from, time, row.hash, len(holes) or None, rest)
            )
            for place, text in holes:
                await self._keep_medium(thread, row.record.seq, place, text)
        made = await self._session.fetchrow(_MESSAGES, thread, *map(list, zip(*columns, strict=True)))
        assert made is not None  # noqa: S101 (as many rows as were given)
        return {column[0]: CommitPlace(made["era"], made["xid"], column[1]) for column in columns}

    async def _free_keys(self, thread: int, rows: Sequence[AdmittedRow]) -> list[int]:
        """Return for each message the first key of its id that no other message of the thread has."""
        ids = [row.message.id for row in rows]
        keys, salt, left = [key_of(name) for name in ids], 0, list(range(len(ids)))
        used: set[int] = set()
        while left:
            wanted = [keys[index] for index in left]
            taken = {row["id_key"] for row in await self._session.fetch(_TAKEN, thread, wanted)} | used
            again: list[int] = []
            for index in left:
                if keys[index] in taken or keys[index] in used:
                    again.append(index)
                else:
                    used.add(keys[index])
            salt += 1
            left = again
            for index in left:
                keys[index] = key_of(ids[index], salt)
        return keys

    async def _keep_medium(self, thread: int, seq: int, place: int, text: bytes) -> None:
        digest = sha256(text).digest()
        sql = "INSERT INTO antiphon.media (tenant, hash, text) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
        kept = "SELECT 1 FROM antiphon.media WHERE tenant = $1 AND hash = $2 FOR SHARE"
        # A deletion of the last message that used the medium locks it too, and looks for uses under the lock (`_changes`).
        # If the deletion was first, the medium is gone after the wait, and is stored again.
        await self._session.execute(sql, digest, text)
        while not await self._session.fetchval(kept, digest):
            await self._session.execute(sql, digest, text)
        uses = "INSERT INTO antiphon.media_uses (tenant, thread, seq, place, hash) VALUES ($1, $2, $3, $4, $5)"
        await self._session.execute(uses, thread, seq, place, digest)

    async def open_calls(self, known: KnownThread, calls: Iterable[OpenCall], places: dict[int, CommitPlace]) -> None:
        """Write open calls; the place of each message must be known."""
        tenant, thread, keyring = self._session.tenant, known.thread.key, self._session.keyring
        rows = [(tenant, thread, call.seq, *known.dump_call(keyring, call), *places[call.seq]) for call in calls]
        if rows:
            await self._session.connection.executemany(_OPENED, rows)
