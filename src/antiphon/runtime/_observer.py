"""Observer: what a user overrides to see what a system does, and the values that it is given.

An observer changes nothing. It is called on the event loop, in the middle of deliveries, and must be quick. One that raises
is not called again, which is logged. `Hooks` (`_reporting.py`) makes the calls.

- `Delivery`, `Activity` and `DeadLetter` are what an observer is given.
- Operations say what a handler or an effect is: a request to a model, a run of a tool, an agent or a program. The runtime
  knows messages and effects; only the code inside knows what they are for. It says so with `describe`, again when it knows
  more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

from antiphon.ledger import STANDARD_REDACTION, Redaction
from antiphon.messages import Json, Message, Usage
from antiphon.runtime._delivery import DeliveryState
from antiphon.runtime._rows import origin_of

if TYPE_CHECKING:
    pass


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
    """The run, among those of the thread."""
    attempt: int | None = None
    """How often it was begun; None if it could not be."""
    is_replay: bool = False
    """Whether it was finished before, so that all of it comes from the ledger."""


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
    """A delivery as another message can name it. The ids of spans are made of it."""

    invocation_id: str
    address: str
    failures: int


class Delivery:
    """A message that is on its way to an actor, or is being handled: a read-only view."""

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
        """The core message. For a typed request outside of a thread, the first look at it makes it, which takes time."""
        return self._state.message

    @property
    def place(self) -> Place:
        """Its name, now. Failed deliveries count; those that a process did not survive do not."""
        state = self._state
        return Place(state.invocation_id, str(state.to), state.standing.failed + state.reruns)

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
        return None if self._state.withdrawn is None else self._state.withdrawn.code

    @property
    def activity(self) -> Activity | None:
        """Its handling, the current or the last one."""
        activity = self._state.activity
        return activity if isinstance(activity, Activity) else None


@dataclass(frozen=True, slots=True)
class EffectRun:
    """An effect that is being done; one whose recorded outcome is used has none."""

    key: str
    """The name that the handler gave it."""
    effects: Literal["none", "idempotent", "once"]
    arguments: Mapping[str, Json]


@dataclass(slots=True)
class Activity:
    """Something that takes time: the handling of a message, an effect of a handler, or a run of an agent."""

    thread_id: str | None
    address: str
    """Of the actor; for an effect outside of actors, the name of what does it."""
    delivery: Delivery | None = None
    """The message; None for an effect outside of actors, and for an operation."""
    effect: EffectRun | None = None
    """None for the handling of a message, and for an operation."""
    waited: float | None = None
    """Seconds that the message was in the mailbox."""
    operation: Operation | None = None
    """What it is, if the code inside has called `describe`."""
    seconds: float = 0.0
    """How long it took, once it has ended."""
    outcome: Any = None
    error_type: str | None = None
    """The code or the class of the error that it ended with."""
    is_declared: bool = False
    """Whether the actor has a handler for this type. Then the type is one of a few, and can be a label of a metric."""
    done: int = 0
    """How many requests to models and tool calls were made directly inside of it; of a run, also by its agents."""
    replayed: int = 0
    """How many were not made, because the ledger has their outcomes."""
    usage: Usage | None = None
    """Of the requests to models that were made directly inside of it."""
    redaction: Redaction | None = STANDARD_REDACTION
    """The redaction rules for recorded content: those of its thread, if the observer records content."""
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


class Observer:
    """Is told what a system does. Override what you need; the methods here do nothing."""

    records_content: bool = False
    """Whether it records the content of messages, prompts and tool calls. Only then it gets the whole prompt of a request."""

    # `Any`, because an observer may annotate `System`, which is defined above this file: a parameter of an override must
    # not be narrower than this one.
    def opened(self, system: Any) -> None:
        """Called when a `System` opens. `WatchedSystem` has what an observer may use of it."""

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
    """Say what the current handler or effect is, for an observer; call it again when more is known."""
    activity = current.get()
    if activity is not None:
        activity.operation = operation


def tag(tags: Mapping[str, str]) -> None:
    """Add tags to the handler or the effect in which this is called, for an observer."""
    activity = current.get()
    if activity is not None:
        activity.tags.update(tags)
