"""Queries: threads and open calls by page, heads, snapshots, and full-text search.

**Search.** Words are folded in Python (see `_listing`), so they do not depend on the locale of the database; PostgreSQL gets
them as a `tsvector`, which holds the first 16,000 words of a message, up to a megabyte. Appends do not update the index. A
search first adds missing messages. The index records its progress only up to the horizon, because a message of a running
transaction may still appear before those that are already visible. The next search examines the few messages above the horizon
again. The horizon is read before the messages: a message that is committed in between is then above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from antiphon.errors import LedgerCorruptError
from antiphon.ledger._encryption import is_sealed, not_searchable
from antiphon.ledger._listing import (
    SYSTEM_PATTERN,
    Term,
    fold_words,
    head_of,
    order_of,
    page_of,
    page_start,
    snippet,
    sorted_counts,
    terms_of,
    words_of,
)
from antiphon.ledger._records import snapshot_hash, to_micros
from antiphon.ledger._values import CallPage, Head, Hit, ThreadCount, ThreadFilter, ThreadOrder, ThreadPage
from antiphon.ledger.postgres._careful import hold_indexes
from antiphon.ledger.postgres._connection import Row, Session
from antiphon.ledger.postgres._keys import blinded, find_key, thread_key
from antiphon.ledger.postgres._rows import (
    BEGINNING,
    BELOW_HORIZON,
    MESSAGES,
    THREAD_AND_OWNER,
    CommitPlace,
    find_thread,
    is_storable,
    key_of,
    line_to,
    lineage,
    link_at,
    place_of,
    records_of,
    thread_of,
)
from antiphon.messages import Json
from antiphon.messages.json_values import parse

# ---------------------------------------------------------------- lists

_CONDITIONS = {
    "status": "t.status = {}",
    "pattern": "t.pattern = {}",
    "forked_from": "t.forked_from = {}",
    "updated_after": "t.updated_at > {0} AND t.active_at >= {0} / 8000000",
    "updated_before": "t.updated_at < {0} AND t.active_at <= {0} / 8000000",
    "created_after": "t.created_at > {}",
    "created_before": "t.created_at < {}",
    "owner": "t.owner IN (SELECT key FROM antiphon.hosts WHERE tenant = $1 AND name = {})",
    "kind": "t.kind = {}",
    "due_before": "t.owner IS NULL AND t.due_at IS NOT NULL AND t.due_at < {}",
    "min_tokens": "t.input_tokens + t.output_tokens >= {}",
    "min_cost": "t.cost::numeric >= {}::text::numeric",
}
_YES_OR_NO = {
    "system": (f"t.pattern IS DISTINCT FROM '{SYSTEM_PATTERN}'", f"t.pattern = '{SYSTEM_PATTERN}'"),
    "unfit": ("t.unfit IS NULL", "t.unfit IS NOT NULL"),
    "open_calls": ("t.open_calls = 0", "t.key IN (SELECT thread FROM antiphon.open_calls WHERE tenant = $1)"),
}
"""The condition of each field of a filter; for a boolean field, one for True and one for False."""
_COUNTS = """
SELECT t.status, t.pattern, count(*), count(*) FILTER (WHERE t.open_calls > 0)
FROM antiphon.threads AS t WHERE t.tenant = $1 {} GROUP BY t.status, t.pattern
"""
_ORDERS = {
    "updated_at": ("(t.active_at, t.updated_at, t.key) > ({0} / 8000000, {0}, {1})", "t.active_at, t.updated_at, t.key"),
    "-updated_at": (
        "(t.active_at, t.updated_at, t.key) < ({0} / 8000000, {0}, {1})",
        "t.active_at DESC, t.updated_at DESC, t.key DESC",
    ),
    "created_at": ("(t.created_at, t.key) > ({0}, {1})", "t.created_at, t.key"),
    "-created_at": ("(t.created_at, t.key) < ({0}, {1})", "t.created_at DESC, t.key DESC"),
}


async def threads(session: Session, filter: ThreadFilter, order: ThreadOrder, page: str | None, limit: int) -> ThreadPage:
    """Return a page of threads."""
    field, _ = order_of(order)
    sql, values = _threads_statement(filter, order, page)
    found = [thread_of(row) for row in await session.fetch(f"{sql} LIMIT {int(limit) + 1}", *values)]
    last = found[limit - 1] if len(found) > limit > 0 else None
    after = None if last is None else page_of(getattr(last.state, field), last.key)
    return ThreadPage(tuple(each.summary for each in found[:limit]), after)


async def count_threads(session: Session, system: bool | None) -> tuple[ThreadCount, ...]:
    """Return how many threads there are of each status and pattern."""
    more = "" if system is None else f"AND {_YES_OR_NO['system'][system]}"
    return sorted_counts(ThreadCount(*row) for row in await session.fetch(_COUNTS.format(more)))


def _threads_statement(filter: ThreadFilter, order: ThreadOrder, page: str | None) -> tuple[str, list[Any]]:
    """Return the statement for a page of threads, and its values after the tenant."""
    values: list[Any] = []

    def number(value: object) -> str:
        values.append(value)
        return f"${len(values) + 1}::{'text' if isinstance(value, str) else 'bigint'}"

    conditions = ["t.tenant = $1"]
    for name, condition in _CONDITIONS.items():
        if (value := getattr(filter, name)) is not None:
            plain = _plain(value)
            is_possible = isinstance(plain, int) or is_storable(plain)
            conditions.append(condition.format(number(plain)) if is_possible else "false")
    for name, (no, yes) in _YES_OR_NO.items():
        if (value := getattr(filter, name)) is not None:
            conditions.append(yes if value else no)
    after, ordered = _ORDERS[order]
    if page is not None:
        start, key = page_start(page)
        conditions.append(after.format(number(start), number(key)))
    return f"{THREAD_AND_OWNER} WHERE {' AND '.join(conditions)} ORDER BY {ordered}", values


def _plain(value: object) -> int | str:
    match value:
        case datetime():
            return to_micros(value)
        case int():
            return int(value)
        case Decimal():
            return str(value)
        case _:
            return str(value)


_CALLS = f"""
{MESSAGES} JOIN antiphon.open_calls AS o
    ON o.tenant = m.tenant AND o.era = m.era AND o.xid = m.xid AND o.ord = m.ord
