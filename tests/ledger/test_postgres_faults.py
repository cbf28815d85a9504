"""Faults of PostgreSQL and of the way to it (F3, F5 to F7, F10, F11, F28), judged by witnesses; and broken builds.

Several handles write the same threads, as several processes would, and one follows all of them. Each says what it does to a
witness before and after. When the faults are over, a new handle reads everything, and the checker compares (G1 to G5).
"""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast
from uuid import uuid4

import asyncpg
import pytest
from tests.ledger.faults.after import RULES
from tests.ledger.faults.counts import count
from tests.ledger.faults.image import mounted_image
from tests.ledger.faults.late import uncommitted
from tests.ledger.faults.proxy import Cuts, cutting, pooling
from tests.ledger.histories import called, everything, said
from tests.postgres import Server, running_postgres
from tools.soak.witness import Witness, WitnessReport, check_witness, gather_evidence, read_events

from antiphon import MediaPart, Message, PartsPayload, errors
from antiphon.ledger import (
    Host,
    Ledger,
    Limit,
    MasterKey,
    PermitWants,
    TermEntry,
    TermIndex,
    ThreadFilter,
    journal_of,
    open_ledger,
)
from antiphon.ledger._signals import ProcessHints
from antiphon.ledger._sql import hosts, lists, rows
from antiphon.ledger._sql.appends import CarefulAppends
from antiphon.ledger._sql.statements import Lock
from antiphon.ledger.postgres import _appends, _connection, _driver, _group_append, _search, _terms
from antiphon.ledger.postgres._appends import Appender, WaitingAppend
from antiphon.ledger.postgres._connection import Session
from antiphon.ledger.postgres._driver import lock_of
from antiphon.ledger.postgres._ledger import PostgresLedger
from antiphon.testing import check_ledger
from antiphon.testing._events import content_of

THREADS = ("a", "b", "c")
WRITERS = 2
WITHIN = 120
"""Seconds for everything to end, on a machine that does something else as well."""


@pytest.fixture
def tenant() -> str:
    return uuid4().hex


class Campaign:
    """Writers and a reader of one ledger, while something goes wrong."""

    def __init__(self, url: str, tenant: str, folder: Path, *, patience: float = 30) -> None:
        self._open = lambda patience=30.0: PostgresLedger.open(url, tenant=tenant, patience=patience)
        self._patience = patience
        self._folder = folder
        self._is_over = asyncio.Event()
        self._say = Witness(folder / "faults.jsonl", "faults")
        self.acknowledged = 0
        self.unanswered = 0

    def landed(self, fault: str) -> None:
        self._say.say("fault", content=fault)

    async def more(self, appends: int) -> None:
        """Wait until so many more appends were acknowledged: the ledger goes on."""
        wanted = self.acknowledged + appends
        async with asyncio.timeout(WITHIN):
            while self.acknowledged < wanted:  # noqa: ASYNC110 (appends are counted, not announced)
                await asyncio.sleep(0.01)

    async def run(self, faults: Callable[["Campaign"], Awaitable[None]]) -> WitnessReport:
        """Write and follow while the faults happen, then compare everything."""
        async with AsyncExitStack() as stack:
            handles: list[Ledger] = [await stack.enter_async_context(self._open())]
            handles += [await self._opened(stack) for _ in range(WRITERS)]
            writing = [
                asyncio.create_task(self._write(handle, thread, f"w{number}-{thread}"))
                for number, handle in enumerate(handles[1:])
                for thread in THREADS
            ]
            following = asyncio.create_task(self._follow(handles[0]))
            try:
                await faults(self)
            finally:
                self._is_over.set()
                await asyncio.gather(*writing)
                await self._caught_up(handles[0])
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
        async with self._open() as fresh:
            assert (await fresh.verify()).is_whole
            evidence = await gather_evidence(fresh)
        report = check_witness(read_events(self._folder.iterdir()), evidence)
        wanted = (*RULES, "R0", "R9")
        return WitnessReport(report.counts, tuple(breach for breach in report.breaches if breach.rule in wanted))

    async def _opened(self, stack: AsyncExitStack) -> Ledger:
        """Open a handle for a writer; its patience may be shorter than a busy machine takes for that."""
        async with asyncio.timeout(WITHIN):
            while True:
                with suppress(errors.LedgerUnavailableError):
                    return await stack.enter_async_context(self._open(self._patience))

    async def _write(self, ledger: Ledger, thread: str, name: str) -> None:
        """Append message after message, each until it is acknowledged."""
        witness = Witness(self._folder / f"{name}.jsonl", name)
        for number in itertools.count():
            if self._is_over.is_set():
                break
            message = said(f"{name} {number}")
            witness.say("inv", thread=thread, id=message.id, content=content_of(message))
            while not (is_stored := await self._is_appended(ledger, thread, message)) and not self._is_over.is_set():
                self.unanswered += 1
            if is_stored:
                witness.say("ok", thread=thread, id=message.id)
                self.acknowledged += 1
        witness.close()

    async def _is_appended(self, ledger: Ledger, thread: str, message: Any) -> bool:
        try:
            await ledger.append(thread, [message])
        except errors.LedgerUnavailableError:
            return False
        return True

    async def _follow(self, ledger: Ledger) -> None:
        witness, self._cursor = Witness(self._folder / "reader.jsonl", "reader"), ""
        while True:
            with suppress(errors.LedgerUnavailableError):
                async for each in ledger.tail(self._cursor or None):
                    witness.say("rx", thread=each.record.message.thread_id, id=each.record.message.id)
                    self._cursor = each.cursor

    async def _caught_up(self, ledger: Ledger) -> None:
        last = await ledger.horizon()
        with suppress(TimeoutError):  # the checker says what is missing
            async with asyncio.timeout(10):
                while self._cursor != last:  # noqa: ASYNC110 (a cursor is not announced)
                    await asyncio.sleep(0.01)


def told(report: WitnessReport, what: str) -> str:
    counted = {name: report.counts[name] for name in ("attempted", "acknowledged", "present", "recovered")}
    return f"PostgreSQL: {what}; {', '.join(f'{number} {name}' for name, number in counted.items())}, 0 lost, 0 twice"


