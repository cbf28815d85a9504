"""A process of one build that hosts threads on a ledger, until SIGTERM.

    python deploy_worker.py LEDGER FOLDER NAME BUILD DRAIN KIND…

The prompt of its requests to a model has the name of the build, so no other build can continue a thread that it has begun. It
prints `ready`, and `draining` if it finishes its threads after the signal. It adds a line to the file `witness` of the folder
for each `once` effect (`printed`), and for each thread of the kind `held` that waits (`held`) for a file `go-NAME`.
"""

import asyncio
import os
import sys
from pathlib import Path

from antiphon.cli._hosts import until_signal
from antiphon.ledger import open_ledger
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles

THINKS = 0.05
"""Seconds that the model takes."""


class Written(Reply, frozen=True, type="DEPLOY_WRITTEN"):
    build: str


class Write(Request[Written], frozen=True, type="DEPLOY_WRITE"):
    what: str
    is_held: bool


class Desk:
    """What the actors of a host share: its build, and the folder with the witness."""

    def __init__(self, folder: Path, name: str, build: str) -> None:
        self.build, self._name, self.go = build, name, folder / f"go-{name}"
        self._witness = os.open(folder / "witness", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(self, what: str, thread: str) -> None:
        os.write(self._witness, f"{what} {self._name} {thread}\n".encode())


class Author(Actor):
    """Asks a model, prints what it wrote once, and asks the model again."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    @handles
    async def write(self, request: Write, context: Context) -> Written:
        thread = context.thread_id or ""

        async def model(key: str) -> str:
            await asyncio.sleep(THINKS)
            if request.is_held and key.endswith("/check"):
                self._desk.say("held", thread)
                while not self._desk.go.exists():  # noqa: ASYNC110 (another process makes it)
                    await asyncio.sleep(THINKS)
            return "yes"

        async def print_once(key: str) -> str:
            self._desk.say("printed", thread)
            return "printed"

        for step in ("plan", "draft"):
            await context.effect(step, {"prompt": f"{self._desk.build}: {step} {request.what}"}, model, effects="none")
        await context.effect("print", {"what": request.what}, print_once, effects="once")
        for step in ("check", "improve"):
            await context.effect(step, {"prompt": f"{self._desk.build}: {step} {request.what}"}, model, effects="none")
        return Written(build=self._desk.build)


async def main(url: str, folder: str, name: str, build: str, drain: str, *kinds: str) -> None:
    desk = Desk(Path(folder), name, build)
    settings = Settings(within=600, host=name, build=build, heartbeat=10, block_limit=None, drain=float(drain))
    with until_signal() as stop:
        async with open_ledger(url) as ledger, System(ledger, settings=settings) as system:
            for kind in kinds:
                system.register(kind, lambda: Author(desk), grace=0.01, concurrency=1000)
            await system.register_host()
            os.write(1, b"ready\n")
            await system.host(stop=stop, draining=lambda _: os.write(1, b"draining\n") and None)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
