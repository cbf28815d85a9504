"""F2 (G1, G2): after a power cut at any operation of the disk, all that was acknowledged is there, and nothing is damaged.

And builds that are broken on purpose are caught: a check that cannot fail proves nothing.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.ledger.faults.after import restored
from tests.ledger.faults.counts import count
from tests.ledger.faults.disk import Disk
from tests.ledger.faults.power import Scribe, a_disk, fingerprint, recorded, tried, work
from tests.ledger.histories import at, said

from antiphon import Usage
from antiphon.ledger import Snapshot
from antiphon.ledger.sqlite import _appends, _connection, _writer
from antiphon.ledger.sqlite._connection import LedgerFile, connect

SHARES = 4
"""Runs that share the work, so that several processes can do it."""


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    monkeypatch.setattr(_writer, "_LOG_PAGES", 40)  # so that the log is copied into the file many times
    with a_disk() as disk:
        yield disk


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SHARES))
def test_a_power_cut_loses_nothing_that_was_acknowledged(seed: int, disk: Disk, record_property: Any) -> None:
    events = recorded(disk, lambda scribe: work(scribe, seed))
    cuts = tried(disk, events, most=count("F2") // SHARES, seeds=max(3, count("F2") // SHARES // len(disk.log) + 1))

    told = f"{cuts.tried} power cuts of {cuts.attempted} appends, {cuts.acknowledged} acknowledged; added up over the cuts, "
    told += f"{cuts.before} acknowledged before, {cuts.present} present after, {len(cuts.lost)} lost"
    record_property("F2", f"part {seed + 1} of {SHARES}: {told}")
    assert cuts.lost == []
    assert cuts.tried >= count("F2") // SHARES
    assert cuts.attempted >= cuts.acknowledged > 45
    assert cuts.present >= cuts.before > 0


@pytest.mark.slow
def test_all_parts_of_an_append_are_stored_or_none(disk: Disk, tmp_path: Path) -> None:
    """G4: message, snapshot, status and tokens; a posted message and the mark that it is due; at each operation."""
    appends = 3

    async def doing(scribe: Scribe) -> None:
        for number in range(1, appends + 1):
            spoken = said(f"{number}", usage=Usage(input_tokens=1))
            await scribe.append("t", [spoken], snapshot=Snapshot("count", number), status=f"at-{number}")
        await scribe.ledger.post("t", said("posted", to=("x",)))

    recorded(disk, doing)
    images = {fingerprint(image): image for _, image in disk.cuts(seeds=3)}
    seen = {parts_of(restored(tmp_path, image)) for image in images.values()}

    unposted = {(n, n, f"at-{n}", n, 0, False) for n in range(1, appends + 1)}
    posted = (appends + 1, appends, f"at-{appends}", appends, appends + 1, True)
    assert seen == {(0, None, None, None, None, None), *unposted, posted}


def parts_of(path: Path) -> tuple[Any, ...]:
    """Return how many messages there are, how far the snapshot is, the status, the tokens, and the mark of a post."""
    connection = connect(LedgerFile(str(path), 5), create=True)
    try:
        messages = connection.value("SELECT count(*) FROM messages")
        snapshot = connection.value("SELECT seq FROM snapshots")
        status, tokens, posted, due_at = (
            connection.row("SELECT status, input_tokens, posted, due_at FROM threads") or [None] * 4
        )
        return messages, snapshot, status, tokens, posted, None if posted is None else due_at is not None
    finally:
        connection.close()


@pytest.mark.slow
def test_a_repeated_append_is_on_the_disk_when_it_is_acknowledged(disk: Disk) -> None:
    """A process dies after it has written and before it has synced; another finds its message there and says so: synced."""
    events = killed_and_repeated(disk)

    assert tried(disk, events, most=300).lost == []


def killed_and_repeated(disk: Disk) -> list[Any]:
    message = said("it arrived, and nobody knows")

    async def run() -> list[Any]:
        async with at(disk.path(), vfs=disk.name) as ledger:
            scribe = Scribe(disk, ledger)
            await scribe.append("t", [said("before")])
            disk.fault = stop_at_next_sync
            await scribe.append("t", [message])  # written, not synced: the process is as good as dead
            disk.fault = lambda kind, file: None
            forget_failed_sync(disk)
        async with at(disk.path(), vfs=disk.name) as ledger:
            again = Scribe(disk, ledger)
            assert await again.append("t", [message])
        return scribe.events + again.events

    def stop_at_next_sync(kind: str, file: str) -> Exception | None:
        return apsw.IOError("the process died here") if kind == "sync" else None

    return asyncio.run(run())


def forget_failed_sync(disk: Disk) -> None:
    """The process was killed before it could sync: what it wrote is as any other write, not as a failed sync leaves it."""
    disk.log[:] = [op for op in disk.log if op.kind != "unsynced"]


# ---------------------------------------------------------------- broken on purpose


def normal_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    prepare = _connection._prepare

    def prepared(connection: Any, place: Any, **more: Any) -> None:
        prepare(connection, place, **more)
        connection.setting("synchronous", "NORMAL")

    monkeypatch.setattr(_connection, "_prepare", prepared)


def acknowledge_before_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = _writer.Writer._attempt

    def attempted(self: Any, connection: Any, batch: Any, *, is_careful: bool) -> None:
        run = connection.run

        def early(sql: str, values: Any = ()) -> None:
            if sql == "COMMIT":
                told = asyncio.run_coroutine_threadsafe(_tell(self, batch), self._loop)
                told.result()
            run(sql, values)

        connection.run = early
        try:
            attempt(self, connection, batch, is_careful=is_careful)
        finally:
            del connection.run

    async def _tell(writer: Any, batch: Any) -> None:
        writer._settle(batch)
        for _ in range(5):
            await asyncio.sleep(0)

    monkeypatch.setattr(_writer.Writer, "_attempt", attempted)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [normal_sync, acknowledge_before_commit])
def test_a_build_that_is_broken_on_purpose_is_caught(broken: Any, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch)
    events = recorded(disk, lambda scribe: work(scribe, 1, is_plain=True))
    monkeypatch.undo()

    assert any("it was acknowledged and is not there" in each for each in tried(disk, events, most=400, seeds=1).lost)


@pytest.mark.slow
def test_repeating_without_a_sync_is_caught(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The build in which a repeated append is answered without waiting for the disk."""
    run = _appends.Connection.run

    def quiet(self: Any, sql: str, values: Any = ()) -> None:
        if "WHERE name = 'repeated'" not in sql:
            run(self, sql, values)

    monkeypatch.setattr(_appends.Connection, "run", quiet)
    monkeypatch.setattr(_appends, "check_written", lambda written, expected: None)  # it would notice
    events = killed_and_repeated(disk)
    monkeypatch.undo()

    assert tried(disk, events, most=300).lost


