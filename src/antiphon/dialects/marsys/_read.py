"""Reads a MARSYS message: seven roles, of which three talk, two call and answer, one fails."""

from __future__ import annotations

from typing import Any

from antiphon.dialects._reading import Unit, as_object
from antiphon.dialects.marsys._content import part_of, text_of
from antiphon.messages import RUNTIME_POLICY, Part, TextPart
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
        case "agent_response" if call := _call(unit):
            _answer(unit, call, role)
        case "error" if unit.maybe_text("tool_call_id") or _call(unit) in unit.reading.calls:
            _failure(unit, role)
        case "tool" | "agent_response" | "error":
            _told(unit, role)
        case _:
            unit.fail(f"unknown role {role!r}; expected one of the seven", "role")


def _talk(unit: Unit, role: str) -> None:
    policy = unit.maybe_text("name") or role
    calls = unit.objects("tool_calls")
    parts = _parts(unit)
    if len(calls) + bool(parts) > 1:
        unit.turn_id = _fresh_turn(unit)
    if parts or not calls:
        unit.say({"kind": "parts", "parts": parts}, policy=policy, role_hint_for_llm=role)
    for index, call in enumerate(calls):
        _tool_call(unit, index, call, policy)


def _parts(unit: Unit) -> list[Part]:
    """Return what a content says: its text, or the parts of its list."""
    if isinstance(unit.value.get("content"), list):
        return [part_of(item) for item in unit.objects("content")]
    text = unit.maybe_text("content")
    return [text_part(text)] if text else []


def _words(unit: Unit) -> str:
    """Return the words of a content that must be there."""
    is_list = isinstance(unit.value.get("content"), list)
    return text_of(unit.objects("content")) if is_list else unit.text("content")


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


def _names(unit: Unit) -> list[str]:
    """Return what pairs an agent's call with its answer: the interaction, or else the task, which may have several calls."""
    given = [unit.object("metadata").get(key) for key in ("interaction_id", "task_id")]
    return [each for each in given if isinstance(each, str) and each]


def _call(unit: Unit) -> str | None:
    """Return the invocation that an agent's answer is of."""
    calls, names = unit.reading.calls, _names(unit)
    known = next((calls[name].invocation_id for name in names if name in calls), None)
    return known or next(iter(names), None)


def _agent_call(unit: Unit) -> None:
    caller = unit.object("metadata").get("caller")
    payload: dict[str, Any] = {
        "kind": "option_call",
        "invocation_id": next(iter(_names(unit)), None) or unit.own_id("message_id"),
        "option_name": unit.text("name"),
        "arguments": {"request": _words(unit)},
    }
    if not all(isinstance(part, TextPart) for part in _parts(unit)):
        payload["arguments"]["content"] = unit.value["content"]
    policy = caller if isinstance(caller, str) and caller else "unknown"
    made = unit.say(payload, policy=policy, role_hint_for_llm="assistant", metadata=_as("agent_call"))
    unit.reading.calls[payload["invocation_id"]] = made
    for name in _names(unit):
        unit.reading.calls.setdefault(name, made)


def _answer(unit: Unit, invocation: str, role: str) -> None:
    name = unit.maybe_text("name") or unit.called(invocation) or "unknown"
    payload: dict[str, Any] = {"kind": "option_result", "invocation_id": invocation, "option_name": name}
    parts = _parts(unit)
    if all(isinstance(part, TextPart) for part in parts):
        payload["result"] = None if unit.value.get("content") is None else _words(unit)
    else:
        payload["parts"] = parts
    metadata = _as(role) if role == "agent_response" else {}
    unit.say(payload, policy=name, role_hint_for_llm="tool", metadata=metadata)


def _error_type(unit: Unit) -> str | None:
    kind = unit.object("metadata").get("error_type")
    return kind if isinstance(kind, str) and kind else None


def _failure(unit: Unit, role: str) -> None:
    """Say that a call failed: a tool message with an `error_type` says so, and an error that names its call."""
    invocation = unit.maybe_text("tool_call_id") or str(_call(unit))
    context = unit.object("metadata")
    called, name = unit.called(invocation), unit.maybe_text("name")
    retryable = context.get("retryable")
    payload = {
        "kind": "option_result",
        "invocation_id": invocation,
        "option_name": ((name or called) if role == "tool" else (called or name)) or "unknown",
        "is_error": True,
        "error_type": _error_type(unit) or "Error",
        "error_message": "" if role == "tool" and unit.value.get("content") is None else _words(unit),
        "retryable": retryable if isinstance(retryable, bool) else None,
        "result": context.get("details"),
    }
    metadata = _as(role) if role == "error" else {}
    unit.say(payload, policy=RUNTIME_POLICY, role_hint_for_llm="tool", metadata=metadata)


def _told(unit: Unit, role: str) -> None:
    """Say something that answers no call that could be found."""
    unit.say({"kind": "parts", "parts": _parts(unit)}, policy=unit.maybe_text("name") or role, metadata=_as(role))


def _as(role: str) -> dict[str, dict[str, str]]:
    return {"marsys": {"role": role}}
