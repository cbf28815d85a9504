"""From rows to records: threads and their origins, messages with checked links, and places in the order of all threads."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

import orjson

from antiphon.errors import ForgottenError, LedgerCorruptError
from antiphon.ledger._admission import State
from antiphon.ledger._encryption import ThreadKey, is_sealed
from antiphon.ledger._records import OpenCall, Pairing, Record, from_micros, genesis, link
from antiphon.ledger._stored import (
    MOST_BYTES,
    MOST_ROWS,
    Ancestor,
    Hole,
    PageRequest,
    Thread,
    ThreadSegment,
    join,
    segments_of,
)
from antiphon.ledger.postgres._connection import Row, Session
from antiphon.ledger.postgres._keys import check_remembered, thread_key

# ---------------------------------------------------------------- places

_CURSOR = re.compile(r"([0-9]{1,9})\.([0-9]{1,18})\.([0-9]{1,9})", re.ASCII)


class CommitPlace(NamedTuple):
    """The place of a message in the one order of all threads (see `_schema`)."""

    era: int
    xid: int
    ord: int

    def __str__(self) -> str:
        return f"{self.era}.{self.xid}.{self.ord}"


BEGINNING = CommitPlace(0, 0, 0)


def place_of(cursor: str | None) -> CommitPlace:
    """Return the place that a cursor names; without a cursor, the one before all messages.

    Raises:
        ValueError: it is not a cursor.
    """
    if cursor is None:
        return BEGINNING
    if not (match := _CURSOR.fullmatch(cursor)):
        raise ValueError(f"expected a cursor of tail or horizon, got {cursor!r}")
    return CommitPlace(*map(int, match.groups()))


# ---------------------------------------------------------------- threads

_COLUMNS = """
t.key, t.thread_id, t.seq, t.hash, t.epoch, t.run, t.open_from, t.status, t.pattern, t.created_at, t.updated_at,
t.input_tokens, t.output_tokens, t.cost, t.forked_from, t.forked_at, t.is_redacted, t.owner, t.kind, t.due_at, t.posted,
t.unfit, t.open_calls, t.base, t.base_seq
"""
THREAD = f"SELECT {_COLUMNS} FROM antiphon.threads AS t"  # noqa: S608 (columns of ours)
THREAD_AND_OWNER = f"""
SELECT {_COLUMNS}, h.name FROM antiphon.threads AS t LEFT JOIN antiphon.hosts AS h ON h.tenant = t.tenant AND h.key = t.owner
"""  # noqa: S608
"""The columns of a thread, to which a caller adds the conditions."""

_LINE = """
WITH RECURSIVE line (key, base, base_seq, thread_id) AS (
    SELECT key, base, base_seq, thread_id FROM antiphon.threads WHERE tenant = $1 AND key = $2
    UNION ALL
    SELECT t.key, t.base, t.base_seq, t.thread_id
    FROM line JOIN antiphon.threads AS t ON t.tenant = $1 AND t.key = line.base AND t.key < line.key AND line.base_seq >= $3
)
SELECT key, base, base_seq, thread_id FROM line ORDER BY key DESC
"""
"""The comparison of keys ends the recursion: a branch is younger than its origin, and an altered table could have a cycle."""


_FIELDS = len(State._fields)


def thread_of(row: Row, others: int = 0) -> Thread:
    """Return a row as a `Thread`: the key, the fields of the state, and the other fields; without the last `others`."""
    key, *columns = tuple(row.values())[: len(row) - others]
    open_calls, base, base_seq, *owner = columns[_FIELDS:]
    return Thread(key, State(*columns[:_FIELDS]), open_calls, base, base_seq, owner=owner[0] if owner else None)


def is_storable(text: str) -> bool:
    """Whether a column can hold a text: PostgreSQL refuses a text with a NUL, and no name has one."""
    return "\0" not in text


async def find_thread(session: Session, thread_id: str) -> Thread | None:
    """Return a thread's row with the name of its owner, if there is one."""
    if not is_storable(thread_id):
        return None
    row = await session.fetchrow(f"{THREAD_AND_OWNER} WHERE t.tenant = $1 AND t.thread_id = $2", thread_id)
    return None if row is None else thread_of(row)


