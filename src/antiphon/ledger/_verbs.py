"""Verbs that all stores share: rewards, replay, transitions and diff, and the preparation of a branch.

**Rewards** are ratings of messages, recorded later as rows of the control lane that name the message. They are training data,
not talk, so no actor, policy or model of the thread observes them. Any caller may record one; it need not own the thread. If a
message has several rewards, the last one counts; the others stay in the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, overload

from antiphon.errors import ForgottenError, UnknownThreadError
from antiphon.ledger._encryption import WrappedKey
from antiphon.ledger._records import Pairing, Record
from antiphon.ledger._redaction import LedgerRedaction
from antiphon.ledger._request import AppendRequest, check_name, make_request
from antiphon.ledger._signals import Signals
from antiphon.ledger._unopened import check_opened
from antiphon.ledger._values import Diff, Fold, Head, ThreadJournal, ThreadSummary
from antiphon.messages import (
    RUNTIME_POLICY,
    Conversation,
    DataPart,
    Json,
    JsonObject,
    Message,
    OptionResultBuilder,
    PartsPayload,
    RewardFunction,
    Transition,
    current_port,
)
from antiphon.messages._arguments import check_type
from antiphon.messages._message import RESERVED_POLICIES

if TYPE_CHECKING:
    from antiphon.ledger._contract import Ledger


# ---------------------------------------------------------------- rewards

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
    check_opened(ledger)
    check_type("a reward", value, float | int, "1.0")
    value = float(value)
    if not isfinite(value):
        raise ValueError(f"a reward is a finite number, not {value!r}")
    if by in RESERVED_POLICIES:
        raise ValueError(f"{by!r} is reserved for the runtime; give the author's name")
    if not await _is_talk(ledger, thread_id, message_id):
        raise ValueError(f"thread {thread_id!r} has no message {message_id!r} of the talk lane")
    rating: dict[str, Any] = {"value": value, **({} if note is None else {"note": note})}
    row = Message(
        policy=by,
        payload=PartsPayload(parts=(DataPart(data={"type": _TYPE, "data": rating}),)),
        to=(RUNTIME_POLICY,),
        lane="control",
        in_reply_to=message_id,
        created_at=current_port().now(),
    )
    await ledger.post(thread_id, row)
    return Reward(message_id, value, by, note)


async def rewards_of(ledger: Ledger, thread_id: str) -> dict[str, Reward]:
    """Return the last reward of each message of a thread, by message id."""
    check_opened(ledger)
    rewards = [reward_in(record.message) async for record in ledger.read(thread_id)]
    return {reward.message_id: reward for reward in rewards if reward is not None}


def reward_in(message: Message) -> Reward | None:
    """Return the reward that a row records; None for any other row."""
    if message.lane != "control" or message.in_reply_to is None:
        return None
    match message.parts:
        case (DataPart(data=JsonObject() as notice),) if notice.get("type") == _TYPE:
            return _read(message.in_reply_to, message.policy, notice.get("data"))
        case _:
            return None


def _read(message_id: str, by: str, data: object) -> Reward | None:
    if not isinstance(data, JsonObject):
        return None
    value, note = data.get("value"), data.get("note")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Reward(message_id, float(value), by, note if isinstance(note, str) else None)


async def _is_talk(ledger: Ledger, thread_id: str, message_id: str) -> bool:
    async for record in ledger.read(thread_id, reverse=True):
        if record.message.id == message_id:
            return record.message.lane == "talk"
    return False


# ---------------------------------------------------------------- replay, transitions, diff, branches

StateT = TypeVar("StateT")


class _Store(Protocol):
    """The methods of a store that `Verbs` uses."""

    @property
    def redaction(self) -> LedgerRedaction: ...

    def read(
        self, thread_id: str, after: int = 0, before: int | None = None, reverse: bool = False
    ) -> AsyncIterator[Record]: ...
    async def head(self, thread_id: str) -> Head: ...
    async def thread(self, thread_id: str) -> ThreadSummary | None: ...
    async def open_from(self, thread_id: str, seq: int) -> int | None: ...
    async def latest_snapshot(self, thread_id: str, fold: str, upto: int) -> tuple[int, Json] | None: ...
    async def branch(self, head: Head, at: int, pairing: Pairing, closing: AppendRequest) -> ThreadSummary: ...
    async def wrapped_key(self, thread_id: str) -> WrappedKey | None: ...


class Verbs:
    """The base class of stores; it needs the methods of `_Store`."""

    signals: Signals | None = None
    """The carrier of signals to other processes, if the store was given one."""

    async def hinted(self, after: int, within: float) -> int:
        await asyncio.sleep(within)
        return after

    @overload
    async def replay(self: _Store, thread_id: str, *, upto: int | None = None) -> Conversation: ...
    @overload
    async def replay(self: _Store, thread_id: str, fold: Fold[StateT], *, upto: int | None = None) -> StateT: ...
    async def replay(
        self: _Store, thread_id: str, fold: Fold[StateT] | None = None, *, upto: int | None = None
    ) -> Conversation | StateT:
        before = None if upto is None else upto + 1
        if fold is None:
            return Conversation([record.message async for record in self.read(thread_id, before=before)])
        last = (await self.head(thread_id)).seq if upto is None else upto
        snapshot = await self.latest_snapshot(thread_id, fold.name, last)
        seq, state = (0, fold.initial) if snapshot is None else (snapshot[0], fold.load(snapshot[1]))
        async for record in self.read(thread_id, after=seq, before=before):
            state = fold.step(state, record.message)
        return state

    async def transitions(self: _Store, thread_id: str, *, reward: RewardFunction | None = None) -> tuple[Transition, ...]:
        messages = [record.message async for record in self.read(thread_id)]
        recorded = {row.message_id: row.value for message in messages if (row := reward_in(message)) is not None}
        talk = Conversation(message for message in messages if reward_in(message) is None)  # no policy observes a reward
        transitions = talk.transitions(reward=recorded)
        return (
            transitions
            if reward is None
            else tuple(replace(transition, reward=reward(transition)) for transition in transitions)
        )

    async def is_encrypted(self: _Store, thread_id: str) -> bool:
        return await self.wrapped_key(thread_id) is not None

    async def journal(self: _Store, thread_id: str) -> ThreadJournal:
        thread = await self.thread(thread_id)
        if thread is None:
            raise UnknownThreadError("there is no such thread", thread_id)
        lock = await self.wrapped_key(thread_id)
        if lock is not None and lock.wrapped is None:
            raise ForgottenError(thread_id)
        records = tuple([record async for record in self.read(thread_id, after=thread.forked_at or 0)])
        return ThreadJournal(thread_id, records, thread.forked_from, thread.forked_at, lock)

    async def diff(self: _Store, left: str, right: str) -> Diff:
        ours, theirs = [[record async for record in self.read(thread_id)] for thread_id in (left, right)]
        common = 0
        for mine, other in zip(ours, theirs, strict=False):
            if mine.hash != other.hash:
                moved = other.message.model_copy(update={"thread_id": mine.message.thread_id})
                if mine.message.id != moved.id or mine.message != moved:
                    break
            common += 1
        return Diff(common, tuple(ours[common:]), tuple(theirs[common:]))

    async def fork(
        self: _Store, thread_id: str, *, at: int | None = None, at_step: int | None = None, into: str | None = None
    ) -> ThreadSummary:
        head = await self.head(thread_id)
        if await self.thread(thread_id) is None:
            raise UnknownThreadError("there is no such thread", thread_id)
        lock = await self.wrapped_key(thread_id)
        if lock is not None and lock.wrapped is None:
            raise ForgottenError(thread_id)
        place = await _place(self, head, at, at_step)
        branch_id = current_port().new_id() if into is None else into
        check_name(branch_id, "a thread's id")
        self.redaction.check_name(branch_id, "the name of a thread")
        pairing, calls = await _open_at(self, thread_id, place)
        results = [_closed(call, branch_id, thread_id) for call in calls]
        closing = make_request(branch_id, results, redaction=self.redaction, allow_foreign=True)
        return await self.branch(head, place, pairing, closing)


async def _place(store: _Store, head: Head, at: int | None, at_step: int | None) -> int:
    if at is not None and at_step is not None:
        raise ValueError("give at or at_step, not both")
    if at_step is not None:
        return await _end_of_step(store, head.thread_id, at_step)
    if at is None:
        return head.seq
    if not 0 <= at <= head.seq:
        raise ValueError(f"thread {head.thread_id!r} has the messages 1 to {head.seq}; there is no {at}")
    return at


async def _end_of_step(store: _Store, thread_id: str, step: int) -> int:
    """Return the place of the last message of a step. If no message has a step number, each answer begins a step."""
    has_steps = False
    async for record in store.read(thread_id, reverse=True):
        if record.message.step_num == step:
            return record.seq
        has_steps = has_steps or record.message.step_num is not None
    ends = [] if has_steps else await _ends_of_answers(store, thread_id)
    if not 1 <= step <= len(ends):
        raise ValueError(f"thread {thread_id!r} has no message of step {step}")
    return ends[step - 1]


async def _ends_of_answers(store: _Store, thread_id: str) -> list[int]:
    """Return the place of the last message of each answer.

    The results of its calls and effects belong to it, and the control rows about it, as those that save a conversation.
    """
    ends: list[int] = []
    exchange, is_open, is_next = None, False, False
    async for record in store.read(thread_id):
        message = record.message
        is_answer = message.lane == "talk" and message.role_hint_for_llm == "assistant"
        if is_answer and (not is_open or message.correlation_id is None or message.correlation_id != exchange):
            exchange, is_open, is_next = message.correlation_id, True, False
            ends.append(record.seq)
        elif is_open and (is_answer or message.kind == "option_result" or (message.lane == "control" and not is_next)):
            ends[-1], is_next = record.seq, False
        elif is_open and message.kind == "option_call":
            is_next = True  # a control row after it may be about the next answer
        elif message.lane == "talk":
            is_open = False  # the next question
    return ends


async def _open_at(store: _Store, thread_id: str, seq: int) -> tuple[Pairing, list[Message]]:
    """Return the calls of all lanes that are open after a message. It reads back to the last place without open calls."""
    first = await store.open_from(thread_id, seq)
    if first is None:
        return Pairing(), []
    pairing = Pairing(first - 1)
    seen: dict[int, Message] = {}
    async for record in store.read(thread_id, first - 1, seq + 1):
        pairing.add(record.seq, record.message)
        seen[record.seq] = record.message
    return pairing, [seen[call.seq] for call in pairing.open]


def _closed(call: Message, branch_id: str, thread_id: str) -> Message:
    """Return the result in a branch of a call that was open where the branch starts."""
    reason = f"The branch began while this call was open. Its outcome, if it has one, is in thread {thread_id!r}."
    result = OptionResultBuilder.response_to(call, policy=RUNTIME_POLICY).error("forked", reason)
    return result.model_copy(update={"thread_id": branch_id})
