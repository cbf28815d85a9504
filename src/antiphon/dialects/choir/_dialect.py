"""The Choir dialect: a request is a call, a response its result, MESSAGE is talk, the rest are notices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.dialects._content import message_text, time_text
from antiphon.dialects._meaning import PARTS
from antiphon.dialects._purpose import ERROR, failed, is_error, metadata_of, note, with_purpose
from antiphon.dialects._reading import CallFields, OutcomeFields, PartsFields, ResultFields, Unit, as_object, sample_units
from antiphon.dialects._unit_dialect import UnitDialect, Writing
from antiphon.messages import DataPart, JsonObject, Message, OptionResultPayload, thaw
from antiphon.messages._unchecked import data_part, text_part
from antiphon.protocol._catalogue import CATALOGUE
from antiphon.protocol._messages import response_type_of

# ---------------------------------------------------------------- reading

NOTICES = frozenset(
    {"ERROR"}
    | {entry.type for entry in CATALOGUE if entry.response_type is None}
    | {entry.response_type for entry in CATALOGUE if entry.response_type is not None}
) - {"MESSAGE"}
"""Types that expect no answer, unless they answer a message themselves."""

_ROLES = ("user", "assistant", "system", "tool")


def read(unit: Unit) -> None:
    kind = unit.text("type")
    data = unit.object("data")
    receiver = unit.maybe_text("receiver")
    unit.id = unit.own_id("id")
    unit.created_at = unit.iso_time("timestamp")
    unit.to = (receiver,) if receiver else ()
    unit.correlation_id = unit.maybe_text("correlation_id")
    note(unit, unit.value.get("metadata"))
    if unit.maybe_text("message_id"):
        _read_response(unit, kind, data)
    elif kind == "MESSAGE" and isinstance(data.get("role"), str) and isinstance(data.get("content"), str):
        _read_talk(unit, data)
    elif kind == "ERROR" and isinstance(data.get("error_message"), str):
        _tell_error(unit, data)
    elif kind in NOTICES:
        notice: PartsFields = {"kind": "parts", "parts": [data_part({"type": kind, "data": data})]}
        unit.say(notice, policy=unit.maybe_text("sender") or "unknown", lane="control")
    else:
        payload: CallFields = {"kind": "option_call", "invocation_id": unit.id, "option_name": kind, "arguments": data}
        policy = unit.maybe_text("sender") or "unknown"
        unit.reading.calls[unit.id] = unit.say(payload, policy=policy, role_hint_for_llm="assistant", lane="control")


def _tell_error(unit: Unit, data: dict[str, Any]) -> None:
    """Make a message from an error that answers no request: its text, and the rest as metadata."""
    code = {"error_type": data["error_code"]} if "error_code" in data else {}
    rest = {key: value for key, value in data.items() if key not in ("error_message", "error_code")}
    note(unit, {**(as_object(unit.value.get("metadata")) or {}), **code, **rest}, purpose=ERROR)
    text = data["error_message"]
    payload: PartsFields = {"kind": "parts", "parts": [text_part(text)] if text else []}
    unit.say(payload, policy=unit.maybe_text("sender") or "unknown", lane="control")


def _read_talk(unit: Unit, data: dict[str, Any]) -> None:
    role, text = data["role"], data["content"]
    rest = {key: value for key, value in data.items() if key not in ("role", "content")}
    note(unit, {**rest, **(as_object(unit.value.get("metadata")) or {})})
    payload: PartsFields = {"kind": "parts", "parts": [text_part(text)] if text else []}
    hint = role if role in _ROLES else None
    unit.say(payload, policy=unit.maybe_text("sender") or role, role_hint_for_llm=hint)


def _read_response(unit: Unit, kind: str, data: dict[str, object]) -> None:
    invocation = unit.text("message_id")
    option = unit.called(invocation) or request_type(kind)
    outcome: OutcomeFields = {"result": data["result"] if list(data) == ["result"] else data}
    if kind == "ERROR":
        outcome = _read_error(data)
    payload: ResultFields = {"kind": "option_result", "invocation_id": invocation, "option_name": option, **outcome}
    policy = unit.maybe_text("sender") or option
    unit.say(payload, policy=policy, role_hint_for_llm="tool", lane="control")


def request_type(response_type: str) -> str:
    """Return the request type that a response type answers; None if the type alone does not determine it."""
    request = next((entry.type for entry in CATALOGUE if entry.response_type == response_type), None)
    return request or response_type.removesuffix("_RESPONSE") or response_type


def _read_error(data: dict[str, object]) -> OutcomeFields:
    keys = {"error_code", "error_message", "retryable"}
    details = {key: value for key, value in data.items() if key not in keys}
    result = details["details"] if list(details) == ["details"] else details or None
    return failed(data, data.get("error_message"), result, key="error_code", otherwise="ERROR")


# ---------------------------------------------------------------- writing


def together(group: Sequence[Message], message: Message) -> bool:
    """Return whether a message belongs to the current unit: never, each message is a unit."""
    return False


def write(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
    message, payload = group[0], group[0].payload
    if payload.kind == "option_call":
        unit = {"id": payload.invocation_id, "type": payload.option_name, "data": writing.json(payload, "arguments")}
    elif payload.kind == "option_result":
        data = _write_error(payload, writing) if payload.is_error else _data(writing.json(payload, "result"))
        kind = "ERROR" if payload.is_error else response_type_of(payload.option_name)
        unit = {"id": message.id, "type": kind, "data": data, "message_id": payload.invocation_id}
    elif is_error(message):
        failure: dict[str, Any] = thaw(metadata_of(message))
        code = {"error_code": failure.pop("error_type")} if "error_type" in failure else {}
        unit = {"id": message.id, "type": "ERROR", "data": {**failure, "error_message": message_text(message), **code}}
    elif (notice := _notice(message)) is not None:
        unit = {"id": message.id, **notice, **({"metadata": metadata} if (metadata := with_purpose(message)) else {})}
    else:
        unit = _write_talk(message)
    unit["sender"] = message.policy
    if message.to:
        unit["receiver"] = message.to[0]
    if message.created_at is not None:
        unit["timestamp"] = time_text(message.created_at).replace("+00:00", "Z")
    if message.correlation_id is not None:
        unit["correlation_id"] = message.correlation_id
    if payload.kind != "parts" and (metadata := with_purpose(message)):
        unit["metadata"] = metadata
    return unit


def _notice(message: Message) -> dict[str, Any] | None:
    """Return the type and data of a notice; None for other messages."""
    if message.lane != "control":
        return None
    match message.parts:
        case (DataPart(data=JsonObject() as notice),) if set(notice) == {"type", "data"}:
            return thaw(notice) if isinstance(notice["type"], str) and isinstance(notice["data"], JsonObject) else None
        case _:
            return None


def _write_talk(message: Message) -> dict[str, object]:
    role = message.role_hint_for_llm or ("user" if message.policy == "user" else "assistant")
    data = {**with_purpose(message), "role": role, "content": message_text(message)}
    return {"id": message.id, "type": "MESSAGE", "data": data}


def _data(result: object) -> dict[str, object]:
    """Return a result as the data of a response: an object unchanged, any other value under a single key."""
    plain = as_object(result)
    return {"result": result} if plain is None or list(plain) == ["result"] else plain


def _write_error(outcome: OptionResultPayload, writing: Writing) -> dict[str, object]:
    details = writing.json(outcome, "result")
    plain = as_object(details) or {}
    keys = {"error_message", "error_code", "retryable"}
    data = {"error_message": outcome.error_message, "error_code": outcome.error_type, "retryable": outcome.retryable}
    if not plain or keys & plain.keys() or list(plain) == ["details"]:
        plain = {} if details is None else {"details": details}
    return {**plain, **{key: value for key, value in data.items() if value is not None}}


# ---------------------------------------------------------------- the dialect

_ENVELOPE = frozenset({"id", "sender", "receiver", "correlation_id", "message_id"})


def recognise(data: object) -> str | None:
    units = sample_units(data)
    has_types = bool(units) and all(isinstance(unit.get("type"), str) and _carries(unit) for unit in units)
    return "a type with data, in an envelope of Choir" if has_types else None


def _carries(unit: dict[str, Any]) -> bool:
    """Whether it has Choir's types, which are upper case, or Choir's envelope: many formats have a type and data."""
    marks: tuple[bool, ...] = (unit["type"].isupper(), isinstance(unit.get("data"), dict), bool(_ENVELOPE & unit.keys()))
    return sum(marks) > 1


DIALECT = UnitDialect(
    name="choir",
    summary="Choir requests, responses and errors",
    read=read,
    together=together,
    write=write,
    recognise=recognise,
    otherwise="a Choir message has no place for it",
    reasons={
        **dict.fromkeys(PARTS, "Choir says plain text, and a response shows nothing besides its data"),
        "text": "data parts are written as JSON text",
        "to": "a Choir message has one receiver",
        "lane": "requests and responses are in the lane `control`, a MESSAGE in `talk`",
        "arguments": "the data of a request are an object",
        "option": "a response names its request only by id",
        "metadata": "some keys are those of an error",
    },
    wire=frozenset({"id", "type", "data", "sender", "receiver", "timestamp", "correlation_id", "message_id", "metadata"}),
)