WHERE o.tenant = $1 AND o.option_key = $2 AND (o.era, o.xid, o.ord) > ($3, $4, $5)
ORDER BY o.era, o.xid, o.ord, o.thread LIMIT $6
"""
_CALLS_BACK = f"""
{MESSAGES} JOIN antiphon.open_calls AS o
    ON o.tenant = m.tenant AND o.era = m.era AND o.xid = m.xid AND o.ord = m.ord
WHERE o.tenant = $1 AND o.option_key = $2 AND (o.era, o.xid, o.ord) < ($3, $4, $5)
ORDER BY o.era DESC, o.xid DESC, o.ord DESC, o.thread DESC LIMIT $6
"""
_END = CommitPlace(2**31 - 1, 2**62, 2**31 - 1)


async def open_calls_of(session: Session, option_name: str, is_reversed: bool, page: str | None, limit: int) -> CallPage:
    """Return a page of the open calls of one option.

    Raises:
        LedgerCorruptError: one of them is not as it was written.
        ValueError: the page is not valid.
    """
    start = (_END if is_reversed else BEGINNING) if page is None else place_of(page)
    sql = _CALLS_BACK if is_reversed else _CALLS
    rows = await session.fetch(sql, key_of(option_name), *start, limit + 1)
    if (hidden := await blinded(session, option_name)) is not None:
        rows += await session.fetch(sql, key_of(hidden), *start, limit + 1)
        rows.sort(key=lambda row: (row["era"], row["xid"], row["ord"], row["thread"]), reverse=is_reversed)
    found = await records_of(session, rows[:limit])
    after = str(found[-1].place) if len(rows) > limit > 0 else None
    return CallPage(tuple(each.record for each in found), after)


async def heads(session: Session) -> tuple[Head, ...]:
    """Return the heads of all threads."""
    sql = f"{THREAD_AND_OWNER} WHERE t.tenant = $1 ORDER BY t.thread_id"
    return tuple(head_of(thread_of(row).state) for row in await session.fetch(sql))


async def snapshot(session: Session, thread_id: str, fold: str, upto: int) -> tuple[int, Json] | None:
    """Return the place and the state of a fold's latest snapshot up to a message.

    Raises:
        LedgerCorruptError: it was altered.
    """
    thread = await find_thread(session, thread_id)
    sql = """
