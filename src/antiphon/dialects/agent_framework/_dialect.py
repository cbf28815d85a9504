"""Reads and writes agent_framework entries.

Messages and plans are talk. Tasks and actions are calls; observations, errors and finals are their results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.dialects._content import message_text, time_text
from antiphon.dialects._meaning import PARTS
from antiphon.dialects._purpose import ERROR, FAILURE, TOOL, call_purpose, failed, is_task, note, purpose_of, with_purpose
from antiphon.dialects._reading import (
    CallFields,
    OutcomeFields,
    ResultFields,
    Unit,
    as_object,
    is_one_of,
    notes_of,
    sample_units,
    text_at,
)
from antiphon.dialects._unit_dialect import UnitDialect, Writing
from antiphon.dialects.agent_framework.constants import ALL_TYPES
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, Part, thaw
from antiphon.messages._unchecked import data_part, text_part

# ---------------------------------------------------------------- reading

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
"""The author of an entry that names none."""
_PURPOSES = {
    "error": ERROR,
    "synthesis": "synthesis",
    "strategic_plan": "plan",
    "suggested_plan": "suggested_plan",
    "script_plan": "script_plan",
    "director_context": "context",
    "injected_context": "injected_context",
}
"""What an entry is for that is neither ordinary talk nor a call or its answer, by its type."""
_TYPES = {purpose: kind for kind, purpose in _PURPOSES.items()}
_OF_ERRORS = ("tool", *FAILURE)
"""Keys of the content of an error, besides its message."""


def read(unit: Unit) -> None:
    kind = unit.text("type")
    unit.id = unit.own_id("message_id")
    unit.created_at = unit.iso_time("timestamp")
    unit.metadata = {"agent-framework": {"type": kind}}
    note(unit, _metadata(unit), purpose=_PURPOSES.get(kind))
    match kind:
        case "task" | "delegation":
            _task(unit, kind)
        case "action":
            worker = unit.maybe_text("agent_key") or "assistant"
            _read_call(unit, f"action {worker}", unit.text("tool"), unit.object("args"), policy=worker, kind="action")
        case "observation" | "error" | "final" if (call := _answered(unit, kind)) is not None or unit.maybe_text("call_id"):
            _read_answer(unit, kind, call)
        case "error":
            _tell_error(unit)
        case "observation" | "final":
            unit.metadata = {"agent-framework": {"type": kind, "orphan": kind}}
            _say(unit, unit.maybe_text("agent_key") or "assistant")
        case _ if kind in _SPEAKERS:
            _say(unit, unit.maybe_text("from_manager") or unit.maybe_text("agent_key") or _SPEAKERS[kind])
        case _:
            unit.fail(f"unknown type {kind!r}; expected one of the fourteen", "type")


def _metadata(unit: Unit) -> dict[str, Any]:
    """Return the user's own metadata, and the fields of an entry that are like it."""
    like = {"phase_id": unit.value.get("phase_id"), "is_global": unit.value.get("is_global")}
    extra = {key: value for key, value in like.items() if value is not None and value is not True}
    return {**(as_object(unit.value.get("metadata")) or {}), **extra}


def _tell_error(unit: Unit) -> None:
    """Make a message from an error that answers no action: its text, and the rest as metadata."""
    content, policy = as_object(unit.value.get("content")), unit.maybe_text("agent_key") or "assistant"
    if content is None or not isinstance(text := content.get("error_message"), str):
        _say(unit, policy)
        return
    rest = {key: value for key, value in content.items() if key != "error_message"}
    kind = unit.value.get("error_type")
    note(unit, {**({} if kind is None else {"error_type": kind}), **rest, **_metadata(unit)}, purpose=ERROR)
    unit.say({"kind": "parts", "parts": [text_part(text)] if text else []}, policy=policy)


