"""The limit: loops over antiphon's messages that look at nothing, and write what antiphon writes for this one conversation.

They are given JSON as the messages keep it, text that nobody has parsed, which a caller would not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import orjson

from antiphon import Message
from antiphon.messages._unchecked import json_bytes_of, json_text_of

__all__ = ["LOOPS"]

_STAND_IN = "c2tpcF90aG91Z2h0X3NpZ25hdHVyZV92YWxpZGF0b3I="


def _to_openai(messages: Iterable[Message]) -> Any:
    units: list[Any] = []
    calls: list[Any] | None = None
    for message in messages:
        payload = message.payload
        if payload.kind == "option_result":
            calls = None
            units.append({"role": "tool", "content": json_text_of(payload, "result"), "tool_call_id": payload.invocation_id})
        elif payload.kind == "option_call":
            function = {"name": payload.option_name, "arguments": json_text_of(payload, "arguments")}
            if calls is None:
                calls = []
                units.append({"role": "assistant", "content": None, "tool_calls": calls})
            calls.append({"id": payload.invocation_id, "type": "function", "function": function})
        else:
            calls = None
            units.append({"role": message.role_hint_for_llm, "content": payload.parts[0].text})
    return {"messages": units}


def _to_anthropic(messages: Iterable[Message]) -> Any:
    units: list[Any] = []
    calls: list[Any] | None = None
    results: list[Any] | None = None
    for message in messages:
        payload = message.payload
        if payload.kind == "option_result":
            if results is None:
                calls, results = None, []
                units.append({"role": "user", "content": results})
            content = json_text_of(payload, "result")
            results.append({"type": "tool_result", "tool_use_id": payload.invocation_id, "content": content})
        elif payload.kind == "option_call":
            if calls is None:
                calls, results = [], None
                units.append({"role": "assistant", "content": calls})
            given = orjson.loads(json_bytes_of(payload, "arguments"))
            calls.append({"type": "tool_use", "id": payload.invocation_id, "name": payload.option_name, "input": given})
        else:
            calls = results = None
            units.append({"role": message.role_hint_for_llm, "content": payload.parts[0].text})
    return {"messages": units}


def _to_gemini(messages: Iterable[Message]) -> Any:
    units: list[Any] = []
    calls: list[Any] | None = None
    results: list[Any] | None = None
    for message in messages:
        payload = message.payload
        if payload.kind == "option_result":
            if results is None:
                calls, results = None, []
                units.append({"role": "user", "parts": results})
            response = orjson.loads(json_bytes_of(payload, "result"))
            held = {"name": payload.option_name, "response": response, "id": payload.invocation_id}
            results.append({"functionResponse": held})
        elif payload.kind == "option_call":
            given = orjson.loads(json_bytes_of(payload, "arguments"))
            call: Any = {"functionCall": {"name": payload.option_name, "args": given, "id": payload.invocation_id}}
            if calls is None:
                calls, results = [], None
                units.append({"role": "model", "parts": calls})
                call["thoughtSignature"] = _STAND_IN
            calls.append(call)
        else:
            calls = results = None
            units.append({"role": message.role_hint_for_llm, "parts": [{"text": payload.parts[0].text}]})
    return {"contents": units}


LOOPS: dict[str, Callable[[Iterable[Message]], Any]] = {
    "openai-chat": _to_openai,
    "anthropic-messages": _to_anthropic,
    "gemini": _to_gemini,
}
"""A loop per format, in the words of `encode`."""
