"""A chain whose process is killed with SIGKILL: at each row, in models and tools, and between pause, resume and terminate.

F13 and F32 with real processes; G6, G7, G9, G12, G13. In `make test` at some of the places, with ANTIPHON_CHAOS at all.
"""

import asyncio
import os
from pathlib import Path

import pytest
from tests.patterns.chain_program import RESTS, STIRS, THREAD
from tests.patterns.chains import said_in
from tests.patterns.killed import check_survives
from tests.patterns.test_pause import check_nothing_begins_while_it_rests

from antiphon.ledger import open_ledger
from antiphon.protocol import PHASES

pytest.importorskip("apsw")

IS_LONG = bool(os.environ.get("ANTIPHON_CHAOS"))
PROGRAM = Path(__file__).parent / "chain_program.py"
WITHIN = [*(f"model {phase}" for phase in PHASES), "look", "reserve", "pay"]
SOME_MOVES = [f"{move}@{phase}" for phase in PHASES for move in ("pause", "terminate")]


def _check_rests(folder: Path) -> int:
    """Check that nothing was started in a paused thread, by the records of tools and models and by the ledger."""
    rested = 0
    for life in folder.iterdir():
        is_at_rest = False
        for line in (life / "witness").read_text().splitlines():
            is_at_rest = line == RESTS or (is_at_rest and line != STIRS)
            rested += line == RESTS
            assert not (is_at_rest and line.startswith("start ")), (life.name, line)
        check_nothing_begins_while_it_rests(asyncio.run(_rows(life)))
    return rested


async def _rows(life: Path) -> list:
    async with open_ledger(f"sqlite:///{life}/ledger.db") as ledger:
        return await said_in(ledger, THREAD)


@pytest.mark.slow
def test_a_chain_survives_being_killed_anywhere(tmp_path: Path) -> None:
    """F13, G6, G7, G9: recorded steps are not repeated; a person settles `once` calls, and the thread continues."""
    check_survives(PROGRAM, tmp_path, places=10_000 if IS_LONG else 6, within=WITHIN if IS_LONG else WITHIN[2::6])


@pytest.mark.slow
@pytest.mark.parametrize("move", SOME_MOVES if IS_LONG else ["pause@intention", "terminate@understanding"])
def test_a_chain_that_is_killed_beside_a_pause_or_a_termination_obeys_it(
    move: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F32, G12, G13: in each phase and at each step of it; a paused thread starts nothing, nothing is lost or repeated."""
    monkeypatch.setenv("ANTIPHON_TEST_MOVE", move)
    check_survives(PROGRAM, tmp_path, places=10_000 if IS_LONG else 4)
    assert _check_rests(tmp_path)
