"""Reads a MARSYS message: seven roles, of which three talk, two call and answer, one fails."""

from __future__ import annotations

from typing import Any

from antiphon.dialects._units import Unit, as_object
from antiphon.messages import RUNTIME_POLICY
from antiphon.messages._json import JsonError, parse, write
from antiphon.messages._trusted import text_part

__all__ = ["read"]


def read(unit: Unit) -> None:
    """Say what one MARSYS message says."""
    role = unit.text("role")
    unit.id = unit.own_id("message_id")
    unit.created_at = unit.iso_time("timestamp")
    match role:
        case "system" | "user" | "assistant":
            _talk(unit, role)
        case "tool" if unit.maybe_text("tool_call_id") and _error_type(unit):
            _failure(unit, role)
        case "tool" if invocation := unit.maybe_text("tool_call_id"):
            _answer(unit, invocation, role)
        case "agent_call":
            _agent_call(unit)
        case "agent_response" if task := _task(unit):
            _answer(unit, task, role)
        case "error" if unit.maybe_text("tool_call_id") or _task(unit) in unit.reading.calls:
            _failure(unit, role)
        case "tool" | "agent_response" | "error":
            _told(unit, role)
        case _:
            unit.fail(f"unknown role {role!r}; expected one of the seven", "role")


def _talk(unit: Unit, role: str) -> None:
    policy = unit.maybe_text("name") or role
    calls = unit.objects("tool_calls")
    content = unit.maybe_text("content") or ""
    if len(calls) + bool(content) > 1:
        unit.turn_id = _fresh_turn(unit)
    if content or not calls:
        said = {"kind": "parts", "parts": [text_part(content)] if content else []}
        unit.say(said, policy=policy, role_hint_for_llm=role)
    for index, call in enumerate(calls):
        _tool_call(unit, index, call, policy)


def _fresh_turn(unit: Unit) -> str:
    """Return the unit's id, told apart from that of an earlier unit with the same one."""
    own_id = unit.own_id("message_id")
    turn = own_id if own_id not in unit.reading.ids else f"{own_id}@{unit.position}"
    unit.reading.ids.add(turn)
    return turn


def _tool_call(unit: Unit, index: int, call: dict[str, Any], policy: str) -> None:
    path = ("tool_calls", index)
    function = as_object(call.get("function")) or {}
    name = function.get("name")
    if not isinstance(name, str):
        unit.fail("expected a function with a name", *path, "function")
    invocation = call.get("id", f"{unit.id}-call-{index}")
    arguments, text = _arguments(unit, function.get("arguments", {}), (*path, "function", "arguments"))
    payload = {
        "kind": "option_call",
        "invocation_id": invocation,
        "option_name": name,
        "arguments": arguments,
        "arguments_text": text,
    }
    metadata = _as("assistant") if list(arguments) == ["request"] else {}  # a tool, although it looks like an agent
    made = unit.say(payload, policy=policy, role_hint_for_llm="assistant", metadata=metadata)
    unit.reading.calls[made.invocation_id or ""] = made


def _arguments(unit: Unit, given: Any, path: tuple[str | int, ...]) -> tuple[dict[str, Any], str | None]:
    """Return the arguments, and their text where it is not plainly the JSON of them."""
    if (plain := as_object(given)) is not None:
        return plain, None
    if not isinstance(given, str):
        unit.fail("expected the arguments as JSON text", *path)
    text = given.encode()
    try:
        arguments = as_object(parse(text))
    except JsonError:
        return {}, given
    if arguments is None:
        return {}, given
    return arguments, None if write(arguments) == text else given


def _task(unit: Unit) -> str | None:
    task = unit.object("metadata").get("task_id")
    return task if isinstance(task, str) and task else None


def _agent_call(unit: Unit) -> None:
    caller = unit.object("metadata").get("caller")
    payload: dict[str, Any] = {
        "kind": "option_call",
        "invocation_id": _task(unit) or unit.own_id("message_id"),
        "option_name": unit.text("name"),
        "arguments": {"request": unit.text("content")},
    }
    policy = caller if isinstance(caller, str) and caller else "unknown"
    made = unit.say(payload, policy=policy, role_hint_for_llm="assistant", metadata=_as("agent_call"))
    unit.reading.calls[payload["invocation_id"]] = made


def _answer(unit: Unit, invocation: str, role: str) -> None:
    name = unit.maybe_text("name") or unit.called(invocation) or "unknown"
    result = unit.maybe_text("content")
    payload = {"kind": "option_result", "invocation_id": invocation, "option_name": name, "result": result}
    metadata = _as(role) if role == "agent_response" else {}
    unit.say(payload, policy=name, role_hint_for_llm="tool", metadata=metadata)


def _error_type(unit: Unit) -> str | None:
    kind = unit.object("metadata").get("error_type")
    return kind if isinstance(kind, str) and kind else None


def _failure(unit: Unit, role: str) -> None:
    """Say that a call failed: a tool message with an `error_type` says so, and an error that names its call."""
    invocation = unit.maybe_text("tool_call_id") or str(_task(unit))
    context = unit.object("metadata")
    called, name = unit.called(invocation), unit.maybe_text("name")
    retryable = context.get("retryable")
    payload = {
        "kind": "option_result",
        "invocation_id": invocation,
        "option_name": ((name or called) if role == "tool" else (called or name)) or "unknown",
        "is_error": True,
        "error_type": _error_type(unit) or "Error",
        "error_message": unit.text("content") if role == "error" else unit.maybe_text("content") or "",
        "retryable": retryable if isinstance(retryable, bool) else None,
        "result": context.get("details"),
    }
    metadata = _as(role) if role == "error" else {}
    unit.say(payload, policy=RUNTIME_POLICY, role_hint_for_llm="tool", metadata=metadata)


def _told(unit: Unit, role: str) -> None:
    """Say something that answers no call that could be found."""
    content = unit.maybe_text("content") or ""
    parts = [text_part(content)] if content else []
    unit.say({"kind": "parts", "parts": parts}, policy=unit.maybe_text("name") or role, metadata=_as(role))


def _as(role: str) -> dict[str, dict[str, str]]:
    return {"marsys": {"role": role}}
