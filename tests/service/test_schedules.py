"""Schedules: questions that the hosts of a ledger ask at a time or by a cron line, once for all of them."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import run
from tests.patterns.chains import Witness, chain_on
from tests.runtime.actors import SetClock

from antiphon.errors import NotWaitingError, SetupError
from antiphon.ledger import Ledger, ThreadFilter, heads_of
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import current_port, use_port
from antiphon.patterns.postchain import PostChain
from antiphon.runtime import Settings
from antiphon.service import _schedules, add_schedule, list_schedules, remove_schedule
from antiphon.service._schedules import keep_schedules, read_time

pytestmark = pytest.mark.filterwarnings("error")


@asynccontextmanager
async def _host(ledger: Ledger, name: str, witness: Witness) -> AsyncIterator[PostChain]:
    """Yield the chain of a host that keeps schedules."""
    async with chain_on(ledger, witness, recover=False, settings=Settings(host=name, build="1")) as chain:
        keep_schedules(chain.system, chain)
        work = asyncio.ensure_future(chain.system.host())
        try:
            yield chain
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)


async def _started(ledger: Ledger) -> dict[str, str | None]:
    page = await ledger.threads(ThreadFilter(pattern="postchain"), "created_at", limit=100)
    return {each.thread_id: each.status for each in page.threads}


@pytest.mark.virtual_time
@pytest.mark.slow
async def test_two_hosts_ask_the_question_of_a_schedule_once_each_time() -> None:
    """Each time has its thread; what passed while no host was there is made up for once."""
    ledger, witness = MemoryLedger(), Witness()
    await add_schedule(ledger, "tea", "How hot is tea?", cron="*/10 * * * *")
    async with _host(ledger, "one", witness), _host(ledger, "other", witness):
        await asyncio.sleep(25 * 60)
    found = await _started(ledger)
    assert [*found] == ["tea-20260101T001000Z", "tea-20260101T002000Z"]
    assert {*found.values()} == {"completed"}
    assert min(Counter(witness.asked).values()) == 2  # each phase, for each thread; those with a tool ask twice
    await asyncio.sleep(60 * 60)
    async with _host(ledger, "later", witness):
        await asyncio.sleep(60)
        (listed,) = await list_schedules(ledger)
        assert [*await _started(ledger)][2:] == ["tea-20260101T003000Z"]
        assert str(listed.next_at) == "2026-01-01 01:30:00+00:00"
        assert (await remove_schedule(ledger, "tea")).name == "tea"
        await asyncio.sleep(60 * 60)
    assert len(await _started(ledger)) == 3
    assert await list_schedules(ledger) == ()
    with pytest.raises(NotWaitingError):
        await remove_schedule(ledger, "tea")


@pytest.mark.virtual_time
@pytest.mark.slow
@pytest.mark.parametrize("later", [timedelta(seconds=0.5), timedelta(hours=3)])
async def test_a_time_that_passes_before_a_host_knows_the_schedule_is_made_up_for_once(later: timedelta) -> None:
    ledger, now = MemoryLedger(), current_port().now()
    await add_schedule(ledger, "once", "How hot is tea?", at=now + later / 2)
    await add_schedule(ledger, "often", "How hot is tea?", cron="0 * * * *")
    await asyncio.sleep(later.total_seconds())
    async with _host(ledger, "one", Witness()):
        await asyncio.sleep(30 * 60)
        expected = {"once": 1, "often": 1 if later > timedelta(hours=1) else 0}
        found = await _started(ledger)
        assert {name: sum(each.startswith(name) for each in found) for name in expected} == expected
        assert {*found.values()} == {"completed"}
        await asyncio.sleep(60 * 60)
        assert len(await _started(ledger)) == len(found) + 1, "the next time of the cron line"


@pytest.mark.virtual_time
@pytest.mark.slow
async def test_a_host_that_dies_while_it_starts_the_thread_leaves_no_second_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread runs, and nothing says yet that it was started: the next host must find it."""
    ledger, witness, dead = MemoryLedger(), Witness(), list[str]()
    start = _schedules._start

    async def start_and_hang(chain: PostChain, *more: Any) -> None:
        await start(chain, *more)
        if not dead:
            dead.append(chain.system.host_name)
            await ledger.leave(await chain.system._kernel.lease.host())  # as the ledger sees it, the host is dead
            chain.system._kernel.hosting.is_taking = False
            await asyncio.Event().wait()

    monkeypatch.setattr(_schedules, "_start", start_and_hang)
    await add_schedule(ledger, "tea", "How hot is tea?", at=current_port().now() + timedelta(minutes=10))
    async with AsyncExitStack() as stack:
        for name in ("one", "other"):
            await stack.enter_async_context(_host(ledger, name, witness))
        await asyncio.sleep(20 * 60)
    assert len(dead) == 1
    assert await _started(ledger) == {"tea-20260101T001000Z": "completed"}
    calls = [
        record.message.payload.option_name  # type: ignore[union-attr]
        async for record in ledger.read("tea-20260101T001000Z")
        if record.message.lane == "control" and record.message.payload.kind == "option_call"
    ]
    assert (calls.count("CREATE_THREAD"), calls.count("START_THREAD")) == (1, 1)
    (listed,) = await list_schedules(ledger)
    assert listed.next_at is None


