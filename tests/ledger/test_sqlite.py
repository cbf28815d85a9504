"""A ledger in a file: how it is opened, written by many at once, kept small, copied, and brought to a later form."""

import asyncio
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.forked import ROOT, Forked
from tests.ledger.histories import answered, at, called, everything, fill, said, with_ledger
from tests.ledger.talk import conversation, errands

from antiphon import MediaPart, Message, MessageBuilder, OptionResultBuilder, PartsPayload
from antiphon.errors import AppendRefusedError, LedgerError, LedgerFormatError, LedgerUnavailableError
from antiphon.ledger import Ledger, open_ledger
from antiphon.ledger._sql import rows
from antiphon.ledger.sqlite import _appends, _connection, _writer
from antiphon.ledger.sqlite._ledger import SqliteLedger

# ---------------------------------------------------------------- opening


def opened(url: str, **options: Any) -> Any:
    async def run() -> Any:
        async with open_ledger(url, **options) as ledger:
            return await ledger.append("t", [said()])

    return asyncio.run(run())


@pytest.mark.parametrize("url", ["", "sqlite:", "sqlite:///", "mysql://x", "memory", "ledger.db", "sqlite://ledger.db"])
def test_a_wrong_url_is_explained(url: str) -> None:
    with pytest.raises(ValueError, match="a ledger's URL is memory:, sqlite:///path or postgresql"):
        opened(url)


def test_a_bare_path_is_answered_with_its_url() -> None:
    with pytest.raises(ValueError, match=r"for a file, sqlite:///ledger.db"):
        opened("ledger.db")


def test_three_slashes_are_relative_and_four_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    opened("sqlite:///folder/here.db")
    opened(f"sqlite:///{tmp_path}/there.db")

    assert sorted(each.name for each in tmp_path.rglob("*.db")) == ["here.db", "there.db"]


