"""The output of the target's dialect for a message: whether it is empty, and which items with ids it becomes.

**Empty messages.** A dialect writes its own messages back unchanged, including empty texts. From other messages it omits
blank texts, reasoning and foreign parts of other providers. The rules must do the same, or a request that looks valid is sent
with an empty message.

**Items** of OpenAI Responses: each message is one or more items, and the service recognizes its own by their ids. The id of a
call, a result or a message is separate from its content, and may be left out. Reasoning, and the work of the service's own
tools, is identified only by its id, which is part of the content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from antiphon.checks._native import is_own, own_block, unit_id
from antiphon.checks._view import View
from antiphon.messages import DataPart, ForeignPart, MediaPart, Message, Part, ReasoningPart, TextPart

# ---------------------------------------------------------------- empty messages

_SIGNATURE = "thoughtSignature"
"""The field for which an empty text of Gemini may exist."""


def is_silent(view: View, position: int) -> bool:
    """Whether a parts message is empty for the target."""
    is_talk = view.messages[position].kind == "parts"
    return is_talk and not any(_says(view, position, part) for _, part in view.parts(position))


def is_unsaid(view: View, position: int) -> bool:
    """Whether the dialect omits a message because it is empty."""
    return not view.is_native(position) and is_silent(view, position)


def plain_text(part: Part) -> str | None:
    """Return the text of a text part, or of a data part that is a string; None for everything else."""
    said = part.text if isinstance(part, TextPart) else part.data if isinstance(part, DataPart) else None
    return said if isinstance(said, str) else None


def _says(view: View, position: int, part: Part) -> bool:
    match part:
        case TextPart() | DataPart():
            return _is_text_said(view, position, part)
        case ReasoningPart():
            return _is_thought_said(view, position, part)
        case ForeignPart():
            return part.dialect == view.accepted.name and _is_own_said(view, position, part)
        case _:
            return True  # a medium that is not accepted becomes text


def _is_text_said(view: View, position: int, part: TextPart | DataPart) -> bool:
    target, text = view.accepted, plain_text(part)
    if text is None or target.unsaid == "none":
        return True
    is_native = view.is_native(position)
    if text:
        return is_native or target.unsaid == "empty" or not text.isspace()
    is_kept = is_native and target.empty_text and isinstance(part, TextPart)
    return is_kept or _SIGNATURE in part.metadata.get(target.name, {})


def _is_thought_said(view: View, position: int, part: ReasoningPart) -> bool:
    """Whether reasoning is sent: only to its own provider, and to some only with a signature."""
    name, is_native = view.accepted.name, view.is_native(position)
    notes = part.metadata.get(name)
    if name == "openai-chat":
        return is_own(part, view.messages[position], name)
    if name == "gemini" or notes is None:
        return notes is not None
    if view.sides[position] != "assistant":
        return False
    if name == "openai-responses":
        return bool(notes.get("id")) or (is_native and "id" in notes)
    return is_native or part.signature is not None or part.encrypted_content is not None


def _is_own_said(view: View, position: int, part: ForeignPart) -> bool:
    """Whether a foreign part of the target's dialect is accepted at its position."""
    name, side, message = view.accepted.name, view.sides[position], view.messages[position]
    match name:
        case "openai-responses":
            is_item = "item" in part.metadata.get(name, {}) or "list" in message.metadata.get(name, {})
            return is_item or side != "assistant"
        case "anthropic-messages":
            is_placed = view.is_native(position) if side == "system" else message.role_hint_for_llm in (None, side)
            return is_placed and isinstance(part.value, Mapping)
        case "gemini":
            return isinstance(part.value, Mapping)
        case _:
            return True


# ---------------------------------------------------------------- items


@dataclass(frozen=True, slots=True)
class ResponsesItem:
    """An item that is written with an id."""

    type: str
    id: str
    places: tuple[int, ...] = ()
    """The parts of the message that the item is made of, if the id is theirs; empty: the whole message."""


def items_with_ids(view: View, position: int) -> Iterator[ResponsesItem]:
    """Return the items of a message that are written with an id; none if the target has no items."""
    if view.target is None or not view.target.item_ids:
        return
    message = view.messages[position]
    own_id = unit_id(message, view.target.name)
    if own_id is not None:
        yield ResponsesItem(_type_of(message, view.target.name), own_id)
    if message.kind == "parts":
        yield from _items_of_parts(view.parts(position), view.target.name, view.sides[position] == "assistant")


def _type_of(message: Message, dialect: str) -> str:
    notes = message.metadata.get(dialect, {})
    if message.kind == "parts":
        return "agent_message" if notes.get("agent_message") else "message"
    stem = "custom_tool_call" if notes.get("custom") else "function_call"
    return stem if message.kind == "option_call" else f"{stem}_output"


def _items_of_parts(parts: Iterable[tuple[int, Part]], dialect: str, is_assistant: bool) -> Iterator[ResponsesItem]:
    item: ResponsesItem | None = None
    for place, part in parts:
        notes = part.metadata.get(dialect, {})
        if item is not None and item.type == "reasoning" and isinstance(part, ReasoningPart) and "id" not in notes:
            item = replace(item, places=(*item.places, place))  # another thought of the same item
            continue
        if item is not None:
            yield item
        item = _item_of(part, place, dialect, is_assistant)
    if item is not None:
        yield item


def _item_of(part: Part, place: int, dialect: str, is_assistant: bool) -> ResponsesItem | None:
    """Return the item that a part is, or starts."""
    notes, block = part.metadata.get(dialect, {}), own_block(part, dialect)
    if notes.get("item") and isinstance(block.get("id"), str):
        return ResponsesItem(str(block.get("type")), block["id"], (place,))
    own_id = notes.get("id")
    if not is_assistant or not isinstance(own_id, str):
        return None
    if isinstance(part, ReasoningPart):
        return ResponsesItem("reasoning", own_id, (place,))
    return ResponsesItem("image_generation_call", own_id, (place,)) if isinstance(part, MediaPart) else None
