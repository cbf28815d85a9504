"""Real processes that host threads of one ledger in a file: killed, stopped, told to end, blocked (F13-F16, F18; G7, G8)."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from tests import forked
from tests.runtime.counts import count
from tools.soak import soak
from tools.soak.witness import Witness

from antiphon.ledger import Ledger, heads_of
from antiphon.testing import Event

pytest.importorskip("apsw")
pytestmark = pytest.mark.slow

WORKER = Path(__file__).parent / "host_worker.py"
TOLD = 128 + signal.SIGTERM


class Site(soak.Site):
    """A ledger in a file, and the processes that host its threads."""

    def __init__(self, folder: Path, threads: int, url: str | None = None) -> None:
        super().__init__(folder, url or f"sqlite:///{folder}/ledger.db")
        self.threads = threads

    def start(
        self, name: str, *, heartbeat: float = 0.5, how: str = "wait", seconds: float = 0.3, url: str | None = None
    ) -> subprocess.Popen[str]:
        """Start a host, and wait until it is ready; `url` leads it to the ledger by another way."""
        return self.started(start_host(url or self.url, self.folder, name, heartbeat, how, seconds))

    def hear(self, child: subprocess.Popen[str], word: str) -> None:
        assert child.stdout is not None
        assert any(line.strip() == word for line in child.stdout), word

    def stop(self, child: subprocess.Popen[str]) -> None:
        """Stop a host (SIGSTOP), but not inside of a transaction: SQLite's lock would stop all others as well."""
        _stop(child.pid)
        while not self._can_be_written():
            os.kill(child.pid, signal.SIGCONT)
            time.sleep(0.005)
            _stop(child.pid)

    def _can_be_written(self) -> bool:
        with closing(sqlite3.connect(self.folder / "ledger.db", timeout=0.5, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return False
            connection.execute("ROLLBACK")
            return True

    async def post(self) -> None:
        """Post one order to each thread."""
        async with self.ledger() as ledger:
            for number in range(self.threads):
                await self.post_order(ledger, number, f"t{number}")

    def wait_for_effects(self, number: int, *names: str) -> None:
        """Wait until so many effects have begun on hosts."""
        wait_for_effects(self, number, *names)

    async def wait_for_beat(self, name: str) -> None:
        """Wait until a host begins its lease anew."""

        async def until(ledger: Ledger) -> datetime:
            (found,) = [each.until for each in await ledger.hosts() if each.host.name == name]
            return found

        async with self.ledger() as ledger:
            before = await until(ledger)
            while await until(ledger) == before:  # noqa: ASYNC110 (other processes tell nobody)
                await asyncio.sleep(0.02)

    def wait_until_all_ends(self) -> None:
        asyncio.run(self.wait(soak.is_at_rest))

    async def heads(self) -> list[tuple[str, int, int, str]]:
        """Return how long each thread is; without the sign of the epoch, which changes when an idle thread is released."""
        async with self.ledger() as ledger:
            return [(head.thread_id, head.seq, abs(head.epoch), head.hash) for head in await heads_of(ledger)]

    # ------------------------------------------------------------ what must hold

    def check(self, went_on: float = float("inf")) -> tuple[set[str], int]:
        """Check the rules; return the threads that are parked, and how many effects began in the documented window.

        What host `a` says about claims after it `went_on` is not news: it claimed before it was stopped.
        """
        seen = [each for each in self.witnessed() if (each.what, each.who) != ("claim", "a") or each.at < went_on]
        rest, window, parked = asyncio.run(self.judge(seen))
        assert not rest, rest
        return {thread for thread, _ in parked}, window

    def taken_over_after(self, moment: float, *names: str) -> list[float]:
        """Return how long after a moment each thread was claimed by these hosts for the first time since, in order."""
        first: dict[str, float] = {}
        for event in self.witnessed():
            if event.what == "claim" and event.who in names and event.at >= moment:
                first.setdefault(event.thread, event.at - moment)
        return sorted(first.values())


def _stop(pid: int) -> None:
    """Stop a process, and wait until all of its threads have stopped: until then, one may still begin a transaction."""
    os.kill(pid, signal.SIGSTOP)
    states = Path(f"/proc/{pid}/task")
    while any(_state_of(each) != "T" for each in states.iterdir()):
        time.sleep(0.001)


def _state_of(task: Path) -> str:
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def wait_for_effects(site: soak.Site, number: int, *names: str) -> None:
    """Wait until so many effects have begun on hosts."""
    until = Witness.now() + 40
    while sum(event.what == "fx" and event.who in names for event in site.witnessed()) < number:
        assert Witness.now() < until, Counter((event.who, event.what) for event in site.witnessed())
        time.sleep(0.02)


def start_host(*arguments: object) -> subprocess.Popen[str]:
    """Start `host_worker.py`, forked from a process that has imported it."""
    return forked.start(WORKER, *arguments, stdout=subprocess.PIPE, text=True)


@contextmanager
def _site(folder: Path, threads: int) -> Iterator[Site]:
    folder.mkdir(exist_ok=True)
    site = Site(folder, threads)
    try:
        asyncio.run(site.post())
        yield site
    finally:
        site.end()


def _at_work(events: list[Event], name: str, moment: float) -> set[str]:
    """Return the threads in which a host was at an effect, or may have been: its last row there is an intent."""
    ended = {event.thread for event in events if event.what == "ok" and event.id.endswith("/pay@ended")}
    begun = [event for event in events if event.who == name and event.id.endswith(("/pay", "/pay@begun"))]
    return {event.thread for event in begun if event.at <= moment} - ended


# ---------------------------------------------------------------- killed


def test_all_threads_of_a_host_that_was_killed_are_taken_over_and_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F13, G15: the killed one has all threads in hand, and is at work in some. The heartbeat is 2 s."""
    threads = count("threads")
    with _site(tmp_path, threads) as site:
        victim = site.start("a", heartbeat=2, seconds=60)
        asyncio.run(site.wait(lambda ledger: _owns(ledger, "a", threads)))
        for name in ("b", "c"):
            site.start(name, heartbeat=2, seconds=0.05)
        killed = Witness.now()
        victim.kill()
        victim.wait()
        dead = Witness.now()  # on a busy machine it begins some more effects until the signal comes
        site.wait_until_all_ends()
        took = site.taken_over_after(killed, "b", "c")
        parked, window = site.check()

        assert len(took) == threads
        assert parked <= _at_work(site.witnessed(), "a", dead)
        assert window == 0
        with capsys.disabled():
            print("\n" + _histogram(took), f"parked: {len(parked)} of {threads}", sep="\n")  # noqa: T201 (a figure)
        assert took[int(len(took) * 0.99)] < 10


async def _owns(ledger: Ledger, name: str, number: int) -> bool:
    return any(each.host.name == name and each.threads >= number for each in await ledger.hosts())


def _histogram(seconds: list[float]) -> str:
    bars = Counter(int(each * 2) / 2 for each in seconds)
    lines = [f"  {start:4.1f} s  {'#' * -(-number // 4)} {number}" for start, number in sorted(bars.items())]
    p50, p99 = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.99)]
    return "\n".join(["time until a thread of the killed host is taken over:", *lines, f"  p50 {p50:.2f} s, p99 {p99:.2f} s"])


def test_hosts_that_are_killed_at_any_time_lose_nothing(tmp_path: Path) -> None:
    """F13: of three hosts, two are killed while they work."""
    for number in range(count("F13 hosts")):
        with _site(tmp_path / str(number), 30) as site:
            hosts = [site.start(name, seconds=0.1) for name in "abc"]
            for each in hosts[:2]:
                site.wait_for_effects(1 + number % 7, "a", "b", "c")
                each.kill()
                each.wait()
            site.wait_until_all_ends()
            site.check()


# ---------------------------------------------------------------- stopped


def test_a_host_that_was_stopped_past_its_lease_writes_nothing_afterwards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F14, G8: others take its threads over. When it goes on, its rows are refused, and it starts nothing.

    Except in the window: its intent was compared before it was stopped, and it is called afterwards. Those are counted.
    """
    windows = 0
    for number in range(count("F14")):
        with _site(tmp_path / str(number), 20) as site:
            old = site.start("a", seconds=0.4)
            site.wait_for_effects(1 + number % 5, "a")
            site.stop(old)
            site.start("b", seconds=0.05)
            site.wait_until_all_ends()
            before = asyncio.run(site.heads())
            went_on = Witness.now()
            os.kill(old.pid, signal.SIGCONT)
            time.sleep(2)
            assert asyncio.run(site.heads()) == before
            assert site.taken_over_after(0, "b")
            windows += site.check(went_on)[1]
    with capsys.disabled():
        print(f"\n{windows} effects began in the window, in {count('F14')} runs")  # noqa: T201 (a figure)


def test_a_host_that_was_stopped_for_less_than_its_lease_keeps_its_threads(tmp_path: Path) -> None:
    """F15."""
    for number in range(count("F15")):
        with _site(tmp_path / str(number), 10) as site:
            owner = site.start("a", heartbeat=1, seconds=2.5)
            site.wait_for_effects(10, "a")
            site.start("b", heartbeat=1)
            asyncio.run(site.wait_for_beat("a"))
            site.stop(owner)
            time.sleep(1.8)  # its lease is three
            os.kill(owner.pid, signal.SIGCONT)
            site.wait_until_all_ends()
            parked, window = site.check()
            assert (parked, window, site.taken_over_after(0, "b")) == (set(), 0, [])


# ---------------------------------------------------------------- told to end


def test_a_stopping_host_hands_its_threads_over(tmp_path: Path) -> None:
    """F16: running effects end within its grace, so nothing is parked; the other host does the rest."""
    for number in range(count("F16 hosts")):
        with _site(tmp_path / str(number), 20) as site:
            first = site.start("a", seconds=0.5)
            site.wait_for_effects(1 + number % 10, "a")
            site.start("b", seconds=0.05)
            first.terminate()
            assert first.wait(30) == TOLD
            site.wait_until_all_ends()
            assert site.check() == (set(), 0)


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, TOLD), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_second_signal_to_a_stopping_host_loses_nothing(second: signal.Signals, code: int, tmp_path: Path) -> None:
    """F16: running effects are parked, as after a crash."""
    for number in range(count("F16 hosts")):
        with _site(tmp_path / str(number), 8) as site:
            first = site.start("a", seconds=60)
            site.wait_for_effects(8, "a")
            site.start("b", seconds=0.05)
            first.terminate()
            site.hear(first, "ending")
            first.send_signal(second)
            assert first.wait(30) == code
            site.wait_until_all_ends()
            assert site.check() == ({f"t{each}" for each in range(8)}, 0)


# ---------------------------------------------------------------- blocked


def test_a_host_whose_event_loop_is_blocked_past_its_lease_keeps_its_threads(tmp_path: Path) -> None:
    """F18, G15: its watchdog renews the lease. Nothing is taken over, parked or done twice."""
    for number in range(count("F18")):
        with _site(tmp_path / str(number), 10) as site:
            site.start("a", how="block", seconds=10 if count("F18") > 1 else 4)
            site.wait_for_effects(1, "a")
            site.start("b", seconds=0.05)
            site.wait_until_all_ends()
            time.sleep(4)
            assert site.check()[1] == 0
            assert site.taken_over_after(0, "b") == []
