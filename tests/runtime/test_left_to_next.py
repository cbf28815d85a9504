"""What a system that ends leaves to the next one: a delegation goes on where it was, and is not begun a second time."""

import asyncio
from contextlib import suppress
from zlib import crc32

import pytest
from tests.runtime.actors import Note, Ping, Pong

from antiphon.errors import AntiphonError
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime import Actor, Context, System, handles
from antiphon.runtime._actor import Lifetime

pytestmark = pytest.mark.virtual_time


class Leader(Actor):
    """Delegates inside of an effect, as a tool does by which an agent asks another."""

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        async def delegate(key: str) -> str:
            return (await context.ask("helper/1", Ping(text=ping.text), key=f"task-{crc32(key.encode())}", within=1000)).text

        return Pong(text=await context.effect("delegate", {}, delegate, effects="none"))


class Helper(Actor):
    """Works on one message at a time; the first takes long."""

    begun: list[str] = []  # noqa: RUF012 (one for all systems of the test)
    seconds = 0.0

    @handles
    async def busy(self, note: Note, context: Context) -> None:
        await asyncio.sleep(self.seconds)

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        Helper.begun.append(ping.text)
        await asyncio.sleep(self.seconds)
        return Pong(text=f"{ping.text}!")


@pytest.mark.parametrize("is_queued", [False, True], ids=["at work", "in the mailbox"])
async def test_a_delegation_that_a_closing_system_left_is_not_begun_twice(
    is_queued: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The helper is asked again with the same request, so that it is paid for once."""
    ledger = MemoryLedger()
    monkeypatch.setattr(Helper, "begun", [])
    monkeypatch.setattr(Helper, "seconds", 600.0)
    async with System(ledger) as system:
        system.register("leader", Leader)
        system.register("helper", Helper)
        if is_queued:
            await system.tell("helper/1", Note(text="work"))
        asked = asyncio.create_task(system.ask("leader/1", Ping(text="tea"), thread_id="t", within=1000))
        await asyncio.sleep(1)
    with suppress(AntiphonError):
        await asked
    first = list(Helper.begun)

    monkeypatch.setattr(Helper, "seconds", 0.0)
    async with System(ledger) as system:
        system.register("leader", Leader)
        system.register("helper", Helper)
        await system.recover()
        await asyncio.sleep(5)
        assert not await ledger.open_calls("t")

    assert len(first) == (0 if is_queued else 1)
    assert len(Helper.begun) == len(first) + 1


async def test_a_task_that_starts_while_a_system_closes_ends_with_it() -> None:
    """A cancelled background task may start another, for example because its append was not confirmed."""
    lifetime = Lifetime()

    async def late() -> None:
        await asyncio.sleep(1e6)

    async def first() -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            lifetime.start(late())

    lifetime.start(first())
    await asyncio.sleep(0)
    await lifetime.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}
