"""PostgreSQL: one order for all readers, tenants apart from each other, a server that fails, wrong input (G1-G5, G25, S7)."""

import asyncio
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from tests.cli.running import COMMAND, PLAIN, run
from tests.ledger.faults.late import uncommitted
from tests.ledger.histories import answered, called, everything, said
from tests.postgres import NOBODY, Server, running_postgres, standby_of

from antiphon import errors, service
from antiphon.ledger import Host, Ledger, MasterKey, Snapshot, ThreadFilter, heads_of, open_ledger
from antiphon.ledger._open import command_line
from antiphon.ledger._sql import branches
from antiphon.ledger.postgres import _appends, _connection, _schema, _verify
from antiphon.ledger.postgres._appends import Appender, WaitingAppend
from antiphon.ledger.postgres._connection import Pool, Session, shown_url, translated
from antiphon.ledger.postgres._group_append import (
    GROUP,
    GROUP_CLOSED,
    GROUP_END,
    GROUP_OPENED,
    ONE,
    ONE_CLOSED,
    ONE_END,
    ONE_OPENED,
    ONE_UNSURE,
    assembled,
)
from antiphon.ledger.postgres._ledger import PostgresLedger
from antiphon.ledger.postgres._schema import FORMAT
from antiphon.ledger.postgres._search import vector_of
from antiphon.testing import check_ledger


@pytest.fixture
def tenant() -> str:
    return uuid4().hex


async def _tailed(ledger: Ledger, count: int, after: str | None = None) -> list[tuple[str, int, str]]:
    """Return the next records of all threads: the thread, the place and the cursor of each."""
    found: list[tuple[str, int, str]] = []
    async with asyncio.timeout(30):
        async for each in ledger.tail(after):
            found.append((each.record.message.thread_id or "", each.record.seq, each.cursor))
            if len(found) == count:
                break
    return found


# ---------------------------------------------------------------- order


@pytest.mark.slow
async def test_an_append_in_hand_is_not_acknowledged_before_its_commit(postgres: Server, tenant: str) -> None:
    """G1: while another transaction holds the lock of the thread, nobody is told that the message is stored."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        await ledger.append("t", [said()])
        async with uncommitted(postgres.url, tenant, "t"):
            waiting = asyncio.create_task(ledger.append("t", [said("mine")]))
            await asyncio.sleep(0.2)
            assert not waiting.done()
        (record,) = await waiting
        assert record.seq == 3
        assert [each.message.text for each in await everything(ledger, "t")] == ["hello", "late", "mine"]


@pytest.mark.slow
async def test_two_groups_are_written_at_once_and_threads_keep_their_order(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a group of many threads is written, the next is sent for others; a thread is in one of them only."""
    together: list[int] = []
    write, busy = Appender._write, list[set[str]]()

    async def watched(self: Appender, group: Sequence[WaitingAppend]) -> None:
        names = {each.request.thread_id for each in group}
        assert not any(names & others for others in busy)
        busy.append(names)
        together.append(len(busy))
        try:
            await write(self, group)
        finally:
            busy.remove(names)

    monkeypatch.setattr(Appender, "_write", watched)
    names = [f"t{number}" for number in range(70)]
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        appends = [ledger.append(name, [said(f"{name} {lap}")]) for lap in range(4) for name in names]
        stored = [records[0] for records in await asyncio.gather(*appends)]
        assert [record.seq for record in stored] == [lap + 1 for lap in range(4) for _ in names]
        for name in names[::10]:
            assert [each.message.text for each in await everything(ledger, name)] == [f"{name} {lap}" for lap in range(4)]
        assert (await ledger.verify()).is_whole
    assert max(together) == 2


@pytest.mark.slow
async def test_an_append_whose_caller_is_cancelled_is_stored(postgres: Server, tenant: str) -> None:
    """The caller stops waiting; the append goes on, and the others of its group with it."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        await ledger.append("t", [said("before")])
        cancelled = asyncio.create_task(ledger.append("t", [said("cancelled")]))
        beside = asyncio.create_task(ledger.append("u", [said("beside")]))
        await asyncio.sleep(0)
        cancelled.cancel()
        await beside
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await ledger.append("t", [said("after")])
        assert [each.message.text for each in await everything(ledger, "t")] == ["before", "cancelled", "after"]


@pytest.mark.slow
async def test_a_single_append_is_written_by_its_caller_and_others_in_groups(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer between them would take a task and two iterations of the event loop."""
    write, groups = Appender._write, list[tuple[bool, int]]()
    caller = asyncio.current_task()

    async def watched(self: Appender, group: Sequence[WaitingAppend]) -> None:
        groups.append((asyncio.current_task() is caller, len(group)))
        await write(self, group)

    monkeypatch.setattr(Appender, "_write", watched)
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        for _ in range(3):
            await ledger.append("t", [said()])
        assert groups == [(False, 1), (True, 1), (True, 1)]
        for expected in ([1, 35, 34], [35, 35]):  # the first of many does not know of the others; later, none goes ahead
            groups.clear()
            await asyncio.gather(*[ledger.append(f"t{number}", [said()]) for number in range(70)])
            assert [size for _, size in groups] == expected


