"""Elsewhere: access to actors of other systems over a bus, and to threads of other hosts over the ledger.

**Bus.** It connects systems that have different ledgers, or none. It makes three promises, which
`antiphon.testing.check_bus` checks:

- **At least once, or an error.** A parcel that `send` accepts arrives at the system that is attached to the name, perhaps
  twice, perhaps late; or it is lost with the process that held it. A sender that needs certainty waits for an answer, and
  resends the same parcel.
- **In order, unless something was lost.** Parcels of one sender to one name arrive in the order in which they were sent.
- **Unaltered.** The message that arrives is the message that was sent.

**Remote.** The asking system sends the same message again until the answer comes or the deadline passes. The asked system
recognizes a message by its id, handles it once, and sends the answer for every copy. So a network that loses, duplicates,
delays or reorders parcels costs only time. The system that has the actor writes the thread.

**Threads of other hosts.** A message for a thread that another living host owns, or for an actor that only another host has,
is posted to the thread. The owner is woken, delivers it and writes the result; `RemoteAnswers` follows the ledger, and gives
the result to the caller. If the owner dies, the first waiting system that has the actor takes over the thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias, cast

import orjson

from antiphon.errors import (
    AppendRefusedError,
    DeliveryError,
    LedgerError,
    ParkedError,
    ReplyTimeoutError,
    UndeliverableError,
)
from antiphon.messages import Message, OptionResultPayload, dumps, loads, thaw
from antiphon.messages.keys import is_below, kind_of
from antiphon.protocol import Object, Reply, Request
from antiphon.runtime._actor import Actor, Context, handles
from antiphon.runtime._delivery import DeliveryState, Envelope
from antiphon.runtime._exchange import delivery_result, error_of, error_result, message_of, outside
from antiphon.runtime._lease import BEATS_A_LEASE
from antiphon.runtime._reporting import LOG, log_fields, log_text
from antiphon.runtime._rows import PARK, STOP, hops_and_deadline, option_of, origin_of, park_reason, stopped_error
from antiphon.runtime._settings import SYSTEM, Address

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from antiphon.ledger import Ledger, Tailed
    from antiphon.runtime._actor import Lifetime
    from antiphon.runtime._dispatch import Dispatcher


class Parcel(NamedTuple):
    """A message in transit between two systems."""

    to: str
    """The address of the actor; for an answer, the name of the asking system."""
    message: Message
    reply_to: str
    """The name of the sending system."""


Take: TypeAlias = Callable[[Parcel], Awaitable[None]]
"""Receives a parcel, and returns without waiting for its handling."""


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
    """Asks actors of other systems, and answers questions of other systems."""

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
        """Handle a message of another system, and send the answer.

        If it cannot be journaled, send none: the other system resends it.
        """
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


# ---------------------------------------------------------------- threads of other hosts

INBOX: Final = Address(SYSTEM, "inbox")
"""The address to which other hosts post notices."""


class Told(Reply, frozen=True):
    """The message is in the thread."""


class Tell(Request[Told], frozen=True, type="TELL", family="system"):
    """Tell an actor something in a thread of this host. Another host posts this for a caller that needs no answer."""

    to: str
    message: Object
    """The message in the house format."""


class Inbox(Actor):
    """Delivers notices that other hosts have posted to the actors of this host."""

    concurrency = 100

    @handles
    async def tell(self, request: Tell, context: Context) -> Told:
        await context.tell(request.to, loads(orjson.dumps(thaw(request.message)), Message))
        return Told()


class RemoteAnswers:
    """The local callers that wait for answers in threads of other hosts, and the tail of the ledger that delivers them."""

    def __init__(self, lifetime: Lifetime, ledger: Ledger, poll: float) -> None:
        """Make it; `poll` is the number of seconds between two checks for a host."""
        self._lifetime = lifetime
        self._ledger = ledger
        self._poll = poll
        self._waiting: dict[tuple[str, str], list[DeliveryState]] = {}
        """By thread and invocation."""
        self._tail: asyncio.Task[None] | None = None
        self.on_added: Callable[[], None] | None = None
        """Called when a caller begins to wait."""

    @property
    def threads(self) -> tuple[str, ...]:
        """The threads that callers wait for."""
        return tuple(dict.fromkeys(thread_id for thread_id, _ in self._waiting))

    async def has_actor(self, delivery: DeliveryState, until: float) -> bool:
        """Whether a living host has the kind of a message's actor.

        A host registers a new kind of actor with its next beat. So this waits for the beat of the host that owns the thread,
        at most until a time.
        """
        kind, now = kind_of(delivery.to), self._lifetime.loop.time
        thread = await self._ledger.thread(delivery.thread_id or "")
        owner = None if thread is None else thread.owner
        began = now()
        while True:
            living = [each.host for each in await self._ledger.hosts() if each.is_alive]
            if any(kind in host.kinds for host in living):
                return True
            beat = max((host.lease / BEATS_A_LEASE for host in living if host.name == owner), default=0.0)
            if now() >= min(until, began + beat):
                return False
            await asyncio.sleep(self._poll)

    async def post(self, delivery: DeliveryState) -> None:
        """Post a message to its thread. Its caller gets the answer that the owner writes.

        Raises:
            LedgerError: the thread cannot accept it, or the ledger cannot be used.
        """
        thread_id = delivery.thread_id or ""
        if delivery.is_call:
            # Posted before the caller waits: `add` looks up the answer once, so one that arrives in between is not missed.
            await self._ledger.post(thread_id, delivery.message)
            self.add(delivery)
            return
        tell = Tell(to=delivery.to, message=orjson.loads(dumps(delivery.message)))
        posted = DeliveryState(Envelope(tell, None, delivery.sender, INBOX, f"{delivery.id}>", thread_id))
        try:
            await self._ledger.post(thread_id, posted.message)
        except AppendRefusedError:
            if not await self._ledger.by_invocation(posted.id, thread_id=thread_id):
                raise  # otherwise the same notice was posted before, with another timestamp

    def add(self, delivery: DeliveryState) -> None:
        """Let a caller wait for the answer to a message in a thread of another host."""
        if delivery.waiter is None or delivery.waiter.done():
            return
        key = (delivery.thread_id or "", delivery.invocation_id)
        self._waiting.setdefault(key, []).append(delivery)
        if self.on_added is not None:
            self.on_added()
        delivery.waiter.add_done_callback(lambda _: self._drop(key, delivery))
        if self._tail is None:
            self._tail = self._lifetime.start(self._follow())
        else:
            # The tail may have passed the answer before the caller was in `_waiting`.
            self._lifetime.start(self._look(key))

    def fail(self, thread_id: str, error: DeliveryError) -> None:
        """Give the callers that wait for answers of a thread an error."""
        for key in [key for key in self._waiting if key[0] == thread_id]:
            for delivery in tuple(self._waiting.get(key, ())):
                delivery.fail(error)

    def _drop(self, key: tuple[str, str], delivery: DeliveryState) -> None:
        """Stop waiting: there is an answer, or the caller is gone. Then its duplicates wait themselves."""
        waiting = self._waiting.get(key, [])
        if delivery in waiting:
            waiting.remove(delivery)
        if not waiting:
            self._waiting.pop(key, None)
        if not delivery.is_settled:
            for duplicate in delivery.duplicates:
                self.add(duplicate)
        if not self._waiting and self._tail is not None:
            self._tail.cancel()
            self._tail = None

    async def _follow(self) -> None:
        """Follow the ledger from now on. An answer that was stored before is looked up once."""
        while True:
            try:
                tail = cast("AsyncGenerator[Tailed, None]", self._ledger.tail(await self._ledger.horizon()))
                # After the horizon is known: no answer falls between the look-up and the tail.
                for key in tuple(self._waiting):
                    self._lifetime.start(self._look(key))
                async with aclosing(tail) as records:
                    async for tailed in records:
                        self._take(tailed.record.message)
            except LedgerError as exc:
                LOG.warning("answers of other hosts are late: %s", log_text(exc), extra=log_fields(error=exc))
                await asyncio.sleep(_LEDGER_PAUSE)

    async def _look(self, key: tuple[str, str]) -> None:
        """Look up an answer that may be stored already. The tail does not repeat it, so this retries until it succeeds."""
        thread_id, invocation_id = key
        while key in self._waiting:
            try:
                for record in await self._ledger.by_invocation(invocation_id, thread_id=thread_id):
                    self._take(record.message)
                if key in self._waiting:  # it has no answer: it may be parked
                    for record in await self._ledger.open_calls(thread_id):
                        self._take(record.message)
                return
            except LedgerError:
                await asyncio.sleep(_LEDGER_PAUSE)

    def _take(self, message: Message) -> None:
        """Give callers the result of their message, or the error that it is parked."""
        thread_id = message.thread_id or ""
        if message.kind == "option_result" and message.lane != "effect":
            for delivery in tuple(self._waiting.get((thread_id, message.invocation_id or ""), ())):
                delivery.settle(message)
        elif message.lane == "effect" and option_of(message) == PARK:
            for delivery in tuple(self._waiting.get((thread_id, message.parent_id or ""), ())):
                delivery.fail(ParkedError(park_reason(message), delivery.to))
        elif message.lane == "effect" and option_of(message) == STOP:
            for key in [key for key in self._waiting if key[0] == thread_id]:
                if message.parent_id == key[1] or is_below(message.parent_id, key[1]):
                    for delivery in tuple(self._waiting.get(key, ())):
                        delivery.fail(stopped_error(message))


_LEDGER_PAUSE = 1.0
"""Seconds to pause while the ledger is unavailable."""
