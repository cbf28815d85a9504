"""Encrypted threads (S7, S14, G23): nothing readable is stored, and keys are rotated and forgotten."""

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import run as run_command
from tests.forked import Forked
from tests.ledger.histories import answered, called, everything, fill, said, with_ledger
from tests.postgres import Server

from antiphon import MediaPart, Message, OptionResultBuilder, PartsPayload, service
from antiphon.errors import (
    EncryptionError,
    ForgottenError,
    LedgerCorruptError,
    NoMasterKeyError,
    NotSearchableError,
    RestoreRefusedError,
)
from antiphon.ledger import Fold, Host, Ledger, MasterKey, Snapshot, ThreadJournal, heads_of, journal_of, open_ledger, replay
from antiphon.ledger._encryption import SigningKey, ThreadKey, is_signed
from antiphon.ledger._records import Record, genesis, link
from antiphon.ledger._sql.statements import PutThread
from antiphon.ledger._stored import message_checksum
from antiphon.ledger.postgres import _driver
from antiphon.ledger.sqlite._connection import LedgerFile, connect
from antiphon.retrieval import KnowledgeBase

ANOTHER_KEY = "is not the one that wraps its keys"
MARK = "kanarie7c1f"
"""In every canary: a search for it finds all of them."""
PREFIXES = (
    *("sk-proj-", "sk-ant-api03-", "ghp_", "github_pat_", "AKIA", "xoxb-", "glpat-", "hf_", "npm_", "pypi-", "AIzaSy"),
    *("eyJhbGciOiJIUzI1NiJ9.", "Bearer:", "postgres://u:", "sessionid=", "4111-1111-1111-1111-", "\N{BIRD}", "שלום", "密码"),
    "%73%6b-",
)
CANARIES = [f"{prefix}{MARK}{number:02}" for prefix in PREFIXES for number in range(10)]


def key() -> MasterKey:
    return MasterKey.from_text(MasterKey.generate())


def picture(text: str) -> Message:
    url = f"data:text/plain,{text}/{'A' * 9000}"
    return Message(policy="user", payload=PartsPayload(parts=(MediaPart(modality="image", url=url),)))


async def plant(ledger: Ledger, canaries: list[str], prefix: str) -> None:
    """Put each canary into twelve places of a thread."""
    for number, canary in enumerate(canaries):
        thread = f"{prefix}{number}"
        call = called(f"option-{canary}", correlation_id=f"about-{canary}")
        done = called(turn_id=f"turn-{canary}")
        failed = OptionResultBuilder.response_to(call).error("broken", f"it said {canary}")
        messages = [
            said(f"the word is {canary}"),
            said("an id", id=f"id-{canary}"),
            said("a name").model_copy(update={"policy": f"policy-{canary}"}),
            picture(canary),
            said("metadata", metadata={"test": {"secret": canary}}),
            done,
            answered(done, {"value": [canary]}),
            called("tool", parent_id=f"parent-{canary}"),
        ]
        await ledger.append(thread, [*messages, call], snapshot=Snapshot("fold", {"state": canary}), allow_foreign=True)
        await ledger.append(thread, [failed])
        await ledger.append(thread, [called(f"open-{canary}")])
        await ledger.post(thread, said(f"posted {canary}", to=("agent/1",)))


async def use(ledger: Ledger) -> None:
    """Do what fills indexes, and writes text beside messages."""
    host = Host("host", build="1", kinds=("agent",), lease=60.0)
    await ledger.beat(host)
    for taken in await ledger.take(host, limit=20):
        await ledger.release(taken.thread_id, epoch=taken.epoch, unfit="1", reason=f"failed: {CANARIES[0]}")
    assert await ledger.search(MARK) == ()
    await ledger.fork("t0", into="branch")
    assert (await ledger.verify()).damages == ()


def on_disk(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted(folder.rglob("*")) if each.is_file())


