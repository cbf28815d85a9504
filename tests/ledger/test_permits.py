"""Limits of model requests for all hosts: real processes, whose requests the model counts, and hosts in virtual time (G15)."""

import asyncio
import os
import random
import subprocess
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.postgres import Server
from tests.runtime.actors import virtually

from antiphon.errors import StoppedError
from antiphon.ledger import Host, Ledger, Limit, LimitStatus, PermitWants, open_ledger
from antiphon.ledger._permits import ALL_MODELS, LimitState, _Holding
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime._lease import Lease
from antiphon.runtime._permits import Permits
from antiphon.runtime._settings import Settings

pytestmark = pytest.mark.slow

WORKER = Path(__file__).parent / "permit_worker.py"
IS_CHAOS = "ANTIPHON_CHAOS" in os.environ
HOSTS = 4 if IS_CHAOS else 2
REQUESTS = 50 if IS_CHAOS else 8


class Counting:
    """A model that counts the requests at work: those whose connection is open."""

    def __init__(self) -> None:
        self._open: dict[asyncio.StreamReader, str] = {}
        """By its connection: the host that asked."""
        self.most = 0
        self.served: Counter[str] = Counter()
        self.held = asyncio.Event()
        """No request is answered before it is set."""
        self.changed = asyncio.Condition()

    @property
    def at_work(self) -> Counter[str]:
        """Count the requests of each host.

        A killed process closes its connections before others can know of its end. So a connection that has ended does not
        count, even if nothing has handled its end yet.
        """
        return Counter(name for reader, name in self._open.items() if not reader.at_eof())

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        name = (await reader.readline()).decode().strip()
        self._open[reader] = name
        self.most = max(self.most, self.at_work.total())
        await self._tell()
        gone, ready = asyncio.ensure_future(reader.read()), asyncio.ensure_future(self._think())
        try:
            await asyncio.wait((gone, ready), return_when=asyncio.FIRST_COMPLETED)
            del self._open[reader]  # before the answer: the host may begin the next request as soon as it has it
            if ready.done():
                self.served[name] += 1
                writer.write(b"one\n")
                with suppress(ConnectionError):
                    await writer.drain()
        finally:
            for task in (gone, ready):
                task.cancel()
            await asyncio.gather(gone, ready, return_exceptions=True)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            await self._tell()

    async def _think(self) -> None:
        await self.held.wait()
        await asyncio.sleep(0.02)

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def sees(self, **at_work: int) -> None:
        """Wait until hosts have so many requests at work."""
        await self._until(lambda: all(self.at_work[name] == number for name, number in at_work.items()))

    async def sees_in_all(self, number: int) -> None:
        """Wait until all hosts together have so many requests at work."""
        await self._until(lambda: self.at_work.total() == number)

    async def _until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(is_so)


class Children:
    """Processes that ask a model."""

    def __init__(self, url: str, port: int) -> None:
        self._url, self._port = url, port
        self.all: dict[str, subprocess.Popen[str]] = {}

    async def start(self, name: str, requests: int) -> None:
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.all[name] = forked.start(WORKER, self._url, name, self._port, requests, **pipes)
        assert await asyncio.to_thread(self._line, name) == "ready"

    def go(self, name: str) -> None:
        stdin = self.all[name].stdin
        assert stdin is not None
        stdin.write("go\n")
        stdin.flush()

    async def answers(self, name: str) -> int:
        async with asyncio.timeout(100):
            return int(await asyncio.to_thread(self._line, name))

    def _line(self, name: str) -> str:
        stdout = self.all[name].stdout
        assert stdout is not None
        return stdout.readline().strip()

    def end(self) -> None:
        for child in self.all.values():
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                assert pipe is not None
                pipe.close()


