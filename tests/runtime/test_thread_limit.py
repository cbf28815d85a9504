"""One limit of threads for several systems of a process, such as one for each tenant: it is shared evenly."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.postgres import Server
from tests.runtime.actors import Ping, Pong

from antiphon.errors import LedgerUnavailableError
from antiphon.ledger import Host, Ledger, TakenThread, open_ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload
from antiphon.runtime import Actor, Context, Settings, System, ThreadLimit, handles

SECONDS = 1.0
"""How long a thread is at work."""

Begun = list[tuple[str, str]]
"""The tenant and the thread of each handler, in the order in which they began."""


class Slow(Actor):
    """Takes a second."""

    def __init__(self, tenant: str, begun: Begun) -> None:
        self._tenant, self._begun = tenant, begun

    @handles
    async def ping(self, request: Ping, context: Context) -> Pong:
        self._begun.append((self._tenant, context.thread_id or ""))
        await asyncio.sleep(SECONDS)
        return Pong(text="done")


async def _post(ledger: Ledger, first: int, last: int) -> None:
    for number in range(first, last):
        asked = Ping(text="x")
        payload = OptionCallPayload(invocation_id=f"m{number}", option_name=asked.message_type, arguments=asked.to_data())
        await ledger.post(f"t{number}", Message(policy="client", payload=payload, to=(f"slow/{number}",), lane="control"))


@asynccontextmanager
async def _hosting(tenants: Mapping[str, Ledger], most: int) -> AsyncGenerator[tuple[Begun, Callable[[], list[int]]]]:
    """Host several ledgers under one limit; yield what begins, and a function that counts the threads at work of each."""
    limit, begun, systems = ThreadLimit(most), Begun(), list[System]()
    async with AsyncExitStack() as stack:
        for name, ledger in tenants.items():
            settings = Settings(host=name, build="1", thread_limit=limit, block_limit=None)
            systems.append(await stack.enter_async_context(System(ledger, settings=settings)))
            systems[-1].register("slow", lambda name=name: Slow(name, begun), grace=0.01, concurrency=1000)
        tasks = [asyncio.create_task(each.host()) for each in systems]
        try:
            yield begun, lambda: [each._kernel.in_flight.thread_count for each in systems]
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------- in virtual time


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_a_tenant_with_thousands_of_due_threads_does_not_starve_one_with_three() -> None:
    tenants = {"large": MemoryLedger(), "small": MemoryLedger()}
    await _post(tenants["large"], 0, 3000)
    await _post(tenants["small"], 0, 3)
    async with _hosting(tenants, 8) as (begun, at_work):
        await asyncio.sleep(0.9)
        assert at_work() == [5, 3]  # the large one gets the room that the small one does not need
        await asyncio.sleep(1)
        assert at_work() == [8, 0]
        assert [thread for tenant, thread in begun if tenant == "small"] == ["t0", "t1", "t2"]
        large = [thread for tenant, thread in begun if tenant == "large"]
        assert large == [f"t{number}" for number in range(len(large))]  # the oldest first


@pytest.mark.slow
@pytest.mark.virtual_time
async def test_a_tenant_that_comes_when_another_has_all_room_gets_its_share_as_threads_end() -> None:
    tenants = {"first": MemoryLedger(), "second": MemoryLedger(), "third": MemoryLedger()}
    await _post(tenants["first"], 0, 200)
    async with _hosting(tenants, 9) as (_, at_work):
        await asyncio.sleep(1.5)
        assert at_work() == [9, 0, 0]
        await _post(tenants["second"], 0, 200)
        await asyncio.sleep(2.5)
        assert sorted(at_work()[:2]) == [4, 5]
        await _post(tenants["third"], 0, 200)
        await asyncio.sleep(3.5)
        assert at_work() == [3, 3, 3]


@pytest.mark.virtual_time
async def test_no_room_stays_empty_while_a_thread_is_due() -> None:
    """However the due threads are spread, as many run as in one system: 60 threads of a second, 6 at a time."""
    tenants = {str(number): MemoryLedger() for number in range(4)}
    for count, ledger in zip((1, 40, 2, 17), tenants.values(), strict=True):
        await _post(ledger, 0, count)
    async with _hosting(tenants, 6) as (begun, at_work):
        most = 0
        for _ in range(110):
            await asyncio.sleep(0.1)
            most = max(most, sum(at_work()))
        assert (len(begun), most, at_work()) == (60, 6, [0, 0, 0, 0])


@pytest.mark.virtual_time
async def test_a_tenant_whose_ledger_fails_keeps_no_room() -> None:
    class Broken(MemoryLedger):
        is_broken = False

        async def take(self, by: Host, **more: object) -> tuple[TakenThread, ...]:
            if self.is_broken:
                raise LedgerUnavailableError("it is gone")
            return await super().take(by, **more)  # type: ignore[arg-type]

    tenants = {"broken": Broken(), "other": MemoryLedger()}
    async with _hosting(tenants, 4) as (_, at_work):
        await asyncio.sleep(0.1)
        tenants["broken"].is_broken = True  # type: ignore[attr-defined]
        for ledger in tenants.values():
            await _post(ledger, 0, 50)
        await asyncio.sleep(5)
        assert at_work() == [0, 4]


@pytest.mark.virtual_time
async def test_the_room_of_a_system_that_ends_is_for_the_others() -> None:
    tenants = {"first": MemoryLedger(), "second": MemoryLedger()}
    limit = ThreadLimit(4)
    stop, begun = asyncio.Event(), Begun()
    async with AsyncExitStack() as stack:
        tasks = []
        for name, ledger in tenants.items():
            await _post(ledger, 0, 100)
            settings = Settings(host=name, build="1", thread_limit=limit, block_limit=None)
            system = await stack.enter_async_context(System(ledger, settings=settings))
            system.register("slow", lambda name=name: Slow(name, begun), grace=0.01, concurrency=1000)
            tasks.append(asyncio.create_task(system.host(stop=stop if name == "first" else None)))
        await asyncio.sleep(0.5)
        assert limit.free == 0
        stop.set()
        await tasks[0]
        await asyncio.sleep(0.4)
        assert [tenant for tenant, _ in begun].count("second") == 4
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# ---------------------------------------------------------------- tenants of one database


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_two_tenants_of_a_database_share_the_limit_of_one_host(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under a limit of two, each has one thread at work until the smaller one has none left; each has its oldest first."""
    monkeypatch.setattr("tests.runtime.test_thread_limit.SECONDS", 0.05)
    async with AsyncExitStack() as stack:
        tenants = {
            name: await stack.enter_async_context(open_ledger(f"{postgres.url}?tenant={tmp_path.name}-{name}"))
            for name in ("large", "small")
        }
        await _post(tenants["large"], 0, 25)
        await _post(tenants["small"], 0, 3)
        beside: list[list[int]] = []
        """What was at work whenever a thread began, from the first thread of the small one on, while it had some left."""
        async with _hosting(tenants, 2) as (begun, at_work), asyncio.timeout(100):
            seen = 0
            while len(begun) < 28:
                if len(begun) > seen and 0 < sum(tenant == "small" for tenant, _ in begun) < 3:
                    beside.append(at_work())
                seen = len(begun)
                await asyncio.sleep(0.005)
        for name in tenants:
            order = [int(thread[1:]) for tenant, thread in begun if tenant == name]
            assert all(abs(place - number) <= 1 for place, number in enumerate(order)), order  # two may be taken at once
        assert beside
        assert max(large for large, _ in beside) <= 1, beside


