"""Idle actors are released, and made again with the next message: none is lost, none is there twice (G14, G18)."""

import asyncio
from collections import Counter
from functools import partial
from typing import Any, ClassVar

import pytest
from tests.runtime import choir
from tests.runtime.actors import Do, Note, Ping, Pong, Probe, virtually
from tests.runtime.test_simulation import FAILING, THREADS, _check_effects, _check_thread, _drive, _messages
from typing_extensions import override

from antiphon.errors import ActorStoppedError
from antiphon.ledger import Record
from antiphon.ledger.memory import MemoryLedger
from antiphon.protocol import Stop
from antiphon.runtime import Actor, Context, Settings, Supervision, System, handles
from antiphon.testing import Faults, simulate

pytestmark = pytest.mark.virtual_time


BRIEFLY = Settings(idle_after=10.0)


def _addresses(system: System) -> set[str]:
    return {address for address in system._kernel.tree.cells if not address.startswith("system/")}


class Alone(Actor):
    """Notes if another actor of its address is at work at the same time."""

    at_work: ClassVar[Counter[str]] = Counter()
    most = 0
    answered = 0

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        cls = type(self)
        cls.at_work[context.address] += 1
        cls.most = max(cls.most, cls.at_work[context.address])
        await asyncio.sleep(0.003)
        cls.at_work[context.address] -= 1
        cls.answered += 1
        return Pong(text=ping.text)


class Slow(Alone):
    """Takes its time to end."""

    ended = 0

    @override
    async def stopped(self, reason: str) -> None:
        await asyncio.sleep(0.02)
        type(self).ended += 1


# ---------------------------------------------------------------- who goes, and who stays


async def test_an_idle_actor_of_a_registered_kind_is_released_and_made_again() -> None:
    async with System(settings=BRIEFLY) as system:
        system.register("probe", Probe)
        for number in range(100):
            await system.ask(f"probe/{number}", Ping(text="a"), thread_id=f"t{number}")
        assert len(_addresses(system)) == 100
        await asyncio.sleep(25)
        assert _addresses(system) == set()
        assert not system._kernel.idle_actors._since
        made = Probe.made
        assert await system.ask("probe/7", Do(what="list")) is not None
        assert Probe.made == made + 1  # and what it had only in memory is gone, as after a restart
        assert _addresses(system) == {"probe/7"}


async def test_an_actor_that_is_used_or_was_spawned_stays() -> None:
    async with System(settings=BRIEFLY) as system:
        system.register("probe", Probe)
        system.spawn("spawned/1", Probe)
        await system.ask("spawned/1", Ping(text="a"))
        for _ in range(10):
            await system.ask("probe/1", Ping(text="a"))
            await asyncio.sleep(9)
        assert await system.ask("probe/1", Do(what="list")) == await system.ask("probe/1", Do(what="nothing"))
        assert len((await system.ask("probe/1", Do(what="list"))).said) == 10
        waiting = asyncio.create_task(system.ask("probe/2", Do(what="wait", seconds=50), within=100))
        await asyncio.sleep(49)
        assert _addresses(system) == {"spawned/1", "probe/2"}
        await waiting


async def test_no_actor_is_released_unless_the_settings_say_so() -> None:
    async with System(settings=Settings(idle_after=None)) as system:
        system.register("probe", Probe)
        await system.ask("probe/1", Ping(text="a"))
        await asyncio.sleep(1e6)
        assert _addresses(system) == {"probe/1"}


async def test_heartbeats_keep_no_idle_actor() -> None:
    """A supervisor that asks its children whether they live does not keep the idle ones from going."""
    async with System(settings=BRIEFLY) as system:
        team = system.supervise("team/1", Supervision(heartbeat=1.0))
        system.register("probe", Probe, supervisor=team)
        await system.ask("probe/1", Ping(text="a"))
        await asyncio.sleep(25)
        assert _addresses(system) == {"team/1"}
        assert system._kernel.tree.children(team) == ()


