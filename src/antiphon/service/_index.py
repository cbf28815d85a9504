"""The index of a thread: for each message a few numbers, in columns. A page of 50,000 messages fits into a megabyte.

It lets a reader draw the whole thread, hide lanes and find errors, before it has read the messages that it shows.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Final

from antiphon.ledger import Ledger, Record
from antiphon.messages import OptionCallPayload, OptionResultPayload
from antiphon.service._sequence import mark_of
from antiphon.service._threads import find_thread
from antiphon.service._values import INDEX_KINDS, INDEX_LANES, INDEX_MARKS, IndexValue

_EVERYBODY: Final = -1
_TURN: Final = 50
"""Messages after which others get their turn."""


async def thread_index(ledger: Ledger, thread_id: str, *, after: int = 0, limit: int = 1000) -> IndexValue:
    """Return the index of the messages after a `seq`."""
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
        kind = "called" if is_call else "said"
        if isinstance(payload, OptionResultPayload):
            kind = "failed" if payload.is_error else "answered"
        self._kind.append(INDEX_KINDS.index(kind))
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

    def index(self, first: int, after: int | None) -> IndexValue:
        alone = sorted((self._first + place, invocation) for (invocation, _), place in self._open.items())
        return IndexValue.model_construct(
            first=first,
            began_at=self._began_at,
            names=tuple(self._names),
            lane=tuple(self.lane),
            kind=tuple(self._kind),
            mark=tuple(self._mark),
            sender=tuple(self._sender),
            receiver=tuple(self._receiver),
            millis=tuple(self._millis),
            pair=tuple(self._pair),
            open=tuple(alone),
            next=after,
        )