@pytest.mark.slow
async def test_a_single_append_whose_caller_is_cancelled_is_stored_in_its_place(postgres: Server, tenant: str) -> None:
    """G2, G3: its statement is on its way. A writer settles it, before the appends that came later."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        for text in ("one", "two"):
            await ledger.append("t", [said(text)])
        async with uncommitted(postgres.url, tenant, "t"):
            cancelled = asyncio.create_task(ledger.append("t", [said("cancelled")]))
            await asyncio.sleep(0.1)
            after = asyncio.create_task(ledger.append("t", [said("after")]))
            await asyncio.sleep(0)
            cancelled.cancel()
            with pytest.raises(asyncio.CancelledError):
                await cancelled
        await after
        texts = [each.message.text for each in await everything(ledger, "t")]
        assert texts == ["one", "two", "late", "cancelled", "after"]


@pytest.mark.slow
async def test_a_ledger_that_closes_waits_for_a_single_append(postgres: Server, tenant: str) -> None:
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        for text in ("one", "two"):
            await ledger.append("t", [said(text)])
        async with uncommitted(postgres.url, tenant, "t"):
            last = asyncio.create_task(ledger.append("t", [said("last")]))
            await asyncio.sleep(0.1)
            closing = asyncio.create_task(ledger._appender.close())
            await asyncio.sleep(0.1)
            assert not closing.done()
        await closing
        assert (await last)[0].seq == 4


@pytest.mark.slow
async def test_an_append_of_an_owner_is_one_statement(postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No transaction is begun and no connection is taken from the pool, also for a call, its result and a snapshot."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        epoch = await ledger.claim("t")
        await ledger.append("t", [said()], epoch=epoch)
        sent: list[str] = []
        fetch = Pool.fetch

        async def watched(self: Pool, sql: str, *values: object) -> Any:
            if "antiphon.messages" in sql:  # no hint to readers
                sent.append(sql)
            return await fetch(self, sql, *values)

        def lent(*_: object, **__: object) -> Any:
            raise AssertionError("a connection was taken from the pool")

        with monkeypatch.context() as patch:
            patch.setattr(Pool, "fetch", watched)
            patch.setattr(Pool, "_lent", lent)
            await ledger.append("t", [call := called()], epoch=epoch)
            await ledger.append("t", [answered(call)], epoch=epoch, snapshot=Snapshot("fold", {"a": 1}))
            await ledger.append("t", [said(), said()], epoch=epoch, status="done")
        assert len(sent) == 3
        assert ["unnest" in sql for sql in sent] == [False, False, True]  # one message has no need of arrays
        assert "thread_keys" not in sent[0]  # a thread with unencrypted messages is never encrypted
        assert await ledger.open_calls("t") == ()
        assert await ledger.snapshot("t", "fold", upto=3) == (3, {"a": 1})
        assert (await ledger.verify()).is_whole


@pytest.mark.slow
@pytest.mark.parametrize("messages", [1, 2], ids=["one message", "a group"])
async def test_an_owner_that_has_lost_its_thread_elsewhere_is_fenced(postgres: Server, tenant: str, messages: int) -> None:
    """G4: it remembers the thread as its own, and looks at nothing before its statement. Nobody has written since."""
    async with (
        PostgresLedger.open(postgres.url, tenant=tenant) as before,
        PostgresLedger.open(postgres.url, tenant=tenant) as after,
    ):
        old = await before.claim("t")
        await before.append("t", [said()], epoch=old)
        new = await after.claim("t")
        with pytest.raises(errors.FencedError):
            await before.append("t", [said() for _ in range(messages)], epoch=old)
        (record,) = await after.append("t", [said("mine")], epoch=new)
        assert record.seq == 2


@pytest.mark.slow
@pytest.mark.parametrize("messages", [1, 2], ids=["one message", "a group"])
async def test_an_append_to_a_thread_that_another_process_has_changed_follows_it(
    postgres: Server, tenant: str, messages: int
) -> None:
    """G3: what this process remembers is out of date, and the chain goes on from what is stored."""
    async with (
        PostgresLedger.open(postgres.url, tenant=tenant) as one,
        PostgresLedger.open(postgres.url, tenant=tenant) as other,
    ):
        for ledger in (one, other, one, other):
            await ledger.append("t", [said() for _ in range(messages)])
        assert len(await everything(one, "t")) == 4 * messages
        assert (await one.verify()).is_whole


@pytest.mark.slow
async def test_appends_are_durable_whatever_the_database_says(postgres: Server, tenant: str) -> None:
    """G1: `synchronous_commit` is off by default there; hints, which need no disk, do not leave it off."""
    name = f"sync{tenant}"
    postgres.new_database(name)
    postgres.sql(f'ALTER DATABASE "{name}" SET synchronous_commit = off')
    async with PostgresLedger.open(postgres.database(name), tenant=tenant) as ledger:
        await ledger.append("t", [said()])
        await ledger._pool.fetch(_connection._NOTIFY, "antiphon", ["hint"])
        assert [row[0] for row in await ledger._pool.fetch("SHOW synchronous_commit")] == ["on"]
        (found,) = [each for each in await ledger.diagnose() if each.what == "synchronous_commit"]
        assert found.is_good


@pytest.mark.slow
async def test_an_append_uses_the_connection_of_the_last_one(postgres: Server, tenant: str) -> None:
    """Its statements are prepared there. A reader that comes in between takes another connection."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        pool = ledger._pool
        for _ in range(2):  # the first append creates the thread, in a transaction
            await ledger.append("t", [said()])
        await asyncio.sleep(0.2)  # the hints of the appends, which use the same connections, are sent
        kept = list(pool._retained)
        async with pool.session() as session:
            assert session.connection.get_server_pid() not in [each.get_server_pid() for each in kept]
            await ledger.append("t", [said()])
            await asyncio.sleep(0.2)
        assert kept
        assert {*pool._retained} == {*kept}


@pytest.mark.slow
async def test_a_statement_that_ends_after_the_pool_is_closed_keeps_no_connection(postgres: Server, tenant: str) -> None:
    """Closing would wait for it, and then terminate all connections."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        pool = ledger._pool
        await pool.fetch("SELECT 1")
        slow = asyncio.create_task(pool.fetch("SELECT pg_sleep(0.3)"))
        await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        await pool.close()
        assert asyncio.get_running_loop().time() - began < 3
        assert len(await slow) == 1


@pytest.mark.slow
async def test_a_writer_that_is_cancelled_before_it_starts_stops_no_later_append(postgres: Server, tenant: str) -> None:
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        for _ in range(_appends._MOST_GROUPS + 1):
            lost = asyncio.create_task(ledger.append("t", [said()]))
            await asyncio.sleep(0)
            for writer in ledger._appender._writers:
                writer.cancel()
            await asyncio.sleep(0)
            lost.cancel()
            await asyncio.gather(lost, *ledger._appender._writers, return_exceptions=True)
        async with asyncio.timeout(10):
            await ledger.append("t", [said()])


@pytest.mark.slow
async def test_an_append_keeps_its_connection_for_a_while_only(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_connection, "_RETAINED_FOR", 0.05)
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        for _ in range(3):
            await ledger.append("t", [said()])
        async with asyncio.timeout(30):
            while ledger._pool._retained:  # noqa: ASYNC110 (it has no event)
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_a_kept_connection_may_break(postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next append takes another connection, and closing the ledger gives back what is kept."""
    monkeypatch.setattr(_connection, "_RETAINED_FOR", 3600.0)
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        pool = ledger._pool
        for _ in range(2):
            await ledger.append("t", [said()])
        broken = [connection.get_server_pid() for connection in pool._retained]
        assert broken
        async with pool.session() as session:
            await session.connection.execute("SELECT pg_terminate_backend(pid) FROM unnest($1::integer[]) AS pid", broken)
        await ledger.append("t", [said()])
        assert [record.seq for record in await everything(ledger, "t")] == [1, 2, 3]
    assert not pool._retained