@pytest.mark.slow
def test_200_canaries_in_12_places_are_nowhere_in_a_file_g23_s7(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Redaction is off, so encryption alone hides them: in the file, its log, a backup, and what the program logs."""
    caplog.set_level(logging.DEBUG)
    master = key()

    async def work(ledger: Ledger) -> bytes:
        await plant(ledger, CANARIES, "t")
        await use(ledger)
        seen = on_disk(tmp_path)
        await ledger.backup(tmp_path / "backup.db")
        assert len([1 for number in range(200) async for _ in ledger.read(f"t{number}")]) == 200 * 12
        calls = [(await ledger.open_calls(option=f"open-{canary}")).calls for canary in CANARIES]
        # `t0` has a branch, whose open call is closed; a call is found by its name although the name is hidden
        assert {len(each) for each in calls} == {1}
        return seen

    seen = with_ledger(tmp_path / "ledger.db", work, redaction="off", master_key=master) + on_disk(tmp_path)

    assert len(CANARIES) == 200
    assert MARK.encode() not in seen
    assert b64encode(MARK.encode())[:12] not in seen
    assert MARK not in caplog.text


@pytest.mark.slow
async def test_200_canaries_in_12_places_are_nowhere_in_postgresql_g23_s7(postgres: Server) -> None:
    """Every file of the server is searched: tables, indexes, the write-ahead log and its own log."""
    async with open_ledger(postgres.url, tenant="canaries", redaction="off", master_key=key()) as ledger:
        await plant(ledger, CANARIES, "t")
        await use(ledger)
    assert _files_with(MARK, postgres) == []


TEAM = f"""
pattern = "peers"
model = "scripted:script.toml"
[[agents]]
name = "ada"
role = "leader"
instructions = "Never say {MARK}a."
tools = ["calculator"]
"""
SCRIPT = f'''
turns = [
    {{ calls = [{{ tool = "calculator", arguments = {{ expression = "{MARK}b + 1" }} }}] }},
    {{ text = "It is {MARK}c." }},
]
'''


@pytest.mark.slow
def test_everything_that_commands_store_in_postgresql_is_unreadable_s7(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A team and six phases: prompts, text of peers, live text, hosts, the sums of a server, logs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ANTIPHON_KEY", MasterKey.generate())
    (tmp_path / "team.toml").write_text(TEAM)
    (tmp_path / "script.toml").write_text(SCRIPT)
    caplog.set_level(logging.DEBUG)
    url = f"{postgres.url}?tenant=commands"
    for words in (
        ("run", f"What is {MARK}d?", "--model", "scripted"),
        ("run", "--team", "team.toml", f"What is {MARK}e?", "--name", "team"),
        ("fork", "team", "--into", "branch"),
        ("search", "What"),
    ):
        done = run_command(*words, "--ledger", url)
        assert done.exit_code < 2, done.output
    asyncio.run(_summed(url))
    assert _files_with(MARK, postgres) == []
    assert MARK not in caplog.text


async def _summed(url: str) -> None:
    """Store the sums of a server."""
    async with open_ledger(url) as ledger:
        book = service.OverviewBook(ledger)
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await book.count()
        await book.store()
        assert (await book.overview()).patterns


def _files_with(word: str, server: Server) -> list[Path]:
    server.sql("CHECKPOINT")
    found: list[Path] = []
    for path in [path for path in server.data.rglob("*") if path.is_file()]:
        with suppress(FileNotFoundError):  # the server replaces its caches of the catalogue
            if word.encode() in path.read_bytes():
                found.append(path.relative_to(server.data))
    return found


def test_a_plain_file_shows_what_the_search_for_canaries_would_find(tmp_path: Path) -> None:
    """The search above can fail: without a key, the same words are in the file."""

    async def work(ledger: Ledger) -> None:
        await plant(ledger, CANARIES[:1], "t")

    with_ledger(tmp_path / "ledger.db", work, redaction="off")
    assert MARK.encode() in on_disk(tmp_path)


def test_answers_have_no_registered_secret_although_they_are_opened_s7() -> None:
    """Redaction comes before encryption: what a reader gets has no secret either."""

    async def work(ledger: Ledger) -> bytes:
        await ledger.append("t", [said("the key is sk-proj-abcdefghijklmnopqrst")])
        return b"".join([record.body for record in await everything(ledger)])

    assert b"[redacted:api-key]" in with_ledger(None, work, master_key=key())


def test_documents_are_refused_before_they_are_stored_s7() -> None:
    """Their index would be readable. A search among none of them is no error."""

    async def work(ledger: Ledger) -> None:
        with pytest.raises(NotSearchableError, match="keep documents in a ledger without encryption"):
            await KnowledgeBase(ledger).add("a.md", "# A heading\n\nThe word.")
        assert await heads_of(ledger) == ()
        assert await KnowledgeBase(ledger).search("word") == ()

    with_ledger(None, work, master_key=key())


# ---------------------------------------------------------------- keys


def test_another_key_opens_nothing_and_writes_nothing_s14(tmp_path: Path) -> None:
    path, right, wrong = tmp_path / "ledger.db", key(), key()
    with_ledger(path, lambda ledger: ledger.append("t", [said()]), master_key=right)
    before = path.read_bytes()
    with pytest.raises(EncryptionError, match=f"{wrong.id}.* is not the one that wraps its keys .{right.id}.") as caught:
        with_ledger(path, everything, master_key=wrong)
    assert caught.value.code == "WRONG_MASTER_KEY"
    assert path.read_bytes() == before


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def test_of_two_keys_for_an_empty_ledger_the_first_wins(store: str, tmp_path: Path, request: Any) -> None:
    make = opener(store, tmp_path, request, "two keys")
    async with make(key()) as first, make(key()) as second:
        await first.append("a", [said()])
        with pytest.raises(EncryptionError, match=ANOTHER_KEY):
            await second.append("b", [said()])
        assert [head.thread_id for head in await heads_of(first)] == ["a"]


def opener(store: str, folder: Path, request: Any, tenant: str) -> Callable[[Any], AbstractAsyncContextManager[Ledger]]:
    if store == "sqlite":
        return lambda master: open_ledger(f"sqlite:///{folder}/ledger.db", master_key=master)
    server: Server = request.getfixturevalue("postgres")
    return lambda master: open_ledger(server.url, tenant=tenant, master_key=master)


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def test_without_a_key_an_encrypted_ledger_is_verified_and_not_read(store: str, tmp_path: Path, request: Any) -> None:
    make, call = opener(store, tmp_path, request, "no key"), called()
    async with make(key()) as ledger:
        await ledger.append("t", [said(), call], snapshot=Snapshot("f", 1))
        await ledger.fork("t", into="b")
        heads = await heads_of(ledger)
    async with make("off") as ledger:
        found = await ledger.verify(heads=heads)
        assert (found.damages, found.messages) == ((), 3)
        doings: list[Callable[[], Awaitable[object]]] = [
            lambda: everything(ledger),
            lambda: ledger.append("t", [answered(call)]),
            lambda: ledger.append("new", [said()]),
            lambda: ledger.post("t", said(to=("x",))),
            lambda: ledger.open_calls("t"),
            lambda: replay(ledger, "t", Fold("f", 0, lambda state, _: state, int, lambda value: int(str(value)))),
            lambda: ledger.fork("t", at=1),
            lambda: ledger.find(invocation_id=call.invocation_id or ""),
        ]
        for doing in doings:
            with pytest.raises(NoMasterKeyError, match="encrypted, and no master key is given; set ANTIPHON_KEY_FILE"):
                await doing()
        claimed = await ledger.claim("empty")
        for count in (1, 2):  # PostgreSQL writes one message by another statement
            with pytest.raises(NoMasterKeyError):
                await ledger.append("empty", [said() for _ in range(count)], epoch=claimed)
        assert await ledger.keys.forget("b") == ("b",)  # needs no key
        assert (await ledger.verify(heads=heads)).damages == ()


@pytest.mark.parametrize("store", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
async def test_a_key_that_one_process_forgets_or_rotates_is_useless_to_another(
    store: str, tmp_path: Path, request: Any
) -> None:
    """Both have the key of the thread in memory, and on PostgreSQL its state for the next append."""
    make, old, new = opener(store, tmp_path, request, "forgotten elsewhere"), key(), key()
    async with make(old) as first, make(old) as second:
        for thread in ("t", "u"):
            for ledger in (first, second, first):  # the last one need not look at the database before its next append
                await ledger.append(thread, [said()])
            assert len(await everything(first, thread)) == 3
        await second.keys.forget("t")
        with pytest.raises(ForgottenError):
            await everything(first)
        with pytest.raises(ForgottenError):
            await first.append("t", [said()])
        assert await second.keys.rotate(new) == 1
        with pytest.raises(EncryptionError, match=ANOTHER_KEY):
            await everything(first, "u")
        with pytest.raises(EncryptionError, match=ANOTHER_KEY):
            await first.append("new", [said()])
    async with make(new) as ledger:
        assert len(await everything(ledger, "u")) == 3
        assert (await ledger.verify()).damages == ()
    with pytest.raises(EncryptionError, match=ANOTHER_KEY):
        await make(old).__aenter__()


def test_a_forgotten_key_is_in_no_byte_of_the_file_s7(tmp_path: Path) -> None:
    async def work(ledger: Ledger) -> bytes:
        await ledger.append("t", [said()])
        await ledger.append("u", [said()])
        wrapped = await ledger.keys.of("t")
        assert wrapped is not None
        await ledger.keys.forget("t")
        assert wrapped.wrapped is not None
        return wrapped.wrapped

    wrapped = with_ledger(tmp_path / "ledger.db", work, master_key=key())
    assert wrapped not in on_disk(tmp_path)


def test_a_plain_thread_stays_plain_and_new_ones_are_encrypted(tmp_path: Path) -> None:
    """A file that was filled without a key opens with one, and its messages stay byte for byte as they are."""
    path = tmp_path / "ledger.db"
    fill(path)
    before = with_ledger(path, heads_of)

    async def work(ledger: Ledger) -> None:
        name = before[0].thread_id
        status = await ledger.keys.status()
        assert status is not None
        assert status.threads == 0
        await ledger.append("new", [said()])
        assert [await ledger.keys.of(each) is not None for each in (name, "new")] == [False, True]
        await ledger.fork(name, into="twig")
        await ledger.append("twig", [said()])
        assert await ledger.keys.of("twig") is not None
        assert len(await everything(ledger, "twig")) > len(await everything(ledger, name))
        with pytest.raises(EncryptionError):
            await ledger.keys.forget(name)
        assert (await ledger.verify(heads=before)).damages == ()

    with_ledger(path, work, master_key=key())


def test_a_thread_without_messages_is_encrypted_with_its_first_append(tmp_path: Path) -> None:
    """So is a snapshot that a server has stored before there was a key, such as its sums."""
    path, fold = tmp_path / "ledger.db", Fold("sums", "", lambda state, _: state, str, str)

    async def plain(ledger: Ledger) -> None:
        await ledger.append("system/sums", [], snapshot=fold.snapshot("plain"))

    async def work(ledger: Ledger) -> str:
        assert await replay(ledger, "system/sums", fold) == "plain"
        await ledger.append("system/sums", [], snapshot=fold.snapshot(MARK))
        return await replay(ledger, "system/sums", fold)

    with_ledger(path, plain)
    assert with_ledger(path, work, master_key=key()) == MARK
    assert MARK.encode() not in on_disk(tmp_path)


def test_a_function_can_keep_the_master_key() -> None:
    kept: dict[bytes, tuple[bytes, str]] = {}

    def wrap(inner: bytes, thread_id: str) -> bytes:
        kept[name := f"handle {len(kept)}".encode()] = inner, thread_id
        return name

    def unwrap(wrapped: bytes, thread_id: str) -> bytes:
        inner, name = kept[wrapped]
        if name != thread_id:
            raise ValueError("another thread")
        return inner

    async def work(ledger: Ledger) -> None:
        await ledger.append("t", [said("kept elsewhere")])
        assert [record.message.text for record in await everything(ledger)] == ["kept elsewhere"]

    with_ledger(None, work, master_key=MasterKey.from_functions("kms/1", wrap, unwrap))
    assert {name for _, name in kept.values()} == {"t", ""}


def test_keys_come_from_the_environment_and_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, path = MasterKey.generate(), tmp_path / "master.key"
    path.write_text(text)
    path.chmod(0o640)
    monkeypatch.setenv("ANTIPHON_KEY_FILE", str(path))
    with pytest.raises(ValueError, match=r"others may read the key file .*; run `chmod 600`"):
        MasterKey.from_environment()
    path.chmod(0o600)
    found = MasterKey.from_environment()
    assert found is not None
    assert found.id == MasterKey.from_text(text).id
    assert text not in repr(found)
    assert with_ledger(None, _is_encrypted)
    assert not with_ledger(None, _is_encrypted, master_key="off")
    monkeypatch.setenv("ANTIPHON_KEY", text)
    with pytest.raises(ValueError, match="are both set; unset one"):
        MasterKey.from_environment()
    monkeypatch.delenv("ANTIPHON_KEY_FILE")
    assert MasterKey.from_environment() is not None
    for wrong in ("short", b64encode(b"x" * 31).decode(), "é"):
        monkeypatch.setenv("ANTIPHON_KEY", wrong)
        with pytest.raises(ValueError, match=r"a master key (is|has) 32 bytes"):
            MasterKey.from_environment()


async def _is_encrypted(ledger: Ledger) -> bool:
    await ledger.append("t", [said()])
    return await ledger.keys.of("t") is not None


@pytest.mark.slow
def test_without_the_package_the_error_says_what_to_install(tmp_path: Path) -> None:
    program = f"""
import sys
sys.modules["cryptography"] = None
from antiphon.ledger import MasterKey
try:
    MasterKey.from_text({MasterKey.generate()!r})
except ModuleNotFoundError as exc:
    print(exc)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == 'encryption needs cryptography: pip install "antiphon[crypto]"\n'


# ---------------------------------------------------------------- the stored form


def test_sealed_bytes_open_only_where_they_were_written_s14() -> None:
    mine, other = ThreadKey("t", b"k" * 32), ThreadKey("u", b"k" * 32)
    body = b'{"antiphon":1,"id":"m1","text":"x"}'
    sealed = mine.seal(1, "m1", body)
    assert mine.open(1, sealed) == body
    moved = sealed[:13] + mine.seal(1, "m2", body)[13:29] + sealed[29:]
    for key_, seq, stored in (
        (mine, 2, sealed),
        (other, 1, sealed),
        (ThreadKey("t", b"l" * 32), 1, sealed),
        (mine, 1, moved),
        (mine, 1, mine.seal(1, "m2", body)),
        (mine, 1, body),
        (mine, 1, sealed[:20]),
        *((mine, 1, sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]) for at in range(len(sealed))),
    ):
        with pytest.raises(LedgerCorruptError):
            key_.open(seq, stored)


