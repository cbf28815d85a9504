"""What went wrong once, or nearly: followers that are never woken, words that are not found, rows that hold anything."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ledger.histories import answered, at, called, everything, said, with_ledger

from antiphon import Message, OptionCallPayload, Usage
from antiphon.errors import FencedError, LedgerCorruptError, LedgerError, LedgerUnavailableError, UnknownThreadError
from antiphon.ledger import (
    STANDARD_REDACTION,
    Fold,
    Host,
    Ledger,
    Record,
    Snapshot,
    ThreadSummary,
    Verification,
    heads_of,
    replay,
)
from antiphon.ledger._sql import branches, verify
from antiphon.ledger.sqlite._connection import LedgerFile, connect
from antiphon.ledger.sqlite._driver import run
from antiphon.ledger.sqlite._ledger import SqliteLedger

HOST = Host("host", "1", ("x",), 600.0, "instance")
STORES = pytest.mark.parametrize("store", ["memory", "sqlite"])


def path_of(store: str, tmp_path: Path) -> Path | None:
    return None if store == "memory" else tmp_path / "ledger.db"


# ---------------------------------------------------------------- followers


async def _first(ledger: Ledger) -> Record:
    async for tailed in ledger.tail():
        return tailed.record
    raise AssertionError


async def test_a_commit_of_another_process_while_a_follower_begins_to_wait_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G5: the commit comes after the follower's query, and before it has noted how far others were."""
    async with at(tmp_path / "ledger.db") as ledger, at(tmp_path / "ledger.db") as other:
        horizon = ledger.horizon

        async def late() -> str:
            await other.append("t", [said("late", id="m")])
            return await horizon()

        monkeypatch.setattr(ledger, "horizon", late)
        record = await asyncio.wait_for(_first(ledger), 5)
        assert record.message.text == "late"


@pytest.mark.slow
async def test_a_follower_outlives_a_look_for_others_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with at(tmp_path / "ledger.db") as ledger, at(tmp_path / "ledger.db") as other:
        horizon, failures = ledger.horizon, [LedgerUnavailableError("not now")]

        async def failing() -> str:
            if failures:
                raise failures.pop()
            await other.append("t", [said("after all", id="m")])
            return await horizon()

        monkeypatch.setattr(ledger, "horizon", failing)
        assert (await asyncio.wait_for(_first(ledger), 5)).message.text == "after all"


def test_a_follower_gets_to_know_that_the_ledger_is_closed(tmp_path: Path) -> None:
    async def run() -> None:
        async with at(tmp_path / "ledger.db") as ledger:
            waiting = asyncio.create_task(_first(ledger))
            await ledger.horizon()
        with pytest.raises(LedgerUnavailableError, match="closed"):
            await asyncio.wait_for(waiting, 5)

    asyncio.run(run())


@STORES
def test_one_thread_can_be_followed_from_any_cursor(store: str, tmp_path: Path) -> None:
    """G5: also a branch, whose beginning was committed long before."""

    async def work(ledger: Ledger) -> None:
        for number in range(12):
            await ledger.append("t", [said(str(number))])
            await ledger.append("other", [said(str(number))])
        await ledger.fork("t", at=9, into="branch")
        await ledger.append("branch", [said("own")])
        for thread_id in ("t", "branch"):
            cursors = [0]
            records = await everything(ledger, thread_id)
            for count in range(len(records)):
                tail = ledger.tail(str(cursors[-1]), thread_id=thread_id)
                tailed = await anext(tail)
                assert tailed.record == records[count]
                cursors.append(int(tailed.cursor))
            for cursor in range(cursors[-1]):
                expected = sum(each <= cursor for each in cursors[1:])
                assert (await anext(ledger.tail(str(cursor), thread_id=thread_id))).record == records[expected]

    with_ledger(path_of(store, tmp_path), work)


def test_another_event_loop_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def use(ledger: Ledger) -> None:
        with pytest.raises(LedgerUnavailableError, match="event loop"):
            await ledger.append("t", [said()])

    async def work(ledger: Ledger) -> int:
        await asyncio.to_thread(lambda: asyncio.run(use(ledger)))
        return (await ledger.head("t")).seq

    assert with_ledger(tmp_path / "ledger.db", work) == 0


