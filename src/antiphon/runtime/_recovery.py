"""Recovery, which redelivers open messages after a crash, and timers, which deliver notices later and survive a crash.

**Recovery** reads the open calls of a thread, delivers them again, and sets the timers. It reads nothing else.
Messages are delivered again in the order in which they were sent. A handler that runs again finds its earlier messages and
effects in the ledger, and continues from there.

**Supervision** applies to one process. A failure report, RESTART or STOP that an earlier process left open in the system
thread of an actor is ended, and not carried out: the actor has ended with its process.

**Stopped threads.** Calls that were open when something outside failed (a provider, a budget) are delivered again only if the
thread is resumed: otherwise they would call the failing provider again and again. Messages that came later, such as the one
that resumes it, are delivered.

**Resting messages.** A handler may leave its message open until a person answers a question, or settles a call. While nothing
happens in the thread, it would only do the same again, and each delivery is an attempt. So the owner of an idle thread does
not deliver such messages: it releases the thread, due when the first question expires. A posted answer makes it due.

**Timers** deliver a notice later. A timer of a thread is a row that stays open until the timer fires. So the notice is
delivered even if the process that set the timer is gone. The end of that row, the notice and the DELIVER row are one append,
so the notice is stored exactly once.

**The clock may be set back.** The row has the time at which the timer was set. If that is in the future, the clock was ahead
when the timer was set, and its due time is wrong by as much. A timer for a duration then waits for that duration again, at
most. A timer for a time of the clock fires at once, and its actor looks at the clock again. `Hosting` notices the change.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from antiphon import errors
from antiphon.ledger import open_calls_of
from antiphon.messages import DataPart, Json, Message, OptionCallPayload, PartsPayload, current_port, thaw
from antiphon.messages._keys import child_id
from antiphon.runtime._delivery import DeliveryState, Envelope
from antiphon.runtime._exchange import SYSTEM_TYPES
from antiphon.runtime._leftovers import is_asked_of_itself, leftovers, owner_of
from antiphon.runtime._reporting import warn
from antiphon.runtime._rows import (
    DELIVER,
    PARK,
    TIMER,
    Cause,
    Standing,
    begun,
    effect_rows,
    ended,
    hops_and_deadline,
    option_of,
    question_expiry,
    stops_in,
)
from antiphon.runtime._send import A_WHILE
from antiphon.runtime._settings import SYSTEM
from antiphon.runtime._states import Event

if TYPE_CHECKING:
    from antiphon.ledger import Epoch, Record
    from antiphon.protocol import Notice
    from antiphon.runtime._actor import Lifetime
    from antiphon.runtime._delivery import InFlight
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._outcomes import Outcomes
    from antiphon.runtime._redelivery import Redelivery
    from antiphon.runtime._send import Sender
    from antiphon.runtime._tree import Tree


_LEDGER_PAUSE = 2.0
"""Seconds to pause while the ledger is unavailable."""
CLOCK_STEP = timedelta(seconds=5)
"""By how much the clock must be set back to be noticed: the clocks of several machines differ by less."""


class Timers:
    """The running timers. A timer of a thread is a row that stays open until the timer fires."""

    def __init__(
        self,
        lifetime: Lifetime,
        journal: Journal,
        tree: Tree,
        *,
        in_flight: InFlight,
        sender: Sender,
    ) -> None:
        self._lifetime = lifetime
        self._journal = journal
        self._tree = tree
        self._in_flight = in_flight
        self._sender = sender
        self._armed: dict[str, dict[str, tuple[datetime, asyncio.TimerHandle, Message]]] = {}
        """By thread and row, when each timer fires, its handle, and the row."""

    async def set(
        self, delivery: DeliveryState, address: str, after: float | datetime, notice: Notice, key: str | None
    ) -> None:
        """Tell an actor something after some seconds, or at a time of the clock."""
        now = current_port().now()
        due = after if isinstance(after, datetime) else now + timedelta(seconds=after)
        if delivery.thread_id is None:
            after = max(0.0, (due - now).total_seconds())
            self._lifetime.loop.call_later(after, self._tell, address, notice)
            return
        row_id = child_id(delivery.invocation_id, delivery.work.next_key(key))
        if delivery.attempt > 1 and await effect_rows(self._journal.ledger, delivery.thread_id, row_id):
            return  # an earlier attempt has set it
        arguments: dict[str, Json] = {
            "due": due.isoformat(),
            "set": now.isoformat(),
            "is_time": isinstance(after, datetime),
            "to": str(address),
            "type": notice.message_type,
            "data": notice.to_data(),
        }
        row = begun(TIMER, row_id, thread_id=delivery.thread_id, parent_id=delivery.invocation_id, arguments=arguments)
        await self._journal.write(delivery.thread_id, [row])  # before it is armed: a timer that fires ends this row
        self.arm(row)

    def arm(self, row: Message) -> None:
        """Schedule a timer, unless it is scheduled; if it is due, it fires at once."""
        thread = self._armed.setdefault(row.thread_id or "", {})
        if row.id not in thread:
            now, delay = current_port().now(), _left(row)
            thread[row.id] = now + delay, self._later(max(0.0, delay.total_seconds()), row), row

    def follow_clock(self) -> None:
        """Fire the timers for a time of the clock that were set later than now: the clock was set back since."""
        for thread in tuple(self._armed.values()):
            for _, handle, row in tuple(thread.values()):
                if _arguments(row)["is_time"] and _is_ahead(row):
                    handle.cancel()
                    self._ring(row)

    def _later(self, seconds: float, row: Message) -> asyncio.TimerHandle:
        return self._lifetime.loop.call_later(seconds, self._ring, row, context=self._lifetime.context.copy())

    def next_due(self, thread_id: str) -> datetime | None:
        """Return when the next timer of a thread fires; None if it has none."""
        return min((due for due, *_ in self._armed.get(thread_id, {}).values()), default=None)

    def forget(self, thread_id: str) -> None:
        """Cancel the timers of a thread that another host owns; their rows stay open."""
        for _, handle, _ in self._armed.pop(thread_id, {}).values():
            handle.cancel()

    def _tell(self, address: str, notice: Notice) -> None:
        if not self._lifetime.is_closing:
            self._lifetime.start(self._sender.inform(address, notice, address))

    def _ring(self, row: Message) -> None:
        thread_id = row.thread_id or ""
        thread = self._armed.get(thread_id, {})
        thread.pop(row.id, None)
        if not thread:
            self._armed.pop(thread_id, None)
        if not self._lifetime.is_closing:
            self._lifetime.start(self._deliver(row))

    async def _deliver(self, row: Message) -> None:
        """End the timer and append its notice, in one append; then deliver the notice."""
        arguments, thread_id, row_id = _arguments(row), row.thread_id or "", row.invocation_id or ""
        to = arguments["to"]
        notice = Message(
            policy=to,
            payload=PartsPayload(parts=(DataPart(data={"type": arguments["type"], "data": arguments["data"]}),)),
            id=f"{row_id}!",
            thread_id=thread_id,
            to=(to,),
            lane="control",
            parent_id=row.parent_id,
            # The due time, not the current time: every attempt has the same bytes, by which the ledger recognizes the message.
            created_at=datetime.fromisoformat(arguments["due"]).astimezone(UTC),
        )
        rung = ended(TIMER, row_id, thread_id=thread_id, parent_id=row.parent_id)
        open_row = begun(DELIVER, notice.id, thread_id=thread_id, parent_id=notice.id)
        delivery = DeliveryState(Envelope.of(notice, to, to, thread_id), may_be_known=False)
        if self._in_flight.has(delivery):
            return  # an unconfirmed append was written, and recovery has delivered the notice
        delivery.turn(Event.APPEND)
        self._in_flight.take_over(delivery)  # before the append: a recovery that reads the notice must not deliver it too
        try:
            _, record, _ = await self._journal.write(thread_id, [rung, notice, open_row])
            delivery.use_stored(record)
            await self._sender.hand_over(self._tree.at(delivery.to), delivery)
        except BaseException as exc:
            self._in_flight.drop(delivery)
            delivery.refuse(exc)
            if not isinstance(exc, errors.LedgerError | errors.DeliveryError):
                raise
            is_later = isinstance(exc, errors.LedgerUnavailableError)
            text = "a timer of %s rings later: %s" if is_later else "a timer of %s could not ring: %s"
            warn(text, to, error=exc, about=to, thread_id=thread_id)
            if is_later:
                self._later(_LEDGER_PAUSE, row)


def _is_ahead(row: Message) -> bool:
    """Whether a timer was set at a time in the future."""
    return datetime.fromisoformat(_arguments(row)["set"]) > current_port().now() + CLOCK_STEP


def _left(row: Message) -> timedelta:
    """Return how long a timer waits."""
    arguments = _arguments(row)
    due = datetime.fromisoformat(arguments["due"])
    if not _is_ahead(row):
        return due - current_port().now()
    return timedelta() if arguments["is_time"] else due - datetime.fromisoformat(arguments["set"])


def timer_due(row: Message) -> tuple[datetime, Mapping[str, Any]] | None:
    """Return when the timer of a row fires, and the data of its notice; None if the row is no timer."""
    if option_of(row) != TIMER:
        return None
    arguments = _arguments(row)
    return datetime.fromisoformat(arguments["due"]), arguments["data"]


def _arguments(row: Message) -> dict[str, Any]:
    assert isinstance(row.payload, OptionCallPayload)  # noqa: S101 (it was made so)
    arguments: dict[str, Any] = thaw(row.payload.arguments)
    return arguments


# ---------------------------------------------------------------- recovery


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery."""

    threads: int = 0
    """Threads with open calls."""
    delivered: int = 0
    """Messages that were delivered again."""
    timers: int = 0
    parked: int = 0
    """Parked messages, which wait for a person."""
    homeless: int = 0
    """Messages to actors that do not exist in this system; they stay open."""
    resting: int = field(default=0, repr=False)
    """Messages that were not delivered again: their handlers have left them open, and nothing has happened since."""
    until: datetime | None = field(default=None, repr=False)
    """When the first question to a person expires that a resting message may wait for."""

    def __add__(self, other: Recovered) -> Recovered:
        return Recovered(
            self.threads + other.threads,
            self.delivered + other.delivered,
            self.timers + other.timers,
            self.parked + other.parked,
            self.homeless + other.homeless,
            self.resting + other.resting,
            min((each for each in (self.until, other.until) if each is not None), default=None),
        )


