"""Approvals outlive the process that asked, and are given at the command line."""

import asyncio
import json
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.agents.toolkit.kit import call, run_agent, script
from tests.cli.running import run
from tests.forked import Forked

from antiphon.agents.toolkit import Toolkit
from antiphon.errors import ParkedError
from antiphon.ledger import open_ledger
from antiphon.messages import OptionCallPayload

ROOT = Path(__file__).parents[3]


def start(url: str, witness: Path) -> subprocess.Popen[bytes]:
    return Forked([sys.executable, "-m", "tests.agents.toolkit.waiting_program", url, witness], cwd=ROOT)


async def until_quiet(url: str) -> None:
    """Wait until the program has asked, and has nothing else to do."""
    async with open_ledger(url) as ledger:
        found: set[str] = set()
        async for tailed in ledger.tail(thread_id="order"):
            payload = tailed.record.message.payload
            if isinstance(payload, OptionCallPayload) and payload.option_name == "APPROVE":
                found.add("asked")
            if tailed.record.message.id.endswith("look:c1@1@ended"):
                found.add("looked")
            if len(found) == 2:
                return


@pytest.mark.slow
def test_a_program_that_is_killed_while_it_waits_continues_with_the_answer(tmp_path: Path) -> None:
    """S5, G7, G9: SIGKILL while the question is open; a yes at the command line; started again, each tool ran once."""
    url, witness = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "witness"
    with start(url, witness) as program:
        asyncio.run(asyncio.wait_for(until_quiet(url), 60))
        program.kill()
    assert witness.read_text() == "looked\n"

    (waiting,) = json.loads(run("approvals", "--json", "--ledger", url).stdout)
    assert (waiting["tool"], waiting["arguments"], waiting["agent"]) == ("pay", {"word": "paid"}, "clerk")
    said = run("approve", waiting["id"], "--as", "ada", "--ledger", url)
    assert (said.exit_code, said.stdout) == (0, "order\n")

    with start(url, witness) as program:
        assert program.wait(60) == 0
    assert witness.read_text() == "looked\npaid\n"


# ---------------------------------------------------------------- the command line


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return a ledger with an open question."""
    return asked_in(tmp_path, 5)


def asked_in(folder: Path, amount: int) -> str:
    place = f"sqlite:///{folder}/ledger.db"

    async def ask() -> None:
        toolkit = Toolkit(approvers=["ada"], approval_expires=timedelta(days=9999))

        def pay(amount: int, note: str) -> None: ...

        toolkit.add(pay, approval=True, to=["clerk"])
        async with open_ledger(place, create=True) as ledger:
            with pytest.raises(ParkedError):
                await run_agent(toolkit, script([call("pay", amount=amount, note="a\u202eb")]), ledger=ledger, thread="order")

    asyncio.run(ask())
    return place


def test_open_questions_are_listed_with_all_that_is_needed_to_decide(url: str) -> None:
    """Invisible characters are shown by their number."""
    listed = run("approvals", "--ledger", url)

    heading, line = listed.stdout.splitlines()
    assert heading.split() == ["id", "thread", "agent", "call", "why", "until", "(UTC)"]
    assert 'order   clerk  pay {"amount":5,"note":"a⟨U+202E⟩b"}' in line
    assert "'pay' needs an approval, whatever it is called with" in line


def test_a_number_of_any_size_is_shown_whole(tmp_path: Path) -> None:
    assert f'{{"amount":{2**70},' in run("approvals", "--ledger", asked_in(tmp_path, 2**70)).stdout


@pytest.mark.slow
def test_a_question_is_answered_once_by_a_permitted_person(url: str) -> None:
    (waiting,) = json.loads(run("approvals", "--json", "--ledger", url).stdout)

    refused = run("approve", waiting["id"], "--as", "mallory", "--ledger", url)
    denied = run("deny", waiting["id"], "--as", "ada", "--reason", "too dear", "--ledger", url)
    late = run("approve", waiting["id"], "--as", "ada", "--ledger", url)

    assert (refused.exit_code, refused.stderr) == (1, "'mallory' may not answer; ada may\n")
    assert (denied.exit_code, denied.stdout) == (0, "order\n")
    assert denied.stderr == "denied: clerk may not call pay in thread order\n"
    listing = f"`python -m antiphon approvals --ledger {url}` lists those that wait"
    assert (late.exit_code, late.stderr) == (1, f"'{waiting['id']}' is answered already: 'ada' denied it; {listing}\n")
    assert run("approvals", "--ledger", url).stderr == "nothing waits for an approval\n"


def test_an_answer_needs_the_name_of_the_person(url: str) -> None:
    assert run("approve", "approval-x", "--ledger", url).exit_code == 2
