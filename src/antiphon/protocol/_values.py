"""Fields and values inside the data of requests and replies: text, times, numbers, phases; contexts, outputs, error codes.

All values keep the keys they do not know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field, PlainValidator, Strict
from pydantic_core import PydanticCustomError

from antiphon.messages import Json, Text
from antiphon.protocol._open import NOTHING, Frozen, Open

# ---------------------------------------------------------------- fields

Phase: TypeAlias = Literal["action", "experience", "intention", "observation", "understanding", "yield"]

PHASES: tuple[Phase, ...] = get_args(Phase)
"""The phases of a thread, in the order in which they run."""

ThreadState: TypeAlias = Literal["created", "processing", "paused", "terminated", "completed", "failed"]
"""The state of a thread: first created, then processing or paused, at last one of the other three."""

Object: TypeAlias = Annotated[Mapping[str, Json], Frozen("object")]
"""A JSON object that cannot be changed."""

Value: TypeAlias = Annotated[Json, Frozen("any")]
"""Any JSON value, which cannot be changed."""

_TOO_FINE = re.compile(r"[.,][0-9]{7}")


def _read_time(value: object) -> datetime:
    if isinstance(value, str) and not _TOO_FINE.search(value):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise PydanticCustomError("time", "A time is a datetime, or ISO 8601 text of at most microseconds", {})
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)  # programs of this format write UTC without a time zone
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("time", "A time lies in the years 1 to 9999 of UTC", {}) from None


Timestamp: TypeAlias = Annotated[datetime, Strict(), BeforeValidator(_read_time)]
"""An aware time in UTC, written with a Z. A time without a zone is read as UTC."""


def _read_number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise PydanticCustomError("number", "This must be a finite number", {})
    return value


Number: TypeAlias = Annotated[int | float, PlainValidator(_read_number, json_schema_input_type=float)]
"""A finite number; an integer stays an integer."""

Quantity: TypeAlias = Annotated[Number, Field(ge=0)]
Share: TypeAlias = Annotated[Number, Field(ge=0, le=1)]
Positive: TypeAlias = Annotated[int, Strict(), Field(ge=1)]


# ---------------------------------------------------------------- values


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
    """The context that a phase gets besides its input."""

    conversation_history: tuple[ChatTurn, ...] = ()
    user_id: Text | None = None


class PreparedContext(Open, frozen=True):
    """The context that an agent gets, made from a phase's context."""

    messages: tuple[ChatTurn, ...]
    tools: tuple[Text, ...] = ()
    """The names of the tools it may use."""
    metadata: Object = NOTHING


class AgentContext(Open, frozen=True):
    """The agent's context of the request."""

    user_id: Text | None = None
    metadata: Object = NOTHING


class PhaseOutput(Open, frozen=True):
    """The outcome of a phase."""

    response: Text
    next_phase: Phase | None = None
    """The phase to continue with; None after the last."""
    confidence: Number | None = None


class ToolCall(Open, frozen=True):
    """A tool that an agent used."""

    id: Text | None = None
    name: Text | None = None
    arguments: Value = None


class AgentResult(Open, frozen=True):
    """The answer of an agent."""

    response: Text
    confidence: Number | None = None
    tool_calls: tuple[ToolCall, ...] = ()


class AgentConfig(Open, frozen=True):
    """The settings of an agent: all of them, or those to change."""

    model: Text | None = None
    """Provider and name, such as `openai:gpt-4o`."""
    temperature: Quantity | None = None
    max_tokens: Positive | None = None
    tools: tuple[Text, ...] | None = None
    """The names of its tools; None if not set, empty if it has none."""
    system_prompt: Text | None = None

    def merged(self, update: AgentConfig) -> AgentConfig:
        """Return the settings, updated with those that `update` sets."""
        given: dict[str, Any] = {name: value for name, value in update if name in update.model_fields_set}
        return self.model_copy(update=given)
