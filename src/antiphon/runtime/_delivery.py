"""Delivery: a message to one actor (`Envelope`), its delivery (`DeliveryState`), and where deliveries wait.

**The envelope is a value.** It has the sender, the content, the receiver, the thread, and the message that caused it. It is
frozen. Two things replace it: the ledger, when it redacts the appended message (`DeliveryState.use_stored`), and a forward,
which has another address (`DeliveryState.forwarded_to`).

**The delivery has the state**: its phase (`_states.py`), its `Callers`, and the `Work` of the current attempt of its handler.
The parts of the runtime hand it on: `Sender` brings it into the mailbox, the cell handles it, and `Outcomes` ends it.

**Lazy parts.** A typed request that stays in this process and in no thread travels as it is: its core `Message` is made when
first needed, which saves half the cost of an ask. Its id is made when first needed, too. Simulations depend on the order of
`new_id`, so code that moves the first access to an id changes every later id.

**Queues** keep deliveries while they wait:

| class | holds | until |
|---|---|---|
| `Mailbox` | the messages to one actor, and the senders that wait for room | a drain of its cell takes them |
| `Deadlines` | the deliveries that have a caller | they are answered, or expire |
| `InFlight` | the messages of threads that this system handles | their outcome is stored |
| `Recent` | the latest messages outside of threads that have an id of their own | newer ones replace them |

**Mailbox.** Messages are handed out in order. Messages of the system come first, however full it is. If an actor handles
several messages at once, those with the same ordering key (by default the thread, else the sender) are still handled one
after the other: while one is handled, the next ones are held back.

**Deadlines.** A timer of the event loop for every ask would cost as much as the ask. So deadlines are rounded up to the next
tick, all of one tick share a bucket, and only the earliest bucket has a timer. Distant deadlines are rounded more, to a
five-hundredth of the time that is left. So there are at most a few thousand buckets, however long callers wait.

No method but `Mailbox.wait_for_room` awaits, so each is one step of the event loop, and nothing here needs a lock.
"""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Mapping
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from antiphon.errors import AntiphonError, FencedError, ReplyTimeoutError, WithdrawnError
from antiphon.messages import DataPart, Json, JsonObject, Message, OptionCallPayload, PartsPayload, current_port, thaw
from antiphon.messages import _keys as keys
from antiphon.protocol import Heartbeat, Notice, Request, Restart, Stop
from antiphon.runtime._rows import OWN, Standing, notice_in, renamed
from antiphon.runtime._states import TRANSITIONS, Event, Phase, TransitionError
from antiphon.runtime._work import Halt, Work

if TYPE_CHECKING:
    from antiphon.errors import DeliveryError
    from antiphon.ledger import Record


_COMMANDS = (Restart.message_type, Stop.message_type)


class Holder(Protocol):
    """The cell that has a delivery."""

    def withdraw(self, delivery: DeliveryState) -> None:
        """Cancel the handler of a message whose answer is no longer wanted."""
        ...


class Envelope(NamedTuple):
    """The content for one actor, and its origin. It is immutable: a changed message gets a new envelope."""

    request: Request[Any] | Notice | None
    """The request or the notice, if the content is typed."""
    message: Message | None
    """The core message; None: it is made from `request` when first needed (`DeliveryState.message`)."""
    sender: str
    to: str
    id: str | None = None
    """Of the message; None: it gets a new one when first needed."""
    thread_id: str | None = None
    """The thread that it is journaled in; None: it is not journaled, and is gone after it was handled."""
    parent: DeliveryState | None = None
    """The delivery whose handler sent it."""
    hops: int = 0
    """The length of the chain of messages that led to it."""
    correlation_id: str | None = None
    is_derived: bool = False
    """Whether its id is derived from the id of the message that its sender handles."""
    is_of_host: bool = False
    """Whether it concerns an actor of this host only, such as RESTART: it is never posted to another host."""

    @classmethod
    def of(
        cls,
        message: Message,
        sender: str,
        to: str,
        thread_id: str | None = None,
        *,
        hops: int = 0,
        correlation_id: str | None = None,
    ) -> Envelope:
        """Return the envelope of a core message that follows from no message here."""
        return cls(None, message, sender, to, message.id, thread_id, None, hops, correlation_id)


