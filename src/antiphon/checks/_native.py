"""What a dialect left on what it read: the one place that knows where rules may look for things of the wire.

A message that was read from a dialect has that dialect's name in its metadata: it is *native* there, and is written as it was.
Any other is written by the dialect from the core, which maps ids, moves media and fills gaps by itself. So the same
trouble is an error in a native message, and a warning in any other.

In a namespace a dialect keeps what it likes; these are looked for, and no harm is done where they are not:

- `residue`: changes of the form `{"at": path, "is" | "add" | "drop": …}`, what the wire said beyond what would be written;
- any key by its name on the wire (`cache_control`, `namespace`, `thoughtSignature`): as a key, or in a residue;
- of a conversation, the settings of the request (`store`, `tool_choice`): as keys, or one level down;
- `joined`: false, where the dialect would have joined a unit to the one before it, and it was not so;
- `slot`: true, for instructions in the format's own place for them;
- `needs`: the ids of other messages that must be sent with this one;
- `blocks`: true, where one text came in a list of blocks, and is written so;
- `custom`, `agent_message` and `list` on a message, `item` and `id` on a part: as what item of OpenAI Responses it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from antiphon.messages import Conversation, ForeignPart, Message, Metadata, Part, Tool, thaw

Path: TypeAlias = tuple[str | int, ...]
Fact: TypeAlias = tuple[Path, Any]
"""Something that a unit said beyond what would be written: where, and what."""
Holder: TypeAlias = Message | Part | Tool | Conversation

_UNIT = 2
"""Steps to a key of a unit; a path that goes further is about something in it."""

_IDS = (("id",), ("provider_response_id",))
"""Under which keys a unit has its id; the second is Pydantic AI's."""

ABSENT = object()
"""What is returned for something that is not there: null is there."""
DROPPED = object()
"""The value of what a unit did not say, and would be written."""


def box_of(value: object) -> Mapping[str, Any]:
    """Return an object as such; an empty one for anything else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def items_of(value: object) -> Sequence[Any]:
    """Return an array as such; an empty one for anything else."""
    return cast("Sequence[Any]", value) if isinstance(value, Sequence) and not isinstance(value, str) else ()


def own_block(part: Part, dialect: str) -> Mapping[str, Any]:
    """Return what a part holds that only this dialect can say; an empty object for any other part."""
    return box_of(part.value) if isinstance(part, ForeignPart) and part.dialect == dialect else {}


def is_native(holder: Holder, dialect: str) -> bool:
    """Whether something was read from a dialect, and is written there as it was."""
    return dialect in holder.metadata


def is_own(part: Part, message: Message, dialect: str) -> bool:
    """Whether a dialect made a part, and so knows its proof; that of a part outlives the message it came in."""
    return dialect in part.metadata or dialect in message.metadata


def loosened(metadata: Metadata, dialect: str, notes: Sequence[str]) -> dict[str, Any]:
    """Return metadata of what stays native, without some of the dialect's notes."""
    kept = {key: value for key, value in metadata[dialect].items() if key not in notes}
    return {**metadata, dialect: kept}


def released(metadata: Metadata, dialect: str) -> dict[str, Any]:
    """Return metadata of what is native no longer, so that the dialect writes it from the core."""
    return {name: inner for name, inner in metadata.items() if name != dialect}


# ---------------------------------------------------------------- residues


def said_on_wire(holder: Holder, dialect: str) -> Iterator[Fact]:
    """Return what a unit said beyond what would be written, at every depth."""
    for change in _changes(holder.metadata.get(dialect, {}).get("residue")):
        yield from _facts(change)


def is_unit_id(path: Path, value: object) -> bool:
    """Whether this is the id that a unit came with."""
    return path[-1:] in _IDS and len(path) <= _UNIT and isinstance(value, str)


def unit_id(holder: Holder, dialect: str) -> str | None:
    """Return the id that a unit came with, where it is not said otherwise."""
    return next((value for path, value in said_on_wire(holder, dialect) if is_unit_id(path, value)), None)


def without_facts(metadata: Metadata, dialect: str, is_wrong: Callable[[Path, Any], bool]) -> dict[str, Any]:
    """Return metadata without the changes that say something wrong."""
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
    """Return what a unit says under a key, or `ABSENT`."""
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
    """Count how often a key that is not null stands in a value, at any depth, also as the end of a residue's path."""
    box = box_of(value)
    inner = (*(each for name, each in box.items() if name != key), *items_of(value))
    return int(box.get(key) is not None) + int(_puts(box, key)) + sum(mentions(each, key) for each in inner)


def _puts(box: Mapping[str, Any], key: str) -> bool:
    """Whether this is a change that puts a key there, not null."""
    return tuple(items_of(box.get("at")))[-1:] == (key,) and box.get("is", box.get("add")) is not None


def without_keys(value: Any, key: str, most: int) -> tuple[Any, int]:
    """Return a plain value without the first `most` places of a key, and how many of them are still to go."""
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