@pytest.mark.slow
async def test_a_call_that_is_cancelled_leaves_no_transaction_behind(postgres: Server, tenant: str) -> None:
    """asyncpg prepares a statement without an end of the transaction, so a call may be cancelled within one."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        with suppress(asyncio.CancelledError):
            async with ledger._pool.session() as session:
                await session.connection.prepare("SELECT seq FROM antiphon.messages WHERE false")
                raise asyncio.CancelledError
        assert await heads_of(ledger) == ()


@pytest.mark.slow
async def test_names_with_any_letters_are_written_in_a_group(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts of a group come as the text of an array, which has letters of its own."""
    names = ("null", "NULL", '"', "\\", '\\"', "{a,b}", "a,b", "it's", "ä€😀", "None")
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        await asyncio.gather(*[ledger.append(f"t{number}", [said()]) for number in range(len(names))])
        written = [
            ledger.append(f"t{number}", [said(name)], status=name, pattern=name, snapshot=Snapshot(name, [number]))
            for number, name in enumerate(names)
        ]
        monkeypatch.setattr(Appender, "_write_carefully", None)  # it would mend a statement that fails
        await asyncio.gather(*written)
        for number, name in enumerate(names):
            summary = await ledger.thread(f"t{number}")
            assert summary is not None
            assert (summary.status, summary.pattern) == (name, name)
            assert await ledger.snapshot(f"t{number}", name, upto=2) == (2, [number])
        assert (await ledger.verify()).is_whole


@pytest.mark.slow
async def test_a_new_database_finds_threads_and_calls_by_their_keys(postgres: Server, tenant: str) -> None:
    """A statement that is prepared while the tables are small keeps its plan while they grow."""
    url = postgres.new_database(f"new-{tenant}")
    async with PostgresLedger.open(url, tenant=tenant) as ledger, ledger._pool.session() as session:
        assert await session.connection.fetchval("SELECT count(*) FROM antiphon.threads") == 0
        await session.connection.execute("SET plan_cache_mode = force_generic_plan")
        group = assembled(GROUP, (GROUP_OPENED, GROUP_CLOSED), GROUP_END)
        ones = [assembled(each, (ONE_OPENED, ONE_CLOSED), ONE_END) for each in (ONE, ONE_UNSURE)]
        for number, sql in enumerate((group, *ones)):
            await session.connection.execute(f"PREPARE p{number} AS {sql}")
            values = ", ".join(["NULL"] * max(int(each) for each in re.findall(r"\$([0-9]+)", sql)))
            rows = await session.connection.fetch(f"EXPLAIN EXECUTE p{number} ({values})")
            plan = "\n".join(row[0] for row in rows)
            assert "threads_pkey" in plan, plan
            assert "open_calls_pkey" in plan
            assert not re.search("threads_by|by_option|Seq Scan on (threads|open_calls)", plan), plan


# ---------------------------------------------------------------- dumps


@pytest.mark.slow
def test_a_dump_that_was_taken_under_load_goes_on_in_a_younger_server(postgres: Server, tenant: str) -> None:
    """G26: it holds all that was acknowledged before, it verifies, and `tail` goes on behind its last cursor: a new era."""
    url = postgres.new_database(f"d{tenant}")
    for _ in range(3):  # the transaction ids of the younger server are far behind
        postgres.sql("DO 'BEGIN FOR i IN 1..200 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END'")
    with running_postgres() as younger:
        dump = younger.data / "dump.sql"
        before = asyncio.run(_dumped_under_load(url, tenant, lambda: younger._run("pg_dump", "-f", str(dump), url)))
        younger._run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(dump), younger.url)
        found = asyncio.run(_continued(younger.url, tenant, before))
    assert [thread for thread, _, _ in found] == ["a", "new"]


async def _dumped_under_load(url: str, tenant: str, dump: Callable[[], None]) -> dict[str, list[str]]:
    """Dump a database while four threads are written; return what was acknowledged before the dump began."""
    acknowledged: dict[str, list[str]] = {name: [] for name in "abcd"}
    async with PostgresLedger.open(url, tenant=tenant) as ledger:

        async def write(thread: str) -> None:
            while True:
                (record,) = await ledger.append(thread, [said()])
                acknowledged[thread].append(record.message.id)

        writing = [asyncio.create_task(write(name)) for name in acknowledged]
        while min(map(len, acknowledged.values())) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        before = {name: list(ids) for name, ids in acknowledged.items()}
        await asyncio.to_thread(dump)
        assert all(len(ids) > len(before[name]) for name, ids in acknowledged.items()), "nothing was written meanwhile"
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)
    return before


async def _continued(url: str, tenant: str, before: dict[str, list[str]]) -> list[tuple[str, int, str]]:
    """Check a restored ledger, write two messages more, and return what a reader gets who has read everything before."""
    async with PostgresLedger.open(url, tenant=tenant) as ledger:
        for name, ids in before.items():
            assert [record.message.id for record in await everything(ledger, name)][: len(ids)] == ids
        total = sum([head.seq for head in await heads_of(ledger)])
        cursor = (await _tailed(ledger, total))[-1][2]
        await ledger.append("a", [said("more")])
        await ledger.append("new", [said()])
        assert (await ledger.verify()).is_whole
        return await _tailed(ledger, 2, after=cursor)


# ---------------------------------------------------------------- tenants


@pytest.mark.slow
async def test_a_tenant_sees_nothing_of_another(postgres: Server, tenant: str) -> None:
    """S7: the same names in two tenants are two threads; no verb of one returns a row of the other."""
    host = Host("h", "1", ("x",), 60.0)
    async with (
        PostgresLedger.open(postgres.url, tenant=tenant) as ours,
        PostgresLedger.open(postgres.url, tenant=f"{tenant}-other") as theirs,
    ):
        message = said("a secret plan", to=("x/1",), correlation_id="c")
        await theirs.beat(host)
        await theirs.post("t", message)
        await theirs.claim("t", by=host)
        assert await everything(ours, "t") == []
        assert (await ours.thread("t"), await heads_of(ours), await ours.hosts()) == (None, (), ())
        assert (await ours.search("plan"), await ours.find(correlation_id="c")) == ((), ())
        assert (await ours.threads()).threads == ()
        assert (await ours.verify()).messages == 0
        assert await ours.horizon() == "0"
        await ours.append("t", [said("mine")])
        assert [each.message.text for each in await everything(ours, "t")] == ["mine"]
        assert [each.message.text for each in await everything(theirs, "t")] == ["a secret plan"]
        with pytest.raises(errors.UnknownThreadError):
            await ours.delete("u")
        await ours.delete("t")
        assert len(await everything(theirs, "t")) == 1


