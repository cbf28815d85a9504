"""The phases of a delivery: the table has every change that happens, and none that does not; its picture is in the docs."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

import pytest
from tests.runtime import test_hosts_simulated
from tests.runtime.actors import Do, Done, Ping, Pong, Probe, Via, virtually
from tools.phases import PAGE, with_picture

from antiphon.errors import (
    ActorStoppedError,
    DeliveryError,
    FencedError,
    MailboxFullError,
    ReplyTimeoutError,
    UndeliverableError,
)
from antiphon.ledger import Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message
from antiphon.protocol import Restart
from antiphon.runtime import Actor, Context, System, handles
from antiphon.runtime._delivery import DeliveryState, Envelope
from antiphon.runtime._states import TRANSITIONS, Event, Phase, TransitionError

Change = tuple[Phase, Event]
LISTED = {(phase, event) for phase, events in TRANSITIONS.items() for event in events}


class Watched(MemoryLedger):
    """A ledger that calls a function after an append was written, before its caller knows; and that may be slow."""

    written: Callable[[Sequence[Message]], None] | None = None
    seconds = 0.0

    async def append(self, thread_id: str, messages: Iterable[Message], **more: Any) -> tuple[Record, ...]:
        messages = tuple(messages)
        records = await super().append(thread_id, messages, **more)
        if self.written is not None:
            self.written(messages)
        if self.seconds:
            await asyncio.sleep(self.seconds)
        return records


async def _expire_in_the_mailbox() -> None:
    async with System(MemoryLedger()) as system:
        system.spawn("probe", Probe)
        busy = asyncio.ensure_future(system.ask("probe", Do(what="wait", seconds=5)))
        await asyncio.sleep(0)
        with pytest.raises(ReplyTimeoutError):
            await system.ask("probe", Ping(text="late"), within=1)
        assert (await busy) == Done()
        assert (await system.ask("probe", Do(what="list"))).said == ()


async def _fail_to_make_the_actor() -> None:
    made: list[int] = []

    def make() -> Probe:
        made.append(1)
        if len(made) == 1:
            raise ValueError("not yet")
        return Probe()

    async with System(MemoryLedger()) as system:
        system.spawn("probe", make)
        assert await system.ask("probe", Ping(text="a"), thread_id="t") == Pong(text="a!")


async def _forward() -> None:
    async with System(MemoryLedger()) as system:
        system.spawn("probe/1", Probe)
        system.spawn("probe/2", Probe)
        asked = Via(to="probe/2", text="", how="forward")
        with pytest.raises(DeliveryError):  # the second one forwards it to itself, until there are too many hops
            await system.ask("probe/1", asked, thread_id="t")


async def _cancel_while_it_is_appended() -> None:
    ledger = Watched()
    async with System(ledger) as system:
        system.spawn("probe", Probe)
        await system.ask("probe", Ping(text="a"), thread_id="t")
        ledger.seconds = 1.0
        asking = asyncio.ensure_future(system.ask("probe", Ping(text="b"), thread_id="t", id="b"))
        await asyncio.sleep(0.5)
        asking.cancel()
        ledger.seconds = 0.0
        await asyncio.sleep(10)
        assert not await ledger.open_calls("t")


async def _cancel_while_its_end_is_appended() -> None:
    """Its actor has stopped meanwhile, so it is ended at once."""
    ledger = Watched()
    async with System(ledger) as system:
        system.spawn("probe", Probe)
        await system.ask("probe", Ping(text="a"), thread_id="t")
        ledger.seconds = 1.0
        asking = asyncio.ensure_future(system.ask("probe", Ping(text="b"), thread_id="t", id="b"))
        await asyncio.sleep(0.5)
        await system._kernel.lifecycle.stop(system._kernel.tree.at("probe"), "as told")
        await asyncio.sleep(1)
        asking.cancel()
        ledger.seconds = 0.0
        await asyncio.sleep(10)
        assert not await ledger.open_calls("t")


async def _close_while_it_is_appended() -> None:
    ledger = Watched()
    async with System(ledger) as system:
        system.spawn("probe", Probe)
        await system.ask("probe", Ping(text="a"), thread_id="t")
        ledger.seconds = 1.0
        asking = asyncio.ensure_future(system.ask("probe", Ping(text="b"), thread_id="t", id="b"))
        await asyncio.sleep(0.5)
    with pytest.raises(ActorStoppedError):
        await asking
    assert [row.message.id for row in await ledger.open_calls("t")] == ["b"]


async def _evict_when(is_written: Callable[[Message], bool]) -> None:
    """The ledger has written a row, and another host takes the thread before this host knows that."""
    ledger = Watched()
    async with System(ledger) as system:
        system.spawn("payer", Payer)
        kernel = system._kernel

        def written(messages: Sequence[Message]) -> None:
            if any(map(is_written, messages)):
                ledger.written = None
                kernel.eviction.evict("t", FencedError("t", 1, 2))

        ledger.written = written
        asking = asyncio.ensure_future(system.ask("payer", Ping(text="x"), thread_id="t", id="m"))
        await asyncio.sleep(5)
        assert ledger.written is None
        assert not kernel.in_flight.has_thread("t")
        asking.cancel()


async def _evict_while_it_is_parked() -> None:
    await _evict_when(lambda message: message.lane == "effect" and message.kind == "option_call")


async def _evict_while_it_ends() -> None:
    Payer.parks = False
    try:
        await _evict_when(lambda message: message.kind == "option_result")
    finally:
        Payer.parks = True


async def _evict_while_it_is_appended() -> None:
    """It must not be in the mailbox, nor in flight for ever: the other host delivers it."""
    await _evict_when(lambda message: message.id == "m")


class Payer(Actor):
    parks = True

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        if self.parks:
            await context.park("somebody must look", {})
        return Pong(text="paid")


SCENARIOS: dict[Callable[[], Coroutine[Any, Any, None]], Change] = {
    _expire_in_the_mailbox: (Phase.QUEUED, Event.SETTLE),
    _fail_to_make_the_actor: (Phase.RUNNING, Event.ACCEPT),
    _forward: (Phase.RUNNING, Event.MERGE),
    _cancel_while_it_is_appended: (Phase.UNDELIVERED, Event.END),
    _cancel_while_its_end_is_appended: (Phase.RUNNING, Event.REFUSE),
    _close_while_it_is_appended: (Phase.APPENDING, Event.LEAVE),
    _evict_while_it_is_parked: (Phase.EVICTED, Event.LEAVE),
    _evict_while_it_ends: (Phase.EVICTED, Event.STORED),
    _evict_while_it_is_appended: (Phase.APPENDING, Event.EVICT),
}
"""What the worlds below rarely do."""

WORLDS = (0, 1, 2, 3, 6, 14, 36, 39, 91, 94)
"""The seeds of three systems in which everything else happens."""


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> Counter[Change]:
    """Every change of phase, also one that is refused."""
    seen, turn = Counter[Change](), DeliveryState.turn

    def watched(delivery: DeliveryState, event: Event) -> None:
        seen[delivery.phase, event] += 1
        turn(delivery, event)

    monkeypatch.setattr(DeliveryState, "turn", watched)
    return seen


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__.strip("_"))
def test_a_rare_change_of_phase(scenario: Callable[[], Coroutine[Any, Any, None]], changes: Counter[Change]) -> None:
    virtually(scenario())

    assert SCENARIOS[scenario] in changes
    assert set(changes) <= LISTED


@pytest.mark.slow
def test_every_change_in_the_table_happens_and_no_other(changes: Counter[Change]) -> None:
    for scenario in SCENARIOS:
        virtually(scenario())
    for seed in WORLDS:
        test_hosts_simulated._check(seed, Counter(), Counter())

    assert set(changes) - LISTED == set(), "not in the table"
    assert LISTED - set(changes) == set(), "nothing does this: drop it from the table, or add a scenario or a seed"


def test_a_change_that_is_not_in_the_table_is_refused_and_changes_nothing() -> None:
    delivery = DeliveryState(Envelope(Ping(text="a"), None, "me", "you"), may_be_known=False)

    with pytest.raises(TransitionError, match="TEST_PING to you: a delivery that is new cannot take 'stored'"):
        delivery.turn(Event.STORED)
    assert delivery.phase is Phase.NEW


def test_every_phase_has_a_row_and_all_but_the_first_are_reached() -> None:
    assert set(TRANSITIONS) == set(Phase)
    assert {after for events in TRANSITIONS.values() for after in events.values()} | {Phase.NEW} == set(Phase)


def test_the_picture_in_the_docs_is_made_from_the_table() -> None:
    page = PAGE.read_text(encoding="utf-8")

    assert with_picture(page) == page, "run `python tools/phases.py`"


# ---------------------------------------------------------------- faults that the table has shown


@pytest.mark.virtual_time
async def test_a_message_that_is_forwarded_to_nobody_is_not_in_flight_for_ever() -> None:
    async with System(MemoryLedger()) as system:
        system.spawn("probe", Probe)
        with pytest.raises(UndeliverableError):
            await system.ask("probe", Via(to="nobody", text="", how="forward"), thread_id="t", id="m")
        assert not system._kernel.in_flight.has_thread("t")


@pytest.mark.virtual_time
async def test_a_handler_that_fails_while_it_is_interrupted_is_run_once_more_and_not_twice() -> None:
    runs: list[int] = []

    class Clumsy(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            runs.append(context.attempt)
            if len(runs) == 1:
                try:
                    await asyncio.sleep(100)
                except asyncio.CancelledError:
                    raise ValueError("it was in the middle of something") from None
            return Pong(text="done")

    async with System(MemoryLedger()) as system:
        system.spawn("clumsy", Clumsy, grace=0)
        asking = asyncio.ensure_future(system.ask("clumsy", Ping(text="a"), thread_id="t"))
        await asyncio.sleep(1)
        await system.ask("clumsy", Restart(actor_id="clumsy", reason="as told"))
        assert await asking == Pong(text="done")
        await asyncio.sleep(10)
    assert runs == [1, 2]


@pytest.mark.virtual_time
async def test_a_message_that_found_no_room_may_be_sent_again_under_its_id() -> None:
    async with System(MemoryLedger()) as system:
        system.spawn("probe", Probe, capacity=1)
        busy = [asyncio.ensure_future(system.ask("probe", Do(what="wait", seconds=5))) for _ in range(2)]
        await asyncio.sleep(1)
        with pytest.raises(MailboxFullError):
            await system.ask("probe", Ping(text="a"), id="m", within=1)
        await asyncio.gather(*busy)
        assert await system.ask("probe", Ping(text="a"), id="m", within=5) == Pong(text="a!")
