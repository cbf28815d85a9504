"""Verifies a ledger in PostgreSQL: every thread, row by row, then the rows that belong to no thread.

`diagnose` checks the server and its settings: durability, waiting readers, locks, tenants, the clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any

from antiphon.errors import NoMasterKeyError
from antiphon.ledger._listing import fold_words, words_of
from antiphon.ledger._records import OpenCall, Pairing, snapshot_hash
from antiphon.ledger._stored import Subject, Thread, join
from antiphon.ledger._values import Damage, Diagnosis, Head
from antiphon.ledger._verification import Examination, StoredRow, add_row, row_opener
from antiphon.ledger.postgres._connection import Row, Session
from antiphon.ledger.postgres._keys import find_key
from antiphon.ledger.postgres._queries import tail_lag, vector_of
from antiphon.ledger.postgres._rows import find_open_calls, find_thread, key_of, lineage, link_at, media_at, name_of, open_from
from antiphon.messages import Message

_STEP = 500
"""Rows that are checked in one transaction."""
_ROWS = """
SELECT m.seq, m.id_key, m.invocation_key, m.correlation_key, m.open_from, m.recorded_at, m.hash, m.media, m.body,
    (m.era, m.xid, m.ord) <= (p.era, p.xid, p.ord) AS is_misplaced
FROM antiphon.messages AS m
LEFT JOIN antiphon.messages AS p ON p.tenant = m.tenant AND p.thread = m.thread AND p.seq = m.seq - 1
WHERE m.tenant = $1 AND m.thread = $2 AND m.seq > $3 AND m.seq <= $4 ORDER BY m.seq LIMIT $5
"""
_CALLS = "SELECT count(*) FROM antiphon.open_calls WHERE tenant = $1 AND thread = $2"
_WORDS = """
SELECT w.seq, w.words = v.words::tsvector FROM antiphon.words AS w JOIN unnest($3::bigint[], $4::text[]) AS v (seq, words)
    ON v.seq = w.seq WHERE w.tenant = $1 AND w.thread = $2
"""
_STRAYS = {
    """
SELECT 1 FROM antiphon.threads AS t WHERE t.tenant = $1
    AND t.open_calls <> (SELECT count(*) FROM antiphon.open_calls AS o WHERE o.tenant = t.tenant AND o.thread = t.key)
""": "the number of open calls of a thread is wrong",
    """
SELECT 1 FROM antiphon.messages
WHERE tenant = $1 AND thread NOT IN (SELECT key FROM antiphon.threads WHERE tenant = $1)
""": ("there are messages of a thread that is not there"),
    """
SELECT 1 FROM antiphon.messages AS m JOIN antiphon.threads AS t ON t.tenant = m.tenant AND t.key = m.thread
WHERE m.tenant = $1 AND (m.seq > t.seq OR m.seq <= t.base_seq)
""": "there is a message outside of its thread",
    """
SELECT 1 FROM antiphon.open_calls
WHERE tenant = $1 AND thread NOT IN (SELECT key FROM antiphon.threads WHERE tenant = $1)
""": ("an open call belongs to no thread"),
    """
SELECT 1 FROM antiphon.snapshots
WHERE tenant = $1 AND thread NOT IN (SELECT key FROM antiphon.threads WHERE tenant = $1)
""": ("a snapshot belongs to no thread"),
    """
SELECT 1 FROM antiphon.thread_keys
WHERE tenant = $1 AND thread <> 0 AND thread NOT IN (SELECT key FROM antiphon.threads WHERE tenant = $1)
""": ("a key belongs to no thread"),
    """
SELECT 1 FROM antiphon.media_uses AS u WHERE u.tenant = $1 AND NOT EXISTS (
    SELECT 1 FROM antiphon.messages AS m WHERE m.tenant = $1 AND m.thread = u.thread AND m.seq = u.seq
)""": "a medium belongs to no message",
    """
