"""The sequence and the timeline of a thread, by windows of `seq`: two views of the same messages, for a page or a terminal.

`sequence` has a step for each message: who said what to whom, when, and in the course of which call. `timeline` has a span for
each call, from the call to its result. Both read only the records of the window. Calls and results outside of it are looked up
by their invocation, so a window in the middle of a long thread costs as much as one at the start.

The nesting comes from `parent_id`, the invocation in whose course a message was said.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, Literal, TypeAlias

from antiphon.ledger import Log, Record
from antiphon.messages import DataPart, Lane, Message, OptionCallPayload, OptionResultPayload, PartsPayload, Usage
from antiphon.runtime._rows import AGAIN, APPROVE, PARK
from antiphon.service._threads import find_thread
from antiphon.service._transcript import in_one_line

StepKind: TypeAlias = Literal["said", "called", "answered", "failed"]
SpanOutcome: TypeAlias = Literal["open", "completed", "failed", "said"]
Mark: TypeAlias = Literal["approval", "parked", "retried", "restarted", "taken_over"]
"""What is unusual about a message: a person is asked; a person must settle it; something that failed is done once more; work
that was interrupted begins again in a process; it begins again because a host took the thread over from another."""

DEFAULT_WINDOW: Final = 500
_MARKS: Final[dict[str, Mark]] = {APPROVE: "approval", PARK: "parked"}
_DEEPEST: Final = 100
"""Levels of nesting that are followed: a forged chain of parents must not take for ever."""


@dataclass(frozen=True, slots=True)
class SequenceStep:
    """A message, as an arrow of a sequence diagram."""

    seq: int
    at: datetime
    """When the ledger stored it."""
    kind: StepKind
    sender: str
    receivers: tuple[str, ...]
    """Empty: everybody in the thread."""
    lane: Lane
    text: str
    """The message on one line, safe to show."""
    message_id: str
    option: str | None = None
    """The option of a call or a result."""
    invocation_id: str | None = None
    pair: int | None = None
    """The seq of the result of a call, or of the call of a result; None: the call is open, or the result an orphan."""
    seconds: float | None = None
    """The time between a call and its result."""
    depth: int = 0
    """In how many calls it is nested."""
    parent: int | None = None
    """The seq of the call in whose course it was said."""
    mark: Mark | None = None
    host: str | None = None
    """The host where interrupted work began again; None for other messages, and in older threads."""
    taken_from: str | None = None
    """The host that had the thread before it was taken over."""
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class SequenceWindow:
    """A window of a sequence diagram."""

    thread_id: str
    participants: tuple[str, ...]
    """Senders and receivers of this window, in the order in which they appear."""
    steps: tuple[SequenceStep, ...]
    next: int | None
    """Give it as `after` to continue; None at the end of the thread."""


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A call with its result, or a message, on a time axis."""

    seq: int
    end_seq: int | None
    began_at: datetime
    ended_at: datetime | None
    """None while the call is open."""
    seconds: float | None
    caller: str
    worker: str
    """The receiver of the call, or its option; for a message, the speaker."""
    outcome: SpanOutcome
    lane: Lane
    text: str
    option: str | None = None
    depth: int = 0
    parent: int | None = None
    mark: Mark | None = None
    host: str | None = None
    """As that of a step."""
    taken_from: str | None = None
    """As that of a step."""


@dataclass(frozen=True, slots=True)
class TimelineWindow:
    """A window of a timeline: the spans that begin or end in it, in the order in which they began."""

    thread_id: str
    workers: tuple[str, ...]
    spans: tuple[TimelineSpan, ...]
    next: int | None
    """Give it as `after` to continue; None at the end of the thread."""


def mark_of(message: Message) -> Mark | None:
    """Return what is unusual about a message."""
    payload = message.payload
    if isinstance(payload, PartsPayload):
        data = [part.data for part in payload.parts if isinstance(part, DataPart)] if message.lane == "effect" else []
        is_attempt = len(data) == 1 and isinstance(data[0], Mapping) and data[0].get("type") == "ATTEMPT"
        return "retried" if is_attempt else None
    if payload.option_name != AGAIN:
        return _MARKS.get(payload.option_name)
    if message.lane != "effect" or not isinstance(payload, OptionCallPayload):
        return None
    if payload.arguments.get("cause") != "recovered":
        return "retried"
    host, before = hosts_of(message)
    return "restarted" if before in (None, host) else "taken_over"


