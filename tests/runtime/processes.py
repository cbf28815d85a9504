"""Real processes that run threads, for tests that kill them: see `worker.py`."""

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests import forked

WORKER = Path(__file__).parent / "worker.py"


class Processes:
    """One process after the other, each on the ledger of a folder."""

    def __init__(self, worker: Path = WORKER) -> None:
        self._worker = worker

    def __enter__(self) -> Self:
        self._server = forked.start(
            self._worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._said: list[str] = []
        self._pid: int | None = None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.kill()
        self._server.communicate()

    def start(self, folder: Path, place: str = "") -> int:
        """Begin a process, and return its id."""
        assert self._server.stdin is not None
        if self._pid is not None:  # of a test that has failed
            self.signal(self._pid, signal.SIGKILL)
            self.end()
        self._said = []
        self._server.stdin.write(f"{folder / 'ledger.db'}\t{folder / 'witness'}\t{place}\n")
        self._server.stdin.flush()
        self._pid = int(self._hear("pid ").removeprefix("pid "))
        return self._pid

    def wait_for(self, word: str) -> None:
        """Wait until the process has said a word, or has ended."""
        self._hear(word, "ended ")

    def signal(self, pid: int, number: int) -> None:
        """Send a signal, if the process is still there."""
        with suppress(ProcessLookupError):
            os.kill(pid, number)

    def end(self) -> int:
        """Wait until the process has ended, and return its exit code."""
        ended = [line for line in self._said if line.startswith("ended ")]
        code = int((ended or [self._hear("ended ")])[0].removeprefix("ended "))
        self._pid = None
        assert code != 1, "\n".join(self._said)
        return code

    def run(self, folder: Path, place: str = "") -> int:
        """Let a process live, and return its exit code."""
        self.start(folder, place)
        return self.end()

    def _hear(self, *beginnings: str) -> str:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            self._said.append(line.rstrip("\n"))
            if line.startswith(beginnings):
                return self._said[-1]
        raise AssertionError("\n".join(self._said))
