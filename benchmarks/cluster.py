"""Hosts on one PostgreSQL: how a job of six durable steps grows with them, beside DBOS, LangGraph and a bare loop.

- *hosts*: one, two and four processes with eight threads in hand each. A thread is posted to the ledger; a host takes it, does
  six steps, and answers. A step takes no time, or 200 ms as a model does. Threads and rows a second, commits and WAL of the
  database for each thread, and the time from the post to the handler.
- *peers*: the same job with eight in flight in one process, on the same server. The bare loop is the limit: it takes a job by
  `SKIP LOCKED`, inserts a row after each step, and keeps nothing else.
- *takeover*: one of two hosts ends with its threads in hand; the time until the other has each of them. A host that was killed
  is known to be dead on the same machine. One that was stopped is silent, as on a machine that is gone: its lease must end.

`ARGS=cluster:hosts`, `cluster:peers` and `cluster:takeover` run one of them. Times are on the clock on the wall: run it on a
machine that does nothing else. The driver, the hosts and the database share its cores.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any, TypedDict, cast

from antiphon.ledger import Host, Ledger, TakenThread, open_ledger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles, run

__all__ = ["report"]

STEPS, IN_HAND = 6, 8
THINKING = (0.0, 0.2)
HOSTS = (1, 2, 4)
ROUNDS = 3
THREADS = {0.0: 160, 0.2: 32}
"""Threads for each host in a sample."""
KILLED = 5
"""Hosts that are killed."""


def report(part: str) -> None:
    """Print the tables."""
    from tests.postgres import running_postgres  # noqa: PLC0415 (the hosts need none)

    with running_postgres(fsync=True) as server:
        if part in "hosts":
            asyncio.run(_hosts(server))
        if part in "peers":
            asyncio.run(_peers(server))
        if part in "takeover":
            asyncio.run(_takeover(server))


# ---------------------------------------------------------------- the job


class Done(Reply, frozen=True, type="BENCH_DONE"):
    waited: float
    """Seconds from the post to the handler."""


class Job(Request[Done], frozen=True, type="BENCH_JOB"):
    posted_at: float
    thinks: float


class Worker(Actor):
    @handles
    async def work(self, job: Job, context: Context) -> Done:
        waited = time.time() - job.posted_at

        async def step(key: str) -> str:
            await asyncio.sleep(job.thinks)
            return key

        for number in range(STEPS):
            await context.effect(f"step-{number}", {}, step, effects="none")
        return Done(waited=waited)


def _posted(thread_id: str, thinks: float) -> Message:
    data = Job(posted_at=time.time(), thinks=thinks).to_data()
    call = OptionCallPayload(invocation_id=thread_id, option_name=Job.message_type, arguments=data)
    return Message(policy="client", payload=call, to=("worker/1",), lane="control")


async def _run_jobs(ledger: Ledger, threads: Sequence[str], thinks: float) -> list[float]:
    """Post a job to each thread, wait until all have ended, and return how long each waited for its handler."""
    tail = ledger.tail(await ledger.horizon())
    await asyncio.gather(*(ledger.post(each, _posted(each, thinks)) for each in threads))
    waited: list[float] = []
    left = set(threads)
    async for found in tail:
        payload = found.record.message.payload
        if isinstance(payload, OptionResultPayload) and payload.invocation_id in left:
            left.remove(payload.invocation_id)
            waited.append(cast("Any", payload.result)["waited"])
            if not left:
                break
    return waited


# ---------------------------------------------------------------- hosts


class _Process:
    """A host."""

    def __init__(self, url: str, name: str) -> None:
        command = [sys.executable, "-m", "benchmarks.cluster", url, name]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        if self._line() != "ready":
            raise RuntimeError("a host has ended")

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def taken(self, number: int) -> list[float]:
        """Return when it has taken so many threads."""
        return [float(self._line().removeprefix("taken ")) for _ in range(number)]

    def end(self, by: signal.Signals = signal.SIGKILL) -> None:
        self._process.send_signal(by)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def _running(url: str, names: Sequence[str]) -> Iterator[list[_Process]]:
    with ExitStack() as stack:
        processes: list[_Process] = []
        for name in names:
            processes.append(_Process(url, name))
            stack.callback(processes[-1].close)
        yield processes


@dataclass(frozen=True, slots=True)
class _Figures:
    """What a sample has shown."""

    threads_per_second: float
    rows: float
    """For each thread, as are those below."""
    commits: float
    wal: float
    """Bytes."""
    waited: tuple[float, ...]


async def _hosts(server: Any) -> None:
    print(f"\nhosts on one PostgreSQL: {STEPS} steps a thread, {IN_HAND} threads in hand each, median of {ROUNDS} rounds")
    for thinks in THINKING:
        print(f"\n  {thinks * 1000:.0f} ms a step")
        heading = ("threads/s", "of one host", "rows/s", "commits", "WAL KiB", "post to handler p50", "p99 ms")
        print(f"    {'hosts':<8}" + "".join(f"{each:>21}" if "p50" in each else f"{each:>12}" for each in heading))
        seen: dict[int, list[_Figures]] = {number: [] for number in HOSTS}
        for turn in range(ROUNDS):
            for number in HOSTS:
                url = server.new_database(f"hosts-{number}-{turn}-{thinks}")
                seen[number].append(await _sample(url, number, thinks))
        one = median(each.threads_per_second for each in seen[HOSTS[0]])
        for number, found in seen.items():
            rate = median(each.threads_per_second for each in found)
            rows, commits, wal = (median(getattr(each, name) for each in found) for name in ("rows", "commits", "wal"))
            waited = sorted(value for each in found for value in each.waited)
            late = quantiles(waited, n=100)[-1]
            cells = f"{rate:>12.1f}{rate / one:>12.2f}{rate * rows:>12.0f}{commits:>12.1f}{wal / 1024:>12.1f}"
            print(f"    {number:<8}{cells}{median(waited) * 1000:>21.0f}{late * 1000:>12.0f}", flush=True)


async def _sample(url: str, number: int, thinks: float) -> _Figures:
    import asyncpg  # noqa: PLC0415 (the hosts import it by the ledger)

    count = THREADS[thinks] * number
    async with open_ledger(url, create=True) as ledger:
        with _running(url, [f"host-{each}" for each in range(number)]):
            await _run_jobs(ledger, [f"first-{each}" for each in range(IN_HAND * number)], 0.0)
            connection = await asyncpg.connect(url)
            before = await _counted(connection)
            began = time.perf_counter()
            waited = await _run_jobs(ledger, [f"t-{each}" for each in range(count)], thinks)
            seconds = time.perf_counter() - began
            after = await _counted(connection)
            await connection.close()
        rows = [(await ledger.head(f"t-{each}")).seq for each in range(0, count, max(1, count // 20))]
    commits, wal = ((now - then) / count for now, then in zip(after, before, strict=True))
    return _Figures(count / seconds, sum(rows) / len(rows), commits, wal, tuple(waited))


async def _counted(connection: Any) -> tuple[int, int]:
    """Return the commits of the database, and the bytes of its WAL."""
    await connection.execute("SELECT pg_stat_force_next_flush()")
    await asyncio.sleep(1.2)  # each connection reports its commits at most once a second
    commits = await connection.fetchval("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
    return commits, await connection.fetchval("SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")


# ---------------------------------------------------------------- peers

Jobs = Callable[[int, float], Awaitable[None]]
"""Runs so many jobs, whose steps take so many seconds, eight at a time."""


async def _peers(server: Any) -> None:
    print(f"\nthe same job in one process, {IN_HAND} in flight: threads a second, median of {ROUNDS} rounds")
    print(f"    {'':<28}" + "".join(f"{f'{thinks * 1000:.0f} ms a step':>16}" for thinks in THINKING))
    async with AsyncExitStack() as stack:
        candidates: dict[str, Jobs] = {
            "antiphon, one host": await _one_host(stack, server.new_database("one-host")),
            "DBOS": await _dbos(stack, server.new_database("dbos-jobs")),
            "LangGraph, its saver": await _langgraph(stack, server.new_database("langgraph-jobs")),
            "a bare loop, SKIP LOCKED": await _bare(stack, server.new_database("bare-jobs")),
        }
        rates: dict[str, dict[float, list[float]]] = {name: {thinks: [] for thinks in THINKING} for name in candidates}
        for turn in range(ROUNDS + 1):
            for name, jobs in candidates.items():
                for thinks in THINKING:
                    began = time.perf_counter()
                    await jobs(THREADS[thinks], thinks)
                    if turn:  # the first one opens connections
                        rates[name][thinks].append(THREADS[thinks] / (time.perf_counter() - began))
        for name, found in rates.items():
            print(f"    {name:<28}" + "".join(f"{median(found[thinks]):>16.1f}" for thinks in THINKING), flush=True)


def _eight_at_a_time(job: Callable[[str, float], Awaitable[object]]) -> Jobs:
    number = iter(range(sys.maxsize))

    async def jobs(count: int, thinks: float) -> None:
        room = asyncio.Semaphore(IN_HAND)

        async def one() -> None:
            async with room:
                await job(f"job-{next(number)}", thinks)

        await asyncio.gather(*(one() for _ in range(count)))

    return jobs


async def _one_host(stack: AsyncExitStack, url: str) -> Jobs:
    ledger = await stack.enter_async_context(open_ledger(url, create=True))
    stack.enter_context(_running(url, ["host"]))
    number = iter(range(sys.maxsize))

    async def jobs(count: int, thinks: float) -> None:
        await _run_jobs(ledger, [f"t-{next(number)}" for _ in range(count)], thinks)

    return jobs


async def _dbos(stack: AsyncExitStack, url: str) -> Jobs:
    from dbos import DBOS, DBOSConfig  # noqa: PLC0415 (the hosts need none of the peers)

    config: DBOSConfig = {"name": "benchmark", "system_database_url": url, "log_level": "ERROR"}
    DBOS(config=config)

    @DBOS.step()
    async def step(number: int, thinks: float) -> int:
        await asyncio.sleep(thinks)
        return number

    @DBOS.workflow()
    async def work(thinks: float) -> None:
        for number in range(STEPS):
            await step(number, thinks)

    DBOS.launch()
    stack.callback(DBOS.destroy)
    return _eight_at_a_time(lambda _, thinks: work(thinks))


class _State(TypedDict):
    done: int


async def _langgraph(stack: AsyncExitStack, url: str) -> Jobs:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver  # noqa: PLC0415
    from langgraph.graph import END, START, StateGraph  # noqa: PLC0415
    from psycopg.rows import dict_row  # noqa: PLC0415
    from psycopg_pool import AsyncConnectionPool  # noqa: PLC0415

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool: Any = AsyncConnectionPool(url, kwargs=options, min_size=IN_HAND, max_size=IN_HAND, open=False)
    await stack.enter_async_context(pool)
    saver = AsyncPostgresSaver(pool)
    await saver.setup()
    thinking = {"seconds": 0.0}

    async def step(state: _State) -> _State:
        await asyncio.sleep(thinking["seconds"])
        return {"done": state["done"] + 1}

    graph: Any = StateGraph(_State)
    names = [f"step-{number}" for number in range(STEPS)]
    for name in names:
        graph.add_node(name, step)
    for before, after in zip((START, *names), (*names, END), strict=True):
        graph.add_edge(before, after)
    compiled = graph.compile(checkpointer=saver)

    async def job(name: str, thinks: float) -> None:
        thinking["seconds"] = thinks
        config = {"configurable": {"thread_id": name}}
        state = await compiled.ainvoke({"done": 0}, config, durability="sync")
        if state["done"] != STEPS:
            raise RuntimeError("a graph has not ended")

    return _eight_at_a_time(job)


async def _bare(stack: AsyncExitStack, url: str) -> Jobs:
    import asyncpg  # noqa: PLC0415 (the hosts import it by the ledger)

    pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=IN_HAND, max_size=IN_HAND))
    await pool.execute("CREATE TABLE jobs (name text PRIMARY KEY, owner integer)")
    await pool.execute("CREATE TABLE steps (name text, number integer, body bytea, PRIMARY KEY (name, number))")
    take = (
        "UPDATE jobs SET owner = 1 WHERE name = (SELECT name FROM jobs WHERE owner IS NULL LIMIT 1 FOR UPDATE SKIP LOCKED)"
        " RETURNING name"
    )

    async def job(name: str, thinks: float) -> None:
        await pool.execute("INSERT INTO jobs VALUES ($1, NULL)", name)
        taken = await pool.fetchval(take)
        for number in range(STEPS):
            await asyncio.sleep(thinks)
            await pool.execute("INSERT INTO steps VALUES ($1, $2, $3)", taken, number, b"x" * 300)
        await pool.execute("DELETE FROM jobs WHERE name = $1", taken)

    return _eight_at_a_time(job)


# ---------------------------------------------------------------- takeover


async def _takeover(server: Any) -> None:
    print(f"\ntakeover with a heartbeat of {Settings().heartbeat:.0f} s, {KILLED} hosts with {IN_HAND} threads each")
    for how, by in {"killed": signal.SIGKILL, "silent": signal.SIGSTOP}.items():
        after = [each for turn in range(KILLED) for each in await _taken_over(server.new_database(f"{how}-{turn}"), by)]
        late = quantiles(after, n=100)[-1]
        print(f"    {how:<10} p50 {median(after):.2f} s, p99 {late:.2f} s, slowest {max(after):.2f} s", flush=True)


async def _taken_over(url: str, by: signal.Signals) -> list[float]:
    """End a host, and return how long after it another has taken each of its threads."""
    async with open_ledger(url, create=True) as ledger:
        with _running(url, ["first"]) as (first,):
            await asyncio.gather(*(ledger.post(each, _posted(each, 60.0)) for each in map(str, range(IN_HAND))))
            await asyncio.to_thread(first.taken, IN_HAND)
            with _running(url, ["second"]) as (second,):
                await asyncio.sleep(random.uniform(0.0, Settings().heartbeat))
                ended = time.time()
                first.end(by)
                after = [each - ended for each in await asyncio.to_thread(second.taken, IN_HAND)]
    return after


# ---------------------------------------------------------------- the process


class _Telling:
    """A ledger that tells when threads are taken."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def take(self, by: Host, **more: Any) -> tuple[TakenThread, ...]:
        found = await self._ledger.take(by, **more)
        for _ in found:
            print(f"taken {time.time()}", flush=True)
        return found


async def _serve(url: str, name: str) -> None:
    settings = Settings(host=name, build="1", block_limit=None, thread_limit=IN_HAND)
    async with open_ledger(url) as ledger, System(cast("Ledger", _Telling(ledger)), settings=settings) as system:
        system.register("worker", Worker, concurrency=1000)
        print("ready", flush=True)
        await system.host()


if __name__ == "__main__":
    run(_serve(*sys.argv[1:]))
