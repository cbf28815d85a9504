"""Appends that read the database first, and the rows that they write.

Both databases have a fast path of their own, which admits an append from a cached state and writes many appends together (see
`ledger.sqlite._appends` and `ledger.postgres._appends`). Everything that a fast path cannot decide comes here: an append to a
thread that is not known, a branch or an imported history, one that would be refused, and one whose ids may be stored already.

Everything here runs in a transaction that has locked its threads, so what it reads stays true until it commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256

from antiphon.errors import AppendRefusedError, LedgerError
from antiphon.ledger._admission import Admission, AdmittedRow, admit, new_state
from antiphon.ledger._encryption import Keyring, ThreadKey, WrappedKey
from antiphon.ledger._records import OpenCall, OpenCalls, Record, snapshot_hash
from antiphon.ledger._request import AppendRequest, not_executed
from antiphon.ledger._sql.keys import hold_master, ledger_key, store_key
from antiphon.ledger._sql.rows import (
    THREAD,
    CommitPlace,
    dump_call,
    find_open_calls,
    key_of,
    lineage,
    number_of,
    option_key,
    records_by_number,
    records_with_ids,
    thread_of,
)
from antiphon.ledger._sql.statements import (
    ChangeThreads,
    Lock,
    MessageRow,
    PutMessages,
    PutThread,
    Spelled,
    Verb,
    WriteMany,
    keyring,
    rows,
    value,
    write,
    write_one,
)
from antiphon.ledger._stored import Thread, split
from antiphon.messages import Message

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
"""The rows of threads, locked, each with its wrapped key and that of the ledger; without a thread, one row with the latter."""
PUT_SNAPSHOT = """
INSERT INTO antiphon.snapshots (tenant, thread, fold, seq, hash, state) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, thread, fold) DO UPDATE SET seq = excluded.seq, hash = excluded.hash, state = excluded.state
"""
_OPENED = Spelled(
    """
INSERT INTO antiphon.open_calls (tenant, thread, seq, option_key, call, era, xid, ord)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
""",
    "INSERT INTO open_calls (thread, seq, option_key, call, position) VALUES ($2, $3, $4, $5, $8)",
)
_CLOSED = "DELETE FROM antiphon.open_calls WHERE tenant = $1 AND thread = $2 AND seq = ANY($3::bigint[])"
_TAKEN = "SELECT id_key FROM antiphon.messages WHERE tenant = $1 AND thread = $2 AND id_key = ANY($3::bigint[])"


class CachedThread:
    """A cached thread, with its state after all appends of this process. It answers the lookups of the admission."""

    __slots__ = (
        "blinding",
        "cipher",
        "invocations",
        "is_keyed",
        "lock",
        "open_calls",
        "part",
        "records_by_id",
        "state",
        "thread",
    )

    def __init__(self, thread: Thread, open_calls: Iterable[OpenCall]) -> None:
        self.thread = thread
        """Its row as last written or read."""
        self.state = thread.state
        self.open_calls = OpenCalls(open_calls)
        self.records_by_id: dict[str, list[Record]] = {}
        """Stored messages by id, as far as they were looked up."""
        self.invocations: set[tuple[bool, str]] = set()
        """Invocations that were called, as far as they were looked up."""
        self.is_keyed = False
        """Whether it is known whether the thread is encrypted."""
        self.lock: WrappedKey | None = None
        """The wrapped key of an encrypted thread."""
        self.cipher: ThreadKey | None = None
        """The key of an encrypted thread."""
        self.blinding: WrappedKey | None = None
        """The key of the ledger, which hides the names of options."""
        self.part: int | None = None
        """In a file, the part of the row's checksum that most appends do not change; None if it must be computed."""

    def with_id(self, id: str) -> Sequence[Record]:
        return self.records_by_id.get(id, ())

    def was_called(self, is_effect: bool, invocation_id: str) -> bool:
        return (is_effect, invocation_id) in self.invocations

    def dump_call(self, keys: Keyring, call: OpenCall) -> tuple[int, bytes]:
        """Return an open call as stored: the key of its option in the index, and the call itself."""
        if self.cipher is None or self.blinding is None:
            return option_key(call.option_name), dump_call(call)
        return option_key(keys.blind(self.blinding, call.option_name)), self.cipher.seal_call(call)

    def snapshot_row(self, snapshot: tuple[str, bytes], seq: int, digest: bytes) -> tuple[int, str, int, bytes, bytes]:
        """Return the row of a snapshot after a message, whose link is given."""
        fold, state = snapshot
        stored = state if self.cipher is None else self.cipher.seal_snapshot(fold, seq, state)
        return self.thread.key, fold, seq, snapshot_hash(digest, fold, stored), stored

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
        return self.thread._replace(state=self.state, open_calls=len(self.open_calls))