@pytest.mark.slow
def test_nonces_never_repeat() -> None:
    """Not even if the same message is sealed again at the same place, as after an append that was rolled back."""
    one = ThreadKey("t", b"k" * 32)
    assert len({one.seal(1, "m", b"{}")[1:13] for _ in range(20_000)}) == 20_000


def test_rows_that_were_swapped_are_found_although_their_chain_is_right_s14(tmp_path: Path) -> None:
    """Who can write the file can compute a chain, and has no key."""
    path, master = tmp_path / "ledger.db", key()
    with_ledger(path, lambda ledger: ledger.append("t", [said("one"), said("two")]), master_key=master)
    connection = connect(LedgerFile(str(path), 1.0))
    rows = connection.rows("SELECT position, recorded_at, body FROM messages ORDER BY position")
    last = genesis("t")
    for (position, time, _), (_, _, body) in zip(rows, reversed(rows), strict=True):
        last = link(last, time, body)
        connection.run(
            "UPDATE messages SET body = ?, hash = ?, checksum = ? WHERE position = ?",
            (body, last, message_checksum(position, last), position),
        )
    connection.run("UPDATE threads SET hash = ?", (last,))
    connection.close()

    async def whole(ledger: Ledger) -> list[str]:
        return [damage.what for damage in (await ledger.verify()).damages]

    assert with_ledger(path, whole, master_key="off") == []
    reason = "it cannot be decrypted with the key of its thread: it was altered, or moved from another position"
    assert with_ledger(path, whole, master_key=master) == [reason]
    with pytest.raises(LedgerCorruptError, match=reason):
        with_ledger(path, everything, master_key=master)


