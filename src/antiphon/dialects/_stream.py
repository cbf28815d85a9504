"""Streamed answers: bytes in as they arrive, deltas out, and the complete answer at the end.

A stream is an `EventReader` (bytes to events) and an assembler (events to the body that the provider would have sent without
streaming). The dialect then decodes the body like any other. The result does not depend on how the bytes are split.

**Events.** Three framings are accepted, and a stream may switch between them: server-sent events, JSON lines, and a JSON array
whose elements arrive one by one. An event begins with a brace; otherwise it is a block of `field: value` lines that ends with
an empty line. An event is decoded only when it is complete, so the reader keeps only the bytes since the last complete event.

An error does not lose earlier deltas: `feed` returns the deltas up to the bad event, and the next call raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Self, cast

from antiphon.dialects._assembler import AnswerAssembler, AssemblerBase, Delta, EventError, StreamFailure
from antiphon.dialects._reading import as_object, parsed
from antiphon.dialects._registry import get
from antiphon.errors import DecodeError, DialectError, StreamCutError, StreamFailedError
from antiphon.messages import Conversation, thaw
from antiphon.messages._settings import current_limits

# ---------------------------------------------------------------- events

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

    __slots__ = ("_buffer", "_depth", "_most", "_quoted", "_seen", "_start")

    def __init__(self, most: int) -> None:
        self._most = most
        """Bytes of the largest event."""
        self._buffer = bytearray()
        self._start = 0
        """Where the current event begins in the buffer."""
        self._seen = 0
        """How far the buffer was searched already."""
        self._depth = 0
        self._quoted = False

    @property
    def rest(self) -> bytes:
        """The bytes of the incomplete event."""
        return bytes(self._buffer[self._start :])

    def feed(self, data: bytes) -> Iterator[RawEvent]:
        """Take bytes, and yield the events that they complete."""
        del self._buffer[: self._start]
        self._seen -= self._start
        self._start = 0
        self._buffer += data
        while (event := self._next()) is not None:
            if event.data:
                yield event
        if len(self._buffer) - self._start > self._most:
            raise TooLargeError(f"an event of more than {self._most} bytes")

    def flush(self) -> RawEvent | None:
        """Return the last event at the end of the stream: some servers leave out the last empty line."""
        event = None if self._is_json() else _block(self.rest)
        return event if event is not None and event.data else None

    def drop(self) -> None:
        """Discard the incomplete event."""
        self._go_on(len(self._buffer))

    def is_lost(self) -> bool:
        """Whether the rest cannot be the beginning of an event in any framing, such as a page of HTML."""
        lines = self.rest.splitlines()
        if not lines or self._is_json():
            return False
        name, colon, _ = lines[0].partition(b":")
        is_named = bool(colon) or len(lines) > 1
        return not any(name == field if is_named else field.startswith(name) for field in _FIELDS)

    def _next(self) -> RawEvent | None:
        if self._seen <= self._start:
            gap = _BETWEEN.match(self._buffer, self._start)
            self._start = self._seen = self._start if gap is None else gap.end()
        return self._next_json() if self._is_json() else self._next_block()

    def _is_json(self) -> bool:
        return self._buffer.startswith(b"{", self._start)

    def _next_block(self) -> RawEvent | None:
        # Step back: the previous line end may be the first of the pair, and has up to two bytes.
        end = _BLOCK_END.search(self._buffer, max(self._start, self._seen - 2))
        if end is None:
            self._seen = len(self._buffer)
            return None
        block = bytes(self._buffer[self._start : end.start()])
        self._go_on(end.end())
        return _block(block)

    def _next_json(self) -> RawEvent | None:
        while (match := (_INSIDE if self._quoted else _OUTSIDE).search(self._buffer, self._seen)) is not None:
            self._seen = match.end()
            match match[0]:
                case b'"':
                    self._quoted = not self._quoted
                case b"\\":
                    self._seen += 1  # skip the escaped character, which may not have arrived yet
                case b"{":
                    self._depth += 1
                case _:
                    self._depth -= 1
                    if not self._depth:
                        event = RawEvent(bytes(self._buffer[self._start : self._seen]))
                        self._go_on(self._seen)
                        return event
        self._seen = max(self._seen, len(self._buffer))
        return None

    def _go_on(self, start: int) -> None:
        self._start = self._seen = start
        self._depth, self._quoted = 0, False


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


# ---------------------------------------------------------------- streams

_VERSION = 1
"""The version of the stored state."""

_ASSEMBLERS = {
    "openai-chat": "antiphon.dialects.openai_chat._stream",
    "openai-responses": "antiphon.dialects.openai_responses._stream",
    "anthropic-messages": "antiphon.dialects.anthropic_messages._stream",
    "gemini": "antiphon.dialects.gemini._stream",
    "pydantic-ai": "antiphon.dialects.pydantic_ai._stream",
}

_HALF = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
"""An escape that is half a character."""

_PASSING = re.compile(
    r"408|409|425|429|5\d\d|(?:overloaded|api|rate_limit|timeout|server|internal|internal_server)_error"
    r"|rate_limit_exceeded|UNAVAILABLE|INTERNAL|RESOURCE_EXHAUSTED|DEADLINE_EXCEEDED"
)
"""Provider error codes after which the same request may succeed."""


class Stream:
    """One streamed answer.

    Bytes that violate the format raise a `DecodeError` that names the event, and a failure that the provider reports raises a
    `StreamFailedError`: when they are fed, and when the answer is finished.
    """

    __slots__ = ("_aliases", "_assembler", "_count", "_dialect", "_failed", "_last_event", "_reader")

    def __init__(self, dialect: str, *, aliases: Mapping[str, str] | None = None) -> None:
        """Start reading an answer; `aliases` are those of the `Encoded` request.

        Raises:
            LookupError: there is no such dialect, or it has no streams.
        """
        limits = current_limits()
        self._dialect = dialect
        self._aliases = dict(aliases or {})
        self._assembler = cast("AnswerAssembler", _assembler_class(dialect)())
        self._reader = EventReader(limits.message_bytes + limits.data_url_bytes)
        self._count = 0
        self._last_event: str | None = None
        self._failed: DialectError | None = None

    # ---------------------------------------------------------------- input

    def feed(self, data: bytes) -> tuple[Delta, ...]:
        """Feed bytes of the answer's HTTP body, split anywhere, and return the deltas."""
        return self._collect(self._reader.feed(data))

    def add(self, event: Mapping[str, object]) -> tuple[Delta, ...]:
        """Feed one parsed event, and return the deltas. It raises the same errors as `feed`."""
        return self._collect([event])

    def _collect(self, events: Iterable[RawEvent | Mapping[str, object]]) -> tuple[Delta, ...]:
        if self._failed is not None:
            raise self._failed
        deltas: list[Delta] = []
        try:
            for event in events:
                for delta in self._take(event):
                    deltas.append(delta)  # noqa: PERF402 (what came before an error is kept)
        except DialectError as exc:
            self._failed = exc
        except TooLargeError as exc:
            self._failed = DecodeError(str(exc), dialect=self._dialect, where=f"event {self._count + 1}")
        if self._failed is not None and not deltas:
            raise self._failed
        return tuple(deltas)

    def _take(self, raw: RawEvent | Mapping[str, object]) -> Iterator[Delta]:
        if isinstance(raw, RawEvent) and raw.data.strip() == b"[DONE]":
            self._assembler.end()
            return
        self._count += 1
        try:
            event = self._event(raw)
            failure = self._assembler.failure_in(event)
            if failure is None:
                yield from map(self._with_our_names, self._assembler.add(event))
        except EventError as exc:
            where = f"event {self._count}: {exc.key}".removesuffix(": ")
            raise DecodeError(exc.reason, dialect=self._dialect, where=where) from None
        if failure is not None:
            raise self._failure(failure)
        self._last_event = _id_of(raw, event) or self._last_event

    def _event(self, raw: RawEvent | Mapping[str, object]) -> dict[str, Any]:
        """Return an event as our own object; an event that is named `error` is a failure, whatever it holds."""
        is_error = isinstance(raw, RawEvent) and raw.name == "error"
        try:
            event = _parsed(raw.data if isinstance(raw, RawEvent) else raw, self._dialect)
        except DecodeError as exc:
            if isinstance(raw, RawEvent) and is_error:
                return {"type": "error", "error": raw.data.decode(errors="replace")}
            raise EventError(exc.reason, exc.where) from None
        fields = as_object(event)
        if fields is None:
            raise EventError("expected an object")
        return {"type": "error", "error": fields.get("error") or fields} if is_error else fields

    def _with_our_names(self, delta: Delta) -> Delta:
        if delta.kind != "call" or not self._aliases:
            return delta
        name, call_id = str(delta.option_name), delta.invocation_id
        ours = self._aliases.get(call_id, call_id) if call_id is not None else None
        return replace(delta, option_name=self._aliases.get(name, name), invocation_id=ours)

    def _failure(self, failure: StreamFailure) -> StreamFailedError:
        where, may_pass = f"event {self._count}", failure.code is not None and bool(_PASSING.fullmatch(failure.code))
        return StreamFailedError(failure.message, dialect=self._dialect, where=where, code=failure.code, retryable=may_pass)

    # ---------------------------------------------------------------- output

    def finish(self) -> Conversation:
        """Return the complete answer, the same as without streaming.

        Raises:
            StreamCutError: the answer is incomplete; the error names the open pieces and has the state to resume from.
        """
        self._take_rest()
        if self._failed is not None:
            raise self._failed
        opened = self.unfinished
        if opened and not self._count and self._reader.is_lost():
            start = self._reader.rest[:60].decode(errors="replace")
            raise DecodeError(f"not a stream of events: it begins with {start!r}", dialect=self._dialect)
        if opened:
            reason = f"the answer broke off after {self._count} events; still open: {', '.join(opened)}"
            raise StreamCutError(reason, dialect=self._dialect, opened=opened, state=self.state)
        return self._decoded(self._assembler.body())

    def so_far(self) -> Conversation:
        """Return the answer so far: partial text too, but calls and reasoning only if they are complete."""
        return Conversation() if self._assembler.is_empty else self._decoded(self._assembler.body(only_complete=True))

    def _take_rest(self) -> None:
        """Read a last event without an empty line after it, if it is complete."""
        last = self._reader.flush()
        if last is None or self._failed is not None:
            return
        if last.data.strip() != b"[DONE]":
            try:
                self._event(last)
            except EventError:
                return
        self._reader.drop()
        self._collect([last])

    def _decoded(self, body: dict[str, Any]) -> Conversation:
        return get(self._dialect).decode(body, aliases=self._aliases or None)

    @property
    def dialect(self) -> str:
        return self._dialect

    @property
    def body(self) -> dict[str, Any]:
        """The answer so far, in the provider's format for an answer without streaming, as plain JSON."""
        return self._assembler.body()

    @property
    def unfinished(self) -> tuple[str, ...]:
        """The names of the incomplete pieces; empty if the answer is complete."""
        end = () if self._assembler.is_finished else ("the end of the answer",)
        return (*self._assembler.unfinished(), *end)

    @property
    def unknown(self) -> Mapping[str, int]:
        """The number of unknown events that are not part of the answer, by name."""
        return dict(self._assembler.unknown)

    @property
    def last_event(self) -> str | None:
        """The id or sequence number of the last event, for servers that can continue from it."""
        return self._last_event

    # ---------------------------------------------------------------- suspend and resume

    @property
    def state(self) -> dict[str, Any]:
        """The state for `resume`, as plain JSON."""
        return {
            "antiphon_stream": _VERSION,
            "dialect": self._dialect,
            "aliases": dict(self._aliases),
            "events": self._count,
            "last_event": self._last_event,
            "rest": self._reader.rest.decode("latin-1"),
            "answer": self._assembler.state,
        }

    @classmethod
    def resume(cls, state: Mapping[str, object], *, reconnected: bool = False) -> Self:
        """Resume from a state. The next bytes must follow the last byte that was fed.

        A server that continues after `last_event` sends complete events: pass `reconnected` to discard the partial one.

        Raises:
            DecodeError: it is not the state of a stream, or a newer antiphon wrote it.
        """
        checked = _checked_state(state)
        stream = cls(checked["dialect"], aliases=checked["aliases"])
        try:
            stream._assembler = cast("AnswerAssembler", _assembler_class(checked["dialect"]).resumed(checked["answer"]))
        except EventError as exc:
            raise DecodeError(exc.reason, dialect=stream._dialect, where=f"answer.{exc.key}") from None
        stream._count, stream._last_event = checked["events"], checked["last_event"]
        if not reconnected:
            stream.feed(checked["rest"].encode("latin-1"))
        return stream


