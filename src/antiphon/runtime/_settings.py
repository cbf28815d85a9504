"""Settings: the limits of a system and of its threads, and the port that it takes ids, time and random numbers from.

A simulation brings its own port and its own event loop, which says how much time has passed. So it is exact.
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
    """What a thread may use; None is no limit. New messages beyond it are refused; what was started may end."""

    messages: int | None = None
    tokens: int | None = None
    """Input and output tokens of model requests."""
    cost: Decimal | None = None
    """In US dollars."""

    def spent_by(self, thread: ThreadSummary) -> str | None:
        """Return which limit a thread has reached; None if it has reached none."""
        if self.messages is not None and thread.messages >= self.messages:
            return f"{self.messages} messages"
        if self.tokens is not None and thread.input_tokens + thread.output_tokens >= self.tokens:
            return f"{self.tokens} tokens"
        if self.cost is not None and thread.cost >= self.cost:
            return f"{self.cost} US dollars"
        return None


@dataclass(frozen=True, slots=True)
class Settings:
    """The limits and defaults of a system."""

    within: float = 30.0
    """Seconds that an answer may take, by default."""
    hop_limit: int = 64
    """How many messages may follow from each other in a chain."""
    attempts: int = 3
    """How often a message of a thread is handled in all if its handler fails, before it is parked."""
    recoveries: int = 50
    """How often a message of a thread may be in flight when its process dies, before it is parked."""
    budget: Budget = Budget()
    """What each thread may use."""
    dead_letters: int = 1000
    """How many are kept."""
    idle_after: float | None = 900.0
    """Seconds without a message after which an actor of a registered kind is passivated; None: never."""
    block_limit: float | None = 1.0
    """Seconds after which a blocked event loop is reported; None: never."""
    host: str | None = None
    """The name of this host in the ledger, unique among those that live; None: the machine's name, the process and a number."""
    build: str | None = None
    """The version of the program: hosts of one build continue the same threads. None: the environment variable
    `ANTIPHON_BUILD`, or a hash of the program's main file."""
    heartbeat: float = 2.0
    """Seconds between two beats of a host. Its lease is three times as long."""
    poll: float = 0.1
    """Seconds between two looks for messages that other processes have posted to threads of this host."""
    release_after: float = 5.0
    """Seconds without work after which a thread is released, so that another host may take it."""


class RuntimePort(Port, Protocol):
    """The source of new ids, the time and random numbers."""

    def random(self) -> float:
        """Return a random number from 0 to 1, 1 not included."""
        ...


class _Completed:
    """A port without random numbers, completed with those of the machine."""

    def __init__(self, port: Port) -> None:
        self.new_id = port.new_id
        self.now = port.now
        self.random = random.random


def port_in_use() -> RuntimePort:
    """Return the current port, with random numbers."""
    port = current_port()
    return port if hasattr(port, "random") else _Completed(port)  # type: ignore[return-value]  # pyright: ignore[reportReturnType]
