"""The marks that `repair` leaves, under the namespace `checks`: left out, added, mended.

Nothing that was said is deleted or rewritten. What must not be sent is *left out of the projection*: it stays where it is, and
dialects write the conversation without it. What was never said and had to be, is added.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from antiphon.messages import (
    Conversation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    Metadata,
    OptionCallPayload,
    Part,
    ReasoningPart,
    TextPart,
)
from antiphon.messages._model import EMPTY, plain_of

__all__ = ["ADDED", "LEFT_OUT", "MENDED", "NAMESPACE", "is_left_out", "is_marked", "marked", "projected", "with_parts"]

NAMESPACE = "checks"
LEFT_OUT, ADDED, MENDED = "left_out", "added", "mended"

SaidT = TypeVar("SaidT", bound=Message | TextPart | MediaPart | ReasoningPart | DataPart | ForeignPart)


def is_left_out(said: Message | Part) -> bool:
    """Whether a message, or a part of one, is kept out of what dialects write."""
    # What has no metadata is told without looking at it: every message is asked, and most parts.
    return said.__dict__["metadata"] is not EMPTY and LEFT_OUT in plain_of(said, "metadata").get(NAMESPACE, ())


def is_marked(message: Message) -> bool:
    """Whether `repair` added a message, left it out or changed something about it, or about a part of it."""
    return NAMESPACE in message.metadata or any(NAMESPACE in part.metadata for part in message.parts)


def marked(said: SaidT, mark: str, code: str) -> SaidT:
    """Return a message or part with one mark more: why, by the code of the rule."""
    return cast("SaidT", said.model_copy(update={"metadata": with_mark(said.metadata, mark, code)}))


def with_mark(metadata: Metadata, mark: str, code: str) -> dict[str, Any]:
    return {**metadata, NAMESPACE: {**metadata.get(NAMESPACE, {}), mark: code}}


def with_parts(message: Message, parts: tuple[Part, ...]) -> Message:
    """Return a message of words, or a result, with other parts."""
    return message.model_copy(update={"payload": message.payload.model_copy(update={"parts": parts})})


def projected(conversation: Conversation) -> Conversation:
    """Return a conversation without what is left out; the same one if nothing is.

    Dialects encode this, so that what `repair` left out stays in the history and is not sent.
    """
    if not any(map(_has_left_out, conversation)):
        return conversation
    kept = (_without_parts(message) for message in conversation if not is_left_out(message))
    return Conversation(kept, tools=conversation.tools, metadata=conversation.metadata)


def _has_left_out(message: Message) -> bool:
    return is_left_out(message) or any(map(is_left_out, message.parts))


def _without_parts(message: Message) -> Message:
    if isinstance(message.payload, OptionCallPayload) or not any(map(is_left_out, message.parts)):
        return message
    return with_parts(message, tuple(part for part in message.parts if not is_left_out(part)))