def _say(unit: Unit, policy: str) -> None:
    if "content" not in unit.value:
        unit.fail("expected content", "content")
    content = unit.value["content"]
    parts: list[Part] = [data_part(content)]
    if isinstance(content, str):
        parts = [text_part(content)] if content else []
    kind = unit.text("type")
    speaker = kind.removesuffix("_message") if kind in ("user_message", "assistant_message") else policy
    hint = speaker if speaker in ("user", "assistant") else None
    unit.say({"kind": "parts", "parts": parts}, policy=policy, role_hint_for_llm=hint)


def _read_call(unit: Unit, key: str, option: str, arguments: dict[str, Any], *, policy: str, kind: str) -> None:
    """Make a call message, and store it under the key that its answer will have."""
    invocation = unit.maybe_text("call_id") or f"{unit.id}-call"
    payload: CallFields = {"kind": "option_call", "invocation_id": invocation, "option_name": option, "arguments": arguments}
    purpose = "delegation" if kind == "delegation" else call_purpose(payload, is_task=kind == "task")
    note(unit, _metadata(unit), purpose=purpose)
    message = unit.say(payload, policy=policy, role_hint_for_llm="assistant")
    unit.reading.calls[invocation] = message
    unit.reading.waiting.setdefault(key, []).append(message)


def _task(unit: Unit, kind: str) -> None:
    worker = unit.text("agent_key" if kind == "task" else "worker")
    request = unit.value.get("content" if kind == "task" else "task")
    caller = unit.maybe_text("from_manager") or (unit.maybe_text("agent_key") if kind == "delegation" else None) or "manager"
    arguments = {"request": request} if isinstance(request, str) else {"task": request}
    _read_call(unit, f"task {worker}", worker, arguments, policy=caller, kind=kind)


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
    answered: set[int] = unit.reading.memory.setdefault("answered", set())
    return answered


def _read_answer(unit: Unit, kind: str, call: Message | None) -> None:
    content = unit.value.get("content")
    option = unit.maybe_text("tool") or "unknown"
    invocation = unit.maybe_text("call_id")
    if call is not None and call.payload.kind == "option_call":
        option, invocation = call.payload.option_name, call.payload.invocation_id
        _answered_by_now(unit).add(id(call))
    note(unit, _metadata(unit))
    if call is None and kind == "final":  # the end of a task that is not there: nothing else shows that it was one
        unit.metadata = {"agent-framework": {"type": kind, "orphan": kind}}
    outcome: OutcomeFields = _read_error(content) if kind == "error" else {"result": content}
    payload: ResultFields = {"kind": "option_result", "invocation_id": invocation, "option_name": option, **outcome}
    unit.say(payload, policy=option, role_hint_for_llm="tool")


def _read_error(content: object) -> OutcomeFields:
    failure = as_object(content) or {"error_message": content}
    text, details = failure.get("error_message"), failure.get("details")
    if details is None and not isinstance(text, str):
        details = text  # a program may describe an error by data
    return failed(failure, text, details)


# ---------------------------------------------------------------- writing


def together(group: Sequence[Message], message: Message) -> bool:
    """Return whether a message belongs to the current unit: never, each message is an entry."""
    return False


