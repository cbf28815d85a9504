"""Delivery: a message to one actor (`Envelope`), and how far its delivery is (`DeliveryState`).

**The envelope is a value.** It says who says what to whom, in which thread, and from which message that follows. It is
frozen. Two things replace it by another: the ledger, when it redacts the message that is appended
(`DeliveryState.use_stored`), and a forward, which has another address (`DeliveryState.forwarded_to`).

**The delivery has the state.** The parts of the runtime hand it on: the dispatcher makes it, the mailbox keeps it, the cell
handles it, and the journal ends it. It is also the `Course` of the effects of its handler.

**Lazy parts.** A typed request that stays in this process and in no thread travels as it is: its core `Message` is made when
first needed, which saves half the cost of an ask. Its id is made when first needed, too. Simulations depend on the order of
`new_id`, so code that moves the first look at an id changes every id after it.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from antiphon.errors import AntiphonError, ReplyTimeoutError, WithdrawnError
from antiphon.messages import DataPart, Json, JsonObject, Message, OptionCallPayload, PartsPayload, current_port, keys, thaw
from antiphon.messages.trusted import quick_call, quick_message
from antiphon.protocol import Notice, Request, Restart, Stop
from antiphon.runtime._rows import OWN, Standing, notice_in, renamed

if TYPE_CHECKING:
    import asyncio

    from antiphon.errors import DeliveryError, FencedError
    from antiphon.ledger import Record

_COMMANDS = (Restart.message_type, Stop.message_type)


class Course(Protocol):
    """What an effect is part of: the handling of a message, or a run outside of actors."""

    @property
    def thread_id(self) -> str | None:
        """The thread that it is journaled in; None: it is not journaled."""
        ...

    @property
    def invocation_id(self) -> str:
        """The prefix of the ids of its effects; each has a key."""
        ...

    @property
    def to(self) -> str:
        """The address or name of what runs it."""
        ...

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1. Before the second, the ledger has nothing to look up."""
        ...

    @property
    def open_effects(self) -> tuple[Message, ...]:
        """The rows of effects that were begun and have not ended."""
        ...

    @open_effects.setter
    def open_effects(self, rows: tuple[Message, ...]) -> None: ...

    def next_key(self, name: str | None = None) -> str:
        """Return the key of the next effect."""
        ...

    @property
    def evicted(self) -> FencedError | None:
        """Why nothing of it may be written or started here any more: another host has its thread."""
        ...

    def wait(self, change: int) -> None:
        """Count one effect more, or less, that it waits for."""
        ...


class Holder(Protocol):
    """The cell that has a delivery."""

    def withdraw(self, delivery: DeliveryState) -> None:
        """Cancel the handler of a message whose answer is no longer wanted."""
        ...


class Envelope(NamedTuple):
    """What is said to one actor, and from where. It never changes: a message that changes gets another envelope."""

    said: Request[Any] | Notice | None
    """The request or the notice, if what is said is typed."""
    message: Message | None
    """The core message; None: it is made of `said` when first needed (`DeliveryState.message`)."""
    sender: str
    to: str
    id: str | None = None
    """Of the message; None: it gets a new one when first needed."""
    thread_id: str | None = None
    """The thread that it is journaled in; None: it is not journaled, and gone once it is handled."""
    parent: DeliveryState | None = None
    """The delivery whose handler sent it."""
    hops: int = 0
    """How many messages it follows from."""
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


