"""Admission: the check before every effect of a thread, which can hold the thread (G12)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.runtime.actors import Ping, Pong, rows

from antiphon.errors import WithdrawnError
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import Actor, Context, System, handles

pytestmark = pytest.mark.virtual_time


class Payer(Actor):
    """Does something to the world for each ping."""

    paid: list[str]

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        async def pay(key: str) -> str:
            self.paid.append(key)
            await asyncio.sleep(1)
            return "paid"

        return Pong(text=await context.effect("pay", {}, pay, effects="idempotent"))


class Gate:
    """Lets the effects of a thread through while it is open."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.asked: list[str] = []
        self.inside: list[list[str]] = []
        self.ledger = MemoryLedger()

    @asynccontextmanager
    async def __call__(self, thread_id: str) -> AsyncIterator[None]:
        self.asked.append(thread_id)
        await self.is_open.wait()
        yield
        self.inside.append(await rows(self.ledger, thread_id))


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    Payer.paid = []


async def test_no_effect_begins_before_it_is_admitted_and_its_intent_is_written_inside() -> None:
    """G12: when the gate is closed and no effect is inside, no effect will begin."""
    gate = Gate()
    async with System(gate.ledger, admit=gate) as system:
        system.spawn("payer/1", Payer)
        asked = asyncio.create_task(system.ask("payer/1", Ping(text="x"), thread_id="t"))
        await asyncio.sleep(5)
        assert (gate.asked, Payer.paid) == (["t"], [])
        assert await rows(gate.ledger, "t") == ["TEST_PING"]
        gate.is_open.set()
        assert (await asked).text == "paid"
    assert gate.inside == [["TEST_PING", "pay"]]
    assert len(Payer.paid) == 1


@pytest.mark.slow
async def test_an_effect_that_a_crash_has_cut_off_is_admitted_again_before_it_is_done_again() -> None:
    """G12, G13: an intent of an earlier process does not let it pass."""
    gate = Gate()
    gate.is_open.set()
    system = System(gate.ledger, admit=gate)
    system.spawn("payer/1", Payer)
    asked = asyncio.create_task(system.ask("payer/1", Ping(text="x"), thread_id="t", id="m"))
    await asyncio.sleep(0.5)
    copy = await _copied(gate.ledger)
    gate.is_open.clear()
    gate.ledger = copy
    async with System(copy, admit=gate) as second:
        second.spawn("payer/1", Payer)
        await second.recover()
        await asyncio.sleep(5)
        assert len(Payer.paid) == 1
        gate.is_open.set()
        await second.ask("payer/1", Ping(text="x"), thread_id="t", id="m")
        assert Payer.paid == ["m/pay", "m/pay"]
    await asked
    await system.close()


async def test_an_admission_that_raises_ends_what_was_to_be_done() -> None:
    """G12: after a thread is terminated, what comes is turned away and not kept waiting."""

    @asynccontextmanager
    async def never(thread_id: str) -> AsyncIterator[None]:
        raise WithdrawnError(f"thread {thread_id!r} is over")
        yield

    async with System(admit=never) as system:
        system.spawn("payer/1", Payer)
        with pytest.raises(WithdrawnError, match="'t' is over"):
            await system.ask("payer/1", Ping(text="x"), thread_id="t")
        assert await rows(system.ledger, "t") == ["TEST_PING", "!CANCELLED"]
        assert (await system.ask("payer/1", Ping(text="x"))).text == "paid"  # outside of a thread nobody is asked

    assert len(Payer.paid) == 1


async def _copied(ledger: MemoryLedger) -> MemoryLedger:
    """Return what a process leaves behind that dies now."""
    copy = MemoryLedger()
    await copy.append("t", [record.message async for record in ledger.read("t")])
    return copy
