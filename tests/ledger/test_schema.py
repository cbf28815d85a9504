"""The schema of a ledger's file: one of another format, and one that was altered, is refused (G11, G20, S14)."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import apsw
import orjson
import pytest
from tests.ledger.histories import called, everything, fill, said, with_ledger

from antiphon.errors import LedgerCorruptError, LedgerFormatError
from antiphon.ledger import Fold, Host, Ledger, Verification
from antiphon.ledger._sql.rows import key_of, number_of
from antiphon.ledger.sqlite import _schema
from antiphon.ledger.sqlite._connection import LedgerFile, connect
from antiphon.ledger.sqlite._ledger import SqliteLedger
from antiphon.ledger.sqlite._sql import Connection

COUNT: Fold[int] = Fold("count", 0, lambda state, message: state + 1, lambda state: state, lambda value: int(str(value)))

SWALLOW = "CREATE TRIGGER swallow BEFORE INSERT ON messages BEGIN SELECT RAISE(IGNORE); END"
STRANGE = {
    SWALLOW: "the trigger 'swallow' is not the ledger's",
    "CREATE TRIGGER reset AFTER UPDATE ON threads BEGIN UPDATE threads SET epoch = 0; END": "the trigger 'reset'",
    "CREATE TABLE notes (text)": "the table 'notes' is not the ledger's",
    "CREATE VIEW mine AS SELECT 1": "the view 'mine' is not the ledger's",
    "CREATE UNIQUE INDEX one ON messages (hash)": "the index 'one' is not the ledger's",
    "DROP INDEX messages_by_id": "the index 'messages_by_id' is missing",
    "DROP INDEX messages_by_id; CREATE INDEX messages_by_id ON messages (thread, id_key)": (
        "the index 'messages_by_id' is declared otherwise"
    ),
    "ALTER TABLE hosts RENAME TO guests": "the table 'guests' is not the ledger's; the table 'hosts' is missing",
    "ALTER TABLE threads ADD COLUMN colour": "the table 'threads' is declared otherwise",
    "DROP TABLE media_uses": "the table 'media_uses' is missing",
    "DROP VIEW said": "the view 'said' is missing",
}


def altered(path: Path, sql: str) -> None:
    connection = Connection(str(path), apsw.SQLITE_OPEN_READWRITE)
    connection.run(sql)
    connection.close()


async def verified(ledger: Ledger) -> Verification:
    return await ledger.verify()


@pytest.mark.parametrize("sql", STRANGE)
def test_a_schema_that_was_altered_is_refused_at_opening(sql: str, tmp_path: Path) -> None:
    """S14: the error names the difference, and what to do."""
    path = tmp_path / "ledger.db"
    fill(path)
    with_ledger(path, lambda ledger: ledger.search("hello"))
    altered(path, sql)
    with pytest.raises(LedgerCorruptError, match="was altered: .*restore a backup") as caught:
        with_ledger(path, verified)
    assert STRANGE[sql] in str(caught.value)


def test_statistics_of_sqlite_are_no_alteration(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    fill(path)
    altered(path, "ANALYZE")
    assert with_ledger(path, verified).is_whole


def test_numbers_of_names_grow_with_their_time_and_fit_into_six_bytes() -> None:
    """New entries go to the end of the index of invocations; another kind of name has a number, too."""
    names = [
        f"{milliseconds:012x}" for milliseconds in (1_600_000_000_000, 1_790_000_000_000, 1_790_000_002_000, 4_000_000_000_000)
    ]
    numbers = [number_of(f"{name[:8]}-{name[8:]}-7aaa-8000-000000000000/run") for name in names]
    assert numbers == sorted(numbers)
    assert all(-(2**47) <= number < 2**47 for number in numbers)
    assert number_of("01a1ed7d-bea9-729e/run") != number_of("01a1ed7d-bea9-729e/walk")
    for name in ("c1", "01A1ED7D-BEA9-729E", "01a1ed7d-bea9-429e", ""):
        assert number_of(name) == key_of(name)


@pytest.mark.slow
def test_two_names_with_one_number_are_told_apart(tmp_path: Path) -> None:
    name = "01a1ed7d-bea9-729e-9d7b-68eab547011f"
    other = next(f"{name}/{each}" for each in range(10**6) if number_of(f"{name}/{each}") == number_of(name))

    async def work(ledger: Ledger) -> list[str]:
        await ledger.append("t", [said("mine", correlation_id=name), said("yours", correlation_id=other)])
        return [record.message.text for record in await ledger.find(correlation_id=other)]

    assert with_ledger(tmp_path / "ledger.db", work) == ["yours"]


@pytest.mark.parametrize("number", [0, 2, 10])
def test_a_file_of_another_format_is_refused_and_left_as_it_is(number: int, tmp_path: Path) -> None:
    """G25: and the error says how to bring it over."""
    path = tmp_path / "ledger.db"
    fill(path)
    altered(path, f"PRAGMA user_version = {number}")
    before = path.read_bytes()
    reason = f"has ledger format {number}, and this antiphon has 1: .*`antiphon export` there, and `antiphon import` here"
    with pytest.raises(LedgerFormatError, match=reason):
        with_ledger(path, verified)
    assert path.read_bytes() == before


@pytest.mark.parametrize("step", ["SELECT 1", "ALTER TABLE messages RENAME COLUMN hash TO link"])
async def test_a_process_whose_file_a_newer_version_upgrades_is_told_so_and_loses_nothing(step: str, tmp_path: Path) -> None:
    """G25, G1: whatever it does next, also where the newer version leaves all declarations as they were."""
    path, host = tmp_path / "ledger.db", Host("h", "1")
    async with SqliteLedger.open(path) as ledger:
        await ledger.beat(host)
        await ledger.claim("t", by=host)
        follower = asyncio.create_task(_followed(ledger))
        await ledger.append("t", [said("before")], epoch=1)
        while not ledger._commits.is_awaited:  # noqa: ASYNC110 (until the follower has read all of it)
            await asyncio.sleep(0.01)
        altered(path, f"{step}; PRAGMA user_version = 2")
        for doing in (
            *(ledger.append("t", [said("after")], epoch=1), everything(ledger, "t"), ledger.head("t")),
            *(ledger.claim("t", by=host), ledger.beat(host), ledger.take(host), ledger.threads(), ledger.verify(), follower),
        ):
            with pytest.raises(LedgerFormatError, match=r"has ledger format 2, and this antiphon has 1"):
                await doing
    connection = Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    assert [orjson.loads(body)["payload"]["parts"][0]["text"] for (body,) in connection.rows("SELECT body FROM messages")] == [
        "before"
    ]


async def _followed(ledger: Ledger) -> None:
    async for _ in ledger.tail():
        pass


@pytest.mark.parametrize("sql", [SWALLOW, "DROP INDEX messages_by_id", "ALTER TABLE snapshots RENAME TO photos"])
def test_an_append_looks_at_the_schema_again_when_another_process_has_changed_it(sql: str, tmp_path: Path) -> None:
    """S14: the append raises, and nothing is lost in silence."""
    path = tmp_path / "ledger.db"

    async def work(ledger: Ledger) -> None:
        await ledger.append("t", [said("before")])
        altered(path, sql)
        for doing in (ledger.append("t", [said("after")]), ledger.claim("t"), ledger.append("u", [said("new")])):
            with pytest.raises(LedgerCorruptError, match="was altered"):
                await doing
        assert not (await ledger.verify()).is_whole
        altered(path, "DROP TRIGGER IF EXISTS swallow")
        if sql == SWALLOW:
            await ledger.append("t", [said("mended")])
            assert (await ledger.verify()).is_whole

    with_ledger(path, work)


def test_tables_that_another_process_makes_when_first_needed_are_no_alteration(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"

    async def search(ledger: Ledger) -> None:
        await ledger.search("hello")

    async def work(ledger: Ledger) -> None:
        await ledger.append("t", [said()])
        other = connect(LedgerFile(str(path), 5))
        other.run(_schema.TERM_TABLES)
        other.close()
        await ledger.append("t", [said()])
        await search(ledger)
        await ledger.append("t", [said()])
        assert (await ledger.verify()).is_whole

    with_ledger(path, work)


UNWRITTEN: dict[str, Callable[[Ledger], Awaitable[object]]] = {
    "messages": lambda ledger: ledger.append("t0", [said()]),
    "threads": lambda ledger: ledger.append("new", [said()]),
    "hosts": lambda ledger: ledger.beat(Host("h", "1")),
    "open_calls": lambda ledger: ledger.append("t0", [called()]),
    "snapshots": lambda ledger: ledger.append("t0", [said()], snapshot=COUNT.snapshot(1)),
}


@pytest.mark.parametrize("table", UNWRITTEN)
def test_an_append_that_is_not_written_is_not_acknowledged(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G1: the rows are counted, also where the look at the schema saw nothing."""
    path = tmp_path / "ledger.db"
    fill(path)
    altered(path, SWALLOW.replace("messages", table))
    monkeypatch.setattr(_schema, "differences", _none)

    async def work(ledger: Ledger) -> None:
        with pytest.raises(LedgerCorruptError, match="rows were written where"):
            await UNWRITTEN[table](ledger)

    with_ledger(path, work)


def _none(connection: Connection) -> list[str]:
    return []


@pytest.mark.slow
def test_connections_that_create_a_file_at_the_same_time_all_get_the_ledger(tmp_path: Path) -> None:
    """SQLite refuses one of two switches to the log at once, without the busy timeout; and tables appear while one looks."""

    def opened(path: Path, barrier: Barrier) -> None:
        barrier.wait(10)
        connect(LedgerFile(str(path), 10.0), create=True).close()

    with ThreadPoolExecutor(6) as threads:
        for number in range(60):
            barrier = Barrier(6)
            for each in [threads.submit(opened, tmp_path / f"{number}.db", barrier) for _ in range(6)]:
                each.result(30)
