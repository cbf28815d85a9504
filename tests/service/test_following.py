"""`follow`: every record once and in order, from any writer; words beside them, for a reader that keeps up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
from tests.cli.ledgers import exchange, text
from tests.patterns.chains import QUESTION, chain_on, known
from typing_extensions import override

from antiphon.errors import PlaceError, UnknownThreadError
from antiphon.ledger import Ledger, Record, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.postchain._chain import ChainEvents
from antiphon.service import ChainRunner, Followed, follow, replay_thread
from antiphon.service._following import OnText, TextDelta, chain_text

pytest.importorskip("apsw")


async def first(count: int, found: AsyncIterator[Followed]) -> list[Followed]:
    async with aclosing(cast("Any", found)) as following:
        return [await anext(following) for _ in range(count)]


async def spoken(ledger: Ledger, thread_id: str, *words: str) -> None:
    for each in words:
        await ledger.append(thread_id, [text(each)])


async def test_a_reader_that_was_cut_goes_on_from_its_cursor_without_a_gap_or_a_repeat(tmp_path: Path) -> None:
    """Another process writes meanwhile."""
    url = f"sqlite:///{tmp_path}/ledger.db"
    async with open_ledger(url) as ledger, open_ledger(url) as elsewhere:
        await spoken(ledger, "t", *map(str, range(6)))
        seen: list[int] = []
        cursor = None
        for _ in range(5):
            (each,) = await first(1, follow(ledger, "t", cursor))
            assert each.record is not None
            seen.append(each.record.seq)
            cursor = each.cursor
        reading = asyncio.create_task(first(3, follow(ledger, "t", cursor)))
        await spoken(elsewhere, "t", "6", "7")
        seen += [each.record.seq for each in await reading if each.record is not None]
        assert seen == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_all_threads_are_followed_in_the_order_of_commits() -> None:
    ledger = MemoryLedger()
    await spoken(ledger, "a", "1")
    await spoken(ledger, "b", "2")
    await spoken(ledger, "a", "3")
    found = await first(3, follow(ledger))
    assert [each.record.message.thread_id for each in found if each.record is not None] == ["a", "b", "a"]


async def test_a_slow_reader_loses_words_and_no_record() -> None:
    """It is told how many words it has lost. Nothing is kept for it but the latest words."""
    ledger = MemoryLedger()
    await spoken(ledger, "t", "1", "2")
    hears: list[OnText] = []

    def words(thread_id: str, hear: OnText) -> AbstractAsyncContextManager[None]:
        assert thread_id == "t"
        hears.append(hear)
        return nullcontext()

    async with aclosing(cast("Any", follow(ledger, "t", live_text=words, most=3))) as following:
        stored = [await anext(following)]
        for number in range(10):
            hears[0](TextDelta("ada", str(number)))
        stored.append(await anext(following))
        heard = [await anext(following) for _ in range(3)]
        for number in range(500):
            hears[0](TextDelta("ada", str(number)))
            await spoken(ledger, "t", str(number))
        later = [await anext(following) for _ in range(503)]

    assert [each.record.seq for each in stored] == [1, 2]
    assert [(each.delta.text, each.delta.missed) for each in heard] == [("7", 7), ("8", 0), ("9", 0)]
    assert [each.cursor for each in heard] == [stored[-1].cursor] * 3
    assert [each.record.seq for each in later if each.record is not None] == list(range(3, 503))
    assert [each.delta.text for each in later if each.delta is not None] == ["497", "498", "499"]


@pytest.mark.slow
async def test_the_words_of_a_chain_come_between_its_records() -> None:
    """The words of the last phase, joined, are the answer; and the records are those of the ledger."""
    ledger = await known()
    async with chain_on(ledger) as chain:
        thread_id = await chain.create(QUESTION)
        found: list[Followed] = []
        arrived = asyncio.Event()

        async def read() -> None:
            async for each in follow(ledger, thread_id, live_text=chain_text(chain)):
                found.append(each)
                arrived.set()

        reading = asyncio.create_task(read())
        await asyncio.sleep(0.01)
        await chain.start(thread_id)
        result = await chain.wait(thread_id)
        head = (await ledger.head(thread_id)).seq
        (last,) = [record async for record in ledger.read(thread_id, head - 1, head + 1)]
        while not any(each.record == last for each in found):
            await arrived.wait()
            arrived.clear()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    said = "".join(each.delta.text for each in found if each.delta is not None and each.delta.speaker == "yield")
    assert said
    assert said in (result.response or "")
    seen = [each.record.seq for each in found if each.record is not None]
    assert (seen, seen[-1] >= head) == (list(range(1, len(seen) + 1)), True)
    assert not chain._chain.events._listeners


async def test_following_an_unknown_thread_or_cursor_is_a_typed_error() -> None:
    ledger = MemoryLedger()
    with pytest.raises(UnknownThreadError):
        await first(1, follow(ledger, "nobody"))
    await spoken(ledger, "t", "1")
    with pytest.raises(PlaceError):
        await first(1, follow(ledger, "t", "no cursor"))


@pytest.mark.slow
async def test_events_of_a_chain_are_bounded_and_none_that_is_recorded_is_lost() -> None:
    """A reader that is slow by more than a few events gets them from the ledger, in order and once."""
    ledger = await known()
    async with chain_on(ledger) as chain:
        thread_id = await chain.create(QUESTION)
        events = cast("Any", chain._chain.events.follow(thread_id, most=2))
        begun = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        await chain.start(thread_id)
        await chain.wait(thread_id)  # all of it happens before the reader asks for the second event
        found = [await begun, *[event async for event in events]]
    played = [each.event for each in await replay_thread(ledger, thread_id)]
    assert [each.seq for each in found if each.seq is not None] == [each.seq for each in played if each.seq > found[0].seq - 1]
    assert found[-1].kind == "ended"
    assert [each.phase for each in found if each.seq is not None][-3:] == [each.phase for each in played][-3:]


@pytest.mark.slow
async def test_a_run_is_reported_with_what_it_took() -> None:
    ledger = await known()
    async with chain_on(ledger) as chain:
        heard: list[str] = []
        report = await ChainRunner(chain).ask(QUESTION, on_event=lambda event: heard.append(event.kind))
    assert (report.status, report.was_interrupted, report.models) == ("completed", False, ("teller",))
    assert report.to_json()["response"] == report.response
    assert heard[-1] == "ended"


class SlowLedger(MemoryLedger):
    """A ledger that reads when it is told to, as one on a slow disk may."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_read = asyncio.Event(), asyncio.Event()

    @override
    async def read(
        self, thread_id: str, after: int = 0, before: int | None = None, reverse: bool = False
    ) -> AsyncIterator[Record]:
        self.asked.set()
        await self.may_read.wait()
        async for record in super().read(thread_id, after, before, reverse):
            yield record


async def test_an_event_that_was_read_from_the_ledger_does_not_come_again() -> None:
    """It was written, and kept for the reader, while the reader was about to read the ledger."""
    ledger = SlowLedger()
    events = ChainEvents(ledger)

    async def called() -> None:
        for record in await ledger.append("t", exchange(1, "Oslo")):
            events.seen(record)

    following = cast("Any", events.follow("t", most=2))
    begun = asyncio.create_task(anext(following))
    await asyncio.sleep(0)
    for _ in range(3):
        await called()
    found = [await begun, await anext(following)]
    third = asyncio.create_task(anext(following))
    await ledger.asked.wait()
    await called()
    ledger.may_read.set()
    found += [await third, *[await anext(following) for _ in range(5)]]
    await called()
    found += [await anext(following) for _ in range(2)]
    await following.aclose()
    assert [event.seq for event in found] == list(range(1, 11))
