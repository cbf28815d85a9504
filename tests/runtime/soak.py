"""Hosts on a ledger in PostgreSQL under load, with a fault every few seconds; afterwards a table of what was lost (F36).

    python -m tests.runtime.soak --seconds 1800 --every 5

Orders keep coming to threads, each with a `once` effect that writes its own witness. The faults are real: SIGKILL of one host
or of all, SIGSTOP past the lease and below it, SIGTERM, crashes of the database, cut connections. A quarter of the time there
is none. `make soak SECONDS=1800` runs it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.postgres import Server, running_postgres
from tests.runtime.test_hosts_processes import Site, _is_at_rest, _now

from antiphon.testing import Breach, Event

HEARTBEAT = 0.5
LEASE = 3 * HEARTBEAT
STUCK = 30.0
"""Seconds after the last fault in which everything must end (G16)."""
_CUT = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
)


class Wire:
    """The way from a host to the database, through this process, which can be cut without a word: a partition."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._is_cut = False
        self._port = 0

    @property
    def url(self) -> str:
        return self._server.url.replace(f":{self._server.port}/", f":{self._port}/")

    def cut(self, seconds: float) -> None:
        """Let nothing through for so many seconds; connections stay open."""
        self._is_cut = True
        time.sleep(seconds)
        self._is_cut = False

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                while self._is_cut:  # noqa: ASYNC110 (another thread decides)
                    await asyncio.sleep(0.01)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            there = await asyncio.open_connection("127.0.0.1", self._server.port)
            await asyncio.gather(self._carry(reader, there[1]), self._carry(there[0], writer))
        writer.transport.abort()

    async def _serve(self, opened: threading.Event, done: asyncio.Event) -> None:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        opened.set()
        await done.wait()
        server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    @contextmanager
    def open(self) -> Generator[Wire]:
        """Carry connections while the block lasts."""
        opened, done = threading.Event(), asyncio.Event()
        thread = threading.Thread(target=lambda: self._loop.run_until_complete(self._serve(opened, done)))
        thread.start()
        try:
            assert opened.wait(10)
            yield self
        finally:
            self._loop.call_soon_threadsafe(done.set)
            thread.join(10)
            self._loop.close()


