"""Observer: what a system tells an observer while it works, and the values that it tells.

Nothing of this changes what happens. Without an observer each place is a look at one variable. An observer is called on
the event loop, in the middle of things, and must be quick; one that raises is not called again, which is logged.

- `Observer` is what a user overrides. `Delivery`, `Activity` and `DeadLetter` are what it is given.
- `Hooks` is the one place that calls it, so that nothing an observer does can harm an actor.
- Operations say what a handler or an effect is: a request to a model, a run of a tool or an agent. The runtime knows
  messages and effects; only the code inside knows what they are for. It says so with `describe`, again when it knows more.
- `DeadLetters` keeps the latest messages that nobody will handle, and counts all of them.
- `FlowReporter` judges each thread by a flow, and reports the first message that the flow does not allow.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from antiphon.errors import DeliveryError
from antiphon.messages import Json, Message, OptionResultPayload, Usage, current_port
from antiphon.protocol import Heartbeat
from antiphon.protocol.flows import Flow, FlowWatch, Verdict
from antiphon.runtime._envelope import Envelope, origin_of
from antiphon.runtime._failures import LOG, FailedError, Failure, about

if TYPE_CHECKING:
    from antiphon.ledger import Record


@dataclass(frozen=True, slots=True)
class ModelOperation:
    """A request to a model."""

    model: str
    """As it was asked for."""
    provider: str = ""
    """A name of the OpenTelemetry GenAI conventions, where they have one: `openai`, `anthropic`, `gcp.gemini`, …"""
    settings: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """`temperature`, `top_p`, `top_k`, `max_tokens`, `seed`, `stop_sequences`, …"""
    response_model: str | None = None
    """The one that answered."""
    response_id: str | None = None
    finish_reasons: Sequence[str] = ()
    usage: Usage | None = None
    input: Sequence[Message] = ()
    """What the model was given; looked at only where content is recorded."""
    output: Sequence[Message] = ()
    """What it answered; looked at only where content is recorded."""


@dataclass(frozen=True, slots=True)
class ToolOperation:
    """One run of a tool."""

    name: str
    call_id: str | None = None
    type: str = "function"
    arguments: Json = None
    """Looked at only where content is recorded."""
    result: Json = None
    """Looked at only where content is recorded."""


@dataclass(frozen=True, slots=True)
class AgentOperation:
    """One run of an agent: models and tools are below it."""

    name: str
    id: str | None = None
    model: str | None = None
    provider: str = ""
    usage: Usage | None = None
    """Of all its requests together."""


Operation: TypeAlias = ModelOperation | ToolOperation | AgentOperation


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that nobody will handle."""

    message: Message
    to: str
    code: str
    """Why: the code of the error."""
    reason: str
    at: datetime


class DeadLetters:
    """The latest dead letters, and how many there were by code."""

    def __init__(self, limit: int, hooks: Hooks | None = None) -> None:
        self._hooks = hooks
        self._kept: deque[DeadLetter] = deque(maxlen=limit)
        self.counts: Counter[str] = Counter()

    def add(self, envelope: Envelope, code: str, reason: str) -> None:
        """Keep a message that nobody will handle. Its body is not logged."""
        self.counts[code] += 1
        letter = DeadLetter(envelope.message, envelope.to, code, reason, current_port().now())
        self._kept.append(letter)
        if self._hooks is not None:
            self._hooks.died(letter)
        fields = about(envelope, error=code)
        LOG.warning("dead letter: %s to %s: %s", envelope.type or "talk", envelope.to, code, extra=fields)

    def add_unless_asked(self, envelope: Envelope, error: DeliveryError) -> None:
        """Keep a message that ends with an error, if no caller gets to know."""
        if envelope.waiter is None and not envelope.is_call:
            self.add(envelope, error.code, error.reason)

    @property
    def kept(self) -> tuple[DeadLetter, ...]:
        return tuple(self._kept)


class Place(NamedTuple):
    """A message in the hands of one actor, as far as another message can name it."""

    invocation_id: str
    address: str
    failures: int


