"""The results of `check` and `repair`: findings, changes, and the marks under the namespace `checks`.

No content is deleted or rewritten. Content that must not be sent is marked as *left out*: it stays at its position, and
dialects write the conversation without it. Required content that was missing is added and marked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar, cast

from typing_extensions import override

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
from antiphon.messages.trusted import EMPTY, plain_of

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

SaidT = TypeVar("SaidT", bound=Message | TextPart | MediaPart | ReasoningPart | DataPart | ForeignPart)


def is_left_out(said: Message | Part) -> bool:
    """Whether a message, or a part of one, is left out by dialects."""
    # Fast path for empty metadata: this runs for every message and most parts.
    return said.__dict__["metadata"] is not EMPTY and LEFT_OUT in plain_of(said, "metadata").get(NAMESPACE, ())


def is_marked(message: Message) -> bool:
    """Whether `repair` added a message, left it out or changed something about it, or about a part of it."""
    return NAMESPACE in message.metadata or any(NAMESPACE in part.metadata for part in message.parts)


def marked(said: SaidT, mark: str, code: str) -> SaidT:
    """Return a message or part with one more mark: the reason, by the code of the rule."""
    return cast("SaidT", said.model_copy(update={"metadata": with_mark(said.metadata, mark, code)}))


def with_mark(metadata: Metadata, mark: str, code: str) -> dict[str, Any]:
    return {**metadata, NAMESPACE: {**metadata.get(NAMESPACE, {}), mark: code}}


def with_parts(message: Message, parts: tuple[Part, ...]) -> Message:
    """Return a message of parts, or a result, with other parts."""
    return message.model_copy(update={"payload": message.payload.model_copy(update={"parts": parts})})


def projected(conversation: Conversation) -> Conversation:
    """Return a conversation without the content that is left out; the same one if nothing is.

    Dialects encode this, so that content that `repair` left out stays in the history and is not sent.
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
