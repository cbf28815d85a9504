"""Envelope: a message on its way to one actor, with what the machinery must know about it.

A typed request that stays in this process and in no thread travels as it is: its core `Message` is made when somebody
looks. That is half the cost of an ask, and nobody can tell, for both are frozen.

Entry: how what is said becomes an envelope, and in which thread it belongs.

What concerns no conversation (restarts, supervision, failures) is in the system thread of the actor that it is for,
unless it is said in the course of a conversation.
"""

from __future__ import annotations

from asyncio import get_running_loop
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

from antiphon.errors import AntiphonError, ReplyTimeoutError, WithdrawnError
from antiphon.messages import DataPart, Json, JsonObject, Message, OptionCallPayload, PartsPayload, current_port, keys, thaw
from antiphon.protocol import ErrorNotification, Notice, Request, Restart, Stop, Supervise
from antiphon.runtime._address import SYSTEM, system_thread
from antiphon.runtime._rows import AGAIN, PARK, option_of, own_call, own_message

if TYPE_CHECKING:
    import asyncio

    from antiphon.errors import DeliveryError
    from antiphon.ledger import Record

OWN = "antiphon"
"""The namespace of metadata that is the runtime's own."""

_COMMANDS = (Restart.message_type, Stop.message_type)


Said: TypeAlias = "Request[Any] | Notice | Message"


Cause: TypeAlias = Literal["failed", "recovered"]


@dataclass(frozen=True, slots=True)
class Standing:
    """What the open rows of a thread tell about one message."""

    again: tuple[str, ...] = ()
    """The rows that say it was delivered again."""
    failed: int = 0
    """How many of them because its handler had failed."""
    parked: Message | None = None
    """The row that parks it."""

    @classmethod
    def of(cls, rows: Sequence[Record], invocation_id: str) -> Standing:
        """Return the standing of a message, by the open calls of its thread."""
        about = [row.message for row in rows if row.message.lane == "effect" and row.message.parent_id == invocation_id]
        again = [message.payload for message in about if option_of(message) == AGAIN]
        return cls(
            again=tuple(row.invocation_id for row in again if isinstance(row, OptionCallPayload)),
            failed=sum(isinstance(row, OptionCallPayload) and row.arguments.get("cause") == "failed" for row in again),
            parked=next((message for message in about if option_of(message) == PARK), None),
        )

    def plus(self, id: str, cause: Cause) -> Standing:
        """Return it with one more delivery."""
        return replace(self, again=(*self.again, id), failed=self.failed + (cause == "failed"))


class Course(Protocol):
    """What an effect is part of: the handling of a message, or a run outside of actors."""

    @property
    def thread_id(self) -> str | None:
        """Where it is written down; None: nowhere."""
        ...

    @property
    def invocation_id(self) -> str:
        """What its effects are known by, with a key each."""
        ...

    @property
    def to(self) -> str:
        """Who does it."""
        ...

    @property
    def attempt(self) -> int:
        """Which try this is, from 1: the ledger has nothing of the first."""
        ...

    @property
    def open_effects(self) -> tuple[Message, ...]:
        """The rows of effects that were begun and are not ended."""
        ...

    @open_effects.setter
    def open_effects(self, rows: tuple[Message, ...]) -> None: ...

    def next_key(self, name: str | None = None) -> str:
        """Return what the next thing is known by that is done."""
        ...

    def wait(self, change: int) -> None:
        """Take note that it waits for one effect more, or less."""
        ...


class Holder(Protocol):
    """What has a message: the cell of its actor."""

    def withdraw(self, envelope: Envelope) -> None:
        """Stop handling a message that nobody wants any more."""
        ...


