"""Findings, changes and marks of `check` and `repair`; and the notes of a dialect on the messages that it read.

**Marks** are under the namespace `checks`. No content is deleted or rewritten. Content that must not be sent is marked as
*left out*: it stays at its position, and dialects write the conversation without it. Required content that was missing is
added and marked.

**Notes of dialects.** Only this file knows where rules find wire data. A message that was read from a dialect has that
dialect's name in its metadata: it is *native* there, and is written back unchanged. The dialect writes any other message from
the core: it maps ids, moves media and fills gaps. So the same problem is an error in a native message, and a warning in any
other.

A dialect may keep any data in its namespace. The rules look for these keys, all optional:

- `residue`: changes of the form `{"at": path, "is" | "add" | "drop": …}`, the wire data that the dialect would not write;
- any key by its name on the wire (`cache_control`, `namespace`, `thoughtSignature`): as a key, or in a residue;
- of a conversation, the settings of the request (`store`, `tool_choice`): as keys, or one level down;
- `joined`: false, if the unit was separate although the dialect would have joined it to the one before;
- `slot`: true, for instructions in the format's own place for them;
- `needs`: the ids of other messages that must be sent with this one;
- `blocks`: true, if a single text was in a list of blocks, and is written back so;
- `custom`, `agent_message` and `list` on a message, `item` and `id` on a part: the item of OpenAI Responses as which it is
  written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, cast

from typing_extensions import override

from antiphon.messages import (
    Conversation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    Part,
    ReasoningPart,
    TextPart,
    Tool,
    thaw,
)
from antiphon.messages._content import Metadata
from antiphon.messages._unchecked import EMPTY, plain_of

# ---------------------------------------------------------------- findings and changes

Severity: TypeAlias = Literal["error", "warning"]
"""`error`: it is refused. `warning`: it may be refused, or the dialect writes it differently, or it is probably unintended."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a conversation."""

    code: str
    """The code of the rule, which never changes: `AP101`."""
    severity: Severity
    position: int | None
    """The place of the message in the conversation, from 0; None for the conversation as a whole."""
    message_id: str | None
    problem: str
    """What is wrong, in a phrase."""
    answer: str
    """The target's answer: a sentence, word for word if it is known."""
    hint: str
    """How to fix it: a sentence."""

    @override
    def __str__(self) -> str:
        place = "conversation" if self.position is None else f"message {self.position}"
        return f"{place}: {self.code} {self.severity}: {self.problem}"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that `repair` did."""

    code: str
    """The rule that required it."""
    message_id: str | None
    """The changed message, by its original id; None for the conversation as a whole."""
    done: str
    """What was done, in a phrase."""

    @override
    def __str__(self) -> str:
        return f"{self.message_id or 'conversation'}: {self.code}: {self.done}"


@dataclass(frozen=True, slots=True)
class Repaired:
    """A conversation that its target accepts, and the changes that were needed."""

    conversation: Conversation
    changes: tuple[Change, ...]


# ---------------------------------------------------------------- marks

NAMESPACE = "checks"
LEFT_OUT, ADDED, MENDED = "left_out", "added", "mended"

HolderT = TypeVar("HolderT", bound=Message | TextPart | MediaPart | ReasoningPart | DataPart | ForeignPart)


def is_left_out(holder: Message | Part) -> bool:
    """Whether a message, or a part of one, is left out by dialects."""
    # Fast path for empty metadata: this runs for every message and most parts.
    return holder.__dict__["metadata"] is not EMPTY and LEFT_OUT in plain_of(holder, "metadata").get(NAMESPACE, ())


def is_marked(message: Message) -> bool:
    """Whether `repair` added a message, left it out or changed something about it, or about a part of it."""
    return NAMESPACE in message.metadata or any(NAMESPACE in part.metadata for part in message.parts)


def marked(holder: HolderT, mark: str, code: str) -> HolderT:
    """Return a message or part with one more mark: the reason, by the code of the rule."""
    return cast("HolderT", holder.model_copy(update={"metadata": with_mark(holder.metadata, mark, code)}))


def with_mark(metadata: Metadata, mark: str, code: str) -> dict[str, Any]:
    return {**metadata, NAMESPACE: {**metadata.get(NAMESPACE, {}), mark: code}}


def with_parts(message: Message, parts: tuple[Part, ...]) -> Message:
    """Return a message of parts, or a result, with other parts."""
    return message.model_copy(update={"payload": message.payload.model_copy(update={"parts": parts})})


def projected(conversation: Conversation) -> Conversation:
    """Return a conversation without the content that is left out; the same one if nothing is.

    Dialects encode this, so that content that `repair` left out stays in the history and is not sent.
    """
    if not any(map(has_left_out, conversation)):
        return conversation
    messages = (_without_parts(message) for message in conversation if not is_left_out(message))
    return Conversation(messages, tools=conversation.tools, metadata=conversation.metadata)


def has_left_out(message: Message) -> bool:
    """Whether a message or a part of it is left out."""
    return is_left_out(message) or any(map(is_left_out, message.parts))


def _without_parts(message: Message) -> Message:
    if isinstance(message.payload, OptionCallPayload) or not any(map(is_left_out, message.parts)):
        return message
    return with_parts(message, tuple(part for part in message.parts if not is_left_out(part)))


# ---------------------------------------------------------------- notes of dialects

Path: TypeAlias = tuple[str | int, ...]
Fact: TypeAlias = tuple[Path, Any]
"""Wire data of a unit that the dialect would not write: its path and its value."""
Holder: TypeAlias = Message | Part | Tool | Conversation

_UNIT = 2
"""The path length to a key of a unit; a longer path leads inside it."""

_IDS = (("id",), ("provider_response_id",))
"""The keys under which a unit has its id; the second is Pydantic AI's."""

