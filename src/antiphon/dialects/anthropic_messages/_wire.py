"""The bodies of Anthropic Messages: a request, a response, a bare list of messages, or one message."""

from __future__ import annotations

import re
from typing import Any, cast

from antiphon.dialects._body import Body
from antiphon.dialects._content import count_of
from antiphon.dialects._reading import CHAT_KEYS, CLAUDE_KEYS, as_object, content_parts, is_one_of, sample_units
from antiphon.errors import DecodeError
from antiphon.messages import Tool, Usage, is_name, thaw

NAME = "anthropic-messages"
FILE = "anthropic-file"
"""The owner of the ids of files."""
ROLES = ("user", "assistant", "system")

SETTINGS = {
    "text": ("cache_control",),
    "image": ("cache_control", "transformations"),
    "document": ("cache_control", "citations", "context"),
    "tool_use": ("cache_control", "caller", "toolset_name"),
    "tool_result": ("cache_control", "toolset_name"),
}
"""Keys of a block that are settings, by its type: noted on the part, or on the message of a call or result."""
TITLES: dict[str, str] = dict.fromkeys(("char_location", "page_location", "content_block_location"), "document_title")
"""The key of the title of a citation, by its type, if it is not `title`."""

_OWN_BLOCKS = frozenset(
    {
        "document",
        "image",
        "redacted_thinking",
        "search_result",
        "server_tool_use",
        "thinking",
        "tool_result",
        "tool_use",
        "web_search_tool_result",
    }
)
"""Types of blocks by which the format is recognised."""
_OTHER_MODEL = re.compile(r"(chat)?gpt-|o\d|gemini-|(mi|magi|mini|code|dev|pix|vox)stral-|palmyra-|command-|.+/")
"""Names of models that do not use this format; a name with a slash belongs to a server of many providers' models."""
_COUNTED = frozenset({"model", "messages", "thinking", "tool_choice", "tools"})
"""Keys of a request to count tokens, which has no `max_tokens`."""


# ---------------------------------------------------------------- bodies


def open_body(value: object) -> Body:
    """Take a body apart."""
    if isinstance(value, list):
        return Body("list", cast("list[Any]", value))
    found = as_object(value)
    if found is not None and isinstance(found.get("messages"), list):
        return _request(found)
    if found is not None and "role" in found:
        return _response(found) if found.get("type") == "message" else Body("one", [found])
    raise DecodeError("expected a request with messages, a response, or a list of messages", dialect=NAME)


def _request(found: dict[str, Any]) -> Body:
    rest = {key: value for key, value in found.items() if key != "messages"}
    system = rest.pop("system") if rest.get("system") is not None else None
    tools: list[Any] = rest.pop("tools") if isinstance(rest.get("tools"), list) and rest["tools"] else []
    return Body("request", found["messages"], ("messages",), instructions=system, slot="system", tools=tools, rest=rest)


def _response(found: dict[str, Any]) -> Body:
    """Take a response apart: one message with other fields. Its id stays there: a message of a request must not have one."""
    unit = {key: found[key] for key in ("role", "content") if key in found}
    rest = {key: value for key, value in found.items() if key not in unit}
    own_id = found.get("id")
    return Body("one", [unit], rest=rest, usage=_usage(found.get("usage")), id=own_id if is_name(own_id) else None)


def _usage(given: object) -> Usage | None:
    """Return the usage. The format's `input_tokens` excludes cached tokens; in the core it is the whole prompt."""
    usage = as_object(given)
    if usage is None:
        return None
    details = as_object(usage.get("output_tokens_details")) or {}
    read, written = count_of(usage.get("cache_read_input_tokens")), count_of(usage.get("cache_creation_input_tokens"))
    fresh = count_of(usage.get("input_tokens"))
    return Usage(
        input_tokens=None if fresh is None else count_of(fresh + (read or 0) + (written or 0)),
        output_tokens=count_of(usage.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=count_of(details.get("thinking_tokens")),
    )


def close_body(body: Body) -> object:
    """Put a body together."""
    has_more = body.instructions is not None or bool(body.tools)
    if body.shape == "one" and len(body.units) == 1 and not has_more:
        return {**body.rest, **body.units[0]}
    if body.shape == "list" and not has_more:
        return body.units
    request = dict(body.rest) if body.shape == "request" else {}
    if body.instructions is not None:
        request["system"] = body.instructions
    request["messages"] = body.units
    if body.tools:
        request["tools"] = body.tools
    return request


# ---------------------------------------------------------------- tools


def read_tool(tool: object) -> dict[str, Any] | None:
    """Return name, description and parameters of a tool; None for a tool that the provider runs, or knows the schema of."""
    given = as_object(tool) or {}
    schema = as_object(given.get("input_schema"))
    if given.get("type", "custom") not in ("custom", None) or schema is None or not isinstance(given.get("name"), str):
        return None
    return {"name": given["name"], "description": given.get("description"), "parameters": schema}


def write_tool(tool: Tool, name: str) -> dict[str, Any]:
    """Write a tool. Its schema must be that of an object."""
    written: dict[str, object] = {"name": name}
    if tool.description is not None:
        written["description"] = tool.description
    written["input_schema"] = {"type": "object", **thaw(tool.parameters)}
    return written


# ---------------------------------------------------------------- recognition


def recognise(data: object) -> str | None:
    """Return why parsed JSON looks like this format."""
    found = as_object(data)
    if found is not None and isinstance(found.get("messages"), list):
        return _recognise_request(found)
    if found is not None and found.get("type") == "message" and "stop_reason" in found:
        return "a response with a stop_reason"
    units = sample_units(data)
    return "messages with blocks of Anthropic Messages" if _are_messages(units) and any(map(_has_blocks, units)) else None


def _recognise_request(found: dict[str, object]) -> str | None:
    units, tools = sample_units(found["messages"]), [as_object(tool) or {} for tool in _listed(found.get("tools"))]
    if not _are_messages(units) or any("function" in tool for tool in tools) or not _is_system(found.get("system", "")):
        return None
    if "system" in found or any(map(_has_blocks, units)) or any("input_schema" in tool for tool in tools):
        return "a request of Anthropic Messages"
    model = found.get("model")
    is_cohere = isinstance(model, str) and model.startswith("command-")
    if not CLAUDE_KEYS.isdisjoint(found) and not is_cohere:
        return "a request with keys of Anthropic Messages"
    if not CHAT_KEYS.isdisjoint(found) or (isinstance(model, str) and _OTHER_MODEL.match(model)):
        return None
    # Chat Completions has it too, but as an optional setting that is deprecated.
    if "max_tokens" in found:
        return "a request with messages and max_tokens"
    is_count = isinstance(model, str) and model.startswith("claude-") and found.keys() <= _COUNTED
    return "a request to count the tokens of messages" if is_count else None


def _is_system(given: object) -> bool:
    return isinstance(given, str) or all("type" in (as_object(block) or {}) for block in _listed(given))


def _listed(value: object) -> list[object]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _are_messages(units: list[dict[str, object]]) -> bool:
    return bool(units) and all(
        is_one_of(unit.get("role"), ROLES) and "tool_calls" not in unit and content_parts(unit) is not None for unit in units
    )


def _has_blocks(unit: dict[str, Any]) -> bool:
    """Whether content has blocks that only this format has. A thought without a signature is Mistral's or Cohere's."""
    parts = content_parts(unit) or []
    return any(part["type"] in _OWN_BLOCKS and ("thinking" not in part or "signature" in part) for part in parts)
