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

from collections.abc import Callable
from typing import Any, TypeAlias

from antiphon.errors import AppendConflictError, AppendRefusedError, LedgerError
from antiphon.ledger._admission import Admission, AdmittedRow, State, admit, new_state
from antiphon.ledger._records import Record
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._sql.appends import CachedThread, CarefulAppends, message_keys, put_medium
from antiphon.ledger._sql.keys import find_key, ledger_key, store_key
from antiphon.ledger._sql.rows import find_open_calls, find_thread
from antiphon.ledger._sql.statements import MessageRow, Verb, check_written
from antiphon.ledger._stored import Thread, split, state_checksum, thread_checksum
from antiphon.ledger.sqlite._driver import PUT_MESSAGE, last_position, message_columns, put_thread, run
from antiphon.ledger.sqlite._schema import check_format, check_schema
from antiphon.ledger.sqlite._sql import Connection

_MOST_THREADS = 10_000
"""Threads whose state is remembered."""

_THREAD = """
UPDATE threads SET seq = ?, hash = ?, run = ?, open_from = ?, updated_at = ?, open_calls = ?, checksum = ? WHERE key = ?
"""
_FIGURES = "UPDATE threads SET status = ?, pattern = ?, input_tokens = ?, output_tokens = ?, cost = ? WHERE key = ?"
"""Set only if one of these changes: SQLite updates the index of each column that is set, even to the same value."""
_DUE = "UPDATE threads SET kind = ?, due_at = ?, posted = ? WHERE key = ?"
"""Only after a post: an append of the owner does not change these columns."""
_OPENED = "INSERT INTO open_calls (thread, seq, option_key, call, position) VALUES (?, ?, ?, ?, ?)"
_CLOSED = "DELETE FROM open_calls WHERE thread = ? AND seq = ?"
_SNAPSHOT = "INSERT OR REPLACE INTO snapshots (thread, fold, seq, hash, state) VALUES (?, ?, ?, ?, ?)"


_USED = slice(State._fields.index("input_tokens"), State._fields.index("cost") + 1)
"""The tokens and the cost of a thread, within its state."""

ThreadChange: TypeAlias = Callable[[Thread | None], Verb[tuple[Thread, Any]]]
"""Changes a thread's row, given the thread if it is known, and returns the thread and a result. It writes no message, and
raises before it writes anything."""


