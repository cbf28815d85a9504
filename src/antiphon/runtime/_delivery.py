"""Delivery: a message to one actor (`Envelope`), how far its delivery is (`DeliveryState`), and where deliveries wait.

**The envelope is a value.** It has the sender, the content, the receiver, the thread, and the message that caused it. It is
frozen. Two things replace it: the ledger, when it redacts the appended message (`DeliveryState.use_stored`), and a forward,
which has another address (`DeliveryState.forwarded_to`).

**The delivery has the state.** The parts of the runtime hand it on: the dispatcher makes it, the mailbox keeps it, the cell
handles it, and the journal ends it. It is also the `Course` of the effects of its handler.

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
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from heapq import heappop, heappush
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, cast

from antiphon.errors import AntiphonError, ReplyTimeoutError, WithdrawnError
from antiphon.messages import DataPart, Json, JsonObject, Message, OptionCallPayload, PartsPayload, current_port, keys, thaw
from antiphon.protocol import Notice, Request, Restart, Stop
from antiphon.runtime._rows import OWN, Standing, notice_in, renamed

if TYPE_CHECKING:
    from antiphon.errors import DeliveryError, FencedError, ParkedError
    from antiphon.ledger import Record


_COMMANDS = (Restart.message_type, Stop.message_type)


class Holder(Protocol):
    """The cell that has a delivery."""

    def withdraw(self, delivery: DeliveryState) -> None:
        """Cancel the handler of a message whose answer is no longer wanted."""
        ...


class Envelope(NamedTuple):
    """The content for one actor, and its origin. It is immutable: a changed message gets a new envelope."""

    said: Request[Any] | Notice | None
    """The request or the notice, if the content is typed."""
    message: Message | None
    """The core message; None: it is made from `said` when first needed (`DeliveryState.message`)."""
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


class DeliveryState:
    """The state of the delivery of one envelope.

    Only one part works on a delivery at a time, and all parts run on one event loop, so nothing here needs a lock. Most
    deliveries need few of the fields: the class has the defaults, and a field is set when it is needed. `__init__` sets the
    fields that every delivery needs, because an instance attribute is found faster than a class attribute.
    """

    delivery: None = None
    """Itself, of an attempt at it (`Handling`), which alone has effects."""
    seq: int = 0
    """Its position in the thread."""
    deadline: float | None = None
    """In the event loop's time."""
    bucket: dict[DeliveryState, None] | None = None
    """The bucket of its deadline."""
    origin: str | None = None
    """The trace in which it was sent from outside, as a W3C `traceparent`."""
    is_of_host: bool = False
    """Whether it concerns an actor of this host only, such as RESTART: it is never posted to another host."""
    since: datetime = datetime.min.replace(tzinfo=UTC)
    """When it was taken over by `InFlight`."""
    # -- its place
    cell: Holder | None = None
    """The cell that has it."""
    task: asyncio.Task[None] | None = None
    """The task that runs its handler; None: no handler runs, or its outcome is being written and must not be cancelled."""
    key: str | None = None
    """The ordering key: set by a mailbox whose actor handles several messages at once."""
    is_urgent: bool = False
    """Whether it is a message of the system, which is handled before all others."""
    accepted_at: float | None = None
    """When it was put into the mailbox, if there is an observer."""
    activity: object = None
    """The observer's record of its handling."""

    # -- why its handler is stopped
    withdrawn: DeliveryError | None = None
    """Why the answer is no longer wanted."""
    was_cancelled: bool = False
    """Whether the task that handles it was cancelled for `withdrawn`."""
    is_interrupted: bool = False
    """Whether its handler is being stopped because the actor restarts or stops; it will run again."""
    evicted: FencedError | None = None
    """Why nothing of it may be written or started here any more: another host has its thread."""
    is_over: bool = False
    """Never: a delivery may be handled again. An attempt ends (`Handling`)."""
    is_told: bool = False
    """Whether something came into its thread after it was delivered here: its handler may have missed an answer."""
    is_left_to_next: bool = False
    """Whether its handler is left to the next system: this one closes, and the answer that it waits for will not come."""

    # -- earlier deliveries of the same message
    standing: Standing = Standing()
    """Their rows in the journal."""
    reruns: int = 0
    """How many of them have no row, because the ledger was unavailable."""
    is_new: bool = False
    """Whether it was posted to a thread in which no work has started yet."""
    is_unsure: bool = False
    """Whether the ledger may have open rows of it that are missing in `standing` and `open_effects`."""

    # -- what its handler has done
    open_effects: tuple[Message, ...] = ()
    """The rows of effects that its handler has started and not ended."""
    parked: ParkedError | None = None
    """Why its handler starts nothing more: an effect waits for a person."""
    parked_in: tuple[str, ...] = ()
    """The effects in which that effect is."""
    doubt: ParkedError | None = None
    """Why its handler changes nothing more: an effect that must not be done twice has no outcome."""
    deferred_rows: tuple[Message, ...] = ()
    """Rows of its handler that are written together with the next one."""
    marks: Mapping[str, str] = MappingProxyType({})
    """The listing fields of the thread, written with the next row of its handler."""
    waits: int = 0
    """How many answers and effects its handler waits for."""
    keys: tuple[str, ...] = ()
    """The keys that its handler has used."""
    unnamed_count: int = 0
    """How many messages and effects its handler has started without a key."""

    # -- its outcome, and its receivers
    waiter: asyncio.Future[Any] | None = None
    """The future that the caller awaits; None if nobody waits for an answer."""
    is_settled: bool = False
    """Whether it was answered, forwarded, or ended with an error."""
    outcome: tuple[Any, BaseException | None] | None = None
    """Kept for deliveries of the same message that come later."""
    successor: DeliveryState | None = None
    """The delivery that took over the caller of this one, because this one was forwarded or is a duplicate."""
    duplicates: tuple[DeliveryState, ...] = ()
    """Duplicates that get the same outcome."""
    lent_by: DeliveryState | None = None
    """The duplicate whose caller this one took over, because it had no caller."""

    def __init__(self, envelope: Envelope, may_be_known: bool) -> None:
        self.envelope = envelope
        self._id = envelope.id
        self._message = envelope.message
        self.may_be_known = may_be_known
        """Whether the ledger, or this process, may have the message already."""
        self.withdrawn = self.evicted = None
        self.is_settled = self.was_cancelled = self.is_left_to_next = self.is_urgent = False
        self.duplicates = ()

    @property
    def to(self) -> str:
        """The address of the actor."""
        return self.envelope.to

    @property
    def sender(self) -> str:
        return self.envelope.sender

    @property
    def thread_id(self) -> str | None:
        return self.envelope.thread_id

    @property
    def parent(self) -> DeliveryState | None:
        """The delivery whose handler sent it."""
        return self.envelope.parent

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
        return 1 + len(self.standing.again) + self.reruns

    @property
    def has_leftovers(self) -> bool:
        """Whether rows are known that must end with it: redeliveries and effects."""
        return bool(self.standing.again or self.open_effects)

    @property
    def is_call(self) -> bool:
        """Whether an answer is due."""
        return isinstance(self.envelope.said, Request) if self._message is None else self._message.kind == "option_call"

    @property
    def is_command(self) -> bool:
        """Whether it is RESTART or STOP, which the cell carries out, not the actor."""
        return self.type in _COMMANDS

    @property
    def type(self) -> str:
        """The type of a request or a notice, the option of a call; empty for talk."""
        if self.envelope.said is not None:
            return self.envelope.said.message_type
        payload = self.message.payload
        if isinstance(payload, OptionCallPayload):
            return payload.option_name
        found = notice_in(self.message)
        return "" if found is None else found[0]

    @property
    def data(self) -> Mapping[str, Json]:
        """The data of a request or a notice, the arguments of a call; empty for talk."""
        payload = self.message.payload
        if isinstance(payload, OptionCallPayload):
            return payload.arguments
        found = notice_in(self.message)
        return JsonObject({}) if found is None else found[1]

    @property
    def message(self) -> Message:
        """The core message, made when first needed."""
        if self._message is None:
            self._message = self._made()
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
            self.envelope = self.envelope._replace(said=None, message=record.message)

    def _made(self) -> Message:
        envelope, now = self.envelope, current_port().now()
        said, parent = cast("Request[Any] | Notice", envelope.said), envelope.parent
        payload: PartsPayload | OptionCallPayload
        if isinstance(said, Request):
            payload = OptionCallPayload(invocation_id=self.id, option_name=said.message_type, arguments=said.to_data())
        else:
            payload = PartsPayload(parts=(DataPart(data={"type": said.message_type, "data": said.to_data()}),))
        facts = self._facts(now)
        if said.enclosure:
            facts["enclosure"] = thaw(said.enclosure)
        return Message(
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

    def _facts(self, now: datetime) -> dict[str, Json]:
        """Return what recovery needs: deadline, hops and trace."""
        facts: dict[str, Json] = {}
        if self.deadline is not None:
            left = self.deadline - get_running_loop().time()
            facts["deadline"] = (now + timedelta(seconds=left)).isoformat()
        if self.envelope.hops:
            facts["hops"] = self.envelope.hops
        if self.origin is not None:
            facts["traceparent"] = self.origin
        return facts

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
        self._message = None if self.envelope.said is not None else renamed(self.message, self._id)
        self.envelope = self.envelope._replace(id=self._id, message=self._message)

    def prepare_redelivery(self, cell: Holder, standing: Standing) -> None:
        """Prepare another delivery: the messages and effects of its handler are numbered from 1 again."""
        self.cell, self.standing = cell, standing
        self.unnamed_count, self.keys, self.open_effects, self.deferred_rows = 0, (), (), ()
        self.parked, self.parked_in, self.doubt = None, (), None

    def note_parked(self, error: ParkedError, inside: tuple[str, ...] = ()) -> None:
        """Note that an effect of its handler waits for a person."""
        self.parked, self.parked_in = self.parked or error, (*self.parked_in, *inside)

    def note_doubt(self, error: ParkedError) -> None:
        """Note that an effect of its handler may have been done."""
        self.doubt = self.doubt or error

    def next_key(self, name: str | None = None) -> str:
        """Return the key of the next message or effect of its handler: the same in every run of the handler."""
        if name is None:
            self.unnamed_count += 1
            return str(self.unnamed_count)
        if not keys.is_key(name):
            raise ValueError(f"a key is a name that is no number and has none of / # ~ =, not {name!r}")
        self.keys += (name,)
        count = self.keys.count(name)
        return keys.counted(name, count)

    def wait(self, change: int) -> None:
        """Add `change` to the number of answers and effects that its handler waits for.

        If an actor asks itself, the handler of the question also counts for the handler that asks.
        """
        handled: DeliveryState | None = self
        while handled is not None:
            handled.waits += change
            parent = handled.envelope.parent
            handled = parent if parent is not None and parent.cell is handled.cell else None

    def leave_to_next_system(self) -> bool:
        """Leave its handler, and handlers of the same actor that ask it, to the next system; return whether it runs again."""
        handled: DeliveryState | None = self
        while handled is not None:
            handled.is_left_to_next = self.thread_id is not None
            parent = handled.parent
            handled = parent if parent is not None and parent.cell is handled.cell else None
        return self.is_left_to_next

    def take_deferred(self) -> tuple[tuple[Message, ...], Mapping[str, str]]:
        """Return the deferred rows and marks, and forget them."""
        found = self.deferred_rows, self.marks
        if self.deferred_rows or self.marks:
            self.deferred_rows, self.marks = (), MappingProxyType({})
        return found

    # ------------------------------------------------------------ its outcome

    def settle(self, outcome: Any) -> None:
        """Give the outcome to the caller, and to duplicates."""
        self.is_settled = True
        if (waiter := self.waiter) is not None and not waiter.done():
            waiter.set_result(outcome)
        if self.may_be_known:
            self.outcome = (outcome, None)
        for duplicate in self.duplicates:
            duplicate.settle(outcome)

    def leave_thread(self) -> None:
        """Deliver it outside of its thread, without the journal."""
        self.envelope = self.envelope._replace(thread_id=None)

    def fail(self, error: BaseException) -> None:
        """Give an error to the caller, and to duplicates."""
        self.is_settled = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)
        if self.may_be_known:
            self.outcome = (None, error)
        for duplicate in self.duplicates:
            duplicate.fail(error)

    def fail_duplicates(self, error: BaseException | None = None, *, is_unposted: bool = False) -> None:
        """Give duplicates an error: the message could not be journaled or delivered, and no outcome will come.

        If another host has the thread, its outcome comes from the ledger, unless it could not be posted there.
        """
        if self.evicted is not None and not is_unposted:
            return
        reason = error if isinstance(error, AntiphonError) else WithdrawnError("its first sender could not send it", self.to)
        for other in (*self.duplicates, *(() if self.lent_by is None else (self.lent_by,))):
            other.fail(reason)

    def share_outcome(self, other: DeliveryState) -> None:
        """Give a duplicate of this message the same outcome, now or later."""
        if self.outcome is not None:
            outcome, error = self.outcome
            other.settle(outcome) if error is None else other.fail(error)
        elif self.waiter is None:
            self.waiter, self.lent_by, other.successor = other.waiter, other, self
        else:
            self.duplicates += (other,)

    def forwarded_to(self, to: str) -> DeliveryState:
        """Return a delivery of the same message to another actor. It takes over the caller and the duplicates."""
        old = self.envelope
        passed = DeliveryState(
            old._replace(to=to, id=self.id, message=self.message, hops=old.hops + 1, is_derived=False), may_be_known=False
        )
        passed.deadline, passed.seq, passed.standing = self.deadline, self.seq, self.standing
        passed.waiter, passed.duplicates = self.waiter, self.duplicates
        self.successor, self.is_settled, self.duplicates = passed, True, ()
        return passed

    def withdraw(self, reason: DeliveryError) -> None:
        """Stop the handling: the answer is no longer wanted. If duplicates wait for the answer, the handling continues."""
        if self.successor is not None:
            self.successor.withdraw(reason)
        elif self.withdrawn is None and not self.is_settled and not self.duplicates:
            self.withdrawn = reason
            if self.cell is not None:
                self.cell.withdraw(self)

    def terminate(self, reason: DeliveryError) -> None:
        """Stop the handling, even if duplicates wait for the answer: its thread is terminated."""
        if self.withdrawn is None and not self.is_settled:
            self.withdrawn = reason
            if self.cell is not None:
                self.cell.withdraw(self)

    def expire(self) -> None:
        """Withdraw it and fail its caller: the deadline has passed."""
        error = ReplyTimeoutError(f"no answer to {self.type} in time", self.to)
        self.withdraw(error)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)


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

    def offer(self, delivery: DeliveryState) -> bool:
        """Add a message if there is room and no sender waits for it; return whether it was added."""
        if self.waiting >= self._capacity or self._senders:
            return False
        self.waiting += 1
        if self._box is None:
            self._box = deque((delivery,))
        else:
            self._box.append(delivery)
        return True

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
        delivery.is_urgent = True
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
            if (held := busy.get(key)) is None:
                busy[key], holders[key] = deque(), delivery
                return delivery
            held.append(delivery)
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
        found = [*(self._urgent or ()), *held, *(self._box or ())]
        self._urgent = self._box = None
        self._ready.clear()
        if self._busy is not None:
            self._busy = {key: deque() for key in self._busy}
        self.waiting = 0
        while self._senders:
            self.release()
        return found


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
        self.on_thread_ended: Callable[[], None] = _do_nothing
        """Called when the last message of a thread has ended."""

    def __len__(self) -> int:
        return sum(map(len, self._threads.values()))

    def get(self, delivery: DeliveryState) -> DeliveryState | None:
        """Return the delivery of the same message that is in flight."""
        return self._threads.get(delivery.envelope.thread_id or "", _NONE).get(delivery.invocation_id)

    def has(self, delivery: DeliveryState) -> bool:
        """Whether a message is in flight."""
        return delivery.invocation_id in self._threads.get(delivery.envelope.thread_id or "", _NONE)

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
        thread_id = delivery.envelope.thread_id or ""
        self._threads.setdefault(thread_id, {})[delivery.invocation_id] = delivery
        delivery.since = current_port().now()
        if (resting := self._resting.get(thread_id)) is not None:
            resting.pop(delivery.invocation_id, None)

    def drop(self, delivery: DeliveryState) -> None:
        """Remove a message, unless another delivery of it is in flight."""
        thread_id = delivery.envelope.thread_id or ""
        if (found := self._threads.get(thread_id)) is not None:
            if found.get(delivery.invocation_id) is delivery:
                del found[delivery.invocation_id]
                self._resting.pop(thread_id, None)  # it may be what they wait for
            if not found:
                del self._threads[thread_id]
                self.on_thread_ended()

    def drop_thread(self, thread_id: str) -> tuple[DeliveryState, ...]:
        """Remove all messages of a thread, and return their deliveries."""
        self._resting.pop(thread_id, None)
        return tuple(self._threads.pop(thread_id, _NONE).values())

    def abandon(self, delivery: DeliveryState, error: AntiphonError) -> None:
        """Remove a message without ending its call, which stays open for the next owner. The caller gets an error."""
        self.drop(delivery)
        delivery.fail(error)

    def leave_open(self, delivery: DeliveryState, error: AntiphonError) -> None:
        """Abandon a message whose handler waits for something outside, such as the answer of a person."""
        thread_id = delivery.envelope.thread_id or ""
        resting = self._resting.get(thread_id, {})
        self.abandon(delivery, error)
        # What came while its handler ran may be what it waits for: then it does not rest, and runs once more.
        own: dict[str, datetime] = {} if delivery.is_told else {delivery.invocation_id: delivery.since}
        self._resting[thread_id] = {**resting, **own}

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


def _do_nothing() -> None:
    pass


class Recent:
    """The latest messages by id, handled or answered. One that failed with a retryable error may be sent again."""

    def __init__(self, limit: int = 10_000) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, DeliveryState] = OrderedDict()

    def knows(self, delivery: DeliveryState) -> bool:
        """Whether the same message came before; then it gets that outcome. Otherwise it is kept."""
        known = self._kept.get(delivery.id)
        if known is not None and not _may_pass(known):
            known.share_outcome(delivery)
            return True
        self._kept[delivery.id] = delivery
        if len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        return False

    def message(self, id: str) -> Message | None:
        """Return a message by its id."""
        known = self._kept.get(id)
        return None if known is None else known.message


def _may_pass(delivery: DeliveryState) -> bool:
    error = None if delivery.outcome is None else delivery.outcome[1]
    return isinstance(error, AntiphonError) and error.retryable
