"""An outcome is written with the next intent, or after a moment; no effect begins before it is stored (G6)."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any, ParamSpec

import pytest
from tests.runtime.actors import taken_by_another, virtually

from antiphon.errors import (
    AppendConflictError,
    AppendRefusedError,
    FencedError,
    HistoryMismatchError,
    LedgerUnavailableError,
)
from antiphon.ledger import Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionResultPayload, dumps
from antiphon.runtime import Budget, Settings
from antiphon.runtime._journal import Journal
from antiphon.runtime._lease import Lease
from antiphon.runtime._rows import begun, ended

THREAD = "t"
P = ParamSpec("P")


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @wraps(test)
    def run(*args: P.args, **more: P.kwargs) -> None:
        virtually(test(*args, **more))

    return run


def intent(name: str) -> Message:
    return begun("act", name, thread_id=THREAD)


def outcome(name: str) -> Message:
    return ended("act", name, thread_id=THREAD, result="done")


class Watched(MemoryLedger):
    """A ledger that records how many rows each append had; the first ones may fail, or wait for a gate."""

    def __init__(self, *, fails: int = 0, **more: Any) -> None:
        super().__init__(**more)
        self.appended: list[int] = []
        self.fails = fails
        self.gate = asyncio.Event()
        self.gate.set()

    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        rows = list(messages)
        self.appended.append(len(rows))
        if self.fails:
            self.fails -= 1
            await self.gate.wait()
            raise LedgerUnavailableError("it cannot be written", thread_id)
        return await super().append(thread_id, rows, **more)

    async def ids(self) -> list[str]:
        return [record.message.id async for record in self.read(THREAD)]


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait before an append is tried again."""
    monkeypatch.setattr("antiphon.runtime._journal._DELAYS", ())


async def _begun(ledger: MemoryLedger, *names: str) -> Journal:
    journal = Journal(Lease(ledger, Settings(), tuple), Budget())
    await journal.write(THREAD, [intent(name) for name in names])
    return journal


@in_virtual_time
async def test_an_outcome_is_written_with_the_next_intent() -> None:
    ledger = Watched()
    journal = await _begun(ledger, "a")
    (stored,) = await journal.write_soon(THREAD, [outcome("a")])
    assert isinstance(stored.payload, OptionResultPayload)
    assert journal.waiting(THREAD) == 1
    (record,) = await journal.write(THREAD, [intent("b")], expected_version=2)
    assert (record.message.id, record.seq) == ("b@begun", 3)
    assert ledger.appended == [1, 2]
    assert await ledger.ids() == ["a@begun", "a@ended", "b@begun"]


@in_virtual_time
async def test_an_outcome_without_a_next_intent_is_written_after_a_moment() -> None:
    ledger = Watched()
    journal = await _begun(ledger, "a")
    await journal.write_soon(THREAD, [outcome("a")])
    await asyncio.sleep(0.004)
    assert await ledger.ids() == ["a@begun"]
    await asyncio.sleep(0.002)
    assert await ledger.ids() == ["a@begun", "a@ended"]
    assert journal.waiting(THREAD) == 0


@in_virtual_time
async def test_settle_and_close_wait_until_outcomes_are_written() -> None:
    ledger = Watched()
    journal = await _begun(ledger, "a", "b")
    await journal.write_soon(THREAD, [outcome("a")])
    await journal.settle(THREAD)
    await journal.settle(THREAD)  # nothing to do
    assert ledger.appended == [2, 1]
    await journal.write_soon(THREAD, [outcome("b")])
    await journal.close()
    assert await ledger.ids() == ["a@begun", "b@begun", "a@ended", "b@ended"]


def login() -> Message:
    return ended("act", "a", thread_id=THREAD, result={"password": "hunter2-and-more"})


@in_virtual_time
async def test_redacted_text_is_known_before_it_is_written() -> None:
    """S6, S7, G10: the caller acts on the text that will be stored, and it is written with the next intent."""
    ledger = Watched()
    journal = await _begun(ledger, "a")
    (stored,) = await journal.write_soon(THREAD, [login()])
    assert isinstance(stored.payload, OptionResultPayload)
    assert stored.payload.result == {"password": "[redacted:key]"}
    assert ledger.appended == [1]
    await journal.write(THREAD, [intent("b")])
    assert ledger.appended == [1, 2]
    bodies = [record.body async for record in ledger.read(THREAD)]
    assert bodies[1] == dumps(stored)


@in_virtual_time
async def test_an_outcome_is_redacted_by_the_rules_of_its_thread() -> None:
    """G2: a thread that began unredacted stays so, also where its owner does not wait for the ledger."""
    ledger = Watched(redaction="off")
    journal = await _begun(ledger, "a")
    given = login()
    assert await journal.write_soon(THREAD, [given]) == [given]
    await journal.settle(THREAD)
    assert (await ledger.append(THREAD, [given], epoch=1))[0].message == given


