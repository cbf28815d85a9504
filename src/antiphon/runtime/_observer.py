"""Observer: what a system tells whoever watches it work, and the values that it tells.

Nothing of this changes what happens. Without an observer each place is a look at one variable. An observer is called on
the event loop, in the middle of things, and must be quick; one that raises is not asked again, which is logged.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from antiphon.messages import Json, Message
from antiphon.runtime._envelope import origin_of

if TYPE_CHECKING:
    from antiphon.runtime._dead import DeadLetter
    from antiphon.runtime._envelope import Envelope
    from antiphon.runtime._operations import Operation
    from antiphon.runtime._system import System

__all__ = ["Activity", "Delivery", "EffectRun", "Observer", "Place", "current", "describe", "tag"]


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
        return self._envelope.activity


@dataclass(frozen=True, slots=True)
class EffectRun:
    """An effect that is being done, not one whose outcome was recorded."""

    key: str
    """The name that the handler gave it."""
    effects: Literal["none", "idempotent", "once"]
    arguments: Mapping[str, Json]


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
    tags: dict[str, str] = field(default_factory=dict[str, str])
    """More about it, by name: ids by which the caller finds it again."""


class Observer:
    """Is told what a system does. Override what you want to know; nothing is done here."""

    def opened(self, system: System) -> None:
        """Hear that a system begins."""

    def closed(self, system: System) -> None:
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
