"""Which process may start a step in a thread, and when: one owner at a time, and only after admission. G7, G12."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic_ai import Agent, ModelResponse
from pydantic_ai.models.function import FunctionModel
from tests.agents.durability.agents import Desk, call, clerk, script

from antiphon import open_ledger
from antiphon.agents import AgentBudget, LedgerDurability
from antiphon.durable import ledger_run, runs
from antiphon.errors import BudgetExceededError, FencedError, ParkedError
from antiphon.ledger import Ledger, Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import System


class DiedError(BaseException):
    """Ends the program as a kill does."""


async def test_a_process_that_lost_its_thread_does_not_take_it_back_and_repeats_no_step_of_the_new_owner(
    tmp_path: Any,
) -> None:
    """G7: also if the program goes on after the first error, as one that catches all errors does."""
    desk, url = Desk(), f"sqlite:///{tmp_path}/ledger.db"
    is_paying, is_over = asyncio.Event(), asyncio.Event()

    async def pay(key: str) -> str:
        desk.note("the other pays")
        is_paying.set()
        await is_over.wait()
        return "paid"

    async def pay_again(key: str) -> str:
        desk.note("the first pays")
        return "paid"

    async def other_process() -> Any:
        async with open_ledger(url) as ledger:
            (first,) = await ledger.hosts()
            await ledger.leave(first.host)  # as if the first had slept past its lease
            async with ledger_run("t", ledger=ledger) as run:
                return await run.effect("pay", {}, pay)

    async def first_process(ledger: Ledger) -> None:
        async with ledger_run("t", ledger=ledger) as run:
            others.append(asyncio.create_task(other_process()))
            await is_paying.wait()
            for key in ("look", "pay"):
                with pytest.raises(FencedError):
                    await run.effect(key, {}, pay_again)
                assert isinstance(run.course.evicted, FencedError)
            with pytest.raises(FencedError):
                async with ledger_run("t", id="second", ledger=ledger):
                    pass

    others: list[asyncio.Task[Any]] = []
    async with open_ledger(url) as ledger:
        with pytest.raises(FencedError):
            await first_process(ledger)
        is_over.set()
        assert await others[0] == "paid"
        async with ledger_run("t", ledger=ledger) as run:
            assert await run.effect("pay", {}, pay_again) == "paid"
    assert desk.taken() == ["the other pays"]


class Looked(MemoryLedger):
    """A ledger in which another process claims the thread right after an effect was looked up."""

    effect: str | None = None

    async def find(self, **names: Any) -> tuple[Record, ...]:
        found = await super().find(**names)
        if names.get("invocation_id", "") == self.effect:
            await self.claim(names["thread_id"])
        return found


@pytest.mark.parametrize("what", ["effect", "model", "tool"])
async def test_a_process_that_lost_its_thread_repeats_no_step_of_an_earlier_one(what: str) -> None:
    """G8, F14: a model is not asked and a tool is not called again, because the row of the new attempt is refused."""
    ledger, desk = Looked(), Desk()

    async def look(key: str) -> None:
        desk.note(f"look {key}")
        raise DiedError

    def models(messages: Any, info: Any) -> Any:
        if what == "model":
            desk.note("model")
            raise DiedError
        return ModelResponse([call("look_up", "c1")])

    async def look_up() -> str:
        desk.note("tool")
        raise DiedError

    async def work() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            if what == "effect":
                await run.effect("look", {}, look, effects="idempotent")
            durability = LedgerDurability[None](ledger, effects={"look_up": "idempotent"})
            await Agent(FunctionModel(models), name="clerk", tools=[look_up], capabilities=[durability]).run("go")

    with pytest.raises(DiedError):
        await work()
    *_, begun = [record.message for record in await ledger.open_calls("t") if record.message.lane == "effect"]
    assert len(desk.taken()) == 1
    ledger.effect = begun.invocation_id
    with pytest.raises(FencedError):
        await work()
    assert desk.taken() == []
    ledger.effect = None
    with pytest.raises(DiedError):
        await work()
    assert len(desk.taken()) == 1


async def test_reading_a_finished_run_takes_the_thread_from_nobody() -> None:
    """G8: a run beside it in the same thread goes on."""
    ledger = MemoryLedger()

    async def look(key: str) -> str:
        return key

    async with ledger_run("t", id="first", ledger=ledger) as run:
        await run.effect("look", {}, look)
    async with ledger_run("t", id="second", ledger=ledger) as second:
        await second.effect("look", {}, look)
        async with ledger_run("t", id="first", ledger=ledger) as run:
            assert await run.effect("look", {}, look) == "t/first/look"
        assert await second.effect("look", {}, look) == "t/second/look=2"


async def test_while_a_thread_is_paused_no_model_is_asked_and_no_tool_is_started() -> None:
    """G12, for runs outside of actors: every step passes `admit` first, and none passes while it waits."""
    ledger, desk, waits, lets_on = MemoryLedger(), Desk(), asyncio.Queue[str](), asyncio.Queue[None]()

    @asynccontextmanager
    async def gate(thread_id: str) -> AsyncGenerator[None, None]:
        waits.put_nowait(thread_id)
        await lets_on.get()
        yield

    async def work() -> str:
        async with ledger_run("t", admit=gate):
            agent = clerk(ledger, desk, script(desk, [call("refund", "c1", amount=1)], ["done"]))
            return str((await agent.run("go")).output)

    working = asyncio.create_task(work())
    for seen in ([], ["model 0"], ["refund 1"]):
        assert await waits.get() == "t"
        assert desk.taken() == seen
        lets_on.put_nowait(None)
    assert await working == "done"
    assert desk.taken() == ["model 1"]


async def test_after_a_thread_is_terminated_nothing_begins_in_it() -> None:
    """G12: an exception of `admit` is raised, and no row says that a step started."""
    ledger, desk = MemoryLedger(), Desk()

    @asynccontextmanager
    async def closed(thread_id: str) -> AsyncGenerator[None, None]:
        raise BudgetExceededError(f"thread {thread_id!r} is terminated")
        yield

    for _ in range(2):
        with pytest.raises(BudgetExceededError, match="terminated"):
            async with ledger_run("t", admit=closed):
                await clerk(ledger, desk, script(desk, ["done"])).run("go")
    assert desk.taken() == []
    assert not [row async for row in ledger.read("t") if "model" in (row.message.invocation_id or "")]


@pytest.mark.slow
async def test_agents_in_parallel_know_the_whole_thread_before_they_spend(tmp_path: Any) -> None:
    """The budget counts all rows of the thread, not only those that another agent has read so far."""
    desk = Desk()
    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:

        def agent() -> Agent[None, str]:
            durability = LedgerDurability[None](ledger, thread_budget=AgentBudget(requests=2))
            return Agent(script(desk, ["hi"]), name="clerk", capabilities=[durability])

        for number in range(2):
            async with ledger_run("t", id=f"run {number}"):
                await agent().run("hello")
        desk.taken()
        async with ledger_run("t", id="both"):
            found = await asyncio.gather(*(agent().run("hello") for _ in range(3)), return_exceptions=True)
    assert [type(each) for each in found] == [BudgetExceededError] * 3
    assert desk.taken() == []


@pytest.mark.filterwarnings("ignore::antiphon.durable.DurabilityWarning")  # the second program does nothing
async def test_a_call_that_a_dead_process_left_open_is_parked_even_if_a_changed_program_does_not_reach_it_again() -> None:
    """G7: an unknown outcome is not forgotten, and the run ends only after it is settled."""
    ledger = MemoryLedger()

    async def pay(key: str) -> None:
        raise DiedError

    with pytest.raises(DiedError):
        async with ledger_run("t", ledger=ledger) as run:
            await run.effect("pay", {}, pay)
    with pytest.raises(ParkedError, match="nobody knows whether 'pay' was done: the run did not wait for it"):
        async with ledger_run("t", ledger=ledger, on_change="continue"):
            pass
    assert [run.status for run in await runs(ledger)] == ["parked"]
    async with System(ledger) as system:
        (parked,) = await system.parked()
        assert parked.invocation_id == "t/run/pay"
        await system.settle("t", "t/run/pay", result="paid")
    async with ledger_run("t", ledger=ledger, on_change="continue"):
        pass
    assert not await ledger.open_calls("t")
