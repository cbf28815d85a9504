"""Quotations: messages of a prompt that repeat rows of a ledger, and so are not written again.

What an agent is shown of others (a history that was handed to a thread, earlier exchanges, additions to a memory) is in the
ledger already, as messages of its authors. A pattern that puts it into a prompt says so with `quoting`. The request then
records the places of the quoted rows, and only the rest of the prompt is written. The hash of the prompt covers all of it.

Pydantic AI joins adjacent requests and drops their metadata, but keeps the parts themselves. So a quotation is known by its
parts, which are the same objects in each request of the run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final, NamedTuple

from antiphon.messages import Json, JsonArray, Message, OptionCallPayload

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage


class RowPlace(NamedTuple):
    """The place of a row."""

    seq: int
    thread_id: str | None = None
    """None: the thread of the request."""


class Quotation:
    """Messages of a prompt that repeat rows of a ledger."""

    def __init__(self, messages: Sequence[ModelMessage] = (), places: Sequence[RowPlace] = ()) -> None:
        self.messages = messages
        self.places = places
        self._parts = {id(part): part for message in messages for part in message.parts}

    @classmethod
    def joined(cls, quotations: Iterable[Quotation]) -> Quotation:
        """Return several, one after the other."""
        whole = tuple(quotations)
        return cls([each for one in whole for each in one.messages], [each for one in whole for each in one.places])

    def parts_in(self, messages: Sequence[ModelMessage]) -> list[frozenset[int]]:
        """Return, for each message of a prompt, the positions of its quoted parts."""
        if not self._parts:
            return [frozenset()] * len(messages)
        return [
            frozenset(place for place, part in enumerate(message.parts) if id(part) in self._parts) for message in messages
        ]

    def stored(self) -> Json:
        """Return the places of the rows, in the order of the prompt, as ranges: the first, the last, and another thread."""
        ranges: list[list[Json]] = []
        for seq, thread_id in self.places:
            other: list[Json] = [] if thread_id is None else [thread_id]
            if ranges and ranges[-1][1:] == [seq - 1, *other]:
                ranges[-1][1] = seq
            else:
                ranges.append([seq, seq, *other])
        return [tuple(each) for each in ranges]


_current: ContextVar[Quotation] = ContextVar("antiphon.agents.quotation", default=Quotation())  # noqa: B039 (never changed)


def current_quotation() -> Quotation:
    """Return what the prompts of the current agent quote."""
    return _current.get()


@contextmanager
def quoting(quotation: Quotation) -> Generator[None]:
    """Quote rows in the prompts of the agents that run inside the `with` block."""
    token = _current.set(quotation)
    try:
        yield
    finally:
        _current.reset(token)


QUOTES: Final = "quotes"


def quoted_places(message: Message) -> list[RowPlace]:
    """Return the places of the rows that a model request quotes; empty for any other row."""
    payload = message.payload
    if message.lane != "effect" or not isinstance(payload, OptionCallPayload):
        return []
    match payload.arguments.get("arguments"):
        case {"quotes": JsonArray() as ranges}:
            return [place for each in ranges if isinstance(each, JsonArray) for place in _places(*each)]
        case _:
            return []


def _places(first: Json, last: Json, *others: Json) -> list[RowPlace]:
    thread_id = others[0] if others and isinstance(others[0], str) else None
    is_range = isinstance(first, int) and isinstance(last, int)
    return [RowPlace(seq, thread_id) for seq in range(first, last + 1)] if is_range else []
