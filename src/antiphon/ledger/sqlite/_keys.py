"""The keys of encrypted threads in a file: store, look up, delete and rotate them.

`thread_keys` has a row for each encrypted thread, with its wrapped key, or without it if it was forgotten. The row of thread 0
is the ledger's own key. A key is looked up in the transaction that uses
it, so a `forget` in another process takes effect at once; only unwrapped keys are cached (see `ledger._encryption`).
"""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from antiphon.errors import ForgottenError
from antiphon.ledger._admission import State
from antiphon.ledger._encryption import (
    LEDGER_KEY,
    EncryptionStatus,
    MasterKey,
    ThreadKey,
    WrappedKey,
    not_indexable,
    to_forget,
)
from antiphon.ledger._ownership import forgotten
from antiphon.ledger._records import OpenCall
from antiphon.ledger.sqlite._checksums import check_written, set_owner
from antiphon.ledger.sqlite._sql import Connection

_KEY = "SELECT master, wrapped FROM thread_keys WHERE thread = ?"
_NAMED = """
SELECT thread_id, master, wrapped FROM thread_keys JOIN threads ON threads.key = thread_keys.thread WHERE thread = ?
"""
_ALL = """
SELECT thread, coalesce(thread_id, ''), master, wrapped FROM thread_keys
LEFT JOIN threads ON threads.key = thread_keys.thread ORDER BY thread
"""
_COVERED = """
SELECT 1 FROM threads JOIN thread_keys ON threads.key = thread_keys.thread
WHERE thread_id = ?1 OR thread_id >= ?1 || '/' AND thread_id < ?1 || '0' LIMIT 1
"""
_LEDGER = 0
"""In place of a thread: the ledger's own key."""


def find_key(connection: Connection, thread: int) -> WrappedKey | None:
    """Return the wrapped key of a thread; None if it is not encrypted."""
    row = connection.row(_KEY, (thread,))
    return None if row is None else WrappedKey(*row)


def ledger_key(connection: Connection) -> WrappedKey | None:
    """Return the ledger's own key; None if no thread was ever encrypted."""
    return find_key(connection, _LEDGER)


def thread_key(connection: Connection, thread: int) -> ThreadKey | None:
    """Return the key of a thread; None if it is not encrypted.

    Raises:
        EncryptionError: it was forgotten, or the master key is missing or wrong.
        LedgerCorruptError: it was altered.
    """
    row = connection.row(_NAMED, (thread,))
    return None if row is None else connection.keyring.key(row[0], WrappedKey(*row[1:]))


def check_remembered(connection: Connection, thread: int, thread_id: str) -> None:
    """Refuse a thread whose key was deleted.

    Raises:
        ForgottenError: it was.
    """
    key = find_key(connection, thread)
    if key is not None and key.wrapped is None:
        raise ForgottenError(thread_id)


def check_collection(connection: Connection, name: str) -> None:
    """Refuse a collection with an encrypted thread.

    Raises:
        NotSearchableError: it has one.
    """
    if connection.value(_COVERED, (name,)):
        raise not_indexable(name)


def store_key(connection: Connection, thread: int, key: WrappedKey) -> None:
    """Store the key of a new thread. With the first one, the ledger gets a key of its own."""
    if ledger_key(connection) is None:
        _insert(connection, _LEDGER, connection.keyring.new_key(LEDGER_KEY))
    _insert(connection, thread, key)


def _insert(connection: Connection, thread: int, key: WrappedKey) -> None:
    connection.run("INSERT INTO thread_keys VALUES (?, ?, ?, ?)", (thread, *key, _checksum(thread, key)))
    check_written(connection.changes(), 1)


def _update(connection: Connection, thread: int, key: WrappedKey) -> None:
    values = (*key, _checksum(thread, key), thread)
    connection.run("UPDATE thread_keys SET master = ?, wrapped = ?, checksum = ? WHERE thread = ?", values)
    check_written(connection.changes(), 1)


def _checksum(thread: int, key: WrappedKey) -> int:
    return crc32(ascii((thread, *key)).encode()) - 2**31


def remove_key(connection: Connection, thread: int) -> None:
    """Remove the key of a thread that is deleted."""
    connection.run("DELETE FROM thread_keys WHERE thread = ?", (thread,))


def call_columns(connection: Connection, thread: int, call: OpenCall, key: ThreadKey | None) -> tuple[object, ...]:
    """Return an open call as the columns of a row, without its position."""
    if key is None:
        return (thread, *call)
    blinding = ledger_key(connection)
    assert blinding is not None  # noqa: S101 (it is made with the first key)
    return (thread, call.seq, call.is_effect, key.seal_call(call), connection.keyring.blind(blinding, call.option_name), 0)


def blinded(connection: Connection, option_name: str) -> str | None:
    """Return the hashed name of an option in encrypted threads; None without the master key, or without such threads."""
    blinding = None if connection.keyring.master is None else ledger_key(connection)
    return None if blinding is None else connection.keyring.blind(blinding, option_name)


# ---------------------------------------------------------------- changes


def forget(connection: Connection, family: list[tuple[int, State]], *, with_branches: bool) -> tuple[str, ...]:
    """Delete the keys of a thread and its branches, and the data derived from their messages.

    Raises:
        ForgottenError: the thread was forgotten before.
        EncryptionError: it is not encrypted.
        ValueError: there are branches, and `with_branches` is False.
    """
    keys = {state.thread_id: find_key(connection, key) for key, state in family}
    chosen = to_forget(list(keys.items()), with_branches=with_branches)
    for key, state in family:
        found = keys[state.thread_id]
        if found is None or state.thread_id not in chosen:
            continue
        _update(connection, key, WrappedKey(found.master, None))
        connection.run("DELETE FROM open_calls WHERE thread = ?", (key,))
        connection.run("DELETE FROM snapshots WHERE thread = ?", (key,))
        connection.run("UPDATE threads SET open_calls = 0, open_from = NULL WHERE key = ?", (key,))
        set_owner(connection, key, forgotten(state))
    return chosen


def rotate(connection: Connection, new: MasterKey) -> int:
    """Wrap all keys with another master key, and return how many threads have one."""
    count = 0
    for thread, name, master, wrapped in connection.rows(_ALL):
        key = WrappedKey(master, wrapped)
        _update(connection, thread, connection.keyring.rewrapped(LEDGER_KEY if thread == _LEDGER else name, key, new))
        count += thread != _LEDGER and wrapped is not None
    return count


def status(connection: Connection) -> EncryptionStatus | None:
    """Return how much is encrypted."""
    own = ledger_key(connection)
    if own is None:
        return connection.keyring.unused
    sql = "SELECT count(*), count(*) - count(wrapped) FROM thread_keys WHERE thread <> ?"
    return EncryptionStatus(own.master, *connection.rows(sql, (_LEDGER,))[0])


def complaints_about_keys(connection: Connection) -> Iterator[str]:
    """Yield faults in the table of keys."""
    for thread, master, wrapped, checksum in connection.rows("SELECT thread, master, wrapped, checksum FROM thread_keys"):
        if checksum != _checksum(thread, WrappedKey(master, wrapped)):
            yield "the key of a thread is not what it was"
            return
    sql = "SELECT 1 FROM thread_keys WHERE thread <> ? AND thread NOT IN (SELECT key FROM threads)"
    if connection.value(sql, (_LEDGER,)):
        yield "a key belongs to no thread"