class Delivery:
    """A message that is on its way to an actor, or in its hands."""

    __slots__ = ("_envelope",)

    def __init__(self, envelope: Envelope) -> None:
        self._envelope = envelope

    @property
    def to(self) -> str:
        """The address of the actor."""
        return self._envelope.to

    @property
    def sender(self) -> str:
        return self._envelope.sender

    @property
    def type(self) -> str:
        """The type of a request or a notice, the option of a call; empty for talk."""
        return self._envelope.type

    @property
    def id(self) -> str:
        return self._envelope.id

    @property
    def thread_id(self) -> str | None:
        return self._envelope.thread_id

    @property
    def exchange(self) -> str:
        """The exchange that it belongs to: what follows from one message said from outside has the same."""
        return self._envelope.exchange

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return self._envelope.attempt

    @property
    def message(self) -> Message:
        """The message itself. To look at it has a price, where what is said is a typed request outside of a thread."""
        return self._envelope.message

    @property
    def place(self) -> Place:
        """What it is, now: deliveries that a handler has failed count, those that a process did not survive do not."""
        envelope = self._envelope
        return Place(envelope.invocation_id, str(envelope.to), envelope.standing.failed + envelope.reruns)

    @property
    def parent(self) -> Delivery | None:
        """The message in whose course it was said, if that is here."""
        parent = self._envelope.parent
        return None if parent is None else Delivery(parent)

    @property
    def parent_place(self) -> Place | None:
        """The message in whose course it was said, also if another process had that; then as it was at first."""
        if self._envelope.parent is not None:
            return Delivery(self._envelope.parent).place
        message = self._envelope.made
        if message is None or message.parent_id is None:
            return None
        return Place(message.parent_id, message.policy, 0)

    @property
    def origin(self) -> str | None:
        """The trace in which it was said from outside, as a W3C `traceparent`."""
        message = self._envelope.made
        return self._envelope.origin or (None if message is None else origin_of(message))

    @property
    def withdrawn(self) -> str | None:
        """The code of the reason why nobody wants the answer any more."""
        return None if self._envelope.withdrawn is None else self._envelope.withdrawn.code

    @property
    def activity(self) -> Activity | None:
        """What the actor does about it at present, or did at last."""
        activity = self._envelope.activity
        return activity if isinstance(activity, Activity) else None


@dataclass(frozen=True, slots=True)
class EffectRun:
    """An effect that is being done, not one whose outcome was recorded."""

    key: str
    """The name that the handler gave it."""
    effects: Literal["none", "idempotent", "once"]
    arguments: Mapping[str, Json]


class EffectPlace(NamedTuple):
    """Where an effect is done."""

    thread_id: str | None
    address: str
    delivery: Delivery | None
    """The message in whose course it is done; None outside of actors."""


@dataclass(slots=True)
class Activity:
    """Something that takes time: a message in the hands of its actor, or an effect in its course."""

    thread_id: str | None
    address: str
    """Of the actor; for an effect outside of actors, who does it."""
    delivery: Delivery | None = None
    """The message; None: it is an effect outside of actors."""
    effect: EffectRun | None = None
    """None: it is the handling of the message."""
    waited: float | None = None
    """Seconds that the message was in the mailbox."""
    operation: Operation | None = None
    """What it is, if the code inside has said so."""
    seconds: float = 0.0
    """How long it took, when it has ended."""
    outcome: Any = None
    error_type: str | None = None
    """The code or the class of the error that it ended with."""
    is_declared: bool = False
    """Whether the actor has a handler for messages of this type, which are then not of an endless number."""
    note: Any = None
    """The observer's own."""


class WatchedSystem(Protocol):
    """What an observer can ask of a system."""

    @property
    def waiting(self) -> Counter[str]:
        """How many messages wait in mailboxes, by the kind of their actors."""
        ...


class DeclaresTypes(Protocol):
    """What knows the types of messages that an actor has handlers for."""

    def declares(self, message_type: str) -> bool:
        """Whether there is a handler for messages of a type."""
        ...


class Observer:
    """Is told what a system does. Override what you want to know; nothing is done here."""

    def opened(self, system: WatchedSystem) -> None:
        """Hear that a system begins."""

    def closed(self, system: WatchedSystem) -> None:
        """Hear that a system has ended."""

    def origin(self) -> str | None:
        """Return the trace of whoever says something from outside at present, as a W3C `traceparent`."""

    def accepted(self, delivery: Delivery) -> None:
        """Hear that a message was put into a mailbox."""

    def began(self, activity: Activity) -> None:
        """Hear that a message is being handled, or an effect done; in the context in which that runs."""

    def ended(self, activity: Activity) -> None:
        """Hear that it has ended; in the same context."""

    def restarted(self, address: str, incarnation: int) -> None:
        """Hear that an actor was begun anew; counted from 1."""

    def parked(self, delivery: Delivery) -> None:
        """Hear that a message waits for a person."""

    def died(self, letter: DeadLetter) -> None:
        """Hear of a message that nobody will handle."""


current: ContextVar[Activity | None] = ContextVar("antiphon_activity", default=None)
"""What is being done here, if somebody watches."""


def describe(operation: Operation) -> None:
    """Say what the handler or the effect is in which this is called, for whoever watches; again, when more is known."""
    activity = current.get()
    if activity is not None:
        activity.operation = operation


ResultT = TypeVar("ResultT")