class DeliveryState:
    """How far the delivery of one envelope is.

    One delivery is in the hands of one part at a time, and all parts run on one event loop, so nothing here needs a lock.
    Most deliveries need few of the fields: the class has the defaults, and a field is set when it is needed.
    """

    seq: int = 0
    """Its place in the thread."""
    deadline: float | None = None
    """In the event loop's time."""
    bucket: dict[DeliveryState, None] | None = None
    """Where its deadline is kept."""
    origin: str | None = None
    """The trace in which it was said from outside, as a W3C `traceparent`."""
    is_of_host: bool = False
    """Whether it is about an actor of this very host, such as RESTART: it is never posted to another host."""
    # -- where it is
    cell: Holder | None = None
    """The cell that has it."""
    task: asyncio.Task[None] | None = None
    """The task that runs its handler; None: no handler runs, or its outcome is being written and must not be cancelled."""
    key: str | None = None
    """The ordering key: set by a mailbox whose actor handles several messages at once."""
    is_urgent: bool = False
    """Whether it is a message of the system, which comes before all others."""
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
    is_left_to_next: bool = False
    """Whether its handler is left to the next system: this one closes, and the answer that it waits for will not come."""

    # -- earlier deliveries of the same message
    standing: Standing = Standing()
    """What the journal says about them."""
    reruns: int = 0
    """How many of them have no row, because the ledger was unavailable."""
    is_unsure: bool = False
    """Whether the ledger may have more open rows of it than `standing` and `open_effects` say."""

    # -- what its handler has done
    open_effects: tuple[Message, ...] = ()
    """The rows of effects that its handler has begun and not ended."""
    deferred_rows: tuple[Message, ...] = ()
    """Rows of its handler that are written together with the next one."""
    marks: Mapping[str, str] = MappingProxyType({})
    """How the thread is listed from the next row of its handler on."""
    waits: int = 0
    """How many answers and effects its handler waits for."""
    keys: tuple[str, ...] = ()
    """The keys that its handler has used."""
    unnamed_count: int = 0
    """How many messages and effects its handler has begun without a key."""

    # -- its outcome, and who gets it
    waiter: asyncio.Future[Any] | None = None
    """What the caller waits for; None if nobody waits for an answer."""
    is_settled: bool = False
    """Whether it was answered, forwarded, or ended with an error."""
    outcome: tuple[Any, BaseException | None] | None = None
    """Kept for deliveries of the same message that come later."""
    successor: DeliveryState | None = None
    """The delivery that has this one's caller: it was forwarded, or is a duplicate."""
    duplicates: tuple[DeliveryState, ...] = ()
    """Duplicates that get the same outcome."""
    lent_by: DeliveryState | None = None
    """The duplicate whose caller this one has, because it had none of its own."""

    def __init__(self, envelope: Envelope, may_be_known: bool = False) -> None:
        self.envelope = envelope
        self._id = envelope.id
        self._message = envelope.message
        self.may_be_known = may_be_known
        """Whether the ledger, or this process, may have the message already."""

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
            payload = quick_call(self.id, said.message_type, said.to_data())
        else:
            payload = PartsPayload(parts=(DataPart(data={"type": said.message_type, "data": said.to_data()}),))
        return quick_message(
            str(envelope.sender),
            payload,
            id=self.id,
            thread_id=envelope.thread_id,
            to=(str(envelope.to),),
            lane="control",
            correlation_id=self.exchange,
            parent_id=None if parent is None else parent.invocation_id,
            created_at=now,
            metadata=self._own_metadata(now),
        )

    def _own_metadata(self, now: datetime) -> dict[str, dict[str, Json]] | None:
        """Return what recovery needs beside the message: its deadline, its hops and its trace."""
        own: dict[str, Json] = {}
        if self.deadline is not None:
            left = self.deadline - get_running_loop().time()
            own["deadline"] = (now + timedelta(seconds=left)).isoformat()
        if self.envelope.hops:
            own["hops"] = self.envelope.hops
        if self.origin is not None:
            own["traceparent"] = self.origin
        return {OWN: own} if own else None

    def set_origin(self, origin: str) -> None:
        """Set the trace that it belongs to, also in the message, so that recovery knows it."""
        self.origin = origin
        if self._message is not None:
            metadata = {**{name: thaw(value) for name, value in self._message.metadata.items()}, OWN: {"traceparent": origin}}
            self._message = self._message.model_copy(update={"metadata": metadata})

    def rename(self) -> None:
        """Take the next id: what was said under this one was withdrawn."""
        self._id = keys.renamed(self.id)
        self._message = None if self.envelope.said is not None else renamed(self.message, self._id)
        self.envelope = self.envelope._replace(id=self._id, message=self._message)

    def prepare_redelivery(self, cell: Holder, standing: Standing) -> None:
        """Prepare another delivery: the messages and effects of its handler are numbered from 1 again."""
        self.cell, self.standing = cell, standing
        self.unnamed_count, self.keys, self.open_effects, self.deferred_rows = 0, (), (), ()

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
        """Count an answer or an effect more, or less, that its handler waits for.

        A handler that an actor runs for its own question counts for the handler that asks, too.
        """
        handled: DeliveryState | None = self
        while handled is not None:
            handled.waits += change
            parent = handled.parent
            handled = parent if parent is not None and parent.cell is handled.cell else None

    def leave_to_next_system(self) -> bool:
        """Leave its handler, and those of the same actor that ask it, to the next system; return whether it runs again."""
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
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(outcome)
        if self.may_be_known:
            self.outcome = (outcome, None)
        for duplicate in self.duplicates:
            duplicate.settle(outcome)

    def leave_thread(self) -> None:
        """Carry it outside of its thread, unjournaled."""
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

    def fail_duplicates(self, error: BaseException | None = None) -> None:
        """Give duplicates an error: the message could not be journaled or delivered, and no outcome will come.

        If another host has the thread, its outcome comes from the ledger.
        """
        if self.evicted is not None:
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
        passed = DeliveryState(old._replace(to=to, id=self.id, message=self.message, hops=old.hops + 1, is_derived=False))
        passed.deadline, passed.seq, passed.standing = self.deadline, self.seq, self.standing
        passed.waiter, passed.duplicates = self.waiter, self.duplicates
        self.successor, self.is_settled, self.duplicates = passed, True, ()
        return passed

    def withdraw(self, reason: DeliveryError) -> None:
        """Stop the handling: the answer is no longer wanted. If duplicates wait for it, it goes on."""
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