def test_a_readable_row_in_an_encrypted_thread_is_found_s14(tmp_path: Path) -> None:
    path, master = tmp_path / "ledger.db", key()
    (first,) = with_ledger(path, lambda ledger: ledger.append("t", [said("one")]), master_key=master)
    connection = connect(LedgerFile(str(path), 1.0))
    time = connection.value("SELECT recorded_at FROM messages")
    digest = link(genesis("t"), time, first.body)
    connection.run("UPDATE messages SET body = ?, hash = ?", (first.body, digest))
    connection.run("UPDATE threads SET hash = ?", (digest,))
    connection.close()

    async def whole(ledger: Ledger) -> str:
        return (await ledger.verify()).damages[0].what

    for given in (master, "off"):
        assert with_ledger(path, whole, master_key=given) == "it is not encrypted, although its thread is"


def test_an_altered_key_is_found(tmp_path: Path) -> None:
    path, master = tmp_path / "ledger.db", key()
    with_ledger(path, lambda ledger: ledger.append("t", [said("one")]), master_key=master)
    connection = connect(LedgerFile(str(path), 1.0))
    connection.run("UPDATE thread_keys SET wrapped = zeroblob(60) WHERE thread <> 0")
    connection.close()

    async def damages(ledger: Ledger) -> list[str]:
        return [damage.what for damage in (await ledger.verify()).damages]

    assert with_ledger(path, damages, master_key="off") == ["the key of a thread is not what it was"]
    with pytest.raises(LedgerCorruptError, match="its wrapped key was altered"):
        with_ledger(path, everything, master_key=master)