def lock_threads(thread_ids: Iterable[str]) -> Verb[None]:
    """Lock threads until the end of the transaction, before anything is written."""
    yield Lock(thread_ids)


class CarefulAppends:
    """Admits and writes appends, one after the other, in one transaction."""

    def __init__(self) -> None:
        self._blinding: WrappedKey | None = None
        self.threads: dict[str, CachedThread] = {}
        """The threads that were appended to, in their state after the commit."""

    def write(self, requests: Sequence[AppendRequest]) -> Verb[list[tuple[Record, ...] | LedgerError]]:
        """Write appends, and return the records or the refusal of each."""
        names = {request.thread_id for request in requests}
        keys = yield from keyring()
        yield from lock_threads(names)
        # `FOR UPDATE`: a claim takes no advisory lock, and must not change the epoch before this transaction is committed.
        thread_rows = yield from rows(_THREADS_AND_KEYS, sorted(names))
        threads: list[Thread] = []
        locks: dict[int, WrappedKey] = {}
        for *columns, master, wrapped, own_master, own_wrapped in thread_rows:
            self._blinding = None if own_master is None else WrappedKey(own_master, own_wrapped)
            if columns[0] is not None:
                threads.append(thread_of(columns))
                if master is not None:
                    locks[columns[0]] = WrappedKey(master, wrapped)
        readable = [thread for thread in threads if thread.key not in locks or _can_open(keys, locks[thread.key])]
        calls = yield from find_open_calls(readable)
        for thread in threads:
            cached = self.threads[thread.state.thread_id] = CachedThread(thread, calls.get(thread.key, ()))
            cached.lock = locks.get(thread.key)
        outcomes: list[tuple[Record, ...] | LedgerError] = []
        for request in requests:
            try:
                outcomes.append((yield from self.append(request)))
            except LedgerError as exc:
                outcomes.append(exc)
        return outcomes

    def append(self, request: AppendRequest) -> Verb[tuple[Record, ...]]:
        """Admit an append, write its rows, and return its records.

        Raises:
            LedgerError: it is refused; nothing was written.
        """
        cached = self.threads.get(request.thread_id)
        if cached is None:
            state = new_state(request.thread_id, request.micros, is_redacted=request.redaction.is_on)
            cached = CachedThread(Thread(0, state, 0, None, 0), ())
        request = request.for_thread(cached.state.is_redacted)
        is_new_key = yield from self._look_for_key(cached)
        admission = yield from self._admitted(cached, request)
        if admission.is_new and not request.is_empty:
            if not cached.thread.key:
                key: int = yield PutThread(cached.thread)
                cached.thread = cached.thread._replace(key=key)
                self.threads[request.thread_id] = cached
            if is_new_key and cached.lock is not None:
                yield from store_key(cached.thread.key, cached.lock)
                cached.blinding = self._blinding = yield from ledger_key()
            yield from self._write(cached, admission, request)
        return admission.records

    def _look_for_key(self, cached: CachedThread) -> Verb[bool]:
        """Look up the key of a thread, or make one for a new thread in a ledger with a master key; return whether it is new.

        Raises:
            EncryptionError: the key was forgotten, or the master key is missing or wrong.
            LedgerCorruptError: the key was altered.
        """
        if cached.is_keyed:
            return False
        before, is_new = cached.lock, not cached.state.seq and cached.thread.base is None
        keys = yield from keyring()
        cached.lock, cached.cipher = keys.key_to_write(cached.state.thread_id, before, self._blinding, is_new=is_new)
        is_new_key = cached.lock is not None and before is None
        if is_new_key and cached.lock is not None:
            yield from hold_master(cached.lock)
        cached.blinding, cached.is_keyed = self._blinding, True
        return is_new_key

    def _admitted(self, cached: CachedThread, request: AppendRequest) -> Verb[Admission]:
        cached.records_by_id, cached.invocations = {}, set()
        if cached.thread.key:
            cached.records_by_id = yield from records_with_ids(set(_ids_in(request)), (yield from lineage(cached.row)))
        try:
            return admit(cached.state, cached.open_calls, request, cached, cached.cipher)
        except AppendRefusedError:
            # Whether an invocation was called before only decides which error is raised, so it is looked up only here.
            yield from self._look_up_calls(cached, request)
            return admit(cached.state, cached.open_calls, request, cached, cached.cipher)
        finally:
            cached.records_by_id = {}  # the thread may be cached: a later append looks up its own

    def _look_up_calls(self, cached: CachedThread, request: AppendRequest) -> Verb[None]:
        results = (entry.message for entry in request.entries if entry.message.kind == "option_result")
        names = {message.invocation_id for message in results if message.invocation_id is not None}
        if cached.thread.key and names:
            records = yield from records_by_number("invocation", names, (yield from lineage(cached.row)))
            calls = (record.message for record in records if record.message.kind == "option_call")
            cached.invocations = {(call.lane == "effect", call.invocation_id or "") for call in calls}

    def _write(self, cached: CachedThread, admission: Admission, request: AppendRequest) -> Verb[None]:
        places = yield from put_rows(cached.thread.key, admission.rows, request.micros)
        yield from put_open_calls(cached, admission.pairing.opened.values(), places)
        if admission.pairing.closed:
            yield from write(_CLOSED, cached.thread.key, list(admission.pairing.closed))
        cached.take_over(admission)
        cached.thread = cached.row
        yield ChangeThreads((cached.thread,), is_whole=True)
        if request.snapshot is not None:
            state = cached.state
            yield from write_one(PUT_SNAPSHOT, *cached.snapshot_row(request.snapshot, state.seq, state.hash))


