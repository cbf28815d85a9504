r"""The shared base of the answer assemblers: deltas, growing text, and typed access to events.

An assembler takes the events of one streamed answer and builds the body that the provider would have sent without streaming.
It is a dataclass of plain JSON fields, so its state can be stored, and an assembler resumed from a stored state continues
where the first one stopped. The one exception is text that still grows: appending to a `str` copies it each time, so it is a
`StringIO` until it is read. `settled` returns plain JSON.

A provider may split its text between the two surrogates of a character that JSON escapes as a pair (`\ud83d`, `\ude00`). The
assembler keeps the first surrogate until the second arrives, so that no delta contains half a character.

Data that violates the format, or is not a state of the assembler, raises an `EventError`, which names the key.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from io import StringIO
from typing import Any, Final, Literal, NoReturn, Protocol, Self, TypeAlias, cast

from antiphon.dialects._reading import kind_of
from antiphon.messages import Json
from antiphon.messages._json_values import JsonError, freeze, parse, write

DeltaKind: TypeAlias = Literal["text", "reasoning", "call", "arguments", "refusal", "signature", "citation", "usage", "finish"]

_NAMES = ("type", "event_kind", "object")
"""Keys that may hold the name of an event."""
_HALF_ALONE = "half a character without its other half (a lone surrogate)"
_HIGH_HALVES = range(0xD800, 0xDC00)


@dataclass(frozen=True, slots=True)
class Delta:
    """What an event adds to an answer. Deltas report only the first of several choices; the answer has all."""

    kind: DeltaKind
    index: int | None = None
    """The piece it belongs to (a text, a thought, a call), numbered in order of their start; None: no single piece."""
    text: str = ""
    """The next piece of a text, a thought, a refusal or the arguments' JSON; the signature; the finish reason."""
    option_name: str | None = None
    """The option of a call."""
    invocation_id: str | None = None
    """The id of the call, if the format has one."""
    value: Json = None
    """A citation or the usage so far, in the provider's form; arguments, if they are not sent as text."""


@dataclass(frozen=True, slots=True)
class StreamFailure:
    """A failure that a provider reports in the middle of an answer."""

    message: str
    code: str | None


class EventError(ValueError):
    """An event violates its format: the reason and the key. The stream adds which event it was."""

    def __init__(self, reason: str, key: str = "") -> None:
        super().__init__(reason, key)
        self.reason = reason
        self.key = key


class AnswerAssembler(Protocol):
    """Builds one answer of some format, event by event."""

    @property
    def is_finished(self) -> bool:
        """Whether the provider has marked the answer as complete."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether no part of an answer has arrived."""
        ...

    @property
    def unknown(self) -> Mapping[str, int]:
        """The number of unknown events that are not part of the answer, by name."""
        ...

    @property
    def state(self) -> dict[str, object]:
        """The state, as plain JSON."""
        ...

    def add(self, event: dict[str, object]) -> Iterator[Delta]:
        """Add an event, and yield its deltas. The assembler owns the event from then on."""
        ...

    def end(self) -> None:
        """Record that the server has marked the end of the stream."""
        ...

    def failure_in(self, event: Mapping[str, object]) -> StreamFailure | None:
        """Return the failure that an event reports, if any."""
        ...

    def unfinished(self) -> tuple[str, ...]:
        """Name the incomplete pieces, except text."""
        ...

    def body(self, *, only_complete: bool = False) -> dict[str, Any]:
        """Return the answer so far, as plain JSON; with `whole`, only complete pieces and the text so far."""
        ...


DERIVED: Final = {"derived": True}
"""Metadata of a field that is derived from others, and not stored."""