# ---------------------------------------------------------------- search, lists and branches


@STORES
@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("한국어 텍스트", "한국어"),
        ("がんばって 東京", "がんばって"),
        ("Die Straße", "straße"),
        ("ein Café", "cafe"),
        ("ﬁne print", "ﬁne"),
        ('say "no" twice', 'say"no"'),
    ],
)
def test_words_of_any_script_are_found(store: str, text: str, typed: str, tmp_path: Path) -> None:
    async def work(ledger: Ledger) -> int:
        await ledger.append("t", [said(text), said("something else")])
        return len(await ledger.search(typed))

    assert with_ledger(path_of(store, tmp_path), work) == 1


@STORES
def test_a_limit_is_not_negative(store: str, tmp_path: Path) -> None:
    async def work(ledger: Ledger) -> None:
        for ask in (ledger.search("x", limit=-1), ledger.threads(limit=-1), ledger.open_calls(option="x", limit=-1)):
            with pytest.raises(ValueError, match="a limit is 0 or more"):
                await ask

    with_ledger(path_of(store, tmp_path), work)


@pytest.mark.slow
@pytest.mark.parametrize(("store", "branches"), [("memory", 1100), ("sqlite", 300)])
def test_a_long_line_of_branches_is_a_thread_like_any_other(store: str, branches: int, tmp_path: Path) -> None:
    """Without a word of their own at first, then with one each; and the whole line is read in a few pages, both ways."""
    half = branches // 2

    async def work(ledger: Ledger) -> tuple[list[Record], list[Record]]:
        await ledger.append("t0", [said("0")])
        for number in range(1, branches + 1):
            await ledger.fork(f"t{number - 1}", into=f"t{number}")
            if number > half:
                await ledger.append(f"t{number}", [said(str(number))])
        return await everything(ledger, f"t{branches}"), [each async for each in ledger.read(f"t{branches}", reverse=True)]

    forward, backward = with_ledger(path_of(store, tmp_path), work)
    assert [record.message.text for record in forward] == ["0", *map(str, range(half + 1, branches + 1))]
    assert forward == backward[::-1]


@pytest.mark.parametrize("again", [False, True])
def test_reading_a_thread_that_is_deleted_meanwhile_is_an_error(again: bool, tmp_path: Path) -> None:
    """Also if another thread has its name by then: no reader gets the beginning of one and the end of another."""

    async def work(ledger: Ledger) -> list[str]:
        await ledger.append("t", [said("old") for _ in range(300)])
        found: list[str] = []

        async def read() -> None:
            async for record in ledger.read("t"):
                found.append(record.message.text)
                if record.seq == 1:
                    await ledger.delete("t")
                    await ledger.append("t" if again else "other", [said("new") for _ in range(300)])

        with pytest.raises(UnknownThreadError, match="thread 't': it was deleted while it was read"):
            await read()
        return found

    assert set(with_ledger(tmp_path / "ledger.db", work)) == {"old"}


WORDS = ("Straße", "STRASSE", "Fußball", "Grüße an alle", "Ångström", "naïve café", "Maße", "Masse")
ASKED = (
    "straße",
    "Strasse",
    "strass*",
    "fuss*",
    "FUẞBALL",
    "grusse",
    '"grüsse an"',
    "angstrom",
    "cafe naive",
    "masse",
    "mas*",
)


def test_both_stores_find_the_same_words(tmp_path: Path) -> None:
    """Without case and accents; ß is ss."""

    async def work(ledger: Ledger) -> list[set[str]]:
        await ledger.append("t", [said(word) for word in WORDS])
        return [{hit.record.message.text for hit in await ledger.search(asked)} for asked in ASKED]

    in_memory, in_file = with_ledger(None, work), with_ledger(tmp_path / "ledger.db", work)
    assert in_memory == in_file
    assert in_file[:3] == [{"Straße", "STRASSE"}] * 3
    assert all(in_file)


