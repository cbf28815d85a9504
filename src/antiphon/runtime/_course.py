"""Course: what effects need of the work around them, in an actor or in a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from antiphon.errors import FencedError, ParkedError
    from antiphon.messages import Message


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

    def wait(self, change: int) -> None:
        """Add `change` to the number of effects that it waits for."""
        ...

    @property
    def is_delivery(self) -> bool:
        """Whether it is the handling of a message: a `DeliveryState`."""
        ...