def test_a_journal_of_an_encrypted_thread_needs_its_key() -> None:
    async def work(ledger: Ledger) -> ThreadJournal:
        await ledger.append("t", [said("one")])
        return await journal_of(ledger, "t")

    master = key()
    journal = with_ledger(None, work, master_key=master)
    (record,) = journal.records
    heads = [Record(1, b"", record.hash, record.recorded_at)]
    from antiphon.ledger import Head

    head = Head("t", heads[0].seq, record.hash)
    bare = Record(1, b"", record.hash, record.recorded_at, stored=record.stored)
    whole = ThreadJournal("t", (bare,), key=journal.key)

    async def read(ledger: Ledger) -> list[str]:
        await ledger.restore([whole], [head])
        return [each.message.text for each in await everything(ledger)]

    assert with_ledger(None, read, master_key=master) == ["one"]
    with pytest.raises(NoMasterKeyError):
        with_ledger(None, read, master_key="off")
    with pytest.raises(EncryptionError, match=ANOTHER_KEY):
        with_ledger(None, read, master_key=key())
    with pytest.raises(RestoreRefusedError, match="the journal has no key"):
        with_ledger(None, lambda ledger: ledger.restore([ThreadJournal("t", (bare,))], [head]), master_key=master)


@pytest.mark.slow
async def test_encrypted_threads_are_copied_to_another_store_with_their_keys(tmp_path: Path, postgres: Server) -> None:
    """The target needs the same master key. A forgotten thread is left out, and refused if it is named."""
    master, call = key(), called()
    async with (
        open_ledger(f"sqlite:///{tmp_path}/ledger.db", master_key=master) as source,
        open_ledger(postgres.url, tenant="copied keys", master_key=master) as target,
        open_ledger(postgres.url, tenant="other keys", master_key=key()) as other,
    ):
        await source.append("t", [said("one"), picture("two"), call])
        await source.fork("t", at=2, into="b")
        await source.append("gone", [said("three")])
        await source.keys.forget("gone")
        before = [await everything(source, name) for name in ("t", "b")]
        for names in ((), ("gone",)):
            with pytest.raises(RestoreRefusedError, match="another master key" if not names else "its key was forgotten"):
                await service.copy_threads(source, other if not names else target, names, trust_source=True)
        done = await service.copy_threads(source, target, trust_source=True)
        assert [each.thread_id for each in done] == ["t", "b"]
        assert [await everything(target, name) for name in ("t", "b")] == before
        assert [record.message.id for record in (await target.open_calls(option="look")).calls] == [call.id]
        assert (await target.verify(heads=[await source.head(name) for name in ("t", "b")])).damages == ()
        assert await target.keys.forget("t", with_branches=True) == ("t", "b")


