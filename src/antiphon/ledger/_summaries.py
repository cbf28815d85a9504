"""From a thread's state to its summary, and pages of summaries."""

from __future__ import annotations

import re
from decimal import Decimal

from antiphon.ledger._chain import from_micros
from antiphon.ledger._door import State
from antiphon.ledger._values import Head, ThreadOrder, ThreadSummary

__all__ = ["SYSTEM_PATTERN", "cursor_position", "head_of", "order_of", "page_of", "page_start", "summary_of"]

SYSTEM_PATTERN = "system"
"""The pattern of threads that the machinery itself talks in."""

_CURSOR = re.compile("[0-9]{1,18}", re.ASCII)
_PAGE = re.compile("(-?[0-9]{1,18})\\.([0-9]{1,18})", re.ASCII)
_ORDERS: dict[str, tuple[str, bool]] = {
    "-updated_at": ("updated_at", True),
    "updated_at": ("updated_at", False),
    "-created_at": ("created_at", True),
    "created_at": ("created_at", False),
}


def summary_of(state: State, open_calls: int) -> ThreadSummary:
    """Return a thread's summary."""
    return ThreadSummary(
        thread_id=state.thread_id,
        status=state.status,
        pattern=state.pattern,
        messages=state.seq,
        open_calls=open_calls,
        created_at=from_micros(state.created_at),
        updated_at=from_micros(state.updated_at),
        input_tokens=state.input_tokens,
        output_tokens=state.output_tokens,
        cost=Decimal(state.cost),
        forked_from=state.forked_from,
        forked_at=state.forked_at,
    )


def head_of(state: State) -> Head:
    """Return where a thread ends."""
    return Head(state.thread_id, state.seq, state.hash.hex(), state.epoch)


def order_of(order: ThreadOrder) -> tuple[str, bool]:
    """Return the field that threads are sorted by, and whether the largest comes first.

    Raises:
        ValueError: there is no such order.
    """
    if order not in _ORDERS:
        raise ValueError(f"threads are ordered by one of {', '.join(_ORDERS)}, not by {order!r}")
    return _ORDERS[order]


def page_of(value: int, key: int) -> str:
    """Return where a page ends, for the next one to begin there."""
    return f"{value}.{key}"


def page_start(page: str) -> tuple[int, int]:
    """Return what `page_of` was given.

    Raises:
        ValueError: it is not what a page said.
    """
    if not (match := _PAGE.fullmatch(page)):
        raise ValueError(f"a page is what ThreadPage.next said, not {page!r}")
    return int(match[1]), int(match[2])


def cursor_position(cursor: str | None) -> int:
    """Return the place in the order of commits that a cursor stands for; without one, the beginning.

    Raises:
        ValueError: it is not a cursor.
    """
    if cursor is None:
        return 0
    if not _CURSOR.fullmatch(cursor):
        raise ValueError(f"a cursor is what tail or horizon gave, not {cursor!r}")
    return int(cursor)
