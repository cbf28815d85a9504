"""Settings: the numbers of a system, each with its default.

The runtime's port: ids, the time and chance, from one place, so that a simulation can be exact.

How much time has passed is asked of the event loop, which a simulation brings too.
"""

from __future__ import annotations

import random  # noqa: TID251 (the one place)
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Protocol

from antiphon.messages import Port, current_port

if TYPE_CHECKING:
    from antiphon.ledger import ThreadSummary


@dataclass(frozen=True, slots=True)
class Budget:
    """What a thread may use; None is no limit. What would go beyond is refused, what was begun may end."""

    messages: int | None = None
    tokens: int | None = None
    """Of model answers, in and out."""
    cost: Decimal | None = None
    """In US dollars."""

    def spent_by(self, thread: ThreadSummary) -> str | None:
        """Return what a thread has used up; None if it has not."""
        if self.messages is not None and thread.messages >= self.messages:
            return f"{self.messages} messages"
        if self.tokens is not None and thread.input_tokens + thread.output_tokens >= self.tokens:
            return f"{self.tokens} tokens"
        if self.cost is not None and thread.cost >= self.cost:
            return f"{self.cost} US dollars"
        return None


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
    budget: Budget = Budget()
    """What each thread may use."""
    dead_letters: int = 1000
    """How many are kept."""
    idle_after: float | None = 900.0
    """Seconds without a message after which an actor of a registered kind is let go of, until the next; None: never."""
    block_limit: float | None = 1.0
    """Seconds after which it is noticed that the event loop is blocked; None: never."""


class RuntimePort(Port, Protocol):
    """Where new ids, the time and chance come from."""

    def random(self) -> float:
        """Return a number from 0 to 1, 1 not included."""
        ...


class _Completed:
    """A port that has no chance of its own, with the machine's."""

    def __init__(self, port: Port) -> None:
        self.new_id = port.new_id
        self.now = port.now
        self.random = random.random


def port_in_use() -> RuntimePort:
    """Return the port that is in use, with chance."""
    port = current_port()
    return port if hasattr(port, "random") else _Completed(port)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
