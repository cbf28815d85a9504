"""Ledgers that an earlier commit has left behind open, verify and resume (see `README.md`; G6, G7, G9, G11, S5).

Each program of `programs.py` goes on from its stored ledger. A person answers, settles what is parked, and the program ends as
one that nobody has interrupted. In `make test` most combinations, with ANTIPHON_CHAOS all.
"""

import json
import os
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import run as command
from tests.patterns.stored.programs import PROGRAMS, WHO, Witness, paid
from typing_extensions import override

from antiphon.agents.toolkit import answer, pending_approvals
from antiphon.errors import ParkedError
from antiphon.ledger import Head, Ledger, open_ledger
from antiphon.messages import OptionCallPayload, SystemPort, thaw, use_port
from antiphon.runtime import System

pytest.importorskip("apsw")

IS_LONG = bool(os.environ.get("ANTIPHON_CHAOS"))
NAMES = sorted(path.name.removesuffix(".tar.xz") for path in Path(__file__).parent.glob("*.tar.xz"))
REASON = "too dear"


class Life:
    """A program on the ledger of a folder, with a person beside it."""

    def __init__(self, folder: Path, program: str, *, says: bool | None = None) -> None:
        self._folder, self._program, self._says = folder, program, says
        self.url = f"sqlite:///{folder}/ledger.db"
        self.answered: list[str] = []
        """The questions that were answered, by id."""
        self.settled: set[str] = set()
        """The payments that were settled, as the witness names them."""

    async def end(self) -> str:
        """Run the program again and again, with a person who answers and settles, until it ends; return its result."""
        for _ in range(10):
            async with open_ledger(self.url) as ledger:
                try:
                    return await PROGRAMS[self._program](ledger, Witness(f"{self._folder}/witness"), self._says is not None)
                except ParkedError:
                    await self._help(ledger)
        raise AssertionError("it never ends")

    async def be_helped(self) -> None:
        """Have the person answer and settle what waits, before the program runs."""
        async with open_ledger(self.url) as ledger:
            await self._help(ledger)
        assert self.answered or self.settled

    async def _help(self, ledger: Ledger) -> None:
        for waiting in await pending_approvals(ledger):
            assert waiting.tool == "pay"
            await answer(ledger, waiting.id, principal=WHO, approved=bool(self._says), reason=REASON)
            self.answered.append(waiting.id)
        async with System(ledger) as system:
            for parked in await system.parked():
                what, result = await _payment(ledger, parked.thread_id, str(parked.evidence["effect"]))
                await system.settle(parked.thread_id, parked.invocation_id, result=result)
                self.settled.add(f"pay {what}")

    def started(self) -> Counter[str]:
        """Return how often each tool was started, on both commits."""
        witness = self._folder / "witness"
        return Counter(witness.read_text().splitlines() if witness.exists() else ())


async def _payment(ledger: Ledger, thread_id: str, effect: str) -> tuple[str, Any]:
    """Return what is paid by an effect, and its result if it was done: a toolkit gives that a name, an actor does not."""
    (begun,) = [row.message.payload for row in await ledger.by_invocation(effect, thread_id=thread_id)]
    assert isinstance(begun, OptionCallPayload)
    assert begun.option_name == "pay"
    given = thaw(begun.arguments)["arguments"]
    is_guarded = "digest" in given
    what = str((given["arguments"] if is_guarded else given)["what"])
    return what, {"result": paid(what)} if is_guarded else paid(what)


async def _open_calls(url: str) -> list[str]:
    """Return the open calls that need an answer: not those of a model that was never asked."""
    async with open_ledger(url, create=False) as ledger:
        found = [row.message for head in await ledger.heads() for row in await ledger.open_calls(head.thread_id)]
    return [message.id for message in found if message.lane != "talk" or message.to]


