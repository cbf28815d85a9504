"""Topics: follow messages of all threads by type and address, from a cursor that the ledger keeps under a name.

**In order, at least once.** Messages of all threads, present and future, arrive in commit order. A message counts as handled
when the next one is requested, or when `commit` is called. The cursor of the handled messages is stored within a second, and
at the end. A subscriber that was killed continues after the stored cursor. So it gets at most the messages of its last second
again, and the one that it was handling; it misses none.

**No queue.** The ledger is read on demand, a page at a time. A slow subscriber delays nobody and keeps nothing in memory.
There is no gap between reading stored messages and following new ones: both use `Ledger.tail`.

**The cursor is a snapshot** of the thread `system/cursor/NAME`, which has no messages. So it needs no table of its own. It has
a hash, which `verify` checks, and an owner: the host of this process (`_lease.py`). While that host lives, a subscriber of
another process with the same name is refused with `OwnedError`. A new subscriber in the same process takes over the cursor,
and the next commit of the old one is refused with `FencedError`. No message of a thread can move the cursor.

`FlowReporter` follows the messages that this process writes: it checks each thread against a flow, and reports the first
message that the flow does not allow.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

from antiphon.errors import (
    FencedError,
    LedgerError,
    LedgerUnavailableError,
    OwnedError,
)
from antiphon.ledger import Fold, replay
from antiphon.ledger._listing import SYSTEM_PATTERN
from antiphon.messages import Json, Lane, Message, OptionCallPayload, OptionResultPayload
from antiphon.protocol._automaton import FlowWatch
from antiphon.protocol.flows import Flow, Verdict
from antiphon.runtime._exchange import response_type
from antiphon.runtime._lease import ProcessHost, process_host
from antiphon.runtime._reporting import warn
from antiphon.runtime._rows import notice_in
from antiphon.runtime._settings import system_thread

if TYPE_CHECKING:
    from antiphon.ledger import Owners, Record, Tailed

Start: TypeAlias = Literal["beginning", "now"]
"""Where a new cursor starts."""

_SOON = 1.0
"""Seconds after which a cursor is stored, so that many messages share one commit."""
_TURN = 1000
"""How many messages are skipped before other tasks run."""


@dataclass(frozen=True, slots=True)
class Topic:
    """Selects the messages that match all its patterns. `*` in a pattern matches any number of characters."""

    type: str = "*"
    """The type in the protocol: for a call its option, for a result the type of the response or `ERROR`, for talk
    `MESSAGE`."""
    sender: str = "*"
    receiver: str = "*"
    """One of its addresses; `*` also matches a message without an address."""
    thread: str = "*"
    lanes: frozenset[Lane] = frozenset({"talk", "control"})
    """The lane `effect` is the journal of the runtime."""

    def fits(self, message: Message) -> bool:
        """Whether a message matches."""
        return (
            message.lane in self.lanes
            and _fits(self.type, type_of(message))
            and _fits(self.sender, message.policy)
            and (self.receiver == "*" or any(_fits(self.receiver, address) for address in message.to))
            and _fits(self.thread, message.thread_id or "")
        )


def type_of(message: Message) -> str:
    """Return the type that a message has in the protocol."""
    match message.payload:
        case OptionCallPayload(option_name=name):
            return name
        case OptionResultPayload(is_error=is_error):
            return "ERROR" if is_error else response_type(message)
        case _:
            notice = notice_in(message)
            return "MESSAGE" if notice is None else notice[0]


def _fits(pattern: str, text: str) -> bool:
    """Whether a text matches a pattern; in linear time, also for hostile texts."""
    first, *others = pattern.split("*")
    if not others or not text.startswith(first):
        return text == pattern
    *middle, last = others
    at = len(first)
    for part in middle:
        place = text.find(part, at)
        if place < 0:
            return False
        at = place + len(part)
    return text.endswith(last) and at + len(last) <= len(text)


def subscribe(ledger: Owners, *topics: Topic, cursor: str | None = None, start: Start = "beginning") -> Subscription:
    """Follow the messages of all threads that match one of the topics; without topics, all messages.

    Use it as an `async with` block and iterate over it. `cursor` is the name under which the ledger keeps the position of the
    subscriber; without a name, nothing is kept. `start` is where a new cursor starts. Entering the block raises `OwnedError`
    while a subscriber of another living process owns the cursor.
    """
    return Subscription(ledger, topics or (Topic(),), cursor, start)


def _loaded(cursor: Json) -> str | None:
    return cursor if isinstance(cursor, str) else None


_CURSOR: Fold[str | None] = Fold("cursor/1", None, lambda cursor, message: cursor, dump=_loaded, load=_loaded)


_ADVICE = "end that subscriber first, or give this one another cursor"


class _Place:
    """The cursor of a subscriber, kept in the ledger if it has a name."""

    def __init__(self, ledger: Owners, name: str | None) -> None:
        self._ledger = ledger
        self._thread = None if name is None else system_thread(f"cursor/{name}")
        self._epoch = 0
        self._host: ProcessHost | None = None
        self._stored: str | None = None
        self._storing = asyncio.Lock()
        self.cursor: str | None = None
        """Everything up to here was handled or skipped."""

    async def load(self, start: Start) -> None:
        """Claim the cursor, and find the start position."""
        if self._thread is not None:
            await self._claim(self._thread)
            self.cursor = await replay(self._ledger, self._thread, _CURSOR)
        if self.cursor is None and start == "now":
            self.cursor = await self._ledger.horizon()
        # Even if it has not moved: messages that arrive before the first one is handled must not be missed.
        await self._store()

    async def _claim(self, thread_id: str) -> None:
        self._host = process_host(self._ledger)
        await self._host.join()
        try:
            self._epoch = await self._host.lease.as_host(lambda host: self._ledger.claim(thread_id, by=host))
        except OwnedError as exc:
            raise OwnedError(thread_id, exc.owner, exc.until, _ADVICE) from None

    async def leave(self) -> None:
        """Release the cursor, so that a subscriber of another process can claim it."""
        host, self._host = self._host, None
        if host is not None:
            await host.leave(self._release)

    async def _release(self) -> None:
        if self._thread is not None and self._epoch:
            await self._ledger.release(self._thread, epoch=self._epoch)

    async def store(self) -> None:
        """Store the cursor if it has moved."""
        async with self._storing:
            if self.cursor != self._stored:
                await self._store()

    async def _store(self) -> None:
        cursor = self.cursor
        if self._thread is not None:
            snapshot = _CURSOR.snapshot(cursor)
            await self._ledger.append(self._thread, (), epoch=self._epoch, snapshot=snapshot, pattern=SYSTEM_PATTERN)
        self._stored = cursor


class Subscription:
    """The messages of topics in order, as an `async with` block to iterate over."""

    def __init__(self, ledger: Owners, topics: Iterable[Topic], cursor: str | None, start: Start) -> None:
        self._ledger = ledger
        self._topics = tuple(topics)
        self._start: Start = start
        self._place = _Place(ledger, cursor)
        self._given: str | None = None
        """The cursor of the message that the subscriber is handling."""
        self._tail: AsyncIterator[Tailed] | None = None
        self._has_moved = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._failure: LedgerError | None = None

    async def __aenter__(self) -> Self:
        try:
            await self._place.load(self._start)
        except BaseException:
            await self._place.leave()
            raise
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store the cursor and release it. The message that was returned last does not count as handled."""
        try:
            await self._end(error)
        finally:
            await self._place.leave()

    async def _end(self, error: BaseException | None) -> None:
        await self._close_tail()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait((self._keeper,))
        if self._failure is not None:
            return
        try:
            await self._place.store()
        except LedgerError as exc:
            if error is None:
                raise
            warn("a cursor could not be stored: %s", error=exc)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Tailed:
        """Return the next message with its cursor; the one before counts as handled from now on.

        Raises:
            FencedError: another subscriber has taken over the cursor. A waiting subscriber gets this with the next message.
            LedgerError: the ledger cannot be read, or the cursor cannot be stored.
        """
        self._handled()
        try:
            tailed = await self._next()
        except BaseException:
            await self._close_tail()  # a cancelled tail cannot continue; the next one starts at the cursor
            raise
        self._given = tailed.cursor
        return tailed

    async def commit(self) -> None:
        """Store that all returned messages are handled, the last one included.

        Raises:
            FencedError: another subscriber has taken over the cursor.
            LedgerError: it could not be stored.
        """
        self._handled()
        try:
            await self._place.store()
        except FencedError as exc:
            self._failure = exc
            raise

    def _handled(self) -> None:
        if self._given is not None:
            self._move(self._given)
            self._given = None

    def _move(self, cursor: str) -> None:
        self._place.cursor = cursor
        self._has_moved.set()

    async def _next(self) -> Tailed:
        if self._keeper is None:
            raise RuntimeError("a subscription is an async with block; iterate inside of it")
        if self._tail is None:
            self._tail = self._ledger.tail(after=self._place.cursor)
        self._check()
        passed = 0
        async for tailed in self._tail:
            self._check()
            if any(topic.fits(tailed.record.message) for topic in self._topics):
                return tailed
            self._move(tailed.cursor)
            passed += 1
            if passed % _TURN == 0:
                await asyncio.sleep(0)
        raise StopAsyncIteration

    def _check(self) -> None:
        """Raise if the cursor of the next message cannot be stored."""
        if self._failure is not None:
            raise self._failure

    async def _keep(self) -> None:
        """Store the cursor a short time after each move."""
        while True:
            await self._has_moved.wait()
            await asyncio.sleep(_SOON)
            self._has_moved.clear()
            try:
                await self._place.store()
            except LedgerUnavailableError as exc:
                warn("a cursor is stored later: %s", error=exc)
                self._has_moved.set()
            except LedgerError as exc:
                self._failure = exc
                return

    async def _close_tail(self) -> None:
        tail, self._tail = self._tail, None
        if isinstance(tail, AsyncGenerator):
            with suppress(RuntimeError):  # a caller still waits in it
                await tail.aclose()


# ---------------------------------------------------------------- threads that break a flow

_MOST_THREADS = 10_000
"""The number of threads that are checked at once; beyond it, the least recently active one is dropped."""


class FlowReporter:
    """Checks each thread against a flow, message by message."""

    def __init__(self, flow: Flow, report: Callable[[str, Verdict], None], roles: Mapping[str, str]) -> None:
        self._flow = flow
        self._report = report
        self._roles = roles
        self._watches: OrderedDict[str, FlowWatch | None] = OrderedDict()
        """By thread, the most recently active last; None after a violation, and if the first message was not seen."""

    def __call__(self, record: Record) -> None:
        thread_id = record.message.thread_id or ""
        if thread_id not in self._watches:
            self._watches[thread_id] = self._flow.watch(**self._roles) if record.seq == 1 else None
        self._watches.move_to_end(thread_id)
        if len(self._watches) > _MOST_THREADS:
            self._watches.popitem(last=False)
        watch = self._watches[thread_id]
        if watch is None:
            return
        if not watch.takes(record.message):
            self._watches[thread_id] = None
            self._report(thread_id, watch.verdict)