SELECT seq, hash, state FROM antiphon.snapshots WHERE tenant = $1 AND thread = $2 AND fold = $3 AND seq <= $4
"""
    for holder in [] if thread is None else await line_to(session, thread.key, 0):
        row = await session.fetchrow(sql, holder.key, fold, upto)
        if row is not None:
            seq, digest, state = row.values()
            link = await link_at(session, holder.key, seq)
            if link is None or snapshot_hash(link, fold, state) != digest:
                raise LedgerCorruptError(f"the snapshot of {fold!r} was altered", thread_id, seq)
            key = await thread_key(session, holder.key) if is_sealed(state) else None
            return seq, parse(state if key is None else key.open_snapshot(fold, seq, state))
        upto = min(upto, holder.base_seq)
    return None


# ---------------------------------------------------------------- order of all threads

_LAST = f"""
SELECT m.era, m.xid, m.ord FROM antiphon.messages AS m WHERE m.tenant = $1 AND {BELOW_HORIZON}
ORDER BY m.era DESC, m.xid DESC, m.ord DESC LIMIT 1
"""  # noqa: S608 (a condition of ours)
_SINCE = f"""
{MESSAGES} WHERE m.tenant = $1 AND (m.era, m.xid, m.ord) > ($2, $3, $4) AND {BELOW_HORIZON}
ORDER BY m.era, m.xid, m.ord LIMIT 256
"""
_ABOVE = f"""
SELECT 1 FROM antiphon.messages AS m
WHERE m.tenant = $1 AND (m.era, m.xid, m.ord) > ($2, $3, $4) AND NOT {BELOW_HORIZON} LIMIT 1
"""  # noqa: S608


class TailPage(NamedTuple):
    """The next messages of a tail."""

    found: list[tuple[CommitPlace, Any]]
    upto: CommitPlace
    """The place of the last message that was read: those of forgotten threads are left out of the result."""
    is_more_coming: bool
    """Whether a running transaction holds back committed messages."""


async def horizon(session: Session) -> CommitPlace:
    """Return the place of the last message that all readers have at the same place."""
    row = await session.fetchrow(_LAST)
    return BEGINNING if row is None else CommitPlace(*row.values())


_HELD_BACK = f"""
SELECT min(m.recorded_at) FROM antiphon.messages AS m
WHERE m.tenant = $1 AND (m.era, m.xid, m.ord) > ($2, $3, $4) AND NOT {BELOW_HORIZON}
"""  # noqa: S608 (a condition of ours)


async def tail_lag(session: Session, now: int) -> float:
    """Return the age of the oldest message that a running transaction holds back; 0 if there is none."""
    oldest = await session.fetchval(_HELD_BACK, *await horizon(session))
    return 0.0 if oldest is None else max(0.0, (now - int(oldest)) / 1e6)


async def since(session: Session, place: CommitPlace, thread_id: str | None) -> TailPage:
    """Return the next messages after a place, of all threads or one."""
    rows: list[Row] = []
    if thread_id is None:
        rows = await session.fetch(_SINCE, *place)
    else:
        thread = await find_thread(session, thread_id)
        for segment in [] if thread is None else await lineage(session, thread):
            rows += await session.fetch(_SINCE_IN, *place, *segment)
    found = await records_of(session, rows[:256], with_forgotten=thread_id is not None)
    is_more = not rows and bool(await session.fetchval(_ABOVE, *place))
    last = rows[min(len(rows), 256) - 1] if rows and not found else None  # all of them are of forgotten threads
    upto = found[-1].place if found else place if last is None else CommitPlace(last["era"], last["xid"], last["ord"])
    return TailPage([(each.place, each.record) for each in found], upto, is_more)


_SINCE_IN = f"""
{MESSAGES} WHERE m.tenant = $1 AND (m.era, m.xid, m.ord) > ($2, $3, $4) AND {BELOW_HORIZON}
    AND m.thread = $5 AND m.seq BETWEEN $6 AND $7