class Envelope:
    """A message to one actor. What most messages do not need is set when it is needed: the class has the defaults."""

    said: Request[Any] | Notice | None = None
    """What is said, if it is typed."""
    _message: Message | None = None
    thread_id: str | None = None
    """The conversation that it is journaled in; None: it is gone when it is handled."""
    seq: int = 0
    """Its place in the thread."""
    parent: Envelope | None = None
    """The message in whose course it was said."""
    hops: int = 0
    """How many messages it followed from."""
    correlation_id: str | None = None
    deadline: float | None = None
    """In the event loop's time."""
    bucket: dict[Envelope, None] | None = None
    """Where its deadline is kept."""
    waiter: asyncio.Future[Any] | None = None
    """Whoever asked; None for what is told."""
    cell: Holder | None = None
    """The cell that has it."""
    task: asyncio.Task[None] | None = None
    """What handles it at present."""
    withdrawn: DeliveryError | None = None
    """Why nobody wants the answer any more."""
    was_cancelled: bool = False
    """Whether what handles it was told to stop."""
    is_interrupted: bool = False
    """Whether its handler is being stopped for the actor's sake, to run again."""
    is_left: bool = False
    """Whether its handler is left to the next system: this one ends, and what the handler waits for is not to be had here."""
    is_urgent: bool = False
    """Whether it is a message of the system, which comes before all others."""
    key: str | None = None
    """What it must not be handled beside: set by a mailbox whose actor handles several messages at once."""
    is_derived: bool = False
    """Whether its id is made of the id of what its sender handles."""
    may_be_known: bool = False
    """Whether the ledger may have it already."""
    is_settled: bool = False
    """Whether it was answered, passed on, or put away."""
    standing: Standing = Standing()
    """What the journal has about deliveries of it before this one."""
    reruns: int = 0
    """How often its handler was run without a row that says so, because there was no ledger to write it to."""
    is_unsure: bool = False
    """Whether the ledger may have more about it than its standing says."""
    open_effects: tuple[Message, ...] = ()
    """The rows of effects that its handler has begun and not ended."""
    put_off: tuple[Message, ...] = ()
    """Rows of its handler that are written down together with the next one."""
    marks: Mapping[str, str] = MappingProxyType({})
    """How the thread is listed from the next row of its handler on."""
    waits: int = 0
    """How many answers and effects its handler waits for."""
    keys: tuple[str, ...] = ()
    """The keys that its handler has used."""
    said_count: int = 0
    """How many things its handler has said without naming them."""
    outcome: tuple[Any, BaseException | None] | None = None
    """What became of it, kept for those who say the same again."""
    heir: Envelope | None = None
    """The one that has what whoever waits for this waits for."""
    sharers: tuple[Envelope, ...] = ()
    """Others that get the same outcome."""
    lender: Envelope | None = None
    """The one whose waiter this has, because nobody waited for it."""
    origin: str | None = None
    """The trace in which it was said from outside, as a W3C `traceparent`."""
    accepted_at: float | None = None
    """When it was put into the mailbox, if somebody watches."""
    activity: object = None
    """The observer's record of what is done about it."""

    def __init__(self, said: Said, sender: str, to: str, id: str | None = None) -> None:
        self._id = id
        if isinstance(said, Message):
            self._message, self._id = said, said.id
        else:
            self.said = said
        self.sender = sender
        self.to = to

    def follow(self, parent: Envelope) -> None:
        """Become something that is said in the course of another message."""
        self.parent = parent
        self.hops = parent.hops + 1
        self.correlation_id = parent.exchange

    @property
    def id(self) -> str:
        """The id of the message, which is also the invocation of a typed request."""
        if self._id is None:
            self._id = current_port().new_id()
        return self._id

    @property
    def invocation_id(self) -> str:
        """What its result names."""
        message = self._message
        return self.id if message is None else message.invocation_id or message.id

    @property
    def exchange(self) -> str:
        """The exchange that everything belongs to that is said in its course."""
        return self.correlation_id or self.id

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return 1 + len(self.standing.again) + self.reruns

    @property
    def has_leftovers(self) -> bool:
        """Whether rows are open only for its sake, as far as is known here."""
        return bool(self.standing.again or self.open_effects)

    @property
    def is_call(self) -> bool:
        """Whether an answer is due."""
        return isinstance(self.said, Request) if self._message is None else self._message.kind == "option_call"

    @property
    def is_command(self) -> bool:
        """Whether it is RESTART or STOP, which the cell obeys in the actor's place."""
        return self.type in _COMMANDS

    @property
    def type(self) -> str:
        """What kind of thing is said: the type of a request or a notice, the option of a call; empty for talk."""
        if self.said is not None:
            return self.said.message_type
        payload = self.message.payload
        if isinstance(payload, OptionCallPayload):
            return payload.option_name
        found = told(self.message)
        return "" if found is None else found[0]

    @property
    def data(self) -> Mapping[str, Json]:
        """The data of a request or a notice, the arguments of a call; empty for talk."""
        payload = self.message.payload
        if isinstance(payload, OptionCallPayload):
            return payload.arguments
        found = told(self.message)
        return JsonObject({}) if found is None else found[1]

    @property
    def message(self) -> Message:
        """The message, made when first looked at."""
        if self._message is None:
            self._message = self._made()
        return self._message

    @property
    def made(self) -> Message | None:
        """The message, if it was made."""
        return self._message

    def take(self, record: Record) -> None:
        """Go on with the message as the ledger has it, which may have been redacted."""
        self.seq = record.seq
        if record.message is not self._message:
            self._message, self.said = record.message, None

    def _made(self) -> Message:
        said, parent, now = cast("Request[Any] | Notice", self.said), self.parent, current_port().now()
        payload: PartsPayload | OptionCallPayload
        if isinstance(said, Request):
            payload = own_call(self.id, said.message_type, said.to_data())
        else:
            payload = PartsPayload(parts=(DataPart(data={"type": said.message_type, "data": said.to_data()}),))
        return own_message(
            str(self.sender),
            payload,
            id=self.id,
            thread_id=self.thread_id,
            to=(str(self.to),),
            lane="control",
            correlation_id=self.exchange,
            parent_id=None if parent is None else parent.invocation_id,
            created_at=now,
            metadata=self._own_metadata(now),
        )

    def _own_metadata(self, now: datetime) -> dict[str, dict[str, Json]] | None:
        """Return what travels with a message that is written down: when its answer is worthless, and how far it has come."""
        own: dict[str, Json] = {}
        if self.deadline is not None:
            left = self.deadline - get_running_loop().time()
            own["deadline"] = (now + timedelta(seconds=left)).isoformat()
        if self.hops:
            own["hops"] = self.hops
        if self.origin is not None:
            own["traceparent"] = self.origin
        return {OWN: own} if own else None

    def come_from(self, origin: str) -> None:
        """Say in which trace it was said; what is written down says it too, so that a recovery knows it."""
        self.origin = origin
        if self._message is not None:
            metadata = {**{name: thaw(value) for name, value in self._message.metadata.items()}, OWN: {"traceparent": origin}}
            self._message = self._message.model_copy(update={"metadata": metadata})

    def derive_id(self, parent: Envelope, key: str) -> None:
        """Take an id that is the same when the handler of the other message runs again."""
        self._id = keys.child_id(parent.invocation_id, key)
        self.is_derived = True
        self.may_be_known = parent.attempt > 1

    def rename(self) -> None:
        """Take the next id: what was said under this one was withdrawn."""
        self._id = keys.renamed(self.id)
        self._message = None if self.said is not None else renamed(self.message, self._id)

    def begin_again(self, cell: Holder, standing: Standing) -> None:
        """Be delivered another time: what its handler says is numbered from the beginning."""
        self.cell, self.standing = cell, standing
        self.said_count, self.keys, self.open_effects, self.put_off = 0, (), (), ()

    def next_key(self, name: str | None = None) -> str:
        """Return what the next thing is known by that its handler says or does; the same whenever it runs."""
        if name is None:
            self.said_count += 1
            return str(self.said_count)
        if not keys.is_key(name):
            raise ValueError(f"a key is a name that is no number and has none of / # ~ =, not {name!r}")
        self.keys += (name,)
        count = self.keys.count(name)
        return keys.counted(name, count)

    def wait(self, change: int) -> None:
        """Take note that its handler waits for an answer or an effect more, or less; also of what an actor asks itself."""
        handled: Envelope | None = self
        while handled is not None:
            handled.waits += change
            parent = handled.parent
            handled = parent if parent is not None and parent.cell is handled.cell else None

    def leave(self) -> bool:
        """Leave its handler to the next system, if that will run it again; say whether it will."""
        handled: Envelope | None = self
        while handled is not None:
            handled.is_left = self.thread_id is not None
            parent = handled.parent
            handled = parent if parent is not None and parent.cell is handled.cell else None
        return self.is_left

    def take_put_off(self) -> tuple[tuple[Message, ...], Mapping[str, str]]:
        """Hand out what is to be written down with the next row."""
        found = self.put_off, self.marks
        if self.put_off or self.marks:
            self.put_off, self.marks = (), MappingProxyType({})
        return found

    # ------------------------------------------------------------ how it ends

    def settle(self, outcome: Any) -> None:
        """Give the outcome to whoever waits."""
        self.is_settled = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(outcome)
        if self.may_be_known:
            self.outcome = (outcome, None)
        for sharer in self.sharers:
            sharer.settle(outcome)

    def fail(self, error: BaseException) -> None:
        """Give an error to whoever waits."""
        self.is_settled = True
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)
        if self.may_be_known:
            self.outcome = (None, error)
        for sharer in self.sharers:
            sharer.fail(error)

    def disappoint(self, error: BaseException | None = None) -> None:
        """Let those who share the outcome know that there will be none: it could not be said, or not be delivered."""
        reason = error if isinstance(error, AntiphonError) else WithdrawnError("whoever said it first could not", self.to)
        for other in (*self.sharers, *(() if self.lender is None else (self.lender,))):
            other.fail(reason)

    def share(self, other: Envelope) -> None:
        """Let another envelope of the same message have the same outcome."""
        if self.outcome is not None:
            outcome, error = self.outcome
            other.settle(outcome) if error is None else other.fail(error)
        elif self.waiter is None:
            self.waiter, self.lender, other.heir = other.waiter, other, self
        else:
            self.sharers += (other,)

    def pass_on(self, to: str) -> Envelope:
        """Return the same message for another actor, which gives the outcome to whoever waits for it."""
        passed = Envelope(self.message, self.sender, to)
        passed.thread_id, passed.parent, passed.hops = self.thread_id, self.parent, self.hops + 1
        passed.correlation_id, passed.deadline, passed.seq = self.correlation_id, self.deadline, self.seq
        passed.waiter, passed.sharers, passed.said, passed.standing = self.waiter, self.sharers, self.said, self.standing
        self.heir, self.is_settled, self.sharers = passed, True, ()
        return passed

    def withdraw(self, reason: DeliveryError) -> None:
        """Let whoever handles it know that nobody wants the answer any more."""
        if self.heir is not None:
            self.heir.withdraw(reason)
        elif self.withdrawn is None and not self.is_settled and not self.sharers:
            self.withdrawn = reason
            if self.cell is not None:
                self.cell.withdraw(self)

    def expire(self) -> None:
        """Give up waiting: the deadline has passed."""
        error = ReplyTimeoutError(f"no answer to {self.type} in time", self.to)
        self.withdraw(error)
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_exception(error)


