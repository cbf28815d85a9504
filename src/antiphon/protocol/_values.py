"""The values inside the data of requests and replies: contexts, outputs, the configuration of an agent; and the error codes.

All keep the keys they do not know.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from antiphon.protocol._fields import Number, Object, Phase, Positive, Quantity, Text, Value
from antiphon.protocol._open import NOTHING, Open

__all__ = [
    "AgentConfig",
    "AgentContext",
    "AgentResult",
    "ChatTurn",
    "ErrorCode",
    "PhaseContext",
    "PhaseOutput",
    "PreparedContext",
    "ToolCall",
]


class ErrorCode(StrEnum):
    """The codes of the protocol's own errors; a program may have others."""

    VALIDATION_ERROR = "VALIDATION_ERROR"
    UNKNOWN_MESSAGE_TYPE = "UNKNOWN_MESSAGE_TYPE"
    ACTOR_NOT_FOUND = "ACTOR_NOT_FOUND"
    THREAD_NOT_FOUND = "THREAD_NOT_FOUND"
    INVALID_STATE = "INVALID_STATE"
    PHASE_PROCESSING_ERROR = "PHASE_PROCESSING_ERROR"
    AGENT_ERROR = "AGENT_ERROR"
    TIMEOUT = "TIMEOUT"
    RETRY_EXHAUSTED = "RETRY_EXHAUSTED"
    ACTOR_STOPPED = "ACTOR_STOPPED"


class ChatTurn(Open, frozen=True):
    """One line of a conversation."""

    role: Text
    content: Text


class PhaseContext(Open, frozen=True):
    """What a phase is given beside its input."""

    conversation_history: tuple[ChatTurn, ...] = ()
    user_id: Text | None = None


class PreparedContext(Open, frozen=True):
    """What an agent is given, made from a phase's context."""

    messages: tuple[ChatTurn, ...]
    tools: tuple[Text, ...] = ()
    """The names of the tools it may use."""
    metadata: Object = NOTHING


class AgentContext(Open, frozen=True):
    """What an agent is told about the request."""

    user_id: Text | None = None
    metadata: Object = NOTHING


class PhaseOutput(Open, frozen=True):
    """What came of a phase."""

    response: Text
    next_phase: Phase | None = None
    """Where to go on; None after the last."""
    confidence: Number | None = None


class ToolCall(Open, frozen=True):
    """A tool that an agent used."""

    id: Text | None = None
    name: Text | None = None
    arguments: Value = None


class AgentResult(Open, frozen=True):
    """What an agent answered."""

    response: Text
    confidence: Number | None = None
    tool_calls: tuple[ToolCall, ...] = ()


class AgentConfig(Open, frozen=True):
    """How an agent is set up: all of it, or those settings that are to change."""

    model: Text | None = None
    """Provider and name, such as `openai:gpt-4o`."""
    temperature: Quantity | None = None
    max_tokens: Positive | None = None
    tools: tuple[Text, ...] | None = None
    """The names of its tools; None: not said, empty: none."""
    system_prompt: Text | None = None

    def merged(self, update: AgentConfig) -> AgentConfig:
        """Return the settings with those of `update` in the place of the old ones; what it does not give stays."""
        given: dict[str, Any] = {name: value for name, value in update if name in update.model_fields_set}
        return self.model_copy(update=given)