def unpack(name: str, folder: Path) -> str:
    """Unpack a stored ledger, and return its URL."""
    with tarfile.open(Path(__file__).parent / f"{name}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return f"sqlite:///{folder}/ledger.db"


async def _checked(url: str, heads: Sequence[Head] = ()) -> tuple[Head, ...]:
    """Check the chains of a ledger, and that it still has the rows of earlier heads; return the heads."""
    async with open_ledger(url, create=False) as ledger:
        verification = await ledger.verify(heads=heads)
        assert verification.is_whole, verification
        return tuple(await ledger.heads())


class GoingOn(SystemPort):
    """A clock that goes on from an earlier time: stored requests have deadlines, which are long over on the calendar."""

    def __init__(self, since: datetime) -> None:
        self._ago = super().now() - since

    @override
    def now(self) -> datetime:
        return super().now() - self._ago


async def _last_written(url: str) -> datetime:
    async with open_ledger(url, create=False) as ledger:
        return (await ledger.threads(limit=1)).threads[0].updated_at


async def _whole(program: str, says: bool | None) -> tuple[str, frozenset[str]]:
    """Return the result of a program that begins with an empty ledger on this commit, and what it starts."""
    if (program, says) not in _known:
        with tempfile.TemporaryDirectory() as folder:
            life = Life(Path(folder), program, says=says)
            _known[program, says] = await life.end(), frozenset(life.started())
    return _known[program, says]


_known: dict[tuple[str, bool | None], tuple[str, frozenset[str]]] = {}


async def _check_goes_on(name: str, folder: Path, *, says: bool | None = None) -> Life:
    """Check that a stored program ends as a whole run of it does on this commit, and return its life."""
    program, _, state = name.partition(".")
    expected, lines = await _whole(program, says)
    heads = await _checked(unpack(name, folder))
    life = Life(folder, program, says=says)
    assert await _open_calls(life.url)

    with use_port(GoingOn(await _last_written(life.url))):
        if state in ("parked", "waiting"):  # the earlier commit has asked, this one takes the answer
            await life.be_helped()
        assert await life.end() == expected
        await _checked(life.url, heads)
        started = life.started()
        assert {*started, *life.settled} == lines
        assert [line for line in started if line.startswith("pay ") and started[line] > 1] == []
        assert await _open_calls(life.url) == []
        assert await life.end() == expected  # the recorded result: nothing starts again
        assert life.started() == started
    return life


def _of(*states: str) -> list[str]:
    return [name for name in NAMES if name.partition(".")[2].startswith(states)]


def test_every_program_has_a_ledger_in_each_state() -> None:
    """Actors without a toolkit have no questions."""
    for program in PROGRAMS:
        states = [name.partition(".")[2].partition("-")[0] for name in NAMES if name.startswith(f"{program}.")]
        asking = [] if program == "actors" else ["asked", "waiting"]
        assert sorted(states) == sorted(["after", "after", "in", "parked", *asking])


@pytest.mark.slow
@pytest.mark.parametrize("name", _of("after-", "in-pay", "parked"))
async def test_a_program_of_an_earlier_commit_goes_on_after_a_kill(name: str, tmp_path: Path) -> None:
    """G6, G7: what may have been paid is settled by a person; nothing is paid twice; the end is that of a whole run."""
    life = await _check_goes_on(name, tmp_path)
    assert life.settled or "after-" in name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "says"),
    [(name, says) for name in _of("asked", "waiting") for says in (True, False) if says or IS_LONG or "waiting" in name],
)
async def test_a_question_of_an_earlier_commit_is_answered(name: str, says: bool, tmp_path: Path) -> None:
    """S5: a yes and a no that are given on this commit count; without a yes, nothing is paid."""
    life = await _check_goes_on(name, tmp_path, says=says)
    assert life.answered
    assert any(line.startswith("pay ") for line in life.started()) is says


# ---------------------------------------------------------------- the command line


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES if IS_LONG else _of("in-pay", "parked", "waiting"))
def test_the_command_line_reads_a_ledger_of_an_earlier_commit(name: str, tmp_path: Path) -> None:
    """Every command that reads, and `fork`; what waits for a person is listed."""
    url = unpack(name, tmp_path)
    state = name.partition(".")[2]

    def said(*arguments: str) -> str:
        result = command(*arguments, "--ledger", url)
        assert result.exit_code == 0, (arguments, result.stderr)
        return result.stdout

    threads = [each["thread_id"] for each in json.loads(said("threads", "--json"))]
    assert threads
    said("verify")
    assert bool(json.loads(said("approvals", "--json"))) is (state in ("asked", "waiting"))
    assert bool(json.loads(said("parked", "--json"))) is (state == "parked")
    for thread in threads:
        assert said("show", "--all", thread)
        said("replay", thread)
        assert said("export", thread)
        assert said("fork", thread, "--into", f"{thread}-branch") == f"{thread}-branch\n"
        assert said("show", "--all", f"{thread}-branch")
    said("verify")