new_envelope = cast("Callable[[type[Envelope], tuple[object, ...]], Envelope]", tuple.__new__)
"""Make an envelope from all its fields, in a quarter of the time of `Envelope(...)`: every message needs one."""


class Callers:
    """Who waits for the outcome of a delivery, and the outcome."""

    waiter: asyncio.Future[Any] | None = None
    """The future that the caller awaits; None if nobody waits for an answer."""
    duplicates: tuple[DeliveryState, ...] = ()
    """Deliveries of the same message that were merged with this one, and get the same outcome (MERGE)."""
    lent_by: DeliveryState | None = None
    """The duplicate whose caller this one took over, because it had no caller (MERGE)."""
    successor: DeliveryState | None = None
    """The delivery that took over the caller of this one (MERGE)."""
    withdrawn: DeliveryError | None = None
    """Why the answer is no longer wanted. A part of END: that is the error which the delivery ends with."""
    outcome: tuple[Any, BaseException | None] | None = None
    """The result or the error that they got, kept for duplicates that come later."""

    def serve(self, result: Any, error: BaseException | None = None) -> None:
        """Give them the outcome. The first one counts."""
        if self.outcome is not None:
            return
        self.outcome = (result, error)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(result) if error is None else self.waiter.set_exception(error)
        for duplicate in self.duplicates:
            duplicate.settle(result, error)


_LEFT_OR_MERGED = (Phase.LEFT, Phase.MERGED)


