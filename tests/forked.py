"""Commands that start at once: processes that are forked from one that has imported everything.

A command in a new process spends more than a second on imports. Hundreds of tests start commands, so one server imports what
they need, once for all workers of a test run, and forks a process for each command. What runs is the same: a real process with
its own arguments, folder, environment, terminal and signals.

`Forked` is a `subprocess.Popen` of `python -m MODULE`, `python -c CODE` or `python FILE`, and `start` one of a program of the
tests. `shell_command` writes a script that does the same for a shell, and `interpreter` one in the place of Python.
`serve_beside` is for a program that changes its rights or its disks: it forks such commands from itself, so that they have
what the program has.
"""

import atexit
import errno
import fcntl
import gc
import inspect
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

ROOT = Path(__file__).parents[1]
_LARGEST = 1 << 17
"""Bytes of a request: an environment and arguments."""
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
_TESTS = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
"""The process whose end is the end of the server."""
_PATH = Path(tempfile.gettempdir()) / f"antiphon-tests-{_RUN[:16]}"
_EXECUTE = list(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]


class Forked(subprocess.Popen[Any]):
    """A process that runs Python, forked from the server; its `pid` is that of the command itself."""

    def _execute_child(self, *given: Any) -> None:
        named = dict(zip(_EXECUTE, given, strict=True))
        arguments = [os.fspath(each) for each in named["args"]]
        assert arguments[0] == sys.executable, arguments
        streams = [
            named[name] if named[name] != -1 else number for number, name in enumerate(("p2cread", "c2pwrite", "errwrite"))
        ]
        self._answers = _connect()
        _send(
            self._answers,
            streams,
            arguments=arguments[1:],
            folder=os.fspath(named["cwd"] or Path.cwd()),
            environment=dict(os.environ if named["env"] is None else named["env"]),
            session=bool(named["start_new_session"]),
        )
        self.pid = int(self._answers.recv(100))
        self._child_created = True
        mine = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(named[name] for name in mine))  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        if flags & os.WNOHANG and not select.select([self._answers], [], [], 0)[0]:
            return 0, 0
        with self._answers:
            return self.pid, int(self._answers.recv(100))

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def start(program: Path, *arguments: object, **more: Any) -> Forked:
    """Start a program of the tests: its own file, with the arguments; what it prints is not buffered."""
    module = ".".join(program.relative_to(ROOT).with_suffix("").parts)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    return Forked([sys.executable, "-m", module, *map(str, arguments)], env=environment, **more)


def run(arguments: Sequence[Any], **more: Any) -> subprocess.CompletedProcess[Any]:
    """Run a command to its end, as `subprocess.run` does, and return what it wrote."""
    given = more.pop("input", None)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Forked(arguments, **pipes, **more) as process:
        try:
            out, err = process.communicate(given)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def shell_command(path: Path, module: str = "antiphon", server: Path | None = None) -> None:
    """Write a script that has the server run a module with the script's arguments and streams; or another server."""
    if server is None:
        _connect().close()  # the server must be there
    _write_script(path, server or _PATH, f"-m {module} ")


def interpreter(path: Path) -> None:
    """Write a script that takes the arguments of Python, for a program that starts others by the name of its interpreter."""
    _connect().close()
    _write_script(path, _PATH)


def _write_script(path: Path, server: Path, words: str = "") -> None:
    script = f"#!/bin/sh\nexec '{sys.executable}' -I -S '{__file__}' run '{server}' {words}\"$@\"\n"
    path.write_text(script, encoding="utf-8")
    path.chmod(0o755)


def serve_beside(path: Path) -> None:
    """Fork a server from this process, which has imported everything; it ends with this process."""
    program = os.getpid()
    listening = _listen(path)
    if not os.fork():
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):  # a reader of the program's streams waits for their end
            os.dup2(nowhere, stream)
        _answer(listening, path, program)
        os._exit(0)
    listening.close()


def _send(server: socket.socket, streams: Sequence[int], **request: Any) -> None:
    socket.send_fds(server, [json.dumps(request).encode()], streams)


