"""Several commands on one ledger file at once: each thread has one host, and no command stops what another one runs.

Issue of many processes: G8, G12-G16 with real processes. The model is a script that counts its requests.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.running import CHAT, COMMAND, PLAIN, said, save
from tests.cli.running import run as command
from tests.forked import Forked

from antiphon.cli._ledger import complaints
from antiphon.ledger import Host, ThreadFilter, open_ledger
from antiphon.messages import TextPart
from antiphon.runtime import Settings
from antiphon.service import open_chain

pytest.importorskip("apsw")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
HELD = (sys.executable, "-m", "tests.patterns.held_command")
QUESTION = "What is 17 * 23?"
CSV = ROOT / "examples" / "analyse_csv" / "team.toml"
SCRIPTED = ("--model", "scripted")
PAIRS = {"": 2, "ci": 50, "nightly": 50}[os.environ.get("ANTIPHON_CHAOS", "")]
AT_ONCE = 4
"""Pairs that run at the same time: more would only wait for the processor."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@contextmanager
def started(*arguments: str | Path, held: Path | None = None, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command; at the end of the block it is killed, if it still runs."""
    program = COMMAND if held is None else HELD
    more = environment if held is None else {"ANTIPHON_TEST_HELD": str(held), "PYTHONPATH": str(ROOT), **environment}
    with Forked(
        [*program, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**PLAIN, **more}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a command, and return its exit code and what it printed."""
    out, err = process.communicate(timeout=200)
    return process.returncode, out, err


def until(true: Any, within: float = 120.0) -> None:
    """Wait until something is true."""
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end, "it has not come true"
        time.sleep(0.05)


def requests(folder: Path) -> list[str]:
    """Return the requests to the model, in their order."""
    path = folder / "requests"
    return path.read_text().split() if path.exists() else []


def threads() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(command("threads", "--json").stdout)
    return found


def killed_thread(folder: Path, *options: str, **environment: str) -> str:
    """Return a thread whose process was killed in a request to the model. The next request is held too."""
    (folder / "hold").touch()
    with started("run", QUESTION, *(options or SCRIPTED), held=folder, **environment) as process:
        until(lambda: requests(folder))
        process.kill()
        process.wait()
    (folder / "requests").unlink()
    (thread,) = threads()
    return str(thread["thread_id"])


# ---------------------------------------------------------------- one thread, two commands


def test_a_question_to_a_running_thread_is_refused_and_the_thread_goes_on(folder: Path) -> None:
    (folder / "hold").touch()
    with started("run", QUESTION, *SCRIPTED, "--json", held=folder) as first:
        until(lambda: requests(folder))
        (thread,) = threads()
        refused = command("run", "And coffee?", "--thread", thread["thread_id"], *SCRIPTED)
        (folder / "hold").unlink()
        code, out, err = ended(first)

    assert refused.exit_code == 1
    who = r"process \d+ on this machine runs it, since [\d:]+ UTC"
    assert re.fullmatch(rf"thread {thread['thread_id']} is in use: {who}; .*`antiphon resume .*\n", refused.stderr)
    assert (code, json.loads(out)["status"]) == (0, "completed"), err
    assert len(set(requests(folder))) == len(requests(folder))


def test_a_question_to_an_idle_thread_of_another_host_is_answered(folder: Path) -> None:
    """A chat that waits at its prompt has the thread: its host gets the question, and answers."""
    with Forked([*COMMAND, "chat", *SCRIPTED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=PLAIN) as chat:
        assert chat.stdin is not None
        assert chat.stdout is not None
        chat.stdin.write("How hot is green tea?\n")
        chat.stdin.flush()
        assert chat.stdout.readline()
        (thread,) = threads()
        assert thread["owner"] is not None
        done = command("run", "And coffee?", "--thread", thread["thread_id"], *SCRIPTED, "--json")
        chat.stdin.write("And water?\n")
        chat.stdin.close()
        assert chat.stdout.readline()
        assert chat.wait(100) == 0

    assert (done.exit_code, json.loads(done.stdout)["status"]) == (0, "completed"), done.stderr
    status = json.loads(command("status", thread["thread_id"], "--json").stdout)
    assert (status["status"], status["turn"]) == ("completed", 3)


def test_two_resumes_at_once_give_one_answer(folder: Path) -> None:
    """One runs the thread, the other waits for the same result; no request is paid twice."""
    thread_id = killed_thread(folder)
    with (
        started("resume", thread_id, *SCRIPTED, "--json", held=folder) as first,
        started("resume", thread_id, *SCRIPTED, "--json", held=folder) as second,
    ):
        until(lambda: requests(folder))
        until(lambda: _asked(thread_id, "RESUME_THREAD") == 2)
        (folder / "hold").unlink()
        results = [ended(each) for each in (first, second)]

    reports = [json.loads(out) for _, out, _ in results]
    assert [code for code, *_ in results] == [0, 0]
    assert [each["status"] for each in reports] == ["completed", "completed"]
    assert reports[0]["response"] == reports[1]["response"]
    assert len(set(requests(folder))) == len(requests(folder))


def test_a_resume_that_waits_goes_on_if_the_other_is_killed(folder: Path) -> None:
    thread_id = killed_thread(folder)
    with started("resume", thread_id, *SCRIPTED, held=folder) as first:
        until(lambda: requests(folder))
        with started("resume", thread_id, *SCRIPTED, held=folder) as second:
            until(lambda: _asked(thread_id, "RESUME_THREAD") == 2)
            first.kill()
            (folder / "hold").unlink()
            code, out, err = ended(second)

    assert code == 0, err
    assert "runs the thread; this command waits for the same answer" in err
    assert "391" in out


def test_an_interrupted_wait_leaves_the_thread_to_its_host(folder: Path) -> None:
    thread_id = killed_thread(folder)
    with started("resume", thread_id, *SCRIPTED, held=folder) as first:
        until(lambda: requests(folder))
        with started("resume", thread_id, *SCRIPTED, held=folder) as second:
            until(lambda: _asked(thread_id, "RESUME_THREAD") == 2)
            second.send_signal(signal.SIGINT)
            code, _, err = ended(second)
        (folder / "hold").unlink()
        assert ended(first)[0] == 0

    assert code == 130
    assert re.search(rf"host \S+ continues it; wait for it with: .* resume {thread_id}", err)


def _asked(thread_id: str, name: str) -> int:
    """Return how many requests of a type are in a thread and answered."""
    shown = json.loads(command("show", thread_id, "--all", "--json", "--ledger", "sqlite:///antiphon.db").stdout)
    found = [each["payload"] for each in shown if each["payload"].get("option_name") == name]
    return sum(each["kind"] == "option_result" for each in found)


# ---------------------------------------------------------------- settle

PARKED = """
import asyncio, sys
from contextlib import suppress
from antiphon.errors import ParkedError, UnknownOutcomeError
from antiphon.ledger import Host, ThreadFilter, open_ledger
from antiphon.messages import TextPart
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles

class Paid(Reply, frozen=True):
    by: str

class Pay(Request[Paid], frozen=True, type="PAY", family="test"):
    pass

class Till(Actor):
    @handles
    async def pay(self, request: Pay, context: Context) -> Paid:
        return Paid(by=await context.effect("charge", {}, self.charge))

    async def charge(self, key):
        print("charged", flush=True)
        raise UnknownOutcomeError("the line went dead")

async def main():
    async with open_ledger("sqlite:///antiphon.db") as ledger:
        async with System(ledger, settings=Settings(release_after=600, within=200)) as system:
            system.spawn("till/1", Till)
            paid = None
            while paid is None:
                with suppress(ParkedError):
                    paid = await system.ask("till/1", Pay(), thread_id="order", id="pay")
                await asyncio.sleep(0.1)
            print(paid, (await ledger.thread("order")).owner == system.host_name, flush=True)

asyncio.run(main())
"""


def test_a_settled_call_continues_in_the_program_that_runs(folder: Path) -> None:
    """`antiphon settle` asks the owner: the program that waits gets the outcome, and keeps its thread."""
    (folder / "program.py").write_text(PARKED)
    with Forked([sys.executable, "program.py"], stdout=subprocess.PIPE, text=True, env=PLAIN) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "charged\n"
        until(lambda: json.loads(command("parked", "--json").stdout))
        (before,) = threads()
        assert before["owner"] is not None
        (parked,) = json.loads(command("parked", "--json").stdout)
        settled = command("settle", "order", parked["invocation_id"], "--result", '"a card"')
        if settled.exit_code:
            program.kill()
        out, _ = program.communicate(timeout=100)

    assert (settled.exit_code, program.returncode) == (0, 0), settled.stderr
    assert out == "by='a card' True\n"
    assert asyncio.run(_open_calls()) == (0, 1)  # nobody else has claimed it


# ---------------------------------------------------------------- an owner that cannot be asked


def test_messages_are_not_imported_into_a_thread_that_a_host_has(folder: Path) -> None:
    async def main() -> str:
        async with open_ledger("sqlite:///antiphon.db") as ledger:
            host = Host("elsewhere", "1", lease=60.0)
            await ledger.beat(host)
            epoch = await ledger.claim("t", by=host)
            await ledger.append("t", [said(TextPart(text="Hello"))], epoch=epoch)
            done = await asyncio.to_thread(command, "import", "chat.json", "--from", "marsys", "--thread", "t")
            await ledger.append("t", [said(TextPart(text="I have it still."))], epoch=epoch)
            return done.stderr

    save(folder / "chat.json", CHAT)
    refused = "thread 't' has an owner, and nobody else may append to it; choose another with --thread\n"
    assert asyncio.run(main()) == refused


async def test_a_host_that_lives_and_does_not_answer_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with open_ledger(f"sqlite:///{tmp_path}/antiphon.db") as ledger:
        async with open_chain(ledger, model="scripted") as runner:
            thread_id = (await runner.ask(QUESTION)).thread_id
        monkeypatch.setattr("antiphon.service._running.Settings", partial(Settings, within=2.0))
        host = Host("elsewhere", "1", lease=60.0)
        await ledger.beat(host)
        await ledger.claim(thread_id, by=host)
        with pytest.raises(typer.Exit) as ended, complaints():
            async with open_chain(ledger, model="scripted") as runner:
                await runner.ask("And 2 * 3?", thread_id=thread_id)

    assert ended.value.exit_code == 1
    said = f"host 'elsewhere' has thread '{thread_id}', at least until "
    assert capsys.readouterr().err.startswith(said)


# ---------------------------------------------------------------- hosts


def lines(process: subprocess.Popen[str], wanted: str) -> list[str]:
    """Read what a host prints, up to a line that matches."""
    assert process.stdout is not None
    read: list[str] = []
    while not read or not re.search(wanted, read[-1]):
        line = process.stdout.readline()
        assert line, f"it ended without {wanted!r}: {read}"
        read.append(line.rstrip("\n"))
    return read


def test_a_host_takes_a_thread_and_hands_it_over(folder: Path) -> None:
    """F16: SIGTERM while a model is asked; the next host finishes the thread."""
    thread_id = killed_thread(folder)
    with started("host", *SCRIPTED, "--team", CSV, held=folder) as first:
        (ready, *_) = lines(first, f"{thread_id} taken")
        name = ready.split()[1]
        (listed,) = json.loads(command("status", "--json").stdout)
        assert (listed["name"], listed["is_alive"], listed["threads"]) == (name, True, 1)
        assert {"thread", "controller"} <= set(listed["kinds"])
        assert name in command("status").stdout
        assert command("status", thread_id).stdout.splitlines()[-1].split() == ["owner", name]
        until(lambda: requests(folder))
        first.send_signal(signal.SIGTERM)
        assert lines(first, "stopped$")[-3:] == [
            "stopping; other hosts take over the threads",
            f"{thread_id} released",
            "stopped",
        ]
        assert first.wait(60) == 0
    assert json.loads(command("status", "--json").stdout) == []
    assert not any(host["is_alive"] for host in json.loads(command("status", "--all", "--json").stdout)["hosts"])
    (folder / "hold").unlink()
    with started("host", *SCRIPTED, held=folder) as second:
        assert f"{thread_id} taken" in lines(second, f"{thread_id} completed")
        second.send_signal(signal.SIGINT)
        assert ended(second)[0] == 0
    assert [each["status"] for each in threads()] == ["completed"]


def test_the_second_signal_ends_a_host_at_once(folder: Path) -> None:
    thread_id = killed_thread(folder)
    with started("host", *SCRIPTED, held=folder) as host:
        lines(host, f"{thread_id} taken")
        until(lambda: requests(folder))
        host.send_signal(signal.SIGTERM)
        lines(host, "stopping")
        host.send_signal(signal.SIGTERM)
        assert host.wait(60) in (-signal.SIGTERM, 0)  # 0: it was done before the second signal
    (folder / "hold").unlink()
    assert command("resume", thread_id, *SCRIPTED, "--quiet").exit_code == 0


@pytest.mark.timeout(60)
def test_a_host_runs_a_thread_with_the_settings_of_the_command_that_began_it(folder: Path) -> None:
    """The environment names the model of both; the configuration is the same."""
    (folder / "few.toml").write_text("max_sources = 3\n")
    configured = ("--config", "few.toml")
    thread_id = killed_thread(folder, *configured, ANTIPHON_MODEL="scripted")
    (folder / "hold").unlink()
    with started("host", *configured, ANTIPHON_MODEL="scripted") as host:
        assert f"{thread_id} taken" in lines(host, f"{thread_id} (?!taken)")
        host.send_signal(signal.SIGINT)
        ended(host)
    assert [each["status"] for each in threads()] == ["completed"]


def test_open_threads_that_the_installed_code_cannot_continue_are_named_before_a_deploy(folder: Path) -> None:
    """G11: no model is asked, and nothing is written."""
    thread_id = killed_thread(folder)
    (before,) = threads()
    good = command("replay", "--against", "--running")
    assert (good.exit_code, good.stderr) == (0, "open threads: 1; cannot continue: 0\n")
    (folder / "other.toml").write_text('outputs = "typed"\n')
    other = command("replay", "--against", "--running", "--config", "other.toml")
    assert other.exit_code == 1
    assert other.stderr.startswith(f"{thread_id} cannot continue at message ")
    assert other.stderr.endswith("open threads: 1; cannot continue: 1\n")
    (found,) = json.loads(command("replay", "--against", "--running", "--config", "other.toml", "--json").stdout)["tried"]
    assert found["thread_id"] == thread_id
    assert found["reason"]
    assert not (folder / "requests").exists()
    assert threads() == [before]
    assert command("replay", "--running").exit_code == 2


def test_two_teams_of_one_pattern_need_two_hosts(folder: Path) -> None:
    other = folder / "other.toml"
    other.write_text(CSV.read_text())
    refused = command("host", "--team", CSV, "--team", other, *SCRIPTED)
    assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
    assert "have the same pattern: a host runs one team of each pattern" in refused.stderr


def test_nobody_runs_threads(folder: Path) -> None:
    command("knowledge", "add", str(ROOT / "README.md"))
    assert command("status").stderr == "no host runs threads of this ledger; `python -m antiphon host` starts one\n"


# ---------------------------------------------------------------- many


@pytest.mark.timeout(300 + 60 * PAIRS)
def test_pairs_of_commands_on_one_file_all_answer(folder: Path) -> None:
    """`antiphon run` and `antiphon run --team` at once on one file: all answer, no thread is fenced, nothing is parked."""
    done: list[tuple[int, str, str]] = []
    left = [each for number in range(PAIRS) for each in (_question(number), _task(number))]
    while left:
        batch, left = left[: 2 * AT_ONCE], left[2 * AT_ONCE :]
        running = [
            Forked([*COMMAND, *each], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=PLAIN) for each in batch
        ]
        done += [ended(each) for each in running]

    assert [(code, err) for code, _, err in done] == [(0, "")] * (2 * PAIRS)
    assert [json.loads(out)["status"] for _, out, _ in done] == ["completed"] * (2 * PAIRS)
    assert all(json.loads(out)["response"] for _, out, _ in done)
    assert len(threads()) == 2 * PAIRS
    assert asyncio.run(_open_calls()) == (0, 1)
    assert json.loads(command("parked", "--json").stdout) == []


def _question(number: int) -> tuple[str, ...]:
    return "run", f"What is {number} * 23?", *SCRIPTED, "--json"


def _task(number: int) -> tuple[str, ...]:
    return "run", "--team", str(CSV), "--json", f"How are the sales? ({number})"


async def _open_calls() -> tuple[int, int]:
    """Return the open calls of all threads, and the highest epoch: each thread had one owner."""
    async with open_ledger("sqlite:///antiphon.db") as ledger:
        found = (await ledger.threads(ThreadFilter(system=None), limit=1000)).threads
        epochs = [await ledger.claim(each.thread_id) - 1 for each in found]
    return sum(each.open_calls for each in found), max(epochs)
