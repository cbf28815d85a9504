"""Builders: one function per type. Each returns a new plain dict, validated, in the long form, with its timestamp.

All accept these keywords: `timestamp` (ISO 8601 text, a datetime with a time zone, or seconds since 1970; by default the time
of the port), `metadata`, `message_id`, `turn_id`, `is_global`. Any other keyword becomes a key of the message, as the format
allows; None is left out. Each raises a `ValidationError` if the message is invalid, and a `ValueError` if the time is.

The names that end in `_entry` are the format's alternative names for the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Unpack

from typing_extensions import TypedDict

from antiphon.dialects.agent_framework import constants
from antiphon.dialects.agent_framework._content import (
    ErrorContent,
    FinalContent,
    InjectedContext,
    ScriptPlanContent,
    StrategicPlanContent,
    SuggestedPlanContent,
    SynthesisContent,
    Value,
    iso,
)
from antiphon.dialects.agent_framework._messages import normalise_message
from antiphon.messages import Json

__all__ = [
    "Common",
    "create_action",
    "create_action_entry",
    "create_assistant_message",
    "create_delegation",
    "create_delegation_entry",
    "create_director_context",
    "create_director_context_entry",
    "create_error",
    "create_error_entry",
    "create_final",
    "create_final_entry",
    "create_injected_context",
    "create_injected_context_entry",
    "create_observation",
    "create_observation_entry",
    "create_script_plan",
    "create_script_plan_entry",
    "create_strategic_plan",
    "create_strategic_plan_entry",
    "create_suggested_plan",
    "create_suggested_plan_entry",
    "create_synthesis",
    "create_synthesis_entry",
    "create_task_entry",
    "create_user_message",
]


class Common(TypedDict, total=False):
    """The fields that every message may have."""

    timestamp: str | datetime | float | None
    metadata: Mapping[str, Json] | None
    message_id: str | None
    turn_id: str | None
    is_global: bool | None


def _build(type: str, fields: Mapping[str, object], optional: Mapping[str, object], common: Common) -> dict[str, Any]:
    if "type" in common:
        raise ValueError(f"this builds a message of type {type!r}; for another type use its own builder")
    known_fields = {name: value for name, value in {**optional, **common}.items() if value is not None}
    return normalise_message({"type": type, **fields, **known_fields, "timestamp": iso(common.get("timestamp"))})


def _plain(content: object) -> object:
    return content.to_dict() if isinstance(content, Value) else content


# ---------------------------------------------------------------- conversation


def create_user_message(content: str, *, agent_key: str | None = None, **common: Unpack[Common]) -> dict[str, Any]:
    """Return a message of the user."""
    return _build(constants.USER_MESSAGE, {"content": content}, {"agent_key": agent_key}, common)


def create_assistant_message(content: str, *, agent_key: str | None = None, **common: Unpack[Common]) -> dict[str, Any]:
    """Return an answer of the assistant."""
    return _build(constants.ASSISTANT_MESSAGE, {"content": content}, {"agent_key": agent_key}, common)


# ---------------------------------------------------------------- execution trace


def create_task_entry(content: str, *, agent_key: str, call_id: str | None = None, **common: Unpack[Common]) -> dict[str, Any]:
    """Return a task for an agent."""
    return _build(constants.TASK, {"content": content, "agent_key": agent_key}, {"call_id": call_id}, common)


def create_action(
    tool: str,
    args: Mapping[str, Json] | None = None,
    *,
    agent_key: str,
    call_id: str | None = None,
    **common: Unpack[Common],
) -> dict[str, Any]:
    """Return the call of a tool; without arguments if none are given."""
    fields: dict[str, Any] = {"tool": tool, "args": {} if args is None else args, "agent_key": agent_key}
    return _build(constants.ACTION, fields, {"call_id": call_id}, common)


def create_action_entry(
    tool_name: str,
    tool_args: Mapping[str, Json] | None = None,
    *,
    agent_key: str,
    call_id: str | None = None,
    **common: Unpack[Common],
) -> dict[str, Any]:
    """Return the call of a tool: `create_action` with the other spelling's argument names."""
    return create_action(tool_name, tool_args, agent_key=agent_key, call_id=call_id, **common)


def create_observation(
    content: Json, *, agent_key: str, call_id: str | None = None, **common: Unpack[Common]
) -> dict[str, Any]:
    """Return the result of a tool: any JSON."""
    return _build(constants.OBSERVATION, {"content": content, "agent_key": agent_key}, {"call_id": call_id}, common)