@dataclass(frozen=True, slots=True)
class Parked:
    """A parked message: a person must settle it."""

    thread_id: str
    invocation_id: str
    """The invocation of the message; pass it to `settle`."""
    reason: str
    evidence: dict[str, Json]
    """Its address; the last error; the effect whose outcome is unknown."""


class _How(NamedTuple):
    """The circumstances in which recovery processes a row."""

    is_of_another: bool = False
    """Another process wrote the row."""
    is_new: bool = False
    """The row is delivered for the first time."""
    is_fresh: bool = False
    """Nothing was awaited since the rows were read."""


class Recovery:
    """Continues threads where another process stopped."""

    def __init__(
        self,
        lifetime: Lifetime,
        journal: Journal,
        tree: Tree,
        *,
        in_flight: InFlight,
        outcomes: Outcomes,
        redelivery: Redelivery,
        sender: Sender,
        timers: Timers,
    ) -> None:
        self._lifetime = lifetime
        self._journal = journal
        self._ledger = journal.ledger
        self._tree = tree
        self._in_flight = in_flight
        self._outcomes = outcomes
        self._redelivery = redelivery
        self._sender = sender
        self._timers = timers
        self._doubts: Counter[str] = Counter()
        """By thread, how many appends were not confirmed."""
        self.end_if_terminated: Callable[[str], Awaitable[None]]
        """Ends the open calls of a thread, if it is terminated. Set when the system is put together."""

    async def thread(
        self,
        thread_id: str,
        *,
        is_running: bool = False,
        is_resumed: bool = False,
        is_idle: bool = False,
        taken: Epoch | None = None,
    ) -> Recovered:
        """Deliver the open calls of a thread, and set its timers. `taken`: this host has just taken it, under this epoch.

        `is_idle`: nothing has happened in it here for a while, so resting messages are not delivered.

        A thread that `is_running` here already has its timers. If it was claimed for one message, calls that an earlier owner
        left open stay open: this program may be unable to run the thread. Calls that stopped because something outside failed
        are delivered only if the thread `is_resumed`.
        """
        if not is_idle:
            self._in_flight.tell(thread_id)
        # Claim first, then read: after the claim, an earlier owner cannot append anything that the read would miss.
        await self._journal.own(thread_id)
        unrecovered = self._journal.unrecovered
        after = unrecovered.get(thread_id, 0) if is_running else 0
        if not is_running:
            unrecovered.pop(thread_id, None)
        rows = await self._rows(thread_id, taken)
        # One time for both: a question that expired between two readings would neither be delivered nor make the thread due.
        questions = [question_expiry(row.message) for row in rows] if is_idle else []
        expiries, now = [expiry for expiry in questions if expiry is not None], current_port().now()
        resting = self._resting(thread_id, expiries, now) if is_idle else ()
        next_expiry = min((expiry for expiry in expiries if expiry > now), default=None) if resting else None
        recovered = Recovered(threads=1, resting=len(resting), until=next_expiry)
        stopped = 0 if is_resumed else max((row.seq for row in stops_in(rows)), default=0)
        new = 0 if taken is None or not _is_untouched(rows, taken) else taken.seq
        for row in [row for row in rows if row.message.invocation_id not in resting]:
            is_timer = option_of(row.message) == TIMER
            if row.seq > after and not (is_running and is_timer) and (row.seq > stopped or is_timer):
                # The first row is still up to date: nothing was awaited since the rows were read.
                is_fresh = row is rows[0]
                how = _How(is_of_another=not is_running, is_new=row.seq <= new, is_fresh=is_fresh)
                recovered += await self._take_up(thread_id, row, rows, how)
        if not after:
            await self._end_leftovers(thread_id, rows)
        return recovered

    def _resting(self, thread_id: str, expiries: Sequence[datetime], now: datetime) -> Collection[str]:
        """Return the messages that their handlers have left open here, unless a question has expired since they began."""
        left_open = self._in_flight.resting(thread_id)
        return {each for each, since in left_open.items() if not any(since < expiry <= now for expiry in expiries)}

    async def _rows(self, thread_id: str, taken: Epoch | None = None) -> tuple[Record, ...]:
        """Return the open calls of a thread; for a terminated thread, those that remain after its work was ended.

        A thread in which nothing was started cannot have been terminated, so that is not looked up. A request to terminate it
        is one of the open calls.
        """
        if taken == 1 and _is_untouched(rows := await self._ledger.open_calls(thread_id), taken):
            return rows
        await self.end_if_terminated(thread_id)
        return await self._ledger.open_calls(thread_id)

    async def _end_leftovers(self, thread_id: str, rows: Sequence[Record]) -> None:
        """End the leftovers of messages that have ended: their process died between the two appends."""
        still_open = {row.message.invocation_id for row in rows}
        unended = [row.message for row in rows if row.message.parent_id not in still_open]
        owners = {row.parent_id: row.policy for row in unended}
        owners |= {await owner_of(self._ledger, row, thread_id): row.policy for row in unended if row.lane == "effect"}
        for owner, to in owners.items():
            if owner is not None and owner not in still_open and await self._has_ended(thread_id, owner):
                ends = await leftovers(self._ledger, rows, owner, thread_id, to)
                await self._journal.write(thread_id, ends)

    async def _has_ended(self, thread_id: str, invocation_id: str) -> bool:
        records = await self._ledger.find(invocation_id=invocation_id, thread_id=thread_id)
        return any(record.message.kind == "option_result" for record in records)

    def recover_later(self, thread_id: str) -> None:
        """Recover a thread after a pause, because an append to it was not confirmed; retry until it succeeds."""
        if self._doubts[thread_id] == 0:
            self._lifetime.start(self._recover_until_sure(thread_id))
        self._doubts[thread_id] += 1

    async def _recover_until_sure(self, thread_id: str) -> None:
        doubts = 0
        while self._doubts[thread_id] > doubts:
            doubts = self._doubts[thread_id]  # read before the pause: an append that fails from here on needs another round
            await asyncio.sleep(A_WHILE)
            try:
                await self.thread(thread_id, is_running=True)
            except (errors.FencedError, errors.OwnedError):
                break  # the other host delivers it
            except errors.LedgerError as exc:
                warn("thread %s cannot be taken up: %s", thread_id, error=exc, thread_id=thread_id)
                self._doubts[thread_id] += 1
        del self._doubts[thread_id]

    async def message(self, thread_id: str, invocation_id: str) -> None:
        """Deliver one message of a thread, if it is open."""
        self._in_flight.tell(thread_id)
        rows = await self._rows(thread_id)
        for row in rows:
            if row.message.invocation_id == invocation_id:
                await self._take_up(thread_id, row, rows)

    async def parked(self) -> tuple[Parked, ...]:
        """Return the parked messages of all threads."""
        calls = [row.message async for row in open_calls_of(self._ledger, PARK)]
        return tuple(_parked(call.thread_id or "", call) for call in calls if call.lane == "effect")

    async def _take_up(self, thread_id: str, row: Record, rows: Sequence[Record], how: _How | None = None) -> Recovered:
        how = _How() if how is None else how
        option = option_of(row.message) if row.message.lane == "effect" else None
        message_row = row
        if option == TIMER:
            self._timers.arm(row.message)
            return Recovered(timers=1)
        if option == PARK:
            return Recovered(parked=1)
        if option == DELIVER:
            message_row = await self._journal.before(thread_id, row)
        elif option is not None or not message_row.message.to:
            return Recovered()  # an effect, which its handler ends, or a call without an address
        delivery = recovered_delivery(message_row, thread_id)
        if how.is_of_another and thread_id.startswith(f"{SYSTEM}/") and delivery.type in SYSTEM_TYPES.values():
            await self._end_supervision(delivery)
            return Recovered()
        return await self._deliver(delivery, rows, how)

    async def _end_supervision(self, delivery: DeliveryState) -> None:
        """End a failure report or a command that an earlier process left open: its actor has ended with that process.

        The actor of this process has another history. Carrying out the command would restart or stop an actor that did not
        fail.
        """
        delivery.work.is_unsure = True
        if not self._in_flight.has(delivery) and await self._outcomes.is_open(delivery):
            gone = errors.ActorStoppedError("the process has ended that had the actor", delivery.to)
            await self._outcomes.end_with_error(delivery, gone)

    async def _deliver(self, delivery: DeliveryState, rows: Sequence[Record], how: _How) -> Recovered:
        """Deliver a message again, unless it is in flight, or has ended since the rows were read."""
        if is_asked_of_itself(delivery.message):
            return Recovered()  # the handler that asked answers it when it runs again
        if self._in_flight.has(delivery) or Standing.of(rows, delivery.invocation_id).parked is not None:
            return Recovered()
        try:
            cell = self._tree.at(delivery.to)
        except errors.UndeliverableError:
            return Recovered(homeless=1)
        delivery.cell = cell
        delivery.work.is_unsure = not how.is_new
        is_late = delivery.deadline is not None and delivery.deadline <= self._lifetime.loop.time()
        if not is_late and not delivery.is_command:
            read = rows if how.is_fresh and how.is_new else None
            cause: Cause = "posted" if how.is_new else "recovered"
            try:
                is_open = await self._redelivery.recover(cell, delivery, cause, "it was open when the system began", read)
            except errors.ParkedError:
                return Recovered()  # it was parked after the rows were read
            if is_open:
                self._sender.watch(delivery)
        elif is_open := await self._outcomes.is_open(delivery):
            if is_late:
                late = errors.ReplyTimeoutError("its deadline passed while it was open", delivery.to)
                await self._outcomes.end_with_error(delivery, late)
            else:
                await self._sender.hand_over(cell, delivery)
        return Recovered(delivered=int(is_open))


def _is_untouched(rows: Sequence[Record], taken: Epoch) -> bool:
    """Whether no work has ever started in a thread: it has its first owner, and contains only calls that are still open.

    Without an earlier owner, no process has died in the thread, so there is no attempt to count. All started work leaves a
    row, so there is nothing to look up in a restored thread either.
    """
    before = [row for row in rows if row.seq <= taken.seq]
    return taken == 1 and len(before) == taken.seq and all(row.message.lane != "effect" for row in before)


def recovered_delivery(record: Record, thread_id: str) -> DeliveryState:
    """Return a delivery of a stored message."""
    message = record.message
    hops, deadline = hops_and_deadline(message)
    envelope = Envelope.of(message, message.policy, message.to[0], thread_id, hops=hops, correlation_id=message.correlation_id)
    delivery = DeliveryState(envelope, may_be_known=False)
    delivery.seq, delivery.deadline = record.seq, deadline
    return delivery


def _parked(thread_id: str, row: Message) -> Parked:
    assert isinstance(row.payload, OptionCallPayload)  # noqa: S101 (it was made so)
    evidence = thaw(row.payload.arguments)
    return Parked(thread_id, row.parent_id or "", evidence.pop("reason"), evidence)
