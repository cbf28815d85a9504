"""Asks in threads: each is two rows, the call and its result, and each row is on the disk before anything follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from antiphon import Message
from antiphon.ledger import Record, open_ledger
from antiphon.runtime import Settings, System
from benchmarks.actors.antiphon_ import QUESTION, Worker
from benchmarks.stores.raw_sqlite import RawStore

__all__ = ["DurableAsks", "RawRows"]

_SETTLING = 10_000
"""Rows that are written before anything is measured: until a log has its full size, every wait for the disk is longer."""


class DurableAsks:
    """A system with its ledger in a file, and an actor for each thread."""

    def __init__(self, folder: Path) -> None:
        self._stack = AsyncExitStack()
        self._runner = asyncio.Runner()
        self._runner.run(self._open(f"sqlite:///{folder}/ledger.db"))
        self.converse([f"settling-{number}" for number in range(100)], _SETTLING // 200)

    async def _open(self, url: str) -> None:
        self._ledger = await self._stack.enter_async_context(open_ledger(url))
        self._system = await self._stack.enter_async_context(System(self._ledger, settings=Settings(block_limit=None)))
        self._system.register("worker", Worker)

    def converse(self, threads: Sequence[str], asks: int) -> None:
        """Have a client for each thread, all at once, that asks so many times in it, one after the other."""
        self._runner.run(self._converse(threads, asks))

    async def _converse(self, threads: Sequence[str], asks: int) -> None:
        await asyncio.gather(*(self._client(thread, asks) for thread in threads))

    async def _client(self, thread: str, asks: int) -> None:
        to = f"worker/{thread.rpartition('-')[2]}"
        for _ in range(asks):
            await self._system.ask(to, QUESTION, thread_id=thread)

    def append(self, threads: Sequence[str], rows: Sequence[Message]) -> None:
        """Append rows to each thread, all threads at once, each row after the one before: the ledger without actors."""
        self._runner.run(self._append(threads, rows))

    async def _append(self, threads: Sequence[str], rows: Sequence[Message]) -> None:
        await asyncio.gather(*(self._writer(thread, rows) for thread in threads))

    async def _writer(self, thread: str, rows: Sequence[Message]) -> None:
        for row in rows:
            await self._ledger.append(thread, (row,))

    def rows(self, asks: int) -> list[Record]:
        """Return the rows of so many asks."""
        self.converse(["rows-0"], asks)
        return self._runner.run(self._read("rows-0"))

    async def _read(self, thread: str) -> list[Record]:
        return [record async for record in self._ledger.read(thread)]

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()


class RawRows(RawStore):
    """The same bytes in one table of SQLite."""

    def __init__(self, folder: Path, rows: Sequence[Record]) -> None:
        super().__init__(folder, ())
        self._bodies = [row.body for row in rows]
        for number in range(_SETTLING // len(rows)):
            self.fill(f"settling-{number}", len(rows))
