"""Reads and writes Atlas messages.

Tool calls, tool results and text of one utterance are one message, in this order. A task is a message, and so is its answer: a
call and its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

from antiphon.dialects._content import has_words, message_text, result_text
from antiphon.dialects._meaning import PARTS
from antiphon.dialects._purpose import (
    FAILURE,
    PURPOSES,
    TOOL,
    call_purpose,
    failed,
    is_task,
    note,
    purpose_of,
    purpose_to_write,
    request_of,
    shared_notes,
    with_purpose,
)
from antiphon.dialects._reading import (
    CallFields,
    OutcomeFields,
    ResultFields,
    Unit,
    as_object,
    notes_of,
    sample_units,
    text_at,
)
from antiphon.dialects._unit_dialect import UnitDialect, Writing
from antiphon.messages import (
    JsonObject,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
)
from antiphon.messages._unchecked import data_part, text_part

# ---------------------------------------------------------------- reading

_ANSWERS = ("response", "result", "error")


def read(unit: Unit) -> None:
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
        _read_task(unit, task or unit.id, content, source, target)
    elif kind in _ANSWERS and isinstance(replied, str) and not calls and not results and _answers_call(unit, kind, replied):
        _read_answer(unit, str(kind), replied, content, source)
    else:
        unit.correlation_id = task
        _read_talk(unit, source or ("user" if kind == "query" else "assistant"), content, calls, results)
    _messages(unit).update(message.id for message in unit.messages)


def _messages(unit: Unit) -> set[str]:
    """Return the ids of the messages before a unit."""
    ids: set[str] = unit.reading.memory.setdefault("messages", set())
    return ids


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


def _read_task(unit: Unit, invocation: str, content: str, source: str | None, target: str) -> None:
    payload: CallFields = {
        "kind": "option_call",
        "invocation_id": invocation,
        "option_name": target,
        "arguments": {"request": content},
    }
    note(unit, unit.value.get("metadata"), "type")
    message = unit.say(payload, policy=source or "unknown", role_hint_for_llm="assistant", to=())
    unit.reading.calls[invocation] = message


def _answers_call(unit: Unit, kind: str, replied: str) -> bool:
    """Whether this answers a task: one in this conversation, or one outside of it."""
    return replied in unit.reading.calls or (kind != "response" and replied not in unit.reading.ids)


def _read_answer(unit: Unit, kind: str, invocation: str, content: str, source: str | None) -> None:
    name = unit.called(invocation) or source or "unknown"
    payload: ResultFields = {"kind": "option_result", "invocation_id": invocation, "option_name": name}
    if kind == "error":
        metadata = unit.object("metadata")
        payload |= cast("ResultFields", failed(metadata, content, metadata.get("details")))
    else:
        payload["result"] = content
    note(unit, unit.value.get("metadata"), "type", "in_reply_to", "in_reply_to_message", *(FAILURE if kind == "error" else ()))
    unit.say(payload, policy=source or name, role_hint_for_llm="tool")


def _read_talk(
    unit: Unit, policy: str, content: str, calls: list[dict[str, object]], results: list[dict[str, object]]
) -> None:
    if len(calls) + len(results) + bool(content) > 1:
        unit.turn_id = f"{unit.id}@{unit.position}"
    asked = _replied_to(unit)
    first = "option_call" if calls else "option_result" if results else "parts"
    kind = unit.object("metadata").get("type")
    is_user = policy == "user" or kind == "query"
    is_usual = kind == _usual_type(first, is_user=is_user)
    links = ("in_reply_to", "in_reply_to_message") if asked is not None and asked in _messages(unit) else ()
    is_purpose = isinstance(kind, str) and kind in PURPOSES
    read = ("type", *links) if is_usual or is_purpose else links
    note(unit, unit.value.get("metadata"), *read, purpose=str(kind) if is_purpose else None)
    arguments = as_object(calls[0].get("arguments", {})) if calls else None
    if arguments is not None and not unit.shared:
        unit.shared = shared_notes(call_purpose({"arguments": arguments}, is_task=False), {})
    parts = _tool_use(unit, policy, calls, results) if calls or results else []
    if content:
        parts.append(text_part(content))
    if parts or not unit.messages:
        hint = "user" if is_user else None
        unit.say({"kind": "parts", "parts": parts}, policy=policy, role_hint_for_llm=hint, in_reply_to=asked)
    if task := unit.correlation_id:
        unit.reading.ids.add(task)
        unit.reading.calls[f"said {task}"] = unit.messages[0]


def _replied_to(unit: Unit) -> str | None:
    """Return the id of the message that a text answers: the one that it names, else the last one of the task that it names."""
    metadata = unit.object("metadata")
    named, replied = metadata.get("in_reply_to_message"), metadata.get("in_reply_to")
    if isinstance(named, str) and named:
        return named
    message = unit.reading.calls.get(f"said {replied}") if isinstance(replied, str) else None
    return None if message is None else message.id


def _tool_use(unit: Unit, policy: str, calls: list[dict[str, Any]], results: list[dict[str, Any]]) -> list[Part]:
    """Make messages of tool calls and results, marked as such: they are not tasks and answers. Return repeated ones."""
    noted = {"atlas": {**unit.metadata.get("atlas", {}), "tool": True}}
    for index, call in enumerate(calls):
        _read_tool_call(unit, index, call, policy, noted)
    echoes = [_read_tool_result(unit, index, result, noted) for index, result in enumerate(results)]
    return [data_part({"result_of": echo}) for echo in echoes if echo is not None]


def _read_tool_call(unit: Unit, index: int, call: dict[str, Any], policy: str, noted: dict[str, Any]) -> None:
    name, arguments = call.get("name"), call.get("arguments", {})
    if not isinstance(name, str):
        unit.fail("expected the tool's name as text", "tool_calls", index, "name")
    if as_object(arguments) is None:
        unit.fail("expected the arguments as an object", "tool_calls", index, "arguments")
    invocation = call.get("id", f"{unit.id}-call-{index}")
    payload: CallFields = {"kind": "option_call", "invocation_id": invocation, "option_name": name, "arguments": arguments}
    metadata = {**noted, **shared_notes(call_purpose(payload, is_task=False), {})}
    unit.say(payload, policy=policy, role_hint_for_llm="assistant", metadata=metadata)


def _read_tool_result(unit: Unit, index: int, result: dict[str, Any], noted: dict[str, Any]) -> str | None:
    """Make the message of a tool's result. If the same result came before, make none and return its invocation."""
    name, invocation, status = result.get("name", "unknown"), result.get("call_id"), result.get("status", "success")
    if not isinstance(name, str) or not isinstance(invocation, str):
        unit.fail("expected a name and a call_id as text", "tool_results", index)
    outcome: OutcomeFields = {"result": result.get("result")}
    if status == "error" or result.get("error") or (status != "success" and result.get("result") is None):
        outcome = _failed_tool(result, status)
    elif status != "success":
        noted = {"atlas": {**noted["atlas"], "outcome": status}}
    payload: ResultFields = {"kind": "option_result", "invocation_id": invocation, "option_name": name, **outcome}
    first = unit.reading.calls.get(f"done {invocation}")
    if first is not None and first.payload == OptionResultPayload.model_validate(payload):
        return invocation
    unit.say(payload, policy=name, role_hint_for_llm="tool", metadata=noted)
    unit.reading.calls.setdefault(f"done {invocation}", unit.messages[-1])
    return None


