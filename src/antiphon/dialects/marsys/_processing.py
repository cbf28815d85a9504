"""Between messages and a model: a response becomes a message, a message becomes what a provider accepts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.dialects.marsys._content import with_heading
from antiphon.dialects.marsys._message import Message

__all__ = ["process_for_llm", "process_llm_response"]

_UNKNOWN = "unknown"


def process_llm_response(response_dict: Mapping[str, Any]) -> Message:
    """Return a model's response as an assistant message, with its tool calls if there are any."""
    return Message(
        role="assistant",
        content=response_dict.get("content") or "",
        tool_calls=response_dict.get("tool_calls") or None,
    )


def process_for_llm(message: Message) -> dict[str, Any]:
    """Return a message in a role that providers know: what other agents say, and errors, are a user's words."""
    match message.role:
        case "agent_call":  # its name is the agent that is called; who calls is in the metadata
            said = f"Request from {message.caller or _UNKNOWN}"
        case "agent_response":
            said = f"Response from {message.name or _UNKNOWN}"
        case "error":
            kind = f" ({message.error_type})" if message.error_type else ""
            said = f"Error from {message.name or _UNKNOWN}{kind}"
        case _:
            return message.to_llm_dict()
    return {"role": "user", "content": with_heading(f"[{said}]:", message.content)}
