"""Exchange: from a question to its delivery, and from the outcome to the answer.

- `outside` and `inside` make the delivery of a message: its thread, its id, and the message that it follows from.
- `result_of` and `error_result` turn the return value or the error of a handler into a result for the ledger.
- `answer_to` turns a result into the caller's answer, in the form of the question.

The second half does the same for messages of the protocol: a core message becomes the wire message that `Actor.receive` gets
(`to_wire`), and back (`from_wire`); a response becomes a result, and a result becomes a response.

**Threads.** A message that concerns no conversation (restarts, supervision, failures) is in the system thread of the actor
that it is for, unless a handler sends it in the thread of a conversation.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from antiphon import errors
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
from antiphon.messages import _keys as keys
from antiphon.messages._arguments import check_type
from antiphon.messages._keys import child_id
from antiphon.messages._names import is_name
from antiphon.protocol import (
    ErrorCode,
    ErrorNotification,
    ErrorResponse,
    Notice,
    Reply,
    Request,
    Response,
    Restart,
    Retry,
    Stop,
    Supervise,
    validate_message,
)
from antiphon.protocol import Message as WireMessage
from antiphon.protocol._messages import find_entry, response_type_of
from antiphon.runtime._delivery import DeliveryState, Envelope, new_envelope
from antiphon.runtime._rows import OWN, chosen_code, error_fields, error_of, notice_in, option_of, stored_code
from antiphon.runtime._settings import SYSTEM, system_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


Said: TypeAlias = "Request[Any] | Notice | Message"


# ---------------------------------------------------------------- from a message to its delivery


SYSTEM_TYPES: dict[type, str] = {
    Restart: Restart.message_type,
    Stop: Stop.message_type,
    Supervise: Supervise.message_type,
    ErrorNotification: ErrorNotification.message_type,
}


def outside(to: str, said: Said, thread_id: str | None, sender: str, id: str | None) -> DeliveryState:
    """Return the delivery of a message that is sent from outside of all handlers.

    Raises:
        ValueError: it is a message of the journal, or of another thread.
    """
    if not isinstance(said, Message):
        check_type("a message", said, Request | Notice, "Heartbeat()")
        is_of_host = not thread_id and type(said) in SYSTEM_TYPES
        thread_id = system_thread(to) if is_of_host else thread_id
        envelope = new_envelope(Envelope, (said, None, sender, to, id, thread_id, None, 0, None, False, is_of_host))
        return DeliveryState(envelope, id is not None)
    thread_id = thread_id or said.thread_id or own_thread(to, option_of(said) in SYSTEM_TYPES.values(), None)
    message = _stamped(said, to, thread_id)
    envelope = Envelope.of(message, sender, to, thread_id, correlation_id=said.correlation_id)
    return DeliveryState(envelope, may_be_known=True)


def inside(to: str, said: Said, handled: DeliveryState, address: str, key: str | None) -> DeliveryState:
    """Return the delivery of a message that the handler of another message sends.

    Raises:
        ValueError: the key is malformed; or it is a message of the journal.
    """
    outer = handled.envelope
    hops, exchange = outer.hops + 1, outer.correlation_id or handled.id
    if not isinstance(said, Message):
        is_system = type(said) in SYSTEM_TYPES
        thread_id = own_thread(to, True, outer.thread_id) if is_system else outer.thread_id
        # In a thread, the id is derived from the handled message and a key. A handler that runs again derives the same id, and
        # so finds the message that it has already sent in the ledger.
        is_derived = thread_id is not None and outer.thread_id is not None
        own_id = keys.child_id(handled.invocation_id, handled.work.next_key(key)) if is_derived else None
        is_of_host = is_system and thread_id == system_thread(to)
        fields = (said, None, address, to, own_id, thread_id, handled, hops, exchange, is_derived, is_of_host)
        return DeliveryState(new_envelope(Envelope, fields), is_derived and handled.attempt > 1)
    thread_id = said.thread_id or outer.thread_id
    message = _stamped(said, to, thread_id)
    envelope = Envelope(None, message, address, to, message.id, thread_id, handled, hops, exchange)
    return DeliveryState(envelope, may_be_known=handled.attempt > 1)


def own_thread(to: str, is_system: bool, thread_id: str | None) -> str | None:
    if is_system and (thread_id is None or thread_id.startswith(f"{SYSTEM}/")):
        return system_thread(to)
    return thread_id


def _stamped(message: Message, to: str, thread_id: str | None) -> Message:
    """Return a message with its address and thread, and without metadata that only the runtime may set."""
    if message.lane == "effect":
        raise ValueError(f"message {message.id!r} is of the journal, which only the runtime writes")
    if message.thread_id not in (None, thread_id):
        raise ValueError(f"message {message.id!r} is of thread {message.thread_id!r}, not of {thread_id!r}")
    changes: dict[str, Any] = {}
    if message.to != (to,):
        changes["to"] = (str(to),)
    if message.thread_id != thread_id:
        changes["thread_id"] = thread_id
    if OWN in message.metadata:
        changes["metadata"] = {name: thaw(value) for name, value in message.metadata.items() if name != OWN}
    return message.model_copy(update=changes) if changes else message


# ---------------------------------------------------------------- outcomes, results and answers


ReplyT = TypeVar("ReplyT", bound=Reply)


def result_of(delivery: DeliveryState, outcome: Any) -> Message:
    """Return the return value of a handler as the result of the call."""
    if isinstance(outcome, Message):
        outcome = outcome.payload
    if isinstance(outcome, OptionResultPayload):
        update: dict[str, Any] = {"invocation_id": delivery.invocation_id, "option_name": delivery.type}
        if outcome.error_type is not None:
            update["error_type"] = chosen_code(outcome.error_type)
        payload = outcome.model_copy(update=update)
    else:
        value: Json = outcome.to_data() if isinstance(outcome, Reply) else _value(outcome)
        payload = OptionResultPayload(invocation_id=delivery.invocation_id, option_name=delivery.type, result=value)
    result = _result_message(delivery, payload, delivery.to)
    own_type = outcome.message_type if isinstance(outcome, Reply) else outcome.type if isinstance(outcome, Response) else ""
    if own_type and own_type != response_type_of(delivery.type):  # of a RETRY, or chosen by `receive`
        return result.model_copy(update={"metadata": {OWN: {"response_type": own_type}}})
    return result


def _value(outcome: Any) -> Json:
    value: Json = thaw(outcome.data) if isinstance(outcome, Response) else outcome
    return value


def response_type(result: Message) -> str:
    """Return the response type of a result; for a RETRY, that of the message that was retried."""
    metadata = result.metadata.get(OWN)
    chosen_type = metadata.get("response_type") if isinstance(metadata, JsonObject) else None
    option = result.payload.option_name if isinstance(result.payload, OptionResultPayload) else ""
    return chosen_type if isinstance(chosen_type, str) else response_type_of(option)


def error_result(delivery: DeliveryState, error: errors.DeliveryError, policy: str = RUNTIME_POLICY) -> Message:
    """Return an error as the result of a call."""
    details = error.details if isinstance(error, errors.RefusedError) else None
    fields = error_fields(error.reason, stored_code(error), retryable=error.retryable, details=details)
    payload = OptionResultPayload(invocation_id=delivery.invocation_id, option_name=delivery.type, **fields)
    return _result_message(delivery, payload, policy)


def _result_message(delivery: DeliveryState, payload: OptionResultPayload, policy: str) -> Message:
    """Return the message with the result of a call, addressed to the caller."""
    call = delivery.message
    return Message(
        policy=str(policy),
        payload=payload,
        thread_id=delivery.thread_id,
        to=(call.policy,),
        lane=call.lane,
        correlation_id=delivery.exchange,
        in_reply_to=call.id,
        parent_id=call.parent_id,
        created_at=current_port().now(),
    )


def answer_to(said: Request[Any] | Message, delivery: DeliveryState, outcome: Any) -> Reply | Message:
    """Return the answer in the form of the question: typed for a request, a message for a message.

    Raises:
        DeliveryError: the answer is an error.
    """
    if isinstance(said, Request):
        return outcome if isinstance(outcome, Reply) else reply_of(said, outcome, delivery.to)
    return message_of(delivery, outcome)


def message_of(delivery: DeliveryState, outcome: Any) -> Message:
    """Return the outcome of a call as a message.

    Raises:
        DeliveryError: the outcome is an error.
    """
    result = outcome if isinstance(outcome, Message) and outcome.invocation_id else result_of(delivery, outcome)
    if isinstance(result.payload, OptionResultPayload) and result.payload.is_error:
        raise error_of(result.payload, delivery.to)
    return result


def reply_of(request: Request[ReplyT], outcome: Reply | Message, address: str) -> ReplyT:
    """Return the answer to a request as its reply class.

    Raises:
        DeliveryError: the answer is an error.
        RefusedError: the answer does not validate as that class.
    """
    if isinstance(outcome, Reply):
        return cast("ReplyT", outcome)  # the cell has checked the class
    cls, payload = request.reply_class(), outcome.payload
    assert isinstance(payload, OptionResultPayload)  # noqa: S101 (the outcome of a call)
    if payload.is_error:
        raise error_of(payload, address)
    try:
        return cls.from_data(payload.result if isinstance(payload.result, JsonObject) else JsonObject({}))
    except ValueError as exc:
        raise errors.RefusedError(
            f"its answer is no {cls.__name__}: {exc}", ErrorCode.VALIDATION_ERROR, address=address
        ) from exc


_TALK = "MESSAGE"
_ANYBODY = "unknown"


def to_wire(message: Message) -> WireMessage:
    """Return a core message as a message of the protocol: a request, a notice, or talk."""
    payload, notice = message.payload, notice_in(message)
    content: tuple[str, str, Any]
    if isinstance(payload, OptionCallPayload):
        content = payload.invocation_id, payload.option_name, payload.arguments
    elif notice is not None:
        content = message.id, *notice
    else:
        content = message.id, _TALK, {"role": message.role_hint_for_llm or "user", "content": message.text}
    return WireMessage(
        id=content[0],
        type=content[1],
        data=thaw(content[2]),
        sender=message.policy,
        receiver=message.to[0] if message.to else None,
        correlation_id=message.correlation_id,
        **({} if message.created_at is None else {"timestamp": message.created_at}),
    )


def from_wire(wire: WireMessage, thread_id: str | None) -> Message:
    """Return a message of the protocol as a core message."""
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
    """Return a response, unless it is an error.

    Raises:
        RefusedError: it is an error response.
    """
    if isinstance(response, ErrorResponse) or response.type == "ERROR":
        data = thaw(response.data)
        reason, code = data.pop("error_message"), data.pop("error_code", None)
        raise errors.RefusedError(reason, code or "ERROR", details=data or None)
    return response


def response_of(wire: WireMessage, result: OptionResultPayload, type: str, policy: str) -> Response:
    """Return a successful result as the response to a message of the protocol."""
    value: Any = thaw(result.result)
    data = cast("dict[str, Any]", value) if isinstance(value, dict) else {"result": value}
    return wire.reply(type, data, sender=policy)


def error_response(wire: WireMessage, error: errors.DeliveryError) -> ErrorResponse:
    """Return an error as the response to a message of the protocol."""
    details: Any = error.details if isinstance(error, errors.RefusedError) else None
    extra = cast("dict[str, Any]", details) if isinstance(details, dict) else {"details": details} if details else {}
    return wire.reply_error(error.reason, error.code, data=extra)


async def response_to(wire: WireMessage, send: Callable[[], Awaitable[Message | None]]) -> Response:
    """Return the response to a message of the protocol: its result, an empty one if none is due, or the error."""
    try:
        validate_message(wire)
    except ValueError as exc:
        return wire.reply_error(str(exc), ErrorCode.VALIDATION_ERROR)
    try:
        result = await send()
    except errors.ActorFailedError as exc:
        return wire.reply_error(f"Error processing message: {exc.reason}", exc.code)
    except errors.DeliveryError as exc:
        return error_response(wire, exc)
    if result is None:
        return wire.reply(data={})
    assert isinstance(result.payload, OptionResultPayload)  # noqa: S101 (the outcome of a call)
    return response_of(wire, result.payload, response_type(result), result.policy)


# ---------------------------------------------------------------- messages of the protocol that a handler sends


class StoredIds:
    """The stored ids of messages whose senders know them by another id; the latest are kept."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._kept: OrderedDict[tuple[str, str], str] = OrderedDict()
        """By thread and the id that the sender knows."""

    def note(self, thread_id: str, id: str, stored_id: str) -> None:
        """Keep the stored id of a message."""
        self._kept[thread_id, id] = stored_id
        self._kept.move_to_end((thread_id, id))
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)

    def get(self, thread_id: str, id: str) -> str | None:
        """Return the stored id of a message; None if it is not kept, or is the id that the sender knows."""
        return self._kept.get((thread_id, id))


