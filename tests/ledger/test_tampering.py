"""What was altered in the file is found, named and never handed out (G20, F33, S14)."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.ledger.faults.counts import count
from tests.ledger.histories import called, everything, fill, said, with_ledger

from antiphon import MediaPart, Message, PartsPayload
from antiphon.errors import LedgerCorruptError, LedgerError
from antiphon.ledger import Fold, Ledger, MasterKey, Verification, heads_of, replay
from antiphon.ledger.sqlite._connection import Connection, LedgerFile, connect

COLUMNS = {
    "body": "CAST(? AS BLOB)",
    "hash": "CAST(? AS BLOB)",
    "recorded_at": "?",
    "seq": "?",
    "thread": "?",
    "id_key": "?",
    "invocation_key": "?",
    "open_from": "?",
}


KEY = MasterKey.from_text(MasterKey.generate())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with threads, a branch, an open call, a snapshot and a large medium."""
    return _made(tmp_path_factory.mktemp("tampering") / "ledger.db")


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, encrypted."""
    return _made(tmp_path_factory.mktemp("sealed") / "ledger.db", master_key=KEY)


@pytest.fixture(params=["plain", "encrypted"])
def either(request: pytest.FixtureRequest) -> tuple[Path, dict[str, Any]]:
    """Each of the two, with the options that open it."""
    is_plain = request.param == "plain"
    return request.getfixturevalue("original" if is_plain else "sealed"), {} if is_plain else {"master_key": KEY}


def _made(path: Path, **options: Any) -> Path:
    fill(path, threads=4, turns=6, **options)

    async def more(ledger: Ledger) -> None:
        picture = MediaPart(modality="image", url="data:image/png;base64," + "QUJD" * 10_000)
        await ledger.append("t0", [Message(policy="u", payload=PartsPayload(parts=(picture,)))])
        await ledger.append("t1", [called()], snapshot=COUNT.snapshot(19))
        await ledger.fork("t1", at=19, into="branch")
        await ledger.append("branch", [said("on its own way") for _ in range(5)])

    with_ledger(path, more, **options)
    return path


COUNT: Fold[int] = Fold("count", 0, lambda state, message: state + 1, lambda state: state, lambda value: int(str(value)))


def altered(original: Path, folder: Path, alter: Callable[[Connection], None]) -> Path:
    path = folder / "altered.db"
    shutil.copy(original, path)
    connection = connect(LedgerFile(str(path), 5))
    alter(connection)
    connection.close()
    return path


async def verified(ledger: Ledger) -> Verification:
    return await ledger.verify()


def flip(value: Any, random: Random) -> Any:
    """Change one bit."""
    if value is None:
        return random.randrange(1, 5)
    if isinstance(value, int):
        return value ^ (1 << random.randrange(16))
    place = random.randrange(len(value) * 8)
    changed = bytearray(value)
    changed[place // 8] ^= 1 << (place % 8)
    return bytes(changed)


def row_flip(random: Random) -> Callable[[Connection], None]:
    def alter(connection: Connection) -> None:
        column = random.choice(list(COLUMNS))
        position = random.choice(connection.rows("SELECT position FROM messages"))[0]
        old = connection.value(f"SELECT {column} FROM messages WHERE position = ?", (position,))
        change = f"UPDATE OR IGNORE messages SET {column} = {COLUMNS[column]} WHERE position = ?"
        while not connection.changes():  # a place that is taken is ignored: another bit
            connection.run(change, (flip(old, random), position))

    return alter


def deletion(random: Random) -> Callable[[Connection], None]:
    def alter(connection: Connection) -> None:
        position = random.choice(connection.rows("SELECT position FROM messages"))[0]
        connection.run("DELETE FROM messages WHERE position = ?", (position,))

    return alter


def swap(random: Random) -> Callable[[Connection], None]:
    """Two rows change places, keys and all."""

    def alter(connection: Connection) -> None:
        rows = connection.rows("SELECT position, thread, seq FROM messages")
        (one, *first), (other, *second) = random.sample(rows, 2)
        move = "UPDATE messages SET thread = ?, seq = ? WHERE position = ?"
        connection.run(move, (0, 0, one))
        connection.run(move, (*first, other))
        connection.run(move, (*second, one))

    return alter


@pytest.mark.slow
@pytest.mark.parametrize("kind", [row_flip, deletion, swap])
def test_each_altered_row_is_found(
    kind: Callable[[Random], Any], either: tuple[Path, dict[str, Any]], tmp_path: Path, record_property: Any
) -> None:
    """F33: verify names a thread and a place for every one.

    Without the master key, missing and swapped rows of an encrypted ledger are found too; the keys of indexes are not
    compared then, because they are made of sealed ids.
    """
    original, options = either
    form = "encrypted" if options else "plain"
    record_property("F33", f"{count('F33') // 3 + 1} times {kind.__name__}, {form}, all found")
    for seed in range(count("F33") // 3 + 1):
        path = altered(original, tmp_path, kind(Random(seed)))
        given = {} if seed % 2 and kind is not row_flip else options
        damages = with_ledger(path, verified, **given).damages
        assert damages, f"{kind.__name__} {seed} was not found"
        assert any(damage.thread_id and damage.seq for damage in damages), (kind.__name__, seed, damages)


def test_an_untouched_ledger_is_whole(either: tuple[Path, dict[str, Any]]) -> None:
    original, options = either
    for given in (options, {}):
        found = with_ledger(original, verified, **given)
        assert found.is_whole
        assert (found.threads, found.messages) == (5, 80)


def test_altered_messages_are_not_returned(original: Path, tmp_path: Path) -> None:
    """G20: reading stops at the place, with its name, after the messages before it."""

    def alter(connection: Connection) -> None:
        for position, body in connection.rows("SELECT position, body FROM messages"):
            changed = body.replace(b"2 asks 3", b"2 asks 9")
            connection.run("UPDATE messages SET body = ? WHERE position = ?", (changed, position))

    async def work(ledger: Ledger) -> None:
        seen: list[int] = []

        async def read() -> None:
            async for record in ledger.read("t2"):
                seen.append(record.seq)  # noqa: PERF401 (it raises in between)

        with pytest.raises(LedgerCorruptError, match="thread 't2' at seq 10: it was altered") as caught:
            await read()
        assert (caught.value.thread_id, caught.value.seq, caught.value.retryable) == ("t2", 10, False)
        assert seen == list(range(1, 10))
        with pytest.raises(LedgerCorruptError):
            await replay(ledger, "t2")
        with pytest.raises(LedgerCorruptError):
            await ledger.search("asks")
        with pytest.raises(LedgerCorruptError):
            async for _ in ledger.tail():
                pass
        assert len(await everything(ledger, "t1")) == 19

    with_ledger(altered(original, tmp_path, alter), work)


@pytest.mark.parametrize("seq", [1, 5, 18])
def test_a_missing_row_is_noticed_when_it_is_read(seq: int, original: Path, tmp_path: Path) -> None:
    def alter(connection: Connection) -> None:
        key = connection.value("SELECT key FROM threads WHERE thread_id = 't2'")
        connection.run("DELETE FROM messages WHERE thread = ? AND seq = ?", (key, seq))

    async def work(ledger: Ledger) -> None:
        for reverse in (False, True):
            with pytest.raises(LedgerCorruptError, match="missing"):
                async for _ in ledger.read("t2", reverse=reverse):
                    pass

    with_ledger(altered(original, tmp_path, alter), work)


def test_a_cut_tail_is_found_by_a_head_that_was_kept_elsewhere(original: Path, tmp_path: Path) -> None:
    """F33, S14: the last messages are taken out, and everything that remains is made to agree; only the head knows."""

    def alter(connection: Connection) -> None:
        key = connection.value("SELECT key FROM threads WHERE thread_id = 't2'")
        connection.run("DELETE FROM messages WHERE thread = ? AND seq > 15", (key,))
        last = connection.value("SELECT hash FROM messages WHERE thread = ? AND seq = 15", (key,))
        connection.run("UPDATE threads SET seq = 15, run = 15, hash = ? WHERE key = ?", (last, key))
        connection.run("UPDATE counters SET value = value + 3 WHERE name = 'removed messages'")

    heads = with_ledger(original, heads_of)
    path = altered(original, tmp_path, alter)

    async def work(ledger: Ledger) -> tuple[Verification, Verification]:
        return await ledger.verify(), await ledger.verify(heads=heads)

    without, with_heads = with_ledger(path, work)
    assert without.is_whole
    assert [(damage.thread_id, damage.seq, damage.what) for damage in with_heads.damages] == [
        ("t2", 16, "it had 18 messages once, and has 15")
    ]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE media SET text = CAST('x' || text AS BLOB)",
        "DELETE FROM media",
        "UPDATE snapshots SET state = CAST('18' AS BLOB)",
        "DELETE FROM open_calls",
        "UPDATE open_calls SET option_key = option_key + 1",
        "DELETE FROM threads WHERE thread_id = 't3'",
        "UPDATE threads SET seq = seq + 1 WHERE thread_id = 't3'",
        "UPDATE threads SET hash = zeroblob(32) WHERE thread_id = 't3'",
        "UPDATE threads SET base_seq = base_seq - 1 WHERE thread_id = 'branch'",
        "UPDATE threads SET thread_id = 'renamed' WHERE thread_id = 't3'",
        "UPDATE messages SET media = NULL",
        "UPDATE threads SET run = 'x', open_from = 3 WHERE thread_id = 't3'",
    ],
)
def test_rows_beside_the_messages_are_verified_too(sql: str, original: Path, tmp_path: Path) -> None:
    path = altered(original, tmp_path, lambda connection: connection.run(sql))

    assert not with_ledger(path, verified).is_whole


def test_a_snapshot_that_was_altered_is_not_used(original: Path, tmp_path: Path) -> None:
    path = altered(original, tmp_path, lambda connection: connection.run("UPDATE snapshots SET state = CAST('100' AS BLOB)"))

    async def work(ledger: Ledger) -> None:
        with pytest.raises(LedgerCorruptError, match="the snapshot of 'count'"):
            await replay(ledger, "t1", COUNT)

    with_ledger(path, work)


@pytest.mark.slow
def test_flipped_bits_in_the_file_are_found_or_typed(
    either: tuple[Path, dict[str, Any]], tmp_path: Path, record_property: Any
) -> None:
    """G20, G21: anywhere in the file, below SQLite. Each is found, or is in a place that no message rests on."""
    original, options = either
    size = original.stat().st_size
    random = Random(20)
    harmless = 0
    runs = count("F33") // 4
    for _ in range(runs):
        path = tmp_path / "flipped.db"
        shutil.copy(original, path)
        with path.open("r+b") as file:
            file.seek(random.randrange(size))
            (byte,) = file.read(1)
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ (1 << random.randrange(8))]))
        try:
            found = with_ledger(path, _all_of_it, **options)
        except LedgerError:
            continue
        if found[0].is_whole:
            assert found[1] == with_ledger(original, _all_of_it, **options)[1]
            harmless += 1
    form = "encrypted" if options else "plain"
    record_property("F33", f"{runs} bits flipped in a file, {form}: {runs - harmless} found, {harmless} without effect")
    assert harmless < 2 * runs / 3  # free space, and tables without rows


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE thread_keys SET wrapped = CAST('x' || wrapped AS BLOB) WHERE thread = 1",
        "UPDATE thread_keys SET wrapped = (SELECT wrapped FROM thread_keys WHERE thread = 2) WHERE thread = 1",
        "DELETE FROM thread_keys WHERE thread = 1",
        "UPDATE snapshots SET state = CAST('18' AS BLOB)",
        "DELETE FROM open_calls",
    ],
)
def test_rows_beside_sealed_messages_are_verified_too(sql: str, sealed: Path, tmp_path: Path) -> None:
    path = altered(sealed, tmp_path, lambda connection: connection.run(sql))

    assert not with_ledger(path, verified, master_key=KEY).is_whole


async def _all_of_it(ledger: Ledger) -> tuple[Verification, list[bytes]]:
    found = await ledger.verify()
    names = [head.thread_id for head in await heads_of(ledger)]
    if not found.is_whole:
        return found, []
    return found, [record.body for name in names for record in await everything(ledger, name)]


def test_nobody_can_go_on_after_what_is_missing(original: Path, tmp_path: Path) -> None:
    """A thread whose head does not fit its rows is not grown further in silence: reading it says so."""

    def alter(connection: Connection) -> None:
        connection.run("UPDATE threads SET hash = zeroblob(32) WHERE thread_id = 't3'")

    async def work(ledger: Ledger) -> None:
        await ledger.append("t3", [said()])
        with pytest.raises(LedgerCorruptError, match="at seq 19"):
            await everything(ledger, "t3")

    with_ledger(altered(original, tmp_path, alter), work)