async def line_to(session: Session, key: int, seq: int) -> list[Ancestor]:
    """Return a thread and its origins, down to the one that holds a message."""
    return [Ancestor(*row) for row in await session.fetch(_LINE, key, seq)]


async def lineage(session: Session, thread: Thread) -> list[ThreadSegment]:
    """Return the segments of a thread's messages, from the first to the last."""
    return segments_of(thread, (await line_to(session, thread.key, 1))[1:] if thread.base is not None else ())


async def link_at(session: Session, key: int, seq: int) -> bytes | None:
    """Return the link of a message of a thread or its origins; None if it is missing."""
    line = await line_to(session, key, seq)
    if not line:
        return None
    holder = line[-1]
    if seq > holder.base_seq:
        sql = "SELECT hash FROM antiphon.messages WHERE tenant = $1 AND thread = $2 AND seq = $3"
        found: bytes | None = await session.fetchval(sql, holder.key, seq)
        return found
    return genesis(holder.thread_id) if holder.base is None else None


# ---------------------------------------------------------------- open calls


def dump_call(call: OpenCall) -> bytes:
    """Return an open call as it is stored, without its place."""
    return orjson.dumps(tuple(call)[1:])


def load_call(seq: int, stored: bytes) -> OpenCall:
    """Return the call that `dump_call` was given."""
    is_effect, invocation_id, option_name, turn = orjson.loads(stored)
    return OpenCall(seq, is_effect, invocation_id, option_name, turn)


async def find_open_calls(session: Session, threads: Iterable[Thread]) -> dict[int, list[OpenCall]]:
    """Return the calls of some threads that have no result, in order, by the key of the thread."""
    found: dict[int, list[OpenCall]] = {}
    if keys := [thread.key for thread in threads if thread.open_calls]:
        sql = """
SELECT thread, seq, call FROM antiphon.open_calls WHERE tenant = $1 AND thread = ANY($2::bigint[]) ORDER BY thread, seq
"""
        ciphers: dict[int, ThreadKey | None] = {}
        for key, seq, call in await session.fetch(sql, keys):
            if is_sealed(call) and key not in ciphers:
                ciphers[key] = await thread_key(session, key)
            cipher = ciphers.get(key)
            found.setdefault(key, []).append(load_call(seq, call) if cipher is None else cipher.open_call(seq, call))
    return found


# ---------------------------------------------------------------- messages

MESSAGES = """
SELECT m.thread, m.seq, m.era, m.xid, m.ord, m.recorded_at, m.hash, m.media, m.body, p.hash AS previous
FROM antiphon.messages AS m
LEFT JOIN antiphon.messages AS p ON p.tenant = m.tenant AND p.thread = m.thread AND p.seq = m.seq - 1
"""
"""Messages with the link before each, to which a caller adds the conditions."""
BELOW_HORIZON = """
(m.era < (SELECT era FROM antiphon.ledger) OR m.xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint)
"""
"""No running transaction can write a message with a smaller place."""


class FoundRecord(NamedTuple):
    """A record, the key of the thread that holds it, and its place."""

    thread: int
    place: CommitPlace
    record: Record


async def records_of(session: Session, rows: Iterable[Row], *, with_forgotten: bool = False) -> list[FoundRecord]:
    """Return rows of `MESSAGES` as records, after their links have been checked; up to the first altered one.

    Rows of forgotten threads are left out, unless `with_forgotten` asks for an error.

    Raises:
        EncryptionError: a row is encrypted, and its key is missing.
        LedgerCorruptError: the first of them was altered.
    """
    found: list[FoundRecord] = []
    keys: dict[int, ThreadKey | None] = {}
    for row in rows:
        key, seq, era, xid, number, recorded_at, digest, media, body, previous = tuple(row.values())
        whole = body if not media else join(body, await media_at(session, key, seq))
        before = previous or await link_at(session, key, seq - 1)
        if before is None or link(before, recorded_at, whole) != digest:
            if found:
                break
            reason = "it was altered, or the message before it is missing; restore a dump, and run verify on it"
            raise LedgerCorruptError(reason, await name_of(session, key), seq)
        try:
            house = whole if not is_sealed(whole) else await _opened(session, keys, key, seq, whole)
        except ForgottenError:
            if with_forgotten:
                raise
            continue
        record = Record(seq, house, digest.hex(), from_micros(recorded_at), stored=whole)
        found.append(FoundRecord(key, CommitPlace(era, xid, number), record))
    return found