def _failed_tool(result: dict[str, Any], status: object) -> OutcomeFields:
    """Return the outcome of a tool that failed. Its error may be no text, and its status a word of the program."""
    error = result.get("error")
    if not isinstance(error, str) or not error:
        error, details = "" if status == "error" else str(status), error or None
    else:
        details = None
    values = (result.get("details"), details, result.get("result"))
    return failed(result, error, next((value for value in values if value is not None), None))


# ---------------------------------------------------------------- writing

_LAST_SECOND = 253402300799.99997
"""The float before the year 10000, to which the last microseconds of 9999 would be rounded."""
_ORDER = {"option_call": 0, "option_result": 1, "parts": 2}


def together(group: Sequence[Message], message: Message) -> bool:
    """Return whether a message belongs to the current unit: an utterance has its calls first, then results, then text."""
    first = group[0]
    if first.turn_id is None or first.turn_id != message.turn_id:
        return False
    last, kind = group[-1].payload.kind, message.payload.kind
    return (
        last != "parts"
        and (kind != "parts" or has_words(message))
        and _ORDER[last] <= _ORDER[kind]
        and first.to == message.to
        and first.correlation_id == message.correlation_id
        and not _is_task(first)
        and not _is_task(message)
        # A tool's result has its own author; calls and text have one.
        and ("option_result" in (first.payload.kind, kind) or message.policy == first.policy)
    )


