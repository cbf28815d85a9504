"""Processors: what stands between a peer and a model that speaks the language of OpenAI, on the way in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.dialects import marsys
from antiphon.dialects.marsys import process_for_llm, sanitize_tool_name, with_heading

__all__ = ["for_model", "from_model"]


def from_model(name: str, response: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's response as what the peer says: under its name, with plain names of tools, and nothing that is null."""
    said = {key: value for key, value in response.items() if value is not None}
    said |= {"role": "assistant", "name": name, "content": said.get("content") or ""}
    if calls := said.pop("tool_calls", None):
        said["tool_calls"] = [_plain(call) for call in calls]
    return said


def for_model(name: str, message: marsys.Message) -> dict[str, Any]:
    """Return a message as a model takes it that speaks for the peer: what it asked others is its own, the rest a user's.

    So what another agent has said, and passed on, is a user's too: else the model takes it for its own words.
    """
    if message.role == "agent_call" and message.caller == name:
        return {"role": "assistant", "content": with_heading(f"[Request to {message.name}]:", message.content)}
    if message.role == "assistant" and message.name not in (None, name):
        return {"role": "user", "content": with_heading(f"[Message from {message.name}]:", _said(message))}
    return process_for_llm(message)


def _said(message: marsys.Message) -> str | list[Any]:
    """Return what an agent has said, with the tools that it called: their results are not told with it."""
    calls = message.to_llm_dict().get("tool_calls", ())
    called = [f"{call['function']['name']}({call['function']['arguments']})" for call in calls]
    if isinstance(message.content, str):
        return " ".join(each for each in (message.content, *called) if each)
    return [*message.content, *({"type": "text", "text": each} for each in called)]


def _plain(call: Any) -> Any:
    match call:
        case {"function": {"name": str(tool)} as function}:
            return {**call, "function": {**function, "name": sanitize_tool_name(tool)}}
        case _:
            return call
