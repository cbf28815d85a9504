"""Quotations: messages of a prompt that repeat rows of the thread, and so are not written again.

What an agent is shown of others, such as a history that was handed to the thread, is talk of its authors already. A pattern
that puts it into a prompt says so with `quoting`. Then the first request of the agent records the places of the quoted rows,
and only the rest of the prompt is written. The hash of the prompt covers all of it.

Pydantic AI joins adjacent requests and drops their metadata, but keeps the parts themselves. So a quotation is known by its
parts, which are the same objects in each request of the run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from antiphon.durable._course import recorded_arguments
from antiphon.messages import Json, JsonObject, Message, thaw

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage

QUOTES: Final = "quotes"
"""The field of a recorded request that has the places of the quoted rows."""


class Quotation:
    """Messages before a prompt, and the rows of the thread that they repeat.

    Without `seqs`, the messages repeat nothing: they are written like the prompt.
    """

    def __init__(self, messages: Sequence[ModelMessage] = (), seqs: Sequence[int] = ()) -> None:
        self.messages = tuple(messages)
        self.seqs = tuple(seqs)
        self._parts = {id(part): part for message in messages for part in message.parts} if seqs else {}

    @classmethod
    def joined(cls, quotations: Iterable[Quotation]) -> Quotation:
        """Return several, one after the other."""
        quotation = cls()
        for segment in quotations:
            quotation.messages += segment.messages
            quotation.seqs += segment.seqs
            quotation._parts |= segment._parts
        return quotation

    def parts_in(self, messages: Sequence[ModelMessage]) -> list[frozenset[int]]:
        """Return, for each message of a prompt, the positions of its quoted parts."""
        return [
            frozenset(place for place, part in enumerate(message.parts) if id(part) in self._parts) for message in messages
        ]

    def ranges(self) -> Json:
        """Return the places of the rows, in the order of the prompt, as ranges: the first and the last place of each."""
        ranges: list[list[Json]] = []
        before = 0
        for seq in self.seqs:
            if ranges and seq == before + 1:
                ranges[-1][1] = seq
            else:
                ranges.append([seq, seq])
            before = seq
        return ranges


def quoted_seqs(message: Message) -> list[int]:
    """Return the places of the rows that a recorded model request quotes; empty for any other row."""
    ranges: list[tuple[int, int]] = thaw((recorded_arguments(message) or JsonObject({})).get(QUOTES, ()))
    return [seq for first, last in ranges for seq in range(first, last + 1)]


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