def hosts_of(message: Message) -> tuple[str | None, str | None]:
    """Return the host where interrupted work began again, and the one that had the thread before; None if that is unknown."""
    payload = message.payload
    if message.lane != "effect" or not isinstance(payload, OptionCallPayload) or payload.option_name != AGAIN:
        return None, None
    host, before = (payload.arguments.get(name) for name in ("host", "taken_from"))
    return host if isinstance(host, str) else None, before if isinstance(before, str) else None


def mark_words(step: SequenceStep | TimelineSpan) -> str | None:
    """Return what is unusual about a step, for a person."""
    if step.mark == "taken_over":
        return f"taken over from {step.taken_from} by {step.host}"
    if step.mark == "restarted" and step.host is not None:
        return f"restarted on {step.host}"
    return step.mark


async def sequence(ledger: Log, thread_id: str, *, after: int = 0, limit: int = DEFAULT_WINDOW) -> SequenceWindow:
    """Return the messages of a thread after a `seq`, as steps of a sequence diagram."""
    window = await _Window.read(ledger, thread_id, after, limit)
    steps = [await window.step(record) for record in window.records]
    names = [name for step in steps for name in (step.sender, *step.receivers)]
    return SequenceWindow(thread_id, tuple(dict.fromkeys(names)), tuple(steps), window.next)


async def timeline(ledger: Log, thread_id: str, *, after: int = 0, limit: int = DEFAULT_WINDOW) -> TimelineWindow:
    """Return the calls and messages of a thread after a `seq`, as spans of time. A call that began before has its begin."""
    window = await _Window.read(ledger, thread_id, after, limit)
    by_seq = {span.seq: span for record in window.records if (span := await window.span(record)) is not None}
    spans = tuple(by_seq[seq] for seq in sorted(by_seq))
    return TimelineWindow(thread_id, tuple(dict.fromkeys(span.worker for span in spans)), spans, window.next)


async def every_step(ledger: Log, thread_id: str) -> AsyncIterator[SequenceStep]:
    """Yield the steps of a whole thread, window by window."""
    after: int | None = 0
    while after is not None:
        window = await sequence(ledger, thread_id, after=after)
        for step in window.steps:
            yield step
        after = window.next


async def every_span(ledger: Log, thread_id: str) -> AsyncIterator[TimelineSpan]:
    """Yield the spans of a whole thread once each, window by window, in the order in which they began."""
    after: int | None = 0
    while after is not None:
        window = await timeline(ledger, thread_id, after=after)
        for span in window.spans:
            if span.seq > after:  # else an earlier window had it
                yield span
        after = window.next


# ---------------------------------------------------------------- one window


@dataclass(frozen=True, slots=True)
class _Pair:
    call: Record | None
    result: Record | None

    @property
    def seconds(self) -> float | None:
        if self.call is None or self.result is None:
            return None
        return (self.result.recorded_at - self.call.recorded_at).total_seconds()


