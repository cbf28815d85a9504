"""Capacity: what a thread costs by part, what a call of a host costs with many hosts, and many hosts in virtual time.

- *threads*: a thread of six phases with a model that answers at once, on SQLite and on PostgreSQL. Rows and calls of the
  ledger, processor time of the host and of the database, statements, commits and WAL, for each thread.
- *calls*: what a host calls again and again, on PostgreSQL with 1, 10, 100 and 1,000 registered hosts: rows that the server
  returns, its processor time, and the time until the answer.
- *hosts*: real hosts on a ledger in memory, in virtual time (`tests.runtime.crowd`): calls and signals a second. With the cost
  of a call from above, it says what the database has to do, and which part is at its limit first. A thousand hosts take about
  ten minutes.

`ARGS=capacity:threads`, `capacity:calls` and `capacity:hosts` run one of them; `capacity:hosts` measures the calls first. The
figures of `benchmarks/README.md` are from here.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, cast

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.ledger import Host, Ledger, Limit, PermitWants, open_ledger
from antiphon.patterns.postchain import ChainConfig, PostChain
from antiphon.runtime import Settings

__all__ = ["report"]

THREADS, AT_ONCE = 200, 8
CALLS = 200
SIZES = (1, 10, 100, 1000)
IN_HAND, THINKS, SECONDS = 4, 2.0, 6.0
"""Of the simulated hosts: threads of each, seconds that a step takes, and seconds that they are watched."""
SIGNALS = 3600
"""Signals a second that LISTEN/NOTIFY carries: measured, with four senders (ADR 0033)."""
CONNECTIONS = 10
"""Connections that a host opens at most."""
LIMITED = "permits"
WRITING = ("append", "post", "beat", "take", "release")
"""Verbs that commit. `take` is called where a thread is due."""


def report(part: str) -> None:
    """Print the tables."""
    from tests.postgres import running_postgres  # noqa: PLC0415 (the simulation needs none)

    with running_postgres(fsync=True) as server:
        if part in "threads":
            asyncio.run(_threads(server))
        if part in "calls" or part == "hosts":
            costs = asyncio.run(_calls(server))
            commits = asyncio.run(_commits(server))
            if part in "hosts":
                _hosts(costs, commits)


# ---------------------------------------------------------------- what is counted


@dataclass(slots=True)
class _Usage:
    """What a server has done."""

    seconds: float
    """Of its processors."""
    statements: int
    rows: int
    commits: int
    wal: int

    def since(self, before: _Usage) -> _Usage:
        return _Usage(*(now - then for now, then in zip(self._values(), before._values(), strict=True)))

    def _values(self) -> tuple[Any, ...]:
        return self.seconds, self.statements, self.rows, self.commits, self.wal


class _Watch:
    """Looks at a PostgreSQL server and at the statements that this process sends it."""

    def __init__(self, server: Any, connection: Any) -> None:
        self._postmaster = int((server.data / "postmaster.pid").read_text().split()[0])
        self._connection = connection
        self.sent: Counter[str] = Counter()

    async def usage(self) -> _Usage:
        await self._connection.execute("SELECT pg_stat_force_next_flush()")
        await asyncio.sleep(1.2)  # each connection reports its commits at most once a second
        sent = Counter(self.sent)
        commits = await self._connection.fetchval(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        )
        wal = await self._connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")
        return _Usage(self._processor(), sent["statements"], sent["rows"], commits, wal)

    def _processor(self) -> float:
        """Return the processor seconds of the server and of all processes that it has started."""
        ticks = 0
        for each in Path("/proc").glob("[0-9]*/stat"):
            try:
                pid, rest = int(each.parent.name), each.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if pid == self._postmaster:
                ticks += sum(map(int, rest[11:15]))  # with those that have ended
            elif int(rest[1]) == self._postmaster:
                ticks += sum(map(int, rest[11:13]))
        return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def _counted_statements(watch: _Watch) -> Iterator[None]:
    """Count the statements of this process, without BEGIN and COMMIT, and the rows that come back."""
    from asyncpg import Connection  # noqa: PLC0415 (an extra)

    send: Any = Connection._execute

    async def counted(connection: Any, *values: Any, **more: Any) -> Any:
        found = await send(connection, *values, **more)
        watch.sent["statements"] += 1
        watch.sent["rows"] += len(found[0] if isinstance(found, tuple) else found or ())
        return found

    cast("Any", Connection)._execute = counted
    try:
        yield
    finally:
        cast("Any", Connection)._execute = send


class _Counting:
    """A ledger whose calls are counted."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._ledger, name)
        if not callable(found):
            return found

        def called(*values: Any, **more: Any) -> Any:
            self.calls[name] += 1
            return found(*values, **more)

        return called


