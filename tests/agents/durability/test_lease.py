"""A run and the lease of its process: what a suspended or a blocked process may still start. G7, G8, G15, F14, F18."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, FunctionToolset
from pydantic_ai.toolsets import DynamicToolset
from tests.agents.durability.agents import Desk, call, script
from tests.postgres import Server

from antiphon import open_ledger
from antiphon.agents import LedgerDurability
from antiphon.durable import current_effect, ledger_run
from antiphon.errors import FencedError, ParkedError
from antiphon.ledger import Host, Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import Settings, _lease, _watchdog
from antiphon.runtime._lease import process_host


async def test_a_beat_after_a_lost_lease_does_not_make_up_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """G7, G8: suspended after the intent; another host takes the thread; the first thing that the process does is to beat."""
    ledger, desk, slept = MemoryLedger(), Desk(), [0.0]
    monkeypatch.setattr(_lease, "slept_seconds", lambda: slept[0])

    @asynccontextmanager
    async def admit(thread_id: str) -> AsyncGenerator[None]:
        yield
        if takes_over:
            lease = process_host(ledger).lease
            await ledger.leave(await lease.host())
            await ledger.beat(other := Host("other", "1"))
            await ledger.claim(thread_id, by=other)
        slept[0] += 60
        await process_host(ledger).lease.beat()

    async def pay(key: str) -> str:
        desk.note("pay")
        return "paid"

    async def work() -> None:
        nonlocal takes_over
        async with ledger_run("t", ledger=ledger, admit=admit) as run:
            assert await run.effect("look", {}, pay) == "paid"
            takes_over = True
            await run.effect("pay", {}, pay)

    takes_over = False
    with pytest.raises(FencedError):
        await work()
    assert desk.taken() == ["pay"]


@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_a_process_whose_event_loop_is_blocked_keeps_its_threads(
    store: str, tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F18, G15: its watchdog renews the lease, over a connection of its own. The blocked work ends, and so does the run."""
    url = postgres.url if store == "postgres" else f"sqlite:///{tmp_path}/ledger.db"
    monkeypatch.setattr(_lease, "_SETTINGS", Settings(heartbeat=0.4))
    seen: list[bool] = []

    def look() -> None:
        async def hosts() -> None:
            async with open_ledger(url) as ledger:
                await asyncio.sleep(1.6)  # the lease is 1.2 s long
                seen.extend(each.is_alive for each in await ledger.hosts())

        asyncio.run(hosts())

    async def block(key: str) -> str:
        other = threading.Thread(target=look)
        other.start()
        time.sleep(2.2)  # noqa: ASYNC251 (the fault)
        other.join()
        return "done"

    async with open_ledger(url) as ledger, ledger_run(f"blocked-{store}", ledger=ledger) as run:
        assert await run.effect("block", {}, block) == "done"
    assert seen == [True]


