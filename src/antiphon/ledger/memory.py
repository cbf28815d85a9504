"""MemoryLedger: SQLite in memory, by the same statements as in a file, without a thread.

No method awaits between its statements, so every change is atomic. The messages are lost when the process ends.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from antiphon.ledger._encryption import Keyring, Mastering
from antiphon.ledger._hosts import Host, LeaseClock, LoopClock
from antiphon.ledger._redaction import LedgerRedaction, Redacting
from antiphon.ledger._signals import CommitSignal
from antiphon.ledger.sqlite._connection import InlineReader, LedgerFile, in_memory
from antiphon.ledger.sqlite._ledger import SqliteStore
from antiphon.ledger.sqlite._writer import InlineWriter

__all__ = ["MemoryLedger"]


class MemoryLedger(SqliteStore):
    """A ledger that lives as long as its process."""

    def __init__(self, *, redaction: Redacting = None, clock: LeaseClock | None = None, master_key: Mastering = None) -> None:
        place = LedgerFile(":memory:", 0.0, keyring=Keyring.of(master_key), clock=LoopClock() if clock is None else clock)
        connection, commits = in_memory(place), CommitSignal()
        writer = InlineWriter(place, connection, commits.notify)
        super().__init__(LedgerRedaction.of(redaction), place.keyring, InlineReader(connection), writer, commits)

    @classmethod
    @asynccontextmanager
    async def open(cls, *, redaction: Redacting = None, master_key: Mastering = None) -> AsyncGenerator[MemoryLedger, None]:
        """Open an empty ledger; `redaction` is by default `STANDARD_REDACTION`."""
        yield cls(redaction=redaction, master_key=master_key)

    def renew(self, host: Host) -> bool:
        """Return False: the hosts of this ledger share its event loop, so none of them runs while it is blocked."""
        return False

    async def backup(self, path: str | Path) -> None:
        raise ValueError(f"a ledger in memory has no file to copy to {str(path)!r}; open one of sqlite:///")