# ---------------------------------------------------------------- a thread


def _answer(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
    return ModelResponse([TextPart("So it is.")])


async def _threads(server: Any) -> None:
    import asyncpg  # noqa: PLC0415 (an extra)

    print(f"\na thread of six phases, a model that answers at once; {THREADS} threads, {AT_ONCE} at a time")
    with TemporaryDirectory() as folder:
        await _measure_threads("SQLite", f"sqlite:///{folder}/ledger.db", None)
    url = server.new_database("capacity-threads")
    connection = await asyncpg.connect(url)
    watch = _Watch(server, connection)
    with _counted_statements(watch):
        await _measure_threads("PostgreSQL", url, watch)
    await connection.close()


async def _measure_threads(name: str, url: str, watch: _Watch | None) -> None:
    config = ChainConfig(max_sources=0, concurrency=100_000, phases={"action": {"tools": []}})
    async with open_ledger(url, create=True) as opened:
        ledger = _Counting(opened)
        settings = Settings(block_limit=None)
        model = FunctionModel(_answer, model_name="word")
        async with PostChain(cast("Ledger", ledger), model=model, config=config, settings=settings) as chain:
            await _run_chains(chain, AT_ONCE)
            before = None if watch is None else await watch.usage()
            ledger.calls.clear()
            processor, began = time.process_time(), time.perf_counter()
            thread_id = await _run_chains(chain, THREADS)
            processor, wall = time.process_time() - processor, time.perf_counter() - began
            calls = Counter(ledger.calls)
            used = None if watch is None or before is None else (await watch.usage()).since(before)
            rows = (await opened.head(thread_id)).seq
    often = ", ".join(f"{verb} {count / THREADS:.1f}" for verb, count in calls.most_common() if count >= THREADS / 10)
    print(f"  {name}: {rows} rows; processor of the host {processor / THREADS * 1000:.1f} ms; {THREADS / wall:.1f} threads/s")
    print(f"    calls of the ledger: {often}")
    if used is not None:
        done = f"{used.statements / THREADS:.1f} statements, {used.commits / THREADS:.1f} commits"
        print(
            f"    database: processor {used.seconds / THREADS * 1000:.1f} ms; {done}, WAL {used.wal / THREADS / 1024:.1f} KiB"
        )


async def _run_chains(chain: PostChain, number: int) -> str:
    room = asyncio.Semaphore(AT_ONCE)

    async def one() -> str:
        async with room:
            return (await chain.run("How hot is green tea steeped?")).thread_id

    return (await asyncio.gather(*(one() for _ in range(number))))[-1]


# ---------------------------------------------------------------- a call


@dataclass(frozen=True, slots=True)
class _Cost:
    """What a call costs."""

    rows: float
    statements: float
    processor: float
    """Seconds of the server."""
    wall: float
    """Seconds until the answer."""


async def _calls(server: Any) -> dict[int, dict[str, _Cost]]:
    import asyncpg  # noqa: PLC0415 (an extra)

    print(f"\na call of a host on PostgreSQL, by the number of registered hosts; {CALLS} calls, one after the other")
    print(f"    {'hosts':<8}{'':<20}{'rows':>8}{'statements':>12}{'server ms':>12}{'answer ms':>12}")
    costs: dict[int, dict[str, _Cost]] = {}
    for size in SIZES:
        url = server.new_database(f"capacity-calls-{size}")
        connection = await asyncpg.connect(url)
        watch = _Watch(server, connection)
        with _counted_statements(watch):
            costs[size] = await _costs(url, size, watch)
        await connection.close()
        for verb, cost in costs[size].items():
            cells = f"{cost.rows:>8.1f}{cost.statements:>12.1f}{cost.processor * 1000:>12.2f}{cost.wall * 1000:>12.2f}"
            print(f"    {size:<8}{verb:<20}{cells}", flush=True)
    return costs


async def _costs(url: str, size: int, watch: _Watch) -> dict[str, _Cost]:
    own, model = Host("own", "1", ("worker",), 3600.0), "model"
    far = [Host(f"far-{each}", "1", ("worker",), 3600.0, f"boot-{each}/ns/1/1/id") for each in range(1, size)]
    async with open_ledger(url, create=True) as ledger:
        for each in (*far, own):
            await ledger.beat(each)
        number = iter(range(10**9))
        at_work = PermitWants(1, 0, Decimal(0), (), Decimal(0), Decimal(0))

        async def claim_and_release() -> None:
            thread_id = f"t-{next(number)}"
            await ledger.release(thread_id, epoch=await ledger.claim(thread_id, by=own, kind="worker"))

        verbs: dict[str, Callable[[], Awaitable[object]]] = {
            "beat": lambda: ledger.beat(own),
            "woken": lambda: ledger.woken(own),
            "take": lambda: ledger.take(own),
            "claim and release": claim_and_release,
        }
        found = {verb: await _cost(call, watch) for verb, call in verbs.items()}
        await ledger.limits.set(Limit(model, at_once=10 * size))
        for each in far:
            await ledger.limits.lease(each, {model: at_work})
        return {**found, LIMITED: await _cost(lambda: ledger.limits.lease(own, {model: at_work}), watch)}


async def _cost(call: Callable[[], Awaitable[object]], watch: _Watch) -> _Cost:
    await call()
    before = await watch.usage()
    times: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    used = (await watch.usage()).since(before)
    return _Cost(used.rows / CALLS, used.statements / CALLS, used.seconds / CALLS, median(times))


async def _commits(server: Any) -> dict[int, float]:
    """Return the commits a second that the disk does, by the number of connections that commit at the same time."""
    import asyncpg  # noqa: PLC0415 (an extra)

    url = server.new_database("capacity-commits")
    rates: dict[int, float] = {}
    for number in (1, 32):
        pool = await asyncpg.create_pool(url, min_size=number, max_size=number)
        await pool.execute("CREATE TABLE IF NOT EXISTS rows (value bytea)")

        async def commit(pool: Any = pool) -> None:
            for _ in range(2000 // number):  # noqa: B023 (called before the next round)
                await pool.execute("INSERT INTO rows VALUES ($1)", b"x" * 300)

        began = time.perf_counter()
        await asyncio.gather(*(commit() for _ in range(number)))
        rates[number] = 2000 // number * number / (time.perf_counter() - began)
        await pool.close()
    print(f"\ncommits a second of this disk: {', '.join(f'{rate:.0f} by {n} connections' for n, rate in rates.items())}")
    return rates


# ---------------------------------------------------------------- many hosts


def _hosts(costs: dict[int, dict[str, _Cost]], commits: dict[int, float]) -> None:
    from tests.runtime.crowd import Crowd, simulate_crowd  # noqa: PLC0415

    print(f"\nhosts in virtual time: {IN_HAND} threads in hand each, six steps a thread, {THINKS:g} s a step")
    heading = ("threads/s", "calls/s", "a host", "rows/s", "commits/s", "signals/s", "server cores", "p50 ms", "p99 ms")
    print(f"    {'hosts':<8}" + "".join(f"{each:>14}" for each in heading))
    for size in SIZES:
        seen = simulate_crowd(Crowd(size, in_hand=IN_HAND, thinks=THINKS, seconds=SECONDS))
        calls = {verb: count / SECONDS for verb, count in seen.calls.items()}
        known = {verb: costs[size][verb] for verb in ("beat", "woken", "take")}
        rows = sum(calls.get(verb, 0.0) * cost.rows for verb, cost in known.items())
        cores = sum(calls.get(verb, 0.0) * cost.processor for verb, cost in known.items())
        written, signals = sum(calls.get(verb, 0.0) for verb in WRITING), seen.signals / SECONDS
        waited = sorted(seen.waited)
        figures = (seen.ended / SECONDS, sum(calls.values()), sum(calls.values()) / size, rows, written, signals)
        late = waited[int(len(waited) * 0.99)] if waited else 0.0
        cells = "".join(f"{each:>14.1f}" for each in figures) + f"{cores:>14.2f}"
        print(f"    {size:<8}{cells}{median(waited) * 1000:>14.0f}{late * 1000:>14.0f}")
        most = {
            f"{CONNECTIONS} connections a host, of 100 by default": size * CONNECTIONS / 100,
            "signals by LISTEN/NOTIFY": signals / SIGNALS,
            "commits, each alone": written / commits[1],
            "commits, together": written / commits[32],
            "processor of the database for hosts, one core": cores,
        }
        shares = "; ".join(f"{what} {share:.2f}" for what, share in sorted(most.items(), key=lambda each: -each[1]))
        print(f"            share of what there is: {shares}")
        print(f"            calls a second: {', '.join(f'{verb} {rate:.1f}' for verb, rate in calls.items())}", flush=True)
