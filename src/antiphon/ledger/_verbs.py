"""Functions over any store: rewards, replay, transitions and diff, heads and journals, and the preparation of a branch.

**Rewards** are ratings of messages, recorded later as rows of the control lane that name the message. They are training data,
not talk, so no actor, policy or model of the thread observes them. Any caller may record one; it need not own the thread. If a
message has several rewards, the last one counts; the others stay in the ledger.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from math import isfinite
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from antiphon.errors import ForgottenError, UnknownThreadError
from antiphon.ledger._records import Pairing, Record
from antiphon.ledger._unopened import check_opened
from antiphon.ledger._values import Diff, Fold, Head, ThreadJournal
from antiphon.messages import (
    RUNTIME_POLICY,
    Conversation,
    DataPart,
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
    from antiphon.ledger._contract import Ledger, Log, Owners


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
    ledger: Log, thread_id: str, message_id: str, value: float, *, by: str, note: str | None = None
) -> Reward:
    """Record a reward for a message of a thread; the last reward of a message counts.

    Raises:
        ValueError: the value is not finite, the thread has no such message in the talk lane, or `by` is a reserved name.
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


async def rewards_of(ledger: Log, thread_id: str) -> dict[str, Reward]:
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


async def _is_talk(ledger: Log, thread_id: str, message_id: str) -> bool:
    async for record in ledger.read(thread_id, reverse=True):
        if record.message.id == message_id:
            return record.message.lane == "talk"
    return False


# ---------------------------------------------------------------- replay, transitions, diff

StateT = TypeVar("StateT")


@overload
async def replay(log: Log, thread_id: str, *, upto: int | None = None) -> Conversation: ...
@overload
async def replay(log: Log, thread_id: str, fold: Fold[StateT], *, upto: int | None = None) -> StateT: ...
async def replay(
    log: Log, thread_id: str, fold: Fold[StateT] | None = None, *, upto: int | None = None
) -> Conversation | StateT:
    """Return a thread as a conversation, or the value of a fold, computed from its latest snapshot if there is one."""
    before = None if upto is None else upto + 1
    if fold is None:
        return Conversation([record.message async for record in log.read(thread_id, before=before)])
    snapshot = await log.snapshot(thread_id, fold.name, upto=upto)
    seq, state = (0, fold.initial) if snapshot is None else (snapshot[0], fold.load(snapshot[1]))
    async for record in log.read(thread_id, after=seq, before=before):
        state = fold.step(state, record.message)
    return state


async def transitions(log: Log, thread_id: str, *, reward: RewardFunction | None = None) -> tuple[Transition, ...]:
    """Return a thread as decisions: the observation, the chosen actions, their results.

    Each has the reward that was recorded for it (see `record_reward`). If `reward` is given, it is called with each
    transition and returns the reward to use.
    """
    messages = [record.message async for record in log.read(thread_id)]
    recorded = {row.message_id: row.value for message in messages if (row := reward_in(message)) is not None}
    talk = Conversation(message for message in messages if reward_in(message) is None)  # no policy observes a reward
    decisions = talk.transitions(reward=recorded)
    return decisions if reward is None else tuple(replace(decision, reward=reward(decision)) for decision in decisions)


async def diff(log: Log, left: str, right: str) -> Diff:
    """Compare two threads: return their common beginning, and the rest of each."""
    ours, theirs = [[record async for record in log.read(thread_id)] for thread_id in (left, right)]
    common = 0
    for mine, other in zip(ours, theirs, strict=False):
        if mine.hash != other.hash:
            moved = other.message.model_copy(update={"thread_id": mine.message.thread_id})
            if mine.message.id != moved.id or mine.message != moved:
                break
        common += 1
    return Diff(common, tuple(ours[common:]), tuple(theirs[common:]))


# ---------------------------------------------------------------- open calls, heads and journals

_PAGE: Final = 1000


