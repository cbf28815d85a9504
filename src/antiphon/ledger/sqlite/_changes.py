"""Changes to a ledger's file other than appends, each a function over a connection that is inside a transaction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antiphon.errors import LedgerCorruptError, UnknownThreadError
from antiphon.ledger._admission import new_state
from antiphon.ledger._listing import head_of
from antiphon.ledger._records import OpenCall, Pairing, genesis
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._stored import Thread
from antiphon.ledger._values import Head, ThreadJournal
from antiphon.ledger._verification import Base, existing, missing_origin, restored
from antiphon.ledger.sqlite._appends import Appends, insert_thread
from antiphon.ledger.sqlite._checksums import check_written, note_removed, set_checksum, set_owner
from antiphon.ledger.sqlite._keys import call_columns, ledger_key, remove_key, store_key, thread_key
from antiphon.ledger.sqlite._keys import forget as forget_keys
from antiphon.ledger.sqlite._rows import find_thread, forget_media, link_at, open_at, position_of
from antiphon.ledger.sqlite._sql import Connection
from antiphon.ledger.sqlite._terms import forget_thread


def branch(connection: Connection, head: Head, at: int, pairing: Pairing, closing: AppendRequest) -> Thread:
    """Create a branch that shares a thread's messages up to a place, and close the calls that are open there.

    Raises:
        LedgerCorruptError: the head of the thread does not match its messages.
        UnknownThreadError: the thread was deleted.
        ValueError: a thread with the branch's id exists.
    """
    if find_thread(connection, closing.thread_id) is not None:
        raise ValueError(f"there is a thread called {closing.thread_id!r} already")
    origin = _still_there(connection, head)
    link = link_at(connection, origin.key, at)
    if link is None:
        raise LedgerCorruptError("it is missing; restore a backup, and run verify on it", head.thread_id, at)
    state = new_state(closing.thread_id, closing.micros)
    state = state._replace(seq=at, run=at, hash=link, forked_from=head.thread_id, forked_at=at)
    state = state._replace(open_from=pairing.open_from, is_redacted=origin.state.is_redacted, kind=origin.state.kind)
    lock, _ = connection.keyring.key_to_write(closing.thread_id, None, ledger_key(connection), is_new=True)
    key = insert_thread(connection, state, origin.key, pairing.count)
    set_checksum(connection, key, state)
    if lock is not None:
        store_key(connection, key, lock)
    _note_open(connection, key, pairing.open)
    appends = Appends()
    appends.take(connection, closing)
    appends.flush(connection)
    made = find_thread(connection, closing.thread_id)
    assert made is not None  # noqa: S101 (it was made above)
    return made


def restore(
    connection: Connection, journals: Iterable[tuple[ThreadJournal, Head]], redaction: LedgerRedaction
) -> list[Thread]:
    """Write the rows of threads, each proven by its head: all threads or none.

    Raises:
        RestoreRefusedError: rows do not match, a thread exists already, or an origin does not exist.
    """
    return [_restore(connection, journal, head, redaction) for journal, head in journals]


def _restore(connection: Connection, journal: ThreadJournal, head: Head, redaction: LedgerRedaction) -> Thread:
    if find_thread(connection, journal.thread_id) is not None:
        raise existing(journal.thread_id)
    origin, base = _base_of(connection, journal)
    found = restored(journal, head, base, redaction, connection.keyring)
    calls = found.pairing.open
    key = insert_thread(connection, found.state, origin, len(calls), base.seq)
    set_owner(connection, key, found.state)
    if journal.key is not None:
        store_key(connection, key, journal.key)
    Appends().put(connection, key, found.rows)
    _note_open(connection, key, calls)
    return Thread(key, found.state, len(calls), origin, base.seq)


def _note_open(connection: Connection, key: int, calls: Iterable[OpenCall]) -> None:
    """Record the open calls of a thread. Their messages must be written before, because a row has their position."""
    cipher = thread_key(connection, key)
    for call in calls:
        row = (*call_columns(connection, key, call, cipher), position_of(connection, key, call.seq))
        connection.run("INSERT INTO open_calls VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        check_written(connection.changes(), 1)


def _base_of(connection: Connection, journal: ThreadJournal) -> tuple[int | None, Base]:
    """Return the key of a journal's origin, and the messages that it shares with it."""
    if journal.forked_from is None:
        return None, Base(0, genesis(journal.thread_id), Pairing())
    origin, at = find_thread(connection, journal.forked_from), journal.forked_at or 0
    link = None if origin is None or not 0 <= at <= origin.state.seq else link_at(connection, origin.key, at)
    if origin is None or link is None:
        raise missing_origin(journal)
    return origin.key, Base(at, link, open_at(connection, origin, at))


