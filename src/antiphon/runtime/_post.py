"""Post: how a message gets to its actor and an answer back.

Outside of a thread a message goes straight into the mailbox. It is handled at most once, and gone if the process dies.
What is said in a thread goes through the journal on its way, there and back: see `_durable.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from antiphon.errors import (
    ActorFailedError,
    ActorStoppedError,
    AntiphonError,
    DeliveryError,
    HopLimitError,
    MailboxFullError,
    ReplyTimeoutError,
    WithdrawnError,
)
from antiphon.protocol import Heartbeat
from antiphon.runtime._context import Context
from antiphon.runtime._durable import Durable
from antiphon.runtime._results import error_result, result_of

if TYPE_CHECKING:
    from antiphon.ledger import Record
    from antiphon.messages import Message
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._envelope import Envelope
    from antiphon.runtime._kernel import Kernel

__all__ = ["Post"]


class Post:
    """What carries messages to cells, and answers back."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._loop = kernel.loop
        self._deadlines = kernel.deadlines
        self._within, self._hop_limit = kernel.settings.within, kernel.settings.hop_limit
        self.durable = Durable(kernel, self)
        self._recent = kernel.recent
        self._cells = kernel.tree.cells
        self._hooks = kernel.hooks

    # ------------------------------------------------------------ sending

    async def ask(self, envelope: Envelope, within: float | None) -> Any:
        """Deliver a message and wait for its outcome.

        Raises:
            DeliveryError: there is none.
        """
        deadline = envelope.deadline = self._until(envelope, within)
        if self._hooks is not None:
            self._hooks.said(envelope)
        if self._kernel.remote is not None and self._is_elsewhere(envelope):
            return await self._kernel.remote.ask(envelope, deadline)
        cell, parent = self._cells.get(envelope.to), envelope.parent
        if cell is None or cell.state == "stopped" or envelope.hops:
            cell = self._find(envelope)
        if parent is not None:
            if parent.cell is cell:
                return await self._ask_itself(cell, envelope)
            _check_circle(cell, parent)
        waiter = envelope.waiter = self._loop.create_future()
        try:
            if envelope.thread_id is not None:
                await self.durable.say(cell, envelope, deadline)
            elif not (envelope.may_be_known and self._recent.knows(envelope)) and not self._deliver_at_once(cell, envelope):
                await self._hand_over(cell, envelope, deadline)
            self._deadlines.add(envelope, deadline)
            return await waiter
        except asyncio.CancelledError:
            self._give_up(envelope)
            raise
        finally:
            if envelope.bucket is not None:
                envelope.bucket.pop(envelope, None)

    async def _ask_itself(self, cell: Cell, envelope: Envelope) -> Any:
        """Have an actor handle what it asks itself, at once: in its mailbox, it would wait for itself."""
        envelope.cell = cell
        is_done = False
        try:
            if envelope.thread_id is not None and await self.durable.note(envelope):
                outcome = envelope.outcome[0] if envelope.outcome else None
            else:
                outcome = await self._do_at_once(cell, envelope)
                await self.answer(envelope, outcome)
            is_done = True
        except DeliveryError as exc:
            await self.put_away(envelope, exc)
            is_done = True
            raise
        finally:
            if not is_done and envelope.parent is not None:
                envelope.parent.is_unsure = True  # it stays open, until the handler that asked it has ended
        return outcome

    async def work_out(self, envelope: Envelope) -> Any:
        """Have an actor answer itself by thinking alone; both is written down with the next row of its handler.

        Raises:
            DeliveryError: it cannot.
            RuntimeError: its handler says or does something, which might not be written down then.
        """
        parent = envelope.parent
        assert parent is not None and parent.cell is not None  # noqa: S101, PT018 (a handler is at work)
        cell = envelope.cell = parent.cell
        if self._hooks is not None:
            self._hooks.said(envelope)
        call, result = await self.durable.known(envelope) if envelope.may_be_known else (None, None)
        if result is not None:
            return result
        try:
            outcome = await self._do_at_once(cell, envelope)
        except DeliveryError as exc:
            await self._worked_out(envelope, call, error_result(envelope, exc, cell.address))
            raise
        if envelope.said_count or envelope.keys:
            raise RuntimeError(f"{cell.address}: what works out {envelope.type} must neither say nor do anything")
        await self._worked_out(envelope, call, result_of(envelope, outcome))
        return outcome

    async def _worked_out(self, envelope: Envelope, call: Record | None, result: Message) -> None:
        """Have something that was worked out written down with the next row; at once, where its question is in the thread."""
        if call is not None:
            envelope.take(call)
            await self.durable.answer(envelope, result)
        elif envelope.thread_id is not None and envelope.parent is not None:
            envelope.parent.put_off += (envelope.message, result)

    async def _do_at_once(self, cell: Cell, envelope: Envelope) -> Any:
        hooks, running = self._hooks, cell.run(envelope, Context(cell, envelope))
        limit = asyncio.timeout_at(envelope.deadline)
        try:
            async with limit:
                return await (running if hooks is None else hooks.run(cell, envelope, running))
        except TimeoutError as exc:
            if not limit.expired():
                raise
            envelope.is_unsure = True
            raise ReplyTimeoutError(f"no answer to {envelope.type} in time", envelope.to) from exc

    async def tell(self, envelope: Envelope, within: float | None) -> None:
        """Deliver a message, and wait for no outcome: the time is for the delivery, not for what follows from it.

        Raises:
            DeliveryError: it cannot be delivered.
        """
        until = self._until(envelope, within)
        if self._hooks is not None:
            self._hooks.said(envelope)
        if self._kernel.remote is not None and self._is_elsewhere(envelope):
            await self._kernel.remote.ask(envelope, until)
            return
        cell = self._find(envelope)
        if envelope.thread_id is not None:
            await self.durable.say(cell, envelope, until)
        elif not (envelope.may_be_known and self._recent.knows(envelope)):
            await self._hand_over(cell, envelope, until)

    async def _hand_over(self, cell: Cell, envelope: Envelope, until: float) -> None:
        """Put a message into the mailbox of its actor, as soon as there is room."""
        if type(envelope.said) is Heartbeat or (envelope.said is None and envelope.type == Heartbeat.message_type):
            envelope.cell = cell
            cell.box.put_urgent(envelope)
            cell.wake()
            return
        if not cell.box.reserve():
            await self.room(cell, envelope, until)
        self.deliver(cell, envelope)

    def _is_elsewhere(self, envelope: Envelope) -> bool:
        """Whether another system must have the actor. The actors of one thread are in one system, which writes it."""
        return not self._kernel.tree.has(envelope.to) and (envelope.parent is None or envelope.thread_id is None)

    def _until(self, envelope: Envelope, within: float | None) -> float:
        """Return until when to wait: at most as long as whoever waits for the one who says this."""
        parent = envelope.parent
        own = self._loop.time() + (self._within if within is None else within)
        if parent is None or parent.deadline is None:
            return own
        return parent.deadline if within is None else min(own, parent.deadline)

    def _find(self, envelope: Envelope) -> Cell:
        try:
            if envelope.hops > self._hop_limit:
                raise HopLimitError(f"it followed from {envelope.hops} other messages", envelope.to)
            cell = self._kernel.tree.at(envelope.to)
            if cell.state == "stopped":
                self._leave_to_next(envelope)
                raise ActorStoppedError("it takes no more messages", envelope.to)
        except DeliveryError as exc:
            self._kernel.dead.add(envelope, exc.code, exc.reason)
            raise
        return cell

    def _leave_to_next(self, envelope: Envelope) -> None:
        """End the handler that says something to an actor which has stopped only because the system ends.

        Raises:
            CancelledError: it will run again in the next system.
        """
        parent = envelope.parent
        if self._kernel.is_closing and envelope.thread_id is not None and parent is not None and parent.leave():
            raise asyncio.CancelledError

    async def room(self, cell: Cell, envelope: Envelope, until: float) -> None:
        """Wait for room in a mailbox, at most until a time."""
        full = MailboxFullError(f"{cell.props.capacity} messages wait", envelope.to)
        if envelope.sender == cell.address:
            raise full  # it would wait for itself
        try:
            async with asyncio.timeout_at(until):
                await cell.box.room()
        except TimeoutError:
            raise full from None
        if cell.state == "stopped":
            raise ActorStoppedError("it takes no more messages", envelope.to)

    def _deliver_at_once(self, cell: Cell, envelope: Envelope) -> bool:
        """Put a plain request into a mailbox that has room; say whether that could be done."""
        box = cell.mailbox
        said = envelope.said
        if box is None or said is None or type(said) is Heartbeat or not box.offer(envelope):
            return False
        envelope.cell = cell
        if self._hooks is not None:
            self._hooks.accepted(envelope)
        cell.wake()
        return True

    def deliver(self, cell: Cell, envelope: Envelope) -> None:
        """Put a message into the mailbox, where room was taken for it."""
        envelope.cell = cell
        if self._hooks is not None:
            self._hooks.accepted(envelope)
        cell.box.put(envelope)
        cell.wake()

    def _give_up(self, envelope: Envelope) -> None:
        """Withdraw what was asked for by someone who was cancelled; unless that one is only made to begin anew."""
        parent = envelope.parent
        begins_anew = self._kernel.is_closing or (parent is not None and parent.is_interrupted)
        if begins_anew and envelope.thread_id is not None:
            envelope.waiter = None
        else:
            envelope.withdraw(WithdrawnError("whoever asked was cancelled", envelope.to))

    def watch(self, envelope: Envelope) -> None:
        """Let a message expire that nobody waits for here."""
        if envelope.deadline is not None:
            self._deadlines.add(envelope, envelope.deadline)

    # ------------------------------------------------------------ how it ends

    async def answer(self, envelope: Envelope, outcome: Any) -> None:
        """Give the outcome of a message to whoever waits."""
        if envelope.thread_id is None:
            envelope.settle(outcome)
        else:
            await self.durable.answer(envelope, outcome)

    async def put_away(self, envelope: Envelope, error: DeliveryError) -> None:
        """End a message with an error; one that nobody waits for is a dead letter."""
        if envelope.is_settled:
            return
        if envelope.waiter is None and not envelope.is_call:
            self._kernel.dead.add(envelope, error.code, error.reason)
        if envelope.thread_id is None:
            envelope.fail(error)
        else:
            await self.durable.put_away(envelope, error)

    def let_go(self, envelope: Envelope, error: AntiphonError) -> None:
        """Give an error to whoever waits, of which nothing can be written down."""
        if envelope.thread_id is None:
            envelope.fail(error)
        else:
            self.durable.let_go(envelope, error)

    async def failed(self, envelope: Envelope, reason: str, error: BaseException) -> None:
        """See to a message whose handler has failed: in a thread it is delivered again after the restart."""
        if envelope.is_settled:
            return
        if envelope.thread_id is not None:
            await self.durable.again.failed(envelope, reason)
            return
        wrapped = ActorFailedError(reason, envelope.to)
        wrapped.__cause__ = error
        await self.put_away(envelope, wrapped)

    async def forward(self, envelope: Envelope, to: str) -> None:
        """Pass a message on, to be answered by another actor."""
        passed = envelope.pass_on(to)
        try:
            cell = self._find(passed)
            if not cell.box.reserve():
                await self.room(cell, passed, self._until(passed, None))
        except DeliveryError as exc:
            await self.put_away(passed, exc)
            raise
        if passed.thread_id is not None:
            self.durable.take_over(passed)
        self.deliver(cell, passed)


def _check_circle(cell: Cell, parent: Envelope) -> None:
    """Refuse to ask an actor that waits, perhaps through others, for the answer to this."""
    asking: Envelope | None = parent
    while asking is not None:
        if asking.cell is cell and cell.props.concurrency == 1:
            raise HopLimitError("it waits for whoever asks it: they ask in a circle", cell.address)
        asking = asking.parent if asking.waiter is not None else None
