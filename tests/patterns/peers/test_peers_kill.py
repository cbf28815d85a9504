"""Peers whose process is killed at any row, and that the next process takes up. G6, G7, G9."""

from pathlib import Path

import pytest
from tests.patterns.killed import check_survives
from tests.patterns.peers.plays import Play, asks, line, says, spec, talk_in

from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.peers import PeerLimits, Peers

pytest.importorskip("apsw")


async def left_after(ledger: MemoryLedger, letter: str) -> MemoryLedger:
    """Return the ledger of a process that died right after it wrote a letter."""
    left = MemoryLedger()
    rows = [record.message async for record in ledger.read("t")]
    upto = next(number for number, row in enumerate(rows, 1) if row.id.endswith(letter))
    await left.append("t", rows[:upto])
    return left


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "limits", "response"),
    [
        ("bob", PeerLimits(max_interactions=0, max_depth=0), "agent_response:here"),
        ("dora", PeerLimits(), "error:PEER_NOT_FOUND"),
    ],
)
async def test_recorded_decisions_hold_under_changed_limits(target: str, limits: PeerLimits, response: str) -> None:
    """G6: an admitted call is made and a refused one is not, even if the next process would decide otherwise."""
    ledger = MemoryLedger()
    parts = {"ada": line(asks((target, "Help"))), "bob": lambda asked, given: says("here")}
    async with Peers(ledger, [spec("ada", "bob", "dora"), spec("bob")], model=Play(**parts)) as peers:
        assert (await peers.run("Go", thread_id="t")).response == response
    left = await left_after(ledger, "/letter")
    specs = [spec("ada", "bob", "dora"), spec("bob"), spec("dora")]
    async with Peers(left, specs, limits=limits, model=Play(**parts)) as peers:
        assert (await peers.run("Go", thread_id="t")).response == response
    letters = [row.id for row in await talk_in(left, "t") if row.id.endswith("/letter")]
    assert len(letters) == 1


@pytest.mark.slow
def test_peers_survive_a_kill_at_any_row(tmp_path: Path) -> None:
    """Calls side by side, one refused, one that fails, letters, tools that must not be done twice: nothing lost or doubled."""
    check_survives(Path(__file__).parent / "program.py", tmp_path)