@in_virtual_time
async def test_nothing_is_lost_when_the_next_append_fails(no_patience: None) -> None:
    ledger = Watched()
    journal = await _begun(ledger, "a")
    await journal.write_soon(THREAD, [outcome("a")])
    ledger.fails = 1
    with pytest.raises(LedgerUnavailableError):
        await journal.write(THREAD, [intent("b")])
    with pytest.raises(AppendConflictError):
        await journal.write(THREAD, [intent("b")], expected_version=7)
    assert journal.waiting(THREAD) == 1
    await journal.write(THREAD, [intent("b")])
    assert await ledger.ids() == ["a@begun", "a@ended", "b@begun"]


@in_virtual_time
async def test_an_intent_beside_an_append_with_an_outcome_waits_for_the_outcome(no_patience: None) -> None:
    """The append with the outcome fails. The other append succeeds, and writes the outcome before its effect begins (G6)."""
    ledger = Watched()
    journal = await _begun(ledger, "a")
    await journal.write_soon(THREAD, [outcome("a")])
    ledger.fails = 1
    ledger.gate.clear()
    first = asyncio.create_task(journal.write(THREAD, [intent("b")]))
    await asyncio.sleep(0)
    second = asyncio.create_task(journal.write(THREAD, [intent("c")]))
    await asyncio.sleep(0)
    assert await ledger.ids() == ["a@begun", "c@begun"]
    assert not second.done()
    ledger.gate.set()
    (record,) = await second
    assert record.message.id == "c@begun"
    assert await ledger.ids() == ["a@begun", "c@begun", "a@ended"]
    with pytest.raises(LedgerUnavailableError):
        await first


@pytest.mark.parametrize("is_settled", [True, False])
@in_virtual_time
async def test_cancelling_a_writer_loses_no_outcome(is_settled: bool) -> None:
    """It is written, also if nobody writes again."""
    ledger = Watched()
    journal = await _begun(ledger, "a")
    await journal.write_soon(THREAD, [outcome("a")])
    ledger.fails = 1
    ledger.gate.clear()
    writing = asyncio.create_task(journal.write(THREAD, [intent("b")]))
    await asyncio.sleep(0)
    writing.cancel()
    await asyncio.wait([writing])
    await (journal.settle(THREAD) if is_settled else asyncio.sleep(2))
    assert await ledger.ids() == ["a@begun", "a@ended"]


@pytest.mark.parametrize("is_flushed", [False, True])
@in_virtual_time
async def test_a_refused_outcome_raises_once_in_the_next_write(
    is_flushed: bool,
) -> None:
    """A person has settled the call meanwhile: the run gets the error, and the thread can be written to again."""
    ledger = Watched()
    journal = await _begun(ledger, "a")
    await journal.write(THREAD, [outcome("a")])
    await journal.write_soon(THREAD, [ended("act", "a", thread_id=THREAD, result="something else")])
    if is_flushed:
        await asyncio.sleep(1)
        assert ledger.appended == [1, 1, 1]
    with pytest.raises(HistoryMismatchError, match="has another outcome than 'a@ended'"):
        await journal.write(THREAD, [intent("b")])
    await journal.write(THREAD, [intent("b")])
    assert await ledger.ids() == ["a@begun", "a@ended", "b@begun"]


@in_virtual_time
async def test_a_refused_message_does_not_keep_an_outcome_from_being_written() -> None:
    ledger = Watched()
    journal = await _begun(ledger, "a")
    await journal.write_soon(THREAD, [outcome("a")])
    with pytest.raises(AppendRefusedError, match="no call"):
        await journal.write(THREAD, [outcome("never begun")], expected_version=2)
    assert await ledger.ids() == ["a@begun", "a@ended"]


@in_virtual_time
async def test_a_history_from_elsewhere_does_not_loosen_the_rules_for_an_outcome() -> None:
    ledger = Watched()
    journal = await _begun(ledger, "a")
    await journal.write_soon(THREAD, [outcome("a")])
    await journal.write(THREAD, [outcome("from elsewhere")], allow_foreign=True)
    assert ledger.appended == [1, 1, 1]


@in_virtual_time
async def test_an_outcome_of_a_lost_thread_is_not_written() -> None:
    ledger = Watched()
    journal = await _begun(ledger, "a")
    await journal.write_soon(THREAD, [outcome("a")])
    await ledger.claim(THREAD)
    with pytest.raises(FencedError):
        await journal.settle(THREAD)
    assert journal.waiting(THREAD) == 0
    assert await ledger.ids() == ["a@begun"]


