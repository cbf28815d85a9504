"""Reads an Atlas message: tool calls, tool results, then words; a task and its answer are a call and its result."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from antiphon.dialects._units import Unit, as_object
from antiphon.messages import OptionResultPayload, Part
from antiphon.messages._trusted import data_part, text_part

__all__ = ["read"]

_ANSWERS = ("response", "result", "error")


def read(unit: Unit) -> None:
    """Say what one Atlas message says."""
    content = unit.text("content")
    metadata = unit.object("metadata")
    kind, replied = metadata.get("type"), metadata.get("in_reply_to")
    source, target, task = unit.maybe_text("source_agent"), unit.maybe_text("target_agent"), unit.maybe_text("task_id")
    unit.id = unit.own_id("message_id")
    unit.created_at = _time(unit)
    unit.to = (target,) if target else ()
    if isinstance(kind, str):
        unit.metadata = {"atlas": {"type": kind}}
    calls, results = unit.objects("tool_calls"), unit.objects("tool_results")
    if kind == "task" and target and not calls and not results:
        _task(unit, task or unit.id, content, source, target)
    elif kind in _ANSWERS and isinstance(replied, str) and not calls and not results and _answers_call(unit, kind, replied):
        _answer(unit, str(kind), replied, content, source)
    else:
        unit.correlation_id = task
        _talk(unit, source or ("user" if kind == "query" else "assistant"), content, calls, results)


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


def _task(unit: Unit, invocation: str, content: str, source: str | None, target: str) -> None:
    payload = {"kind": "option_call", "invocation_id": invocation, "option_name": target, "arguments": {"request": content}}
    made = unit.say(payload, policy=source or "unknown", role_hint_for_llm="assistant", to=())
    unit.reading.calls[invocation] = made


def _answers_call(unit: Unit, kind: str, replied: str) -> bool:
    """Whether this answers a task: one that was given here, or one that was given where we cannot see."""
    return replied in unit.reading.calls or (kind != "response" and replied not in unit.reading.ids)


def _answer(unit: Unit, kind: str, invocation: str, content: str, source: str | None) -> None:
    name = unit.called(invocation) or source or "unknown"
    outcome: dict[str, Any] = {"result": content}
    if kind == "error":
        outcome = {"is_error": True, "error_type": "Error", "error_message": content}
    payload = {"kind": "option_result", "invocation_id": invocation, "option_name": name, **outcome}
    unit.say(payload, policy=source or name, role_hint_for_llm="tool")


def _talk(unit: Unit, policy: str, content: str, calls: list[dict[str, Any]], results: list[dict[str, Any]]) -> None:
    if len(calls) + len(results) + bool(content) > 1:
        unit.turn_id = f"{unit.id}@{unit.position}"
    parts = _tool_use(unit, policy, calls, results) if calls or results else []
    if content:
        parts.append(text_part(content))
    if parts or not unit.made:
        hint = "user" if policy == "user" else None
        unit.say({"kind": "parts", "parts": parts}, policy=policy, role_hint_for_llm=hint, in_reply_to=_replied_to(unit))
    if task := unit.correlation_id:
        unit.reading.ids.add(task)
        unit.reading.calls[f"said {task}"] = unit.made[0]


def _replied_to(unit: Unit) -> str | None:
    """Return the id of the message that words answer: the one they name, else the last of the task they name."""
    metadata = unit.object("metadata")
    named, replied = metadata.get("in_reply_to_message"), metadata.get("in_reply_to")
    if isinstance(named, str) and named:
        return named
    said = unit.reading.calls.get(f"said {replied}") if isinstance(replied, str) else None
    return None if said is None else said.id


def _tool_use(unit: Unit, policy: str, calls: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[Part]:
    """Say tool calls and results, noted as such: they are no tasks and answers. Return those that were said before."""
    noted = {"atlas": {**unit.metadata.get("atlas", {}), "tool": True}}
    for index, call in enumerate(calls):
        _tool_call(unit, index, call, policy, noted)
    echoes = [_tool_result(unit, index, result, noted) for index, result in enumerate(results)]
    return [data_part({"result_of": echo}) for echo in echoes if echo is not None]


def _tool_call(unit: Unit, index: int, call: dict[str, Any], policy: str, noted: dict[str, Any]) -> None:
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str):
        unit.fail("expected the tool's name as text", "tool_calls", index, "name")
    if as_object(arguments) is None:
        unit.fail("expected the arguments as an object", "tool_calls", index, "arguments")
    invocation = call.get("id", f"{unit.id}-call-{index}")
    payload = {"kind": "option_call", "invocation_id": invocation, "option_name": name, "arguments": arguments}
    unit.say(payload, policy=policy, role_hint_for_llm="assistant", metadata=noted)


def _tool_result(unit: Unit, index: int, result: dict[str, Any], noted: dict[str, Any]) -> str | None:
    """Say a tool's result. Return the invocation instead if the same result was said before: another one is not an echo."""
    name, invocation, status = result.get("name", "unknown"), result.get("call_id"), result.get("status", "success")
    if not isinstance(name, str) or not isinstance(invocation, str):
        unit.fail("expected a name and a call_id as text", "tool_results", index)
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
    first = unit.reading.calls.get(f"done {invocation}")
    if first is not None and first.payload == OptionResultPayload.model_validate(payload):
        return invocation
    unit.say(payload, policy=name, role_hint_for_llm="tool", metadata=noted)
    unit.reading.calls.setdefault(f"done {invocation}", unit.made[-1])
    return None