class DeliveryState:
    """The delivery of one envelope: its phase (`_states.py`), its callers, and the work of its handler.

    Only one part works on a delivery at a time, and all parts run on one event loop, so nothing here needs a lock. Most
    deliveries need few of the fields, and of those of `Callers` and `Work`: the class has the defaults, and a field is set
    when it is needed. `__init__` sets the fields that every delivery needs, because an instance attribute is found faster than
    a class attribute.
    """

    delivery: None = None
    """Itself, of an attempt at it (`Handling`), which alone has effects."""
    seq: int = 0
    """Its position in the thread."""
    standing: Standing = Standing()
    """The earlier deliveries of the same message."""
    evicted: FencedError | None = None
    """Why nothing of it may be written or started here any more, in the phase EVICTED."""
    origin: str | None = None
    """The trace in which it was sent from outside, as a W3C `traceparent`."""

    # -- its place
    cell: Holder | None = None
    """The cell that has it."""
    key: str | None = None
    """The ordering key: set by a mailbox whose actor handles several messages at once."""
    deadline: float | None = None
    """In the event loop's time."""
    bucket: dict[DeliveryState, None] | None = None
    """The bucket of its deadline."""
    since: datetime = datetime.min.replace(tzinfo=UTC)
    """When it was taken over by `InFlight`."""
    is_told: bool = False
    """Whether something came into its thread since. A part of LEAVE: its handler may have missed an answer, and runs again."""
    waits: int = 0
    """How many answers and effects its handler waits for."""

    # -- for the observer
    accepted_at: float | None = None
    """When it was put into the mailbox, if there is an observer."""
    activity: object = None
    """The observer's record of its handling."""

    def __init__(self, envelope: Envelope, may_be_known: bool) -> None:
        self.envelope = envelope
        # Beside the envelope, because they are read much more often than anything else of it.
        self.to, self.sender, self.thread_id, self.parent = envelope.to, envelope.sender, envelope.thread_id, envelope.parent
        self._id = envelope.id
        self._message = envelope.message
        self.may_be_known = may_be_known
        """Whether the ledger, or this process, may have the message already: then it is looked up before APPEND and ACCEPT."""
        self.phase = Phase.NEW
        self.callers = Callers()
        self.work = Work()
        self.evicted = None

    def turn(self, event: Event) -> None:
        """Change the phase. Nothing else does."""
        try:
            self.phase = TRANSITIONS[self.phase][event]
        except KeyError:
            raise TransitionError(self.phase, event, f"{self.type or 'a message'} to {self.to}") from None

    @property
    def is_settled(self) -> bool:
        """Whether its caller has an outcome, or gets none from here: it was answered, forwarded, failed, or left open."""
        return self.callers.outcome is not None or self.phase in _LEFT_OR_MERGED

    @property
    def id(self) -> str:
        """The id of the message, which is also the invocation of a typed request."""
        if self._id is None:
            self._id = current_port().new_id()
        return self._id

    @property
    def invocation_id(self) -> str:
        """The invocation that its result names."""
        message = self._message
        return self.id if message is None else message.invocation_id or message.id

    @property
    def exchange(self) -> str:
        """The exchange that it belongs to, with everything that follows from it."""
        return self.envelope.correlation_id or self.id

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return 1 + len(self.standing.again) + self.standing.reruns

    @property
    def is_heartbeat(self) -> bool:
        """Whether it is a heartbeat outside of threads, which needs no room and comes before all other messages."""
        request = self.envelope.request
        if request is not None:
            return type(request) is Heartbeat and self.thread_id is None
        return self.thread_id is None and self.type == Heartbeat.message_type

    @property
    def is_call(self) -> bool:
        """Whether an answer is due."""
        if self._message is None:
            return isinstance(self.envelope.request, Request)
        return isinstance(self._message.payload, OptionCallPayload)

    @property
    def is_command(self) -> bool:
        """Whether it is RESTART or STOP, which the cell carries out, not the actor."""
        return self.type in _COMMANDS

    @property
    def type(self) -> str:
        """The type of a request or a notice, the option of a call; empty for talk."""
        if self.envelope.request is not None:
            return self.envelope.request.message_type
        payload = self.message.payload
        if isinstance(payload, OptionCallPayload):
            return payload.option_name
        notice = notice_in(self.message)
        return "" if notice is None else notice[0]

    @property
    def data(self) -> Mapping[str, Json]:
        """The data of a request or a notice, the arguments of a call; empty for talk."""
        payload = self.message.payload
        if isinstance(payload, OptionCallPayload):
            return payload.arguments
        notice = notice_in(self.message)
        return JsonObject({}) if notice is None else notice[1]

    @property
    def message(self) -> Message:
        """The core message, made when first needed."""
        if self._message is not None:
            return self._message
        envelope, now = self.envelope, current_port().now()
        request, parent = cast("Request[Any] | Notice", envelope.request), envelope.parent
        payload: PartsPayload | OptionCallPayload
        if isinstance(request, Request):
            payload = OptionCallPayload(invocation_id=self.id, option_name=request.message_type, arguments=request.to_data())
        else:
            payload = PartsPayload(parts=(DataPart(data={"type": request.message_type, "data": request.to_data()}),))
        facts: dict[str, Json] = {}  # what recovery needs
        if self.deadline is not None:
            facts["deadline"] = (now + timedelta(seconds=self.deadline - get_running_loop().time())).isoformat()
        if envelope.hops:
            facts["hops"] = envelope.hops
        if self.origin is not None:
            facts["traceparent"] = self.origin
        if request.enclosure:
            facts["enclosure"] = thaw(request.enclosure)
        self._message = Message(
            id=self.id,
            policy=str(envelope.sender),
            payload=payload,
            thread_id=envelope.thread_id,
            to=(str(envelope.to),),
            lane="control",
            correlation_id=self.exchange,
            parent_id=None if parent is None else parent.invocation_id,
            created_at=now,
            metadata={OWN: facts} if facts else {},
        )
        return self._message

    @property
    def message_if_made(self) -> Message | None:
        """The core message, if it was made."""
        return self._message

    def use_stored(self, record: Record) -> None:
        """Use the message as it is stored: the ledger may have redacted it, and the handler must see what a replay sees."""
        self.seq = record.seq
        if record.message is not self._message:
            self._message = record.message
            self.envelope = self.envelope._replace(request=None, message=record.message)

    def set_origin(self, origin: str) -> None:
        """Set the trace that it belongs to, also in the message, so that recovery knows it."""
        self.origin = origin
        if self._message is not None:
            metadata = {name: thaw(value) for name, value in self._message.metadata.items()}
            metadata[OWN] = {**metadata.get(OWN, {}), "traceparent": origin}
            self._message = self._message.model_copy(update={"metadata": metadata})

    def rename(self) -> None:
        """Take the next id: the message with the current id was withdrawn."""
        self._id = keys.renamed(self.id)
        self._message = None if self.envelope.request is not None else renamed(self.message, self._id)
        self.envelope = self.envelope._replace(id=self._id, message=self._message)

    def requeue(self, cell: Holder, standing: Standing) -> None:
        """Put it into the mailbox of a cell again: the messages and effects of its handler are numbered from 1 again."""
        self.turn(Event.ACCEPT)
        self.cell, self.standing, self.work = cell, standing, Work()

    def wait(self, change: int) -> None:
        """Add `change` to the number of answers and effects that its handler waits for.

        If an actor asks itself, the handler of the question also counts for the handler that asks.
        """
        for handled in self._of_same_actor():
            handled.waits += change

    def leave_to_next_system(self) -> bool:
        """Leave its handler, and handlers of the same actor that ask it, to the next system; return whether it runs again."""
        if self.thread_id is None:
            return False
        for handled in self._of_same_actor():
            handled.work.halt = Halt.LEFT_TO_NEXT
        return True

    def _of_same_actor(self) -> Generator[DeliveryState]:
        """Yield it, and the deliveries whose handlers ask it inside of the same actor."""
        handled: DeliveryState | None = self
        while handled is not None:
            yield handled
            parent = handled.parent
            handled = parent if parent is not None and parent.cell is handled.cell else None

    def leave_thread(self) -> None:
        """Deliver it outside of its thread, without the journal."""
        self.envelope, self.thread_id = self.envelope._replace(thread_id=None), None

    # ------------------------------------------------------------ its outcome

    def settle(self, result: Any, error: BaseException | None = None) -> None:
        """Give its callers an outcome that nothing is appended for."""
        self.turn(Event.SETTLE)
        self.callers.serve(result, error)

    def refuse(self, error: BaseException) -> None:
        """Take it out of the runtime: its sender gets an error. Its row may be stored all the same."""
        self.turn(Event.REFUSE)
        if self.evicted is None:  # otherwise the outcome comes from the ledger
            self.fail_duplicates(error)

    def fail_duplicates(self, error: BaseException) -> None:
        """Give duplicates an error: the message could not be journaled or delivered, and no outcome will come."""
        reason, lent_by = self._unsent(error), self.callers.lent_by
        for other in (*self.callers.duplicates, *(() if lent_by is None else (lent_by,))):
            if other.callers.outcome is None:
                other.settle(None, reason)

    def fail_unsent(self, error: BaseException) -> None:
        """Note that its sender could not send it: a duplicate that comes later must not wait for it."""
        self.settle(None, self._unsent(error))

    def _unsent(self, error: BaseException) -> AntiphonError:
        """Return what duplicates get. If only the first sender was cancelled, they may send it again."""
        return error if isinstance(error, AntiphonError) else WithdrawnError("its first sender could not send it", self.to)

    def share_outcome(self, other: DeliveryState) -> None:
        """Give a duplicate of this message the same outcome, now or later."""
        callers = self.callers
        if callers.outcome is not None:
            other.settle(*callers.outcome)
            return
        other.turn(Event.MERGE)
        if callers.waiter is None:
            callers.waiter, callers.lent_by, other.callers.successor = other.callers.waiter, other, self
        else:
            callers.duplicates += (other,)

    def forwarded_to(self, to: str) -> DeliveryState:
        """Return a delivery of the same message to another actor."""
        old = self.envelope
        passed = DeliveryState(
            old._replace(to=to, id=self.id, message=self.message, hops=old.hops + 1, is_derived=False), may_be_known=False
        )
        passed.deadline, passed.seq, passed.standing = self.deadline, self.seq, self.standing
        return passed

    def hand_callers_to(self, passed: DeliveryState) -> None:
        """Let another delivery of the message have the caller and the duplicates."""
        self.turn(Event.MERGE)
        passed.callers, self.callers = self.callers, Callers()
        # The deadline is noticed here, and withdraws the other one.
        self.callers.waiter, self.callers.successor = passed.callers.waiter, passed

    def withdraw(self, reason: DeliveryError) -> None:
        """Stop the handling: the answer is no longer wanted. If duplicates wait for the answer, the handling continues."""
        if self.callers.successor is not None:
            self.callers.successor.withdraw(reason)
        elif not self.callers.duplicates:
            self.terminate(reason)

    def terminate(self, reason: DeliveryError) -> None:
        """Stop the handling, even if duplicates wait for the answer: its thread is terminated."""
        if self.callers.withdrawn is None and not self.is_settled:
            self.callers.withdrawn = reason
            if self.cell is not None:
                self.cell.withdraw(self)

    def expire(self) -> None:
        """Withdraw it and fail its caller: the deadline has passed."""
        error = ReplyTimeoutError(f"no answer to {self.type} in time", self.to)
        self.withdraw(error)
        waiter = self.callers.waiter
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def check_evicted(self) -> None:
        """Refuse to go on after its thread was evicted."""
        if self.evicted is not None:
            raise FencedError(*self.evicted.args)

    def evict(self, error: FencedError) -> None:
        """Stop the handling at once: another host has the thread."""
        self.turn(Event.EVICT)
        # Before the cancellation: a handler that catches the cancellation finds it at its next effect or message.
        self.evicted = error
        if self.cell is not None:
            self.cell.withdraw(self)