@STORES
def test_a_snapshot_counts_before_anything_was_said_and_in_a_branch_without_a_word(store: str, tmp_path: Path) -> None:
    fold = Fold[int]("count", 0, lambda state, message: state + 1, lambda state: state, lambda value: int(str(value)))

    async def work(ledger: Ledger) -> tuple[int, int]:
        await ledger.append("empty", [], snapshot=Snapshot("count", 7))
        await ledger.append("t", [said()])
        await ledger.fork("t", into="branch")
        await ledger.append("branch", [], snapshot=Snapshot("count", 5))
        return await replay(ledger, "empty", fold), await replay(ledger, "branch", fold)

    assert with_ledger(path_of(store, tmp_path), work) == (7, 5)


# ---------------------------------------------------------------- what is in a row


def _filled(path: Path) -> None:
    async def work(ledger: Ledger) -> None:
        for name in ("a", "b"):
            call = called()
            spoken = said("hello", usage=Usage(input_tokens=3), correlation_id="k")
            await ledger.append(name, [spoken, call, answered(call), called()], snapshot=Snapshot("count", 4))
        await ledger.beat(HOST)
        await ledger.append("h", [called()], epoch=await ledger.claim("h", by=HOST, kind="x"))
        await ledger.post("posted", said(to=("x",)))
        await ledger.release("unfit", epoch=await ledger.claim("unfit", by=HOST), unfit="2", reason="no")
        await ledger.fork("a", at=4, into="branch")
        await ledger.append("a", [said("data:image/png;base64," + "A" * 9000)])
        await ledger.search("hello")

    with_ledger(path, work)


async def _follow(ledger: Ledger) -> None:
    last = int(await ledger.horizon())
    async for tailed in ledger.tail():
        if int(tailed.cursor) >= last:
            return


async def _beside(ledger: Ledger) -> None:
    """Append to a thread that may be damaged and to one that is not, in one commit."""
    _, fine = await asyncio.gather(ledger.append("a", [said("n")]), ledger.append("fine", [said("n")]), return_exceptions=True)
    assert not isinstance(fine, BaseException), fine


_COUNT = Fold[int]("count", 0, lambda state, message: state + 1, lambda state: state, lambda value: int(str(value)))
DOINGS: list[Callable[[Any], Any]] = [
    lambda ledger: everything(ledger, "a"),
    lambda ledger: everything(ledger, "branch"),
    lambda ledger: ledger.thread("a"),
    lambda ledger: ledger.threads(),
    heads_of,
    lambda ledger: asyncio.wait_for(_follow(ledger), 0.1),
    lambda ledger: ledger.find(correlation_id="k"),
    lambda ledger: ledger.open_calls("a"),
    lambda ledger: ledger.search("hello"),
    lambda ledger: replay(ledger, "a", _COUNT),
    lambda ledger: ledger.fork("a"),
    lambda ledger: ledger.open_calls(option="look"),
    lambda ledger: ledger.hosts(),
    lambda ledger: ledger.woken(HOST, seen={"h": 1}),
    lambda ledger: ledger.beat(Host("other", "1")),
    lambda ledger: ledger.take(HOST, kinds=["x", None]),
    lambda ledger: ledger.verify(),
    _beside,
    lambda ledger: ledger.claim("a"),
    lambda ledger: ledger.claim("h", by=HOST),
    lambda ledger: ledger.release("h", epoch=1),
    lambda ledger: ledger.leave(HOST),
    lambda ledger: ledger.delete("a", with_branches=True),
]
COLUMNS = {
    "threads": (
        "seq",
        "hash",
        "run",
        "open_from",
        "created_at",
        "updated_at",
        "cost",
        "base_seq",
        "open_calls",
        "owner",
        "kind",
        "due_at",
        "posted",
        "unfit",
    ),
    "messages": ("thread", "seq", "id_key", "recorded_at", "hash", "body"),
    "open_calls": ("seq", "option_key", "call", "position"),
    "snapshots": ("fold", "seq", "hash", "state"),
    "hosts": ("name", "instance", "build", "kinds", "lease", "boot", "ends", "since", "beaten_at", "left_at"),
    "media": ("hash", "text"),
    "media_uses": ("seq", "place", "hash"),
}


