"""From rows to records: large media, threads and their origins, and messages with checked links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b, sha256
from typing import Any
from zlib import crc32

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
from antiphon.ledger.sqlite._keys import check_remembered, thread_key
from antiphon.ledger.sqlite._sql import Connection

# ---------------------------------------------------------------- media


def keep_media(connection: Connection, position: int, holes: Iterable[Hole]) -> None:
    """Store the media of a row."""
    for place, text in holes:
        digest = sha256(text).digest()
        connection.run("INSERT INTO media (hash, text) VALUES (?, ?) ON CONFLICT DO NOTHING", (digest, text))
        key = connection.value("SELECT key FROM media WHERE hash = ?", (digest,))
        connection.run("INSERT INTO media_uses VALUES (?, ?, ?)", (position, place, key))


def forget_media(connection: Connection, positions: Iterable[int]) -> None:
    """Delete the media of rows, unless other rows use them."""
    for position in positions:
        connection.run("DELETE FROM media_uses WHERE position = ?", (position,))
    connection.run("DELETE FROM media WHERE key NOT IN (SELECT media FROM media_uses)")


def media_at(connection: Connection, position: int) -> list[Hole]:
    """Return the media of a row; a missing or altered one is left out."""
    found = connection.rows(
        "SELECT place, text FROM media_uses JOIN media ON media.key = media_uses.media WHERE position = ? ORDER BY place",
        (position,),
    )
    return [Hole(place, text) for place, text in found if isinstance(place, int) and isinstance(text, bytes)]


# ---------------------------------------------------------------- threads and messages

_THREAD = """
SELECT key, thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens,
    output_tokens, cost, forked_from, forked_at, is_redacted, owner, kind, due_at, posted, unfit, open_calls, base, base_seq,
    checksum, (SELECT name FROM hosts WHERE hosts.key = threads.owner)
FROM threads WHERE thread_id = ?
"""

_FORWARD = """
SELECT m.position, m.thread, m.seq, m.recorded_at, m.hash, m.media, m.body, p.hash
FROM messages AS m LEFT JOIN messages AS p ON p.thread = m.thread AND p.seq = m.seq - 1
WHERE m.thread = ? AND m.seq BETWEEN ? AND ? ORDER BY m.seq
"""

_BACKWARD = """
SELECT m.position, m.thread, m.seq, m.recorded_at, m.hash, m.media, m.body, p.hash
FROM messages AS m LEFT JOIN messages AS p ON p.thread = m.thread AND p.seq = m.seq - 1
WHERE m.thread = ? AND m.seq BETWEEN ? AND ? ORDER BY m.seq DESC
"""

_SINCE = """
SELECT m.position, m.thread, m.seq, m.recorded_at, m.hash, m.media, m.body, p.hash
FROM messages AS m LEFT JOIN messages AS p ON p.thread = m.thread AND p.seq = m.seq - 1
WHERE m.position > ? ORDER BY m.position
"""

_WITH_ID = """
SELECT m.position, m.thread, m.seq, m.recorded_at, m.hash, m.media, m.body, p.hash
FROM messages AS m LEFT JOIN messages AS p ON p.thread = m.thread AND p.seq = m.seq - 1
WHERE m.thread = ? AND m.id_key = ?
"""

_BY_NUMBER = {
    "invocation": """
SELECT m.position, m.thread, m.seq, m.recorded_at, m.hash, m.media, m.body, p.hash
FROM messages AS m INDEXED BY messages_by_invocation
LEFT JOIN messages AS p ON p.thread = m.thread AND p.seq = m.seq - 1
WHERE m.invocation_number = ?1 AND (?2 IS NULL OR m.thread = ?2 AND +m.seq BETWEEN ?3 AND ?4) ORDER BY m.position
""",
    "correlation": """
