"""Observer: what a user overrides to see what a system does, and the values that it is given.

Nothing of this changes what happens. An observer is called on the event loop, in the middle of things, and must be quick.
One that raises is not called again, which is logged. `Hooks` (`_hooks.py`) makes the calls.

- `Delivery`, `Activity` and `DeadLetter` are what an observer is given.
- Operations say what a handler or an effect is: a request to a model, a run of a tool or an agent. The runtime knows
  messages and effects; only the code inside knows what they are for. It says so with `describe`, again when it knows more.
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
from antiphon.runtime._envelope import DeliveryState
from antiphon.runtime._rows import origin_of

if TYPE_CHECKING:
    pass


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


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that nobody will handle."""

    message: Message
    to: str
    code: str
    """Why: the code of the error."""
    reason: str
    at: datetime


class Place(NamedTuple):
    """A message in the hands of one actor, as far as another message can name it."""

    invocation_id: str
    address: str
    failures: int


class Delivery:
    """A message that is on its way to an actor, or in its hands."""

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
        """The exchange that it belongs to: what follows from one message said from outside has the same."""
        return self._state.exchange

    @property
    def attempt(self) -> int:
        """Which delivery this is, from 1."""
        return self._state.attempt

    @property
    def message(self) -> Message:
        """The message itself. To look at it has a price, where what is said is a typed request outside of a thread."""
        return self._state.message

    @property
    def place(self) -> Place:
        """What it is, now: deliveries that a handler has failed count, those that a process did not survive do not."""
        state = self._state
        return Place(state.invocation_id, str(state.to), state.standing.failed + state.reruns)

    @property
    def parent(self) -> Delivery | None:
        """The message in whose course it was said, if that is here."""
        parent = self._state.parent
        return None if parent is None else Delivery(parent)

    @property
    def parent_place(self) -> Place | None:
        """The message in whose course it was said, also if another process had that; then as it was at first."""
        if self._state.parent is not None:
            return Delivery(self._state.parent).place
        message = self._state.message_if_made
        if message is None or message.parent_id is None:
            return None
        return Place(message.parent_id, message.policy, 0)

    @property
    def origin(self) -> str | None:
        """The trace in which it was said from outside, as a W3C `traceparent`."""
        message = self._state.message_if_made
        return self._state.origin or (None if message is None else origin_of(message))

    @property
    def withdrawn(self) -> str | None:
        """The code of the reason why nobody wants the answer any more."""
        return None if self._state.withdrawn is None else self._state.withdrawn.code

    @property
    def activity(self) -> Activity | None:
        """What the actor does about it at present, or did at last."""
        activity = self._state.activity
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


class Observer:
    """Is told what a system does. Override what you want to know; nothing is done here."""

    records_content: bool = False
    """Whether it keeps what messages, models and tools say: only then is it told the whole prompt of a request."""

    # `Any`, because an observer may annotate `System`, which is defined above this file: a parameter of an override must
    # not be narrower than this one.
    def opened(self, system: Any) -> None:
        """Hear that a `System` begins. `WatchedSystem` says what an observer may ask of it."""

    def closed(self, system: Any) -> None:
        """Hear that a `System` has ended."""

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