@pytest.mark.parametrize("base", ["key", "key + 1"])
def test_a_branch_that_rests_on_itself_leads_nobody_in_circles(base: str, tmp_path: Path) -> None:
    """G20, G21: an origin is older than its branch, whatever a file says."""
    path = tmp_path / "ledger.db"
    _filled(path)
    connection = connect(LedgerFile(str(path), 5.0))
    connection.run("UPDATE threads SET base = key + 1 WHERE thread_id = 'a'")
    connection.run(f"UPDATE threads SET base = {base} WHERE thread_id = 'branch'")
    connection.close()

    async def work(ledger: Ledger) -> Verification:
        with pytest.raises(LedgerCorruptError, match="thread 'branch' at seq 1: .* this one is missing"):
            await everything(ledger, "branch")
        for doing in DOINGS[:-1]:
            with contextlib.suppress(LedgerError, TimeoutError):
                await doing(ledger)
        return await ledger.verify()

    damaged = {damage.thread_id for damage in with_ledger(path, work).damages}
    assert {"a", "branch"} <= damaged


@pytest.mark.slow
@pytest.mark.parametrize("table", COLUMNS)
def test_any_content_of_a_row_gives_a_typed_error_and_harms_no_other_thread(table: str, tmp_path: Path) -> None:
    """G20, S8: a text, bytes, a fraction and numbers out of range, in every column that matters."""
    original, path = tmp_path / "original.db", tmp_path / "altered.db"
    _filled(original)

    async def work(ledger: Ledger) -> None:
        for doing in DOINGS:
            with contextlib.suppress(LedgerError, TimeoutError):
                await doing(ledger)

    for column in COLUMNS[table]:
        for value in ("'zz'", "x'00ff'", "-1", "1.5", "9223372036854775807"):
            shutil.copy(original, path)
            connection = connect(LedgerFile(str(path), 5.0))
            connection.run(f"UPDATE OR IGNORE {table} SET {column} = {value}")
            connection.close()
            with_ledger(path, work)


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE hosts SET name = 'another'",
        "UPDATE hosts SET ends = ends + 1000",
        "DELETE FROM hosts",
        "UPDATE threads SET owner = 1",
        "UPDATE threads SET owner = NULL",
        "UPDATE threads SET due_at = NULL",
        "UPDATE threads SET posted = 0",
        "UPDATE threads SET unfit = NULL",
        "UPDATE threads SET kind = 'other'",
        "UPDATE open_calls SET position = position + 1",
        "UPDATE threads SET run = run + 1",
        "UPDATE threads SET input_tokens = input_tokens + 1",
        "UPDATE threads SET cost = '7'",
        "UPDATE threads SET open_calls = 7",
        "UPDATE threads SET forked_from = 'b' WHERE thread_id = 'branch'",
        "UPDATE threads SET cost = 'zz'",
        "UPDATE counters SET value = 2 WHERE name = 'searchable'",
    ],
)
def test_derived_columns_are_compared_with_the_messages(sql: str, tmp_path: Path) -> None:
    """G20: columns beside the messages, and rows of hosts and owners."""
    path = tmp_path / "ledger.db"
    _filled(path)
    connection = connect(LedgerFile(str(path), 5.0))
    connection.run(sql)
    connection.close()

    async def work(ledger: Ledger) -> bool:
        return (await ledger.verify()).is_whole

    assert not with_ledger(path, work)


def test_a_forged_owner_lets_nobody_append(tmp_path: Path) -> None:
    """G8, S14: the epoch decides, and it was given to another."""
    path, forger = tmp_path / "ledger.db", Host("forger", "1")
    _filled(path)

    async def register(ledger: Ledger) -> None:
        await ledger.beat(forger)

    with_ledger(path, register)
    connection = connect(LedgerFile(str(path), 5.0))
    connection.run("UPDATE threads SET owner = (SELECT key FROM hosts WHERE name = 'forger') WHERE thread_id = 'h'")
    connection.close()

    async def work(ledger: Ledger) -> list[str]:
        for epoch in (None, 0, 2):
            with pytest.raises(FencedError):
                await ledger.append("h", [said("forged")], epoch=epoch)
        return [damage.what for damage in (await ledger.verify()).damages]

    assert with_ledger(path, work) == ["its epoch, status, owner or times are not what they were"]


