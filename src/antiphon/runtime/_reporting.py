"""Reporting: how the runtime reports to the outside. Observers, failures as data, logs and dead letters.

**Observer** is the class that a user overrides to see what a system does. It changes nothing. It is called on the event loop,
in the middle of deliveries, and must be quick.

- An observer gets `Delivery`, `Activity` and `DeadLetter` objects.
- Operations describe a handler or an effect: a model request, or a run of a tool, an agent or a program. The runtime knows
  messages and effects; only the code inside knows their purpose. That code calls `describe`, and calls it again when it knows
  more.

**Hooks** are the one place that calls the observer, so that nothing an observer does can harm an actor. Every part of the
runtime that reports something has an optional `Hooks`. Without an observer it is None, and each report costs one comparison.
An observer is guarded as every listener is (see `_listeners`); one that raises is not called again.

**Logs** have structured fields, and never the content of a message. The text of an exception may quote a message. So the log
has only the code or the class of an actor's error, and the lines of code. Errors of the ledger name threads, ids and files,
and may be quoted.

`DeadLetters` keeps the latest messages that no actor will handle, and counts all of them.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

from antiphon._listeners import Guard
from antiphon.errors import DeliveryError, FailedError, LedgerError, UnknownOutcomeError
from antiphon.ledger import STANDARD_REDACTION, Redaction
from antiphon.messages import Json, Message, OptionResultPayload, Usage, current_port
from antiphon.messages._arguments import check_type
from antiphon.runtime._rows import origin_of, text_of

if TYPE_CHECKING:
    from antiphon.runtime._course import Course
    from antiphon.runtime._delivery import DeliveryState


@dataclass(frozen=True, slots=True)
class ModelOperation:
    """A request to a model."""

    model: str
    """The requested model."""
    provider: str = ""
    """A name of the OpenTelemetry GenAI conventions, where they have one: `openai`, `anthropic`, `gcp.gemini`, …"""
    settings: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """`temperature`, `top_p`, `top_k`, `max_tokens`, `seed`, `stop_sequences`, …"""
    url: str | None = None
    """The URL of the service; only host and port are recorded."""
    response_model: str | None = None
    """The model that answered."""
    response_id: str | None = None
    finish_reasons: Sequence[str] = ()
    usage: Usage | None = None
    input: Sequence[Message] = ()
    """The prompt; used only if content is recorded."""
    output: Sequence[Message] = ()
    """The answer; used only if content is recorded."""


@dataclass(frozen=True, slots=True)
class ToolOperation:
    """One run of a tool."""

    name: str
    call_id: str | None = None
    type: str = "function"
    description: str | None = None
    error_type: str | None = None
    """The error code, if the effect returns a failure instead of raising it."""
    arguments: Json = None
    """Used only if content is recorded."""
    result: Json = None
    """Used only if content is recorded."""


@dataclass(frozen=True, slots=True)
class AgentOperation:
    """One run of an agent; its model requests and tool runs are below it."""

    name: str
    id: str | None = None
    description: str | None = None
    model: str | None = None
    provider: str = ""
    usage: Usage | None = None
    """The total of the requests that were made, without those replayed from the ledger."""


@dataclass(frozen=True, slots=True)
class RunOperation:
    """A run of a program in a thread; its agents and effects are below it."""

    name: str
    """The program, as the kind of the thread names it: `run/NAME`."""
    id: str
    """The id of the run within its thread."""
    attempt: int | None = None
    """How often it was started; None if it could not be started."""
    is_replay: bool = False
    """Whether it had finished before, so all its results come from the ledger."""


Operation: TypeAlias = ModelOperation | ToolOperation | AgentOperation | RunOperation


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that no actor will handle."""

    message: Message
    to: str
    code: str
    """The code of the error."""
    reason: str
    at: datetime


class Place(NamedTuple):
    """The name of a delivery, by which other messages refer to it. Span ids are derived from it."""

    invocation_id: str
    address: str
    failures: int


