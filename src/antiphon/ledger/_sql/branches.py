"""Changes other than appends and claims: branches, restored threads, deletion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from antiphon.errors import LedgerCorruptError, UnknownThreadError
from antiphon.ledger._admission import new_state
from antiphon.ledger._encryption import ThreadKey, WrappedKey
from antiphon.ledger._listing import head_of
from antiphon.ledger._records import OpenCall, Pairing, genesis, to_micros
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._request import AppendRequest
from antiphon.ledger._sql.appends import CachedThread, CarefulAppends, lock_threads, put_open_calls, put_rows
from antiphon.ledger._sql.keys import forget_keys, hold_master, ledger_key, store_key
from antiphon.ledger._sql.rows import (
    LOCKED_THREADS,
    CommitPlace,
    find_thread,
    line_to,
    link_at,
    open_at,
    thread_of,
)
from antiphon.ledger._sql.statements import (
    ChangeThreads,
    PutThread,
    RemoveMessages,
    Spelled,
    Verb,
    keyring,
    row,
    rows,
    write,
)
from antiphon.ledger._stored import Thread
from antiphon.ledger._values import Head, ThreadJournal
from antiphon.ledger._verification import Base, existing, missing_origin, restored


def branch(head: Head, at: int, pairing: Pairing, closing: AppendRequest) -> Verb[Thread]:
    """Create a branch that shares a thread's messages up to a place, and close the calls that are open there.

    Raises:
        LedgerCorruptError: the head of the thread does not match its messages.
        UnknownThreadError: the thread was deleted.
        ValueError: a thread with the branch's id exists.
    """
    yield from lock_threads([head.thread_id, closing.thread_id])
    if (yield from find_thread(closing.thread_id)) is not None:
        raise ValueError(f"there is a thread called {closing.thread_id!r} already")
    origin = yield from _still_there(head)
    link = yield from link_at(origin.key, at)
    if link is None:
        raise LedgerCorruptError("it is missing; restore a backup, and run verify on it", head.thread_id, at)
    state = new_state(closing.thread_id, closing.micros)
    state = state._replace(seq=at, run=at, hash=link, forked_from=head.thread_id, forked_at=at)
    state = state._replace(open_from=pairing.open_from, is_redacted=origin.state.is_redacted, kind=origin.state.kind)
    keys, blinding = (yield from keyring()), (yield from ledger_key())
    lock, cipher = keys.key_to_write(closing.thread_id, None, blinding, is_new=True)
    thread = Thread(0, state, pairing.count, origin.key, at)
    cached = yield from _inserted(thread, pairing.open, lock, cipher)
    yield from put_open_calls(cached, pairing.open, (yield from _places(cached.thread.key, pairing.open)))
    appends = CarefulAppends()
    appends.threads[closing.thread_id] = cached
    yield from appends.append(closing)
    return cached.row


def _inserted(
    thread: Thread, calls: Iterable[OpenCall], lock: WrappedKey | None, cipher: ThreadKey | None
) -> Verb[CachedThread]:
    """Insert a thread with its key, if it has one."""
    key: int = yield PutThread(thread)
    cached = CachedThread(thread._replace(key=key), calls)
    cached.lock, cached.cipher, cached.is_keyed = lock, cipher, True
    if lock is not None:
        yield from hold_master(lock)
        yield from store_key(key, lock)
        cached.blinding = yield from ledger_key()
    return cached


def _places(key: int, calls: Iterable[OpenCall]) -> Verb[dict[int, CommitPlace]]:
    """Return the places of the messages of open calls, which an origin may hold."""
    places: dict[int, CommitPlace] = {}
    sql = "SELECT m.era, m.xid, m.ord FROM antiphon.messages AS m WHERE m.tenant = $1 AND m.thread = $2 AND m.seq = $3"
    for call in calls:
        line = yield from line_to(key, call.seq)
        place = yield from row(sql, line[-1].key, call.seq)
        if place is None:
            raise LedgerCorruptError("it is missing; restore a backup, and run verify on it", seq=call.seq)
        places[call.seq] = CommitPlace(*place)
    return places


_MAY_IDLE = Spelled(
    "SELECT set_config('idle_in_transaction_session_timeout', '0', true) WHERE $1::text IS NOT NULL", "SELECT 1"
)
"""Between two statements, a long journal is examined: that may take longer than a transaction may be idle."""


def restore(journals: Sequence[tuple[ThreadJournal, Head]], redaction: LedgerRedaction) -> Verb[list[Thread]]:
    """Write the rows of threads, each proven by its head: all threads or none.

    Raises:
        RestoreRefusedError: rows do not match, a thread exists already, or an origin does not exist.
    """
    names = [journal.thread_id for journal, _ in journals]
    yield from rows(_MAY_IDLE)
    yield from lock_threads([*names, *(journal.forked_from or "" for journal, _ in journals)])
    restored_threads: list[Thread] = []
    for journal, head in journals:
        restored_threads.append((yield from _restore(journal, head, redaction)))
    return restored_threads


def _restore(journal: ThreadJournal, head: Head, redaction: LedgerRedaction) -> Verb[Thread]:
    if (yield from find_thread(journal.thread_id)) is not None:
        raise existing(journal.thread_id)
    origin, base = yield from _base_of(journal)
    keys = yield from keyring()
    content = restored(journal, head, base, redaction, keys)
    calls = content.pairing.open
    thread = Thread(0, content.state, len(calls), origin, base.seq)
    cipher = None if journal.key is None else keys.key(journal.thread_id, journal.key)
    cached = yield from _inserted(thread, calls, journal.key, cipher)
    times = [to_micros(row.record.recorded_at) for row in content.rows]
    yield from put_rows(cached.thread.key, content.rows, times)
    yield from put_open_calls(cached, calls, (yield from _places(cached.thread.key, calls)))
    return cached.thread


def _base_of(journal: ThreadJournal) -> Verb[tuple[int | None, Base]]:
    """Return the key of a journal's origin, and the messages that it shares with it."""
    if journal.forked_from is None:
        return None, Base(0, genesis(journal.thread_id), Pairing())
    origin, at = (yield from find_thread(journal.forked_from)), journal.forked_at or 0
    is_there = origin is not None and 0 <= at <= origin.state.seq
    link = (yield from link_at(origin.key, at)) if origin is not None and is_there else None
    if origin is None or link is None:
        raise missing_origin(journal)
    return origin.key, Base(at, link, (yield from open_at(origin, at)))


