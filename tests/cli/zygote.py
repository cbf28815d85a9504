"""Starts commands quickly: a process that has imported the command line, and forks for each command, in a terminal.

It reads a command a line from its input, as JSON: the arguments, the folder, the environment and the terminal. It prints the
process that it has started, and then how that has ended. The import of the command line takes longer than most commands.
"""

import fcntl
import json
import os
import sys
import termios
from importlib import import_module
from typing import Any

_USED = (
    "antiphon.service",
    "antiphon.service._running",
    "antiphon.patterns.team_files",
    "antiphon.ledger.sqlite",
    "openai.resources.chat",
    "pydantic_ai.models.openai",
    "pydantic_ai.providers.openai",
)


def main() -> None:
    from antiphon.cli import app

    for name in _USED:
        import_module(name)
    print("ready", flush=True)  # noqa: T201 (it is asked by pipe)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(app, asked)
        print(child, flush=True)  # noqa: T201
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


def _become(app: Any, asked: dict[str, Any]) -> None:
    """Run a command in a session of its own, whose terminal is the given one: Ctrl-C there is a signal to it."""
    os.setsid()
    terminal = os.open(asked["terminal"], os.O_RDWR)
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for number in (0, 1, 2):
        os.dup2(terminal, number)
    os.chdir(asked["folder"])
    os.environ.update(asked["environment"])
    sys.argv = ["antiphon", *asked["arguments"]]
    sys.stdin = open(0)  # noqa: SIM115 (of the process)
    sys.stdout = open(1, "w")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1)  # noqa: SIM115
    try:
        app(prog_name="antiphon")
        code = 0
    except SystemExit as exc:
        code = exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