@pytest.mark.slow
async def test_row_level_security_is_a_second_wall(postgres: Server, tenant: str) -> None:
    """S7: a statement that forgets the tenant sees only the rows of its own connection's tenant."""
    user = f"u{tenant}"
    async with PostgresLedger.open(postgres.url, tenant="other"), PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        await ledger.append("t", [said()])
    postgres.sql(f"CREATE ROLE {user} LOGIN; GRANT USAGE ON SCHEMA antiphon TO {user}")
    postgres.sql(f"GRANT SELECT ON ALL TABLES IN SCHEMA antiphon TO {user}")
    for setting, expected in ((tenant, 1), ("other", 0), ("", 0)):
        connection = await asyncpg.connect(postgres.database("postgres", user), server_settings={"antiphon.tenant": setting})
        assert await connection.fetchval("SELECT count(*) FROM antiphon.messages WHERE recorded_at > 0") == expected
        await connection.close()


@pytest.mark.slow
async def test_row_level_security_holds_for_the_owner_of_the_tables_and_its_other_roles(postgres: Server, tenant: str) -> None:
    """S7: the program made the tables itself, and a statement of it forgets the tenant. Another role changes nothing."""
    user, name = f"o{tenant}", f"o{tenant}"
    postgres.sql(f"CREATE ROLE {user} LOGIN; CREATE ROLE g{tenant}; GRANT g{tenant} TO {user}")
    postgres.sql(f'CREATE DATABASE "{name}" OWNER {user}')
    for each in (tenant, "other"):
        async with PostgresLedger.open(url := postgres.database(name, user), tenant=each) as ledger:
            await ledger.append("t", [said()], snapshot=Snapshot("f", 1))
            await ledger.search("hello")
    connection = await asyncpg.connect(url)
    every = "SELECT relname FROM pg_class WHERE relnamespace = 'antiphon'::regnamespace AND relkind = 'r' ORDER BY 1"
    tables = [row[0] for row in await connection.fetch(every)]
    await connection.execute(f"GRANT USAGE ON SCHEMA antiphon TO g{tenant}")
    await connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA antiphon TO g{tenant}")
    for role in (user, f"g{tenant}"):
        await connection.execute(f"SET ROLE {role}")
        for setting, expected in ((None, set()), (tenant, {tenant}), ("", set())):
            async with connection.transaction():
                await connection.execute("SELECT set_config('antiphon.tenant', $1, true)", setting)
                for table in tables:
                    if table != "ledger":
                        found = await connection.fetch(f"SELECT tenant FROM antiphon.{table}")
                        assert {row[0] for row in found} <= expected, (role, table)
                assert await connection.fetchval("SELECT count(*) FROM antiphon.words") == len(expected)
    await connection.execute(f"SET ROLE {user}; SET antiphon.tenant = '{tenant}'")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await connection.execute("UPDATE antiphon.threads SET tenant = 'other'")
    await connection.close()


@pytest.mark.slow
def test_an_ordinary_user_keeps_all_promises(postgres: Server, tenant: str) -> None:
    """A user without privileges on anything but its own database: row-level security holds for it too."""
    user, database = f"u{tenant}", f"d{tenant}"
    postgres.sql(f"CREATE ROLE {user} LOGIN")
    postgres.sql(f'CREATE DATABASE "{database}" OWNER {user}')
    url = postgres.database(database, user)
    for check in ("a_tail_is_live", "a_thread_of_a_living_host_is_nobody_elses", "large_media_comes_back_identical"):
        asyncio.run(check_ledger(lambda name: open_ledger(url, tenant=name), only=check))


# ---------------------------------------------------------------- wrong input


async def _refusal(url: str, **options: Any) -> errors.LedgerError:
    with pytest.raises(errors.LedgerError) as caught:
        async with open_ledger(url, busy_timeout=1, **options):
            pass
    return caught.value


async def test_each_wrong_url_says_what_to_do(postgres: Server, tenant: str) -> None:
    said_of = {
        postgres.database(f"no{tenant}"): "there is no such database; create it with createdb",
        postgres.database("postgres", "nobody-there"): "the user may not log in",
        "postgresql://postgres:pass-word@127.0.0.1:1/postgres": "cannot be reached",
    }
    for url, expected in said_of.items():
        text = str(await _refusal(url))
        assert expected in text
        assert "pass-word" not in text
        assert "\n" not in text
    assert "the database has no ledger" in str(await _refusal(postgres.new_database(f"e{tenant}"), create=False))


async def test_a_wrong_password_is_reported(postgres: Server, tenant: str) -> None:
    user = f"locked{tenant[:8]}"
    postgres.sql(f"CREATE ROLE {user} LOGIN PASSWORD 'right'")
    rules = postgres.data / "pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"host all {user} 127.0.0.1/32 scram-sha-256\n{before}")
    postgres.sql("SELECT pg_reload_conf()")
    try:
        wrong = postgres.database("postgres", f"{user}:wrong")
        async with asyncio.timeout(10):
            while True:  # the server reads its rules a moment later
                text = str(await _refusal(wrong)) if wrong else ""
                if "password" in text:
                    break
                await asyncio.sleep(0.05)
        assert "the password is wrong" in text
        assert "wrong@" not in text
        assert "lacks a privilege" in str(await _refusal(postgres.database("postgres", f"{user}:right")))
    finally:
        rules.write_text(before)
        postgres.sql("SELECT pg_reload_conf()")


@pytest.mark.slow
async def test_a_read_only_server_and_a_user_without_privileges_are_said(postgres: Server, tenant: str) -> None:
    async with PostgresLedger.open(postgres.url, tenant=tenant):
        pass
    user = f"r{tenant}"
    postgres.sql(f"CREATE ROLE {user} LOGIN")
    assert "lacks a privilege" in str(await _refusal(postgres.database("postgres", user)))
    database = postgres.new_database(f"ro{tenant}")
    postgres.sql(f'ALTER DATABASE "ro{tenant}" SET default_transaction_read_only = on')
    assert "read-only" in str(await _refusal(database))