class Delivery:
    """A read-only view of a message that is being delivered or handled."""

    __slots__ = ("_state",)

    def __init__(self, state: DeliveryState) -> None:
        self._state = state

    @property
    def to(self) -> str:
        """The address of the actor."""
        return self._state.to

    @property
    def sender(self) -> str:
        return self._state.sender

    @property
    def type(self) -> str:
        """The type of a request or a notice, the option of a call; empty for talk."""
        return self._state.type

    @property
    def id(self) -> str:
        return self._state.id

    @property
    def thread_id(self) -> str | None:
        return self._state.thread_id

    @property
    def exchange(self) -> str:
        """The exchange that it belongs to: all messages that follow from one message from outside."""
        return self._state.exchange

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return self._state.attempt

    @property
    def message(self) -> Message:
        """The core message. For a typed request outside of a thread, the first access makes it, which takes time."""
        return self._state.message

    @property
    def place(self) -> Place:
        """Its current name. Failed deliveries count as attempts; deliveries that ended with their process do not."""
        state = self._state
        return Place(state.invocation_id, str(state.to), state.standing.failed + state.standing.reruns)

    @property
    def parent(self) -> Delivery | None:
        """The delivery whose handler sent it, if that is in this process."""
        parent = self._state.parent
        return None if parent is None else Delivery(parent)

    @property
    def parent_place(self) -> Place | None:
        """The name of the delivery whose handler sent it; if that was in another process, of its first attempt."""
        if self._state.parent is not None:
            return Delivery(self._state.parent).place
        message = self._state.message_if_made
        if message is None or message.parent_id is None:
            return None
        return Place(message.parent_id, message.policy, 0)

    @property
    def origin(self) -> str | None:
        """The trace that it was sent in from outside, as a W3C `traceparent`."""
        message = self._state.message_if_made
        return self._state.origin or (None if message is None else origin_of(message))

    @property
    def withdrawn(self) -> str | None:
        """The code of the reason why the answer is no longer wanted."""
        reason = self._state.callers.withdrawn
        return None if reason is None else reason.code

    @property
    def activity(self) -> Activity | None:
        """Its handling, the current or the last one."""
        activity = self._state.activity
        return activity if isinstance(activity, Activity) else None


@dataclass(frozen=True, slots=True)
class EffectRun:
    """A running effect. An effect whose recorded outcome is used has no `EffectRun`."""

    key: str
    """The name that the handler gave it."""
    effects: Literal["none", "idempotent", "once"]
    arguments: Mapping[str, Json]


@dataclass(slots=True)
class Activity:
    """Something that takes time: the handling of a message, an effect of a handler, or a run of an agent."""

    thread_id: str | None
    address: str
    """The address of the actor; for an effect outside of actors, the name of the program."""
    delivery: Delivery | None = None
    """The message; None for an effect outside of actors, and for an operation."""
    effect: EffectRun | None = None
    """None for the handling of a message, and for an operation."""
    waited: float | None = None
    """Seconds that the message was in the mailbox."""
    operation: Operation | None = None
    """The operation, if the code inside has called `describe`."""
    seconds: float = 0.0
    """How long it took, once it has ended."""
    outcome: Any = None
    error_type: str | None = None
    """The code or the class of the error that it ended with."""
    is_declared: bool = False
    """Whether the actor has a handler for this type. Then the type is one of a few, and can be a label of a metric."""
    done: int = 0
    """How many model requests and tool calls it has made directly; for a run, including those of its agents."""
    replayed: int = 0
    """How many were skipped, because the ledger has their outcomes."""
    usage: Usage | None = None
    """The usage of the model requests that it has made directly."""
    redaction: Redaction | None = STANDARD_REDACTION
    """The redaction rules for recorded content: those of its thread, if the observer records content."""
    note: Any = None
    """For use by the observer."""
    tags: Mapping[str, str] | None = None
    """Additional fields by name, such as ids by which the caller finds it."""