class _Window:
    """The records of a window, and the calls and results outside of it that they refer to."""

    def __init__(self, ledger: Log, thread_id: str, records: list[Record], next: int | None) -> None:
        self._ledger = ledger
        self._thread_id = thread_id
        self.records = records
        self.next = next
        self._pairs: dict[str, _Pair] = {}
        self._depths: dict[int, int] = {}
        """By the seq of a call, in how many calls it is nested."""
        for record in records:
            self._add(record)

    @classmethod
    async def read(cls, ledger: Log, thread_id: str, after: int, limit: int) -> _Window:
        if after < 0 or limit < 1:
            raise ValueError("a window begins after seq 0 or later, and has one message or more")
        await find_thread(ledger, thread_id)
        records = [record async for record in ledger.read(thread_id, after, after + limit + 1)]
        end = (await ledger.head(thread_id)).seq
        last = after + len(records)
        return cls(ledger, thread_id, records, last if records and last < end else None)

    def _add(self, record: Record) -> None:
        payload = record.message.payload
        if isinstance(payload, OptionCallPayload):
            pair = self._pairs.get(payload.invocation_id)
            if pair is None:
                self._pairs[payload.invocation_id] = _Pair(record, None)
        elif isinstance(payload, OptionResultPayload):
            pair = self._pairs.get(payload.invocation_id)
            if pair is None or pair.result is None:
                self._pairs[payload.invocation_id] = _Pair(None if pair is None else pair.call, record)

    async def pair(self, invocation_id: str) -> _Pair:
        """Return the call and the first result of an invocation, also if they are outside of the window."""
        pair = self._pairs.get(invocation_id, _Pair(None, None))
        is_whole = pair.call is not None and (pair.result is not None or self.next is None)
        if not is_whole:
            rows = await self._ledger.find(invocation_id=invocation_id, thread_id=self._thread_id)
            calls = [row for row in rows if isinstance(row.message.payload, OptionCallPayload)]
            results = [row for row in rows if isinstance(row.message.payload, OptionResultPayload)]
            pair = _Pair(calls[0] if calls else None, results[0] if results else None)
            self._pairs[invocation_id] = pair
        return pair

    async def place(self, message: Message) -> tuple[int, int | None]:
        """Return the depth of a message, and the seq of the call in whose course it was said."""
        call = await self._parent(message)
        return (0, None) if call is None else (await self._depth(call) + 1, call.seq)

    async def _depth(self, call: Record) -> int:
        chain = [call]
        while chain[-1].seq not in self._depths and len(chain) < _DEEPEST:
            above = await self._parent(chain[-1].message)
            if above is None or above in chain:  # a circle is possible in a history from elsewhere
                break
            chain.append(above)
        depth = self._depths.get(chain[-1].seq, 0)
        for levels, record in enumerate(reversed(chain)):
            self._depths[record.seq] = depth + levels
        return self._depths[call.seq]

    async def _parent(self, message: Message) -> Record | None:
        return None if message.parent_id is None else (await self.pair(message.parent_id)).call

    async def step(self, record: Record) -> SequenceStep:
        message, payload = record.message, record.message.payload
        host, taken_from = hosts_of(message)
        step = SequenceStep(
            seq=record.seq,
            at=record.recorded_at,
            kind="said",
            sender=message.policy,
            receivers=message.to,
            lane=message.lane,
            text=_text(message),
            message_id=message.id,
            mark=mark_of(message),
            host=host,
            taken_from=taken_from,
            usage=message.usage,
        )
        if not isinstance(payload, OptionCallPayload | OptionResultPayload):
            depth, parent = await self.place(message)
            return replace(step, depth=depth, parent=parent)
        pair = await self.pair(payload.invocation_id)
        step = replace(step, option=payload.option_name, invocation_id=payload.invocation_id, seconds=pair.seconds)
        if isinstance(payload, OptionCallPayload):
            depth, parent = await self.place(message)
            receivers = message.to or (payload.option_name,)
            return replace(step, kind="called", receivers=receivers, pair=_seq(pair.result), depth=depth, parent=parent)
        call = pair.call
        depth, parent = await self.place(message if call is None else call.message)
        receivers = message.to or (() if call is None else (call.message.policy,))
        kind: StepKind = "failed" if payload.is_error else "answered"
        return replace(step, kind=kind, receivers=receivers, pair=_seq(call), depth=depth, parent=parent)

    async def span(self, record: Record) -> TimelineSpan | None:
        """Return the span that a record begins or ends; None for a result without its call, and for a second result."""
        message, payload = record.message, record.message.payload
        if not isinstance(payload, OptionCallPayload | OptionResultPayload):
            depth, parent = await self.place(message)
            at, name = record.recorded_at, message.policy
            return TimelineSpan(
                record.seq, record.seq, at, at, 0.0, name, name, "said", message.lane, _text(message), None, depth, parent
            )
        pair = await self.pair(payload.invocation_id)
        if pair.call is None or record.seq not in (pair.call.seq, _seq(pair.result)):
            return None
        return await self._call_span(pair.call, pair)

    async def _call_span(self, call: Record, pair: _Pair) -> TimelineSpan:
        message, result = call.message, pair.result
        option = message.payload.option_name if isinstance(message.payload, OptionCallPayload) else ""
        depth, parent = await self.place(message)
        host, before = hosts_of(message)
        is_error = (
            result is not None and isinstance(outcome := result.message.payload, OptionResultPayload) and outcome.is_error
        )
        return TimelineSpan(
            seq=call.seq,
            end_seq=_seq(result),
            began_at=call.recorded_at,
            ended_at=None if result is None else result.recorded_at,
            seconds=pair.seconds,
            caller=message.policy,
            worker=(*message.to, option)[0],
            outcome="open" if result is None else "failed" if is_error else "completed",
            lane=message.lane,
            text=_text(message),
            option=option,
            depth=depth,
            parent=parent,
            mark=mark_of(message),
            host=host,
            taken_from=before,
        )


def _seq(record: Record | None) -> int | None:
    return None if record is None else record.seq


def _text(message: Message) -> str:
    return "".join(piece.text for piece in in_one_line(message))
