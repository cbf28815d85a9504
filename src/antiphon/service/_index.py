"""The index of a thread: for each message a few numbers, in columns. A page of 50,000 messages fits into a megabyte.

It lets a reader draw the whole thread, hide lanes and find errors, before it has read the messages that it shows.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from antiphon.ledger import Ledger, Record
from antiphon.messages import OptionCallPayload, OptionResultPayload, PartsPayload
from antiphon.service._sequence import mark_of
from antiphon.service._threads import find_thread

INDEX_LANES: Final = ("talk", "control", "effect")
INDEX_KINDS: Final = ("said", "called", "answered", "failed")
INDEX_MARKS: Final = ("", "approval", "parked", "retried", "restarted", "taken_over")
_EVERYBODY: Final = -1
_TURN: Final = 50
"""Messages after which others get their turn."""


@dataclass(frozen=True, slots=True)
class ThreadIndex:
    """The columns of a window of `seq`; the number at each place belongs to the message `first + place`."""

    first: int
    began_at: datetime | None
    """When the first message of the window was stored; None if the window is empty."""
    names: tuple[str, ...]
    """Senders, receivers and options, in the order in which they appear in the window."""
    lane: tuple[int, ...]
    """The place in `INDEX_LANES`."""
    kind: tuple[int, ...]
    """The place in `INDEX_KINDS`."""
    mark: tuple[int, ...]
    """The place in `INDEX_MARKS`."""
    sender: tuple[int, ...]
    """The place in `names`."""
    receiver: tuple[int, ...]
    """The place of the first receiver in `names`; of a call without one, that of the option; -1: everybody."""
    millis: tuple[int, ...]
    """Since `began_at`."""
    pair: tuple[int, ...]
    """For the result of a call in the same window, or the call of a result in it, its seq; otherwise 0."""
    open: tuple[tuple[int, str], ...]
    """Calls and results whose counterpart is not in this window: seq and invocation."""
    next: int | None
    """Give it as `after` to continue; None at the end of the thread."""


async def thread_index(ledger: Ledger, thread_id: str, *, after: int = 0, limit: int = 1000) -> ThreadIndex:
    """Return the index of the messages after a `seq`.

    Raises:
        UnknownThreadError: there is no such thread.
        ValueError: `after` is negative, or `limit` is not positive.
    """
    if after < 0 or limit < 1:
        raise ValueError("a window begins after seq 0 or later, and has one message or more")
    await find_thread(ledger, thread_id)
    columns = _Columns()
    async for record in ledger.read(thread_id, after, after + limit + 1):
        columns.add(record)
        if not len(columns.lane) % _TURN:
            await asyncio.sleep(0)  # a window of a thousand takes a while, and others must not wait for it
    last = after + len(columns.lane)
    is_more = bool(columns.lane) and last < (await ledger.head(thread_id)).seq
    return columns.index(after + 1, last if is_more else None)


class _Columns:
    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._open: dict[tuple[str, bool], int] = {}
        """By invocation, and whether it is a call: the place of one without its counterpart."""
        self._began_at: datetime | None = None
        self._first = 0
        self.lane: list[int] = []
        self._kind: list[int] = []
        self._mark: list[int] = []
        self._sender: list[int] = []
        self._receiver: list[int] = []
        self._millis: list[int] = []
        self._pair: list[int] = []

    def add(self, record: Record) -> None:
        message, payload = record.message, record.message.payload
        if self._began_at is None:
            self._began_at, self._first = record.recorded_at, record.seq
        is_call = isinstance(payload, OptionCallPayload)
        option = payload.option_name if isinstance(payload, OptionCallPayload | OptionResultPayload) else ""
        receiver = next(iter(message.to), option if is_call else None)
        self._sender.append(self._name(message.policy))
        self._receiver.append(_EVERYBODY if receiver is None else self._name(receiver))
        self.lane.append(INDEX_LANES.index(message.lane))
        self._kind.append(_kind_of(payload))
        self._mark.append(INDEX_MARKS.index(mark_of(message) or ""))
        self._millis.append(round((record.recorded_at - self._began_at).total_seconds() * 1000))
        self._pair.append(0)
        if isinstance(payload, OptionCallPayload | OptionResultPayload):
            self._join(payload.invocation_id, is_call=is_call, place=len(self._pair) - 1)

    def _join(self, invocation: str, *, is_call: bool, place: int) -> None:
        other = None if is_call else self._open.pop((invocation, True), None)
        if other is None:
            self._open.setdefault((invocation, is_call), place)
        else:
            self._pair[place], self._pair[other] = self._first + other, self._first + place
            receiver = self._receiver[place]
            self._receiver[place] = self._sender[other] if receiver == _EVERYBODY else receiver

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def index(self, first: int, after: int | None) -> ThreadIndex:
        alone = sorted((self._first + place, invocation) for (invocation, _), place in self._open.items())
        return ThreadIndex(
            first,
            self._began_at,
            tuple(self._names),
            tuple(self.lane),
            tuple(self._kind),
            tuple(self._mark),
            tuple(self._sender),
            tuple(self._receiver),
            tuple(self._millis),
            tuple(self._pair),
            tuple(alone),
            after,
        )


def _kind_of(payload: PartsPayload | OptionCallPayload | OptionResultPayload) -> int:
    """Return the place in `INDEX_KINDS`."""
    if isinstance(payload, OptionCallPayload):
        return 1
    if isinstance(payload, OptionResultPayload):
        return 3 if payload.is_error else 2
    return 0
