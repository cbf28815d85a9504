"""Queries: threads and open calls by page, heads, hosts, snapshots, and full-text search.

Appends do not update the index of words. A search first brings it up to date, in steps that are small enough for appends in
between. The index stores no text: the words of a message are read from its bytes when a snippet needs them.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from antiphon.errors import LedgerCorruptError
from antiphon.ledger._admission import State
from antiphon.ledger._encryption import is_sealed, not_searchable
from antiphon.ledger._listing import (
    SYSTEM_PATTERN,
    Term,
    head_of,
    order_of,
    page_of,
    page_start,
    sorted_counts,
    summary_of,
    terms_of,
)
from antiphon.ledger._records import snapshot_hash, to_micros
from antiphon.ledger._stored import ThreadSegment
from antiphon.ledger._values import CallPage, Head, Hit, ThreadCount, ThreadFilter, ThreadOrder, ThreadPage
from antiphon.ledger.sqlite._keys import blinded, find_key, thread_key
from antiphon.ledger.sqlite._rows import find_thread, line_to, lineage, link_at, record_at, records_of, thread_of
from antiphon.ledger.sqlite._schema import FILTER_INDEXES, SEARCH_TABLES
from antiphon.ledger.sqlite._sql import Connection
from antiphon.messages import Json
from antiphon.messages.json_values import parse

# ---------------------------------------------------------------- lists

_STATE = """
SELECT thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens, output_tokens, cost,
    forked_from, forked_at, is_redacted
FROM threads ORDER BY thread_id
"""

_THREADS = """
SELECT key, thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens, output_tokens,
    cost, forked_from, forked_at, is_redacted, owner, kind, due_at, posted, unfit, open_calls, base, base_seq, checksum,
    (SELECT name FROM hosts WHERE hosts.key = threads.owner)
FROM threads {}
"""

_COUNTS = "SELECT status, pattern, count(*), sum(open_calls > 0) FROM threads {} GROUP BY status, pattern"

_CONDITIONS = {
    "status": "status = :status",
    "pattern": "pattern = :pattern",
    "forked_from": "forked_from = :forked_from",
    "updated_after": "updated_at > :updated_after",
    "updated_before": "updated_at < :updated_before",
    "created_after": "created_at > :created_after",
    "created_before": "created_at < :created_before",
    "owner": "owner IN (SELECT key FROM hosts WHERE name = :owner)",
    "kind": "kind = :kind",
    "due_before": "owner IS NULL AND due_at IS NOT NULL AND due_at < :due_before",
    "min_tokens": "input_tokens + output_tokens >= :min_tokens",
    "min_cost": "CAST(cost AS REAL) >= CAST(:min_cost AS REAL)",
}
_YES_OR_NO = {
    "system": ("pattern IS NOT :system_pattern", "pattern = :system_pattern"),
    "unfit": ("unfit IS NULL", "unfit IS NOT NULL"),
}
"""The SQL condition of each field of a filter, except `open_calls`; for a boolean field, one for True and one for False."""

_ORDER_INDEXES = {"updated_at": "threads_by_update", "created_at": "threads_by_creation"}
_INDEXES = {
    "owner": "threads_owned",
    "status": "threads_by_status",
    "pattern": "threads_by_pattern",
    "system": "threads_by_pattern",
    "kind": "threads_by_kind",
    "forked_from": "threads_by_fork",
    "unfit": "threads_unfit",
    "due_before": "threads_due",
    "min_tokens": "threads_by_tokens",
    "min_cost": "threads_by_cost",
    "created_after": "threads_by_creation",
    "created_before": "threads_by_creation",
    "updated_after": "threads_by_update",
    "updated_before": "threads_by_update",
}
"""The index that finds the threads for a field of a filter."""
_COVERED = {"min_tokens": " AND input_tokens + output_tokens > 0", "min_cost": " AND cost <> '0'"}
"""The condition of a partial index, if SQLite cannot infer it. A minimum of 0 matches threads outside of the index too."""

_COUNTED = "SELECT count(*) FROM (SELECT 1 FROM open_calls LIMIT ?)"
_LACKS_INDEXES = """
SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'threads_by_status')
    AND (SELECT count(*) FROM (SELECT 1 FROM threads LIMIT ?)) > ?