def renamed(message: Message, id: str) -> Message:
    """Return a message under another id, which is the invocation too if it is a call."""
    changes: dict[str, Any] = {"id": id}
    if isinstance(message.payload, OptionCallPayload):
        changes["payload"] = message.payload.model_copy(update={"invocation_id": id})
    return message.model_copy(update=changes)


def told(message: Message) -> tuple[str, Mapping[str, Json]] | None:
    """Return the type and the data of a message that is told and not asked; None for talk."""
    match message.parts:
        case (DataPart(data=JsonObject() as data),) if message.lane == "control" and set(data) == {"type", "data"}:
            kind, content = data["type"], data["data"]
            return (kind, content) if isinstance(kind, str) and isinstance(content, JsonObject) else None
        case _:
            return None


def origin_of(message: Message) -> str | None:
    """Return the trace in which a message was said that was written down, or comes from another system."""
    own = message.metadata.get(OWN)
    origin = own.get("traceparent") if isinstance(own, JsonObject) else None
    return origin if isinstance(origin, str) else None


def travelled(message: Message) -> tuple[int, float | None]:
    """Return how far a message has come that was written down, and its deadline in the event loop's time."""
    own = message.metadata.get(OWN)
    hops: Any = own.get("hops", 0) if isinstance(own, JsonObject) else 0
    deadline: Any = own.get("deadline") if isinstance(own, JsonObject) else None
    if not isinstance(deadline, str):
        return hops, None
    left = (datetime.fromisoformat(deadline) - current_port().now()).total_seconds()
    return hops, get_running_loop().time() + left


