"""Verifies every thread, row by row, and then the rows that belong to no thread.

A store checks the rest itself: a file its counters, its pages and its indexes of words, a server its index of words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from antiphon.errors import NoMasterKeyError
from antiphon.ledger._encryption import WrappedKey
from antiphon.ledger._records import OpenCall, Pairing, snapshot_hash
from antiphon.ledger._sql.hosts import HOSTS
from antiphon.ledger._sql.keys import find_key, key_checksum, ledger_key
from antiphon.ledger._sql.limits import LIMITS
from antiphon.ledger._sql.rows import (
    find_open_calls,
    find_thread,
    key_of,
    lineage,
    link_at,
    name_of,
    number_of,
    open_from,
    option_key,
)
from antiphon.ledger._sql.statements import Row, Spelled, Sql, Verb, keyring, row, rows, value
from antiphon.ledger._stored import (
    Hole,
    Subject,
    Thread,
    checksum_of,
    join,
    message_checksum,
    state_checksum,
    thread_checksum,
)
from antiphon.ledger._values import Damage, Head
from antiphon.ledger._verification import Examination, StoredRow, add_row, row_opener
from antiphon.messages import Message

_STEP = 500
"""Rows that are checked in one transaction: a longer one would keep a file's log growing."""

_COLUMNS = "m.seq, m.id_key, m.invocation_key, m.correlation_key, m.open_from, m.recorded_at, m.hash, m.media, m.body"
_RANGE = "m.thread = $2 AND m.seq > $3 AND m.seq <= $4 ORDER BY m.seq LIMIT $5"
_ROWS = Spelled(
    f"""
SELECT {_COLUMNS}, NULL, (m.era, m.xid, m.ord) <= (p.era, p.xid, p.ord)
FROM antiphon.messages AS m
LEFT JOIN antiphon.messages AS p ON p.tenant = m.tenant AND p.thread = m.thread AND p.seq = m.seq - 1
WHERE m.tenant = $1 AND {_RANGE}
""",  # noqa: S608 (columns of ours)
    f"SELECT {_COLUMNS}, m.position, m.checksum FROM messages AS m WHERE {_RANGE}",  # noqa: S608
)
"""The last two columns prove the place: in a file the position and its checksum; else whether it is before the one before."""
_ALL_ROWS = 2**31
_CALLS = "SELECT count(*) FROM antiphon.open_calls WHERE tenant = $1 AND thread = $2"
_OPTIONS = "SELECT seq, option_key FROM antiphon.open_calls WHERE tenant = $1 AND thread = $2"
_CHECKSUM = Spelled("SELECT NULL WHERE $1::text IS NULL AND $2::bigint IS NULL", "SELECT checksum FROM threads WHERE key = $2")
_USED = """
SELECT u.place, u.hash, m.text FROM antiphon.media_uses AS u
JOIN antiphon.media AS m ON m.tenant = u.tenant AND m.hash = u.hash
WHERE u.tenant = $1 AND u.thread = $2 AND u.seq = $3 ORDER BY u.place
"""
_TAKEN = "SELECT 1 FROM antiphon.messages WHERE tenant = $1 AND thread = $2 AND id_key = $3 AND seq < $4"
_SNAPSHOTS = "SELECT fold, seq, hash, state FROM antiphon.snapshots WHERE tenant = $1 AND thread = $2"

WordsCheck: TypeAlias = Callable[[Thread, Sequence[StoredRow]], Verb[Damage | None]]
"""Compares an index of words with the rows of a thread."""


def names() -> Verb[tuple[list[str], int]]:
    """Return the names of all threads, and the number of all messages."""
    thread_rows = yield from rows("SELECT thread_id FROM antiphon.threads WHERE tenant = $1 ORDER BY thread_id")
    total = yield from value("SELECT count(*) FROM antiphon.messages WHERE tenant = $1")
    return [columns[0] for columns in thread_rows], int(total)


