"""The ways in which events become bytes, the noise that may stand between them, and the ways in which bytes are cut."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

__all__ = ["FRAMINGS", "NOISE", "cut", "framed", "pieces"]

Framing = Callable[[list[Any]], list[bytes]]
"""Events to frames; joined, they are the bytes of the stream."""


def _named(event: Any, end: str = "\n") -> str:
    name = event.get("type") or event.get("event_kind")
    return f"event: {name}{end}" if isinstance(name, str) else ""


def _text(event: Any, **options: Any) -> str:
    return json.dumps(event, **options)


def _plain(events: list[Any]) -> list[bytes]:
    return [f"data: {_text(event)}\n\n".encode() for event in events]


def _named_lines(events: list[Any]) -> list[bytes]:
    return [f"{_named(event)}data: {_text(event, ensure_ascii=False)}\n\n".encode() for event in events]


def _carriage(events: list[Any]) -> list[bytes]:
    """CR LF, no space after the colon, fields that nobody asked for."""
    frames = [f"id: {at}\r\nretry: 5\r\ndata:{_text(event)}\r\nfoo: bar\r\n\r\n".encode() for at, event in enumerate(events)]
    return [b"\xef\xbb\xbf", *frames]


def _old_carriage(events: list[Any]) -> list[bytes]:
    """CR alone, which the specification of server-sent events allows."""
    return [f"{_named(event, chr(13))}data: {_text(event)}\r\r".encode() for event in events]


def _many_lines(events: list[Any]) -> list[bytes]:
    """One event over many `data` lines."""
    lines = [_text(event, indent=1, ensure_ascii=False).split("\n") for event in events]
    return ["".join(f"data: {line}\n" for line in each).encode() + b"\n" for each in lines]


def _json_lines(events: list[Any]) -> list[bytes]:
    return [_text(event, ensure_ascii=False).encode() + b"\n" for event in events]


def _array(events: list[Any]) -> list[bytes]:
    """As Gemini sends a stream that was not asked for as server-sent events: an indented array, element by element."""
    frames = [(",\r\n" if at else "[").encode() + _text(event, indent=2).encode() for at, event in enumerate(events)]
    return [*frames, b"\n]\n"]


FRAMINGS: dict[str, Framing] = {
    "data lines": _plain,
    "named events": _named_lines,
    "CR LF": _carriage,
    "CR": _old_carriage,
    "many data lines": _many_lines,
    "JSON lines": _json_lines,
    "a JSON array": _array,
}

NOISE = {
    "comment": b": keep-alive\n\n",
    "empty lines": b"\n\r\n\n",
    "empty data": b"data:\n\n",
    "a name without data": b"event: heartbeat\n\n",
    "a ping": b'event: ping\ndata: {"type": "ping"}\n\n',
    "a retry": b"retry: 3000\n\n",
}
"""What says nothing, whatever the framing."""


def framed(events: list[Any], framing: str = "data lines") -> bytes:
    return b"".join(FRAMINGS[framing](events))


def cut(data: bytes, positions: Iterable[int]) -> list[bytes]:
    """Cut bytes at positions."""
    marks = [0, *sorted(positions), len(data)]
    return [data[start:end] for start, end in pairwise(marks)]


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