@asynccontextmanager
async def world(url: str, limit: Limit) -> AsyncGenerator[tuple[Counting, Children, Ledger]]:
    model = Counting()
    server = await asyncio.start_server(model.answer, "127.0.0.1", 0)
    async with server, open_ledger(url) as ledger:
        await ledger.limits.set(limit)
        children = Children(url, server.sockets[0].getsockname()[1])
        try:
            yield model, children, ledger
        finally:
            children.end()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/ledger.db"
    else:
        server: Server = request.getfixturevalue("postgres")
        yield f"{server.url}?tenant={tmp_path.name}"


def test_processes_never_start_more_requests_than_the_limit(url: str, record_property: Any) -> None:
    """Counted by the model. All requests are answered, and no host waits until the others have ended."""

    async def main() -> Counting:
        async with world(url, Limit("counted", at_once=3)) as (model, children, ledger):
            names = [f"host{number}" for number in range(HOSTS)]
            await asyncio.gather(*(children.start(name, REQUESTS) for name in names))
            for name in names:
                children.go(name)
            await model.sees_in_all(3)
            model.held.set()
            assert await asyncio.gather(*map(children.answers, names)) == [REQUESTS] * HOSTS
            await children_end(children)
            assert (await ledger.limits.status())[0].holders == ()
            return model

    model = asyncio.run(main())
    assert model.most == 3
    assert model.served.total() == HOSTS * REQUESTS
    record_property("P1", f"permits: {model.served.total()} requests of {HOSTS} hosts, at most {model.most} at once of 3")


async def children_end(children: Children) -> None:
    for child in children.all.values():
        assert await asyncio.to_thread(child.wait, 60) == 0


def test_a_killed_process_gives_its_permits_back(url: str) -> None:
    async def main() -> None:
        async with world(url, Limit(ALL_MODELS, at_once=2)) as (model, children, _):
            await asyncio.gather(children.start("first", 3), children.start("second", 3))
            children.go("first")
            await model.sees(first=2)
            children.go("second")
            await asyncio.sleep(0.3)  # it asks, and gets nothing
            assert model.at_work["second"] == 0
            children.all["first"].kill()
            await model.sees(first=0, second=2)
            model.held.set()
            assert await children.answers("second") == 3
            assert model.most == 2

    asyncio.run(main())


def test_a_tenant_that_asks_for_everything_takes_nothing_from_another(postgres: Server, tmp_path: Path) -> None:
    """Each tenant has the limits of its own, and sees no others."""

    async def main() -> None:
        url, name = postgres.url, tmp_path.name
        async with open_ledger(url, tenant=f"{name}-greedy") as greedy, open_ledger(url, tenant=f"{name}-modest") as modest:
            for ledger, most in ((greedy, 2), (modest, 5)):
                await ledger.beat(Host("host", "1"))
                await ledger.limits.set(Limit("m", at_once=most, cost_per_day=Decimal(most)))
            host = Host("host", "1", instance="another")
            await greedy.beat(replace(host, name="second"))
            await modest.beat(replace(host, name="third"))
            grants = [await each.limits.lease(*asked) for each, asked in everything(greedy, modest, host)]
            assert [grant["m"].at_once for grant in grants] == [2, 5]
            assert [grant["m"].reserved for grant in grants] == [Decimal(2), Decimal(3)]
            assert [(await only(each)).permits for each in (greedy, modest)] == [2, 5]

    asyncio.run(main())


def everything(greedy: Ledger, modest: Ledger, host: Host) -> list[tuple[Ledger, Any]]:
    much = PermitWants(waiting=1000, reserve=(Decimal(1),) * 1000)
    some = PermitWants(waiting=9, reserve=(Decimal(1),) * 3)
    return [(greedy, (replace(host, name="second"), {"m": much})), (modest, (replace(host, name="third"), {"m": some}))]


# ---------------------------------------------------------------- one host, and several in virtual time


