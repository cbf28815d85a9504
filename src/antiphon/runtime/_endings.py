"""Endings: what is open only for the sake of a message, and the rows that end it when the message ends.

Deliveries of it; effects that its handler began and did not end; what it asked itself. Usually the envelope knows them.
Where a handler was stopped in the middle of something, or another ran before it, only the ledger does.

An effect belongs to the message that is the longest prefix of its id: `m/agent/tool` is an effect of `m`, unless `m/agent`
is a message of its own. Messages that `m` has sent end for themselves, also those that outlive it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antiphon.errors import WithdrawnError
from antiphon.messages import RUNTIME_POLICY, Json, Message, OptionCallPayload, OptionResultPayload
from antiphon.runtime._own import own_message
from antiphon.runtime._rows import AGAIN, DELIVER, PARK, begun, ended, park_id

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, Record
    from antiphon.runtime._envelope import Envelope

__all__ = ["endings", "is_asked_of_itself", "leftovers", "owner_of"]

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


async def leftovers(ledger: Ledger, rows: Sequence[Record], invocation_id: str, thread_id: str, to: str) -> list[Message]:
    """Return the rows that end what is open only for the sake of a message, by the open calls of its thread."""
    parked = {row.message.parent_id for row in rows if _option(row.message) == PARK}
    found: list[Message] = []
    for message in await _following(ledger, [row.message for row in rows], invocation_id, thread_id):
        payload = message.payload
        assert isinstance(payload, OptionCallPayload)  # noqa: S101 (only calls are open)
        if message.lane == "effect" and payload.option_name == AGAIN:
            found.append(ended(AGAIN, payload.invocation_id, thread_id=thread_id, parent_id=invocation_id))
        elif _is_effect(message) and payload.invocation_id not in parked:
            found.append(_abandoned(message, thread_id, to))
        elif is_asked_of_itself(message):
            found += await leftovers(ledger, rows, payload.invocation_id, thread_id, to)
            found.append(_withdrawn(message, payload))
    return found


async def _following(ledger: Ledger, calls: Sequence[Message], invocation_id: str, thread_id: str) -> list[Message]:
    """Return what is said and done in the course of a message: what says so, and effects of a part of its handling."""
    own = [call for call in calls if call.parent_id == invocation_id]
    for call in calls:
        is_below = (call.invocation_id or "").startswith(f"{invocation_id}/") and call.parent_id != invocation_id
        if is_below and _is_effect(call) and await owner_of(ledger, call, thread_id) == invocation_id:
            own.append(call)
    return own


async def owner_of(ledger: Ledger, effect: Message, thread_id: str) -> str | None:
    """Return the message in whose course an effect was begun; None if the thread has none."""
    name = effect.invocation_id or ""
    while "/" in name:
        name = name.rpartition("/")[0]
        if any(_is_said(record.message) for record in await ledger.by_invocation(name, thread_id=thread_id)):
            return name
    return None


def _is_said(message: Message) -> bool:
    """Whether a row of an invocation is of a message: of one that was asked, or of the delivery of one that was told."""
    return message.lane != "effect" or _option(message) == DELIVER


def _is_effect(call: Message) -> bool:
    return call.lane == "effect" and isinstance(call.payload, OptionCallPayload) and "effects" in call.payload.arguments


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
