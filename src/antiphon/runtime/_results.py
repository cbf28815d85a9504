"""From what a handler returns or raises to the result in the ledger, and from there to what whoever asked gets."""

from __future__ import annotations

from typing import Any, TypeVar

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
from antiphon.messages import RUNTIME_POLICY, Json, JsonObject, Message, OptionResultPayload, current_port, thaw
from antiphon.protocol import ErrorCode, Reply, Request, Response, response_type_of
from antiphon.runtime._envelope import OWN, Envelope
from antiphon.runtime._own import error_fields, own_message, own_result
from antiphon.runtime._rows import DELIVER

__all__ = [
    "answer_to",
    "delivery_result",
    "error_of",
    "error_result",
    "message_of",
    "reply_of",
    "response_type",
    "result_of",
]

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
        value: Json = outcome.to_data() if isinstance(outcome, Reply) else _value(outcome)
        payload = own_result(envelope.invocation_id, envelope.type, value)
    result = _result_message(envelope, payload, envelope.to)
    own_type = outcome.message_type if isinstance(outcome, Reply) else outcome.type if isinstance(outcome, Response) else ""
    if own_type and own_type != response_type_of(envelope.type):  # that of a RETRY, or one that `receive` chose
        return result.model_copy(update={"metadata": {OWN: {"response_type": own_type}}})
    return result


def _value(outcome: Any) -> Json:
    value: Json = thaw(outcome.data) if isinstance(outcome, Response) else outcome
    return value


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
