"""Following threads: records as they are committed, and live text of agents (*words*).

Records come from the ledger's `tail`, whichever process writes them. They are read on demand, so a slow reader costs no memory
and misses none. Words are not recorded: the process that runs a thread passes them to listeners. A reader keeps the latest
`most` pieces; older pieces are dropped, and the next one has their number.

A reader that was disconnected continues from its last cursor, without gaps and without repetitions. Words have no cursor.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from antiphon.errors import AppendRefusedError, LedgerUnavailableError, PlaceError
from antiphon.ledger import Log, Record, Tailed
from antiphon.ledger._listing import cursor_order
from antiphon.messages import RUNTIME_POLICY, DataPart, Message, PartsPayload, current_port
from antiphon.service._threads import find_thread

if TYPE_CHECKING:
    from antiphon.patterns.postchain import ChainEvent, PostChain

MOST_DELTAS: Final = 256
"""Pieces of text that are kept for a reader. A model streams about 50 a second."""

OnText: TypeAlias = "Callable[[TextDelta], None]"
"""A function that takes a piece of text. It returns at once."""
TextSource: TypeAlias = "Callable[[str, OnText], AbstractAsyncContextManager[None]]"
"""Returns, for a thread and a function, a block in which the function gets the words of the thread."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of streamed text of an agent. It is not recorded; the complete message will be."""

    speaker: str
    text: str
    missed: int = 0
    """How many pieces before this one were dropped, because a reader was slow."""


@dataclass(frozen=True, slots=True)
class Followed:
    """The next item for a reader: a record or words, never both."""

    cursor: str | None
    """Give it as `after` to continue. With words it is the cursor of the last record; None if there was none."""
    record: Record | None = None
    delta: TextDelta | None = None


async def follow(
    ledger: Log,
    thread_id: str | None = None,
    after: str | None = None,
    *,
    live_text: TextSource | None = None,
    most: int = MOST_DELTAS,
) -> AsyncIterator[Followed]:
    """Yield the records of all threads, or of one, from a cursor on; then new ones, until the caller stops.

    Without `after` it starts at the beginning; `await ledger.horizon()` is the cursor of the present. With `live_text` (see
    `ThreadText`) and a thread, live text comes between the records; records have priority.

    Raises:
        PlaceError: `after` is not a cursor of this ledger.
    """
    if thread_id is not None:
        await find_thread(ledger, thread_id)
    queue = TextQueue(most)
    listening = nullcontext() if live_text is None or thread_id is None else live_text(thread_id, queue.put)
    async with listening:
        # The head is read after the listening started: so each word belongs to a message after this head.
        stored = 0 if live_text is None or thread_id is None or after is not None else (await ledger.head(thread_id)).seq
        # Closed with this generator, and not by the garbage collector: the ledger may be closed by then.
        async with aclosing(_merged(ledger, thread_id, after, queue, stored)) as merged:
            async for item in merged:
                yield item


# ---------------------------------------------------------------- cursors that leave the process

IDENTITY_THREAD: Final = "system/identity"


class EventCursors:
    """Cursors for readers in other processes: they include the ledger that they belong to.

    The cursor of a ledger is a place in the order of its commits, so a cursor of another ledger looks the same and means other
    records. The name of a ledger is one random message in `system/identity`. A copy of the file has the same name: there, a
    cursor behind the last commit is refused.
    """

    def __init__(self, ledger: Log, name: str) -> None:
        self._ledger = ledger
        self.name = name
        """The name of the ledger."""

    @classmethod
    async def of(cls, ledger: Log) -> EventCursors:
        """Return the cursors of a ledger; the first time, the ledger gets its name."""
        if (await ledger.head(IDENTITY_THREAD)).seq == 0:
            part = DataPart(data={"name": current_port().new_id()})
            named = Message(id="name", policy=RUNTIME_POLICY, lane="control", payload=PartsPayload(parts=(part,)))
            with suppress(AppendRefusedError):  # another process was faster, and its name counts
                await ledger.append(IDENTITY_THREAD, [named], pattern="system")
        async for record in ledger.read(IDENTITY_THREAD, before=2):
            return cls(ledger, record.hash[:12])
        raise LedgerUnavailableError("the ledger has no name; try again", IDENTITY_THREAD)

    def write(self, cursor: str) -> str:
        """Return a cursor of this ledger, with its name."""
        return f"{self.name}-{cursor}"

    async def read(self, text: str) -> str:
        """Return the cursor of a text that `write` returned."""
        name, _, cursor = text.partition("-")
        if name != self.name or not _PLACE.fullmatch(cursor):
            raise PlaceError("it is no cursor of this ledger; start from the beginning, or from now")
        if cursor_order(cursor) > cursor_order(await self._ledger.horizon()):
            raise PlaceError("the cursor is behind the end of this ledger, which is an older copy; start from the beginning")
        return cursor


_PLACE: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18}){0,2}", re.ASCII)


async def _merged(
    ledger: Log, thread_id: str | None, after: str | None, queue: TextQueue, stored: int
) -> AsyncGenerator[Followed]:
    cursor = after
    # An iterator in the contract, a generator in fact: it must be closed before the ledger is.
    async with aclosing(cast("AsyncGenerator[Tailed, None]", ledger.tail(after, thread_id=thread_id))) as tail:
        coming = asyncio.ensure_future(anext(tail))
        try:
            while True:
                if stored:
                    await asyncio.wait((coming,))
                else:
                    await queue.or_until(coming)
                if coming.done():
                    try:
                        tailed = coming.result()
                    except ValueError as exc:
                        raise PlaceError(str(exc)) from exc
                    coming = asyncio.ensure_future(anext(tail))
                    cursor, stored = tailed.cursor, stored if tailed.record.seq < stored else 0
                    yield Followed(cursor, record=tailed.record)
                else:
                    yield Followed(cursor, delta=queue.take())
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)  # a generator that runs cannot be closed


class TextQueue:
    """The latest words, for one reader."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._pieces: deque[TextDelta] = deque()
        self._missed = 0
        self._arrival: asyncio.Future[None] | None = None

    def put(self, words: TextDelta) -> None:
        """Add words. If the queue is full, the oldest are dropped."""
        if len(self._pieces) == self._most:
            self._missed += 1 + self._pieces.popleft().missed
        self._pieces.append(words)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    def take(self) -> TextDelta:
        """Return the oldest words; there must be some."""
        words = self._pieces.popleft()
        missed, self._missed = self._missed, 0
        return replace(words, missed=words.missed + missed) if missed else words

    async def or_until(self, coming: asyncio.Future[Any]) -> None:
        """Wait until there are words, or something else is done."""
        if not self._pieces and not coming.done():
            self._arrival = asyncio.get_running_loop().create_future()
            await asyncio.wait((coming, self._arrival), return_when=asyncio.FIRST_COMPLETED)


def chain_text(chain: PostChain) -> TextSource:
    """Return the words of threads that a `PostChain` of this process runs."""

    @asynccontextmanager
    async def listening(thread_id: str, on_text: OnText) -> AsyncGenerator[None]:
        def take(event: ChainEvent) -> None:
            if event.kind == "text":
                on_text(TextDelta(event.phase or "", event.text))

        with chain.listening(thread_id, take):
            yield

    return listening