def create_error(
    content: str | Mapping[str, Json] | ErrorContent,
    error_type: str | None = None,
    tool: str | None = None,
    *,
    agent_key: str,
    call_id: str | None = None,
    **common: Unpack[Common],
) -> dict[str, Any]:
    """Return an error. Pass the type and the tool if the content does not name them."""
    content = ErrorContent.model_validate(content)
    named = {"error_type": error_type, "tool": tool, **content.to_dict()}
    fields = {"content": {name: value for name, value in named.items() if value is not None}, "agent_key": agent_key}
    return _build(constants.ERROR, fields, {"call_id": call_id}, common)


# ---------------------------------------------------------------- completion


def create_final(
    content: str | Mapping[str, Json] | FinalContent,
    *,
    agent_key: str | None = None,
    call_id: str | None = None,
    **common: Unpack[Common],
) -> dict[str, Any]:
    """Return the end of a task. Text becomes a message to display."""
    return _build(constants.FINAL, {"content": _plain(content)}, {"agent_key": agent_key, "call_id": call_id}, common)


def create_synthesis(
    content: str | Mapping[str, Json] | SynthesisContent,
    from_manager: str,
    phase_id: int | None = None,
    *,
    agent_key: str | None = None,
    **common: Unpack[Common],
) -> dict[str, Any]:
    """Return a manager's synthesis of its workers' results; global unless `is_global=False`."""
    fields = {"content": _plain(content), "from_manager": from_manager}
    return _build(constants.SYNTHESIS, fields, {"phase_id": phase_id, "agent_key": agent_key}, common)


# ---------------------------------------------------------------- planning


def create_strategic_plan(
    content: Mapping[str, Json] | StrategicPlanContent, *, agent_key: str | None = None, **common: Unpack[Common]
) -> dict[str, Any]:
    """Return an orchestrator's plan: `{refined_intent, plan: {phases, …}}`, or the plan alone."""
    return _build(constants.STRATEGIC_PLAN, {"content": _plain(content)}, {"agent_key": agent_key}, common)


def create_suggested_plan(
    content: Mapping[str, Json] | Sequence[Json] | SuggestedPlanContent,
    *,
    agent_key: str | None = None,
    **common: Unpack[Common],
) -> dict[str, Any]:
    """Return steps for a worker: `{steps: […]}`, or the list alone."""
    return _build(constants.SUGGESTED_PLAN, {"content": _plain(content)}, {"agent_key": agent_key}, common)


def create_script_plan(
    content: Mapping[str, Json] | ScriptPlanContent, *, agent_key: str | None = None, **common: Unpack[Common]
) -> dict[str, Any]:
    """Return a manager's script of tool calls: `{goal, steps: […], metadata}`."""
    return _build(constants.SCRIPT_PLAN, {"content": _plain(content)}, {"agent_key": agent_key}, common)


# ---------------------------------------------------------------- context and delegation


def create_director_context(content: str, *, agent_key: str | None = None, **common: Unpack[Common]) -> dict[str, Any]:
    """Return the text that an orchestrator or a manager plans with."""
    return _build(constants.DIRECTOR_CONTEXT, {"content": content}, {"agent_key": agent_key}, common)


def create_injected_context(
    content: Mapping[str, Json] | InjectedContext, *, agent_key: str | None = None, **common: Unpack[Common]
) -> dict[str, Any]:
    """Return the context that a worker gets with its task."""
    return _build(constants.INJECTED_CONTEXT, {"content": _plain(content)}, {"agent_key": agent_key}, common)


def create_delegation(
    worker: str,
    task: str,
    *,
    agent_key: str | None = None,
    call_id: str | None = None,
    **common: Unpack[Common],
) -> dict[str, Any]:
    """Return a task that a manager, the `agent_key`, passes to a worker."""
    return _build(constants.DELEGATION, {"worker": worker, "task": task}, {"agent_key": agent_key, "call_id": call_id}, common)


create_observation_entry = create_observation
create_error_entry = create_error
create_final_entry = create_final
create_synthesis_entry = create_synthesis
create_strategic_plan_entry = create_strategic_plan
create_suggested_plan_entry = create_suggested_plan
create_script_plan_entry = create_script_plan
create_director_context_entry = create_director_context
create_injected_context_entry = create_injected_context
create_delegation_entry = create_delegation
