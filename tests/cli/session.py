"""A person at a shell, from the wheel on: `python -m tests.cli.session` builds it, installs it, and types everything.

`python -m tests.cli.session provider local` types these parts only.

One interactive bash in a real terminal, with nothing but the installed `antiphon` on its path. It is interrupted and killed in
each phase, continued with the command that was printed, forked, compared, chatted with, approved, denied, settled and given
wrong input; with the scripted model, the local model, and a server that fails as real providers do. No traceback is ever seen,
and nothing that was recorded is paid for twice. `make chaos` runs it.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tests.cli.fake_openai import ANSWER, FakeOpenAI, fake_openai
from tests.cli.screens import Screen, Terminal

ROOT = Path(__file__).parents[2]
PHASES = ("action", "experience", "intention", "observation", "understanding", "yield")
_PROMPT = re.compile(r"\[exit (\d+)\] \$ ?$")
_PRINTED = re.compile(r"go on with:\s+(antiphon resume \S+)")
CTRL_C, CTRL_D = "\x03", "\x04"

TEAM = """
pattern = "peers"
model = "scripted:script.toml"
approvals = ["calculator"]
approvers = ["grace"]
[[agents]]
name = "ada"
role = "leader"
tools = ["calculator"]
"""
SCRIPT = """turns = [
    { calls = [{ tool = "calculator", arguments = { expression = "17*23" } }] },
    { text = "it is {result}" },
]
"""
PAYING = """
pattern = "peers"
model = "scripted:pay.toml"
[[agents]]
name = "ada"
role = "leader"
tools = ["till.py:charge"]
"""
PAY = 'turns = [{ calls = [{ tool = "charge", arguments = { euros = 7 } }] }, { text = "paid: {result}" }]'
TILL = '''
"""A till."""
import pathlib
import time


def charge(euros: int) -> str:
    """Charge a card."""
    with pathlib.Path("charges").open("a") as charges:
        charges.write(f"{euros}\\n")
    time.sleep(600)
    return "a receipt"
'''


class Shell:
    """An interactive shell in a terminal, and what its commands have printed."""

    def __init__(self, folder: Path, programs: Path, **environment: str) -> None:
        path = f"{programs}{os.pathsep}/usr/bin{os.pathsep}/bin"
        plain = {
            "PATH": path,
            "HOME": str(folder),
            "PS1": "[exit $?] $ ",
            "ANTIPHON_LEDGER": "",
            "PYTHONPATH": "",
            **environment,
        }
        self.folder = folder
        self.terminal = Terminal("bash", "--norc", "--noprofile", columns=100, rows=60, folder=folder, **plain)
        self.seen = ""
        """Everything that was on the screen."""
        self._wait()

    def begin(self, command: str) -> None:
        """Type a command, and do not wait for its end."""
        self.terminal.screen = Screen(100, 60)
        self.terminal.type(f"{command}\r")

    def type(self, command: str, code: int = 0) -> str:
        """Type a command, wait for its end, and return what it printed."""
        self.begin(command)
        return self.ended(code)

    def ended(self, code: int) -> str:
        text = self._wait()
        found = _PROMPT.search(text)
        assert found is not None
        assert int(found[1]) == code, f"exit code {found[1]}, not {code}:\n{text}"
        return text[: found.start()]

    def ended_unless_quicker(self, code: int) -> str | None:
        """Return what a stopped command printed; None if it had ended before: where no model is needed, it takes 0.4 s."""
        text = self._wait()
        found = _PROMPT.search(text)
        assert found is not None
        assert int(found[1]) in (0, code), f"exit code {found[1]}, not {code}:\n{text}"
        return text[: found.start()] if int(found[1]) else None

    def kill(self) -> None:
        """Kill the command that runs, as `kill -9` in another terminal does."""
        shell = self.terminal.process.pid
        children = Path(f"/proc/{shell}/task/{shell}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)

    def _wait(self) -> str:
        text = self.terminal.until_seen(lambda screen: bool(_PROMPT.search(screen)), "the prompt", within=120)
        self.seen += text
        assert "Traceback" not in text, text
        return text


def until(is_so: Callable[[], object], what: str) -> None:
    end = time.monotonic() + 120
    while not is_so():
        assert time.monotonic() < end, f"it never was so: {what}"
        time.sleep(0.005)


def printed(text: str) -> str:
    """Return the command that a person is told to go on with."""
    found = _PRINTED.findall(re.sub(r"\s*\n\s*", " ", text))
    assert found, f"no command is printed:\n{text}"
    return found[-1]


def say(done: str) -> None:
    print(f"ok  {done}", flush=True)  # noqa: T201 (what it is run for)


# ---------------------------------------------------------------- interrupted and killed in each phase


def with_a_provider(shell: Shell, fake: FakeOpenAI) -> None:
    ask = "antiphon run 'How hot is tea?' --model openai-chat:fake"
    shell.type(ask)
    needed = len(fake.answered)
    for number, phase in enumerate(PHASES, 1):
        for how, code in (("Ctrl-C", 130), ("kill -9", 137)):
            fake.asked.clear()
            fake.pause = 0.1
            shell.begin(ask)
            until(partial(_has_asked, fake, number), f"{phase} asks")
            shell.kill() if how == "kill -9" else shell.terminal.type(CTRL_C)
            text = shell.ended(code)
            in_flight = fake.asked[-1].digest
            fake.pause = 0.0
            assert ANSWER.split()[0] in shell.type(printed(text))
            counted = Counter(fake.answered)
            assert len(counted) == needed, f"{len(counted)} different requests, not {needed}"
            assert {digest for digest, times in counted.items() if times > 1} <= {in_flight}, "paid twice"
            say(f"{how} in {phase}, then the printed command")
    for failure in ("429", "500", "503", "cut", "wrong"):
        fake.asked.clear()
        fake.failure, fake.fails_after = failure, 3
        text = shell.type(ask, 4)
        fake.failure = None
        shell.type(printed(text))
        assert max(Counter(fake.answered).values()) == 1
        say(f"a provider that fails with {failure}, then the printed command")


def _has_asked(fake: FakeOpenAI, times: int) -> bool:
    return len(fake.asked) >= times


def with_the_local_model(shell: Shell, fake: FakeOpenAI) -> None:
    ask = "antiphon run 'When is an effect parked?' --model local --add guide.md"
    shell.type("antiphon local --install")
    (shell.folder / "guide.md").write_text("# Effects\n\nAn effect is parked when nobody knows whether it happened.\n")
    for how, code in (("Ctrl-C", 130), ("kill -9", 137)):
        for phase in ("action", "observation"):
            for attempt in range(20):
                shell.begin(f"{ask} --name {phase}-{code}-{attempt}")
                shell.terminal.until(f" {phase} ", within=120)
                with suppress(ProcessLookupError, IndexError):  # it has just ended
                    shell.kill() if how == "kill -9" else shell.terminal.type(CTRL_C)
                if (text := shell.ended_unless_quicker(code)) is not None:
                    break
            assert text is not None, "each run ended before it was stopped"
            shell.type(printed(text))
            say(f"the local model, {how} in {phase}, then the printed command")


# ---------------------------------------------------------------- with the scripted model


def with_a_script(shell: Shell, fake: FakeOpenAI) -> None:
    shell.type("antiphon run 'What is 17 * 23?' --model scripted --name one")
    branch = shell.type("antiphon fork one --at yield").split()[-1]
    shell.type(f"antiphon resume {branch}")
    assert branch in shell.type(f"antiphon diff one {branch}", 1)
    say("run, fork, resume, diff")
    shell.begin("antiphon chat --model scripted")
    shell.terminal.until(">")
    shell.terminal.type("What is 6 * 7?\r")
    shell.terminal.until_seen(lambda text: "gave 42" in text and text.rstrip().endswith("\n>"), "the second prompt")
    shell.terminal.type(CTRL_D)
    shell.ended(0)
    say("chat")


def with_a_person(shell: Shell, fake: FakeOpenAI) -> None:
    (shell.folder / "team.toml").write_text(TEAM)
    (shell.folder / "script.toml").write_text(SCRIPT)
    for verb, answer in (("approve", "391"), ("deny", "said no")):
        text = shell.type(f"antiphon run --team team.toml --name {verb} 'Calculate.'", 3)
        (command,) = (line.strip() for line in text.splitlines() if line.startswith(f"  antiphon {verb} "))
        shell.type(command)
        assert answer in shell.type(f"antiphon resume {verb}")
        say(f"{verb}, resume")


def with_a_charge(shell: Shell, fake: FakeOpenAI) -> None:
    """A tool that is killed while it charges a card is never started again."""
    for name, content in (("pay-team.toml", PAYING), ("pay.toml", PAY), ("till.py", TILL)):
        (shell.folder / name).write_text(content)
    shell.type("antiphon trust pay-team.toml --yes")
    shell.begin("antiphon run --team pay-team.toml --name charged 'Charge 7 euros.'")
    until((shell.folder / "charges").exists, "the card is charged")
    shell.kill()
    shell.ended(137)
    text = shell.type("antiphon resume charged", 3)
    command = re.findall(r"antiphon settle \S+ \S+ --result", re.sub(r"\s*\n\s*", " ", text))[-1]
    shell.type(f"{command} '\"a receipt\"'")
    assert "a receipt" in shell.type("antiphon resume charged")
    assert (shell.folder / "charges").read_text() == "7\n"
    say("kill -9 inside a charge, settle, resume: charged once")


def with_wrong_input(shell: Shell, fake: FakeOpenAI) -> None:
    (shell.folder / "no-ledger.db").write_text("This is no ledger.\n" * 50)
    (shell.folder / "old.json").write_bytes('[{"role": "user", "content": "Grüße"}]'.encode("latin-1"))
    (shell.folder / "wrong.toml").write_text(TEAM.replace('["calculator"]\napprovers', '["calcualtor"]\napprovers'))
    for command, expected in (
        ("antiphon rnu hi", "run"),
        ("antiphon resume nobody", "nobody"),
        ("antiphon run hi --model opanai:gpt", "openai"),
        ("antiphon threads --ledger missing.db", "missing.db"),
        ("antiphon threads --ledger no-ledger.db", "no-ledger.db"),
        ("antiphon check old.json", "Latin-1"),
        ("antiphon check missing.json", "missing.json"),
        ("antiphon run --team wrong.toml hi", "is it 'calculator'?"),
        ("antiphon convert old.json --to openai", "openai-chat"),
        ("antiphon help exit-code", "exit-codes"),
    ):
        assert expected in " ".join(shell.type(command, 2).split()), command
    say("wrong commands, threads, models, ledgers, files and names: one line each, exit code 2")


PARTS = {
    "script": with_a_script,
    "person": with_a_person,
    "wrong": with_wrong_input,
    "charge": with_a_charge,
    "provider": with_a_provider,
    "local": with_the_local_model,
}


# ---------------------------------------------------------------- the wheel


def install(folder: Path) -> Path:
    """Build the wheel, install it with everything into a new environment, and return the folder of its programs."""
    uv = os.environ.get("UV", str(ROOT / ".uv" / "bin" / "uv"))
    dist, own = folder / "dist", folder / "env"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(dist)]
    subprocess.run(build, check=True, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    (wheel,) = dist.glob("*.whl")
    subprocess.run([uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(own)], check=True)
    wanted = f"antiphon[all,local] @ {wheel.as_uri()}"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(own / "bin" / "python"), wanted], check=True)
    return own / "bin"


def main() -> None:
    with tempfile.TemporaryDirectory() as name, fake_openai() as fake:
        home = Path(name)
        programs = install(home)
        say("the wheel is installed")
        place = home / "place"
        place.mkdir()
        shell = Shell(place, programs, **fake.environment())
        with shell.terminal:
            for part in sys.argv[1:] or list(PARTS):
                PARTS[part](shell, fake)
            shell.terminal.type("exit\r")


if __name__ == "__main__":
    main()
