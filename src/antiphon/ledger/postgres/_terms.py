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
from antiphon.ledger._terms import (
    HEADING_WEIGHT,
    TermEntry,
    TermIndex,
    TermMatch,
    TermMatches,
    VectorSpace,
    check_vector,
    cosine,
)
from antiphon.ledger.postgres._careful import hold_indexes, lock_threads
from antiphon.ledger.postgres._connection import Row, Session
from antiphon.ledger.postgres._keys import check_collection
from antiphon.ledger.postgres._queries import INDEXED, SET_INDEXED, horizon
from antiphon.ledger.postgres._rows import BEGINNING, MESSAGES, CommitPlace, records_of

_STEP = 200
"""Messages whose terms are added in one transaction."""
_COMMON = 0.2
"""The share of all entries from which on a term is common: it selects no candidates if another term can."""
_MANY = 2000
"""The number of entries up to which common terms select candidates, too."""

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


async def update(session: Session, index: TermIndex, after: CommitPlace | None) -> CommitPlace | None:
    """Add the next messages to an index; return where to continue, or None if it has all of them.

    Raises:
        NotSearchableError: it covers an encrypted thread.
    """
    await check_collection(session, index.name)
    await hold_indexes(session)
    await lock_threads(session, [f"terms of {index.name}"])
    row = await session.fetchrow(INDEXED, _name(index))
    if row is None or row["version"] != index.version:
        await drop(session, index.name)
        row, after = None, None
    known = BEGINNING if row is None else CommitPlace(row["era"], row["xid"], row["ord"])
    safe = await horizon(session)  # before the messages, as for words
    rows = await session.fetch(_NEXT, *(after or known), index.name, _STEP)
    for each in rows:
        if (entry := index.entry_in(each["body"])) is not None:
            await _add(session, index.name, each["thread"], each["seq"], entry)
    is_last = len(rows) < _STEP
    upto = safe if is_last else min(safe, CommitPlace(rows[-1]["era"], rows[-1]["xid"], rows[-1]["ord"]))
    if row is None or upto > known:
        await session.execute(SET_INDEXED, _name(index), index.version, *max(upto, known))
    return None if is_last else CommitPlace(rows[-1]["era"], rows[-1]["xid"], rows[-1]["ord"])


def _name(index: TermIndex) -> str:
    return f"terms of {index.name}"


async def _add(session: Session, name: str, thread: int, seq: int, entry: TermEntry) -> None:
    """Add an entry, and remove those of earlier versions of its source."""
    source = _storable(entry.source)
    latest = await session.fetchval(_VERSION, name, source)
    if latest is not None and latest > entry.version:
        return
    if latest is None or latest < entry.version:
        await session.execute(_REPLACE, name, source, entry.version)
        await session.execute(_SET_VERSION, name, source, entry.version)
    if not entry.is_empty:
        heading, body = _storable(entry.heading), _storable(entry.body)
        terms = sorted({*heading.split(), *body.split()})
        values = (thread, seq, source, entry.version, heading, body, entry.length, terms)
        await session.execute(_INSERT, name, *values)


def _storable(text: str) -> str:
    return text.replace("\0", " ")  # PostgreSQL allows no NUL in texts, and no term contains one


async def drop(session: Session, name: str) -> None:
    """Remove all entries of an index, and its vectors."""
    for table in ("term_entries", "term_sources", "vector_spaces"):
        sql = f"DELETE FROM antiphon.{table} WHERE tenant = $1 AND name = $2"  # noqa: S608 (names of ours)
        await session.execute(sql, name)
    await session.execute("DELETE FROM antiphon.indexed WHERE tenant = $1 AND name = $2", f"terms of {name}")


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


