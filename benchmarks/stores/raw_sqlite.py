"""SQLite and nothing else: bytes that were made before, one table, WAL, synchronous=FULL. The limit of what is possible."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import apsw

from antiphon import dumps
from benchmarks._messages import Said
from benchmarks.stores.antiphon_ import messages_of

__all__ = ["RawStore"]

_INSERT = "INSERT INTO messages (thread, seq, body) VALUES (?, ?, ?)"


class RawStore:
    """A table with a place and bytes."""

    def __init__(self, folder: Path, said: Sequence[Said]) -> None:
        self._bodies = [dumps(message) for message in messages_of(said)]
        self._connection = apsw.Connection(f"{folder}/raw.db")
        self._connection.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE messages (position INTEGER PRIMARY KEY, thread TEXT, seq INTEGER, body BLOB)")
        self._connection.execute("CREATE UNIQUE INDEX messages_by_seq ON messages (thread, seq)")

    def begin(self, threads: Sequence[str]) -> None:
        pass

    def append(self, thread: str, first: int, last: int) -> None:
        for seq in range(first, last):
            self._connection.execute(_INSERT, (thread, seq, self._bodies[seq]))  # a commit of its own

    def append_together(self, threads: Sequence[str], count: int) -> None:
        """Append a message of every thread in each commit: as much as a hundred writers can share."""
        for seq in range(count):
            with self._connection:
                self._connection.executemany(_INSERT, [(thread, seq, self._bodies[seq]) for thread in threads])

    def fill(self, thread: str, count: int) -> None:
        with self._connection:
            self._connection.executemany(_INSERT, [(thread, seq, self._bodies[seq]) for seq in range(count)])

    def read(self, thread: str) -> list[object]:
        return list(self._connection.execute("SELECT seq, body FROM messages WHERE thread = ? ORDER BY seq", (thread,)))

    def close(self) -> None:
        self._connection.close()