class Appends:
    """Admits appends inside a transaction, and writes their rows with `flush`."""

    def __init__(self) -> None:
        self._threads: dict[str, CachedThread] = {}
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
        self._changed: dict[int, CachedThread] = {}
        self._posted: dict[int, CachedThread] = {}
        self._figures: dict[int, CachedThread] = {}

    def begin(self, connection: Connection, *, is_careful: bool) -> None:
        """Begin the appends of a transaction: forget the threads if another connection has committed since the last one.

        Raises:
            LedgerCorruptError: another connection has altered the schema.
            LedgerFormatError: a later version has upgraded the file.
        """
        if connection.data_version() != self._version:
            check_format(connection, connection.filename)
            schema_version = connection.setting("schema_version")
            if schema_version != self._schema:
                check_schema(connection, connection.filename)
                self._schema = schema_version
            self.forget()
        elif is_careful or len(self._threads) > _MOST_THREADS:
            self.forget()
        self._is_careful = is_careful

    def end(self, connection: Connection) -> None:
        """Remember the file's version after a commit: our own commits change it too."""
        self._version = connection.data_version()

    def change_thread(self, connection: Connection, thread_id: str, change: ThreadChange) -> tuple[Thread, Any]:
        """Make a change of one thread's row, and return the thread and the result.

        The thread is remembered as it is then: neither the change nor the next append needs to look it up. Appends to it may
        be admitted and not written yet: the checksum of its row is then computed from the remembered state.

        Raises:
            LedgerError: it is refused; nothing has changed.
        """
        cached = self._threads.get(thread_id)
        thread, result = run(connection, change(None if cached is None else cached.row))
        if cached is not None:
            cached.thread, cached.state, cached.part = thread, thread.state, None
        elif not thread.open_calls:
            self._threads[thread_id] = CachedThread(thread, ())
        return thread, result

    def forget(self) -> None:
        """Forget all threads, and all rows that are admitted and not written."""
        self._threads.clear()
        self._last = self._has_keys = None
        for pending in (self._messages, self._opened, self._closed, self._changed, self._posted, self._figures):
            pending.clear()

    def has_keys(self, connection: Connection) -> bool:
        """Whether any thread is encrypted."""
        if self._has_keys is None:
            self._has_keys = run(connection, ledger_key()) is not None
        return self._has_keys

    def take(self, connection: Connection, request: AppendRequest) -> tuple[Record, ...]:
        """Admit an append, and return its records.

        Raises:
            LedgerError: it is refused; nothing has changed.
        """
        if self._is_careful or request.allow_foreign or request.is_outside:
            return self._take_carefully(connection, request)
        cached = self._threads.get(request.thread_id) or self._look_up(connection, request)
        if cached.thread.base is not None:
            return self._take_carefully(connection, request)
        if not cached.is_keyed:
            self._look_for_key(connection, cached)
        request = request.for_thread(cached.state.is_redacted)
        try:
            admission = admit(cached.state, cached.open_calls, request, cached, cached.cipher)
        except (AppendConflictError, AppendRefusedError):
            # Without a lookup of its ids, a repeated append looks like a conflict or a broken rule.
            return self._take_carefully(connection, request)
        if not request.is_empty or admission.rows:
            self._write(connection, cached, admission, request)
        return admission.records

    def _take_carefully(self, connection: Connection, request: AppendRequest) -> tuple[Record, ...]:
        self.flush(connection)  # the lookups read the file, so all rows before this append must be in it
        before, careful = connection.total_changes(), CarefulAppends()
        (outcome,) = run(connection, careful.write([request]))
        self._threads.pop(request.thread_id, None)
        self._threads |= careful.threads
        self._last = self._has_keys = None
        if isinstance(outcome, LedgerError):
            raise outcome
        if connection.total_changes() == before and outcome:
            # The caller must be able to rely on the answer that its messages are stored. A process that died before its sync
            # may have written them. So a repeated append writes a row too: its commit syncs the log with all rows before it.
            connection.run("UPDATE counters SET value = value + 1 WHERE name = 'repeated'")
            check_written(connection.changes(), 1)
        return outcome

    def _look_up(self, connection: Connection, request: AppendRequest) -> CachedThread:
        thread = run(connection, find_thread(request.thread_id))
        if thread is None:
            state = new_state(request.thread_id, request.micros, is_redacted=request.redaction.is_on)
            return CachedThread(Thread(0, state, 0, None, 0), ())  # remembered by `_write` only: a refusal creates no thread
        calls = run(connection, find_open_calls([thread])) if thread.open_calls else {}
        cached = self._threads[request.thread_id] = CachedThread(thread, calls.get(thread.key, ()))
        return cached

    def _look_for_key(self, connection: Connection, cached: CachedThread) -> None:
        """Look up the key of a thread, or make one for a new thread in a ledger with a master key.

        Raises:
            EncryptionError: the key was forgotten, or the master key is missing or wrong.
            LedgerCorruptError: the key was altered.
        """
        keyring, key = connection.keyring, cached.thread.key
        if keyring.master is not None or self.has_keys(connection):
            stored = run(connection, find_key(key)) if key else None
            is_new = not cached.state.seq and cached.thread.base is None
            cached.blinding = run(connection, ledger_key())
            cached.lock, cached.cipher = keyring.key_to_write(cached.state.thread_id, stored, cached.blinding, is_new=is_new)
            cached.is_keyed = stored is not None or cached.lock is None  # a new key is stored with the first append
        else:
            cached.is_keyed = True

    def _write(self, connection: Connection, cached: CachedThread, admission: Admission, request: AppendRequest) -> None:
        if not cached.thread.key:
            cached.thread = cached.thread._replace(key=put_thread(connection, cached.thread))
            self._threads[request.thread_id] = cached
        if cached.lock is not None and not cached.is_keyed:
            run(connection, store_key(cached.thread.key, cached.lock))
            cached.blinding, cached.is_keyed, self._has_keys = run(connection, ledger_key()), True, True
        key = cached.thread.key
        for row in admission.rows:
            self._write_row(connection, key, row, request.micros)
        if admission.pairing.changed:
            offset = (self._last or 0) - admission.state.seq  # between a position and the place in the thread
            for call in admission.pairing.opened.values():
                self._opened.append((key, call.seq, *cached.dump_call(connection.keyring, call), offset + call.seq))
            self._closed += [(key, seq) for seq in admission.pairing.closed]
        before, state = cached.state, admission.state
        cached.take_over(admission)
        if request.status or request.pattern:
            cached.part = None  # the checksum covers both
            self._figures[key] = cached
        elif state[_USED] != before[_USED]:
            self._figures[key] = cached
        self._changed[key] = cached
        if request.is_post:
            cached.part = None  # the checksum covers kind and due time
            self._posted[key] = cached
        if request.snapshot is not None:
            connection.run(_SNAPSHOT, cached.snapshot_row(request.snapshot, state.seq, state.hash))
            check_written(connection.changes(), 1)

    def _write_row(self, connection: Connection, thread: int, row: AdmittedRow, micros: int) -> None:
        record, message, digest, open_from = row
        rest, holes = split(record.stored)
        position = self._last = 1 + (last_position(connection) if self._last is None else self._last)
        columns = MessageRow(record.seq, *message_keys(message), open_from, micros, digest, len(holes) or None, rest)
        self._messages.append(message_columns(position, thread, columns))
        for place, text in holes:
            run(connection, put_medium(thread, record.seq, place, text))

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
            connection.run_all(PUT_MESSAGE, self._messages)
            self._messages.clear()
        if self._opened:
            connection.run_all(_OPENED, self._opened)
            self._opened.clear()
        if self._closed:
            connection.run_all(_CLOSED, self._closed)
            self._closed.clear()
        if self._changed:
            connection.run_all(_THREAD, [_changed(cached) for cached in self._changed.values()])
            self._changed.clear()
        if self._figures:
            connection.run_all(_FIGURES, [_figures(cached) for cached in self._figures.values()])
            self._figures.clear()
        if self._posted:
            connection.run_all(_DUE, [_due(cached) for cached in self._posted.values()])
            self._posted.clear()
        check_written(connection.total_changes() - before, expected)


def _changed(cached: CachedThread) -> tuple[Any, ...]:
    state, part = cached.state, cached.part
    if part is None:
        part = cached.part = state_checksum(cached.thread.key, state)
    return (
        state.seq,
        state.hash,
        state.run,
        state.open_from,
        state.updated_at,
        len(cached.open_calls),
        thread_checksum(part, state.updated_at),
        cached.thread.key,
    )


def _figures(cached: CachedThread) -> tuple[Any, ...]:
    state = cached.state
    return state.status, state.pattern, state.input_tokens, state.output_tokens, state.cost, cached.thread.key


def _due(cached: CachedThread) -> tuple[Any, ...]:
    return cached.state.kind, cached.state.due_at, cached.state.posted, cached.thread.key
