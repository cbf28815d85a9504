"""Changes other than appends and claims: branches, restored threads, deletion. Each runs in a transaction."""

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
from antiphon.ledger._stored import Thread
from antiphon.ledger._values import Head, ThreadJournal
from antiphon.ledger._verification import Base, existing, missing_origin, restored
from antiphon.ledger.postgres import _keys
from antiphon.ledger.postgres._careful import (
    CarefulAppends,
    KnownThread,
    RowWriter,
    insert_thread,
    lock_indexes,
    lock_threads,
    update_thread,
)
from antiphon.ledger.postgres._connection import Session
from antiphon.ledger.postgres._keys import hold_master, ledger_key, store_key
from antiphon.ledger.postgres._rows import THREAD, CommitPlace, find_thread, line_to, link_at, open_at, thread_of


async def branch(session: Session, head: Head, at: int, pairing: Pairing, closing: AppendRequest) -> Thread:
    """Create a branch that shares a thread's messages up to a place, and close the calls that are open there.

    Raises:
        LedgerCorruptError: the head of the thread does not match its messages.
        UnknownThreadError: the thread was deleted.
        ValueError: a thread with the branch's id exists.
    """
    await lock_threads(session, [head.thread_id, closing.thread_id])
    if await find_thread(session, closing.thread_id) is not None:
        raise ValueError(f"there is a thread called {closing.thread_id!r} already")
    origin = await _still_there(session, head)
    link = await link_at(session, origin.key, at)
    if link is None:
        raise LedgerCorruptError("it is missing; restore a dump, and run verify on it", head.thread_id, at)
    state = new_state(closing.thread_id, closing.micros)
    state = state._replace(seq=at, run=at, hash=link, forked_from=head.thread_id, forked_at=at)
    state = state._replace(open_from=pairing.open_from, is_redacted=origin.state.is_redacted, kind=origin.state.kind)
    own = await ledger_key(session)
    lock, cipher = session.keyring.key_to_write(closing.thread_id, None, own, is_new=True)
    thread = Thread(0, state, pairing.count, origin.key, at)
    known = await _inserted(session, thread, pairing.open, lock, cipher)
    await RowWriter(session).open_calls(known, pairing.open, await _places(session, known.thread.key, pairing.open))
    appends = CarefulAppends(session)
    appends.known[closing.thread_id] = known
    await appends.append(closing)
    return known.row


async def _inserted(
    session: Session, thread: Thread, calls: Iterable[OpenCall], lock: WrappedKey | None, cipher: ThreadKey | None
) -> KnownThread:
    """Insert a thread with its key, if it has one."""
    known = KnownThread(thread._replace(key=await insert_thread(session, thread)), calls)
    known.lock, known.cipher, known.is_keyed = lock, cipher, True
    if lock is not None:
        await hold_master(session, lock)
        await store_key(session, known.thread.key, lock)
        known.blinding = await ledger_key(session)
    return known


async def _places(session: Session, key: int, calls: Iterable[OpenCall]) -> dict[int, CommitPlace]:
    """Return the places of the messages of open calls, which an origin may hold."""
    places: dict[int, CommitPlace] = {}
    sql = "SELECT era, xid, ord FROM antiphon.messages WHERE tenant = $1 AND thread = $2 AND seq = $3"
    for call in calls:
        line = await line_to(session, key, call.seq)
        row = await session.fetchrow(sql, line[-1].key, call.seq)
        if row is not None:
            places[call.seq] = CommitPlace(*row.values())
    return places


async def restore(
    session: Session, journals: Sequence[tuple[ThreadJournal, Head]], redaction: LedgerRedaction
) -> list[Thread]:
    """Write the rows of threads, each proven by its head: all threads or none.

    Raises:
        RestoreRefusedError: rows do not match, a thread exists already, or an origin does not exist.
    """
    names = [journal.thread_id for journal, _ in journals]
    # Between two statements, a long journal is examined: that may take longer than a transaction may be idle.
    await session.connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    await lock_threads(session, [*names, *(journal.forked_from or "" for journal, _ in journals)])
    writer = RowWriter(session)
    return [await _restore(session, writer, journal, head, redaction) for journal, head in journals]