ABSENT = object()
"""The result for a missing key; null is not missing."""
DROPPED = object()
"""The value of a key that the unit did not have, but the dialect would write."""


def box_of(value: object) -> Mapping[str, Any]:
    """Return an object as such; an empty one for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def items_of(value: object) -> Sequence[Any]:
    """Return an array as such; an empty one for anything else."""
    return cast("Sequence[Any]", value) if isinstance(value, Sequence) and not isinstance(value, str) else ()


def own_block(part: Part, dialect: str) -> Mapping[str, Any]:
    """Return the value of a foreign part of this dialect; an empty object for any other part."""
    return box_of(part.value) if isinstance(part, ForeignPart) and part.dialect == dialect else {}


def is_native(message: Message, dialect: str) -> bool:
    """Whether a message was read from a dialect, and is written back unchanged."""
    return message.__dict__["metadata"] is not EMPTY and dialect in plain_of(message, "metadata")


def is_own(part: Part, message: Message, dialect: str) -> bool:
    """Whether a dialect made a part, and so can verify its signature; this holds also if the part moves to another message."""
    return dialect in part.metadata or dialect in message.metadata


def loosened(metadata: Metadata, dialect: str, notes: Sequence[str]) -> dict[str, Any]:
    """Return the metadata of a native message without some of the dialect's notes."""
    remaining = {key: value for key, value in metadata[dialect].items() if key not in notes}
    return {**metadata, dialect: remaining}


def released(metadata: Metadata, dialect: str) -> dict[str, Any]:
    """Return metadata without the dialect's notes, so that the dialect writes the message from the core."""
    return {name: inner for name, inner in metadata.items() if name != dialect}


# ---------------------------------------------------------------- residues


def said_on_wire(holder: Holder, dialect: str) -> Iterator[Fact]:
    """Return the wire data that the dialect would not write, at every depth."""
    for change in _changes(holder.metadata.get(dialect, {}).get("residue")):
        yield from _facts(change)


