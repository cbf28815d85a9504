"""A program that asks for other steps than the recorded ones stops before it starts one; tasks beside each other may differ.

Return values of programs are recorded, and a finished run is read without its code. G9, G11.
"""

import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent, Tool
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from tests.agents.durability.agents import Desk, script

from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import LedgerRun, check_runs, ledger_run, program, runs
from antiphon.errors import HistoryMismatchError, ParkedError
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import Effects
from antiphon.service import allow_change


class CutError(Exception):
    """Ends the program in the middle."""


class Steps:
    """A program of named steps, which can be changed and cut."""

    def __init__(self) -> None:
        self.ledger = MemoryLedger()
        self.done: list[str] = []

    async def step(self, key: str) -> str:
        self.done.append(key.rpartition("/")[2])
        return key

    async def run(self, *names: str, is_cut: bool = False, on_change: Any = None) -> list[str]:
        """Return the steps that were done in this attempt."""
        self.done = []
        async with ledger_run("t", ledger=self.ledger, name="desk", on_change=on_change) as run:
            for name in names:
                await run.effect(name, {}, self.step)
            if is_cut:
                raise CutError
        return self.done


CHANGED: dict[str, Sequence[str]] = {
    "renamed": ("quote", "charge-card", "mail"),
    "moved": ("charge", "quote", "mail"),
    "removed": ("quote", "mail"),
    "preceded": ("quote", "check", "charge", "mail"),
    "cut off": ("quote",),
}


@pytest.mark.parametrize("name", CHANGED)
async def test_a_renamed_moved_or_removed_step_stops_the_run_before_anything_starts(name: str) -> None:
    steps = Steps()
    with pytest.raises(CutError):
        await steps.run("quote", "charge", is_cut=True)

    @program("desk")
    async def desk(run: LedgerRun) -> None:
        for each in CHANGED[name]:
            await run.effect(each, {}, steps.step)

    steps.done = []
    (check,) = await check_runs(steps.ledger, [desk])
    assert check.forecast == "stops"
    with pytest.raises(HistoryMismatchError, match="antiphon resume t --on-change continue"):
        await desk.run("t", ledger=steps.ledger)
    assert steps.done == []
    assert [run.status for run in await runs(steps.ledger)] == ["stopped"]
    with pytest.raises(HistoryMismatchError, match="it cannot restart: 't/run/quote' must not be done twice"):
        await steps.run(*CHANGED[name], on_change="restart")
    if name == "moved":
        await steps.run(*CHANGED[name], on_change="continue")
    else:  # a person's permission does the same
        await allow_change(steps.ledger, "t", "continue")
        await steps.run(*CHANGED[name])
    assert steps.done == [each for each in CHANGED[name] if each not in ("quote", "charge")]
    assert await steps.run(*CHANGED[name]) == []


async def test_steps_inside_of_an_effect_and_calls_of_tools_have_their_order_too() -> None:
    ledger, desk, kit = MemoryLedger(), Desk(), Toolkit()

    def charge() -> str:
        desk.note("charge")
        return "charged"

    for name in ("charge", "charge_card"):
        kit.add(charge, name=name, to=["clerk"])

    async def work(tool: str, *, is_cut: bool) -> None:
        async with ledger_run("t", ledger=ledger) as run:

            async def inside(key: str) -> str:
                await kit.call("clerk", tool, {})
                if is_cut:
                    raise asyncio.CancelledError
                return "done"

            await run.effect("order", {}, inside, effects="idempotent")

    with pytest.raises(asyncio.CancelledError):
        await work("charge", is_cut=True)
    with pytest.raises(HistoryMismatchError, match="does 'charge_card' where thread 't' records"):
        await work("charge_card", is_cut=False)
    await work("charge", is_cut=False)
    assert desk.taken() == ["charge"]


