"""Course: what effects need of the work around them, in an actor or in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from antiphon.errors import WithdrawnError

if TYPE_CHECKING:
    from antiphon.errors import FencedError
    from antiphon.runtime._delivery import DeliveryState
    from antiphon.runtime._work import OpenWork


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
    def work(self) -> OpenWork:
        """What this attempt has open; all parts of a course share it."""
        ...

    @property
    def inside(self) -> tuple[str, ...]:
        """The parts of the course that this is in, itself included; empty for the whole of it."""
        ...

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

    def wait(self, change: int) -> None:
        """Add `change` to the number of effects that it waits for."""
        ...

    @property
    def delivery(self) -> DeliveryState | None:
        """The message whose handling it is; None for a run."""
        ...


class Handler(Protocol):
    """A handler at work on a message."""

    is_over: bool


class Handling:
    """One attempt of a handler at a message.

    All attempts share the delivery. A task that an attempt has left behind must not start an effect in the next one: it would
    do what the next one does, and under another key. So this has the work of its own attempt.
    """

    inside: tuple[str, ...] = ()

    def __init__(self, delivery: DeliveryState, handler: Handler) -> None:
        self.delivery = delivery
        self._handler = handler
        self.work = delivery.work
        self.thread_id = delivery.thread_id
        self.to = delivery.to
        self.wait = delivery.wait

    @property
    def invocation_id(self) -> str:
        return self.delivery.invocation_id

    @property
    def attempt(self) -> int:
        return self.delivery.attempt

    @property
    def evicted(self) -> FencedError | None:
        return self.delivery.evicted

    @property
    def is_over(self) -> bool:
        return self._handler.is_over

    def next_key(self, name: str | None = None) -> str:
        if self.is_over:  # otherwise the next attempt would find its own effects under other keys
            raise WithdrawnError(f"the handler that asks for {name!r} has ended: await its tasks in it", self.to)
        return self.work.next_key(name)
