"""Cell: the container of the actor at one address. It has a mailbox (`_delivery.py`), runs handlers, and outlives the actor.

**No task while idle.** A cell has no task until a message comes. Then a task, the drain, handles messages until the mailbox is
empty, and ends. There are at most `concurrency` drains; each handles one message at a time. The actor is made for the first
message; a supervisor is made with its first child, because it may have to check heartbeats.

**States.** A cell is *active*; *suspended* from a failure until its supervisor has decided, while messages wait;
*stopped* for good; or *resting*: it was idle, the system has passivated it, and the next message gets a new cell.
A restart drops the actor and makes a new one from the factory; the mailbox stays.

```text
            failure, restart begins          stop
   active ─────────────────────────▶ suspended ──▶ stopped
     │  ◀───────────────────────────────┘  resume
     └── idle ──▶ resting
```

**The order of steps.** The handler runs; its outcome is journaled, if the message belongs to a thread; then the caller gets
it. A crash between two of these steps leaves the call open in the ledger, and recovery delivers it again. So a caller never
has an answer that the ledger does not have.

**Failures.** This is the only place that catches `BaseException`, and only from a handler. A `DeliveryError` is an answer.
A cancellation of the drain's task (`task.cancelling()` counts them) ends one message whose answer is no longer wanted, or ends
the drain. A `CancelledError` that nobody requested, and everything else, is a failure of the actor, whatever its class.

**No locks.** All of this runs on one event loop. A method without an `await` is atomic, and the code relies on it: there is no
`await` between the check and the change of a state, unless a comment says what is checked again after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from antiphon.errors import (
    ActorStoppedError,
    DeliveryError,
    FencedError,
    HistoryMismatchError,
    LedgerUnavailableError,
    MailboxFullError,
    OwnedError,
    ParkedError,
    RefusedError,
    ReplyTimeoutError,
)
from antiphon.protocol import ErrorCode
from antiphon.runtime._actor import Context, begin_handling, end_handling
from antiphon.runtime._delivery import Mailbox
from antiphon.runtime._exchange import result_of
from antiphon.runtime._reporting import ActorFailure, warn
from antiphon.runtime._rows import enclosure_of
from antiphon.runtime._states import Event
from antiphon.runtime._work import Halt

if TYPE_CHECKING:
    from antiphon.protocol import Notice, Request
    from antiphon.runtime._actor import Actor, Handler, Lifetime, Props, Services
    from antiphon.runtime._delivery import DeliveryState
    from antiphon.runtime._outcomes import Outcomes
    from antiphon.runtime._reporting import Hooks
    from antiphon.runtime._work import Work

State: TypeAlias = Literal["active", "suspended", "stopped", "resting"]

_LATE = "it would come too late: others wait"

_FRESH = 5.0
"""Seconds for which the measured handling time is used as the estimate for the next message."""

_LEDGER_PAUSE = 1.0
"""Seconds to pause while the ledger is unavailable."""

_TURN = 64
"""How many messages a drain handles before it yields to other tasks."""


class _StartError(Exception):
    """The factory or `started` raised. The next message did not cause that, and is not counted as failed."""


class Redelivering(Protocol):
    """Delivers messages again."""

    async def failed(self, cell: Cell, delivery: DeliveryState, reason: str, error: BaseException) -> None: ...
    async def redeliver(self, cell: Cell, delivery: DeliveryState, reason: str) -> None: ...
    def put_back(self, cell: Cell, delivery: DeliveryState) -> None: ...


class Supervising(Protocol):
    """Decides about actors that fail or stop themselves."""

    def report(self, cell: Cell, failure: ActorFailure) -> None: ...
    async def actor_stops(self, cell: Cell, reason: str) -> None: ...


class Idling(Protocol):
    """Registers idle actors, and passivates them."""

    def idle(self, cell: Cell, *, was_used: bool = True) -> None: ...


@dataclass(frozen=True, slots=True)
class CellParts:
    """The parts of a system that its cells share."""

    lifetime: Lifetime
    loop: asyncio.AbstractEventLoop
    """The loop of `lifetime`, as a field of its own because every message needs it."""
    hooks: Hooks | None
    services: Services
    outcomes: Outcomes
    redelivery: Redelivering
    supervising: Supervising
    idling: Idling
    children: Callable[[str], tuple[str, ...]]
    """Returns the children that the actor at an address supervises."""
    provide: Callable[[Actor], None]
    """Gives a supervisor the parts of the runtime that it works with."""


class Cell:
    """The cell of one address: mailbox, drains, and the actor while there is one."""

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
        """The tasks that handle messages, with the message that each handles now."""
        self.starting: asyncio.Lock | None = None
        """Held while the actor is made and started, so that concurrent drains make only one."""
        self.has_failed = False
        """Whether the actor has failed, and its supervisor has not decided yet."""
        self.held = 0
        """The number of senders with a message that is not in the mailbox yet. Until it is 0, the cell is not passivated:
        otherwise a new cell at the same address could handle messages at the same time."""
        self.wants_rest = False
        """Whether the actor asked to be passivated as soon as it is idle (`Context.rest`)."""
        self.incarnation = 1
        """How many actors the factory has made for this cell, from 1."""
        self.began = parts.loop.time()
        self.average_seconds = 0.0
        """The moving average of the handling time, in seconds."""
        self.last_handled_at = self.began
        """When the last message was handled."""

    @property
    def box(self) -> Mailbox:
        """The mailbox, made for the first message."""
        if self.mailbox is None:
            self.mailbox = Mailbox(
                self.props.capacity, is_keyed=self.props.concurrency > 1, ordering_key=self.props.ordering_key
            )
        return self.mailbox

    def load(self, besides: DeliveryState | None) -> float:
        """How busy it is, from 0 to 1: how full its mailbox is, or how many of its handlers are at work, whichever is more.

        The handler of the message `besides` does not count: it is the one that asks.
        """
        waiting = 0 if self.mailbox is None else self.mailbox.waiting
        handled = sum(each is not None and each is not besides for each in tuple((self.drains or {}).values()))
        return min(1.0, max(waiting / self.props.capacity, handled / self.props.concurrency))

    @property
    def is_untouched(self) -> bool:
        """Whether it has never received a message."""
        return self.mailbox is None and self.actor is None and not self.parts.children(self.address)

    @property
    def is_idle(self) -> bool:
        """Whether no message waits, is handled or is about to arrive, and it has no children."""
        has_work = bool(self.drains) or not (self.mailbox is None or self.mailbox.is_idle)
        return not (has_work or self.held or self.has_failed or self.parts.children(self.address))

    @property
    def is_waiting(self) -> bool:
        """Whether all messages that it handles wait for an answer or an effect; each of these has its own time limit."""
        handled = (self.drains or {}).values()
        return bool(handled) and all(delivery is not None and delivery.waits for delivery in handled)

    def declares(self, message_type: str) -> bool:
        """Whether the actor has a handler for messages of a type."""
        return self.actor is not None and message_type in self.actor.handlers

    def stop_after_message(self, reason: str) -> None:
        """Stop the actor after this message, as it has requested."""
        self.parts.lifetime.start(self.parts.supervising.actor_stops(self, reason))

    # ------------------------------------------------------------ receiving messages

    async def wait_for_room(self, delivery: DeliveryState, until: float) -> None:
        """Wait for room in the mailbox, at most until a time."""
        full = MailboxFullError(f"{self.props.capacity} messages wait", delivery.to)
        if delivery.sender == self.address:
            raise full  # its own handler sends this message, and would wait for itself
        try:
            async with asyncio.timeout_at(until):
                await self.box.wait_for_room()
        except TimeoutError:
            raise full from None
        if self.state == "stopped":
            raise ActorStoppedError("it takes no more messages", delivery.to)

    def deliver(self, delivery: DeliveryState) -> None:
        """Put a message into the mailbox, where room was reserved for it."""
        delivery.cell = self
        delivery.turn(Event.ACCEPT)
        if self.parts.hooks is not None:
            self.parts.hooks.accepted(delivery)
        self.box.put(delivery)
        self.wake()

    def start_early(self) -> None:
        """Make the actor without a message, if there is none yet."""
        if self.actor is None and self.starting is None and self.state == "active":
            # Set here and not in the task: more children may be spawned before the task runs, and must not start a second one.
            self.starting = asyncio.Lock()
            self.parts.lifetime.start(self._start_or_fail())

    def wake(self) -> None:
        """Start a drain for the messages in the mailbox, unless there are enough drains."""
        drains = self.drains
        if drains is None:
            drains = self.drains = {}
        if len(drains) < self.props.concurrency and self.state == "active":
            # Not `loop.create_task`: an eager task factory would run the handler inside its sender. The context is the
            # system's, so a handler does not see the context variables of the sender that happened to wake it.
            parts = self.parts
            context = parts.lifetime.context.copy()
            task = asyncio.Task(self._drain(drains), loop=parts.loop, name=self.address, context=context)
            drains[task] = None

    def suspend(self) -> None:
        """Start no further message; running handlers continue."""
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
        """Cancel the handler of a message whose answer is no longer wanted, or whose thread another host owns."""
        if delivery.work.task is not None:
            # `call_soon`, because the handler itself may be the caller: a task that cancels itself here would be cancelled in
            # the middle of this call. `_cancel` checks again whether the handler still runs.
            self.parts.loop.call_soon(_cancel, delivery)

    # ------------------------------------------------------------ handling

    async def _drain(self, drains: dict[asyncio.Task[None], DeliveryState | None]) -> None:
        task = asyncio.current_task(self.parts.loop)
        mailbox, is_keyed = self.mailbox, self.props.concurrency > 1
        assert task is not None and mailbox is not None  # noqa: S101, PT018 (made by wake)
        handled, incarnation, was_used = 0, self.incarnation, False
        try:
            while self.state == "active" and self.incarnation == incarnation and (delivery := mailbox.next()) is not None:
                # `drains` has the messages that are being handled at any moment: `Lifecycle.halt` reads it to find the
                # messages that it interrupts. The ordering key is released after the outcome is written, so that the next
                # message of the thread sees the outcome.
                drains[task] = delivery
                # An evicted message is handled by another host; a caller here gets the answer from the ledger.
                if delivery.evicted is None:
                    await self._handle(delivery, task, mailbox)
                drains[task] = None
                if is_keyed:
                    mailbox.done(delivery)
                was_used = was_used or not delivery.is_heartbeat
                handled += 1
                if handled % _TURN == 0:
                    await asyncio.sleep(0)
        finally:
            del drains[task]
            if not drains and self.drains is drains:
                self.drains = None  # `is` above: after a restart, `self.drains` belongs to the next actor
        if self.incarnation != incarnation:
            self.wake()  # messages that this one held back are for the next actor, whose drains may have ended already
        elif self.props.may_rest and self.drains is None:
            self.parts.idling.idle(self, was_used=was_used)

    async def _handle(self, delivery: DeliveryState, task: asyncio.Task[None], mailbox: Mailbox) -> None:
        loop = self.parts.loop
        began = loop.time()
        withdrawn = delivery.callers.withdrawn
        if withdrawn is not None or (mailbox.waiting and self._is_too_late(delivery, began)):
            await self.parts.outcomes.end_with_error(delivery, withdrawn or ReplyTimeoutError(_LATE, self.address))
            return
        delivery.turn(Event.START)
        work = delivery.work  # of this attempt: if it fails, the delivery gets another one
        work.task = task
        try:
            hooks, running = self.parts.hooks, self.run(delivery, Context(self, delivery))
            outcome = await (running if hooks is None else hooks.run(self, delivery, running))
            # From here on, `withdraw` must not cancel the task: the outcome is being written, and an interrupted write would
            # leave the caller and the ledger with different answers.
            work.task = None
            if delivery.evicted is not None:
                return
            if work.halt is Halt.LEFT_TO_NEXT:
                raise asyncio.CancelledError  # noqa: TRY301 (its handler went on without the answer that it waited for)
            if work.parked is not None and not delivery.is_settled:
                raise ParkedError(work.parked.reason, work.parked.address)  # noqa: TRY301 (its handler has caught it)
            if not delivery.is_settled:
                if delivery.envelope.thread_id is None:
                    delivery.settle(outcome)
                else:
                    await self.parts.outcomes.answer(delivery, outcome)
            ended = self.last_handled_at = loop.time()
            self.average_seconds += (ended - began - self.average_seconds) / 4
        except BaseException as exc:  # noqa: BLE001 (the one place: see the head of the file)
            work.task = None
            await self._caught(delivery, work, exc, task)
        finally:
            while work.cancellations:  # they were for this message only: the drain continues with the next one
                work.cancellations -= 1
                task.uncancel()

    def _is_too_late(self, delivery: DeliveryState, now: float) -> bool:
        """Whether a message cannot be handled in time, while other messages wait that may be.

        Without this check, an overloaded actor would spend all its time on messages that time out halfway.
        """
        if delivery.deadline is None:
            return False
        return delivery.deadline - now < self.average_seconds and now - self.last_handled_at < _FRESH

    async def run(self, delivery: DeliveryState, context: Context) -> Any:
        """Run the handler of a message; return a `Reply`, a message with a result, or None."""
        begun = begin_handling(context)
        try:
            actor = self.actor
            if actor is None:
                actor = await self._start_actor()
            request = delivery.envelope.request
            handler = actor.handlers.get(delivery.type if request is None else type(request))
            if handler is None:
                outcome = await actor.hear(delivery.message, context)
                return result_of(delivery, outcome) if delivery.is_call and not context.is_answered else None
            outcome = await handler.method(actor, _read(handler, delivery) if request is None else request, context)
            if handler.reply is not None and not isinstance(outcome, handler.reply) and not context.is_answered:
                name, expected = handler.method.__qualname__, handler.reply.__name__
                raise TypeError(f"{name} returned {type(outcome).__name__}, not {expected}")
            return outcome
        finally:
            end_handling(context, begun)

    async def run_at_once(self, delivery: DeliveryState) -> Any:
        """Handle a question that the actor asks itself, within its deadline.

        In the mailbox, it would wait for its own sender.
        """
        hooks, running = self.parts.hooks, self.run(delivery, Context(self, delivery))
        limit = asyncio.timeout_at(delivery.deadline)
        try:
            async with limit:
                return await (running if hooks is None else hooks.run(self, delivery, running))
        except TimeoutError as exc:
            if not limit.expired():
                raise
            delivery.work.is_unsure = True
            raise ReplyTimeoutError(f"no answer to {delivery.type} in time", delivery.to) from exc

    async def _start_actor(self) -> Actor:
        incarnation = self.incarnation
        lock = self.starting = self.starting or asyncio.Lock()
        async with lock:
            if self.actor is not None:
                return self.actor  # another drain made it while this one waited for the lock
            try:
                actor = self.props.factory()
                self.parts.provide(actor)
                context = Context(self, None)
                begun = begin_handling(context)
                try:
                    await actor.started(context)
                finally:
                    end_handling(context, begun)
            except Exception as exc:
                raise _StartError from exc
            # If the cell was restarted while `started` ran, this actor is dropped.
            if self.incarnation == incarnation:
                self.actor, self.starting = actor, None
            return actor

    async def _start_or_fail(self) -> None:
        try:
            await self._start_actor()
        except _StartError as exc:
            self.state, self.has_failed = "suspended", True
            self.parts.supervising.report(self, ActorFailure.of(exc.__cause__ or exc, self.address, self.incarnation, None))

    # ------------------------------------------------------------ errors of a handler

    async def _caught(  # noqa: C901 (one list of checks, in the order that matters)
        self, delivery: DeliveryState, work: Work, error: BaseException, task: asyncio.Task[None]
    ) -> None:
        # The order of the checks matters: first whether a closing system interrupts the handler, then whether it was
        # cancelled, and only then the class of the error, because the handler may turn the cancellation into any other error.
        if isinstance(error, GeneratorExit) and not _is_current(task):
            raise error  # the event loop is gone, and this coroutine is being closed: nothing can be awaited
        if delivery.evicted is not None:
            if isinstance(error, asyncio.CancelledError) and not work.cancellations and task.cancelling():
                raise error  # not because of the eviction: the actor itself is stopped
            return  # whatever was raised: another host handles the message, and this host writes nothing about it
        if work.halt is Halt.LEFT_TO_NEXT and not task.cancelling():
            await self.parts.outcomes.leave_to_next_system(delivery, ActorStoppedError("the system ends", self.address))
        elif isinstance(error, asyncio.CancelledError) and task.cancelling():
            if delivery.callers.withdrawn is None or not work.cancellations:
                raise error
            await self.parts.outcomes.end_with_error(delivery, delivery.callers.withdrawn)
        elif isinstance(error, HistoryMismatchError) and delivery.thread_id is not None and not delivery.is_settled:
            # Not answered: another build may be able to continue the thread.
            await self.parts.outcomes.give_up(delivery, error)
        elif isinstance(error, DeliveryError):
            try:
                await self.parts.outcomes.end_with_error(delivery, error)
            except ValueError as exc:  # the text or the details of the error cannot be stored
                await self._fail(delivery, exc)
        elif isinstance(error, FencedError | OwnedError):
            self.parts.outcomes.abandon(delivery, error)
        elif isinstance(error, LedgerUnavailableError):
            self._pause_for_ledger(delivery, error)
        else:
            await self._fail(delivery, error)

    def _pause_for_ledger(self, delivery: DeliveryState, error: LedgerUnavailableError) -> None:
        """Pause, then handle the message again with a new actor.

        This is not a failure: it is not reported to the supervisor.
        """
        warn("%s waits for the ledger: %s", self.address, error=error, about=delivery)
        # Suspend: otherwise this drain would take the message again at once, while the ledger is still unavailable.
        self.state, self.actor = "suspended", None
        if delivery.is_settled:
            pass  # it has answered, and went on
        elif delivery.thread_id is None:
            delivery.settle(None, error)
        else:
            self.parts.redelivery.put_back(self, delivery)
        self.parts.lifetime.start(self._resume_later())

    async def _resume_later(self) -> None:
        await asyncio.sleep(_LEDGER_PAUSE)
        if not self.has_failed:
            self.resume()

    async def _fail(self, delivery: DeliveryState, error: BaseException) -> None:
        # Suspend before the first await: no drain may start another message with the failed actor.
        self.state, self.has_failed = "suspended", True
        if isinstance(error, _StartError):
            cause = error.__cause__ or error
            delivery.turn(Event.ACCEPT)
            self.box.put_first(delivery)  # it does not count as an attempt: its handler has not run
            failure = ActorFailure.of(cause, self.address, self.incarnation, None)
        else:
            failure = ActorFailure.of(error, self.address, self.incarnation, delivery.id)
            await self.parts.redelivery.failed(self, delivery, failure.text, error)
        # Report last: the supervisor may restart the cell at once, and the message must be back in the mailbox by then.
        self.parts.supervising.report(self, failure)


def _read(handler: Handler, delivery: DeliveryState) -> Request[Any] | Notice:
    try:
        request = handler.said.from_data(delivery.data)
    except ValueError as exc:
        raise RefusedError(str(exc), ErrorCode.VALIDATION_ERROR, address=delivery.to) from exc
    enclosure = enclosure_of(delivery.message)
    return request.with_enclosure(enclosure) if enclosure else request


def _is_current(task: asyncio.Task[None]) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False


def _cancel(delivery: DeliveryState) -> None:
    # The answer of the new owner may have settled an evicted message already. Its handler must end all the same: what it waits
    # for never comes, and it holds back the next messages of the thread.
    is_ending = delivery.is_settled and delivery.evicted is None
    work = delivery.work
    if work.task is not None and not is_ending and work.halt is not Halt.INTERRUPTED:
        work.cancellations += 1
        work.task.cancel()
