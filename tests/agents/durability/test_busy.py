"""Runs that are busy: a second caller joins, and gets the recorded result, or is refused at once. G7, G8, G9."""

import asyncio
import os
import random
import signal
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import anyio
import pytest
from tests.agents.durability.test_hosts import Folder, folder

from antiphon import Actor, Context, System, handles, open_ledger
from antiphon.durable import LedgerRun, ledger_run
from antiphon.errors import OwnedError, ParkedError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import current_port
from antiphon.protocol import Reply, Request

__all__ = ["folder"]

pytest.importorskip("apsw")

SEEDS = {"": 3, "ci": 300, "nightly": 3_000}[os.environ.get("ANTIPHON_CHAOS", "")]


class Bank:
    """Counts payments, each of which waits for `opens`."""

    def __init__(self) -> None:
        self.opens = asyncio.Event()
        self.begun = asyncio.Event()
        self.payments = 0

    async def pay(self, key: str) -> str:
        self.payments += 1
        self.begun.set()
        await self.opens.wait()
        return f"payment {self.payments}"

    async def work(self, ledger: Ledger, id: str = "run") -> str:
        async with ledger_run("t", id=id, ledger=ledger, name="bank") as run:
            paid: str = await run.effect("pay", {}, self.pay)
            return paid


class Pair(NamedTuple):
    """One file, opened twice: two hosts."""

    first: Ledger
    second: Ledger


@asynccontextmanager
async def _opened_twice(path: Path) -> AsyncIterator[Pair]:
    url = f"sqlite:///{path}/ledger.db"
    async with open_ledger(url) as first, open_ledger(url) as second:
        yield Pair(first, second)


@pytest.mark.slow
async def test_a_second_caller_in_the_same_process_joins_and_gets_the_same_result() -> None:
    ledger, bank = MemoryLedger(), Bank()
    first = asyncio.create_task(bank.work(ledger))
    await bank.begun.wait()
    others = [asyncio.create_task(bank.work(ledger)) for _ in range(5)]
    await asyncio.sleep(0.05)
    assert not any(each.done() for each in others)
    bank.opens.set()
    assert await asyncio.gather(first, *others) == ["payment 1"] * 6
    assert bank.payments == 1
    assert not await ledger.open_calls("t")
    assert not [each for each in await ledger.hosts() if each.is_alive]


async def test_callers_that_have_joined_read_the_finished_run_at_the_same_time() -> None:
    """None waits until another has read it."""
    ledger, bank = MemoryLedger(), Bank()
    bank.opens.set()
    await bank.work(ledger)
    together = asyncio.Barrier(3)

    async def read() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            assert await run.effect("pay", {}, bank.pay) == "payment 1"
            await together.wait()

    async with asyncio.timeout(5):
        await asyncio.gather(*(read() for _ in range(3)))


async def test_if_the_first_caller_fails_the_second_continues_the_run() -> None:
    """What the first has done is not done again."""
    ledger, bank = MemoryLedger(), Bank()
    bank.opens.set()
    paid, waits = asyncio.Event(), asyncio.Event()

    async def fail() -> None:
        async with ledger_run("t", ledger=ledger) as run:
            await run.effect("pay", {}, bank.pay)
            paid.set()
            await waits.wait()
            raise RuntimeError("the first caller fails")

    first = asyncio.create_task(fail())
    await paid.wait()
    second = asyncio.create_task(bank.work(ledger))
    await asyncio.sleep(0)
    waits.set()
    with pytest.raises(RuntimeError, match="the first caller fails"):
        await first
    assert await second == "payment 1"
    assert bank.payments == 1
    assert not await ledger.open_calls("t")


async def test_a_caller_that_does_not_want_to_wait_is_refused_with_the_owner_and_the_time() -> None:
    ledger, bank = MemoryLedger(), Bank()
    first = asyncio.create_task(bank.work(ledger))
    await bank.begun.wait()
    with pytest.raises(OwnedError) as refused:
        async with ledger_run("t", ledger=ledger, on_busy="raise"):
            pass
    (host,) = await ledger.hosts()
    assert refused.value.owner == host.host.name
    assert refused.value.until > current_port().now()
    bank.opens.set()
    assert await first == "payment 1"


