"""Reading a stream to its end, and what its deltas say when they are put together."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from antiphon.dialects._assembler import Delta
from antiphon.dialects._stream import Stream
from antiphon.messages import Message, OptionCallPayload, PartsPayload, ReasoningPart, TextPart

__all__ = ["Read", "read", "read_events", "told", "words_of"]


class Read(NamedTuple):
    """A stream that was read, and all that it told."""

    stream: Stream
    deltas: list[Delta]


def read(dialect: str, data: Iterable[bytes], stream: Stream | None = None) -> Read:
    stream = stream or Stream(dialect)
    return Read(stream, [delta for piece in data for delta in stream.feed(piece)])


def read_events(dialect: str, events: Iterable[Any]) -> Read:
    stream = Stream(dialect)
    return Read(stream, [delta for event in events for delta in stream.add(event)])


def told(deltas: Iterable[Delta]) -> dict[tuple[str, int | None], str]:
    """Return the text that was told, by kind and piece, in the order in which they began."""
    texts: dict[tuple[str, int | None], str] = defaultdict(str)
    for delta in deltas:
        if delta.kind in ("text", "reasoning", "refusal", "arguments"):
            texts[delta.kind, delta.index] += delta.text
    return {key: text for key, text in texts.items() if text}


def words_of(messages: Iterable[Message]) -> dict[str, list[str]]:
    """Return what messages say in words and thoughts, part by part, and what they call."""
    found: dict[str, list[str]] = {"text": [], "reasoning": [], "call": []}
    for message in messages:
        match message.payload:
            case PartsPayload(parts=parts):
                found["text"] += [part.text for part in parts if isinstance(part, TextPart) and part.text]
                found["reasoning"] += [part.text for part in parts if isinstance(part, ReasoningPart) and part.text]
            case OptionCallPayload(option_name=name):
                found["call"].append(name)
            case _:
                raise AssertionError(f"an answer holds no {message.kind}")
    return found
