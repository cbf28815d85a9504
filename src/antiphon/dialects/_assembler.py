r"""What the folds of streamed answers share: deltas, text that grows, and typed looks into events.

A fold takes the events of one answer and keeps the whole answer as it would have come without streaming. It is a dataclass of
plain JSON fields, so its state can be stored, and a fold made of a stored state goes on as if nothing had happened. The one
exception is text that is being said: adding to a `str` again and again would copy it each time, so it is a `StringIO` until
someone looks. `settled` gives plain JSON.

A provider may cut its text between the two halves of a character that JSON escapes as a pair (`\ud83d`, `\ude00`). The first
half waits in the fold until the second comes, so that no delta holds half a character.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from io import StringIO
from typing import Any, Final, Literal, NoReturn, Protocol, Self, TypeAlias, cast

from antiphon.dialects._reading import kind_of
from antiphon.messages import Json
from antiphon.messages.json_values import JsonError, freeze, parse, write

DeltaKind: TypeAlias = Literal["text", "reasoning", "call", "arguments", "refusal", "signature", "citation", "usage", "finish"]

_NAMES = ("type", "event_kind", "object")
"""Where an event may have a name."""
_HALF_ALONE = "half a character without its other half (a lone surrogate)"
_HIGH_HALVES = range(0xD800, 0xDC00)


@dataclass(frozen=True, slots=True)
class Delta:
    """What an event adds to an answer. Only the first of several choices is told; the others are in the answer."""

    kind: DeltaKind
    index: int | None = None
    """The piece it belongs to (a text, a thought, a call), counted in the order in which they begin; None: no one piece."""
    text: str = ""
    """What is said next, of a text, a thought, a refusal or the JSON text of arguments; the signature; why it finished."""
    option_name: str | None = None
    """What is called."""
    invocation_id: str | None = None
    """The id of the call, where the format gives one."""
    value: Json = None
    """A citation or the usage so far, as the provider says it; arguments, where they do not come as text."""


@dataclass(frozen=True, slots=True)
class StreamFailure:
    """What a provider says went wrong in the middle of an answer."""

    message: str
    code: str | None


class EventError(ValueError):
    """An event that is not what its format says: why, and at which key. The stream knows which event it was."""

    def __init__(self, reason: str, key: str = "") -> None:
        super().__init__(reason, key)
        self.reason = reason
        self.key = key


class AnswerAssembler(Protocol):
    """One answer of some format, put together event by event."""

    @property
    def is_finished(self) -> bool:
        """Whether the provider has said that this was all."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether nothing of an answer has come."""
        ...

    @property
    def unknown(self) -> Mapping[str, int]:
        """How often events came that say nothing we know of and have no place in the answer, by their name."""
        ...

    @property
    def state(self) -> dict[str, object]:
        """All that has come, as plain JSON."""
        ...

    def add(self, event: dict[str, object]) -> Iterator[Delta]:
        """Take an event, which is then the fold's own, and yield what it adds.

        Raises:
            EventError: it is not what the format says.
        """
        ...

    def end(self) -> None:
        """Take note that the server has marked the end of the stream."""
        ...

    def failure_in(self, event: Mapping[str, object]) -> StreamFailure | None:
        """Return what went wrong, if that is what an event says."""
        ...

    def unfinished(self) -> tuple[str, ...]:
        """Name what has begun and is not whole, other than text."""
        ...

    def body(self, *, whole: bool = False) -> dict[str, Any]:
        """Return the answer so far, as plain JSON; with `whole`, only what is whole, and text as it stands."""
        ...


DERIVED: Final = {"derived": True}
"""Metadata of a field that is found out from others, and stored nowhere."""
_LATER = frozenset({"begins"})
"""Fields that states stored by earlier versions do not have."""