def write(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
    message, payload = group[0], group[0].payload
    if payload.kind == "option_call":
        entry = _write_call(message, payload, writing)
    elif payload.kind == "option_result":
        entry = _write_answer(message, payload, writing)
    else:
        entry = _write_talk(message, writing)
    _add_metadata(entry, message)
    entry["message_id"] = message.id
    if message.created_at is not None:
        entry["timestamp"] = time_text(message.created_at)
    return entry


_AT_TOP = ("phase_id", "is_global")


def _add_metadata(entry: dict[str, Any], message: Message) -> None:
    """Add the user's own metadata, some of which are fields of an entry or of an error's content."""
    kind = entry["type"]
    shown = {**_PURPOSES, "delegation": "delegation", "action": TOOL, "task": "task"}.get(kind)
    metadata = with_purpose(message, shown)
    if message.payload.kind == "parts" and kind == "error" and isinstance(entry["content"], str):
        failure = {key: metadata.pop(key) for key in _OF_ERRORS if key in metadata}
        entry["content"] = {"error_message": entry["content"], **failure}
    entry |= {key: metadata.pop(key) for key in _AT_TOP if key in metadata}
    if metadata:
        entry["metadata"] = metadata


def _type_of(message: Message) -> str | None:
    return text_at(notes_of(message, "agent-framework"), "type")


def _write_talk(message: Message, writing: Writing) -> dict[str, object]:
    is_user = "user" in (message.policy, message.role_hint_for_llm)
    usual = _TYPES.get(purpose_of(message) or "") or ("user_message" if is_user else "assistant_message")
    kind = _type_of(message) or usual
    entry: dict[str, object] = {"type": kind, "content": _content(message, writing)}
    if kind == "synthesis":
        entry["from_manager"] = message.policy
    elif f"{message.policy}_message" != kind:
        entry["agent_key"] = message.policy
    return entry


def _content(message: Message, writing: Writing) -> Any:
    """Return the content: a single data part as data, anything else as text."""
    parts = message.parts
    if len(parts) == 1 and parts[0].kind == "data" and not isinstance(parts[0].data, str):
        return writing.json(parts[0], "data")
    return message_text(message)


def _is_task(message: Message) -> bool:
    kind, payload = _type_of(message), message.payload
    if kind:
        return kind in ("task", "delegation")
    if payload.kind != "option_call" or payload.arguments_text is not None or not is_task(message):
        return False
    return list(payload.arguments) in (["request"], ["task"])  # a task can say one argument


def _write_call(message: Message, call: OptionCallPayload, writing: Writing) -> dict[str, object]:
    if _is_task(message):
        request = call.arguments.get("request", call.arguments.get("task"))
        entry = {"type": "task", "content": thaw(request), "agent_key": call.option_name}
        if "delegation" in (_type_of(message), purpose_of(message)):
            entry = {"type": "delegation", "task": thaw(request), "worker": call.option_name}
        return {**entry, "from_manager": message.policy, "call_id": call.invocation_id}
    return {
        "type": "action",
        "tool": call.option_name,
        "args": writing.json(call, "arguments"),
        "agent_key": message.policy,
        "call_id": call.invocation_id,
    }


def _write_answer(message: Message, outcome: OptionResultPayload, writing: Writing) -> dict[str, object]:
    call = writing.call_of(message)
    task = call is not None and _is_task(call)
    entry: dict[str, object] = {
        "type": "error" if outcome.is_error else "final" if task else "observation",
        "agent_key": outcome.option_name if call is None or task else call.policy,
        "content": _write_error(outcome, writing) if outcome.is_error else writing.json(outcome, "result"),
        "call_id": outcome.invocation_id,
    }
    if call is None:
        entry["tool"] = outcome.option_name
    return entry


def _write_error(outcome: OptionResultPayload, writing: Writing) -> dict[str, object]:
    content = {
        "error_message": outcome.error_message,
        "error_type": outcome.error_type,
        "tool": outcome.option_name,
        "retryable": outcome.retryable,
        "details": writing.json(outcome, "result"),
    }
    return {key: value for key, value in content.items() if value is not None}


# ---------------------------------------------------------------- the dialect


def recognise(data: object) -> str | None:
    units = sample_units(data)
    has_types = bool(units) and all(is_one_of(unit.get("type"), ALL_TYPES) for unit in units)
    return "types of agent_framework" if has_types else None


DIALECT = UnitDialect(
    name="agent-framework",
    summary="agent_framework history entries",
    read=read,
    together=together,
    write=write,
    recognise=recognise,
    otherwise="an agent_framework entry has no place for it",
    reasons={
        **dict.fromkeys(PARTS, "an entry says text or one piece of data, and an observation shows nothing besides"),
        "text": "data parts are written as JSON text",
        "speaker": "the sender of an observation is the tool",
        "arguments": "the args of an action are an object",
        "option": "an observation names the tool that was called",
        "metadata": "some keys are fields of an entry",
    },
    wire=frozenset(
        {
            *("type", "content", "tool", "args", "call_id", "message_id", "timestamp", "from_manager", "worker", "task"),
            *("error_message", "error_type", "retryable", "details", "is_global"),
        }
    ),
)
