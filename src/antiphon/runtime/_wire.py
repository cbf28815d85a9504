"""Between messages and the protocol's envelopes: what an actor of the seed's kind is given, and what it gives back."""

from __future__ import annotations

from typing import Any, cast

from antiphon.errors import DeliveryError, RefusedError
from antiphon.messages import (
    DataPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    TextPart,
    thaw,
)
from antiphon.protocol import ErrorResponse, Response, find_entry
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._envelope import told

__all__ = ["accepted", "error_response", "from_wire", "response_of", "to_wire"]

_TALK = "MESSAGE"
_ANYBODY = "unknown"


def to_wire(message: Message) -> WireMessage:
    """Return a message as the envelope that says the same: a request, a notice, or plain talk."""
    payload, found = message.payload, told(message)
    said: tuple[str, str, Any]
    if isinstance(payload, OptionCallPayload):
        said = payload.invocation_id, payload.option_name, payload.arguments
    elif found is not None:
        said = message.id, *found
    else:
        said = message.id, _TALK, {"role": message.role_hint_for_llm or "user", "content": message.text}
    return WireMessage(
        id=said[0],
        type=said[1],
        data=thaw(said[2]),
        sender=message.policy,
        receiver=message.to[0] if message.to else None,
        correlation_id=message.correlation_id,
        **({} if message.created_at is None else {"timestamp": message.created_at}),
    )


def from_wire(wire: WireMessage, thread_id: str | None) -> Message:
    """Return an envelope as a message."""
    entry = find_entry(wire.type)
    payload: OptionCallPayload | PartsPayload
    if wire.type == _TALK and isinstance(content := wire.data.get("content"), str):
        payload = PartsPayload(parts=(TextPart(text=content),))
    elif entry is not None and entry.response_type is None:
        payload = PartsPayload(parts=(DataPart(data={"type": wire.type, "data": wire.data}),))
    else:
        payload = OptionCallPayload(invocation_id=wire.id, option_name=wire.type, arguments=wire.data)
    return Message(
        id=wire.id,
        policy=wire.sender or _ANYBODY,
        payload=payload,
        thread_id=thread_id,
        to=(wire.receiver,) if wire.receiver else (),
        lane="talk" if wire.type == _TALK else "control",
        correlation_id=wire.correlation_id,
        created_at=wire.timestamp,
    )


def accepted(response: Response) -> Response:
    """Return a response that says no error.

    Raises:
        RefusedError: it says that the message failed.
    """
    if isinstance(response, ErrorResponse) or response.type == "ERROR":
        data = thaw(response.data)
        reason, code = data.pop("error_message"), data.pop("error_code", None)
        raise RefusedError(reason, code or "ERROR", details=data or None)
    return response


def response_of(wire: WireMessage, result: OptionResultPayload, type: str, policy: str) -> Response:
    """Return a result, which is no error, as the response to an envelope."""
    value: Any = thaw(result.result)
    data = cast("dict[str, Any]", value) if isinstance(value, dict) else {"result": value}
    return wire.reply(type, data, sender=policy)


def error_response(wire: WireMessage, error: DeliveryError) -> ErrorResponse:
    """Return an error as the response to an envelope."""
    details: Any = error.details if isinstance(error, RefusedError) else None
    extra = cast("dict[str, Any]", details) if isinstance(details, dict) else {"details": details} if details else {}
    return wire.reply_error(error.reason, error.code, data=extra)