@pytest.mark.slow
@pytest.mark.virtual_time
@pytest.mark.parametrize("delay", [0.0, 120.0], ids=["an error", "a start that takes too long"])
async def test_a_time_that_fails_is_not_the_last(delay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, start = MemoryLedger(), _schedules._start

    async def start_or_fail(chain: PostChain, thread_id: str, question: str) -> None:
        if thread_id == "tea-20260101T001000Z":
            await asyncio.sleep(delay)
            raise SetupError("no")
        await start(chain, thread_id, question)

    monkeypatch.setattr(_schedules, "_start", start_or_fail)
    await add_schedule(ledger, "tea", "How hot is tea?", cron="*/10 * * * *")
    async with _host(ledger, "one", Witness()):
        await asyncio.sleep(21 * 60)
    assert [*await _started(ledger)] == ["tea-20260101T002000Z"]


async def test_an_invalid_schedule_is_refused() -> None:
    ledger = MemoryLedger()
    past = current_port().now() - timedelta(hours=1)
    for wrong, sentence in (
        ({"cron": "every day"}, "is no cron line"),
        ({"cron": "0 9 * * *", "zone": "Mars/Base"}, "there is no time zone"),
        ({"at": past}, "has passed"),
        ({"at": datetime.max.replace(tzinfo=timezone(-timedelta(hours=1)))}, "between the years 1 and 9999"),
        ({}, "either a cron line or a time"),
        ({"cron": "0 9 * * *", "at": past}, "either a cron line or a time"),
        ({"cron": "0 9 * * *", "name": "../x"}, "the name of a schedule"),
        ({"cron": "0 9 * * *", "question": " "}, "needs a question"),
    ):
        given: dict[str, Any] = {"name": "tea", "question": "How hot?", **wrong}
        with pytest.raises(SetupError, match=sentence):
            await add_schedule(ledger, given.pop("name"), given.pop("question"), **given)
    for text, zone in (("tomorrow", "UTC"), ("2026-01-31T09:00", "Mars/Base")):
        with pytest.raises(SetupError):
            read_time(text, zone)
    assert read_time("2026-01-31T09:00", "Europe/Vienna").utcoffset() == timedelta(hours=1)
    assert await heads_of(ledger) == ()


@pytest.mark.slow
def test_a_person_adds_lists_and_removes_schedules(tmp_path: Path) -> None:
    place = ("--ledger", str(tmp_path / "ledger.db"))
    added = run("schedule", "add", "tea", "How hot is tea?", "--cron", "0 9 * * mon-fri", "--zone", "Europe/Vienna", *place)
    assert added.exit_code == 0, added.stderr
    assert "tea: next at " in added.stderr
    (found,) = json.loads(run("schedule", "list", "--json", *place).stdout)
    assert (found["name"], found["cron"], found["zone"], found["owner"]) == ("tea", "0 9 * * mon-fri", "Europe/Vienna", None)
    assert "How hot is tea?" in run("schedule", "list", *place).stdout
    wrong = run("schedule", "add", "tea", "How hot is tea?", "--cron", "nonsense", *place)
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
    assert run("schedule", "remove", "tea", *place).exit_code == 0
    assert "there is no schedule" in run("schedule", "list", *place).stderr
    assert run("schedule", "remove", "tea", *place).exit_code == 2


DAY = timedelta(days=1)


@pytest.mark.virtual_time
@pytest.mark.slow
@pytest.mark.parametrize("cron", ["*/10 * * * *", "10 0 * * *"])
@pytest.mark.parametrize("is_released", [False, True], ids=["with the thread", "after the thread was released"])
async def test_a_clock_that_was_a_day_ahead_silences_no_schedule(cron: str, *, is_released: bool) -> None:
    """Set for 11 s while the schedule is armed. The list shows the time of the timer itself, also while it is wrong."""
    ledger, witness, clock = MemoryLedger(), Witness(), SetClock()
    with use_port(clock):
        async with _host(ledger, "one", witness):
            clock.ahead = DAY
            await add_schedule(ledger, "tea", "How hot is tea?", cron=cron)
            await asyncio.sleep(11)
            (ahead,) = await list_schedules(ledger)
            if not is_released:
                clock.ahead = timedelta()
                await asyncio.sleep(11)
                (right,) = await list_schedules(ledger)
        if is_released:
            clock.ahead = timedelta()
            assert (await list_schedules(ledger))[0].next_at == ahead.next_at
        async with _host(ledger, "other", witness):
            await asyncio.sleep(11)
            (right,) = await list_schedules(ledger)
            assert ahead.next_at is not None
            assert right.next_at == ahead.next_at - DAY
            await asyncio.sleep(10 * 60)
    assert [*await _started(ledger)] == ["tea-20260101T001000Z"]


@pytest.mark.virtual_time
@pytest.mark.slow
async def test_a_clock_that_is_set_back_by_a_day_asks_no_question_twice() -> None:
    ledger, witness, clock = MemoryLedger(), Witness(), SetClock()
    clock.ahead = 3 * DAY
    with use_port(clock):
        async with _host(ledger, "one", witness):
            await add_schedule(ledger, "tea", "How hot is tea?", cron="10 0 * * *")
            await asyncio.sleep(11 * 60)
            asked = Counter(witness.asked)
            clock.ahead = 2 * DAY
            await asyncio.sleep(11)
            (listed,) = await list_schedules(ledger)
            assert str(listed.next_at) == "2026-01-04 00:10:00+00:00"
        clock.ahead = 3 * DAY
        async with _host(ledger, "other", witness):
            await asyncio.sleep(60)
            (listed,) = await list_schedules(ledger)
            assert str(listed.next_at) == "2026-01-05 00:10:00+00:00"
    assert Counter(witness.asked) == asked
    assert [*await _started(ledger)] == ["tea-20260104T001000Z"]
