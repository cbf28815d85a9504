"""Pause, resume, terminate, status and settle in a plain system of actors (G12, G13)."""

import asyncio
from typing import Any

import pytest
from tests.runtime.actors import Note, Ping, Pong

from antiphon.errors import ParkedError, RefusedError, WithdrawnError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import current_port
from antiphon.protocol import GetThreadStatus, PauseThread
from antiphon.runtime import Actor, Context, System, handles
from antiphon.runtime._gates import LIFE_ACTOR

pytestmark = pytest.mark.virtual_time


class Payer(Actor):
    """Does two things to the world for each ping, one after the other, each in ten seconds."""

    effects: Any = "idempotent"
    paid: list[str]

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        async def pay(key: str) -> str:
            self.paid.append(key)
            await asyncio.sleep(10)
            return "paid"

        for key in ("first", "second"):
            await context.effect(key, {}, pay, effects=self.effects)
        return Pong(text="paid twice")

    @handles
    async def note(self, note: Note, context: Context) -> None:
        await context.remind(1000, Note(text="again"))


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    Payer.paid = []
    Payer.effects = "idempotent"


def _system(ledger: Ledger | None = None) -> System:
    system = System(ledger)
    system.register("payer", Payer)
    return system


def _ask(system: System, id: str = "m") -> asyncio.Task[Pong]:
    return asyncio.create_task(system.ask("payer/1", Ping(text="x"), thread_id="t", id=id, within=10_000))


async def _left(ledger: Ledger, upto: int = 10**9) -> MemoryLedger:
    """Return what a process leaves behind that dies when the thread has so many rows."""
    left = MemoryLedger()
    epoch = await left.claim("t", kind="payer")
    rows = [record.message async for record in ledger.read("t", before=upto + 1)]
    await left.append("t", rows, epoch=epoch)
    await left.release("t", epoch=epoch, wake_at=current_port().now())
    return left


async def test_a_paused_thread_starts_no_effect_in_this_process_or_the_next() -> None:
    """G12, G13: the running effect ends; the next one waits at the gate, after a crash too, until the resume."""
    async with _system() as system:
        asked = _ask(system)
        await asyncio.sleep(1)
        for _ in range(2):
            assert (await system.pause("t")).current_phase is None
        assert (await system.status("t")).status == "paused"
        await asyncio.sleep(100)
        assert Payer.paid == ["m/first"]
        left = await _left(system.ledger)
        await system.resume("t")
        assert (await asked).text == "paid twice"
        assert (await system.status("t")).status == "completed"
    Payer.paid = []
    async with _system(left) as second:
        await second.recover()
        await asyncio.sleep(100)
        assert Payer.paid == []
        assert (await second.status("t")).status == "paused"
        for _ in range(2):
            await second.resume("t")
        assert (await second.status("t")).status == "processing"
        assert (await _ask(second)).text == "paid twice"
        assert Payer.paid == ["m/second"]


async def test_a_terminated_thread_ends_its_handlers_and_its_open_calls() -> None:
    """G12: timers and waiting messages too; what comes later is refused at its first effect."""
    async with _system() as system:
        await system.tell("payer/1", Note(text="x"), thread_id="t")
        first, second = _ask(system), _ask(system, "n")
        await asyncio.sleep(1)
        for _ in range(2):
            assert (await system.terminate("t", "enough")).reason == "enough"
        for asked in (first, second):
            with pytest.raises(WithdrawnError, match="the thread is terminated"):
                await asked
        await asyncio.sleep(1)
        assert await system.ledger.open_calls("t") == ()
        status = await system.status("t")
        assert (status.status, (status.model_extra or {})["reason"]) == ("terminated", "enough")
        for move in (system.pause, system.resume):
            with pytest.raises(RefusedError, match="is terminated"):
                await move("t")
        with pytest.raises(WithdrawnError, match="'t' is terminated"):
            await _ask(system, "later")
        await asyncio.sleep(2000)
    assert Payer.paid == ["m/first"]


async def test_an_effect_at_work_that_must_not_be_done_twice_is_parked_by_a_termination() -> None:
    Payer.effects = "once"
    async with _system() as system:
        asked = _ask(system)
        await asyncio.sleep(1)
        await system.terminate("t")
        with pytest.raises(WithdrawnError):
            await asked
        await asyncio.sleep(1)
        (parked,) = await system.parked()
        await system.settle("t", parked.invocation_id, result="paid")
        assert await system.ledger.open_calls("t") == ()
        with pytest.raises(ValueError, match="is not parked"):
            await system.settle("t", parked.invocation_id, result="paid")
    assert Payer.paid == ["m/first"]


async def test_the_next_process_completes_a_termination_that_a_killed_one_began() -> None:
    """G13: a kill between any two rows."""
    async with _system() as system:
        await system.tell("payer/1", Note(text="x"), thread_id="t")
        first, second = _ask(system), _ask(system, "n")
        await asyncio.sleep(1)
        await system.pause("t")
        await system.terminate("t")
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.sleep(1)
        rows = [record.message async for record in system.ledger.read("t")]
    began = next(i for i, row in enumerate(rows, 1) if getattr(row.payload, "option_name", "") == "TERMINATE_THREAD")
    for place in range(began, len(rows) + 1):
        Payer.paid = []
        async with _system(left := await _left(system.ledger, place)) as second_system:
            await second_system.recover()
            await asyncio.sleep(5)
            assert (await second_system.status("t")).status == "terminated", place
            assert await left.open_calls("t") == (), place
        assert Payer.paid == [], place


async def test_a_settlement_goes_to_the_system_that_has_the_thread() -> None:
    """The thread stays with its owner, whose handler goes on."""
    ledger = MemoryLedger()
    async with _system(ledger) as owner:
        Payer.effects = "once"
        asked = _ask(owner)
        await asyncio.sleep(1)
        left = await _left(ledger)
        asked.cancel()
    Payer.paid = []
    async with _system(left) as owner, System(left) as other:
        await owner.recover()
        with pytest.raises(ParkedError):
            await _ask(owner)
        (parked,) = await other.parked()
        await other.settle("t", parked.invocation_id, result="paid")
        assert (await _ask(owner)).text == "paid twice"
        paused = await other.pause("t")
        assert paused.status == "paused"
        assert (await owner.status("t")).status == "paused"
        summary = await left.thread("t")
        assert summary is not None
        assert summary.kind == "payer"
    assert Payer.paid == ["m/second"]


async def test_a_request_about_another_thread_is_refused() -> None:
    async with _system() as system:
        await _ask(system)
        with pytest.raises(RefusedError, match="ask system/life in the thread 'u'"):
            await system.ask(LIFE_ACTOR, PauseThread(thread_id="u"), thread_id="t")
        with pytest.raises(RefusedError, match="there is no thread 'new'"):
            await system.ask(LIFE_ACTOR, PauseThread(thread_id="new"), thread_id="new")
        answered = await system.ask(LIFE_ACTOR, GetThreadStatus(thread_id="t"), thread_id="t")
        assert (answered.status, answered.phases_remaining) == ("completed", ())
