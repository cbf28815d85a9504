"""Many durable runs in one process: nothing of those that ended is kept (G18)."""

import asyncio
import gc
import os
import sys
from collections.abc import Awaitable, Callable
from functools import _lru_cache_wrapper  # pyright: ignore[reportPrivateUsage]
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from tests.agents.toolkit.kit import call, script

from antiphon.agents import LedgerDurability, Toolkit, ledger_run
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import Conversation
from antiphon.patterns.options import Choices, Executor, Options

pytest.importorskip("apsw")

CHAOS = os.environ.get("ANTIPHON_CHAOS", "")
RUNS = {"": 100, "ci": 10_000, "nightly": 10_000}[CHAOS]
FEWER = {"": 30, "ci": 2_000, "nightly": 10_000}[CHAOS]
WARM = 20
_CACHED = 3
"""Blocks of memory that a run may leave in caches that have an end: Pydantic's of texts, a journal's of threads."""

Work = Callable[[range], Awaitable[None]]


def _kit() -> Toolkit:
    toolkit = Toolkit()

    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    toolkit.add(pay)
    toolkit.grant("clerk", "pay", calls=3)
    return toolkit


def _size() -> tuple[int, int]:
    """Return how many objects and blocks of memory there are, without caches of ours that have an end."""
    for each in gc.get_objects():
        if isinstance(each, _lru_cache_wrapper) and each.__module__.startswith("antiphon"):
            each.cache_clear()
    for _ in range(2):
        gc.collect()
    return len(gc.get_objects()), sys.getallocatedblocks()


async def _check(work: Work, runs: int) -> None:
    """Have so many runs done, and see that there is not more than before."""
    await work(range(WARM))
    objects, blocks = _size()
    await work(range(WARM, WARM + runs))
    more_objects, more_blocks = (now - before for now, before in zip(_size(), (objects, blocks), strict=True))
    assert more_objects < runs / 2
    assert more_blocks < _CACHED * runs + 500


def _on_a_file(folder: Path, work: Callable[[Ledger], Awaitable[None]]) -> None:
    async def main() -> None:
        async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger:
            await work(ledger)

    asyncio.run(main())


def test_runs_that_call_tools_by_grants_of_some_calls_keep_nothing_when_they_end(tmp_path: Path) -> None:
    """G18, S5: a grant is counted in each thread, and the count goes with the run; the ledger has it."""

    async def work(ledger: Ledger) -> None:
        toolkit = _kit()

        async def runs(numbers: range) -> None:
            for number in numbers:
                async with ledger_run(f"t{number}", ledger=ledger):
                    assert (await toolkit.call("clerk", "pay", {"amount": 5})).result == "paid 5"

        await _check(runs, RUNS)

    _on_a_file(tmp_path, work)


def test_runs_of_an_agent_with_a_toolkit_keep_nothing_when_they_end(tmp_path: Path) -> None:
    """G18: neither what was said, nor what was decided, nor what the thread was begun under."""

    async def work(ledger: Ledger) -> None:
        more: list[Any] = [LedgerDurability[object](ledger), _kit().capability("clerk")]
        agent = Agent(script([call("pay", amount=5)]), name="clerk", deps_type=object, capabilities=more)

        async def runs(numbers: range) -> None:
            for number in numbers:
                async with ledger_run(f"t{number}", ledger=ledger):
                    assert (await agent.run("go")).output == "done"

        await _check(runs, FEWER)

    _on_a_file(tmp_path, work)


def test_threads_of_a_pattern_keep_nothing_of_their_grants_when_they_end(tmp_path: Path) -> None:
    """G18, S5: also where actors work in them, for as long as the system lives."""

    async def work(ledger: Ledger) -> None:
        options = Options(_kit())

        @options.policy()
        def clerk(observations: Conversation, choices: Choices) -> Any:
            return "Done." if observations.calls() else choices.call("pay", amount=5)

        async with Executor(ledger, options) as executor:

            async def threads(numbers: range) -> None:
                for number in numbers:
                    assert (await executor.run("go", thread_id=f"t{number}", policy="clerk")).status == "completed"

            await _check(threads, FEWER)

    _on_a_file(tmp_path, work)