async def test_a_step_before_an_agent_that_ran_stops_the_run() -> None:
    steps, desk = Steps(), Desk()
    agent: Agent[None, str] = Agent(script(desk, ["done"]), name="clerk", capabilities=[LedgerDurability(steps.ledger)])

    async def cut() -> None:
        async with ledger_run("t"):
            await agent.run("go")
            raise CutError

    with pytest.raises(CutError):
        await cut()
    with pytest.raises(HistoryMismatchError, match="does 'charge' where thread 't' records 't/run/clerk'"):
        await steps.run("charge")
    assert steps.done == []


@pytest.mark.slow
async def test_an_unchanged_program_with_tasks_is_never_refused() -> None:
    """Tasks, a queue with workers, and results in the order in which they come; cut at any point, any number of times."""
    for seed in range(25):
        rng, ledger, done = random.Random(seed), MemoryLedger(), list[str]()

        async def pause(rng: random.Random = rng) -> None:
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)

        async def do(key: str, done: list[str] = done, rng: random.Random = rng) -> str:
            await pause(rng)
            done.append(key)
            return key

        async def chain(run: LedgerRun, name: str, rng: random.Random = rng) -> None:
            for number in range(3):
                await pause(rng)
                await run.effect(f"{name}-{number}", {}, do, effects="idempotent")

        async def work(run: LedgerRun, queue: list[str], name: str, rng: random.Random = rng) -> None:
            while queue:
                await run.effect(f"item-{queue.pop()}", {}, do, effects="idempotent")
                await pause(rng)

        async def whole(ledger: MemoryLedger = ledger, rng: random.Random = rng) -> None:
            async with ledger_run("t", ledger=ledger) as run:
                await run.effect("first", {}, do, effects="idempotent")
                queue = [str(number) for number in range(5)]
                await asyncio.gather(*(chain(run, name) for name in "ab"), *(work(run, queue, name) for name in "xy"))
                async with asyncio.TaskGroup() as group:
                    group.create_task(chain(run, "c"))
                    await run.effect("beside", {}, do, effects="idempotent")
                await run.effect("last", {}, do, effects="idempotent")

        for _ in range(6):
            running = asyncio.create_task(whole())
            for _ in range(rng.randrange(60)):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait((running,))
        await whole()
        assert len(set(done)) == 17


async def test_a_new_step_of_a_task_may_come_before_recorded_ones_of_another() -> None:
    steps = Steps()

    async def work(child: int, parent: int, *, is_cut: bool) -> None:
        async with ledger_run("t", ledger=steps.ledger) as run:

            async def beside() -> None:
                for _ in range(child):
                    await asyncio.sleep(0)
                await run.effect("beside", {}, steps.step)

            task = asyncio.create_task(beside())
            for _ in range(parent):
                await asyncio.sleep(0)
            await run.effect("own", {}, steps.step)
            if is_cut:
                task.cancel()
                raise CutError
            await task

    with pytest.raises(CutError):
        await work(1000, 0, is_cut=True)
    await work(0, 200, is_cut=False)
    assert steps.done == ["own", "beside"]


BESIDE = ("gather", "group", "task", "except")


async def _charge(run: LedgerRun, how: str, name: str, steps: Steps, effects: Effects) -> None:
    """Do one step beside others, or while an exception is handled."""
    charging = partial(run.effect, name, {}, steps.step, effects=effects)
    match how:
        case "gather":
            await asyncio.gather(run.effect("quote", {}, steps.step), charging())
        case "group":
            async with asyncio.TaskGroup() as group:
                group.create_task(charging())
        case "task":
            await asyncio.create_task(charging())
        case _:
            try:
                raise CutError
            except CutError:
                await charging()