"""
_HAS_INDEXES = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'threads_by_status')"
_ALWAYS_THERE = ("threads_owned", "threads_due", "threads_by_creation", "threads_by_update")
_FITTING = "SELECT count(*) FROM (SELECT 1 FROM threads INDEXED BY {} WHERE {} LIMIT :few)"
_FEW = 1000
"""With at most this many open calls in the ledger, the threads with open calls are looked up and then sorted."""
_FEW_THREADS = 5000
"""With at most this many matching threads, they are looked up and then sorted."""

_ORDERS = {
    "updated_at": ("(updated_at > :start OR updated_at = :start AND key > :start_key)", "ORDER BY updated_at, key"),
    "-updated_at": ("(updated_at < :start OR updated_at = :start AND key < :start_key)", "ORDER BY updated_at DESC, key DESC"),
    "created_at": ("(created_at > :start OR created_at = :start AND key > :start_key)", "ORDER BY created_at, key"),
    "-created_at": ("(created_at < :start OR created_at = :start AND key < :start_key)", "ORDER BY created_at DESC, key DESC"),
}
_FROM = {
    "updated_at": "updated_at >= :start",
    "-updated_at": "updated_at <= :start",
    "created_at": "created_at >= :start",
    "-created_at": "created_at <= :start",
}
"""The start of a page, as a condition that an index can use."""


def threads(connection: Connection, filter: ThreadFilter, order: ThreadOrder, page: str | None, limit: int) -> ThreadPage:
    """Return a page of threads."""
    field, _ = order_of(order)
    few = bool(filter.open_calls) and connection.value(_COUNTED, (_FEW + 1,)) <= _FEW
    field_with_few = None if few else _field_with_few(connection, filter)
    sql, asked = threads_statement(filter, order, page, limit, has_few_open=few, by=field_with_few)
    found = [thread_of(row) for row in connection.rows(sql, asked)]
    last = found[limit - 1] if len(found) > limit > 0 else None
    after = None if last is None else page_of(getattr(last.state, field), last.key)
    least = filter.min_cost  # SQLite compares it as a floating-point number, so a page may have fewer threads than asked for
    exact = [each for each in found[:limit] if least is None or Decimal(each.state.cost) >= least]
    return ThreadPage(tuple(summary_of(each.state, each.open_calls, each.owner) for each in exact), after)


def count_threads(connection: Connection, system: bool | None) -> tuple[ThreadCount, ...]:
    """Return how many threads there are of each status and pattern."""
    conditions = list(_conditions(ThreadFilter(system=system)).values())
    where = f"WHERE {conditions[0]}" if conditions else ""
    rows = connection.rows(_COUNTS.format(where), {"system_pattern": SYSTEM_PATTERN} if conditions else {})
    return sorted_counts(ThreadCount(*row) for row in rows)


def is_indexed(filter: ThreadFilter) -> bool:
    """Whether a filter has a condition that has an index in a file with many threads."""
    return any(_INDEXES[name] not in _ALWAYS_THERE and _is_found_by_index(filter, name) for name in _conditions(filter))


def lacks_indexes(connection: Connection) -> bool:
    """Whether there are many threads, and no indexes for filters."""
    return bool(connection.value(_LACKS_INDEXES, (_FEW_THREADS + 1, _FEW_THREADS)))


def add_indexes(connection: Connection) -> None:
    """Add the indexes for filters."""
    connection.run(FILTER_INDEXES)


def _field_with_few(connection: Connection, filter: ThreadFilter) -> str | None:
    """Return the first field of a filter that few threads match; None if there is none."""
    if filter.owner is not None:
        return "owner"  # the threads of one host
    has_indexes = bool(connection.value(_HAS_INDEXES))
    for name, condition in _conditions(filter).items():
        if (has_indexes or _INDEXES[name] in _ALWAYS_THERE) and _is_found_by_index(filter, name):
            asked = {"few": _FEW_THREADS + 1, **_values(filter)}
            sql = _FITTING.format(_INDEXES[name], condition + _COVERED.get(name, ""))
            if connection.value(sql, asked) <= _FEW_THREADS:
                return name
    return None


def _is_found_by_index(filter: ThreadFilter, name: str) -> bool:
    return getattr(filter, name) is not False and (name not in _COVERED or getattr(filter, name) > 0)


def _conditions(filter: ThreadFilter) -> dict[str, str]:
    """Return the conditions of a filter by field, except `open_calls`."""
    found = {name: said for name, said in _CONDITIONS.items() if getattr(filter, name) is not None}
    for name, (no, yes) in _YES_OR_NO.items():
        if (value := getattr(filter, name)) is not None:
            found[name] = yes if value else no
    return found


def _values(filter: ThreadFilter) -> dict[str, int | str]:
    given = {name: _plain(getattr(filter, name)) for name in _CONDITIONS if getattr(filter, name) is not None}
    return given | {"system_pattern": SYSTEM_PATTERN}


def threads_statement(
    filter: ThreadFilter,
    order: ThreadOrder,
    page: str | None,
    limit: int,
    *,
    has_few_open: bool = False,
    by: str | None = None,
) -> tuple[str, dict[str, int | str | None]]:
    """Return the statement for a page of threads, and its values.

    It names the index, because SQLite does not know how many threads match. If few do, they are looked up and sorted: those
    with open calls, or those that match the field `by` of the filter. Otherwise the threads are read in order until there are
    enough.
    """
    asked: dict[str, int | str | None] = {"limit": limit + 1, **_values(filter)}
    conditions = list(_conditions(filter).values())
    field, _ = order_of(order)
    index = f"INDEXED BY {_ORDER_INDEXES[field] if by is None else _INDEXES[by]}"
    if has_few_open:
        index = "NOT INDEXED"  # except the key
    if by in _COVERED:
        conditions.append(_COVERED[by].removeprefix(" AND "))
    if filter.open_calls is not None:
        some = "key IN (SELECT thread FROM open_calls)" if has_few_open else "open_calls > 0"
        conditions.append(some if filter.open_calls else "open_calls = 0")
    after, ordered = _ORDERS[order]
    if page is not None:
        conditions += [_FROM[order], after]
        asked["start"], asked["start_key"] = page_start(page)
    where = ["WHERE", " AND ".join(conditions)] if conditions else []
    return " ".join([_THREADS.format(index), *where, ordered, "LIMIT :limit"]), asked


def _plain(value: object) -> int | str:
    match value:
        case datetime():
            return to_micros(value)
        case int():
            return int(value)
        case _:
            return str(value)


_CALLS = """
SELECT m.position, m.thread, m.seq, m.recorded_at, m.hash, m.media, m.body, p.hash
FROM open_calls AS o INDEXED BY open_calls_by_option JOIN messages AS m ON m.position = o.position
LEFT JOIN messages AS p ON p.thread = m.thread AND p.seq = m.seq - 1
WHERE o.option_name = ? AND o.position > ? ORDER BY o.position LIMIT ?
"""
_CALLS_BACK = """
SELECT m.position, m.thread, m.seq, m.recorded_at, m.hash, m.media, m.body, p.hash
FROM open_calls AS o INDEXED BY open_calls_by_option JOIN messages AS m ON m.position = o.position
LEFT JOIN messages AS p ON p.thread = m.thread AND p.seq = m.seq - 1
WHERE o.option_name = ? AND o.position < ? ORDER BY o.position DESC LIMIT ?
"""
_LAST_POSITION = 2**63 - 1


def open_calls_of(connection: Connection, option_name: str, is_reversed: bool, start: int | None, limit: int) -> CallPage:
    """Return a page of the open calls of one option.

    Raises:
        LedgerCorruptError: one of them is not as it was written.
    """
    first = (_LAST_POSITION if is_reversed else 0) if start is None else start
    sql = _CALLS_BACK if is_reversed else _CALLS
    rows = connection.rows(sql, (option_name, first, limit + 1))
    if (hidden := blinded(connection, option_name)) is not None:
        rows = sorted(rows + connection.rows(sql, (hidden, first, limit + 1)), reverse=is_reversed)[: limit + 1]
    after = str(rows[limit - 1][0]) if len(rows) > limit > 0 else None
    return CallPage(tuple(record for _, record in records_of(connection, rows[:limit])), after)


def heads(connection: Connection) -> tuple[Head, ...]:
    """Return the heads of all threads."""
    return tuple(head_of(State(*row)) for row in connection.rows(_STATE))


def snapshot(connection: Connection, thread_id: str, fold: str, upto: int) -> tuple[int, Json] | None:
    """Return the place and the state of a fold's latest snapshot up to a message.

    Raises:
        LedgerCorruptError: it was altered.
    """
    thread = find_thread(connection, thread_id)
    sql = "SELECT seq, hash, state FROM snapshots WHERE thread = ? AND fold = ? AND seq <= ?"
    for holder in [] if thread is None else line_to(connection, thread.key, 0):
        if row := connection.row(sql, (holder.key, fold, upto)):
            seq, digest, state = row
            link = link_at(connection, holder.key, seq)
            if link is None or snapshot_hash(link, fold, state) != digest:
                raise LedgerCorruptError(f"the snapshot of {fold!r} was altered", thread_id, seq)
            key = thread_key(connection, holder.key) if is_sealed(state) else None
            return seq, parse(state if key is None else key.open_snapshot(fold, seq, state))
        upto = min(upto, holder.base_seq)
    return None


# ---------------------------------------------------------------- search

_STEP = 2000
"""Messages that are indexed in one change."""

_FIND = """
SELECT rowid, rank, snippet(search, 0, '«', '»', '…', 16) FROM search WHERE search MATCH ? ORDER BY rank, rowid LIMIT ?
"""
_FIND_IN = """
SELECT rowid, rank, snippet(search, 0, '«', '»', '…', 16) FROM search
WHERE search MATCH ? AND rowid IN (SELECT position FROM messages WHERE thread = ? AND seq BETWEEN ? AND ?)
ORDER BY rank, rowid LIMIT ?
"""


def index_some(connection: Connection) -> bool:
    """Add the next messages to the index, and return whether there are more."""
    if not connection.value("SELECT count(*) FROM sqlite_schema WHERE name = 'search'"):
        connection.run(SEARCH_TABLES)
    done = connection.value("SELECT value FROM counters WHERE name = 'searchable'")
    last = connection.value(
        "SELECT max(position) FROM (SELECT position FROM messages WHERE position > ? ORDER BY position LIMIT ?)", (done, _STEP)
    )
    if last is None:
        return False
    connection.run(
        "INSERT INTO search (rowid, words) SELECT position, words FROM said WHERE position > ? AND position <= ?", (done, last)
    )
    connection.run("UPDATE counters SET value = ? WHERE name = 'searchable'", (last,))
    return True


def find(connection: Connection, typed: str, thread_id: str | None, limit: int) -> tuple[Hit, ...]:
    """Return the best matches, of all threads or one."""
    terms = terms_of(typed)
    if not terms:
        return ()
    wanted = " AND ".join(map(_sought, terms))
    if thread_id is None:
        found = connection.rows(_FIND, (wanted, limit))
    else:
        thread = find_thread(connection, thread_id)
        if thread is not None and find_key(connection, thread.key) is not None:
            raise not_searchable(thread_id)
        segments: list[ThreadSegment] = [] if thread is None else lineage(connection, thread)
        several = (connection.rows(_FIND_IN, (wanted, *segment, limit)) for segment in segments)
        found = sorted((row for rows in several for row in rows), key=lambda row: (row[1], row[0]))[:limit]
    hits = ((record_at(connection, position), snippet) for position, _, snippet in found)
    return tuple(Hit(record, snippet) for record, snippet in hits if record is not None)


def _sought(term: Term) -> str:
    """Return a term as FTS5 strings. FTS5 splits and folds their words in the same way as the words of messages.

    FTS5 does not treat ß and ss as equal, so the term has both; and `mas*` may be a prefix of `Maße`.
    """
    plain = term.typed.removesuffix("*")
    sharp = plain.casefold().replace("ss", "ß")
    spellings = [plain, sharp.replace("ß", "ss"), sharp]
    if term.is_beginning and sharp.endswith("s"):
        spellings.append(f"{sharp[:-1]}ß")
    return f"({' OR '.join(_quoted(each, term.is_beginning) for each in dict.fromkeys(spellings))})"


def _quoted(typed: str, is_beginning: bool) -> str:
    plain = typed.replace('"', " ").replace("\0", " ")
    return f'"{plain}"' + ("*" if is_beginning else "")
