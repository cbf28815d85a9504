"""The schema of a ledger's file: earlier forms are brought up to date, and one that was altered is refused (G11, G20, S14)."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from threading import Barrier

import apsw
import orjson
import pytest
from tests.ledger.histories import answered, called, everything, fill, old_ledger, said, with_ledger

from antiphon.errors import FencedError, LedgerCorruptError, LedgerFormatError
from antiphon.ledger import Fold, Host, Ledger, ThreadFilter, Verification
from antiphon.ledger.sqlite import SqliteLedger, _queries, _schema
from antiphon.ledger.sqlite._connection import LedgerFile, connect
from antiphon.ledger.sqlite._rows import key_of, number_of
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
    "PRAGMA user_version = 1": "the index 'open_calls_by_option' is not the ledger's",
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
    path = old_ledger(tmp_path / "ledger.db")
    with_ledger(path, verified)
    altered(path, sql)
    with pytest.raises(LedgerCorruptError, match="was altered: .*restore a backup") as caught:
        with_ledger(path, verified)
    assert STRANGE[sql] in str(caught.value)


def test_an_old_schema_that_was_altered_is_refused_before_it_is_brought_up_to_date(tmp_path: Path) -> None:
    path = old_ledger(tmp_path / "ledger.db")
    altered(path, SWALLOW)
    with pytest.raises(LedgerCorruptError, match="the trigger 'swallow' is not the ledger's"):
        with_ledger(path, verified)
    assert Connection(str(path), apsw.SQLITE_OPEN_READWRITE).setting("user_version") == 1


def test_statistics_of_sqlite_are_no_alteration(tmp_path: Path) -> None:
    path = old_ledger(tmp_path / "ledger.db")
    altered(path, "ANALYZE")
    assert with_ledger(path, verified).is_whole


def test_a_ledger_of_the_first_format_is_whole_and_goes_on(tmp_path: Path) -> None:
    """G11: old rows stay unchanged; new rows have a checksum."""

    async def work(ledger: Ledger) -> tuple[Verification, list[str], int]:
        before = await ledger.verify()
        assert before.is_whole, before
        assert (before.threads, before.messages) == (3, 10)
        assert await ledger.replay("plain", COUNT) == 5
        await ledger.append("branch", [said("goes on")])
        await ledger.append("new", [said()])
        assert await ledger.claim("owned") == 2
        return await ledger.verify(), [each.message.text for each in await everything(ledger, "branch")], before.messages

    after, texts, before = with_ledger(old_ledger(tmp_path / "ledger.db"), work)
    assert after.is_whole, after
    assert (after.messages, texts[-2:]) == (before + 2, ["another way", "goes on"])


def test_a_message_in_the_outbox_is_not_dropped(tmp_path: Path) -> None:
    """G11: the file is refused and stays as it is, so that its own version can still deliver it."""
    path = old_ledger(tmp_path / "ledger.db", outbox=True)
    with pytest.raises(LedgerFormatError, match="has 1 messages in its outbox.*deliver them with the version that wrote"):
        with_ledger(path, verified)
    connection = Connection(str(path), apsw.SQLITE_OPEN_READWRITE)
    assert (connection.setting("user_version"), connection.value("SELECT count(*) FROM outbox")) == (1, 1)
    connection.close()

    path = old_ledger(tmp_path / "altered.db", 3)
    altered(path, "UPDATE counters SET value = 7 WHERE name = 'entries'")  # an entry was taken out by other means
    with pytest.raises(LedgerCorruptError, match="the outbox of .* was altered"):
        with_ledger(path, verified)


def test_a_ledger_of_the_third_format_gets_owners_and_due_threads(tmp_path: Path) -> None:
    """G11, G25: threads that were claimed have no host; those with open calls are due, by the kind of the actor asked."""
    host = Host("h", "1", ("thread",))

    async def work(ledger: Ledger) -> None:
        before = await ledger.verify()
        assert (before.is_whole, before.threads, before.messages) == (True, 4, 12), before
        owned, idle = await ledger.thread("owned"), await ledger.thread("idle")
        assert owned is not None
        assert idle is not None
        assert (owned.owner, owned.kind, owned.due_at) == (None, "thread", owned.updated_at)
        assert (idle.owner, idle.kind, idle.due_at) == (None, None, None)
        assert [each.message.invocation_id for each in (await ledger.open_calls_of("APPROVE")).calls] == ["c4"]
        assert [each.message.invocation_id for each in (await ledger.open_calls_of("look")).calls] == ["c1"]
        await ledger.append("idle", [said()], epoch=1)  # its owner may go on: nobody has claimed it since
        await ledger.beat(host)
        (taken,) = await ledger.take(host)
        assert (taken.thread_id, taken.epoch, taken.why) == ("owned", 2, "due")
        with pytest.raises(FencedError):
            await ledger.append("owned", [said()], epoch=1)
        assert (await ledger.verify()).is_whole

    with_ledger(old_ledger(tmp_path / "ledger.db", 3), work)


def test_threads_of_the_fourth_format_are_found_by_the_indexes_of_the_fifth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G11: what each filter asks for is there, and the ledger goes on."""
    monkeypatch.setattr(_queries, "_FEW_THREADS", 3)

    async def work(ledger: Ledger) -> None:
        assert (await ledger.verify()).is_whole
        for wanted, found in (
            (ThreadFilter(status="processing"), {"waits"}),
            (ThreadFilter(pattern="peers", min_cost=Decimal("0.25")), {"ended"}),
            (ThreadFilter(min_tokens=9), {"ended"}),
            (ThreadFilter(forked_from="ended"), {"branch"}),
            (ThreadFilter(kind="thread"), {"left"}),
            (ThreadFilter(unfit=True), {"left"}),
        ):
            assert {each.thread_id for each in (await ledger.threads(wanted)).threads} == found, wanted
        await ledger.append("waits", [said()], status="completed")
        assert (await ledger.threads(ThreadFilter(status="processing"))).threads == ()
        assert (await ledger.verify()).is_whole

    with_ledger(old_ledger(tmp_path / "ledger.db", 4), work)