class Cut:
    """A ledger that cannot be reached for some time: calls wait until then."""

    def __init__(self, verbs: Any, whole: Any = None) -> None:
        self._verbs, self._whole = verbs, self if whole is None else whole
        self.until = 0.0

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._verbs, name)

        async def call(*given: Any) -> Any:
            await asyncio.sleep(max(0.0, self._whole.until - asyncio.get_running_loop().time()))
            return await verb(*given)

        return Cut(verb, self) if name == "limits" else call


class Hosted:
    """A host with a lease that it renews while it reaches the ledger."""

    def __init__(self, ledger: Ledger, name: str, patience: float = 600.0) -> None:
        self.cut: Any = Cut(ledger)
        self.lease = Lease(self.cut, Settings(host=name, build="1", heartbeat=1.0), lambda: ("agent",))
        self.permits = Permits(self.cut, self.lease, patience)

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            await self.lease.beat()


@asynccontextmanager
async def hosts(ledger: Ledger, *names: str, patience: float = 600.0) -> AsyncGenerator[list[Hosted]]:
    found = [Hosted(ledger, name, patience) for name in names]
    for each in found:
        await each.lease.host()
    beats = [asyncio.ensure_future(each.beat()) for each in found]
    try:
        yield found
    finally:
        for beat in beats:
            beat.cancel()
        await asyncio.gather(*beats, return_exceptions=True)
        for each in found:
            await each.permits.close()
            await each.lease.end()


def cost(dollars: str = "0") -> Any:
    return lambda: Decimal(dollars)


async def only(ledger: Ledger) -> LimitStatus:
    (status,) = await ledger.limits.status()
    return status


@pytest.mark.virtual_time
def test_requests_of_a_host_begin_in_order() -> None:
    async def main() -> list[int]:
        ledger, order = MemoryLedger(), list[int]()
        await ledger.limits.set(Limit("m", at_once=1))
        async with hosts(ledger, "one") as (one,):

            async def ask(number: int) -> None:
                async with one.permits.hold(["m"], cost()):
                    order.append(number)
                    await asyncio.sleep(1)

            await asyncio.gather(*map(ask, range(5)))
        return order

    assert virtually(main()) == [0, 1, 2, 3, 4]


@pytest.mark.virtual_time
def test_a_limited_model_does_not_hold_up_another() -> None:
    async def main() -> None:
        ledger, loop = MemoryLedger(), asyncio.get_running_loop()
        await ledger.limits.set(Limit("m", at_once=1))
        await ledger.limits.set(Limit("other", at_once=1))
        async with hosts(ledger, "one") as (one,):
            async with one.permits.hold(["m"], cost()):
                waiting = asyncio.ensure_future(enter(one, "m"))
                await asyncio.sleep(1)
                began = loop.time()
                async with one.permits.hold(["other"], cost()), one.permits.hold(["unlimited"], cost()):
                    assert loop.time() - began < 0.2
                assert not waiting.done()
            await waiting

    virtually(main())


async def enter(host: Hosted, model: str, seconds: float = 0.0, price: str = "0") -> None:
    async with host.permits.hold([model], cost(price)):
        await asyncio.sleep(seconds)


@pytest.mark.virtual_time
def test_a_request_that_waits_too_long_is_stopped() -> None:
    async def main() -> str:
        ledger = MemoryLedger()
        await ledger.limits.set(Limit("m", at_once=1))
        async with hosts(ledger, "one", "two", patience=30.0) as (one, two):
            long = asyncio.ensure_future(enter(one, "m", 100))
            await asyncio.sleep(1)
            with pytest.raises(StoppedError) as caught:
                await enter(two, "m")
            assert caught.value.cause == "LIMIT_REACHED"
            await asyncio.sleep(1)
            assert (await only(ledger)).waiting == 0
            await long
            await enter(two, "m")
            return str(caught.value)

    said = "requests of model 'm' are limited to 1 requests at once: none was free within 30 seconds"
    assert virtually(main()) == said


