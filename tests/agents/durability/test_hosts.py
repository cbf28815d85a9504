"""Durable runs of several processes on one ledger: one owns a thread, another one only after its end. G8, G15, F13, F14."""

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests import forked

from antiphon import open_ledger
from antiphon.durable import ledger_run
from antiphon.errors import HistoryMismatchError, OwnedError
from antiphon.ledger import Host, Ledger
from antiphon.ledger.memory import MemoryLedger

PROGRAM = Path(__file__).with_name("desk_program.py")


class Program:
    """The program in another process."""

    def __init__(self, folder: Path, heartbeat: float) -> None:
        arguments = f"sqlite:///{folder}/ledger.db", folder / "payments", heartbeat
        self.process = forked.start(PROGRAM, *arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def goes_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


class Folder:
    """A ledger, and the programs that use it."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path = path
        self._stack = stack

    def started(self, heartbeat: float = 2.0) -> Program:
        program = Program(self.path, heartbeat)
        self._stack.callback(program.close)
        return program

    @property
    def payments(self) -> list[str]:
        file = self.path / "payments"
        return file.read_text().splitlines() if file.exists() else []

    async def rows(self) -> list[str]:
        async with open_ledger(f"sqlite:///{self.path}/ledger.db") as ledger:
            return [record.message.id async for record in ledger.read("t")]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with ExitStack() as stack:
        yield Folder(tmp_path, stack)


async def _look(key: str) -> str:
    return "seen"


@pytest.mark.slow
async def test_a_run_in_a_thread_of_another_living_process_is_refused_at_once(folder: Folder) -> None:
    """The first keeps its thread, and ends as if it were alone. Its finished run is then read without a claim."""
    first = folder.started()
    assert first.says() == "open"
    async with open_ledger(f"sqlite:///{folder.path}/ledger.db") as ledger:
        with pytest.raises(OwnedError, match=r"wait until it has ended \(on_busy='join'\), or run in another thread"):
            async with ledger_run("t", id="other", ledger=ledger, on_busy="raise"):
                pass
        summary = await ledger.thread("t")
        assert summary is not None
        assert summary.kind == "run/desk"
        first.goes_on()
        assert first.says() == "paid"
        assert first.process.wait() == 0
        await ledger.claim("t", by=await _living_host(ledger))
        async with ledger_run("t", ledger=ledger) as run:
            assert await run.effect("look", {}, _look) == "seen"


async def _living_host(ledger: Ledger) -> Host:
    host = Host("another", "1")
    await ledger.beat(host)
    return host


@pytest.mark.slow
def test_the_next_process_continues_at_once_after_a_kill(folder: Folder) -> None:
    """Its lease would last for another minute: the ledger sees that the process has ended."""
    first = folder.started(heartbeat=20)
    assert first.says() == "open"
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    second = folder.started(heartbeat=20)
    assert second.says() == "open"
    second.goes_on()
    assert second.says() == "paid"
    assert folder.payments == ["paid"]


@pytest.mark.slow
async def test_a_process_that_slept_past_its_lease_writes_nothing_and_starts_nothing(folder: Folder) -> None:
    """F14: another process took the thread over meanwhile, and has paid."""
    first = folder.started(heartbeat=0.3)
    assert first.says() == "open"
    first.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(1.5)  # the lease is three beats
    second = folder.started(heartbeat=0.3)
    assert second.says() == "open"
    second.goes_on()
    assert second.says() == "paid"
    assert second.process.wait() == 0
    rows = await folder.rows()
    first.process.send_signal(signal.SIGCONT)
    first.goes_on()
    assert first.says() == "FencedError"
    assert first.process.wait() == 0
    assert await folder.rows() == rows
    assert folder.payments == ["paid"]


async def test_the_runs_of_a_process_are_one_host_that_leaves_with_the_last_of_them() -> None:
    ledger, tasks = MemoryLedger(), asyncio.all_tasks()
    async with ledger_run("a", ledger=ledger, name="one") as run:
        await run.effect("look", {}, _look)
        async with ledger_run("b", ledger=ledger, name="two") as other:
            await other.effect("look", {}, _look)
            (host,) = await ledger.hosts()
            assert host.threads == 2
        (host,) = await ledger.hosts()
        assert host.is_alive
        assert host.threads == 1
    assert not [each for each in await ledger.hosts() if each.is_alive]
    assert asyncio.all_tasks() == tasks
    summaries = {each.thread_id: each.kind for each in (await ledger.threads()).threads}
    assert summaries == {"a": "run/one", "b": "run/two"}


class SlowToLeave(MemoryLedger):
    """A ledger that takes a while to end a host."""

    def __init__(self) -> None:
        super().__init__()
        self.is_leaving = asyncio.Event()

    async def leave(self, host: Host) -> None:
        self.is_leaving.set()
        await asyncio.sleep(0.02)
        await super().leave(host)


async def test_a_run_that_opens_while_the_last_one_leaves_keeps_its_thread() -> None:
    """A leaving host frees all its threads, but not one that is claimed meanwhile."""
    ledger = SlowToLeave()

    async def work(id: str) -> None:
        async with ledger_run("t", id=id, ledger=ledger) as run:
            await run.effect("look", {}, _look)

    first = asyncio.create_task(work("first"))
    await ledger.is_leaving.wait()
    await asyncio.gather(first, work("second"))
    assert not await ledger.open_calls("t")


async def test_a_run_that_this_program_cannot_continue_is_stopped_until_another_program_can() -> None:
    ledger = MemoryLedger()

    async def work(amount: int, *, ends: bool) -> None:
        async with ledger_run("t", ledger=ledger) as run:
            await run.effect("pay", {"amount": amount}, _look)
            if not ends:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await work(1, ends=False)
    with pytest.raises(HistoryMismatchError):
        await work(2, ends=True)
    summary = await ledger.thread("t")
    assert summary is not None
    assert (summary.status, summary.owner) == ("stopped", None)
    (unfit,) = summary.unfit
    assert unfit.reason.startswith("HISTORY_MISMATCH: the handler does 'pay' otherwise than thread 't' says")
    await work(1, ends=True)
    summary = await ledger.thread("t")
    assert summary is not None
    assert (summary.status, summary.unfit) == ("completed", ())
