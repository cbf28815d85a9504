"""Bus: how parcels get from one system to another; the local one, and what every one promises.

**At least once, or an error.** What `send` has accepted arrives at whoever is attached to the name, perhaps twice,
perhaps late; or it is lost with the process that held it. Whoever needs to know waits for an answer, and sends the same
again.

**In order, unless something was lost.** Parcels of one sender to one name arrive in the order in which they were sent.

**Unaltered.** The message that arrives is the message that was sent.

`antiphon.testing.check_bus` proves it.

Remote: asking and telling actors of another system, over a bus that may lose, double, delay and reorder.

Whoever asks sends the same message again until the answer comes or the time is over; whoever is asked knows a message
by its id, handles it once, and answers as often as it is asked. So what a network does to parcels costs time, and
nothing else. A thread is written by the system that has the actor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from antiphon.errors import DeliveryError, LedgerError, ReplyTimeoutError, UndeliverableError
from antiphon.messages import Message, OptionResultPayload
from antiphon.runtime._envelope import outside
from antiphon.runtime._failures import LOG, log_fields, log_text
from antiphon.runtime._results import delivery_result, error_of, error_result, message_of
from antiphon.runtime._rows import hops_and_deadline, origin_of

if TYPE_CHECKING:
    from antiphon.runtime._dispatch import Dispatcher
    from antiphon.runtime._envelope import DeliveryState
    from antiphon.runtime._run import Lifetime


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


_PATIENCE = 0.5
"""Seconds to wait for an answer before the first second try; then twice as long each time, up to a limit."""
_LONGEST = 10.0


class Remote:
    """The way to other systems, and the door for what comes from them."""

    def __init__(self, lifetime: Lifetime, dispatcher: Dispatcher, bus: Bus, name: str) -> None:
        self._lifetime = lifetime
        self._dispatcher = dispatcher
        self._bus = bus
        self.name = name
        self._names: list[str] = []
        self._awaited: dict[str, asyncio.Future[Message]] = {}

    async def open(self, kinds: Iterable[str]) -> None:
        """Take parcels for this system, and for its kinds of actors."""
        for name in (self.name, *kinds):
            await self._bus.attach(name, self._take)
            self._names.append(name)

    async def close(self) -> None:
        """Take no more."""
        while self._names:
            await self._bus.detach(self._names.pop())

    # ------------------------------------------------------------ asking others

    async def ask(self, delivery: DeliveryState, until: float) -> Message:
        """Have an actor of another system handle a message, and return what it answers.

        Raises:
            DeliveryError: there is no answer in time, or an error.
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
        """Handle what another system asks, and answer. What cannot be written down is not answered: it will come again."""
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
