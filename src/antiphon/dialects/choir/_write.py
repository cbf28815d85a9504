"""Writes Choir messages, one for each message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.dialects._content import lose_option, lose_shown, said_as_text, time_text
from antiphon.dialects._reading import as_object
from antiphon.dialects._unit_dialect import Writing
from antiphon.dialects.choir._read import request_type
from antiphon.messages import DataPart, JsonObject, Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.protocol import response_type_of

__all__ = ["together", "write"]

_SAYS = frozenset({"time", "to", "correlation_id"})
_SAYS_CONTROL = _SAYS | {"lane"}
_REASON = "a Choir message has no place for it"


def together(group: Sequence[Message], message: Message) -> bool:
    """Each message is one of its own."""
    return False


def write(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
    """Write one Choir message."""
    message, payload = group[0], group[0].payload
    says = _SAYS_CONTROL
    if payload.kind == "option_call":
        unit = _request(message, payload, writing)
    elif payload.kind == "option_result":
        unit = _response(message, payload, writing)
    elif (told := _told(message)) is not None:
        unit = {"id": message.id, **told}
    else:
        unit = _talk(message, writing)
        says = _SAYS
    _add_envelope(unit, message, writing)
    if writing.counts:
        writing.lose_unsaid(group, says=says, reason=_REASON)
    return unit


def _add_envelope(unit: dict[str, Any], message: Message, writing: Writing) -> None:
    """Add who says it, to whom, when and in which exchange."""
    unit["sender"] = message.policy
    if message.to:
        unit["receiver"] = message.to[0]
    if len(message.to) > 1:
        writing.lose(message, "to", "a Choir message has one receiver")
    if message.created_at is not None:
        unit["timestamp"] = time_text(message.created_at).replace("+00:00", "Z")
    if message.correlation_id is not None:
        unit["correlation_id"] = message.correlation_id


def _told(message: Message) -> dict[str, Any] | None:
    """Return the type and data of what is only told, if this is it."""
    if message.lane != "control":
        return None
    match message.parts:
        case (DataPart(data=JsonObject() as told),) if set(told) == {"type", "data"}:
            return thaw(told) if isinstance(told["type"], str) and isinstance(told["data"], JsonObject) else None
        case _:
            return None


def _talk(message: Message, writing: Writing) -> dict[str, Any]:
    role = message.role_hint_for_llm or ("user" if message.policy == "user" else "assistant")
    return {"id": message.id, "type": "MESSAGE", "data": {"role": role, "content": said_as_text(message, writing, "Choir")}}


def _request(message: Message, call: OptionCallPayload, writing: Writing) -> dict[str, Any]:
    if call.arguments_text is not None and not call.arguments:
        writing.lose(message, "arguments", "the data of a Choir message are an object")
    if message.lane == "talk":
        writing.lose(message, "lane", "a Choir request is control")
    return {"id": call.invocation_id, "type": call.option_name, "data": writing.json(call, "arguments")}


def _response(message: Message, outcome: OptionResultPayload, writing: Writing) -> dict[str, Any]:
    if writing.counts:
        _lose_of_response(message, outcome, writing)
    data = _error(outcome, writing) if outcome.is_error else _data(writing.json(outcome, "result"))
    kind = "ERROR" if outcome.is_error else response_type_of(outcome.option_name)
    return {"id": message.id, "type": kind, "data": data, "message_id": outcome.invocation_id}


def _lose_of_response(message: Message, outcome: OptionResultPayload, writing: Writing) -> None:
    lose_shown(message, outcome, writing, "Choir")
    lose_option(message, outcome, writing, "Choir")
    if message.lane == "talk":
        writing.lose(message, "lane", "a Choir response is control")
    kind = "ERROR" if outcome.is_error else response_type_of(outcome.option_name)
    if writing.call_of(message) is None and request_type(kind) != outcome.option_name:
        writing.lose(message, "option", "a Choir response names its request only by id")


def _data(result: Any) -> dict[str, Any]:
    """Return a result as the data of a response: an object as it is, anything else as its only key."""
    plain = as_object(result)
    return {"result": result} if plain is None or list(plain) == ["result"] else plain


def _error(outcome: OptionResultPayload, writing: Writing) -> dict[str, Any]:
    details = writing.json(outcome, "result")
    plain = as_object(details) or {}
    known = {"error_message", "error_code", "retryable"}
    data = {"error_message": outcome.error_message, "error_code": outcome.error_type, "retryable": outcome.retryable}
    if not plain or known & plain.keys() or list(plain) == ["details"]:
        plain = {} if details is None else {"details": details}
    return {**plain, **{key: value for key, value in data.items() if value is not None}}
