"""Writes Atlas messages: calls, results and words of one utterance are one; a task and its answer are one each."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from antiphon.dialects._content import has_words, lose_shown, request_of, result_text, said_as_text
from antiphon.dialects._units import Writing, notes_of
from antiphon.messages import (
    DataPart,
    JsonObject,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
)

__all__ = ["together", "write"]

_SAYS = frozenset({"time", "to", "correlation_id"})
_REASON = "an Atlas message has no place for it"
_ORDER = {"option_call": 0, "option_result": 1, "parts": 2}


def together(group: Sequence[Message], message: Message) -> bool:
    """An utterance is one message, if it has its calls first, then its results, then its words."""
    first, last = group[0], group[-1]
    return (
        first.turn_id is not None
        and first.turn_id == message.turn_id
        and last.kind != "parts"
        and (message.kind != "parts" or has_words(message))
        and _ORDER[last.kind] <= _ORDER[message.kind]
        and first.to == message.to
        and first.correlation_id == message.correlation_id
        and not any(map(_is_task, (first, message)))
        and _speaker([*group, message]) is not None
    )


def _speaker(group: Sequence[Message]) -> str | None:
    """Return the one who says the calls and the words of a group; None if they are several; the tool's words are its own."""
    speakers = {message.policy for message in group if message.kind != "option_result"}
    return None if len(speakers) > 1 else next(iter(speakers), "")


def _is_task(message: Message) -> bool:
    return request_of(message.payload) is not None and not notes_of(message, "atlas").get("tool")


