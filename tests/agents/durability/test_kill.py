"""A durable agent whose process is killed: at each named step, and at any time. F13, F31; G6, G7, G9."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.agents.durability.worker import PARKED
from tests.runtime.processes import Processes

from antiphon.ledger import open_ledger
from antiphon.messages import OptionResultPayload
from antiphon.runtime import System

pytest.importorskip("apsw")

KILLED = -signal.SIGKILL
COUNT = {"": 6, "ci": 100, "nightly": 2_000}[os.environ.get("ANTIPHON_CHAOS", "")]
CALL = "clerk__function_toolset__<agent>.call_tool:"
NAMES = ("RUN", "clerk__model.request", f"{CALL}refund", f"{CALL}look", f"{CALL}reserve", f"{CALL}delegate")
PLACES = [place for name in NAMES for place in (f"after {name}", f"before ={name}", f"after ={name}")]
PLACES += ["before RUN"]
PLACES += [f"in {name}" for name in ("model", "refund", "look", "reserve")]
PLACES += [f"after {mark}helper{CALL.removeprefix('clerk')}refund" for mark in ("", "=")]


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(Path(__file__).parent / "worker.py") as processes:
        yield processes


def _started(folder: Path) -> Counter[str]:
    path = folder / "witness"
    lines = path.read_text().splitlines() if path.exists() else []
    return Counter(line.removeprefix("start ") for line in lines if line.startswith("start "))


async def _ended(folder: Path) -> set[str]:
    """Return the invocations whose outcome the ledger has, which is whole."""
    async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger:
        assert (await ledger.verify()).is_whole
        records = [record.message async for record in ledger.read("order")]
    return {
        row.payload.invocation_id for row in records if row.lane == "effect" and isinstance(row.payload, OptionResultPayload)
    }


async def _settle(folder: Path) -> list[str]:
    """Say of everything that is parked that it was done, and return what that was."""
    async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger, System(ledger) as system:
        parked = await system.parked()
        for each in parked:
            await system.settle(each.thread_id, each.invocation_id, result="refunded, says the bank")
    return [each.invocation_id for each in parked]


class Life:
    """One ledger, and the lives of the processes that worked on it."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self._before: Counter[str] = Counter()
        self._known: set[str] = set()

    def check(self) -> None:
        """Check what one more life has done: it ran no finished step again, and started nothing twice that must not be."""
        started = _started(self._folder)
        again = {line for line in started if started[line] > self._before[line] > 0}
        assert not {line for line in started if line.endswith(" once") and started[line] > 1}  # R6, G7
        assert not {line for line in again if line.split()[0] in self._known}  # R7, G9
        self._before = started
        self._known = asyncio.run(_ended(self._folder)) if (self._folder / "ledger.db").exists() else set()

    def finish(self) -> None:
        """Have it finished, by a person where that must be: exactly what was in flight and must not be made twice."""
        for _ in range(10):
            code = self._processes.run(self._folder)
            self.check()
            if code == 0:
                break
            assert code == PARKED
            parked = asyncio.run(_settle(self._folder))
            once = {line.split()[0] for line in self._before if line.endswith(" once")}
            assert parked
            assert set(parked) <= {key for key in self._open() if "refund" in key}
            assert all(key in once or "refund" in key for key in parked)
        else:
            raise AssertionError("it never finished")
        assert "ok done" in (self._folder / "witness").read_text()

    def _open(self) -> set[str]:
        async def look() -> set[str]:
            async with open_ledger(f"sqlite:///{self._folder}/ledger.db") as ledger:
                records = [record.message async for record in ledger.read("order")]
            return {message.invocation_id or "" for message in records if message.lane == "effect"}

        return asyncio.run(look())


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_a_program_killed_at_a_step_is_finished_by_the_next(place: str, processes: Processes, tmp_path: Path) -> None:
    """F13, F31: at each place where something is written down or done."""
    life = Life(processes, tmp_path)
    assert processes.run(tmp_path, place) == KILLED
    life.check()
    life.finish()


@pytest.mark.slow
def test_a_program_killed_at_any_time_is_finished_by_the_next(processes: Processes, tmp_path: Path) -> None:
    """F13: killed again and again, each time at a moment that is drawn."""
    chance = random.Random(7)
    killed = 0
    for number in range(COUNT // 3 + 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        life = Life(processes, folder)
        for _ in range(3):
            pid = processes.start(folder)
            processes.wait_for("busy")
            time.sleep(chance.random() * 0.04)  # the moment is the fault
            with suppress(ProcessLookupError):
                processes.signal(pid, signal.SIGKILL)
            killed += processes.end() == KILLED
            life.check()
        life.finish()
    assert killed >= COUNT // 2  # it was not over before
