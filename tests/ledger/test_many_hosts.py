"""Many hosts on one ledger in PostgreSQL: what each does again and again reads few rows, and does not wait for the others."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from tests.ledger.histories import said
from tests.nats import LocalSignals
from tests.postgres import Server

from antiphon.errors import HostError
from antiphon.ledger import Host, Limit, PermitWants
from antiphon.ledger._signals import ANYBODY, EVERYBODY, ProcessHints

asyncpg = pytest.importorskip("asyncpg")

from antiphon.ledger._sql import hosts  # noqa: E402
from antiphon.ledger._sql.statements import Verb, moment  # noqa: E402
from antiphon.ledger.postgres._connection import Session  # noqa: E402
from antiphon.ledger.postgres._driver import answered  # noqa: E402
from antiphon.ledger.postgres._ledger import PostgresLedger  # noqa: E402 (after the check that its driver is there)

FEW, MANY = 3, 40


def _far(number: int, lease: float = 600.0) -> Host:
    """Return a host on another machine."""
    return Host(f"far-{number}", "1", ("agent",), lease, f"boot-{number}/namespace/1/1/id-{number}")


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the rows that the server returns."""
    found: Counter[str] = Counter()
    fetch, fetchrow = Session.fetch, Session.fetchrow

    async def counted(session: Session, sql: str, *values: object) -> Any:
        answer = await fetch(session, sql, *values)
        found["rows"] += len(answer)
        return answer

    async def counted_row(session: Session, sql: str, *values: object) -> Any:
        answer = await fetchrow(session, sql, *values)
        found["rows"] += answer is not None
        return answer

    monkeypatch.setattr(Session, "fetch", counted)
    monkeypatch.setattr(Session, "fetchrow", counted_row)
    return found


async def _rows_by_verb(url: str, hosts: int, rows: Counter[str]) -> dict[str, int]:
    own = Host("own", "1", ("agent",), 600.0)
    async with PostgresLedger.open(url, tenant=uuid4().hex) as ledger:
        for number in range(hosts):
            await ledger.beat(_far(number))
        await ledger.beat(own)
        epoch = await ledger.claim("owned", by=own, kind="agent")
        await ledger.append("owned", [said()], epoch=epoch)
        await ledger.claim("other", by=_far(0))
        await ledger.limits.set(Limit("model", at_once=1000))
        for number in range(hosts):
            await ledger.limits.lease(_far(number), {"model": PermitWants(in_use=1)})
        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "beat": lambda: ledger.beat(own),
            "woken": lambda: ledger.woken(own),
            "woken, seen": lambda: ledger.woken(own, seen={"owned": 1}),
            "take, nothing due": lambda: ledger.take(own),
            "claim": lambda: ledger.claim("owned", by=own),
            "claim of a new thread": lambda: ledger.claim("new", by=own),
            "permits": lambda: ledger.limits.lease(own, {"model": PermitWants(in_use=1)}),
        }
        counted: dict[str, int] = {}
        for verb, call in verbs.items():
            rows.clear()
            await call()
            counted[verb] = rows["rows"]
        await ledger.post("due", said(to=("agent/1",)))
        rows.clear()
        assert len(await ledger.take(own)) == 1
        counted["take"] = rows["rows"]
    return counted


@pytest.mark.slow
@pytest.mark.timeout(60)
async def test_the_reads_of_a_host_do_not_grow_with_the_number_of_hosts(postgres: Server, rows: Counter[str]) -> None:
    few, many = [await _rows_by_verb(postgres.url, number, rows) for number in (FEW, MANY)]

    assert few == many
    assert max(few.values()) <= 7, few  # with a row for each reading of the clock


