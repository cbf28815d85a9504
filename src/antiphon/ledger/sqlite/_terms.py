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
from antiphon.ledger._stored import checksum_of
from antiphon.ledger._terms import HEADING_WEIGHT, TermEntry, TermIndex, TermMatch, TermMatches, VectorSpace, check_vector
from antiphon.ledger.sqlite._driver import run
from antiphon.ledger.sqlite._schema import TERM_TABLES
from antiphon.ledger.sqlite._search import records_at
from antiphon.ledger.sqlite._sql import Connection
from antiphon.ledger.sqlite._unindex import HAS_TERMS, IndexState, entry_checksum, remove_entries, set_state, state_of

_STEP = 200
"""Messages whose terms are stored in one change."""
_LAG = 1000
"""The number of messages of other threads that the next search may examine again, before the position is stored."""
_COMMON = 0.2
"""The share of all entries from which on a term is common: it selects no candidates if another term can."""
_MANY = 2000
"""The number of entries up to which common terms select candidates, too: all of them are scored in a few milliseconds."""

_LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'"
_NEXT = """
SELECT position, hash, body FROM messages NOT INDEXED
WHERE position > ? AND thread IN (
    SELECT key FROM threads WHERE thread_id = ?2 OR thread_id >= ?2 || '/' AND thread_id < ?2 || '0'
) ORDER BY position LIMIT ?3
"""
"""`0` is the character after the slash. Rows are read by position: by thread, ten thousand documents would be examined."""
_REPLACED = """
SELECT position, heading, body FROM term_entries WHERE name = ? AND source = ? AND version < ?
"""


class TermUpdate(NamedTuple):
    """The next entries of an index."""

    before: IndexState
    """The state that the index must have for the update to apply."""
    upto: int
    entries: Sequence[tuple[int, bytes, TermEntry]]
    """The position and the hash of each message, and its entry."""
    is_last: bool


def next_update(connection: Connection, index: TermIndex) -> TermUpdate | None:
    """Return the next entries of an index; None if there are none and nothing needs to be stored.

    Raises:
        NotSearchableError: it covers an encrypted thread.
    """
    run(connection, check_collection(index.name))
    before = state_of(connection, index.name) or IndexState(index.version, 0, 0, 0)
    if before.version != index.version:
        before = IndexState(index.version, 0, 0, 0)
    last: int = connection.value(_LAST)
    if last == before.upto:
        return None
    rows = connection.rows(_NEXT, (before.upto, index.name, _STEP))
    examined = ((position, digest, index.entry_in(body)) for position, digest, body in rows)
    entries = [(position, digest, entry) for position, digest, entry in examined if entry is not None]
    is_last = len(rows) < _STEP
    if not rows and last - before.upto < _LAG:
        return None
    return TermUpdate(before, last if is_last else rows[-1][0], entries, is_last)


def store(connection: Connection, index: TermIndex, update: TermUpdate) -> bool:
    """Store entries, unless the index has changed since they were computed; return whether they are stored."""
    if not connection.value(HAS_TERMS):
        connection.run(TERM_TABLES)
    state = state_of(connection, index.name)
    if state is None or state.version != index.version:
        drop(connection, index.name)
        state = IndexState(index.version, 0, 0, 0)
    if state != update.before:
        return False
    entries, length = state.entries, state.length
    for position, digest, entry in update.entries:
        gone = remove_entries(connection, connection.rows(_REPLACED, (index.name, entry.source, entry.version)))
        added = 0 if entry.is_empty else _insert(connection, index.name, position, digest, entry)
        entries += added - len(gone)
        length += added * entry.length - sum(gone)
    set_state(connection, index.name, IndexState(index.version, update.upto, entries, length))
    return True


