"""Whether something says anything: as the target's dialect writes it, which leaves out what the service would refuse.

A dialect writes its own messages as they were, empty texts and all; of others it leaves out what is blank, what others thought
and what only others can say. The rules must see the same, or a request that looks right is sent without a message in it.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.checks._native import is_own
from antiphon.checks._view import View
from antiphon.messages import DataPart, ForeignPart, Part, ReasoningPart, TextPart

__all__ = ["is_silent", "is_unsaid", "plain_text"]

_SIGNATURE = "thoughtSignature"
"""What an empty text of Gemini's may be there to hold."""


def is_silent(view: View, position: int) -> bool:
    """Whether a message of words has none for the target."""
    is_talk = view.messages[position].kind == "parts"
    return is_talk and not any(_says(view, position, part) for _, part in view.parts(position))


def is_unsaid(view: View, position: int) -> bool:
    """Whether the dialect leaves a message out of what it writes, since it says nothing."""
    return not view.is_native(position) and is_silent(view, position)


def plain_text(part: Part) -> str | None:
    """Return a text, also one that is given as data; None for everything else."""
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
            return True  # a medium that cannot be shown is said in words


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
    """Whether a thought is sent: only where it came from, and to some only with its proof."""
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
    """Whether something that only the target's dialect can say may stand where it is."""
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