async def _opened(session: Session, keys: dict[int, ThreadKey | None], thread: int, seq: int, stored: bytes) -> bytes:
    """Return the house bytes of a sealed row; `keys` has the keys that were looked up in this transaction."""
    if thread not in keys:
        keys[thread] = await thread_key(session, thread)
    found = keys[thread]
    if found is None:
        raise LedgerCorruptError("it is encrypted, and its thread has no key", await name_of(session, thread), seq)
    return found.open(seq, stored)


async def media_at(session: Session, key: int, seq: int) -> list[Hole]:
    """Return the media of a message; a missing one is left out."""
    sql = """
SELECT u.place, m.text FROM antiphon.media_uses AS u JOIN antiphon.media AS m ON m.tenant = u.tenant AND m.hash = u.hash
WHERE u.tenant = $1 AND u.thread = $2 AND u.seq = $3 ORDER BY u.place
"""
    return [Hole(place, text) for place, text in await session.fetch(sql, key, seq)]


async def name_of(session: Session, key: int) -> str:
    """Return the name of a thread, for an error."""
    name = await session.fetchval("SELECT thread_id FROM antiphon.threads WHERE tenant = $1 AND key = $2", key)
    return f"(thread {key}, whose name is gone)" if name is None else str(name)


_FORWARD = f"{MESSAGES} WHERE m.tenant = $1 AND m.thread = $2 AND m.seq BETWEEN $3 AND $4 ORDER BY m.seq LIMIT $5"
_BACKWARD = f"{MESSAGES} WHERE m.tenant = $1 AND m.thread = $2 AND m.seq BETWEEN $3 AND $4 ORDER BY m.seq DESC LIMIT $5"


async def page_of_thread(session: Session, thread: Thread | None, request: PageRequest) -> list[FoundRecord]:
    """Return the next messages of a thread; none if there are no more.

    Raises:
        LedgerCorruptError: the first of them was altered or is missing.
    """
    if thread is None:
        return []
    first, last = request.within(thread.state.seq)
    if first > last:
        return []
    if thread.base is not None and thread.state.epoch < 0:  # a forgotten branch may have no row of its own
        await check_remembered(session, thread)
    edge, step = (last, -1) if request.reverse else (first, 1)
    found: list[FoundRecord] = []
    async for each in _stretch(session, thread, first, last, reverse=request.reverse, most=request.most):
        if each.record.seq != edge + step * len(found):
            break
        found.append(each)
    if not found:
        reason = f"the thread has {thread.state.seq} messages, and this one is missing"
        raise LedgerCorruptError(reason, thread.state.thread_id, edge)
    return found


async def _stretch(
    session: Session,
    thread: Thread,
    first: int,
    last: int,
    *,
    reverse: bool = False,
    most: int = MOST_ROWS,
) -> AsyncIterator[FoundRecord]:
    """Yield messages of a range, forwards or backwards, from all threads that hold them."""
    segments = await lineage(session, thread)
    size = count = 0
    for key, low, high in reversed(segments) if reverse else segments:
        if max(first, low) > min(last, high):
            continue
        sql = _BACKWARD if reverse else _FORWARD
        rows = await session.fetch(sql, key, max(first, low), min(last, high), most - count)
        for each in await records_of(session, rows, with_forgotten=True):
            yield each
            count += 1
            size += len(each.record.body)
            if count == most or size >= MOST_BYTES:
                return


