"""Processes that are killed, on a ledger in a file: at each named step, and at any time (F13, F16, G1, G6-G9)."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.runtime.worker import THREADS, Bank, Shop

from antiphon.ledger import open_ledger
from antiphon.messages import OptionCallPayload
from antiphon.runtime import Parked, System

pytest.importorskip("apsw")

WORKER = Path(__file__).parent / "worker.py"
PLACES = [
    f"{when} {name}"
    for name in ("WORKER_ORDER", "WORKER_PAY", "pay", "=pay", "=WORKER_PAY", "=WORKER_ORDER")
    for when in ("before", "after")
]
KILLS = {"long": 100, "quick": 2}.get(os.environ.get("HYPOTHESIS_PROFILE", ""), 6)


def _start(folder: Path, place: str = "") -> subprocess.Popen[bytes]:
    command = [sys.executable, str(WORKER), str(folder / "ledger.db"), str(folder / "witness"), place]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)


def _run(folder: Path, place: str = "") -> int:
    process = _start(folder, place)
    _, errors = process.communicate(timeout=60)
    if process.returncode not in (0, -signal.SIGKILL):
        raise AssertionError(errors.decode())
    return process.returncode


def _witnessed(folder: Path) -> Counter[str]:
    path = folder / "witness"
    return Counter(path.read_text().splitlines() if path.exists() else [])


async def _look(folder: Path) -> tuple[tuple[Parked, ...], dict[str, int]]:
    """Return what is parked, and by thread how many calls are open and are no part of what is parked."""
    async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger:
        assert (await ledger.verify()).is_whole
        async with System(ledger) as system:
            parked = await system.parked()
        found: dict[str, int] = {}
        for number in range(THREADS):
            rows = [record.message for record in await ledger.open_calls(f"t{number}")]
            options = [row.payload.option_name for row in rows if isinstance(row.payload, OptionCallPayload)]
            found[f"t{number}"] = 0 if "PARK" in options else len(rows)
    return parked, found


def _check(folder: Path) -> tuple[Parked, ...]:
    witnessed = _witnessed(folder)
    started = {line: count for line, count in witnessed.items() if line.startswith("fx ")}
    parked, still_open = asyncio.run(_look(folder))
    assert all(count == 1 for count in started.values()), started  # R6: at most one start, ever
    assert not any(still_open.values()), still_open  # R10: nothing neither finished nor parked
    done = {line.split()[1] for line in witnessed if line.startswith("ok ")}
    waits = {f"m{each.thread_id[1:]}" for each in parked}
    assert done | waits == {f"m{number}" for number in range(THREADS)}
    return parked


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_process_killed_at_a_step_leaves_threads_that_the_next_one_finishes(place: str, tmp_path: Path) -> None:
    assert _run(tmp_path, place) == -signal.SIGKILL
    assert _run(tmp_path) == 0

    parked = _check(tmp_path)
    unknown = [line for line in _witnessed(tmp_path) if line.startswith("fx ")]
    assert len(unknown) + len(parked) >= THREADS
    if place not in ("after pay", "before =pay"):
        assert not [each for each in parked if f"fx {each.evidence['effect']}" not in unknown]


@pytest.mark.slow
def test_an_effect_that_was_cut_off_is_parked_with_the_evidence_and_settled(tmp_path: Path) -> None:
    assert _run(tmp_path, "in pay") == -signal.SIGKILL
    assert _run(tmp_path) == 0
    parked = _check(tmp_path)

    async def settle() -> None:
        async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger, System(ledger) as system:
            system.register("shop", Shop)
            system.register("bank", Bank)
            for each in parked:
                await system.settle(each.thread_id, each.invocation_id, result="receipt found in the bank's books")
            await system.recover()
            async with asyncio.timeout(10):
                while any([await ledger.open_calls(each.thread_id) for each in parked]):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    assert {each.evidence["option"] for each in parked} == {"pay"}
    asyncio.run(settle())
    assert asyncio.run(_look(tmp_path))[0] == ()


@pytest.mark.slow
def test_a_process_killed_at_any_time_loses_nothing(tmp_path: Path) -> None:
    """F13: the seed is printed when it fails."""
    chance = random.Random(13)
    killed = 0
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        for _ in range(2):
            process = _start(folder)
            time.sleep(0.25 + chance.random() * 0.5)
            process.kill()
            process.communicate()
            killed += process.returncode == -signal.SIGKILL
        assert _run(folder) == 0
        _check(folder)
    assert killed > 0


@pytest.mark.slow
def test_a_process_that_is_asked_to_end_leaves_nothing_half_done(tmp_path: Path) -> None:
    """F16: SIGINT ends the block, which ends the actors in good order."""
    process = _start(tmp_path)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert _run(tmp_path) == 0
    _check(tmp_path)
