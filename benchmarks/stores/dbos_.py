"""DBOS: a workflow with a step a message, which is how it makes things durable; in its SQLite file, journal_mode=delete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSConfig

from benchmarks._messages import Said, as_text

__all__ = ["DbosStore"]


class DbosStore:
    """The one DBOS that a process can have."""

    def __init__(self, folder: Path, said: Sequence[Said]) -> None:
        contents = [as_text(each["content"]) for each in said]
        config: DBOSConfig = {
            "name": "benchmark",
            "system_database_url": f"sqlite:///{folder}/dbos.db",
            "log_level": "ERROR",
        }
        DBOS(config=config)

        @DBOS.step()
        def say(number: int) -> Any:
            return contents[number]

        @DBOS.workflow()
        def talk(first: int, last: int) -> None:
            for number in range(first, last):
                say(number)

        DBOS.launch()
        self._talk = talk

    def begin(self, threads: Sequence[str]) -> None:
        pass

    def append(self, thread: str, first: int, last: int) -> None:
        """Run a workflow; the thread is DBOS's own."""
        self._talk(first, last)

    def fill(self, thread: str, count: int) -> None:
        self._talk(0, count)

    def read(self, thread: str) -> object:
        raise NotImplementedError("a workflow is recovered, not read")

    def close(self) -> None:
        DBOS.destroy()
