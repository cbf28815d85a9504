"""The registry of dialects, and the verbs that take the name of one: `decode`, `encode`, `convert`, `detect`.

The registry includes dialects of other packages, and the house format as a dialect. A `Projection` writes a growing history.

Every verb raises a `LookupError` for a dialect that does not exist, and a `DecodeError` for data that is not in its format.
With `losses="raise"`, `encode` and `convert` raise an `EncodeError` if something would be lost.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from antiphon.dialects._api import Dialect, Encoded, Losses, Path, Places
from antiphon.dialects._body_dialect import BodyDialect
from antiphon.dialects._reading import parsed
from antiphon.errors import DecodeError
from antiphon.messages import Conversation, Message, PartsPayload, dumps, loads
from antiphon.messages._json_values import parse, write
from antiphon.messages._settings import new_id

# ---------------------------------------------------------------- the registry

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
    offered = _read_offered(entry_points, tuple((folder, _changed_at(folder)) for folder in sys.path))
    return (*_OURS, *sorted({point.name for point in offered} - _OURS.keys()))


@lru_cache(maxsize=1)
def _read_offered(read: Callable[..., Iterable[EntryPoint]], _: object) -> tuple[EntryPoint, ...]:
    """Read the metadata of all installed packages, again only when one was installed: that takes ten milliseconds."""
    return tuple(read(group=GROUP))


def _changed_at(folder: str) -> int | None:
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return None


@cache
def get(name: str) -> Dialect:
    """Return a dialect by name."""
    if name in _OURS:
        return cast("Dialect", import_module(_OURS[name]).DIALECT)
    for point in entry_points(group=GROUP, name=name):
        return cast("Dialect", point.load())
    raise LookupError(f"no dialect is called {name!r}; there are {', '.join(names())}")


def detect(data: Any) -> Detected:
    """Return the dialect of some data, and the reason."""
    value = _first_lines(data)
    reasons = {name: reason for name in names() if (reason := _recognised(name, value))}
    match list(reasons):
        case []:
            return Detected(None, f"none of {', '.join(names())} looks like this", ())
        case [name]:
            return Detected(name, reasons[name], (name,))
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
            value = loads(data.encode() if isinstance(data, str) else bytes(data))
        except UnicodeEncodeError:
            raise DecodeError("a lone surrogate: it is no Unicode text", dialect=self.name) from None
        return Conversation([value]) if isinstance(value, Message) else value

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


# ---------------------------------------------------------------- decode, encode, convert


def decode(data: Any, dialect: str, *, aliases: Mapping[str, str] | None = None, fresh_ids: bool = False) -> Conversation:
    """Read a conversation from a format: bytes, text, or parsed JSON.

    `aliases` are those of the `Encoded` that was sent, if the format refused some of our ids or names. A message without an id
    gets one from its place and content, so reading the same data twice gives the same ids. With `fresh_ids` it gets a new id
    instead: use it for a new answer, because two answers with the same text are two messages.
    """
    read = get(dialect).decode(data, aliases=aliases) if aliases else get(dialect).decode(data)
    return with_fresh_ids(read, dialect) if fresh_ids else read


def encode(
    conversation: Conversation, dialect: str, as_policy: str | None = None, losses: Losses = "report", **options: Any
) -> Encoded:
    """Write a conversation in a format, and report the losses.

    `as_policy` is the viewpoint: the policy whose messages are the assistant's.
    """
    return get(dialect).encode(conversation, as_policy=as_policy, losses=losses, **options)


def convert(
    data: Any, *, source: str, target: str, losses: Losses = "report", as_policy: str | None = None, **options: object
) -> Encoded:
    """Turn data in one format into another."""
    return encode(decode(data, source), target, as_policy, losses, **options)


def places(data: Any, dialect: str) -> tuple[Path, ...]:
    """Return where each message of `decode` is in the data: a path such as `("messages", 2)`; empty if the dialect has none.

    Several core messages have the same path if the format has one message for them.
    """
    reader = get(dialect)
    return reader.places(data) if isinstance(reader, Places) else ()


# ---------------------------------------------------------------- fresh ids


def with_fresh_ids(conversation: Conversation, dialect: str) -> Conversation:
    """Return a conversation with new ids in place of those that the dialect made; references between messages are kept."""
    generated = re.compile(re.escape(dialect) + r"-\d+-[0-9a-f]{12}")
    new_ids: dict[str, str] = {}

    def renamed(name: str) -> str:
        match = generated.match(name)
        if match is None:
            return name
        if match[0] not in new_ids:
            new_ids[match[0]] = new_id()
        return new_ids[match[0]] + name[match.end() :]

    messages = map(partial(_renamed, renamed=renamed), conversation)
    return Conversation(messages, tools=conversation.tools, metadata=conversation.metadata)


def _renamed(message: Message, *, renamed: Callable[[str], str]) -> Message:
    update: dict[str, Any] = {"id": renamed(message.id)}
    for field in ("turn_id", "in_reply_to", "parent_id"):
        if (value := getattr(message, field)) is not None:
            update[field] = renamed(value)
    payload = message.payload
    if not isinstance(payload, PartsPayload) and renamed(payload.invocation_id) != payload.invocation_id:
        update["payload"] = payload.model_copy(update={"invocation_id": renamed(payload.invocation_id)})
    return message.model_copy(update=update)


# ---------------------------------------------------------------- a history that grows

# An agent sends its whole history with every request. Writing all of it each time takes quadratic time. The output for the
# beginning stays valid, because the output of a longer history begins like that of a shorter one.


class Projection:
    """Writes a growing conversation in one format, each time only the new messages.

    The value is that of `encode`, but its units are the same objects each time: send them, do not change them. Use one for
    one conversation in one task. If the beginning has changed, it writes everything again.
    """

    def __init__(self, dialect: str, *, as_policy: str | None = None, **options: Any) -> None:
        self._dialect = get(dialect)
        self._as_policy = as_policy
        self._options = options
        self._memory = self._dialect.memory() if isinstance(self._dialect, BodyDialect) else None

    def encode(self, conversation: Conversation) -> Encoded:
        """Write a conversation."""
        if self._memory is None or not isinstance(self._dialect, BodyDialect):
            return self._dialect.encode(conversation, as_policy=self._as_policy, **self._options)
        return self._dialect.go_on(self._memory, conversation, self._as_policy, self._options)