class WatchedSystem(Protocol):
    """The part of a system that an observer can use."""

    @property
    def waiting(self) -> Counter[str]:
        """How many messages wait in mailboxes, by the kind of their actors."""
        ...


class Observer:
    """Receives events of a system. Override the methods that you need; the defaults do nothing."""

    records_content: bool = False
    """Whether it records the content of messages, prompts and tool calls. Only such an observer gets whole prompts."""

    # `Any`, because an observer may annotate `System`, which is defined above this file: a parameter of an override must
    # not be narrower than this one.
    def opened(self, system: Any) -> None:
        """Called when a `System` opens. An observer may use the members of `WatchedSystem`."""

    def closed(self, system: Any) -> None:
        """Called when a `System` has closed."""

    def origin(self) -> str | None:
        """Return the current trace of a caller from outside, as a W3C `traceparent`."""

    def accepted(self, delivery: Delivery) -> None:
        """Called when a message was put into a mailbox."""

    def began(self, activity: Activity) -> None:
        """Called when a handler or an effect starts, in its context."""

    def ended(self, activity: Activity) -> None:
        """Called when it has ended, in the same context."""

    def restarted(self, address: str, incarnation: int) -> None:
        """Called when an actor was restarted; `incarnation` counts from 1."""

    def parked(self, delivery: Delivery) -> None:
        """Called when a message was parked."""

    def died(self, letter: DeadLetter) -> None:
        """Called for a message that no actor will handle."""


current: ContextVar[Activity | None] = ContextVar("antiphon_activity", default=None)
"""The current activity, if there is an observer."""


def describe(operation: Operation) -> None:
    """Describe the current handler or effect to the observer; call it again when more is known."""
    activity = current.get()
    if activity is not None:
        activity.operation = operation


def tag(tags: Mapping[str, str]) -> None:
    """Add tags to the current handler or effect, for the observer."""
    activity = current.get()
    if activity is not None:
        activity.tags = {**(activity.tags or {}), **tags}


# ---------------------------------------------------------------- failures and logs


_MOST_TEXT = 2000
"""Characters that are kept of an error's text."""