class InFlight:
    """The messages of threads that this system has in hand: appended, or about to be, and not settled."""

    def __init__(self) -> None:
        self._envelopes: dict[tuple[str, str], Envelope] = {}
        """By thread and invocation."""

    def __len__(self) -> int:
        return len(self._envelopes)

    def get(self, envelope: Envelope) -> Envelope | None:
        """Return the envelope of the same message that is in hand."""
        return self._envelopes.get(_place(envelope))

    def has(self, envelope: Envelope) -> bool:
        """Whether a message is in hand."""
        return _place(envelope) in self._envelopes

    def take_over(self, envelope: Envelope) -> None:
        """Have a message in hand."""
        self._envelopes[_place(envelope)] = envelope

    def drop(self, envelope: Envelope) -> None:
        """Have a message in hand no more."""
        self._envelopes.pop(_place(envelope), None)

    def let_go(self, envelope: Envelope, error: AntiphonError) -> None:
        """Leave a message to the thread's next owner; the caller here gets an error."""
        self.drop(envelope)
        envelope.fail(error)


def _place(envelope: Envelope) -> tuple[str, str]:
    assert envelope.thread_id is not None  # noqa: S101 (only what is said in a thread comes here)
    return envelope.thread_id, envelope.invocation_id


# ---------------------------------------------------------------- how what is said becomes an envelope