@pytest.mark.slow
async def test_altered_tables_and_newer_formats_are_refused(postgres: Server, tenant: str) -> None:
    """G25: only a format that says so refuses an older program; a table that someone altered is named."""
    name = f"a{tenant}"
    url = postgres.new_database(name)
    async with open_ledger(url) as ledger:
        await ledger.append("t", [said()])
    postgres.sql(f"UPDATE antiphon.ledger SET format = {FORMAT + 1}", name)
    async with open_ledger(url) as ledger:
        assert len(await everything(ledger, "t")) == 1
    for stored, oldest in ((FORMAT + 1, FORMAT + 1), (FORMAT - 1, FORMAT - 1)):
        postgres.sql(f"UPDATE antiphon.ledger SET format = {stored}, oldest = {oldest}", name)
        refused = await _refusal(url)
        assert isinstance(refused, errors.LedgerFormatError)
        assert "`antiphon export` there, and `antiphon import` here" in str(refused)
    postgres.sql(f"UPDATE antiphon.ledger SET format = {FORMAT}, oldest = {FORMAT}", name)
    postgres.sql("ALTER TABLE antiphon.messages ADD COLUMN note text", name)
    refused = await _refusal(url)
    assert isinstance(refused, errors.LedgerCorruptError)
    assert "messages.note" in str(refused)


@pytest.mark.parametrize(
    ("altering", "named"),
    [
        ("ALTER TABLE antiphon.messages DISABLE ROW LEVEL SECURITY", "the row-level security of antiphon.messages"),
        ("ALTER TABLE antiphon.thread_keys NO FORCE ROW LEVEL SECURITY", "the row-level security of antiphon.thread_keys"),
        ("DROP POLICY tenant ON antiphon.words", "the row-level security of antiphon.words"),
        ("CREATE POLICY all_rows ON antiphon.media USING (true)", "the row-level security of antiphon.media"),
        ("DROP INDEX antiphon.messages_by_id", "the unique index antiphon.messages_by_id"),
        ("ALTER TABLE antiphon.threads DROP CONSTRAINT threads_tenant_thread_id_key", "the unique index antiphon.threads_"),
    ],
)
async def test_a_wall_or_a_unique_index_that_was_taken_away_is_named(
    postgres: Server, ready: str, altering: str, named: str
) -> None:
    """S7, S14: tenants could see each other, or a message could be stored twice, and nobody would notice."""
    connection = await asyncpg.connect(ready)
    try:
        async with connection.transaction():
            await connection.execute("CREATE POLICY audit ON antiphon.messages FOR SELECT TO pg_monitor USING (true)")
            await _schema._check(connection)
            await connection.execute(altering)
            with pytest.raises(errors.LedgerCorruptError, match=f"altered: {named}.* undo that, or restore a dump"):
                await _schema._check(connection)
            raise RuntimeError("roll back")
    except RuntimeError:
        pass
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def ready(postgres: Server) -> str:
    """A database with the tables of a ledger."""
    asyncio.run(_write_one(url := postgres.new_database(f"ready-{uuid4().hex}")))
    return url


@pytest.mark.slow
@pytest.mark.parametrize("messages", [1, 2], ids=["one message", "a group"])
async def test_a_thread_without_messages_may_need_a_key_by_the_time_of_its_first(
    postgres: Server, tenant: str, messages: int
) -> None:
    """This process has looked for a key before another one encrypted the first thread of the tenant."""
    async with (
        PostgresLedger.open(postgres.url, tenant=tenant) as plain,
        PostgresLedger.open(postgres.url, tenant=tenant, master_key=MasterKey.from_text(MasterKey.generate())) as sealed,
    ):
        epoch = await plain.claim("t")
        plain._appender._threads.clear()  # the next append looks into the database
        assert await plain.append("t", [], epoch=epoch) == ()
        assert plain._appender._threads["t"].is_keyed
        await sealed.append("u", [said()])
        with pytest.raises(errors.NoMasterKeyError):
            await plain.append("t", [said() for _ in range(messages)], epoch=epoch)


@pytest.mark.slow
async def test_a_process_whose_database_a_newer_version_upgrades_is_told_so_and_loses_nothing(
    postgres: Server, tenant: str
) -> None:
    """G25, G1: an append at once, even before the next look at the format; everything else within a second."""
    url, host = postgres.new_database(f"n{tenant}"), Host("h", "1")
    connection = await asyncpg.connect(url)
    async with open_ledger(url) as ledger:
        assert isinstance(ledger, PostgresLedger)
        await ledger.beat(host)
        await ledger.claim("t", by=host)
        await ledger.append("t", [said("before")], epoch=1)
        ledger._pool._check_at = asyncio.get_running_loop().time() + 60
        follower = asyncio.create_task(_tailed(ledger, 2))
        await connection.execute("ALTER TABLE antiphon.threads ADD COLUMN colour text")
        await connection.execute(f"UPDATE antiphon.ledger SET format = {FORMAT + 1}, oldest = {FORMAT + 1}")
        for doing in (
            *(ledger.append("t", [said("after")], epoch=1), everything(ledger, "t"), ledger.head("t")),
            *(ledger.claim("t", by=host), ledger.beat(host), ledger.take(host), ledger.threads(), ledger.verify(), follower),
        ):
            with pytest.raises(errors.LedgerFormatError, match=r"which needs an antiphon of at least 2, and this one has 1"):
                await doing
    assert await connection.fetchval("SELECT count(*) FROM antiphon.messages") == 1
    await connection.close()


@pytest.mark.parametrize("name", ["'; DROP TABLE antiphon.messages; --", "a' OR '1'='1", '"x"', "$1", "ten\u00e4nt"])
async def test_a_tenant_with_sql_in_its_name_is_a_name(postgres: Server, tenant: str, name: str) -> None:
    async with PostgresLedger.open(postgres.url, tenant=name + tenant) as ledger:
        await ledger.append(name, [said()])
        assert [head.thread_id for head in await heads_of(ledger)] == [name]


async def test_names_that_are_none_are_refused(postgres: Server) -> None:
    for wrong in ("", "a\0b", "x" * 600):
        with pytest.raises(ValueError, match="a tenant is a name"):
            async with PostgresLedger.open(postgres.url, tenant=wrong):
                pass
    with pytest.raises(ValueError, match="has no tenants"):
        async with open_ledger("memory:", tenant="t"):
            pass


