"""Pages of threads, and their counts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

from antiphon.ledger._listing import SYSTEM_PATTERN, order_of, page_of, page_start, sorted_counts
from antiphon.ledger._records import to_micros
from antiphon.ledger._sql.rows import COLUMNS, is_storable, thread_of
from antiphon.ledger._sql.statements import Spelled, Sql, Verb, rows
from antiphon.ledger._values import ThreadCount, ThreadFilter, ThreadOrder, ThreadPage

_CONDITIONS: dict[str, Sql] = {
    "status": "t.status = {0}",
    "pattern": "t.pattern = {0}",
    "forked_from": "t.forked_from = {0}",
    "updated_after": Spelled("t.updated_at > {0} AND t.active_at >= {0} / 8000000", "t.updated_at > {0}"),
    "updated_before": Spelled("t.updated_at < {0} AND t.active_at <= {0} / 8000000", "t.updated_at < {0}"),
    "created_after": "t.created_at > {0}",
    "created_before": "t.created_at < {0}",
    "owner": "t.owner IN (SELECT key FROM antiphon.hosts WHERE tenant = $1 AND name = {0})",
    "kind": "t.kind = {0}",
    "due_before": "t.owner IS NULL AND t.due_at IS NOT NULL AND t.due_at < {0}",
    "min_tokens": "t.input_tokens + t.output_tokens >= {0}",
    "min_cost": Spelled("t.cost::numeric >= {0}::text::numeric", "CAST(t.cost AS REAL) >= CAST({0} AS REAL)"),
}
_YES_OR_NO = {
    "system": (f"t.pattern IS DISTINCT FROM '{SYSTEM_PATTERN}'", f"t.pattern = '{SYSTEM_PATTERN}'"),
    "unfit": ("t.unfit IS NULL", "t.unfit IS NOT NULL"),
}
"""The condition of each field of a filter, except `open_calls`; for a boolean field, one for False and one for True."""
OPEN_CALLS = ("t.open_calls = 0", "t.open_calls > 0")
AMONG_OPEN_CALLS = "t.key IN (SELECT thread FROM antiphon.open_calls WHERE tenant = $1)"
"""Finds the threads with open calls, if they are few or there is no other way."""

_ORDERS = {
    "updated_at": Spelled(
        "(t.active_at, t.updated_at, t.key) > ({0} / 8000000, {0}, {1})",
        "t.updated_at >= {0} AND (t.updated_at > {0} OR t.key > {1})",
    ),
    "-updated_at": Spelled(
        "(t.active_at, t.updated_at, t.key) < ({0} / 8000000, {0}, {1})",
        "t.updated_at <= {0} AND (t.updated_at < {0} OR t.key < {1})",
    ),
    "created_at": Spelled("(t.created_at, t.key) > ({0}, {1})", "t.created_at >= {0} AND (t.created_at > {0} OR t.key > {1})"),
    "-created_at": Spelled(
        "(t.created_at, t.key) < ({0}, {1})", "t.created_at <= {0} AND (t.created_at < {0} OR t.key < {1})"
    ),
}
"""The start of a page."""
_SORTED = {
    "updated_at": Spelled("t.active_at, t.updated_at, t.key", "t.updated_at, t.key"),
    "-updated_at": Spelled("t.active_at DESC, t.updated_at DESC, t.key DESC", "t.updated_at DESC, t.key DESC"),
    "created_at": Spelled("t.created_at, t.key", "t.created_at, t.key"),
    "-created_at": Spelled("t.created_at DESC, t.key DESC", "t.created_at DESC, t.key DESC"),
}
_COUNTS = """
SELECT t.status, t.pattern, count(*), sum(CASE WHEN t.open_calls > 0 THEN 1 ELSE 0 END)
FROM antiphon.threads AS t WHERE t.tenant = $1 AND {} GROUP BY t.status, t.pattern
"""


class Plan(NamedTuple):
    """How a database that does not know how many threads fit finds them."""

    hint: str = ""
    """The clause that names the index."""
    condition: str | None = None
    """The condition of a partial index that the database cannot infer."""
    is_by_open_calls: bool = True
    """Whether threads with open calls are looked up by their calls."""


NO_PLAN = Plan()
Planner: TypeAlias = Callable[[ThreadFilter, ThreadOrder], Verb[Plan]]


def _texts(sql: Sql) -> Spelled:
    return Spelled(sql, sql) if isinstance(sql, str) else sql


def conditions_of(filter: ThreadFilter, values: list[Any]) -> dict[str, Spelled]:
    """Return the conditions of a filter by field, except `open_calls`, and add their values."""
    conditions: dict[str, Spelled] = {}
    for name, condition in _CONDITIONS.items():
        if (operand := getattr(filter, name)) is not None:
            plain = _plain(operand)
            if isinstance(plain, str) and not is_storable(plain):
                conditions[name] = Spelled("false", "false")
                continue
            conditions[name] = _numbered(_texts(condition), values, plain)
    for name, (no, yes) in _YES_OR_NO.items():
        if (operand := getattr(filter, name)) is not None:
            conditions[name] = _texts(yes if operand else no)
    return conditions


def _numbered(condition: Spelled, values: list[Any], *new: int | str) -> Spelled:
    """Return a condition with the numbers of its values, which are added to the others."""
    names: list[str] = []
    for operand in new:
        values.append(operand)
        names.append(f"${len(values) + 1}::{'text' if isinstance(operand, str) else 'bigint'}")
    return Spelled(*(text.format(*names) for text in condition))


def _plain(value: object) -> int | str:
    match value:
        case datetime():
            return to_micros(value)
        case int():
            return int(value)
        case _:
            return str(value)


def threads_statement(
    filter: ThreadFilter, order: ThreadOrder, page: str | None, limit: int, plan: Plan
) -> tuple[Spelled, list[Any]]:
    """Return the statement for a page of threads, and its values after the tenant."""
    values: list[Any] = []
    conditions = [_texts("t.tenant = $1"), *conditions_of(filter, values).values()]
    if filter.open_calls is not None:
        by_calls = filter.open_calls and plan.is_by_open_calls
        conditions.append(_texts(AMONG_OPEN_CALLS if by_calls else OPEN_CALLS[filter.open_calls]))
    if plan.condition is not None:
        conditions.append(_texts(plan.condition))
    if page is not None:
        conditions.append(_numbered(_ORDERS[order], values, *page_start(page)))
    texts = (
        f"SELECT {COLUMNS}, h.name FROM antiphon.threads AS t {plan.hint} "  # noqa: S608 (columns of ours)
        "LEFT JOIN antiphon.hosts AS h ON h.tenant = t.tenant AND h.key = t.owner "
        f"WHERE {' AND '.join(where)} ORDER BY {sorting} LIMIT {int(limit) + 1}"
        for where, sorting in zip(zip(*conditions, strict=True), _SORTED[order], strict=True)
    )
    return Spelled(*texts), values


def threads(
    filter: ThreadFilter, order: ThreadOrder, page: str | None, limit: int, planner: Planner | None
) -> Verb[ThreadPage]:
    """Return a page of threads."""
    field, _ = order_of(order)
    plan = NO_PLAN if planner is None else (yield from planner(filter, order))
    sql, values = threads_statement(filter, order, page, limit, plan)
    candidates = [thread_of(columns) for columns in (yield from rows(sql, *values))]
    last = candidates[limit - 1] if len(candidates) > limit > 0 else None
    after = None if last is None else page_of(getattr(last.state, field), last.key)
    least = filter.min_cost  # SQLite compares it as a floating-point number, so a page may have fewer threads than asked for
    exact = [thread for thread in candidates[:limit] if least is None or Decimal(thread.state.cost) >= least]
    return ThreadPage(tuple(thread.summary for thread in exact), after)


def count_threads(system: bool | None) -> Verb[tuple[ThreadCount, ...]]:
    """Return how many threads there are of each status and pattern."""
    condition = "true" if system is None else _YES_OR_NO["system"][system]
    return sorted_counts(ThreadCount(*columns) for columns in (yield from rows(_COUNTS.format(condition))))