def begin(thread_id: str) -> Verb[Subject | Damage | None]:
    """Begin to check a thread; None if it was deleted."""
    thread = yield from find_thread(thread_id)
    if thread is None:
        return None
    link = yield from link_at(thread.key, thread.base_seq)
    if link is None:
        return Damage(thread_id, thread.base_seq, "the messages that it shares with its origin are missing")
    opener = row_opener((yield from keyring()), thread_id, (yield from find_key(thread.key)))
    shared = yield from _open_at_base(thread)
    if complaint := (yield from _complaint(thread)):
        return Damage(thread_id, None, complaint)
    open_calls: list[OpenCall] = []
    with suppress(NoMasterKeyError):  # only the chain is checked then
        open_calls = (yield from find_open_calls([thread])).get(thread.key, [])
        if (yield from _has_wrong_option(thread, open_calls)):
            return Damage(thread_id, None, "an open call is under another option than its own")
    return Subject(thread, open_calls, Examination(thread_id, thread.base_seq, link, shared, opener))


def _has_wrong_option(thread: Thread, calls: Sequence[OpenCall]) -> Verb[bool]:
    """Whether a list of open calls by option would not find one of the calls."""
    keys, blinding = (yield from keyring()), None
    if (yield from find_key(thread.key)) is not None:
        blinding = yield from ledger_key()
    stored = {columns[0]: columns[1] for columns in (yield from rows(_OPTIONS, thread.key))}
    names = {call.seq: call.option_name if blinding is None else keys.blind(blinding, call.option_name) for call in calls}
    return any(stored.get(seq) != option_key(name) for seq, name in names.items())


def _complaint(thread: Thread) -> Verb[str | None]:
    """Return a fault in the row of a thread that can be found without its messages."""
    origin = None if thread.base is None else (yield from name_of(thread.base))
    began = None if thread.base is None else thread.base_seq
    if (thread.state.forked_from, thread.state.forked_at) != (origin, began):
        return "its recorded origin is not the thread that it branched from"
    checksum = yield from value(_CHECKSUM, thread.key)
    if checksum is not None and checksum != thread_checksum(state_checksum(thread.key, thread.state), thread.state.updated_at):
        return "its epoch, status, owner or times are not what they were"
    return None if thread.open_calls == (yield from value(_CALLS, thread.key)) else "the number of its open calls is wrong"


def _open_at_base(thread: Thread) -> Verb[Pairing | None]:
    """Return the calls that were open at the start of a branch; None if there is no key to read them."""
    first = None if thread.base is None else (yield from open_from(thread, thread.base_seq))
    if first is None:
        return Pairing()
    pairing, keys = Pairing(first - 1), (yield from keyring())
    for key, low, high in (yield from lineage(thread._replace(state=thread.state._replace(seq=thread.base_seq)))):
        opener = row_opener(keys, (yield from name_of(key)), (yield from find_key(key)))
        for columns in (yield from rows(_ROWS, key, max(low, first) - 1, high, _ALL_ROWS)):
            row = _Columns(*columns)
            if not add_row(pairing, row.seq, (yield from _body(key, row))[0], opener):
                return None
    return pairing


class _Columns(NamedTuple):
    """A row of `_ROWS`. In a file, any value may have any type."""

    seq: int
    id_key: int
    invocation_key: int | None
    correlation_key: int | None
    open_from: int | None
    recorded_at: Any
    hash: Any
    media: int | None
    body: Any
    position: int | None
    proof: int | None

    def complaint(self, message: Message | None) -> str | None:
        """Return a fault that only the store can see, apart from the key of the id."""
        if message is not None and (
            not _is_number_of(self.invocation_key, message.invocation_id)
            or not _is_number_of(self.correlation_key, message.correlation_id)
        ):
            return "its index keys are wrong"
        is_misplaced = self.proof if self.position is None else self.proof != message_checksum(self.position, self.hash)
        return "its place in the order of commits is not what it was" if is_misplaced else None


def _is_number_of(number: int | None, name: str | None) -> bool:
    return number == (None if name is None else number_of(name))


