"""The index of a thread: columns that a page draws from, window by window."""

import pytest

from antiphon import Message, OptionCallPayload, OptionResultPayload, PartsPayload, TextPart, service
from antiphon.errors import UnknownThreadError
from antiphon.ledger.memory import MemoryLedger


def _said(policy: str, text: str, to: tuple[str, ...] = ()) -> Message:
    return Message(policy=policy, to=to, payload=PartsPayload(parts=(TextPart(text=text),)))


async def _ledger() -> MemoryLedger:
    ledger = MemoryLedger()
    call = OptionCallPayload(invocation_id="i", option_name="search", arguments={})
    effect = OptionCallPayload(invocation_id="e", option_name="fetch", arguments={})
    failed = OptionResultPayload(
        invocation_id="e", option_name="fetch", is_error=True, error_type="GONE", error_message="no", retryable=False
    )
    found = OptionResultPayload(invocation_id="i", option_name="search", result=1)
    await ledger.append(
        "t",
        [
            _said("ada", "Look it up.", ("planner",)),
            Message(policy="planner", payload=call),
            Message(policy="runtime", lane="effect", payload=effect),
            Message(policy="runtime", lane="effect", payload=failed),
            Message(policy="search", payload=found),
            Message(policy="planner", payload=OptionCallPayload(invocation_id="o", option_name="APPROVE", arguments={})),
        ],
    )
    return ledger


async def test_the_index_has_a_number_for_each_message_in_each_column() -> None:
    found = await service.thread_index(await _ledger(), "t")

    assert [found.lanes[each] for each in found.lane] == ["talk", "talk", "effect", "effect", "talk", "talk"]
    assert [found.kinds[each] for each in found.kind] == ["said", "called", "called", "failed", "answered", "called"]
    assert [found.names[each] for each in found.sender] == ["ada", "planner", "runtime", "runtime", "search", "planner"]
    receivers = ["planner", "search", "fetch", "runtime", "planner", "APPROVE"]
    assert [found.names[each] for each in found.receiver] == receivers
    assert found.pair == (0, 5, 4, 3, 2, 0)
    assert [found.marks[each] for each in found.mark] == ["", "", "", "", "", "approval"]
    assert found.open == ((6, "o"),)
    assert (found.first, found.next, found.millis[0]) == (1, None, 0)


async def test_the_halves_of_a_call_in_two_windows_are_named_in_both() -> None:
    """So that a reader joins them."""
    ledger = await _ledger()
    first = await service.thread_index(ledger, "t", limit=2)
    second = await service.thread_index(ledger, "t", after=first.next or 0, limit=3)

    assert (first.first, first.open, first.next) == (1, ((2, "i"),), 2)
    assert (second.first, second.open, second.pair, second.next) == (3, ((5, "i"),), (4, 3, 0), 5)


async def test_an_index_of_nothing_is_refused_or_empty() -> None:
    with pytest.raises(UnknownThreadError):
        await service.thread_index(MemoryLedger(), "t")
    with pytest.raises(ValueError, match="one message or more"):
        await service.thread_index(await _ledger(), "t", limit=0)
    assert (await service.thread_index(await _ledger(), "t", after=6)).lane == ()
