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
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from antiphon.errors import DeliveryError, FailedError, LedgerError, UnknownOutcomeError
from antiphon.ledger import STANDARD_REDACTION, Redaction
from antiphon.messages import Json, Message, OptionResultPayload, Usage, current_port
from antiphon.protocol import Heartbeat
from antiphon.protocol.flows import Flow, FlowWatch, Verdict
from antiphon.runtime._envelope import Course, Envelope, origin_of
from antiphon.runtime._failures import LOG, Failure, about

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
    url: str | None = None
    """Where the service is that was asked; only host and port are told."""
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
    description: str | None = None
    error_type: str | None = None
    """What it failed with, where the effect returns a failure instead of raising it."""
    arguments: Json = None
    """Looked at only where content is recorded."""
    result: Json = None
    """Looked at only where content is recorded."""


@dataclass(frozen=True, slots=True)
class AgentOperation:
    """One run of an agent: models and tools are below it."""

    name: str
    id: str | None = None
    description: str | None = None
    model: str | None = None
    provider: str = ""
    usage: Usage | None = None
    """Of all its requests together that were really made, not taken from the ledger."""


Operation: TypeAlias = ModelOperation | ToolOperation | AgentOperation


def added(one: Usage | None, other: Usage | None) -> Usage | None:
    """Return the tokens of two operations together; None where nobody counted."""
    if one is None or other is None:
        return one or other
    return Usage(
        input_tokens=_sum(one.input_tokens, other.input_tokens),
        output_tokens=_sum(one.output_tokens, other.output_tokens),
        cache_read_tokens=_sum(one.cache_read_tokens, other.cache_read_tokens),
        cache_write_tokens=_sum(one.cache_write_tokens, other.cache_write_tokens),
        reasoning_tokens=_sum(one.reasoning_tokens, other.reasoning_tokens),
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other


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


@dataclass(slots=True)
class Activity:
    """Something that takes time: a message in the hands of its actor, an effect in its course, or a run of an agent."""

    thread_id: str | None
    address: str
    """Of the actor; for an effect outside of actors, who does it."""
    delivery: Delivery | None = None
    """The message; None: it is an effect outside of actors, or an operation."""
    effect: EffectRun | None = None
    """None: it is the handling of the message; without a message, an operation that other activities are part of."""
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
    done: int = 0
    """How many requests to models and tool calls were made directly inside of it."""
    replayed: int = 0
    """How many were not made, because the ledger has their outcome."""
    usage: Usage | None = None
    """Of the requests to models that were made directly inside of it."""
    redaction: Redaction | None = STANDARD_REDACTION
    """What is taken out of content before it is recorded: the rules of its thread, if the observer records content."""
    note: Any = None
    """The observer's own."""
    tags: dict[str, str] = field(default_factory=dict[str, str])
    """More about it, by name: ids by which the caller finds it again."""


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

    records_content: bool = False
    """Whether it keeps what messages, models and tools say: only then is it told the whole prompt of a request."""

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


def tag(tags: Mapping[str, str]) -> None:
    """Add tags to the handler or the effect in which this is called, for an observer."""
    activity = current.get()
    if activity is not None:
        activity.tags.update(tags)


UNKNOWN_OUTCOME: Final = "UNKNOWN_OUTCOME"
"""The code of an effect whose outcome nobody knows: what must not be done twice is then parked."""

ResultT = TypeVar("ResultT")
Rules: TypeAlias = "Callable[[str], Awaitable[Redaction | None]]"


class Hooks:
    """An observer, behind something that catches what it raises."""

    def __init__(self, observer: Observer, now: Callable[[], float], rules: Rules) -> None:
        """Make it; `rules` are those by which what is said in a thread is redacted."""
        self._observer = observer
        self._rules = rules
        self.now = now

    @property
    def records_content(self) -> bool:
        """Whether the observer keeps what is said."""
        return self._observer.records_content

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
        await self._redact(activity)
        with _Watched(self, activity):
            try:
                outcome = activity.outcome = await running
            finally:
                activity.is_declared = cell.declares(envelope.type) or envelope.is_command
        return outcome

    def effect(
        self, course: Course, effect: EffectRun, run: Callable[[str], Awaitable[Json]], operation: Operation | None
    ) -> Callable[[str], Awaitable[Json]]:
        """Return what does an effect and tells the observer."""
        delivery = Delivery(course) if isinstance(course, Envelope) else None

        async def watched(key: str) -> Json:
            activity, around = Activity(course.thread_id, str(course.to), delivery, effect, operation=operation), current.get()
            await self._redact(activity)
            try:
                with _Watched(self, activity):
                    result = activity.outcome = await run(key)
            finally:
                _count(activity, around)
            return result

        return watched

    async def operation(self, course: Course, operation: Operation, running: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Have something done that effects are part of, such as a run of an agent, and tell the observer."""
        activity = Activity(course.thread_id, str(course.to), operation=operation)
        await self._redact(activity)
        with _Watched(self, activity):
            try:
                return await running()
            finally:
                if isinstance(activity.operation, AgentOperation):
                    activity.operation = replace(activity.operation, usage=activity.usage)

    def replayed(self) -> None:
        """Count a request or a tool call whose outcome the ledger has: it is not made, and has no activity."""
        if (around := current.get()) is not None:
            around.replayed += 1

    async def _redact(self, activity: Activity) -> None:
        """Give an activity the rules of its thread. If they cannot be read, the usual ones stay: nothing fails for this."""
        if self.records_content and activity.thread_id is not None:
            with suppress(LedgerError):
                activity.redaction = await self._rules(activity.thread_id)

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
        activity.error_type = _error_in(activity) if error is None else _error_type(error, activity.delivery)
        self._hooks.end(activity)
        with suppress(ValueError):  # a coroutine whose event loop is gone is closed in another context
            current.reset(self._token)


def _error_type(error: BaseException, delivery: Delivery | None) -> str:
    if isinstance(error, asyncio.CancelledError) and delivery is not None and delivery.withdrawn is not None:
        return delivery.withdrawn
    if isinstance(error, UnknownOutcomeError):
        return UNKNOWN_OUTCOME
    return error.code if isinstance(error, DeliveryError | FailedError) else type(error).__qualname__


def _count(activity: Activity, around: Activity | None) -> None:
    """Count a request or a tool call for what it is part of."""
    if around is not None and activity.operation is not None:
        around.done += 1
        if isinstance(activity.operation, ModelOperation):
            around.usage = added(around.usage, activity.operation.usage)


def _error_in(activity: Activity) -> str | None:
    if isinstance(activity.operation, ToolOperation) and activity.operation.error_type is not None:
        return activity.operation.error_type
    payload = activity.outcome.payload if isinstance(activity.outcome, Message) else activity.outcome
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