async def test_an_actor_that_has_nothing_left_to_do_goes_at_once() -> None:
    class Once(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            context.rest()
            return Pong(text=ping.text)

    async with System(settings=Settings(idle_after=None)) as system:
        system.register("once", Once)
        for number in range(3):
            assert (await system.ask("once/1", Ping(text=str(number)), thread_id="t")).text == str(number)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert _addresses(system) == set()


async def test_an_actor_is_notified_before_it_is_released() -> None:
    Slow.ended = 0
    async with System(settings=BRIEFLY) as system:
        system.register("slow", Slow)
        await system.ask("slow/1", Ping(text="a"))
        await asyncio.sleep(25)
        assert (Slow.ended, _addresses(system)) == (1, set())


# ---------------------------------------------------------------- what comes at the same moment


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Alone, Slow])
def test_a_message_that_comes_while_its_actor_is_released_is_not_lost(kind: type[Alone]) -> None:
    """Asks at all moments, in the order that each seed chooses: each is answered, and no address has two actors at work."""
    for seed in range(40):
        kind.at_work, kind.most, kind.answered = Counter(), 0, 0
        virtually(_ask_again_and_again(kind), seed)
        assert (kind.answered, kind.most) == (160, 1), seed


async def _ask_again_and_again(kind: type[Alone]) -> None:
    async with System(settings=Settings(idle_after=0.01)) as system:
        system.register("some", kind)

        async def ask(number: int) -> None:
            for turn in range(20):
                thread_id = f"t{number}" if number % 2 else None
                own = f"{number}-{turn}" if number % 4 > 1 else None  # with an id, the ledger is asked first
                await system.ask(f"some/{number % 3}", Ping(text="a"), thread_id=thread_id, id=own)
                await asyncio.sleep((turn * 7 + number) % 11 * 0.003)

        await asyncio.gather(*(ask(number) for number in range(8)))


async def test_an_actor_stays_while_a_message_for_it_is_being_written_down() -> None:
    """The ledger takes longer than the actor may be idle; no second actor is made meanwhile."""

    class Slowly(MemoryLedger):
        @override
        async def find(self, **names: Any) -> tuple[Record, ...]:
            await asyncio.sleep(60)
            return await super().find(**names)

    async with System(Slowly(), settings=BRIEFLY) as system:
        system.register("probe", Probe)
        await system.ask("probe/1", Ping(text="first"))
        asking = asyncio.create_task(system.ask("probe/1", Ping(text="second"), thread_id="t", id="known", within=100))
        await asyncio.sleep(30)
        assert _addresses(system) == {"probe/1"}
        await asking
        assert (await system.ask("probe/1", Do(what="list"))).said == ("first", "second")


async def test_stopping_a_resting_actor_stops_it_for_good() -> None:
    async with System(settings=BRIEFLY) as system:
        system.register("probe", Probe)
        await system.ask("probe/1", Ping(text="a"))
        cell = system._kernel.tree.at("probe/1")
        await asyncio.sleep(25)
        assert cell.state == "resting"
        await system.ask("probe/1", Stop(actor_id="probe/1", reason="enough"))
        with pytest.raises(ActorStoppedError):
            await system.ask("probe/1", Ping(text="a"))
        with pytest.raises(ActorStoppedError):
            await system.tell("probe/1", Note(text="a"))


@pytest.mark.slow
def test_threads_run_through_every_fault_while_actors_come_and_go() -> None:
    """The worlds of the simulation once more, with actors that are let go of as soon as they are idle."""
    settings, went = Settings(idle_after=0.0), 0
    for seed in range(30):
        choir.AgentManager.failing = FAILING
        choir.AgentManager.models, choir.AgentManager.bills = [], []
        host = partial(_host, counts := Counter[str]())
        simulated = simulate(seed, host=host, drive=_drive, faults=Faults(crashes=1 + seed % 4), settings=settings)
        went += counts["went"]
        for thread_id in THREADS:
            _check_thread(seed, _messages(simulated, thread_id))
        _check_effects(seed)
    assert went > 1_000  # R0: they did go


def _host(counts: Counter[str], system: System) -> None:
    choir.host(system)
    remove = system._kernel.tree.remove

    def counted(cell: object) -> None:
        counts["went"] += 1
        remove(cell)  # type: ignore[arg-type]

    system._kernel.tree.remove = counted  # type: ignore[method-assign]
