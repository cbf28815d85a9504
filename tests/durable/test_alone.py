"""Durable programs need the core and the extra `sqlite`: no Pydantic AI, no actor, no OpenTelemetry. F13; G6, G7, G9."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("apsw")

PROGRAM = Path(__file__).parent / "standing_program.py"
ACTORS = ("_actor", "_cell", "_delivery", "_exchange", "_kernel", "_outcomes", "_send", "_supervision", "_system", "_tree")


class Desk:
    """A folder with the file of a ledger, and the processes that run the program on it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, command: str, dies_at: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DIES_AT": dies_at}
        line = [sys.executable, str(PROGRAM), command, str(self._folder)]
        return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)

    @property
    def done(self) -> list[str]:
        """The steps that were begun, by all processes."""
        return (self._folder / "done.txt").read_text().split()


@pytest.mark.slow
def test_a_program_that_is_killed_between_two_effects_continues_after_the_first(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.run("start", dies_at="between").returncode == -signal.SIGKILL

    again = desk.run("start")

    assert (again.returncode, again.stdout) == (0, "['look', 'pay', 'send']\n['completed']\n"), again.stderr
    assert desk.done == ["begin", "look", "between", "begin", "between", "pay", "send"]


@pytest.mark.slow
def test_a_finished_program_is_read_and_none_of_its_code_runs(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    first = desk.run("start")
    steps = desk.done

    second = desk.run("start")

    assert (second.returncode, second.stdout) == (0, first.stdout), second.stderr
    assert desk.done == steps


@pytest.mark.slow
def test_a_payment_in_which_the_process_died_is_parked_and_continues_when_it_is_settled(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.run("start", dies_at="pay").returncode == -signal.SIGKILL

    parked = desk.run("start")
    settled = desk.run("settle")
    last = desk.run("start")

    assert parked.returncode == 1
    assert "nobody knows whether 'pay' was done, and it must not be done twice" in parked.stderr
    assert (settled.returncode, settled.stdout) == (0, "['waiting']\n"), settled.stderr
    assert (last.returncode, last.stdout) == (0, "['look', 'pay', 'send']\n['completed']\n"), last.stderr
    assert desk.done.count("pay") == 1


@pytest.mark.slow
def test_ledger_run_imports_no_agent_and_no_actor() -> None:
    code = """
import sys
from antiphon import ledger_run
from antiphon.durable import check_runs, host_runs, program, recover_runs, runs
print(*sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    modules = found.stdout.split()

    others = {"pydantic_ai", "opentelemetry", "httpx", "httpx2", "antiphon.agents", "antiphon.protocol", "antiphon.dialects"}
    assert not others & {*modules}
    assert not {f"antiphon.runtime.{name}" for name in ACTORS} & {*modules}