SELECT m.position, m.thread, m.seq, m.recorded_at, m.hash, m.media, m.body, p.hash
FROM messages AS m INDEXED BY messages_by_correlation
LEFT JOIN messages AS p ON p.thread = m.thread AND p.seq = m.seq - 1
WHERE m.correlation_number = ?1 AND (?2 IS NULL OR m.thread = ?2 AND +m.seq BETWEEN ?3 AND ?4) ORDER BY m.position
""",
}


_LINE = """
WITH RECURSIVE line (key, base, base_seq, thread_id) AS (
    SELECT key, base, base_seq, thread_id FROM threads WHERE key = ?1
    UNION ALL
    SELECT threads.key, threads.base, threads.base_seq, threads.thread_id
    FROM line JOIN threads ON threads.key = line.base AND threads.key < line.key AND line.base_seq >= ?2
)
SELECT key, base, base_seq, thread_id FROM line ORDER BY key DESC
"""
"""The comparison of keys ends the recursion: a branch is younger than its origin, and an altered file could have a cycle."""


def key_of(name: str, salt: int = 0) -> int:
    """Return the index key of a name: 32 bits, a tenth of the size of the name.

    If a key is taken, the next salt gives another one. Salted keys use another hash function, so that names which were
    constructed to collide collide only once.
    """
    if not salt:
        return crc32(name.encode()) - 2**31
    return int.from_bytes(blake2b(f"{salt} {name}".encode(), digest_size=4).digest(), "big", signed=True)


@lru_cache(maxsize=1024)  # a call, its result and their correlation often have one name
def number_of(name: str) -> int:
    """Return the number under which a message is found by its invocation or its correlation.

    A name that begins with a UUIDv7, as the names of the runtime do, has a number that grows with its time. So the entries of
    new messages go to the end of the index. With `key_of`, each of them changes another page: an ask took a sixth longer. The
    number holds the second and 16 bits of a hash, which fit into six bytes.
    """
    if _UUID7.match(name):
        second = int(name[:8] + name[9:13], 16) >> 10
        return (second << 16 | crc32(name.encode()) & 0xFFFF) - 2**47
    return key_of(name)


_UUID7 = re.compile("[0-9a-f]{8}-[0-9a-f]{4}-7")
_FIELDS = len(State._fields)


def thread_of(row: Sequence[Any]) -> Thread:
    """Return a row as a `Thread`: the key, the fields of the state, and the other fields."""
    return Thread(row[0], State(*row[1 : _FIELDS + 1]), *row[_FIELDS + 1 :])


def find_thread(connection: Connection, thread_id: str) -> Thread | None:
    """Return a thread's row, if there is one."""
    row = connection.row(_THREAD, (thread_id,))
    return None if row is None else thread_of(row)


def find_open_calls(connection: Connection, thread: Thread) -> list[OpenCall]:
    """Return the calls of a thread that have no result, in order."""
    if not thread.open_calls:
        return []
    found = connection.rows(
        "SELECT seq, is_effect, invocation_id, option_name, turn FROM open_calls WHERE thread = ? ORDER BY seq", (thread.key,)
    )
    if any(isinstance(row[2], bytes) for row in found) and (key := thread_key(connection, thread.key)) is not None:
        return [key.open_call(seq, sealed) for seq, _, sealed, *_ in found]
    return [OpenCall(seq, bool(is_effect), *rest) for seq, is_effect, *rest in found]


def line_to(connection: Connection, key: int, seq: int) -> list[Ancestor]:
    """Return a thread and its origins, down to the one that holds a message."""
    return [Ancestor(*row) for row in connection.rows(_LINE, (key, seq))]


def lineage(connection: Connection, thread: Thread) -> list[ThreadSegment]:
    """Return the segments of a thread's messages, from the first to the last."""
    return segments_of(thread, line_to(connection, thread.key, 1)[1:] if thread.base is not None else ())


def position_of(connection: Connection, key: int, seq: int) -> int:
    """Return the commit position of a message of a thread or its origins; 0 if it is missing."""
    line = line_to(connection, key, seq)
    sql = "SELECT position FROM messages WHERE thread = ? AND seq = ?"
    found: int | None = connection.value(sql, (line[-1].key, seq)) if line else None
    return found or 0


