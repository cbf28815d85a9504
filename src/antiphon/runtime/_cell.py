"""Cell: the place at an address where an actor lives. It keeps the mailbox, runs the handlers, and outlives the actor.

**Mailbox.** The messages that wait, in order, and the senders that wait for room. Messages of the system come first, however
full it is. Where an actor handles several messages at once, those of the same thread (outside of threads: of the same sender)
still follow each other: while one is handled, the next ones are held back.

**Nothing while idle.** A cell has no task until a message comes. Then a task, the drain, handles messages until none is
left, and ends. There are at most `concurrency` drains; each handles one message at a time. The actor is made for the first
message; one that supervises others is made with its first child, because it may have to watch that one.

**States.** A cell is *active*; *suspended* from a failure until its supervisor has decided, while messages wait;
*stopped* for good; or *resting*: nobody needed it, the system has let go of it, and the next message is given to a new one.
A restart drops the actor and makes a new one from the factory; the mailbox stays.

**The order of a message.** The handler runs; its outcome is journaled, if the message is of a thread; then the caller gets
it. A crash between two of these leaves the call open in the ledger, and recovery delivers it again.

**Failures.** This is the only place that catches `BaseException`, and only from a handler. An error of delivery
is an answer. A cancellation that somebody asked of the drain (`task.cancelling()` counts them) is the end of one
message that nobody wants any more, or the end of the drain. Everything else is a failure of the actor, whatever its
class.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from antiphon.errors import (
    ActorStoppedError,
    AntiphonError,
    DeliveryError,
    FencedError,
    LedgerUnavailableError,
    MailboxFullError,
    RefusedError,
    ReplyTimeoutError,
)
from antiphon.protocol import ErrorCode
from antiphon.runtime._context import Context, Handling
from antiphon.runtime._failures import LOG, Failure, log_fields, log_text
from antiphon.runtime._results import result_of

if TYPE_CHECKING:
    from antiphon.protocol import Notice, Request
    from antiphon.runtime._actor import Actor, Handler, OrderingKey, Props
    from antiphon.runtime._envelope import DeliveryState
    from antiphon.runtime._hooks import Hooks
    from antiphon.runtime._run import Lifetime
    from antiphon.runtime._services import Services


class Mailbox:
    """What waits for an actor. The queues are made when needed, and given back when they are empty."""

    __slots__ = ("_box", "_busy", "_capacity", "_holders", "_ordering_key", "_ready", "_senders", "_urgent", "waiting")

    def __init__(self, capacity: int, *, is_keyed: bool, ordering_key: OrderingKey | None = None) -> None:
        self._ordering_key = ordering_key
        self._capacity = capacity
        self.waiting = 0
        """How many messages have been taken in and not handed out, or have room taken for them; the system's apart."""
        self._box: deque[DeliveryState] | None = None
        self._urgent: deque[DeliveryState] | None = None
        self._senders: deque[asyncio.Future[None]] | None = None
        self._busy: dict[str, deque[DeliveryState]] | None = {} if is_keyed else None
        """By key, what waits for the message of that key that is being handled."""
        self._holders: dict[str, DeliveryState] | None = {} if is_keyed else None
        """By key, the message that is being handled."""
        self._ready: deque[str] = deque() if is_keyed else _NOTHING
        """Keys whose message was handled, and which have another."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, nothing is being handled, and nobody waits for room."""
        return not (self.waiting or self._urgent or self._holders or self._senders)

    def reserve(self) -> bool:
        """Take room for a message, if there is any and nobody waits for it."""
        if self.waiting >= self._capacity or self._senders:
            return False
        self.waiting += 1
        return True

    async def wait_for_room(self) -> None:
        """Wait until there is room, and take it; whoever waits longest comes first."""
        if self._senders is None:
            self._senders = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._senders.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._senders:
                self._senders.remove(turn)
            elif turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give room back that is not needed: a message was handed out, or is not coming."""
        self.waiting -= 1
        while self._senders:
            turn = self._senders.popleft()
            if not turn.done():
                self.waiting += 1
                turn.set_result(None)
                break

    def put(self, delivery: DeliveryState) -> None:
        """Take a message in, behind those that wait. Room for it was taken before."""
        if self._box is None:
            self._box = deque()
        self._box.append(delivery)

    def offer(self, delivery: DeliveryState) -> bool:
        """Take a message in, if there is room and nobody waits for it; say whether that could be done."""
        if self.waiting >= self._capacity or self._senders:
            return False
        self.waiting += 1
        if self._box is None:
            self._box = deque((delivery,))
        else:
            self._box.append(delivery)
        return True

    def put_last(self, delivery: DeliveryState) -> None:
        """Take a message in that must not be refused, however full it is."""
        self.waiting += 1
        self.put(delivery)

    def put_first(self, delivery: DeliveryState) -> None:
        """Take a message back that was handed out, before all that wait."""
        held = None if self._busy is None else self._busy.get(self._key(delivery))
        if held is not None:
            held.appendleft(delivery)
        elif self._box is None:
            self._box = deque((delivery,))
        else:
            self._box.appendleft(delivery)
        self.waiting += 1

    def put_urgent(self, delivery: DeliveryState) -> None:
        """Take a message of the system in."""
        if self._urgent is None:
            self._urgent = deque()
        delivery.is_urgent = True
        self._urgent.append(delivery)

    def next(self) -> DeliveryState | None:
        """Hand out the next message that may be handled; None if there is none at present."""
        if self._urgent:
            return self._urgent.popleft()
        delivery = self._next_free() if self._busy is not None else self._box.popleft() if self._box else None
        if delivery is None:
            self._box = self._box or None
            self._urgent = None
            return None
        if self._senders:
            self.release()
        else:
            self.waiting -= 1
        return delivery

    def _next_free(self) -> DeliveryState | None:
        busy, holders = self._busy, self._holders
        assert busy is not None and holders is not None  # noqa: S101, PT018 (only asked where messages have keys)
        if self._ready:
            key = self._ready.popleft()
            delivery = holders[key] = busy[key].popleft()
            return delivery
        while self._box:
            delivery = self._box.popleft()
            key = self._key(delivery)
            if (held := busy.get(key)) is None:
                busy[key], holders[key] = deque(), delivery
                return delivery
            held.append(delivery)
        return None

    def _key(self, delivery: DeliveryState) -> str:
        """Return what messages that follow each other have in common: as the actor says, else the thread, else the sender."""
        if delivery.key is None:
            choose = self._ordering_key
            delivery.key = (None if choose is None else choose(delivery.message)) or delivery.thread_id or delivery.sender
        return delivery.key

    def done(self, delivery: DeliveryState) -> None:
        """Let the next message of the same thread or sender follow. To say it twice does no harm."""
        if self._busy is None or self._holders is None:
            return
        key = self._key(delivery)
        if self._holders.get(key) is not delivery:
            return
        del self._holders[key]
        if self._busy[key]:
            self._ready.append(key)
        else:
            del self._busy[key]

    def close(self) -> list[DeliveryState]:
        """Hand out everything at once, and let all senders go on."""
        held = [delivery for queue in (self._busy or {}).values() for delivery in queue]
        found = [*(self._urgent or ()), *held, *(self._box or ())]
        self._urgent = self._box = None
        self._ready.clear()
        if self._busy is not None:
            self._busy = {key: deque() for key in self._busy}
        self.waiting = 0
        while self._senders:
            self.release()
        return found


_NOTHING: deque[str] = deque(maxlen=0)


State: TypeAlias = Literal["active", "suspended", "stopped", "resting"]

_LATE = "it would come too late: others wait"

_FRESH = 5.0
"""Seconds for which it is believed that a message takes as long as the last ones did."""

_LEDGER_PAUSE = 1.0
"""Seconds to wait for a ledger that cannot be used."""

_TURN = 64
"""How many messages a drain handles before it lets others have a turn."""


class _StartError(Exception):
    """The actor could not be made or begun. It is not the fault of the message that came next."""


class Outcomes(Protocol):
    """Ends messages, or has them delivered again."""

    async def answer(self, delivery: DeliveryState, outcome: Any) -> None: ...
    async def end_with_error(self, delivery: DeliveryState, error: DeliveryError) -> None: ...
    async def failed(self, cell: Cell, delivery: DeliveryState, reason: str, error: BaseException) -> None: ...
    async def redeliver(self, cell: Cell, delivery: DeliveryState, reason: str) -> None: ...
    async def leave_to_next_system(self, delivery: DeliveryState, error: AntiphonError) -> None: ...
    def abandon(self, delivery: DeliveryState, error: AntiphonError) -> None: ...
    def put_back(self, cell: Cell, delivery: DeliveryState) -> None: ...


class Supervising(Protocol):
    """Decides what becomes of actors that fail, or want to end."""

    def report(self, cell: Cell, failure: Failure) -> None: ...
    async def actor_stops(self, cell: Cell, reason: str) -> None: ...


class Idling(Protocol):
    """Is told of actors that have nothing to do."""

    def idle(self, cell: Cell, *, was_used: bool = True) -> None: ...


@dataclass(frozen=True, slots=True)
class CellParts:
    """What the cells of a system share."""

    lifetime: Lifetime
    loop: asyncio.AbstractEventLoop
    """That of the lifetime, which every message needs."""
    hooks: Hooks | None
    services: Services
    outcomes: Outcomes
    supervising: Supervising
    idling: Idling
    children: Callable[[str], tuple[str, ...]]
    """Given an address, whom the actor there supervises."""
    provide: Callable[[Actor], None]
    """Gives an actor that is part of the runtime what it works with."""


class Cell:
    """The place where an actor lives."""

    __slots__ = (
        "actor",
        "address",
        "average_seconds",
        "began",
        "drains",
        "has_failed",
        "held",
        "incarnation",
        "last_handled_at",
        "mailbox",
        "parts",
        "props",
        "starting",
        "state",
        "wants_rest",
    )

    def __init__(self, parts: CellParts, address: str, props: Props) -> None:
        self.parts = parts
        self.address = address
        self.props = props
        self.state: State = "active"
        self.actor: Actor | None = None
        self.mailbox: Mailbox | None = None
        self.drains: dict[asyncio.Task[None], DeliveryState | None] | None = None
        """The tasks that handle messages, and what each handles at present."""
        self.starting: asyncio.Lock | None = None
        """Held while the actor is made and begins, so that there is only one of it."""
        self.has_failed = False
        """Whether the actor is there only until its supervisor has decided."""
        self.held = 0
        """How many have a message for it that is not in the mailbox yet: it must stay, or there would be two of it."""
        self.wants_rest = False
        """Whether the actor has nothing left to do, and need not be kept once it is idle."""
        self.incarnation = 1
        """Which actor this is, counted from 1."""
        self.began = parts.loop.time()
        self.average_seconds = 0.0
        """Seconds that it has taken to handle a message of late."""
        self.last_handled_at = self.began
        """When the last one was handled."""

    @property
    def services(self) -> Services:
        """What the contexts of its actor use."""
        return self.parts.services

    @property
    def box(self) -> Mailbox:
        """The mailbox, made for the first message."""
        if self.mailbox is None:
            self.mailbox = Mailbox(
                self.props.capacity, is_keyed=self.props.concurrency > 1, ordering_key=self.props.ordering_key
            )
        return self.mailbox

    @property
    def load(self) -> float:
        """How full the mailbox is, from 0 to 1."""
        return 0.0 if self.mailbox is None else min(1.0, self.mailbox.waiting / self.props.capacity)

    @property
    def is_untouched(self) -> bool:
        """Whether no message has ever come."""
        return self.mailbox is None and self.actor is None and not self.parts.children(self.address)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do, nobody is about to give it something, and nobody depends on it."""
        has_work = bool(self.drains) or not (self.mailbox is None or self.mailbox.is_idle)
        return not (has_work or self.held or self.has_failed or self.parts.children(self.address))

    @property
    def is_waiting(self) -> bool:
        """Whether everything that it handles waits for an answer or an effect, each of which has its own time limit."""
        handled = (self.drains or {}).values()
        return bool(handled) and all(delivery is not None and delivery.waits for delivery in handled)

    def declares(self, message_type: str) -> bool:
        """Whether the actor has a handler for messages of a type."""
        return self.actor is not None and message_type in self.actor.handlers

    def stop_after_message(self, reason: str) -> None:
        """Have the actor end after this message, because it wants to."""
        self.parts.lifetime.start(self.parts.supervising.actor_stops(self, reason))

    # ------------------------------------------------------------ taking messages in

    async def wait_for_room(self, delivery: DeliveryState, until: float) -> None:
        """Wait for room in the mailbox, at most until a time.

        Raises:
            MailboxFullError: there was none.
            ActorStoppedError: it takes no more messages.
        """
        full = MailboxFullError(f"{self.props.capacity} messages wait", delivery.to)
        if delivery.sender == self.address:
            raise full  # it would wait for itself
        try:
            async with asyncio.timeout_at(until):
                await self.box.wait_for_room()
        except TimeoutError:
            raise full from None
        if self.state == "stopped":
            raise ActorStoppedError("it takes no more messages", delivery.to)

    def deliver(self, delivery: DeliveryState) -> None:
        """Put a message into the mailbox, where room was taken for it."""
        delivery.cell = self
        if self.parts.hooks is not None:
            self.parts.hooks.accepted(delivery)
        self.box.put(delivery)
        self.wake()

    def start_early(self) -> None:
        """Have the actor made without a message, if there is none."""
        if self.actor is None and self.starting is None and self.state == "active":
            self.starting = asyncio.Lock()  # at once: more children may follow before it runs
            self.parts.lifetime.start(self._start_or_fail())

    def wake(self) -> None:
        """Have messages handled that were put into the mailbox."""
        drains = self.drains
        if drains is None:
            drains = self.drains = {}
        if len(drains) < self.props.concurrency and self.state == "active":
            # Made directly: a task factory that starts tasks at once would run the handler inside its sender.
            parts = self.parts
            context = parts.lifetime.context.copy()
            task = asyncio.Task(self._drain(drains), loop=parts.loop, name=self.address, context=context)
            drains[task] = None

    def suspend(self) -> None:
        """Begin with no further message."""
        if self.state == "active":
            self.state = "suspended"

    def resume(self) -> None:
        """Handle messages again."""
        if self.state == "suspended":
            self.state, self.has_failed = "active", False
            if self.mailbox is not None:
                for _ in range(min(self.props.concurrency, self.mailbox.waiting + 1)):
                    self.wake()
            if self.parts.children(self.address):
                self.start_early()

    def withdraw(self, delivery: DeliveryState) -> None:
        """Stop handling a message that nobody wants any more."""
        if delivery.task is not None:
            # Not at once: the handler itself may be the one that asks for it.
            self.parts.loop.call_soon(_cancel, delivery)

    # ------------------------------------------------------------ handling

    async def _drain(self, drains: dict[asyncio.Task[None], DeliveryState | None]) -> None:
        task = asyncio.current_task()
        mailbox = self.mailbox
        assert task is not None and mailbox is not None  # noqa: S101, PT018 (made by wake)
        handled, incarnation, was_used = 0, self.incarnation, False
        try:
            while self.state == "active" and self.incarnation == incarnation and (delivery := mailbox.next()) is not None:
                drains[task] = delivery
                await self._handle(delivery, task)
                drains[task] = None
                mailbox.done(delivery)
                was_used = was_used or not delivery.is_urgent
                handled += 1
                if handled % _TURN == 0:
                    await asyncio.sleep(0)
        finally:
            del drains[task]
            if not drains and self.drains is drains:
                self.drains = None  # an idle actor keeps next to nothing
        if self.incarnation != incarnation:
            self.wake()  # what waited for this message is for the next actor's drains, which may have ended
        elif self.props.may_rest and self.drains is None:
            self.parts.idling.idle(self, was_used=was_used)

    async def _handle(self, delivery: DeliveryState, task: asyncio.Task[None]) -> None:
        began = self.parts.loop.time()
        if delivery.withdrawn is not None or self._is_too_late(delivery, began):
            await self.parts.outcomes.end_with_error(delivery, delivery.withdrawn or ReplyTimeoutError(_LATE, self.address))
            return
        delivery.task = task
        try:
            hooks, running = self.parts.hooks, self.run(delivery, Context(self, delivery))
            outcome = await (running if hooks is None else hooks.run(self, delivery, running))
            delivery.task = None  # what it came to is being written down, which nobody may stop half way
            if delivery.is_left_to_next:
                raise asyncio.CancelledError  # noqa: TRY301 (its handler has gone on without what it waited for)
            if not delivery.is_settled:
                if delivery.envelope.thread_id is None:
                    delivery.settle(outcome)
                else:
                    await self.parts.outcomes.answer(delivery, outcome)
            self._measure(began)
        except BaseException as exc:  # noqa: BLE001 (what a handler raised: see above)
            delivery.task = None
            await self._caught(delivery, exc, task)
        finally:
            delivery.task = None
            if delivery.was_cancelled:
                delivery.was_cancelled = False
                task.uncancel()

    def _measure(self, began: float) -> None:
        self.last_handled_at = self.parts.loop.time()
        self.average_seconds += (self.last_handled_at - began - self.average_seconds) / 4

    def _is_too_late(self, delivery: DeliveryState, now: float) -> bool:
        """Whether a message cannot be handled in time while others wait that may.

        Without this, an actor under overload would spend all its time on messages that are given up half way.
        """
        if delivery.deadline is None or self.mailbox is None or not self.mailbox.waiting:
            return False
        return delivery.deadline - now < self.average_seconds and now - self.last_handled_at < _FRESH

    async def run(self, delivery: DeliveryState, context: Context) -> Any:
        """Have the actor handle a message; return a `Reply`, a message with a result, or None."""
        with Handling(context):
            return await self._run(delivery, context)

    async def _run(self, delivery: DeliveryState, context: Context) -> Any:
        actor = self.actor
        if actor is None:
            actor = await self._start_actor()
        said = delivery.envelope.said
        handler = actor.handlers.get(delivery.type if said is None else type(said))
        if handler is None:
            outcome = await actor.hear(delivery.message, context)
            return result_of(delivery, outcome) if delivery.is_call and not context.is_answered else None
        outcome = await handler.method(actor, _read(handler, delivery) if said is None else said, context)
        if handler.reply is not None and not isinstance(outcome, handler.reply) and not context.is_answered:
            raise TypeError(f"{handler.method.__qualname__} returned {type(outcome).__name__}, not {handler.reply.__name__}")
        return outcome

    async def run_at_once(self, delivery: DeliveryState) -> Any:
        """Handle what the actor asks itself, within its time: in the mailbox, it would wait for itself."""
        hooks, running = self.parts.hooks, self.run(delivery, Context(self, delivery))
        limit = asyncio.timeout_at(delivery.deadline)
        try:
            async with limit:
                return await (running if hooks is None else hooks.run(self, delivery, running))
        except TimeoutError as exc:
            if not limit.expired():
                raise
            delivery.is_unsure = True
            raise ReplyTimeoutError(f"no answer to {delivery.type} in time", delivery.to) from exc

    async def _start_actor(self) -> Actor:
        incarnation = self.incarnation
        lock = self.starting = self.starting or asyncio.Lock()
        async with lock:
            if self.actor is not None:
                return self.actor  # another drain has begun it
            try:
                actor = self.props.factory()
                self.parts.provide(actor)
                context = Context(self, None)
                with Handling(context):
                    await actor.started(context)
            except Exception as exc:
                raise _StartError from exc
            if self.incarnation == incarnation:  # else this one came too late
                self.actor, self.starting = actor, None
            return actor

    async def _start_or_fail(self) -> None:
        try:
            await self._start_actor()
        except _StartError as exc:
            self.state, self.has_failed = "suspended", True
            self.parts.supervising.report(self, Failure.of(exc.__cause__ or exc, self.address, self.incarnation, None))

    # ------------------------------------------------------------ what a handler raised

    async def _caught(self, delivery: DeliveryState, error: BaseException, task: asyncio.Task[None]) -> None:
        if isinstance(error, GeneratorExit) and not _is_current(task):
            raise error  # the event loop is gone, and this coroutine is being closed
        if delivery.is_left_to_next and not task.cancelling():
            await self.parts.outcomes.leave_to_next_system(delivery, ActorStoppedError("the system ends", self.address))
        elif isinstance(error, asyncio.CancelledError) and task.cancelling():
            if delivery.withdrawn is None or not delivery.was_cancelled:
                raise error
            await self.parts.outcomes.end_with_error(delivery, delivery.withdrawn)
        elif isinstance(error, DeliveryError):
            await self._refuse(delivery, error)
        elif isinstance(error, FencedError):
            self.parts.outcomes.abandon(delivery, error)
        elif isinstance(error, LedgerUnavailableError):
            self._pause_for_ledger(delivery, error)
        else:
            await self._fail(delivery, error)

    async def _refuse(self, delivery: DeliveryState, error: DeliveryError) -> None:
        try:
            await self.parts.outcomes.end_with_error(delivery, error)
        except ValueError as exc:  # what it says cannot be written down
            await self._fail(delivery, exc)

    def _pause_for_ledger(self, delivery: DeliveryState, error: LedgerUnavailableError) -> None:
        """Begin anew in a while: nobody is to blame, and nothing can be written down at present."""
        LOG.warning("%s waits for the ledger: %s", self.address, log_text(error), extra=log_fields(delivery, error=error))
        self.state, self.actor = "suspended", None
        if delivery.thread_id is None or delivery.is_settled:
            delivery.fail(error)
        else:
            self.parts.outcomes.put_back(self, delivery)
        self.parts.lifetime.start(self._resume_later())

    async def _resume_later(self) -> None:
        await asyncio.sleep(_LEDGER_PAUSE)
        if not self.has_failed:
            self.resume()

    async def _fail(self, delivery: DeliveryState, error: BaseException) -> None:
        self.state, self.has_failed = "suspended", True
        if isinstance(error, _StartError):
            cause = error.__cause__ or error
            self.box.put_first(delivery)
            failure = Failure.of(cause, self.address, self.incarnation, None)
        else:
            failure = Failure.of(error, self.address, self.incarnation, delivery.id)
            await self.parts.outcomes.failed(self, delivery, f"{failure.error_type}: {failure.error_message}", error)
        self.parts.supervising.report(self, failure)


def _read(handler: Handler, delivery: DeliveryState) -> Request[Any] | Notice:
    try:
        return handler.said.from_data(delivery.data)
    except ValueError as exc:
        raise RefusedError(str(exc), ErrorCode.VALIDATION_ERROR, address=delivery.to) from exc


def _is_current(task: asyncio.Task[None]) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False


def _cancel(delivery: DeliveryState) -> None:
    if delivery.task is not None and not delivery.is_settled and not delivery.is_interrupted:
        delivery.was_cancelled = True
        delivery.task.cancel()
