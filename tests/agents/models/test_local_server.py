"""The server of the local model: started when needed, watched, started again, and never left behind."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from antiphon.agents.models._local_server import LocalServer, shared_server
from antiphon.errors import LocalModelError, MissingExtraError

pytestmark = pytest.mark.slow

PATIENCE = 30.0


def program(does: str) -> LocalServer:
    """A server whose program is this, after it has been told what to serve."""
    code = f"import os, sys, time\nwanted = sys.stdin.readline()\n{textwrap.dedent(does)}"
    return LocalServer((sys.executable, "-c", code))


WAITS = "print('http://127.0.0.1:1', flush=True)\nsys.stdin.read()"
DIES = "print('http://127.0.0.1:1', flush=True)\nsys.exit('out of memory')"


@contextmanager
def ending(pid: int) -> Iterator[None]:
    """Expect that a process ends because of what is done in the block."""
    handle = os.pidfd_open(pid)
    try:
        yield
        assert select.select([handle], [], [], PATIENCE)[0], "the process goes on"
    finally:
        os.close(handle)


def pid_of(server: LocalServer) -> int:
    assert server.pid is not None
    return server.pid


def wait_for_end(server: LocalServer) -> None:
    with ending(pid_of(server)):
        pass


# ---------------------------------------------------------------- one process after the other


def test_it_is_started_once_for_all_who_need_it() -> None:
    server = program(WAITS)
    assert (server.endpoint, server.pid) == (None, None)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append((server.ensure(), server.pid))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(found)) == 1
    server.stop()


def test_it_is_stopped_and_the_next_one_has_another_key() -> None:
    server = program(WAITS)
    first = server.ensure()
    with ending(pid_of(server)):
        server.stop()
    assert server.endpoint is None
    server.stop()  # twice is as good as once

    second = server.ensure()
    assert second.url == first.url
    assert second.key != first.key
    server.stop()


def test_the_key_is_neither_on_the_command_line_nor_in_the_environment() -> None:
    server = program(WAITS)
    key = server.ensure().key.encode()

    for name in ("cmdline", "environ"):
        with open(f"/proc/{server.pid}/{name}", "rb") as file:
            assert key not in file.read()
    server.stop()


def test_it_is_started_again_when_it_has_died() -> None:
    server = program(WAITS)
    server.ensure()
    first = pid_of(server)
    with ending(first):
        os.kill(first, signal.SIGKILL)
    while server.endpoint is not None:  # until the kernel tells the parent too
        pass

    server.ensure()

    assert pid_of(server) != first
    server.stop()


def test_one_that_dies_again_and_again_is_given_up_with_its_last_words() -> None:
    server = program(DIES)
    for _ in range(3):
        server.ensure()
        assert server._process is not None
        server._process.wait()

    with pytest.raises(LocalModelError, match="died 3 times without an answer; its last words: out of memory") as raised:
        server.ensure()
    assert raised.value.retryable
    server.ensure()  # a later try is allowed
    server.stop()


def test_answers_make_a_death_a_first_one() -> None:
    server = program(DIES)
    for _ in range(6):
        server.ensure()
        server.answered()
        assert server._process is not None
        server._process.wait()
    server.stop()


@pytest.mark.parametrize(
    ("does", "words"),
    [
        ("sys.exit('no model here')", "did not start; its last words: no model here"),
        ("os._exit(0)", "did not start; it left no word"),
    ],
)
def test_one_that_does_not_start_says_why(does: str, words: str) -> None:
    with pytest.raises(LocalModelError, match=words):
        program(does).ensure()


def test_one_that_never_gets_ready_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.agents.models._local_server._PATIENCE", 0.05)

    with pytest.raises(LocalModelError, match="did not start"):
        program("sys.stdin.read()").ensure()


def test_one_that_does_not_want_to_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.agents.models._local_server._GRACE", 0.05)
    server = program("print('http://127.0.0.1:1', flush=True)\nsys.stdin.read()\nwhile True: time.sleep(60)")
    server.ensure()

    with ending(pid_of(server)):
        server.stop()


def test_without_its_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    with pytest.raises(MissingExtraError, match="xllamacpp"):
        LocalServer().ensure()


# ---------------------------------------------------------------- the real one

PARENT = """
import os, sys
from antiphon.agents.models._local_server import shared_server
server = shared_server()
url, key = server.ensure()
print(server.pid, url, key, flush=True)
"""


@contextmanager
def parent(does: str) -> Iterator[tuple[subprocess.Popen[bytes], int, str, str]]:
    """A process that starts the real server, says where it is, and then does something else."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-W", "error", "-c", PARENT + textwrap.dedent(does)], **pipes) as process:
        assert process.stdout is not None
        pid, url, key = process.stdout.readline().decode().split()
        yield process, int(pid), url, key


def status(url: str, key: str) -> int:
    body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}).encode()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/chat/completions", body, headers)) as answer:
            return answer.status
    except urllib.error.HTTPError as exc:
        exc.close()
        return exc.code


def test_it_listens_on_this_machine_only_answers_its_key_only_and_ends_with_an_orderly_parent() -> None:
    with parent("sys.stdin.read()") as (process, pid, url, key):
        assert url.startswith("http://127.0.0.1:")
        port = int(url.rpartition(":")[2])
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", port))
        assert (status(url, key), status(url, "another"), status(url, "")) == (200, 401, 401)

        with ending(pid):
            assert process.stdin is not None
            process.stdin.close()
    assert process.returncode == 0


def test_nothing_is_left_behind_when_the_parent_is_killed_though_a_fork_of_it_lives() -> None:
    """SIGKILL: no handler runs. The fork holds the other end of the server's input, and does not keep the server alive."""
    fork = """
    child = os.fork()
    if not child:
        assert server.pid is None  # it is not the fork's to stop
    print(child, flush=True)
    sys.stdin.read()
    """
    with parent(fork) as (process, pid, _, _), ending(pid):  # leaving it closes the input that the fork waits for
        process.send_signal(signal.SIGKILL)
        process.wait()


FORK = """
import gc, os, sys
from antiphon.agents.models._local_server import LocalServer
server = LocalServer((sys.executable, "-c", "input(); print('http://127.0.0.1:1', flush=True); input()"))
os.register_at_fork(after_in_child=server.forget)
server.ensure()
first, fork = server.pid, os.fork()
if not fork:
    gc.collect()
    sys.exit(server.pid is not None)
print(os.waitpid(fork, 0)[1], server.pid == first)
server.stop()
"""


def test_a_fork_lets_go_of_the_server_and_leaves_it_to_its_parent() -> None:
    """Nothing is closed for the parent, and nothing is left open in the fork, which would be a warning."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", FORK], capture_output=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"0 True\n", b"")


def test_the_server_of_a_process_is_one() -> None:
    assert shared_server() is shared_server()
