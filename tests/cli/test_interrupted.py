"""Ctrl-C and kill -9 in the middle of a run, in a real terminal, with every pattern; then the command that was printed.

The provider is a server of ours that counts: what was answered and recorded is never asked again. Only the request that was in
flight at the moment of the kill may be: nobody can know whether its answer arrived. `ANTIPHON_CHAOS` has many random moments.
"""

import asyncio
import os
import pty
import random
import re
import shlex
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cli.fake_openai import ANSWER, FakeOpenAI, fake_openai
from tests.cli.running import COMMAND, PLAIN
from tests.forked import Forked

from antiphon.ledger import open_ledger
from antiphon.service import settings_of

pytest.importorskip("apsw")
pytest.importorskip("openai")

MODEL = "openai-chat:fake"
MOMENTS = {"": 1, "ci": 50, "nightly": 200}[os.environ.get("ANTIPHON_CHAOS", "")]
"""How many random moments each pattern is interrupted at."""

CALL = 'CALL calculator {"expression": "17 * 23"}'
TEAMS = {
    "teams": f"""
pattern = "teams"
[[agents]]
name = "chef"
role = "leader"
[[agents]]
name = "cook"
tools = ["calculator"]
instructions = '''You cook.
{CALL}'''
""",
    "workers": f"""
pattern = "workers"
[[agents]]
name = "chef"
role = "leader"
tools = ["calculator"]
instructions = '''You lead.
{CALL}
CALL assign_task {{"worker": "cook", "content": "Make tea."}}'''
[[agents]]
name = "cook"
instructions = "You cook."
""",
    "peers": f"""
pattern = "peers"
[[agents]]
name = "chef"
role = "leader"
tools = ["calculator"]
instructions = '''You lead.
{CALL}
CALL invoke_agent {{"target": "cook", "request": "Make tea."}}'''
[[agents]]
name = "cook"
instructions = "You cook."
""",
    "options": f"""
pattern = "options"
[[agents]]
name = "chef"
role = "leader"
tools = ["calculator"]
instructions = '''You lead.
{CALL}
CALL cook {{"task": "Make tea."}}'''
[[agents]]
name = "cook"
instructions = "You cook."
""",
}
PATTERNS = ("postchain", *TEAMS)
_PRINTED = re.compile(r"go on with:\s+python -m antiphon (resume [^\r\n]+)")


@dataclass
class Terminal:
    """A command in a terminal: what a person sees, and can type."""

    arguments: list[str]
    environment: dict[str, str]
    folder: Path
    seen: bytes = b""
    exit_code: int | None = None
    _process: Forked | None = field(default=None, repr=False)
    _ours: int = field(default=0, repr=False)
    _reader: threading.Thread | None = field(default=None, repr=False)

    def start(self) -> "Terminal":
        self._ours, theirs = pty.openpty()
        streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
        environment = {**PLAIN, **self.environment}
        command = [*COMMAND, *self.arguments]
        self._process = Forked(command, cwd=self.folder, env=environment, start_new_session=True, **streams)
        threading.Thread(target=self._until_ended, args=(self._process, theirs), daemon=True).start()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def _until_ended(self, process: Forked, theirs: int) -> None:
        self.exit_code = process.wait()
        os.close(theirs)  # held until here: a terminal without any process forgets what it was told

    def _read(self) -> None:
        while chunk := _read(self._ours):
            self.seen += chunk

    def wait(self) -> "Terminal":
        assert self._reader is not None
        self._reader.join(60)
        assert self.exit_code is not None, self.text
        os.close(self._ours)
        return self

    def interrupt(self) -> None:
        os.write(self._ours, b"\x03")

    def kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):  # it was quicker
            os.kill(self._process.pid, signal.SIGKILL)

    @property
    def text(self) -> str:
        return self.seen.decode(errors="replace").replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # as Linux says that the other end is closed
        return b""


@pytest.fixture
def fake() -> Iterator[FakeOpenAI]:
    with fake_openai() as served:
        served.pause = 0.01
        yield served