def test_a_missing_file_is_not_made_where_that_is_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(LedgerUnavailableError, match=r"there is no file '.*none.db'; check the path"):
        opened(f"sqlite:///{tmp_path}/none.db", create=False)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_no_ledger_is_refused_and_left_alone(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("Dear diary, " * 100)
    with pytest.raises(LedgerFormatError, match="is not a SQLite file"):
        opened(f"sqlite:///{text}")
    assert text.read_text() == "Dear diary, " * 100

    other = tmp_path / "other.db"
    apsw.Connection(str(other)).execute("CREATE TABLE songs (title)")
    with pytest.raises(LedgerFormatError, match="of something else, not a ledger"):
        opened(f"sqlite:///{other}")
    with pytest.raises(LedgerUnavailableError, match="is a folder"):
        opened(f"sqlite:///{tmp_path}")


@pytest.mark.parametrize("version", ["3.7.17", "3.44.2", "3.50.4", "3.51.2"])
def test_a_sqlite_with_the_wal_reset_bug_is_refused(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F12: and the error says what to install."""
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    with pytest.raises(LedgerUnavailableError, match=r"WAL-reset bug.*pip install 'apsw>=3.51.3'"):
        opened(f"sqlite:///{tmp_path}/ledger.db")


@contextmanager
def connected(path: Path) -> Iterator[_connection.Connection]:
    connection = _connection.connect(_connection.LedgerFile(str(path), 5))
    yield connection
    connection.close()


def test_the_settings_that_make_it_durable_are_on(tmp_path: Path) -> None:
    fill(tmp_path / "ledger.db")
    with connected(tmp_path / "ledger.db") as connection:
        assert connection.setting("journal_mode") == "wal"
        assert connection.setting("synchronous") == 2


# ---------------------------------------------------------------- many at once


class CountingVfs(apsw.VFS):
    """The usual files, and how often one was synced."""

    def __init__(self, name: str) -> None:
        self.syncs = 0
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        counting = self

        class File(apsw.VFSFile):
            def xSync(self, flags: int) -> None:
                counting.syncs += 1
                super().xSync(flags)

        return File("", name, flags)


def test_many_writers_share_a_sync(tmp_path: Path) -> None:
    vfs = CountingVfs("counting")

    async def work(ledger: SqliteLedger) -> int:
        await ledger.append("warm", [said()])
        before = vfs.syncs
        await asyncio.gather(*(ledger.append(f"t{number}", [said()]) for number in range(100)))
        return vfs.syncs - before

    assert with_ledger(tmp_path / "ledger.db", work, vfs="counting") < 20


def test_a_single_append_is_synced_before_it_is_acknowledged(tmp_path: Path) -> None:
    """G1: a repeated append is synced too, because its first writer may have died before the sync."""
    vfs = CountingVfs("counting-2")

    async def work(ledger: SqliteLedger) -> None:
        message = said()
        for _ in range(3):
            before = vfs.syncs
            await ledger.append("t", [message])
            assert vfs.syncs > before

    with_ledger(tmp_path / "ledger.db", work, vfs="counting-2")


def test_a_refusal_harms_no_other_in_the_same_commit(tmp_path: Path) -> None:
    async def work(ledger: Ledger) -> None:
        good = [ledger.append(f"t{number}", [said()]) for number in range(30)]
        bad = [ledger.append(f"t{number}", [said(), answered(called())]) for number in range(30)]
        outcomes = await asyncio.gather(
            *(each for pair in zip(bad, good, strict=True) for each in pair), return_exceptions=True
        )
        assert all(isinstance(each, AppendRefusedError) for each in outcomes[::2])
        assert all(isinstance(each, tuple) for each in outcomes[1::2])
        assert (await ledger.verify()).messages == 30

    with_ledger(tmp_path / "ledger.db", work)


def test_a_repeated_message_harms_no_other_in_the_same_commit(tmp_path: Path) -> None:
    async def work(ledger: Ledger) -> None:
        message = said()
        first = await ledger.append("t", [message])
        call = called()
        outcomes = await asyncio.gather(
            ledger.append("t", [said("before")]),
            ledger.append("t", [call]),
            ledger.append("t", [message]),
            ledger.append("t", [answered(call)]),
            ledger.append("u", [message]),
            ledger.append("u", [message]),
        )
        assert outcomes[2] == first
        assert [record.seq for records in outcomes for record in records] == [2, 3, 1, 4, 1, 1]
        assert (await ledger.verify()).damages == ()

    with_ledger(tmp_path / "ledger.db", work)


def test_cancelling_the_caller_does_not_withdraw_what_is_queued(tmp_path: Path) -> None:
    async def work(ledger: Ledger) -> int:
        tasks = [asyncio.create_task(ledger.append("t", [said(str(number))])) for number in range(50)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        done = await asyncio.gather(*tasks, return_exceptions=True)
        assert any(isinstance(each, asyncio.CancelledError) for each in done)
        await ledger.append("t", [said("last")])
        return len(await everything(ledger))

    assert with_ledger(tmp_path / "ledger.db", work) == 51


@pytest.mark.slow
def test_a_writer_faster_than_the_disk_has_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G18: only so much is in memory; nothing is lost."""
    monkeypatch.setattr(_writer, "_ROOM", 20_000)

    async def work(ledger: Any) -> int:
        lowest = 20_000

        async def write(number: int) -> None:
            nonlocal lowest
            await ledger.append("t", [said("x" * 1000, id=str(number))])
            lowest = min(lowest, ledger._writer._room)

        await asyncio.gather(*(write(number) for number in range(500)))
        assert lowest > -3000
        await ledger.append("t", [said("x" * 200_000)])
        return len(await everything(ledger))

    assert with_ledger(tmp_path / "ledger.db", work) == 501


def test_the_log_is_copied_into_the_file_before_it_grows_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer, "_LOG_PAGES", 50)
    path = tmp_path / "ledger.db"

    async def work(ledger: Ledger) -> int:
        largest = 0
        for _ in range(200):
            await ledger.append("t", [said("x" * 4000)])
            largest = max(largest, (tmp_path / "ledger.db-wal").stat().st_size)
        return largest

    assert with_ledger(path, work) < 100 * 4120


WRITER = """
import asyncio, sys
from antiphon.ledger import open_ledger
from tests.ledger.histories import said

async def run(path, name, count):
    async with open_ledger(f"sqlite:///{path}", busy_timeout=60) as ledger:
        print("ready", flush=True)
        sys.stdin.readline()
        for number in range(count):
            await ledger.append("t", [said(f"{name}-{number}", id=f"{name}-{number}")])

asyncio.run(run(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def start_writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, str(path), name, str(count)]
    return Forked(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def release(writers: list[subprocess.Popen[str]]) -> None:
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdin is not None
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()


@pytest.mark.slow
def test_several_processes_write_one_thread_and_a_reader_sees_it_grow_in_order(tmp_path: Path) -> None:
    """G3: they also open the new file at the same moment; nobody sees N+1 before N, in any store or tail."""
    path = tmp_path / "ledger.db"
    writers = [start_writer(path, name, 40) for name in ("a", "b", "c", "d")]
    release(writers)

    async def work(ledger: Ledger) -> None:
        seen: list[str] = []
        async with asyncio.timeout(120):
            async for tailed in ledger.tail(thread_id="t"):
                assert tailed.record.seq == len(seen) + 1
                seen.append(tailed.record.message.id)
                if len(seen) % 20 == 1:
                    records = await everything(ledger)
                    assert [record.seq for record in records] == list(range(1, len(records) + 1))
                    assert [record.message.id for record in records][: len(seen)] == seen
                if len(seen) == 160:
                    break
        for name in ("a", "b", "c", "d"):
            assert [each for each in seen if each.startswith(name)] == [f"{name}-{number}" for number in range(40)]
        assert (await ledger.verify()).is_whole

    with_ledger(path, work)
    assert [writer.wait(10) for writer in writers] == [0, 0, 0, 0]
    for writer in writers:
        for stream in (writer.stdin, writer.stdout):
            assert stream is not None
            stream.close()


@pytest.mark.slow
def test_a_lock_that_is_held_too_long_is_a_typed_error_and_no_loss(tmp_path: Path) -> None:
    """F10: bounded waiting, and the next append goes through."""
    path = tmp_path / "ledger.db"
    fill(path, threads=1)

    async def work(ledger: Ledger) -> None:
        with connected(path) as other:
            other.run("BEGIN IMMEDIATE")
            with pytest.raises(LedgerUnavailableError, match="locked by another process") as caught:
                await ledger.append("t0", [said("late", id="late")])
            assert caught.value.retryable
            assert len(await everything(ledger, "t0")) == 12
            other.run("ROLLBACK")
        await ledger.append("t0", [said("late", id="late")])
        assert len(await everything(ledger, "t0")) == 13

    with_ledger(path, work, busy_timeout=0.05)


async def test_another_process_that_claims_fences_this_one(tmp_path: Path) -> None:
    """G8: what is remembered of a thread is forgotten when another connection has committed."""
    path = tmp_path / "ledger.db"

    async with at(path) as one, at(path) as other:
        epoch = await one.claim("t")
        await one.append("t", [said()], epoch=epoch)
        later = await other.claim("t")
        with pytest.raises(LedgerError, match=f"epoch {epoch} was given, but its owner has epoch {later}"):
            await one.append("t", [said()], epoch=epoch)
        await other.append("t", [said()], epoch=later)
        (record,) = await one.append("t", [said()], epoch=later, expected_version=2)
        assert record.seq == 3


async def test_a_thread_in_use_is_looked_up_again_only_after_another_has_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor after a reader has looked, or the log was copied, which a commit of another's must be told from."""
    path, looked = tmp_path / "ledger.db", list[str]()

    def noted(thread_id: str) -> Any:
        looked.append(thread_id)
        return rows.find_thread(thread_id)

    monkeypatch.setattr(_appends, "find_thread", noted)

    async with at(path) as one, at(path) as other:
        await one.append("t", [said()])
        for _ in range(3):
            await one.append("t", [said()])
            await everything(other)
            with connected(path) as copier:
                copier.wal_checkpoint()
        assert looked == ["t"]
        await other.append("u", [said()])
        await one.append("t", [said()])
        await one.append("t", [said()])
        assert looked == ["t", "u", "t"]


# ---------------------------------------------------------------- size and cost


def stored_bytes(path: Path, messages: list[Message], *, search: bool) -> float:
    async def work(ledger: Ledger) -> int:
        house = 0
        for start in range(0, len(messages), 50):
            house += sum(len(record.body) for record in await ledger.append("t", messages[start : start + 50]))
        if search:
            assert await ledger.search("ferry")
        return house

    house = with_ledger(path, work)
    return path.stat().st_size / house


def short() -> Iterator[Message]:
    """Yield texts of three words, as the builder makes them: with an id, a turn and a time."""
    for number in range(1000):
        yield MessageBuilder(step_num=number).add_text(f"the ferry {number}").to_message()


def tiny() -> Iterator[Message]:
    """Yield what others may send: hardly a text, a short id, no turn, no time."""
    for number in range(1000):
        yield said("ferry", id=f"m-{number}", created_at=None)


SIZES = {
    # what is said: a thousand messages, and how many times their bytes the file may be, without and with the index of words
    "tools": (lambda: conversation(200), 1.6, 2.1),
    "mixed": (lambda: errands(200), 1.6, 2.1),
    "short": (short, 1.65, 2.1),
    "tiny": (tiny, 2.25, 2.45),  # of 120 bytes: the smallest that the builder makes has 260
}


@pytest.mark.parametrize("search", [False, True])
@pytest.mark.parametrize("kind", SIZES)
def test_a_thousand_messages_take_little_more_than_their_bytes(kind: str, search: bool, tmp_path: Path) -> None:
    make, plain, searchable = SIZES[kind]
    messages = list(make())
    assert len(messages) == 1000
    assert stored_bytes(tmp_path / "ledger.db", messages, search=search) <= (searchable if search else plain)


@pytest.mark.slow
def test_a_medium_is_kept_once_and_goes_with_its_last_use(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    picture = MediaPart(modality="image", url="data:image/png;base64," + os.urandom(300_000).hex())

    async def work(ledger: Ledger) -> None:
        for number in range(10):
            await ledger.append(f"t{number}", [Message(policy="u", payload=PartsPayload(parts=(picture,)))])

    async def forget(ledger: Ledger) -> None:
        for number in range(9):
            await ledger.delete(f"t{number}")
        (record,) = await everything(ledger, "t9")
        assert record.message.parts == (picture,)
        await ledger.delete("t9")

    with_ledger(path, work)
    assert path.stat().st_size < 1_000_000
    with_ledger(path, forget)
    assert picture.url.encode()[1000:2000] not in path.read_bytes()


def test_deleted_messages_are_not_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def work(ledger: Ledger) -> None:
        await ledger.append("gone", [said("Rumpelstilzchen " * 10)])
        await ledger.append("stays", [said("Aschenputtel")])
        assert await ledger.search("rumpelstilzchen")
        await ledger.delete("gone")

    with_ledger(path, work)
    content = path.read_bytes().lower()
    assert b"aschenputtel" in content
    assert b"umpelstil" not in content


@pytest.mark.slow
def test_a_fork_does_not_read_what_it_shares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """O(1) in the length: the same rows are looked at for a thread of 2,000 messages as for one of 20."""
    looked_at: list[int] = []
    link = rows.link

    def counting(previous: bytes, recorded_at: int, body: bytes) -> bytes:
        looked_at.append(1)
        return link(previous, recorded_at, body)

    monkeypatch.setattr(rows, "link", counting)

    async def work(ledger: Ledger) -> list[int]:
        counts = []
        for length in (20, 2000):
            call = called()
            await ledger.append(f"t{length}", [said() for _ in range(length)])
            await ledger.append(f"t{length}", [call, said()])
            looked_at.clear()
            await ledger.fork(f"t{length}", at=length + 2)
            counts.append(len(looked_at))
        return counts

    short, long = with_ledger(tmp_path / "ledger.db", work)
    assert short == long < 10


@pytest.mark.slow
def test_a_search_brings_the_index_of_words_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def work(ledger: Ledger) -> None:
        await ledger.append("t", [said(f"word{number}") for number in range(1200)])
        assert len(await ledger.search("word1199")) == 1
        await ledger.append("t", [said("brandnew")])
        assert [hit.record.seq for hit in await ledger.search("brandnew")] == [1201]
        assert await ledger.search("nowhere") == ()

    with_ledger(path, work)


def test_the_best_hit_comes_first(tmp_path: Path) -> None:
    async def work(ledger: Ledger) -> list[int]:
        await ledger.append("t", [said("fox " + "and so on " * 50), said("fox fox fox"), said("no animals")])
        return [hit.record.seq for hit in await ledger.search("fox")]

    assert with_ledger(tmp_path / "ledger.db", work) == [2, 1]


# ---------------------------------------------------------------- backup


def test_a_backup_taken_while_others_write_is_a_consistent_beginning(tmp_path: Path) -> None:
    """G26: restored, every thread is whole, and is the beginning of what it became."""
    path, copy = tmp_path / "ledger.db", tmp_path / "copy.db"

    async def work(ledger: Ledger) -> list[str]:
        async def write(name: str) -> None:
            for _ in range(40):
                call = called()
                await ledger.append(name, [call, OptionResultBuilder.response_to(call).success(1)])

        await ledger.append("a", [said()])
        writers = [asyncio.create_task(write(name)) for name in "abc"]
        await asyncio.sleep(0.01)
        await ledger.backup(copy)
        await asyncio.gather(*writers)
        with pytest.raises(FileExistsError, match="is there already"):
            await ledger.backup(copy)
        return [record.hash for record in await everything(ledger, "a")]

    async def look(ledger: Ledger) -> list[str]:
        assert (await ledger.verify()).is_whole
        return [record.hash for record in await everything(ledger, "a")]

    whole = with_ledger(path, work)
    restored = with_ledger(copy, look)
    assert restored
    assert restored == whole[: len(restored)]
    assert [each.name for each in tmp_path.iterdir() if "partial" in each.name] == []


def test_memory_has_no_file_to_copy() -> None:
    async def work(ledger: Ledger) -> None:
        with pytest.raises(ValueError, match="has no file to copy"):
            await ledger.backup("x.db")

    with_ledger(None, work)


async def test_a_ledger_that_waits_keeps_nothing_of_what_it_wrote_last(tmp_path: Path) -> None:
    """The last batch may be megabytes of messages."""

    class Work:
        def __call__(self, connection: Any) -> None:
            pass

    async with SqliteLedger.open(str(tmp_path / "ledger.db")) as ledger:
        work = Work()
        kept = weakref.ref(work)
        await ledger._writer.do(work)
        del work
        async with asyncio.timeout(20):
            while kept() is not None:  # noqa: ASYNC110 (of another thread)
                await asyncio.sleep(0.01)