def _still_there(head: Head) -> Verb[Thread]:
    """Return the thread of a head. A newer thread of the same name has other links, so it is not mistaken for it."""
    thread = yield from find_thread(head.thread_id)
    link = None if thread is None else (yield from link_at(thread.key, head.seq))
    if thread is not None and link is not None and link.hex() == head.hash:
        return thread
    if thread is not None and head_of(thread.state) == head:
        raise LedgerCorruptError("the hash of the thread is not that of its last message", head.thread_id, head.seq)
    raise UnknownThreadError("it was deleted while it was forked", head.thread_id)


# ---------------------------------------------------------------- deletion

_FAMILY = """
WITH RECURSIVE family (key) AS (
    SELECT $2::bigint UNION SELECT t.key FROM antiphon.threads AS t JOIN family ON t.tenant = $1 AND t.base = family.key
)
SELECT t.key, t.thread_id FROM family JOIN antiphon.threads AS t ON t.tenant = $1 AND t.key = family.key ORDER BY t.key
"""
_USED_MEDIA = "SELECT DISTINCT hash FROM antiphon.media_uses WHERE tenant = $1 AND thread = ANY($2::bigint[])"
_LOCK_MEDIA = Spelled(
    "SELECT 1 FROM antiphon.media WHERE tenant = $1 AND hash = ANY($2::bytea[]) ORDER BY hash FOR UPDATE",
    "SELECT 1 WHERE $2 IS NULL",
)
_UNUSED_MEDIA = Spelled(
    """
DELETE FROM antiphon.media AS m WHERE m.tenant = $1 AND m.hash = ANY($2::bytea[])
    AND NOT EXISTS (SELECT 1 FROM antiphon.media_uses AS u WHERE u.tenant = $1 AND u.hash = m.hash)
""",
    "DELETE FROM media WHERE $2 IS NOT NULL AND hash NOT IN (SELECT hash FROM media_uses)",
)
_OF_THREADS = ("thread_keys", "open_calls", "snapshots", "media_uses")


def delete(thread_id: str, with_branches: bool) -> Verb[tuple[str, ...]]:
    """Delete a thread, and with `with_branches` also its branches.

    Raises:
        UnknownThreadError: there is no such thread.
        ValueError: there are branches, and `with_branches` is False.
    """
    family = yield from _locked_family(thread_id)
    names = [name for _, name in family]
    if len(names) > 1 and not with_branches:
        raise ValueError(f"{', '.join(map(repr, names[1:]))} share its messages; delete them first, or with_branches=True")
    yield from _remove([key for key, _ in family])
    return tuple(names)