def named_thread(wire: WireMessage) -> str | None:
    """Return the thread that the data of a message of the protocol names, if any."""
    name: Any = wire.data.get("thread_id")
    return name if is_name(name) else None


def sent_inside(wire: WireMessage, handled: DeliveryState, address: str, ids: StoredIds) -> DeliveryState:
    """Return the delivery of a message of the protocol that a handler sends.

    It is in the thread that its data names, else in the thread of the handled message. In a thread, a generated id differs
    between two runs of the handler, so it is replaced by a derived one. An id that the sender chose stays: the same id is
    the same message.
    """
    to = wire.receiver or ""
    thread_id = named_thread(wire) or own_thread(to, wire.type in SYSTEM_TYPES.values(), handled.thread_id)
    correlation_id = wire.correlation_id or handled.exchange
    own_id, is_known = (wire.id, True) if thread_id is None else _stored_id(wire, thread_id, handled, ids)
    sent = wire.model_copy(update={"id": own_id, "sender": address, "correlation_id": correlation_id})
    message = from_wire(_with_stored_original(sent, thread_id, ids), thread_id)
    changes = {"parent_id": handled.invocation_id, "metadata": {OWN: {"hops": handled.envelope.hops + 1}}}
    stored = message.model_copy(update=changes)
    hops, is_derived = handled.envelope.hops + 1, own_id != wire.id
    envelope = Envelope(None, stored, address, to, stored.id, thread_id, handled, hops, correlation_id, is_derived)
    return DeliveryState(envelope, may_be_known=is_known or handled.attempt > 1)


def _stored_id(wire: WireMessage, thread_id: str, handled: DeliveryState, ids: StoredIds) -> tuple[str, bool]:
    """Return the id under which a message is stored, and whether it may be stored already."""
    key = handled.work.next_key()  # also if the id stays: later messages keep their numbers
    if "id" in wire.model_fields_set and wire.id != handled.invocation_id:
        return wire.id, True
    earlier = ids.get(thread_id, wire.id)
    if earlier is not None and earlier.startswith(child_id(handled.invocation_id, "")):
        return earlier, True  # the same message twice in one handler
    stored_id = child_id(handled.invocation_id, key)
    ids.note(thread_id, wire.id, stored_id)
    return stored_id, False


def _with_stored_original(wire: WireMessage, thread_id: str | None, ids: StoredIds) -> WireMessage:
    """Return a RETRY that names its original by the stored id; other messages unchanged."""
    original: Any = wire.data.get("original_message_id")
    if wire.type != Retry.message_type or thread_id is None or not isinstance(original, str):
        return wire
    stored_id = ids.get(thread_id, original)
    return wire if stored_id is None else wire.model_copy(update={"data": {**wire.data, "original_message_id": stored_id}})
