"""Endings: what is open only for the sake of a message, and the rows that end it when the message ends.

Deliveries of it; effects that its handler began and did not end; what it asked itself. Usually the envelope knows them.
Where a handler was stopped in the middle of something, or another ran before it, only the ledger does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from antiphon.errors import WithdrawnError
from antiphon.messages import RUNTIME_POLICY, Json, Message, OptionCallPayload, OptionResultPayload
from antiphon.runtime._own import own_message
from antiphon.runtime._rows import AGAIN, PARK, begun, ended, park_id

if TYPE_CHECKING:
    from antiphon.ledger import Record
    from antiphon.runtime._envelope import Envelope

__all__ = ["endings", "is_asked_of_itself", "leftovers"]

_WITHDRAWN: dict[str, Any] = {
    "is_error": True,
    "error_type": WithdrawnError.code,
    "error_message": "its handler was stopped meanwhile",
    "retryable": True,
}


def endings(envelope: Envelope) -> list[Message]:
    """Return the rows that end what was open only for the sake of a message, as far as the envelope knows."""
    thread_id, parent_id = envelope.thread_id or "", envelope.invocation_id
    rows = [ended(AGAIN, row, thread_id=thread_id, parent_id=parent_id) for row in envelope.standing.again]
    return rows + [_abandoned(intent, thread_id, str(envelope.to)) for intent in envelope.open_effects]


def leftovers(rows: Sequence[Record], invocation_id: str, thread_id: str, to: str) -> Iterator[Message]:
    """Yield the rows that end what is open only for the sake of a message, by the open calls of its thread."""
    parked = {row.message.parent_id for row in rows if _option(row.message) == PARK}
    for message in _following([row.message for row in rows], invocation_id):
        payload = message.payload
        assert isinstance(payload, OptionCallPayload)  # noqa: S101 (only calls are open)
        if message.lane == "effect" and payload.option_name == AGAIN:
            yield ended(AGAIN, payload.invocation_id, thread_id=thread_id, parent_id=invocation_id)
        elif message.lane == "effect" and "effects" in payload.arguments and payload.invocation_id not in parked:
            yield _abandoned(message, thread_id, to)
        elif is_asked_of_itself(message):
            yield from leftovers(rows, payload.invocation_id, thread_id, to)
            yield _withdrawn(message, payload)


def _following(calls: Sequence[Message], invocation_id: str) -> list[Message]:
    """Return what is said and done in the course of a message: what says so, and effects of a part of its handling.

    Those are known by the message's id and more; what others do for it is too, but in the course of a message of its own.
    """
    others = [call.invocation_id for call in calls if call.lane != "effect" and call.parent_id == invocation_id]
    own = [call for call in calls if call.parent_id == invocation_id]
    return own + [
        call
        for call in calls
        if call.lane == "effect"
        and call.parent_id != invocation_id
        and (call.invocation_id or "").startswith(f"{invocation_id}/")
        and not any((call.invocation_id or "").startswith(f"{other}/") for other in others)
    ]


def is_asked_of_itself(message: Message) -> bool:
    """Whether an actor asks something of itself, which its own handler does at once."""
    is_call = message.lane != "effect" and message.kind == "option_call"
    return is_call and message.parent_id is not None and message.to == (message.policy,)


def _option(message: Message) -> str | None:
    return message.payload.option_name if isinstance(message.payload, OptionCallPayload) else None


def _abandoned(intent: Message, thread_id: str, to: str) -> Message:
    """Return what becomes of an effect whose handler has ended before it: if it must not be done twice, a person looks."""
    payload = intent.payload
    assert isinstance(payload, OptionCallPayload)  # noqa: S101 (it was made so)
    effect, option = payload.invocation_id, payload.option_name
    if payload.arguments.get("effects") == "once":
        reason = f"nobody knows whether {option!r} was done: its handler was stopped meanwhile"
        evidence: dict[str, Json] = {"reason": reason, "to": to, "effect": effect, "option": option}
        return begun(PARK, park_id(effect), thread_id=thread_id, parent_id=effect, arguments=evidence)
    return ended(option, effect, thread_id=thread_id, parent_id=intent.parent_id, **_WITHDRAWN)


def _withdrawn(call: Message, payload: OptionCallPayload) -> Message:
    result = OptionResultPayload(invocation_id=payload.invocation_id, option_name=payload.option_name, **_WITHDRAWN)
    return own_message(
        RUNTIME_POLICY,
        result,
        id=f"{payload.invocation_id}#withdrawn",
        thread_id=call.thread_id,
        to=(call.policy,),
        lane=call.lane,
        correlation_id=call.correlation_id,
        in_reply_to=call.id,
        parent_id=call.parent_id,
    )
