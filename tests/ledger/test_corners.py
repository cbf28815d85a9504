"""The rare paths: errors of SQLite as ours, batches that are full, waiters that have gone, rows that point to nothing."""

import asyncio
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.ledger.faults.disk import Disk
from tests.ledger.faults.power import a_disk
from tests.ledger.histories import at, called, everything, fill, said, with_ledger
from tests.ledger.test_hostile_rows import plant

from antiphon import MediaPart, Message, PartsPayload, dumps
from antiphon.errors import (
    AppendConflictError,
    AppendRefusedError,
    FencedError,
    LedgerCorruptError,
    LedgerError,
    LedgerFormatError,
    LedgerFullError,
    LedgerUnavailableError,
    OwnedError,
    UnknownThreadError,
)
from antiphon.ledger import Host, Ledger, Record, open_ledger
from antiphon.ledger._records import Pairing
from antiphon.ledger._request import make_request
from antiphon.ledger._signals import CommitSignal
from antiphon.ledger._sql import appends, branches, rows, verify
from antiphon.ledger._sql.rows import key_of
from antiphon.ledger._stored import PageOfThread, PageRequest, read_pages
from antiphon.ledger.sqlite import _driver, _ledger, _writer
from antiphon.ledger.sqlite._connection import LedgerFile, connect, translated
from antiphon.ledger.sqlite._driver import run
from antiphon.ledger.sqlite._sql import Connection


@pytest.mark.parametrize(
    ("theirs", "ours", "words"),
    [
        (apsw.BusyError, LedgerUnavailableError, "locked by another process"),
        (apsw.FullError, LedgerFullError, "no space left"),
        (apsw.NotADBError, LedgerFormatError, "not a SQLite file"),
        (apsw.ReadOnlyError, LedgerUnavailableError, "cannot be written to"),
        (apsw.CantOpenError, LedgerUnavailableError, "cannot be opened"),
        (apsw.CorruptError, LedgerCorruptError, "is damaged"),
        (apsw.IOError, LedgerUnavailableError, "cannot be used at present"),
        (apsw.SQLError, LedgerCorruptError, "not as a ledger should be"),
    ],
)
def test_errors_of_sqlite_say_what_to_do(theirs: type[apsw.Error], ours: type[LedgerError], words: str) -> None:
    error = translated(theirs("why"), "ledger.db")

    assert type(error) is ours
    assert "'ledger.db'" in str(error)
    assert words in str(error)


def test_a_file_in_a_folder_that_is_gone_cannot_be_opened(tmp_path: Path) -> None:
    place = LedgerFile(str(tmp_path / "gone" / "ledger.db"), 5)
    with pytest.raises(LedgerUnavailableError, match="cannot be opened: .*; check the path and its permissions"):
        connect(place, create=True)


def test_errors_survive_the_way_between_processes() -> None:
    for error in (
        LedgerError("why", "t"),
        AppendRefusedError("why", "t", "AP102", "m"),
        AppendConflictError("t", 1, 2, "00"),
        FencedError("t", None, 3),
        UnknownThreadError("why", "t"),
        LedgerCorruptError("why", "t", 3),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_a_file_in_sqlites_own_memory_is_refused() -> None:
    """It would be lost in silence."""

    async def run() -> None:
        async with open_ledger("sqlite:///:memory:"):
            pass

    with pytest.raises(LedgerUnavailableError, match="cannot keep a write-ahead log"):
        asyncio.run(run())


def test_a_record_is_equal_by_what_it_holds() -> None:
    async def work(ledger: Ledger) -> None:
        (one,) = await ledger.append("t", [said("hi")])
        (again,) = await everything(ledger)
        (other,) = await ledger.append("u", [said("hi")])
        assert one == again
        assert len({one, again, other}) == 2
        assert one != "a record"
        assert repr(one) == "<Record 1: parts of 'user'>"

    with_ledger(None, work)


async def test_a_waiter_that_has_gone_is_not_woken() -> None:
    signal = CommitSignal()
    waiting = asyncio.create_task(signal.wait(0))
    staying = asyncio.create_task(signal.wait(0))
    await asyncio.sleep(0)
    waiting.cancel()
    signal.notify()
    await staying
    await signal.wait(0)
    assert not signal.is_awaited


def test_nobody_looks_for_commits_of_other_processes_when_nobody_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ledger, "_LOOK_AGAIN", 0.001)

    async def work(ledger: Any) -> None:
        await ledger.append("t", [said()])
        following = ledger.tail()
        await anext(following)
        waiting = asyncio.create_task(anext(following))
        while ledger._watch is None:  # noqa: ASYNC110 (nobody tells)
            await asyncio.sleep(0)
        waiting.cancel()
        await ledger._watch

    with_ledger(tmp_path / "ledger.db", work)


