"""Items, as OpenAI Responses has them: each message is one or more, and the service knows its own by their ids.

The id of a call, a result or a message stands beside what is said, and may be left away. Reasoning, and what the service's own
tools did, is only known by its id, which is part of what was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from antiphon.checks._native import own_block, unit_id
from antiphon.checks._view import View
from antiphon.messages import MediaPart, Message, Part, ReasoningPart

__all__ = ["Item", "items_with_ids"]


@dataclass(frozen=True, slots=True)
class Item:
    """An item that is written with an id."""

    type: str
    id: str
    places: tuple[int, ...] = ()
    """The parts of the message that it is made of, where the id is theirs; none: it is the message as a whole."""


def items_with_ids(view: View, position: int) -> Iterator[Item]:
    """Return the items of a message that are written with an id; none if the target has no items."""
    if view.target is None or not view.target.item_ids:
        return
    message = view.messages[position]
    own_id = unit_id(message, view.target.name)
    if own_id is not None:
        yield Item(_type_of(message, view.target.name), own_id)
    if message.kind == "parts":
        yield from _items_of_parts(view.parts(position), view.target.name, view.sides[position] == "assistant")


def _type_of(message: Message, dialect: str) -> str:
    notes = message.metadata.get(dialect, {})
    if message.kind == "parts":
        return "agent_message" if notes.get("agent_message") else "message"
    stem = "custom_tool_call" if notes.get("custom") else "function_call"
    return stem if message.kind == "option_call" else f"{stem}_output"


def _items_of_parts(parts: Iterable[tuple[int, Part]], dialect: str, is_assistant: bool) -> Iterator[Item]:
    item: Item | None = None
    for place, part in parts:
        notes = part.metadata.get(dialect, {})
        if item is not None and item.type == "reasoning" and isinstance(part, ReasoningPart) and "id" not in notes:
            item = replace(item, places=(*item.places, place))  # another thought of the same
            continue
        if item is not None:
            yield item
        item = _item_of(part, place, dialect, is_assistant)
    if item is not None:
        yield item


def _item_of(part: Part, place: int, dialect: str, is_assistant: bool) -> Item | None:
    """Return the item that a part is, or begins."""
    notes, block = part.metadata.get(dialect, {}), own_block(part, dialect)
    if notes.get("item") and isinstance(block.get("id"), str):
        return Item(str(block.get("type")), block["id"], (place,))
    own_id = notes.get("id")
    if not is_assistant or not isinstance(own_id, str):
        return None
    if isinstance(part, ReasoningPart):
        return Item("reasoning", own_id, (place,))
    return Item("image_generation_call", own_id, (place,)) if isinstance(part, MediaPart) else None
