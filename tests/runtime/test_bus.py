"""Systems on a bus: every promise of the bus, a check that finds a broken one, and asking from one system to another (F25)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import pytest
from tests.runtime.actors import Do, Done, Note, Ping, Pong, Probe, rows, virtually

from antiphon.errors import RefusedError, ReplyTimeoutError, UndeliverableError
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import Actor, Bus, Context, LocalBus, Parcel, System, handles
from antiphon.testing import BUS_CHECKS, check_bus

pytestmark = pytest.mark.virtual_time


@asynccontextmanager
async def _local() -> AsyncGenerator[Bus, None]:
    yield LocalBus()


@pytest.mark.parametrize("check", BUS_CHECKS)
def test_the_local_bus_keeps_a_promise(check: str) -> None:
    asyncio.run(check_bus(_local, only=check))


class _Forgetful(LocalBus):
    """Loses every fourth parcel."""

    count = 0

    async def send(self, parcel: Parcel) -> None:
        self.count += 1
        if self.count % 4:
            await super().send(parcel)


class _Silent(LocalBus):
    async def send(self, parcel: Parcel) -> None:
        with suppress(UndeliverableError):
            await super().send(parcel)


class _Mixed(LocalBus):
    async def send(self, parcel: Parcel) -> None:
        if parcel.message.text == "7":
            asyncio.get_running_loop().call_later(0.01, asyncio.ensure_future, super().send(parcel))
        else:
            await super().send(parcel)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bus", "sentence"),
    [
        (_Forgetful, "parcels come in the order"),
        (_Silent, "a parcel for nobody is refused"),
        (_Mixed, "parcels come in the order in which they were sent"),
    ],
)
def test_the_check_finds_a_bus_that_breaks_a_promise(bus: type[LocalBus], sentence: str) -> None:
    @asynccontextmanager
    async def make() -> AsyncGenerator[Bus, None]:
        yield bus()

    async def main() -> None:
        with pytest.raises(AssertionError, match=f"not so: {sentence}"):
            await check_bus(make)

    virtually_or_not = asyncio.run if bus is _Mixed else virtually
    virtually_or_not(main())


async def test_one_system_asks_and_tells_actors_of_another() -> None:
    bus, ledger = LocalBus(), MemoryLedger()
    async with System(ledger) as server, System() as client:
        server.register("probe", Probe)
        await server.join(bus, "@server")
        await client.join(bus, "@client")

        assert await client.ask("probe/1", Ping(text="hi"), thread_id="t", sender="user") == Pong(text="hi!")
        await client.tell("probe/1", Note(text="psst"))
        assert await client.ask("probe/1", Do(what="list")) == Done(said=("hi", "psst"))
        with pytest.raises(RefusedError, match="not today") as refused:
            await client.ask("probe/1", Do(what="refuse"))
        assert (refused.value.code, refused.value.retryable) == ("NOT_TODAY", True)
        with pytest.raises(UndeliverableError):
            await client.ask("nobody/1", Ping(text="?"))
        with pytest.raises(ReplyTimeoutError):
            await client.ask("probe/1", Do(what="wait", seconds=60), within=2)
    assert await rows(ledger, "t") == ["TEST_PING", "=TEST_PING"]


async def test_an_actor_asks_one_of_another_system_but_not_within_a_thread() -> None:
    """The actors of a thread are in one system, which writes it."""

    class Relay(Actor):
        @handles
        async def ping(self, ping: Ping, context: Context) -> Pong:
            return await context.ask("probe/1", ping)

    bus = LocalBus()
    async with System() as server, System() as other:
        server.register("probe", Probe)
        other.register("relay", Relay)
        await server.join(bus, "@server")
        await other.join(bus, "@other")

        assert await other.ask("relay/1", Ping(text="hi")) == Pong(text="hi!")
        with pytest.raises(UndeliverableError):
            await other.ask("relay/1", Ping(text="hi"), thread_id="t")


def test_a_name_on_the_bus_is_free_again_when_its_system_has_ended() -> None:
    async def main() -> None:
        bus = LocalBus()
        for _ in range(2):
            async with System() as system:
                system.register("probe", Probe)
                await system.join(bus, "@server")
        with pytest.raises(UndeliverableError):
            await bus.send(Parcel("probe/1", _message(), "@x"))

    def _message() -> object:
        from antiphon.messages import Message, PartsPayload

        return Message(policy="x", payload=PartsPayload(parts=()))

    virtually(main())