async def test_a_caller_that_gives_up_leaves_nothing_behind() -> None:
    ledger, bank = MemoryLedger(), Bank()
    first = asyncio.create_task(bank.work(ledger))
    await bank.begun.wait()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await bank.work(ledger)
    bank.opens.set()
    assert await first == "payment 1"
    assert not [each for each in await ledger.hosts() if each.is_alive]


# ---------------------------------------------------------------- two hosts


@pytest.mark.slow
async def test_a_caller_in_another_host_joins_and_gets_the_same_result(tmp_path: Path) -> None:
    bank = Bank()
    async with _opened_twice(tmp_path) as (ledger, other):
        first = asyncio.create_task(bank.work(ledger))
        await bank.begun.wait()
        second = asyncio.create_task(bank.work(other))
        await asyncio.sleep(0.2)
        assert not second.done()
        with pytest.raises(OwnedError, match="on_busy='join'"):
            async with ledger_run("t", ledger=other, on_busy="raise"):
                pass
        bank.opens.set()
        assert await asyncio.gather(first, second) == ["payment 1"] * 2
        assert bank.payments == 1


@pytest.mark.slow
async def test_a_run_of_another_id_waits_until_the_thread_is_free(tmp_path: Path) -> None:
    bank, ended = Bank(), list[str]()
    async with _opened_twice(tmp_path) as (ledger, other):

        async def work(own: Ledger, id: str) -> None:
            await bank.work(own, id)
            ended.append(id)

        first = asyncio.create_task(work(ledger, "one"))
        await bank.begun.wait()
        second = asyncio.create_task(work(other, "two"))
        await asyncio.sleep(0.1)
        bank.opens.set()
        await asyncio.gather(first, second)
        assert ended == ["one", "two"]
        assert bank.payments == 2
        assert not await ledger.open_calls("t")


@pytest.mark.slow
async def test_if_the_owner_leaves_the_run_open_the_joined_caller_continues_it(tmp_path: Path) -> None:
    bank = Bank()
    bank.opens.set()
    async with _opened_twice(tmp_path) as (ledger, other):
        paid = asyncio.Event()

        async def interrupted() -> None:
            async with ledger_run("t", ledger=ledger) as run:
                await run.effect("pay", {}, bank.pay)
                paid.set()
                await asyncio.Event().wait()

        first = asyncio.create_task(interrupted())
        await paid.wait()
        second = asyncio.create_task(bank.work(other))
        await asyncio.sleep(0.1)
        first.cancel()
        assert await second == "payment 1"
        assert bank.payments == 1
        assert not await ledger.open_calls("t")


@pytest.mark.slow
async def test_a_block_inside_another_of_the_thread_never_waits_for_it(tmp_path: Path) -> None:
    """The ledger is opened twice, so the two are two hosts: the inner one would wait for ever."""
    async with _opened_twice(tmp_path) as (ledger, other), ledger_run("t", ledger=ledger) as run:
        await run.effect("look", {}, _look)
        with pytest.raises(OwnedError):
            async with ledger_run("t", id="inner", ledger=other):
                pass


async def _look(key: str) -> str:
    return "seen"


class Looked(Reply, frozen=True):
    """It was looked."""


class Look(Request[Looked], frozen=True, type="LOOK", family="agent"):
    """Look in a thread."""


class Clerk(Actor):
    @handles
    async def look(self, request: Look, context: Context) -> Looked:
        async with ledger_run("t", ledger=context.ledger):
            return Looked()


