"""The bodies of OpenAI Chat Completions: a request, a response, a bare list of messages, or one message."""

from __future__ import annotations

from typing import Any, cast

from antiphon.dialects._body import Body
from antiphon.dialects._content import count_of, unix_time
from antiphon.dialects._reading import CHAT_KEYS, CLAUDE_KEYS, as_object, content_parts, is_one_of, sample_units
from antiphon.errors import DecodeError
from antiphon.messages import Tool, Usage, thaw

NAME = "openai-chat"
ROLES = frozenset({"developer", "system", "user", "assistant", "tool", "function"})
_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "image", "document", "input_text", "input_image", "output_text"})
_OTHERS = frozenset({"message_id", "metadata", "timestamp", "type", "kind", "parts"})
"""Keys that messages of other formats have."""
_OLLAMA_KEYS = frozenset({"keep_alive", "options"})
"""Keys of a request of Ollama's own, whose answers have another form."""


def open_body(value: object) -> Body:
    """Take a body apart."""
    if isinstance(value, list):
        return Body("list", cast("list[Any]", value))
    found = as_object(value)
    if found is not None and isinstance(found.get("messages"), list):
        return _request(found)
    if found is not None and isinstance(found.get("choices"), list):
        return _response(found)
    if found is not None and "role" in found:
        return Body("one", [found])
    raise DecodeError("expected a request with messages, a response with choices, or a list of messages", dialect=NAME)


def _request(found: dict[str, Any]) -> Body:
    rest = {key: value for key, value in found.items() if key != "messages"}
    tools: list[Any] = rest.pop("tools") if isinstance(rest.get("tools"), list) and rest["tools"] else []
    return Body("request", found["messages"], ("messages",), tools=tools, rest=rest)


def _response(found: dict[str, object]) -> Body:
    """The first choice is the conversation; the others are kept."""
    choices = cast("list[Any]", found["choices"])
    first = as_object(choices[0]) if choices else None
    if first is not None and "message" not in first and first.get("finish_reason"):
        return _facts(found, [])  # an answer that a content filter removed
    if first is None or as_object(first.get("message")) is None:
        raise DecodeError("expected a choice with a message", dialect=NAME, where="choices[0].message")
    left = {key: value for key, value in first.items() if key != "message"}
    return _facts({**found, "choices": [left, *choices[1:]]}, [first["message"]])


def _facts(found: dict[str, Any], units: list[Any]) -> Body:
    body = Body("response", units, ("choices",), rest=found, usage=_usage(found.get("usage")))
    body.id = found["id"] if isinstance(found.get("id"), str) and found["id"] else None
    body.fields = {"created_at": unix_time(found.get("created"))}
    return body


def _usage(given: object) -> Usage | None:
    usage = as_object(given)
    if usage is None:
        return None
    prompt = as_object(usage.get("prompt_tokens_details")) or {}
    completion = as_object(usage.get("completion_tokens_details")) or {}
    counts = {
        "input_tokens": usage.get("prompt_tokens"),
        "output_tokens": usage.get("completion_tokens"),
        "cache_read_tokens": prompt.get("cached_tokens"),
        "cache_write_tokens": prompt.get("cache_write_tokens"),
        "reasoning_tokens": completion.get("reasoning_tokens"),
    }
    return Usage.model_validate({name: count_of(count) for name, count in counts.items()})


def close_body(body: Body) -> object:
    """Put a body together."""
    match body.shape:
        case "one" if len(body.units) == 1:
            return body.units[0]
        case "response" if len(body.units) == 1:
            choices = body.rest["choices"]
            return {**body.rest, "choices": [{**choices[0], "message": body.units[0]}, *choices[1:]]}
        case "response" if not body.units:
            return body.rest
        case "list" | "one" if not body.tools:
            return body.units
        case _:
            settings = {} if body.shape == "response" else body.rest
            return {**settings, "messages": body.units, **({"tools": body.tools} if body.tools else {})}


def read_tool(tool: object) -> dict[str, Any] | None:
    """Return name, description and parameters of a tool."""
    given = as_object(tool) or {}
    inner = as_object(given.get(str(given.get("type", "function"))))
    if inner is None or not isinstance(inner.get("name"), str):
        return None
    parameters = as_object(inner.get("parameters"))
    read = {"name": inner["name"], "description": inner.get("description"), "parameters": parameters or {}}
    return {**read, "metadata": {NAME: {"custom": True}}} if given.get("type") == "custom" else read


def write_tool(tool: Tool, name: str) -> dict[str, Any]:
    """Write a tool."""
    function: dict[str, object] = {"name": name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = thaw(tool.parameters)
    return {"type": "function", "function": function}


def recognise(data: object) -> str | None:
    """Return why parsed JSON looks like this format."""
    found = as_object(data)
    if found is not None and found.get("object") == "chat.completion":
        return "a chat completion"
    if found is not None and "messages" in found:
        return _recognise_request(found)
    units = sample_units(data)
    if not units or not all(is_one_of(unit.get("role"), ROLES) and not _has_blocks(unit) for unit in units):
        return None
    if any(unit["role"] == "developer" or _has_chat_content(unit) for unit in units):
        return "messages with roles and content parts of Chat Completions"
    is_plain = all("content" in unit or "tool_calls" in unit for unit in units) and not any(map(_OTHERS.intersection, units))
    return "roles and content, as Chat Completions and others have them" if is_plain else None


def _recognise_request(found: dict[str, Any]) -> str | None:
    units = sample_units(found["messages"]) if isinstance(found["messages"], list) else []
    if not units or "system" in found or any(not is_one_of(unit.get("role"), ROLES) or _has_blocks(unit) for unit in units):
        return None
    has_own = not CHAT_KEYS.isdisjoint(found) or any("function" in (as_object(tool) or {}) for tool in _listed(found, "tools"))
    if not CLAUDE_KEYS.isdisjoint(found) or not _OLLAMA_KEYS.isdisjoint(found):
        return None
    if not has_own and any("input_schema" in (as_object(tool) or {}) for tool in _listed(found, "tools")):
        return None
    # Anthropic Messages requires `max_tokens`; here it is optional.
    model = found.get("model")
    is_claude = "max_tokens" in found and isinstance(model, str) and model.startswith("claude-")
    return None if is_claude and not has_own else "a request with messages of Chat Completions"


def _listed(found: dict[str, object], key: str) -> list[object]:
    value = found.get(key)
    return cast("list[Any]", value) if isinstance(value, list) else []


def _has_chat_content(unit: dict[str, object]) -> bool:
    return any(part["type"] in ("image_url", "input_audio", "file") for part in content_parts(unit) or ())


def _has_blocks(unit: dict[str, Any]) -> bool:
    """Whether content has parts of another provider. A thought that is a list of parts is Mistral's."""
    parts = content_parts(unit)
    return parts is None or any(part["type"] in _BLOCKS and not isinstance(part.get("thinking"), list) for part in parts)