def write(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
    """Write the messages of one unit."""
    first = group[0]
    call = writing.call_of(first) if first.kind == "option_result" else None
    if isinstance(first.payload, OptionCallPayload) and _is_task(first):
        unit = _task(first, first.payload, writing)
    elif isinstance(first.payload, OptionResultPayload) and (_type_of(first) or (call is not None and _is_task(call))):
        unit = _answer(first, first.payload, writing) if len(group) == 1 and _is_answer(first, call) else _talk(group, writing)
    else:
        unit = _talk(group, writing)
    unit["message_id"] = first.id
    if first.created_at is not None:
        unit["timestamp"] = first.created_at.timestamp()
        if datetime.fromtimestamp(unit["timestamp"], UTC) != first.created_at:
            writing.lose(first, "time", "seconds as a float are not exact so far from 1970")
    replying = group[-1] if _asked(group[-1], writing) is not None else None
    writing.lose_unsaid(group, says=_SAYS, reason=_REASON, replying=replying)
    return unit


def _asked(message: Message, writing: Writing) -> Message | None:
    """Return what a message of words answers, if that can be referred to."""
    if message.kind != "parts" or message.in_reply_to not in writing.heads:
        return None
    return writing.conversation.get(message.in_reply_to)


def _type_of(message: Message) -> str | None:
    kind = notes_of(message, "atlas").get("type")
    return kind if isinstance(kind, str) else None


def _is_answer(message: Message, call: Message | None) -> bool:
    if notes_of(message, "atlas").get("tool"):
        return False
    return _is_task(call) if call is not None else _type_of(message) in ("result", "error", "response")


def _envelope(message: Message, writing: Writing) -> dict[str, Any]:
    """Return who says it to whom."""
    if len(message.to) > 1:
        writing.lose(message, "to", "an Atlas message has one receiver")
    return {"target_agent": message.to[0]} if message.to else {}


def _task(message: Message, call: OptionCallPayload, writing: Writing) -> dict[str, Any]:
    if message.to:
        writing.lose(message, "to", "an Atlas task goes to the agent that it calls")
    if message.correlation_id:
        writing.lose(message, "correlation_id", "an Atlas task is known by its task_id")
    return {
        "content": request_of(call),
        "metadata": {"type": "task"},
        "task_id": call.invocation_id,
        "source_agent": message.policy,
        "target_agent": call.option_name,
    }


def _answer(message: Message, outcome: OptionResultPayload, writing: Writing) -> dict[str, Any]:
    if message.correlation_id:
        writing.lose(message, "correlation_id", "an Atlas answer is known by the task it answers")
    content = outcome.error_message if outcome.is_error else result_text(message, outcome, writing, "Atlas")
    if outcome.is_error:
        _lose_error_details(message, outcome, writing)
    kind = "error" if outcome.is_error else _type_of(message) or "result"
    return {
        "content": content or "",
        "metadata": {"type": kind, "in_reply_to": outcome.invocation_id},
        "task_id": outcome.invocation_id,
        "source_agent": message.policy,
        **_envelope(message, writing),
    }


def _lose_error_details(message: Message, outcome: OptionResultPayload, writing: Writing) -> None:
    lose_shown(message, outcome, writing, "Atlas")
    lost = {
        "error": outcome.error_type != "Error",
        "retryable": outcome.retryable is not None,
        "result": outcome.result is not None,
    }
    for what, is_lost in lost.items():
        if is_lost:
            writing.lose(message, what, "an Atlas error is a text")


def _talk(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
    first, last = group[0], group[-1]
    speaker = _speaker(group)
    unit: dict[str, Any] = {"content": said_as_text(_words(last), writing, "Atlas") if last.kind == "parts" else ""}
    if speaker:
        unit["source_agent"] = speaker
    metadata: dict[str, Any] = {"type": _type_of(first) or _usual_type(group)}
    if (asked := _asked(last, writing)) is not None:
        metadata["in_reply_to_message"] = asked.id
        if asked.correlation_id:
            metadata["in_reply_to"] = asked.correlation_id
    unit |= {"metadata": metadata, **_envelope(first, writing)}
    if first.correlation_id:
        unit["task_id"] = first.correlation_id
    calls = [_tool_call(m.payload, m, writing) for m in group if isinstance(m.payload, OptionCallPayload)]
    results = [_tool_result(m.payload, m, writing) for m in group if isinstance(m.payload, OptionResultPayload)]
    results += [_echoed(invocation, writing) for invocation in _echoes(last)]
    return unit | ({"tool_calls": calls} if calls else {}) | ({"tool_results": results} if results else {})


def _echoes(message: Message) -> list[str]:
    """Return the invocations whose results a message says again."""
    found = [_echo(part) for part in message.parts]
    return [invocation for invocation in found if invocation is not None]


def _echo(part: Part) -> str | None:
    """Return the invocation, if a part says its result again."""
    if not isinstance(part, DataPart) or not isinstance(part.data, JsonObject) or list(part.data) != ["result_of"]:
        return None
    invocation = part.data["result_of"]
    return invocation if isinstance(invocation, str) else None


def _words(message: Message) -> Message:
    """Return a message without the results that it only says again."""
    if not _echoes(message):
        return message
    rest = [part for part in message.parts if _echo(part) is None]
    return message.model_copy(update={"payload": PartsPayload(parts=tuple(rest))})


def _echoed(invocation: str, writing: Writing) -> dict[str, Any]:
    result = writing.conversation.result(invocation)
    if result is None or not isinstance(result.payload, OptionResultPayload):
        return {"name": "unknown", "call_id": invocation, "result": None, "status": "success"}
    return _tool_result(result.payload, result, Writing(writing.conversation))


def _usual_type(group: Sequence[Message]) -> str:
    kinds = {message.kind for message in group}
    if "option_call" in kinds:
        return "tool_request"
    if "option_result" in kinds:
        return "tool_response"
    return "query" if "user" in (group[0].policy, group[0].role_hint_for_llm) else "response"


def _tool_call(call: OptionCallPayload, message: Message, writing: Writing) -> dict[str, Any]:
    if call.arguments_text is not None and not call.arguments:
        writing.lose(message, "arguments", "the arguments of an Atlas tool call are an object")
    return {"id": call.invocation_id, "name": call.option_name, "arguments": writing.json(call, "arguments")}


def _tool_result(outcome: OptionResultPayload, message: Message, writing: Writing) -> dict[str, Any]:
    lose_shown(message, outcome, writing, "Atlas")
    if message.policy != outcome.option_name:
        writing.lose(message, "speaker", "an Atlas tool result is said by the tool")
    known = {"name": outcome.option_name, "call_id": outcome.invocation_id}
    if not outcome.is_error:
        return {**known, "result": writing.json(outcome, "result"), "status": "success"}
    extra = {"error_type": outcome.error_type, "retryable": outcome.retryable, "details": writing.json(outcome, "result")}
    told = {key: value for key, value in extra.items() if value is not None and value != "Error"}
    return {**known, "result": None, "status": "error", "error": outcome.error_message, **told}