class Slow(Watched):
    """A ledger whose appends wait until they are let go, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[asyncio.Event] = []
        self.is_slow = False

    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        if self.is_slow:
            self.gates.append(gate := asyncio.Event())
            await gate.wait()
        return await super().append(thread_id, messages, **more)


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 1, 0), (2, 0, 1), (0, 2, 1)])
@pytest.mark.parametrize("wrong", ["nothing", "refused", "fenced"])
@in_virtual_time
async def test_concurrent_appends_with_outcomes_all_end(order: tuple[int, ...], wrong: str) -> None:
    """In any order, and whatever is wrong with the first outcome: no append waits for itself."""
    ledger = Slow()
    journal = await _begun(ledger, "a", "b")
    if wrong == "refused":
        await journal.write(THREAD, [outcome("a")])
    ledger.is_slow = True
    writing: list[asyncio.Task[Any]] = []
    for rows, name in (([ended("act", "a", thread_id=THREAD, result=wrong)], "c"), ([outcome("b")], "d"), ([], "e")):
        await journal.write_soon(THREAD, rows)
        writing.append(asyncio.create_task(journal.write(THREAD, [intent(name)])))
        await asyncio.sleep(0)
    if wrong == "fenced":
        await ledger.claim(THREAD)
    ledger.is_slow = False
    for number in order:
        ledger.gates[number].set()
        await asyncio.sleep(0)
    async with asyncio.timeout(1):
        ended_with = [type(each) for each in await asyncio.gather(*writing, return_exceptions=True)]
    assert ended_with == {"nothing": [tuple] * 3, "refused": [HistoryMismatchError, tuple, tuple]}.get(
        wrong, [FencedError] * 3
    )
    assert journal.waiting(THREAD) == 0
    if wrong != "fenced":
        assert {"b@ended", "d@begun", "e@begun"} <= set(await ledger.ids())


@in_virtual_time
async def test_the_loss_of_a_thread_raises_in_the_next_write() -> None:
    """It was found while no caller waited. Claiming the thread back in silence would give it two owners (G8)."""
    ledger = Watched()
    journal = await _begun(ledger, "a")
    epoch = await ledger.claim(THREAD)
    await journal.write_soon(THREAD, [outcome("a")])
    await asyncio.sleep(1)
    with pytest.raises(FencedError):
        await journal.settle(THREAD)
    await ledger.append(THREAD, [outcome("a")], epoch=epoch)  # the other is still the owner


@in_virtual_time
async def test_a_background_write_that_fails_is_tried_again(no_patience: None) -> None:
    ledger = Watched()
    journal = await _begun(ledger, "a")
    ledger.fails = 2
    await journal.write_soon(THREAD, [outcome("a")])
    await asyncio.sleep(10)
    assert await ledger.ids() == ["a@begun", "a@ended"]


@in_virtual_time
async def test_a_handler_that_an_eviction_cancels_puts_no_rows_back() -> None:
    """Otherwise they would be written under the next epoch of this host, or refused in the place of another writer's row."""
    ledger = Slow()
    journal = await _begun(ledger, "a")
    await journal.write_soon(THREAD, [outcome("a")])
    ledger.is_slow = True
    writing = asyncio.create_task(journal.write(THREAD, [intent("b")]))
    await asyncio.sleep(0)
    journal.give_up(THREAD, FencedError(THREAD, 1, 2))
    writing.cancel()
    await asyncio.wait([writing])
    journal.evicted(THREAD)
    assert journal.waiting(THREAD) == 0
    ledger.is_slow = False
    await journal.write(THREAD, [intent("c")])
    assert await ledger.ids() == ["a@begun", "c@begun"]


class SlowRules(Watched):
    """A ledger that takes a second to say which rules a thread has."""

    async def _is_redacted(self, thread_id: str) -> Any:
        await asyncio.sleep(1)
        return await super()._is_redacted(thread_id)


@in_virtual_time
async def test_an_outcome_whose_thread_is_lost_meanwhile_does_not_wait() -> None:
    journal = await _begun(SlowRules(), "a")
    writing = asyncio.create_task(journal.write_soon(THREAD, [outcome("a")]))
    await asyncio.sleep(0.5)
    journal.give_up(THREAD, FencedError(THREAD, 1, 2))
    journal.evicted(THREAD)
    with pytest.raises(FencedError):
        await writing
    assert journal.waiting(THREAD) == 0


@in_virtual_time
async def test_an_outcome_for_a_thread_of_another_host_is_dropped() -> None:
    ledger = Watched()
    await taken_by_another(ledger, THREAD)
    journal = Journal(Lease(ledger, Settings(), tuple), Budget())
    await journal.write_soon(THREAD, [outcome("a")])
    await asyncio.sleep(1)
    assert journal.waiting(THREAD) == 0
    assert not await ledger.ids()
