"""The bodies of Gemini generateContent: a request, a response, a bare list of contents, or one content."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from antiphon.dialects._body import Body
from antiphon.dialects._content import count_of
from antiphon.dialects._reading import as_object, kind_of, sample_units
from antiphon.dialects.gemini._keys import DATA, NAME, known, look
from antiphon.dialects.gemini._tools import join_tools, native_tools, split_tools
from antiphon.errors import DecodeError
from antiphon.messages import Usage
from antiphon.messages._names import is_name

__all__ = ["ANSWER", "NAME", "ROLES", "close_body", "open_body", "recognise"]

ROLES = {"user": "user", "model": "assistant", "function": "user"}
"""Whose words the contents of a role are; `function` is an old name for a user's content that holds results."""
ANSWER = ("candidates", 0, "content")
"""Where the content of a response stands."""

_SLOTS = ("systemInstruction", "system_instruction")
_AS_OBJECT: dict[str, Any] = {}
"""Kept under `contents` where that was one content and no list."""
_PART_KEYS = DATA | {"thoughtSignature", "videoMetadata"}
"""Keys of which a part has one: what it holds, or what it says of the part before it."""


# ---------------------------------------------------------------- bodies


def open_body(value: Any) -> Body:
    """Take a body apart."""
    if isinstance(value, list):
        return Body("list", cast("list[Any]", value))
    found = as_object(value) or {}
    if isinstance(found.get("contents"), list | dict):
        return _request(found)
    if isinstance(found.get("candidates"), list) or (found.get("candidates") is None and _has_facts(found)):
        return _response(found)
    if "parts" in found or "role" in found:
        return Body("one", [found])
    raise DecodeError("expected a request with contents, a response with candidates, or a list of contents", dialect=NAME)


def _request(found: dict[str, Any]) -> Body:
    rest = {key: value for key, value in found.items() if key != "contents"}
    only = as_object(found["contents"])
    if only is not None:  # the service takes one object for a list of one
        rest["contents"] = _AS_OBJECT
    body = Body("request", found["contents"] if only is None else [only], ("contents",), rest=rest)
    slot = next((key for key in _SLOTS if rest.get(key) is not None), None)
    if slot is not None:
        if not isinstance(rest[slot], dict):
            raise DecodeError(f"expected a content, found {kind_of(rest[slot])}", dialect=NAME, where=slot)
        body.instructions, body.slot = rest[slot], slot
        rest[slot] = {}  # what stays says under which key they stood
    if isinstance(tools := rest.get("tools"), list | dict):
        body.tools, frames = split_tools(cast("list[Any]", tools if isinstance(tools, list) else [tools]))
        rest["tools"] = frames if isinstance(tools, list) else frames[0]
        body.native = native_tools(frames)
    return body


def _has_facts(found: dict[str, Any]) -> bool:
    return any(look(found, key) is not None for key in ("promptFeedback", "usageMetadata", "responseId"))


def _response(found: dict[str, Any]) -> Body:
    """The first candidate is the conversation; the others are kept. A blocked prompt has none, and some say nothing."""
    own_id = look(found, "responseId")
    body = Body("one", [], ANSWER, rest=found, id=own_id if is_name(own_id) else None)
    body.usage = _usage(look(found, "usageMetadata"))
    if (time := _time(look(found, "createTime"))) is not None:
        body.fields = {"created_at": time}
    first, *others = cast("list[Any]", found.get("candidates") or [None])
    content = (as_object(first) or {}).get("content")
    if content is not None:
        body.units, body.beside = [content], first
        body.rest = {**found, "candidates": [{**first, "content": {}}, *others]}
    return body


def _time(given: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(given)
        return time.astimezone(UTC) if time.tzinfo else None
    except (TypeError, ValueError, OverflowError):
        return None


def _usage(given: Any) -> Usage | None:
    """Return what an answer cost. What was thought is not among the tokens of the candidates, but is in the core's output."""
    usage = as_object(given)
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


def _count(usage: dict[str, Any], key: str) -> int | None:
    return count_of(look(usage, key))


def _sum(*counts: int | None) -> int | None:
    there = [count for count in counts if count is not None]
    return count_of(sum(there)) if there else None


def close_body(body: Body) -> Any:
    """Put a body together."""
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
    """Return a response; None if it has no place for what was said."""
    first, *others = body.rest.get("candidates") or [None]
    given = as_object(first) or {}
    if given.get("content") is None:
        return None if body.units else body.rest
    facts = {key: value for key, value in given.items() if key != "content"}
    said = {"content": body.units[0]} if body.units else {}
    return {**body.rest, "candidates": [{**facts, **said}, *others]}


def _closed_request(body: Body) -> dict[str, Any]:
    request = {**body.rest} if body.shape == "request" else {}
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
        request["tools"] = join_tools(body.tools, cast("list[Any]", frames) if isinstance(frames, list) else [])
    return request


# ---------------------------------------------------------------- recognition


def recognise(data: Any) -> str | None:
    """Say why parsed JSON looks like this format."""
    found = as_object(data)
    if found is not None and isinstance(found.get("contents"), list | dict):
        is_request = bool(found["contents"]) and _are_contents(found["contents"])
        return "a request with contents of parts" if is_request else None
    if found is not None and "parts" not in found:
        return _recognise_response(found)
    return "contents with parts of generateContent" if data and _are_contents(data) else None


def _recognise_response(found: dict[str, Any]) -> str | None:
    candidates = found.get("candidates")
    candidate = as_object(candidates[0]) if isinstance(candidates, list) and candidates else None
    if candidate is not None:
        says_why = look(candidate, "finishReason") is not None
        return "a response with candidates" if says_why or _are_contents(candidate.get("content")) else None
    return "a response to a prompt that was blocked" if as_object(look(found, "promptFeedback")) is not None else None


def _are_contents(data: Any) -> bool:
    units = sample_units(data)
    return bool(units) and all(unit.get("role") in (None, *ROLES) and _has_parts(unit) for unit in units)


def _has_parts(unit: dict[str, Any]) -> bool:
    parts, only = unit.get("parts"), as_object(unit.get("parts"))
    if only is not None:
        parts = [only]
    if not isinstance(parts, list) or not parts:
        return False
    return all(known(as_object(part) or {}).keys() & _PART_KEYS for part in cast("list[Any]", parts))
