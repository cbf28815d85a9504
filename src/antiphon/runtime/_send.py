"""Send: the path of a message from its sender to the mailbox, in the order in which it happens.

| step | where |
|---|---|
| `ask`, `tell`: checks, the deadline, the cell of the actor | `Sender` |
| outside of a thread: into the mailbox | `Sender._deliver` |
| in a thread: own it; is the message stored already? | `Sender._carry`, `Sender._find_recorded` |
| room in the mailbox; then the append, as the owner | `Sender._append`, `Journal.write`, `Ledger.append` |
| into the mailbox, as it is stored | `Sender.accept` |
| the handler, and its outcome | `Cell`, `Outcomes` |

Outside of a thread a message is handled at most once, and lost if the process dies. A message of a thread is journaled before
its delivery. A crash between two steps leaves an open call, and recovery delivers it again.

**Same ids.** A message that a handler sends has an id derived from the id of the handled message and a number. A handler that
runs again sends the same messages under the same ids: `_find_recorded` looks up each message before it is sent, and uses the
stored answer, or waits for the pending one. If the ledger has a different message under that id, the code has changed since it
wrote the thread, and the handler gets a `HistoryMismatchError`.

**In flight.** `InFlight` has every message of a thread that this system handles. An entry is added before the append and
removed after the outcome is written, so a concurrent recovery of the thread does not deliver the message a second time.

**Unconfirmed appends.** When an append raises, it is unknown whether the rows were written. `recover_later` reads the thread
again after `A_WHILE`, and delivers or ends the open calls.

**Threads of other hosts.** If another host owns the thread, or only another host has the actor, the message is posted to the
thread, and its caller waits for the answer in the ledger (`_elsewhere.py`).

**Circles.** An actor that handles one message at a time must not be asked by a handler that it waits for, directly or through
others. `_check_circle` refuses that at once; without it, both would wait until their deadlines.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from antiphon.errors import (
    ActorStoppedError,
    AppendRefusedError,
    DeliveryError,
    FencedError,
    HistoryMismatchError,
    HopLimitError,
    LedgerError,
    LedgerUnavailableError,
    OwnedError,
    ParkedError,
    StoppedError,
    UndeliverableError,
    WithdrawnError,
)
from antiphon.messages import Message, OptionResultPayload
from antiphon.messages._keys import kind_of
from antiphon.protocol import Notice, Restart, Retry
from antiphon.runtime._delivery import Deadlines, DeliveryState, Envelope, Recent
from antiphon.runtime._exchange import error_result, result_of
from antiphon.runtime._redelivery import find_original
from antiphon.runtime._reporting import LOG, log_fields
from antiphon.runtime._rows import DELIVER, begun, enclosure_of, says_the_same, says_the_same_value
from antiphon.runtime._settings import SYSTEM
from antiphon.runtime._states import Event, Phase

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from antiphon.ledger import Record
    from antiphon.runtime._actor import Lifetime
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._delivery import InFlight
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._outcomes import Outcomes
    from antiphon.runtime._redelivery import Redelivery
    from antiphon.runtime._reporting import DeadLetters
    from antiphon.runtime._settings import Settings
    from antiphon.runtime._tree import Tree

A_WHILE: Final = 2.0
"""Seconds after which an interrupted append has either reached the ledger or never will."""


class Elsewhere(Protocol):
    """Reaches threads that other hosts have."""

    async def post(self, delivery: DeliveryState) -> None:
        """Post a message to its thread. Its caller gets the answer that the owner writes."""
        ...

    async def has_actor(self, delivery: DeliveryState, until: float) -> bool:
        """Whether a living host has the actor of a message; the owner of the thread may still register it, until a time."""
        ...

    def add(self, delivery: DeliveryState) -> None:
        """Let the caller of a message that is already in its thread wait for the answer."""
        ...


class Sender:
    """Carries messages to cells."""

    def __init__(
        self,
        lifetime: Lifetime,
        settings: Settings,
        tree: Tree,
        *,
        journal: Journal,
        in_flight: InFlight,
        redelivery: Redelivery,
        outcomes: Outcomes,
        dead: DeadLetters,
        elsewhere: Elsewhere,
        run_command: Callable[[Cell, DeliveryState], None],
        recover_later: Callable[[str], None],
    ) -> None:
        """Make it.

        `elsewhere` reaches threads of other hosts. `run_command` carries out a command to a cell. `recover_later` reads a
        thread again after an unconfirmed append.
        """
        self._lifetime = lifetime
        self._loop = lifetime.loop
        self._within, self._hop_limit = settings.within, settings.hop_limit
        self._tree, self._cells = tree, tree.cells
        self._journal = journal
        self._in_flight = in_flight
        self._redelivery = redelivery
        self._outcomes = outcomes
        self._dead = dead
        self._elsewhere = elsewhere
        self._run_command = run_command
        self._recover_later = recover_later
        self._hooks = journal.hooks
        self._recent = Recent()
        self._deadlines = Deadlines(self._loop)

    # ------------------------------------------------------------ ask and tell

    def ask(self, delivery: DeliveryState, within: float | None) -> Coroutine[Any, Any, Any]:
        """Deliver a message and wait for its outcome.

        This is not a coroutine function: it checks the message and returns the coroutine that delivers it, which saves one
        coroutine per message.

        Raises:
            DeliveryError: there is none.
        """
        envelope, now = delivery.envelope, self._loop.time()
        parent = envelope.parent
        if parent is not None:
            _check_sender(parent, delivery)
        deadline = delivery.deadline = self._until(parent, within, now)
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
        parent, thread_id = delivery.parent, delivery.thread_id
        waiter = delivery.callers.waiter = self._loop.create_future()  # before delivery: a stored answer settles it at once
        if parent is not None:
            parent.wait(1)
        try:
            if cell is None or thread_id is not None:
                await self._carry(cell, delivery, deadline)
            elif not (delivery.may_be_known and self._recent.knows(delivery)) and not self._deliver(cell, delivery):
                await self._deliver_later(cell, delivery, deadline)
            # After the append: an expiry before that would withdraw a message that no cell has yet.
            self._deadlines.add(delivery, deadline, now)
            return await waiter
        except BaseException as exc:
            if isinstance(exc, asyncio.CancelledError):
                self._give_up(delivery)
            elif parent is not None and thread_id is not None and parent.thread_id == thread_id and _is_parked(exc):
                # What the asked actor has begun waits for a person: asked again, it would do it again, as another message.
                parent.work.note_parked(cast("ParkedError", exc))
            # Also if the waiter has failed, because its thread was lost: otherwise asyncio logs that error as never retrieved.
            waiter.cancel()
            raise
        finally:
            if (bucket := delivery.bucket) is not None:
                bucket.pop(delivery, None)
            if parent is not None:
                parent.wait(-1)

    def _give_up(self, delivery: DeliveryState) -> None:
        """Withdraw the question of a cancelled caller.

        A handler that will run again keeps it, because it will ask the same question.
        """
        parent = delivery.parent
        begins_anew = self._lifetime.is_closing or (parent is not None and parent.work.halt is not None)
        if begins_anew and delivery.thread_id is not None:
            delivery.callers.waiter = None
        else:
            delivery.withdraw(WithdrawnError("the caller was cancelled", delivery.to))

    async def tell(self, delivery: DeliveryState, within: float | None) -> None:
        """Deliver a message without waiting for an outcome: `within` limits the delivery, not the handling.

        Raises:
            DeliveryError: it cannot be delivered.
        """
        if delivery.parent is not None:
            _check_evicted(delivery.parent)
        until = self._until(delivery.parent, within, self._loop.time())
        if self._hooks is not None:
            self._hooks.said(delivery)
        cell = None if self._needs_other_host(delivery) else self._find(delivery)
        if cell is None or delivery.thread_id is not None:
            await self._carry(cell, delivery, until)
        elif not (delivery.may_be_known and self._recent.knows(delivery)) and not self._deliver(cell, delivery):
            await self._deliver_later(cell, delivery, until)

    async def inform(self, address: str, notice: Notice, sender: str) -> None:
        """Send an actor a notice that it subscribed to. If the actor is gone, this is only logged."""
        try:
            await self.tell(DeliveryState(Envelope(notice, None, sender, address), may_be_known=False), None)
        except DeliveryError as exc:
            LOG.info("%s cannot be told about %s: %s", address, sender, exc.code, extra=log_fields(address, error=exc))

    def _needs_other_host(self, delivery: DeliveryState) -> bool:
        """Whether a thread is asked from outside for an actor that this system does not have."""
        parent = delivery.parent
        is_inside = parent is not None and parent.thread_id == delivery.thread_id
        return delivery.thread_id is not None and not is_inside and not self._tree.has(delivery.to)

    def _until(self, parent: DeliveryState | None, within: float | None, now: float) -> float:
        """Return the time until which to wait: at most the deadline of the message that the sender handles."""
        deadline = now + (self._within if within is None else within)
        if parent is None or parent.deadline is None:
            return deadline
        return parent.deadline if within is None else min(deadline, parent.deadline)

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
        is_left = self._lifetime.is_closing and delivery.thread_id is not None
        if is_left and parent is not None and parent.leave_to_next_system():
            raise asyncio.CancelledError

    # ------------------------------------------------------------ into the mailbox

    def _deliver(self, cell: Cell, delivery: DeliveryState) -> bool:
        """Put a message of no thread into the mailbox of its actor, if there is room. Heartbeats need none."""
        if delivery.is_heartbeat:
            delivery.cell = cell
            delivery.turn(Event.ACCEPT)
            cell.box.put_urgent(delivery)
            cell.wake()
            return True
        if not cell.box.reserve():
            return False
        cell.deliver(delivery)
        return True

    async def _deliver_later(self, cell: Cell, delivery: DeliveryState, until: float) -> None:
        """Put a message of no thread into a mailbox as soon as there is room."""
        try:
            await cell.wait_for_room(delivery, until)
        except BaseException as exc:
            delivery.fail_unsent(exc)
            raise
        cell.deliver(delivery)

    async def hand_over(self, cell: Cell, delivery: DeliveryState) -> None:
        """Deliver an appended message, however full the mailbox is."""
        cell.box.waiting += 1
        if not await self._accept(cell, delivery):
            cell.box.release()

    async def _accept(self, cell: Cell, delivery: DeliveryState) -> bool:
        """Deliver an appended message; return whether it uses the reserved room."""
        if delivery.evicted is not None:
            return False  # it was written just before another host took the thread, and that host delivers it
        # Before the mailbox and before the await below: a duplicate that arrives now must find this delivery, and not make its
        # own.
        self._in_flight.take_over(delivery)
        if delivery.is_command:
            self._run_command(cell, delivery)
            return False
        if cell.state == "stopped":
            await self._outcomes.refuse(delivery, ActorStoppedError("it takes no more messages", delivery.to))
            return False
        cell.deliver(delivery)
        return True

    async def forward(self, delivery: DeliveryState, to: str) -> None:
        """Forward a message to another actor, which answers it.

        Raises:
            RuntimeError: it was answered or forwarded before.
            DeliveryError: it cannot be delivered.
        """
        if delivery.is_settled:
            raise RuntimeError(f"{delivery.type} was answered or forwarded before, and cannot be forwarded to {to!r}")
        passed = delivery.forwarded_to(to)
        try:
            # Reserve room first: without room, the message ends here with an error, and is in no mailbox.
            cell = self._find(passed)
            if not cell.box.reserve():
                await cell.wait_for_room(passed, self._until(passed.parent, None, self._loop.time()))
        except DeliveryError as exc:
            self._hand_on(delivery, passed)
            await self._outcomes.end_with_error(passed, exc)
            raise
        self._hand_on(delivery, passed)
        cell.deliver(passed)

    def _hand_on(self, delivery: DeliveryState, passed: DeliveryState) -> None:
        """Let another delivery of a message have its caller, and be in flight for it.

        In one step: a duplicate must share the new delivery, because the old one never gets an outcome.
        """
        _check_evicted(delivery)
        delivery.hand_callers_to(passed)
        if passed.thread_id is not None:
            self._in_flight.take_over(passed)

    # ------------------------------------------------------------ in a thread

    async def _carry(self, cell: Cell | None, delivery: DeliveryState, until: float) -> None:
        """Journal a message and deliver it.

        If another host has the thread, it is posted there. If only another host has its actor, it is posted, or becomes a
        dead letter.
        """
        if cell is None:
            await self._post_to_host(delivery, until)
            return
        thread_id = delivery.thread_id or ""
        parent = delivery.parent
        is_of_own_thread = parent is not None and parent.thread_id == thread_id
        cell.held += 1  # the cell must not be passivated during the append
        try:
            if not is_of_own_thread and not self._journal.epoch(thread_id):
                kind = kind_of(delivery.to)
                # Every host has the built-in actors.
                await self._journal.own(thread_id, None if kind == SYSTEM else kind)
            if not (delivery.may_be_known and await self._find_recorded(cell, delivery)):
                await self._append(cell, delivery, until)
        except (FencedError, OwnedError):
            if delivery.envelope.is_of_host:
                await self._deliver_of_host(cell, delivery, until)
            elif is_of_own_thread:
                raise  # the handler that sent it stops
            else:
                # Another host owns the thread: from the start, or since the last write, when it may already be evicted here.
                await self._post(delivery)
        finally:
            cell.held -= 1

    async def _deliver_of_host(self, cell: Cell, delivery: DeliveryState, until: float) -> None:
        """Deliver a message about an actor of this host without its thread: another host owns the system thread of the actor.

        That host has an actor with the same address, and the local one is meant.
        """
        for lost in (delivery.parent, delivery):
            if lost is not None:
                _check_evicted(lost)
        delivery.leave_thread()
        if delivery.is_command:
            self._run_command(cell, delivery)
        elif not self._deliver(cell, delivery):
            await self._deliver_later(cell, delivery, until)

    async def _append(self, cell: Cell, delivery: DeliveryState, until: float) -> None:
        """Append a message, and put it into the mailbox."""
        thread_id, parent = delivery.thread_id or "", delivery.parent
        delivery.turn(Event.APPEND)
        self._in_flight.take_over(delivery)  # before the append: a recovery of the thread must find it in flight
        try:
            if self._journal.has_budget:
                await self._journal.check_budget(thread_id, delivery.to)
            # Room is reserved before the append: once it is written, the message must be delivered.
            if not cell.box.reserve():
                await cell.wait_for_room(delivery, until)
            is_delivered = False
            try:
                work = parent.work if parent is not None and parent.thread_id == thread_id else None
                (record, *_) = await self._journal.write_of(work, thread_id, _rows(delivery))
                # Before the mailbox: the handler must see the message as stored, because it sees that one after a crash.
                delivery.use_stored(record)
                is_delivered = await self._accept(cell, delivery)
            finally:
                if not is_delivered:
                    cell.box.release()
        except BaseException as exc:
            self._drop_unwritten(delivery, exc)
            raise

    def _drop_unwritten(self, delivery: DeliveryState, error: BaseException) -> None:
        """Give up a message whose append raised. It may still be in the ledger.

        The sender gets the error. Duplicates that arrived meanwhile wait for this delivery, so they get it too. If another
        host owns the thread, the message is posted to it, and its duplicates get the answer.
        """
        self._in_flight.drop(delivery)
        parent = delivery.parent
        is_of_own_thread = parent is not None and parent.thread_id == delivery.thread_id
        if isinstance(error, FencedError | OwnedError) and (delivery.envelope.is_of_host or not is_of_own_thread):
            delivery.turn(Event.FENCED)
            return
        delivery.refuse(error)
        if isinstance(error, LedgerUnavailableError):
            self._recover_later(delivery.thread_id or "")
        elif isinstance(error, asyncio.CancelledError):
            self._lifetime.start(self._withdraw_unconfirmed(delivery))

    async def _withdraw_unconfirmed(self, delivery: DeliveryState) -> None:
        """End a call whose sender was cancelled during the append, if it was written. A notice is delivered instead."""
        if not delivery.is_call:
            self._recover_later(delivery.thread_id or "")
            return
        await asyncio.sleep(A_WHILE)
        try:
            call, result = await self._outcomes.recorded(delivery)
        except LedgerError:
            self._recover_later(delivery.thread_id or "")
            return
        if call is not None and result is None and not self._in_flight.has(delivery):
            delivery.use_stored(call)
            delivery.callers.waiter, delivery.work.is_unsure = None, True  # it may have been redelivered meanwhile
            await self._outcomes.end_with_error(delivery, WithdrawnError("the caller was cancelled", delivery.to))

    async def _find_recorded(self, cell: Cell, delivery: DeliveryState) -> bool:
        """Return whether a message was sent before; if so, this delivery gets its outcome, now or later."""
        while True:
            if (earlier := self._in_flight.get(delivery)) is not None:
                _check_same(earlier.message, delivery)
                earlier.share_outcome(delivery)
                return True
            call, result = await self._outcomes.recorded(delivery)
            if self._in_flight.has(delivery):
                continue  # a duplicate was sent during the read above
            if call is None:
                return False
            _check_same(call.message, delivery)
            if result is None:
                delivery.use_stored(call)
                try:
                    if await self._redelivery.deliver_open(cell, delivery, "recovered", "it was said again"):
                        return True
                except BaseException as exc:
                    self._drop_unwritten(delivery, exc)
                    raise
                if delivery.phase is not Phase.REDELIVERING:
                    return True
                delivery.turn(Event.CLOSED)
                continue  # it ended during the redelivery: read its outcome
            if not (delivery.envelope.is_derived and _is_withdrawn(result)):
                delivery.settle(result)
                return True
            delivery.rename()

    # ------------------------------------------------------------ in a thread of another host

    async def _post_to_host(self, delivery: DeliveryState, until: float) -> None:
        """Post a message whose actor this system does not have: a living host that has the actor takes the thread.

        Raises:
            UndeliverableError: there is no such host.
        """
        try:
            is_own = bool(self._journal.epoch(delivery.thread_id or ""))
            if not await self._elsewhere.has_actor(delivery, 0.0 if is_own else until):
                kind = kind_of(delivery.to)
                reason = f"there is no actor; spawn it, register its kind, or start a host that has the kind {kind!r}"
                raise UndeliverableError(reason, delivery.to)
            await self._post(delivery)
        except DeliveryError as exc:
            self._dead.add(delivery, exc.code, exc.reason)
            raise

    async def _post(self, delivery: DeliveryState) -> None:
        """Post a message to the host that has its thread, unless it is there already; its caller waits for the answer."""
        delivery.turn(Event.POST)
        try:
            if delivery.may_be_known and await self._await_posted(delivery):
                return
            try:
                await self._elsewhere.post(delivery)
            except AppendRefusedError:
                # A duplicate may have been posted since the look, with another timestamp.
                if not delivery.may_be_known or not await self._await_posted(delivery):
                    raise
        except BaseException as exc:
            delivery.fail_duplicates(exc)
            raise

    async def _await_posted(self, delivery: DeliveryState) -> bool:
        """Let a caller wait for the answer to a message that is stored already; return whether it is."""
        call, result = await self._outcomes.recorded(delivery)
        if call is None:
            return False
        _check_same(call.message, delivery)
        if result is None:
            self._elsewhere.add(delivery)
        else:
            delivery.settle(result)
        return True

    # ------------------------------------------------------------ an actor asks itself

    async def _ask_itself(self, cell: Cell, delivery: DeliveryState) -> Any:
        """Handle a question that an actor asks itself inside the handler that asks.

        In the mailbox, it would wait for its own sender.
        """
        delivery.cell = cell
        is_done = False
        try:
            if delivery.thread_id is not None and await self._append_own(delivery):
                outcome, _ = delivery.callers.outcome or (None, None)
            else:
                delivery.turn(Event.START)
                replied = delivery.callers.waiter = self._loop.create_future()
                try:
                    outcome = await self._run_at_once(cell, delivery)
                except BaseException:
                    replied.cancel()  # if it was parked, it has failed: asyncio would log that error as never retrieved
                    raise
                finally:
                    delivery.callers.waiter = None
                if replied.done():  # the handler has answered before its end
                    outcome = replied.result()
                else:
                    await self._outcomes.answer(delivery, outcome)
            is_done = True
        except DeliveryError as exc:
            if not self._is_mismatch(delivery, exc):
                await self._outcomes.end_with_error(delivery, exc)
                is_done = True
            raise
        finally:
            if not is_done and delivery.parent is not None:
                # Cancelled between the two rows: the question stays open until the handler that asks ends, which searches for
                # it.
                delivery.parent.work.is_unsure = True
        return outcome

    async def _run_at_once(self, cell: Cell, delivery: DeliveryState) -> Any:
        """Run the handler of a question that an actor asks itself. What waits for a person stops the handler that asks, too.

        Raises:
            ParkedError: an effect waits for a person, also if the handler of the question has caught that.
        """
        work, parent = delivery.work, delivery.parent
        try:
            outcome = await cell.run_at_once(delivery)
        finally:
            if parent is not None and parent.thread_id == delivery.thread_id:
                if work.parked is not None:
                    parent.work.note_parked(work.parked)
                if work.doubt is not None:
                    parent.work.note_doubt(work.doubt)
        if work.parked is not None and not delivery.is_settled:
            raise ParkedError(work.parked.reason, work.parked.address)
        return outcome

    async def _append_own(self, delivery: DeliveryState) -> bool:
        """Append a question that an actor asks itself, and that is not delivered; return whether its outcome is stored."""
        parent, thread_id = cast("DeliveryState", delivery.parent), delivery.thread_id or ""
        if parent.attempt > 1:
            call, result = await self._find_own(delivery)
            if call is not None:
                delivery.use_stored(call)
                delivery.standing = parent.standing  # so that the messages of its handler are looked up, too
                if result is not None:
                    delivery.settle(result)
                return result is not None
        delivery.turn(Event.APPEND)
        work = parent.work if parent.thread_id == thread_id else None
        (record, *_) = await self._journal.write_of(work, thread_id, _rows(delivery))
        delivery.use_stored(record)
        return False

    async def _find_own(self, delivery: DeliveryState) -> tuple[Record | None, Message | None]:
        """Return the stored question and outcome of a question that an actor answers itself.

        Raises:
            HistoryMismatchError: the stored question is a different one.
        """
        call, result = await self._outcomes.recorded(delivery)
        if call is not None:
            _check_same(call.message, delivery)
        return call, result

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
        call, result = await self._find_own(delivery) if delivery.may_be_known else (None, None)
        if result is not None:
            return result
        delivery.turn(Event.START)
        try:
            outcome = await handle(delivery)
        except DeliveryError as exc:
            if not self._is_mismatch(delivery, exc):
                await self._defer_result(delivery, call, error_result(delivery, exc, delivery.to))
            raise
        if delivery.work.unnamed_count or delivery.work.keys:
            raise RuntimeError(f"{delivery.to}: what works out {delivery.type} must neither say nor do anything")
        await self._defer_result(delivery, call, result_of(delivery, outcome))
        return outcome

    async def _defer_result(self, delivery: DeliveryState, call: Record | None, result: Message) -> None:
        """Write question and result with the next row of the handler; at once, if the thread already has the question."""
        if call is not None:
            delivery.use_stored(call)
            await self._outcomes.answer(delivery, result)
            return
        if not delivery.is_settled:
            delivery.settle(result)
        if delivery.thread_id is not None and delivery.parent is not None:
            delivery.parent.work.deferred_rows += (delivery.message, result)

    def _is_mismatch(self, delivery: DeliveryState, error: DeliveryError) -> bool:
        """Whether an error means that the code here cannot continue a thread: then it is not an answer to the message."""
        is_mismatch = isinstance(error, HistoryMismatchError) and delivery.thread_id is not None
        return is_mismatch and not self._outcomes.answers_mismatches

    # ------------------------------------------------------------ about messages and actors

    async def original(self, request: Retry, thread_id: str | None) -> Message:
        """Return the message that a RETRY names.

        Raises:
            RefusedError: it was tried too often, or is unknown.
        """
        return await find_original(self._journal.ledger, self._recent, request, thread_id)

    def knows(self, address: str) -> bool:
        """Whether there is an actor at an address, or one would be made for a message."""
        return self._tree.has(address)

    def watch(self, delivery: DeliveryState) -> None:
        """Let a message expire that has no caller here."""
        if delivery.deadline is not None:
            self._deadlines.add(delivery, delivery.deadline, self._loop.time())

    def close(self) -> None:
        """Stop all deadlines."""
        self._deadlines.close()


def _rows(delivery: DeliveryState) -> list[Message]:
    """Return the rows of a message. A notice has a second one, DELIVER, which is open until it was handled."""
    if delivery.is_call:
        return [delivery.message]
    return [delivery.message, begun(DELIVER, delivery.id, thread_id=delivery.thread_id or "", parent_id=delivery.id)]


def _check_same(recorded: Message, delivery: DeliveryState) -> None:
    """Check that a message equals the one stored under its id.

    Raises:
        HistoryMismatchError: it differs.
    """
    message = delivery.message
    is_same = recorded.to == message.to and says_the_same(recorded.payload, message.payload)
    if not is_same or not says_the_same_value(enclosure_of(recorded), enclosure_of(message)):
        reason = f"{delivery.id!r} says {delivery.type} here, and something else in thread {delivery.thread_id!r}"
        raise HistoryMismatchError(reason, delivery.to)


def _is_withdrawn(result: Message) -> bool:
    payload = result.payload
    return isinstance(payload, OptionResultPayload) and payload.error_type == WithdrawnError.code


def _is_parked(error: BaseException) -> bool:
    """Whether something waits for a person. What has stopped outside may be asked of another actor."""
    return isinstance(error, ParkedError) and not isinstance(error, StoppedError)


def _check_sender(parent: DeliveryState, delivery: DeliveryState) -> None:
    """Refuse a question of a handler whose thread was evicted, or that waits for a person in the thread of the question.

    So is one of a handler that does not know whether its own payment was made: the other actor would make it again.
    """
    _check_evicted(parent)
    waits = parent.work.parked or parent.work.doubt
    if waits is not None and delivery.thread_id is not None and delivery.thread_id == parent.thread_id:
        parent.work.note_parked(waits)
        raise ParkedError(waits.reason, waits.address)


def _check_evicted(parent: DeliveryState) -> None:
    """Refuse messages of a handler whose thread was evicted."""
    if parent.evicted is not None:
        raise FencedError(*parent.evicted.args)


def _check_circle(cell: Cell, parent: DeliveryState) -> None:
    """Refuse to ask an actor that waits, directly or through others, for the handler that asks."""
    asking: DeliveryState | None = parent
    while asking is not None:
        if asking.cell is cell and cell.props.concurrency == 1:
            raise HopLimitError("it waits for the actor that asks it: they ask in a circle", cell.address)
        asking = asking.parent if asking.callers.waiter is not None else None