class Soak(Site):
    """Hosts, orders that keep coming, and faults."""

    def __init__(self, folder: Path, server: Server, *, seed: int = 0) -> None:
        super().__init__(folder, 0, server.url)
        self.server = server
        self._random = random.Random(seed)
        self.hosts: dict[str, subprocess.Popen[str]] = {}
        self.faults: Counter[str] = Counter()
        self.orders = 0
        self.stuck = 0
        self.ended = 0
        """Hosts that have ended by themselves."""

    # ------------------------------------------------------------ hosts and orders

    def add_host(self, how: str = "wait", seconds: float = 0.1, url: str | None = None) -> str:
        """Start another host, and return its name."""
        name = f"h{len(self._children)}"
        self.hosts[name] = self.start(name, heartbeat=HEARTBEAT, how=how, seconds=seconds, url=url)
        return name

    async def order_until(self, stop: asyncio.Event, every: float, threads: int) -> None:
        """Post orders to threads in turn, until an event is set."""
        async with self.ledger() as ledger:
            while not stop.is_set():
                await self.post_order(ledger, self.orders, f"t{self.orders % threads}")
                self.orders += 1
                await asyncio.sleep(every)

    def _any_host(self) -> str:
        return self._random.choice(sorted(self.hosts))

    def _replace_ended(self) -> None:
        """Count the hosts that have ended by themselves, which no fault may cause, and start as many."""
        for name in [name for name, host in self.hosts.items() if host.poll() is not None]:
            del self.hosts[name]
            self.ended += 1
            self.add_host()

    # ------------------------------------------------------------ faults

    def kill(self) -> None:
        """SIGKILL a host, and start another."""
        self._killed(self._any_host())
        self.add_host()

    def kill_all(self) -> None:
        """SIGKILL all hosts, and start as many."""
        names = sorted(self.hosts)
        for name in names:
            self._killed(name)
        for _ in names:
            self.add_host()

    def _killed(self, name: str) -> None:
        host = self.hosts.pop(name)
        host.kill()
        host.wait()

    def end_politely(self) -> None:
        """SIGTERM a host, and start another."""
        host = self.hosts.pop(self._any_host())
        host.terminate()
        host.wait(60)
        self.add_host()

    def pause(self, seconds: float = 1.5 * LEASE) -> None:
        """SIGSTOP a host past its lease, then let it go on."""
        host = self.hosts[self._any_host()]
        with suppress(ProcessLookupError):  # it is counted as one that has ended by itself
            os.kill(host.pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(host.pid, signal.SIGCONT)

    def hesitate(self) -> None:
        """SIGSTOP a host for a third of its lease."""
        self.pause(LEASE / 3)

    def crash_database(self) -> None:
        """Stop PostgreSQL as a power cut does, and start it."""
        self.server.stop()
        self.server.start()

    def cut_connections(self) -> None:
        """End all connections of the database (`pg_terminate_backend`)."""
        self.server.sql(_CUT)

    def do(self, fault: Callable[[], None]) -> None:
        """Cause a fault, and count it."""
        self._replace_ended()
        fault()
        self.faults[fault.__name__] += 1

    async def suffer(self, seconds: float, every: float) -> None:
        """Cause a fault every few seconds; a quarter of the time none."""
        faults = (
            self.kill,
            self.kill_all,
            self.end_politely,
            self.pause,
            self.hesitate,
            self.crash_database,
            self.cut_connections,
        )
        until = _now() + seconds
        while _now() < until:
            began = _now()
            if self._random.random() < 0.75:
                await asyncio.to_thread(self.do, self._random.choice(faults))
            await asyncio.sleep(max(0.0, every - (_now() - began)))

    async def rest(self) -> None:
        """Wait until nothing is open but what is parked; count what is still open after `STUCK` seconds."""
        self._replace_ended()
        try:
            await self.wait(_is_at_rest, STUCK)
        except TimeoutError:
            self.stuck += 1
            for name in sorted(self.hosts):  # what they write while the ledger is judged would count as never said
                self._killed(name)

    # ------------------------------------------------------------ the result

    def result(self) -> tuple[list[Breach], dict[str, object]]:
        """Return the broken rules, and the table."""
        breaches, window, parked = self.judge(_without_old_claims(self.witnessed()))
        rules = Counter(each.rule for each in breaches)
        table: dict[str, object] = {
            "orders acknowledged": sum(event.what == "ok" for event in self.events),
            "effects begun": sum(event.what == "fx" for event in self.witnessed()),
            "acknowledged lost (R1, R2, R12)": rules["R1"] + rules["R2"] + rules["R12"],
            "order violations (R3, R4, R8)": rules["R3"] + rules["R4"] + rules["R8"],
            "once effects started twice, or before their intent (R6, R7)": rules["R6"] + rules["R7"],
            "neither answered nor parked (R10)": rules["R10"],
            f"stuck {STUCK:.0f} s after the last fault": self.stuck,
            "hosts that ended by themselves": self.ended,
            "threads with a parked call": len(parked),
            "effects begun in the documented window": window,
        }
        return breaches, table | {f"fault: {name}": number for name, number in sorted(self.faults.items())}


def _without_old_claims(events: list[Event]) -> list[Event]:
    """Leave out claims that a host reports late: it was stopped before the report, and others have claimed since."""
    highest: Counter[str] = Counter()
    kept = []
    for event in events:
        if event.what == "claim":
            if event.epoch <= highest[event.thread]:
                continue
            highest[event.thread] = event.epoch
        kept.append(event)
    return kept


@contextmanager
def soaking(folder: Path, *, hosts: int = 2, seed: int = 0) -> Generator[Soak]:
    """Start PostgreSQL and hosts, and end them afterwards."""
    with running_postgres() as server:
        soak = Soak(folder, server, seed=seed)
        try:
            for _ in range(hosts):
                soak.add_host()
            yield soak
        finally:
            soak.end()


async def run(soak: Soak, seconds: float, every: float, rate: float, threads: int) -> None:
    stop = asyncio.Event()
    ordering = asyncio.ensure_future(soak.order_until(stop, 1 / rate, threads))
    try:
        await soak.suffer(seconds, every)
    finally:
        stop.set()
        await ordering
    await soak.rest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Run hosts on PostgreSQL under load with faults, and print what was lost.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=5, help="seconds between two faults")
    parser.add_argument("--hosts", type=int, default=3)
    parser.add_argument("--rate", type=float, default=10, help="orders per second")
    parser.add_argument("--threads", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="antiphon-soak-") as folder,
        soaking(Path(folder), hosts=given.hosts, seed=given.seed) as soak,
    ):
        asyncio.run(run(soak, given.seconds, given.every, given.rate, given.threads))
        breaches, table = soak.result()
    for name, value in table.items():
        print(f"| {name} | {value} |")  # noqa: T201 (the table)
    for breach in breaches[:20]:
        print(f"{breach.rule} {breach.thread} {breach.id}: {breach.what}")  # noqa: T201
    sys.exit(1 if breaches or soak.stuck or soak.ended else 0)


if __name__ == "__main__":
    main()
