"""Hosts: how many asks two processes on one ledger get through, beside one.

Each process has so many threads in hand. An ask in a thread thinks for a while, as a model does, and each of its four rows is
on the disk before anything follows from it.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from antiphon.ledger import open_ledger
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles
from benchmarks._harness import Goal, Table, waited

__all__ = ["tables"]

IN_HAND, ASKS = 8, 5
THINKS = 0.2
"""Seconds."""
ONE, TWO = "one host", "two hosts"


def tables(part: str = "") -> Iterator[Table]:
    """Make the table, if `part` is in its name."""
    name = f"{IN_HAND} threads in hand, {THINKS * 1000:.0f} ms to think"
    if part not in name:
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        hosts = [stack.enter_context(_Host(folder, number)) for number in range(2)]
        each = IN_HAND * ASKS
        yield Table(
            name=name,
            unit="ms an ask",
            scale=1e3,
            baseline=ONE,
            candidates={
                ONE: waited(lambda number: _converse(hosts[:1], number), each),
                TWO: waited(lambda number: _converse(hosts, number), 2 * each),
            },
            goals=(Goal(TWO, 1 / 1.7, ONE),),
            notes=(f"each host asks {ASKS} times in each of {IN_HAND} new threads; time on the wall, for an ask of any host",),
            rounds=7,
        )


def _converse(hosts: list[_Host], number: int) -> None:
    for host in hosts:
        host.begin(number)
    for host in hosts:
        host.wait()


class _Host:
    """A process that hosts threads, and is told when to ask."""

    def __init__(self, folder: Path, number: int) -> None:
        command = [sys.executable, "-m", "benchmarks.hosts", str(folder / "ledger.db"), f"host-{number}"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.wait()

    def __enter__(self) -> _Host:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def begin(self, number: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()

    def wait(self) -> None:
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError("a host has ended")


# ---------------------------------------------------------------- the process


class Thought(Reply, frozen=True, type="BENCH_THOUGHT"):
    text: str


class Think(Request[Thought], frozen=True, type="BENCH_THINK"):
    text: str


class Thinker(Actor):
    @handles
    async def think(self, think: Think, context: Context) -> Thought:
        async def model(key: str) -> str:
            await asyncio.sleep(THINKS)
            return think.text

        return Thought(text=await context.effect("model", {}, model, effects="none"))


async def _serve(path: str, name: str) -> None:
    settings = Settings(host=name, build="1", block_limit=None)
    async with open_ledger(f"sqlite:///{path}") as ledger, System(ledger, settings=settings) as system:
        system.register("thinker", Thinker)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            number = int(line)
            await asyncio.gather(*(_client(system, f"{name}-{number}-{each}") for each in range(IN_HAND)))
            print("done", flush=True)


async def _client(system: System, thread_id: str) -> None:
    for _ in range(ASKS):
        await system.ask(f"thinker/{thread_id}", Think(text="x"), thread_id=thread_id)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
