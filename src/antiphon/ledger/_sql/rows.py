"""From rows to records: threads and their origins, open calls, messages with checked links, and places in the order of all.

A message has a *place* in the one order of all threads (`CommitPlace`): the era of the database, the id of the transaction
that wrote it, and its number there. In a file, one writer numbers all messages, so the number alone is the place.

The bytes of a message already contain its id, invocation and correlation. The index has a number computed from each, a tenth
of the usual text, and a lookup by such a number compares the message itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, cast
from zlib import crc32

import orjson

from antiphon.errors import ForgottenError, LedgerCorruptError
from antiphon.ledger._admission import State
from antiphon.ledger._encryption import ThreadKey, is_sealed
from antiphon.ledger._records import OpenCall, Pairing, Record, from_micros, genesis, link
from antiphon.ledger._sql.keys import check_remembered, thread_key
from antiphon.ledger._sql.statements import Row, Verb, row, rows, value
from antiphon.ledger._stored import (
    MOST_BYTES,
    Ancestor,
    Hole,
    PageRequest,
    Thread,
    ThreadSegment,
    join,
    segments_of,
)
from antiphon.messages._arguments import check_each, check_type

# ---------------------------------------------------------------- places

_CURSOR = re.compile(r"(?:([0-9]{1,9})\.([0-9]{1,18})\.([0-9]{1,9}))|([0-9]{1,18})", re.ASCII)


class CommitPlace(NamedTuple):
    """The place of a message in the one order of all threads."""

    era: int
    xid: int
    ord: int

    def __str__(self) -> str:
        return f"{self.era}.{self.xid}.{self.ord}" if self.era else str(self.ord)


BEGINNING = CommitPlace(0, 0, 0)
END = CommitPlace(2**31 - 1, 2**62, 2**31 - 1)


def place_of(cursor: str | None) -> CommitPlace:
    """Return the place that a cursor names; without a cursor, the one before all messages."""
    if cursor is None:
        return BEGINNING
    if not (match := _CURSOR.fullmatch(cursor)):
        raise ValueError(f"expected a cursor of tail or horizon, got {cursor!r}")
    era, xid, number, position = match.groups()
    return CommitPlace(0, 0, int(position)) if era is None else CommitPlace(int(era), int(xid), int(number))


# ---------------------------------------------------------------- threads

COLUMNS = """
t.key, t.thread_id, t.seq, t.hash, t.epoch, t.run, t.open_from, t.status, t.pattern, t.created_at, t.updated_at,
t.input_tokens, t.output_tokens, t.cost, t.forked_from, t.forked_at, t.is_redacted, t.owner, t.kind, t.due_at, t.posted,
t.unfit, t.open_calls, t.base, t.base_seq
"""
THREAD = f"SELECT {COLUMNS} FROM antiphon.threads AS t"  # noqa: S608 (columns of ours)
OWNED_THREAD = f"""
SELECT {COLUMNS}, h.name FROM antiphon.threads AS t LEFT JOIN antiphon.hosts AS h ON h.tenant = t.tenant AND h.key = t.owner
"""  # noqa: S608
"""The columns of a thread, to which a caller adds the conditions; here with the name of its owner."""
LOCKED_THREADS = f"{THREAD} WHERE t.tenant = $1 AND t.key = ANY($2::bigint[]) ORDER BY t.key FOR UPDATE OF t"

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


def thread_of(columns: Row) -> Thread:
    """Return a row of `THREAD` or `OWNED_THREAD` as a value."""
    open_calls, base, base_seq, *owner = columns[_FIELDS + 1 :]
    state = State(*columns[1 : _FIELDS + 1])
    return Thread(columns[0], state, open_calls, base, base_seq, owner[0] if owner else None)


def is_storable(text: str) -> bool:
    """Whether a column can hold a text: PostgreSQL refuses a text with a NUL, and no name has one."""
    return "\0" not in text


def find_thread(thread_id: str) -> Verb[Thread | None]:
    """Return a thread's row with the name of its owner, if there is one.

    Raises:
        TypeError: the id is not a text.
    """
    check_type("a thread's id", thread_id, str, "'order-42'")
    if not is_storable(thread_id):
        return None
    columns = yield from row(f"{OWNED_THREAD} WHERE t.tenant = $1 AND t.thread_id = $2", thread_id)
    return None if columns is None else thread_of(columns)


def line_to(key: int, seq: int) -> Verb[list[Ancestor]]:
    """Return a thread and its origins, down to the one that holds a message."""
    return [Ancestor(*columns) for columns in (yield from rows(_LINE, key, seq))]


def lineage(thread: Thread) -> Verb[list[ThreadSegment]]:
    """Return the segments of a thread's messages, from the first to the last."""
    return segments_of(thread, (yield from line_to(thread.key, 1))[1:] if thread.base is not None else ())


