"""Does many durable runs of each kind, and prints by how many objects and blocks of memory each part of them has grown."""

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import _lru_cache_wrapper  # pyright: ignore[reportPrivateUsage]
from itertools import pairwise
from typing import Any, TypeAlias

from pydantic_ai import Agent
from tests.agents.toolkit.kit import call, script

from antiphon.agents import LedgerDurability
from antiphon.agents.toolkit import Toolkit
from antiphon.durable import ledger_run
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import Conversation, MessageBuilder
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


PARTS = 3
"""What is made once, at any time, makes one part grow. What a run leaves behind makes all of them grow."""
_IDLE = 1.5
"""Seconds after which a host has released its idle threads, with all that it remembers of them."""

KINDS = {"calls": _calls, "agent": _agent, "pattern": _pattern}


def _caches() -> list[Any]:
    """Return the caches of ours that have an end. Everything else that is there is never looked at again."""
    gc.unfreeze()
    found = [each for each in gc.get_objects() if isinstance(each, _lru_cache_wrapper)]
    gc.collect()
    gc.freeze()
    return [each for each in found if each.__module__.startswith("antiphon")]


def _size(caches: list[Any]) -> tuple[int, int]:
    """Return how many objects and blocks of memory there are, without the caches."""
    for each in caches:
        each.cache_clear()
    gc.collect()
    gc.collect()
    return len(gc.get_objects()), sys.getallocatedblocks()


async def _at_rest(ledger: Ledger, other: Ledger, kind: str, caches: list[Any]) -> tuple[int, int]:
    """Return the size when nothing is released any more; on a busy machine that is later."""
    size = await _forgotten(ledger, other, caches)
    for _ in range(10 if kind == "pattern" else 0):
        await asyncio.sleep(_IDLE)
        before, size = size, await _forgotten(ledger, other, caches)
        if size[0] >= before[0]:
            break
    return size


async def _forgotten(ledger: Ledger, other: Ledger, caches: list[Any]) -> tuple[int, int]:
    """Return the size when the ledger has forgotten the threads that it has used: another connection has written."""
    for each in (other, ledger):
        await each.append("rest", [MessageBuilder(policy="ada").add_text("rest").to_message()])
    return _size(caches)


async def _growth(url: str, kind: str, runs: int) -> list[tuple[int, int]]:
    async with open_ledger(url) as ledger, open_ledger(url) as other, AsyncExitStack() as stack:
        # All threads of the pool begin while it is warmed up: one that began later would count as growth.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        work = await KINDS[kind](ledger, stack)
        for number in range(WARM):
            await work(f"{kind}-{number}")
        caches = _caches()
        sizes = [await _at_rest(ledger, other, kind, caches)]
        for part in range(PARTS):
            for number in range(runs // PARTS):
                await work(f"{kind}-{part}-{number}")
            sizes.append(await _at_rest(ledger, other, kind, caches))
        return [(objects - before[0], blocks - before[1]) for before, (objects, blocks) in pairwise(sizes)]


if __name__ == "__main__":
    place, number = sys.argv[1:]
    sys.stdout.write(json.dumps({kind: asyncio.run(_growth(place, kind, int(number))) for kind in KINDS}))
