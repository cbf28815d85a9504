"""Writes agent_framework entries, one for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.dialects._content import lose_option, lose_shown, request_of, said_as_text, time_text
from antiphon.dialects._reading import notes_of
from antiphon.dialects._unit_dialect import Writing
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, thaw

__all__ = ["together", "write"]

_SAYS = frozenset({"time"})
_REASON = "an agent_framework entry has no place for it"
_FROM_MANAGER = frozenset({"synthesis"})


def together(group: Sequence[Message], message: Message) -> bool:
    """Each message is an entry of its own."""
    return False


def write(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
    """Write one entry."""
    message, payload = group[0], group[0].payload
    if payload.kind == "option_call":
        entry = _call(message, payload, writing)
    elif payload.kind == "option_result":
        entry = _answer(message, payload, writing)
    else:
        entry = _said(message, writing)
    entry["message_id"] = message.id
    if message.created_at is not None:
        entry["timestamp"] = time_text(message.created_at)
    if writing.counts:
        writing.lose_unsaid(group, says=_SAYS, reason=_REASON)
    return entry


def _type_of(message: Message) -> str | None:
    notes = notes_of(message, "agent-framework")
    kind = notes.get("type") if notes else None
    return kind if isinstance(kind, str) else None


def _said(message: Message, writing: Writing) -> dict[str, Any]:
    is_user = "user" in (message.policy, message.role_hint_for_llm)
    kind = _type_of(message) or ("user_message" if is_user else "assistant_message")
    entry: dict[str, Any] = {"type": kind, "content": _content(message, writing)}
    if kind in _FROM_MANAGER:
        entry["from_manager"] = message.policy
    elif f"{message.policy}_message" != kind:
        entry["agent_key"] = message.policy
    return entry


def _content(message: Message, writing: Writing) -> Any:
    """Return what is said: data as it is, if there is nothing else, and anything else as text."""
    parts = message.parts
    if len(parts) == 1 and parts[0].kind == "data" and not isinstance(parts[0].data, str):
        return writing.json(parts[0], "data")
    return said_as_text(message, writing, "agent_framework")


def _is_task(message: Message) -> bool:
    kind = _type_of(message)
    return kind in ("task", "delegation") if kind else request_of(message.payload) is not None


def _call(message: Message, call: OptionCallPayload, writing: Writing) -> dict[str, Any]:
    if _is_task(message):
        request = call.arguments.get("request", call.arguments.get("task"))
        entry = {"type": "task", "content": thaw(request), "agent_key": call.option_name}
        if _type_of(message) == "delegation":
            entry = {"type": "delegation", "task": thaw(request), "worker": call.option_name}
        return {**entry, "from_manager": message.policy, "call_id": call.invocation_id}
    if call.arguments_text is not None and not call.arguments:
        writing.lose(message, "arguments", "the args of an action are an object")
    return {
        "type": "action",
        "tool": call.option_name,
        "args": writing.json(call, "arguments"),
        "agent_key": message.policy,
        "call_id": call.invocation_id,
    }


def _answer(message: Message, outcome: OptionResultPayload, writing: Writing) -> dict[str, Any]:
    call = writing.call_of(message)
    if writing.counts:
        _lose_of_answer(message, outcome, writing)
    task = call is not None and _is_task(call)
    entry: dict[str, Any] = {
        "type": "error" if outcome.is_error else "final" if task else "observation",
        "agent_key": outcome.option_name if call is None or task else call.policy,
        "content": _error(outcome, writing) if outcome.is_error else writing.json(outcome, "result"),
        "call_id": outcome.invocation_id,
    }
    if call is None:
        entry["tool"] = outcome.option_name
    return entry


def _lose_of_answer(message: Message, outcome: OptionResultPayload, writing: Writing) -> None:
    lose_shown(message, outcome, writing, "agent_framework")
    if message.policy != lose_option(message, outcome, writing, "agent_framework"):
        writing.lose(message, "speaker", "an observation is said by the tool")


def _error(outcome: OptionResultPayload, writing: Writing) -> dict[str, Any]:
    content = {
        "error_message": outcome.error_message,
        "error_type": outcome.error_type,
        "tool": outcome.option_name,
        "retryable": outcome.retryable,
        "details": writing.json(outcome, "result"),
    }
    return {key: value for key, value in content.items() if value is not None}
