"""What a message must be to be a good one: asked when wanted, never when a message is made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, cast

from antiphon.dialects.marsys._message import Message

__all__ = ["VALID_ROLES", "validate_message", "validate_tool_response", "validation_errors"]

VALID_ROLES = frozenset({"system", "user", "assistant", "tool", "error", "agent_call", "agent_response"})


def validate_message(message: Message) -> bool:
    """Whether a message is as it should be; `validation_errors` says why it is not."""
    return not validation_errors(message)


def validation_errors(message: Message) -> list[str]:
    """Return what is wrong with a message, a sentence for each thing; empty if it is good."""
    return [*_role_errors(message), *_content_errors(message), *_tool_call_errors(message)]


def _role_errors(message: Message) -> Iterator[str]:
    if message.role not in VALID_ROLES:
        yield f"role {message.role!r} is unknown; use one of {', '.join(sorted(VALID_ROLES))}"
    if message.role == "tool" and not message.tool_call_id:
        yield "a tool message needs tool_call_id, the id of the call it answers"
    if message.role == "tool" and not message.name:
        yield "a tool message needs name, the tool that ran"
    if message.role == "agent_call" and not message.name:
        yield "an agent_call needs name, the agent that is called"


def _content_errors(message: Message) -> Iterator[str]:
    if not message.content and not message.tool_calls:
        yield "content is empty; only a message with tool_calls may have none"
    for index, part in enumerate(() if isinstance(message.content, str) else message.content):
        if not _is_name(part.get("type")):
            yield f"content[{index}].type must be text that is not empty"


def _tool_call_errors(message: Message) -> Iterator[str]:
    if message.tool_calls and message.role != "assistant":
        yield f"tool_calls belong to an assistant message, not to role {message.role!r}"
    for index, call in enumerate(message.tool_calls or ()):
        yield from (f"tool_calls[{index}]{error}" for error in _call_errors(call))


def _call_errors(call: Mapping[str, Any]) -> Iterator[str]:
    # Id and type may be missing: `to_llm_dict` fills them in.
    if not _is_name(call.get("id", "call")):
        yield ".id must be text that is not empty"
    if call.get("type", "function") != "function":
        yield f".type must be 'function', not {call['type']!r}"
    function = call.get("function")
    if not isinstance(function, Mapping):
        yield ".function must be an object with name and arguments"
        return
    function = cast("Mapping[str, Any]", function)
    if not _is_name(function.get("name")):
        yield ".function.name must be text that is not empty"
    if not isinstance(function.get("arguments", ""), str | Mapping):
        yield ".function.arguments must be JSON text or an object"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def validate_tool_response(message: Message) -> bool:
    """Whether a message is a tool's, with JSON as its content."""
    if message.role != "tool" or not isinstance(message.content, str):
        return False
    try:
        json.loads(message.content, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")  # Python alone reads NaN and Infinity