def look(subject: Subject, after: int, heads: Mapping[str, Head], check_words: WordsCheck | None) -> Verb[int | Damage | None]:
    """Check the next rows of a thread. Return where to continue, or the damage, or None at the end."""
    thread, examination = subject.thread, subject.examination
    name, key = thread.state.thread_id, thread.key
    batch = [_Columns(*values) for values in (yield from rows(_ROWS, key, after, thread.state.seq, _STEP))]
    remembered = frozenset({heads[name].seq} if name in heads else ())
    stored: list[StoredRow] = []
    doubts: list[tuple[_Columns, str]] = []
    for columns in batch:
        stored += [(yield from _stored(key, columns, doubts))]
    damage = examination.rows(stored, remembered)
    for columns, name_of_message in doubts:
        is_first = damage is None or damage.seq is None or columns.seq < damage.seq
        if is_first and not (yield from _is_found(key, columns, name_of_message)):
            damage = Damage(name, columns.seq, "its index keys are wrong")
    if damage is None and check_words is not None:
        damage = yield from check_words(thread, stored)
    if damage is not None:
        return damage
    if len(batch) == _STEP:
        return int(batch[-1].seq)
    return examination.end(thread.state, subject.open_calls, heads) or (yield from _snapshot_damage(thread))


def _stored(key: int, columns: _Columns, doubts: list[tuple[_Columns, str]]) -> Verb[StoredRow]:
    """Return a row for the examination. It adds ids to `doubts` that are not under their first key."""
    body, media_complaint = yield from _body(key, columns)

    def complaint(message: Message | None) -> str | None:
        if message is not None and key_of(message.id) != columns.id_key:
            doubts.append((columns, message.id))
        return columns.complaint(message) or media_complaint

    digest = columns.hash if isinstance(columns.hash, bytes) else b""
    time = columns.recorded_at if isinstance(columns.recorded_at, int) else 0
    return StoredRow(columns.seq, time, digest, columns.open_from, body, complaint)


def _body(key: int, columns: _Columns) -> Verb[tuple[bytes, str | None]]:
    """Return the stored bytes of a message with its media, and a fault in these."""
    rest = columns.body if isinstance(columns.body, bytes) else b""
    if not columns.media:
        return rest, None
    used = yield from rows(_USED, key, columns.seq)
    is_whole = len(used) == columns.media and all(
        isinstance(text, bytes) and isinstance(place, int) and sha256(text).digest() == digest for place, digest, text in used
    )
    holes = [Hole(place, text) for place, _, text in used if isinstance(place, int) and isinstance(text, bytes)]
    return join(rest, holes), None if is_whole else "a medium in it is not what it was"


def _is_found(thread: int, columns: _Columns, id: str) -> Verb[bool]:
    """Whether a lookup of an id finds its row: by its key, or by the next one if earlier rows have that key."""
    for salt in count():
        key = key_of(id, salt)
        if key == columns.id_key or not (yield from value(_TAKEN, thread, key, columns.seq)):
            return key == columns.id_key
    raise AssertionError  # pragma: no cover (the count never ends)


def _snapshot_damage(thread: Thread) -> Verb[Damage | None]:
    for fold, seq, digest, state in (yield from rows(_SNAPSHOTS, thread.key)):
        link = yield from link_at(thread.key, seq)
        if link is None or snapshot_hash(link, fold, state) != digest:
            return Damage(thread.state.thread_id, seq, f"the snapshot of {fold!r} is not what it was")
    return None


# ---------------------------------------------------------------- rows outside of threads