def link_at(key: int, seq: int) -> Verb[bytes | None]:
    """Return the link of a message of a thread or its origins; None if it is missing."""
    line = yield from line_to(key, seq)
    if not line:
        return None
    holder = line[-1]
    if seq > holder.base_seq:
        sql = "SELECT hash FROM antiphon.messages WHERE tenant = $1 AND thread = $2 AND seq = $3"
        digest: bytes | None = yield from value(sql, holder.key, seq)
        return digest
    return genesis(holder.thread_id) if holder.base is None else None


def name_of(key: int) -> Verb[str]:
    """Return the name of a thread, for an error."""
    name = yield from value("SELECT thread_id FROM antiphon.threads WHERE tenant = $1 AND key = $2", key)
    return f"(thread {key}, whose name is gone)" if name is None else str(name)


# ---------------------------------------------------------------- open calls

_CALLS = """
SELECT thread, seq, call FROM antiphon.open_calls WHERE tenant = $1 AND thread = ANY($2::bigint[]) ORDER BY thread, seq
"""


def dump_call(call: OpenCall) -> bytes:
    """Return an open call as it is stored, without its place."""
    return orjson.dumps((call.is_effect, call.invocation_id, call.option_name, call.turn))


def _loaded_call(thread_id: int, seq: int, stored: bytes) -> OpenCall:
    try:
        is_effect, invocation_id, option_name, turn = orjson.loads(stored)
        return OpenCall(seq, is_effect, invocation_id, option_name, turn)
    except (ValueError, TypeError) as exc:
        raise LedgerCorruptError(f"an open call of thread {thread_id} was altered", seq=seq) from exc


def find_open_calls(threads: Iterable[Thread]) -> Verb[dict[int, list[OpenCall]]]:
    """Return the calls of some threads that have no result, in order, by the key of the thread."""
    calls: dict[int, list[OpenCall]] = {}
    if keys := [thread.key for thread in threads if thread.open_calls]:
        ciphers: dict[int, ThreadKey | None] = {}
        for key, seq, stored in (yield from rows(_CALLS, keys)):
            if is_sealed(stored) and key not in ciphers:
                ciphers[key] = yield from thread_key(key)
            cipher = ciphers.get(key)
            opened = _loaded_call(key, seq, stored) if cipher is None else cipher.open_call(seq, stored)
            calls.setdefault(key, []).append(opened)
    return calls


# ---------------------------------------------------------------- numbers in place of names


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


