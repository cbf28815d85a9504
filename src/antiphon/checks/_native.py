"""A dialect's notes on the messages that it read: the only module that knows where rules find wire data.

A message that was read from a dialect has that dialect's name in its metadata: it is *native* there, and is written back
unchanged. The dialect writes any other message from the core: it maps ids, moves media and fills gaps. So the same problem is
an error in a native message, and a warning in any other.

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
from typing import Any, TypeAlias, cast

from antiphon.messages import Conversation, ForeignPart, Message, Metadata, Part, Tool, thaw

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


def is_native(holder: Holder, dialect: str) -> bool:
    """Whether something was read from a dialect, and is written back unchanged."""
    return dialect in holder.metadata


def is_own(part: Part, message: Message, dialect: str) -> bool:
    """Whether a dialect made a part, and so can verify its signature; this holds also if the part moves to another message."""
    return dialect in part.metadata or dialect in message.metadata


def loosened(metadata: Metadata, dialect: str, notes: Sequence[str]) -> dict[str, Any]:
    """Return the metadata of a native message without some of the dialect's notes."""
    kept = {key: value for key, value in metadata[dialect].items() if key not in notes}
    return {**metadata, dialect: kept}


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
    kept = [change for change in _changes(plain[dialect]["residue"]) if not any(is_wrong(*fact) for fact in _facts(change))]
    plain[dialect]["residue"] = kept
    if not kept:
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
    inner = (*(each for name, each in box.items() if name != key), *items_of(value))
    return int(box.get(key) is not None) + int(_puts(box, key)) + sum(mentions(each, key) for each in inner)


def _puts(box: Mapping[str, Any], key: str) -> bool:
    """Whether this change adds a key that is not null."""
    return tuple(items_of(box.get("at")))[-1:] == (key,) and box.get("is", box.get("add")) is not None


def without_keys(value: Any, key: str, most: int) -> tuple[Any, int]:
    """Return a plain value without the first `most` occurrences of a key, and how many remain to be removed."""
    if isinstance(value, dict):
        kept: dict[str, Any] = {}
        for name, inner in cast("dict[str, Any]", value).items():
            if name == key and inner is not None and most:
                most -= 1
            else:
                kept[name], most = without_keys(inner, key, most)
        return kept, most
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