# ---------------------------------------------------------------- processes

PROGRAM = """
import asyncio, sys
from antiphon import MessageBuilder, open_ledger

async def main(url, name, count):
    async with open_ledger(url) as ledger:
        for number in range(count):
            (record,) = await ledger.append(name, [MessageBuilder().add_text(f"{name} {number}").to_message()])
            posted = MessageBuilder().add_text(f"{name} {number}").to_message()
            await ledger.post("shared", posted.model_copy(update={"to": ("x",)}))
            print(record.seq, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


def start(url: str, name: str, count: int, text: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "ANTIPHON_KEY": text}
    command = [sys.executable, "-c", PROGRAM, url, name, str(count)]
    return Forked(command, env=environment, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_two_processes_use_one_encrypted_file(tmp_path: Path) -> None:
    """Both begin with an empty file: one of them makes the ledger's own key."""
    text, path = MasterKey.generate(), tmp_path / "ledger.db"
    children = [start(f"sqlite:///{path}", name, 20, text) for name in ("a", "b")]
    for child in children:
        out, _ = child.communicate(timeout=60)
        assert (child.returncode, len(out.split())) == (0, 20)

    async def work(ledger: Ledger) -> tuple[int, ...]:
        assert (await ledger.verify()).damages == ()
        return tuple([len(await everything(ledger, name)) for name in ("a", "b", "shared")])

    assert with_ledger(path, work, master_key=MasterKey.from_text(text)) == (20, 20, 40)


