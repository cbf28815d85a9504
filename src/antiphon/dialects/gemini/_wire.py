"""The wire format of Gemini generateContent: keys in two spellings, bodies, and tools.

The service writes `inlineData`; its clients also write `inline_data`. We write camel case. If a key came in snake case, the
metadata says so, and it is written in snake case again. If it were kept as an unknown key instead, an edit of the value would
write both spellings.

A body is a request, a response, a bare list of contents, or one content. Functions are declared, several in one tool of a
request, beside tools that the service itself runs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from typing import Any, cast

from antiphon.dialects._body import Body
from antiphon.dialects._content import count_of
from antiphon.dialects._reading import as_list, as_object, kind_of, notes_of, sample_units
from antiphon.errors import DecodeError
from antiphon.messages import Tool, Usage, thaw
from antiphon.messages._names import is_name

NAME = "gemini"

DATA = frozenset(
    {
        "text",
        "inlineData",
        "fileData",
        "functionCall",
        "functionResponse",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
    }
)
"""The keys of the content of a part; a part has one of them."""

MODIFIERS = (
    "thoughtSignature",
    "videoMetadata",
    "mediaResolution",
    "mediaProcessing",
    "partMetadata",
    "speechMetadata",
    "audioTranscription",
)
"""The keys of a part that describe its content."""

_OPAQUE = "data:;base64,"
_LARGE = 64 * 1024
_MEDIA = ("inlineData", "fileData")
_INNER = (
    "mimeType",
    "data",
    "fileUri",
    "displayName",
    "id",
    "name",
    "args",
    "partialArgs",
    "willContinue",
    "response",
    "parts",
)


@cache
def _snake(key: str) -> str:
    return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key)


_CAMEL = {spelling: key for key in (*DATA, *MODIFIERS, "thought", *_INNER) for spelling in (key, _snake(key))}


def look(box: Mapping[str, Any], key: str) -> Any:
    """Return the value of an object under a key, in either spelling."""
    value = box.get(key)
    return box.get(_snake(key)) if value is None else value


def known(box: dict[str, object]) -> dict[str, Any]:
    """Return the known keys of a part or of its content, in camel case, without nulls."""
    return {_CAMEL[key]: value for key, value in box.items() if value is not None and key in _CAMEL}


def kept_proof(signature: str) -> str:
    """Return a signature as it is stored: it may have several MB, which a message can only hold as a `data:` URL."""
    return f"{_OPAQUE}{signature}" if len(signature) > _LARGE else signature


def proof(note: str) -> str:
    """Return a stored signature."""
    return note.removeprefix(_OPAQUE)


def spelled_otherwise(*boxes: dict[str, object]) -> list[str]:
    """Return the keys, in camel case, that are in snake case in one of these objects."""
    return [key for box in boxes for spelling in box if (key := _CAMEL.get(spelling, spelling)) != spelling]


def respelled(part: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return a part with these of its keys, and of those of its medium, in snake case."""
    return {
        _snake(key) if key in keys else key: respelled(value, keys) if key in _MEDIA else value for key, value in part.items()
    }


# ---------------------------------------------------------------- bodies

ROLES = {"user": "user", "model": "assistant", "function": "user"}
"""The policy of the contents of a role; `function` is an old role of user contents with results."""
ANSWER = ("candidates", 0, "content")
"""The path of the content of a response."""

_SLOTS = ("systemInstruction", "system_instruction")
_AS_OBJECT: dict[str, object] = {}
"""Stored under `contents` if that was one content and not a list."""
_PART_KEYS = DATA | {"thoughtSignature", "videoMetadata"}
"""Keys of which a part has one: its content, or data about the part before it."""


# ---------------------------------------------------------------- bodies


def open_body(value: object) -> Body:
    body = as_object(value) or {}
    if isinstance(body.get("contents"), list | dict):
        return _request(body)
    has_facts = any(look(body, key) is not None for key in ("promptFeedback", "usageMetadata", "responseId"))
    if isinstance(body.get("candidates"), list) or (body.get("candidates") is None and has_facts):
        return _response(body)
    if "parts" in body or "role" in body:
        return Body("one", [body])
    raise DecodeError("expected a request with contents, a response with candidates, or a list of contents", dialect=NAME)


def _request(request: dict[str, Any]) -> Body:
    rest = {key: value for key, value in request.items() if key != "contents"}
    only = as_object(request["contents"])
    if only is not None:  # the service accepts one object instead of a list
        rest["contents"] = _AS_OBJECT
    body = Body("request", request["contents"] if only is None else [only], ("contents",), rest=rest)
    slot = next((key for key in _SLOTS if rest.get(key) is not None), None)
    if slot is not None:
        if not isinstance(rest[slot], dict):
            raise DecodeError(f"expected a content, found {kind_of(rest[slot])}", dialect=NAME, where=slot)
        body.instructions, body.slot = rest[slot], slot
        rest[slot] = {}  # the key stays, to record its spelling
    if isinstance(tools := rest.get("tools"), list | dict):
        body.tools, frames = split_tools(cast("list[Any]", tools if isinstance(tools, list) else [tools]))
        rest["tools"] = frames if isinstance(tools, list) else frames[0]
        body.native = native_tools(frames)
    return body


