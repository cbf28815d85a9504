"""What the service refuses that its types allow, as sentences about a request body.

Written from the provider's documentation and error texts, and from nothing in the dialect: it is the other opinion.
"""

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Any

__all__ = ["refusals"]

_ID = re.compile(r"[a-zA-Z0-9_-]+")
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}


def refusals(body: Any) -> list[str]:
    """Return why the service would refuse a request that came from elsewhere, as far as can be told by looking at it."""
    return [*_of_roles(body), *_of_blocks(body), *_of_pairs(body), *_of_system(body), *_of_tools(body)]


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _turns(body: Any) -> list[tuple[str, list[dict[str, Any]]]]:
    """Neighbours of one role are one turn."""
    groups = groupby(body["messages"], key=lambda message: message["role"])
    return [(role, [block for message in group for block in _blocks(message)]) for role, group in groups]


def _of_roles(body: Any) -> Iterator[str]:
    roles = [message["role"] for message in body["messages"]]
    if roles and roles[0] != "user":
        yield 'first message must use the "user" role'
    if "system" in roles:
        yield "a system message is not accepted by every model, nor in every place"
    for place, message in enumerate(body["messages"]):
        if not message["content"]:
            yield f"messages.{place}: all messages must have non-empty content"


def _of_blocks(body: Any) -> Iterator[str]:
    for role, blocks in _turns(body):
        for block in blocks:
            yield from _of_text(block)
            yield from _of_source(block)
            if block["type"] in {"image", "document", "tool_result"} and role != "user":
                yield f"{block['type']} in a turn of {role}"
            if block["type"] in {"tool_use", "thinking", "redacted_thinking"} and role != "assistant":
                yield f"{block['type']} in a turn of {role}"
            if block["type"] in {"thinking", "redacted_thinking"}:
                yield "Invalid `signature` in `thinking` block"
            if block["type"] == "tool_result":
                yield from _of_result(block)


def _of_text(block: dict[str, Any]) -> Iterator[str]:
    if block["type"] == "text" and not block["text"].strip():
        yield "text content blocks must contain non-whitespace text"


def _of_source(block: dict[str, Any]) -> Iterator[str]:
    source = block.get("source", {})
    if block["type"] == "image" and source["type"] == "base64" and source["media_type"] not in _IMAGES:
        yield f"an image may not be {source['media_type']}"
    if source and source.get("type") == "base64" and re.search("[^A-Za-z0-9+/=]", source["data"]):
        yield "invalid base64 data"


def _of_result(block: dict[str, Any]) -> Iterator[str]:
    content = block.get("content", "")
    if content == []:
        yield "an empty list as content of a tool_result"
    if not isinstance(content, str):
        for inner in content:
            yield from _of_text(inner)
            yield from _of_source(inner)
            if block.get("is_error") and inner["type"] != "text":
                yield "all content must be type `text` if `is_error` is true"
    if block.get("is_error") and not content:
        yield "an error that says nothing"


def _of_pairs(body: Any) -> Iterator[str]:
    turns = _turns(body)
    used: list[str] = []
    for place, (role, blocks) in enumerate(turns):
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"] if role == "assistant" else []
        following = turns[place + 1][1] if place + 1 < len(turns) else []
        answered: list[str] = []
        for block in following:
            if block["type"] != "tool_result":
                break
            answered.append(block["tool_use_id"])
        if role == "assistant" and sorted(calls) != sorted(answered):
            yield f"`tool_use` ids {calls} need `tool_result` blocks immediately after, found {answered}"
        results = [block["tool_use_id"] for block in following if block["type"] == "tool_result"]
        if role == "assistant" and results != answered:
            yield "`tool_result` blocks must stand at the start"
        used += calls
        yield from (f"tool_use.id {call!r}: String should match pattern" for call in calls if not _ID.fullmatch(call))
        yield from (
            f"tool name {block['name']!r}"
            for block in blocks
            if block["type"] == "tool_use" and not _NAME.fullmatch(block["name"])
        )
    if len(used) != len(set(used)):
        yield "`tool_use` ids must be unique"


def _of_system(body: Any) -> Iterator[str]:
    system = body.get("system", "x")
    for block in _blocks({"content": system}):
        yield from _of_text(block)
        if block["type"] != "text":
            yield f"{block['type']} in system"
    if not system:
        yield "an empty system"


def _of_tools(body: Any) -> Iterator[str]:
    for tool in body.get("tools", []):
        if not _NAME.fullmatch(tool["name"]):
            yield f"tool name {tool['name']!r}"
        if tool["input_schema"].get("type") != "object":
            yield "tools.input_schema.type: Field required"
