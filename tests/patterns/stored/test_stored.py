"""Ledgers that an earlier commit has left behind open, verify and resume (see `README.md`; G6, G7, G9, G11, S5).

Each program of `programs.py` goes on from its stored ledger. A person answers, settles what is parked, and the program ends as
one that nobody has interrupted.
"""

import tarfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import run as command
from tests.patterns.stored.programs import PROGRAMS, WHO, Witness, paid

from antiphon.agents.toolkit import answer, pending_approvals
from antiphon.errors import ParkedError
from antiphon.ledger import Head, Ledger, open_ledger
from antiphon.messages import JsonObject, OptionCallPayload, thaw
from antiphon.runtime import System

pytest.importorskip("apsw")

STORED = sorted(Path(__file__).parent.glob("*.tar.xz"))
NAMES = [path.name.removesuffix(".tar.xz") for path in STORED]
ASKING = ("asked", "waiting")
REASON = "too dear"


class Life:
    """A program on the ledger of a folder, with a person beside it."""

    def __init__(self, folder: Path, program: str, *, says: bool | None = None) -> None:
        self._folder, self._program, self._says = folder, program, says
        self.url = f"sqlite:///{folder}/ledger.db"

    async def end(self) -> str:
        """Run the program again and again, with a person who answers and settles, until it ends; return its result."""
        for _ in range(10):
            async with open_ledger(self.url) as ledger:
                try:
                    return await PROGRAMS[self._program](ledger, Witness(f"{self._folder}/witness"), self._says is not None)
                except ParkedError:
                    await self._help(ledger)
        raise AssertionError("it never ends")

    async def _help(self, ledger: Ledger) -> None:
        for waiting in await pending_approvals(ledger):
            assert waiting.tool == "pay"
            await answer(ledger, waiting.id, principal=WHO, approved=bool(self._says), reason=REASON)
        async with System(ledger) as system:
            for parked in await system.parked():
                result = await _result_of(ledger, parked.thread_id, str(parked.evidence["effect"]))
                await system.settle(parked.thread_id, parked.invocation_id, result=result)

    def started(self) -> Counter[str]:
        """Return how often each tool was started, on both commits."""
        witness = self._folder / "witness"
        return Counter(witness.read_text().splitlines() if witness.exists() else ())


async def _result_of(ledger: Ledger, thread_id: str, effect: str) -> Any:
    """Return the result that a payment has, if it was done: a toolkit records it with a name, an actor without."""
    (begun,) = [row.message.payload for row in await ledger.by_invocation(effect, thread_id=thread_id)]
    assert isinstance(begun, OptionCallPayload)
    assert begun.option_name == "pay"
    given = thaw(begun.arguments)["arguments"]
    return {"result": paid(given["arguments"]["what"])} if "digest" in given else paid(given["what"])


async def _open_calls(ledger: Ledger) -> list[str]:
    """Return the calls that somebody must still answer: not those of a model that nobody has begun."""
    found = [row.message for head in await ledger.heads() for row in await ledger.open_calls(head.thread_id)]
    return [message.id for message in found if message.lane != "talk" or message.to]


def unpack(name: str, folder: Path) -> Life:
    """Return the life that goes on from a stored ledger."""
    folder.mkdir()
    with tarfile.open(Path(__file__).parent / f"{name}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return Life(folder, name.partition(".")[0])


async def _checked(url: str, heads: Sequence[Head] = ()) -> tuple[Head, ...]:
    """Check the chains of a ledger, and that it still has the rows of earlier heads; return the heads."""
    async with open_ledger(url, create=False) as ledger:
        verification = await ledger.verify(heads=heads)
        assert verification.is_whole, verification
        return tuple(await ledger.heads())


async def _check_goes_on(name: str, folder: Path, *, says: bool | None) -> None:
    program, state = name.split(".")
    whole = Life(folder / "whole", program, says=says)
    (folder / "whole").mkdir()
    expected = await whole.end()

    life = unpack(name, folder / "stored")
    life = Life(folder / "stored", program, says=says)
    heads = await _checked(life.url)
    before = life.started()
    assert await life.end() == expected
    await _checked(life.url, heads)
    started = life.started()
    assert set(started) == set(whole.started())
    assert [line for line in started if line.startswith("pay ") and started[line] > 1] == []
    assert any(line.startswith("pay ") for line in started) == (says is not False)
    async with open_ledger(life.url) as ledger:
        assert await _open_calls(ledger) == []
    assert await life.end() == expected, "a program that has ended says the same"
    assert life.started() == started


def _of(*states: str) -> list[str]:
    return [name for name in NAMES if name.partition(".")[2].startswith(states)]


@pytest.mark.slow
@pytest.mark.parametrize("name", _of("after-", "in-", "parked"))
async def test_a_program_of_an_earlier_commit_goes_on_after_a_kill(name: str, tmp_path: Path) -> None:
    """G6, G7: what may have been paid is settled by a person; nothing is paid twice; the end is that of a whole run."""
    await _check_goes_on(name, tmp_path, says=None)


@pytest.mark.slow
@pytest.mark.parametrize("says", [True, False])
@pytest.mark.parametrize("name", _of(*ASKING))
async def test_a_question_of_an_earlier_commit_is_answered(name: str, says: bool, tmp_path: Path) -> None:
    """S5: a yes and a no that are given on this commit count."""
    await _check_goes_on(name, tmp_path, says=says)