# ---------------------------------------------------------------- the mailbox


OrderingKey: TypeAlias = "Callable[[Message], str | None]"
"""Computes the ordering key of a message."""


class Mailbox:
    """The messages that wait for an actor. Queues are made when needed and dropped when empty: most actors are idle."""

    __slots__ = ("_box", "_busy", "_capacity", "_holders", "_ordering_key", "_ready", "_senders", "_urgent", "waiting")

    def __init__(self, capacity: int, *, is_keyed: bool, ordering_key: OrderingKey | None = None) -> None:
        self._ordering_key = ordering_key
        self._capacity = capacity
        self.waiting = 0
        """How many messages wait, or have room reserved; messages of the system do not count."""
        self._box: deque[DeliveryState] | None = None
        self._urgent: deque[DeliveryState] | None = None
        self._senders: deque[asyncio.Future[None]] | None = None
        self._busy: dict[str, deque[DeliveryState]] | None = {} if is_keyed else None
        """By ordering key of a message that is being handled, the messages that wait for it."""
        self._holders: dict[str, DeliveryState] | None = {} if is_keyed else None
        """By key, the message that is being handled."""
        self._ready: deque[str] = deque() if is_keyed else _NOTHING
        """Ordering keys that are free and have a waiting message."""

    @property
    def is_idle(self) -> bool:
        """Whether no message waits or is being handled, and no sender waits for room."""
        return not (self.waiting or self._urgent or self._holders or self._senders)

    def reserve(self) -> bool:
        """Reserve room for a message, if there is any and no sender waits for it."""
        if self.waiting >= self._capacity or self._senders:
            return False
        self.waiting += 1
        return True

    async def wait_for_room(self) -> None:
        """Wait until there is room, and reserve it; the sender that has waited longest comes first."""
        if self._senders is None:
            self._senders = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._senders.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._senders:
                self._senders.remove(turn)
            elif turn.done() and not turn.cancelled():
                self.release()  # room was given and the sender cancelled in the same step: the next sender gets it
            raise

    def release(self) -> None:
        """Return room: a message was handed out, or does not arrive. The first waiting sender gets it at once."""
        self.waiting -= 1
        while self._senders:
            turn = self._senders.popleft()
            if not turn.done():
                self.waiting += 1
                turn.set_result(None)
                break

    def put(self, delivery: DeliveryState) -> None:
        """Add a message. Its room was reserved before."""
        if self._box is None:
            self._box = deque()
        self._box.append(delivery)

    def put_last(self, delivery: DeliveryState) -> None:
        """Add a message that must not be refused, even if the mailbox is full."""
        self.waiting += 1
        self.put(delivery)

    def put_first(self, delivery: DeliveryState) -> None:
        """Put back a message that was handed out, before all that wait: its order in the thread is kept."""
        held = None if self._busy is None else self._busy.get(self._key(delivery))
        if held is not None:
            held.appendleft(delivery)
        elif self._box is None:
            self._box = deque((delivery,))
        else:
            self._box.appendleft(delivery)
        self.waiting += 1

    def put_urgent(self, delivery: DeliveryState) -> None:
        """Add a message of the system, which comes before all others."""
        if self._urgent is None:
            self._urgent = deque()
        self._urgent.append(delivery)

    def next(self) -> DeliveryState | None:
        """Hand out the next message that may be handled now; None if there is none."""
        if self._urgent:
            return self._urgent.popleft()
        delivery = self._next_free() if self._busy is not None else self._box.popleft() if self._box else None
        if delivery is None:
            self._box = self._box or None
            self._urgent = None
            return None
        if self._senders:
            self.release()
        else:
            self.waiting -= 1
        return delivery

    def _next_free(self) -> DeliveryState | None:
        busy, holders = self._busy, self._holders
        assert busy is not None and holders is not None  # noqa: S101, PT018 (only asked where messages have keys)
        if self._ready:
            key = self._ready.popleft()
            delivery = holders[key] = busy[key].popleft()
            return delivery
        while self._box:
            delivery = self._box.popleft()
            key = self._key(delivery)
            if (waiting := busy.get(key)) is None:
                busy[key], holders[key] = deque(), delivery
                return delivery
            waiting.append(delivery)
        return None

    def _key(self, delivery: DeliveryState) -> str:
        """Return the ordering key: the key that the actor returns, else the thread, else the sender. It is computed once."""
        if delivery.key is None:
            choose = self._ordering_key
            delivery.key = (None if choose is None else choose(delivery.message)) or delivery.thread_id or delivery.sender
        return delivery.key

    def done(self, delivery: DeliveryState) -> None:
        """Release the next message with the same ordering key. A second call for the same message does nothing."""
        if self._busy is None or self._holders is None:
            return
        key = self._key(delivery)
        if self._holders.get(key) is not delivery:
            return
        del self._holders[key]
        if self._busy[key]:
            self._ready.append(key)
        else:
            del self._busy[key]

    def close(self) -> list[DeliveryState]:
        """Hand out all messages, and wake all senders; they see that the cell has stopped."""
        held = [delivery for queue in (self._busy or {}).values() for delivery in queue]
        deliveries = [*(self._urgent or ()), *held, *(self._box or ())]
        self._urgent = self._box = None
        self._ready.clear()
        if self._busy is not None:
            self._busy = {key: deque() for key in self._busy}
        self.waiting = 0
        while self._senders:
            self.release()
        return deliveries