def test_a_batch_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many and large appends are committed in several batches, all of them."""
    monkeypatch.setattr(_writer, "_MOST_CHANGES", 3)

    async def work(ledger: Ledger) -> int:
        await asyncio.gather(*(ledger.append("t", [said()]) for _ in range(10)))
        monkeypatch.setattr(_writer, "_MOST_BYTES", 10_000)
        await asyncio.gather(*(ledger.append("t", [said("x" * 6000)]) for _ in range(10)))
        return len(await everything(ledger))

    assert with_ledger(tmp_path / "ledger.db", work) == 20


def test_a_waiter_for_room_that_was_cancelled_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer, "_ROOM", 3000)

    async def work(ledger: Ledger) -> int:
        tasks = [asyncio.create_task(ledger.append("t", [said("x" * 2000, id=str(number))])) for number in range(6)]
        await asyncio.sleep(0)
        tasks[2].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(await everything(ledger))

    assert with_ledger(tmp_path / "ledger.db", work) == 5


def test_a_waiter_for_room_gets_an_error_when_the_ledger_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer, "_ROOM", 3000)

    async def run() -> list[Any]:
        async with at(tmp_path / "ledger.db") as ledger:
            tasks = [asyncio.create_task(ledger.append("t", [said("x" * 2000)])) for _ in range(4)]
            await asyncio.sleep(0)
        return await asyncio.gather(*tasks, return_exceptions=True)

    outcomes = asyncio.run(run())
    assert any(isinstance(each, tuple) for each in outcomes)
    assert any(isinstance(each, LedgerUnavailableError) and "closed" in str(each) for each in outcomes)


@pytest.fixture
def disk() -> Any:
    with a_disk() as disk:
        yield disk


def test_a_change_that_meets_a_failing_disk_fails_its_batch(disk: Disk) -> None:
    async def run() -> None:
        async with at(disk.path(), vfs=disk.name) as ledger:
            await ledger.append("t", [said()])
            with pytest.raises(LedgerUnavailableError):
                await ledger._writer.do(failing)
            await ledger.append("t", [said()])
            assert len(await everything(ledger)) == 2

    def failing(connection: Any) -> None:
        raise apsw.IOError

    asyncio.run(run())


async def test_a_log_that_cannot_be_copied_is_tried_again(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error in the copying, the next append is made on a connection that begins with it."""
    monkeypatch.setattr(_writer, "_LOG_PAGES", 10)

    async with at(disk.path(), vfs=disk.name) as ledger:
        disk.fault = lambda kind, file: apsw.IOError("injected") if file == "ledger.db" and kind == "write" else None
        for _ in range(12):
            try:
                await ledger.append("t", [said("x" * 1000)])
            except LedgerUnavailableError:
                break
        disk.fault = lambda kind, file: None
        count = len(await everything(ledger))
        await ledger.append("t", [said("after")])
        assert len(await everything(ledger)) == count + 1
        assert (await ledger.verify()).is_whole


@pytest.mark.slow
def test_a_log_that_a_reader_holds_begins_anew_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer, "_LOG_PAGES", 10)
    monkeypatch.setattr(_writer, "_PATIENCE", 1)
    log = tmp_path / "ledger.db-wal"

    async def work(ledger: Ledger) -> int:
        await ledger.append("t", [said()])
        reader = connect(LedgerFile(str(tmp_path / "ledger.db"), 5))
        reader.run("BEGIN")
        reader.run("SELECT * FROM messages")
        for _ in range(60):
            await ledger.append("t", [said("x" * 1000)])
        held = log.stat().st_size
        reader.run("COMMIT")
        reader.close()
        for _ in range(60):
            await ledger.append("t", [said("x" * 1000)])
        return log.stat().st_size - held

    assert with_ledger(tmp_path / "ledger.db", work) < 200 * 2072


