"""A chain in simulated worlds: killed, with messages that are lost and doubled and appends that fail, as a seed has it."""

import asyncio
import gc
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.patterns.chains import QUESTION, Teller, Witness, known, said_in
from tests.patterns.test_pause import check_nothing_begins_while_it_rests

from antiphon.errors import RefusedError
from antiphon.ledger import Ledger, replay
from antiphon.messages import OptionResultPayload
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.patterns.postchain._lifecycle import LIFE, ThreadLife
from antiphon.protocol import PHASES, CreateThread, PauseThread, ResumeThread, StartThread, TerminateThread
from antiphon.protocol.flows import find_flow
from antiphon.testing import Faults, Simulated, World, simulate

SEEDS = range({"": 8, "ci": 500, "nightly": 10_000}[os.environ.get("ANTIPHON_CHAOS", "")])
THREAD = "order"
FAULTS = Faults(crashes=4, uptime=1.5, ledger_failure=0.03)


@pytest.fixture(autouse=True)
def no_word_of_killed_processes() -> Iterator[None]:
    """Collect the coroutines of simulated processes that were killed, without a report of what their `finally` raises.

    A real process that is killed runs no `finally`. Here the collector runs it, outside of the context that it belongs to.
    """
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
        gc.collect()
    finally:
        sys.unraisablehook = before


class Client:
    """A client that asks a question in a simulated world, and acts in between."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def ask(self, request: Any, id: str) -> bool:
        """Ask the thread; whether it was done."""
        try:
            await self._world.ask(f"thread/{THREAD}", request, thread_id=THREAD, id=id, sender="client/local")
        except RefusedError as exc:
            return exc.code != "INVALID_STATE"  # it has ended in the meantime
        return True

    async def begin(self) -> None:
        await known(self._world.ledger)
        assert await self.ask(CreateThread(user_id="ada", initial_input=QUESTION), "create")
        assert await self.ask(StartThread(thread_id=THREAD), "start")

    async def life(self) -> ThreadLife:
        return await replay(self._world.ledger, THREAD, LIFE.fold())

    async def until_over(self) -> None:
        while not (await self.life()).is_over:  # noqa: ASYNC110 (a ledger tells nobody; and the time is virtual)
            await asyncio.sleep(1)


def _simulated(seed: int, drive: Any) -> tuple[Simulated, Witness]:
    witness = Witness(delay=0.2)

    def host(system: Any) -> None:
        config = ChainConfig(backoff=0.1)
        PostChain(system.ledger, model=Teller(witness), config=config, grace=0.05).host(system)

    return simulate(seed, host=host, drive=drive, faults=FAULTS, limit=120), witness


async def _check(ledger: Ledger, witness: Witness, status: str) -> None:
    """Check the invariants: the thread has ended and is whole, and no model request was repeated."""
    rows = await said_in(ledger, THREAD)
    life = await replay(ledger, THREAD, LIFE.fold())
    assert life.status == status
    assert (await ledger.verify()).is_whole
    check_nothing_begins_while_it_rests(rows)
    answers = [
        row.invocation_id
        for row in rows
        if row.lane == "effect" and isinstance(row.payload, OptionResultPayload) and "model.request" in row.payload.option_name
    ]
    assert len(answers) == len(set(answers))
    if status == "completed":
        assert life.completed == PHASES
        assert find_flow("thread-execution").check(rows).state == "complete"
        assert len(witness.asked) <= len(answers) + FAULTS.crashes  # only what was under way when a process died


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_a_thread_is_paused_resumed_and_completed_under_every_fault(seed: int) -> None:
    """F32, G7, G12, G13, G16: with four crashes, losses, doublings and appends that fail."""

    async def drive(world: World) -> None:
        client = Client(world)
        await client.begin()
        await asyncio.sleep(seed % 7 * 0.3)
        if await client.ask(PauseThread(thread_id=THREAD), "pause"):
            await asyncio.sleep(5)
            assert (await client.life()).status == "paused"
            await client.ask(ResumeThread(thread_id=THREAD), "resume")
        await client.until_over()

    simulated, witness = _simulated(seed, drive)
    assert simulated.landed["crash"] == FAULTS.crashes
    asyncio.run(_check(simulated.ledger, witness, "completed"))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS[: max(3, len(SEEDS) // 3)])
def test_a_terminated_thread_stays_terminated_under_every_fault(seed: int) -> None:
    """F32, G12, G13: also where the process that terminated it is killed right after."""

    async def drive(world: World) -> None:
        client = Client(world)
        await client.begin()
        await asyncio.sleep(seed % 7 * 0.3)
        assert await client.ask(TerminateThread(thread_id=THREAD, reason="enough"), "terminate")
        await asyncio.sleep(5)

    simulated, witness = _simulated(seed, drive)
    asyncio.run(_check(simulated.ledger, witness, "terminated"))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_thread() -> None:
    """Row by row; but for what Pydantic AI writes itself: its own times, and ids of its runs."""

    async def drive(world: World) -> None:
        client = Client(world)
        await client.begin()
        await client.until_over()

    async def rows(ledger: Ledger) -> list[Any]:
        return [
            (row.id, row.policy, row.to, row.lane, row.payload, row.created_at if row.lane != "talk" else None)
            for row in await said_in(ledger, THREAD)
        ]

    first, second = (asyncio.run(rows(_simulated(3, drive)[0].ledger)) for _ in range(2))
    assert first == second
    assert first != asyncio.run(rows(_simulated(4, drive)[0].ledger))
