"""Settings: the numbers of a system, each with its default."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.runtime._journal import Budget

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for a whole system."""

    within: float = 30.0
    """Seconds that an answer may take, where nobody says anything else."""
    hop_limit: int = 64
    """How many messages may follow from each other."""
    attempts: int = 3
    """How often a message of a thread may be given to a handler that fails, before it is parked."""
    recoveries: int = 50
    """How often a message of a thread may be in hand when its process dies, before it is parked."""
    budget: Budget = Budget()  # noqa: RUF009 (frozen)
    """What each thread may use."""
    dead_letters: int = 1000
    """How many are kept."""
    idle_after: float | None = 900.0
    """Seconds without a message after which an actor of a registered kind is let go of, until the next; None: never."""
    block_limit: float | None = 1.0
    """Seconds after which it is noticed that the event loop is blocked; None: never."""