@pytest.mark.virtual_time
@pytest.mark.parametrize("effects", [("once", "once"), ("once", "idempotent"), ("idempotent", "idempotent")])
@pytest.mark.parametrize("how", BESIDE)
async def test_a_renamed_payment_beside_other_steps_is_not_made_under_its_new_name(
    how: str, effects: tuple[Effects, Effects]
) -> None:
    """G7, G11: it waits for the recorded one, which does not come, and the run stops. The forecast says so.

    An idempotent one would have another key under its new name.
    """
    steps = Steps()

    @program("desk")
    async def old(run: LedgerRun) -> None:
        await _charge(run, how, "charge", steps, effects[0])
        raise ValueError("as told")

    @program("desk")
    async def new(run: LedgerRun) -> None:
        await _charge(run, how, "charge-card", steps, effects[1])

    with pytest.raises(ValueError, match="as told"):
        await old.run("t", ledger=steps.ledger)
    assert "charge" in steps.done
    steps.done = []
    assert [check.forecast for check in await check_runs(steps.ledger, [new])] == ["stops"]
    with pytest.raises((HistoryMismatchError, ExceptionGroup)) as raised:
        await new.run("t", ledger=steps.ledger)
    error: BaseException = raised.value
    if isinstance(error, ExceptionGroup):
        (error,) = error.exceptions
    assert "'charge-card' where thread 't' records 't/run/charge'" in str(error)
    assert steps.done == []


@pytest.mark.virtual_time
async def test_a_new_payment_waits_until_recorded_ones_beside_it_have_come() -> None:
    """The first process died before it paid; the recorded payment beside it takes a while to come, and keeps its outcome."""
    steps = Steps()

    async def work(seconds: float, *, is_cut: bool) -> None:
        async with ledger_run("t", ledger=steps.ledger) as run:

            async def beside() -> None:
                await asyncio.sleep(seconds)
                await run.effect("beside", {}, steps.step)

            task = asyncio.create_task(beside())
            await asyncio.sleep(1)
            if is_cut:
                raise CutError
            await run.effect("own", {}, steps.step)
            await task

    with pytest.raises(CutError):
        await work(0, is_cut=True)
    await work(20, is_cut=False)
    assert steps.done == ["beside", "own"]


async def test_what_a_program_does_while_an_exception_ends_it_is_not_asked_for() -> None:
    ledger, is_first = MemoryLedger(), [True]

    async def work() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            await run.effect("begin", {}, lambda key: 1)
            try:
                if is_first.pop() if is_first else False:
                    raise CutError  # a fault that is not recorded, and passes
                await run.effect("middle", {}, lambda key: 1)
            finally:
                await run.effect("free", {}, lambda key: 1)

    with pytest.raises(CutError):
        await work()
    await work()


@pytest.mark.slow
async def test_agents_of_one_name_side_by_side_are_told_apart_by_their_questions() -> None:
    """Two runs for each item: the second of an item begins when its first has ended, in any order."""
    ledger, desk = MemoryLedger(), Desk()

    async def item(name: str, pauses: int) -> list[str]:
        agent: Agent[None, str] = Agent(script(desk, [f"about {name}"]), name="clerk", capabilities=[LedgerDurability(ledger)])
        first = (await agent.run(f"draft {name}")).output
        for _ in range(pauses):
            await asyncio.sleep(0)
        return [first, (await agent.run(f"check {name}")).output]

    async def whole(*pauses: int, is_cut: bool = False) -> list[list[str]]:
        async with ledger_run("t", ledger=ledger):
            found = await asyncio.gather(*(item(name, count) for name, count in zip("abc", pauses, strict=True)))
            if is_cut:
                raise CutError
            return found

    with pytest.raises(CutError):
        await whole(200, 100, 0, is_cut=True)
    assert len(desk.taken()) == 6
    expected = [[f"about {name}"] * 2 for name in "abc"]
    assert await whole(0, 100, 200) == expected  # the open run
    assert await whole(100, 200, 0) == expected  # the finished one
    assert desk.taken() == []


# ---------------------------------------------------------------- return values


class Bill(BaseModel):
    amount: int