@pytest.mark.slow
def test_going_on_after_a_failed_sync_is_caught_and_not_done(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """F8: a failed sync leaves data that all see and the disk has not; what is acknowledged later does not rest on it."""
    assert tried(disk, repeated_after_failed_sync(disk), most=600).lost == []

    with a_disk() as other:
        give_up = _writer.Writer._give_up

        def trusting(self: Any, exc: Exception) -> None:
            give_up(self, exc)
            self._is_suspect = False

        monkeypatch.setattr(_writer.Writer, "_give_up", trusting)
        monkeypatch.setattr(_writer, "_LOG_PAGES", 10_000)
        assert tried(other, repeated_after_failed_sync(other), most=600).lost


def repeated_after_failed_sync(disk: Disk) -> list[Any]:
    message = said("seen by all, and not on the disk")

    async def doing(scribe: Scribe) -> None:
        await scribe.append("t", [said("before")])
        await scribe.ledger.head("t")  # a reader stays: so closing the writer's connection does not copy the log
        failing = iter([apsw.IOError("EIO")])
        disk.fault = lambda kind, file: next(failing, None) if kind == "sync" else None
        assert not await scribe.append("t", [message])
        assert await scribe.append("t", [message])
        assert await scribe.append("t", [said("after")])

    return recorded(disk, doing)
