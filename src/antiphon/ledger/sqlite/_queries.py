"""Pages of threads, and their counts.

SQLite does not know how many threads fit a filter, so each statement names its index. The indexes for filters are made when a
file has many threads.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from antiphon.ledger._listing import SYSTEM_PATTERN, order_of, page_of, page_start, sorted_counts, summary_of
from antiphon.ledger._records import to_micros
from antiphon.ledger._values import ThreadCount, ThreadFilter, ThreadOrder, ThreadPage
from antiphon.ledger.sql.rows import thread_of
from antiphon.ledger.sqlite._schema import FILTER_INDEXES
from antiphon.ledger.sqlite._sql import Connection

_THREADS = """
SELECT key, thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens, output_tokens,
    cost, forked_from, forked_at, is_redacted, owner, kind, due_at, posted, unfit, open_calls, base, base_seq,
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