def _locked_family(thread_id: str) -> Verb[list[tuple[int, str]]]:
    """Lock a thread, its branches and theirs, and return them. While the locks are waited for, a branch may be made.

    Raises:
        UnknownThreadError: there is no such thread.
    """
    thread = yield from find_thread(thread_id)
    locked: set[str] = set()
    while thread is not None:
        family = [(key, name) for key, name in (yield from rows(_FAMILY, thread.key))]
        names = {name for _, name in family} - locked
        if family and not names:
            return family
        if not family:
            break
        yield from lock_threads(names)
        locked |= names
    raise UnknownThreadError("there is no such thread", thread_id)


def _remove(keys: Sequence[int]) -> Verb[None]:
    """Delete threads, and media that no message uses any longer."""
    media = [columns[0] for columns in (yield from rows(_USED_MEDIA, keys))]
    for table in _OF_THREADS:
        sql = f"DELETE FROM antiphon.{table} WHERE tenant = $1 AND thread = ANY($2::bigint[])"  # noqa: S608 (names of ours)
        yield from write(sql, keys)
    yield RemoveMessages(keys)
    yield from write("DELETE FROM antiphon.threads WHERE tenant = $1 AND key = ANY($2::bigint[])", keys, table="threads")
    if media:
        # A statement of its own: it waits for appends that use the media again, and the next one sees their uses.
        yield from rows(_LOCK_MEDIA, media)
        yield from write(_UNUSED_MEDIA, media)


def forget(thread_id: str, with_branches: bool) -> Verb[tuple[str, ...]]:
    """Delete the key of a thread, and with `with_branches` also the keys of its branches.

    Raises:
        ForgottenError: it was forgotten before.
        EncryptionError: it is not encrypted.
        UnknownThreadError: there is no such thread.
        ValueError: there are branches, and `with_branches` is False.
    """
    keys = [key for key, _ in (yield from _locked_family(thread_id))]
    family = [thread_of(columns) for columns in (yield from rows(LOCKED_THREADS, keys))]
    if not family:
        raise UnknownThreadError("there is no such thread", thread_id)
    changed = yield from forget_keys(family, with_branches=with_branches)
    yield ChangeThreads(changed, is_whole=True)
    return tuple(thread.state.thread_id for thread in changed)


# ---------------------------------------------------------------- expiry

_MOST_EXPIRED = 500
_MOST_EXPIRED_MESSAGES = 50_000
"""Threads and messages that are deleted in one transaction. Each thread takes one of PostgreSQL's locks, of which it has 6,400
by default, and a statement must end within the patience of the ledger."""
_OLD = Spelled(
    """
SELECT key, thread_id, seq - base_seq FROM antiphon.threads
WHERE tenant = $1 AND active_at <= $2::bigint / 8000000 AND updated_at < $2 ORDER BY key DESC
""",
    "SELECT key, thread_id, seq - base_seq FROM threads WHERE updated_at < $2 ORDER BY key DESC",
)
"""Branches before their origins: a branch is always created after its origin."""
_STILL_OLD = """
SELECT t.key, t.thread_id, t.base, t.updated_at < $3 AND NOT EXISTS (
    SELECT 1 FROM antiphon.threads AS b WHERE b.tenant = $1 AND b.base = t.key AND b.key <> ALL($2::bigint[])
)
FROM antiphon.threads AS t WHERE t.tenant = $1 AND t.key = ANY($2::bigint[]) ORDER BY t.key DESC
"""


class OldThread(NamedTuple):
    """A thread that has not changed for long."""

    key: int
    thread_id: str
    messages: int


def old_threads(before: int) -> Verb[list[list[OldThread]]]:
    """Return the threads that have not changed since a time, as batches to delete; each branch before its origin."""
    batches: list[list[OldThread]] = []
    room = 0
    for thread in [OldThread(*columns) for columns in (yield from rows(_OLD, before))]:
        if not batches or room < thread.messages or len(batches[-1]) == _MOST_EXPIRED:
            batches.append([])
            room = max(_MOST_EXPIRED_MESSAGES, thread.messages)
        batches[-1].append(thread)
        room -= thread.messages
    return batches


def expire(batch: Sequence[OldThread], before: int) -> Verb[tuple[str, ...]]:
    """Delete those of some threads that still have not changed since a time, and that no branch needs."""
    yield from lock_threads([thread.thread_id for thread in batch])  # no branch of them is made from here on
    gone: dict[int, str] = {}
    needed: set[int | None] = set()
    for key, name, base, is_free in (yield from rows(_STILL_OLD, [thread.key for thread in batch], before)):
        if is_free and key not in needed:
            gone[key] = name
        else:
            needed.add(base)
    if gone:
        yield from _remove(list(gone))
    return tuple(gone.values())
