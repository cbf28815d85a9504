"""The bodies of OpenAI Responses: a request, whose input may be one text, a response, a bare list of items, or one item."""

from __future__ import annotations

import re
from typing import Any, cast

from antiphon.dialects._body import Body
from antiphon.dialects._content import count_of, unix_time
from antiphon.dialects._reading import as_object, is_one_of, sample_units
from antiphon.errors import DecodeError
from antiphon.messages import Tool, Usage, thaw

NAME = "openai-responses"
ROLES = frozenset({"user", "assistant", "system", "developer"})
FILE = "openai-file"
"""The owner of the ids of files: the provider, so Chat Completions has the same."""
_AS_TEXT = ""
"""Stored under `input` if that was one text and not a list."""
_LEFT_OUT = False
"""Stored under `input` if there was none."""

_TOOLS = ("function", "custom")

_ITEMS = frozenset(
    {
        "agent_message",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "computer_call",
        "computer_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "function_call",
        "function_call_output",
        "image_generation_call",
        "item_reference",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "message",
        "multi_agent_call",
        "multi_agent_call_output",
        "program",
        "program_output",
        "reasoning",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""The types by which a list of items is recognised; there are more types."""
_OTHER_KEYS = frozenset({"dimensions", "encoding_format", "input_type", "voice", "generation_config"})
"""Keys of other requests with `model` and `input`: embeddings, speech, Gemini's interactions."""
_OTHER_MODEL = re.compile(r"embed|moderation|-tts")
"""Names of models that take an `input` but not a conversation."""
_PARTS = ("input_text", "input_image", "input_file", "output_text")


# ---------------------------------------------------------------- bodies


def open_body(value: object) -> Body:
    """Take a body apart."""
    if isinstance(value, list):
        return Body("list", cast("list[Any]", value))
    found = as_object(value)
    if found is None:
        raise _no_body()
    if isinstance(found.get("type"), str) or "role" in found:
        return Body("one", [found])
    if isinstance(found.get("input"), list | str):
        return _request(found)
    if isinstance(found.get("output"), list):
        return _response(found)
    if found.get("input") is None and as_object(found.get("prompt")) is not None:
        return _request(found)
    raise _no_body()


def _no_body() -> DecodeError:
    return DecodeError("expected a request with input, a response with output, or a list of items", dialect=NAME)


def _request(found: dict[str, Any]) -> Body:
    rest = {key: value for key, value in found.items() if key != "input"}
    tools: list[Any] = rest.pop("tools") if isinstance(rest.get("tools"), list) and rest["tools"] else []
    units = found.get("input")
    if units is None:  # a stored prompt has all messages
        rest["input"] = None if "input" in found else _LEFT_OUT
        units = []
    if isinstance(units, str):
        rest["input"] = _AS_TEXT
        units = [{"role": "user", "content": units}]
    instructions = rest.pop("instructions") if rest.get("instructions") is not None else None
    return Body("request", units, ("input",), instructions=instructions, tools=tools, rest=rest)


def _response(found: dict[str, Any]) -> Body:
    """Split a response; its instructions and tools repeat those of the request."""
    rest = {key: value for key, value in found.items() if key != "output"}
    body = Body("response", found["output"], ("output",), rest=rest, usage=_usage(found.get("usage")))
    body.fields = {"created_at": unix_time(found.get("created_at"))}
    return body


def _usage(given: object) -> Usage | None:
    usage = as_object(given)
    if usage is None:
        return None
    asked = as_object(usage.get("input_tokens_details")) or {}
    answered = as_object(usage.get("output_tokens_details")) or {}
    counts = {
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cache_read_tokens": asked.get("cached_tokens"),
        "cache_write_tokens": asked.get("cache_write_tokens"),
        "reasoning_tokens": answered.get("reasoning_tokens"),
    }
    return Usage.model_validate({name: count_of(count) for name, count in counts.items()})


def close_body(body: Body) -> object:
    """Put a body together."""
    is_bare = not body.tools and body.instructions is None
    match body.shape:
        case "one" if is_bare and len(body.units) == 1:
            return body.units[0]
        case "response" if is_bare:
            return {**body.rest, "output": body.units}
        case "list" | "one" if is_bare:
            return body.units
        case _:
            return _closed_request(body)


def _closed_request(body: Body) -> dict[str, object]:
    request = {**body.rest} if body.shape == "request" else {}
    if body.instructions is not None:
        request["instructions"] = body.instructions
    is_text = request.get("input") == _AS_TEXT and _is_one_text(body.units)
    if not body.units and "input" in request and request["input"] != _AS_TEXT:
        if request["input"] is _LEFT_OUT:
            del request["input"]
    else:
        request["input"] = body.units[0]["content"] if is_text else body.units
    if body.tools:
        request["tools"] = body.tools
    return request


def _is_one_text(units: list[Any]) -> bool:
    if len(units) != 1 or units[0].keys() != {"role", "content"}:
        return False
    return units[0]["role"] == "user" and isinstance(units[0]["content"], str)


# ---------------------------------------------------------------- tools


def read_tool(tool: object) -> dict[str, object] | None:
    """Return name, description and parameters of a tool that the caller runs; None for the service's own tools."""
    given = as_object(tool) or {}
    if not is_one_of(given.get("type"), _TOOLS) or not isinstance(given.get("name"), str):
        return None
    parameters = as_object(given.get("parameters"))
    read: dict[str, object] = {"name": given["name"], "description": given.get("description"), "parameters": parameters or {}}
    return {**read, "metadata": {NAME: {"custom": True}}} if given["type"] == "custom" else read


def write_tool(tool: Tool, name: str) -> dict[str, object]:
    """Write a tool. It is marked as not strict, because strict is the default and other schemas may not meet its rules."""
    parameters: object = thaw(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
    written: dict[str, object] = {"type": "function", "name": name, "parameters": parameters, "strict": False}
    if tool.description is not None:
        written["description"] = tool.description
    return written


# ---------------------------------------------------------------- recognition


def recognise(data: Any) -> str | None:
    """Return why parsed JSON looks like this format."""
    found = as_object(data)
    if found is None or "type" in found:
        return _recognise_items(data)
    if found.get("object") == "response" and isinstance(found.get("output"), list):
        return "a response with output items"
    given = found.get("input")
    if not _OTHER_KEYS.isdisjoint(found) or _OTHER_MODEL.search(str(found.get("model"))):
        return None
    if isinstance(given, str):
        return "a request with a text as input" if "model" in found or "instructions" in found else None
    if isinstance(given, list) and (units := sample_units(cast("list[Any]", given))):
        are_messages = all(_has_role(unit) and "content" in unit for unit in units)
        if "model" in found or are_messages or _recognise_items(given):
            return "a request with input items"
    is_stored = as_object(found.get("prompt")) is not None and "id" in found["prompt"] and "messages" not in found
    return "a request with a stored prompt" if is_stored and given is None else None


def _recognise_items(data: Any) -> str | None:
    units = sample_units(data)
    are_items = all(_is_item(unit) or _has_role(unit) for unit in units)
    return "items of Responses" if are_items and any(_is_item(unit) or _has_own_parts(unit) for unit in units) else None


def _has_role(unit: dict[str, object]) -> bool:
    return isinstance(unit.get("role"), str) and unit["role"] in ROLES


def _is_item(unit: dict[str, object]) -> bool:
    """Whether it is an item by its type. A `message` with a model is a whole answer of another provider."""
    kind = unit.get("type")
    return isinstance(kind, str) and kind in _ITEMS and (kind != "message" or ("role" in unit and "model" not in unit))


def _has_own_parts(unit: dict[str, object]) -> bool:
    content = unit.get("content")
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    return any(isinstance(part, dict) and is_one_of(cast("dict[str, Any]", part).get("type"), _PARTS) for part in parts)
