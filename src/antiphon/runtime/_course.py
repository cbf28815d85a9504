"""Course: what effects need of the work around them, in an actor or in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from antiphon.errors import WithdrawnError

if TYPE_CHECKING:
    from collections.abc import Collection

    from antiphon.errors import FencedError, ParkedError
    from antiphon.messages import Message
    from antiphon.runtime._delivery import DeliveryState


class Course(Protocol):
    """The enclosing work of an effect: the handling of a message, or a run outside of actors."""

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
        """The address or name of the actor or program that runs it."""
        ...

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. During the first, there is nothing to look up in the ledger."""
        ...

    @property
    def open_effects(self) -> tuple[Message, ...]:
        """The rows of effects that have started and not ended."""
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

    @property
    def is_over(self) -> bool:
        """Whether the handler or the block of the run has ended: tasks that it left behind start nothing more."""
        ...

    @property
    def parked(self) -> ParkedError | None:
        """Why nothing more of it starts in this attempt: one of its effects waits for a person."""
        ...

    @property
    def parked_in(self) -> Collection[str]:
        """The effects in which that effect is. They get no outcome, whatever their functions make of the error."""
        ...

    def note_parked(self, error: ParkedError, inside: tuple[str, ...] = ()) -> None:
        """Note that one of its effects waits for a person; `inside` are the effects of this course around it."""
        ...

    @property
    def doubt(self) -> ParkedError | None:
        """Why nothing that changes something starts in this attempt: an effect that must not be done twice has no outcome."""
        ...

    def note_doubt(self, error: ParkedError) -> None:
        """Note that one of its effects may have been done."""
        ...

    def wait(self, change: int) -> None:
        """Add `change` to the number of effects that it waits for."""
        ...

    @property
    def delivery(self) -> DeliveryState | None:
        """The message whose handling it is; None for a run."""
        ...


class CoursePart:
    """A part of a course, or a view of one: what it does not say itself is that of the whole."""

    def __init__(self, whole: Course) -> None:
        self._whole = whole

    @property
    def thread_id(self) -> str | None:
        return self._whole.thread_id

    @property
    def attempt(self) -> int:
        return self._whole.attempt

    @property
    def open_effects(self) -> tuple[Message, ...]:
        return self._whole.open_effects

    @open_effects.setter
    def open_effects(self, rows: tuple[Message, ...]) -> None:
        self._whole.open_effects = rows

    @property
    def evicted(self) -> FencedError | None:
        return self._whole.evicted

    @property
    def is_over(self) -> bool:
        return self._whole.is_over

    @property
    def parked(self) -> ParkedError | None:
        return self._whole.parked

    @property
    def parked_in(self) -> Collection[str]:
        return self._whole.parked_in

    def note_parked(self, error: ParkedError, inside: tuple[str, ...] = ()) -> None:
        self._whole.note_parked(error, inside)

    @property
    def doubt(self) -> ParkedError | None:
        return self._whole.doubt

    def note_doubt(self, error: ParkedError) -> None:
        self._whole.note_doubt(error)

    def wait(self, change: int) -> None:
        self._whole.wait(change)


class Handler(Protocol):
    """A handler at work on a message."""

    is_over: bool


class Handling:
    """One attempt of a handler at a message.

    All attempts share the delivery. A task that an attempt has left behind must not start an effect in the next one: it would
    do what the next one does, and under another key. So this has the work of its own attempt.
    """

    def __init__(self, delivery: DeliveryState, handler: Handler) -> None:
        self.delivery = delivery
        self._handler = handler
        self._work = delivery.work

    @property
    def thread_id(self) -> str | None:
        return self.delivery.thread_id

    @property
    def invocation_id(self) -> str:
        return self.delivery.invocation_id

    @property
    def to(self) -> str:
        return self.delivery.to

    @property
    def attempt(self) -> int:
        return self.delivery.attempt

    @property
    def evicted(self) -> FencedError | None:
        return self.delivery.evicted

    @property
    def is_over(self) -> bool:
        return self._handler.is_over

    @property
    def open_effects(self) -> tuple[Message, ...]:
        return self._work.open_effects

    @open_effects.setter
    def open_effects(self, rows: tuple[Message, ...]) -> None:
        self._work.open_effects = rows

    @property
    def parked(self) -> ParkedError | None:
        return self._work.parked

    @property
    def parked_in(self) -> Collection[str]:
        return self._work.parked_in

    def note_parked(self, error: ParkedError, inside: tuple[str, ...] = ()) -> None:
        self._work.note_parked(error, inside)

    @property
    def doubt(self) -> ParkedError | None:
        return self._work.doubt

    def note_doubt(self, error: ParkedError) -> None:
        self._work.note_doubt(error)

    def next_key(self, name: str | None = None) -> str:
        if self.is_over:  # otherwise the next attempt would find its own effects under other keys
            raise WithdrawnError(f"the handler that asks for {name!r} has ended: await its tasks in it", self.to)
        return self._work.next_key(name)

    def wait(self, change: int) -> None:
        self.delivery.wait(change)
