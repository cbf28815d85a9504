"""A system that slept past its lease, while another one owns its threads (G7, G8)."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import pytest
from tests.runtime.actors import Do, Done, Note, Ping, Pong, Probe, lease_is_over, rows, taken_by_another

from antiphon.errors import FencedError, LedgerError, ParkedError, ReplyTimeoutError
from antiphon.ledger import Host, Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionResultPayload
from antiphon.runtime import Actor, Context, Effects, Recovered, Settings, System, handles
from antiphon.runtime._delivery import DeliveryState
from antiphon.runtime._rows import begun, ended
from antiphon.runtime._send import Sender
from antiphon.runtime._states import Event

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize("notices", [True, False])
async def test_an_effect_that_the_new_owner_has_begun_is_not_begun_by_the_old_one(notices: bool) -> None:
    """G7, G8: the old owner's handler goes on after its row was refused, or before it has noticed anything."""
    started: list[str] = []
    paused, taken, begun = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Clerk(Actor):
        def __init__(self, name: str) -> None:
            self._name = name

        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            if self._name == "old":
                paused.set()
                await taken.wait()
                if notices:
                    with suppress(LedgerError):
                        await context.tell(context.address, Note(text="still here"))

            async def pay(key: str) -> str:
                started.append(self._name)
                begun.set()
                await asyncio.sleep(1)
                return "paid"

            return Pong(text=await context.effect("pay", {}, pay, effects="once"))

        @handles
        async def note(self, note: Note, context: Context) -> None:
            pass

    ledger = MemoryLedger()
    async with System(ledger) as old, System(ledger) as new:
        old.register("clerk", lambda: Clerk("old"))
        new.register("clerk", lambda: Clerk("new"))
        asking = asyncio.ensure_future(old.ask("clerk/1", Ping(text="x"), thread_id="t", id="p"))
        await paused.wait()
        await lease_is_over(old)
        await new.recover()
        await begun.wait()
        taken.set()
        assert await asking == Pong(text="paid")  # from the ledger
        await asyncio.sleep(5)
    assert started == ["new"]