def link_at(connection: Connection, key: int, seq: int) -> bytes | None:
    """Return the link of a message of a thread or its origins; None if it is missing."""
    line = line_to(connection, key, seq)
    if not line:
        return None
    holder = line[-1]
    if seq > holder.base_seq:
        found: bytes | None = connection.value("SELECT hash FROM messages WHERE thread = ? AND seq = ?", (holder.key, seq))
        return found
    return genesis(holder.thread_id) if holder.base is None else None


def name_of(connection: Connection, key: int) -> str:
    """Return the name of a thread, for an error."""
    name: str | None = connection.value("SELECT thread_id FROM threads WHERE key = ?", (key,))
    return f"(thread {key}, whose name is gone)" if name is None else name


def records_of(
    connection: Connection, rows: Iterable[Sequence[object]], *, with_forgotten: bool = False
) -> Iterator[tuple[int, Record]]:
    """Yield each row's position and its record, after its link has been checked.

    Rows of forgotten threads are left out, unless `with_forgotten` asks for an error.

    Raises:
        EncryptionError: a row is encrypted, and its key is missing.
        LedgerCorruptError: a row was altered.
    """
    keys: dict[int, ThreadKey | None] = {}
    for position, key, seq, recorded_at, digest, media, body, previous in rows:
        if not (isinstance(position, int) and isinstance(key, int) and isinstance(seq, int)):
            raise LedgerCorruptError(f"row {position!r} has no place in a thread; restore a backup, and run verify on it")
        whole = body if not media else join(_as_bytes(body), media_at(connection, position))
        before = previous or link_at(connection, key, seq - 1)
        if not (
            isinstance(whole, bytes)
            and isinstance(before, bytes)
            and isinstance(recorded_at, int)
            and isinstance(digest, bytes)
            and link(before, recorded_at, whole) == digest
        ):
            reason = "it was altered, or the message before it is missing; restore a backup, and run verify on it"
            raise LedgerCorruptError(reason, name_of(connection, key), seq)
        if not is_sealed(whole):
            yield position, Record(seq, whole, digest.hex(), from_micros(recorded_at))
            continue
        try:
            house = _opened(connection, keys, key, seq, whole)
        except ForgottenError:
            if with_forgotten:
                raise
            continue
        yield position, Record(seq, house, digest.hex(), from_micros(recorded_at), stored=whole)


def _opened(connection: Connection, keys: dict[int, ThreadKey | None], thread: int, seq: int, stored: bytes) -> bytes:
    """Return the house bytes of a sealed row; `keys` has the keys that were looked up in this transaction."""
    if thread not in keys:
        keys[thread] = thread_key(connection, thread)
    found = keys[thread]
    if found is None:
        raise LedgerCorruptError("it is encrypted, and its thread has no key", name_of(connection, thread), seq)
    return found.open(seq, stored)


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else b""


def page_of_thread(connection: Connection, thread: Thread | None, request: PageRequest) -> list[tuple[int, Record]]:
    """Return the next messages of a thread, with their positions; none if there are no more.

    Raises:
        LedgerCorruptError: the first of them was altered or is missing.
    """
    if thread is None:
        return []
    first, last = request.within(thread.state.seq)
    if first > last:
        return []
    if thread.base is not None and thread.state.epoch < 0:  # a forgotten branch may have no row of its own
        check_remembered(connection, thread.key, thread.state.thread_id)
    edge, step = (last, -1) if request.reverse else (first, 1)
    found = _some(_stretch(connection, lineage(connection, thread), first, last, reverse=request.reverse), request.most)
    whole = [each for index, each in enumerate(found) if each[1].seq == edge + step * index]
    if not whole:
        reason = f"the thread has {thread.state.seq} messages, and this one is missing"
        raise LedgerCorruptError(reason, thread.state.thread_id, edge)
    return whole