def is_unit_id(path: Path, value: object) -> bool:
    """Whether this is the original id of a unit."""
    return path[-1:] in _IDS and len(path) <= _UNIT and isinstance(value, str)


def unit_id(holder: Holder, dialect: str) -> str | None:
    """Return the original id of a unit, unless it is noted elsewhere."""
    return next((value for path, value in said_on_wire(holder, dialect) if is_unit_id(path, value)), None)


def without_facts(metadata: Metadata, dialect: str, is_wrong: Callable[[Path, Any], bool]) -> dict[str, Any]:
    """Return metadata without the wrong changes of the residue."""
    plain = cast("dict[str, Any]", thaw(metadata))
    changes = [change for change in _changes(plain[dialect]["residue"]) if not any(is_wrong(*fact) for fact in _facts(change))]
    plain[dialect]["residue"] = changes
    if not changes:
        del plain[dialect]["residue"]
    return plain


def _changes(residue: object) -> list[Mapping[str, Any]]:
    return [change for change in map(box_of, items_of(residue)) if "at" in change]


def _facts(change: Mapping[str, Any]) -> Iterator[Fact]:
    value = change.get("is", change.get("add", DROPPED))
    yield from _inside(tuple(items_of(change["at"])), value)


def _inside(path: Path, value: object) -> Iterator[Fact]:
    yield path, value
    for key, inner in box_of(value).items():
        yield from _inside((*path, key), inner)
    for place, inner in enumerate(items_of(value)):
        yield from _inside((*path, place), inner)


# ---------------------------------------------------------------- keys


def wire_value(holder: Holder, dialect: str, key: str) -> Any:
    """Return the value of a unit's key, or `ABSENT`."""
    namespace = holder.metadata.get(dialect, {})
    if key in namespace:
        return namespace[key]
    return next((value for path, value in said_on_wire(holder, dialect) if path[-1:] == (key,)), ABSENT)


def setting_of(conversation: Conversation, dialect: str, key: str) -> Any:
    """Return a setting of the request that a conversation was read from, or `ABSENT`."""
    namespace = conversation.metadata.get(dialect, {})
    return next((box[key] for box in map(box_of, (namespace, *namespace.values())) if key in box), ABSENT)


def without_settings(metadata: Metadata, dialect: str, keys: frozenset[str]) -> dict[str, Any]:
    """Return a conversation's metadata without some settings of the request."""
    plain = cast("dict[str, Any]", thaw(metadata))
    for box in (plain[dialect], *plain[dialect].values()):
        if isinstance(box, dict):
            for key in keys & cast("dict[str, Any]", box).keys():
                del box[key]
    return plain


def mentions(value: object, key: str) -> int:
    """Count the non-null occurrences of a key in a value, at any depth, including the ends of residue paths."""
    box = box_of(value)
    inner = (*(child for name, child in box.items() if name != key), *items_of(value))
    return int(box.get(key) is not None) + int(_puts(box, key)) + sum(mentions(child, key) for child in inner)


def _puts(box: Mapping[str, Any], key: str) -> bool:
    """Whether this change adds a key that is not null."""
    return tuple(items_of(box.get("at")))[-1:] == (key,) and box.get("is", box.get("add")) is not None


def without_keys(value: Any, key: str, most: int) -> tuple[Any, int]:
    """Return a plain value without the first `most` occurrences of a key, and how many remain to be removed."""
    if isinstance(value, dict):
        fields: dict[str, Any] = {}
        for name, inner in cast("dict[str, Any]", value).items():
            if name == key and inner is not None and most:
                most -= 1
            else:
                fields[name], most = without_keys(inner, key, most)
        return fields, most
    if isinstance(value, list):
        items: list[Any] = []
        for inner in cast("list[Any]", value):
            if most and isinstance(inner, dict) and _puts(cast("dict[str, Any]", inner), key):
                most -= 1
            else:
                item, most = without_keys(inner, key, most)
                items.append(item)
        return items, most
    return value, most
