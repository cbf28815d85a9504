"""Reads an Atlas message: tool calls, tool results, then words; a task and its answer are a call and its result."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from antiphon.dialects._units import Unit, as_object
from antiphon.messages import Message, OptionCallPayload, Part
from antiphon.messages._trusted import data_part, text_part

__all__ = ["read"]

_ANSWERS = ("response", "result", "error")


def read(unit: Unit) -> None:
    """Say what one Atlas message says."""
    content = unit.text("content")
    metadata = unit.object("metadata")
    kind = metadata.get("type")
    source, target, task = unit.maybe_text("source_agent"), unit.maybe_text("target_agent"), unit.maybe_text("task_id")
    common: dict[str, Any] = {
        "id": unit.own_id("message_id"),
        "created_at": _time(unit),
        "to": (target,) if target else (),
        "metadata": {"atlas": {"type": kind}} if isinstance(kind, str) else {},
    }
    replied = metadata.get("in_reply_to")
    calls, results = unit.objects("tool_calls"), unit.objects("tool_results")
    if kind == "task" and target and not calls and not results:
        _task(unit, task, content, target, {**common, "policy": source or "unknown"})
    elif kind in _ANSWERS and isinstance(replied, str) and not calls and not results and _answers_call(unit, kind, replied):
        _answer(unit, str(kind), replied, content, {**common, "policy": source})
    else:
        fields = {**common, "policy": source or ("user" if kind == "query" else "assistant"), "correlation_id": task}
        _talk(unit, content, calls=calls, results=results, fields=fields, replied=replied)


def _time(unit: Unit) -> datetime | None:
    value = unit.value.get("timestamp")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        unit.fail("expected seconds since 1970", "timestamp")
    try:
        return datetime.fromtimestamp(value, UTC)
    except (OverflowError, ValueError, OSError):
        unit.fail("expected seconds since 1970 that a calendar has", "timestamp")


def _task(unit: Unit, task: str | None, content: str, target: str, fields: dict[str, Any]) -> None:
    invocation = task or fields["id"]
    payload = {"kind": "option_call", "invocation_id": invocation, "option_name": target, "arguments": {"request": content}}
    unit.reading.calls[invocation] = _say(unit, payload, fields, role_hint_for_llm="assistant", to=())


def _answers_call(unit: Unit, kind: str, replied: str) -> bool:
    """Whether this answers a task: one that was given here, or one that was given where we cannot see."""
    return replied in unit.reading.calls or (kind != "response" and replied not in unit.reading.ids)


def _answer(unit: Unit, kind: str, invocation: str, content: str, fields: dict[str, Any]) -> None:
    call = unit.reading.calls.get(invocation)
    option = call.payload.option_name if call is not None and isinstance(call.payload, OptionCallPayload) else None
    name = option or fields["policy"] or "unknown"
    outcome: dict[str, Any] = {"result": content}
    if kind == "error":
        outcome = {"is_error": True, "error_type": "Error", "error_message": content}
    payload = {"kind": "option_result", "invocation_id": invocation, "option_name": name, **outcome}
    _say(unit, payload, fields, role_hint_for_llm="tool", policy=fields["policy"] or name)


def _talk(
    unit: Unit,
    content: str,
    *,
    calls: list[dict[str, Any]],
    results: list[dict[str, Any]],
    fields: dict[str, Any],
    replied: Any,
) -> None:
    if len(calls) + len(results) + bool(content) > 1:
        fields = {**fields, "turn_id": f"{fields['id']}@{unit.position}"}
    for index, call in enumerate(calls):
        _tool_call(unit, index, call, fields)
    echoes = [_tool_result(unit, index, result, fields) for index, result in enumerate(results)]
    parts: list[Part] = [data_part({"result_of": echo}) for echo in echoes if echo is not None]
    if content:
        parts.append(text_part(content))
    if parts or not unit.made:
        hint = "user" if fields["policy"] == "user" else None
        said = {"kind": "parts", "parts": parts}
        unit.say(said, role_hint_for_llm=hint, in_reply_to=_replied_to(unit, replied), **fields)
    task = fields["correlation_id"]
    if task:
        unit.reading.ids.add(task)
        unit.reading.calls[f"said {task}"] = unit.made[0]


def _replied_to(unit: Unit, replied: Any) -> str | None:
    """Return the id of the message that words answer: the one they name, else the last of the task they name."""
    named = unit.object("metadata").get("in_reply_to_message")
    if isinstance(named, str) and named:
        return named
    said = unit.reading.calls.get(f"said {replied}") if isinstance(replied, str) else None
    return None if said is None else said.id


def _tool_call(unit: Unit, index: int, call: dict[str, Any], fields: dict[str, Any]) -> None:
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str):
        unit.fail("expected the tool's name as text", "tool_calls", index, "name")
    if as_object(arguments) is None:
        unit.fail("expected the arguments as an object", "tool_calls", index, "arguments")
    invocation = call.get("id", f"{fields['id']}-call-{index}")
    payload = {"kind": "option_call", "invocation_id": invocation, "option_name": name, "arguments": arguments}
    _say(unit, payload, fields, role_hint_for_llm="assistant", metadata=_as_tool(fields))


def _tool_result(unit: Unit, index: int, result: dict[str, Any], fields: dict[str, Any]) -> str | None:
    """Say a tool's result; of one that was said before, return the invocation."""
    path = ("tool_results", index)
    name, invocation, status = result.get("name", "unknown"), result.get("call_id"), result.get("status", "success")
    if not isinstance(name, str) or not isinstance(invocation, str):
        unit.fail("expected a name and a call_id as text", *path)
    if f"done {invocation}" in unit.reading.ids:
        return invocation
    unit.reading.ids.add(f"done {invocation}")
    outcome: dict[str, Any] = {"result": result.get("result")}
    if status == "error":
        error, kind, retryable = result.get("error"), result.get("error_type"), result.get("retryable")
        outcome = {
            "is_error": True,
            "error_type": kind if isinstance(kind, str) and kind else "Error",
            "error_message": error if isinstance(error, str) else "",
            "retryable": retryable if isinstance(retryable, bool) else None,
            "result": result.get("details"),
        }
    payload = {"kind": "option_result", "invocation_id": invocation, "option_name": name, **outcome}
    _say(unit, payload, fields, role_hint_for_llm="tool", policy=name, metadata=_as_tool(fields))
    return None


def _as_tool(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the notes of a message that stands among the tool calls or results, and not as a task or its answer."""
    return {"atlas": {**fields["metadata"].get("atlas", {}), "tool": True}}


def _say(unit: Unit, payload: Any, fields: dict[str, Any], **other: Any) -> Message:
    return unit.say(payload, **{**fields, **other})
