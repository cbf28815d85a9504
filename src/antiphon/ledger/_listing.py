"""The parts of lists and search that all stores share: summaries, pages, cursors, the words of a message.

To remove a message from the index of words, a file passes its words again. So a change of what `words_of` returns needs
another format.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, NamedTuple, cast

import orjson

from antiphon.ledger._admission import State, move_of
from antiphon.ledger._ownership import unfit_of
from antiphon.ledger._records import from_micros
from antiphon.ledger._values import CallOrder, Head, ThreadCount, ThreadOrder, ThreadSummary
from antiphon.messages._arguments import check_type

# ---------------------------------------------------------------- summaries, pages, cursors

SYSTEM_PATTERN = "system"
"""The pattern of the runtime's own threads."""

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
        moved_to=None if (move := move_of(state)) is None else move.to,
        head=head_of(state),
    )


def sorted_counts(counts: Iterable[ThreadCount]) -> tuple[ThreadCount, ...]:
    """Return counts by status, then by pattern; threads without one come first."""
    return tuple(sorted(counts, key=lambda count: (count.status or "", count.pattern or "")))


def head_of(state: State) -> Head:
    """Return the head of a thread."""
    return Head(state.thread_id, state.seq, state.hash.hex(), abs(state.epoch))


def order_of(order: ThreadOrder) -> tuple[str, bool]:
    """Return the field that threads are sorted by, and whether the largest comes first."""
    if order not in _ORDERS:
        raise ValueError(f"threads are ordered by one of {', '.join(_ORDERS)}, not by {order!r}")
    return _ORDERS[order]


def is_newest_first(order: CallOrder) -> bool:
    """Return whether calls are listed from the newest to the oldest."""
    if order not in ("recorded_at", "-recorded_at"):
        raise ValueError(f"calls are ordered by recorded_at or -recorded_at, not by {order!r}")
    return order == "-recorded_at"


def page_of(value: int, key: int) -> str:
    """Return the text that names the end of a page, where the next one begins."""
    return f"{value}.{key}"


def page_start(page: str) -> tuple[int, int]:
    """Return the arguments of `page_of`."""
    if not (match := _PAGE.fullmatch(page)):
        raise ValueError(f"expected the `next` of another page, got {page!r}")
    return int(match[1]), int(match[2])


def cursor_order(cursor: str) -> tuple[int, ...]:
    """Return a value by which the cursors of one ledger sort: a cursor is one number, or several with dots between them."""
    return tuple(map(int, cursor.split(".")))


# ---------------------------------------------------------------- words

_MOST_TERMS = 32
"""The number of terms of a search that are used; the rest are ignored."""
_SHOWN = ("text", "data", "value", "arguments", "result", "option_name", "error_message", "title", "quote", "prompt_hint")
"""The fields of a payload that hold content; the others hold names, signatures and references."""
_NESTED = ("parts", "citations")
_TYPED = re.compile(r'"([^"]*)"?|(\S+)')
_WORD = re.compile(r"[^\W_]+")


class Term(NamedTuple):
    """A term of a search: words that must follow each other."""

    typed: str
    words: tuple[str, ...]
    """The words of `typed`, without case and accents."""
    is_beginning: bool
    """Whether the last word is a prefix."""


def terms_of(typed: str) -> tuple[Term, ...]:
    """Return the terms of a search: each word is one, and so are words in quotes together.

    Raises:
        TypeError: it is not a text.
    """
    check_type("the text of a search", typed, str, "'green tea'")
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
    """Return the text of a stored message, line by line; an empty text if it cannot be decoded."""
    try:
        form = orjson.loads(body)
        return "\n".join(_payload_texts(form["payload"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def _payload_texts(fields: dict[str, Any]) -> Iterator[str]:
    for name in _NESTED:
        for part in fields.get(name, ()):
            yield from _payload_texts(part)
    for name in _SHOWN:
        yield from _texts(fields.get(name))


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _texts(item)
    elif isinstance(value, dict):
        for field in cast("dict[str, Any]", value).values():
            yield from _texts(field)


def snippet(terms: Sequence[Term], text: str, around: int = 8) -> str:
    """Return the words around the first match, with the match marked."""
    pieces = [piece for piece in text.split() if fold_words(piece)]
    sought = {word for term in terms for word in term.words}
    hits = [any(word in sought or word.startswith(tuple(sought)) for word in fold_words(piece)) for piece in pieces]
    first = max(0, hits.index(True) - around // 2) if True in hits else 0
    excerpt = zip(pieces[first : first + around], hits[first : first + around], strict=True)
    return " ".join(f"«{piece}»" if is_hit else piece for piece, is_hit in excerpt)
