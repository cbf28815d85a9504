"""Lists and search, as far as all stores share them: summaries, pages, cursors, and the words of a message.

An index takes words out by being told them again. So a change of what `words_of` returns needs a migration that drops the
index.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple, cast

import orjson

from antiphon.ledger._admission import State
from antiphon.ledger._chain import from_micros
from antiphon.ledger._ownership import unfit_of
from antiphon.ledger._values import CallOrder, Head, ThreadOrder, ThreadSummary

# ---------------------------------------------------------------- summaries, pages, cursors

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


def summary_of(state: State, open_calls: int, owner: str | None = None) -> ThreadSummary:
    """Return a thread's summary; `owner` is the name of its host."""
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
        owner=owner,
        kind=state.kind,
        due_at=None if state.due_at is None else from_micros(state.due_at),
        unfit=unfit_of(state),
    )


def head_of(state: State) -> Head:
    """Return where a thread ends."""
    return Head(state.thread_id, state.seq, state.hash.hex(), abs(state.epoch))


def order_of(order: ThreadOrder) -> tuple[str, bool]:
    """Return the field that threads are sorted by, and whether the largest comes first.

    Raises:
        ValueError: there is no such order.
    """
    if order not in _ORDERS:
        raise ValueError(f"threads are ordered by one of {', '.join(_ORDERS)}, not by {order!r}")
    return _ORDERS[order]


def is_newest_first(order: CallOrder) -> bool:
    """Return whether calls are listed from the newest to the oldest.

    Raises:
        ValueError: there is no such order.
    """
    if order not in ("recorded_at", "-recorded_at"):
        raise ValueError(f"calls are ordered by recorded_at or -recorded_at, not by {order!r}")
    return order == "-recorded_at"


def page_of(value: int, key: int) -> str:
    """Return where a page ends, for the next one to begin there."""
    return f"{value}.{key}"


def page_start(page: str) -> tuple[int, int]:
    """Return what `page_of` was given.

    Raises:
        ValueError: it is not what a page said.
    """
    if not (match := _PAGE.fullmatch(page)):
        raise ValueError(f"a page is what the `next` of another page said, not {page!r}")
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


# ---------------------------------------------------------------- words

_MOST_TERMS = 32
"""Terms of a search that are looked at; a person types fewer."""
_SHOWN = ("text", "data", "value", "arguments", "result", "option_name", "error_message", "title", "quote", "prompt_hint")
"""The fields of a payload that say something; the others name, prove or point."""
_NESTED = ("parts", "citations")
_TYPED = re.compile(r'"([^"]*)"?|(\S+)')
_WORD = re.compile(r"[^\W_]+")


class Term(NamedTuple):
    """Words that must follow each other."""

    typed: str
    words: tuple[str, ...]
    """The same, without case and accents."""
    is_beginning: bool
    """Whether the last word may go on."""


def terms_of(typed: str) -> tuple[Term, ...]:
    """Return the terms of a search text: every word, and words in quotes as a phrase."""
    terms: list[Term] = []
    for quoted, plain in _TYPED.findall(typed):
        typed_term = quoted or plain
        words = tuple(fold_words(typed_term))
        if words:
            terms.append(Term(typed_term, words, is_beginning=bool(plain) and plain.endswith("*")))
    return tuple(terms[:_MOST_TERMS])


def fold_words(text: str) -> list[str]:
    """Return the words of a text without case and accents."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return _WORD.findall("".join(letter for letter in plain if not unicodedata.combining(letter)))


def words_of(body: bytes) -> str:
    """Return what a stored message says, line by line; nothing, if it cannot be read."""
    try:
        form = orjson.loads(body)
        return "\n".join(_said(form["payload"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def _said(fields: dict[str, Any]) -> Iterator[str]:
    for name in _NESTED:
        for each in fields.get(name, ()):
            yield from _said(each)
    for name in _SHOWN:
        yield from _texts(fields.get(name))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _texts(each)
    elif isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from _texts(each)
