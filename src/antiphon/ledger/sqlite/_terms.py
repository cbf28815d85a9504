"""Indexes of terms in a file: bringing one up to date, searching it, dropping it, and checking it.

An update has two steps. A reader reads the next messages and computes their terms, which takes most of the time. The writer
then stores the result, if the state of the index has not changed since: another process may have been faster, or may have
dropped the index. So several processes can bring one index up to date, and none keeps the write lock while it computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import pack
from typing import NamedTuple

from antiphon.ledger._records import Record
from antiphon.ledger._sql.keys import check_collection
from antiphon.ledger._sql.statements import LoadVectors, Verb, row, rows, value, write
from antiphon.ledger._stored import checksum_of
from antiphon.ledger._terms import (
    HEADING_WEIGHT,
    TermEntry,
    TermIndex,
    TermMatch,
    TermMatches,
    VectorSpace,
    check_vector,
    selectors_of,
)
from antiphon.ledger.sqlite._schema import TERM_TABLES
from antiphon.ledger.sqlite._search import records_at
from antiphon.ledger.sqlite._sql import Connection
from antiphon.ledger.sqlite._unindex import HAS_TERMS, IndexState, entry_checksum, remove_entries, set_state, state_of

_STEP = 200
"""Messages whose terms are stored in one change."""
_LAG = 1000
"""The number of messages of other threads that the next search may examine again, before the position is stored."""
_LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'"
_NEXT = """
SELECT position, hash, body FROM messages NOT INDEXED
WHERE position > $2 AND thread IN (
    SELECT key FROM threads WHERE thread_id = $3 OR thread_id >= $3 || '/' AND thread_id < $3 || '0'
) ORDER BY position LIMIT $4
"""
"""`0` is the character after the slash. Rows are read by position: by thread, ten thousand documents would be examined."""
_REPLACED = """
SELECT position, heading, body FROM term_entries WHERE name = $2 AND source = $3 AND version < $4
"""
_ALL_ENTRIES = "SELECT position, heading, body FROM term_entries WHERE name = $2"
_INSERT = "INSERT INTO term_entries VALUES ($2, $3, $4, $5, $6, $7, $8)"
_INSERT_TERMS = "INSERT INTO terms (rowid, heading, body) VALUES ($2, $3, $4)"


class TermUpdate(NamedTuple):
    """The next entries of an index."""

    before: IndexState
    """The state that the index must have for the update to apply."""
    upto: int
    entries: Sequence[tuple[int, bytes, TermEntry]]
    """The position and the hash of each message, and its entry."""
    is_last: bool


def next_update(index: TermIndex) -> Verb[TermUpdate | None]:
    """Return the next entries of an index; None if there are none and nothing needs to be stored.

    Raises:
        NotSearchableError: it covers an encrypted thread.
    """
    yield from check_collection(index.name)
    before = (yield from state_of(index.name)) or IndexState(index.version, 0, 0, 0)
    if before.version != index.version:
        before = IndexState(index.version, 0, 0, 0)
    last: int = yield from value(_LAST)
    if last == before.upto:
        return None
    message_rows = yield from rows(_NEXT, before.upto, index.name, _STEP)
    examined = ((position, digest, index.entry_in(body)) for position, digest, body in message_rows)
    entries = [(position, digest, entry) for position, digest, entry in examined if entry is not None]
    is_last = len(message_rows) < _STEP
    if not message_rows and last - before.upto < _LAG:
        return None
    return TermUpdate(before, last if is_last else message_rows[-1][0], entries, is_last)


def store(index: TermIndex, update: TermUpdate) -> Verb[bool]:
    """Store entries, unless the index has changed since they were computed; return whether they are stored."""
    if not (yield from value(HAS_TERMS)):
        yield from write(TERM_TABLES)
    state = yield from state_of(index.name)
    if state is None or state.version != index.version:
        yield from drop(index.name)
        state = IndexState(index.version, 0, 0, 0)
    if state != update.before:
        return False
    entries, length = state.entries, state.length
    for position, digest, entry in update.entries:
        replaced = yield from rows(_REPLACED, index.name, entry.source, entry.version)
        gone = yield from remove_entries(replaced)
        added = 0 if entry.is_empty else (yield from _insert(index.name, position, digest, entry))
        entries += added - len(gone)
        length += added * entry.length - sum(gone)
    yield from set_state(index.name, IndexState(index.version, update.upto, entries, length))
    return True


def _insert(name: str, position: int, digest: bytes, entry: TermEntry) -> Verb[int]:
    """Add an entry, and return 1; 0 if its thread was deleted since its terms were computed."""
    if not (yield from value("SELECT 1 FROM messages WHERE position = $2 AND hash = $3", position, digest)):
        return 0
    columns = (position, name, entry.source, entry.version, entry.heading, entry.body)
    yield from write(_INSERT, *columns, entry_checksum(digest, columns))
    yield from write(_INSERT_TERMS, position, entry.heading, entry.body)
    return 1


def drop(name: str) -> Verb[None]:
    """Remove all entries of an index, if there are any."""
    if not (yield from value(HAS_TERMS)):
        return
    if (yield from value("SELECT count(*) FROM term_indexes WHERE name <> $2", name)):
        yield from remove_entries((yield from rows(_ALL_ENTRIES, name)))
    else:  # in one statement, which also works if the index is damaged
        yield from write("INSERT INTO terms (terms) VALUES ('delete-all')")
        yield from write("DELETE FROM term_entries")
        yield from write("DELETE FROM term_vectors")
    yield from write("DELETE FROM term_indexes WHERE name = $2", name)


# ---------------------------------------------------------------- search

_FIND = f"""
SELECT rowid FROM terms WHERE terms MATCH $2 AND rank MATCH 'bm25({HEADING_WEIGHT}, 1.0)' ORDER BY rank LIMIT $3
"""  # noqa: S608 (a number of ours)
_FIND_SOME = f"""
SELECT terms.rowid FROM terms JOIN term_entries ON term_entries.position = terms.rowid
WHERE terms MATCH $2 AND rank MATCH 'bm25({HEADING_WEIGHT}, 1.0)' AND name = $4 AND ($5 IS NULL OR source GLOB $5)
ORDER BY rank LIMIT $3
"""  # noqa: S608
_ENTRIES_AT = "SELECT position, source, version, heading, body FROM term_entries WHERE position = ANY($2)"
_AT_ONCE = 200
"""Positions in one statement."""


def find_or_update(index: TermIndex, terms: Sequence[str], source: str | None, limit: int) -> Verb[TermMatches | TermUpdate]:
    """Return the best matches; or the next entries, if the index is not up to date."""
    return (yield from next_update(index)) or (yield from find(index, terms, source, limit))


def find(index: TermIndex, terms: Sequence[str], source: str | None, limit: int) -> Verb[TermMatches]:
    """Return the best matches, and the figures of the index."""
    state = yield from state_of(index.name)
    if state is None:
        return TermMatches((), 0, 0, dict.fromkeys(terms, 0))
    frequency: dict[str, int] = {}
    for term in terms:
        frequency[term] = (yield from value("SELECT doc FROM term_counts WHERE term = $2", term)) or 0
    selectors = selectors_of(frequency, state.entries)
    if not selectors:
        return TermMatches((), state.entries, state.length, frequency)
    match = " OR ".join(f'"{term}"' for term in selectors)
    is_only = (yield from value("SELECT count(*) FROM term_indexes")) == 1
    if is_only and source is None:
        position_rows = yield from rows(_FIND, match, limit)
    else:
        position_rows = yield from rows(_FIND_SOME, match, limit, index.name, source)
    matches = yield from _matches([position for (position,) in position_rows])
    return TermMatches(matches, state.entries, state.length, frequency)


def _matches(positions: Sequence[int]) -> Verb[tuple[TermMatch, ...]]:
    """Return the messages and entries at some positions, in the same order.

    Raises:
        LedgerCorruptError: one of the messages was altered.
    """
    matches: dict[int, TermMatch] = {}
    for start in range(0, len(positions), _AT_ONCE):
        batch = list(positions[start : start + _AT_ONCE])
        records = yield from records_at(batch)
        for position, *entry in (yield from rows(_ENTRIES_AT, batch)):
            if position in records:
                matches[position] = TermMatch(records[position], TermEntry(*entry))
    return tuple(matches[position] for position in positions if position in matches)


# ---------------------------------------------------------------- vectors

_WITHOUT = """
SELECT position FROM term_entries WHERE name = $2
    AND position NOT IN (SELECT position FROM term_vectors) ORDER BY position LIMIT $3