SYSTEM_TYPES: dict[type, str] = {
    Restart: Restart.message_type,
    Stop: Stop.message_type,
    Supervise: Supervise.message_type,
    ErrorNotification: ErrorNotification.message_type,
}


def outside(to: str, said: Request[Any] | Notice | Message, thread_id: str | None, sender: str, id: str | None) -> Envelope:
    """Return the envelope of what somebody says who is no actor.

    Raises:
        ValueError: it is a message of the journal, or of another thread.
    """
    if isinstance(said, Message):
        thread_id = thread_id or said.thread_id or own_thread(to, option_of(said) in SYSTEM_TYPES.values(), None)
        envelope = Envelope(_stamped(said, to, thread_id), sender, to)
        envelope.correlation_id, envelope.may_be_known = said.correlation_id, True
    else:
        if not thread_id and type(said) in SYSTEM_TYPES:
            thread_id = system_thread(to)
        envelope = Envelope(said, sender, to, id)
        if id is not None:
            envelope.may_be_known = True
    if thread_id is not None:
        envelope.thread_id = thread_id
    return envelope


def inside(to: str, said: Request[Any] | Notice | Message, handled: Envelope, address: str, key: str | None) -> Envelope:
    """Return the envelope of what an actor says in the course of a message.

    Raises:
        ValueError: the key is none; or it is a message of the journal.
    """
    if isinstance(said, Message):
        thread_id = said.thread_id or handled.thread_id
        envelope = Envelope(_stamped(said, to, thread_id), address, to)
        envelope.may_be_known = handled.attempt > 1
        envelope.follow(handled)
    else:
        thread_id = own_thread(to, type(said) in SYSTEM_TYPES, handled.thread_id)
        envelope = Envelope(said, address, to)
        envelope.follow(handled)
        if thread_id is not None and handled.thread_id is not None:
            envelope.derive_id(handled, handled.next_key(key))
    envelope.thread_id = thread_id
    return envelope


def own_thread(to: str, is_system: bool, thread_id: str | None) -> str | None:
    if is_system and (thread_id is None or thread_id.startswith(f"{SYSTEM}/")):
        return system_thread(to)
    return thread_id


def _stamped(message: Message, to: str, thread_id: str | None) -> Message:
    """Return a message as it may come in: addressed, of its thread, and with nothing that only the runtime may say."""
    if message.lane == "effect":
        raise ValueError(f"message {message.id!r} is of the journal, which only the runtime writes")
    if message.thread_id not in (None, thread_id):
        raise ValueError(f"message {message.id!r} is of thread {message.thread_id!r}, not of {thread_id!r}")
    changes: dict[str, Any] = {}
    if message.to != (to,):
        changes["to"] = (str(to),)
    if message.thread_id != thread_id:
        changes["thread_id"] = thread_id
    if OWN in message.metadata:
        changes["metadata"] = {name: thaw(value) for name, value in message.metadata.items() if name != OWN}
    return message.model_copy(update=changes) if changes else message