async def _restore(
    session: Session, writer: RowWriter, journal: ThreadJournal, head: Head, redaction: LedgerRedaction
) -> Thread:
    if await find_thread(session, journal.thread_id) is not None:
        raise existing(journal.thread_id)
    origin, base = await _base_of(session, journal)
    found = restored(journal, head, base, redaction, session.keyring)
    calls = found.pairing.open
    thread = Thread(0, found.state, len(calls), origin, base.seq)
    cipher = None if journal.key is None else session.keyring.key(journal.thread_id, journal.key)
    known = await _inserted(session, thread, calls, journal.key, cipher)
    times = [to_micros(row.record.recorded_at) for row in found.rows]
    await writer.messages(known.thread.key, found.rows, times)
    await writer.open_calls(known, calls, await _places(session, known.thread.key, calls))
    return known.thread


async def _base_of(session: Session, journal: ThreadJournal) -> tuple[int | None, Base]:
    """Return the key of a journal's origin, and the messages that it shares with it."""
    if journal.forked_from is None:
        return None, Base(0, genesis(journal.thread_id), Pairing())
    origin, at = await find_thread(session, journal.forked_from), journal.forked_at or 0
    is_there = origin is not None and 0 <= at <= origin.state.seq
    link = await link_at(session, origin.key, at) if origin is not None and is_there else None
    if origin is None or link is None:
        raise missing_origin(journal)
    return origin.key, Base(at, link, await open_at(session, origin, at))


async def _still_there(session: Session, head: Head) -> Thread:
    """Return the thread of a head. A newer thread of the same name has other links, so it is not mistaken for it."""
    thread = await find_thread(session, head.thread_id)
    link = None if thread is None else await link_at(session, thread.key, head.seq)
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
_OF_THREADS = ("thread_keys", "open_calls", "snapshots", "media_uses", "messages")
_OF_INDEXES = ("words", "term_entries")
_LOCK_MEDIA = "SELECT 1 FROM antiphon.media WHERE tenant = $1 AND hash = ANY($2::bytea[]) ORDER BY hash FOR UPDATE"
_UNUSED_MEDIA = """
DELETE FROM antiphon.media AS m WHERE m.tenant = $1 AND m.hash = ANY($2::bytea[])
    AND NOT EXISTS (SELECT 1 FROM antiphon.media_uses AS u WHERE u.tenant = $1 AND u.hash = m.hash)
"""


async def delete(session: Session, thread_id: str, with_branches: bool) -> tuple[str, ...]:
    """Delete a thread, and with `with_branches` also its branches.

    Raises:
        UnknownThreadError: there is no such thread.
        ValueError: there are branches, and `with_branches` is False.
    """
    thread = await find_thread(session, thread_id)
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    family = await _locked_family(session, thread.key)
    names = [name for _, name in family]
    if not names:
        raise UnknownThreadError("there is no such thread", thread_id)
    if len(names) > 1 and not with_branches:
        raise ValueError(f"{', '.join(map(repr, names[1:]))} share its messages; delete them first, or with_branches=True")
    await _remove(session, [key for key, _ in family])
    return tuple(names)


async def _family(session: Session, key: int) -> list[tuple[int, str]]:
    """Return a thread, its branches, and their branches."""
    return [(row[0], row[1]) for row in await session.fetch(_FAMILY, key)]


async def _locked_family(session: Session, key: int) -> list[tuple[int, str]]:
    """Lock a thread, its branches and theirs, and return them. While the locks are waited for, a branch may be made."""
    locked: set[str] = set()
    while True:
        family = await _family(session, key)
        names = {name for _, name in family} - locked
        if not names:
            return family
        await lock_threads(session, names)
        locked |= names