@dataclass
class Place:
    """Where a pattern is run, by typing commands."""

    fake: FakeOpenAI
    folder: Path
    pattern: str

    def begin(self, *more: str) -> Terminal:
        """Type the command that runs the pattern."""
        if self.pattern == "postchain":
            return self.type("run", "How hot is tea?", "--model", MODEL, *more)
        (self.folder / "team.toml").write_text(TEAMS[self.pattern])
        return self.type("run", "--team", "team.toml", "Make tea.", "--model", MODEL, *more)

    def type(self, *arguments: str) -> Terminal:
        environment = {**self.fake.environment(), "TERM": "xterm-256color", "COLUMNS": "120", "ANTIPHON_LEDGER": ""}
        return Terminal(list(arguments), environment, self.folder).start()

    def printed(self, before: Terminal) -> list[str]:
        """Return the command that a person was told to go on with, exactly as it was printed; empty: none was."""
        found = _PRINTED.findall(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", before.text))
        return shlex.split(found[-1]) if found else []


def _check(place: Place, needed: int, in_flight: set[str]) -> int:
    """Check that nothing was paid twice, but what was in flight; return how many requests that were."""
    counted = Counter(place.fake.answered)
    twice = {digest for digest, number in counted.items() if number > 1}
    assert twice <= in_flight, f"paid twice: {twice - in_flight}"
    assert len(counted) == needed
    return len(twice)


@pytest.mark.slow
@pytest.mark.timeout(60 * MOMENTS + 120)
@pytest.mark.parametrize("how", ["interrupt", "kill"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_printed_command_completes_what_was_interrupted(fake: FakeOpenAI, tmp_path: Path, pattern: str, how: str) -> None:
    """At each random moment: the printed command completes the thread, and nothing that was recorded is paid twice."""
    draw, again = random.Random(f"{pattern}-{how}"), 0
    place = Place(fake, tmp_path, pattern)
    began = time.monotonic()
    assert place.begin().wait().exit_code == 0
    took, needed = time.monotonic() - began, len(fake.answered)
    assert needed >= 3
    for number in range(MOMENTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        place = Place(fake, folder, pattern)
        fake.asked.clear()
        running = place.begin()
        command: list[str] = []
        while not command:  # before the thread is there, there is nothing to continue
            time.sleep(0.005)
            command = place.printed(running)
            assert running.exit_code is None or command
        time.sleep(draw.uniform(0, took * 0.8))
        getattr(running, how)()
        running.wait()
        in_flight = {each.digest for each in fake.asked[-1:]}  # the last one that began may not be recorded
        command = place.printed(running)
        if running.exit_code != 0:
            resumed = place.type(*command).wait()
            assert resumed.exit_code == 0, f"{command} after {running.text}\n{resumed.text}"
            assert ANSWER.split()[0] in resumed.text
            assert "Traceback" not in running.text + resumed.text
            assert "dead letter" not in running.text + resumed.text
        again += _check(place, needed, in_flight)
    counted = f"{pattern}, {how}: {MOMENTS} of {MOMENTS} complete; requests in flight that were asked again: {again}"
    print(counted)  # noqa: T201 (what `make chaos` is run for)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", TEAMS)
def test_ctrl_c_right_after_a_team_has_started_prints_how_to_go_on_and_nothing_else(
    fake: FakeOpenAI, tmp_path: Path, pattern: str
) -> None:
    """It printed a dead letter: `TEAM_END_TURN … ACTOR_STOPPED`."""
    place = Place(fake, tmp_path, pattern)
    running = place.begin()
    while not place.printed(running):
        time.sleep(0.002)
    running.interrupt()
    running.wait()
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", running.text)
    assert running.exit_code == 130, text
    assert "dead letter" not in text
    assert text.endswith(f"stopped; go on with: python -m antiphon {shlex.join(place.printed(running))}\n")


@pytest.mark.slow
@pytest.mark.parametrize("failure", ["429", "500", "503", "cut", "wrong"])
def test_a_provider_that_fails_stops_the_run_and_resume_goes_on(fake: FakeOpenAI, tmp_path: Path, failure: str) -> None:
    """After three paid phases: what a person sees is the provider's own word, and the command that goes on."""
    place = Place(fake, tmp_path, "postchain")
    fake.failure, fake.fails_after = failure, 3
    stopped = place.begin().wait()
    assert (stopped.exit_code, len(fake.answered)) == (4, 3), stopped.text
    assert "stopped: the model of 'observation' cannot be asked" in stopped.text
    fake.failure = None
    resumed = place.type(*place.printed(stopped)).wait()
    assert (resumed.exit_code, len(set(fake.answered)), len(fake.answered)) == (0, 6, 6)
    assert "Traceback" not in stopped.text + resumed.text
    if failure == "503":
        again = place.type("replay", place.printed(stopped)[1], "--against").wait()
        assert "with differences: 0" in again.text


@pytest.mark.slow
def test_a_spent_budget_is_reported_and_resume_needs_a_new_one(fake: FakeOpenAI, tmp_path: Path) -> None:
    place = Place(fake, tmp_path, "postchain")
    stopped = place.begin("--budget", "requests=2").wait()
    assert (stopped.exit_code, len(fake.answered)) == (4, 2)
    assert "has used up its 2 requests" in stopped.text
    command = place.printed(stopped)
    assert command[2:] == ["--budget", "NAME=NUMBER"]
    refused = place.type("resume", command[1]).wait()
    assert (refused.exit_code, len(fake.answered)) == (2, 2)
    assert f"antiphon resume {command[1]} --budget NAME=NUMBER" in refused.text
    wrong = place.type("resume", command[1], "--budget", "pounds=3").wait()
    assert "names are requests, tool_calls, tokens, cost, seconds" in " ".join(wrong.text.split())
    done = place.type("resume", command[1], "--budget", "requests=50").wait()
    assert (done.exit_code, len(fake.answered)) == (0, 6)


@pytest.mark.slow
def test_a_thread_is_continued_with_what_it_was_run_with(fake: FakeOpenAI, tmp_path: Path) -> None:
    """Its model and configuration: by `run --thread`, `chat`, `fork` and `replay`; no secret of the file is in the row."""
    place = Place(fake, tmp_path, "postchain")
    config = '[phases.yield]\nsystem_prompt = "You are the yield phase. sk-proj-abcdefghijklmnopqrstuvwx123456"\n'
    (tmp_path / "chain.toml").write_text(config)
    first = place.begin("--config", "chain.toml").wait()
    assert first.exit_code == 0, first.text
    thread_id = place.printed(first)[1]
    second = place.type("run", "And coffee?", "--thread", thread_id).wait()
    assert (second.exit_code, len(fake.answered)) == (0, 12), second.text
    forked = place.type("fork", thread_id, "--at", "yield").wait()
    branch = forked.text.split()[-1]
    assert place.type("resume", branch).wait().exit_code == 0
    assert len(fake.answered) == 13
    assert "with differences: 0" in place.type("replay", thread_id, "--against").wait().text

    async def recorded() -> Any:
        async with open_ledger(f"sqlite:///{tmp_path}/antiphon.db") as ledger:
            return await settings_of(ledger, thread_id)

    settings = asyncio.run(recorded())
    assert (settings.model, settings.config.path) == (MODEL, str(tmp_path / "chain.toml"))
    assert "sk-proj" not in settings.config.text


@pytest.mark.slow
def test_a_team_file_that_has_changed_is_compared_and_shown(fake: FakeOpenAI, tmp_path: Path) -> None:
    place = Place(fake, tmp_path, "workers")
    fake.failure, fake.fails_after = "503", 2
    stopped = place.begin().wait()
    assert stopped.exit_code == 4, stopped.text
    fake.failure = None
    command = place.printed(stopped)
    team = tmp_path / "team.toml"
    team.write_text(team.read_text().replace("You lead.", "You rule."))
    refused = place.type(*command).wait()
    assert refused.exit_code == 2
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", refused.text).splitlines()
    assert "-instructions = '''You lead." in lines
    assert lines[-1] == "name it with --team to use it"
    team.write_text(team.read_text().replace("You rule.", "You lead."))
    assert place.type(*command).wait().exit_code == 0
