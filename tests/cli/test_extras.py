"""Each command without the packages of an extra: it works, or one line says what to install."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import CHAT, PLAIN, run, save

from antiphon.cli._app import OVERVIEW

pytest.importorskip("apsw")

COMMANDS = """
run hi
run hi --team team.toml
chat
resume t
pause t
terminate t
status t
host --team none.toml
hosts
hosts --all
limits
schedule list
up --help
serve --host 0.0.0.0
token list
resume --all
knowledge add a.md
knowledge search hi
trust team.toml --yes
local status
local install --from none
approvals
approve x --as ada
deny x --as ada
parked
settle t x --retry
threads
show chat.json
show t
tail --help
search hi
replay t
replay t --against
fork t --at 1 --into branch
fork t --model scripted
diff t t
reward t x 1 --as ada
verify
doctor
verify --save-heads heads.json
backup copy.db
export -o out.jsonl
export --trajectories -o decisions.jsonl
import chat.json --thread other
import none --journal
convert chat.json --to openai-chat
check chat.json
repair chat.json
dialects
help
key make master.key
key rotate none
delete --keep-chain t --yes --with-branches
delete t --yes --with-branches
export --to other.db --trust-source
"""
ADVICE = 'this command needs packages that are not installed: pip install "antiphon[all]"\n'
ON_FILES = {"check", "convert", "dialects", "help", "key", "repair", "local", "show", "tail", "up"}
"""What works without a ledger."""
WITH_AGENTS = {
    "run",
    "chat",
    "resume",
    "host",
    "local",
    "replay",
    "knowledge",
    "trust",
}
ROOT = Path(__file__).parents[2]
EXTRAS = {
    "agents": "pydantic_ai,jsonschema_rs,snowballstemmer",
    "server": "starlette,uvicorn",
    "sqlite": "apsw",
    "agents,sqlite": "pydantic_ai,jsonschema_rs,snowballstemmer,apsw",
    "mcp,otel,web,local": "fastmcp,mcp,opentelemetry.sdk,opentelemetry.exporter,ddgs,xllamacpp",
}


@pytest.mark.slow
@pytest.mark.parametrize("extras", EXTRAS)
def test_without_an_extra_each_command_works_or_says_what_to_install(extras: str, tmp_path: Path) -> None:
    save(tmp_path / "chat.json", CHAT)
    (tmp_path / "a.md").write_text("Hi.")
    (tmp_path / "team.toml").write_text('pattern = "peers"\nmodel = "scripted"\n[[agents]]\nname = "ada"\nrole = "leader"\n')
    url = f"sqlite:///{tmp_path}/antiphon.db"
    assert run("import", tmp_path / "chat.json", "--thread", "t", "--ledger", url).exit_code == 0
    words = [line.split() for line in COMMANDS.strip().splitlines()]
    assert {each[0] for each in words} == {name for section in OVERVIEW.values() for name in section}

    for command, code, stderr, error in said_without(EXTRAS[extras], words, tmp_path):
        assert error is None, (command, error)
        assert code in (0, 1, 2, 3), (command, stderr)
        assert (ADVICE in stderr) == _lacks(command, extras), (command, stderr)


@pytest.mark.slow
def test_without_a_model_a_script_answers_and_says_so_when_the_thread_begins(tmp_path: Path) -> None:
    """Not before an error, and not if only the answer is wanted."""
    words = [["run", "Hi", "--config", "no.toml"], ["run", "Hi", "--quiet"], ["run", "Hi"]]
    wrong, quiet, asked = [stderr for _, _, stderr, _ in said_without("xllamacpp", words, tmp_path)]
    assert (wrong, quiet) == ("no.toml: No such file or directory\n", "")
    assert asked.startswith("no model is chosen and none is installed: ")


def said_without(packages: str, words: list[list[str]], folder: Path) -> list[tuple[list[str], int, str, str | None]]:
    """Run commands without some packages; of each, return its words, its exit code, what is on stderr, and its error."""
    program = [sys.executable, "-m", "tests.cli.without", packages]
    environment = {**PLAIN, "ANTIPHON_MODEL": "", "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
    given: dict[str, Any] = {"input": json.dumps(words), "env": environment, "cwd": folder}
    done = subprocess.run(program, capture_output=True, text=True, check=False, **given)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each[0] for each in said] == words, done.stderr
    return said


def _lacks(command: list[str], extras: str) -> bool:
    needs_agents = command[0] in WITH_AGENTS or command[:3] == ["fork", "t", "--model"]
    if needs_agents and "agents" in extras and command != ["resume", "--all"]:  # the runs of programs need no agents
        return True
    if extras == "server":
        return command[0] == "serve"
    return "sqlite" in extras and (
        (command[0] not in ON_FILES or command in (["show", "t"], ["key", "rotate", "none"]))
        and command[1:] != ["none", "--journal"]
    )
