"""Runs verbs over a connection that is inside a transaction: the requests that are not plain statements, and their answers.

The writer is alone, so a lock is nothing. `messages`, `threads` and `hosts` give out keys without a gap and never twice, and
`verify` compares them with the counters of removed rows (see `_checksums`): so a request that removes such rows counts them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import orjson

from antiphon.ledger._sql.rows import CommitPlace
from antiphon.ledger._sql.statements import (
    ChangeThreads,
    LoadVectors,
    Lock,
    MessageRow,
    PutMessages,
    PutThread,
    Read,
    ReadClock,
    ReadKeyring,
    RemoveMessages,
    Verb,
    Write,
    WriteMany,
    check_written,
    spelled,
)
from antiphon.ledger._stored import Thread, changed_columns, message_checksum, state_checksum, thread_checksum
from antiphon.ledger.sqlite._checksums import NO_CHECKSUM, note_removed, set_checksum, set_owner
from antiphon.ledger.sqlite._sql import Connection
from antiphon.ledger.sqlite._unindex import unindex

ResultT = TypeVar("ResultT")


def run(connection: Connection, verb: Verb[ResultT]) -> ResultT:
    """Run a verb, and return its result."""
    answer: Any = None
    try:
        while True:
            request = verb.send(answer)
            answer = _ANSWERS[type(request)](connection, request)
    except StopIteration as end:
        result: ResultT = end.value
        return result


def _values(values: Sequence[Any]) -> tuple[Any, ...]:
    """Return the values of a statement: the first is the tenant, of which a file has one; a list is JSON."""
    if not values:
        return ()
    return (None, *[_array(cast("list[Any]", value)) if isinstance(value, list) else value for value in values])


def _array(values: list[Any]) -> str:
    return orjson.dumps(values, default=bytes.hex).decode()


def _write(connection: Connection, request: Write) -> int:
    connection.run(spelled(request.sql), _values(request.values))
    count = int(connection.changes())
    if request.table == "limits":
        connection.run("UPDATE counters SET value = (SELECT count(*) FROM limits) WHERE name = 'limits'")
        check_written(connection.changes(), 1)
    elif request.table is not None:
        note_removed(connection, request.table, count)
    return count


def _write_many(connection: Connection, request: WriteMany) -> None:
    before = connection.total_changes()
    connection.run_all(spelled(request.sql), [_values(values) for values in request.rows])
    check_written(connection.total_changes() - before, len(request.rows))


def _load_vectors(connection: Connection, request: LoadVectors) -> None:
    """Load sqlite-vec into a connection, once.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    if connection.value("SELECT count(*) FROM pragma_function_list WHERE name = 'vec_distance_cosine'"):
        return
    try:
        import sqlite_vec  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]  # noqa: PLC0415 (an extra)
    except ImportError as exc:
        raise ModuleNotFoundError('vectors need sqlite-vec: pip install "antiphon[vectors]"', name="sqlite_vec") from exc
    connection.enable_load_extension(True)
    try:
        connection.load_extension(sqlite_vec.loadable_path())
    finally:
        connection.enable_load_extension(False)


# ---------------------------------------------------------------- threads

_NEW_THREAD = """
INSERT INTO threads (
    thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens, output_tokens, cost,
    forked_from, forked_at, is_redacted, owner, kind, due_at, posted, unfit, open_calls, base, base_seq, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_THREAD = """
UPDATE threads SET seq = ?, hash = ?, epoch = ?, run = ?, open_from = ?, status = ?, pattern = ?, updated_at = ?,
    input_tokens = ?, output_tokens = ?, cost = ?, owner = ?, kind = ?, due_at = ?, posted = ?, unfit = ?, open_calls = ?,
    checksum = ?
WHERE key = ?
"""


def put_thread(connection: Connection, thread: Thread) -> int:
    """Insert a thread, and return its key."""
    connection.run(_NEW_THREAD, (*thread.state, thread.open_calls, thread.base, thread.base_seq, NO_CHECKSUM))
    check_written(connection.changes(), 1)
    key = int(connection.last_insert_rowid())
    set_checksum(connection, key, thread.state)  # it covers the key
    return key


def _change_threads(connection: Connection, request: ChangeThreads) -> None:
    for thread in request.threads:
        if not request.is_whole:
            set_owner(connection, thread.key, thread.state)
            continue
        state = thread.state
        checksum = thread_checksum(state_checksum(thread.key, state), state.updated_at)
        connection.run(_THREAD, (*changed_columns(thread), checksum, thread.key))
        check_written(connection.changes(), 1)


# ---------------------------------------------------------------- messages

PUT_MESSAGE = """
INSERT INTO messages (
    position, thread, seq, id_key, invocation_key, correlation_key, open_from, recorded_at, hash, media, body, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_LAST = """
SELECT max(
    (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'),
    (SELECT coalesce(max(position), 0) FROM messages)
)
"""


def last_position(connection: Connection) -> int:
    """Return the last position that was ever assigned."""
    return int(connection.value(_LAST))


def message_columns(position: int, thread: int, row: MessageRow) -> tuple[Any, ...]:
    """Return the values of `PUT_MESSAGE`."""
    return (position, thread, *row, message_checksum(position, row.hash))


def _put_messages(connection: Connection, request: PutMessages) -> dict[int, CommitPlace]:
    places: dict[int, CommitPlace] = {}
    first = last_position(connection) + 1
    for position, row in enumerate(request.rows, first):
        connection.run(PUT_MESSAGE, message_columns(position, request.thread, row))
        check_written(connection.changes(), 1)
        places[row.seq] = CommitPlace(0, 0, position)
    return places


def _remove_messages(connection: Connection, request: RemoveMessages) -> None:
    threads = list(request.threads)
    run(connection, unindex(threads))  # before the messages are deleted: FTS5 removes words only if it is given them again
    connection.run("DELETE FROM messages WHERE thread IN (SELECT value FROM json_each(?))", (_array(threads),))
    note_removed(connection, "messages", connection.changes())


_ANSWERS: dict[type, Callable[[Connection, Any], Any]] = {
    Read: lambda connection, request: connection.rows(spelled(request.sql), _values(request.values)),
    Write: _write,
    WriteMany: _write_many,
    Lock: lambda connection, request: None,
    ReadClock: lambda connection, request: connection.clock,
    ReadKeyring: lambda connection, request: connection.keyring,
    PutThread: lambda connection, request: put_thread(connection, request.thread),
    ChangeThreads: _change_threads,
    PutMessages: _put_messages,
    RemoveMessages: _remove_messages,
    LoadVectors: _load_vectors,
}
