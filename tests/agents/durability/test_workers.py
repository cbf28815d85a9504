"""Web workers that are killed while customers send requests, some of them twice. G6, G7, G9, G15.

Three processes serve one port and write one ledger. Every second, one of them gets a SIGKILL. A client whose connection breaks
sends the same request again, as any client does.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from tests.forked import Forked

from antiphon.ledger import open_ledger
from antiphon.runtime import System

pytest.importorskip("apsw")
pytest.importorskip("uvicorn")

ROOT = Path(__file__).parents[3]


class Load(NamedTuple):
    """How much is asked of the workers."""

    requests: int
    duplicates: int
    at_once: int
    kill_every: float


LOAD = {
    "": Load(60, 12, 12, 0.5),
    "ci": Load(1_000, 200, 32, 1.0),
    "nightly": Load(10_000, 2_000, 32, 1.0),
}[os.environ.get("ANTIPHON_CHAOS", "")]
TRIES = 100


class Shop:
    """The workers, and what they say."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.agents.durability.charging_workers", str(folder), "3"]
        self.process = Forked(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline().split()[1])
        self.workers: list[int] = []
        self.killed: list[int] = []
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.workers.append(int(line.split()[1]))

    def kill_one(self, rng: random.Random) -> None:
        living = [pid for pid in self.workers if pid not in self.killed]
        if living:
            pid = rng.choice(living)
            self.killed.append(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)
        self._reader.join(10)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    try:
        yield shop
    finally:
        shop.close()


async def _post(port: int, id: str, amount: int) -> dict[str, Any]:
    """Send a request, once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = json.dumps({"id": id, "amount": amount}).encode()
        head = f"POST /charge HTTP/1.1\r\nHost: shop\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        said = await reader.read()
        status, _, rest = said.partition(b"\r\n")
        if status.split()[1:2] not in ([b"200"], [b"409"]):
            raise ConnectionError(said[:500])
        answer: dict[str, Any] = json.loads(rest.partition(b"\r\n\r\n")[2])
        return answer
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def _answered(port: int, id: str, amount: int) -> dict[str, Any]:
    """Send a request until there is an answer."""
    for _ in range(TRIES):
        try:
            async with asyncio.timeout(60):
                return await _post(port, id, amount)
        except (OSError, EOFError, ValueError):
            await asyncio.sleep(0.05)
    raise AssertionError(f"{id} has no answer after {TRIES} tries")


async def _storm(shop: Shop, rng: random.Random) -> dict[str, list[dict[str, Any]]]:
    """Send all requests, and return the answers by id."""
    unique = [f"r{number}" for number in range(LOAD.requests - LOAD.duplicates)]
    twice = set(rng.sample(unique, LOAD.duplicates))
    wanted = [each for own in unique for each in [own] * (1 + (own in twice))]  # two customers send it at the same time
    answers: dict[str, list[dict[str, Any]]] = defaultdict(list)

    async def customer() -> None:
        while wanted:
            own = wanted.pop()
            answers[own].append(await _answered(shop.port, own, int(own[1:])))

    async def killer() -> None:
        while True:
            await asyncio.sleep(LOAD.kill_every)
            shop.kill_one(rng)

    killing = asyncio.create_task(killer())
    try:
        await asyncio.gather(*(customer() for _ in range(LOAD.at_once)))
    finally:
        killing.cancel()
    return answers


def _witnessed(folder: Path, word: str) -> dict[str, list[int]]:
    """Return by effect the processes that have started or done it."""
    found: dict[str, list[int]] = defaultdict(list)
    for line in (folder / "witness").read_text().splitlines():
        what, key, pid = line.split()
        if what == word:
            found[key].append(int(pid))
    return found


def _report(text: str) -> None:
    """Say what was seen; `pytest -s` shows it."""
    sys.stdout.write(f"{text}\n")


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_every_request_has_one_answer_and_is_charged_once_whatever_is_killed(shop: Shop, tmp_path: Path) -> None:
    """Only a charge that was at work in a killed process waits for a person."""
    answers = await _storm(shop, random.Random(19))
    assert len(answers) == LOAD.requests - LOAD.duplicates
    assert shop.killed

    parked = {each for each, said in answers.items() if any("parked" in one for one in said)}
    several = [each for each, said in answers.items() if len({one["answer"] for one in said if "answer" in one}) > 1]
    assert not several
    assert all("answer" in one for each, said in answers.items() if each not in parked for one in said)

    started = _witnessed(tmp_path, "start")
    assert not [key for key, pids in started.items() if len(pids) > 1]
    begun = {key.split("/")[1]: pid for key, (pid,) in started.items()}
    assert answers.keys() - begun.keys() <= parked  # a process was killed right before the start, and the ledger cannot know
    assert {begun[own] for own in parked & begun.keys()} <= set(shop.killed)
    handled = _witnessed(tmp_path, "handle")
    assert all(set(handled[f"order-{own}/{own}"]) & set(shop.killed) for own in parked)
    _report(f"{len(answers)} orders, {len(shop.killed)} kills, {len(parked)} parked, {len(parked - begun.keys())} not started")

    async with open_ledger(f"sqlite:///{tmp_path}/ledger.db") as ledger:
        async with System(ledger) as system:
            waiting = await system.parked()
            assert {each.thread_id.removeprefix("order-") for each in waiting} == parked
            for each in waiting:
                await system.settle(each.thread_id, each.invocation_id, result="charged, says the bank")
        for own in parked:
            assert (await _answered(shop.port, own, int(own[1:])))["answer"] == "The bank says: charged, says the bank"
        open_calls = Counter([len(await ledger.open_calls(f"order-{own}")) for own in answers])
        assert open_calls == {0: len(answers)}
        assert (await ledger.verify()).is_whole
    assert _witnessed(tmp_path, "start") == started