@pytest.mark.slow
async def test_a_run_without_the_context_of_its_handler_is_refused() -> None:
    """It would wait for its own thread, until the caller's deadline."""
    async with System(MemoryLedger()) as system:
        clerk = system.spawn("clerk", Clerk)
        with pytest.raises(Exception, match=r"in a handler, use ledger_run\(context\)"):
            await system.ask(clerk, Look(), thread_id="t", within=5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_callers_that_fail_or_give_up_beside_each_other_all_get_one_result_an_id(tmp_path: Path, seed: int) -> None:
    """The next caller continues where the last one stopped: no caller hangs, and none gets another result."""
    rng, made = random.Random(seed), Counter[str]()
    results: dict[str, set[str]] = defaultdict(set)

    async def look(id: str, key: str) -> str:
        made[id] += 1
        number = made[id]
        await asyncio.sleep(rng.random() / 100)
        return f"{id}, look {number}"

    async def attempt(own: Ledger, id: str) -> None:
        async with asyncio.timeout(rng.choice((0.01, 30))), ledger_run(f"t{id[1]}", id=id, ledger=own) as run:
            seen = await run.effect("look", {}, partial(look, id), effects="idempotent")
            if rng.random() < 0.3:
                raise KeyError(id)
            results[id].add(seen)

    async def caller(own: Ledger) -> None:
        for each in rng.sample(("a1", "b1", "c2", "d2", "e3"), 5):
            while True:
                with suppress(KeyError, TimeoutError):
                    await attempt(own, each)
                    break

    async with _opened_twice(tmp_path) as (ledger, other), asyncio.timeout(90):
        await asyncio.gather(*(caller(own) for own in (ledger, other) for _ in range(4)))
        assert {len(each) for each in results.values()} == {1}
        assert len(results) == 5
        assert not [row for number in "123" for row in await ledger.open_calls(f"t{number}")]
        assert not [each for each in await ledger.hosts() if each.is_alive]


@pytest.mark.slow
async def test_a_run_that_is_cancelled_in_every_await_still_gives_its_thread_up(tmp_path: Path) -> None:
    """A scope of AnyIO does that, which web frameworks use when a client has gone. Otherwise the next request would hang."""
    async with _opened_twice(tmp_path) as (ledger, other):
        for _ in range(3):
            with anyio.move_on_after(0.05):
                async with ledger_run("t", ledger=ledger) as run:
                    await run.effect("look", {}, _look, effects="none")
                    await asyncio.sleep(10)
        async with asyncio.timeout(5), ledger_run("t", ledger=other) as run:
            assert await run.effect("look", {}, _look, effects="none") == "seen"


# ---------------------------------------------------------------- processes


async def _pay(run: LedgerRun, path: Path) -> str:
    """Do what the program does."""

    async def pay(key: str) -> str:
        with path.open("a") as file:
            file.write("paid\n")
        return "paid"

    await run.effect("look", {}, _look)
    paid: str = await run.effect("pay", {}, pay)
    return paid


async def _joined(folder: Folder) -> str:
    async with (
        open_ledger(f"sqlite:///{folder.path}/ledger.db") as ledger,
        ledger_run("t", ledger=ledger, name="desk") as run,
    ):
        return await _pay(run, folder.path / "payments")


@pytest.mark.slow
async def test_a_duplicate_in_another_process_waits_and_gets_the_recorded_result(folder: Folder) -> None:
    first = folder.started()
    assert first.says() == "open"
    second = asyncio.create_task(_joined(folder))
    await asyncio.sleep(0.3)
    assert not second.done()
    first.goes_on()
    assert first.says() == "paid"
    assert await second == "paid"
    assert folder.payments == ["paid"]


@pytest.mark.slow
async def test_if_the_owner_is_killed_the_joined_caller_continues_the_run(folder: Folder) -> None:
    first = folder.started(heartbeat=20)
    assert first.says() == "open"
    second = asyncio.create_task(_joined(folder))
    await asyncio.sleep(0.3)
    first.process.send_signal(signal.SIGKILL)
    async with asyncio.timeout(10):
        assert await second == "paid"
    assert folder.payments == ["paid"]


@pytest.mark.slow
async def test_if_the_owner_sleeps_past_its_lease_the_joined_caller_continues_the_run(folder: Folder) -> None:
    """F14: the owner wakes up, and starts nothing any more."""
    first = folder.started(heartbeat=0.6)  # a busy machine may delay a beat
    assert first.says() == "open"
    second = asyncio.create_task(_joined(folder))
    await asyncio.sleep(0.5)
    assert not second.done()  # its beats go on
    first.process.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(10):
        assert await second == "paid"
    first.process.send_signal(signal.SIGCONT)
    first.goes_on()
    assert first.says() == "FencedError"
    assert folder.payments == ["paid"]


async def test_a_duplicate_of_a_parked_run_gets_the_same_error() -> None:
    ledger, bank = MemoryLedger(), Bank()
    first = asyncio.create_task(bank.work(ledger))
    await bank.begun.wait()
    second = asyncio.create_task(bank.work(ledger))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(ParkedError, match="must not be done twice"):
        await second
    assert bank.payments == 1