_NOTHING: deque[str] = deque(maxlen=0)


# ---------------------------------------------------------------- deadlines

_TICK = 0.02
"""How late a deadline may be noticed, in seconds; more for deadlines over ten seconds away."""
_FINE = 9
"""How many binary digits of the remaining ticks are kept."""


class Deadlines:
    """The deliveries that have a caller, by deadline."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[DeliveryState, None]] = {}
        self._ticks: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._armed = 0

    def add(self, delivery: DeliveryState, deadline: float, now: float) -> None:
        """Let a delivery expire at its deadline, unless it is removed from its bucket before."""
        tick = int(deadline / _TICK) + 1
        coarseness = (tick - int(now / _TICK)).bit_length() - _FINE
        if coarseness > 0:
            tick = ((tick >> coarseness) + 1) << coarseness
        bucket = self._buckets.get(tick)
        if bucket is None:
            bucket = self._buckets[tick] = {}
            heappush(self._ticks, tick)
            if self._timer is None or tick < self._armed:
                self._arm(tick)
        bucket[delivery] = None
        delivery.bucket = bucket

    def close(self) -> None:
        """Forget them all."""
        if self._timer is not None:
            self._timer.cancel()
        self._buckets.clear()
        self._ticks.clear()

    def _arm(self, tick: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = tick
        self._timer = self._loop.call_at(tick * _TICK, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._ticks and self._ticks[0] * _TICK <= now:
            for delivery in self._buckets.pop(heappop(self._ticks)):
                delivery.expire()
        if self._ticks:
            self._arm(self._ticks[0])


# ---------------------------------------------------------------- messages in flight, and recent messages


class InFlight:
    """The messages of threads that this system handles: appended, or about to be, and not ended.

    At most one delivery of a message is in flight, so a duplicate waits and does not run.
    """

    def __init__(self) -> None:
        self._threads: dict[str, dict[str, DeliveryState]] = {}
        """By thread, then by invocation. A thread without messages in flight has no entry."""
        self._resting: dict[str, dict[str, datetime]] = {}
        """By thread, the messages that their handlers have left open since another one ended there, and when these began."""
        self.on_thread_ended: Callable[[], None] | None = None
        """Called when the last message of a thread has ended."""

    def __len__(self) -> int:
        return sum(map(len, self._threads.values()))

    def get(self, delivery: DeliveryState) -> DeliveryState | None:
        """Return the delivery of the same message that is in flight."""
        return self._threads.get(delivery.thread_id or "", _NONE).get(delivery.invocation_id)

    def has(self, delivery: DeliveryState) -> bool:
        """Whether a message is in flight."""
        return delivery.invocation_id in self._threads.get(delivery.thread_id or "", _NONE)

    @property
    def thread_count(self) -> int:
        """The number of threads that have messages in flight."""
        return len(self._threads)

    def has_thread(self, thread_id: str) -> bool:
        """Whether any message of a thread is in flight."""
        return thread_id in self._threads

    def of_thread(self, thread_id: str) -> tuple[DeliveryState, ...]:
        """Return the deliveries of a thread."""
        return tuple(self._threads.get(thread_id, _NONE).values())

    def take_over(self, delivery: DeliveryState) -> None:
        """Add a message, or make this delivery the one of its message."""
        thread_id = delivery.thread_id or ""
        self._threads.setdefault(thread_id, {})[delivery.invocation_id] = delivery
        delivery.since = current_port().now()
        if (resting := self._resting.get(thread_id)) is not None:
            resting.pop(delivery.invocation_id, None)

    def drop(self, delivery: DeliveryState) -> None:
        """Remove a message, unless another delivery of it is in flight."""
        thread_id = delivery.thread_id or ""
        if (deliveries := self._threads.get(thread_id)) is not None:
            if deliveries.get(delivery.invocation_id) is delivery:
                del deliveries[delivery.invocation_id]
                self._resting.pop(thread_id, None)  # it may be what they wait for
            if not deliveries:
                del self._threads[thread_id]
                if self.on_thread_ended is not None:
                    self.on_thread_ended()

    def drop_thread(self, thread_id: str) -> tuple[DeliveryState, ...]:
        """Remove all messages of a thread, and return their deliveries."""
        self._resting.pop(thread_id, None)
        return tuple(self._threads.pop(thread_id, _NONE).values())

    def abandon(self, delivery: DeliveryState, error: AntiphonError) -> None:
        """Remove a message without ending its call, which stays open for the next owner. The caller gets an error."""
        self.drop(delivery)
        if not delivery.is_settled:  # otherwise its handler goes on after its answer, or after a forward
            delivery.turn(Event.LEAVE)
            delivery.callers.serve(None, error)

    def leave_open(self, delivery: DeliveryState, error: AntiphonError) -> None:
        """Abandon a message whose handler waits for something outside, such as the answer of a person."""
        thread_id = delivery.thread_id or ""
        resting = self._resting.get(thread_id, {})
        self.abandon(delivery, error)
        # What came while its handler ran may be what it waits for: then it does not rest, and runs once more.
        entry: dict[str, datetime] = {} if delivery.is_told else {delivery.invocation_id: delivery.since}
        self._resting[thread_id] = {**resting, **entry}

    def tell(self, thread_id: str) -> None:
        """Note that something came into a thread: its handlers that run now may have missed it."""
        for delivery in self.of_thread(thread_id):
            delivery.is_told = True

    def resting(self, thread_id: str) -> Mapping[str, datetime]:
        """Return the messages of a thread that their handlers have left open, if nothing has changed since these began."""
        return self._resting.get(thread_id, {})

    def forget_resting(self, thread_id: str) -> None:
        """Forget which messages of a thread rest: its next owner delivers them."""
        self._resting.pop(thread_id, None)


_NONE: dict[str, DeliveryState] = {}


async def wait_for_handlers(is_running: Callable[[], bool], patience: float) -> None:
    """Wait until handlers that were told to end have ended, at most some seconds: one may ignore its cancellation."""
    while patience > 0 and is_running():
        await asyncio.sleep(_LOOK)
        patience -= _LOOK


_LOOK = 0.02


class Recent:
    """The latest messages by id, handled or answered. One that failed with a retryable error may be sent again."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, DeliveryState] = OrderedDict()

    def knows(self, delivery: DeliveryState) -> bool:
        """Whether the same message came before; then it gets that outcome. Otherwise it is kept."""
        earlier = self._kept.get(delivery.id)
        if earlier is not None:
            _, error = earlier.callers.outcome or (None, None)
            if not (isinstance(error, AntiphonError) and error.retryable):
                earlier.share_outcome(delivery)
                return True
        self._kept[delivery.id] = delivery
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        return False

    def message(self, id: str) -> Message | None:
        """Return a message by its id."""
        earlier = self._kept.get(id)
        return None if earlier is None else earlier.message
