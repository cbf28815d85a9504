"""LocalServer: the local model's server process.

It starts when it is first needed, restarts when it has died, and stops with this process.

A server belongs to the process that started it. It listens only on the loopback address, on a free port, and answers only
requests with its key, which is random and known only to this process.
"""

from __future__ import annotations

import atexit
import json
import os
import secrets  # noqa: TID251 (a key must be secret, whatever port a test or a replay brings)
import subprocess
import sys
import threading
from functools import cache
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from antiphon.agents.models._weights import find_weights
from antiphon.errors import LocalServerError, MissingExtraError

MODEL_NAME = "smollm2-135m-instruct"
CONTEXT = 2048
"""Tokens of a conversation with the pinned model, question and answer together."""
OWN_CONTEXT = 8192
"""The same, with weights of the user."""
SLOTS = 4
"""Requests that are processed at the same time; others wait."""
OWN_SLOTS = 2
"""The same, with weights of the user: each slot takes memory for its context."""

_HERE = Path(__file__).parent
_PROGRAM = _HERE / "_local_program.py"
_PATIENCE = 60.0
"""The time limit of a start in seconds; usually it takes half a second."""
_GRACE = 5.0
"""The time limit of a shutdown in seconds; usually it is immediate."""
_WELL = 2.0
"""The time limit of a health check in seconds. The server answers it while it processes requests."""
_MOST_STARTS = 3
"""The number of starts without an answer in between, after which it is not started again."""


_SAID = 10_000
"""The number of bytes of the log that are searched for its last lines."""
_SILENT = "it left no word"


class Endpoint(NamedTuple):
    """The address and the key of a server."""

    url: str
    key: str


class LocalServer:
    """One server process, which is replaced when it dies. Thread-safe."""

    def __init__(
        self, command: tuple[str, ...] = (sys.executable, "-P", str(_PROGRAM)), *, weights: Path | None = None
    ) -> None:
        """Make it; nothing is started yet. `weights` is a GGUF file of the user; without it, the pinned model is served."""
        self._command = command
        self.weights = weights
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._endpoint: Endpoint | None = None
        self._starts = 0
        self._words = _SILENT

    @property
    def model_name(self) -> str:
        """The name of the model that is served."""
        return MODEL_NAME if self.weights is None else self.weights.stem

    @property
    def endpoint(self) -> Endpoint | None:
        """The endpoint of the server; None if it is not running."""
        return None if self.pid is None else self._endpoint

    @property
    def pid(self) -> int | None:
        """The process id of the server; None if it is not running."""
        process = self._process  # another thread may reset it
        return None if process is None or process.poll() is not None else process.pid

    def ensure(self) -> Endpoint:
        """Return the endpoint of the server; start it if it is not running. Blocks: call it in a thread.

        Raises:
            LocalServerError: it does not start, or has died several times without an answer.
            MissingExtraError: the package that serves the model is not installed.
            WeightsError: there is no model to serve.
        """
        with self._lock:
            found = self.endpoint
            if found is None:
                self._clear()
                found = self._endpoint = self._start()
            return found

    def is_lost(self, endpoint: Endpoint) -> bool:
        """Whether a server has died or does not answer. If so, it is stopped, and the next request starts another."""
        with self._lock:
            process = self._process
            if endpoint != self._endpoint:
                return True  # another thread was first
            if self.endpoint is not None and _is_well(endpoint):
                return False
            if process is not None:
                process.kill()  # its grace is over
            self._clear()
            return True

    def answered(self) -> None:
        """Note that the server has answered, so that the count of starts is reset."""
        self._starts = 0

    def stop(self) -> None:
        """End the server, if it is running. The next request starts another."""
        with self._lock:
            self._clear()
            self._starts = 0

    def _start(self) -> Endpoint:
        check_packages()
        if self._starts >= _MOST_STARTS:
            self._starts = 0  # a later call may try again
            raise LocalServerError(f"its server has died {_MOST_STARTS} times without an answer; {self._words}", "local")
        wanted = _wanted_of_pinned(find_weights()) if self.weights is None else _wanted_of_own(self.weights)
        self._starts += 1
        key = secrets.token_urlsafe(32)
        self._log = TemporaryFile(prefix="antiphon-local-")  # noqa: SIM115 (as long as the process)
        self._process = subprocess.Popen(  # noqa: S603 (ours)
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # this process handles keyboard interrupts
        )
        url = self._greet(self._process, json.dumps({**wanted, "name": self.model_name, "key": key}).encode() + b"\n")
        if not url:
            self._clear()
            raise LocalServerError(f"its server did not start; {self._words}", "local")
        return Endpoint(url, key)

    def _greet(self, process: subprocess.Popen[bytes], wanted: bytes) -> str:
        """Send a server its parameters, and return its address; None if it has died or taken too long."""
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018, S101 (both are pipes)
        too_late = threading.Timer(_PATIENCE, process.kill)
        too_late.start()
        try:
            process.stdin.write(wanted)
            process.stdin.flush()
            return process.stdout.readline().decode().strip()
        except BrokenPipeError:
            return ""
        finally:
            too_late.cancel()

    def _clear(self) -> None:
        process, log = self._process, self._log
        self._process = self._log = self._endpoint = None
        if process is not None:
            _end(process)
        if log is not None:
            self._words = _last_words(log)
            log.close()

    def forget(self) -> None:
        """Forget a server without stopping it: it belongs to the parent of this forked process."""
        if self._process is not None:
            _close_pipes(self._process)
            self._process.returncode = 0  # it is not a child of this process
        if self._log is not None:
            self._log.close()
        LocalServer.__init__(self, self._command, weights=self.weights)


def _is_well(endpoint: Endpoint) -> bool:
    where = urlsplit(endpoint.url)
    connection = HTTPConnection(where.hostname or "", where.port, timeout=_WELL)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _last_words(log: IO[bytes]) -> str:
    """Return the last lines of a server's log."""
    log.seek(max(log.seek(0, os.SEEK_END) - _SAID, 0))
    last = log.read().decode(errors="replace").strip().splitlines()[-3:]
    return "its last words: " + " / ".join(last) if last else _SILENT


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    _close_pipes(process)  # closing it stops the server
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wanted_of_pinned(weights: Path) -> dict[str, Any]:
    """Return the parameters of the server of the pinned model.

    It uses one thread: several threads on busy cores are far slower.
    """
    template = (_HERE / "local_template.jinja").read_text()
    return {"weights": str(weights), "template": template, "slots": SLOTS, "context": CONTEXT, "threads": 1}


def _wanted_of_own(weights: Path) -> dict[str, Any]:
    """Return the parameters of the server of a user's model: its own template, and all cores except one."""
    threads = max(1, (os.cpu_count() or 1) - 1)
    return {"weights": str(weights), "template": None, "slots": OWN_SLOTS, "context": OWN_CONTEXT, "threads": threads}


def check_packages() -> None:
    """Check that the packages of the local model are installed.

    Raises:
        MissingExtraError: a package is missing.
    """
    missing = [name for name in ("openai", "xllamacpp") if find_spec(name) is None]
    if missing:
        install = 'pip install "antiphon[local]"'
        raise MissingExtraError(f"it needs {' and '.join(missing)}: {install}", "local", install)


@cache
def shared_server(weights: Path | None = None) -> LocalServer:
    """Return the shared server of this process for these weights; without weights, the one of the pinned model."""
    server = LocalServer(weights=weights)
    atexit.register(server.stop)
    os.register_at_fork(after_in_child=server.forget)
    return server
