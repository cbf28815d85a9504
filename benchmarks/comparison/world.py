"""What the compared programs share: the bank, the count of model requests, and the place where a process is killed.

A program gets a folder and a role: `python approval_dbos.py FOLDER ask`. What happens outside of it is a line in
`FOLDER/world`, so that it is counted whatever becomes of the process. `KILL_AT` names a place where the process kills itself;
`INSTRUCTIONS` are the instructions of the agents, another text after a deploy.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
ROLE = sys.argv[2]
INSTRUCTIONS = os.environ.get("INSTRUCTIONS", "Be kind.")
DATABASE = os.environ.get("DATABASE", f"sqlite:///{FOLDER}/dbos.sqlite")
"""The database of DBOS, whose documentation recommends PostgreSQL for production."""
EXECUTOR = os.environ.get("EXECUTOR", "one")
"""The name of the server that a process stands for: the same after a restart."""
ON_CHANGE: Any = os.environ.get("ON_CHANGE", "stop")


def witness(event: str, **more: Any) -> None:
    """Write down what happened."""
    line = json.dumps({"event": event, **more, "pid": os.getpid()})
    with (FOLDER / "world").open("a", encoding="utf-8") as file:  # one write of a short line, which the system does not split
        file.write(f"{line}\n")


def reach(place: str) -> None:
    """Die here, as by `kill -9`, if that was asked for."""
    if os.environ.get("KILL_AT") == place:
        os.kill(os.getpid(), signal.SIGKILL)


def pay(key: str, what: str) -> str:
    """Have the bank do something. It is done, and then the process may die before it can write that down."""
    witness("paid", key=key, what=what)
    reach(f"paid {what}")
    return f"{what} is done"


def is_paid(key: str) -> bool:
    """Ask the bank, as a person would."""
    return f'"key": "{key}"' in (FOLDER / "world").read_text(encoding="utf-8")


def asked(model: str, instructions: str | None) -> None:
    """Count a request to a model."""
    witness("asked", model=model, instructions=instructions)
    reach(f"asked {model}")


async def until(look: Callable[[], Awaitable[object]]) -> None:
    """Look again until there is something. A database that is not there yet has nothing."""
    while True:
        with suppress(Exception):
            if await look():
                return
        await asyncio.sleep(0.05)


def wait_for_others() -> None:
    """Begin at the same moment as the other processes that were started together."""
    if together := os.environ.get("TOGETHER"):
        witness(f"ready to {together}")
        while not (FOLDER / f"go-{together}").exists():
            time.sleep(0.005)


def start(**roles: Callable[[], Awaitable[object]]) -> None:
    """Play the role that the command line names, and write down what comes out."""

    async def play() -> None:
        wait_for_others()
        try:
            witness("answer", role=ROLE, text=await roles[ROLE]())
        except Exception as exc:  # noqa: BLE001 (it is shown)
            witness("error", role=ROLE, type=type(exc).__name__, text=str(exc).splitlines()[0])

    asyncio.run(play())