@pytest.mark.slow
async def test_a_name_that_no_column_can_have_is_absent(postgres: Server, tenant: str) -> None:
    """S13: PostgreSQL fails a statement with a NUL in a text; it is absent, as in other stores."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        await ledger.append("t", [said("hello")])
        assert await ledger.thread("t\0") is None
        assert await everything(ledger, "t\0") == []
        assert await ledger.search("hello", thread_id="t\0") == ()
        with pytest.raises(errors.UnknownThreadError):
            await ledger.delete("t\0")
        for name in ("status", "pattern", "kind", "owner", "forked_from"):
            assert (await ledger.threads(ThreadFilter(**{name: "t\0"}))).threads == ()


@pytest.mark.slow
async def test_a_backup_names_the_tool_for_it(postgres: Server, tenant: str) -> None:
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        with pytest.raises(ValueError, match=r"pg_dump -Fc -f copy\.dump postgresql://") as caught:
            await ledger.backup("copy.dump")
    program, *words = str(caught.value).partition(": ")[2].split(" as ")[0].split()
    postgres._run(program, *words)
    assert (postgres.data / "copy.dump").stat().st_size > 1000


def test_a_shown_url_has_no_password() -> None:
    assert shown_url("postgresql://ada:secret@[::1]:5432/x?a=b") == "postgresql://ada@[::1]:5432/x?a=b"
    assert shown_url("postgresql://ada@host/x") == "postgresql://ada@host/x"
    assert shown_url("postgresql://ada:secret@a:5432,b:5433/x") == "postgresql://ada@a:5432,b:5433/x"
    assert shown_url("postgresql://host/x?password=secret&sslpassword=secret", "acme") == "postgresql://host/x?tenant=acme"
    for right in ("h:1,h2:2/x?tenant=a@b", "h:1?user=a@b", "[::1]:1/x?user=a@b", "/x?host=/run", "ada@h/x?tenant=a@b"):
        assert shown_url(f"postgresql://{right}") == f"postgresql://{right}"
    for wrong in (
        *("ada:se/cret@host/x", "ada:se@cret@host:port/x", "ada:se?cret@host/x", "ada:a@se?cret@host/x", "ada:se#cret@h/x"),
        *("host/x?PASSWORD=secret", "host/x?pass%77ord=secret", "host/x?a=b&password=se&cret", "ada:se?a=cret@h/x?tenant=t"),
    ):
        assert "cret" not in shown_url(f"postgresql://{wrong}")
    for wrong in ("postgres:/ada:secret@host/x", "ada:secret@host/x", "mysql://ada:secret@host/x"):
        assert shown_url(wrong) == wrong.replace(":secret", "")
    assert shown_url("sqlite:///a:b@c.db?d") == "sqlite:///a:b@c.db?d"


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:secret@127.0.0.1:{port}/x",
        "postgresql://127.0.0.1:{port}/x?user=ada&password=secret",
        "postgresql://ada:secret@127.0.0.1:{port},127.0.0.1:{port}/x",
        "postgresql://ada:secret@127.0.0.1:none/x",
        "postgresql://ada:secret/@127.0.0.1:{port}/x",
        "postgresql://ada:secret?@127.0.0.1:{port}/x",
        "postgresql://ada:x?secret@127.0.0.1:{port}/x",
        "postgresql://ada:secret@[::1/x",
        "postgres:/ada:secret@127.0.0.1/x",
        "mysql://ada:secret@127.0.0.1/x",
        "postgresql+asyncpg://ada:secret@127.0.0.1:{port}/x",
    ],
)
def test_no_error_about_a_url_says_its_password_g23(url: str) -> None:
    url = url.format(port=1)
    with pytest.raises(AttributeError, match="not open") as unopened:
        open_ledger(url).append  # noqa: B018 (as a program forgets `async with`)
    assert "secret" not in f"{unopened.value}{open_ledger(url)!r}"
    assert "secret" not in _typed("threads", "--ledger", url)
    assert "secret" not in _typed("host", "--ledger", url, "--tenant", "acme", "--model", "scripted")


@pytest.mark.slow
def test_a_hint_says_no_password_and_works_when_it_is_pasted_g23(postgres: Server, tenant: str) -> None:
    """The command takes the URL from the environment. Without it there, the shell says what to set."""
    url = f"{postgres.url.replace('postgres@', 'postgres:secret@')}?tenant={tenant}"
    asked = run("run", "What is 17 * 23?", "--model", "scripted", "--ledger", url)
    assert "secret" not in asked.output
    assert "set ANTIPHON_LEDGER to the URL of the ledger first" in asked.stderr
    (hint,) = [line for line in asked.stderr.splitlines() if " show " in line]
    pasted = re.sub(r"^.*? show ", f"{shlex.join(COMMAND)} show ", hint)
    shell = partial(subprocess.run, ["sh", "-c", pasted], capture_output=True, text=True, check=False, timeout=60)
    assert "391" in shell(env={**PLAIN, "ANTIPHON_LEDGER": url}).stdout
    assert "ANTIPHON_LEDGER" in shell(env=PLAIN).stderr


async def test_a_hint_of_a_program_says_no_password(postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_password = postgres.url.replace("postgres@", "postgres:secret@")
    monkeypatch.delenv("ANTIPHON_LEDGER", raising=False)
    async with PostgresLedger.open(with_password, tenant=tenant) as ledger:
        assert command_line(ledger, "resume", "t") == 'antiphon resume t --ledger "${ANTIPHON_LEDGER:?}"'
        monkeypatch.setenv("ANTIPHON_LEDGER", f"{with_password}?tenant={tenant}")
        assert command_line(ledger, "resume", "t") == "antiphon resume t"
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        monkeypatch.setenv("ANTIPHON_LEDGER", "other.db")
        assert command_line(ledger, "resume", "t") == f"antiphon resume t --ledger '{postgres.url}?tenant={tenant}'"


def test_an_error_of_the_server_is_one_line_and_has_no_row_in_it_g23() -> None:
    """The details of an error repeat the row that was refused; a hint is another line."""
    fields = {"S": "ERROR", "M": "null value\nin column", "D": "Failing row contains (secret).", "H": "Do this."}
    for code, expected in (
        (
            "23502",
            "PostgreSQL: null value in column; the tables are not those of a ledger, or another antiphon made them: "
            "`antiphon export` there, and `antiphon import` here",
        ),
        (
            "42703",
            "PostgreSQL: null value in column; the tables are not those of a ledger, or another antiphon made them: "
            "`antiphon export` there, and `antiphon import` here",
        ),
        ("XX001", "PostgreSQL: null value in column; restore a dump"),
        ("53200", "PostgreSQL: the server has no memory left, perhaps for locks; raise max_locks_per_transaction"),
    ):
        found = asyncpg.PostgresError.new({**fields, "C": code})
        assert "secret" in str(found)
        assert str(translated(found)) == expected


# ---------------------------------------------------------------- what is stored


@pytest.mark.slow
async def test_no_message_is_too_long_for_the_search_of_all_others(postgres: Server, tenant: str) -> None:
    """A `tsvector` has less than 1 MiB: a longer one failed every search of the tenant from then on."""
    text = " ".join(f"{'x' * 95}{number:05d}" for number in range(10_360))
    assert len(vector_of([f"{number:0500d}" for number in range(15_000)])) < 2**20  # folding makes words longer
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        await ledger.append("t", [said("before"), said(text), said("after")])
        found = [(await ledger.search(word))[0].record.seq for word in ("before", text.split()[0], "after")]
        assert found == [1, 2, 3]


@pytest.mark.slow
async def test_alterations_of_the_tables_are_found(postgres: Server, tenant: str) -> None:
    """G4: each change by SQL that a reader could notice is reported by `verify`."""
    name = f"v{tenant}"
    url = postgres.new_database(name)
    changes = (
        "UPDATE antiphon.messages SET body = replace(convert_from(body, 'UTF8'), 'hello', 'hullo')::bytea WHERE seq = 2",
        "DELETE FROM antiphon.messages WHERE seq = 2",
        "UPDATE antiphon.messages SET recorded_at = recorded_at + 1 WHERE seq = 2",
        "UPDATE antiphon.messages SET id_key = 7 WHERE seq = 2",
        "UPDATE antiphon.messages SET xid = xid - 100000 WHERE seq = 3",
        "UPDATE antiphon.threads SET seq = 2",
        "UPDATE antiphon.threads SET input_tokens = 5",
        "INSERT INTO antiphon.open_calls SELECT tenant, thread, seq, 1, '[]', era, xid, ord FROM antiphon.messages",
        "DELETE FROM antiphon.threads",
        "UPDATE antiphon.words SET words = '''other'':1' WHERE seq = 1",
        "UPDATE antiphon.snapshots SET state = '9'",
    )
    for change in changes:
        async with open_ledger(url) as ledger:
            await ledger.append("t", [said(), said(), said()], snapshot=Snapshot("count", 3))
            await ledger.search("hello")
            assert (await ledger.verify()).is_whole
            postgres.sql(change, name)
            assert not (await ledger.verify()).is_whole, change
        postgres.sql(
            "TRUNCATE antiphon.messages, antiphon.threads, antiphon.words, antiphon.open_calls, antiphon.snapshots", name
        )
        postgres.sql("TRUNCATE antiphon.indexed", name)


async def test_a_diagnosis_says_what_to_change(postgres: Server, tenant: str) -> None:
    """The server of the tests risks its data on purpose, and its user is above row-level security."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        found = {each.what: each for each in await service.diagnose(ledger)}
        assert [name for name, each in found.items() if not each.is_good] == ["fsync", "full_page_writes", "user"]
        assert (
            found["fsync"].advice
            == "set fsync = on in postgresql.conf: without it, a power cut can destroy the whole database"
        )
        assert found["oldest transaction"].value == "none is open"
        async with uncommitted(postgres.url, tenant, "t"):
            (held,) = [each for each in await ledger.diagnose() if each.what == "oldest transaction"]
            assert "has had a transaction open for 0 s" in held.value


