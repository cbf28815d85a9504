"""Leftovers: what is open because of a message, and ends with it.

When a message ends, the rows that are open because of it end too: its redeliveries; effects that its handler
started and did not end; questions that its actor asked itself. Usually the delivery knows them (`endings`). If the handler was
cancelled during an append, or ran before in another process, only the ledger knows them (`leftovers`). An effect belongs to
the message with the longest id that is a prefix of its own: `m/agent/tool` is an effect of `m`, unless `m/agent` is a message.
Messages that `m` has sent end on their own, possibly after `m`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from antiphon import errors
from antiphon.messages import RUNTIME_POLICY, Json, Message, OptionCallPayload, OptionResultPayload
from antiphon.messages._keys import is_below, parent_of, park_id, withdrawn_id
from antiphon.runtime._rows import AGAIN, DELIVER, PARK, STOP, TIMER, begun, ended, error_fields, is_once, option_of

if TYPE_CHECKING:
    from antiphon.ledger import Owners, Record
    from antiphon.runtime._delivery import DeliveryState

_TERMINATED = error_fields("the thread is terminated", errors.WithdrawnError.code, retryable=False)
_WITHDRAWN = error_fields("its handler was stopped meanwhile", errors.WithdrawnError.code, retryable=True)


def endings(delivery: DeliveryState, *, is_left: bool = False) -> list[Message]:
    """Return the rows that end the leftovers of a message, as far as its delivery knows them.

    `is_left`: the message stays open for the next system, and so do its effects that may be repeated. The next run continues
    them under the same id, and finds the questions that were asked in them. If they were ended, the next run would start new
    ones, and ask a second time.
    """
    thread_id, parent_id = delivery.thread_id or "", delivery.invocation_id
    rows = [ended(AGAIN, row, thread_id=thread_id, parent_id=parent_id) for row in delivery.standing.again]
    effects = [intent for intent in delivery.work.open_effects if not is_left or is_once(intent)]
    return rows + [_abandoned(intent, thread_id, str(delivery.to)) for intent in effects]


async def leftovers(ledger: Owners, rows: Sequence[Record], invocation_id: str, thread_id: str, to: str) -> list[Message]:
    """Return the rows that end the leftovers of a message, by the open calls of its thread."""
    parked = {row.message.parent_id for row in rows if option_of(row.message) == PARK}
    ends: list[Message] = []
    for message in await _following(ledger, [row.message for row in rows], invocation_id, thread_id):
        payload = message.payload
        assert isinstance(payload, OptionCallPayload)  # noqa: S101 (only calls are open)
        if message.lane == "effect" and payload.option_name in (AGAIN, STOP):
            ends.append(ended(payload.option_name, payload.invocation_id, thread_id=thread_id, parent_id=invocation_id))
        elif _is_effect(message) and payload.invocation_id not in parked:
            ends.append(_abandoned(message, thread_id, to))
        elif is_asked_of_itself(message):
            ends += await leftovers(ledger, rows, payload.invocation_id, thread_id, to)
            ends.append(_withdrawn(message, payload))
    return ends


async def _following(ledger: Owners, calls: Sequence[Message], invocation_id: str, thread_id: str) -> list[Message]:
    """Return the open calls that belong to a message: by their parent, or, for effects, by their id."""
    following = [call for call in calls if call.parent_id == invocation_id]
    for call in calls:
        below = is_below(call.invocation_id, invocation_id) and call.parent_id != invocation_id
        if below and _is_effect(call) and await owner_of(ledger, call, thread_id) == invocation_id:
            following.append(call)
    return following


async def owner_of(ledger: Owners, effect: Message, thread_id: str) -> str | None:
    """Return the message whose handler started an effect; None if the thread has none."""
    name = effect.invocation_id or ""
    while "/" in name:
        name = parent_of(name)
        rows = [record.message for record in await ledger.find(invocation_id=name, thread_id=thread_id)]
        if any(row.lane != "effect" or option_of(row) == DELIVER for row in rows):  # a call, or the DELIVER row of a notice
            return name
    return None


def thread_endings(rows: Sequence[Record], thread_id: str, busy: Collection[str], life: str) -> list[Message]:
    """Return the rows that end what is open in a terminated thread.

    Parked messages and effects stay open: a person must still settle them. So do the messages in `busy`, which are being
    handled, and messages to the actor `life`, which ends threads.
    """
    spared = {*busy, *(row.message.invocation_id for row in rows if row.message.to == (life,))}
    for row in rows:
        payload = row.message.payload
        if row.message.lane == "effect" and isinstance(payload, OptionCallPayload) and payload.option_name == PARK:
            effect = payload.arguments.get("effect")  # what it is parked for
            spared |= {payload.invocation_id, row.message.parent_id, effect if isinstance(effect, str) else None}
    ends: list[Message] = []
    for row in rows:
        call, payload = row.message, row.message.payload
        assert isinstance(payload, OptionCallPayload)  # noqa: S101 (only calls are open)
        ids = (call.invocation_id, call.parent_id)
        if not any(each and (each in ids or is_below(call.invocation_id, each)) for each in spared):
            ends.append(_thread_ending(call, payload, thread_id))
    return ends


def _thread_ending(call: Message, payload: OptionCallPayload, thread_id: str) -> Message:
    if _is_effect(call):
        return _abandoned(call, thread_id, call.policy, _TERMINATED)
    if call.lane == "effect":
        outcome = _TERMINATED if payload.option_name not in (AGAIN, STOP, TIMER) else {}
        return ended(payload.option_name, payload.invocation_id, thread_id=thread_id, parent_id=call.parent_id, **outcome)
    return _withdrawn(call, payload, _TERMINATED)


def _is_effect(call: Message) -> bool:
    return call.lane == "effect" and isinstance(call.payload, OptionCallPayload) and "effects" in call.payload.arguments


def is_asked_of_itself(message: Message) -> bool:
    """Whether a call is a question that an actor asks itself; the handler that asks answers it."""
    is_call = message.lane != "effect" and message.kind == "option_call"
    return is_call and message.parent_id is not None and message.to == (message.policy,)


def _abandoned(intent: Message, thread_id: str, to: str, outcome: dict[str, Any] = _WITHDRAWN) -> Message:
    """Return the row for an effect that was open when its handler ended: withdrawn, or parked if it must not run twice."""
    payload = intent.payload
    assert isinstance(payload, OptionCallPayload)  # noqa: S101 (it was made so)
    effect, option = payload.invocation_id, payload.option_name
    if is_once(intent):
        reason = f"nobody knows whether {option!r} was done: its handler was stopped meanwhile"
        evidence: dict[str, Json] = {"reason": reason, "to": to, "effect": effect, "option": option}
        return begun(PARK, park_id(effect), thread_id=thread_id, parent_id=effect, arguments=evidence)
    return ended(option, effect, thread_id=thread_id, parent_id=intent.parent_id, **outcome)


def _withdrawn(call: Message, payload: OptionCallPayload, outcome: dict[str, Any] = _WITHDRAWN) -> Message:
    result = OptionResultPayload(invocation_id=payload.invocation_id, option_name=payload.option_name, **outcome)
    row = Message(
        policy=RUNTIME_POLICY,
        payload=result,
        id=withdrawn_id(payload.invocation_id),
        thread_id=call.thread_id,
        to=(call.policy,),
        lane=call.lane,
        correlation_id=call.correlation_id,
        in_reply_to=call.id,
        parent_id=call.parent_id,
    )
    return row if call.lane != "talk" else row.model_copy(update={"role_hint_for_llm": "tool"})
