"""A process is stopped at each named point past its lease; another takes its run over; then the first wakes. G7, G8, F14."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import forked
from tests.agents.durability.payers import PAID, PAYERS
from tests.agents.durability.stopped_program import WitnessedBank, pay
from tests.postgres import Server
from tests.runtime.counts import count
from tools.soak.witness import check_witness, gather_evidence

from antiphon import open_ledger
from antiphon.runtime._points import Point

pytest.importorskip("apsw")

PROGRAM = Path(__file__).with_name("stopped_program.py")
GAP = Point.STARTED
"""Between the last check of the lease and the first instruction of the payment: no check can close it."""
WITH_GAP = "function"
"""A payer whose start is checked once, so it is stopped in the gap."""
UNPAID = (Point.CLAIMED, Point.INTENT_SENT, Point.INTENT_STORED, Point.STARTING)
"""The points at which the payment has not started: the second process pays."""

ALL = tuple(Point)
STORES = ("SQLite", "PostgreSQL")
FEW: dict[tuple[str, str], Sequence[Point]] = {
    ("SQLite", "plain function"): ALL,
    ("SQLite", "function"): (GAP,),
    ("SQLite", "agent"): (Point.STARTING,),
    ("SQLite", "reconciling agent"): (Point.INTENT_STORED, Point.OUTCOME_QUEUED),
    ("PostgreSQL", "function"): (Point.INTENT_STORED,),
    ("PostgreSQL", "toolkit"): (Point.ENDED,),
    ("PostgreSQL", "agent with plain tools"): (Point.STARTING,),
}
"""By store and payer, the points of `make test`; `make chaos` tries all."""
EVERY = {(store, how): ALL for store in STORES for how in PAYERS if how != "two functions" and "blocking" not in how}
CASES = EVERY if count("stopped") else FEW


class Place:
    """A ledger, and the folder of the witnesses."""

    def __init__(self, folder: Path, server: Server | None) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.url = f"sqlite:///{folder}/ledger.db" if server is None else server.new_database(f"stopped {folder}"[-60:])
        self.bank = WitnessedBank(folder, "second")

    @contextmanager
    def first(self, how: str, point: str = "nowhere") -> Iterator[subprocess.Popen[str]]:
        """Start the first process."""
        process = forked.start(PROGRAM, self.url, self.folder, how, point, stdout=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    async def second(self, how: str) -> str:
        """Be the second process: wait for the run, or take it over, and return what came of it; a person helps it."""
        async with open_ledger(self.url) as ledger, asyncio.timeout(80):
            while (came := await pay(ledger, self.bank, how)) != PAID:
                if came == "ParkedError":
                    await self.bank.settle(ledger)
                elif came != "LedgerUnavailableError":  # PostgreSQL ends a transaction of the first in half a minute
                    break
        return came

    @property
    def payers(self) -> list[str]:
        return [payment.who for payment in self.bank.payments]

    async def late(self) -> int:
        """Return how many payments have started after a later claim of the thread, as the checker sees it."""
        async with open_ledger(self.url) as ledger:
            found = check_witness(self.bank.witnessed, await gather_evidence(ledger)).breaches
        return sum("after it had lost the thread" in breach.what for breach in found)


async def _next_word(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return (await asyncio.to_thread(process.stdout.readline)).strip()


async def _until_stopped(process: subprocess.Popen[str]) -> None:
    """Wait until a process that stops itself has stopped: a signal to go on that came before would be lost."""
    assert await _next_word(process) == "stopped"
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def _stop_at(place: Place, how: str, point: Point) -> None:
    with place.first(how, point) as first:
        await _until_stopped(first)
        assert await place.second(how) == PAID
        os.kill(first.pid, signal.SIGCONT)
        came = await _next_word(first)
    what = how, point, came
    twice = ["second", "first"]
    if (how, point) == (WITH_GAP, GAP):
        assert place.payers == twice, what
    elif point == GAP:  # another check may follow
        assert place.payers in (twice, twice[:1]), what
    else:
        assert place.payers == ["second" if point in UNPAID else "first"], what
    assert await place.late() == len(place.payers) - 1, what
    assert len({payment.key for payment in place.bank.payments}) == 1, what
    # Before its first row, the first process joins again, and reads what the second has done.
    assert came in {Point.CLAIMED: ("FencedError", PAID), Point.RELEASED: (PAID,)}.get(point, ("FencedError",)), what


@pytest.mark.slow
@pytest.mark.parametrize(("case", "points"), CASES.items(), ids=map("-".join, CASES))
async def test_a_process_that_was_stopped_past_its_lease_pays_nothing_that_another_has_taken_over(
    case: tuple[str, str], points: Sequence[Point], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It is stopped at each point. In the one gap that no check closes, both payments have the same key."""
    store, how = case
    server: Server | None = request.getfixturevalue("postgres") if store == "PostgreSQL" else None
    places = [(Place(tmp_path / point, server), point) for point in points]
    await asyncio.gather(*(_stop_at(place, how, point) for place, point in places))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["blocking agent", "blocking function"])
async def test_a_process_whose_code_blocks_for_longer_than_its_lease_keeps_its_run(how: str, tmp_path: Path) -> None:
    """A caller in another process that joins waits, and gets the recorded result: nothing is paid twice."""
    place = Place(tmp_path / "place", None)
    with place.first(how) as first:
        assert await _next_word(first) == "blocks"
        assert await place.second(how) == PAID
        assert await _next_word(first) == PAID
    assert place.payers == ["first"]