def test_another_change_between_appends_sees_them(tmp_path: Path) -> None:
    """In one batch: append, claim, append; each sees what is before it."""

    async def work(ledger: Ledger) -> None:
        first, epoch, late = await asyncio.gather(
            ledger.append("t", [said()]),
            ledger.claim("t"),
            ledger.append("t", [said()]),
            return_exceptions=True,
        )
        assert isinstance(first, tuple)
        assert epoch == 1
        assert isinstance(late, FencedError)

    with_ledger(tmp_path / "ledger.db", work)


@pytest.mark.parametrize("again", [False, True])
def test_a_branch_of_what_was_deleted_meanwhile_is_refused(again: bool, tmp_path: Path) -> None:
    """Also if another thread has got its name, whose calls may be open elsewhere."""
    fill(tmp_path / "ledger.db", threads=1)

    async def work(ledger: Any) -> None:
        head, closing = await ledger.head("t0"), make_request("branch", [])
        await ledger.delete("t0")
        if again:
            await ledger.append("t0", [called() for _ in range(20)])
        with pytest.raises(UnknownThreadError, match="it was deleted while it was forked"):
            await ledger._change(lambda: branches.branch(head, 3, Pairing(), closing))
        assert await ledger.thread("branch") is None

    with_ledger(tmp_path / "ledger.db", work)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("UPDATE threads SET hash = zeroblob(32)", "the hash of the thread is not that of its last message"),
        ("DELETE FROM messages WHERE seq = 3", "thread 't0' at seq 3: it is missing"),
    ],
)
def test_a_damaged_thread_is_not_forked(sql: str, words: str, tmp_path: Path) -> None:
    """G20: no branch continues from altered rows."""
    path = tmp_path / "ledger.db"
    fill(path, threads=1)
    connection = connect(LedgerFile(str(path), 5))
    connection.run(sql)
    connection.close()

    async def work(ledger: Ledger) -> None:
        with pytest.raises(LedgerCorruptError, match=words):
            await ledger.fork("t0", at=3)

    with_ledger(path, work)


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        (
            "UPDATE media SET hash = zeroblob(32); UPDATE media_uses SET hash = zeroblob(32)",
            "a medium in it is not what it was",
        ),
        ("DELETE FROM messages WHERE seq = 6", "the messages that it shares with its origin are missing"),
        ("UPDATE threads SET base = 999 WHERE base IS NOT NULL", "the messages that it shares with its origin are missing"),
    ],
)
def test_verify_names_what_is_wrong(sql: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def make(ledger: Ledger) -> None:
        picture = MediaPart(modality="image", url="data:image/png;base64," + "QUJD" * 10_000)
        await ledger.append("t", [said() for _ in range(5)])
        await ledger.append("t", [called(), Message(policy="u", payload=PartsPayload(parts=(picture,)))])
        await ledger.fork("t", at=6, into="branch")

    with_ledger(path, make)
    connection = connect(LedgerFile(str(path), 5))
    connection.run(sql)
    connection.close()

    async def verified(ledger: Ledger) -> str:
        return " ".join(damage.what for damage in (await ledger.verify()).damages)

    assert words in with_ledger(path, verified)


def test_a_long_thread_is_verified_in_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify, "_STEP", 5)
    fill(tmp_path / "ledger.db", threads=1, turns=5)

    async def work(ledger: Ledger) -> int:
        return (await ledger.verify()).messages

    assert with_ledger(tmp_path / "ledger.db", work) == 15


def test_an_index_of_words_that_knows_too_much_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def work(ledger: Ledger) -> None:
        await ledger.append("t", [said("fox")])
        await ledger.search("fox")

    with_ledger(path, work)
    connection = connect(LedgerFile(str(path), 5))
    connection.run("DELETE FROM messages")
    connection.close()

    async def search(ledger: Ledger) -> None:
        with pytest.raises(LedgerCorruptError, match="is damaged"):
            await ledger.search("fox")

    with_ledger(path, search)


