"""Real processes that host threads of one ledger in a file: killed, stopped, told to end, blocked (F13-F16, F18; G7, G8)."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, closing, contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest
from tests import forked
from tests.runtime.counts import count
from tests.runtime.host_worker import Order

from antiphon.ledger import Ledger, open_ledger
from antiphon.messages import Message, OptionCallPayload
from antiphon.testing import Breach, Event, Evidence, check_witness, content_of, gather_evidence, read_events

pytest.importorskip("apsw")
pytestmark = pytest.mark.slow

WORKER = Path(__file__).parent / "host_worker.py"
TOLD = 128 + signal.SIGTERM


class Site:
    """A ledger, and the processes that host its threads."""

    def __init__(self, folder: Path, threads: int, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder}/ledger.db"
        self.threads = threads
        self.events: list[Event] = []
        self._children: list[subprocess.Popen[str]] = []

    def start(
        self, name: str, *, heartbeat: float = 0.5, how: str = "wait", seconds: float = 0.3, url: str | None = None
    ) -> subprocess.Popen[str]:
        """Start a host, and wait until it is ready; `url` leads it to the ledger by another way."""
        arguments = [url or self.url, self.folder, name, heartbeat, how, seconds]
        child = forked.start(WORKER, *arguments, stdout=subprocess.PIPE, text=True)
        self._children.append(child)
        self.hear(child, "ready")
        return child

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

    def end(self) -> None:
        for child in self._children:
            child.kill()
            child.wait()
            assert child.stdout is not None
            child.stdout.close()

    async def post(self) -> None:
        """Post one order to each thread."""
        async with self.ledger() as ledger:
            for number in range(self.threads):
                await self.post_order(ledger, number, f"t{number}")

    async def post_order(self, ledger: Ledger, number: int, thread_id: str) -> None:
        """Post an order to a thread."""
        payload = OptionCallPayload(
            invocation_id=f"m{number}", option_name=Order.message_type, arguments=Order(what=f"book {number}").to_data()
        )
        message = Message(policy="client", payload=payload, to=("shop/1",), lane="control", id=f"m{number}")
        said = {"thread": thread_id, "id": message.id}
        self.events.append(Event(what="inv", at=_now(), **said, content=content_of(message)))
        await ledger.post(thread_id, message)
        self.events.append(Event(what="ok", at=_now(), **said))

    def ledger(self) -> AbstractAsyncContextManager[Ledger]:
        return open_ledger(self.url)

    async def wait(self, what: Callable[[Ledger], Awaitable[bool]], limit: float = 120.0) -> None:
        async with self.ledger() as ledger, asyncio.timeout(limit):
            while not await what(ledger):  # noqa: ASYNC110 (other processes tell nobody)
                await asyncio.sleep(0.05)

    def wait_for_effects(self, number: int, *names: str) -> None:
        """Wait until so many effects have begun on hosts."""
        until = _now() + 40
        while sum(event.what == "fx" and event.who in names for event in self.witnessed()) < number:
            assert _now() < until, Counter((event.who, event.what) for event in self.witnessed())
            time.sleep(0.02)

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
        asyncio.run(self.wait(_is_at_rest))

    async def heads(self) -> list[tuple[str, int, int, str]]:
        """Return how long each thread is; without the sign of the epoch, which changes when an idle thread is released."""
        async with self.ledger() as ledger:
            return [(head.thread_id, head.seq, abs(head.epoch), head.hash) for head in await ledger.heads()]

    def witnessed(self) -> list[Event]:
        return read_events(sorted(self.folder.glob("*.witness")))

    # ------------------------------------------------------------ what must hold

    def check(self, went_on: float = float("inf")) -> tuple[set[str], int]:
        """Check the rules; return the threads that are parked, and how many effects began in the documented window.

        What host `a` says about claims after it `went_on` is not news: it claimed before it was stopped.
        """
        seen = [each for each in self.witnessed() if (each.what, each.who) != ("claim", "a") or each.at < went_on]
        rest, window, parked = self.judge(seen)
        assert not rest, rest
        return parked, window

    def judge(self, seen: list[Event]) -> tuple[list[Breach], int, set[str]]:
        """Return the broken rules, how many effects began in the documented window, and the threads that are parked."""
        evidence, parked = asyncio.run(self._gather())
        events = [*self.events, *_written_by(seen), *(_park(thread, call) for thread, call in parked)]
        found = check_witness(events, evidence).breaches
        window = [each for each in found if "after it had lost the thread" in each.what]
        compared = {(event.thread, event.id.partition("@")[0], event.epoch) for event in events if event.what == "ok"}
        began = {(event.thread, event.id): event.epoch for event in events if event.what == "fx"}
        late = [each for each in window if (each.thread, each.id, began[each.thread, each.id]) not in compared]
        rest = [each for each in found if each not in window or each in late]
        return rest, len(window) - len(late), {thread for thread, _ in parked}

    async def _gather(self) -> tuple[Evidence, list[tuple[str, str]]]:
        async with self.ledger() as ledger:
            assert (await ledger.verify()).is_whole
            evidence = await gather_evidence(ledger)
            rows = [row if row.invocation.endswith("/pay") else replace(row, lane="runtime") for row in evidence.rows]
            calls = [
                (head.thread_id, record.message.invocation_id or "")
                for head in await ledger.heads()
                for record in await ledger.open_calls(head.thread_id)
            ]
            return Evidence(rows, evidence.statuses), calls

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


def _now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def _park(thread: str, call: str) -> Event:
    return Event(what="park", at=0, thread=thread, id=call)


def _written_by(events: list[Event]) -> list[Event]:
    """Leave out attempts that others than the writer of a row made: they were refused, or cut off.

    A host that lost a thread and got it back may try a row again: it began with the first attempt, and has the epoch and the
    content of the last one, such as the host that it then took the thread from.
    """
    written = {(event.thread, event.id): event for event in reversed(events) if event.what == "ok"}
    content = {
        (event.thread, event.id): event.content
        for event in events
        if event.what == "inv"
        and (row := written.get((event.thread, event.id))) is not None
        and event.who == row.who
        and event.at <= row.at
    }
    kept, last = list[Event](), dict[tuple[str, str], Event]()
    for event in events:
        row = written.get((event.thread, event.id))
        if event.what == "inv" and row is not None:
            said = content.get((event.thread, event.id), event.content)
            kept += [replace(event, epoch=row.epoch, content=said)] if event.who == row.who else []
        elif event.what == "inv":
            first = last.get((event.thread, event.id), event)
            last[event.thread, event.id] = replace(event, at=first.at)  # cut off: nobody knows which attempt was written
        elif event.what != "fail" or (row is not None and row.who == event.who and row.at < event.at):
            kept.append(event)
    return [*kept, *last.values()]


async def _is_at_rest(ledger: Ledger) -> bool:
    """Whether nothing is open but what is parked."""
    for head in await ledger.heads():
        rows = [record.message for record in await ledger.open_calls(head.thread_id)]
        parks = [row for row in rows if isinstance(row.payload, OptionCallPayload) and row.payload.option_name == "PARK"]
        parked = {row.parent_id for row in parks}
        if not all(row.invocation_id in parked or row.parent_id in parked for row in rows):
            return False
    return True


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
        killed = _now()
        victim.kill()
        victim.wait()
        dead = _now()  # on a busy machine it begins some more effects until the signal comes
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
            went_on = _now()
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


def test_a_host_that_is_told_to_end_hands_its_threads_over(tmp_path: Path) -> None:
    """F16: what it is at ends within its grace, so nothing is parked; the rest is done by the other one."""
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
def test_a_host_that_is_hurried_while_it_ends_loses_nothing(second: signal.Signals, code: int, tmp_path: Path) -> None:
    """F16: what it was at is parked, as after a crash."""
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


def test_a_host_whose_event_loop_is_blocked_past_its_lease_does_nothing_twice(tmp_path: Path) -> None:
    """F18: its threads are taken over; what it was at is parked, and what it does later is refused."""
    for number in range(count("F18")):
        with _site(tmp_path / str(number), 10) as site:
            site.start("a", how="block", seconds=10 if count("F18") > 1 else 4)
            site.wait_for_effects(1, "a")
            site.start("b", seconds=0.05)
            site.wait_until_all_ends()
            time.sleep(4)
            site.check()
            assert site.taken_over_after(0, "b")
