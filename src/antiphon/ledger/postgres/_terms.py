"""Indexes of terms, and vectors beside them, for a retriever.

`term_entries` has the terms of each message, and a GIN index finds them. `term_sources` has the latest version of each source.
An update examines the messages after the place up to which the index is complete. Adding an entry twice changes nothing, and
an entry of an outdated version is not added. So several searches may examine the messages above the horizon (see `_queries`).

PostgreSQL cannot compare vectors without an extension. So Python compares them, and reads all vectors of the index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import log
from struct import pack, unpack

from antiphon.ledger._records import Record
from antiphon.ledger._sql.keys import check_collection
from antiphon.ledger._sql.lists import horizon
from antiphon.ledger._sql.rows import BEGINNING, MESSAGES, CommitPlace, all_records_of, place_in, records_of
from antiphon.ledger._sql.statements import Lock, Row, Verb, lock, row, rows, value, write
from antiphon.ledger._terms import (
    HEADING_WEIGHT,
    TermEntry,
    TermIndex,
    TermMatch,
    TermMatches,
    VectorSpace,
    check_vector,
    cosine,
    selectors_of,
)
from antiphon.ledger.postgres._driver import INDEXES
from antiphon.ledger.postgres._search import INDEXED, SET_INDEXED

_STEP = 200
"""Messages whose terms are added in one transaction."""

_NEXT = """
SELECT m.thread, m.seq, m.era, m.xid, m.ord, m.body FROM antiphon.messages AS m
WHERE m.tenant = $1 AND (m.era, m.xid, m.ord) > ($2, $3, $4) AND m.thread IN (
    SELECT key FROM antiphon.threads WHERE tenant = $1 AND (thread_id = $5 OR starts_with(thread_id, $5 || '/'))
) ORDER BY m.era, m.xid, m.ord LIMIT $6
"""
_VERSION = "SELECT version FROM antiphon.term_sources WHERE tenant = $1 AND name = $2 AND source = $3"
_SET_VERSION = """
INSERT INTO antiphon.term_sources (tenant, name, source, version) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant, name, source) DO UPDATE SET version = excluded.version
"""
_REPLACE = "DELETE FROM antiphon.term_entries WHERE tenant = $1 AND name = $2 AND source = $3 AND version < $4"
_INSERT = """
INSERT INTO antiphon.term_entries (tenant, name, thread, seq, source, version, heading, body, length, terms)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING
"""


def update(index: TermIndex, after: CommitPlace | None) -> Verb[CommitPlace | None]:
    """Add the next messages to an index; return where to continue, or None if it has all of them.

    Raises:
        NotSearchableError: it covers an encrypted thread.
    """
    yield from check_collection(index.name)
    yield Lock([INDEXES], is_shared=True)
    yield from lock(_name(index))
    progress = yield from row(INDEXED, _name(index))
    if progress is None or progress[0] != index.version:
        yield from drop(index.name)
        progress, after = None, None
    indexed = BEGINNING if progress is None else CommitPlace(*progress[1:])
    safe = yield from horizon()  # before the messages, as for words
    message_rows = yield from rows(_NEXT, *(after or indexed), index.name, _STEP)
    for thread, seq, *_, body in message_rows:
        if (entry := index.entry_in(body)) is not None:
            yield from _add(index.name, thread, seq, entry)
    is_last = len(message_rows) < _STEP
    upto = safe if is_last else min(safe, place_in(message_rows[-1]))
    if progress is None or upto > indexed:
        yield from write(SET_INDEXED, _name(index), index.version, *max(upto, indexed))
    return None if is_last else place_in(message_rows[-1])


def _name(index: TermIndex) -> str:
    return f"terms of {index.name}"


def _add(name: str, thread: int, seq: int, entry: TermEntry) -> Verb[None]:
    """Add an entry, and remove those of earlier versions of its source."""
    source = _storable(entry.source)
    latest = yield from value(_VERSION, name, source)
    if latest is not None and latest > entry.version:
        return
    if latest is None or latest < entry.version:
        yield from write(_REPLACE, name, source, entry.version)
        yield from write(_SET_VERSION, name, source, entry.version)
    if not entry.is_empty:
        heading, body = _storable(entry.heading), _storable(entry.body)
        terms = sorted({*heading.split(), *body.split()})
        values = (thread, seq, source, entry.version, heading, body, entry.length, terms)
        yield from write(_INSERT, name, *values)


def _storable(text: str) -> str:
    return text.replace("\0", " ")  # PostgreSQL allows no NUL in texts, and no term contains one


def drop(name: str) -> Verb[None]:
    """Remove all entries of an index, and its vectors."""
    for table in ("term_entries", "term_sources", "vector_spaces"):
        sql = f"DELETE FROM antiphon.{table} WHERE tenant = $1 AND name = $2"  # noqa: S608 (names of ours)
        yield from write(sql, name)
    yield from write("DELETE FROM antiphon.indexed WHERE tenant = $1 AND name = $2", f"terms of {name}")


# ---------------------------------------------------------------- search

_FIGURES = """
SELECT count(*), coalesce(sum(length), 0)::bigint FROM antiphon.term_entries WHERE tenant = $1 AND name = $2
"""
_FREQUENCY = """
SELECT w.term, (
    SELECT count(*) FROM antiphon.term_entries AS e WHERE e.tenant = $1 AND e.name = $2 AND e.terms @> ARRAY[w.term]
) FROM unnest($3::text[]) AS w (term)
"""
_CANDIDATES = """
SELECT e.thread, e.seq, e.source, e.version, e.heading, e.body FROM antiphon.term_entries AS e
WHERE e.tenant = $1 AND e.name = $2 AND e.terms && $3::text[] AND ($5::text[] IS NULL OR e.source = ANY($5::text[]))
ORDER BY (
    SELECT sum(w.weight) FROM unnest($3::text[], $4::double precision[]) AS w (term, weight) WHERE w.term = ANY(e.terms)
) DESC, e.thread, e.seq LIMIT $6
"""
_SOURCES = "SELECT source FROM antiphon.term_sources WHERE tenant = $1 AND name = $2"
_AT = f"""
{MESSAGES} JOIN unnest($2::bigint[], $3::bigint[]) AS w (thread, seq) ON w.thread = m.thread AND w.seq = m.seq
WHERE m.tenant = $1
"""


def find(index: TermIndex, terms: Sequence[str], source: str | None, limit: int) -> Verb[TermMatches]:
    """Return the best matches, and the figures of the index."""
    entries, length = (yield from rows(_FIGURES, index.name))[0]
    frequency: dict[str, int] = {columns[0]: columns[1] for columns in (yield from rows(_FREQUENCY, index.name, list(terms)))}
    selectors = selectors_of(frequency, entries)
    weights = {term: log(1 + entries / (1 + count)) for term, count in frequency.items() if count}
    if not selectors or not limit:
        return TermMatches((), entries, length, frequency)
    sources = yield from _fitting(index, source)
    candidates = yield from rows(_CANDIDATES, index.name, selectors, [weights[term] for term in selectors], sources, 4 * limit)
    best = sorted(candidates, key=lambda entry: -_score(entry, weights))[:limit]
    return TermMatches((yield from _matches(best)), entries, length, frequency)


def _score(entry: Row, weights: Mapping[str, float]) -> float:
    heading: list[str] = entry[4].split()
    body: list[str] = entry[5].split()
    counts = {term: body.count(term) + HEADING_WEIGHT * heading.count(term) for term in weights}
    return sum(weights[term] * count / (1 + count) for term, count in counts.items())


def _fitting(index: TermIndex, pattern: str | None) -> Verb[list[str] | None]:
    """Return the sources that match a pattern; None if there is no pattern."""
    if pattern is None:
        return None
    return [source for (source,) in (yield from rows(_SOURCES, index.name)) if fnmatchcase(source, pattern)]


def _matches(entries: Sequence[Row]) -> Verb[tuple[TermMatch, ...]]:
    """Return the messages of some entries, in the same order.

    Raises:
        LedgerCorruptError: one of the messages was altered.
    """
    places = [(thread, seq) for thread, seq, *_ in entries]
    columns = (yield from rows(_AT, *map(list, zip(*places, strict=True)))) if places else []
    records = {(placed.thread, placed.record.seq): placed.record for placed in (yield from all_records_of(columns))}
    matches = zip(places, (TermEntry(*columns[2:6]) for columns in entries), strict=True)
    return tuple(TermMatch(records[place], entry) for place, entry in matches if place in records)


# ---------------------------------------------------------------- vectors

_SPACE = "SELECT model, dimension FROM antiphon.vector_spaces WHERE tenant = $1 AND name = $2"
_SET_SPACE = """
INSERT INTO antiphon.vector_spaces (tenant, name, model, dimension) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING
"""
_WITHOUT = f"""
{MESSAGES} JOIN antiphon.term_entries AS e ON e.tenant = m.tenant AND e.thread = m.thread AND e.seq = m.seq
WHERE e.tenant = $1 AND e.name = $2 AND e.vector IS NULL ORDER BY m.era, m.xid, m.ord LIMIT $3
"""
_SET_VECTOR = """
UPDATE antiphon.term_entries AS e SET vector = $4 FROM antiphon.messages AS m
WHERE e.tenant = $1 AND e.name = $2 AND m.tenant = $1 AND m.thread = e.thread AND m.seq = e.seq AND m.hash = $3
"""
_VECTORS = """
SELECT thread, seq, source, version, heading, body, vector FROM antiphon.term_entries
WHERE tenant = $1 AND name = $2 AND vector IS NOT NULL AND ($3::text[] IS NULL OR source = ANY($3::text[]))
"""


def space_of(index: TermIndex) -> Verb[VectorSpace | None]:
    """Return the space of the vectors that are stored."""
    stored = yield from row(_SPACE, index.name)
    return None if stored is None else VectorSpace(*stored)


def without_vectors(index: TermIndex, space: VectorSpace, limit: int) -> Verb[tuple[Record, ...]]:
    """Return messages that have no vector yet."""
    check_vector(space, (yield from space_of(index)))
    messages = yield from records_of((yield from rows(_WITHOUT, index.name, limit)))
    return tuple(placed.record for placed in messages)


def store_vectors(index: TermIndex, space: VectorSpace, vectors: Mapping[str, Sequence[float]]) -> Verb[None]:
    """Store vectors of messages that are in the index."""
    check_vector(space, (yield from space_of(index)), vectors.values())
    yield from write(_SET_SPACE, index.name, space.model, space.dimension)
    for digest, vector in vectors.items():
        packed = pack(f"<{len(vector)}f", *vector)
        yield from write(_SET_VECTOR, index.name, bytes.fromhex(digest), packed)


def find_vectors(
    index: TermIndex,
    space: VectorSpace,
    vector: Sequence[float],
    *,
    source: str | None,
    limit: int,
) -> Verb[tuple[TermMatch, ...]]:
    """Return the messages whose vectors are nearest."""
    check_vector(space, (yield from space_of(index)), [vector])
    stored = yield from rows(_VECTORS, index.name, (yield from _fitting(index, source)))
    scored = [(cosine(vector, unpack(f"<{space.dimension}f", columns[6])), columns) for columns in stored]
    best = sorted(scored, key=lambda pair: (-pair[0], pair[1][0], pair[1][1]))[:limit]
    return (yield from _matches([columns for _, columns in best]))


def drop_vectors(name: str) -> Verb[None]:
    """Remove all vectors of an index."""
    yield from write("UPDATE antiphon.term_entries SET vector = NULL WHERE tenant = $1 AND name = $2", name)
    yield from write("DELETE FROM antiphon.vector_spaces WHERE tenant = $1 AND name = $2", name)
