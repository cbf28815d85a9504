"""Dispatcher: routes messages to actors, and answers back to callers.

Outside of a thread a message goes straight into the mailbox. It is handled at most once, and lost if the process dies.
A message of a thread is journaled before its delivery, and so is its outcome: see `_durable.py`.

**Circles.** An actor that handles one message at a time must not be asked by a handler that it waits for, directly or through
others. `_check_circle` refuses that at once; without it, both would wait until their deadlines.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Protocol, cast

from antiphon.errors import (
    ActorFailedError,
    ActorStoppedError,
    AntiphonError,
    DeliveryError,
    FencedError,
    HistoryMismatchError,
    HopLimitError,
    OwnedError,
    ParkedError,
    StoppedError,
    WithdrawnError,
)
from antiphon.messages import Message
from antiphon.protocol import Heartbeat, Notice, Restart, Retry
from antiphon.runtime._delivery import Deadlines, DeliveryState, Envelope, Recent
from antiphon.runtime._exchange import error_result, result_of
from antiphon.runtime._redelivery import find_original
from antiphon.runtime._reporting import LOG, log_fields

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from antiphon.ledger import Record
    from antiphon.messages import Json
    from antiphon.runtime._actor import Lifetime
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._delivery import InFlight
    from antiphon.runtime._durable import Durable
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._redelivery import Redelivery
    from antiphon.runtime._reporting import DeadLetters
    from antiphon.runtime._settings import Settings
    from antiphon.runtime._tree import Tree


class Evicting(Protocol):
    """Drops threads that this system cannot continue."""

    async def give_up(self, delivery: DeliveryState, error: HistoryMismatchError) -> None: ...


class Dispatcher:
    """Carries messages to cells, and outcomes back."""

    def __init__(
        self,
        lifetime: Lifetime,
        settings: Settings,
        tree: Tree,
        *,
        durable: Durable,
        in_flight: InFlight,
        redelivery: Redelivery,
        dead: DeadLetters,
        journal: Journal,
    ) -> None:
        self._lifetime = lifetime
        self._loop = lifetime.loop
        self._within, self._hop_limit = settings.within, settings.hop_limit
        self._answers_mismatches = settings.mismatch_patience is None
        self._tree, self._cells = tree, tree.cells
        self._durable = durable
        self._in_flight = in_flight
        self._redelivery = redelivery
        self._dead = dead
        self._journal = journal
        self._hooks = journal.hooks
        self._recent = Recent()
        self._deadlines = Deadlines(self._loop)
        self.evicting: Evicting
        """Set when the system is put together."""

    # ------------------------------------------------------------ sending

    def ask(self, delivery: DeliveryState, within: float | None) -> Coroutine[Any, Any, Any]:
        """Deliver a message and wait for its outcome.

        This is not a coroutine function: it checks the message and returns the coroutine that delivers it, which saves one
        coroutine per message.

        Raises:
            DeliveryError: there is none.
        """
        envelope, now = delivery.envelope, self._loop.time()
        parent = envelope.parent
        deadline = now + (self._within if within is None else within)
        if parent is not None:
            _check_evicted(parent)
            _check_parked(parent, delivery)
            deadline = _inherited(parent, deadline, within)
        delivery.deadline = deadline
        if self._hooks is not None:
            self._hooks.said(delivery)
        cell = self._cells.get(envelope.to)
        if cell is None or cell.state == "stopped" or envelope.hops > self._hop_limit:
            cell = None if self._needs_other_host(delivery) else self._find(delivery)
        if parent is not None and cell is not None:
            if parent.cell is cell:
                return self._ask_itself(cell, delivery)
            _check_circle(cell, parent)
        return self._ask(cell, delivery, deadline, now)

    async def _ask(self, cell: Cell | None, delivery: DeliveryState, deadline: float, now: float) -> Any:
        parent, thread_id = delivery.envelope.parent, delivery.envelope.thread_id
        waiter = delivery.waiter = self._loop.create_future()  # before delivery: a stored answer settles it at once
        if parent is not None:
            parent.wait(1)
        try:
            if cell is None or thread_id is not None:
                await self._carry_in_thread(cell, delivery, deadline)
            elif not (delivery.may_be_known and self._recent.knows(delivery)) and not self._deliver_at_once(cell, delivery):
                await self._hand_over(cell, delivery, deadline)
            # After the append: an expiry before that would withdraw a message that no cell has yet.
            self._deadlines.add(delivery, deadline, now)
            return await waiter
        except BaseException as exc:
            if isinstance(exc, asyncio.CancelledError):
                self._give_up(delivery)
            elif parent is not None and thread_id is not None and parent.thread_id == thread_id and _is_parked(exc):
                # What the asked actor has begun waits for a person: asked again, it would do it again, as another message.
                parent.note_parked(cast("ParkedError", exc))
            # Also if the waiter has failed, because its thread was lost: otherwise asyncio logs that error as never retrieved.
            waiter.cancel()
            raise
        finally:
            if (bucket := delivery.bucket) is not None:
                bucket.pop(delivery, None)
            if parent is not None:
                parent.wait(-1)

    async def original(self, request: Retry, thread_id: str | None) -> Message:
        """Return the message that a RETRY names.

        Raises:
            RefusedError: it was tried too often, or is unknown.
        """
        return await find_original(self._journal.ledger, self._recent, request, thread_id)

    async def _ask_itself(self, cell: Cell, delivery: DeliveryState) -> Any:
        """Handle a question that an actor asks itself inside the handler that asks.

        In the mailbox, it would wait for its own sender.
        """
        delivery.cell = cell
        is_done = False
        try:
            if delivery.thread_id is not None and await self._durable.append_own(delivery):
                outcome = delivery.outcome[0] if delivery.outcome else None
            else:
                replied = delivery.waiter = self._loop.create_future()
                try:
                    outcome = await cell.run_at_once(delivery)
                finally:
                    delivery.waiter = None
                if replied.done():  # the handler has answered before its end
                    outcome = replied.result()
                else:
                    await self.answer(delivery, outcome)
            is_done = True
        except DeliveryError as exc:
            if not self._is_mismatch(delivery, exc):
                await self.end_with_error(delivery, exc)
                is_done = True
            raise
        finally:
            if not is_done and delivery.parent is not None:
                # Cancelled between the two rows: the question stays open until the handler that asks ends, which searches for
                # it.
                delivery.parent.is_unsure = True
        return outcome

    async def work_out(self, delivery: DeliveryState, handle: Callable[[DeliveryState], Awaitable[Any]]) -> Any:
        """Have an actor answer its own question without effects; both rows are written with the next row of its handler.

        Raises:
            DeliveryError: it cannot.
            RuntimeError: the handler sends a message or runs an effect, which could be journaled before the question.
        """
        assert delivery.parent is not None  # noqa: S101 (a handler is at work)
        delivery.cell = delivery.parent.cell
        if self._hooks is not None:
            self._hooks.said(delivery)
        # Looked up before the handler runs: a stored answer counts, even if the handler would now give a different one.
        call, result = await self._durable.find_own(delivery) if delivery.may_be_known else (None, None)
        if result is not None:
            return result
        try:
            outcome = await handle(delivery)
        except DeliveryError as exc:
            if not self._is_mismatch(delivery, exc):
                await self._defer_result(delivery, call, error_result(delivery, exc, delivery.to))
            raise
        if delivery.unnamed_count or delivery.keys:
            raise RuntimeError(f"{delivery.to}: what works out {delivery.type} must neither say nor do anything")
        await self._defer_result(delivery, call, result_of(delivery, outcome))
        return outcome

    async def _defer_result(self, delivery: DeliveryState, call: Record | None, result: Message) -> None:
        """Write question and result with the next row of the handler; at once, if the thread already has the question."""
        if call is not None:
            delivery.use_stored(call)
            await self._durable.answer(delivery, result)
        elif delivery.thread_id is not None and delivery.parent is not None:
            delivery.parent.deferred_rows += (delivery.message, result)

    async def tell(self, delivery: DeliveryState, within: float | None) -> None:
        """Deliver a message without waiting for an outcome: `within` limits the delivery, not the handling.

        Raises:
            DeliveryError: it cannot be delivered.
        """
        _check_evicted(delivery.parent)
        until = self._until(delivery.parent, within)
        if self._hooks is not None:
            self._hooks.said(delivery)
        cell = None if self._needs_other_host(delivery) else self._find(delivery)
        if cell is None or delivery.thread_id is not None:
            await self._carry_in_thread(cell, delivery, until)
        elif not (delivery.may_be_known and self._recent.knows(delivery)):
            await self._hand_over(cell, delivery, until)

    async def _hand_over(self, cell: Cell, delivery: DeliveryState, until: float) -> None:
        """Put a message into the mailbox of its actor as soon as there is room. Heartbeats need none."""
        if delivery.type == Heartbeat.message_type:
            delivery.cell = cell
            cell.box.put_urgent(delivery)
            cell.wake()
            return
        if not cell.box.reserve():
            await cell.wait_for_room(delivery, until)
        cell.deliver(delivery)

    async def _carry_in_thread(self, cell: Cell | None, delivery: DeliveryState, until: float) -> None:
        """Journal a message and deliver it.

        If only another host has its actor, the message is posted, or becomes a dead letter.
        """
        if cell is None:
            try:
                await self._durable.post_to_host(delivery, until)
            except DeliveryError as exc:
                self._dead.add(delivery, exc.code, exc.reason)
                raise
            return
        try:
            await self._durable.append_and_deliver(cell, delivery, until)
        except (FencedError, OwnedError):
            if not delivery.is_of_host:
                raise
            _check_evicted(delivery.parent)
            # Another host owns the system thread of the actor, and has an actor with the same address. The local actor is
            # meant.
            delivery.leave_thread()
            if delivery.is_command:
                self._durable.run_command(cell, delivery)
            else:
                await self._hand_over(cell, delivery, until)

    def _needs_other_host(self, delivery: DeliveryState) -> bool:
        """Whether a thread is asked from outside for an actor that this system does not have."""
        parent = delivery.parent
        is_inside = parent is not None and parent.thread_id == delivery.thread_id
        return delivery.thread_id is not None and not is_inside and not self._tree.has(delivery.to)

    def _until(self, parent: DeliveryState | None, within: float | None) -> float:
        """Return the time until which to wait: at most the deadline of the handled message."""
        own = self._loop.time() + (self._within if within is None else within)
        return own if parent is None else _inherited(parent, own, within)

    def _find(self, delivery: DeliveryState) -> Cell:
        try:
            if delivery.envelope.hops > self._hop_limit:
                raise HopLimitError(f"it followed from {delivery.envelope.hops} other messages", delivery.to)
            cell = self._tree.at(delivery.to)
            if cell.state == "stopped" and delivery.type != Restart.message_type:
                self._leave_to_next(delivery)
                raise ActorStoppedError("it takes no more messages", delivery.to)
        except DeliveryError as exc:
            # While the system closes, a caller outside of it gets the error, and nobody has to look into the message.
            if delivery.parent is not None or not self._lifetime.is_closing:
                self._dead.add(delivery, exc.code, exc.reason)
            raise
        return cell

    def _leave_to_next(self, delivery: DeliveryState) -> None:
        """End the handler that sends to an actor which has stopped because the system closes.

        Raises:
            CancelledError: the handler will run again in the next system.
        """
        parent = delivery.parent
        if (
            self._lifetime.is_closing
            and delivery.thread_id is not None
            and parent is not None
            and parent.leave_to_next_system()
        ):
            raise asyncio.CancelledError

    def _deliver_at_once(self, cell: Cell, delivery: DeliveryState) -> bool:
        """Fast path: put a typed request into a mailbox that has room; return whether that was possible."""
        said = delivery.envelope.said
        if said is None or type(said) is Heartbeat or not (cell.mailbox or cell.box).offer(delivery):
            return False
        delivery.cell = cell
        if self._hooks is not None:
            self._hooks.accepted(delivery)
        cell.wake()
        return True

    def _give_up(self, delivery: DeliveryState) -> None:
        """Withdraw the question of a cancelled caller.

        A handler that will run again keeps it, because it will ask the same question.
        """
        parent = delivery.parent
        begins_anew = self._lifetime.is_closing or (parent is not None and parent.is_interrupted)
        if begins_anew and delivery.thread_id is not None:
            delivery.waiter = None
        else:
            delivery.withdraw(WithdrawnError("the caller was cancelled", delivery.to))

    def watch(self, delivery: DeliveryState) -> None:
        """Let a message expire that has no caller here."""
        if delivery.deadline is not None:
            self._deadlines.add(delivery, delivery.deadline, self._loop.time())

    # ------------------------------------------------------------ outcomes

    async def answer(self, delivery: DeliveryState, outcome: Any) -> None:
        """End a message with an outcome; in a thread it is journaled first."""
        if delivery.thread_id is None:
            delivery.settle(outcome)
        else:
            await self._durable.answer(delivery, outcome)

    async def end_with_error(self, delivery: DeliveryState, error: DeliveryError) -> None:
        """End a message with an error; without a caller, it becomes a dead letter."""
        if delivery.is_settled:
            return
        self._dead.add_unless_asked(delivery, error)
        if delivery.thread_id is None:
            delivery.fail(error)
        else:
            await self._durable.end_with_error(delivery, error)

    def abandon(self, delivery: DeliveryState, error: AntiphonError) -> None:
        """Stop handling a message without a row. The caller gets the error; in a thread the call stays open."""
        if delivery.thread_id is None:
            delivery.fail(error)
        else:
            self._in_flight.abandon(delivery, error)

    def leave_open(self, delivery: DeliveryState, error: AntiphonError) -> None:
        """Abandon a message whose handler waits for something outside, such as the answer of a person."""
        if delivery.thread_id is None:
            delivery.fail(error)
        else:
            self._in_flight.leave_open(delivery, error)

    async def give_up(self, delivery: DeliveryState, error: HistoryMismatchError) -> None:
        """Give up the thread of a message that the code here cannot continue. The message stays open for another build."""
        if self._answers_mismatches:
            await self.end_with_error(delivery, error)
        else:
            await self.evicting.give_up(delivery, error)

    def _is_mismatch(self, delivery: DeliveryState, error: DeliveryError) -> bool:
        """Whether an error means that the code here cannot continue a thread: then it is not an answer to the message."""
        is_mismatch = isinstance(error, HistoryMismatchError) and delivery.thread_id is not None
        return is_mismatch and not self._answers_mismatches

    async def failed(self, cell: Cell, delivery: DeliveryState, reason: str, error: BaseException) -> None:
        """Redeliver a message whose handler has failed, after the restart; outside of a thread, answer with the error."""
        if delivery.is_settled:
            return
        if delivery.thread_id is not None:
            await self.redeliver(cell, delivery, reason)
            return
        wrapped = ActorFailedError(reason, delivery.to)
        wrapped.__cause__ = error
        await self.end_with_error(delivery, wrapped)

    async def redeliver(self, cell: Cell, delivery: DeliveryState, reason: str) -> None:
        """Redeliver a message of a thread whose handler has failed or was interrupted."""
        try:
            await self._redelivery.failed(cell, delivery, reason)
        except ActorStoppedError as exc:
            await self._durable.refuse(delivery, exc)

    def put_back(self, cell: Cell, delivery: DeliveryState) -> None:
        """Handle a message again without a row, because the ledger is unavailable."""
        self._redelivery.put_back(cell, delivery)

    async def leave_to_next_system(self, delivery: DeliveryState, error: AntiphonError) -> None:
        """Leave a message of a thread to the next system."""
        await self._durable.leave_to_next_system(delivery, error)

    async def park(self, delivery: DeliveryState, reason: str, evidence: dict[str, Json]) -> None:
        """Park a message until a person settles it.

        Raises:
            LedgerError: it could not be journaled.
        """
        await self._redelivery.park(delivery, reason, evidence)

    async def inform(self, address: str, notice: Notice, sender: str) -> None:
        """Send an actor a notice that it subscribed to. If the actor is gone, this is only logged."""
        try:
            await self.tell(DeliveryState(Envelope(notice, None, sender, address), may_be_known=False), None)
        except DeliveryError as exc:
            LOG.info("%s cannot be told about %s: %s", address, sender, exc.code, extra=log_fields(address, error=exc))

    def knows(self, address: str) -> bool:
        """Whether there is an actor at an address, or one would be made for a message."""
        return self._tree.has(address)

    def close(self) -> None:
        """Stop all deadlines."""
        self._deadlines.close()

    async def forward(self, delivery: DeliveryState, to: str) -> None:
        """Forward a message to another actor, which answers it."""
        passed = delivery.forwarded_to(to)
        try:
            # Reserve room first: without room, the message ends here with an error, and is in no mailbox.
            cell = self._find(passed)
            if not cell.box.reserve():
                await cell.wait_for_room(passed, self._until(passed.parent, None))
        except DeliveryError as exc:
            await self.end_with_error(passed, exc)
            raise
        # In flight before the mailbox: a duplicate must share this delivery, because the old one never gets an outcome.
        if passed.thread_id is not None:
            self._in_flight.take_over(passed)
        cell.deliver(passed)


def _is_parked(error: BaseException) -> bool:
    """Whether something waits for a person. What has stopped outside may be asked of another actor."""
    return isinstance(error, ParkedError) and not isinstance(error, StoppedError)


def _check_parked(parent: DeliveryState, delivery: DeliveryState) -> None:
    """Refuse a question of a handler that waits for a person, in its thread."""
    if parent.parked is not None and delivery.thread_id is not None and delivery.thread_id == parent.thread_id:
        raise ParkedError(parent.parked.reason, parent.parked.address)


def _check_evicted(parent: DeliveryState | None) -> None:
    """Refuse messages of a handler whose thread was evicted."""
    if parent is not None and parent.evicted is not None:
        raise FencedError(*parent.evicted.args)


def _inherited(parent: DeliveryState, own: float, within: float | None) -> float:
    """Return the deadline of a message that a handler sends: at most the deadline of the handled message."""
    if parent.deadline is None:
        return own
    return parent.deadline if within is None else min(own, parent.deadline)


def _check_circle(cell: Cell, parent: DeliveryState) -> None:
    """Refuse to ask an actor that waits, directly or through others, for the handler that asks."""
    asking: DeliveryState | None = parent
    while asking is not None:
        if asking.cell is cell and cell.props.concurrency == 1:
            raise HopLimitError("it waits for the actor that asks it: they ask in a circle", cell.address)
        asking = asking.envelope.parent if asking.waiter is not None else None
