"""From what a handler returns or raises to the result in the ledger, and from there to what whoever asked gets.

Between messages and the protocol's envelopes: what an actor of the seed's kind is given, and what it gives back.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

from antiphon.errors import (
    ActorFailedError,
    ActorStoppedError,
    BudgetExceededError,
    DeliveryError,
    EffectFailedError,
    EscalatedError,
    HistoryMismatchError,
    HopLimitError,
    MailboxFullError,
    ParkedError,
    RefusedError,
    ReplyTimeoutError,
    ToolServerError,
    UndeliverableError,
    UnguardedToolError,
    WithdrawnError,
)
from antiphon.messages import (
    RUNTIME_POLICY,
    DataPart,
    Json,
    JsonObject,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    PartsPayload,
    TextPart,
    current_port,
    thaw,
)
from antiphon.protocol import ErrorCode, ErrorResponse, Reply, Request, Response, find_entry, response_type_of
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._envelope import OWN, Envelope, told
from antiphon.runtime._rows import DELIVER, error_fields, own_message, own_result

_ERRORS: dict[str, type[DeliveryError]] = {
    cls.code: cls
    for cls in (
        ActorFailedError,
        ActorStoppedError,
        BudgetExceededError,
        EffectFailedError,
        EscalatedError,
        HistoryMismatchError,
        HopLimitError,
        MailboxFullError,
        ParkedError,
        ReplyTimeoutError,
        ToolServerError,
        UndeliverableError,
        UnguardedToolError,
        WithdrawnError,
    )
}

ReplyT = TypeVar("ReplyT", bound=Reply)


def result_of(envelope: Envelope, outcome: Any) -> Message:
    """Return what a handler returned as the result of the call it handled."""
    if isinstance(outcome, Message):
        outcome = outcome.payload
    if isinstance(outcome, OptionResultPayload):
        payload = outcome.model_copy(update={"invocation_id": envelope.invocation_id, "option_name": envelope.type})
    else:
        value: Json = outcome.to_data() if isinstance(outcome, Reply) else outcome
        payload = own_result(envelope.invocation_id, envelope.type, value)
    result = _result_message(envelope, payload, envelope.to)
    if isinstance(outcome, Reply) and outcome.message_type and outcome.message_type != response_type_of(envelope.type):
        return result.model_copy(update={"metadata": {OWN: {"response_type": outcome.message_type}}})  # that of a RETRY
    return result


def response_type(result: Message) -> str:
    """Return the type of the response that a result is: of a RETRY, that of the message which was tried again."""
    own = result.metadata.get(OWN)
    said = own.get("response_type") if isinstance(own, JsonObject) else None
    option = result.payload.option_name if isinstance(result.payload, OptionResultPayload) else ""
    return said if isinstance(said, str) else response_type_of(option)


def error_result(envelope: Envelope, error: DeliveryError, policy: str = RUNTIME_POLICY) -> Message:
    """Return an error as the result of a call."""
    details = error.details if isinstance(error, RefusedError) else None
    fields = error_fields(error.reason, error.code, retryable=error.retryable, details=details)
    payload = OptionResultPayload(invocation_id=envelope.invocation_id, option_name=envelope.type, **fields)
    return _result_message(envelope, payload, policy)


def delivery_result(envelope: Envelope) -> Message:
    """Return what says that something which was told has been taken in."""
    payload = OptionResultPayload(invocation_id=envelope.id, option_name=DELIVER)
    return own_message(RUNTIME_POLICY, payload, in_reply_to=envelope.id)


def _result_message(envelope: Envelope, payload: OptionResultPayload, policy: str) -> Message:
    """Return the message that carries the result of a call back to whoever asked."""
    call = envelope.message
    return own_message(
        str(policy),
        payload,
        thread_id=envelope.thread_id,
        to=(call.policy,),
        lane=call.lane,
        correlation_id=envelope.exchange,
        in_reply_to=call.id,
        parent_id=call.parent_id,
        created_at=current_port().now(),
    )


def error_of(payload: OptionResultPayload, address: str) -> DeliveryError:
    """Return the error that an error result stands for."""
    code, reason = payload.error_type or "ERROR", payload.error_message or ""
    cls = _ERRORS.get(code)
    if cls is not None:
        return cls(reason, address)
    return RefusedError(reason, code, details=thaw(payload.result), retryable=bool(payload.retryable), address=address)


def answer_to(said: Request[Any] | Message, envelope: Envelope, outcome: Any) -> Reply | Message:
    """Return the answer in the form that whoever asked wants: as typed as the question.

    Raises:
        DeliveryError: the answer is an error.
    """
    if isinstance(said, Message):
        return message_of(envelope, outcome)
    return outcome if isinstance(outcome, Reply) else reply_of(said, outcome, envelope.to)


def message_of(envelope: Envelope, outcome: Any) -> Message:
    """Return the outcome of a call as the message that says it.

    Raises:
        DeliveryError: the outcome is an error.
    """
    result = outcome if isinstance(outcome, Message) and outcome.invocation_id else result_of(envelope, outcome)
    if isinstance(result.payload, OptionResultPayload) and result.payload.is_error:
        raise error_of(result.payload, envelope.to)
    return result


def reply_of(request: Request[ReplyT], outcome: Reply | Message, address: str) -> ReplyT:
    """Return the answer to a request, as the class that it has.

    Raises:
        DeliveryError: the answer is an error.
        RefusedError: it is no such answer.
    """
    if isinstance(outcome, Reply):
        return outcome  # type: ignore[return-value]  # pyright: ignore[reportReturnType] (the cell has checked it)
    cls, payload = request.reply_class(), outcome.payload
    assert isinstance(payload, OptionResultPayload)  # noqa: S101 (the outcome of a call)
    if payload.is_error:
        raise error_of(payload, address)
    try:
        return cls.from_data(payload.result if isinstance(payload.result, JsonObject) else JsonObject({}))
    except ValueError as exc:
        raise RefusedError(f"its answer is no {cls.__name__}: {exc}", ErrorCode.VALIDATION_ERROR, address=address) from exc


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


def outcome_of(response: Response) -> Any:
    """Return what a response says as the result of a call.

    Raises:
        RefusedError: it says that the message failed.
    """
    data = thaw(response.data)
    if isinstance(response, ErrorResponse) or response.type == "ERROR":
        reason, code = data.pop("error_message"), data.pop("error_code", None)
        raise RefusedError(reason, code or "ERROR", details=data or None)
    return data


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