ORDER BY m.seq LIMIT 256
"""

# ---------------------------------------------------------------- search

_MOST_WORDS = 16_000
"""PostgreSQL counts the positions of words up to 16,383."""
_MOST_POSITIONS = 250
"""Of one word in one message: PostgreSQL keeps 255."""
_LONGEST_WORD = 500
"""Characters: a `tsvector` takes words below 2 KB."""
_MOST_BYTES = 1_000_000
"""Of all words of a message with their positions: a `tsvector` takes less than 1 MiB."""
_STEP = 2000

WORDS = "words"
"""The name of the index of words among those in `indexed`."""
INDEXED = "SELECT version, era, xid, ord FROM antiphon.indexed WHERE tenant = $1 AND name = $2"
SET_INDEXED = """
INSERT INTO antiphon.indexed (tenant, name, version, era, xid, ord) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (tenant, name) DO UPDATE SET version = excluded.version, era = excluded.era, xid = excluded.xid, ord = excluded.ord
"""
_UNINDEXED = """
SELECT m.thread, m.seq, m.era, m.xid, m.ord, m.body FROM antiphon.messages AS m
WHERE m.tenant = $1 AND (m.era, m.xid, m.ord) > ($2, $3, $4)
ORDER BY m.era, m.xid, m.ord LIMIT $5
"""
_ADD_WORDS = """
INSERT INTO antiphon.words (tenant, thread, seq, words)
SELECT $1, w.thread, w.seq, w.words::tsvector FROM unnest($2::bigint[], $3::bigint[], $4::text[]) AS w (thread, seq, words)
ON CONFLICT DO NOTHING
"""
_FIND = f"""
{MESSAGES} JOIN antiphon.words AS w ON w.tenant = m.tenant AND w.thread = m.thread AND w.seq = m.seq
WHERE w.tenant = $1 AND w.words @@ $2::text::tsquery AND ($3::bigint IS NULL OR m.thread = $3 AND m.seq BETWEEN $4 AND $5)
ORDER BY ts_rank(w.words, $2::text::tsquery, 1) DESC, m.era, m.xid, m.ord LIMIT $6
"""


async def index_words(session: Session, after: CommitPlace | None) -> CommitPlace | None:
    """Add the next messages to the index of words; return where to continue, or None if it has all of them."""
    await hold_indexes(session)
    safe = await horizon(session)
    row = await session.fetchrow(INDEXED, WORDS)
    start = after or (BEGINNING if row is None else CommitPlace(row["era"], row["xid"], row["ord"]))
    rows = await session.fetch(_UNINDEXED, *start, _STEP)
    if not rows:
        return None
    texts = [(each["thread"], each["seq"], vector_of(fold_words(words_of(each["body"])))) for each in rows]
    await session.execute(_ADD_WORDS, *map(list, zip(*texts, strict=True)))
    last = CommitPlace(rows[-1]["era"], rows[-1]["xid"], rows[-1]["ord"])
    known = min(last, safe)
    if row is None or known > CommitPlace(row["era"], row["xid"], row["ord"]):
        await session.execute(SET_INDEXED, WORDS, "1", *known)
    return last if len(rows) == _STEP else None


def vector_of(words: Sequence[str]) -> str:
    """Return words as the text of a `tsvector`. They have letters and digits only, so nothing needs to be escaped."""
    places: dict[str, list[int]] = {}
    size = 0
    for number, word in enumerate((each[:_LONGEST_WORD] for each in words[:_MOST_WORDS]), start=1):
        size += 2 if word in places else len(word.encode()) + 6  # a position; with a new word, also their number and padding
        if size > _MOST_BYTES:
            break
        places.setdefault(word, []).append(number)
    return " ".join(f"'{word}':{','.join(map(str, at[:_MOST_POSITIONS]))}" for word, at in places.items())


async def find(session: Session, typed: str, thread_id: str | None, limit: int) -> tuple[Hit, ...]:
    """Return the best matches, of all threads or one."""
    terms = terms_of(typed)
    if not terms:
        return ()
    wanted = " & ".join(map(_sought, terms))
    segments: Iterable[tuple[int | None, int, int]] = [(None, 0, 0)]
    if thread_id is not None:
        thread = await find_thread(session, thread_id)
        if thread is not None and await find_key(session, thread.key) is not None:
            raise not_searchable(thread_id)
        segments = [] if thread is None else await lineage(session, thread)
    hits: list[Hit] = []
    for key, first, last in segments:
        rows = await session.fetch(_FIND, wanted, key, first, last, limit)
        found = await records_of(session, rows)
        hits += [Hit(each.record, snippet(terms, words_of(each.record.body))) for each in found]
    return tuple(hits[:limit])


def _sought(term: Term) -> str:
    """Return a term as a `tsquery`: words that follow each other, the last one perhaps as a prefix."""
    words = [f"'{word[:_LONGEST_WORD]}'" for word in term.words]
    if term.is_beginning:
        words[-1] += ":*"
    return f"({' <-> '.join(words)})"
