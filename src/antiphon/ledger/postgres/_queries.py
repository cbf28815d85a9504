"""Pages of threads, and their counts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from antiphon.ledger._listing import SYSTEM_PATTERN, order_of, page_of, page_start, sorted_counts
from antiphon.ledger._records import to_micros
from antiphon.ledger._values import ThreadCount, ThreadFilter, ThreadOrder, ThreadPage
from antiphon.ledger.sql.rows import OWNED_THREAD, is_storable, thread_of
from antiphon.ledger.sql.statements import Verb, rows

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


def threads(filter: ThreadFilter, order: ThreadOrder, page: str | None, limit: int) -> Verb[ThreadPage]:
    """Return a page of threads."""
    field, _ = order_of(order)
    sql, values = _threads_statement(filter, order, page)
    found = [thread_of(row) for row in (yield from rows(f"{sql} LIMIT {int(limit) + 1}", *values))]
    last = found[limit - 1] if len(found) > limit > 0 else None
    after = None if last is None else page_of(getattr(last.state, field), last.key)
    return ThreadPage(tuple(each.summary for each in found[:limit]), after)


def count_threads(system: bool | None) -> Verb[tuple[ThreadCount, ...]]:
    """Return how many threads there are of each status and pattern."""
    more = "" if system is None else f"AND {_YES_OR_NO['system'][system]}"
    return sorted_counts(ThreadCount(*row) for row in (yield from rows(_COUNTS.format(more))))


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
    return f"{OWNED_THREAD} WHERE {' AND '.join(conditions)} ORDER BY {ordered}", values


def _plain(value: object) -> int | str:
    match value:
        case datetime():
            return to_micros(value)
        case int():
            return int(value)
        case _:
            return str(value)