@lru_cache(maxsize=1024)
def option_key(name: str) -> int:
    """Return the number under which the open calls of an option are found. No list compares the names, so it has 64 bits."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big", signed=True)


# ---------------------------------------------------------------- messages

MESSAGES = """
SELECT m.thread, m.seq, m.era, m.xid, m.ord, m.recorded_at, m.hash, m.media, m.body, p.hash AS previous
FROM antiphon.messages AS m
LEFT JOIN antiphon.messages AS p ON p.tenant = m.tenant AND p.thread = m.thread AND p.seq = m.seq - 1
"""
"""Messages with the link before each, to which a caller adds the conditions."""


class PlacedRecord(NamedTuple):
    """A record, the key of the thread that holds it, and its place."""

    thread: int
    place: CommitPlace
    record: Record


def place_in(columns: Row) -> CommitPlace:
    """Return the place in a row of `MESSAGES`."""
    return CommitPlace(columns[2], columns[3], columns[4])


def records_of(message_rows: Iterable[Row], *, with_forgotten: bool = False) -> Verb[list[PlacedRecord]]:
    """Return rows of `MESSAGES` as records, after their links have been checked; up to the first altered one.

    Rows of forgotten threads are left out, unless `with_forgotten` asks for an error.

    Raises:
        EncryptionError: a row is encrypted, and its key is missing.
        LedgerCorruptError: the first of them was altered.
    """
    records: list[PlacedRecord] = []
    keys: dict[int, ThreadKey | None] = {}
    for key, seq, era, xid, number, recorded_at, digest, media, body, previous in message_rows:
        stored = body if not media or not isinstance(body, bytes) else join(body, (yield from media_at(key, seq)))
        before = previous or (yield from link_at(key, seq - 1))
        # A file may hold a value of any type in any column.
        is_typed = isinstance(stored, bytes) and isinstance(before, bytes) and isinstance(recorded_at, int)
        if not is_typed or link(cast("bytes", before), recorded_at, stored) != digest:
            if records:
                break
            reason = "it was altered, or the message before it is missing; restore a backup, and run verify on it"
            raise LedgerCorruptError(reason, (yield from name_of(key)), seq)
        try:
            house = stored if not is_sealed(stored) else (yield from _opened(keys, key, seq, stored))
        except ForgottenError:
            if with_forgotten:
                raise
            continue
        record = Record(seq, house, digest.hex(), from_micros(recorded_at), stored=stored)
        records.append(PlacedRecord(key, CommitPlace(era, xid, number), record))
    return records


def all_records_of(message_rows: Sequence[Row], *, with_forgotten: bool = False) -> Verb[list[PlacedRecord]]:
    """Return rows as records, all of them."""
    records: list[PlacedRecord] = []
    rest = list(message_rows)
    while rest:
        batch = yield from records_of(rest, with_forgotten=with_forgotten)
        records += batch
        # After an altered row, the batch ends: the next round raises.
        last = (batch[-1].thread, batch[-1].record.seq) if batch else None
        rest = [] if last is None else rest[[(row[0], row[1]) for row in rest].index(last) + 1 :]
    return records


def _opened(keys: dict[int, ThreadKey | None], thread: int, seq: int, stored: bytes) -> Verb[bytes]:
    """Return the house bytes of a sealed row; `keys` has the keys that were looked up in this transaction."""
    if thread not in keys:
        keys[thread] = yield from thread_key(thread)
    cipher = keys[thread]
    if cipher is None:
        raise LedgerCorruptError("it is encrypted, and its thread has no key", (yield from name_of(thread)), seq)
    return cipher.open(seq, stored)


_MEDIA = """
SELECT u.place, m.text FROM antiphon.media_uses AS u JOIN antiphon.media AS m ON m.tenant = u.tenant AND m.hash = u.hash
WHERE u.tenant = $1 AND u.thread = $2 AND u.seq = $3 ORDER BY u.place
"""


def media_at(key: int, seq: int) -> Verb[list[Hole]]:
    """Return the media of a message; a missing or altered one is left out."""
    uses = yield from rows(_MEDIA, key, seq)
    return [Hole(place, text) for place, text in uses if isinstance(place, int) and isinstance(text, bytes)]


_RANGE = f"{MESSAGES} WHERE m.tenant = $1 AND m.thread = $2 AND m.seq BETWEEN $3 AND $4 ORDER BY m.seq"
_FORWARD, _BACKWARD = f"{_RANGE} LIMIT $5", f"{_RANGE} DESC LIMIT $5"


def page_of_thread(thread: Thread | None, request: PageRequest) -> Verb[list[PlacedRecord]]:
    """Return the next messages of a thread; none if there are no more."""
    if thread is None:
        return []
    first, last = request.within(thread.state.seq)
    if first > last:
        return []
    if thread.base is not None and thread.state.epoch < 0:  # a forgotten branch may have no row of its own
        yield from check_remembered(thread)
    edge, step = (last, -1) if request.reverse else (first, 1)
    records: list[PlacedRecord] = []
    for placed in (yield from _stretch(thread, first, last, request.most, reverse=request.reverse)):
        if placed.record.seq != edge + step * len(records):
            break
        records.append(placed)
    if not records:
        reason = f"the thread has {thread.state.seq} messages, and this one is missing"
        raise LedgerCorruptError(reason, thread.state.thread_id, edge)
    return records


def _stretch(thread: Thread, first: int, last: int, most: int, *, reverse: bool = False) -> Verb[list[PlacedRecord]]:
    """Return messages of a range, forwards or backwards, from all threads that hold them; up to the first altered one."""
    segments = yield from lineage(thread)
    records: list[PlacedRecord] = []
    size = 0
    place = last if reverse else first
    for key, low, high in reversed(segments) if reverse else segments:
        if not low <= place <= high:
            continue
        place = low - 1 if reverse else high + 1
        sql = _BACKWARD if reverse else _FORWARD
        message_rows = yield from rows(sql, key, max(first, low), min(last, high), most - len(records))
        try:
            batch = yield from records_of(message_rows, with_forgotten=True)
        except LedgerCorruptError:
            if not records:
                raise
            break
        for placed in batch:
            records.append(placed)
            size += len(placed.record.body)
            if len(records) == most or size >= MOST_BYTES:
                return records
        if len(batch) < len(message_rows):
            break
    return records


def open_at(thread: Thread, seq: int) -> Verb[Pairing]:
    """Return the calls of a thread that were open after a message. It reads back to the last place without open calls."""
    first = yield from open_from(thread, seq)
    if first is None:
        return Pairing()
    pairing = Pairing(first - 1)
    while first <= seq:
        page = yield from _stretch(thread, first, seq, seq - first + 1)
        for placed in page:
            pairing.add(placed.record.seq, placed.record.message)
        if not page:
            break
        first = page[-1].record.seq + 1
    return pairing


def open_from(thread: Thread, seq: int) -> Verb[int | None]:
    """Return the place of the first call since no call was open, as of a message."""
    line = yield from line_to(thread.key, seq)
    sql = "SELECT open_from FROM antiphon.messages WHERE tenant = $1 AND thread = $2 AND seq = $3"
    first: int | None = (yield from value(sql, line[-1].key, seq)) if line else None
    return first


_KEYS = """
SELECT seq, id_key FROM antiphon.messages WHERE tenant = $1 AND thread = $2 AND seq <= $3 AND id_key = ANY($4::bigint[])
"""
_AT = f"{MESSAGES} WHERE m.tenant = $1 AND m.thread = $2 AND m.seq = ANY($3::bigint[]) ORDER BY m.seq"


def records_with_ids(ids: Iterable[str], segments: Iterable[ThreadSegment]) -> Verb[dict[str, list[Record]]]:
    """Return the messages with some ids. It looks under each key that an id may have, until a key is unused."""
    records: dict[str, list[Record]] = {}
    names = set(ids)
    for segment in segments:
        seqs: list[int] = []
        salt, names_by_key = 0, _by_key(names, 0)
        while names_by_key:
            taken = yield from rows(_KEYS, segment.key, segment.last, list(names_by_key))
            seqs += [seq for seq, _ in taken]
            salt += 1
            names_by_key = _by_key({name for _, key in taken for name in names_by_key[key]}, salt)
        message_rows = (yield from rows(_AT, segment.key, sorted(set(seqs)))) if seqs else []
        for placed in (yield from all_records_of(message_rows, with_forgotten=True)):
            if placed.record.message.id in names:
                records.setdefault(placed.record.message.id, []).append(placed.record)
    return records


def _by_key(names: Iterable[str], salt: int) -> dict[int, list[str]]:
    """Return names by their index key: two names may have the same."""
    names_by_key: dict[int, list[str]] = {}
    for name in names:
        names_by_key.setdefault(key_of(name, salt), []).append(name)
    return names_by_key


_BY_NUMBER = {
    kind: f"""
{MESSAGES} WHERE m.tenant = $1 AND m.{kind}_key = ANY($2::bigint[])
    AND ($3::bigint[] IS NULL OR m.thread = ANY($3::bigint[]))
ORDER BY m.era, m.xid, m.ord
"""
    for kind in ("invocation", "correlation")
}


def records_by_number(kind: str, names: Iterable[str], segments: Sequence[ThreadSegment] | None) -> Verb[list[Record]]:
    """Return the messages under the numbers of some names, in some segments or in all threads.

    Other names may have the same numbers.
    """
    names = check_each("names", names, str, "'call-1'")
    ends = None if segments is None else {segment.key: segment.last for segment in segments}
    message_rows = yield from rows(_BY_NUMBER[kind], [number_of(name) for name in names], None if ends is None else list(ends))
    visible = [row for row in message_rows if ends is None or row[1] <= ends[row[0]]]
    return [placed.record for placed in (yield from all_records_of(visible, with_forgotten=segments is not None))]