async def _remove(session: Session, keys: Sequence[int]) -> None:
    """Delete threads, and media that no message uses any longer."""
    used = "SELECT DISTINCT hash FROM antiphon.media_uses WHERE tenant = $1 AND thread = ANY($2::bigint[])"
    media = [row[0] for row in await session.fetch(used, keys)]
    await _remove_rows(session, _OF_THREADS, keys)
    # After the messages, which take most of the time: searches wait for this lock. Those that have just indexed some of the
    # messages are waited for, and their words are deleted; later ones find no messages.
    await lock_indexes(session)
    await _remove_rows(session, _OF_INDEXES, keys)
    await session.execute("DELETE FROM antiphon.threads WHERE tenant = $1 AND key = ANY($2::bigint[])", keys)
    if media:
        # A statement of its own: it waits for appends that use the media again, and the next one sees their uses.
        await session.execute(_LOCK_MEDIA, media)
        await session.execute(_UNUSED_MEDIA, media)


async def _remove_rows(session: Session, tables: Sequence[str], keys: Sequence[int]) -> None:
    for table in tables:
        sql = f"DELETE FROM antiphon.{table} WHERE tenant = $1 AND thread = ANY($2::bigint[])"  # noqa: S608 (names of ours)
        await session.execute(sql, keys)


async def forget(session: Session, thread_id: str, with_branches: bool) -> tuple[str, ...]:
    """Delete the key of a thread, and with `with_branches` also the keys of its branches.

    Raises:
        ForgottenError: it was forgotten before.
        EncryptionError: it is not encrypted.
        UnknownThreadError: there is no such thread.
        ValueError: there are branches, and `with_branches` is False.
    """
    thread = await find_thread(session, thread_id)
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    keys = [key for key, _ in await _locked_family(session, thread.key)]
    sql = f"{THREAD} WHERE t.tenant = $1 AND t.key = ANY($2::bigint[]) ORDER BY t.key FOR UPDATE OF t"
    family = [thread_of(row) for row in await session.fetch(sql, keys)]
    if not family:
        raise UnknownThreadError("there is no such thread", thread_id)
    changed = await _keys.forget(session, family, with_branches=with_branches)
    for each in changed:
        await update_thread(session, each)
    return tuple(each.state.thread_id for each in changed)


# ---------------------------------------------------------------- expiry

_MOST_EXPIRED = 500
_MOST_EXPIRED_MESSAGES = 50_000
"""Threads and messages that are deleted in one transaction. Each thread takes one of the server's locks, of which it has 6,400
by default, and a statement must end within the patience of the ledger."""
_OLD = """
SELECT key, thread_id, seq - base_seq FROM antiphon.threads
WHERE tenant = $1 AND active_at <= $2::bigint / 8000000 AND updated_at < $2 ORDER BY key DESC
"""
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


async def old_threads(session: Session, before: int) -> list[list[OldThread]]:
    """Return the threads that have not changed since a time, as batches to delete; each branch before its origin."""
    batches: list[list[OldThread]] = []
    left = 0
    for each in (OldThread(*row.values()) for row in await session.fetch(_OLD, before)):
        if not batches or left < each.messages or len(batches[-1]) == _MOST_EXPIRED:
            batches.append([])
            left = max(_MOST_EXPIRED_MESSAGES, each.messages)
        batches[-1].append(each)
        left -= each.messages
    return batches


async def expire(session: Session, batch: Sequence[OldThread], before: int) -> tuple[str, ...]:
    """Delete those of some threads that still have not changed since a time, and that no branch needs."""
    await lock_threads(session, [each.thread_id for each in batch])  # no branch of them is made from here on
    gone: dict[int, str] = {}
    needed: set[int | None] = set()
    for key, name, base, is_free in await session.fetch(_STILL_OLD, [each.key for each in batch], before):
        if is_free and key not in needed:
            gone[key] = name
        else:
            needed.add(base)
    if gone:
        await _remove(session, list(gone))
    return tuple(gone.values())
