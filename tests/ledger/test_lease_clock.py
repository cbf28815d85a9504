"""The clock of leases on a machine: it knows which processes have ended (F13), and is never wrong about one that has not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from antiphon.ledger._hosts import BootClock, lasts, process_name

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says when a process was started")


def _instance_of(pid: int) -> str:
    """Return the instance of a host in another process, as that process names itself."""
    boot, namespace, _, _ = process_name().split("/")
    started_at = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{boot}/{namespace}/{pid}/{started_at}/id"


def _wait_for_state(pid: int, state: str) -> None:
    until = time.monotonic() + 30
    while (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]) != state:
        assert time.monotonic() < until, f"process {pid} is not in state {state}"
        time.sleep(0.01)


def test_a_process_has_not_ended_while_it_runs_or_is_stopped_and_has_when_it_was_killed() -> None:
    clock = BootClock()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        instance = _instance_of(child.pid)
        assert not clock.has_ended(instance)
        os.kill(child.pid, signal.SIGSTOP)
        assert not clock.has_ended(instance)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert clock.has_ended(instance)  # a zombie: nothing has waited for it yet
        child.wait()
        assert clock.has_ended(instance)


_WITHOUT_MAIN_THREAD = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_has_not_ended_while_one_of_its_threads_runs() -> None:
    """The main thread of a killed process ends first. Until the last one has ended, the process can still write."""
    clock = BootClock()
    with subprocess.Popen([sys.executable, "-c", _WITHOUT_MAIN_THREAD], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            instance = _instance_of(process.pid)
            _wait_for_state(process.pid, "Z")
            assert not clock.has_ended(instance)
        finally:
            process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert clock.has_ended(instance)


def test_this_process_has_not_ended() -> None:
    assert not BootClock().has_ended(f"{process_name()}/id")


def test_a_process_that_got_the_id_of_an_earlier_one_is_not_taken_for_it() -> None:
    boot, namespace, pid, started_at = process_name().split("/")

    assert BootClock().has_ended(f"{boot}/{namespace}/{pid}/{int(started_at) - 1}/id")


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("other", ["", "elsewhere"])
def test_nothing_is_known_of_a_process_of_another_boot_or_container(place: int, other: str) -> None:
    parts = process_name().split("/")
    parts[2] = "999999999"
    parts[place] = other

    assert not BootClock().has_ended("/".join([*parts, "id"]))


@pytest.mark.parametrize("instance", ["dead/1", "x", "a/b/c/d/e", "//1/2/3", "/" * 20])
def test_nothing_is_known_of_an_instance_that_a_program_has_named(instance: str) -> None:
    assert not BootClock().has_ended(instance)


def test_a_clock_goes_on() -> None:
    clock = BootClock()
    before = clock.now()
    time.sleep(0.001)

    assert clock.now() > before


@pytest.mark.parametrize(
    ("ends", "is_alive"),
    [(100.5, True), (106.0, True), (100.0, False), (99.0, False), (200.0, False), (1e9, False)],
)
def test_a_lease_lasts_until_its_end_and_not_if_it_ends_too_far_ahead(ends: float, is_alive: bool) -> None:
    """One of six seconds cannot end in a hundred: the clock began anew, and the lease is of an earlier boot."""
    assert lasts(100.0, ends, 6.0) is is_alive