"""
_NEAREST = """
SELECT position FROM term_vectors JOIN term_entries USING (position)
WHERE name = $2 AND ($3 IS NULL OR source GLOB $3) ORDER BY vec_distance_cosine(vector, $4), position LIMIT $5
"""
_DROP_VECTORS = "DELETE FROM term_vectors WHERE position IN (SELECT position FROM term_entries WHERE name = $2)"
_POSITION = "SELECT position FROM term_entries JOIN messages USING (position) WHERE hash = $2 AND name = $3"


def space_of(index: TermIndex) -> Verb[VectorSpace | None]:
    """Return the space of the vectors that are stored."""
    if not (yield from value(HAS_TERMS)):
        return None
    columns = yield from row("SELECT model, dimension FROM vector_spaces WHERE name = $2", index.name)
    return None if columns is None else VectorSpace(*columns)


def without_vectors(index: TermIndex, space: VectorSpace, limit: int) -> Verb[tuple[Record, ...]]:
    """Return messages that have no vector yet."""
    check_vector(space, (yield from space_of(index)))
    if not (yield from value(HAS_TERMS)):
        return ()
    positions = [position for (position,) in (yield from rows(_WITHOUT, index.name, limit))]
    return tuple((yield from records_at(positions)).values())


def store_vectors(index: TermIndex, space: VectorSpace, vectors: Mapping[str, Sequence[float]]) -> Verb[None]:
    """Store vectors of messages that are in the index."""
    check_vector(space, (yield from space_of(index)), vectors.values())
    if not (yield from value(HAS_TERMS)):
        yield from write(TERM_TABLES)
    columns = (index.name, space.model, space.dimension)
    yield from write("INSERT OR REPLACE INTO vector_spaces VALUES ($2, $3, $4, $5)", *columns, checksum_of(columns))
    for digest, vector in vectors.items():
        position = yield from value(_POSITION, bytes.fromhex(digest), index.name)
        if position is not None:
            packed = pack(f"<{len(vector)}f", *vector)
            checksum = entry_checksum(bytes.fromhex(digest), (position, packed))
            yield from write("INSERT OR REPLACE INTO term_vectors VALUES ($2, $3, $4)", position, packed, checksum)


def find_vectors(
    index: TermIndex, space: VectorSpace, vector: Sequence[float], *, source: str | None, limit: int
) -> Verb[tuple[TermMatch, ...]]:
    """Return the messages whose vectors are nearest. Only readers load the extension, and only for this."""
    check_vector(space, (yield from space_of(index)), [vector])
    if not (yield from value(HAS_TERMS)):
        return ()
    yield LoadVectors()
    nearest = yield from rows(_NEAREST, index.name, source, pack(f"<{len(vector)}f", *vector), limit)
    return (yield from _matches([position for (position,) in nearest]))


def drop_vectors(name: str) -> Verb[None]:
    """Remove all vectors of an index."""
    if (yield from value(HAS_TERMS)):
        yield from write(_DROP_VECTORS, name)
        yield from write("DELETE FROM vector_spaces WHERE name = $2", name)


# ---------------------------------------------------------------- checks


_ENTRIES = """
SELECT e.position, e.name, e.source, e.version, e.heading, e.body, e.checksum, m.hash, t.thread_id
FROM term_entries AS e LEFT JOIN messages AS m ON m.position = e.position LEFT JOIN threads AS t ON t.key = m.thread
"""

TERM_COPY = """
CREATE TEMP VIEW term_rows AS SELECT position, heading, body FROM main.term_entries;
CREATE VIRTUAL TABLE temp.term_copy USING fts5 (
    heading, body, content = 'term_rows', content_rowid = 'position', tokenize = 'ascii'
);
DELETE FROM term_copy_data;
DELETE FROM term_copy_config;
INSERT INTO term_copy_data SELECT * FROM main.terms_data;
INSERT INTO term_copy_idx SELECT * FROM main.terms_idx;
INSERT INTO term_copy_docsize SELECT * FROM main.terms_docsize;
INSERT INTO term_copy_config SELECT * FROM main.terms_config;
PRAGMA writable_schema = RESET;
INSERT INTO term_copy (term_copy, rank) VALUES ('integrity-check', 1);
"""
"""As for the index of words (see `_verify`)."""


def complaints_about_terms(connection: Connection) -> Iterator[str]:
    """Yield faults in the tables of the indexes of terms, apart from FTS5's own."""
    totals: dict[str, tuple[int, int]] = {}
    for *columns, checksum, digest, thread_id in connection.each(_ENTRIES):
        name, heading, body = columns[1], columns[4], columns[5]
        if not isinstance(digest, bytes) or entry_checksum(digest, columns) != checksum:
            yield "an index of terms has an entry that is not what it was"
            return
        if not (str(thread_id) == name or str(thread_id).startswith(f"{name}/")):
            yield "an index of terms has a message of another collection"
            return
        count, length = totals.get(name, (0, 0))
        totals[name] = (count + 1, length + len(heading.split()) + len(body.split()))
    last = connection.value(_LAST)
    for *columns, checksum in connection.rows("SELECT name, version, upto, entries, length, checksum FROM term_indexes"):
        if checksum_of(columns) != checksum or totals.pop(columns[0], (0, 0)) != (columns[3], columns[4]) or columns[2] > last:
            yield "the figures of an index of terms are not what they were"
    if totals:
        yield "an index of terms has entries, and no columns of its own"
    yield from _complaints_about_vectors(connection)


_VECTORS = """
SELECT v.position, v.vector, v.checksum, m.hash, s.dimension FROM term_vectors AS v
LEFT JOIN term_entries AS e USING (position) LEFT JOIN messages AS m USING (position) LEFT JOIN vector_spaces AS s USING (name)
"""


def _complaints_about_vectors(connection: Connection) -> Iterator[str]:
    for position, vector, checksum, digest, dimension in connection.each(_VECTORS):
        is_whole = isinstance(digest, bytes) and entry_checksum(digest, (position, vector)) == checksum
        if not is_whole or len(vector) != 4 * (dimension or 0):
            yield "a vector is not what it was, or belongs to no passage"
            return
    for *columns, checksum in connection.rows("SELECT name, model, dimension, checksum FROM vector_spaces"):
        if checksum_of(columns) != checksum:
            yield "the model of the vectors is not what it was"