@pytest.mark.virtual_time
def test_a_request_that_is_cancelled_gives_its_place_up() -> None:
    async def main() -> None:
        ledger = MemoryLedger()
        await ledger.limits.set(Limit("m", at_once=1))
        async with hosts(ledger, "one") as (one,):
            first, second, third = (asyncio.ensure_future(enter(one, "m", 10)) for _ in range(3))
            await asyncio.sleep(1)
            second.cancel()
            first.cancel()
            await asyncio.sleep(1)
            assert (first.cancelled(), second.cancelled(), third.done()) == (True, True, False)
            assert (await only(ledger)).permits == 1
            await third
            await asyncio.sleep(1)
            assert (await only(ledger)).holders == ()

    virtually(main())


@pytest.mark.virtual_time
def test_in_no_minute_more_requests_begin_than_the_limit_says() -> None:
    async def main() -> list[float]:
        ledger, began = MemoryLedger(), list[float]()
        await ledger.limits.set(Limit("m", per_minute=10))
        async with hosts(ledger, "one", "two", "three") as found:

            async def ask(host: Hosted) -> None:
                for _ in range(8):
                    async with host.permits.hold(["m"], cost()):
                        began.append(asyncio.get_running_loop().time())

            await asyncio.gather(*map(ask, found))
        return began

    began = virtually(main())
    assert len(began) == 24
    assert max(sum(at <= other < at + 60 for other in began) for at in began) == 10
    assert max(began) - min(began) < 2 * 62 + 5


@pytest.mark.virtual_time
def test_the_money_of_a_day_is_reserved_and_corrected() -> None:
    async def main() -> str:
        ledger = MemoryLedger()
        await ledger.limits.set(Limit(ALL_MODELS, cost_per_day=Decimal("1.00")))

        async def ask(host: Hosted, price: str) -> None:
            async with host.permits.hold(["m"], cost("0.40")) as permit:
                await asyncio.sleep(5)
                permit.cost = Decimal(price)

        async with hosts(ledger, "one", "two") as (one, two):
            # Three at once may cost more than there is: the third waits until one has cost less.
            await asyncio.gather(ask(one, "0.10"), ask(one, "0.10"), ask(two, "0.30"))
            await asyncio.sleep(1)
            assert (await only(ledger)).spent == Decimal("0.5")
            await ask(two, "0.25")
            await asyncio.sleep(1)
            with pytest.raises(StoppedError) as caught:
                await ask(one, "0")
            assert caught.value.cause == "LIMIT_REACHED"
        await asyncio.sleep(24 * 3600)
        async with hosts(ledger, "one") as (one,):
            await ask(one, "0.4")
            await asyncio.sleep(1)
            assert (await only(ledger)).spent == Decimal("0.4")
        return str(caught.value)

    assert virtually(main()) == (
        "requests of all models are limited to 1.00 US dollars a day, 0.25 are left, and this request may cost 0.400000: "
        "resume the thread after midnight (UTC), or set another limit with `antiphon limits`"
    )


# ---------------------------------------------------------------- many worlds


def has_lapsed(host: Hosted) -> bool:
    """Whether the lease of a host has ended, whatever the host itself thinks."""
    return asyncio.get_running_loop().time() - host.lease.beaten.at >= 3.0