def _still_there(connection: Connection, head: Head) -> Thread:
    """Return the thread of a head. A newer thread of the same name has other links, so it is not mistaken for it."""
    thread = find_thread(connection, head.thread_id)
    link = None if thread is None else link_at(connection, thread.key, head.seq)
    if thread is not None and link is not None and link.hex() == head.hash:
        return thread
    if thread is not None and head_of(thread.state) == head:
        raise LedgerCorruptError("the hash of the thread is not that of its last message", head.thread_id, head.seq)
    raise UnknownThreadError("it was deleted while it was forked", head.thread_id)


def delete(connection: Connection, thread_id: str, with_branches: bool) -> tuple[str, ...]:
    """Delete a thread, and with `with_branches` also its branches.

    Raises:
        UnknownThreadError: there is no such thread.
        ValueError: there are branches, and `with_branches` is False.
    """
    thread = find_thread(connection, thread_id)
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    family = _family(connection, thread.key)
    names = [name for _, name in family]
    if len(names) > 1 and not with_branches:
        raise ValueError(f"{', '.join(map(repr, names[1:]))} share its messages; delete them first, or with_branches=True")
    _remove(connection, family)
    return tuple(names)


def _family(connection: Connection, key: int) -> list[tuple[int, str]]:
    """Return a thread, its branches, and their branches."""
    sql = """
WITH RECURSIVE family (key) AS (VALUES (?) UNION SELECT threads.key FROM threads JOIN family ON threads.base = family.key)
SELECT threads.key, threads.thread_id FROM family JOIN threads USING (key)
"""
    return [(each, name) for each, name in connection.rows(sql, (key,))]


def _remove(connection: Connection, threads: Sequence[tuple[int, str]]) -> None:
    """Delete threads, by key and name, and media that no message uses any longer."""
    searchable = connection.value("SELECT value FROM counters WHERE name = 'searchable'")
    mine = "SELECT position, words_of(body) FROM messages WHERE thread = ? AND position <= ?"
    media = "SELECT position FROM messages WHERE thread = ? AND media IS NOT NULL"
    holding: list[int] = []
    for key, _ in threads:
        # Before the messages are deleted: the index of words removes a message only if it is given the same words again.
        for position, words in connection.rows(mine, (key, searchable)):
            connection.run("INSERT INTO search (search, rowid, words) VALUES ('delete', ?, ?)", (position, words))
        forget_thread(connection, key)
        holding += [position for (position,) in connection.rows(media, (key,))]
        connection.run("DELETE FROM messages WHERE thread = ?", (key,))
        note_removed(connection, "messages", connection.changes())
        connection.run("DELETE FROM open_calls WHERE thread = ?", (key,))
        connection.run("DELETE FROM snapshots WHERE thread = ?", (key,))
        remove_key(connection, key)
        connection.run("DELETE FROM threads WHERE key = ?", (key,))
        note_removed(connection, "threads", connection.changes())
    if holding:
        forget_media(connection, holding)


def forget(connection: Connection, thread_id: str, with_branches: bool) -> tuple[str, ...]:
    """Delete the key of a thread, and with `with_branches` also the keys of its branches.

    Raises:
        ForgottenError: it was forgotten before.
        EncryptionError: it is not encrypted.
        UnknownThreadError: there is no such thread.
        ValueError: there are branches, and `with_branches` is False.
    """
    thread = find_thread(connection, thread_id)
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    found = [find_thread(connection, name) for _, name in _family(connection, thread.key)]
    family = [(each.key, each.state) for each in found if each is not None]
    return forget_keys(connection, family, with_branches=with_branches)


def expire(connection: Connection, before: int) -> tuple[str, ...]:
    """Delete the threads that have not changed since a time, except those that a younger branch needs."""
    gone: dict[int, str] = {}
    for (key,) in connection.rows("SELECT key FROM threads WHERE updated_at < ?", (before,)):
        family = _family(connection, key)
        young = "SELECT 1 FROM threads WHERE key = ? AND updated_at >= ?"
        if not any(connection.value(young, (each, before)) for each, _ in family):
            gone.update(family)
    _remove(connection, list(gone.items()))
    return tuple(sorted(gone.values()))
