"""Whole systems in virtual time, with every fault: nothing lost, nothing doubled, nothing stuck (G5-G9, G13-G16)."""

import asyncio
import os
from collections import Counter
from typing import cast

import pytest
from tests.runtime import choir
from tests.runtime.actors import Note, Ping, Pong, Probe
from tests.runtime.counts import count

from antiphon.messages import Message, OptionCallPayload
from antiphon.protocol import PHASES, CreateThread, StartThread
from antiphon.protocol.flows import find_flow
from antiphon.runtime import Actor, Context, Settings, System, handles
from antiphon.testing import Faults, Simulated, StuckError, World, simulate
from antiphon.testing._virtual_time import VirtualLoop

SEEDS = 50 if os.environ.get("HYPOTHESIS_PROFILE") == "quick" else count("seeds")
GROUPS = 10
FAILING = frozenset({"agent/experience", "agent/yield"})
THREADS = ("t1", "t2")


async def _drive(world: World) -> None:
    """Have the threads made and run, at once."""

    async def thread(name: str) -> None:
        create = CreateThread(user_id="u", initial_input="hello")
        await world.ask("thread/1", create, thread_id=name, sender=choir.CLIENT)
        await world.ask("thread/1", StartThread(thread_id=name), thread_id=name, sender=choir.CLIENT)

    await asyncio.gather(*(thread(name) for name in THREADS))


def _simulate(seed: int) -> Simulated:
    choir.AgentManager.failing = FAILING
    choir.AgentManager.models = []
    choir.AgentManager.bills = []
    return simulate(seed, host=choir.host, drive=_drive, faults=Faults(crashes=1 + seed % 4))


def _messages(simulated: Simulated, thread_id: str) -> list[Message]:
    """Return what was said in a thread; the journal is no part of a flow."""

    async def read() -> list[Message]:
        return [record.message async for record in simulated.ledger.read(thread_id) if record.message.lane != "effect"]

    loop = VirtualLoop()  # quicker to make than a real one
    try:
        return cast("list[Message]", loop.run_until_complete(read()))
    finally:
        loop.close()


@pytest.mark.slow
@pytest.mark.parametrize("group", range(GROUPS))
def test_threads_run_through_every_fault_and_conform(group: int) -> None:
    """Each seed is a world of its own; a failing seed is printed, and can be run alone."""
    landed: Counter[str] = Counter()
    for seed in range(group, SEEDS, GROUPS):
        simulated = _simulate(seed)
        landed += simulated.landed
        for thread_id in THREADS:
            _check_thread(seed, _messages(simulated, thread_id))
        _check_effects(seed)
    assert min(landed[fault] for fault in ("crash", "loss", "duplication")) > 0  # R0: the faults were there


def _check_thread(seed: int, messages: list[Message]) -> None:
    for name in ("thread-execution", "phase-processing", "error-handling"):
        verdict = find_flow(name).check(messages)
        assert verdict.state == "complete", (seed, name, verdict)
    results = [message for message in messages if message.kind == "parts" and "THREAD_RESULT" in str(message.parts)]
    assert len(results) == 1, seed
    assert choir.RESPONSE in str(results[0].parts), seed
    calls = Counter(_option(message) for message in messages)
    assert (calls["PROCESS_PHASE"], calls["RETRY"], calls["RESTART"]) == (6, 2, 2), (seed, calls)


def _check_effects(seed: int) -> None:
    """A model whose answer is recorded does not run again; what may run again runs under the same key."""
    assert len(set(choir.AgentManager.bills)) == len(PHASES) * len(THREADS), seed
    assert len(set(choir.AgentManager.models)) == len(PHASES) * len(THREADS), seed


def _option(message: Message) -> str:
    return message.payload.option_name if isinstance(message.payload, OptionCallPayload) else ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(0, min(SEEDS, 5_000), 100))
def test_the_same_seed_gives_the_same_ledger(seed: int) -> None:
    first, second = _simulate(seed), _simulate(seed)

    assert (first.hash, first.seconds, first.landed) == (second.hash, second.seconds, second.landed)
    assert first.hash != _simulate(seed + 1).hash


@pytest.mark.slow
def test_an_effect_that_must_not_happen_twice_never_does_whatever_the_seed() -> None:
    """G7: it is started at most once; what nobody knows the outcome of is parked, with the evidence."""

    class Payer(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            async def pay(key: str) -> str:
                started.append(key)
                await asyncio.sleep(1)
                return "paid"

            return Pong(text=await context.effect("pay", {"to": ping.text}, pay))

    def host(system: System) -> None:
        system.register("payer", Payer)

    async def drive(world: World) -> None:
        for number in range(3):
            asking = asyncio.create_task(world.ask("payer/1", Ping(text=str(number)), thread_id=f"t{number}", id=f"m{number}"))
            await asyncio.wait((asking,), timeout=60)
            if asking.done():
                outcomes[str(asking.exception() or asking.result().text)[:30]] += 1
            else:
                asking.cancel()

    outcomes: Counter[str] = Counter()
    for seed in range(min(SEEDS // 5, 2_000)):
        started: list[str] = []
        simulate(seed, host=host, drive=drive, faults=Faults(uptime=1.5))
        assert max(Counter(started).values(), default=0) <= 1, seed
    assert outcomes["paid"] > 0
    assert sum(count for text, count in outcomes.items() if "nobody knows" in text or "waits for a person" in text) > 0


@pytest.mark.slow
def test_notices_arrive_through_every_fault_and_in_the_order_of_the_thread() -> None:
    class Listener(Actor):
        @handles
        async def note(self, note: Note, context: Context) -> None:
            if note.text not in heard:
                heard.append(note.text)

    def host(system: System) -> None:
        system.register("listener", Listener)

    async def drive(world: World) -> None:
        for number in range(8):
            await world.tell("listener/1", Note(text=str(number)), thread_id="t")

    for seed in range(min(SEEDS // 10, 2_000)):
        heard: list[str] = []
        simulate(seed, host=host, drive=drive)
        assert heard == [str(number) for number in range(8)], seed


def test_a_world_that_does_not_come_to_rest_is_reported_with_its_seed() -> None:
    class Lost(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            await asyncio.Event().wait()
            return Pong(text="never")

    async def drive(world: World) -> None:
        await world.ask("lost/1", Ping(text="?"), thread_id="t", id="m")

    with pytest.raises(AssertionError, match=r"seed 7: after 100 s it is not at rest: \['t: m") as caught:
        simulate(7, host=lambda system: system.register("lost", Lost), drive=drive, limit=100)
    assert isinstance(caught.value.__cause__, StuckError)


def test_a_fault_that_the_client_finds_is_reported_with_the_seed() -> None:
    async def drive(world: World) -> None:
        assert await world.ask("probe/1", Ping(text="a")) == Pong(text="b")

    with pytest.raises(AssertionError, match="seed 11: "):
        simulate(11, host=lambda system: system.register("probe", Probe), drive=drive, faults=Faults(crashes=0))


def test_a_world_without_faults_is_quick_and_calm() -> None:
    calm = Faults(crashes=0, loss=0, duplication=0, delay=0, ledger_delay=0, ledger_failure=0)

    async def drive(world: World) -> None:
        assert await world.ask("probe/1", Ping(text="a"), thread_id="t") == Pong(text="a!")

    simulated = simulate(0, host=lambda system: system.register("probe", Probe), drive=drive, faults=calm, settings=Settings())
    assert (simulated.landed, simulated.seconds < 2) == (Counter(), True)