@dataclass(slots=True)
class AssemblerBase:
    """The part of a fold that is the same for all formats. Its fields are its state, but those that follow from others."""

    pieces: dict[str, int] = field(default_factory=dict[str, int])
    """The number of each piece that was told of, by what the format knows it by."""
    halves: dict[str, int] = field(default_factory=dict[str, int])
    """First halves of characters whose second half has not come, by the piece they belong to."""
    unknown: dict[str, int] = field(default_factory=dict[str, int])
    ended: bool = False
    """Whether the server has marked the end of the stream."""

    @property
    def state(self) -> dict[str, object]:
        return {each.name: settled(getattr(self, each.name)) for each in fields(self) if not each.metadata}

    @classmethod
    def resumed(cls, state: Mapping[str, object]) -> Self:
        """Make a fold of a stored state.

        Raises:
            EventError: it is no state of this fold.
        """
        fresh = cls()
        for each in [each for each in fields(cls) if not each.metadata]:
            begun = getattr(fresh, each.name)
            held = state.get(each.name, begun if each.name in _LATER else None)
            if type(held) is not type(begun):
                raise EventError(f"expected the state of a {cls.__name__}", each.name)
            setattr(fresh, each.name, held)
        return fresh

    def end(self) -> None:
        self.ended = True

    def failure_in(self, event: Mapping[str, object]) -> StreamFailure | None:
        """Providers say it as `{"error": {"message", "code" or "type"}}`, some as `{"type": "error", "message"}`."""
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
        """Note an event that has no place in the answer."""
        name = next((event[key] for key in _NAMES if isinstance(event.get(key), str)), "(without a name)")
        self.unknown[name] = self.unknown.get(name, 0) + 1

    def number(self, piece: str) -> int:
        return self.pieces.setdefault(piece, len(self.pieces))

    def tell(self, kind: DeltaKind, piece: str, text: str) -> Iterator[Delta]:
        """Tell of text, if there is any."""
        if text:
            yield Delta(kind, self.number(piece), text)

    def tell_value(self, kind: DeltaKind, piece: str | None, value: Any) -> Iterator[Delta]:
        """Tell of something that is no text."""
        yield Delta(kind, None if piece is None else self.number(piece), value=freeze(settled(value)))

    def tell_call(self, piece: str, name: object, invocation_id: object) -> Iterator[Delta]:
        """Tell that a call begins: once, and not before its name is known."""
        if piece not in self.pieces and isinstance(name, str) and name:
            given = invocation_id if isinstance(invocation_id, str) else None
            yield Delta("call", self.number(piece), option_name=name, invocation_id=given)

    def clean(self, piece: str, text: str) -> str:
        """Return text of whole characters: with the half that waited for it, without the half that has to wait."""
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
    """Add to a text; one that is not there, or null, begins.

    Raises:
        EventError: something else than text is there.
    """
    held = holder.get(key)
    if held is not None and not isinstance(held, str | StringIO):
        _refuse("text", held, key)
    holder[key] = grown(held, text)


def grown(held: str | StringIO | None, text: str) -> StringIO:
    """Return a text with another added."""
    growing = held if isinstance(held, StringIO) else StringIO()
    if isinstance(held, str):
        growing.write(held)
    growing.write(text)
    return growing


def said(holder: Mapping[str, Any], key: str) -> str:
    """Return a text as it stands; empty if there is none."""
    held = holder.get(key)
    return held.getvalue() if isinstance(held, StringIO) else held if isinstance(held, str) else ""


def settled(value: object) -> Any:
    """Return a copy in which text that grows is text."""
    if isinstance(value, StringIO):
        return value.getvalue()
    if isinstance(value, dict):
        return {key: settled(each) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [settled(each) for each in cast("list[Any]", value)]
    return value


def called(name: object, invocation_id: object) -> str:
    """Name a call for a reader."""
    return f"the call {settled(name)!r}" + (f" ({invocation_id})" if invocation_id else "")


def keep(holder: dict[str, Any], key: str, value: Any) -> None:
    """Take over a fact: the latest counts, but null says nothing where something is known."""
    if value is not None or key not in holder:
        holder[key] = value


def json_object(text: str) -> dict[str, object] | None:
    """Return the object that a text spells; None if it is not the text of one whole object."""
    try:
        value = parse(text.encode())
    except (JsonError, UnicodeEncodeError):
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def json_text(value: object) -> str:
    """Return the JSON text of a value in an event.

    Raises:
        EventError: half a character is in it.
    """
    try:
        return write(value).decode()
    except TypeError:
        raise EventError(_HALF_ALONE) from None


# ---------------------------------------------------------------- looks into events


def text_in(holder: Mapping[str, Any], key: str) -> str:
    """Return a text; empty if it is not there or null."""
    value = holder.get(key)
    if value is not None and not isinstance(value, str):
        _refuse("text", value, key)
    return value or ""


def object_in(holder: Mapping[str, object], key: str) -> dict[str, Any]:
    """Return an object; an empty one if it is not there or null."""
    value = holder.get(key)
    if value is not None and not isinstance(value, dict):
        _refuse("an object", value, key)
    return cast("dict[str, Any]", value or {})


def objects_in(holder: Mapping[str, object], key: str) -> list[dict[str, Any]]:
    """Return a list of objects; an empty one if it is not there or null."""
    value = holder.get(key)
    if value is not None and not isinstance(value, list):
        _refuse("a list", value, key)
    for each in cast("list[Any]", value or []):
        if not isinstance(each, dict):
            _refuse("an object", each, key)
    return cast("list[dict[str, Any]]", value or [])


def kept_list(holder: dict[str, object], key: str) -> list[object]:
    """Return the list that is kept under a key; one that is not there, or null, begins."""
    value = holder.get(key)
    if value is None:
        value = holder[key] = []
    if not isinstance(value, list):
        _refuse("a list", value, key)
    return cast("list[Any]", value)


def index_in(holder: Mapping[str, object], key: str, default: int | None = None) -> int:
    """Return a position, which must be there unless there is a default for its absence."""
    value = holder.get(key, default)
    if type(value) is not int or value < 0:
        _refuse("a position", value, key)
    return value


def _refuse(expected: str, value: object, key: str) -> NoReturn:
    raise EventError(f"expected {expected}, found {kind_of(value)}", key)
