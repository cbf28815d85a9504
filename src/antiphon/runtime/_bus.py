"""Bus: the interface between systems, a bus within one process, and how a system asks actors of another (`Remote`).

A bus makes three promises, which `antiphon.testing.check_bus` checks:

- **At least once, or an error.** A parcel that `send` accepts arrives at the system that is attached to the name, perhaps
  twice, perhaps late; or it is lost with the process that held it. A sender that must know waits for an answer, and sends the
  same parcel again.
- **In order, unless something was lost.** Parcels of one sender to one name arrive in the order in which they were sent.
- **Unaltered.** The message that arrives is the message that was sent.

**Remote.** The asking system sends the same message again until the answer comes or the deadline passes. The asked system
knows a message by its id, handles it once, and sends the answer for every copy. So a network that loses, doubles, delays or
reorders parcels costs time, and nothing else. A thread is written by the system that has the actor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from antiphon.errors import DeliveryError, LedgerError, ReplyTimeoutError, UndeliverableError
from antiphon.messages import Message, OptionResultPayload
from antiphon.messages.keys import kind_of
from antiphon.runtime._exchange import delivery_result, error_of, error_result, message_of, outside
from antiphon.runtime._reporting import LOG, log_fields, log_text
from antiphon.runtime._rows import hops_and_deadline, origin_of

if TYPE_CHECKING:
    from antiphon.runtime._actor import Lifetime
    from antiphon.runtime._delivery import DeliveryState
    from antiphon.runtime._dispatch import Dispatcher


class Parcel(NamedTuple):
    """A message on its way between systems."""

    to: str
    """The address of the actor; for an answer, the name of the asking system."""
    message: Message
    reply_to: str
    """The name of the sending system."""


Take: TypeAlias = Callable[[Parcel], Awaitable[None]]
"""Receives parcels; it returns as soon as it has them."""


class Bus(Protocol):
    """Carries parcels between systems."""

    async def attach(self, name: str, take: Take) -> None:
        """Receive the parcels for a name: a kind of actor, or a system.

        Raises:
            ValueError: the name is attached already.
        """
        ...

    async def detach(self, name: str) -> None:
        """Receive no more parcels for a name; an unknown name is ignored."""
        ...

    async def send(self, parcel: Parcel) -> None:
        """Send a parcel to the system that is attached to its kind of actor.

        Raises:
            UndeliverableError: there is none.
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
        take = self._takers.get(kind_of(parcel.to))
        if take is None:
            raise UndeliverableError("nobody on the bus has this kind", parcel.to)
        await take(parcel)


_PATIENCE = 0.5
"""Seconds to wait for an answer before the parcel is sent again; doubled each time, up to `_LONGEST`."""
_LONGEST = 10.0


class Remote:
    """Asks actors of other systems, and serves what other systems ask."""

    def __init__(self, lifetime: Lifetime, dispatcher: Dispatcher, bus: Bus, name: str) -> None:
        self._lifetime = lifetime
        self._dispatcher = dispatcher
        self._bus = bus
        self.name = name
        self._names: list[str] = []
        self._awaited: dict[str, asyncio.Future[Message]] = {}

    async def open(self, kinds: Iterable[str]) -> None:
        """Receive parcels for this system, and for its kinds of actors."""
        for name in (self.name, *kinds):
            await self._bus.attach(name, self._take)
            self._names.append(name)

    async def close(self) -> None:
        """Receive no more parcels."""
        while self._names:
            await self._bus.detach(self._names.pop())

    # ------------------------------------------------------------ asking others

    async def ask(self, delivery: DeliveryState, until: float) -> Message:
        """Ask an actor of another system, and return its answer.

        Raises:
            DeliveryError: there is no answer in time, or it is an error.
        """
        parcel = Parcel(delivery.to, delivery.message, self.name)
        answer = self._awaited.setdefault(delivery.id, self._lifetime.loop.create_future())
        patience = _PATIENCE
        try:
            async with asyncio.timeout_at(until):
                while not answer.done():
                    await self._bus.send(parcel)
                    await asyncio.wait((answer,), timeout=patience)
                    patience = min(_LONGEST, 2 * patience)
        except TimeoutError:
            raise ReplyTimeoutError(f"no answer to {delivery.type} in time", delivery.to) from None
        finally:
            self._awaited.pop(delivery.id, None)
        return _answer_in(answer.result(), delivery.to)

    # ------------------------------------------------------------ being asked

    async def _take(self, parcel: Parcel) -> None:
        message = parcel.message
        if parcel.to == self.name:
            awaited = self._awaited.get(message.in_reply_to or "")
            if awaited is not None and not awaited.done():
                awaited.set_result(message)
        elif not self._lifetime.is_closing:
            self._lifetime.start(self._serve(parcel))

    async def _serve(self, parcel: Parcel) -> None:
        """Handle a message of another system, and send the answer. If it cannot be journaled, send none: it comes again."""
        message = parcel.message
        hops, deadline = hops_and_deadline(message)
        delivery = outside(parcel.to, message, message.thread_id, message.policy, None, hops=hops)
        if (origin := origin_of(message)) is not None:
            delivery.set_origin(origin)
        try:
            answer = await self._outcome(delivery, None if deadline is None else deadline - self._lifetime.loop.time())
            await self._bus.send(Parcel(parcel.reply_to, answer, self.name))
        except (LedgerError, UndeliverableError) as exc:
            text = "%s of %s is not answered: %s"
            LOG.warning(text, delivery.type, parcel.reply_to, log_text(exc), extra=log_fields(delivery, error=exc))

    async def _outcome(self, delivery: DeliveryState, within: float | None) -> Message:
        try:
            if delivery.is_call:
                return message_of(delivery, await self._dispatcher.ask(delivery, within))
            await self._dispatcher.tell(delivery, within)
        except DeliveryError as exc:
            return error_result(delivery, exc)
        return delivery_result(delivery)


def _answer_in(answer: Message, address: str) -> Message:
    if isinstance(answer.payload, OptionResultPayload) and answer.payload.is_error:
        raise error_of(answer.payload, address)
    return answer