@dataclass(frozen=True, slots=True)
class ActorFailure:
    """Why an actor failed."""

    address: str
    incarnation: int
    """The number of the failed actor within its cell, from 1: a later actor is not restarted for this failure."""
    error_type: str
    error_message: str
    where: str
    """The file and line that raised."""
    message_id: str | None = None

    @classmethod
    def of(cls, error: BaseException, address: str, incarnation: int, message_id: str | None) -> ActorFailure:
        """Return an exception as data."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
        return cls(address, incarnation, type(error).__qualname__, _text_of(error), where, message_id)


def _text_of(error: BaseException) -> str:
    return text_of(error)[:_MOST_TEXT].encode(errors="replace").decode()


BLOCKED: Final = "LOOP_BLOCKED"
"""The error code of an actor that blocks the event loop."""


LOG = logging.getLogger("antiphon.runtime")


def log_fields(
    subject: DeliveryState | str = "", *, thread_id: str | None = None, error: BaseException | str | None = None
) -> dict[str, str]:
    """Return the fields of a log record, named as in traces; `subject` is a delivery, or the address of an actor."""
    fields: dict[str, str | None] = {"antiphon.thread.id": thread_id}
    if isinstance(subject, str):
        fields["antiphon.actor.address"] = str(subject) or None
    else:
        fields["antiphon.actor.address"] = str(subject.to)
        fields["antiphon.message.id"] = subject.id
        fields["antiphon.message.type"] = subject.type
        fields["antiphon.thread.id"] = subject.thread_id
    if error is not None:
        fields["error.type"] = error if isinstance(error, str) else _class(error)
    return {name: value for name, value in fields.items() if value is not None}


def log_text(error: BaseException) -> str:
    """Return the text that may be logged for an error."""
    return str(error) if isinstance(error, LedgerError) else _class(error)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error without its text."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def report_own_failure(error: BaseException) -> None:
    """Log an unexpected error of the runtime itself."""
    LOG.error("the runtime itself has failed: %s\n%s", log_text(error), traceback_of(error), extra=log_fields(error=error))


def _class(error: BaseException) -> str:
    return error.code if isinstance(error, DeliveryError) else type(error).__qualname__


# ---------------------------------------------------------------- calls of the observer


UNKNOWN_OUTCOME: Final = "UNKNOWN_OUTCOME"
"""The error type of an effect whose outcome is unknown."""

_HEARTBEAT: Final = "HEARTBEAT"
"""The type of `protocol.Heartbeat`. A program without actors reports too, and does not load the protocol."""
ResultT = TypeVar("ResultT")
Rules: TypeAlias = "Callable[[str], Awaitable[Redaction | None]]"


class DeclaresTypes(Protocol):
    """A cell, which knows the types of messages that its actor handles."""

    def declares(self, message_type: str) -> bool:
        """Whether there is a handler for messages of a type."""
        ...


class Hooks:
    """Calls an observer, and catches its exceptions."""

    def __init__(self, observer: Observer, now: Callable[[], float], rules: Rules) -> None:
        """Make it; `rules` returns the redaction rules of a thread."""
        check_type("an observer", observer, Observer, "Telemetry()")
        self._observer = observer
        self._guard = Guard(f"the observer {type(observer).__qualname__}", "it is switched off")
        self._rules = rules
        self.now = now

    @property
    def records_content(self) -> bool:
        """Whether the observer records content."""
        return self._observer.records_content

    def opened(self, system: WatchedSystem) -> None:
        self.tell(self._observer.opened, system)

    def closed(self, system: WatchedSystem) -> None:
        self.tell(self._observer.closed, system)

    def said(self, delivery: DeliveryState) -> None:
        """Set the trace of a message that is sent from outside."""
        if delivery.parent is None and delivery.origin is None:
            origin = self.tell(self._observer.origin)
            if origin is not None:
                delivery.set_origin(origin)

    def accepted(self, delivery: DeliveryState) -> None:
        delivery.accepted_at = self.now()
        self.tell(self._observer.accepted, Delivery(delivery))

    def restarted(self, address: str, incarnation: int) -> None:
        self.tell(self._observer.restarted, str(address), incarnation)

    def parked(self, delivery: DeliveryState) -> None:
        self.tell(self._observer.parked, Delivery(delivery))

    def died(self, letter: DeadLetter) -> None:
        self.tell(self._observer.died, letter)

    async def run(self, cell: DeclaresTypes, delivery: DeliveryState, running: Awaitable[ResultT]) -> ResultT:
        """Await the handling of a message, and report it to the observer. Heartbeats are not reported."""
        if delivery.type == _HEARTBEAT:
            return await running
        activity = Activity(delivery.thread_id, str(delivery.to), Delivery(delivery))
        if delivery.accepted_at is not None:
            activity.waited, delivery.accepted_at = self.now() - delivery.accepted_at, None
        delivery.activity = activity
        if self.records_content:
            await self._redact(activity)
        with _Watched(self, activity):
            try:
                outcome = activity.outcome = await running
            finally:
                activity.is_declared = cell.declares(delivery.type) or delivery.is_command
        return outcome

    def effect(
        self, course: Course, effect: EffectRun, run: Callable[[str], Awaitable[Json]], operation: Operation | None
    ) -> Callable[[str], Awaitable[Json]]:
        """Return `run`, wrapped to report to the observer."""
        handled = None if course.delivery is None else Delivery(course.delivery)

        async def watched(key: str) -> Json:
            activity, around = Activity(course.thread_id, str(course.to), handled, effect, operation=operation), current.get()
            if self.records_content:
                await self._redact(activity)
            try:
                with _Watched(self, activity):
                    result = activity.outcome = await run(key)
            finally:
                _count(activity, around)
            return result

        return watched

    async def operation(self, course: Course, operation: Operation, running: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run something that has effects of its own, such as an agent, and report it to the observer."""
        activity, around = Activity(course.thread_id, str(course.to), operation=operation), current.get()
        if self.records_content:
            await self._redact(activity)
        with _Watched(self, activity):
            try:
                return await running()
            finally:
                if isinstance(activity.operation, AgentOperation):
                    activity.operation = replace(activity.operation, usage=activity.usage)
                if around is not None and isinstance(around.operation, RunOperation):
                    around.done += activity.done
                    around.replayed += activity.replayed

    def replayed(self) -> None:
        """Count a request or a tool call whose recorded outcome is used: it is not executed, and has no activity."""
        if (around := current.get()) is not None:
            around.replayed += 1

    async def _redact(self, activity: Activity) -> None:
        """Give an activity the redaction rules of its thread. If they cannot be read, the standard ones stay."""
        if activity.thread_id is not None:
            with suppress(LedgerError):
                activity.redaction = await self._rules(activity.thread_id)

    def begin(self, activity: Activity) -> None:
        self.tell(self._observer.began, activity)

    def end(self, activity: Activity) -> None:
        self.tell(self._observer.ended, activity)

    def tell(self, hear: Callable[..., ResultT], *what: Any) -> ResultT | None:
        """Call the observer, and return its answer. If it raises, it is replaced by an observer that does nothing."""
        answer = self._guard.call(hear, *what)
        if self._guard.has_failed:
            self._observer = Observer()
        return answer


