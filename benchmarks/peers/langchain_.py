"""langchain-core: its messages, through `messages_to_dict` and `messages_from_dict`, written and read by orjson.

A tool's result is a string there, so neither side of it is parsed or written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    ToolMessage,
    convert_to_openai_messages,
    messages_from_dict,
    messages_to_dict,
)

from benchmarks._messages import Case, Said, as_text, turns
from benchmarks.peers._work import Work

__all__ = ["to_openai", "work"]


def work(case: Case) -> Work:
    plan = [each for group in turns(case.messages) for each in _planned(group)]

    def construct() -> list[BaseMessage]:
        return [make(**fields) for make, fields in plan]

    data = orjson.dumps(messages_to_dict(construct()))
    loaded = messages_from_dict(orjson.loads(data))
    return Work(
        construct,
        lambda: orjson.dumps(messages_to_dict(loaded)),
        lambda: messages_from_dict(orjson.loads(data)),
    )


def to_openai(case: Case) -> Callable[[], object]:
    """Return its conversion to the form of Chat Completions, from its own messages."""
    made = [make(**fields) for group in turns(case.messages) for make, fields in _planned(group)]
    return lambda: convert_to_openai_messages(made)


def _planned(group: list[Said]) -> list[tuple[Any, dict[str, Any]]]:
    first = group[0]
    if first["kind"] == "option_call":
        calls = [_call(said["content"]) for said in group]
        return [(AIMessage, {"content": "", "tool_calls": calls, "id": first["envelope"]["turn_id"]})]
    if first["kind"] == "option_result":
        return [(ToolMessage, _result(said)) for said in group]
    return [(HumanMessage, {"content": _content(first["content"]["parts"]), "id": first["envelope"]["id"]})]


def _call(content: dict[str, Any]) -> dict[str, Any]:
    return {"name": content["option_name"], "args": content["arguments"], "id": content["invocation_id"]}


def _result(said: Said) -> dict[str, Any]:
    content = said["content"]
    return {
        "content": as_text(content["result"]),
        "tool_call_id": content["invocation_id"],
        "name": content["option_name"],
        "id": said["envelope"]["id"],
    }


def _content(parts: list[dict[str, Any]]) -> str | list[Any]:
    if len(parts) == 1:
        return parts[0]["fields"]["text"]
    return [_block(part["fields"]) for part in parts]


def _block(fields: dict[str, Any]) -> dict[str, Any]:
    if "text" in fields:
        return {"type": "text", "text": fields["text"]}
    return {"type": "image", "url": fields["url"], "mime_type": fields["mime"], "id": fields["id"]}