def _assembler_class(dialect: str) -> type[AssemblerBase]:
    if dialect not in _ASSEMBLERS:
        get(dialect)
        raise LookupError(f"no streamed answer of {dialect!r} can be read; there are {', '.join(_ASSEMBLERS)}")
    return cast("type[AssemblerBase]", import_module(_ASSEMBLERS[dialect]).ASSEMBLER)


def _parsed(data: bytes | Mapping[str, object], dialect: str) -> Any:
    """Parse an event. A lone surrogate is accepted, because its other half may be in the next event."""
    try:
        return parsed(data, dialect)
    except DecodeError:
        text = data if isinstance(data, bytes) else _in_ascii(data)
        if not _HALF.search(text):
            raise
    parsed(_HALF.sub(rb"\\ufffd", text), dialect)  # refuses everything else that is wrong
    return json.loads(text)


def _in_ascii(event: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(event).encode()
    except (TypeError, ValueError, RecursionError):
        return b""  # not JSON at all


def _id_of(raw: RawEvent | Mapping[str, object], event: Mapping[str, object]) -> str | None:
    if isinstance(raw, RawEvent) and raw.id is not None:
        return raw.id
    number = event.get("sequence_number")
    return str(number) if type(number) is int else None


def _checked_state(state: Mapping[str, Any]) -> dict[str, Any]:
    try:
        fields = as_object(thaw(state)) or {}
    except ValueError:
        raise DecodeError("expected the state of a stream, found what is not JSON", dialect="stream") from None
    version = fields.get("antiphon_stream")
    if type(version) is int and version > _VERSION:
        reason = f"written as version {version}, and this antiphon reads up to {_VERSION}: upgrade it"
        raise DecodeError(reason, dialect="stream", where="antiphon_stream")
    shape = {"antiphon_stream": int, "dialect": str, "aliases": dict, "events": int, "rest": str, "answer": dict}
    for key, kind in shape.items():
        if type(fields.get(key)) is not kind:
            raise DecodeError("expected the state of a stream", dialect="stream", where=key)
    return fields