def test_a_row_of_another_thread_is_noticed(tmp_path: Path) -> None:
    """Also if a whole chain was made for it by hand."""
    plant(tmp_path / "ledger.db", dumps(said(id="x", thread_id="other")))
    connection = connect(LedgerFile(str(tmp_path / "ledger.db"), 5))
    connection.run("UPDATE messages SET id_key = ?, invocation_key = NULL, correlation_key = NULL", (key_of("x"),))
    connection.close()

    async def verified(ledger: Ledger) -> list[str]:
        return [damage.what for damage in (await ledger.verify()).damages]

    assert with_ledger(tmp_path / "ledger.db", verified) == ["it is of thread 'other'"]


def test_reading_a_branch_whose_shared_rows_are_missing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def make(ledger: Ledger) -> None:
        await ledger.append("t", [said(), said()])
        await ledger.fork("t", into="branch")

    async def read(ledger: Ledger) -> None:
        with pytest.raises(LedgerCorruptError, match="this one is missing"):
            await everything(ledger, "branch")

    with_ledger(path, make)
    connection = connect(LedgerFile(str(path), 5))
    connection.run("UPDATE threads SET base = NULL WHERE base IS NOT NULL")
    connection.close()
    with_ledger(path, read, create=False)


def test_a_thread_that_is_gone_is_not_examined(tmp_path: Path) -> None:
    connection = connect(LedgerFile(str(tmp_path / "ledger.db"), 5), create=True)
    assert run(connection, verify.begin("gone")) is None
    connection.close()


