"""The door decides as a conversation would, and what it refuses has the code that `check` gives it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.ledger.histories import answered, called, everything, said, with_ledger
from tests.strategies import messages, names

from antiphon import Conversation, Message, OptionCallPayload, OptionResultPayload
from antiphon.checks import check
from antiphon.errors import AppendRefusedError
from antiphon.ledger import Ledger
from antiphon.ledger._records import OpenCalls, Pairing
from antiphon.ledger._request import make_request
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import dumps


def call_or_result(is_call: bool, invocation: str, option: str, lane: str, turn: str | None) -> Message:
    fields: Any = {"policy": "p", "lane": lane, "turn_id": turn}
    if is_call:
        return Message(payload=OptionCallPayload(invocation_id=invocation, option_name=option, arguments={}), **fields)
    return Message(payload=OptionResultPayload(invocation_id=invocation, option_name=option), **fields)


few = st.sampled_from(["a", "b"])
exchanges = st.lists(
    st.one_of(
        st.builds(
            call_or_result, st.booleans(), few, few, st.sampled_from(["talk", "effect"]), st.sampled_from([None, "t1", "t2"])
        ),
        st.builds(said),
    ),
    max_size=14,
)


@given(exchanges)
def test_a_result_answers_the_call_that_a_conversation_says(history: list[Message]) -> None:
    """Also where ids are used again, calls stay open and results have no call."""
    pairing, conversation = Pairing(), Conversation(history)
    answers: dict[int, int] = {}
    for seq, message in enumerate(history, start=1):
        pairing.add(seq, message)
        if pairing.answered is not None:
            answers[pairing.answered.seq] = seq

    found = {
        index + 1: history.index(answer) + 1 for index in range(len(history)) if (answer := conversation.answer_at(index))
    }
    calls = [seq for seq, message in enumerate(history, start=1) if message.kind == "option_call"]
    assert answers == found
    assert [call.seq for call in pairing.open] == [seq for seq in calls if seq not in found]


@given(exchanges, st.data())
def test_pairing_goes_on_from_what_is_open_and_leaves_that_as_it_is(history: list[Message], data: st.DataObject) -> None:
    """What an append opened and closed is the difference that it makes; a refused one has changed nothing."""
    place = data.draw(st.integers(0, len(history)))
    whole, first = Pairing(), Pairing()
    for seq, message in enumerate(history, start=1):
        whole.add(seq, message)
        if seq <= place:
            first.add(seq, message)

    before = OpenCalls(first.open)
    then = Pairing(first.run, before, first.open_from)
    for seq, message in enumerate(history[place:], start=place + 1):
        then.add(seq, message)

    assert (then.open, then.run, then.open_from) == (whole.open, whole.run, whole.open_from)
    assert (list(before), len(before)) == (first.open, first.count)
    assert list(then.opened.values()) == [call for call in whole.open if call not in first.open]
    assert sorted(then.closed) == [call.seq for call in first.open if call not in whole.open]
    before.change(then.changed)
    assert (list(before), len(before)) == (whole.open, whole.count)


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_an_append_does_not_go_through_the_calls_that_are_open(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a thread with a thousand open calls takes the next message as one with none does."""

    async def work(ledger: Ledger) -> None:
        calls = [called() for _ in range(100)]
        await ledger.append("t", calls)
        with monkeypatch.context() as during:
            during.setattr(OpenCalls, "__iter__", pytest.fail)
            await ledger.append("t", [answered(calls[50]), said(), called()])
            with pytest.raises(AppendRefusedError):
                await ledger.append("t", [answered(calls[51]), answered(calls[50], 2)])
        expected = [call.id for call in calls if call is not calls[50]]
        assert [record.message.id for record in await ledger.open_calls("t")][:-1] == expected
        assert (await ledger.verify()).is_whole

    with_ledger(None if store == "memory" else tmp_path / "ledger.db", work)


@given(exchanges.filter(bool), st.data())
def test_open_calls_at_a_place_are_found_from_the_oldest_one_on(history: list[Message], data: st.DataObject) -> None:
    """A fork looks back as far as the note beside the row says, and finds the same calls."""

    async def run() -> None:
        ledger = MemoryLedger()
        await ledger.append("t", history, allow_foreign=True)
        count = (await ledger.head("t")).seq
        place = data.draw(st.integers(0, count))
        whole = Pairing()
        for record in (await everything(ledger))[:place]:
            whole.add(record.seq, record.message)
        branch = await ledger.fork("t", at=place)
        closing = (await everything(ledger, branch.thread_id))[place:]
        assert [record.message.in_reply_to for record in closing] == [
            (await everything(ledger))[call.seq - 1].message.id for call in whole.open
        ]
        assert branch.open_calls == 0
        assert (await ledger.verify()).is_whole

    asyncio.run(run())


@pytest.mark.slow
@given(messages, names)
def test_stamping_a_thread_gives_the_bytes_of_a_message_that_has_it(message: Message, thread_id: str) -> None:
    """Whatever the message: the field is at its place, and nothing else is touched."""
    bare = message.model_copy(update={"thread_id": None})

    (entry,) = make_request(thread_id, [bare]).entries

    assert entry.body == dumps(bare.model_copy(update={"thread_id": thread_id}))


def other_option(call: Message) -> Message:
    result = answered(call)
    return result.model_copy(update={"payload": result.payload.model_copy(update={"option_name": "other"})})


def orphan() -> list[Message]:
    return [answered(called())]


def second_result() -> list[Message]:
    call = called()
    return [call, answered(call), answered(call, 2)]


def duplicate_id() -> list[Message]:
    return [said("one", id="same"), said("two", id="same")]


def mismatch() -> list[Message]:
    call = called()
    return [call, other_option(call)]


@pytest.mark.parametrize("wrong", [orphan, second_result, duplicate_id, mismatch])
def test_a_refused_append_has_the_code_that_check_gives(wrong: Callable[[], list[Message]]) -> None:
    async def run() -> AppendRefusedError:
        with pytest.raises(AppendRefusedError) as caught:
            await MemoryLedger().append("t", history)
        return caught.value

    history = wrong()
    error = asyncio.run(run())

    assert (error.message_id, error.retryable) == (history[-1].id, False)
    assert error.code in str(error)
    assert error.code in {finding.code for finding in check(Conversation(history))}


def test_a_refused_message_leaves_no_trace() -> None:
    async def run(ledger: Ledger) -> None:
        with pytest.raises(AppendRefusedError, match="'look' was called, in message 2, and this is a result of another"):
            await ledger.append("t", [said(), *mismatch()])
        assert await ledger.thread("t") is None
        assert await everything(ledger) == []

    asyncio.run(run(MemoryLedger()))


def test_a_retry_is_no_news_even_where_a_new_message_would_be_refused() -> None:
    """G2: a lost answer is settled by sending the same again: version, result and call as they were."""

    async def run(ledger: Ledger) -> None:
        call = called()
        result = answered(call)
        first = await ledger.append("t", [said(), call, result], expected_version=0)
        await ledger.append("t", [said()])
        assert await ledger.append("t", [first[0].message, call, result], expected_version=0) == first
        assert len(await everything(ledger)) == 4

    asyncio.run(run(MemoryLedger()))
