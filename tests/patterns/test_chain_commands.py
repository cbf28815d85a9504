"""`fork`, `diff`, `parked`, `settle` and `resume` of a chain at the command line."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import run as command
from tests.patterns.chains import QUESTION, TEA
from tests.runtime.processes import Processes

from antiphon.protocol import PHASES

pytest.importorskip("apsw")

PROGRAM = Path(__file__).parent / "chain_program.py"
OTHER = 'name = "other"\n\n[[rules]]\nturns = [{ text = "Another script speaks." }]\n'
LEDGER = ("--ledger", "sqlite:///antiphon.db")


@pytest.fixture
def thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a thread that has been through the six phases."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tea.md").write_text(TEA)
    (tmp_path / "other.toml").write_text(OTHER)
    done = command("run", QUESTION, "--model", "scripted", "--add", "tea.md", "--json")
    return str(json.loads(done.stdout)["thread_id"])


@pytest.mark.slow
def test_a_branch_goes_on_with_another_model_from_a_phase(thread: str) -> None:
    """What was done before the phase is shared, and not done again; the hint that is printed shows where they part."""
    done = command("fork", thread, "--at", "observation", "--into", "branch", "--model", "scripted:other.toml", *LEDGER)

    assert (done.exit_code, done.stdout.partition("\n")[0]) == (0, "Another script speaks.")
    shown = [line.removeprefix("● ") for line in done.stderr.splitlines() if line.startswith("● ")]
    assert shown == list(PHASES[3:])
    hint = next(line.split() for line in done.stderr.splitlines() if " diff " in line)
    assert hint[-4:] == [thread, "branch", *LEDGER]  # as it was named, so it is in the hint
    parted = command(*hint[hint.index("diff") :])
    assert parted.exit_code == 1
    lines = parted.stdout.splitlines()
    assert lines[1:6] == [f"--- {thread}", "+++ branch", *(f"  {phase}: the same" for phase in PHASES[:3])]
    assert [line.split(":")[0] for line in lines[6:]] == [f"{sign} {phase}" for phase in PHASES[3:] for sign in "-+"]
    assert "+ observation: Another script speaks. (scripted:other)" in lines
    assert "PROCESS_PHASE" in command("diff", thread, "branch", "--messages").stdout
    against = command("replay", "branch", "--against", "--json")
    assert (against.exit_code, json.loads(against.stdout)[0]["parts_at"]) == (0, None)


@pytest.mark.slow
def test_a_whole_turn_is_asked_of_another_model_if_no_place_is_named(thread: str) -> None:
    done = command("fork", thread, "--model", "scripted:other.toml", "--json")
    result = json.loads(done.stdout)

    assert (result["status"], result["models"]) == ("completed", ["scripted:other"])
    assert result["thread_id"] != thread
    assert json.loads(command("status", thread, "--json").stdout)["status"] == "completed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("lunch", "--at is the number of a message, or one of action, experience,"),
        ("1", "at that place the thread has not started; choose one"),
        ("100000", "at that place the thread is completed; choose one"),
    ],
)
def test_a_place_from_which_nothing_goes_on_is_refused_and_no_branch_is_made(thread: str, at: str, why: str) -> None:
    before = command("threads").stdout
    refused = command("fork", thread, "--at", at, "--model", "scripted")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert why in refused.stderr
    assert command("threads").stdout == before


# ---------------------------------------------------------------- a person is needed


@pytest.mark.slow
def test_a_thread_that_waits_for_a_person_continues_when_it_is_settled(tmp_path: Path) -> None:
    """G7: killed while it pays; it rests, says what to do, is settled at the command line, and nothing is done again."""
    url = ("--ledger", f"sqlite:///{tmp_path}/ledger.db")
    with Processes(PROGRAM) as processes:
        assert processes.run(tmp_path, "in pay") == -signal.SIGKILL
        assert processes.run(tmp_path) == 3  # it waits for a person
        (thread,) = [each for each in _answer("threads", *url) if each["status"] == "paused"]
        (parked,) = _answer("parked", *url)
        assert (parked["thread_id"], parked["arguments"]["arguments"]["tool"]) == (thread["thread_id"], "pay")
        elsewhere = command("resume", thread["thread_id"], "--model", "scripted", *url)
        assert elsewhere.exit_code == 2
        assert "which only the thread's own program has" in elsewhere.stderr
        settled = command("settle", thread["thread_id"], parked["invocation_id"], "--result", '"paid, says the bank"', *url)
        assert f"antiphon resume {thread['thread_id']} --ledger sqlite:///{tmp_path}/ledger.db" in " ".join(
            settled.stderr.split()
        )
        assert _answer("parked", *url) == []
        assert processes.run(tmp_path) == 0
    lines = (tmp_path / "witness").read_text().splitlines()
    started = [line for line in lines if line.endswith(" once")]
    assert len(started) == len(set(started)) == 2  # one for each phase that pays
    assert "paid, says the bank" in lines[-1]
    assert _answer("status", thread["thread_id"], *url)["status"] == "completed"


def _answer(*arguments: str) -> Any:
    return json.loads(command(*arguments, "--json").stdout)
