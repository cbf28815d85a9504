"""Elsewhere: threads of other hosts, over the ledger.

A message for a thread that another living host owns, or for an actor that only another host has, is posted to the thread.
The owner is woken, delivers it and writes the result; `RemoteAnswers` follows the ledger, and gives the result to the
caller. If the owner dies, the first waiting system that has the actor takes over the thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, cast

import orjson

from antiphon.errors import AppendRefusedError, DeliveryError, LedgerError, ParkedError
from antiphon.messages import Message, dumps, loads, thaw
from antiphon.messages._keys import is_below, kind_of
from antiphon.protocol import Reply, Request
from antiphon.protocol._values import Object
from antiphon.runtime._actor import Actor, Context, handles
from antiphon.runtime._delivery import DeliveryState, Envelope
from antiphon.runtime._lease import BEATS_A_LEASE
from antiphon.runtime._reporting import warn
from antiphon.runtime._rows import PARK, STOP, option_of, park_reason, stopped_error
from antiphon.runtime._settings import SYSTEM, Address

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from antiphon.ledger import Owners, Tailed
    from antiphon.runtime._actor import Lifetime


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

    def __init__(self, lifetime: Lifetime, ledger: Owners, poll: float) -> None:
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
        """Post a message to its thread. Its caller gets the answer that the owner writes."""
        thread_id = delivery.thread_id or ""
        if delivery.is_call:
            # Posted before the caller waits: `add` looks up the answer once, so one that arrives in between is not missed.
            await self._ledger.post(thread_id, delivery.message)
            self.add(delivery)
            return
        tell = Tell(to=delivery.to, message=orjson.loads(dumps(delivery.message)))
        posted = DeliveryState(Envelope(tell, None, delivery.sender, INBOX, f"{delivery.id}>", thread_id), may_be_known=False)
        try:
            await self._ledger.post(thread_id, posted.message)
        except AppendRefusedError:
            if not await self._ledger.find(invocation_id=posted.id, thread_id=thread_id):
                raise  # otherwise the same notice was posted before, with another timestamp

    def add(self, delivery: DeliveryState) -> None:
        """Let a caller wait for the answer to a message in a thread of another host."""
        waiter = delivery.callers.waiter
        if waiter is None or waiter.done():
            return
        key = (delivery.thread_id or "", delivery.invocation_id)
        self._waiting.setdefault(key, []).append(delivery)
        if self.on_added is not None:
            self.on_added()
        waiter.add_done_callback(lambda _: self._drop(key, delivery))
        if self._tail is None:
            self._tail = self._lifetime.start(self._follow())
        else:
            # The tail may have passed the answer before the caller was in `_waiting`.
            self._lifetime.start(self._look(key))

    def fail(self, thread_id: str, error: DeliveryError) -> None:
        """Give the callers that wait for answers of a thread an error."""
        for key in [key for key in self._waiting if key[0] == thread_id]:
            for delivery in self._unserved(key):
                delivery.settle(None, error)

    def _unserved(self, key: tuple[str, str]) -> list[DeliveryState]:
        """Return the deliveries of a message without an outcome. Others stay until `_drop` is called, in the next step."""
        return [delivery for delivery in self._waiting.get(key, ()) if delivery.callers.outcome is None]

    def _drop(self, key: tuple[str, str], delivery: DeliveryState) -> None:
        """Stop waiting: there is an answer, or the caller is gone. Then its duplicates wait themselves."""
        waiting = self._waiting.get(key, [])
        if delivery in waiting:
            waiting.remove(delivery)
        if not waiting:
            self._waiting.pop(key, None)
        if not delivery.is_settled:
            for duplicate in delivery.callers.duplicates:
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
                warn("answers of other hosts are late: %s", error=exc)
                await asyncio.sleep(_LEDGER_PAUSE)

    async def _look(self, key: tuple[str, str]) -> None:
        """Look up an answer that may be stored already. The tail does not repeat it, so this retries until it succeeds."""
        thread_id, invocation_id = key
        while key in self._waiting:
            try:
                for record in await self._ledger.find(invocation_id=invocation_id, thread_id=thread_id):
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
            for delivery in self._unserved((thread_id, message.invocation_id or "")):
                delivery.settle(message)
        elif message.lane == "effect" and option_of(message) == PARK:
            for delivery in self._unserved((thread_id, message.parent_id or "")):
                delivery.settle(None, ParkedError(park_reason(message), delivery.to))
        elif message.lane == "effect" and option_of(message) == STOP:
            for key in [key for key in self._waiting if key[0] == thread_id]:
                if message.parent_id == key[1] or is_below(message.parent_id, key[1]):
                    for delivery in self._unserved(key):
                        delivery.settle(None, stopped_error(message))


_LEDGER_PAUSE = 1.0
"""Seconds to pause while the ledger is unavailable."""
