"""Rewards: ratings of messages, recorded later as rows of the control lane that name the message.

Rewards are training data. They are not talk, so no actor, policy or model of the thread observes them. Any caller may record
one; it need not own the thread. If a message has several rewards, the last one counts; the others stay in the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from antiphon.messages import (
    RESERVED_POLICIES,
    RUNTIME_POLICY,
    DataPart,
    JsonObject,
    Message,
    PartsPayload,
    current_port,
)

if TYPE_CHECKING:
    from antiphon.ledger._contract import Ledger

__all__ = ["Reward", "record_reward", "reward_in", "rewards_of"]

_TYPE: Final = "REWARD"


@dataclass(frozen=True, slots=True)
class Reward:
    """The rating of a message."""

    message_id: str
    value: float
    by: str
    """The author of the reward."""
    note: str | None = None
    """The reason for the value."""


async def record_reward(
    ledger: Ledger, thread_id: str, message_id: str, value: float, *, by: str, note: str | None = None
) -> Reward:
    """Record a reward for a message of a thread; the last reward of a message counts.

    Raises:
        ValueError: the value is not finite, the thread has no such message in the talk lane, or `by` is a reserved name.
        LedgerUnavailableError: the store is locked, full or failing.
    """
    value = float(value)
    if not isfinite(value):
        raise ValueError(f"a reward is a finite number, not {value!r}")
    if by in RESERVED_POLICIES:
        raise ValueError(f"{by!r} is reserved for the runtime; give the author's name")
    if not await _is_said(ledger, thread_id, message_id):
        raise ValueError(f"thread {thread_id!r} has no message {message_id!r} of the talk lane")
    said: dict[str, Any] = {"value": value, **({} if note is None else {"note": note})}
    row = Message(
        policy=by,
        payload=PartsPayload(parts=(DataPart(data={"type": _TYPE, "data": said}),)),
        to=(RUNTIME_POLICY,),
        lane="control",
        in_reply_to=message_id,
        created_at=current_port().now(),
    )
    await ledger.post(thread_id, row)
    return Reward(message_id, value, by, note)


async def rewards_of(ledger: Ledger, thread_id: str) -> dict[str, Reward]:
    """Return the last reward of each message of a thread, by message id."""
    found = [reward_in(record.message) async for record in ledger.read(thread_id)]
    return {each.message_id: each for each in found if each is not None}


def reward_in(message: Message) -> Reward | None:
    """Return the reward that a row records; None for any other row."""
    if message.lane != "control" or message.in_reply_to is None:
        return None
    match message.parts:
        case (DataPart(data=JsonObject() as said),) if said.get("type") == _TYPE:
            return _read(message.in_reply_to, message.policy, said.get("data"))
        case _:
            return None


def _read(message_id: str, by: str, data: object) -> Reward | None:
    if not isinstance(data, JsonObject):
        return None
    value, note = data.get("value"), data.get("note")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Reward(message_id, float(value), by, note if isinstance(note, str) else None)


async def _is_said(ledger: Ledger, thread_id: str, message_id: str) -> bool:
    async for record in ledger.read(thread_id, reverse=True):
        if record.message.id == message_id:
            return record.message.lane == "talk"
    return False