async def storm(seed: int) -> int:
    """Let hosts ask at random, one of them cut off from the ledger past its lease; return how many requests began.

    What a host without a lease has at work is not counted by the others any more, until it tells of it. It begins nothing.
    """
    chosen, ledger, began = random.Random(seed), MemoryLedger(), 0
    limit = chosen.randint(1, 4)
    await ledger.limits.set(Limit("m", at_once=limit))
    names = [f"host {number}" for number in range(chosen.randint(2, 4))]

    async with hosts(ledger, *names) as found:
        at_work: dict[object, Hosted] = {}
        left: set[object] = set()
        """Requests that were at work when the lease of their host ended."""

        def look() -> None:
            left.update(request for request, host in at_work.items() if has_lapsed(host))

        async def ask(host: Hosted) -> None:
            nonlocal began
            await asyncio.sleep(chosen.uniform(0, 10))
            async with host.permits.hold(["m"], cost()):
                began += 1
                look()
                assert not has_lapsed(host), (seed, "a host without a lease has begun a request")
                request = object()
                at_work[request] = host
                assert len(at_work.keys() - left) <= limit, (seed, len(at_work), limit)
                await asyncio.sleep(chosen.uniform(0.01, 2))
                del at_work[request]

        async def disturb() -> None:
            await asyncio.sleep(chosen.uniform(1, 5))
            host = chosen.choice(found)
            host.cut.until = asyncio.get_running_loop().time() + chosen.uniform(4, 8)
            while asyncio.get_running_loop().time() < host.cut.until:
                look()
                await asyncio.sleep(0.05)

        async with asyncio.timeout(3600):
            await asyncio.gather(disturb(), *(ask(host) for host in found for _ in range(8)))
        await asyncio.sleep(2)
        assert (await only(ledger)).holders == ()
    return began


@pytest.mark.virtual_time
@pytest.mark.parametrize("seed", range(300 if IS_CHAOS else 5))
def test_hosts_that_sleep_and_wake_never_have_too_many(seed: int) -> None:
    assert virtually(storm(seed)) >= 16


@pytest.mark.virtual_time
def test_permits_that_outlive_their_lease_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken build: permits without lease. Those of a host that has died are never free again."""
    now = LimitState.now

    def keep(self: LimitState, living: Any, *more: Any) -> LimitState:
        return now(self, [*living, *self.holdings], *more)

    async def main() -> None:
        ledger = MemoryLedger()
        await ledger.limits.set(Limit("m", at_once=1))
        async with hosts(ledger, "one", "two", patience=60.0) as (one, two):
            dead = asyncio.ensure_future(enter(one, "m", 1000))
            await asyncio.sleep(1)
            one.cut.until = asyncio.get_running_loop().time() + 70
            try:
                await enter(two, "m")
            finally:
                dead.cancel()

    virtually(main())
    monkeypatch.setattr(LimitState, "now", keep)
    with pytest.raises(StoppedError, match="are limited to"):
        virtually(main())


@pytest.mark.virtual_time
@pytest.mark.parametrize(("is_broken", "most"), [(False, 1), (True, 2)])
def test_a_host_that_slept_asks_again_before_it_begins_a_request(
    is_broken: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a permit that it kept for its next request. A broken build that forgets the lease is found: two are at work."""
    if is_broken:
        monkeypatch.setattr(Lease, "has_lapsed", lambda _: False)

    async def main() -> int:
        ledger, at_work, seen = MemoryLedger(), 0, 0
        await ledger.limits.set(Limit("m", at_once=1))

        async def ask(host: Hosted) -> None:
            nonlocal at_work, seen
            async with host.permits.hold(["m"], cost()):
                at_work += 1
                seen = max(seen, at_work)
                await asyncio.sleep(20)
                at_work -= 1

        async with hosts(ledger, "one", "two") as (one, two):
            await ask(one)
            work, one.permits._work = one.permits._work, None
            assert work is not None
            work.cancel()  # the whole process sleeps
            one.cut.until = asyncio.get_running_loop().time() + 10
            await asyncio.sleep(5)
            other = asyncio.ensure_future(ask(two))
            await asyncio.sleep(5 - 1e-6)
            await asyncio.gather(ask(one), other)
        return seen

    assert virtually(main()) == most


def test_a_stored_limit_comes_back() -> None:
    state = LimitState(
        Limit("m", 3, None, Decimal("0.5")), 7, 11, "boot", ((1.5, 2),), {4: _Holding(1, 3, 2, 9, 8, None, 2.5)}
    )

    assert LimitState.load("m", state.dump()) == state