def _speaker(group: Sequence[Message]) -> str:
    """Return the author of the calls and texts of a group; empty if it has only results."""
    return next((message.policy for message in group if message.payload.kind != "option_result"), "")


def _is_task(message: Message) -> bool:
    return request_of(message.payload) is not None and is_task(message) and not notes_of(message, "atlas").get("tool")


def write(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
    first, payload = group[0], group[0].payload
    if payload.kind == "option_call" and _is_task(first):
        unit: dict[str, Any] = {
            "content": request_of(payload),
            "metadata": {"type": "task"},
            "task_id": payload.invocation_id,
            "source_agent": first.policy,
            "target_agent": payload.option_name,
        }
    elif payload.kind == "option_result" and len(group) == 1 and _is_answer(first, writing.call_of(first)):
        unit = _write_answer(first, payload, writing)
    else:
        unit = _write_talk(group, writing)
    _add_metadata(unit, first)
    unit["message_id"] = first.id
    if first.created_at is not None:
        unit["timestamp"] = min(first.created_at.timestamp(), _LAST_SECOND)
    return unit


def _add_metadata(unit: dict[str, Any], first: Message) -> None:
    """Add the user's own metadata; links to other messages win, and so does a purpose."""
    metadata: dict[str, Any] = unit["metadata"]
    users = with_purpose(first, metadata["type"])
    if purpose_of(first) == TOOL and notes_of(first, "atlas").get("tool"):
        users.pop("purpose", None)
    if first.payload.kind != "parts" or metadata["type"] != purpose_to_write(first):
        metadata["type"] = users.get("type", metadata["type"])
    unit["metadata"] = {**users, **metadata}


def _is_answer(message: Message, call: Message | None) -> bool:
    if notes_of(message, "atlas").get("tool"):
        return False
    return _is_task(call) if call is not None else notes_of(message, "atlas").get("type") in _ANSWERS


def _add_receiver(unit: dict[str, Any], message: Message) -> None:
    if message.to:
        unit["target_agent"] = message.to[0]


def _write_failure(outcome: OptionResultPayload, writing: Writing) -> dict[str, object]:
    """Return the keys of a failure besides its message; none for a success."""
    if not outcome.is_error:
        return {}
    keys = {"error_type": outcome.error_type, "retryable": outcome.retryable, "details": writing.json(outcome, "result")}
    return {key: value for key, value in keys.items() if value is not None and (key, value) != ("error_type", "Error")}


def _write_answer(message: Message, outcome: OptionResultPayload, writing: Writing) -> dict[str, Any]:
    content = outcome.error_message if outcome.is_error else result_text(outcome)
    kind = "error" if outcome.is_error else text_at(notes_of(message, "atlas"), "type") or "result"
    unit: dict[str, Any] = {
        "content": content or "",
        "metadata": {"type": kind, "in_reply_to": outcome.invocation_id, **_write_failure(outcome, writing)},
        "task_id": outcome.invocation_id,
        "source_agent": message.policy,
    }
    _add_receiver(unit, message)
    return unit


def _write_talk(group: Sequence[Message], writing: Writing) -> dict[str, object]:
    first, content = group[0], ""
    calls: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for message in group:
        payload = message.payload
        if payload.kind == "option_call":
            calls.append(_write_tool_call(payload, writing))
        elif payload.kind == "option_result":
            results.append(_write_tool_result(message, payload, writing))
        else:
            echoes = [invocation for part in payload.parts if (invocation := _echo(part)) is not None]
            rest = PartsPayload(parts=tuple(part for part in payload.parts if _echo(part) is None)) if echoes else payload
            content = message_text(message.model_copy(update={"payload": rest}) if echoes else message)
            results += [_echoed(invocation, writing) for invocation in echoes]
    unit: dict[str, object] = {"content": content}
    if speaker := _speaker(group):
        unit["source_agent"] = speaker
    unit["metadata"] = _metadata(group, writing)
    _add_receiver(unit, first)
    if first.correlation_id:
        unit["task_id"] = first.correlation_id
    if calls:
        unit["tool_calls"] = calls
    if results:
        unit["tool_results"] = results
    return unit


def _metadata(group: Sequence[Message], writing: Writing) -> dict[str, object]:
    """Return the metadata of a unit: its type, and the message that it answers."""
    first = group[0]
    usual = _usual_type(first.payload.kind, is_user="user" in (first.policy, first.role_hint_for_llm))
    purpose = purpose_to_write(first) if first.payload.kind == "parts" else None
    metadata: dict[str, object] = {"type": purpose or usual}
    last = group[-1]  # only a text refers to a message, and only to one with which a unit begins
    origin = last.in_reply_to if last.payload.kind == "parts" else None
    if origin in writing.heads and (asked := writing.conversation.get(str(origin))) is not None:
        metadata["in_reply_to_message"] = asked.id
        if asked.correlation_id:
            metadata["in_reply_to"] = asked.correlation_id
    return metadata


def _echo(part: Part) -> str | None:
    """Return the invocation, if a part repeats its result."""
    if part.kind != "data" or not isinstance(part.data, JsonObject) or list(part.data) != ["result_of"]:
        return None
    invocation = part.data["result_of"]
    return invocation if isinstance(invocation, str) else None


def _echoed(invocation: str, writing: Writing) -> dict[str, object]:
    result = writing.conversation.result(invocation)
    if result is None or not isinstance(result.payload, OptionResultPayload):
        return {"name": "unknown", "call_id": invocation, "result": None, "status": "success"}
    return _write_tool_result(result, result.payload, Writing(writing.conversation))


def _usual_type(first: str, *, is_user: bool) -> str:
    """Return the type of an utterance by the kind of its first message: calls come before results, and both before text."""
    if first != "parts":
        return "tool_request" if first == "option_call" else "tool_response"
    return "query" if is_user else "response"


def _write_tool_call(call: OptionCallPayload, writing: Writing) -> dict[str, object]:
    return {"id": call.invocation_id, "name": call.option_name, "arguments": writing.json(call, "arguments")}


def _write_tool_result(message: Message, outcome: OptionResultPayload, writing: Writing) -> dict[str, object]:
    result, status = writing.json(outcome, "result"), notes_of(message, "atlas").get("outcome", "success")
    unit = {"name": outcome.option_name, "call_id": outcome.invocation_id, "result": result, "status": status}
    if not outcome.is_error:
        return unit
    failure = {"result": None, "status": "error", "error": outcome.error_message}
    return {**unit, **failure, **_write_failure(outcome, writing)}


# ---------------------------------------------------------------- the dialect

_OWN = frozenset({"task_id", "tool_results", "source_agent", "target_agent"})


def recognise(data: object) -> str | None:
    units = sample_units(data)
    if not units or not all("content" in unit and _OWN & unit.keys() and "role" not in unit for unit in units):
        return None
    return "content with a task_id, agents or tool_results"


DIALECT = UnitDialect(
    name="atlas",
    summary="Atlas structured messages",
    read=read,
    together=together,
    write=write,
    recognise=recognise,
    otherwise="an Atlas message has no place for it",
    reasons={
        **dict.fromkeys(PARTS, "Atlas says plain text, and a result shows nothing besides"),
        "text": "data parts are written as JSON text",
        "time": "a message has one time; far from 1970, seconds as a float are not exact",
        "to": "a message has one receiver, and a task goes to the agent that it calls",
        "correlation_id": "a task and its answer share the task_id",
        "speaker": "the sender of a tool result is the tool",
        "arguments": "the arguments of a tool call are an object",
        "result": "the answer to a task is a text",
        "metadata": "calls and results of one message share its metadata, and its own keys are those of the format",
    },
    wire=frozenset(
        {
            *("content", "metadata", "type", "task_id", "message_id", "timestamp", "source_agent", "target_agent"),
            *("tool_calls", "tool_results", "id", "name", "arguments", "call_id", "status", "result", "error"),
            *("error_type", "retryable", "details", "in_reply_to", "in_reply_to_message", "tool"),
        }
    ),
)
