"""Props: how an actor is made and looked after, shared by all actors that are made alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from antiphon.runtime._actor import Actor

__all__ = ["CAPACITY", "Props", "RestartWhen", "props_of"]

CAPACITY = 1000
"""Messages that may wait for an actor, unless it says otherwise."""

RestartWhen: TypeAlias = Literal["permanent", "transient", "temporary"]
"""When an actor is begun anew after it has ended: always; only if it failed; never."""


@dataclass(frozen=True, slots=True)
class Props:
    """How an actor is made and looked after."""

    factory: Callable[[], Actor]
    supervisor: str
    restart: RestartWhen
    grace: float
    """How many seconds it may go on with what it is doing when it has to stop."""
    concurrency: int
    capacity: int


@lru_cache(maxsize=256)  # so that actors which are made alike share it
def props_of(
    factory: Callable[[], Actor],
    *,
    supervisor: str,
    restart: RestartWhen = "permanent",
    grace: float = 5.0,
    concurrency: int | None = None,
    capacity: int | None = None,
) -> Props:
    """Return how an actor is made; what is not said is what its class says, if the factory is a class."""
    return Props(
        factory=factory,
        supervisor=supervisor,
        restart=restart,
        grace=grace,
        concurrency=getattr(factory, "concurrency", 1) if concurrency is None else concurrency,
        capacity=getattr(factory, "capacity", CAPACITY) if capacity is None else capacity,
    )