def _response(response: dict[str, Any]) -> Body:
    """The first candidate is the conversation; the others are kept. A blocked prompt has no candidate, and some are empty."""
    own_id = look(response, "responseId")
    body = Body("one", [], ANSWER, rest=response, id=own_id if is_name(own_id) else None)
    body.usage = _usage(look(response, "usageMetadata"))
    if (time := _time(look(response, "createTime"))) is not None:
        body.fields = {"created_at": time}
    first, *alternatives = cast("list[Any]", response.get("candidates") or [None])
    content = (as_object(first) or {}).get("content")
    if content is not None:
        body.units, body.unit_facts = [content], first
        body.rest = {**response, "candidates": [{**first, "content": {}}, *alternatives]}
    return body


def _time(value: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(value)
        return time.astimezone(UTC) if time.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


def _usage(value: object) -> Usage | None:
    """Return the usage. The tokens of the candidates exclude thoughts; the output tokens of the core include them."""
    usage = as_object(value)
    if usage is None:
        return None
    thoughts = _count(usage, "thoughtsTokenCount")
    counts = {
        "input_tokens": _sum(_count(usage, "promptTokenCount"), _count(usage, "toolUsePromptTokenCount")),
        "output_tokens": _sum(_count(usage, "candidatesTokenCount"), thoughts),
        "cache_read_tokens": _count(usage, "cachedContentTokenCount"),
        "reasoning_tokens": thoughts,
    }
    return Usage.model_validate({name: count for name, count in counts.items() if count is not None})


def _count(usage: dict[str, object], key: str) -> int | None:
    return count_of(look(usage, key))


def _sum(*counts: int | None) -> int | None:
    there = [count for count in counts if count is not None]
    return count_of(sum(there)) if there else None


def close_body(body: Body) -> object:
    is_bare = body.instructions is None and not body.tools
    if body.shape == "one" and is_bare and len(body.units) <= 1:
        if not body.rest and body.units:
            return body.units[0]
        if body.rest and (answer := _answer(body)) is not None:
            return answer
    if body.shape == "list" and is_bare:
        return body.units
    return _closed_request(body)


def _answer(body: Body) -> dict[str, Any] | None:
    """Return a response; None if it cannot hold the conversation."""
    first, *alternatives = body.rest.get("candidates") or [None]
    candidate = as_object(first) or {}
    if candidate.get("content") is None:
        return None if body.units else body.rest
    facts = {key: value for key, value in candidate.items() if key != "content"}
    content = {"content": body.units[0]} if body.units else {}
    return {**body.rest, "candidates": [{**facts, **content}, *alternatives]}


def _closed_request(body: Body) -> dict[str, object]:
    request: dict[str, object] = {**body.rest} if body.shape == "request" else {}
    slot = next((key for key in _SLOTS if key in request and request[key] is not None), _SLOTS[0])
    if body.instructions is not None:
        request[slot] = body.instructions
    else:
        request = {key: value for key, value in request.items() if key not in _SLOTS or value is None}
    is_object = request.get("contents") == _AS_OBJECT and len(body.units) == 1
    request["contents"] = body.units[0] if is_object else body.units
    frames = request.get("tools")
    if isinstance(frames, dict):
        tools = join_tools(body.tools, [frames])
        request["tools"] = tools[0] if len(tools) == 1 else tools
    elif isinstance(frames, list) or body.tools:
        request["tools"] = join_tools(body.tools, as_list(request.get("tools")))
    return request


# ---------------------------------------------------------------- recognition


def recognise(data: object) -> str | None:
    body = as_object(data)
    if body is not None and isinstance(body.get("contents"), list | dict):
        is_request = bool(body["contents"]) and _are_contents(body["contents"])
        return "a request with contents of parts" if is_request else None
    if body is not None and "parts" not in body:
        return _recognise_response(body)
    return "contents with parts of generateContent" if data and _are_contents(data) else None


def _recognise_response(response: dict[str, object]) -> str | None:
    candidates = response.get("candidates")
    candidate = as_object(candidates[0]) if isinstance(candidates, list) and candidates else None
    if candidate is not None:
        says_why = look(candidate, "finishReason") is not None
        return "a response with candidates" if says_why or _are_contents(candidate.get("content")) else None
    return "a response to a prompt that was blocked" if as_object(look(response, "promptFeedback")) is not None else None


def _are_contents(data: object) -> bool:
    units = sample_units(data)
    return bool(units) and all(unit.get("role") in (None, *ROLES) and _has_parts(unit) for unit in units)


def _has_parts(unit: dict[str, object]) -> bool:
    parts, only = unit.get("parts"), as_object(unit.get("parts"))
    if only is not None:
        parts = [only]
    if not isinstance(parts, list) or not parts:
        return False
    return all(known(as_object(part) or {}).keys() & _PART_KEYS for part in cast("list[Any]", parts))


# ---------------------------------------------------------------- tools

_LISTS = ("functionDeclarations", "function_declarations")
_JSON_SCHEMA = "parametersJsonSchema"
_OPEN_API = "parameters"
"""The key of a schema in Google's form, which is JSON Schema with types in capitals."""
_BY_NAME = ("properties", "defs", "$defs")
_INSIDE = ("items", "anyOf", "any_of", "prefixItems", "prefix_items", "additionalProperties", "additional_properties")


# ---------------------------------------------------------------- all of a request


def split_tools(tools: list[object]) -> tuple[list[object], list[object]]:
    """Return the functions of all tools, and the tools with the number of functions instead of these."""
    functions: list[object] = []
    frames: list[object] = []
    for place, tool in enumerate(tools):
        frame = as_object(tool)
        if frame is not None:
            frame = {
                key: _moved(value, functions, f"tools[{place}].{key}") if key in _LISTS else value
                for key, value in frame.items()
            }
        frames.append(tool if frame is None else frame)
    return functions, frames


def _moved(value: object, functions: list[object], where: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise DecodeError(f"expected a list, found {kind_of(value)}", dialect=NAME, where=where)
    functions += cast("list[Any]", value)
    return len(cast("list[Any]", value))


def native_tools(frames: list[object]) -> list[str]:
    """Return the names of the tools that the service runs itself."""
    items = [item for frame in frames for item in (as_object(frame) or {}).items()]
    return [key for key, value in items if key not in _LISTS and value is not None]


def join_tools(functions: list[Any], frames: list[Any]) -> list[object]:
    """Return the tools, each with as many functions as it had; the last tool with functions takes the rest."""
    counts = [
        value for frame in frames for key, value in (as_object(frame) or {}).items() if key in _LISTS and value is not None
    ]
    if not counts:
        return [*frames, {_LISTS[0]: functions}] if functions else frames
    counts[-1] += max(0, len(functions) - sum(counts))
    sizes, remaining = iter(counts), iter(functions)
    tools = [_filled(frame, sizes, remaining) for frame in frames]
    return [tool for tool, frame in zip(tools, frames, strict=True) if tool or not frame]


def _filled(frame: object, sizes: Iterator[int], remaining: Iterator[object]) -> Any:
    """Return a tool with its functions; without the key if all of them were removed."""
    if (fields := as_object(frame)) is None:
        return frame
    tool: dict[str, object] = {}
    for key, value in fields.items():
        if key not in _LISTS or value is None:
            tool[key] = value
        elif (taken := list(islice(remaining, next(sizes)))) or not value:
            tool[key] = taken
    return tool


# ---------------------------------------------------------------- one function


def read_tool(tool: object) -> dict[str, object] | None:
    """Return name, description and parameters of a function."""
    function = as_object(tool) or {}
    if not isinstance(function.get("name"), str):
        return None
    read: dict[str, object] = {"name": function["name"], "description": function.get("description")}
    for key in (_JSON_SCHEMA, "parameters_json_schema", _OPEN_API):
        if (schema := as_object(function.get(key))) is not None:
            read["parameters"] = _typed(schema, str.lower) if key == _OPEN_API else schema
            read["metadata"] = {} if key == _JSON_SCHEMA else {NAME: {"schema": key}}
            break
    return read


def write_tool(tool: Tool, name: str) -> dict[str, Any]:
    function: dict[str, Any] = {"name": name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters:
        key = notes_of(tool, NAME).get("schema", _JSON_SCHEMA)
        schema = thaw(tool.parameters)
        function[key] = _typed(schema, str.upper) if key == _OPEN_API else schema
    return function


def _typed(schema: object, spell: Callable[[str], str]) -> object:
    """Return a schema with its types in another spelling."""
    if isinstance(schema, list):
        return [_typed(item, spell) for item in cast("list[Any]", schema)]
    fields = as_object(schema)
    return schema if fields is None else {key: _typed_value(key, value, spell) for key, value in fields.items()}


def _typed_value(key: str, value: object, spell: Callable[[str], str]) -> object:
    if key == "type":
        return spell(value) if isinstance(value, str) else value
    if key in _BY_NAME and isinstance(value, dict):
        return {name: _typed(item, spell) for name, item in cast("dict[str, Any]", value).items()}
    return _typed(value, spell) if key in _INSIDE else value
