"""Operations: what a handler or an effect is, in the words of those who watch. A model is asked, a tool runs, an agent runs.

The runtime knows messages and effects; only the code inside knows that one is a request to a model. It says so with
`describe`, once or again when it knows more. Where nobody watches, that costs a look at a variable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from antiphon.messages import Json, Message, Usage

__all__ = ["AgentOperation", "ModelOperation", "Operation", "ToolOperation", "added"]


@dataclass(frozen=True, slots=True)
class ModelOperation:
    """A request to a model."""

    model: str
    """As it was asked for."""
    provider: str = ""
    """A name of the OpenTelemetry GenAI conventions, where they have one: `openai`, `anthropic`, `gcp.gemini`, …"""
    settings: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """`temperature`, `top_p`, `top_k`, `max_tokens`, `seed`, `stop_sequences`, …"""
    response_model: str | None = None
    """The one that answered."""
    response_id: str | None = None
    finish_reasons: Sequence[str] = ()
    usage: Usage | None = None
    input: Sequence[Message] = ()
    """What the model was given; looked at only where content is recorded."""
    output: Sequence[Message] = ()
    """What it answered; looked at only where content is recorded."""


@dataclass(frozen=True, slots=True)
class ToolOperation:
    """One run of a tool."""

    name: str
    call_id: str | None = None
    type: str = "function"
    description: str | None = None
    error_type: str | None = None
    """What it failed with, where the effect returns a failure instead of raising it."""
    arguments: Json = None
    """Looked at only where content is recorded."""
    result: Json = None
    """Looked at only where content is recorded."""


@dataclass(frozen=True, slots=True)
class AgentOperation:
    """One run of an agent: models and tools are below it."""

    name: str
    id: str | None = None
    description: str | None = None
    model: str | None = None
    provider: str = ""
    usage: Usage | None = None
    """Of all its requests together that were really made, not taken from the ledger."""


Operation: TypeAlias = ModelOperation | ToolOperation | AgentOperation


def added(one: Usage | None, other: Usage | None) -> Usage | None:
    """Return the tokens of two operations together; None where nobody counted."""
    if one is None or other is None:
        return one or other
    return Usage(
        input_tokens=_sum(one.input_tokens, other.input_tokens),
        output_tokens=_sum(one.output_tokens, other.output_tokens),
        cache_read_tokens=_sum(one.cache_read_tokens, other.cache_read_tokens),
        cache_write_tokens=_sum(one.cache_write_tokens, other.cache_write_tokens),
        reasoning_tokens=_sum(one.reasoning_tokens, other.reasoning_tokens),
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other
