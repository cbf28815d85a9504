"""Ways to run the command line: as a process of its own, in a terminal, and inside the test."""

import functools
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import typer.testing
from tests import forked
from typer.testing import CliRunner, Result

from antiphon import Conversation, Message, PartsPayload, dumps
from antiphon.cli import app

typer.testing._get_command = functools.cache(typer.testing._get_command)
"""Typer builds all commands anew for each run, which takes longer than most of them."""

COMMAND = (sys.executable, "-m", "antiphon")
OWN = {"FORCE_COLOR", "COLUMNS", "NO_COLOR", "TERM", "ANTIPHON_LEDGER"}
PLAIN = {name: value for name, value in os.environ.items() if name not in OWN}
"""Without what a developer's own terminal says about colours, width and the ledger in use."""


def run(*arguments: str | Path, stdin: str | bytes = b"", **environment: str) -> Result:
    """Run the app inside the test. A traceback is a failure of the test."""
    given = [str(each) for each in arguments]
    plain = {"ANTIPHON_LEDGER": "", **environment}
    result = CliRunner().invoke(app, given, input=stdin, env=plain, prog_name="antiphon")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def start(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the command as a user does."""
    return forked.run([*COMMAND, *arguments], input=stdin, env={**PLAIN, **environment})


class Seen(NamedTuple):
    """What a person sees of a command: the text in the terminal without colours, and the exit code."""

    text: str
    """As it is on the screen. A long line of ours is several there, divided between words."""
    code: int

    @property
    def said(self) -> str:
        """The text as one line, wherever the terminal has divided it."""
        return " ".join(self.text.split())


def type_command(*arguments: str | Path, columns: int = 80, typed: str = "", **environment: str) -> Seen:
    """Type a command in a terminal."""
    codes: list[int] = []
    text = in_terminal(*arguments, columns=columns, typed=typed, ended=codes.append, **environment)
    from tests.cli.screens import Screen

    screen = Screen(columns)
    screen.write(text.replace("\n", "\r\n"))
    return Seen(f"{screen.text}\n", codes[0])


def in_terminal(
    *arguments: str | Path,
    columns: int = 60,
    typed: str = "",
    ended: Callable[[int], None] = lambda code: None,
    **environment: str,
) -> str:
    """Run the command in a terminal, and return everything that stood there in the end; `ended` gets the exit code."""
    ours, theirs = pty.openpty()
    plain = {**PLAIN, "TERM": "xterm-256color", "COLUMNS": str(columns), **environment}
    os.write(ours, typed.encode())  # before it starts: the terminal shows it first, however slow this process is
    process = forked.Forked([*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=plain)
    os.close(theirs)
    written = b""
    while chunk := _read(ours):
        written += chunk
    ended(process.wait())
    os.close(ours)
    return written.decode().replace("\r\n", "\n")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # as Linux says that the other end is closed
        return b""


def save(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data))
    return path


def save_house(path: Path, messages: Sequence[Message]) -> Path:
    path.write_bytes(dumps(Conversation(messages)))
    return path


def said(*parts: Any, policy: str = "ada", **fields: Any) -> Message:
    return Message(policy=policy, payload=PartsPayload(parts=parts), **fields)


def tool_call(id: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "id": id,
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, separators=(",", ":"))},
    }


CHAT: list[dict[str, Any]] = [
    {"role": "user", "content": "Is it warm in Oslo?", "message_id": "m-1"},
    {
        "role": "assistant",
        "content": "I look.",
        "message_id": "m-2",
        "tool_calls": [tool_call("c-1", "get_weather", city="Oslo")],
    },
    {"role": "tool", "name": "get_weather", "tool_call_id": "c-1", "content": "cold", "message_id": "m-3"},
    {"role": "assistant", "content": "It is cold.", "message_id": "m-4"},
]
"""A tool conversation in MARSYS."""
