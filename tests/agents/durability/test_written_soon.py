"""The outcome of a step is written with the start of the next one, which halves the appends to wait for (G6, G7)."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import pytest
from pydantic_ai import Agent
from tests.agents.durability.agents import Desk, call, script
from typing_extensions import override

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.errors import HistoryMismatchError, ParkedError, ReplyTimeoutError
from antiphon.ledger import Host, Ledger, Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, System, handles

THREAD = "order-42"


class Noting(MemoryLedger):
    """A ledger that notes the kinds of what was appended together."""

    def __init__(self) -> None:
        super().__init__()
        self.appends: list[str] = []
        self.outcome_alone = asyncio.Event()
        """Set when an outcome was appended by itself."""

    @override
    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        rows = list(messages)
        self.appends.append(" ".join(_words(row) for row in rows))
        if self.appends[-1] == "ended":
            self.outcome_alone.set()
        return await super().append(thread_id, rows, **more)


def _words(row: Message) -> str:
    kind = {"option_call": "begins", "option_result": "ended"}.get(row.kind, "says")
    return kind if row.lane == "effect" else "talk"


def _agent(ledger: Ledger, desk: Desk, tool: Any) -> Agent[None, str]:
    model = script(desk, [call("book", "1"), call("book", "2")], ["It is booked."])
    agent = Agent(model, name="clerk", capabilities=[LedgerDurability(ledger)])
    agent.tool_plain(name="book")(tool)
    return agent


async def test_the_end_of_a_step_and_the_start_of_the_next_are_one_append(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the tool runs, the answer that calls it is stored; when the agent has returned, everything is."""
    monkeypatch.setattr("antiphon.runtime._journal._FLUSH_AFTER", 60)  # however busy the machine is
    ledger = Noting()
    open_while: list[list[str]] = []

    both = asyncio.Barrier(2)

    async def book() -> str:
        records = await ledger.open_calls(THREAD)
        open_while.append(sorted(str(record.message.payload.option_name) for record in records))  # type: ignore[union-attr]
        await both.wait()
        return "done"

    async with ledger_run(THREAD):
        result = await _agent(ledger, Desk(), book).run("Book it.")
        assert result.output == "It is booked."
        (only,) = await ledger.open_calls(THREAD)  # the run itself
        assert only.message.invocation_id == f"{THREAD}/run"

    assert open_while[0] == ["RUN", "book", "book", "clerk__function_toolset__<agent>.call_tool:book"]  # and no request
    assert ledger.appends == [
        "begins talk begins",  # the run, the question, the request
        "talk talk ended begins",  # two calls, the answer is there, the first tool begins
        "begins",  # the second tool, beside it
        "ended ended talk talk begins",  # both tools, their results, the next request
        "talk ended",
        "ended",
    ]


@pytest.mark.parametrize("error", [ValueError("no room"), asyncio.CancelledError()])
async def test_however_an_agent_ends_all_its_rows_are_written(error: BaseException) -> None:
    ledger = Noting()
    first = asyncio.Event()

    async def book() -> str:
        if not first.is_set():
            first.set()
            return "done"
        await asyncio.sleep(0)
        raise error

    with suppress(ParkedError):  # a booking that was cancelled is settled first
        async with ledger_run(THREAD):
            with suppress(ValueError, asyncio.CancelledError):
                await _agent(ledger, Desk(), book).run("Book it.")
            rows = [record.message async for record in ledger.read(THREAD)]
            assert [row.id for row in rows if row.id.endswith("book:1@ended")]


async def test_no_request_is_written_twice_because_of_an_old_length_of_the_thread() -> None:
    """The second agent begins where the first has ended, and a slow tool beside a quick one delays no request."""
    ledger = Noting()
    slow = asyncio.Event()

    async def book() -> str:
        if not slow.is_set():
            slow.set()
            async with asyncio.timeout(10):
                await ledger.outcome_alone.wait()  # the other one is written by itself
        return "done"

    async with ledger_run(THREAD):
        for _ in range(2):
            await _agent(ledger, Desk(), book).run("Book it.")

    assert "ended" in ledger.appends[:-1]
    assert sum(each.endswith("begins") and "talk begins" in each for each in ledger.appends) == 4


async def test_nothing_is_written_to_a_run_that_is_finished() -> None:
    """A program that does more than is recorded is stopped, and writes nothing, not even a reading of the clock."""
    ledger = Noting()

    for is_more in (False, True):
        async with ledger_run(THREAD):
            agent = Agent(script(Desk(), ["Done."]), name="clerk", capabilities=[LedgerDurability(ledger)])
            await agent.run("Book it.")
            if is_more:
                rows = [record.seq async for record in ledger.read(THREAD)]
                with pytest.raises(HistoryMismatchError, match="the run is finished"):
                    await agent.run("Once more.", timeout=60)
                await asyncio.sleep(0.02)
                assert [record.seq async for record in ledger.read(THREAD)] == rows


class Booked(Reply, frozen=True, type="WRITTEN_SOON_BOOKED"):
    text: str


class Book(Request[Booked], frozen=True, type="WRITTEN_SOON_BOOK"):
    text: str


@pytest.mark.slow
async def test_an_agent_in_an_actor_whose_thread_was_taken_over_makes_no_further_request() -> None:
    """G8: the loss is noticed while a tool runs, when the outcome of a parallel tool is refused."""
    ledger, desk = Noting(), Desk()
    numbers = iter((1, 2))

    async def book() -> str:
        if next(numbers) == 1:
            return "done"
        other = Host("another", "build", lease=3600.0)
        await ledger.beat(other)
        await ledger.claim(THREAD)  # as if this process had slept past its lease
        await ledger.claim(THREAD, by=other)
        await asyncio.sleep(0.05)
        return "done"

    agent = _agent(ledger, desk, book)

    class Clerk(Actor):
        @handles
        async def book(self, request: Book, context: Context) -> Booked:
            async with ledger_run(context):
                return Booked(text=(await agent.run(request.text)).output)

    async with System(ledger) as system:
        system.spawn("clerk/1", Clerk)
        with pytest.raises(ReplyTimeoutError):  # the other process does not answer
            await system.ask("clerk/1", Book(text="Book it."), thread_id=THREAD, sender="client/1", within=5)

    assert desk.seen == ["model 0"]