async def test_a_request_whose_thread_is_lost_while_it_is_written_leaves_no_error_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It fails twice: the thread is evicted, and the write is refused. Python must not print the first error later."""
    waiters: list[Any] = []

    async def lose(self: Sender, cell: object, delivery: DeliveryState, deadline: float) -> None:
        waiters.append(delivery.callers.waiter)
        delivery.settle(None, FencedError("t", 1, 2))
        raise FencedError("t", 1, 2)

    monkeypatch.setattr(Sender, "_carry", lose)
    async with System(MemoryLedger()) as system:
        system.spawn("probe", Probe)
        with pytest.raises(FencedError):
            await system.ask("probe", Ping(text="x"), thread_id="t")
    assert [waiter._log_traceback for waiter in waiters] == [False]


# ---------------------------------------------------------------- effects of an earlier life


class Looked(MemoryLedger):
    """A ledger in which something happens right after an effect was looked up, once."""

    then: Callable[[], Awaitable[None]] | None = None

    async def find(self, **names: Any) -> tuple[Record, ...]:
        found = await super().find(**names)
        if self.then is not None and names.get("invocation_id") == "m/look":
            then, self.then = self.then, None
            await then()
        return found


class Looker(Actor):
    """Looks at something; where its name is `dead`, for ever."""

    def __init__(self, name: str, effects: Effects, started: list[str]) -> None:
        self._name, self._effects, self._started = name, effects, started

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        async def look(key: str) -> str:
            self._started.append(self._name)
            await asyncio.sleep(1e9 if self._name == "dead" else 1)
            return self._name

        return Pong(text=await context.effect("look", {}, look, effects=self._effects))


async def _left_open(ledger: MemoryLedger, effects: Effects, started: list[str]) -> None:
    """Leave the intent of an effect in the thread, as a process does that is killed in the middle of it."""
    dead = System(ledger)
    dead.register("looker", lambda: Looker("dead", effects, started), grace=0)
    asking = asyncio.ensure_future(dead.ask("looker/1", Ping(text="x"), thread_id="t", id="m", within=1e6))
    await asyncio.sleep(5)
    await ledger.claim("t")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await dead.close()


@pytest.mark.parametrize("effects", ["none", "idempotent"])
async def test_a_system_that_has_lost_the_thread_starts_no_effect_of_an_earlier_process(effects: Effects) -> None:
    """G8, F14: also where the intent is there already. The row of the new attempt is refused, so nothing is started."""
    started: list[str] = []

    ledger = Looked()
    await _left_open(ledger, effects, started)
    async with System(ledger) as system:
        system.register("looker", lambda: Looker("late", effects, started))

        async def taken_over() -> None:
            await taken_by_another(ledger, "t")

        ledger.then = taken_over
        with pytest.raises(ReplyTimeoutError):  # the other host never answers
            await system.ask("looker/1", Ping(text="x"), thread_id="t", id="m", within=30)
        await asyncio.sleep(60)
    assert started == ["dead"]


@pytest.mark.parametrize("effects", ["none", "idempotent"])
async def test_each_further_attempt_of_an_effect_is_a_row_before_it_is_started(effects: Effects) -> None:
    """G6, G8."""
    started: list[str] = []

    ledger = MemoryLedger()
    await _left_open(ledger, effects, started)
    await _left_open(ledger, effects, started)
    async with System(ledger) as system:
        system.register("looker", lambda: Looker("next", effects, started))
        assert await system.ask("looker/1", Ping(text="x"), thread_id="t", id="m") == Pong(text="next")
    attempts = [record.message for record in await ledger.find(correlation_id="m/look", thread_id="t")]
    assert [(row.id, row.lane, row.kind) for row in attempts] == [
        ("m/look@attempt2", "effect", "parts"),
        ("m/look@attempt3", "effect", "parts"),
    ]
    assert await ledger.open_calls("t") == ()
    assert (await ledger.verify()).is_whole
    found = await rows(ledger, "t")
    assert found.count("look") == found.count("=look") == 1

    assert started == ["dead", "dead", "next"]


@pytest.mark.parametrize(
    ("effects", "is_begun"),
    [("none", False), ("idempotent", False), ("once", False), ("none", True), ("idempotent", True)],
)
async def test_an_effect_of_another_owner_in_between_is_not_repeated(effects: Effects, is_begun: bool) -> None:
    """G7, G8: a looked-up effect counts only while the thread is owned without a break."""
    started: list[str] = []

    ledger = Looked()
    if is_begun:
        await _left_open(ledger, effects, started)
    else:
        await ledger.claim("t")
    async with System(ledger) as system:
        system.register("looker", lambda: Looker("late", effects, started))

        async def taken_over_and_back() -> None:
            said = {"thread_id": "t", "parent_id": "m"}
            intent = begun("look", "m/look", **said, arguments={"effects": effects, "arguments": {}}, policy="looker/1")
            outcome = ended("look", "m/look", **said, policy="look", result="by another")
            new = [outcome] if is_begun else [intent, outcome]
            await ledger.append("t", new, epoch=await ledger.claim("t"))
            system._kernel.journal._disown("t")  # as if an append had been refused
            await system.tell("probe/1", Note(text="go on here"), thread_id="t")

        system.register("probe", Probe)
        ledger.then = taken_over_and_back
        assert await system.ask("looker/1", Ping(text="x"), thread_id="t", id="m") == Pong(text="by another")
    assert started == (["dead"] if is_begun else [])


# ---------------------------------------------------------------- what was in hand


class Held(MemoryLedger):
    """A ledger that holds back rows of an option until it is told to go on."""

    def __init__(self, option: str) -> None:
        super().__init__()
        self.option = option
        self.arrived, self.goes_on = asyncio.Event(), asyncio.Event()

    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        messages = list(messages)
        if any(getattr(message.payload, "option_name", "") == self.option for message in messages):
            self.arrived.set()
            await self.goes_on.wait()
        return await super().append(thread_id, messages, **more)


@pytest.mark.parametrize("first", ["recover", "ask"])
async def test_all_callers_of_a_lost_thread_get_the_answer_of_the_new_owner(first: str) -> None:
    """G8, G16: also a caller of the same id during the redelivery; and the recovery continues with the others."""
    ledger = Held("AGAIN")
    async with System(ledger) as dead:
        dead.register("probe", Probe, grace=0)
        for thread in ("t", "u"):
            await dead.tell("probe/1", Do(what="wait", seconds=1e6), thread_id=thread, id=f"m{thread}", within=1e6)
    async with System(ledger) as system:
        system.register("probe", Probe)
        same = Do(what="wait", seconds=1e6)
        asking = [system.ask("probe/1", same, thread_id="t", id="mt", within=1e6) for _ in range(3)]
        waiting = [asyncio.ensure_future(asking.pop() if first == "ask" else system.recover())]
        await ledger.arrived.wait()
        waiting += [asyncio.ensure_future(each) for each in asking]
        await asyncio.sleep(1)
        epoch = await taken_by_another(ledger, "t")
        ledger.goes_on.set()
        await asyncio.sleep(1)
        answer = OptionResultPayload(invocation_id="mt", option_name=Do.message_type, result={})
        await ledger.append("t", [Message(policy="probe/1", payload=answer, lane="control")], epoch=epoch)
        async with asyncio.timeout(10):
            ended_with = await asyncio.gather(*waiting)
    if first == "recover":
        assert ended_with.pop(0) == Recovered(threads=1, delivered=1)
    assert ended_with == [Done()] * 3


@pytest.mark.parametrize("within", [1e6, 3.0])
async def test_a_recovery_does_not_deliver_again_what_has_ended_since_it_looked(within: float) -> None:
    """G9: also where the time of the message is over when the recovery comes to it."""
    ledger = Held("AGAIN")
    async with System(ledger) as dead:
        dead.register("probe", Probe, grace=0)
        await dead.tell("probe/1", Do(what="wait", seconds=1e6), thread_id="t", id="left", within=1e6)
    async with System(ledger) as system:
        system.register("probe", Probe, grace=0)
        asked = system.ask("probe/2", Do(what="wait", seconds=2), thread_id="t", id="m", within=within)
        asking = asyncio.ensure_future(asked)
        await asyncio.sleep(1)
        recovering = asyncio.ensure_future(system.recover())
        await asking
        await asyncio.sleep(5)
        ledger.goes_on.set()
        assert await recovering == Recovered(threads=1, delivered=1)
        await asyncio.sleep(5)
        rows_of_m = [record.message.id for record in await ledger.find(invocation_id="m", thread_id="t")]
        assert len(rows_of_m) == 2
        assert await ledger.find(invocation_id="m#2", thread_id="t") == ()


class FailsLater(Probe):
    @handles
    async def do(self, request: Do, context: Context) -> Done:
        await asyncio.sleep(request.seconds)
        raise ValueError("as told")


async def test_a_recovery_goes_on_if_a_message_was_parked_since_it_looked() -> None:
    """G16: else the host that recovers would stop to work, its heartbeats included."""
    ledger = Held("AGAIN")
    async with System(ledger) as dead:
        dead.register("probe", Probe, grace=0)
        await dead.tell("probe/1", Do(what="wait", seconds=1e6), thread_id="t", id="left", within=1e6)
    async with System(ledger, settings=Settings(attempts=1)) as system:
        system.register("probe", Probe, grace=0)
        system.register("failing", FailsLater)
        asking = asyncio.ensure_future(system.ask("failing/1", Do(what="fail", seconds=2), thread_id="t", id="m", within=1e6))
        await asyncio.sleep(1)
        recovering = asyncio.ensure_future(system.recover())
        with pytest.raises(ParkedError):
            await asking
        ledger.goes_on.set()
        assert await recovering == Recovered(threads=1, delivered=1)


async def test_a_system_takes_a_lost_thread_back_only_for_a_new_request() -> None:
    """G8: neither to record that a message was given up, nor to read its outcome."""
    ledger = MemoryLedger()
    async with System(ledger) as system:
        system.register("probe", Probe)
        asking = system.ask("probe/1", Do(what="wait", seconds=1e6), thread_id="t", id="m", within=5)
        waiting = asyncio.ensure_future(asking)
        await asyncio.sleep(1)
        epoch = await taken_by_another(ledger, "t")
        with pytest.raises(ReplyTimeoutError):
            await waiting
        await asyncio.sleep(600)
        assert (await ledger.head("t")).epoch == epoch
        with pytest.raises(ReplyTimeoutError):  # posted to the other host, which does not answer
            await system.ask("probe/1", Ping(text="x"), thread_id="t", id="n", within=5)
        assert (await ledger.head("t")).epoch == epoch
        await ledger.leave(Host("another", "build", instance="another/1"))
        assert await system.ask("probe/1", Ping(text="x"), thread_id="t", id="o") == Pong(text="x!")
        assert (await ledger.head("t")).epoch == epoch + 1


class EvictsOnAppend(MemoryLedger):
    """A ledger that is told to evict a delivery while a row is written."""

    delivery: DeliveryState | None = None

    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        records = await super().append(thread_id, messages, **more)
        if self.delivery is not None:
            self.delivery.evict(FencedError(thread_id, 1, 2))
        return records


@pytest.mark.parametrize("when", ["before the row", "during the row"])
async def test_a_delivery_of_an_evicted_thread_is_not_made_again(when: str) -> None:
    """This host was given the thread again, and makes a delivery of its own: the old one must not be beside it."""
    ledger = EvictsOnAppend()
    async with System(ledger) as system:
        system.register("probe", Probe)
        asking = asyncio.ensure_future(system.ask("probe/1", Do(what="wait", seconds=5), thread_id="t", id="m"))
        await asyncio.sleep(1)
        kernel = system._kernel
        (old,) = kernel.in_flight.of_thread("t")
        cell = kernel.tree.at("probe/1")
        kernel.in_flight.drop(old)
        old.turn(Event.REDELIVER)
        if when == "before the row":
            old.evict(FencedError("t", 1, 2))
        else:
            ledger.delivery = old
        before = (await ledger.head("t")).seq
        with pytest.raises(FencedError):
            await kernel.redelivery.deliver(cell, old, "recovered", "it was said again")
        assert not kernel.in_flight.has(old)
        assert (await ledger.head("t")).seq == before + (when == "during the row")
        asking.cancel()