def _insert(connection: Connection, name: str, position: int, digest: bytes, entry: TermEntry) -> int:
    """Add an entry, and return 1; 0 if its thread was deleted since its terms were computed."""
    if not connection.value("SELECT 1 FROM messages WHERE position = ? AND hash = ?", (position, digest)):
        return 0
    row = (position, name, entry.source, entry.version, entry.heading, entry.body)
    connection.run("INSERT INTO term_entries VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, entry_checksum(digest, row)))
    connection.run("INSERT INTO terms (rowid, heading, body) VALUES (?, ?, ?)", (position, entry.heading, entry.body))
    return 1


def drop(connection: Connection, name: str) -> None:
    """Remove all entries of an index, if there are any."""
    if not connection.value(HAS_TERMS):
        return
    if connection.value("SELECT count(*) FROM term_indexes WHERE name <> ?", (name,)):
        remove_entries(connection, connection.rows("SELECT position, heading, body FROM term_entries WHERE name = ?", (name,)))
    else:  # in one statement, which also works if the index is damaged
        connection.run("INSERT INTO terms (terms) VALUES ('delete-all')")
        connection.run("DELETE FROM term_entries")
        connection.run("DELETE FROM term_vectors")
    connection.run("DELETE FROM term_indexes WHERE name = ?", (name,))


# ---------------------------------------------------------------- search

_FIND = f"""
SELECT rowid FROM terms WHERE terms MATCH ? AND rank MATCH 'bm25({HEADING_WEIGHT}, 1.0)' ORDER BY rank LIMIT ?
"""  # noqa: S608 (a number of ours)
_FIND_SOME = f"""
SELECT terms.rowid FROM terms JOIN term_entries ON term_entries.position = terms.rowid
WHERE terms MATCH ?1 AND rank MATCH 'bm25({HEADING_WEIGHT}, 1.0)' AND name = ?3 AND (?4 IS NULL OR source GLOB ?4)
ORDER BY rank LIMIT ?2
"""  # noqa: S608
_ENTRIES_AT = "SELECT position, source, version, heading, body FROM term_entries WHERE position IN ({})"
_AT_ONCE = 200
"""Positions in one statement."""


def find(connection: Connection, index: TermIndex, terms: Sequence[str], source: str | None, limit: int) -> TermMatches:
    """Return the best matches, and the figures of the index."""
    state = state_of(connection, index.name)
    if state is None:
        return TermMatches((), 0, 0, dict.fromkeys(terms, 0))
    counts = "SELECT doc FROM term_counts WHERE term = ?"
    frequency = {term: int(connection.value(counts, (term,)) or 0) for term in terms}
    selectors = _choosing(frequency, state.entries)
    if not selectors:
        return TermMatches((), state.entries, state.length, frequency)
    match = " OR ".join(f'"{term}"' for term in selectors)
    is_only = connection.value("SELECT count(*) FROM term_indexes") == 1
    if is_only and source is None:
        rows = connection.rows(_FIND, (match, limit))
    else:
        rows = connection.rows(_FIND_SOME, (match, limit, index.name, source))
    return TermMatches(_matches(connection, rows), state.entries, state.length, frequency)


def _choosing(frequency: dict[str, int], entries: int) -> list[str]:
    """Return the terms that select the candidates: those in the index, without the common ones if others can select."""
    indexed = [term for term, count in frequency.items() if count]
    rare = [term for term in indexed if frequency[term] <= _COMMON * entries]
    return rare if rare and entries > _MANY else indexed


def _matches(connection: Connection, rows: Sequence[tuple[int]]) -> tuple[TermMatch, ...]:
    """Return the messages and entries at some positions, in the same order.

    Raises:
        LedgerCorruptError: one of the messages was altered.
    """
    matches: dict[int, TermMatch] = {}
    for start in range(0, len(rows), _AT_ONCE):
        places = [position for (position,) in rows[start : start + _AT_ONCE]]
        records = run(connection, records_at(places))
        for position, *entry in connection.rows(_ENTRIES_AT.format(", ".join("?" * len(places))), places):
            if position in records:
                matches[position] = TermMatch(records[position], TermEntry(*entry))
    return tuple(matches[position] for (position,) in rows if position in matches)


# ---------------------------------------------------------------- vectors

_WITHOUT = """
SELECT position FROM term_entries WHERE name = ?
    AND position NOT IN (SELECT position FROM term_vectors) ORDER BY position LIMIT ?
"""
_NEAREST = """
SELECT position FROM term_vectors JOIN term_entries USING (position)
WHERE name = ?1 AND (?2 IS NULL OR source GLOB ?2) ORDER BY vec_distance_cosine(vector, ?3), position LIMIT ?4
"""


def space_of(connection: Connection, index: TermIndex) -> VectorSpace | None:
    """Return the space of the vectors that are stored."""
    sql = "SELECT model, dimension FROM vector_spaces WHERE name = ?"
    row = connection.row(sql, (index.name,)) if connection.value(HAS_TERMS) else None
    return None if row is None else VectorSpace(*row)


def without_vectors(connection: Connection, index: TermIndex, space: VectorSpace, limit: int) -> tuple[Record, ...]:
    """Return messages that have no vector yet."""
    check_vector(space, space_of(connection, index))
    if not connection.value(HAS_TERMS):
        return ()
    rows = connection.rows(_WITHOUT, (index.name, limit))
    return tuple(run(connection, records_at([position for (position,) in rows])).values())


def store_vectors(
    connection: Connection, index: TermIndex, space: VectorSpace, vectors: Mapping[str, Sequence[float]]
) -> None:
    """Store vectors of messages that are in the index."""
    check_vector(space, space_of(connection, index), vectors.values())
    if not connection.value(HAS_TERMS):
        connection.run(TERM_TABLES)
    row = (index.name, space.model, space.dimension)
    connection.run("INSERT OR REPLACE INTO vector_spaces VALUES (?, ?, ?, ?)", (*row, checksum_of(row)))
    sql = "SELECT position FROM term_entries JOIN messages USING (position) WHERE hash = ? AND name = ?"
    for digest, vector in vectors.items():
        position = connection.value(sql, (bytes.fromhex(digest), index.name))
        if position is not None:
            packed = pack(f"<{len(vector)}f", *vector)
            checksum = entry_checksum(bytes.fromhex(digest), (position, packed))
            connection.run("INSERT OR REPLACE INTO term_vectors VALUES (?, ?, ?)", (position, packed, checksum))


def find_vectors(
    connection: Connection, index: TermIndex, space: VectorSpace, vector: Sequence[float], *, source: str | None, limit: int
) -> tuple[TermMatch, ...]:
    """Return the messages whose vectors are nearest. Only readers load the extension, and only for this."""
    check_vector(space, space_of(connection, index), [vector])
    if not connection.value(HAS_TERMS):
        return ()
    load_vec(connection)
    rows = connection.rows(_NEAREST, (index.name, source, pack(f"<{len(vector)}f", *vector), limit))
    return _matches(connection, rows)


def drop_vectors(connection: Connection, name: str) -> None:
    """Remove all vectors of an index."""
    if connection.value(HAS_TERMS):
        connection.run(
            "DELETE FROM term_vectors WHERE position IN (SELECT position FROM term_entries WHERE name = ?)", (name,)
        )
        connection.run("DELETE FROM vector_spaces WHERE name = ?", (name,))


def load_vec(connection: Connection) -> None:
    """Load sqlite-vec into a connection, once.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    if connection.value("SELECT count(*) FROM pragma_function_list WHERE name = 'vec_distance_cosine'"):
        return
    try:
        import sqlite_vec  # type: ignore[import-untyped]  # pyright: ignore[reportMissingTypeStubs]  # noqa: PLC0415 (an extra)
    except ImportError as exc:
        raise ModuleNotFoundError('vectors need sqlite-vec: pip install "antiphon[vectors]"', name="sqlite_vec") from exc
    connection.enable_load_extension(True)
    try:
        connection.load_extension(sqlite_vec.loadable_path())
    finally:
        connection.enable_load_extension(False)


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
    for *row, checksum, digest, thread_id in connection.each(_ENTRIES):
        name, heading, body = row[1], row[4], row[5]
        if not isinstance(digest, bytes) or entry_checksum(digest, row) != checksum:
            yield "an index of terms has an entry that is not what it was"
            return
        if not (str(thread_id) == name or str(thread_id).startswith(f"{name}/")):
            yield "an index of terms has a message of another collection"
            return
        count, length = totals.get(name, (0, 0))
        totals[name] = (count + 1, length + len(heading.split()) + len(body.split()))
    last = connection.value(_LAST)
    for *row, checksum in connection.rows("SELECT name, version, upto, entries, length, checksum FROM term_indexes"):
        if checksum_of(row) != checksum or totals.pop(row[0], (0, 0)) != (row[3], row[4]) or row[2] > last:
            yield "the figures of an index of terms are not what they were"
    if totals:
        yield "an index of terms has entries, and no row of its own"
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
    for *row, checksum in connection.rows("SELECT name, model, dimension, checksum FROM vector_spaces"):
        if checksum_of(row) != checksum:
            yield "the model of the vectors is not what it was"
