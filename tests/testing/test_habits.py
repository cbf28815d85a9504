"""What every test relies on: `conftest.py`."""

import asyncio
import signal
import subprocess

import pytest
from tests.children import have_children_handle_signals
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
