"""Many durable runs in one process: nothing of those that ended is kept (G18)."""

import gc
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any
from weakref import ref

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from tests import forked
from tests.agents.durability.many_runs import PARTS

from antiphon.agents import LedgerDurability
from antiphon.durable import current_run, ledger_run
from antiphon.ledger.memory import MemoryLedger
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, System, handles

pytest.importorskip("apsw")

ROOT = Path(__file__).parents[3]
CHAOS = os.environ.get("ANTIPHON_CHAOS", "")
RUNS = {"": 90, "ci": 10_000, "nightly": 10_000}[CHAOS]
_KEPT = 1.5
"""Objects that a run may leave in caches that have an end. Otherwise it would leave dozens."""
_CACHED = 4
"""Blocks of memory that it may leave there: in Pydantic's of texts, a journal's of threads."""
_ONCE = 70
"""Blocks that are made once, at any time."""


@pytest.fixture(scope="module")
def growth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[int, int]]]:
    """Return by how many objects and blocks of memory a process has grown with each part of so many runs of each kind."""
    url = f"sqlite:///{tmp_path_factory.mktemp('runs')}/ledger.db"
    command = [sys.executable, "-m", "tests.agents.durability.many_runs", url, str(RUNS)]
    said = forked.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert said.returncode == 0, said.stderr.decode()
    found: dict[str, list[tuple[int, int]]] = json.loads(said.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("calls", id="tools called by grants of some calls"),
        pytest.param("agent", id="an agent with a toolkit"),
        pytest.param("pattern", id="threads of a pattern, in one system"),
    ],
)
def test_durable_runs_keep_nothing_when_they_end(growth: dict[str, list[tuple[int, int]]], kind: str) -> None:
    """G18, S5: a grant is counted in each thread, and the count goes with the run: the ledger has it, and the rest too.

    What is made once makes one part grow, and what is released late the one before. So the part in the middle counts.
    """
    runs = RUNS // PARTS
    assert median(objects for objects, _ in growth[kind]) < _KEPT * runs, growth
    assert median(blocks for _, blocks in growth[kind]) < _CACHED * runs + _ONCE, growth


class Answer(Reply, frozen=True, type="FREED_ANSWER"):
    """The agent has answered."""


class Question(Request[Answer], frozen=True, type="FREED_QUESTION"):
    """Ask the agent."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def _agent(ledger: MemoryLedger, held: list[Any]) -> Agent[None, str]:
    """Return an agent whose tool notes which runs it is called in."""
    agent = Agent(TestModel(), name="clerk", capabilities=[LedgerDurability(ledger)])

    @agent.tool_plain
    async def note() -> str:
        run = current_run()
        while run is not None:
            held.append(ref(run))
            run = run._around
        return "noted"

    return agent


@pytest.mark.slow
@pytest.mark.usefixtures("no_collection")
async def test_a_run_is_freed_when_its_block_ends() -> None:
    """G18: a server must not wait for a garbage collection to get back what each request held."""
    ledger, held = MemoryLedger(), list[Any]()
    agent = _agent(ledger, held)
    async with ledger_run("thread", ledger=ledger):
        await agent.run("go")
    assert len(held) > 1
    assert [each() for each in held] == [None] * len(held)


@pytest.mark.slow
@pytest.mark.usefixtures("no_collection")
async def test_a_run_in_a_handler_is_freed_when_its_block_ends() -> None:
    """G18: the same for agents of actors, as all patterns run them."""
    ledger, held = MemoryLedger(), list[Any]()
    agent = _agent(ledger, held)

    class Clerk(Actor):
        @handles
        async def answer(self, question: Question, context: Context) -> Answer:
            async with ledger_run(context):
                await agent.run("go")
            return Answer()

    async with System(ledger) as system:
        system.register("clerk", Clerk)
        await system.ask("clerk/1", Question(), thread_id="thread")
        assert len(held) > 1
        assert [each() for each in held] == [None] * len(held)