SELECT 1 FROM antiphon.media AS m WHERE m.tenant = $1 AND NOT EXISTS (
    SELECT 1 FROM antiphon.media_uses AS u WHERE u.tenant = $1 AND u.hash = m.hash
)""": "a medium is used by no message",
}


async def names(session: Session) -> tuple[list[str], int]:
    """Return the names of all threads, and the number of all messages."""
    rows = await session.fetch("SELECT thread_id FROM antiphon.threads WHERE tenant = $1 ORDER BY thread_id")
    total = await session.fetchval("SELECT count(*) FROM antiphon.messages WHERE tenant = $1")
    return [row[0] for row in rows], int(total)


async def begin(session: Session, name: str) -> Subject | Damage | None:
    """Begin to check a thread; None if it was deleted."""
    thread = await find_thread(session, name)
    if thread is None:
        return None
    calls: list[OpenCall] = []
    with suppress(NoMasterKeyError):  # only the chain is checked then
        calls = (await find_open_calls(session, [thread])).get(thread.key, [])
    link = await link_at(session, thread.key, thread.base_seq)
    if link is None:
        return Damage(name, thread.base_seq, "the message after which it branched is missing")
    counted = await session.fetchval(_CALLS, thread.key)
    if counted != thread.open_calls:
        return Damage(name, None, "the number of its open calls is wrong")
    pairing = await _open_at_base(session, thread)
    opener = row_opener(session.keyring, name, await find_key(session, thread.key))
    return Subject(thread, calls, Examination(name, thread.base_seq, link, pairing, opener))


async def _open_at_base(session: Session, thread: Thread) -> Pairing | None:
    """Return the calls that were open at the start of a branch; None if there is no key to read them."""
    first = None if thread.base is None else await open_from(session, thread, thread.base_seq)
    if first is None:
        return Pairing()
    pairing = Pairing(first - 1)
    shared = thread._replace(state=thread.state._replace(seq=thread.base_seq))
    for key, low, high in await lineage(session, shared):
        opener = row_opener(session.keyring, await name_of(session, key), await find_key(session, key))
        for row in await session.fetch(_ROWS, key, max(low, first) - 1, high, None):
            if not add_row(pairing, row["seq"], await _whole(session, key, row), opener):
                return None
    return pairing


async def look(session: Session, subject: Subject, after: int, heads: Mapping[str, Head]) -> int | Damage | None:
    """Check the next rows of a thread. Return where to continue, or the damage, or None at the end."""
    thread, examination = subject.thread, subject.examination
    name, key = thread.state.thread_id, thread.key
    found = await session.fetch(_ROWS, key, after, thread.state.seq, _STEP)
    wanted = frozenset({heads[name].seq} if name in heads else ())
    rows = [await _stored(session, key, row) for row in found]
    if damage := examination.rows(rows, wanted) or await _words_damage(session, thread, rows):
        return damage
    if len(found) == _STEP:
        return int(found[-1]["seq"])
    return examination.end(thread.state, subject.open_calls, heads) or await _snapshot_damage(session, thread)


async def _stored(session: Session, key: int, row: Row) -> StoredRow:
    media = await media_at(session, key, row["seq"]) if row["media"] else []
    keys = await _media_hashes(session, key, row["seq"]) if row["media"] else []
    complaint = "a medium in it is not what it was" if [sha256(hole.text).digest() for hole in media] != keys else None
    if row["media"] and len(media) != row["media"]:
        complaint = "a medium in it is missing"
    if row["is_misplaced"]:
        complaint = "its place in the order of all threads is before that of the message that precedes it"

    def look_at(message: Message | None) -> str | None:
        if message is None:
            return complaint
        named = (message.invocation_id, message.correlation_id)
        expected = tuple(None if name is None else key_of(name) for name in named)
        is_found = any(key_of(message.id, salt) == row["id_key"] for salt in range(64))
        if (row["invocation_key"], row["correlation_key"]) != expected or not is_found:
            return "its index keys are wrong"
        return complaint

    whole = join(row["body"], media)
    return StoredRow(row["seq"], row["recorded_at"], row["hash"], row["open_from"], whole, look_at)


async def _whole(session: Session, key: int, row: Row) -> bytes:
    return join(row["body"], await media_at(session, key, row["seq"]) if row["media"] else [])


async def _media_hashes(session: Session, key: int, seq: int) -> list[bytes]:
    sql = "SELECT hash FROM antiphon.media_uses WHERE tenant = $1 AND thread = $2 AND seq = $3 ORDER BY place"
    return [row[0] for row in await session.fetch(sql, key, seq)]


async def _words_damage(session: Session, thread: Thread, rows: list[StoredRow]) -> Damage | None:
    """Compare the index of words with the messages, where it has them."""
    texts = [vector_of(fold_words(words_of(row.body))) for row in rows]
    found = await session.fetch(_WORDS, thread.key, [row.seq for row in rows], texts)
    wrong = [row[0] for row in found if not row[1]]
    return Damage(thread.state.thread_id, min(wrong), "the index of words has other words for it") if wrong else None


async def _snapshot_damage(session: Session, thread: Thread) -> Damage | None:
    sql = "SELECT fold, seq, hash, state FROM antiphon.snapshots WHERE tenant = $1 AND thread = $2"
    for row in await session.fetch(sql, thread.key):
        fold, seq, digest, state = row.values()
        link = await link_at(session, thread.key, seq)
        if link is None or snapshot_hash(link, fold, state) != digest:
            return Damage(thread.state.thread_id, seq, f"the snapshot of {fold!r} is not what it was")
    return None


async def damages_outside(session: Session) -> list[Damage]:
    """Return rows that belong to no thread or message."""
    return [Damage(None, None, what) for sql, what in _STRAYS.items() if await session.fetchval(f"{sql} LIMIT 1")]


# ---------------------------------------------------------------- diagnosis

_OLDEST_SERVER = 130_000
_OPEN_TOO_LONG = 60.0
"""Seconds: a transaction that is open for longer delays `tail` noticeably."""
_FEW_LOCKS = 64 * 50
"""Locks of all transactions together; a group of appends takes up to 200."""

_LOOK = """
WITH open AS MATERIALIZED (
    SELECT xact_start AS since, application_name || ' (process ' || pid || ')' AS who
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT prepared, 'the prepared transaction ' || gid FROM pg_prepared_xacts
)
SELECT
    current_setting('server_version_num')::integer AS number,
    current_setting('server_version') AS version,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS standby_names,
    current_setting('max_locks_per_transaction')::integer * current_setting('max_connections')::integer AS locks,
    (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user) AS is_above_rules,
    (SELECT count(*) FROM pg_stat_replication) AS standbys,
    (SELECT extract(epoch FROM max(clock_timestamp() - since))::double precision FROM open) AS oldest,
    (SELECT who FROM open ORDER BY since LIMIT 1) AS who,
    (SELECT count(*) FROM open WHERE since IS NULL) AS hidden,
    pg_size_pretty(pg_database_size(current_database())) AS size
