"""What every test relies on: `conftest.py`."""

import asyncio
import importlib
import signal
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from tests.children import have_children_handle_signals
from tests.clock import share_imports, shared_work, used
from tests.loops import run

from antiphon.messages import current_port


def test_a_child_can_be_interrupted_also_where_the_tests_run_in_the_background() -> None:
    """A shell without job control starts its background jobs with SIGINT ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        have_children_handle_signals()
        done = subprocess.run(["/bin/sh", "-c", "kill -INT $$; echo still here"], capture_output=True, check=False)
    finally:
        signal.signal(signal.SIGINT, before)

    assert (done.returncode, done.stdout) == (-signal.SIGINT, b"")


def test_a_child_of_this_run_can_be_interrupted() -> None:
    done = subprocess.run(["/bin/sh", "-c", "kill -INT $$; echo still here"], capture_output=True, check=False)

    assert (done.returncode, done.stdout) == (-signal.SIGINT, b"")


@pytest.mark.slow
def test_a_run_in_the_background_starts_children_that_can_be_interrupted() -> None:
    """The test above, in a run of its own that begins with SIGINT ignored: `conftest.py` must have seen to it."""
    test = f"{__file__}::{test_a_child_of_this_run_can_be_interrupted.__name__}"
    pytest_here = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", test]
    shell = ["/bin/sh", "-c", 'trap "" INT; exec "$@"', "sh", *pytest_here]
    done = subprocess.run(shell, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, timeout=120)

    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_a_task_that_is_left_over_fails_its_test() -> None:
    tasks: list[asyncio.Task[None]] = []

    async def careless() -> None:
        tasks.append(asyncio.create_task(asyncio.sleep(60)))

    with pytest.raises(AssertionError):
        run(careless())


async def test_an_async_test_is_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    assert tmp_path_factory
    assert asyncio.current_task() is not None


@pytest.mark.virtual_time
async def test_in_virtual_time_nobody_really_waits() -> None:
    began = current_port().now()
    await asyncio.sleep(3600)

    assert (current_port().now() - began).total_seconds() >= 3600


def _work(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


@pytest.mark.slow
def test_shared_work_counts_for_no_test_and_all_other_work_does() -> None:
    began = used()
    with shared_work():
        _work(0.03)
        with shared_work():  # the inner block must not be taken off twice
            _work(0.03)
    shared = used() - began
    _work(0.06)

    assert 0 <= shared < 0.03
    assert used() - began - shared >= 0.06


@pytest.fixture(scope="module")
def wide() -> float:
    _work(0.06)
    return used()


@pytest.fixture
def narrow(wide: float) -> float:
    _work(0.06)
    return used()


@pytest.mark.slow
def test_a_fixture_of_many_tests_is_shared_work_and_one_of_this_test_is_not(wide: float, narrow: float) -> None:
    """The clock runs on within `wide`, and is set back when `wide` is ready."""
    assert narrow - wide < 0.06 <= used() - (wide - 0.06)


@pytest.mark.slow
def test_the_first_import_of_a_module_is_shared_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(SourceFileLoader, "exec_module", SourceFileLoader.exec_module)  # put back after the test
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "takes_long_to_import.py").write_text(
        "import time\nwhile time.process_time() < END: pass\n".replace("END", repr(time.process_time() + 0.2))
    )
    share_imports()

    began = used()
    spent = time.process_time()
    importlib.import_module("takes_long_to_import")

    assert used() - began < 0.1 < time.process_time() - spent