async def find(session: Session, index: TermIndex, terms: Sequence[str], source: str | None, limit: int) -> TermMatches:
    """Return the best matches, and the figures of the index."""
    row = await session.fetchrow(_FIGURES, index.name)
    entries, length = (0, 0) if row is None else tuple(row.values())
    frequency = {row[0]: row[1] for row in await session.fetch(_FREQUENCY, index.name, list(terms))}
    there = [term for term, count in frequency.items() if count]
    rare = [term for term in there if frequency[term] <= _COMMON * entries]
    chosen = rare if rare and entries > _MANY else there
    weights = {term: log(1 + entries / (1 + frequency[term])) for term in there}
    if not chosen or not limit:
        return TermMatches((), entries, length, frequency)
    sources = await _fitting(session, index, source)
    found = await session.fetch(_CANDIDATES, index.name, chosen, [weights[term] for term in chosen], sources, 4 * limit)
    best = sorted(found, key=lambda row: -_score(row, weights))[:limit]
    return TermMatches(await _matches(session, best), entries, length, frequency)


def _score(row: Row, weights: Mapping[str, float]) -> float:
    body: list[str] = row["body"].split()
    heading: list[str] = row["heading"].split()
    counts = {term: body.count(term) + HEADING_WEIGHT * heading.count(term) for term in weights}
    return sum(weights[term] * count / (1 + count) for term, count in counts.items())


async def _fitting(session: Session, index: TermIndex, pattern: str | None) -> list[str] | None:
    """Return the sources that match a pattern; None if there is no pattern."""
    if pattern is None:
        return None
    rows = await session.fetch(_SOURCES, index.name)
    return [row[0] for row in rows if fnmatchcase(row[0], pattern)]


async def _matches(session: Session, rows: Sequence[Row]) -> tuple[TermMatch, ...]:
    """Return the messages of some entries, in the same order.

    Raises:
        LedgerCorruptError: one of the messages was altered.
    """
    places = [(row["thread"], row["seq"]) for row in rows]
    records: dict[tuple[int, int], Record] = {}
    left = await session.fetch(_AT, *map(list, zip(*places, strict=True))) if places else []
    while left:
        some = await records_of(session, left)
        records |= {(each.thread, each.record.seq): each.record for each in some}
        left = left[len(some) :]
    entries = [TermEntry(row["source"], row["version"], row["heading"], row["body"]) for row in rows]
    return tuple(TermMatch(records[place], entry) for place, entry in zip(places, entries, strict=True) if place in records)


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


async def space_of(session: Session, index: TermIndex) -> VectorSpace | None:
    """Return the space of the vectors that are stored."""
    row = await session.fetchrow(_SPACE, index.name)
    return None if row is None else VectorSpace(*row.values())


async def without_vectors(session: Session, index: TermIndex, space: VectorSpace, limit: int) -> tuple[Record, ...]:
    """Return messages that have no vector yet."""
    check_vector(space, await space_of(session, index))
    rows = await session.fetch(_WITHOUT, index.name, limit)
    return tuple(each.record for each in await records_of(session, rows))


async def store_vectors(
    session: Session, index: TermIndex, space: VectorSpace, vectors: Mapping[str, Sequence[float]]
) -> None:
    """Store vectors of messages that are in the index."""
    check_vector(space, await space_of(session, index), vectors.values())
    await session.execute(_SET_SPACE, index.name, space.model, space.dimension)
    for digest, vector in vectors.items():
        packed = pack(f"<{len(vector)}f", *vector)
        await session.execute(_SET_VECTOR, index.name, bytes.fromhex(digest), packed)


async def find_vectors(
    session: Session,
    index: TermIndex,
    space: VectorSpace,
    vector: Sequence[float],
    *,
    source: str | None,
    limit: int,
) -> tuple[TermMatch, ...]:
    """Return the messages whose vectors are nearest."""
    check_vector(space, await space_of(session, index), [vector])
    rows = await session.fetch(_VECTORS, index.name, await _fitting(session, index, source))
    scored = [(cosine(vector, unpack(f"<{space.dimension}f", row["vector"])), row) for row in rows]
    best = sorted(scored, key=lambda pair: (-pair[0], pair[1]["thread"], pair[1]["seq"]))[:limit]
    return await _matches(session, [row for _, row in best])


async def drop_vectors(session: Session, name: str) -> None:
    """Remove all vectors of an index."""
    await session.execute("UPDATE antiphon.term_entries SET vector = NULL WHERE tenant = $1 AND name = $2", name)
    await session.execute("DELETE FROM antiphon.vector_spaces WHERE tenant = $1 AND name = $2", name)