_STRAYS: dict[Sql, str] = {
    """
SELECT 1 FROM antiphon.threads AS t WHERE t.tenant = $1
    AND t.open_calls <> (SELECT count(*) FROM antiphon.open_calls AS o WHERE o.tenant = t.tenant AND o.thread = t.key)
""": "the number of open calls of a thread is wrong",
    """
SELECT 1 FROM antiphon.messages
WHERE tenant = $1 AND thread NOT IN (SELECT key FROM antiphon.threads WHERE tenant = $1)
""": "there are messages of a thread that is not there",
    """
SELECT 1 FROM antiphon.open_calls
WHERE tenant = $1 AND thread NOT IN (SELECT key FROM antiphon.threads WHERE tenant = $1)
""": "an open call belongs to no thread",
    Spelled(
        """
SELECT 1 FROM antiphon.open_calls AS o JOIN antiphon.messages AS m
    ON m.tenant = o.tenant AND m.thread = o.thread AND m.seq = o.seq
WHERE o.tenant = $1 AND (o.era, o.xid, o.ord) <> (m.era, m.xid, m.ord) LIMIT 1
""",
        "SELECT 1 FROM open_calls JOIN messages USING (thread, seq) WHERE open_calls.position <> messages.position LIMIT 1",
    ): "an open call has another position than its message",
    """
SELECT 1 FROM antiphon.snapshots
WHERE tenant = $1 AND thread NOT IN (SELECT key FROM antiphon.threads WHERE tenant = $1)
""": "a snapshot belongs to no thread",
    """
SELECT 1 FROM antiphon.threads
WHERE tenant = $1 AND owner IS NOT NULL AND owner NOT IN (SELECT key FROM antiphon.hosts WHERE tenant = $1)
""": "a thread has an owner that does not exist",
    """
SELECT 1 FROM antiphon.thread_keys
WHERE tenant = $1 AND thread <> 0 AND thread NOT IN (SELECT key FROM antiphon.threads WHERE tenant = $1)
""": "a key belongs to no thread",
    """
SELECT 1 FROM antiphon.media_uses AS u WHERE u.tenant = $1 AND NOT EXISTS (
    SELECT 1 FROM antiphon.messages AS m WHERE m.tenant = $1 AND m.thread = u.thread AND m.seq = u.seq AND m.media IS NOT NULL
)""": "a medium belongs to a message that has none",
    """
SELECT 1 FROM antiphon.media AS m WHERE m.tenant = $1 AND NOT EXISTS (
    SELECT 1 FROM antiphon.media_uses AS u WHERE u.tenant = $1 AND u.hash = m.hash
)""": "a medium belongs to no message",
}
_OUTSIDE = """
SELECT t.thread_id, min(m.seq) FROM antiphon.messages AS m
JOIN antiphon.threads AS t ON t.tenant = m.tenant AND t.key = m.thread
WHERE m.tenant = $1 AND (m.seq > t.seq OR m.seq <= t.base_seq) GROUP BY t.thread_id
"""
_KEYS = "SELECT thread, master, wrapped, checksum FROM antiphon.thread_keys WHERE tenant = $1"


def strays() -> Verb[list[Damage]]:
    """Return damages of rows outside of threads: of rows that belong to no thread, and of those that no message proves."""
    complaints: list[str] = []
    for sql, complaint in _STRAYS.items():
        if (yield from row(f"{sql} LIMIT 1" if isinstance(sql, str) else sql)) is not None:
            complaints.append(complaint)
    outside = yield from rows(_OUTSIDE)
    complaints += _altered("host", (yield from rows(HOSTS)), 1)
    complaints += _altered("limit of", (yield from rows(LIMITS)), 0)
    for thread, master, wrapped, checksum in (yield from rows(_KEYS)):
        if checksum != key_checksum(thread, WrappedKey(master, wrapped)):
            complaints.append("the key of a thread is not what it was")
    return [
        *(Damage(None, None, complaint) for complaint in complaints),
        *(Damage(name, seq, "there is a message outside of its thread") for name, seq in outside),
    ]


def _altered(kind: str, protected_rows: Sequence[Row], name: int) -> Iterator[str]:
    """Yield a complaint for each row whose checksum, the last column, is not that of the others."""
    for *covered, checksum in protected_rows:
        if checksum != checksum_of(covered):
            yield f"the {kind} {str(covered[name])!r} is not what it was"
