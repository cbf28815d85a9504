"""`antiphon run --team`: agents and tools on stderr, the answer on stdout, and errors in one line."""

import asyncio
import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Tool
from tests.cli.running import run as command

pytest.importorskip("apsw")

CSV = Path(__file__).parents[3] / "examples" / "analyse_csv" / "team.toml"
APPROVAL = """
pattern = "peers"
model = "scripted:script.toml"
approvals = ["calculator"]
approvers = ["grace"]
[[agents]]
name = "ada"
role = "leader"
tools = ["calculator"]
"""
SCRIPT = 'turns = [{ calls = [{ tool = "calculator", arguments = { expression = "17*23" } }] }, { text = "it is {result}" }]'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_team_is_shown_at_work_and_its_answer_is_printed(folder: Path) -> None:
    done = command("run", "--team", CSV, "How are the sales?")
    assert done.exit_code == 0
    assert "- revenue by city: Oslo 2810.1, Kyoto 2536.5, Rome 2231.5\n" in done.stdout
    shown = [line for line in done.stderr.splitlines() if line]
    assert re.match(r"thread \S+; if it is interrupted, go on with: .* resume ", shown[0])
    assert shown[1:3] == ["● controller", "● analyst, asked by controller"]
    assert '  analyst → csv_totals(path="**/*.csv")' in shown
    assert any(line.startswith("  ← csv_totals: units by city: Oslo 587") for line in shown)
    assert any("the words are a script's" in line for line in shown)


@pytest.mark.slow
def test_the_same_task_in_the_same_thread_is_not_done_again(folder: Path) -> None:
    first, again = (command("run", "--team", CSV, "--thread", "sales", "How are the sales?") for _ in range(2))
    assert again.stdout == first.stdout
    assert "csv_totals" not in again.stderr


@pytest.mark.slow
def test_for_programs_it_is_json_and_quietly_it_is_the_answer(folder: Path) -> None:
    said = json.loads(command("run", "--team", CSV, "--json", "How are the sales?").stdout)
    assert (said["status"], said["models"]) == ("completed", ["scripted:analyse-csv"])
    quiet = command("run", "--team", CSV, "--quiet", "How are the sales?")
    assert said["response"].startswith("- units by city: Oslo 587, ")
    assert (quiet.stdout.splitlines()[0], quiet.stderr) == ("- units by city: Oslo 587, Kyoto 503, Rome 439", "")


def test_an_invalid_file_is_reported_in_one_line(folder: Path) -> None:
    (folder / "team.toml").write_text('pattern = "choir"')
    done = command("run", "--team", "team.toml", "Hello.")
    assert done.exit_code != 0
    assert re.match(r"team.toml: pattern: ", done.stderr)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_a_task_that_fails_exits_with_1(folder: Path) -> None:
    (folder / "script.toml").write_text('turns = [{ calls = [{ tool = "calculator", arguments = { expression = "1" } }] }]')
    text = APPROVAL.replace('approvals = ["calculator"]', "").replace('approvers = ["grace"]', "")
    (folder / "team.toml").write_text(text)
    done = command("run", "--team", "team.toml", "Calculate.")
    assert done.exit_code == 1
    assert "the thread has failed: " in done.stderr


@pytest.mark.slow
def test_a_task_that_was_interrupted_goes_on_by_the_command_that_is_printed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C leaves the task open; what was finished is not done again."""
    called: list[str] = []

    async def wait() -> str:
        """Wait for an interruption, the first time."""
        called.append("wait")
        if len(called) == 1:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()
        return "waited"

    tool = Tool[Any](wait, metadata={"antiphon": {"effects": "none"}})
    monkeypatch.setattr("antiphon.patterns.team_files._team_file.file_tools", lambda root: [tool])
    (folder / "script.toml").write_text('turns = [{ calls = [{ tool = "wait" }] }, { text = "it has {result}" }]')
    text = 'pattern = "peers"\nmodel = "scripted:script.toml"\nfiles = "."\n'
    (folder / "team.toml").write_text(f'{text}[[agents]]\nname = "ada"\nrole = "leader"\ntools = ["wait"]\n')
    stopped = command("run", "--team", "team.toml", "--thread", "t", "Wait, please.")
    assert stopped.exit_code == 130
    (again,) = re.findall(r"stopped; go on with: .*?(resume .*)", stopped.stderr)
    assert shlex.split(again) == ["resume", "t"]
    done = command(*shlex.split(again), "--quiet")
    assert (done.exit_code, done.stdout, called) == (0, "it has waited\n", ["wait", "wait"])


@pytest.mark.slow
def test_a_task_that_waits_for_a_person_says_how_to_go_on(folder: Path) -> None:
    (folder / "script.toml").write_text(SCRIPT)
    (folder / "team.toml").write_text(APPROVAL)
    waiting = command("run", "--team", "team.toml", "--thread", "t", "Calculate.")
    assert waiting.exit_code == 3
    assert waiting.stderr.rstrip().endswith("antiphon resume t")
    (approval,) = set(re.findall(r"approval-\w+", waiting.stderr))
    assert command("approve", approval, "--as", "grace").exit_code == 0
    done = command("resume", "t", "--quiet")
    assert done.stdout == "it is 391\n"
