"""Entry: how what is said becomes an envelope, and in which thread it belongs.

What concerns no conversation (restarts, supervision, failures) is in the system thread of the actor that it is for,
unless it is said in the course of a conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.messages import Message, OptionCallPayload, is_name, thaw
from antiphon.protocol import ErrorNotification, Restart, Retry, Stop, Supervise
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._address import SYSTEM, system_thread
from antiphon.runtime._envelope import OWN, Envelope
from antiphon.runtime._rows import child_id
from antiphon.runtime._wire import from_wire

if TYPE_CHECKING:
    from antiphon.protocol import Notice, Request
    from antiphon.runtime._recent import Recent

__all__ = ["inside", "named_thread", "outside", "sent_inside"]

_SYSTEM: dict[type, str] = {
    Restart: Restart.message_type,
    Stop: Stop.message_type,
    Supervise: Supervise.message_type,
    ErrorNotification: ErrorNotification.message_type,
}


def outside(to: str, said: Request[Any] | Notice | Message, thread_id: str | None, sender: str, id: str | None) -> Envelope:
    """Return the envelope of what somebody says who is no actor.

    Raises:
        ValueError: it is a message of the journal, or of another thread.
    """
    if isinstance(said, Message):
        thread_id = thread_id or said.thread_id or _own_thread(to, _option(said) in _SYSTEM.values(), None)
        envelope = Envelope(_stamped(said, to, thread_id), sender, to)
        envelope.correlation_id, envelope.may_be_known = said.correlation_id, True
    else:
        if not thread_id and type(said) in _SYSTEM:
            thread_id = system_thread(to)
        envelope = Envelope(said, sender, to, id)
        if id is not None:
            envelope.may_be_known = True
    if thread_id is not None:
        envelope.thread_id = thread_id
    return envelope


def inside(to: str, said: Request[Any] | Notice | Message, handled: Envelope, address: str, key: str | None) -> Envelope:
    """Return the envelope of what an actor says in the course of a message.

    Raises:
        ValueError: the key is none; or it is a message of the journal.
    """
    if isinstance(said, Message):
        thread_id = said.thread_id or handled.thread_id
        envelope = Envelope(_stamped(said, to, thread_id), address, to)
        envelope.may_be_known = handled.attempt > 1
        envelope.follow(handled)
    else:
        thread_id = _own_thread(to, type(said) in _SYSTEM, handled.thread_id)
        envelope = Envelope(said, address, to)
        envelope.follow(handled)
        if thread_id is not None and handled.thread_id is not None:
            envelope.derive_id(handled, handled.next_key(key))
    envelope.thread_id = thread_id
    return envelope


def named_thread(wire: WireMessage) -> str | None:
    """Return the thread that the data of a message of the protocol names, if any."""
    name: Any = wire.data.get("thread_id")
    return name if is_name(name) else None


def sent_inside(wire: WireMessage, handled: Envelope, address: str, recent: Recent) -> Envelope:
    """Return the envelope of a message of the protocol that an actor sends in the course of another.

    It is of the thread that its data names, else of that of the other message. In a thread, an id that was made with the
    message is another one whenever the handler runs, so it is replaced by one that is the same. An id that the sender chose
    stays: the same again is the same message.
    """
    to = wire.receiver or ""
    thread_id = named_thread(wire) or _own_thread(to, wire.type in _SYSTEM.values(), handled.thread_id)
    correlation_id = wire.correlation_id or handled.exchange
    own_id, is_known = (wire.id, True) if thread_id is None else _stored_id(wire, thread_id, handled, recent)
    sent = wire.model_copy(update={"id": own_id, "sender": address, "correlation_id": correlation_id})
    message = from_wire(_with_stored_original(sent, thread_id, recent), thread_id)
    own = {"parent_id": handled.invocation_id, "metadata": {OWN: {"hops": handled.hops + 1}}}
    envelope = Envelope(message.model_copy(update=own), address, to)
    envelope.follow(handled)
    envelope.correlation_id, envelope.thread_id = correlation_id, thread_id
    envelope.is_derived, envelope.may_be_known = own_id != wire.id, is_known or handled.attempt > 1
    return envelope


def _stored_id(wire: WireMessage, thread_id: str, handled: Envelope, recent: Recent) -> tuple[str, bool]:
    """Return the id that a message gets in a thread, and whether it may be there already."""
    key = handled.next_key()  # also for an id that stays: what comes after it has the same number whenever the handler runs
    if "id" in wire.model_fields_set and wire.id != handled.invocation_id:
        return wire.id, True
    known = recent.stored_id(thread_id, wire.id)
    if known is not None and known.startswith(child_id(handled.invocation_id, "")):
        return known, True  # the same message twice in one handler
    stored_id = child_id(handled.invocation_id, key)
    recent.note_stored(thread_id, wire.id, stored_id)
    return stored_id, False


def _with_stored_original(wire: WireMessage, thread_id: str | None, recent: Recent) -> WireMessage:
    """Return a RETRY that names its original as the thread does; other messages as they are."""
    original: Any = wire.data.get("original_message_id")
    if wire.type != Retry.message_type or thread_id is None or not isinstance(original, str):
        return wire
    stored_id = recent.stored_id(thread_id, original)
    return wire if stored_id is None else wire.model_copy(update={"data": {**wire.data, "original_message_id": stored_id}})


def _own_thread(to: str, is_system: bool, thread_id: str | None) -> str | None:
    if is_system and (thread_id is None or thread_id.startswith(f"{SYSTEM}/")):
        return system_thread(to)
    return thread_id


def _option(message: Message) -> str | None:
    return message.payload.option_name if isinstance(message.payload, OptionCallPayload) else None


def _stamped(message: Message, to: str, thread_id: str | None) -> Message:
    """Return a message as it may come in: addressed, of its thread, and with nothing that only the runtime may say."""
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