WHERE $1::text IS NOT NULL
"""
"""An ordinary user sees that another user's transaction is open, and not since when."""


async def diagnose(session: Session, skew: timedelta, now: int) -> tuple[Diagnosis, ...]:
    """Examine the server; `skew` is how far its clock is from this machine's."""
    row = await session.fetchrow(_LOOK)
    assert row is not None  # noqa: S101 (the statement always has a row)
    return tuple(_diagnoses(row, skew, await tail_lag(session, now)))


def _diagnoses(row: Any, skew: timedelta, lag: float) -> Iterator[Diagnosis]:
    is_old = row["number"] < _OLDEST_SERVER
    yield Diagnosis("PostgreSQL", row["version"], "upgrade the server to 13 or later" if is_old else None)
    for name, danger in (
        ("fsync", "a power cut can destroy the whole database"),
        ("full_page_writes", "a power cut can damage pages"),
        ("synchronous_commit", "a crash loses appends that were acknowledged"),
    ):
        is_off = row[name] in ("off", "local") if name == "synchronous_commit" else row[name] == "off"
        yield Diagnosis(name, row[name], f"set {name} = on in postgresql.conf: without it, {danger}" if is_off else None)
    oldest = row["oldest"] or 0.0
    held = f"{row['who']} has had a transaction open for {oldest:.0f} s" if oldest else "none is open"
    held += f"; and {row['hidden']} of other users, for a time that only pg_read_all_stats shows" if row["hidden"] else ""
    yield Diagnosis(
        "oldest transaction",
        held,
        "end it, or set idle_in_transaction_session_timeout: it holds every tail back" if oldest > _OPEN_TOO_LONG else None,
    )
    yield Diagnosis(
        "tail",
        f"held back for {lag:.0f} s" if lag else "up to date",
        "end the transaction that holds it back: a superuser sees it in pg_stat_activity or pg_prepared_xacts"
        if lag > _OPEN_TOO_LONG
        else None,
    )
    few = "raise max_locks_per_transaction or max_connections: a group of appends takes up to 200 locks"
    yield Diagnosis("locks", str(row["locks"]), few if row["locks"] < _FEW_LOCKS else None)
    yield Diagnosis(
        "user",
        "not bound by row-level security" if row["is_above_rules"] else "bound by row-level security",
        "use an ordinary user, so that row-level security keeps tenants apart" if row["is_above_rules"] else None,
    )
    kept = f"{row['standbys']} standbys, synchronous: {row['standby_names'] or 'none'}"
    yield Diagnosis("replication", kept)  # a single server may suffice, so this gives no advice
    yield Diagnosis("disk", f"{row['size']} used; only the machine of the server shows how much is free")
    seconds = abs(skew.total_seconds())
    yield Diagnosis(
        "clock",
        f"{seconds:.1f} s from this machine's",
        "set the clock of this machine: times are taken from the database until then" if seconds > 1 else None,
    )
