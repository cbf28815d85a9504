"""A durable agent whose process is killed: at each named step, and at any time. F13, F31; G6, G7, G9."""

import asyncio
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

import pytest
from tests.agents.durability.worker import PARKED
from tests.runtime.processes import Processes

from antiphon.ledger import open_ledger
from antiphon.messages import OptionCallPayload, OptionResultPayload
from antiphon.runtime import System

pytest.importorskip("apsw")

KILLED = -signal.SIGKILL
COUNT = {"": 6, "ci": 100, "nightly": 2_000}[os.environ.get("ANTIPHON_CHAOS", "")]
SPAN = 0.04
"""Seconds in which a process that is not killed does all of it, or nearly."""
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


class Journal(NamedTuple):
    """The calls and results in the ledger; the ledger is whole."""

    once: frozenset[str]
    """The calls that must not be made twice."""
    ended: frozenset[str]

    @property
    def in_flight(self) -> frozenset[str]:
        return self.once - self.ended

    @classmethod
    def read(cls, folder: Path) -> Self:
        return asyncio.run(cls._read(folder)) if (folder / "ledger.db").exists() else cls(frozenset(), frozenset())

    @classmethod
    async def _read(cls, folder: Path) -> Self:
        async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger:
            assert (await ledger.verify()).is_whole
            rows = [record.message async for record in ledger.read("order")]
        payloads = [row.payload for row in rows if row.lane == "effect"]
        begun = [each for each in payloads if isinstance(each, OptionCallPayload)]
        return cls(
            frozenset(each.invocation_id for each in begun if each.arguments.get("effects") == "once"),
            frozenset(each.invocation_id for each in payloads if isinstance(each, OptionResultPayload)),
        )


async def _settle(folder: Path) -> set[str]:
    """Settle every parked call as done, and return the calls."""
    async with open_ledger(f"sqlite:///{folder}/ledger.db") as ledger, System(ledger) as system:
        parked = await system.parked()
        for each in parked:
            await system.settle(each.thread_id, each.invocation_id, result="refunded, says the bank")
    return {each.invocation_id for each in parked}


class Life:
    """One ledger, and the lives of the processes that worked on it."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self._before: Counter[str] = Counter()
        self._known: frozenset[str] = frozenset()
        self._in_flight: set[str] = set()
        """What a process was in the middle of when it ended, and must not be done twice."""
        self._parked: set[str] = set()

    @property
    def is_done(self) -> bool:
        witness = self._folder / "witness"
        return witness.exists() and "ok done" in witness.read_text()

    def check(self) -> None:
        """Check one more life: it repeated no finished step, and started no `once` call twice."""
        started = _started(self._folder)
        again = {line for line in started if started[line] > self._before[line] > 0}
        assert not {line for line in started if line.endswith(" once") and started[line] > 1}  # R6, G7
        assert not {line for line in again if line.split()[0] in self._known}  # R7, G9
        journal = Journal.read(self._folder)
        assert {line.split()[0] for line in started if line.endswith(" once")} <= journal.once  # G6
        self._before, self._known = started, journal.ended
        self._in_flight |= journal.in_flight

    def settle(self) -> bool:
        """Settle the parked calls as a person, and return whether there were any."""
        settled = asyncio.run(_settle(self._folder))
        assert not settled & self._parked
        self._parked |= settled
        return bool(settled)

    def finish(self) -> None:
        """Finish the run. A person settles exactly the `once` calls that were in flight."""
        for _ in range(10):
            code = self._processes.run(self._folder)
            self.check()
            if code == 0:
                break
            assert code == PARKED
            assert self.settle()
        else:
            raise AssertionError("it never finished")
        assert self._parked == self._in_flight
        assert self.is_done


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
    """F13: killed again and again, each time at a moment that is drawn; a kill counts if the program was in the middle."""
    chance = random.Random(7)
    landed = 0
    for number in range(2 * COUNT):
        if landed >= COUNT:
            return
        folder = tmp_path / str(number)
        folder.mkdir()
        life = Life(processes, folder)
        for _ in range(4):
            code = _killed(processes, folder, chance.random() * SPAN)
            landed += code == KILLED and not life.is_done
            life.check()
            assert life.settle() or code != PARKED
        life.finish()
    raise AssertionError(f"of so many kills only {landed} came while the program was in the middle")


def _killed(processes: Processes, folder: Path, seconds: float) -> int:
    """Start a process, kill it some time after its first step, and return its exit."""
    pid = processes.start(folder)
    processes.wait_for("busy")
    time.sleep(seconds)  # the moment is the fault
    processes.signal(pid, signal.SIGKILL)
    return processes.end()