@pytest.mark.slow
async def test_a_diagnosis_finds_what_holds_tail_back_although_the_user_may_not_see_it(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F11: a transaction of the superuser; an ordinary user sees no time of it."""
    monkeypatch.setattr(_verify, "_OPEN_TOO_LONG", 0.0)
    postgres.sql(f"CREATE ROLE d{tenant} LOGIN")
    postgres.sql(f'CREATE DATABASE "d{tenant}" OWNER d{tenant}')
    async with PostgresLedger.open(postgres.database(f"d{tenant}", f"d{tenant}"), tenant=tenant) as ledger:
        found = {each.what: each for each in await ledger.diagnose()}
        assert (found["tail"].value, found["tail"].advice, found["user"].is_good) == ("up to date", None, True)
        async with uncommitted(postgres.database(f"d{tenant}"), tenant, "late"):
            await ledger.append("quick", [said()])
            found = {each.what: each for each in await ledger.diagnose()}
        assert found["tail"].value.startswith("held back for ")
        assert found["tail"].advice == (
            "end the transaction that holds it back: a superuser sees it in pg_stat_activity or pg_prepared_xacts"
        )
        assert "and 1 of other users, for a time that only pg_read_all_stats shows" in found["oldest transaction"].value


# ---------------------------------------------------------------- wrong input, typed


def _typed(*words: str) -> str:
    """Run a command that must fail: one line that says what to do, exit 2. Returns the line."""
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.slow
def test_wrong_places_are_one_line_and_exit_2(postgres: Server, tenant: str) -> None:
    """No database, no server, a user that may not log in, a database without a ledger."""
    assert "create it with createdb" in _typed("threads", "--ledger", postgres.database(f"no{tenant}"))
    assert "the user may not log in" in _typed("threads", "--ledger", postgres.database("postgres", "nobody-there"))
    silent = _typed("threads", "--ledger", "postgresql://ada:pass-word@127.0.0.1:1/x")
    assert "start the server" in silent
    assert "pass-word" not in silent
    empty = f"e{tenant}"
    assert "the database has no ledger" in _typed("threads", "--ledger", postgres.new_database(empty))
    assert _tables(postgres, empty) == 0


@pytest.mark.slow
def test_a_wrong_tenant_and_a_wrong_key_are_one_line_and_exit_2(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S14: and nothing is written. A tenant with SQL in its name is a tenant without threads."""
    place = f"{postgres.url}?tenant={tenant}"
    for wrong in ("", "%00", "x" * 600):
        assert "a tenant is a name of 1 to 512" in _typed("threads", "--ledger", f"{postgres.url}?tenant={wrong}")
    monkeypatch.setenv("ANTIPHON_KEY", MasterKey.generate())
    asyncio.run(_write_one(place))
    assert run("threads", "--ledger", place).exit_code == 0
    assert "no threads" in run("threads", "--ledger", f"{place}'%3B DROP TABLE antiphon.messages%3B --").output
    monkeypatch.setenv("ANTIPHON_KEY", MasterKey.generate())
    for command in (("threads",), ("show", "t"), ("delete", "t", "--yes"), ("doctor",)):
        assert "is not the one that wraps its keys" in _typed(*command, "--ledger", place)
    monkeypatch.setenv("ANTIPHON_KEY", "short")
    assert "a master key is 32 bytes" in _typed("threads", "--ledger", place)
    monkeypatch.delenv("ANTIPHON_KEY")
    assert asyncio.run(_heads(place)) == 1


@pytest.mark.slow
def test_a_newer_format_and_an_altered_table_are_one_line_and_exit_2(postgres: Server, tenant: str) -> None:
    name = f"f{tenant}"
    url = postgres.new_database(name)
    assert run("threads", "--ledger", url).exit_code == 2
    asyncio.run(_write_one(url))
    postgres.sql(f"UPDATE antiphon.ledger SET oldest = {FORMAT + 1}", name)
    assert _typed("threads", "--ledger", url).endswith("`antiphon export` there, and `antiphon import` here")
    postgres.sql("UPDATE antiphon.ledger SET oldest = 1", name)
    for altering, undoing in (
        ("ALTER TABLE antiphon.messages ADD COLUMN note text", "ALTER TABLE antiphon.messages DROP COLUMN note"),
        ("DROP TABLE antiphon.words", ""),
    ):
        postgres.sql(altering, name)
        assert "undo that, or restore a dump" in _typed("threads", "--ledger", url)
        if undoing:
            postgres.sql(undoing, name)
            assert run("threads", "--ledger", url).exit_code == 0


@pytest.mark.slow
def test_a_wrong_password_is_one_line_and_exit_2(tenant: str) -> None:
    """A server that asks everybody for a password."""
    with running_postgres() as server:
        server.sql("ALTER ROLE postgres PASSWORD 'right'")
        (server.data / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n")
        server.stop("fast")
        server.start()
        right = server.database("postgres", "postgres:right")
        line = _typed("threads", "--ledger", server.database("postgres", "postgres:wr0ng"))
        assert "the password is wrong; check the URL" in line
        assert "wr0ng" not in line
        asyncio.run(_write_one(right))
        assert run("threads", "--ledger", right).exit_code == 0


@pytest.mark.slow
def test_a_read_only_replica_is_one_line_and_exit_2(tmp_path: Path) -> None:
    """A real standby: what it has can be read through the primary only, and nothing is written there."""
    talk = tmp_path / "talk.json"
    talk.write_text('[{"role": "user", "content": "hello"}]')
    with running_postgres() as primary:
        asyncio.run(_write_one(primary.url))
        with standby_of(primary) as replica:
            line = _typed("import", str(talk), "--from", "openai-chat", "--ledger", replica.url)
            assert "it is a read-only replica; connect to the primary" in line
            line = _typed("search", "hello", "--ledger", replica.url)
            assert "it is a read-only replica; connect to the primary" in line
        assert asyncio.run(_heads(primary.url)) == 1


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can only be mounted by root")
def test_a_full_disk_is_one_line_and_exit_2_and_everything_goes_on_when_there_is_space(tmp_path: Path) -> None:
    """F9, G19: the tables of the ledger are on a disk of few megabytes."""
    disk = Path("/tmp") / f"antiphon-full-{uuid4().hex[:8]}"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(disk)], capture_output=True, check=False)
    if mounted.returncode:
        disk.rmdir()
        pytest.skip("file systems cannot be mounted here")
    try:
        space = disk / "space"
        space.mkdir()
        os.chown(space, NOBODY, NOBODY)
        with running_postgres() as server:
            server.sql(f"CREATE TABLESPACE small LOCATION '{space}'")
            server.sql("CREATE DATABASE full_one TABLESPACE small")
            url = server.database("full_one")
            asyncio.run(_write_one(url))
            filler = space / "filler"
            filler.write_bytes(b"")
            with suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(b"x" * 65536)
                    file.flush()
            talk = tmp_path / "talk.json"
            talk.write_text(json.dumps([{"role": "user", "content": "x" * 200_000} for _ in range(5)]))
            line = _typed("import", str(talk), "--from", "openai-chat", "--ledger", url)
            assert "no space is left on its disk; make room there, then try again" in line
            assert asyncio.run(_heads(url)) == 1
            filler.unlink()
            assert run("import", str(talk), "--from", "openai-chat", "--ledger", url).exit_code == 0
            assert asyncio.run(_heads(url)) == 2
            assert run("verify", "--ledger", url).exit_code == 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)
        disk.rmdir()


