"""Appends: admitted one after the other, written together.

`ledger._admission` decides on an append before anything is written. So a refusal leaves nothing to undo, and a handful of
statements writes the rows of many appends. Between commits, `Appends` remembers the state of the threads in use. It forgets
them when another connection has committed, and after every error. If another connection has changed the schema, it also
compares the schema with the expected one: a trigger could swallow rows. For the same reason it compares the number of rows
that SQLite has written with the number that it was given.

`Appends` assigns the positions of rows, not SQLite, because the checksum of a row covers its position.

A repeated message is rare, so the first attempt does not look up ids: the unique index of ids refuses a repeated one when
the rows are written. The writer then rolls back and takes the same appends again in careful mode. In careful mode, an append
is admitted after all rows before it are written, and its ids are looked up. Three kinds of append are always taken in careful
mode: one that would otherwise be refused, an imported history, and an append to a branch. The unique index does not cover all
ids of the last two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from antiphon.errors import AppendConflictError, AppendRefusedError
from antiphon.ledger._admission import Admission, AdmittedRow, State, admit, new_state
from antiphon.ledger._encryption import ThreadKey, WrappedKey
from antiphon.ledger._records import OpenCall, OpenCalls, Pairing, Record, snapshot_hash, to_micros
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._stored import Thread, ThreadSegment, split
from antiphon.ledger.sqlite._checksums import NO_CHECKSUM, check_written, message_checksum, state_checksum, thread_checksum
from antiphon.ledger.sqlite._keys import call_columns, find_key, ledger_key, store_key
from antiphon.ledger.sqlite._rows import (
    find_open_calls,
    find_thread,
    keep_media,
    key_of,
    lineage,
    number_of,
    records_by_number,
    records_with_id,
)
from antiphon.ledger.sqlite._schema import check_format, check_schema
from antiphon.ledger.sqlite._sql import Connection

_MOST_THREADS = 10_000
"""Threads whose state is remembered."""

_NEW_THREAD = """
INSERT INTO threads (
    thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens, output_tokens, cost,
    forked_from, forked_at, is_redacted, owner, kind, due_at, posted, unfit, open_calls, base, base_seq, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_THREAD = """
UPDATE threads SET seq = ?, hash = ?, run = ?, open_from = ?, updated_at = ?, open_calls = ?, checksum = ? WHERE key = ?
"""
_FIGURES = "UPDATE threads SET status = ?, pattern = ?, input_tokens = ?, output_tokens = ?, cost = ? WHERE key = ?"
"""Set only if one of these changes: SQLite updates the index of each column that is set, even to the same value."""
_DUE = "UPDATE threads SET kind = ?, due_at = ?, posted = ? WHERE key = ?"
"""Only after a post: an append of the owner does not change these columns."""
_MESSAGE = """
INSERT INTO messages (
    position, thread, seq, id_key, invocation_number, correlation_number, open_from, recorded_at, hash, media, body, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_LAST = """
SELECT max(
    (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'),
    (SELECT coalesce(max(position), 0) FROM messages)
)
"""
"""The last position that was ever assigned."""
_OPENED = """
INSERT INTO open_calls (thread, seq, is_effect, invocation_id, option_name, turn, position) VALUES (?, ?, ?, ?, ?, ?, ?)
"""
_CLOSED = "DELETE FROM open_calls WHERE thread = ? AND seq = ?"
_SNAPSHOT = "INSERT OR REPLACE INTO snapshots (thread, fold, seq, hash, state) VALUES (?, ?, ?, ?, ?)"


_USED = slice(State._fields.index("input_tokens"), State._fields.index("cost") + 1)
"""The tokens and the cost of a thread, within its state."""

ThreadChange: TypeAlias = Callable[[Connection, Thread | None], Thread]
"""Changes a thread's row, given the thread if it is known, and returns the thread. It writes no message, and raises before it
writes anything."""


class _Known:
    """A thread in use, with its state after all admitted appends. It answers the questions of the admission (`Lookup`)."""

    __slots__ = (
        "_appends",
        "_connection",
        "cipher",
        "is_looked_for",
        "key",
        "lock",
        "open_calls",
        "part",
        "state",
        "thread",
    )

    def __init__(self, appends: Appends, connection: Connection, thread: Thread, open_calls: Iterable[OpenCall]) -> None:
        self._appends = appends
        self._connection = connection
        self.thread = thread
        self.key = thread.key
        self.state = thread.state
        self.open_calls = OpenCalls(open_calls)
        self.is_looked_for = False
        """Whether `with_id` looks for stored messages: only in careful mode."""
        self.part: int | None = None
        """The part of the row's checksum without the time; None if it must be computed. Most appends change only the time."""
        self.cipher: ThreadKey | None = None
        """The key of an encrypted thread."""
        self.lock: WrappedKey | Literal["unknown"] | None = "unknown"
        """The wrapped key that is to be stored with the first append; "unknown" until the key was looked up."""

    def look_for_key(self) -> None:
        """Look up the key of the thread, or make one for a new thread in a ledger with a master key.

        Raises:
            EncryptionError: the key was forgotten, or the master key is missing or wrong.
            LedgerCorruptError: the key was altered.
        """
        keyring, is_used = self._connection.keyring, self._appends.has_keys(self._connection)
        if keyring.master is None and not is_used:
            self.lock = None
            return
        found = find_key(self._connection, self.key) if self.key else None
        is_new = not self.state.seq and self.thread.base is None
        name = self.state.thread_id
        lock, self.cipher = keyring.key_to_write(name, found, ledger_key(self._connection), is_new=is_new)
        self.lock = lock if found is None else None

    def with_id(self, id: str) -> Sequence[Record]:
        return records_with_id(self._connection, id, self._segments()) if self.is_looked_for else ()

    def was_called(self, is_effect: bool, invocation_id: str) -> bool:
        self._appends.flush(self._connection)  # the call may be among the pending rows
        found = records_by_number(self._connection, "invocation", invocation_id, self._segments())
        messages = [record.message for record in found if record.message.invocation_id == invocation_id]
        return any(each.kind == "option_call" and (each.lane == "effect") == is_effect for each in messages)

    def _segments(self) -> list[ThreadSegment]:
        return lineage(self._connection, self.thread._replace(key=self.key, state=self.state))


class Appends:
    """Admits appends inside a transaction, and writes their rows with `flush`."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._version: object = None
        self._schema: object = None
        """The version of the schema that was last compared with the expected one."""
        self._last: int | None = None
        """The last position that was assigned; None if it must be looked up."""
        self._has_keys: bool | None = None
        """Whether any thread is encrypted; None if it must be looked up."""
        self._is_careful = False
        self._messages: list[tuple[Any, ...]] = []
        self._opened: list[tuple[Any, ...]] = []
        self._closed: list[tuple[int, int]] = []
        self._changed: dict[int, _Known] = {}
        self._posted: dict[int, _Known] = {}
        self._figures: dict[int, _Known] = {}

    def begin(self, connection: Connection, *, is_careful: bool) -> None:
        """Begin the appends of a transaction: forget the threads if another connection has committed since the last one.

        Raises:
            LedgerCorruptError: another connection has altered the schema.
            LedgerFormatError: a later version has upgraded the file.
        """
        if connection.data_version() != self._version:
            check_format(connection, connection.filename)
            self._check_schema(connection)
            self.forget()
        elif is_careful or len(self._known) > _MOST_THREADS:
            self.forget()
        self._is_careful = is_careful

    def _check_schema(self, connection: Connection) -> None:
        version = connection.setting("schema_version")
        if version != self._schema:
            check_schema(connection, connection.filename)
            self._schema = version

    def end(self, connection: Connection) -> None:
        """Remember the file's version after a commit: our own commits change it too."""
        self._version = connection.data_version()

    def change_thread(self, connection: Connection, thread_id: str, change: ThreadChange) -> Thread:
        """Make a change of one thread's row, and return the thread.

        The thread is remembered as it is then: neither the change nor the next append needs to look it up. Appends to it may
        be admitted and not written yet: the checksum of its row is then computed from the remembered state.

        Raises:
            LedgerError: it is refused; nothing has changed.
        """
        known = self._known.get(thread_id)
        if known is None:
            thread = change(connection, None)
            if not thread.open_calls:
                self._known[thread_id] = _Known(self, connection, thread, ())
        else:
            thread = known.thread._replace(key=known.key, state=known.state, open_calls=len(known.open_calls))
            thread = known.thread = change(connection, thread)
            known.state, known.part = thread.state, None
        return thread

    def forget(self) -> None:
        """Forget all threads, and all rows that are admitted and not written."""
        self._known.clear()
        self._last = self._has_keys = None
        for pending in (self._messages, self._opened, self._closed, self._changed, self._posted, self._figures):
            pending.clear()

    def has_keys(self, connection: Connection) -> bool:
        """Whether any thread is encrypted."""
        if self._has_keys is None:
            self._has_keys = ledger_key(connection) is not None
        return self._has_keys

    def take(self, connection: Connection, request: AppendRequest) -> tuple[Record, ...]:
        """Admit an append, and return its records.

        Raises:
            LedgerError: it is refused; nothing has changed.
        """
        known = self._known.get(request.thread_id) or self._look_up(connection, request)
        request = request.for_thread(known.state.is_redacted)
        if known.lock == "unknown":
            known.look_for_key()
        is_careful = self._is_careful or request.allow_foreign or request.is_outside or known.thread.base is not None
        try:
            admission = self._ask(connection, known, request, is_careful)
        except (AppendConflictError, AppendRefusedError):
            if is_careful:
                raise
            is_careful = True  # without a lookup of its ids, a repeated append looks like a conflict or a broken rule
            admission = self._ask(connection, known, request, is_careful)
        if not admission.is_new:
            # The caller must be able to rely on the answer that its messages are stored. A process that died before its sync
            # may have written them. So a repeated append writes a row too: its commit syncs the log with all rows before it.
            connection.run("UPDATE counters SET value = value + 1 WHERE name = 'repeated'")
            check_written(connection.changes(), 1)
        elif admission.rows or not request.is_empty:
            self._write(connection, known, admission, request, is_careful)
        return admission.records

    def _ask(self, connection: Connection, known: _Known, request: AppendRequest, is_careful: bool) -> Admission:
        if is_careful:
            self.flush(connection)  # the lookups read the file, so all rows before this append must be in it
        known.is_looked_for = is_careful
        return admit(known.state, known.open_calls, request, known, known.cipher)

    def _look_up(self, connection: Connection, request: AppendRequest) -> _Known:
        thread = find_thread(connection, request.thread_id)
        if thread is None:
            state = new_state(request.thread_id, request.micros, is_redacted=request.redaction.is_on)
            thread = Thread(0, state, 0, None, 0)
            return _Known(self, connection, thread, ())  # remembered by `_write` only: a refused append creates no thread
        known = _Known(self, connection, thread, find_open_calls(connection, thread))
        self._known[request.thread_id] = known
        return known

    def _write(
        self, connection: Connection, known: _Known, admission: Admission, request: AppendRequest, is_careful: bool
    ) -> None:
        if not known.key:
            known.key = insert_thread(connection, known.state, None, 0)
            self._known[request.thread_id] = known
        if isinstance(known.lock, WrappedKey):
            store_key(connection, known.key, known.lock)
            known.lock, self._has_keys = None, True
        for row in admission.rows:
            self._write_row(connection, known.key, row, request.micros, is_careful)
        if admission.pairing.changed:
            self._note_calls(connection, known, admission.pairing, (self._last or 0) - admission.state.seq)
        before, state = known.state, admission.state
        known.state = state
        if request.status or request.pattern:
            known.part = None  # the checksum covers both
            self._figures[known.key] = known
        elif state[_USED] != before[_USED]:
            self._figures[known.key] = known
        self._changed[known.key] = known
        if request.is_post:
            known.part = None  # the checksum covers kind and due time
            self._posted[known.key] = known
        if request.snapshot is not None:
            fold, value = request.snapshot
            value = value if known.cipher is None else known.cipher.seal_snapshot(fold, state.seq, value)
            connection.run(_SNAPSHOT, (known.key, fold, state.seq, snapshot_hash(state.hash, fold, value), value))
            check_written(connection.changes(), 1)

    def _write_row(self, connection: Connection, thread: int, row: AdmittedRow, micros: int, is_careful: bool) -> None:
        record, message, digest, open_from = row
        rest, holes = split(record.stored)
        payload, correlation = message.payload, message.correlation_id
        position = self._last = 1 + (connection.value(_LAST) if self._last is None else self._last)
        self._messages.append(
            (
                position,
                thread,
                record.seq,
                key_of(message.id) if not is_careful else self._free_key(connection, thread, message.id),
                None if payload.kind == "parts" else number_of(payload.invocation_id),
                None if correlation is None else number_of(correlation),
                open_from,
                micros,
                digest,
                len(holes) or None,
                rest,
                message_checksum(position, digest),
            )
        )
        if holes or is_careful:
            self.flush(connection)
        if holes:
            keep_media(connection, position, holes)

    def put(self, connection: Connection, thread: int, rows: Iterable[AdmittedRow]) -> None:
        """Write rows that keep the times they have."""
        for row in rows:
            self._write_row(connection, thread, row, to_micros(row.record.recorded_at), is_careful=True)

    def _free_key(self, connection: Connection, thread: int, id: str) -> int:
        """Return the first key for an id that no other message of the thread has."""
        salt = 0
        while connection.value("SELECT 1 FROM messages WHERE thread = ? AND id_key = ?", (thread, key_of(id, salt))):
            salt += 1
        return key_of(id, salt)

    def _note_calls(self, connection: Connection, known: _Known, pairing: Pairing, before: int) -> None:
        """Note which calls are open; `before` is the difference between a position and the place in the thread."""
        for call in pairing.opened.values():
            self._opened.append((*call_columns(connection, known.key, call, known.cipher), before + call.seq))
        self._closed += [(known.key, seq) for seq in pairing.closed]
        known.open_calls.change(pairing.changed)

    def flush(self, connection: Connection) -> None:
        """Write the admitted rows. A thread with several appends is updated once, to its last state.

        Raises:
            LedgerCorruptError: SQLite has written more or fewer rows.
            apsw.ConstraintError: a message is stored already.
        """
        before = connection.total_changes()
        changes = (self._messages, self._opened, self._closed, self._changed, self._posted, self._figures)
        expected = sum(map(len, changes))
        if self._messages:
            connection.run_all(_MESSAGE, self._messages)
            self._messages.clear()
        if self._opened:
            connection.run_all(_OPENED, self._opened)
            self._opened.clear()
        if self._closed:
            connection.run_all(_CLOSED, self._closed)
            self._closed.clear()
        if self._changed:
            connection.run_all(_THREAD, [_changed(known) for known in self._changed.values()])
            self._changed.clear()
        if self._figures:
            connection.run_all(_FIGURES, [_figures(known) for known in self._figures.values()])
            self._figures.clear()
        if self._posted:
            connection.run_all(_DUE, [_due(known) for known in self._posted.values()])
            self._posted.clear()
        check_written(connection.total_changes() - before, expected)


def _changed(known: _Known) -> tuple[Any, ...]:
    state, part = known.state, known.part
    if part is None:
        part = known.part = state_checksum(known.key, state)
    return (
        state.seq,
        state.hash,
        state.run,
        state.open_from,
        state.updated_at,
        len(known.open_calls),
        thread_checksum(part, state.updated_at),
        known.key,
    )


def _figures(known: _Known) -> tuple[Any, ...]:
    state = known.state
    return state.status, state.pattern, state.input_tokens, state.output_tokens, state.cost, known.key


def _due(known: _Known) -> tuple[Any, ...]:
    return known.state.kind, known.state.due_at, known.state.posted, known.key


def insert_thread(connection: Connection, state: State, base: int | None, open_calls: int, base_seq: int | None = None) -> int:
    """Insert a thread, and return its key. A branch shares `base_seq` messages with its origin, by default all it has.

    The checksum covers the key, which is not known before the insert. So the caller must update the row to set it.
    """
    shared = base_seq if base_seq is not None else state.seq if base is not None else 0
    connection.run(_NEW_THREAD, (*state, open_calls, base, shared, NO_CHECKSUM))
    check_written(connection.changes(), 1)
    return int(connection.last_insert_rowid())
