"""Commands and hosts in several processes on one PostgreSQL database: kill -9, and a crash of the server in between."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from tests.forked import Forked
from tests.postgres import Server, running_postgres

from antiphon.ledger import Ledger, open_ledger
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles

WITHIN = 90
"""Seconds: much longer than it takes, for a machine that does something else as well."""


def _antiphon(server: Server, folder: Path, *words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "ANTIPHON_LEDGER": server.url, "HOME": str(folder)}
    command = [sys.executable, "-m", "antiphon", *words]
    with (folder / f"{words[0]}.log").open("ab") as log:
        return Forked(command, cwd=folder, env=environment, stdout=log, stderr=log)


@asynccontextmanager
async def _child(process: subprocess.Popen[bytes]) -> AsyncIterator[subprocess.Popen[bytes]]:
    try:
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


async def _until(ledger: Ledger, thread_id: str, *, messages: int = 0, status: str | None = None) -> None:
    """Wait until a thread has some messages, or a status."""
    async with asyncio.timeout(WITHIN):
        while True:
            thread = await ledger.thread(thread_id)
            if thread is not None and thread.messages >= messages and status in (None, thread.status):
                return
            await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN)
def test_a_host_finishes_the_thread_of_a_command_that_was_killed_over_a_crash_of_the_server(tmp_path: Path) -> None:
    """G16, F5, F13: nothing is lost with the process that ran a thread, nor with a server that stops as by a power cut."""
    (tmp_path / "note.md").write_text("# Leases\n\nA lease lasts ten seconds.\n")

    async def main(server: Server) -> None:
        async with open_ledger(server.url, busy_timeout=WITHIN) as ledger:
            run = _antiphon(server, tmp_path, "run", "How long does a lease last?", "--name", "t", "--add", "note.md")
            async with _child(run):
                await _until(ledger, "t", messages=12)
                run.send_signal(signal.SIGKILL)
            assert (await ledger.thread("t")).status != "completed"
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
            async with _child(_antiphon(server, tmp_path, "host")) as host:
                await _until(ledger, "t", status="completed")
                host.terminate()
                assert await asyncio.to_thread(host.wait, WITHIN) == 0
            assert (await ledger.verify()).is_whole
            answers = [record.message.text async for record in ledger.read("t") if record.message.lane == "talk"]
            assert any("ten seconds" in text for text in answers)

    with running_postgres() as server:
        asyncio.run(main(server))


class Stepped(Reply, frozen=True, type="HOST_STEPPED"):
    pass


class Step(Request[Stepped], frozen=True, type="HOST_STEP"):
    count: int


class Stepper(Actor):
    """Does one short effect after another, and notes when each began."""

    began: ClassVar[list[tuple[int, float]]] = []

    @handles
    async def steps(self, step: Step, context: Context) -> Stepped:
        for number in range(step.count):

            async def note(key: str, number: int = number) -> str:
                self.began.append((number, asyncio.get_running_loop().time()))
                await asyncio.sleep(0.02)
                return key

            await context.effect(f"step-{number}", {}, note)
        return Stepped()


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN)
def test_a_host_that_cannot_reach_the_database_begins_no_effect_after_its_lease() -> None:
    """F13: by itself, with nobody there who could take its threads. When the database is back, it does the rest once."""
    count, lease = 40, 0.9

    async def main(server: Server) -> None:
        loop = asyncio.get_running_loop()
        Stepper.began.clear()
        settings = Settings(heartbeat=lease / 3, poll=0.05, within=WITHIN, block_limit=None)
        async with open_ledger(server.url, busy_timeout=WITHIN) as ledger, System(ledger, settings=settings) as system:
            system.register("stepper", Stepper)
            asked = asyncio.ensure_future(system.ask("stepper/1", Step(count=count), thread_id="t"))
            async with asyncio.timeout(WITHIN):
                while len(Stepper.began) < 5:  # noqa: ASYNC110 (the effects have no event)
                    await asyncio.sleep(0.01)
            await asyncio.to_thread(server.stop)
            stopped_at = loop.time()
            await asyncio.sleep(2 * lease)
            late = [number for number, at in Stepper.began if at > stopped_at + lease]
            assert late == []
            assert len(Stepper.began) < count
            await asyncio.to_thread(server.start)
            await asked
            assert [number for number, _ in Stepper.began] == list(range(count))

    with running_postgres() as server:
        asyncio.run(main(server))