def test_rows_of_the_ninth_format_are_found_beside_those_of_the_tenth(tmp_path: Path) -> None:
    """G11: by their invocation and correlation, in the order of commits; a call from then gets its answer now."""
    path = old_ledger(tmp_path / "ledger.db", 9)

    async def work(ledger: Ledger) -> tuple[str, Verification]:
        begins, closed, _, left = [record.message for record in await everything(ledger)]
        turn = begins.correlation_id
        assert turn is not None
        assert turn == closed.invocation_id
        await ledger.append("t", [said("goes on", correlation_id=turn), answered(left)])
        found = await ledger.by_correlation(turn)
        assert [record.message.text for record in found if record.message.kind == "parts"] == [
            "begins",
            "elsewhere",
            "goes on",
        ]
        kinds = [record.message.kind for record in await ledger.by_invocation(str(left.invocation_id), thread_id="t")]
        assert kinds == ["option_call", "option_result"]
        assert (await ledger.open_calls("t")) == ()
        return turn, await ledger.verify()

    turn, verification = with_ledger(path, work)
    assert verification.is_whole, verification
    connection = Connection(str(path), apsw.SQLITE_OPEN_READWRITE)
    numbers = [number for (number,) in connection.rows("SELECT correlation_number FROM messages ORDER BY position")]
    assert set(numbers[:2]) <= {key_of(turn), None}
    assert number_of(turn) in numbers[2:]
    assert list(_schema.differences(connection, 9)), "a process of the ninth format, which has the file open, must stop"


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
        return [record.message.text for record in await ledger.by_correlation(other)]

    assert with_ledger(tmp_path / "ledger.db", work) == ["yours"]


def test_a_version_that_knows_fewer_formats_refuses_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G25: a build from before hosts says what to do, and changes nothing."""
    path = tmp_path / "ledger.db"
    fill(path)
    before = path.read_bytes()
    monkeypatch.setattr(_schema, "MIGRATIONS", _schema.MIGRATIONS[:3])
    with pytest.raises(LedgerFormatError, match="to ledger format 10, and this one knows up to 3: upgrade it"):
        with_ledger(path, verified)
    assert path.read_bytes() == before


@pytest.mark.parametrize("step", ["SELECT 1", "ALTER TABLE messages RENAME COLUMN hash TO link"])
async def test_a_process_whose_file_a_newer_version_upgrades_is_told_so_and_loses_nothing(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G25, G1: whatever it does next, also where the step leaves all declarations as they were."""
    path, host = tmp_path / "ledger.db", Host("h", "1")
    async with SqliteLedger.open(path) as ledger:
        await ledger.beat(host)
        await ledger.claim("t", by=host)
        follower = asyncio.create_task(_followed(ledger))
        await ledger.append("t", [said("before")], epoch=1)
        while not ledger._commits.is_awaited:  # noqa: ASYNC110 (until the follower has read all of it)
            await asyncio.sleep(0.01)
        with monkeypatch.context() as patch:
            patch.setattr(_schema, "MIGRATIONS", (*_schema.MIGRATIONS, step))
            connect(LedgerFile(str(path), 1.0), create=True).close()
        for doing in (
            *(ledger.append("t", [said("after")], epoch=1), everything(ledger, "t"), ledger.head("t")),
            *(ledger.claim("t", by=host), ledger.beat(host), ledger.take(host), ledger.threads(), ledger.verify(), follower),
        ):
            with pytest.raises(LedgerFormatError, match=r"a newer antiphon has upgraded .* to ledger format 11"):
                await doing
    connection = Connection(str(path), apsw.SQLITE_OPEN_READONLY)
    assert [orjson.loads(body)["payload"]["parts"][0]["text"] for (body,) in connection.rows("SELECT body FROM messages")] == [
        "before"
    ]


async def _followed(ledger: Ledger) -> None:
    async for _ in ledger.tail():
        pass


def test_a_moved_position_in_a_ledger_of_the_first_format_is_found(tmp_path: Path) -> None:
    """As far as the order inside threads shows it: there is no checksum yet."""
    path = old_ledger(tmp_path / "ledger.db")
    altered(path, "UPDATE messages SET position = 100 WHERE position = 5")
    altered(path, "UPDATE sqlite_sequence SET seq = 100 WHERE name = 'messages'")
    assert [damage.what for damage in with_ledger(path, verified).damages][:1] == [
        "it comes before the message that precedes it"
    ]


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
        other.run(_schema.MEDIA_TABLES)
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


def _none(connection: Connection, version: int | None = None) -> list[str]:
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
