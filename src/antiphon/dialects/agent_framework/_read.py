"""Reads an agent_framework entry: talk and plans are said, tasks and actions call, observations, errors and finals answer."""

from __future__ import annotations

from typing import Any

from antiphon.dialects._reading import Unit, as_object
from antiphon.messages import Message, Part
from antiphon.messages._trusted import data_part, text_part

__all__ = ["read"]

_SPEAKERS = {
    "user_message": "user",
    "assistant_message": "assistant",
    "synthesis": "manager",
    "strategic_plan": "orchestrator",
    "suggested_plan": "manager",
    "script_plan": "manager",
    "director_context": "orchestrator",
    "injected_context": "manager",
}
"""Who says an entry that does not name anyone."""


def read(unit: Unit) -> None:
    """Say what one entry says."""
    kind = unit.text("type")
    unit.id = unit.own_id("message_id")
    unit.created_at = unit.iso_time("timestamp")
    unit.metadata = {"agent-framework": {"type": kind}}
    match kind:
        case "task" | "delegation":
            _task(unit, kind)
        case "action":
            _action(unit)
        case "observation" | "error" | "final" if (call := _answered(unit, kind)) is not None or unit.maybe_text("call_id"):
            _answer(unit, kind, call)
        case "observation" | "error" | "final":
            _say(unit, unit.maybe_text("agent_key") or "assistant")
        case _ if kind in _SPEAKERS:
            _say(unit, unit.maybe_text("from_manager") or unit.maybe_text("agent_key") or _SPEAKERS[kind])
        case _:
            unit.fail(f"unknown type {kind!r}; expected one of the fourteen", "type")


def _say(unit: Unit, policy: str) -> None:
    if "content" not in unit.value:
        unit.fail("expected content", "content")
    content = unit.value["content"]
    parts: list[Part] = [data_part(content)]
    if isinstance(content, str):
        parts = [text_part(content)] if content else []
    hint = policy if policy in ("user", "assistant") else None
    unit.say({"kind": "parts", "parts": parts}, policy=policy, role_hint_for_llm=hint)


def _call(unit: Unit, key: str, option: str, arguments: dict[str, Any], policy: str) -> None:
    """Say a call, and remember it under the key by which its answer will find it."""
    invocation = unit.maybe_text("call_id") or f"{unit.id}-call"
    payload = {"kind": "option_call", "invocation_id": invocation, "option_name": option, "arguments": arguments}
    made = unit.say(payload, policy=policy, role_hint_for_llm="assistant")
    unit.reading.calls[invocation] = made
    unit.reading.waiting.setdefault(key, []).append(made)


def _task(unit: Unit, kind: str) -> None:
    worker = unit.text("agent_key" if kind == "task" else "worker")
    request = unit.value.get("content" if kind == "task" else "task")
    caller = unit.maybe_text("from_manager") or (unit.maybe_text("agent_key") if kind == "delegation" else None) or "manager"
    arguments = {"request": request} if isinstance(request, str) else {"task": request}
    _call(unit, f"task {worker}", worker, arguments, caller)


def _action(unit: Unit) -> None:
    worker = unit.maybe_text("agent_key") or "assistant"
    _call(unit, f"action {worker}", unit.text("tool"), unit.object("args"), worker)


def _answered(unit: Unit, kind: str) -> Message | None:
    """Return the call that an entry answers: the one it names, else the oldest that waits for its agent."""
    if named := unit.maybe_text("call_id"):
        return unit.reading.calls.get(named)
    asked = "task" if kind == "final" else "action"
    waiting = unit.reading.waiting.get(f"{asked} {unit.maybe_text('agent_key') or 'assistant'}", [])
    while waiting and id(waiting[0]) in _answered_by_now(unit):
        waiting.pop(0)
    return waiting[0] if waiting else None


def _answered_by_now(unit: Unit) -> set[int]:
    """Return the calls that have an answer, by identity: they leave their queue when it is their turn."""
    found: set[int] = unit.reading.memory.setdefault("answered", set())
    return found


def _answer(unit: Unit, kind: str, call: Message | None) -> None:
    content = unit.value.get("content")
    option = unit.maybe_text("tool") or "unknown"
    invocation = unit.maybe_text("call_id")
    if call is not None and call.payload.kind == "option_call":
        option, invocation = call.payload.option_name, call.payload.invocation_id
        _answered_by_now(unit).add(id(call))
    outcome = _error(content) if kind == "error" else {"result": content}
    payload = {"kind": "option_result", "invocation_id": invocation, "option_name": option, **outcome}
    unit.say(payload, policy=option, role_hint_for_llm="tool")


def _error(content: Any) -> dict[str, Any]:
    given = as_object(content) or {"error_message": content}
    kind, text, retryable = given.get("error_type"), given.get("error_message"), given.get("retryable")
    return {
        "is_error": True,
        "error_type": kind if isinstance(kind, str) and kind else "Error",
        "error_message": text if isinstance(text, str) else "",
        "retryable": retryable if isinstance(retryable, bool) else None,
        "result": given.get("details"),
    }