@pytest.mark.slow
def test_a_deletion_after_a_search_is_no_damage(tmp_path: Path) -> None:
    async def work(ledger: Ledger) -> None:
        for _ in range(3):
            await ledger.append("t", [said("one two"), said("two"), said("two")])
            for _ in range(8):  # so that every reader has looked into the index
                await asyncio.gather(*(ledger.search("two") for _ in range(4)))
            await ledger.delete("t")
            verification = await ledger.verify()
            assert verification.is_whole, verification

    with_ledger(tmp_path / "ledger.db", work)


def test_a_thread_that_is_deleted_while_it_is_examined_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ledger.db"
    look = verify.look

    def late(subject: Any, after: int, *values: Any) -> Any:
        if after == 4:
            other = connect(LedgerFile(str(path), 5.0))
            run(other, branches.delete("t", with_branches=False))
            other.close()
        return (yield from look(subject, after, *values))

    async def work(ledger: Ledger) -> bool:
        await ledger.append("t", [said(str(number)) for number in range(10)])
        return (await ledger.verify()).is_whole

    monkeypatch.setattr(verify, "_STEP", 2)
    monkeypatch.setattr(verify, "look", late)
    assert with_ledger(path, work)


# ---------------------------------------------------------------- files


def test_a_backup_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    async def work(ledger: Ledger) -> None:
        with pytest.raises(LedgerUnavailableError, match=r"cannot be written: .*choose a folder"):
            await ledger.backup(tmp_path / "nowhere" / "backup.db")

    with_ledger(tmp_path / "ledger.db", work)
    assert [each.name for each in tmp_path.iterdir()] == ["ledger.db"]


def test_a_folder_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")

    async def work(ledger: SqliteLedger) -> ThreadSummary | None:
        return await ledger.thread("t")

    with pytest.raises(LedgerUnavailableError, match="cannot be created"):
        with_ledger(tmp_path / "file" / "folder" / "ledger.db", work)


# ---------------------------------------------------------------- redaction


@pytest.mark.parametrize(
    "text",
    [
        'data: {"api_key": "sk-ant-api03-hunter2hunter2hunter2"}',
        "data:text/plain,password=hunter2hunter2",
        '{"password": "my hunter2 phrase"}',
        '{"deep": {"password": {"value": ["hunter2"]}}}',
        '{"inside": "{\\"password\\": \\"my hunter2 phrase\\"}"}',
        '{"password": "my hunter2 phrase", "cut',
        "password = 'my hunter2 phrase'",
    ],
)
def test_a_secret_is_found_in_streams_in_json_inside_a_text_and_between_quotes(text: str) -> None:
    """G23: as arguments come that were never parsed."""
    payload = OptionCallPayload(invocation_id="i", option_name="login", arguments={}, arguments_text=text)
    clean = STANDARD_REDACTION.message(Message(policy="agent", payload=payload))

    assert isinstance(clean.payload, OptionCallPayload)
    assert "hunter2" not in (clean.payload.arguments_text or "")
    assert STANDARD_REDACTION.message(clean) is clean


def test_json_in_a_text_without_a_secret_stays_as_it_is() -> None:
    for text in ('{ "a" : 1.0,  "b":[ ] }', "[" * 2000, "[" * 900 + "]" * 900):
        assert STANDARD_REDACTION.text(text) == text


def test_an_id_that_looks_like_the_number_of_a_card_stays_itself() -> None:
    """One long number in ten has the check digit of a card: calls that lost their ids could not be told apart."""
    number = "4111111111111111"
    payload = OptionCallPayload(invocation_id=number, option_name="look", arguments={"card": number})
    message = Message(id=number, policy="agent", correlation_id=number, payload=payload)

    clean = STANDARD_REDACTION.message(message)

    assert (clean.id, clean.correlation_id, clean.invocation_id) == (number, number, number)
    assert isinstance(clean.payload, OptionCallPayload)
    assert clean.payload.arguments == {"card": "[redacted:card-number]"}