async def open_at(session: Session, thread: Thread, seq: int) -> Pairing:
    """Return the calls of a thread that were open after a message. It reads back to the last place without open calls."""
    first = await open_from(session, thread, seq)
    if first is None:
        return Pairing()
    pairing = Pairing(first - 1)
    async for each in _stretch(session, thread, first, seq, most=seq - first + 1):
        pairing.add(each.record.seq, each.record.message)
    return pairing


async def open_from(session: Session, thread: Thread, seq: int) -> int | None:
    """Return the place of the first call since no call was open, as of a message."""
    line = await line_to(session, thread.key, seq)
    sql = "SELECT open_from FROM antiphon.messages WHERE tenant = $1 AND thread = $2 AND seq = $3"
    found: int | None = await session.fetchval(sql, line[-1].key, seq) if line else None
    return found


# ---------------------------------------------------------------- keys


def key_of(name: str, salt: int = 0) -> int:
    """Return the index key of a name: 64 bits. If a key is taken, the next salt gives another one."""
    return int.from_bytes(blake2b(f"{salt} {name}".encode(), digest_size=8).digest(), "big", signed=True)


_KEYS = """
SELECT seq, id_key FROM antiphon.messages WHERE tenant = $1 AND thread = $2 AND seq <= $3 AND id_key = ANY($4::bigint[])
"""
_AT = f"{MESSAGES} WHERE m.tenant = $1 AND m.thread = $2 AND m.seq = ANY($3::bigint[]) ORDER BY m.seq"


async def records_with_ids(session: Session, ids: Iterable[str], segments: Iterable[ThreadSegment]) -> dict[str, list[Record]]:
    """Return the messages with some ids. It looks under each key that an id may have, until a key is unused."""
    found: dict[str, list[Record]] = {}
    wanted = set(ids)
    for segment in segments:
        seqs: list[int] = []
        salt = 0
        left: dict[int, str] = {key_of(name): name for name in wanted}
        while left:
            rows = await session.fetch(_KEYS, segment.key, segment.last, list(left))
            seqs += [row["seq"] for row in rows]
            salt += 1
            left = {key_of(left[row["id_key"]], salt): left[row["id_key"]] for row in rows}
        rows = await session.fetch(_AT, segment.key, seqs) if seqs else []
        for each in await records_of(session, rows, with_forgotten=True):
            if each.record.message.id in wanted:
                found.setdefault(each.record.message.id, []).append(each.record)
    return found


_BY_KEY = {
    "invocation": f"""
{MESSAGES} WHERE m.tenant = $1 AND m.invocation_key = ANY($2::bigint[])
    AND ($3::bigint[] IS NULL OR m.thread = ANY($3::bigint[]))
ORDER BY m.era, m.xid, m.ord
""",
    "correlation": f"""
{MESSAGES} WHERE m.tenant = $1 AND m.correlation_key = ANY($2::bigint[])
    AND ($3::bigint[] IS NULL OR m.thread = ANY($3::bigint[]))
ORDER BY m.era, m.xid, m.ord
""",
}


async def records_by_key(
    session: Session, kind: str, names: Iterable[str], segments: Sequence[ThreadSegment] | None
) -> list[Record]:
    """Return the messages under the keys of some names, in some segments or in all threads.

    Raises:
        LedgerCorruptError: one of them was altered.
    """
    keys = [key_of(name) for name in names]
    threads = None if segments is None else [segment.key for segment in segments]
    rows = await session.fetch(_BY_KEY[kind], keys, threads)
    ends = None if segments is None else {segment.key: segment.last for segment in segments}
    found = [row for row in rows if ends is None or row["seq"] <= ends[row["thread"]]]
    records: list[Record] = []
    while found:
        some = await records_of(session, found, with_forgotten=segments is not None)
        records += [each.record for each in some]
        last = some[-1].place if some else None  # after it, a row was altered: the next round says so
        found = [row for row in found if last is not None and CommitPlace(row["era"], row["xid"], row["ord"]) > last]
    return records