def _connect() -> socket.socket:
    """Connect to the server; the first one starts it."""
    with suppress(OSError):
        return _connected()
    with Path(f"{_PATH}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests that run at once start one server
        with suppress(OSError):
            return _connected()
        command = [sys.executable, __file__, "serve", str(_PATH), str(_TESTS)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, cwd=ROOT, start_new_session=True) as server:
            assert server.stdout is not None
            server.stdout.readline()
            server.returncode = 0  # it goes on, and ends when the tests end
    return _connected()


def _connected() -> socket.socket:
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.connect(str(_PATH))
    except OSError:
        server.close()
        raise
    return server


# ---------------------------------------------------------------- the server


def _serve(path: str, tests: int) -> None:
    """Fork a process for each request, until the process of the tests ends."""
    listening = _listen(Path(path))
    _warm()
    os.write(1, b"ready\n")
    os.dup2(2, 1)  # the pipe of its parent is closed
    _answer(listening, Path(path), tests)


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(str(path))
    listening.listen(100)
    return listening


def _answer(listening: socket.socket, path: Path, tests: int) -> None:
    clients: dict[int, tuple[socket.socket, int]] = {}
    """By the descriptor of the process: who asked for it, and its pid."""
    while _lives(tests):
        waiting = [client.fileno() for client, _ in clients.values()]
        ready, _, _ = select.select([*waiting, *clients, listening], [], [], 1)
        for process in [each for each in clients if each in ready]:
            client, pid = clients.pop(process)
            os.close(process)
            with client, suppress(OSError):  # the client may have gone
                client.send(str(os.waitpid(pid, 0)[1]).encode())
        for _, pid in [each for each in clients.values() if each[0].fileno() in ready]:
            os.kill(pid, signal.SIGKILL)  # the client has ended
        if listening in ready:
            _fork(listening, clients)
    for _, pid in clients.values():
        os.kill(pid, signal.SIGKILL)
    path.unlink(missing_ok=True)
    Path(f"{path}.lock").unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as exc:
        return exc.errno == errno.EPERM
    return True


def _warm() -> None:
    """Do what a command would do first: imports, and schemas that are built when they are first used."""
    gc.disable()
    import typer.main
    from typer.testing import CliRunner

    from antiphon.cli import app

    commands = typer.main.get_command(app)
    typer.main.get_command = lambda _: commands  # building all of them takes longer than most of them take to run
    for module in ("mcp.server", "openai.resources.chat", "pydantic_ai.models.openai", "pydantic_ai.providers.openai"):
        import_module(module)
    team = ROOT / "examples" / "analyse_csv" / "team.toml"
    with tempfile.TemporaryDirectory() as folder:
        ledger = ("--ledger", f"sqlite:///{folder}/ledger.db")
        for command in (["run", "hi"], ["run", "hi", "--team", str(team)], ["threads"]):
            model = ("--model", "scripted") if command[0] == "run" else ()
            CliRunner().invoke(app, [*command, *model, *ledger])
    sys.modules.pop("typer.rich_utils", None)  # it reads the environment when it is imported
    gc.collect()
    gc.freeze()
    gc.enable()


def _fork(listening: socket.socket, clients: dict[int, tuple[socket.socket, int]]) -> None:
    """Start a process for the next request."""
    client, _ = listening.accept()
    said, streams, _, _ = socket.recv_fds(client, _LARGEST, 3)
    if not said:  # it only looked whether the server is there
        client.close()
        return
    pid = os.fork()
    if not pid:
        for each in (listening, client, *(other for other, _ in clients.values())):
            each.close()
        for process in clients:
            os.close(process)
        _live(streams, **json.loads(said))
    for stream in streams:
        os.close(stream)
    clients[os.pidfd_open(pid)] = client, pid
    with suppress(OSError):  # the client may have gone
        client.send(str(pid).encode())


def _live(streams: list[int], *, arguments: list[str], folder: str, environment: dict[str, str], session: bool) -> NoReturn:
    """Be the command, as if Python had just started it."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    if session:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # Ctrl-C that is typed there is a signal to the command
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, _not_now)  # until there is a command that could be interrupted
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.path[0] = folder
    sys.path[1:1] = [each for each in environment.get("PYTHONPATH", "").split(":") if each]
    encoding = environment.get("PYTHONIOENCODING", "utf-8")
    is_prompt = os.isatty(1) or "PYTHONUNBUFFERED" in environment
    sys.stdin = open(0, encoding=encoding, closefd=False)  # noqa: SIM115 (for the whole life)
    sys.stdout = sys.__stdout__ = open(1, "w", encoding=encoding, closefd=False, buffering=1 if is_prompt else -1)  # type: ignore[misc]  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", encoding=encoding, closefd=False, buffering=1, errors="backslashreplace")  # type: ignore[misc]  # noqa: SIM115
    os._exit(_run_python(arguments))


def _not_now(*_: object) -> None:
    """Handle a signal that nothing is there for: not ignored, which its children would inherit."""


def _be_main(code: CodeType, file: str | None, arguments: list[str], **more: Any) -> None:
    """Run code as the main module. From here on it can be interrupted, until it has ended."""
    sys.argv = arguments
    sys.modules["__main__"] = main = ModuleType("__main__")
    vars(main).update(more | ({} if file is None else {"__file__": file}))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exec(code, vars(main))


def _run_python(arguments: list[str]) -> int:
    code = 0
    try:
        match arguments:
            case ["-m", module, *rest]:
                _, spec, text = runpy._get_module_details(module)  # type: ignore[attr-defined]
                _be_main(text, spec.origin, [spec.origin, *rest], __spec__=spec, __package__=spec.parent)
            case ["-c", text, *rest]:
                _be_main(compile(text, "<string>", "exec"), None, ["-c", *rest])
            case [file, *rest]:
                sys.path[0] = str(Path(file).parent)
                _be_main(compile(Path(file).read_bytes(), file, "exec"), file, [file, *rest])
            case _:
                raise ValueError(arguments)
        signal.signal(signal.SIGINT, _not_now)
    except SystemExit as exc:
        signal.signal(signal.SIGINT, _not_now)
        code = exc.code if isinstance(exc.code, int) else 0 if exc.code is None else 1
        if code and isinstance(exc.code, str):
            sys.stderr.write(f"{exc.code}\n")
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:  # noqa: BLE001 (as Python does)
        traceback.print_exc()
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        return 120
    return code


# ---------------------------------------------------------------- the command of a shell


def _ask(path: str, *arguments: str) -> int:
    """Have the server run a command with the streams of this process, and return its exit code, or end by its signal."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.connect(path)
    _send(server, (0, 1, 2), arguments=arguments, folder=os.getcwd(), environment=dict(os.environ), session=False)
    pid = int(server.recv(100))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    code = os.waitstatus_to_exitcode(int(server.recv(100)))
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(_ask(*sys.argv[2:]))
