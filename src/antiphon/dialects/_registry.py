"""The registry of dialects, including those of other packages; format detection; and the house format as a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast

from antiphon.dialects._api import Dialect, Encoded, Losses, Path
from antiphon.dialects._reading import parsed
from antiphon.errors import DecodeError
from antiphon.messages import Conversation, Message, dumps, loads
from antiphon.messages.json_values import parse, write

GROUP = "antiphon.dialects"
"""The entry-point group: `my-format = "my_package.my_module:DIALECT"`."""

_OURS = {
    "house": "antiphon.dialects._registry",
    "choir": "antiphon.dialects.choir._dialect",
    "marsys": "antiphon.dialects.marsys._dialect",
    "agent-framework": "antiphon.dialects.agent_framework._dialect",
    "atlas": "antiphon.dialects.atlas._dialect",
    "openai-chat": "antiphon.dialects.openai_chat",
    "openai-responses": "antiphon.dialects.openai_responses",
    "anthropic-messages": "antiphon.dialects.anthropic_messages",
    "gemini": "antiphon.dialects.gemini",
    "pydantic-ai": "antiphon.dialects.pydantic_ai",
}


@dataclass(frozen=True, slots=True)
class Detected:
    """The result of `detect`: the dialect of some data."""

    name: str | None
    """The dialect; None if none fits, or several do."""
    reason: str
    """The reason, or the dialects that it may be."""
    candidates: tuple[str, ...]
    """All dialects that fit."""


def names() -> tuple[str, ...]:
    """Return the names of all dialects."""
    return (*_OURS, *sorted({point.name for point in entry_points(group=GROUP)} - _OURS.keys()))


@cache
def get(name: str) -> Dialect:
    """Return a dialect by name.

    Raises:
        LookupError: no dialect has that name.
    """
    if name in _OURS:
        return cast("Dialect", import_module(_OURS[name]).DIALECT)
    for point in entry_points(group=GROUP, name=name):
        return cast("Dialect", point.load())
    raise LookupError(f"no dialect is called {name!r}; there are {', '.join(names())}")


def detect(data: Any) -> Detected:
    """Return the dialect of some data, and the reason.

    Raises:
        DecodeError: the data is not JSON.
    """
    value = _first_lines(data)
    found = {name: reason for name in names() if (reason := _recognised(name, value))}
    match list(found):
        case []:
            return Detected(None, f"none of {', '.join(names())} looks like this", ())
        case [name]:
            return Detected(name, found[name], (name,))
        case several:
            return Detected(None, f"it may be {' or '.join(several)}: say which", tuple(several))


def _recognised(name: str, value: object) -> str | None:
    """Ask one dialect. If a dialect of another package cannot be loaded or fails, it counts as not recognising the data."""
    if name in _OURS:
        return get(name).recognise(value)
    try:
        return get(name).recognise(value)
    except Exception:  # noqa: BLE001 (whatever another package raises)
        return None


def _first_lines(data: object) -> Any:
    """Return data as JSON; JSON Lines as a list."""
    try:
        return parsed(data, "json")
    except DecodeError:
        if not isinstance(data, bytes | bytearray | str):
            raise
        lines = data.splitlines()
        if len(lines) <= 1:
            raise
        return [parsed(line, "json") for line in lines if line.strip()]


# ---------------------------------------------------------------- the house format as a dialect


class HouseDialect:
    """The house format as a dialect: a conversation's first line and its messages, as a list of objects."""

    name = "house"
    summary = "antiphon's own format"

    def decode(self, data: object, *, aliases: Mapping[str, str] | None = None) -> Conversation:
        if not isinstance(data, bytes | bytearray | str):
            lines = parsed(data, self.name)
            data = b"\n".join(write(line) for line in (cast("list[Any]", lines) if isinstance(lines, list) else [lines]))
        try:
            found = loads(data.encode() if isinstance(data, str) else bytes(data))
        except UnicodeEncodeError:
            raise DecodeError("a lone surrogate: it is no Unicode text", dialect=self.name) from None
        return Conversation([found]) if isinstance(found, Message) else found

    def encode(
        self, conversation: Conversation, *, as_policy: str | None = None, losses: Losses = "report", **options: Any
    ) -> Encoded:
        if options:
            raise TypeError(f"house has no option {min(options)!r}")
        return Encoded([parse(line) for line in dumps(conversation).splitlines()])

    def places(self, data: object) -> tuple[Path, ...]:
        if isinstance(data, dict):
            return ((),)
        lines = data.splitlines() if isinstance(data, bytes | bytearray | str) else cast("list[Any]", data)
        first = len(lines) - len(self.decode(data))  # the line before the messages has facts about the conversation
        return tuple((position,) for position in range(first, len(lines)))

    def recognise(self, data: object) -> str | None:
        first = cast("Any", data[0] if isinstance(data, list) and data else data)
        return "the key antiphon, with a version" if isinstance(first, dict) and "antiphon" in first else None


DIALECT = HouseDialect()
