"""Reads events from the bytes of a streamed answer, which may be split anywhere, even inside a character.

Three framings are accepted, and a stream may switch between them: server-sent events, JSON lines, and a JSON array whose
elements arrive one by one. An event begins with a brace; otherwise it is a block of `field: value` lines that ends with an
empty line. An event is decoded only when it is complete, so the reader keeps only the bytes since the last complete event.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BETWEEN = re.compile(rb"[\s,\[\]\xef\xbb\xbf]*")
"""Bytes between events that are skipped: empty lines, the punctuation of an array, a byte order mark."""
_BLOCK_END = re.compile(rb"(?>\r\n|\n|\r){2}")  # atomic: CR LF is one line end, never two
_OUTSIDE = re.compile(rb'["{}]')
_INSIDE = re.compile(rb'["\\]')
_FIELDS = (b"data", b"event", b"id", b"retry", b"error", b"")
"""The fields of a server-sent event; a comment has an empty field name."""


class TooLargeError(ValueError):
    """An event is longer than the limit."""


@dataclass(frozen=True, slots=True)
class RawEvent:
    """One event as it was framed."""

    data: bytes
    name: str = ""
    """The name of a server-sent event."""
    id: str | None = None
    """The id of a server-sent event, from which a client can resume."""


class EventReader:
    """Takes bytes as they arrive, and yields the complete events."""

    __slots__ = ("_depth", "_held", "_most", "_quoted", "_seen", "_start")

    def __init__(self, most: int) -> None:
        self._most = most
        """Bytes of the largest event."""
        self._held = bytearray()
        self._start = 0
        """Where the current event begins in the buffer."""
        self._seen = 0
        """How far the buffer was searched already."""
        self._depth = 0
        self._quoted = False

    @property
    def rest(self) -> bytes:
        """The bytes of the incomplete event."""
        return bytes(self._held[self._start :])

    def feed(self, data: bytes) -> Iterator[RawEvent]:
        """Take bytes, and yield the events that they complete.

        Raises:
            TooLargeError: an event is longer than allowed.
        """
        del self._held[: self._start]
        self._seen -= self._start
        self._start = 0
        self._held += data
        while (event := self._next()) is not None:
            if event.data:
                yield event
        if len(self._held) - self._start > self._most:
            raise TooLargeError(f"an event of more than {self._most} bytes")

    def flush(self) -> RawEvent | None:
        """Return the last event at the end of the stream: some servers leave out the last empty line."""
        event = None if self._is_json() else _block(self.rest)
        return event if event is not None and event.data else None

    def drop(self) -> None:
        """Discard the incomplete event."""
        self._go_on(len(self._held))

    def is_lost(self) -> bool:
        """Whether the rest cannot be the beginning of an event in any framing, such as a page of HTML."""
        lines = self.rest.splitlines()
        if not lines or self._is_json():
            return False
        name, colon, _ = lines[0].partition(b":")
        whole = bool(colon) or len(lines) > 1
        return not any(name == field if whole else field.startswith(name) for field in _FIELDS)

    def _next(self) -> RawEvent | None:
        if self._seen <= self._start:
            self._start = self._seen = _between_end(self._held, self._start)
        return self._next_json() if self._is_json() else self._next_block()

    def _is_json(self) -> bool:
        return self._held.startswith(b"{", self._start)

    def _next_block(self) -> RawEvent | None:
        # Step back: the previous line end may be the first of the pair, and has up to two bytes.
        end = _BLOCK_END.search(self._held, max(self._start, self._seen - 2))
        if end is None:
            self._seen = len(self._held)
            return None
        block = bytes(self._held[self._start : end.start()])
        self._go_on(end.end())
        return _block(block)

    def _next_json(self) -> RawEvent | None:
        while (found := (_INSIDE if self._quoted else _OUTSIDE).search(self._held, self._seen)) is not None:
            self._seen = found.end()
            match found[0]:
                case b'"':
                    self._quoted = not self._quoted
                case b"\\":
                    self._seen += 1  # skip the escaped character, which may not have arrived yet
                case b"{":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if not self._depth:
                        event = RawEvent(bytes(self._held[self._start : self._seen]))
                        self._go_on(self._seen)
                        return event
        self._seen = max(self._seen, len(self._held))
        return None

    def _go_on(self, start: int) -> None:
        self._start = self._seen = start
        self._depth, self._quoted = 0, False


def _between_end(held: bytearray, start: int) -> int:
    found = _BETWEEN.match(held, start)
    return start if found is None else found.end()


def _block(text: bytes) -> RawEvent:
    """Read the lines of a server-sent event by its specification; unknown fields and comments are ignored."""
    data: list[bytes] = []
    name, event_id, error = "", None, b""
    for line in text.splitlines():
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match field:
            case b"data":
                data.append(value)
            case b"error" if value.startswith(b"{"):
                error = value
            case b"event":
                name = value.decode(errors="replace")
            case b"id":
                event_id = value.decode(errors="replace")
            case _:
                pass
    if error and not data:  # `error` is not in the specification, but some servers report failures in it
        data = [b'{"error":' + error + b"}"]
    return RawEvent(b"\n".join(data), name, event_id)
