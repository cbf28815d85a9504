"""Reads a Choir message: a request is a call, a response its result, MESSAGE is talk, the rest is told."""

from __future__ import annotations

from typing import Any

from antiphon.dialects._reading import Unit
from antiphon.messages._trusted import data_part, text_part
from antiphon.protocol import CATALOGUE

__all__ = ["TOLD", "read", "request_type"]

TOLD = frozenset(
    {"ERROR"}
    | {entry.type for entry in CATALOGUE if entry.response_type is None}
    | {entry.response_type for entry in CATALOGUE if entry.response_type is not None}
) - {"MESSAGE"}
"""Types that ask for no answer, where they answer nothing themselves."""

_ROLES = ("user", "assistant", "system", "tool")


def read(unit: Unit) -> None:
    """Say what one Choir message says."""
    kind = unit.text("type")
    data = unit.object("data")
    receiver = unit.maybe_text("receiver")
    unit.id = unit.own_id("id")
    unit.created_at = unit.iso_time("timestamp")
    unit.to = (receiver,) if receiver else ()
    unit.correlation_id = unit.maybe_text("correlation_id")
    if unit.maybe_text("message_id"):
        _response(unit, kind, data)
    elif kind == "MESSAGE" and isinstance(data.get("role"), str) and isinstance(data.get("content"), str):
        _talk(unit, data)
    elif kind in TOLD:
        said = {"kind": "parts", "parts": [data_part({"type": kind, "data": data})]}
        unit.say(said, policy=unit.maybe_text("sender") or "unknown", lane="control")
    else:
        _request(unit, kind, data)


def _talk(unit: Unit, data: dict[str, Any]) -> None:
    role, text = data["role"], data["content"]
    said = {"kind": "parts", "parts": [text_part(text)] if text else []}
    hint = role if role in _ROLES else None
    unit.say(said, policy=unit.maybe_text("sender") or role, role_hint_for_llm=hint)


def _request(unit: Unit, kind: str, data: dict[str, Any]) -> None:
    invocation = unit.own_id("id")
    payload = {"kind": "option_call", "invocation_id": invocation, "option_name": kind, "arguments": data}
    policy = unit.maybe_text("sender") or "unknown"
    unit.reading.calls[invocation] = unit.say(payload, policy=policy, role_hint_for_llm="assistant", lane="control")


def _response(unit: Unit, kind: str, data: dict[str, Any]) -> None:
    invocation = unit.text("message_id")
    option = unit.called(invocation) or request_type(kind)
    outcome = _error(data) if kind == "ERROR" else {"result": data["result"] if list(data) == ["result"] else data}
    payload = {"kind": "option_result", "invocation_id": invocation, "option_name": option, **outcome}
    policy = unit.maybe_text("sender") or option
    unit.say(payload, policy=policy, role_hint_for_llm="tool", lane="control")


def request_type(response_type: str) -> str:
    """Return the request that a type of response is the answer to, as far as the type tells."""
    known = next((entry.type for entry in CATALOGUE if entry.response_type == response_type), None)
    return known or response_type.removesuffix("_RESPONSE") or response_type


def _error(data: dict[str, Any]) -> dict[str, Any]:
    code, text, retryable = data.get("error_code"), data.get("error_message"), data.get("retryable")
    known = {"error_code", "error_message", "retryable"}
    details = {key: value for key, value in data.items() if key not in known}
    return {
        "is_error": True,
        "error_type": code if isinstance(code, str) and code else "ERROR",
        "error_message": text if isinstance(text, str) else "",
        "retryable": retryable if isinstance(retryable, bool) else None,
        "result": details["details"] if list(details) == ["details"] else details or None,
    }