class Hooks:
    """An observer, behind something that catches what it raises."""

    def __init__(self, observer: Observer, now: Callable[[], float]) -> None:
        self._observer = observer
        self.now = now

    def opened(self, system: WatchedSystem) -> None:
        self.tell(self._observer.opened, system)

    def closed(self, system: WatchedSystem) -> None:
        self.tell(self._observer.closed, system)

    def said(self, envelope: Envelope) -> None:
        """Note in which trace something is said, if that is not in the course of a message."""
        if envelope.parent is None and envelope.origin is None:
            origin = self.tell(self._observer.origin)
            if origin is not None:
                envelope.come_from(origin)

    def accepted(self, envelope: Envelope) -> None:
        envelope.accepted_at = self.now()
        self.tell(self._observer.accepted, Delivery(envelope))

    def restarted(self, address: str, incarnation: int) -> None:
        self.tell(self._observer.restarted, str(address), incarnation)

    def parked(self, envelope: Envelope) -> None:
        self.tell(self._observer.parked, Delivery(envelope))

    def died(self, letter: DeadLetter) -> None:
        self.tell(self._observer.died, letter)

    async def run(self, cell: DeclaresTypes, envelope: Envelope, running: Awaitable[ResultT]) -> ResultT:
        """Have a message handled, and tell the observer. Heartbeats are nobody's concern."""
        if envelope.type == Heartbeat.message_type:
            return await running
        activity = Activity(envelope.thread_id, str(envelope.to), Delivery(envelope))
        if envelope.accepted_at is not None:
            activity.waited, envelope.accepted_at = self.now() - envelope.accepted_at, None
        envelope.activity = activity
        with _Watched(self, activity):
            try:
                outcome = activity.outcome = await running
            finally:
                activity.is_declared = cell.declares(envelope.type) or envelope.is_command
        return outcome

    def effect(
        self, effect: EffectRun, run: Callable[[str], Awaitable[Json]], operation: Operation | None, place: EffectPlace
    ) -> Callable[[str], Awaitable[Json]]:
        """Return what does an effect and tells the observer."""

        async def watched(key: str) -> Json:
            activity = Activity(place.thread_id, place.address, place.delivery, effect, operation=operation)
            with _Watched(self, activity):
                result = activity.outcome = await run(key)
            return result

        return watched

    def begin(self, activity: Activity) -> None:
        self.tell(self._observer.began, activity)

    def end(self, activity: Activity) -> None:
        self.tell(self._observer.ended, activity)

    def tell(self, hear: Callable[..., ResultT], *what: Any) -> ResultT | None:
        """Tell the observer something, and return what it says; one that raises is not told anything any more."""
        try:
            return hear(*what)
        except Exception as exc:  # noqa: BLE001 (whatever it is, it is the observer's own)
            failure = Failure.of(exc, "", 0, None)
            name = type(self._observer).__qualname__
            self._observer = Observer()
            text = "the observer %s is switched off: it raised %s at %s"
            LOG.error(text, name, failure.error_type, failure.where, extra=about(error=exc))
            return None


class _Watched:
    """A block in which an activity goes on."""

    __slots__ = ("_activity", "_began", "_hooks", "_token")

    def __init__(self, hooks: Hooks, activity: Activity) -> None:
        self._hooks = hooks
        self._activity = activity

    def __enter__(self) -> None:
        self._token: Token[Activity | None] = current.set(self._activity)
        self._began = self._hooks.now()
        self._hooks.begin(self._activity)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        activity = self._activity
        activity.seconds = self._hooks.now() - self._began
        activity.error_type = _error_in(activity.outcome) if error is None else _error_type(error, activity.delivery)
        self._hooks.end(activity)
        with suppress(ValueError):  # a coroutine whose event loop is gone is closed in another context
            current.reset(self._token)


def _error_type(error: BaseException, delivery: Delivery | None) -> str:
    if isinstance(error, asyncio.CancelledError) and delivery is not None and delivery.withdrawn is not None:
        return delivery.withdrawn
    return error.code if isinstance(error, DeliveryError | FailedError) else type(error).__qualname__


def _error_in(outcome: Any) -> str | None:
    payload = outcome.payload if isinstance(outcome, Message) else outcome
    if isinstance(payload, OptionResultPayload) and payload.is_error:
        return payload.error_type or "ERROR"
    return None


_MOST_THREADS = 10_000
"""Threads that are judged at once: one that was silent while so many others were not is judged no more."""


class FlowReporter:
    """Judges each thread by a flow, message by message."""

    def __init__(self, flow: Flow, report: Callable[[str, Verdict], None], roles: Mapping[str, str]) -> None:
        self._flow = flow
        self._report = report
        self._roles = roles
        self._watches: OrderedDict[str, FlowWatch | None] = OrderedDict()
        """By thread, the latest last; None where a violation was reported, or the beginning is not known."""

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