def _stretch(
    connection: Connection, segments: Sequence[ThreadSegment], first: int, last: int, *, reverse: bool
) -> Iterator[tuple[int, Record]]:
    """Yield the messages of a range, forwards or backwards, from all threads that hold them, up to the first missing one."""
    sql, place = (_BACKWARD, last) if reverse else (_FORWARD, first)
    for key, low, high in reversed(segments) if reverse else segments:
        if low <= place <= high:
            found = connection.each(sql, (key, max(first, low), min(last, high)))
            yield from records_of(connection, found, with_forgotten=True)
            place = low - 1 if reverse else high + 1


def open_at(connection: Connection, thread: Thread, seq: int) -> Pairing:
    """Return the calls of a thread that were open after a message. It reads back to the last place without open calls.

    Raises:
        LedgerCorruptError: a message was altered.
    """
    segments = lineage(connection, thread)
    holder = next((segment.key for segment in segments if segment.first <= seq <= segment.last), None)
    first: int | None = connection.value("SELECT open_from FROM messages WHERE thread = ? AND seq = ?", (holder, seq))
    if first is None:
        return Pairing()
    pairing = Pairing(first - 1)
    for _, record in _stretch(connection, segments, first, seq, reverse=False):
        pairing.add(record.seq, record.message)
    return pairing


def _some(records: Iterator[tuple[int, Record]], most: int = MOST_ROWS) -> list[tuple[int, Record]]:
    """Return as many records as fit into one page, up to the first altered one.

    Raises:
        LedgerCorruptError: the first record was altered.
    """
    found: list[tuple[int, Record]] = []
    size = 0
    try:
        for each in records:
            found.append(each)
            size += len(each[1].body)
            if len(found) == most or size >= MOST_BYTES:
                break
    except LedgerCorruptError:
        if not found:
            raise
    return found


def records_since(connection: Connection, position: int, most: int = MOST_ROWS) -> list[tuple[int, Record]]:
    """Return the next messages of all threads after a commit position."""
    return _some(records_of(connection, connection.each(_SINCE, (position,))), most)


def record_at(connection: Connection, position: int) -> Record | None:
    """Return the message at a commit position."""
    return next((record for found, record in records_since(connection, position - 1, 1) if found == position), None)


def seq_at(connection: Connection, thread: Thread | None, position: int) -> int:
    """Return how many messages of a thread are at or before a commit position."""
    for segment in reversed(lineage(connection, thread) if thread is not None else []):
        if (found := _last_before(connection, segment, position)) is not None:
            return found
    return 0


def _last_before(connection: Connection, segment: ThreadSegment, position: int) -> int | None:
    """Return the last message of a segment at or before a position, by binary search: both numbers grow together."""
    sql = "SELECT seq, position FROM messages WHERE thread = ? AND seq BETWEEN ? AND ? ORDER BY seq LIMIT 1"
    found, low, high = None, segment.first, segment.last
    while low <= high:
        middle = (low + high) // 2
        row = connection.row(sql, (segment.key, middle, high))
        if row is not None and row[1] <= position:
            found = row[0]
            low = row[0] + 1
        else:
            high = middle - 1
    return found


def records_with_id(connection: Connection, id: str, segments: Iterable[ThreadSegment]) -> list[Record]:
    """Return the messages with an id. It looks under each key that the id may have, until a key is unused.

    Raises:
        LedgerCorruptError: one of them is not as it was written.
    """
    found: list[Record] = []
    for segment in segments:
        salt = 0
        while rows := connection.rows(_WITH_ID, (segment.key, key_of(id, salt))):
            records = records_of(connection, rows, with_forgotten=True)
            found += [record for _, record in records if record.seq <= segment.last]
            salt += 1
    return [record for record in found if record.message.id == id]


def records_by_number(connection: Connection, kind: str, name: str, segments: Iterable[ThreadSegment] | None) -> list[Record]:
    """Return the messages under the number of a name, in some segments or in all threads. Other names may have that number.

    Raises:
        LedgerCorruptError: one of them is not as it was written.
    """
    found: list[Record] = []
    for key, first, last in [(None, None, None)] if segments is None else segments:
        rows = connection.rows(_BY_NUMBER[kind], (number_of(name), key, first, last))
        found += [record for _, record in records_of(connection, rows, with_forgotten=segments is not None)]
    return found