@pytest.mark.slow
async def test_a_process_whose_event_loop_is_dead_loses_its_threads_and_starts_nothing_when_it_wakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F18, G7: nobody renews the lease of a loop that does not come back. Another host goes on, and pays."""
    url, desk = f"sqlite:///{tmp_path}/ledger.db", Desk()
    monkeypatch.setattr(_lease, "_SETTINGS", Settings(heartbeat=0.2))
    monkeypatch.setattr(_watchdog, "_DEAD_AFTER", 0.2)

    def take_over() -> None:
        async def claim() -> None:
            async with open_ledger(url) as ledger:
                await asyncio.sleep(1.2)  # the lease is 0.6 s long
                await ledger.beat(other := Host("other", "1"))
                await ledger.claim("t", by=other)

        asyncio.run(claim())

    async def pay(key: str) -> str:
        desk.note("pay")
        return "paid"

    async def work(ledger: Ledger) -> None:
        async with ledger_run("t", ledger=ledger) as run:
            await run.effect("look", {}, pay, effects="none")
            other = threading.Thread(target=take_over)
            other.start()
            other.join()  # the fault: the loop does not run
            for plain in (False, True):
                with pytest.raises(FencedError):
                    await run.effect("pay", {}, (lambda key: desk.note("pay")) if plain else pay)

    async with open_ledger(url) as ledger:
        with pytest.raises(FencedError):
            await work(ledger)
    assert desk.taken() == ["pay"]


async def test_a_plain_function_runs_beside_the_event_loop_and_knows_its_effect() -> None:
    """F18: it blocks for a while, and everything else goes on."""
    turns, keys = 0, list[str]()

    def work(key: str) -> str:
        effect = current_effect()
        keys.extend([key, "" if effect is None else effect.key])
        while turns < 5:
            time.sleep(0.001)
        return "done"

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    async with asyncio.timeout(10), ledger_run("t", ledger=MemoryLedger()) as run:
        assert await run.effect("work", {}, work) == "done"
    turning.cancel()
    await asyncio.wait((turning,))
    assert keys == ["t/run/work"] * 2


@pytest.mark.slow
async def test_the_outcome_of_a_plain_function_is_recorded_if_its_caller_was_cancelled() -> None:
    """G9: it cannot be stopped, so it has been done. Without its outcome, a person would have to find that out."""
    ledger, desk, may_end = MemoryLedger(), Desk(), threading.Event()

    def pay(key: str) -> str:
        desk.note("pay")
        may_end.wait(10)
        return "paid"

    async def work() -> None:
        async with ledger_run("t", ledger=ledger) as run, asyncio.timeout(0.05):
            asyncio.get_running_loop().call_later(0.1, may_end.set)
            await run.effect("pay", {}, pay)

    with pytest.raises(TimeoutError):
        await work()
    async with ledger_run("t", ledger=ledger) as run:
        assert await run.effect("pay", {}, pay) == "paid"
    assert desk.taken() == ["pay"]


@pytest.mark.parametrize("is_made", [False, True], ids=["toolset", "factory"])
async def test_a_call_that_exceeds_the_time_limit_of_its_toolset_may_have_been_made(is_made: bool) -> None:
    """F31, G7: Pydantic AI would tell the model to try again, and the tool would run twice."""
    desk, toolset = Desk(), FunctionToolset[None](timeout=0.01)

    @toolset.tool_plain
    async def pay() -> str:
        desk.note("pay")
        await asyncio.Event().wait()
        return "paid"

    agent: Agent[None, str] = Agent(
        script(desk, [call("pay", "p1")], [call("pay", "p2")], ["done"]),
        name="clerk",
        toolsets=[DynamicToolset(lambda ctx: toolset, id="dynamic") if is_made else toolset],
        capabilities=[LedgerDurability(MemoryLedger())],
    )
    with pytest.raises(ParkedError):
        async with ledger_run("t"):
            await agent.run("go")
    assert desk.taken() == ["model 0", "pay"]


async def test_a_tool_whose_toolset_takes_long_to_be_made_is_checked_when_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """G7, F14: suspended while a factory connects to a server; another host takes the thread over."""
    ledger, desk, slept = MemoryLedger(), Desk(), [0.0]
    monkeypatch.setattr(_lease, "slept_seconds", lambda: slept[0])
    agent: Agent[None, str] = Agent(
        script(desk, [call("pay", "p1")], ["done"]), name="clerk", capabilities=[LedgerDurability(ledger)]
    )

    @agent.toolset(id="dynamic")  # type: ignore[arg-type]
    async def bank(ctx: Any) -> FunctionToolset[None]:
        effect = current_effect()
        if effect is not None and effect.effects == "once":
            lease = process_host(ledger).lease
            await ledger.leave(await lease.host())
            await ledger.beat(other := Host("other", "1"))
            await ledger.claim("t", by=other)
            slept[0] += 60
        return FunctionToolset([pay])

    def pay() -> str:
        desk.note("pay")
        return "paid"

    with pytest.raises(FencedError):
        async with ledger_run("t"):
            await agent.run("go")
    assert desk.taken() == ["model 0"]
