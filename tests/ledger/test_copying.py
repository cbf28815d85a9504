"""`antiphon export --to LEDGER`: threads go to another ledger with everything, and continue there alone (G7, G8, G26, S14)."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import uuid4

import pytest
from tests import forked
from tests.cli.running import COMMAND, PLAIN, run
from tests.forked import Forked
from tests.ledger.histories import answered, called, said
from tests.postgres import Server

from antiphon import MediaPart, Message, PartsPayload, service
from antiphon.errors import (
    EncryptionError,
    LedgerCorruptError,
    OwnedError,
    RestoreRefusedError,
    SetupError,
    ThreadMovedError,
    UnknownThreadError,
)
from antiphon.ledger import Head, Host, Ledger, MasterKey, Record, ThreadSummary, heads_of, open_ledger

PICTURE = MediaPart(modality="image", url="data:image/png;base64," + "QUJD" * 2100)
HOST = Host("h", "1", ("agent",), 60.0)
ResultT = TypeVar("ResultT")
WITHIN = 120


async def fill(ledger: Ledger) -> None:
    """Threads of every kind: talk, calls, an open effect, a picture, a branch of a branch, an empty one, a posted message."""
    call, effect = called(), called("pay", lane="effect")
    await ledger.append("talk", [said("north"), call, answered(call)], status="completed", pattern="chain")
    await ledger.fork("talk", at=2, into="branch")
    await ledger.append("branch", [Message(policy="user", payload=PartsPayload(parts=(PICTURE,)))])
    await ledger.fork("branch", into="twig")
    await ledger.append("paid", [said("pay"), effect], epoch=await ledger.claim("paid", kind="agent"))
    await ledger.post("posted", said("wake up", to=("agent/1",)))
    await ledger.claim("empty")
    await ledger.append("own", [said("of the system", lane="control")], pattern="system")


NAMES = ["branch", "empty", "paid", "posted", "talk", "twig"]


async def contents(ledger: Ledger) -> tuple[list[Head], list[Record], list[tuple[Any, ...]]]:
    """Everything of the threads that are copied by default."""
    heads = [head for head in await heads_of(ledger) if head.thread_id != "own"]
    records = [record for head in heads async for record in ledger.read(head.thread_id)]
    return sorted(heads, key=lambda head: head.thread_id), records, [_told(await ledger.thread(name)) for name in NAMES]


def _told(summary: ThreadSummary | None) -> tuple[Any, ...]:
    assert summary is not None
    times = (summary.created_at, summary.updated_at)
    return (*times, summary.status, summary.pattern, summary.kind, summary.forked_from, summary.forked_at, summary.open_calls)


@pytest.fixture(params=["to a database", "from a database", "between files"])
def places(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """The URLs of two ledgers."""
    file = f"sqlite:///{tmp_path}/ledger.db"
    if request.param == "between files":
        return file, f"sqlite:///{tmp_path}/other.db"
    server: Server = request.getfixturevalue("postgres")
    database = f"{server.url}?tenant={uuid4().hex}"
    return (file, database) if request.param == "to a database" else (database, file)


def with_both(places: tuple[str, str], work: Callable[[Ledger, Ledger], Awaitable[ResultT]]) -> ResultT:
    async def main() -> ResultT:
        async with open_ledger(places[0]) as source, open_ledger(places[1]) as target:
            return await work(source, target)

    return asyncio.run(main())


@pytest.mark.slow
def test_a_copy_has_everything_and_the_source_is_fenced(places: tuple[str, str]) -> None:
    async def work(source: Ledger, target: Ledger) -> None:
        await fill(source)
        before = await contents(source)
        copied = await service.copy_threads(source, target, trust_source=True)
        assert sorted((each.thread_id, each.was_there) for each in copied) == [(name, False) for name in NAMES]
        assert await contents(target) == before
        assert (await source.verify()).is_whole
        assert (await target.verify()).is_whole
        for name in NAMES:
            with pytest.raises(ThreadMovedError, match="it was moved to"):
                await source.claim(name)
        await target.beat(HOST)
        taken = await target.take(HOST)
        assert [(each.thread_id, each.why) for each in taken] == [("posted", "posted")]
        again = await service.copy_threads(source, target, trust_source=True)
        assert [each.was_there for each in again] == [True] * len(NAMES)

    with_both(places, work)


@pytest.mark.slow
async def test_a_source_hands_out_no_tokens_of_the_target(tmp_path: Path) -> None:
    """S14: what a thread of the system says counts as control. A source may give such a thread any pattern."""
    async with (
        open_ledger(f"sqlite:///{tmp_path / 'a.db'}") as theirs,
        open_ledger(f"sqlite:///{tmp_path / 'b.db'}") as source,
        open_ledger(f"sqlite:///{tmp_path / 'c.db'}") as target,
    ):
        made = await service.make_token(theirs, "mallory", ["admin"])
        async for record in theirs.read(service.TOKENS_THREAD):
            await source.append(service.TOKENS_THREAD, [record.message.model_copy(update={"id": "1"})], pattern="chain")
        await source.append("talk", [said("north")])
        copied = await service.copy_threads(source, target, trust_source=True)
        assert [each.thread_id for each in copied] == ["talk"]
        assert await service.TokenBook(target).find(made.text) is None


@pytest.mark.slow
def test_a_copy_that_was_interrupted_is_completed(places: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It dies at each step in turn: a thread is in the source, or fenced there, or in the target; never alive in both."""

    async def work(source: Ledger, target: Ledger) -> None:
        await fill(source)
        before = await contents(source)
        steps = 0
        for step in range(1, 100):
            with monkeypatch.context() as patch:
                for ledger, verb in ((source, "move"), (target, "restore")):
                    patch.setattr(ledger, verb, _dying(getattr(ledger, verb), lambda: _tick(counter, step)))  # noqa: B023
                counter = [0]
                try:
                    await service.copy_threads(source, target, trust_source=True)
                except _DiedError:
                    steps += 1
                else:
                    break
            for name in NAMES:
                is_there = await target.thread(name) is not None
                moved = await source.thread(name)
                assert moved is not None
                assert not is_there or moved.moved_to is not None, "it is alive in both"
        assert steps >= len(NAMES)
        assert await contents(target) == before

    with_both(places, work)