@contextmanager
def observed_run(observer: Observer, operation: RunOperation, thread_id: str) -> Generator[Activity, None, None]:
    """Report a run of a program to an observer, for a `with` block. Its content is the content of its effects."""

    async def no_rules(thread_id: str) -> None:
        return None

    hooks = Hooks(observer, asyncio.get_running_loop().time, no_rules)
    activity = Activity(thread_id, operation.name, operation=operation)
    with _Watched(hooks, activity):
        yield activity


class _Watched:
    """The block of an activity."""

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
        try:  # noqa: SIM105 (this runs for each message, and `suppress` is slow)
            current.reset(self._token)
        except ValueError:
            pass  # a coroutine that is closed after its event loop runs in another context


def _error_type(error: BaseException, delivery: Delivery | None) -> str:
    if isinstance(error, asyncio.CancelledError) and delivery is not None and delivery.withdrawn is not None:
        return delivery.withdrawn
    if isinstance(error, UnknownOutcomeError):
        return UNKNOWN_OUTCOME
    return error.code if isinstance(error, DeliveryError | FailedError) else type(error).__qualname__


def _count(activity: Activity, around: Activity | None) -> None:
    """Count a request or a tool call for the enclosing activity."""
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


def added(one: Usage | None, other: Usage | None) -> Usage | None:
    """Return the sum of two usages; None if neither is known."""
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


class DeadLetters:
    """The latest dead letters, and the number of all by code."""

    def __init__(self, limit: int, hooks: Hooks | None = None) -> None:
        self._hooks = hooks
        self._kept: deque[DeadLetter] = deque(maxlen=limit)
        self.counts: Counter[str] = Counter()

    def add(self, delivery: DeliveryState, code: str, reason: str) -> None:
        """Keep a message that no actor will handle. Its content is not logged."""
        self.counts[code] += 1
        letter = DeadLetter(delivery.message, delivery.to, code, reason, current_port().now())
        self._kept.append(letter)
        if self._hooks is not None:
            self._hooks.died(letter)
        fields = log_fields(delivery, error=code)
        LOG.warning("dead letter: %s to %s: %s", delivery.type or "talk", delivery.to, code, extra=fields)

    def add_unless_asked(self, delivery: DeliveryState, error: DeliveryError) -> None:
        """Keep a message that ends with an error, if no caller gets it."""
        if delivery.callers.waiter is None and not delivery.is_call:
            self.add(delivery, error.code, error.reason)

    @property
    def kept(self) -> tuple[DeadLetter, ...]:
        return tuple(self._kept)
