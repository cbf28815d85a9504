"""antiphon: a ledger on SQLite, through its public functions; messages are there as values and are written by `append`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from antiphon import Conversation, Message
from antiphon.ledger import Ledger, Record, open_ledger, replay
from benchmarks._messages import Case, Said
from benchmarks.peers.antiphon_ import construct

__all__ = ["AntiphonStore", "messages_of"]


def messages_of(said: Sequence[Said]) -> list[Message]:
    """Make the messages of a conversation."""
    return construct(Case("talk", tuple(said), is_stream=True))


class AntiphonStore:
    """A ledger in a file."""

    def __init__(self, folder: Path, said: Sequence[Said]) -> None:
        self._said = said
        self._messages = messages_of(said)
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.ledger: Ledger = self._runner.run(self._open(f"sqlite:///{folder}/ledger.db"))

    async def _open(self, url: str) -> Ledger:
        return await self._stack.enter_async_context(open_ledger(url))

    def begin(self, threads: Sequence[str]) -> None:
        pass

    def append(self, thread: str, first: int, last: int) -> None:
        self._runner.run(self._append(thread, self._messages[first:last]))

    async def _append(self, thread: str, messages: Sequence[Message]) -> None:
        for message in messages:
            await self.ledger.append(thread, (message,))

    def append_together(self, threads: Sequence[str], count: int) -> None:
        self._runner.run(self._together(threads, count))

    async def _together(self, threads: Sequence[str], count: int) -> None:
        await asyncio.gather(*(self._append(thread, self._messages[:count]) for thread in threads))

    def make_together(self, threads: Sequence[str], count: int) -> None:
        """Append the same, and make every message from plain values first."""
        self._runner.run(self._made(threads, count))

    async def _made(self, threads: Sequence[str], count: int) -> None:
        await asyncio.gather(*(self._append(thread, messages_of(self._said[:count])) for thread in threads))

    def fill(self, thread: str, count: int) -> None:
        self._runner.run(self._fill(thread, count))

    async def _fill(self, thread: str, count: int) -> None:
        await self.ledger.append(thread, self._messages[:count])

    def read(self, thread: str) -> list[Record]:
        return self._runner.run(self._read(thread))

    async def _read(self, thread: str) -> list[Record]:
        return [record async for record in self.ledger.read(thread)]

    def replay(self, thread: str) -> Conversation:
        """Read a thread as messages, every one of them looked at."""
        return self._runner.run(self._replay(thread))

    async def _replay(self, thread: str) -> Conversation:
        return await replay(self.ledger, thread)

    def index(self) -> None:
        """Have the search index made."""
        self._runner.run(self._index())

    async def _index(self) -> None:
        await self.ledger.search("ferry")

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()
