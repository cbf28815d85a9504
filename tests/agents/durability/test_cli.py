"""`antiphon parked` and `antiphon settle`: a person sees calls with an unknown outcome, and records the outcome. G7."""

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from tests.agents.durability.agents import Desk, call, script
from tests.cli.running import run

from antiphon.agents import LedgerDurability
from antiphon.durable import ledger_run
from antiphon.errors import HistoryMismatchError, ParkedError
from antiphon.ledger import open_ledger

INVOCATION = "order-42/run/clerk/refund:c1"


class DiedError(BaseException):
    """Ends the program as a kill does."""


async def work(url: str, desk: Desk, *, is_dying: bool = False, is_failing: bool = False) -> str:
    """Run the program, once."""
    async with open_ledger(url) as ledger:
        turns = ([call("refund", "c1", amount=3)], ["thank you"])
        agent: Agent[None, str] = Agent(script(desk, *turns), name="clerk", capabilities=[LedgerDurability(ledger)])

        @agent.tool_plain
        async def refund(amount: int) -> str:
            desk.note("refund")
            if is_dying:
                raise DiedError
            if is_failing:
                raise ValueError("no such account")
            return "refunded"

        async with ledger_run("order-42"):
            result = await agent.run("refund me")
        return str(result.all_messages()[2])


@pytest.fixture
def parked(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/ledger.db"
    with pytest.raises(DiedError):
        asyncio.run(work(url, Desk(), is_dying=True))
    assert "nothing is parked" in run("parked", "--ledger", url).stderr
    with pytest.raises(ParkedError, match=f"whether 'refund' was done.*antiphon settle order-42 {INVOCATION} --result JSON"):
        asyncio.run(work(url, Desk()))
    return url


@pytest.mark.slow
def test_parked_calls_are_listed_with_the_evidence(parked: str) -> None:
    listed = run("parked", "--ledger", parked)
    assert f"order-42  {INVOCATION}" in listed.stdout
    assert "nobody knows whether" in listed.stdout
    assert '"tool":"refund","arguments":{"amount":3}' in listed.stdout
    assert f" settle order-42 {INVOCATION} --ledger {parked}\n" in listed.stdout
    (each,) = json.loads(run("parked", "--json", "--ledger", parked).stdout)
    assert each["thread_id"] == "order-42"
    assert each["invocation_id"] == INVOCATION
    assert each["arguments"]["effects"] == "once"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settlement", "told", "starts"),
    [
        (["--result", '"refunded, says the bank"'], "refunded, says the bank", []),
        (["--error", "there is no such account"], "there is no such account", []),
        (["--retry"], "refunded", ["refund"]),
    ],
)
def test_the_program_continues_after_a_person_settles_the_call(
    settlement: list[str], told: str, starts: list[str], parked: str
) -> None:
    settled = run("settle", "order-42", INVOCATION, *settlement, "--ledger", parked)
    assert settled.exit_code == 0
    assert ("may start again" if settlement == ["--retry"] else "is settled") in settled.stderr
    desk = Desk()
    assert told in asyncio.run(work(parked, desk))
    assert [what for what in desk.taken() if what == "refund"] == starts
    assert "nothing is parked" in run("parked", "--ledger", parked).stderr


@pytest.mark.slow
def test_a_person_repeats_the_failed_call_that_ended_a_run(tmp_path: Path) -> None:
    """A note of the error names the command."""
    url, desk = f"sqlite:///{tmp_path}/ledger.db", Desk()
    with pytest.raises(Exception, match="no such account") as caught:
        asyncio.run(work(url, desk, is_failing=True))
    (command,) = [word for note in caught.value.__notes__ for word in note.split("`") if word.startswith("antiphon settle")]
    assert "may start again" in run(*shlex.split(command)[1:]).stderr
    desk.taken()
    assert "refunded" in asyncio.run(work(url, desk))
    assert desk.taken() == ["refund", "model 1"]
    again = run(*shlex.split(command)[1:])
    assert again.exit_code == 1
    assert "and no run ended with its failure" in again.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["order-42", INVOCATION], "give one of --result JSON, --error TEXT or --retry"),
        (["order-42", INVOCATION, "--retry", "--error", "x"], "give one of"),
        (["order-42", INVOCATION, "--result", "refunded"], "--result is JSON; a text needs quotes"),
        (["order-42", "other", "--retry"], "'other' is not parked in thread 'order-42'"),
        (["order-43", INVOCATION, "--retry"], "no thread is called 'order-43'"),
    ],
)
def test_a_wrong_settlement_is_refused(arguments: list[Any], reason: str, parked: str) -> None:
    refused = run("settle", *arguments, "--ledger", parked)
    assert refused.exit_code in (1, 2)
    assert reason in refused.stderr
    assert INVOCATION in run("parked", "--ledger", parked).stdout


# ---------------------------------------------------------------- changed programs


async def changed(url: str, desk: Desk, instructions: str, *, ends: bool = True) -> str:
    """Run a program, which can be changed, once."""
    async with open_ledger(url) as ledger:
        turns: Any = (["hello"],) if ends else (DiedError(),)
        agent: Agent[None, str] = Agent(
            script(desk, *turns), name="clerk", instructions=instructions, capabilities=[LedgerDurability(ledger)]
        )
        async with ledger_run("order 42"):
            return (await agent.run("hi")).output


@pytest.mark.slow
def test_a_person_lets_a_run_continue_under_a_changed_program(tmp_path: Path) -> None:
    """G11: the error names the command, and the run continues only after it."""
    url, desk = f"sqlite:///{tmp_path}/ledger.db", Desk()
    with pytest.raises(DiedError):
        asyncio.run(changed(url, desk, "Be kind.", ends=False))
    with pytest.raises(HistoryMismatchError) as caught:
        asyncio.run(changed(url, desk, "Be brief."))
    (command,) = re.findall("`antiphon (.*?)`", str(caught.value))
    assert url in command
    assert desk.taken() == ["model 0"]
    status = run("status", "order 42", "--ledger", url).stdout
    assert len(re.findall("^ +- Be kind.$", status, re.MULTILINE)) == 1  # as lines, and once
    assert "U+000A" not in status
    refused = run("resume", "order 42", "--on-change", "continue", "--run", "other", "--ledger", url)
    assert (refused.exit_code, "has no open run 'other'" in refused.stderr) == (1, True)
    allowed = run(*shlex.split(command))
    assert (allowed.exit_code, "start the program again" in allowed.stderr) == (0, True)
    assert json.loads(run(*shlex.split(command), "--json").stdout) == {
        "thread_id": "order 42",
        "choice": "continue",
        "runs": ["order 42/run"],
    }
    assert asyncio.run(changed(url, desk, "Be brief.")) == "hello"
    assert desk.taken() == ["model 0"]