# ---------------------------------------------------------------- the rule


class Counted:
    """A system with some threads at work."""

    def __init__(self, at_work: int, due: int) -> None:
        self.at_work, self.due, self.wants_room = at_work, due, True

    def look_again(self) -> None:
        pass


@pytest.mark.slow
@given(
    most=st.integers(1, 50),
    hosts=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=6),
    turns=st.lists(st.integers(0, 5), min_size=1, max_size=40),
)
def test_room_goes_to_the_system_with_the_fewest_and_never_beyond_the_limit(
    most: int, hosts: list[tuple[int, int]], turns: list[int]
) -> None:
    limit, systems = ThreadLimit(most), [Counted(*each) for each in hosts]
    before = sum(each.at_work for each in systems)
    for each in systems:
        limit.join(each)
    for turn in turns:
        system = systems[turn % len(systems)]
        rivals = [each.at_work for each in systems if each.wants_room and each is not system]
        free, room = limit.free, limit.reserve(system, 32)
        assert 0 <= room <= max(0, free)
        if free > 0 and system.at_work <= min(rivals, default=system.at_work):
            assert room  # the one with the fewest always gets some
        if room and rivals:
            assert system.at_work + room <= max(rivals) + free  # never so much that others fall behind
        taken = min(room, system.due)
        system.wants_room = taken >= room
        system.at_work += taken
        system.due -= taken
        limit.settle(system, taken)
        assert sum(each.at_work for each in systems) <= max(most, before)