# ---------------------------------------------------------------- F5: the server


@pytest.fixture(scope="module")
def crashing() -> Iterator[Server]:
    """A server that no other test uses."""
    with running_postgres() as server:
        yield server


async def _crashes(server: Server, folder: Path, times: int, *, patience: float = 30, down: float = 0.0) -> WitnessReport:
    tenant = uuid4().hex
    campaign = Campaign(server.url, tenant, folder, patience=patience)

    async def faults(run: Campaign) -> None:
        for _ in range(times):
            await run.more(30)
            await asyncio.to_thread(server.stop)
            await asyncio.sleep(down)
            await asyncio.to_thread(server.start)
            run.landed("crash")
        await run.more(30)

    return await campaign.run(faults)


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_f5_a_server_that_crashes_loses_nothing_that_was_acknowledged(
    crashing: Server, tmp_path: Path, record_property: Any
) -> None:
    """F5, G1: the server is stopped as by a power cut, and started again, while three threads are written."""
    report = await _crashes(crashing, tmp_path, count("F5"))
    assert report.breaches == ()
    assert report.counts["fault crash"] == count("F5")
    record_property("F5", told(report, f"{count('F5')} crashes of the server"))


@pytest.mark.slow
async def test_a_build_that_acknowledges_before_the_commit_is_caught(
    crashing: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F5: the same run finds a store that says `stored` when the statement is only on its way."""
    write = Appender._write_quickly

    async def too_early(self: Appender, prepared: Any) -> Any:
        for waiting, append in prepared:
            _appends._succeed(waiting, append.admission.records)
        return await write(self, prepared)

    monkeypatch.setattr(Appender, "_write_quickly", too_early)
    report = await _crashes(crashing, tmp_path, 3, patience=0.1, down=0.5)
    assert "R1" in {breach.rule for breach in report.breaches}


# ---------------------------------------------------------------- F3: power

_NO_POWER_CUTS = os.geteuid() != 0 or not os.environ.get("ANTIPHON_CHAOS")
RECOVERED_WITHIN = 10.0


async def _power_cuts(folder: Path, times: int) -> tuple[WitnessReport, float]:
    """Cut the power of a server under load; return what the witnesses say, and the longest time that it took to start."""
    longest = 0.0
    with mounted_image() as image, running_postgres(fsync=True, data=image.mounted / "data") as server:
        server.sql("CHECKPOINT")
        await asyncio.to_thread(os.sync)  # what was there before the run is not what is tried

        async def faults(run: Campaign) -> None:
            nonlocal longest
            for _ in range(times):
                await run.more(150)
                await asyncio.to_thread(image.cut_power, server)
                began = time.monotonic()
                await asyncio.to_thread(server.start, fsync=True)
                longest = max(longest, time.monotonic() - began)
                run.landed("power cut")
            await run.more(30)

        campaign = Campaign(server.url, uuid4().hex, folder)
        return await campaign.run(faults), longest


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(_NO_POWER_CUTS, reason="a file system in a file needs root, and the time of make chaos")
async def test_f3_a_power_cut_loses_nothing_that_was_acknowledged(tmp_path: Path, record_property: Any) -> None:
    """F3, G1: the file system of the server is what had reached its file when everything stopped."""
    report, longest = await _power_cuts(tmp_path, count("F3"))
    assert report.breaches == ()
    assert report.counts["fault power cut"] == count("F3")
    assert longest < RECOVERED_WITHIN
    record_property("F3", told(report, f"{count('F3')} power cuts, recovered in {longest:.1f} s at most"))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.skipif(_NO_POWER_CUTS, reason="a file system in a file needs root, and the time of make chaos")
async def test_a_server_that_does_not_sync_is_caught() -> None:
    """F3: with `fsync = off`, acknowledged messages are gone after the same power cut; the server may not even start."""
    kept = 0
    with (
        mounted_image() as image,
        suppress(AssertionError, errors.LedgerError),
        running_postgres(data=image.mounted / "data") as server,
    ):
        await asyncio.to_thread(os.sync)
        async with PostgresLedger.open(server.url) as ledger:
            for number in range(50):
                await ledger.append("t", [said(str(number))])
        image.cut_power(server)
        server.start()
        async with PostgresLedger.open(server.url, create=False) as fresh:
            kept = len(await everything(fresh))
    assert kept < 50


# ---------------------------------------------------------------- F6: connections

_END_BACKENDS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND application_name = 'antiphon' AND state <> 'idle' AND pid <> pg_backend_pid()
"""


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_f6_connections_that_the_server_ends_lose_and_repeat_nothing(
    postgres: Server, tenant: str, tmp_path: Path, record_property: Any
) -> None:
    """F6, G2: the backend dies within a statement; the append is settled by the id of its message."""
    url = postgres.new_database(f"f6{tenant}")
    killer = await asyncpg.connect(url)

    async def faults(run: Campaign) -> None:
        landed = 0
        while landed < count("F6"):
            await run.more(5)
            for _ in await killer.fetch(_END_BACKENDS):
                landed += 1
                run.landed("ended")
        await run.more(20)

    try:
        report = await Campaign(url, tenant, tmp_path).run(faults)
    finally:
        await killer.close()
    assert report.breaches == ()
    record_property("F6", told(report, f"{report.counts['fault ended']} backends ended"))


# ---------------------------------------------------------------- F7: lost answers


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_f7_an_answer_that_is_lost_is_settled_by_the_id_of_the_message(
    postgres: Server, tenant: str, tmp_path: Path, record_property: Any
) -> None:
    """F7, G2: the socket is cut when a request was sent: half of the times the server has executed it, half it has not."""
    random = Random(7)
    async with cutting(postgres.url) as (url, cuts):

        async def faults(run: Campaign) -> None:
            for number in range(count("F7")):
                before = cuts.landed
                cuts.arm(random.randint(1, 12), is_answered=bool(number % 2))
                async with asyncio.timeout(WITHIN):
                    while cuts.landed == before:  # noqa: ASYNC110 (a proxy counts)
                        await asyncio.sleep(0.002)
                run.landed("cut")
                await run.more(5)

        report = await Campaign(url, tenant, tmp_path).run(faults)
    assert report.breaches == ()
    assert report.counts["fault cut"] == count("F7")
    record_property("F7", told(report, f"{count('F7')} answers or requests cut off"))


Change = Callable[[Ledger, Callable[[], None]], Awaitable[Any]]
"""Prepares a ledger, calls the second argument, makes a change, and returns its result."""


async def _fork(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.append("t", [said()])
    cut()
    made = await ledger.fork("t", into="branch")
    return made.thread_id, made.forked_from, made.messages, len(await everything(ledger, "branch"))


async def _claim(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.beat(host := Host("before", "1"))
    await ledger.claim("t", by=host)
    cut()
    claimed = await ledger.claim("t")
    await ledger.append("t", [said()], epoch=claimed)
    return claimed, claimed.taken_from


async def _release(ledger: Ledger, cut: Callable[[], None]) -> Any:
    epoch = await ledger.claim("t")
    cut()
    return await ledger.release("t", epoch=epoch), (await ledger.head("t")).epoch


async def _delete(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.append("t", [said()])
    cut()
    return await ledger.delete("t")


async def _forget(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.append("t", [said()])
    cut()
    return await ledger.keys.forget("t")


async def _expire(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.append("t", [said()])
    (young,) = await ledger.append("u", [said()])
    cut()
    return await ledger.expire(young.recorded_at)


async def _restore(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.append("t", [said()])
    journal, head = await journal_of(ledger, "t"), await ledger.head("t")
    await ledger.delete("t")
    cut()
    return [each.thread_id for each in await ledger.restore([journal], [head])]


async def _rotate(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.append("t", [said()])
    cut()
    return await ledger.keys.rotate(MasterKey.from_text(MasterKey.generate())), len(await everything(ledger, "t"))


async def _move(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.append("t", [said()])
    cut()
    return (await ledger.move("t", to="elsewhere")).posted


async def _take(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.beat(host := Host("taker", "1", ("agent",)))
    await ledger.post("t", called(to=("agent/1",)))
    cut()
    return [(each.thread_id, each.epoch, each.why) for each in await ledger.take(host)]


async def _permits(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.beat(host := Host("asker", "1"))
    await ledger.limits.set(Limit("m", per_minute=1))
    cut()
    return (await ledger.limits.lease(host, {"m": PermitWants(waiting=1)}))["m"].starts


async def _post(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.append("t", [said()])
    cut()
    return (await ledger.post("u", called(to=("agent/1",)))).seq, len(await everything(ledger, "u"))


async def _beat(ledger: Ledger, cut: Callable[[], None]) -> Any:
    cut()
    await ledger.beat(Host("h", "1"))
    return [(each.host.name, each.is_alive) for each in await ledger.hosts()]


async def _leave(ledger: Ledger, cut: Callable[[], None]) -> Any:
    await ledger.beat(host := Host("h", "1"))
    cut()
    return await ledger.leave(host), await ledger.hosts()


_CHANGES: tuple[Change, ...] = (
    *(_fork, _claim, _release, _delete, _forget, _expire, _restore, _rotate, _move, _take, _permits, _post, _beat, _leave),
)


@pytest.mark.slow
@pytest.mark.parametrize("change", _CHANGES, ids=lambda change: change.__name__.removeprefix("_"))
async def test_f7_a_change_whose_commit_is_not_confirmed_is_made_once(postgres: Server, tenant: str, change: Change) -> None:
    """F7: the server has committed, and the answer is lost. The caller gets the result, and no error."""
    master = MasterKey.from_text(MasterKey.generate())
    async with cutting(postgres.url) as (url, cuts):

        def cut() -> None:
            cuts.arm_commit(is_answered=True)

        async with PostgresLedger.open(url, tenant=f"{tenant}-cut", master_key=master) as ledger:
            found = await change(ledger, cut)
    assert cuts.landed == 1
    async with PostgresLedger.open(postgres.url, tenant=tenant, master_key=master) as ledger:
        assert found == await change(ledger, lambda: None)


@pytest.mark.slow
async def test_f7_a_change_that_was_not_committed_is_made_again(postgres: Server, tenant: str) -> None:
    """F7: the connection breaks before the server gets the COMMIT."""
    async with cutting(postgres.url) as (url, cuts), PostgresLedger.open(url, tenant=tenant) as ledger:
        await ledger.append("t", [said()])
        cuts.arm_commit(is_answered=False)
        assert (await ledger.fork("t", into="branch")).thread_id == "branch"
        assert cuts.landed == 1
        with pytest.raises(ValueError, match="already"):
            await ledger.fork("t", into="branch")


@pytest.mark.slow
async def test_a_change_that_a_failover_has_lost_is_made_again(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby that took over has not reached the number of the transaction yet, and does not know it."""

    def lost(session: Session) -> None:
        number, _, server = (session.transaction or "").partition(" ")
        session.transaction = f"{10**6 + int(number)} {server}"

    _after_verb(monkeypatch, "branch", lost)
    async with cutting(postgres.url) as (url, cuts), PostgresLedger.open(url, tenant=tenant) as ledger:
        await ledger.append("t", [said()])
        cuts.arm_commit(is_answered=False)
        assert (await ledger.fork("t", into="branch")).thread_id == "branch"


class _Gated(Appender):
    """Writes nothing, and takes until a gate opens."""

    def __init__(self) -> None:
        super().__init__(cast("Any", None), lambda: None)
        self.gate = asyncio.Event()

    async def _write(self, group: Sequence[WaitingAppend]) -> None:
        await self.gate.wait()
        for waiting in group:
            waiting.done.set_result(())


async def test_an_append_that_comes_when_all_writers_have_just_ended_is_written() -> None:
    """It waited for the next append of the process. A host that had one thread left wrote no other, and never ended (F35)."""
    appender, last = _Gated(), list[asyncio.Future[Any]]()

    def append(name: str) -> asyncio.Future[Any]:
        return asyncio.ensure_future(appender.append(cast("Any", SimpleNamespace(thread_id=name, weight=1))))

    for name in "ab":  # each has a writer of its own
        append(name)
        await asyncio.sleep(0.01)
    appender.gate.set()
    asyncio.get_running_loop().call_soon(lambda: last.append(append("c")))  # after the writers, and before their callbacks
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        assert await last[0] == ()
    await appender.close()


def _after_verb(monkeypatch: pytest.MonkeyPatch, verb: str, do: Callable[[Session], Awaitable[None] | None]) -> None:
    """Do something each time that a verb was run, before its transaction is committed."""
    answered = _driver.answered

    async def changed(session: Session, running: Any) -> Any:
        made = await answered(session, running)
        if running.__name__ == verb and (doing := do(session)) is not None:
            await doing
        return made

    monkeypatch.setattr(_driver, "answered", changed)


def _of_another_server(monkeypatch: pytest.MonkeyPatch, verb: str, number: str) -> None:
    """Have a change remember the number of a transaction of another server; here, a committed transaction has this number."""

    def changed(session: Session) -> None:
        session.transaction = f"{number} 1700000000.5"

    _after_verb(monkeypatch, verb, changed)


@pytest.mark.slow
@pytest.mark.parametrize("is_stored", [True, False])
@pytest.mark.parametrize("changing", [("claim", _claim), ("release", _release), ("take", _take)], ids=lambda each: each[0])
async def test_a_change_of_owner_is_made_once_though_a_failover_has_used_its_number_again(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch, changing: tuple[str, Change], is_stored: bool
) -> None:
    """The new server has a committed transaction of that number. A release that it did not have was taken for made: the thread
    kept an owner that knew nothing of it, for as long as that host lived."""
    verb, change = changing
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        expected = await change(ledger, lambda: None)
    async with _connected(postgres.url) as other:
        number = await other.fetchval("SELECT pg_current_xact_id()::text")
    _of_another_server(monkeypatch, verb, number)
    async with cutting(postgres.url) as (url, cuts), PostgresLedger.open(url, tenant=f"{tenant}-cut") as ledger:
        assert await change(ledger, lambda: cuts.arm_commit(is_answered=is_stored)) == expected
    assert cuts.landed == 1
    async with _connected(postgres.url) as other:
        owners = "SELECT epoch, owner IS NULL FROM antiphon.threads WHERE starts_with(tenant, $1) ORDER BY tenant"
        made, made_after_cut = await other.fetch(owners, tenant)
    assert made == made_after_cut


@pytest.mark.slow
async def test_a_branch_that_a_failover_may_have_lost_is_a_typed_unknown(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7: it was taken for made, because the new server has a committed transaction of its number."""
    async with _connected(postgres.url) as other:
        number = await other.fetchval("SELECT pg_current_xact_id()::text")
    _of_another_server(monkeypatch, "branch", number)
    async with cutting(postgres.url) as (url, cuts), PostgresLedger.open(url, tenant=tenant) as ledger:
        await ledger.append("t", [said()])
        cuts.arm_commit(is_answered=False)
        with pytest.raises(errors.LedgerUnavailableError, match="look whether the change is stored"):
            await ledger.fork("t", into="branch")
        assert await ledger.thread("branch") is None
        assert (await ledger.fork("t", into="branch")).thread_id == "branch"


@pytest.mark.slow
async def test_f28_a_server_behind_a_wall_of_silence_is_a_typed_error_in_time(
    postgres: Server, tenant: str, record_property: Any
) -> None:
    """F28: packets are dropped, and no connection is closed. A call ends in time, and the next one succeeds."""
    patience, longest = 0.5, 0.0
    async with cutting(postgres.url) as (url, cuts), PostgresLedger.open(url, tenant=tenant, patience=patience) as ledger:
        await ledger.append("t", [said("before")])
        for number in range(count("F28")):
            message = said(str(number), id=f"m{number}")
            cuts.is_silent = True
            longest = max(longest, await _refused(ledger, message, cuts))
            await _stored(ledger, message)
        assert [record.message.id for record in await everything(ledger)][1:] == [f"m{each}" for each in range(count("F28"))]
    record_property(
        "F28", f"PostgreSQL: {count('F28')} times silent, longest wait {longest:.1f} s with a patience of {patience} s"
    )
    assert longest < 20  # without a limit it would wait for hours; on a quiet machine it takes three times the patience


async def _stored(ledger: Ledger, message: Any) -> None:
    """Append until it succeeds: the patience of the ledger is short, and the machine may be busy."""
    async with asyncio.timeout(WITHIN):
        while True:
            with suppress(errors.LedgerUnavailableError):
                await ledger.append("t", [message])
                return


async def _refused(ledger: Ledger, message: Any, cuts: Cuts) -> float:
    """Return how long an append took to fail; afterwards the server answers again."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with asyncio.timeout(WITHIN):
            with pytest.raises(errors.LedgerUnavailableError, match="did not answer in time"):
                await ledger.append("t", [message])
        return loop.time() - began
    finally:
        cuts.is_silent = False


# ---------------------------------------------------------------- F10: locks, deadlocks, serialisation failures


@asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


@pytest.mark.slow
async def test_f10_a_lock_that_is_held_for_too_long_is_a_typed_error(
    postgres: Server, tenant: str, record_property: Any
) -> None:
    """F10: nothing is written while the lock is held, and the same append succeeds afterwards."""
    async with PostgresLedger.open(postgres.url, tenant=tenant, patience=0.2) as ledger, _connected(postgres.url) as other:
        await ledger.append("t", [said(id="first")])
        for number in range(count("F10")):
            message = said(id=f"m{number}")
            async with other.transaction():
                await other.execute("SELECT pg_advisory_xact_lock($1)", lock_of(tenant, "t"))
                with pytest.raises(errors.LedgerUnavailableError, match="locked the thread for too long") as caught:
                    await ledger.append("t", [message])
                assert caught.value.retryable
            await _stored(ledger, message)
        stored = [record.message.id for record in await everything(ledger)]
    assert stored == ["first", *(f"m{number}" for number in range(count("F10")))]
    record_property("F10", f"PostgreSQL: {count('F10')} times locked, 0 lost")


_WAITS = """
SELECT count(*) FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database
WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted
"""


@pytest.mark.slow
async def test_f14_a_process_that_is_suspended_in_a_transaction_keeps_no_thread_from_others(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G15, G16: no host could take the thread, and no `tail` went on, until the process continued."""
    monkeypatch.setattr(_connection, "_IDLE_FOR", 1.0)
    suspended, fetch = asyncio.Event(), Session.fetch

    async def kept(session: Session, sql: str, *values: object) -> Any:
        found = await fetch(session, sql, *values)
        if sql == hosts._LOCK_HOST and not suspended.is_set():
            suspended.set()
            await asyncio.sleep(WITHIN)
        return found

    monkeypatch.setattr(Session, "fetch", kept)
    async with (
        PostgresLedger.open(postgres.url, tenant=tenant) as first,
        PostgresLedger.open(postgres.url, tenant=tenant) as other,
    ):
        await first.append("t", [said()])
        pair = [Host(name, "1") for name in ("suspended", "other")]
        await first.beat(pair[0])
        await other.beat(pair[1])
        claiming = asyncio.create_task(first.claim("t", by=pair[0]))
        await suspended.wait()
        assert await other.claim("t", by=pair[1]) == 1
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):  # and no attempt to roll back, which would fail and be repeated
            await claiming


@pytest.mark.slow
async def test_f10_deadlocks_are_tried_again(postgres: Server, tenant: str, record_property: Any) -> None:
    """F10: another program locks in the other order. The server ends one of the two, and everything is stored once."""
    name = f"f10{tenant}"
    url = postgres.new_database(name)
    postgres.sql(f"ALTER DATABASE \"{name}\" SET deadlock_timeout = '150ms'")
    low, high = sorted(("x", "y"), key=lambda thread: lock_of(tenant, thread))
    async with PostgresLedger.open(url, tenant=tenant) as ledger, _connected(url) as other:
        await asyncio.gather(*(ledger.append(thread, [said()]) for thread in ("x", "y")))
        await other.execute("SET deadlock_timeout = '10s'")  # so that the ledger looks first, and is ended
        for _ in range(count("F10")):
            await other.execute("BEGIN")
            await other.execute("SELECT pg_advisory_xact_lock($1)", lock_of(tenant, high))
            both = [asyncio.create_task(ledger.append(thread, [said()])) for thread in (low, high)]
            async with asyncio.timeout(WITHIN):
                while not await other.fetchval(_WAITS):  # noqa: ASYNC110 (the server has no such event)
                    await asyncio.sleep(0.005)
            await other.execute("SELECT pg_advisory_xact_lock($1)", lock_of(tenant, low))
            await other.execute("COMMIT")
            await asyncio.gather(*both)
        assert [len(await everything(ledger, thread)) for thread in ("x", "y")] == [count("F10") + 1] * 2
        ended = await other.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
    record_property("F10", f"PostgreSQL: {count('F10')} times locked in the other order ({ended} deadlocks counted), 0 lost")


@pytest.mark.slow
async def test_f10_serialisation_failures_are_tried_again(postgres: Server, tenant: str, record_property: Any) -> None:
    """F10: every other insertion fails with 40001 (by a trigger that is made when the ledger is open already)."""
    name = f"s10{tenant}"
    url = postgres.new_database(name)
    async with PostgresLedger.open(url, tenant=tenant) as ledger:
        await ledger.append("t", [said(id="first")])
        postgres.sql("CREATE SEQUENCE failures", name)
        body = "BEGIN IF nextval('failures') % 2 = 1 THEN RAISE SQLSTATE '40001'; END IF; RETURN NEW; END"
        postgres.sql(f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $${body}$$", name)
        postgres.sql("CREATE TRIGGER fail BEFORE INSERT ON antiphon.messages FOR EACH ROW EXECUTE FUNCTION fail()", name)
        for number in range(count("F10")):
            await ledger.append("t", [said(id=f"m{number}")])
        assert [record.message.id for record in await everything(ledger)][1:] == [f"m{each}" for each in range(count("F10"))]
        postgres.sql("DROP TRIGGER fail ON antiphon.messages; DROP FUNCTION fail", name)
    record_property("F10", f"PostgreSQL: {count('F10')} serialisation failures, 0 lost")


# ---------------------------------------------------------------- F11: order


async def _followed(url: str, tenant: str, times: int, early: int = 0) -> list[str]:
    """Return what a reader gets while transactions that began early end late; each round writes two messages.

    A transaction ends when the reader has looked, and, if it does so, has got `early` messages.
    """
    async with PostgresLedger.open(url, tenant=tenant) as ledger:
        seen: list[str] = []

        async def follow() -> None:
            async for each in ledger.tail():
                seen.append(f"{each.record.message.thread_id} {each.record.seq}")  # noqa: PERF401 (it never ends)

        following = asyncio.create_task(follow())
        for number in range(times):
            async with uncommitted(url, tenant, f"late {number}"):
                await ledger.append(f"quick {number}", [said()])
                await asyncio.sleep(0.05)  # the reader looks, and sees nothing of the later one yet
                await _until(lambda: len(seen) >= early)
        await _until(lambda: len(seen) >= 2 * times)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        return seen


async def _until(is_so: Callable[[], bool]) -> None:
    """Wait until something is so, or five seconds have passed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(5):
            while not is_so():  # noqa: ASYNC110 (of a task that tells nobody)
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_f11_a_transaction_that_begins_early_and_ends_late_hides_nothing(
    postgres: Server, tenant: str, record_property: Any
) -> None:
    """F11, G5: a message of a later transaction is held back until no earlier one runs."""
    seen = await _followed(postgres.url, tenant, count("F11"))
    assert seen == [f"{which} {number} 1" for number in range(count("F11")) for which in ("late", "quick")]
    record_property("F11", f"PostgreSQL: {count('F11')} transactions ended late, 0 messages skipped")


@pytest.mark.slow
async def test_a_build_whose_readers_ask_for_position_after_the_last_is_caught(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F11: the same test finds a store that reads `place > last` and nothing more."""
    broken = lists.SINCE.postgres.replace(lists.BELOW_HORIZON, "true")
    monkeypatch.setattr(lists, "SINCE", lists.SINCE._replace(postgres=broken))
    seen = await _followed(postgres.url, tenant, 1, early=1)
    assert seen == ["quick 0 1"]


async def _written_by_many(url: str, tenant: str, appends: int) -> list[tuple[str, int]]:
    """Write the same threads from several handles at once, as several processes would; return what a reader sees."""
    async with AsyncExitStack() as stack:
        writers = [await stack.enter_async_context(PostgresLedger.open(url, tenant=tenant)) for _ in range(4)]

        async def write(ledger: Ledger, number: int) -> None:
            for first in range(0, appends, 5):
                names = [f"t{(number + first + each) % 7}" for each in range(5)]
                await asyncio.gather(*(ledger.post(name, said(str(first), to=("x",))) for name in names))

        await asyncio.gather(*(write(ledger, number) for number, ledger in enumerate(writers)))
        found: list[tuple[str, int]] = []
        async with asyncio.timeout(WITHIN):
            async for each in writers[0].tail():
                found.append((each.record.message.thread_id or "", each.record.seq))
                if len(found) == appends * len(writers):
                    break
        return found


def _out_of_order(found: list[tuple[str, int]]) -> int:
    """Return how many records come at another place than the next of their thread."""
    last: dict[str, int] = {}
    wrong = 0
    for thread, seq in found:
        wrong += seq != last.get(thread, 0) + 1
        last[thread] = max(seq, last.get(thread, 0))
    return wrong


@pytest.mark.slow
async def test_all_readers_see_one_order_that_keeps_the_order_of_each_thread(postgres: Server, tenant: str) -> None:
    """G3, G5: whichever process writes, nothing is missed, repeated or out of order."""
    found = await _written_by_many(postgres.url, tenant, 60)
    assert _out_of_order(found) == 0
    assert len(set(found)) == 240


@pytest.mark.slow
async def test_a_build_with_row_locks_alone_is_caught(postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same test finds a store in which writers wait for rows, and no longer for the lock of the thread."""
    numbers, write = itertools.count(), CarefulAppends.write

    def one_by_one(self: CarefulAppends, requests: Any) -> Any:
        outcomes: dict[str, Any] = {}
        for each in sorted(requests, key=lambda each: each.thread_id):
            outcomes[each.thread_id] = yield from write(self, [each])
        return [outcome for each in requests for outcome in outcomes[each.thread_id]]

    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger:
        for number in range(7):
            await ledger.append(f"t{number}", [], status="new")
    monkeypatch.setattr(_driver, "lock_of", lambda tenant, thread_id: next(numbers))
    monkeypatch.setattr(_group_append, "lock_of", lambda tenant, thread_id: next(numbers))
    monkeypatch.setattr(CarefulAppends, "write", one_by_one)
    assert _out_of_order(await _written_by_many(postgres.url, tenant, 60)) > 0


# ---------------------------------------------------------------- indexes and deletions

_BLOCKED = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND cardinality(pg_blocking_pids(pid)) > 0
"""
TERMS = TermIndex("t", "1", lambda message: TermEntry("s", 1, "", message.text))


@asynccontextmanager
async def _after(patch: pytest.MonkeyPatch, sql: str, do: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """Do something once, when a statement was executed for the first time."""
    fetch, left = Session.fetch, [do]

    async def watched(self: Session, statement: str, *values: object) -> Any:
        rows = await fetch(self, statement, *values)
        if statement == sql and left:
            await left.pop()()
        return rows

    with patch.context() as context:
        context.setattr(Session, "fetch", watched)
        yield
    assert not left, "the statement was not executed"


@pytest.mark.slow
@pytest.mark.parametrize("sql", [_search._UNINDEXED, _terms._NEXT], ids=["words", "terms"])
async def test_f11_a_message_that_is_committed_while_others_are_indexed_is_found_later(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch, sql: str
) -> None:
    """Its transaction began before theirs. An index that took it for known would never have it."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger, AsyncExitStack() as late:

        async def found(word: str) -> int:
            if sql == _terms._NEXT:
                return len((await ledger.terms.find(TERMS, [word])).matches)
            return len(await ledger.search(word))

        await late.enter_async_context(uncommitted(postgres.url, tenant, "t/late"))
        await ledger.append("t", [said("quick")])
        async with _after(monkeypatch, sql, late.aclose):
            assert await found("quick") == 1
        assert await found("late") == 1


@pytest.mark.slow
async def test_the_words_of_a_thread_that_is_deleted_while_it_is_indexed_do_not_stay(postgres: Server, tenant: str) -> None:
    """The deletion waits until its words are in the index, or it is not indexed any more."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger, _connected(postgres.url) as other:
        await ledger.append("t", [said("canary")])
        same = "INSERT INTO antiphon.words SELECT tenant, thread, seq, '' FROM antiphon.messages WHERE tenant = $1"
        tasks: list[asyncio.Future[Any]] = []
        async with _connected(postgres.url) as holding:
            await holding.execute("BEGIN")
            await holding.execute(same, tenant)  # until it is rolled back, others that add the same row wait
            for number, doing in enumerate((ledger.search("canary"), ledger.delete("t")), 1):
                tasks.append(asyncio.ensure_future(doing))
                async with asyncio.timeout(WITHIN):
                    while not tasks[-1].done() and await other.fetchval(_BLOCKED) < number:  # noqa: ASYNC110 (the server decides)
                        await asyncio.sleep(0.01)
            await holding.execute("ROLLBACK")
        await asyncio.gather(*tasks)
        assert await other.fetchval("SELECT count(*) FROM antiphon.words WHERE tenant = $1", tenant) == 0


@pytest.mark.slow
async def test_a_search_does_not_wait_for_the_messages_that_are_deleted_meanwhile(postgres: Server, tenant: str) -> None:
    """A deletion of many messages takes seconds. It locked the indexes from its beginning."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger, _connected(postgres.url) as other:
        await ledger.append("old", [said("canary")])
        await ledger.append("new", [said("canary")])
        async with _connected(postgres.url) as holding:
            await holding.execute("BEGIN")
            await holding.execute(
                "SELECT 1 FROM antiphon.messages WHERE tenant = $1 ORDER BY era, xid LIMIT 1 FOR UPDATE", tenant
            )
            deleting = asyncio.create_task(ledger.delete("old"))
            async with asyncio.timeout(WITHIN):
                while not deleting.done() and await other.fetchval(_BLOCKED) < 1:  # noqa: ASYNC110 (the server decides)
                    await asyncio.sleep(0.01)
            async with asyncio.timeout(5):
                assert len(await ledger.search("canary")) == 2
            await holding.execute("ROLLBACK")
        await deleting
        assert len(await ledger.search("canary")) == 1
        assert await other.fetchval("SELECT count(*) FROM antiphon.words WHERE tenant = $1", tenant) == 1


@pytest.mark.slow
@pytest.mark.parametrize("is_deleted_first", [True, False])
async def test_a_picture_that_is_stored_again_while_its_last_thread_is_deleted_stays(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch, is_deleted_first: bool
) -> None:
    """G4: a picture is stored once. An append and a deletion wait for each other, whichever was first."""
    picture = _picture(tenant)
    written, goes_on = asyncio.Event(), asyncio.Event()
    answered = _driver.answered

    async def held(session: Session, verb: Any) -> Any:
        done = await answered(session, verb)
        if verb.__name__ == ("delete" if is_deleted_first else "write"):
            written.set()
            await goes_on.wait()  # everything is written, and not committed
        return done

    async with (
        PostgresLedger.open(postgres.url, tenant=tenant) as ledger,
        PostgresLedger.open(postgres.url, tenant=tenant) as other,
        _connected(postgres.url) as watching,
    ):
        await ledger.append("old", [picture])
        with monkeypatch.context() as patch:
            patch.setattr(_driver if is_deleted_first else _appends, "answered", held)
            verbs = [lambda: ledger.append("new", [picture]), lambda: other.delete("old")]
            first, second = reversed(verbs) if is_deleted_first else verbs
            doings: list[asyncio.Future[Any]] = [asyncio.ensure_future(first())]
            await written.wait()
            doings.append(asyncio.ensure_future(second()))
            async with asyncio.timeout(WITHIN):
                while not doings[1].done() and not await watching.fetchval(_BLOCKED):  # noqa: ASYNC110 (the server decides)
                    await asyncio.sleep(0.01)
            goes_on.set()
            await asyncio.gather(*doings)
        assert [record.message.payload for record in await everything(ledger, "new")] == [picture.payload]
        assert (await ledger.verify()).is_whole


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["delete", "forget"])
async def test_a_branch_that_is_made_just_before_its_thread_is_locked_is_locked_too(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """G4: an append to the branch would leave its messages behind, or keep them readable."""
    lock, locked = _driver._ANSWERS[Lock], list[str]()
    place: Any = {"url": postgres.url, "tenant": tenant, "master_key": MasterKey.from_text(MasterKey.generate())}
    async with PostgresLedger.open(**place) as ledger, PostgresLedger.open(**place) as other:

        async def watched(session: Session, request: Lock) -> None:
            names = list(request.names)
            if not locked:
                locked.append("t")  # the branch locks as well
                await other.fork("t", into="b")
            locked.extend(names)
            await lock(session, Lock(names))

        await ledger.append("t", [said()])
        with monkeypatch.context() as patch:
            patch.setitem(_driver._ANSWERS, Lock, watched)
            change = ledger.delete if verb == "delete" else ledger.keys.forget
            assert await change("t", with_branches=True) == ("t", "b")
        assert locked.count("b") == 2, locked  # by the fork, and by the deletion


@pytest.mark.slow
async def test_a_picture_that_is_deleted_while_an_append_waits_for_it_is_stored_again(postgres: Server, tenant: str) -> None:
    """G4: the deletion has locked it, and deletes it afterwards."""
    async with PostgresLedger.open(postgres.url, tenant=tenant) as ledger, _connected(postgres.url) as other:
        await ledger.append("old", [picture := _picture(tenant)])
        await other.execute("BEGIN")
        await other.execute("SELECT 1 FROM antiphon.media WHERE tenant = $1 FOR UPDATE", tenant)
        appending = asyncio.ensure_future(ledger.append("new", [picture]))
        async with asyncio.timeout(WITHIN), _connected(postgres.url) as watching:
            while not await watching.fetchval(_BLOCKED):  # noqa: ASYNC110 (the server decides)
                await asyncio.sleep(0.01)
        await other.execute("DELETE FROM antiphon.media WHERE tenant = $1", tenant)
        await other.execute("COMMIT")
        await appending
        assert [record.message.payload for record in await everything(ledger, "new")] == [picture.payload]


def _picture(text: str) -> Message:
    url = f"data:image/png;base64,{text * 400}"
    return Message(policy="user", payload=PartsPayload(parts=(MediaPart(modality="image", url=url),)))


@pytest.mark.slow
async def test_a_thread_that_is_deleted_between_two_statements_is_no_damage(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """G4: an error says that a row was altered only if one was."""
    async with (
        PostgresLedger.open(postgres.url, tenant=tenant) as ledger,
        PostgresLedger.open(postgres.url, tenant=tenant) as other,
    ):
        await ledger.append("t", [said(correlation_id="c")])
        async with _after(monkeypatch, rows._BY_NUMBER["correlation"], lambda: other.delete("t")):
            assert await ledger.find(correlation_id="c") == ()
        await ledger.append("u", [said()])
        async with _after(monkeypatch, lists.SINCE.postgres, lambda: other.delete("u")):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.3):
                    async for _ in ledger.tail():
                        pass


@pytest.mark.slow
async def test_f11_a_new_era_waits_for_the_writers_of_other_tenants(postgres: Server, tenant: str) -> None:
    """G5: a restored dump. One tenant writes already, when another is opened whose messages begin the new era."""
    url = postgres.new_database(f"era{tenant}")
    async with PostgresLedger.open(url, tenant=tenant) as ledger:
        async with PostgresLedger.open(url, tenant="other") as before:
            await before.append("t", [said()])
        postgres.sql("UPDATE antiphon.messages SET xid = xid + 1000000000", f"era{tenant}")
        opening = PostgresLedger.open(url, tenant="other")
        async with uncommitted(url, tenant, "late"):
            await ledger.append("quick", [said()])
            entering = asyncio.ensure_future(opening.__aenter__())
            await asyncio.wait((entering,), timeout=0.3)  # it waits for the writer, or it is done
            tail = ledger.tail()
            first = asyncio.ensure_future(anext(tail))
            await asyncio.wait((first,), timeout=0.3)
        assert (await first).record.message.thread_id == "late"
        assert (await anext(tail)).record.message.thread_id == "quick"
        await tail.aclose()
        reopened = await entering
        await reopened.append("t", [said()])
        assert (await reopened.horizon()).startswith("2.")
        await opening.__aexit__(None, None, None)


# ---------------------------------------------------------------- poolers


@pytest.mark.slow
@pytest.mark.parametrize("is_strict", [True, False])
async def test_a_pooler_in_transaction_mode_changes_nothing(
    postgres: Server, tenant: str, tmp_path: Path, is_strict: bool
) -> None:
    """Each transaction has another connection that remembers nothing: two writers and a reader, who looks once a second."""
    user, name = f"p{tenant}", f"p{tenant}"
    postgres.sql(f"CREATE ROLE {user} LOGIN")
    postgres.sql(f'CREATE DATABASE "{name}" OWNER {user}')  # for this user, row-level security holds

    async def faults(run: Campaign) -> None:
        await run.more(60)

    async with pooling(postgres.database(name, user), is_strict=is_strict) as url:
        report = await Campaign(url, tenant, tmp_path).run(faults)
    assert report.breaches == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    "check", ["a_tail_is_live", "a_thread_of_a_living_host_is_nobody_elses", "large_media_comes_back_identical"]
)
async def test_a_ledger_behind_a_pooler_keeps_its_promises(postgres: Server, tenant: str, check: str) -> None:
    async with pooling(postgres.url) as url:
        await check_ledger(lambda name: PostgresLedger.open(url, tenant=tenant), only=check)


@pytest.mark.slow
async def test_readers_that_hear_nothing_look_once_a_second(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without LISTEN, a message of another process is seen within about a second."""
    monkeypatch.setattr(ProcessHints, "listen", lambda self: None)
    async with PostgresLedger.open(postgres.url, tenant=tenant) as reader:
        seen: asyncio.Future[float] = asyncio.get_running_loop().create_future()

        async def follow() -> None:
            async for _ in reader.tail():
                seen.set_result(asyncio.get_running_loop().time())
                return

        following = asyncio.create_task(follow())
        await asyncio.sleep(0.1)
        async with PostgresLedger.open(postgres.url, tenant=tenant) as writer:
            await writer.append("t", [said()])
            began = asyncio.get_running_loop().time()
        async with asyncio.timeout(30):
            assert await seen - began < 10
        await following


@pytest.mark.slow
async def test_f7_a_host_learns_of_threads_of_a_take_whose_answer_is_lost(
    postgres: Server, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F7, G16: the commit was executed and its answer cut off. A thread unknown to its host would never run."""
    host, attempts = Host("h", "1", ("agent",)), itertools.count(1)
    async with cutting(postgres.url) as (url, cuts), open_ledger(url, tenant=tenant, signals="off") as ledger:

        def cut_at_the_commit(session: Session) -> None:
            if next(attempts) == 1:
                cuts.arm(1, is_answered=True)

        _after_verb(monkeypatch, "take", cut_at_the_commit)
        await ledger.beat(host)
        for name in "abc":
            await ledger.post(name, called(to=("agent/1",), lane="control"))
        taken = await ledger.take(host, limit=2)
        assert [each.thread_id for each in taken] == ["a", "b"]
        assert (cuts.landed, next(attempts)) == (1, 3)
        assert {each.thread_id for each in (await ledger.threads(ThreadFilter(owner="h"))).threads} == {"a", "b"}
        for each in taken:
            await ledger.append(each.thread_id, [said("mine")], epoch=each.epoch)


@pytest.mark.slow
async def test_a_host_that_is_forgotten_while_it_waits_for_a_thread_does_not_get_it(postgres: Server, tenant: str) -> None:
    """G16: it waits for the row of the thread until its lease is over. As owner without a row it could never be succeeded."""
    host, other = Host("h", "1", ("agent",)), Host("g", "1", ("agent",))
    async with (
        open_ledger(postgres.url, tenant=tenant) as ledger,
        open_ledger(postgres.url, tenant=tenant) as elsewhere,
        _connected(postgres.url) as connection,
    ):
        await ledger.post("t", called(to=("agent/1",), lane="control"))
        await ledger.beat(host)
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM antiphon.threads WHERE tenant = $1 FOR UPDATE", tenant)
            own = await connection.fetchval("SELECT pg_backend_pid()")
            claiming = asyncio.ensure_future(ledger.claim("t", by=host))
            async with asyncio.timeout(WITHIN):
                waits = "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))"
                while not await connection.fetchval(waits, own):  # noqa: ASYNC110 (the server decides)
                    await asyncio.sleep(0.01)
            await elsewhere.leave(host)  # as when its lease has ended: its row is removed, because it owns no thread
        with pytest.raises(errors.HostError, match="does not know this process"):
            await claiming
        await elsewhere.beat(other)
        assert [each.thread_id for each in await elsewhere.take(other)] == ["t"]