class _DiedError(BaseException):
    pass


def _tick(counter: list[int], step: int) -> None:
    counter[0] += 1
    if counter[0] == step:
        raise _DiedError


def _dying(verb: Callable[..., Awaitable[Any]], tick: Callable[[], None]) -> Callable[..., Awaitable[Any]]:
    async def call(*given: Any, **named: Any) -> Any:
        tick()
        done = await verb(*given, **named)
        tick()
        return done

    return call


@pytest.mark.slow
def test_each_refusal_says_what_to_do_and_changes_nothing(tmp_path: Path) -> None:
    async def work(source: Ledger, target: Ledger) -> None:
        await fill(source)
        await target.append("paid", [said("another")])
        await source.beat(HOST)
        await source.append("held", [said()])
        await source.claim("held", by=HOST)
        before, heads = await contents(source), await heads_of(source)
        refusals: list[tuple[type[Exception], str, list[str], dict[str, Any]]] = [
            (OwnedError, "stop it there", ["held"], {"trust_source": True}),
            (RestoreRefusedError, "copy that too", ["branch"], {"trust_source": True}),
            (RestoreRefusedError, "another thread of this name", ["paid"], {"trust_source": True}),
            (RestoreRefusedError, "no head proves it", ["own"], {}),
            (RestoreRefusedError, "take the heads again", ["own"], {"heads": [Head("own", 1, "00")]}),
            (UnknownThreadError, "no such thread", ["nothing"], {}),
        ]
        for kind, text, names, options in refusals:
            with pytest.raises(kind, match=text):
                await service.copy_threads(source, target, ["talk", *names] if names != ["branch"] else names, **options)
        with pytest.raises(SetupError, match="both ledgers are"):
            await service.copy_threads(source, source, trust_source=True)
        assert await contents(source) == before
        assert [head.thread_id for head in await heads_of(target)] == ["paid"]
        await service.copy_threads(source, target, ["talk"])  # talk needs no proof
        await service.copy_threads(source, target, ["own"], heads=heads)
        with pytest.raises(ThreadMovedError):
            async with open_ledger(f"sqlite:///{tmp_path}/third.db") as third:
                await service.copy_threads(source, third, ["talk"])

    with_both((f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"), work)


def test_an_encrypted_thread_stays_encrypted(tmp_path: Path) -> None:
    """With one master key it is copied as it is stored; without the key the copy waits for it, and starts nothing."""

    async def main() -> None:
        key, other = MasterKey(bytes(range(32))), MasterKey(bytes(32))
        here, there = (f"sqlite:///{tmp_path}/{name}.db" for name in "ab")
        async with open_ledger(here, master_key=key) as source:
            await source.append("t", [said("a secret plan", lane="control")])
            async with open_ledger(f"sqlite:///{tmp_path}/c.db", master_key=other) as third:
                await third.append("u", [said()])
                with pytest.raises(RestoreRefusedError, match="another master key"):
                    await service.copy_threads(source, third, trust_source=True)
            async with open_ledger(there) as target:
                with pytest.raises(EncryptionError):
                    await service.copy_threads(source, target, trust_source=True)
            async with open_ledger(there, master_key=key) as target:
                await service.copy_threads(source, target, trust_source=True)
                assert [record.message.text async for record in target.read("t")] == ["a secret plan"]
                assert await target.keys.of("t") is not None
        assert b"secret plan" not in (tmp_path / "b.db").read_bytes()

    asyncio.run(main())


def test_an_altered_source_is_not_copied(tmp_path: Path) -> None:
    import apsw

    path = tmp_path / "a.db"
    places = (f"sqlite:///{path}", f"sqlite:///{tmp_path}/b.db")

    async def work(source: Ledger, target: Ledger) -> None:
        with pytest.raises(LedgerCorruptError, match="the hash is not"):
            await service.copy_threads(source, target, trust_source=True)
        assert await heads_of(target) == ()

    async def begin(source: Ledger, target: Ledger) -> None:
        await source.append("t", [said("hello"), said("again")])

    with_both(places, begin)
    connection = apsw.Connection(str(path))
    connection.execute("UPDATE messages SET body = replace(CAST(body AS TEXT), 'hello', 'hullo') WHERE seq = 1")
    connection.close()
    with_both(places, work)


def test_a_thread_that_changes_during_the_copy_is_refused_and_copied_by_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head was kept, and it went on between the check and the mark: the head no longer proves its rows."""

    async def work(source: Ledger, target: Ledger) -> None:
        await source.append("t", [said(lane="control")])
        heads, move = await heads_of(source), source.move

        async def later(thread_id: str, *, to: str) -> Any:
            await source.append("t", [said("one more")])
            return await move(thread_id, to=to)

        with monkeypatch.context() as patch:
            patch.setattr(source, "move", later)
            with pytest.raises(RestoreRefusedError):
                await service.copy_threads(source, target, heads=heads)
        assert await heads_of(target) == ()
        await service.copy_threads(source, target, heads=await heads_of(source))
        assert [head.seq for head in await heads_of(target)] == [2]

    with_both((f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"), work)


# ---------------------------------------------------------------- the command


def _filled(url: str) -> None:
    async def main() -> None:
        async with open_ledger(url) as ledger:
            await fill(ledger)

    asyncio.run(main())


@pytest.mark.slow
def test_the_command_copies_refuses_and_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _filled("sqlite:///a.db")
    refused = run("export", "--to", "b.db", "--ledger", "a.db")
    assert refused.exit_code == 2
    assert (
        "no head proves it; give signed heads (--heads), or trust the source (--trust-source); nothing was moved"
        in refused.stderr
    )
    assert not (tmp_path / "b.db").exists()
    done = run("export", "--to", "b.db", "--trust-source", "--json", "--ledger", "a.db")
    assert done.exit_code == 0, done.stderr
    assert sorted(row["thread_id"] for row in json.loads(done.stdout)) == NAMES
    again = run("export", "talk", "--to", "b.db", "--trust-source", "--ledger", "a.db")
    assert "was there" in again.stdout
    elsewhere = run("export", "talk", "--to", "c.db", "--trust-source", "--ledger", "a.db")
    assert elsewhere.exit_code == 1
    assert f"was moved to sqlite:///{tmp_path}/b.db, and continues there: add --ledger" in elsewhere.stderr
    assert not (tmp_path / "c.db").exists()
    assert run("export", "--to", "a.db", "--ledger", "a.db").exit_code == 2
    assert run("export", "--to", "b.db", "--ledger", "nowhere.db").exit_code == 2
    assert run("verify", "--ledger", "b.db").exit_code == 0


@pytest.mark.slow
def test_heads_that_a_trusted_key_has_signed_prove_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _filled("sqlite:///a.db")
    assert run("verify", "--ledger", "a.db", "--save-heads", "plain.json").exit_code == 0
    for name in ("mine", "other"):
        assert run("key", "make", name, "--signing").exit_code == 0
    assert run("verify", "--ledger", "a.db", "--save-heads", "heads.json", "--sign", "mine").exit_code == 0
    assert run("export", "--to", "b.db", "--heads", "heads.json", "--ledger", "a.db").exit_code == 2
    assert (
        "not signed"
        in run("export", "--to", "b.db", "--heads", "plain.json", "--signer", "mine.pub", "--ledger", "a.db").stderr
    )
    assert (
        "not by the key of other.pub"
        in run("export", "--to", "b.db", "--heads", "heads.json", "--signer", "other.pub", "--ledger", "a.db").stderr
    )
    assert not (tmp_path / "b.db").exists()
    done = run("export", "--to", "b.db", "--heads", "heads.json", "--signer", "mine.pub", "--ledger", "a.db")
    assert done.exit_code == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_copy_that_is_killed_again_and_again_completes(tmp_path: Path, postgres: Server) -> None:
    """SIGKILL at some moment of the command, several times; the last one is left alone."""
    source, target = f"sqlite:///{tmp_path}/a.db", f"{postgres.url}?tenant={uuid4().hex}"
    random, threads = Random(23), 60

    async def begin() -> None:
        async with open_ledger(source) as ledger:
            for number in range(threads):
                await ledger.append(f"t{number}", [said(str(each)) for each in range(3)])

    asyncio.run(begin())
    command = [*COMMAND, "export", "--to", target, "--ledger", source]
    for _ in range(6):
        process = Forked(command, env=PLAIN, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(random.uniform(0.05, 0.5))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    done = forked.run(command, env=PLAIN, text=True)
    assert done.returncode == 0, done.stderr

    async def end(source: Ledger, target: Ledger) -> None:
        assert sorted(head.seq for head in await heads_of(target)) == [3] * threads
        assert [each.moved_to for each in (await source.threads(limit=100)).threads] == [target.url] * threads  # type: ignore[attr-defined]
        assert (await target.verify()).is_whole

    with_both((source, target), end)
