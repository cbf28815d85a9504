"""Props: how an actor is made and looked after, shared by all actors that are made alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from antiphon.messages import Message
    from antiphon.runtime._actor import Actor

__all__ = ["CAPACITY", "OrderingKey", "Props", "RestartWhen", "props_of"]

CAPACITY = 1000
"""Messages that may wait for an actor, unless it says otherwise."""

RestartWhen: TypeAlias = Literal["permanent", "transient", "temporary"]
"""When an actor is begun anew after it has ended: always; only if it failed; never."""

OrderingKey: TypeAlias = "Callable[[Message], str | None]"
"""Says what a message must not be handled beside."""


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
    ordering_key: OrderingKey | None = None
    """Where the class has one of its own."""
    may_rest: bool = False
    """Whether it is made anew when a message finds it missing, and so need not be kept."""


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
    """Return how an actor is made; what is not said is what its class says, if the factory is one, or calls one."""
    made: Any = getattr(factory, "func", factory)  # of a partial, what it calls
    return Props(
        factory=factory,
        supervisor=supervisor,
        restart=restart,
        grace=grace,
        concurrency=getattr(made, "concurrency", 1) if concurrency is None else concurrency,
        capacity=getattr(made, "capacity", CAPACITY) if capacity is None else capacity,
        ordering_key=_own_ordering_key(made),
    )


def _own_ordering_key(made: Any) -> OrderingKey | None:
    """Return the ordering key of a class, unless it is the one that every actor has: that needs no message to be made."""
    found = getattr(made, "ordering_key", None)
    is_everybodys = getattr(found, "__module__", "") == "antiphon.runtime._actor"
    return None if found is None or is_everybodys else found