async def open_calls_of(owners: Owners, option: str) -> AsyncIterator[Record]:
    """Yield the open calls of one option in all threads and lanes, oldest first; the message of each names its thread."""
    page = await owners.open_calls(option=option, limit=_PAGE)
    while True:
        for record in page.calls:
            yield record
        if page.next is None:
            return
        page = await owners.open_calls(option=option, page=page.next, limit=_PAGE)


async def heads_of(ledger: Ledger) -> tuple[Head, ...]:
    """Return the heads of all threads, by name. Keep them elsewhere, and pass them to `Ledger.verify` later."""
    heads: list[Head] = []
    page = None
    while True:
        threads = await ledger.threads(order="created_at", page=page, limit=_PAGE)
        heads += [thread.head for thread in threads.threads]
        page = threads.next
        if page is None:
            return tuple(sorted(heads, key=lambda head: head.thread_id))


async def journal_of(ledger: Ledger, thread_id: str) -> ThreadJournal:
    """Return the rows of a thread for `Ledger.restore`, and its wrapped key; of a branch, its own rows only.

    Raises:
        UnknownThreadError: there is no such thread.
    """
    thread = await ledger.thread(thread_id)
    if thread is None:
        raise UnknownThreadError("there is no such thread", thread_id)
    key = await ledger.keys.of(thread_id)
    if key is not None and key.wrapped is None:
        raise ForgottenError(thread_id)
    records = tuple([record async for record in ledger.read(thread_id, after=thread.forked_at or 0)])
    return ThreadJournal(thread_id, records, thread.forked_from, thread.forked_at, key)


# ---------------------------------------------------------------- branches


async def place_of_fork(log: Log, head: Head, at: int | None, at_step: int | None) -> int:
    """Return the place of the last message that a branch shares."""
    if at is not None and at_step is not None:
        raise ValueError("give at or at_step, not both")
    if at_step is not None:
        return await _end_of_step(log, head.thread_id, at_step)
    if at is None:
        return head.seq
    if not 0 <= at <= head.seq:
        raise ValueError(f"thread {head.thread_id!r} has the messages 1 to {head.seq}; there is no {at}")
    return at


async def _end_of_step(log: Log, thread_id: str, step: int) -> int:
    """Return the place of the last message of a step. If no message has a step number, each answer begins a step."""
    has_steps = False
    async for record in log.read(thread_id, reverse=True):
        if record.message.step_num == step:
            return record.seq
        has_steps = has_steps or record.message.step_num is not None
    ends = [] if has_steps else await _ends_of_answers(log, thread_id)
    if not 1 <= step <= len(ends):
        raise ValueError(f"thread {thread_id!r} has no message of step {step}")
    return ends[step - 1]


async def _ends_of_answers(log: Log, thread_id: str) -> list[int]:
    """Return the place of the last message of each answer.

    The results of its calls and effects belong to it, and the control rows about it, as those that save a conversation.
    """
    ends: list[int] = []
    exchange, is_open, is_next = None, False, False
    async for record in log.read(thread_id):
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


async def open_between(log: Log, thread_id: str, first: int, last: int) -> tuple[Pairing, list[Message]]:
    """Return the calls of all lanes that are open after a message, if none was open before another."""
    pairing = Pairing(first - 1)
    seen: dict[int, Message] = {}
    async for record in log.read(thread_id, first - 1, last + 1):
        pairing.add(record.seq, record.message)
        seen[record.seq] = record.message
    return pairing, [seen[call.seq] for call in pairing.open]


def closed_in_branch(call: Message, branch_id: str, thread_id: str) -> Message:
    """Return the result in a branch of a call that was open where the branch starts."""
    reason = f"The branch began while this call was open. Its outcome, if it has one, is in thread {thread_id!r}."
    result = OptionResultBuilder.response_to(call, policy=RUNTIME_POLICY).error("forked", reason)
    return result.model_copy(update={"thread_id": branch_id})
