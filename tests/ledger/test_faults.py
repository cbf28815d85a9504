"""Faults, each tried many times (F1, F8 to F12): kills, failing and full disks, locks, slow writers, checkpoints in a loop.

After each: what was acknowledged is there, what was refused is not, and the ledger goes on by itself (G1, G2, G5, G19).
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests import forked
from tests.forked import Forked
from tests.ledger.faults.after import evidence_of, judged
from tests.ledger.faults.counts import count
from tests.ledger.faults.disk import Disk
from tests.ledger.faults.power import Scribe, a_disk
from tests.ledger.histories import at, everything, said, with_ledger
from tools.soak.witness import check_witness, gather_evidence, read_events

from antiphon.errors import FencedError, LedgerUnavailableError
from antiphon.ledger import Ledger
from antiphon.ledger._admission import admit
from antiphon.ledger.sqlite import _driver
from antiphon.ledger.sqlite._connection import LedgerFile, connect
from antiphon.testing import Event
from antiphon.testing._events import content_of

ROOT = Path(__file__).parents[2]

# ---------------------------------------------------------------- F1


@pytest.mark.slow
def test_a_kill_at_any_system_call_loses_nothing(tmp_path: Path, record_property: Any) -> None:
    """F1: SIGKILL at the n-th write, sync or read of the ledger's files (without strace: at a random time)."""
    command = [sys.executable, "-m", "tests.ledger.faults.kills", str(tmp_path), str(count("F1"))]
    done = forked.run(command, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    totals = json.loads(done.stdout)

    told = "{landed} of {kills} kills landed, by {by}; {attempted} attempted, {acknowledged} acknowledged, {present} present"
    record_property("F1", told.format(**totals) + f", {totals['recovered']} of them without an answer, 0 lost")
    assert totals["breaches"] == []
    assert totals["landed"] >= 0.9 * count("F1")
    assert totals["acknowledged"] > 2 * count("F1")
    assert totals["acknowledged"] <= totals["present"] <= totals["attempted"]


# ---------------------------------------------------------------- F8, F9


@pytest.fixture
def disk() -> Iterator[Disk]:
    with a_disk() as disk:
        yield disk


def failing_once(kind: str, number: int, error: type[apsw.Error]) -> Callable[[str, str], Exception | None]:
    """Return a fault for the n-th operation of a kind."""
    left = number

    def fault(what: str, file: str) -> Exception | None:
        nonlocal left
        left -= what == kind
        return error("injected") if what == kind and left == 0 else None

    return fault


async def stubborn(scribe: Scribe) -> int:
    """Append some messages, each until it is acknowledged, and return how often that failed."""
    failures = 0
    for number in range(8):
        message = said("x" * 50 * number)
        while not await scribe.append("t", [message]):
            failures += 1
            assert failures < 5
    return failures


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sync", "write"])
def test_a_failing_disk_is_a_typed_error_and_the_ledger_goes_on(kind: str, disk: Disk, record_property: Any) -> None:
    """F8, G19: EIO at the n-th sync or write, in the same process, without opening anything again by hand."""
    landed = 0
    for number in range(1, count("F8") + 1):
        path = disk.path(f"ledger-{number}.db")

        async def run(path: Path = path, number: int = number) -> tuple[int, list[Event]]:
            async with at(path, vfs=disk.name) as ledger:
                scribe = Scribe(disk, ledger)
                disk.fault = failing_once(kind, number % (8 if kind == "sync" else 30) + 1, apsw.IOError)
                failures = await stubborn(scribe)
                disk.fault = lambda kind, file: None
                assert len(await everything(ledger)) == 8
            return failures, scribe.events

        failures, events = asyncio.run(run())
        landed += failures
        assert judged(events, evidence_of(path)).breaches == ()
    record_property("F8", f"{landed} failed {kind}s landed in {count('F8')} runs, 0 lost")
    assert landed >= count("F8") * 0.8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # SQLite closes a file on a full disk
def test_a_full_disk_is_a_typed_error_and_the_ledger_goes_on_when_there_is_space(disk: Disk, record_property: Any) -> None:
    """F9, G19: nothing is lost, reading goes on, and nobody has to open the ledger again."""
    for number in range(count("F9")):
        path = disk.path(f"ledger-{number}.db")

        async def run(path: Path = path) -> None:
            async with at(path, vfs=disk.name) as ledger:
                first = await ledger.append("t", [said("there is space")])
                disk.fault = lambda kind, file: apsw.FullError("injected") if kind == "write" else None
                for _ in range(3):
                    with pytest.raises(LedgerUnavailableError, match=r"no space left for .*; make some") as caught:
                        await ledger.append("t", [said("there is none")])
                    assert caught.value.retryable
                    assert await everything(ledger) == list(first)
                disk.fault = lambda kind, file: None
                await ledger.append("t", [said("there is space again")])
                assert len(await everything(ledger)) == 2
                assert (await ledger.verify()).is_whole

        asyncio.run(run())
    record_property("F9", f"{count('F9')} times full and not full again, 0 lost")


# ---------------------------------------------------------------- F10


@pytest.mark.slow
def test_locks_that_others_hold_delay_and_lose_nothing(tmp_path: Path, record_property: Any) -> None:
    """F10: another connection takes the lock again and again, for longer than anyone waits; retrying gets everything in."""
    path = tmp_path / "ledger.db"
    refused = 0

    async def work(ledger: Ledger) -> None:
        nonlocal refused
        for number in range(count("F10")):
            other = connect(LedgerFile(str(path), 5))
            other.run("BEGIN IMMEDIATE")
            with pytest.raises(LedgerUnavailableError):
                await ledger.append("t", [said(id=f"m{number}")])
            refused += 1
            other.run("COMMIT" if number % 2 else "ROLLBACK")
            other.close()
            await ledger.append("t", [said(id=f"m{number}")])
        assert [record.message.id for record in await everything(ledger)] == [f"m{number}" for number in range(count("F10"))]

    with_ledger(path, work, busy_timeout=0.01)
    record_property("F10", f"{refused} times locked, 0 lost")


# ---------------------------------------------------------------- F11


@pytest.mark.slow
def test_a_writer_that_takes_long_hides_nothing_from_a_tail(tmp_path: Path, record_property: Any) -> None:
    """F11, G5: a transaction that took its number early and commits late; a follower gets it, and nothing twice."""
    path = tmp_path / "ledger.db"

    async def work(ledger: Ledger) -> None:
        seen: list[str] = []

        async def follow() -> None:
            async for tailed in ledger.tail():
                seen.append(tailed.record.message.id)
                if len(seen) == 2 * count("F11"):
                    break

        follower = asyncio.create_task(follow())
        async with at(path) as other:
            for number in range(count("F11")):
                slow = connect(LedgerFile(str(path), 5))
                slow.run("BEGIN IMMEDIATE")
                slow.run("UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'messages'")
                mine = asyncio.create_task(ledger.append("t", [said(id=f"mine {number}")]))
                theirs = asyncio.create_task(other.append("t", [said(id=f"theirs {number}")]))
                await asyncio.sleep(0.01)
                slow.run("COMMIT")
                slow.close()
                await asyncio.gather(mine, theirs)
        await asyncio.wait_for(follower, 10)
        assert seen == [record.message.id for record in await everything(ledger)]

    with_ledger(path, work, busy_timeout=20)
    record_property("F11", f"{count('F11')} slow transactions, 0 skipped")


# ---------------------------------------------------------------- F12

PROCESS = """
import asyncio, sys
from antiphon.ledger.sqlite._connection import LedgerFile, connect
from antiphon.testing._events import content_of
from tools.soak.witness import Witness
from tests.ledger.histories import at, said

async def write(path, seen, name, seconds):
    witness = Witness(seen, name)
    async with at(path, busy_timeout=60) as ledger:
        end = witness.now() + seconds
        while witness.now() < end:
            messages = [said("x" * 300) for _ in range(4)]
            for thread, message in zip("abcd", messages):
                witness.say("inv", thread=thread, id=message.id, content=content_of(message))
            await asyncio.gather(*(ledger.append(thread, [message]) for thread, message in zip("abcd", messages)))
            for thread, message in zip("abcd", messages):
                witness.say("ok", thread=thread, id=message.id)

def checkpoint(path, seen, name, seconds):
    import apsw
    witness = Witness(seen, name)
    end = witness.now() + seconds
    while witness.now() < end:
        connection = connect(LedgerFile(path, 1))
        for mode in (apsw.SQLITE_CHECKPOINT_PASSIVE, apsw.SQLITE_CHECKPOINT_RESTART, apsw.SQLITE_CHECKPOINT_TRUNCATE):
            try:
                connection.wal_checkpoint(mode=mode)
                witness.say("fault", content="checkpoint")
            except apsw.BusyError:
                pass
        connection.close()

path, seen, kind, name, seconds = sys.argv[1:]
if kind == "write":
    asyncio.run(write(path, seen, name, float(seconds)))
else:
    checkpoint(path, seen, name, float(seconds))
"""


@pytest.mark.slow
def test_writers_and_checkpointers_do_no_harm_to_each_other(tmp_path: Path, record_property: Any) -> None:
    """F12: four processes write while two copy the log into the file in a loop."""
    path, seconds = tmp_path / "ledger.db", count("F12")
    with_ledger(path, lambda ledger: ledger.head("t"))
    processes = []
    for number, kind in enumerate(["write"] * 4 + ["checkpoint"] * 2):
        seen = tmp_path / f"{number}.jsonl"
        command = [sys.executable, "-c", PROCESS, str(path), str(seen), kind, str(number), str(seconds)]
        processes.append(Forked(command, cwd=ROOT))
    assert [process.wait(seconds + 120) for process in processes] == [0] * 6

    report = judged(read_events(tmp_path.glob("*.jsonl")), evidence_of(path))
    record_property("F12", f"{seconds} s, {report.counts}")
    assert report.breaches == ()
    assert report.counts["acknowledged"] == report.counts["attempted"] > 0
    assert report.counts["fault checkpoint"] > 0


# ---------------------------------------------------------------- broken on purpose


class Noted:
    """A ledger whose every append is written down as a witness would."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.events: list[Event] = []

    def note(self, what: Any, **details: Any) -> None:
        self.events.append(Event(what=what, at=len(self.events), **details))

    async def claim(self, thread: str) -> int:
        epoch = await self.ledger.claim(thread)
        self.note("claim", thread=thread, epoch=epoch)
        return epoch

    async def append(self, thread: str, epoch: int | None = None) -> None:
        message = said()
        self.note("inv", thread=thread, id=message.id, content=content_of(message), epoch=epoch or 0)
        try:
            await self.ledger.append(thread, [message], epoch=epoch)
        except FencedError:
            self.note("fail", thread=thread, id=message.id)
        else:
            self.note("ok", thread=thread, id=message.id)


async def two_owners(ledger: Ledger) -> set[str]:
    """One worker loses a thread and does not notice; return the rules that are broken in the end."""
    noted = Noted(ledger)
    first = await noted.claim("t")
    await noted.append("t", first)
    second = await noted.claim("t")
    for epoch in (second, first, second, first):
        await noted.append("t", epoch)
    return {breach.rule for breach in check_witness(noted.events, await gather_evidence(ledger)).breaches}


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_a_build_without_fencing_is_caught(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G8, R8."""
    path = None if store == "memory" else tmp_path / "ledger.db"
    assert with_ledger(path, two_owners) == set()

    for module in ("antiphon.ledger.sqlite._appends", "antiphon.ledger._sql.appends"):
        monkeypatch.setattr(f"{module}.admit", _unfenced)
    other = None if path is None else tmp_path / "unfenced.db"
    assert "R8" in with_ledger(other, two_owners)


_ADMIT = admit


def _unfenced(state: Any, open_calls: Any, request: Any, lookup: Any, key: Any = None) -> Any:
    return _ADMIT(state, open_calls, request._replace(epoch=state.epoch or None), lookup, key)


async def relayed(ledger: Ledger) -> set[str]:
    """A relay that follows from its last cursor, while threads are deleted; return the rules that are broken."""
    noted, cursor = Noted(ledger), "0"
    for _ in range(6):
        await noted.append("t")
        await ledger.append("gone", [said()])
        with contextlib.suppress(TimeoutError):
            cursor = await asyncio.wait_for(_followed(noted, cursor, 2), 0.5)
        await ledger.delete("gone")
    return {breach.rule for breach in check_witness(noted.events, await gather_evidence(ledger)).breaches}


async def _followed(noted: Noted, cursor: str, most: int) -> str:
    """Note the next messages after a cursor, and return the last one's."""
    async for tailed in noted.ledger.tail(cursor):
        cursor, message, most = tailed.cursor, tailed.record.message, most - 1
        noted.note("rx", who="relay", thread=message.thread_id, id=message.id)
        if not most:
            break
    return cursor


@pytest.mark.slow
def test_a_relay_by_number_on_numbers_that_are_used_again_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G5, F11, R9: with the numbers of deleted messages used again, `position > last` skips; ours are never used again."""
    assert with_ledger(tmp_path / "ledger.db", relayed) == set()

    last = "SELECT coalesce(max(position), 0) FROM messages"
    monkeypatch.setattr(_driver, "_LAST", last)
    assert "R9" in with_ledger(tmp_path / "broken.db", relayed)