def _tables(server: Server, name: str) -> int:
    async def count() -> int:
        connection = await asyncpg.connect(server.database(name))
        try:
            return int(await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'antiphon'"))
        finally:
            await connection.close()

    return asyncio.run(count())


async def _write_one(url: str) -> None:
    async with open_ledger(url) as ledger:
        await ledger.append("t", [said()])


async def _heads(url: str) -> int:
    async with open_ledger(url) as ledger:
        return len(await heads_of(ledger))


# ---------------------------------------------------------------- expiry


@pytest.mark.slow
async def test_many_old_threads_expire_in_few_statements(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each thread took several statements and one of the server's locks: of 30,000 threads, none could be deleted."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        await asyncio.gather(*(ledger.append(f"t{number:02}", [said()]) for number in range(40)))
        sent: list[str] = []
        for name in ("fetch", "fetchval", "execute"):
            monkeypatch.setattr(Session, name, _counted(getattr(Session, name), sent))
        gone = await ledger.expire(datetime.now(UTC) + timedelta(hours=1))
        assert gone == tuple(f"t{number:02}" for number in range(40))
        assert len(sent) < 20


def _counted(run: Callable[..., Any], sent: list[str]) -> Callable[..., Any]:
    async def counted(self: Session, sql: str, *values: object) -> Any:
        sent.append(sql)
        return await run(self, sql, *values)

    return counted


@pytest.mark.slow
@pytest.mark.parametrize("most", [1, 2, 3, 100])
async def test_a_branch_in_another_batch_keeps_its_origin(
    postgres: Server, tenant: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch goes before its origin, and what a younger branch needs stays, wherever the batches end."""
    monkeypatch.setattr(branches, "_MOST_EXPIRED", most)
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        for name in ("old", "needed", "alone"):
            await ledger.append(name, [said()])
        for origin, name in (("old", "old 1"), ("old 1", "old 2"), ("needed", "needed 1"), ("needed", "beside")):
            await ledger.fork(origin, into=name)
        await ledger.fork("needed 1", into="young")
        (young,) = await ledger.append("young", [said()])
        assert await ledger.expire(young.recorded_at) == ("alone", "beside", "old", "old 1", "old 2")
        assert {each.thread_id for each in (await ledger.threads()).threads} == {"needed", "needed 1", "young"}
        assert (await ledger.verify()).is_whole
        assert len(await everything(ledger, "young")) == 2
