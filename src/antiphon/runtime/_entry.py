"""Entry: how what is said becomes an envelope, and in which thread it belongs.

What concerns no conversation (restarts, supervision, failures) is in the system thread of the actor that it is for,
unless it is said in the course of a conversation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.messages import Message, OptionCallPayload, thaw
from antiphon.protocol import ErrorNotification, Restart, Stop, Supervise
from antiphon.runtime._address import SYSTEM, system_thread
from antiphon.runtime._envelope import OWN, Envelope

if TYPE_CHECKING:
    from antiphon.protocol import Notice, Request

__all__ = ["inside", "outside"]

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