@pytest.mark.slow
def test_a_kill_in_between_loses_nothing_of_an_encrypted_file_g1(tmp_path: Path) -> None:
    """kill -9 five times: what was acknowledged can be read, and nothing readable is left behind."""
    text, path, acknowledged = MasterKey.generate(), tmp_path / "ledger.db", 0
    for round_ in range(5):
        child = start(f"sqlite:///{path}", "t", 10_000, text)
        assert child.stdout is not None
        for _ in range(3 + round_):
            acknowledged = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=30)
        child.stdout.close()
        assert b"t 0" not in on_disk(tmp_path)

        async def work(ledger: Ledger) -> int:
            assert (await ledger.verify()).damages == ()
            return len(await everything(ledger))

        assert with_ledger(path, work, master_key=MasterKey.from_text(text)) >= acknowledged


# ---------------------------------------------------------------- signatures


def test_a_signature_is_of_one_key_and_one_text(tmp_path: Path) -> None:
    path = tmp_path / "sign"
    path.write_text(SigningKey.generate())
    path.chmod(0o600)
    one, text = SigningKey.from_file(path), json.dumps([1]).encode()
    signature = one.sign(text)
    assert is_signed(text, signature, one.public)
    assert not is_signed(text + b" ", signature, one.public)
    assert not is_signed(text, signature, SigningKey(b"x" * 32).public)
    assert not is_signed(text, "no base64", one.public)
    path.write_text(MasterKey.generate())
    with pytest.raises(ValueError, match="holds no key for signatures"):
        SigningKey.from_file(path)


@pytest.mark.slow
async def test_a_thread_that_begins_during_a_rotation_can_be_read_after_it(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key was made under the old master key: if the rotation left it so, the message was lost with that master key."""
    old, new = key(), key()
    begun, goes_on = asyncio.Event(), asyncio.Event()
    insert = _driver._ANSWERS[PutThread]

    async def late(session: Any, request: PutThread) -> Any:
        if request.thread.state.thread_id == "late":
            begun.set()
            await goes_on.wait()
        return await insert(session, request)

    monkeypatch.setitem(_driver._ANSWERS, PutThread, late)
    place: Any = {"url": postgres.url, "tenant": "rotated meanwhile"}
    async with open_ledger(**place, master_key=old) as one, open_ledger(**place, master_key=old) as other:
        await one.append("early", [said("a")])
        appending = asyncio.ensure_future(other.append("late", [said("b")]))
        await begun.wait()
        rotating = asyncio.ensure_future(one.keys.rotate(new))
        await asyncio.wait((rotating,), timeout=0.3)  # it may wait for the append, or be done before
        goes_on.set()
        await asyncio.gather(appending, rotating)
        with pytest.raises(EncryptionError, match=ANOTHER_KEY):
            await other.append("later", [said("c")])
        assert await one.thread("later") is None
    async with open_ledger(**place, master_key=new) as ledger:
        assert [(await everything(ledger, name))[0].message.text for name in ("early", "late")] == ["a", "b"]
        assert (await ledger.verify()).is_whole
