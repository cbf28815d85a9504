"""Bus: how parcels get from one system to another; the local one, and what every one promises.

**At least once, or an error.** What `send` has accepted arrives at whoever is attached to the name, perhaps twice,
perhaps late; or it is lost with the process that held it. Whoever needs to know waits for an answer, and sends the same
again.

**In order, unless something was lost.** Parcels of one sender to one name arrive in the order in which they were sent.

**Unaltered.** The message that arrives is the message that was sent.

`antiphon.testing.check_bus` proves it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeAlias

from antiphon.errors import UndeliverableError
from antiphon.messages import Message

__all__ = ["Bus", "LocalBus", "Parcel", "Take"]


class Parcel(NamedTuple):
    """A message on its way between systems."""

    to: str
    """The address it is for; of an answer, the name of the system that asked."""
    message: Message
    reply_to: str
    """The name of the system that sends it."""


Take: TypeAlias = Callable[[Parcel], Awaitable[None]]
"""What takes parcels in; it returns as soon as it has them."""


class Bus(Protocol):
    """Carries parcels between systems."""

    async def attach(self, name: str, take: Take) -> None:
        """Have the parcels for a name brought: a kind of actor, or a system.

        Raises:
            ValueError: somebody has that name.
        """
        ...

    async def detach(self, name: str) -> None:
        """Have no more parcels brought; of a name that nobody has, nothing happens."""
        ...

    async def send(self, parcel: Parcel) -> None:
        """Bring a parcel to whoever is attached to its kind of actor.

        Raises:
            UndeliverableError: nobody is.
        """
        ...


class LocalBus:
    """A bus within one process."""

    def __init__(self) -> None:
        self._takers: dict[str, Take] = {}

    async def attach(self, name: str, take: Take) -> None:
        if name in self._takers:
            raise ValueError(f"{name!r} is attached already; detach it first")
        self._takers[name] = take

    async def detach(self, name: str) -> None:
        self._takers.pop(name, None)

    async def send(self, parcel: Parcel) -> None:
        take = self._takers.get(parcel.to.partition("/")[0])
        if take is None:
            raise UndeliverableError("nobody on the bus has this kind", parcel.to)
        await take(parcel)