async def test_a_finished_program_is_read_without_its_code() -> None:
    """G9: a later version may do more."""
    ledger = MemoryLedger()

    @program("bill")
    async def first(run: LedgerRun) -> Bill:
        return Bill(amount=await run.effect("add", {}, lambda key: 7))

    @program("bill")
    async def later(run: LedgerRun) -> Bill:
        raise AssertionError

    for each in (first, later):
        assert await each.run("t", ledger=ledger) == Bill(amount=7)


async def test_a_return_value_that_cannot_be_recorded_leaves_the_run_open_to_a_mended_program() -> None:
    ledger, done = MemoryLedger(), list[str]()

    @program("bill")
    async def odd(run: LedgerRun):  # type: ignore[no-untyped-def]
        await run.effect("add", {}, done.append)
        return {1, 2}

    @program("bill")
    async def mended(run: LedgerRun) -> set[int]:
        await run.effect("add", {}, done.append)
        return {1, 2}

    with pytest.raises(TypeError, match="program 'bill' returned a set"):
        await odd.run("t", ledger=ledger)
    for _ in range(2):
        assert await mended.run("t", ledger=ledger) == {1, 2}
    assert done == ["t/run/add"]


async def test_a_return_value_that_is_not_of_the_new_type_is_named_and_no_code_runs() -> None:
    """G9: the run has succeeded, and its value is recorded. Only this version cannot read it."""
    ledger = MemoryLedger()

    @program("bill")
    async def first(run: LedgerRun) -> Bill:
        return Bill(amount=await run.effect("add", {}, lambda key: 7))

    @program("bill")
    async def later(run: LedgerRun) -> str:
        raise AssertionError

    await first.run("t", ledger=ledger)
    with pytest.raises(
        HistoryMismatchError, match="bill: the value that the run in thread 't' has returned is not of the type"
    ):
        await later.run("t", ledger=ledger)
    assert await first.run("t", ledger=ledger) == Bill(amount=7)


async def test_a_finished_run_is_read_by_a_program_with_fewer_agents_and_steps() -> None:
    """G9: nothing of it is done again, so nothing is missing."""
    ledger, desk = MemoryLedger(), Desk()

    async def item(run: LedgerRun, name: str) -> str:
        agent: Agent[None, str] = Agent(script(desk, [f"about {name}"]), name=name, capabilities=[LedgerDurability(ledger)])
        return await run.effect(f"note {name}", {"text": (await agent.run("Go.")).output}, lambda key: f"{name} noted")

    async def whole(*names: str) -> list[str]:
        async with ledger_run("t", ledger=ledger) as run:
            return [await item(run, name) for name in names]

    assert await whole("ann", "bob") == ["ann noted", "bob noted"]
    desk.taken()
    assert await whole("ann") == ["ann noted"]
    assert desk.taken() == []


@pytest.mark.virtual_time
async def test_a_payment_that_may_have_been_made_stops_the_payments_of_other_agents() -> None:
    """G7: the next attempt does not come to it, because a time limit ends that agent earlier."""
    ledger, paid = MemoryLedger(), list[int]()

    async def pay(amount: int) -> str:
        paid.append(amount)
        await asyncio.sleep(10)
        return "paid"

    async def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        is_paid = len(messages) > 1
        return ModelResponse([TextPart("paid") if is_paid else ToolCallPart("pay", {"amount": 30}, tool_call_id="c")])

    async def attempt(limit: float) -> None:
        clerk, other = (
            Agent(
                FunctionModel(model),
                name=name,
                capabilities=[LedgerDurability(ledger, effects={"pay": "once"})],
                tools=[Tool(pay)],
            )
            for name in ("clerk", "other")
        )
        async with ledger_run("t", ledger=ledger, name="desk"):
            with suppress(TimeoutError):
                await asyncio.wait_for(clerk.run("Pay."), limit)
            await other.run("Pay.")

    with pytest.raises(ParkedError):
        await attempt(5.0)
    for _ in range(2):
        with pytest.raises(ParkedError, match="settle t t/run/clerk/pay:c"):
            await attempt(0.0)
    assert paid == [30]
