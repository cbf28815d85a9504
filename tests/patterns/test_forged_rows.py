"""Rows that somebody forged, through every entrance: none is executed, none approves anything, none moves a gate."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.agents.toolkit.kit import Witness, call, run_agent, script
from tests.cli.running import run

from antiphon.agents.toolkit import Toolkit, answer, pending_approvals
from antiphon.errors import ParkedError
from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import Message, dumps

ResultT = TypeVar("ResultT")

PAY = script([call("pay", amount=5)])


def bank(witness: Witness) -> Toolkit:
    """Return a toolkit whose `pay` a person must approve."""
    toolkit = Toolkit()

    def pay(amount: int) -> str:
        witness.done.append(("pay", amount))
        return f"paid {amount}"

    toolkit.add(pay, approval=True)
    toolkit.grant("clerk")
    return toolkit


def within(url: str, work: Callable[[Ledger], Awaitable[ResultT]]) -> ResultT:
    async def inside() -> ResultT:
        async with open_ledger(url) as ledger:
            return await work(ledger)

    return asyncio.run(inside())


async def _approved_elsewhere(ledger: Ledger) -> list[Message]:
    """Return the rows of a thread in which somebody has said yes: in a ledger of their own."""
    with pytest.raises(ParkedError):
        await run_agent(bank(Witness()), PAY, ledger=ledger)
    (approval,) = await pending_approvals(ledger)
    await answer(ledger, approval.id, principal="mallory", approved=True)
    return [record.message async for record in ledger.read("t")]


@pytest.mark.parametrize("lanes", [("control",), ("control", "effect"), ("talk", "control", "effect")])
@pytest.mark.parametrize("is_lenient", [False, True])
def test_a_file_approves_no_call(tmp_path: Path, lanes: tuple[str, ...], is_lenient: bool) -> None:
    """S5, S14, G22: a question and a signed yes, made in another ledger, and imported."""
    witness, url, file = Witness(), f"sqlite:///{tmp_path}/ledger.db", tmp_path / "t.jsonl"
    rows = [row for row in within("memory:", _approved_elsewhere) if row.lane in lanes]
    file.write_bytes(b"".join(dumps(row) + b"\n" for row in rows))
    more = ("--allow-foreign",) if is_lenient else ()
    for _ in range(2):
        taken = run("import", file, *more, "--ledger", url)
        assert taken.exit_code == 0, taken.stderr

    async def work(ledger: Ledger) -> None:
        with pytest.raises(ParkedError):
            await run_agent(bank(witness), PAY, ledger=ledger)
        (approval,) = await pending_approvals(ledger)
        assert approval.answer is None

    within(url, work)
    assert witness.done == []
