"""How SQLite finds threads: by which index.

SQLite does not know how many threads fit a filter, so each statement names its index. If few fit, they are looked up and
sorted: those with open calls, or those that match one field of the filter. Otherwise the threads are read in order until there
are enough. The indexes for filters are made when a file has many threads.
"""

from __future__ import annotations

from typing import Any

from antiphon.ledger._listing import order_of
from antiphon.ledger._sql.statements import Spelled, Verb, value, write
from antiphon.ledger._sql.threads import Plan, conditions_of
from antiphon.ledger._values import ThreadFilter, ThreadOrder
from antiphon.ledger.sqlite._schema import FILTER_INDEX_STATEMENTS

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
_COVERED = {"min_tokens": "t.input_tokens + t.output_tokens > 0", "min_cost": "t.cost <> '0'"}
"""The condition of a partial index, if SQLite cannot infer it. A minimum of 0 matches threads outside of the index too."""

_COUNTED = "SELECT count(*) FROM (SELECT 1 FROM open_calls LIMIT $2)"
_LACKS_INDEXES = """
SELECT NOT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'threads_by_status')
    AND (SELECT count(*) FROM (SELECT 1 FROM threads LIMIT $2)) > $3
"""
_HAS_INDEXES = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'threads_by_status')"
_ALWAYS_THERE = ("threads_owned", "threads_due", "threads_by_creation", "threads_by_update")
_FITTING = "SELECT count(*) FROM (SELECT 1 FROM threads AS t INDEXED BY {} WHERE {} LIMIT {})"
_FEW = 1000
"""With at most this many open calls in the ledger, the threads with open calls are looked up and then sorted."""
_FEW_THREADS = 5000
"""With at most this many matching threads, they are looked up and then sorted."""


def is_indexed(filter: ThreadFilter) -> bool:
    """Whether a filter has a condition that has an index in a file with many threads."""
    return any(_INDEXES[name] not in _ALWAYS_THERE and _is_found_by_index(filter, name) for name in conditions_of(filter, []))


def lacks_indexes() -> Verb[bool]:
    """Whether there are many threads, and no indexes for filters."""
    return bool((yield from value(_LACKS_INDEXES, _FEW_THREADS + 1, _FEW_THREADS)))


def add_indexes() -> Verb[None]:
    """Add the indexes for filters."""
    for statement in FILTER_INDEX_STATEMENTS:
        yield from write(statement)


def plan(filter: ThreadFilter, order: ThreadOrder) -> Verb[Plan]:
    """Return how the threads are found."""
    if filter.open_calls and (yield from value(_COUNTED, _FEW + 1)) <= _FEW:
        return Plan("NOT INDEXED")  # except the key
    field = yield from field_with_few(filter)
    return plan_by(field, order)


def plan_by(field: str | None, order: ThreadOrder) -> Plan:
    """Return how the threads are found, given the field of the filter that few match."""
    index = _ORDER_INDEXES[order_of(order)[0]] if field is None else _INDEXES[field]
    return Plan(f"INDEXED BY {index}", _COVERED.get(field or ""), is_by_open_calls=False)


def field_with_few(filter: ThreadFilter) -> Verb[str | None]:
    """Return the first field of a filter that few threads match; None if there is none."""
    if filter.owner is not None:
        return "owner"  # the threads of one host
    has_indexes = bool((yield from value(_HAS_INDEXES)))
    for name in conditions_of(filter, []):
        if (has_indexes or _INDEXES[name] in _ALWAYS_THERE) and _is_found_by_index(filter, name):
            values: list[Any] = []
            condition = conditions_of(ThreadFilter(**{name: getattr(filter, name)}), values)[name]
            where = " AND ".join([condition.sqlite, *([_COVERED[name]] if name in _COVERED else [])])
            sql = _FITTING.format(_INDEXES[name], where, _FEW_THREADS + 1)
            if (yield from value(Spelled("", sql), *values)) <= _FEW_THREADS:
                return name
    return None


def _is_found_by_index(filter: ThreadFilter, name: str) -> bool:
    return getattr(filter, name) is not False and (name not in _COVERED or getattr(filter, name) > 0)