@dataclass(slots=True)
class AssemblerBase:
    """The part of an assembler that all formats share. Its fields, except derived ones, are its state."""

    pieces: dict[str, int] = field(default_factory=dict[str, int])
    """The number of each piece that was reported in a delta, by the format's key for it."""
    halves: dict[str, int] = field(default_factory=dict[str, int])
    """High surrogates whose low surrogate has not arrived, by the piece they belong to."""
    unknown: dict[str, int] = field(default_factory=dict[str, int])
    ended: bool = False
    """Whether the server has marked the end of the stream."""

    @property
    def state(self) -> dict[str, object]:
        return {field_.name: settled(getattr(self, field_.name)) for field_ in fields(self) if not field_.metadata}

    @classmethod
    def resumed(cls, state: Mapping[str, object]) -> Self:
        """Create an assembler from a stored state."""
        fresh = cls()
        for stored in [stored for stored in fields(cls) if not stored.metadata]:
            initial = getattr(fresh, stored.name)
            value = state.get(stored.name)
            if type(value) is not type(initial):
                raise EventError(f"expected the state of a {cls.__name__}", stored.name)
            setattr(fresh, stored.name, value)
        return fresh

    def end(self) -> None:
        self.ended = True

    def failure_in(self, event: Mapping[str, object]) -> StreamFailure | None:
        """Providers write it as `{"error": {"message", "code" or "type"}}`, some as `{"type": "error", "message"}`."""
        error = event.get("error")
        if event.get("type") != "error" and not (error and isinstance(error, dict | str)):
            return None
        if isinstance(error, str):
            return StreamFailure(error, None)
        details = cast("Mapping[str, Any]", error if isinstance(error, dict) else event)
        codes = (details.get(key) for key in ("code", "status", "type"))
        code = next((str(code) for code in codes if isinstance(code, str | int) and code != "error"), None)
        message = details.get("message")
        return StreamFailure(
            message if isinstance(message, str) and message else json.dumps(details, separators=(",", ":")), code
        )

    def count_unknown(self, event: Mapping[str, Any]) -> None:
        """Count an event that is not part of the answer."""
        name = next((event[key] for key in _NAMES if isinstance(event.get(key), str)), "(without a name)")
        self.unknown[name] = self.unknown.get(name, 0) + 1

    def number(self, piece: str) -> int:
        return self.pieces.setdefault(piece, len(self.pieces))

    def tell(self, kind: DeltaKind, piece: str, text: str) -> Iterator[Delta]:
        """Yield a delta for text, unless it is empty."""
        if text:
            yield Delta(kind, self.number(piece), text)

    def tell_value(self, kind: DeltaKind, piece: str | None, value: Any) -> Iterator[Delta]:
        """Yield a delta for a value that is not text."""
        yield Delta(kind, None if piece is None else self.number(piece), value=freeze(settled(value)))

    def tell_call(self, piece: str, name: object, invocation_id: object) -> Iterator[Delta]:
        """Yield the delta that starts a call: once, and not before its name is known."""
        if piece not in self.pieces and isinstance(name, str) and name:
            id_text = invocation_id if isinstance(invocation_id, str) else None
            yield Delta("call", self.number(piece), option_name=name, invocation_id=id_text)

    def clean(self, piece: str, text: str) -> str:
        """Return text of complete characters: prepend the kept surrogate, and keep a high surrogate at the end."""
        if text.isascii() and not self.halves:
            return text
        if (half := self.halves.pop(piece, None)) is not None:
            text = chr(half) + text
        if text and ord(text[-1]) in _HIGH_HALVES:
            self.halves[piece] = ord(text[-1])
            text = text[:-1]
        try:
            return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            raise EventError(_HALF_ALONE) from None

    def half_characters(self) -> tuple[str, ...]:
        return ("a character of which half has come",) if self.halves else ()


# ---------------------------------------------------------------- text that grows


def grow(holder: dict[str, object], key: str, text: str) -> None:
    """Append to a text; start one if it is missing or null."""
    text_before = holder.get(key)
    if text_before is not None and not isinstance(text_before, str | StringIO):
        _refuse("text", text_before, key)
    holder[key] = grown(text_before, text)


def grown(before: str | StringIO | None, text: str) -> StringIO:
    """Return a text with another one appended."""
    growing = before if isinstance(before, StringIO) else StringIO()
    if isinstance(before, str):
        growing.write(before)
    growing.write(text)
    return growing


def text_so_far(holder: Mapping[str, Any], key: str) -> str:
    """Return the text so far; empty if there is none."""
    value = holder.get(key)
    return value.getvalue() if isinstance(value, StringIO) else value if isinstance(value, str) else ""


def settled(value: object) -> Any:
    """Return a copy with growing text as `str`."""
    if isinstance(value, StringIO):
        return value.getvalue()
    if isinstance(value, dict):
        return {key: settled(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [settled(item) for item in cast("list[Any]", value)]
    return value


def called(name: object, invocation_id: object) -> str:
    """Return a description of a call for an error."""
    return f"the call {settled(name)!r}" + (f" ({invocation_id})" if invocation_id else "")


def keep(holder: dict[str, Any], key: str, value: Any) -> None:
    """Store a value: the latest wins, but null does not replace a known value."""
    if value is not None or key not in holder:
        holder[key] = value


def json_object(text: str) -> dict[str, object] | None:
    """Parse a text as a JSON object; None if it is not one complete object."""
    try:
        value = parse(text.encode())
    except (JsonError, UnicodeEncodeError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def json_text(value: object) -> str:
    """Return the JSON text of a value in an event."""
    try:
        return write(value).decode()
    except TypeError:
        raise EventError(_HALF_ALONE) from None


# ---------------------------------------------------------------- typed access to events


def text_in(holder: Mapping[str, Any], key: str) -> str:
    """Return a text; empty if it is missing or null."""
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        _refuse("text", value, key)
    return value or ""


def object_in(holder: Mapping[str, object], key: str) -> dict[str, Any]:
    """Return an object; empty if it is missing or null."""
    value = holder.get(key)
    if value is not None and not isinstance(value, dict):
        _refuse("an object", value, key)
    return cast("dict[str, Any]", value or {})


def objects_in(holder: Mapping[str, object], key: str) -> list[dict[str, Any]]:
    """Return a list of objects; empty if it is missing or null."""
    value = holder.get(key)
    if value is not None and not isinstance(value, list):
        _refuse("a list", value, key)
    for item in cast("list[Any]", value or []):
        if not isinstance(item, dict):
            _refuse("an object", item, key)
    return cast("list[dict[str, Any]]", value or [])


def ensure_list(holder: dict[str, object], key: str) -> list[object]:
    """Return the list under a key; create it if it is missing or null."""
    value = holder.get(key)
    if value is None:
        value = holder[key] = []
    if not isinstance(value, list):
        _refuse("a list", value, key)
    return cast("list[Any]", value)


def index_in(holder: Mapping[str, object], key: str, default: int | None = None) -> int:
    """Return a position; required unless a default is given."""
    value = holder.get(key, default)
    if type(value) is not int or value < 0:
        _refuse("a position", value, key)
    return value


def _refuse(expected: str, value: object, key: str) -> NoReturn:
    raise EventError(f"expected {expected}, found {kind_of(value)}", key)
