"""Does many durable runs of each kind, and prints how many objects and blocks of memory there are more afterwards."""

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import _lru_cache_wrapper  # pyright: ignore[reportPrivateUsage]
from typing import Any, TypeAlias

from pydantic_ai import Agent
from tests.agents.toolkit.kit import call, script

from antiphon.agents import LedgerDurability, Toolkit, ledger_run
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import Conversation
from antiphon.patterns.options import Choices, Executor, Options
from antiphon.runtime import Settings

WARM = 10

Work: TypeAlias = Callable[[str], Awaitable[None]]
"""Does one run, in a thread."""


def _kit() -> Toolkit:
    toolkit = Toolkit()

    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    toolkit.add(pay)
    toolkit.grant("clerk", "pay", calls=3)
    return toolkit


async def _calls(ledger: Ledger, stack: AsyncExitStack) -> Work:
    toolkit = _kit()

    async def work(thread_id: str) -> None:
        async with ledger_run(thread_id, ledger=ledger):
            assert (await toolkit.call("clerk", "pay", {"amount": 5})).result == "paid 5"

    return work


async def _agent(ledger: Ledger, stack: AsyncExitStack) -> Work:
    more: list[Any] = [LedgerDurability[object](ledger), _kit().capability("clerk")]
    agent = Agent(script([call("pay", amount=5)]), name="clerk", deps_type=object, capabilities=more)

    async def work(thread_id: str) -> None:
        async with ledger_run(thread_id, ledger=ledger):
            assert (await agent.run("go")).output == "done"

    return work


async def _pattern(ledger: Ledger, stack: AsyncExitStack) -> Work:
    options = Options(_kit())

    @options.policy()
    def clerk(observations: Conversation, choices: Choices) -> Any:
        return "Done." if observations.calls() else choices.call("pay", amount=5)

    settings = Settings(block_limit=None, heartbeat=0.5, release_after=0.1)
    executor = await stack.enter_async_context(Executor(ledger, options, settings=settings))

    async def work(thread_id: str) -> None:
        assert (await executor.run("go", thread_id=thread_id, policy="clerk")).status == "completed"

    return work


_IDLE = 1.5
"""Seconds after which a host has released its idle threads, with all that it remembers of them."""

KINDS = {"calls": _calls, "agent": _agent, "pattern": _pattern}


def _size() -> tuple[int, int]:
    """Return how many objects and blocks of memory there are, without caches of ours that have an end."""
    for each in gc.get_objects():
        if isinstance(each, _lru_cache_wrapper) and each.__module__.startswith("antiphon"):
            each.cache_clear()
    gc.collect()
    gc.collect()
    return len(gc.get_objects()), sys.getallocatedblocks()


async def _growth(url: str, kind: str, runs: int) -> tuple[int, int]:
    async with open_ledger(url) as ledger, AsyncExitStack() as stack:
        # All threads of the pool begin while it is warmed up: one that began later would count as growth.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        work = await KINDS[kind](ledger, stack)
        for number in range(WARM):
            await work(f"{kind}-{number}")
        await asyncio.sleep(_IDLE)
        objects, blocks = _size()
        for number in range(WARM, WARM + runs):
            await work(f"{kind}-{number}")
        for _ in range(10):  # on a busy machine, threads are released later
            await asyncio.sleep(_IDLE)
            more_objects, more_blocks = _size()
            if more_objects - objects < runs / 4:
                break
        return more_objects - objects, more_blocks - blocks


if __name__ == "__main__":
    place, number = sys.argv[1:]
    sys.stdout.write(json.dumps({kind: asyncio.run(_growth(place, kind, int(number))) for kind in KINDS}))