@pytest.mark.timeout(60)
async def test_hosts_that_beat_do_not_wait_for_each_other(postgres: Server) -> None:
    """A beat that is not committed yet holds the row of its host, and nothing else."""
    tenant = uuid4().hex
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        for number in range(2):
            await ledger.beat(_far(number))
        connection = await asyncpg.connect(postgres.url, server_settings={"antiphon.tenant": tenant})
        try:
            async with connection.transaction(), asyncio.timeout(20):
                await connection.execute("SELECT 1 FROM antiphon.hosts WHERE name = 'far-0' FOR UPDATE")
                await ledger.beat(_far(1))
                assert await ledger.take(_far(1)) == ()
        finally:
            await connection.close()
        assert all(each.is_alive for each in await ledger.hosts())


def _renewed() -> Verb[None]:
    """Give the only host of a ledger another lease."""
    (row,) = yield from hosts.all_hosts()
    at = yield from moment()
    yield from hosts._put_host(row._replace(host=replace(row.host, lease=600.0), ends=at.now() + 600))


_WAITS = """
SELECT EXISTS (
    SELECT 1 FROM pg_locks AS l JOIN pg_stat_activity AS a ON a.pid = l.pid
    WHERE NOT l.granted AND a.query LIKE '%antiphon.hosts%'
)
"""


@pytest.mark.timeout(60)
async def test_a_name_is_not_taken_from_a_host_that_renews_its_lease_in_the_last_moment(postgres: Server) -> None:
    """The other process finds a lease that is over, while the beat that renews it is not committed yet. So it waits."""
    tenant, name = uuid4().hex, "far-0"
    twin = Host(name, "1", ("agent",), 600.0, "elsewhere/namespace/2/2/id")
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        await ledger.beat(_far(0, lease=0.01))
        connection = await asyncpg.connect(postgres.url, server_settings={"antiphon.tenant": tenant})
        try:
            async with connection.transaction():
                await answered(Session(connection, tenant), _renewed())
                registering = asyncio.ensure_future(ledger.beat(twin))
                watching = await asyncpg.connect(postgres.url)
                while not await watching.fetchval(_WAITS):
                    assert not registering.done()
                    await asyncio.sleep(0.01)
                await watching.close()
        finally:
            await connection.close()
        with pytest.raises(HostError) as refused:
            await registering
        assert refused.value.code == "HOST_NAME_TAKEN"


# ---------------------------------------------------------------- hints


async def _hear(hosts: int, *whom: str) -> list[int]:
    """Send one hint to so many processes with a host each, and return the keys of the hosts that are to look."""
    carrier = LocalSignals()
    processes = [ProcessHints(carrier, "ledger") for _ in range(hosts)]
    for key, process in enumerate(processes):
        process.note_host(_far(key), key, hosts)
        process.listen()
    await asyncio.sleep(0.01)  # all listen
    sender = ProcessHints(carrier, "ledger")
    for each in whom:
        sender.note_work(each)
    await asyncio.sleep(0.01)
    found = [key for key, process in enumerate(processes) if process.work.count]
    await asyncio.gather(*(each.close() for each in (*processes, sender)))
    return found


async def test_a_hint_concerns_the_owner_of_the_thread_alone() -> None:
    assert await _hear(200, "17", "60") == [17, 60]


@pytest.mark.slow
async def test_a_hint_about_a_thread_without_an_owner_concerns_some_hosts() -> None:
    assert await _hear(10, ANYBODY) == list(range(10))
    found = await _hear(1000, ANYBODY)
    assert 1 <= len(found) <= 50


async def test_a_hint_that_names_nobody_or_too_many_concerns_all_hosts() -> None:
    everybody = list(range(200))
    assert await _hear(200, EVERYBODY) == everybody
    assert await _hear(200, *map(str, range(101))) == everybody


async def test_a_process_without_hosts_hears_every_hint() -> None:
    carrier = LocalSignals()
    client, host = ProcessHints(carrier, "ledger"), ProcessHints(carrier, "ledger")
    host.note_host(_far(1), 1, 100)
    for each in (client, host):
        each.listen()
    await asyncio.sleep(0.01)
    carrier.send("ledger", b"w0123456789abcdef 1 !")
    carrier.send("ledger", b"w0123456789abcdef 2 7")
    assert (client.work.count, host.work.count) == (2, 1)
    await asyncio.gather(client.close(), host.close())