def test_ids_with_equal_hashes_are_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ids with the same number in the index are two messages, and each is found again."""

    def poor(name: str, salt: int = 0) -> int:
        return (sum(name.encode()) + 31 * salt) % 3 + 3 * salt

    number_of = rows.number_of.__wrapped__  # without its cache, which would keep poor numbers for other tests
    for module in (rows, appends, verify):
        monkeypatch.setattr(module, "key_of", poor)
        monkeypatch.setattr(module, "number_of", number_of)

    async def work(ledger: Ledger) -> None:
        messages = [said(str(number), id=f"m{number}", correlation_id=f"c{number}") for number in range(12)]
        for message in messages:
            await ledger.append("t", [message])
        for message in messages:
            (record,) = await ledger.append("t", [message])
            assert record.message.id == message.id
            (found,) = await ledger.find(correlation_id=str(message.correlation_id))
            assert found == record
        assert len(await everything(ledger)) == 12
        assert (await ledger.verify()).is_whole

    with_ledger(tmp_path / "ledger.db", work)


@pytest.mark.parametrize(
    "wrong",
    [
        "nonsense; SELECT 1",
        "INSERT INTO t VALUES (NULL); SELECT 1; SELECT 2",
        "SELECT 1; INSERT INTO t VALUES (NULL); SELECT 2",
        "SELECT 1 UNION ALL SELECT abs(-9223372036854775808); SELECT 2",
    ],
)
def test_a_statement_that_fails_leaves_nothing_behind_for_the_next(wrong: str) -> None:
    """Statements share a cursor; wherever one ends, the next is run as if it were the first."""
    connection = Connection(":memory:", apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    connection.run("CREATE TABLE t (x UNIQUE NOT NULL)")
    for execute in (connection.run, connection.rows):
        with pytest.raises(apsw.Error):
            execute(wrong)
        assert connection.rows("SELECT 7") == [(7,)]
    with pytest.raises(apsw.ConstraintError):
        connection.run_all("INSERT INTO t VALUES (?)", [(1,), (2,), (1,)])
    connection.run_all("INSERT INTO t VALUES (?)", [(3,)])
    assert [(x, connection.value("SELECT ?", (x,))) for (x,) in connection.each("SELECT x FROM t ORDER BY x")] == [
        (1, 1),
        (2, 2),
        (3, 3),
    ]
    connection.close()


async def test_claims_and_releases_that_are_refused_harm_nothing_in_their_batch(tmp_path: Path) -> None:
    """G4, G12: they are decided before anything is written, in one commit with appends to the same threads."""
    one, two = Host("one", "1", ("agent",), 600.0), Host("two", "1", ("agent",), 600.0)
    async with at(tmp_path / "ledger.db") as ledger:
        await asyncio.gather(ledger.beat(one), ledger.beat(two))
        first = await ledger.claim("t", by=one)
        outcomes = await asyncio.gather(
            ledger.append("t", [called()], epoch=first),
            ledger.claim("t", by=two),
            ledger.release("t", epoch=7),
            ledger.append("t", [said("two")], epoch=first),
            ledger.release("t", epoch=first),
            ledger.append("t", [said("late")], epoch=first),
            ledger.claim("t", by=two, kind="agent"),
            ledger.append("t", [said("three")], epoch=first + 1),
            ledger.append("t", [said("old")], epoch=first),
            return_exceptions=True,
        )

        refused = {1: OwnedError, 2: FencedError, 5: FencedError, 8: FencedError}
        assert {number: type(each) for number, each in enumerate(outcomes) if isinstance(each, Exception)} == refused
        assert [each.message.text for each in await everything(ledger)][1:] == ["two", "three"]
        found = await ledger.thread("t")
        assert found is not None
        assert (found.owner, found.open_calls, found.messages) == ("two", 1, 3)
        assert (await ledger.verify()).is_whole


async def test_a_claim_of_one_thread_keeps_the_cached_state_of_others(tmp_path: Path) -> None:
    """The first append to the claimed thread, and the next one to each other, read no row of `threads`."""
    host = Host("one", "1", ("agent",), 600.0)
    async with at(tmp_path / "ledger.db") as ledger:
        await ledger.beat(host)
        await ledger.append("other", [called()])
        epoch = await ledger.claim("t", by=host)
        threads = ledger._writer._appends._threads
        assert set(threads) == {"other", "t"}
        before = [*threads.values()]
        await asyncio.gather(ledger.append("other", [said()]), ledger.append("t", [called()], epoch=epoch))
        await ledger.release("t", epoch=epoch)
        assert [*threads.values()] == before
        with pytest.raises(FencedError):
            await ledger.append("t", [said()], epoch=epoch)
        assert (await ledger.verify()).is_whole


async def test_a_claim_that_is_written_in_part_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of the thread is written before its checksum. If that fails, the row is taken back."""
    host = Host("one", "1", ("agent",), 600.0)

    def failing(*given: Any) -> None:
        raise LedgerCorruptError("0 rows were written")

    async with at(tmp_path / "ledger.db") as ledger:
        await ledger.beat(host)
        await ledger.append("other", [said()])
        with monkeypatch.context() as patched:
            patched.setattr(_driver, "set_checksum", failing)
            outcomes = await asyncio.gather(
                ledger.append("other", [said()]), ledger.claim("t", by=host), return_exceptions=True
            )
        assert [type(each) for each in outcomes] == [tuple, LedgerCorruptError]
        assert await ledger.thread("t") is None
        assert await ledger.claim("t", by=host) == 1
        assert (await ledger.verify()).is_whole


@pytest.mark.parametrize(
    ("length", "reverse", "pages"),
    [
        (0, False, [(1, None, 256)]),
        (10, False, [(1, None, 256)]),
        (256, False, [(1, None, 256)]),
        (257, False, [(1, None, 256), (257, None, 256)]),
        (8, True, [(1, None, 8)]),
        (600, True, [(1, None, 8), (1, 592, 32), (1, 560, 128), (1, 432, 256), (1, 176, 256)]),
    ],
)
async def test_a_read_asks_for_no_page_after_the_end_and_for_few_rows_first_in_reverse(
    length: int, reverse: bool, pages: list[tuple[int, int | None, int]]
) -> None:
    records = [Record(seq, b"", "", datetime(2026, 1, 1, tzinfo=UTC)) for seq in range(1, length + 1)]
    asked = list[tuple[int, int | None, int]]()

    async def look(request: PageRequest) -> PageOfThread | None:
        asked.append((request.first, request.last, request.most))
        first, last = request.within(length)
        found = records[first - 1 : last]
        page = (found[::-1] if reverse else found)[: request.most]
        return PageOfThread(1, length, page) if page else None

    found = [record async for record in read_pages(look, 0, None, reverse)]
    assert found == (records[::-1] if reverse else records)
    assert asked == pages
