"""Hosts in processes on a ledger in PostgreSQL: killed, stopped past their lease, their database crashed (F13-F16, F5, F36).

Each order has a `once` effect that writes its own witness. `tools.soak` has the hosts, the load and the faults.
"""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.runtime.counts import count
from tests.runtime.soak import JumpingClock, Soak, Wire, soaking
from tools.soak.soak import LEASE, SoakPlan, suffer_under_load
from tools.soak.witness import Breach

pytest.importorskip("asyncpg")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 if count("F36") < 60 else 7200)]

Record = Callable[[str, object], None]


async def _while_orders_come(soak: Soak, *faults: Callable[[], None], rests: bool = True) -> None:
    """Cause faults one after the other while orders come; then wait until all have ended."""
    stop = asyncio.Event()
    ordering = asyncio.ensure_future(soak.order_until(stop, 0.05, 40))
    try:
        for fault in faults:
            before = soak.orders
            while soak.orders < before + 10:  # noqa: ASYNC110 (so that each fault finds work)
                await asyncio.sleep(0.02)
            await asyncio.to_thread(soak.do, fault)
    finally:
        stop.set()
        await ordering
    if rests:
        await soak.rest()


def _judged(soak: Soak, record: Record, name: str = "F36") -> list[Breach]:
    result = asyncio.run(soak.result())
    assert not soak.ended, "a host has ended by itself"
    record(name, "; ".join(f"{what}: {value}" for what, value in result.figures.items()))
    assert result.figures["orders acknowledged"]
    assert result.figures["effects started"]
    return list(result.breaches)


def test_two_hosts_survive_a_kill_a_pause_past_the_lease_and_a_crash_of_the_database(
    tmp_path: Path, record_property: Record
) -> None:
    """G1, G6 to G8, G15, G16: nothing that was acknowledged is lost, no `once` effect starts twice, everything ends."""
    with soaking(tmp_path) as soak:
        asyncio.run(_while_orders_come(soak, soak.kill, soak.pause, soak.crash_database))
        breaches = _judged(soak, record_property)
        assert (breaches, soak.stuck) == ([], 0)
        assert soak.faults == {"kill": 1, "pause": 1, "crash_database": 1}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("F13", "kill"),
        ("F13", "kill_all"),
        ("F14", "pause"),
        ("F15", "hesitate"),
        ("F16", "end_politely"),
        ("F5", "crash_database"),
        ("F6", "cut_connections"),
    ],
)
def test_one_fault_again_and_again(name: str, fault: str, tmp_path: Path, record_property: Record) -> None:
    if not (number := count("PostgreSQL")):
        pytest.skip("each fault many times is a part of `make chaos`")
    with soaking(tmp_path) as soak:
        asyncio.run(_while_orders_come(soak, *[getattr(soak, fault)] * number))
        assert (_judged(soak, record_property, name), soak.stuck) == ([], 0)
        assert soak.faults == {fault: number}


def test_F27_a_host_that_cannot_reach_the_database_begins_nothing(tmp_path: Path, record_property: Record) -> None:
    """Its connections stay open and carry nothing for three leases. Another host takes its threads over; when the partition
    ends, what it has sent meanwhile arrives, and is refused."""
    if not (number := count("F27")):
        pytest.skip("partitions are a part of `make chaos`")
    apart: list[tuple[float, float]] = []

    def partition() -> None:
        began = time.monotonic()
        wire.cut(3 * LEASE)
        apart.append((began + LEASE, time.monotonic()))

    with soaking(tmp_path, hosts=1) as soak, Wire(soak.url).open() as wire:
        name = soak.add_host(url=wire.url)
        asyncio.run(_while_orders_come(soak, *[partition] * number))
        assert (_judged(soak, record_property, "F27"), soak.stuck) == ([], 0)
        begun = [each.at for each in soak.witnessed() if (each.what, each.who) == ("fx", name)]
        assert not [at for at in begun if any(first < at < last for first, last in apart)]


_DAY, _HOUR = 86_400, 3_600


def test_F29_a_wall_clock_that_jumps_harms_no_lease_and_no_order(tmp_path: Path, record_property: Record) -> None:
    """An hour or a day forward or back, then back by a second each second. Nobody loses a thread: a lease that seemed over
    would let another host park the effects that are at work."""
    if not (number := count("F29")):
        pytest.skip("clocks that jump are a part of `make chaos`")
    clock, jumps = JumpingClock(tmp_path), itertools.cycle((_HOUR, -_HOUR, _DAY, -_DAY))

    def jump() -> None:
        offset = next(jumps)
        clock.jump(offset)
        assert abs(clock.now() - time.time() - offset) < 60
        time.sleep(LEASE)
        for second in range(4):
            clock.jump(offset - second)
            time.sleep(1)

    with soaking(tmp_path, hosts=0) as soak:
        for _ in range(2):
            soak.add_host_with_clock(clock, 0.5)
        asyncio.run(_while_orders_come(soak, *[jump] * number))
        assert (_judged(soak, record_property, "F29"), soak.stuck) == ([], 0)
        assert asyncio.run(soak.result()).figures["threads with a parked call"] == 0


def test_F36_faults_at_random(tmp_path: Path, record_property: Record) -> None:
    if not (seconds := count("F36")):
        pytest.skip("faults at random for minutes are a part of `make chaos`")
    with soaking(tmp_path, hosts=3) as soak:
        asyncio.run(suffer_under_load(soak, SoakPlan(seconds=seconds)))
        assert (_judged(soak, record_property), soak.stuck) == ([], 0)


# ---------------------------------------------------------------- broken builds are caught


def test_a_build_that_begins_effects_before_their_intent_is_caught(tmp_path: Path, record_property: Record) -> None:
    def no_fault() -> None:
        soak.wait_for_effects(3, "h0")

    with soaking(tmp_path, hosts=0) as soak:
        soak.add_host("early")
        asyncio.run(_while_orders_come(soak, no_fault))
        assert "R6" in {each.rule for each in _judged(soak, record_property, "F13")}


def test_a_build_that_takes_its_lease_for_ownership_is_caught(tmp_path: Path, record_property: Record) -> None:
    """It does not compare epochs: when it was stopped past its lease, it writes into threads that another host has."""

    def pause_until_taken_over() -> None:
        soak.wait_for_effects(3, "h0")
        os.kill(soak.hosts["h0"].pid, signal.SIGSTOP)
        said = soak.witnessed()
        at_work = {each.thread for each in said if each.what == "fx"} - {each.thread for each in said if each.what == "fxend"}
        soak.add_host()
        until = time.monotonic() + 120
        # Until the new owner has written: only after its rows is a row of the old epoch out of order.
        while not at_work <= {each.thread for each in soak.witnessed() if (each.what, each.who) == ("ok", "h1")}:
            assert time.monotonic() < until
            time.sleep(0.05)
        os.kill(soak.hosts["h0"].pid, signal.SIGCONT)

    with soaking(tmp_path, hosts=0) as soak:
        soak.add_host("unfenced", seconds=1)
        asyncio.run(_while_orders_come(soak, pause_until_taken_over, rests=False))
        until = time.monotonic() + 120
        while "R8" not in {each.rule for each in _judged(soak, record_property, "F14")}:
            assert time.monotonic() < until
            time.sleep(0.2)
