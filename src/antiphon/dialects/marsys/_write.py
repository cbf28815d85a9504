"""Writes MARSYS messages: an utterance with its tool calls is one, everything else is one each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.dialects._content import (
    arguments_text,
    has_words,
    json_text,
    lose_option,
    lose_shown,
    request_of,
    result_text,
    said_as_text,
    time_text,
)
from antiphon.dialects._losses import continued, facets_of_parts, joined
from antiphon.dialects._reading import notes_of
from antiphon.dialects._unit_dialect import Writing
from antiphon.dialects.marsys._content import item_of, part_of
from antiphon.messages import RUNTIME_POLICY, DataPart, Message, OptionCallPayload, OptionResultPayload, Part, TextPart

__all__ = ["together", "write"]

_SAYS = frozenset({"time"})
_TALKING = ("system", "user", "assistant")
_REASON = "a MARSYS message has no place for it"


def together(group: Sequence[Message], message: Message) -> bool:
    """An utterance is one message: text first, then its calls."""
    first = group[0]
    return (
        first.turn_id is not None
        and first.turn_id == message.turn_id
        and first.policy == message.policy
        and message.payload.kind == "option_call"
        and first.payload.kind != "option_result"
        and (first.payload.kind != "parts" or has_words(first) or _needs_list(first.parts))
        and not _asks_agent(first)
        and not _asks_agent(message)
    )


def _asks_agent(message: Message) -> bool:
    """Whether a message is an agent_call: it was one here before, or it looks like one and was nothing else."""
    role = _role_of(message)
    return request_of(message.payload) is not None if role is None else role == "agent_call"


def write(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
    """Write the messages of one unit."""
    first, payload = group[0], group[0].payload
    if payload.kind == "option_result":
        unit = _failure(first, payload, writing) if payload.is_error else _answer(first, payload, writing)
    elif payload.kind == "option_call" and _asks_agent(first):
        unit = _agent_call(first, payload)
    else:
        unit = _talk(group, writing)
    unit["message_id"] = first.id
    if first.created_at is not None:
        unit["timestamp"] = time_text(first.created_at)
    if writing.counts:
        writing.lose_unsaid(group, says=_SAYS, reason=_REASON)
    return unit


def _role_of(message: Message) -> str | None:
    """Return the role that a message had here before, where the core has no word for it."""
    notes = notes_of(message, "marsys")
    role = notes.get("role") if notes else None
    return role if isinstance(role, str) else None


def _talk(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
    first = group[0]
    calls = [_tool_call(message.payload) for message in group if message.payload.kind == "option_call"]
    role = "assistant" if calls else _role_of(first) or _talking_role(first, writing.as_policy)
    content: Any = ""
    if first.payload.kind == "parts":
        is_list = _needs_list(first.parts)
        content = _list(first, first.parts, writing) if is_list else said_as_text(first, writing, "MARSYS")
    unit: dict[str, Any] = {"role": role, "content": content}
    if first.policy != role:
        unit["name"] = first.policy
    if calls:
        unit["tool_calls"] = calls
    return unit


def _needs_list(parts: Sequence[Part]) -> bool:
    """Whether parts say more than a text can, and something of that in a list."""
    return any(not isinstance(part, TextPart | DataPart) and item_of(part) is not None for part in parts)


def _list(message: Message, parts: Sequence[Part], writing: Writing) -> list[dict[str, Any]]:
    """Return parts as a list, and report what is not the same when it is read again."""
    items: list[dict[str, Any]] = []
    goes_on = continued(message)
    for part in parts:
        item = item_of(part)
        if id(part) in goes_on and items and item is not None and items[-1]["type"] == "text":
            items[-1]["text"] += item["text"]
        elif item is not None:
            items.append(item)
    if writing.counts:
        texts = joined([(part, part.text) for part in parts if isinstance(part, TextPart)], goes_on)
        said = facets_of_parts(tuple(parts)) | ({"text": texts} if texts else {})
        again = facets_of_parts(tuple(part_of(item) for item in items))
        for what in said.keys() | again.keys():
            if said.get(what) != again.get(what):
                writing.lose(message, what, "a list in MARSYS says texts, images, sounds and files")
    return items


def _talking_role(message: Message, as_policy: str | None) -> str:
    if as_policy is not None and message.policy != "system":
        return "assistant" if message.policy == as_policy else "user"
    if message.role_hint_for_llm in _TALKING:
        return str(message.role_hint_for_llm)
    return message.policy if message.policy in _TALKING else "assistant"


def _tool_call(call: OptionCallPayload) -> dict[str, Any]:
    text = arguments_text(call)
    return {"id": call.invocation_id, "type": "function", "function": {"name": call.option_name, "arguments": text}}


def _agent_call(message: Message, call: OptionCallPayload) -> dict[str, Any]:
    content = request_of(call) or json_text(call.arguments)
    metadata = {"caller": message.policy, "task_id": call.invocation_id}
    return {"role": "agent_call", "content": content, "name": call.option_name, "metadata": metadata}


def _answer(message: Message, outcome: OptionResultPayload, writing: Writing) -> dict[str, Any]:
    shows = outcome.result is None and _needs_list(outcome.parts)
    content: Any = _list(message, outcome.parts, writing) if shows else result_text(message, outcome, writing, "MARSYS")
    call = writing.call_of(message)
    unit: dict[str, Any] = {"role": "tool", "name": outcome.option_name, "tool_call_id": outcome.invocation_id}
    if _role_of(message) == "agent_response" or (call is not None and _asks_agent(call)):
        unit = {"role": "agent_response", "name": outcome.option_name, "metadata": {"task_id": outcome.invocation_id}}
    if message.policy != outcome.option_name:
        writing.lose(message, "speaker", "a MARSYS result is said by the tool or agent that was called")
    if content is not None:
        unit["content"] = content
    return unit


def _failure(message: Message, outcome: OptionResultPayload, writing: Writing) -> dict[str, Any]:
    """Write a failure: of a tool as a tool message, so that its call has a result; of an agent as an error."""
    metadata = {"error_type": outcome.error_type, "retryable": outcome.retryable, "details": writing.json(outcome, "result")}
    if message.policy != RUNTIME_POLICY:
        writing.lose(message, "speaker", "a MARSYS error is said by the runtime")
    lose_shown(message, outcome, writing, "MARSYS")
    unit = {
        "role": "tool",
        "content": outcome.error_message,
        "name": outcome.option_name,
        "tool_call_id": outcome.invocation_id,
        "metadata": {key: value for key, value in metadata.items() if value is not None},
    }
    call = writing.call_of(message)
    if _role_of(message) == "error" or (call is not None and _asks_agent(call)):
        lose_option(message, outcome, writing, "MARSYS")
        unit["role"] = "error"
        if call is not None:
            del unit["name"]
    return unit