def _can_open(keys: Keyring, lock: WrappedKey) -> bool:
    """Whether the calls of a thread can be decrypted; if not, its appends are refused later."""
    return lock.wrapped is not None and keys.master is not None and lock.master == keys.master.id


def _ids_in(request: AppendRequest) -> Iterable[str]:
    """Yield the ids that the admission may look up."""
    for entry in (*request.entries, *request.foreign):
        yield entry.message.id
        if entry.row is not None:
            yield entry.row.message.id
        if request.is_outside and entry.message.kind == "option_call":
            yield not_executed(entry.message, entry.body, request.thread_id).id


# ---------------------------------------------------------------- rows


def message_keys(message: Message) -> tuple[int, int | None, int | None]:
    """Return the numbers of a message in the indexes: of its id, its invocation and its correlation."""
    payload, correlation = message.payload, message.correlation_id
    return (
        key_of(message.id),
        None if payload.kind == "parts" else number_of(payload.invocation_id),
        None if correlation is None else number_of(correlation),
    )


def put_rows(thread: int, admitted: Sequence[AdmittedRow], micros: int | Sequence[int]) -> Verb[dict[int, CommitPlace]]:
    """Write messages of a thread with their media, and return the place of each."""
    if not admitted:
        return {}
    times = [micros] * len(admitted) if isinstance(micros, int) else micros
    id_keys = yield from _free_keys(thread, admitted)
    message_rows: list[MessageRow] = []
    for row, id_key, time in zip(admitted, id_keys, times, strict=True):
        seq = row.record.seq
        rest, holes = split(row.record.stored)
        _, invocation_key, correlation_key = message_keys(row.message)
        for place, text in holes:
            yield from put_medium(thread, seq, place, text)
        message_rows.append(
            MessageRow(seq, id_key, invocation_key, correlation_key, row.open_from, time, row.hash, len(holes) or None, rest)
        )
    places: dict[int, CommitPlace] = yield PutMessages(thread, message_rows)
    return places


def _free_keys(thread: int, admitted: Sequence[AdmittedRow]) -> Verb[list[int]]:
    """Return for each message the first key of its id that no other message of the thread has."""
    ids = [row.message.id for row in admitted]
    keys, salt, unplaced = [key_of(name) for name in ids], 0, list(range(len(ids)))
    used: set[int] = set()
    while unplaced:
        taken = {row[0] for row in (yield from rows(_TAKEN, thread, [keys[index] for index in unplaced]))}
        collided: list[int] = []
        for index in unplaced:
            if keys[index] in taken or keys[index] in used:
                collided.append(index)
            else:
                used.add(keys[index])
        salt += 1
        unplaced = collided
        for index in unplaced:
            keys[index] = key_of(ids[index], salt)
    return keys


_PUT_MEDIUM = "INSERT INTO antiphon.media (tenant, hash, text) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
_LOCK_MEDIUM = "SELECT 1 FROM antiphon.media WHERE tenant = $1 AND hash = $2 FOR SHARE"
_USE_MEDIUM = "INSERT INTO antiphon.media_uses (tenant, thread, seq, place, hash) VALUES ($1, $2, $3, $4, $5)"


def put_medium(thread: int, seq: int, place: int, text: bytes) -> Verb[None]:
    """Store a medium of a message."""
    digest = sha256(text).digest()
    # A deletion of the last message that used the medium locks it too, and looks for uses under the lock (`branches`). If the
    # deletion was first, the medium is gone after the wait, and is stored again.
    yield from write(_PUT_MEDIUM, digest, text)
    while not (yield from value(_LOCK_MEDIUM, digest)):
        yield from write_one(_PUT_MEDIUM, digest, text)
    yield from write_one(_USE_MEDIUM, thread, seq, place, digest)


def put_open_calls(cached: CachedThread, calls: Iterable[OpenCall], places: dict[int, CommitPlace]) -> Verb[None]:
    """Write open calls; the place of each message must be known."""
    keys = yield from keyring()
    opened = [(cached.thread.key, call.seq, *cached.dump_call(keys, call), *places[call.seq]) for call in calls]
    if opened:
        yield WriteMany(_OPENED, opened)
