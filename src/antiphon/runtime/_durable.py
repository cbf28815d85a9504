"""Durable: how messages of threads are journaled, delivered and answered.

**Write first.** A message is appended, then put into the mailbox. Its outcome is appended, then given to the caller. A crash
between two steps leaves an open call, and recovery delivers it again.

**Same ids.** A message that a handler sends has an id derived from the id of the handled message and a number. A handler that
runs again sends the same messages under the same ids: `_find_recorded` looks up each message before it is sent, and uses the
stored answer, or waits for the pending one. If the ledger has a different message under that id, the code has changed since it
wrote the thread, and the handler gets a `HistoryMismatchError`.

**In flight.** `InFlight` has every message of a thread that this system handles. An entry is added before the append and
removed after the outcome is written, so a concurrent recovery of the thread does not deliver the message a second time.

**Unconfirmed appends.** When an append raises, it is unknown whether the rows were written. `recover_later` reads the thread
again after `A_WHILE`, and delivers or ends the open calls.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

from antiphon import errors
from antiphon.messages import RUNTIME_POLICY, Message, OptionResultPayload
from antiphon.messages._unchecked import MUCH
from antiphon.messages.keys import kind_of
from antiphon.runtime._exchange import error_result, result_of
from antiphon.runtime._redelivery import endings, leftovers
from antiphon.runtime._reporting import LOG, log_fields, log_text
from antiphon.runtime._rows import (
    AGAIN,
    DELIVER,
    Standing,
    begun,
    enclosure_of,
    ended,
    error_fields,
    error_of,
    option_of,
    says_the_same,
    says_the_same_value,
    stops_in,
)
from antiphon.runtime._settings import GOES_ON, STOPPED, SYSTEM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from antiphon.ledger import Record
    from antiphon.runtime._actor import Lifetime
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._delivery import DeliveryState, InFlight
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._redelivery import Redelivery
    from antiphon.runtime._reporting import DeadLetters

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


class Durable:
    """Carries messages of threads."""

    def __init__(
        self,
        lifetime: Lifetime,
        journal: Journal,
        in_flight: InFlight,
        redelivery: Redelivery,
        dead: DeadLetters,
        *,
        elsewhere: Elsewhere,
        run_command: Callable[[Cell, DeliveryState], None],
        recover_later: Callable[[str], None],
    ) -> None:
        """Make it.

        `elsewhere` reaches threads of other hosts. `run_command` carries out a command to a cell. `recover_later` reads a
        thread again after an unconfirmed append.
        """
        self._elsewhere = elsewhere
        self._lifetime = lifetime
        self._journal = journal
        self._in_flight = in_flight
        self._redelivery = redelivery
        self._dead = dead
        self.run_command = run_command
        self._recover_later = recover_later

    # ------------------------------------------------------------ to the actor

    async def append_and_deliver(self, cell: Cell, delivery: DeliveryState, until: float) -> None:
        """Append a message to its thread, then deliver it. If another host has the thread, post it there."""
        is_of_own_thread = _is_of_own_thread(delivery)
        cell.held += 1  # the cell must not be passivated during the append
        try:
            if not is_of_own_thread and not self._journal.epoch(_thread(delivery)):
                kind = kind_of(delivery.to)
                # Every host has the built-in actors.
                await self._journal.own(_thread(delivery), None if kind == SYSTEM else kind)
            await self._append_and_deliver(cell, delivery, until)
        except (errors.FencedError, errors.OwnedError):
            if is_of_own_thread or delivery.is_of_host:
                raise  # the handler that sent it stops; a message about this host is never posted
            # Another host owns the thread: from the start, or since the last write, when it may already be evicted here.
            try:
                await self._post(delivery)
            except BaseException as exc:
                delivery.fail_duplicates(exc, is_unposted=True)
                raise
        finally:
            cell.held -= 1

    async def post_to_host(self, delivery: DeliveryState, until: float) -> None:
        """Post a message whose actor this system does not have: a living host that has the actor takes the thread.

        Raises:
            UndeliverableError: there is no such host.
        """
        is_own = bool(self._journal.epoch(_thread(delivery)))
        if not await self._elsewhere.has_actor(delivery, 0.0 if is_own else until):
            kind = kind_of(delivery.to)
            reason = f"there is no actor; spawn it, register its kind, or start a host that has the kind {kind!r}"
            raise errors.UndeliverableError(reason, delivery.to)
        await self._post(delivery)

    async def _post(self, delivery: DeliveryState) -> None:
        """Post a message to the host that has its thread, unless it is there already; its caller waits for the answer."""
        if delivery.may_be_known and await self._await_posted(delivery):
            return
        try:
            await self._elsewhere.post(delivery)
        except errors.AppendRefusedError:
            # A duplicate may have been posted since the look, with another timestamp.
            if not delivery.may_be_known or not await self._await_posted(delivery):
                raise

    async def _await_posted(self, delivery: DeliveryState) -> bool:
        """Let a caller wait for the answer to a message that is stored already; return whether it is."""
        call, result = await self._recorded(delivery)
        if call is None:
            return False
        _check_same(call.message, delivery)
        if result is None:
            self._elsewhere.add(delivery)
        else:
            delivery.settle(result)
        return True

    async def _append_and_deliver(self, cell: Cell, delivery: DeliveryState, until: float) -> None:
        if delivery.may_be_known and await self._find_recorded(cell, delivery):
            return
        self._in_flight.take_over(delivery)  # before the append: a recovery of the thread must find it in flight
        try:
            await self._append(cell, delivery, until)
        except BaseException as exc:
            self._drop_unwritten(delivery, exc)
            raise

    def _drop_unwritten(self, delivery: DeliveryState, error: BaseException) -> None:
        """Give up a message whose append raised. It may still be in the ledger.

        The sender gets the error. Duplicates that arrived meanwhile wait for this delivery, so they get it too. If another
        host owns the thread, the message is posted to it, and its duplicates get the answer.
        """
        self._in_flight.drop(delivery)
        if isinstance(error, errors.FencedError | errors.OwnedError) and not _is_of_own_thread(delivery):
            return
        delivery.fail_duplicates(error)
        if isinstance(error, errors.LedgerUnavailableError):
            self._recover_later(_thread(delivery))
        elif isinstance(error, asyncio.CancelledError):
            self._lifetime.start(self._withdraw_unconfirmed(delivery))

    async def _withdraw_unconfirmed(self, delivery: DeliveryState) -> None:
        """End a call whose sender was cancelled during the append, if it was written. A notice is delivered instead."""
        if not delivery.is_call:
            self._recover_later(_thread(delivery))
            return
        await asyncio.sleep(A_WHILE)
        try:
            call, result = await self._recorded(delivery)
        except errors.LedgerError:
            self._recover_later(_thread(delivery))
            return
        if call is not None and result is None and not self._in_flight.has(delivery):
            delivery.use_stored(call)
            delivery.waiter, delivery.is_unsure = None, True  # it may have been redelivered meanwhile
            await self.end_with_error(delivery, errors.WithdrawnError("the caller was cancelled", delivery.to))

    async def append_own(self, delivery: DeliveryState) -> bool:
        """Append a question that an actor asks itself, and that is not delivered; return whether its outcome is stored."""
        if delivery.parent is not None and delivery.parent.attempt > 1:
            call, result = await self._recorded(delivery)
            if call is not None:
                _check_same(call.message, delivery)
                delivery.use_stored(call)
                delivery.standing = delivery.parent.standing  # so that the messages of its handler are looked up, too
                if result is not None:
                    delivery.may_be_known = True
                    delivery.settle(result)
                return result is not None
        (record, *_) = await self._write(delivery, delivery.parent, _said(delivery))
        delivery.use_stored(record)
        return False

    async def find_own(self, delivery: DeliveryState) -> tuple[Record | None, Message | None]:
        """Return the stored question and outcome of a question that an actor answers itself.

        Raises:
            HistoryMismatchError: the stored question is a different one.
        """
        call, result = await self._recorded(delivery)
        if call is not None:
            _check_same(call.message, delivery)
        return call, result

    async def _write(self, delivery: DeliveryState, course: DeliveryState | None, rows: list[Message]) -> tuple[Record, ...]:
        """Append rows for a handler, after its deferred rows and in the same append; return the records of `rows`."""
        thread_id = _thread(delivery)
        if course is None or course.thread_id != thread_id:
            return await self._journal.write(thread_id, rows)
        # Taken before the append, not after it: a row that the handler defers during this append must not be dropped.
        deferred_rows, marks = course.take_deferred()
        try:
            return (await self._journal.write(thread_id, [*deferred_rows, *rows], **marks))[len(deferred_rows) :]
        except BaseException:
            # The next append includes them. If they were written after all, the ledger recognizes them by their ids.
            course.deferred_rows, course.marks = (*deferred_rows, *course.deferred_rows), {**marks, **course.marks}
            raise

    async def _append(self, cell: Cell, delivery: DeliveryState, until: float) -> None:
        if self._journal.has_budget:
            await self._journal.check_budget(_thread(delivery), delivery.to)
        # Room is reserved before the append: once it is written, the message must be delivered.
        if not cell.box.reserve():
            await cell.wait_for_room(delivery, until)
        is_delivered = False
        try:
            (record, *_) = await self._write(delivery, delivery.parent, _said(delivery))
            # Before the mailbox: the handler must see the message as stored, because it sees that one after a crash.
            delivery.use_stored(record)
            is_delivered = await self._hand_over(cell, delivery)
        finally:
            if not is_delivered:
                cell.box.release()

    async def is_open(self, delivery: DeliveryState) -> bool:
        """Whether a message has no outcome, and is not in flight here."""
        _, result = await self._recorded(delivery)
        return result is None and not self._in_flight.has(delivery)

    async def hand_over(self, cell: Cell, delivery: DeliveryState) -> None:
        """Deliver an appended message, however full the mailbox is."""
        cell.box.waiting += 1
        if not await self._hand_over(cell, delivery):
            cell.box.release()

    async def _hand_over(self, cell: Cell, delivery: DeliveryState) -> bool:
        """Deliver an appended message; return whether it uses the reserved room."""
        # Before the mailbox and before the await below: a duplicate that arrives now must find this delivery, and not make its
        # own.
        self._in_flight.take_over(delivery)
        if delivery.is_command:
            self.run_command(cell, delivery)
            return False
        if cell.state == "stopped":
            await self.refuse(delivery, errors.ActorStoppedError("it takes no more messages", delivery.to))
            return False
        cell.deliver(delivery)
        return True

    async def refuse(self, delivery: DeliveryState, error: errors.DeliveryError) -> None:
        """End an appended message whose actor has stopped. If the system closes, leave it open for the next one."""
        if self._lifetime.is_closing:
            await self.leave_to_next_system(delivery, error)
        elif not delivery.is_settled:
            self._dead.add_unless_asked(delivery, error)
            await self.end_with_error(delivery, error)

    async def _find_recorded(self, cell: Cell, delivery: DeliveryState) -> bool:
        """Return whether a message was sent before; if so, this delivery gets its outcome, now or later."""
        while True:
            if (known := self._in_flight.get(delivery)) is not None:
                _check_same(known.message, delivery)
                known.share_outcome(delivery)
                return True
            call, result = await self._recorded(delivery)
            if self._in_flight.has(delivery):
                continue  # a duplicate was sent during the read above
            if call is None:
                self._in_flight.take_over(delivery)
                return False
            _check_same(call.message, delivery)
            if result is None:
                delivery.use_stored(call)
                if await self._redeliver_said(cell, delivery):
                    return True
                continue  # it ended during the redelivery: read its outcome
            if not (delivery.envelope.is_derived and _is_withdrawn(result)):
                delivery.settle(result)
                return True
            delivery.rename()

    async def _recorded(self, delivery: DeliveryState) -> tuple[Record | None, Message | None]:
        """Return the stored record of a message, and its stored outcome."""
        records = await self._journal.ledger.by_invocation(delivery.invocation_id, thread_id=_thread(delivery))
        lane = "effect" if not delivery.is_call else "control" if delivery.envelope.said is not None else delivery.message.lane
        # Talk with the same id is not an answer to a request.
        rows = [record for record in records if record.message.lane == lane]
        call = next((row for row in rows if row.message.kind == "option_call"), None)
        result = next((row.message for row in rows if row.message.kind == "option_result"), None)
        if call is None or delivery.is_call:
            return call, result
        return await self._journal.before(_thread(delivery), call), result

    async def _redeliver_said(self, cell: Cell, delivery: DeliveryState) -> bool:
        try:
            return await self._redeliver(cell, delivery, "it was said again")
        except BaseException as exc:
            self._drop_unwritten(delivery, exc)
            raise

    async def redeliver(self, cell: Cell, delivery: DeliveryState, reason: str, known: Sequence[Record] | None = None) -> bool:
        """Deliver a stored message that is not in flight; return whether it is still open.

        `known` are the open calls of its thread, if nothing was awaited since they were read; otherwise they are read again.

        Raises:
            ParkedError: a person must settle it.
            LedgerError: it could not be written down.
        """
        try:
            is_open = await self._redeliver(cell, delivery, reason, known)
            if not is_open:
                _, result = await self._recorded(delivery)
                delivery.settle(result)  # for duplicates that arrived meanwhile
        except (errors.FencedError, errors.OwnedError) as exc:
            self._in_flight.drop(delivery)
            if delivery.is_of_host:
                delivery.fail_duplicates(exc)
            elif delivery.evicted is None:
                self._elsewhere.add(delivery)  # callers that wait for it get the outcome that the new owner writes
            raise
        except BaseException as exc:
            self._in_flight.drop(delivery)
            delivery.fail_duplicates(exc)
            raise
        return is_open

    async def _redeliver(
        self, cell: Cell, delivery: DeliveryState, reason: str, known: Sequence[Record] | None = None
    ) -> bool:
        # In flight before the read: a second recovery of the thread would deliver the message as well. The cell is held,
        # because a passivated cell would take the message into a mailbox that nobody drains.
        self._in_flight.take_over(delivery)
        cell.held += 1
        try:
            rows = await self._journal.ledger.open_calls(_thread(delivery)) if known is None else known
            if not any(_is_call_of(delivery, row.message) for row in rows):
                self._in_flight.drop(delivery)  # it ended after the caller had read the open calls
                return False
            if Standing.of(rows, delivery.invocation_id).parked is not None:
                raise errors.ParkedError("it waits for a person", delivery.to)
            left = await self._go_on(_thread(delivery), rows)
            delivery.standing = Standing.of(left, delivery.invocation_id)
            await self._redelivery.deliver(cell, delivery, "recovered", reason)
            return True
        except errors.ActorStoppedError as exc:
            await self.refuse(delivery, exc)
            return False
        finally:
            cell.held -= 1

    async def _go_on(self, thread_id: str, rows: Sequence[Record]) -> Sequence[Record]:
        """Clear the stopped status of a thread: the code here may be able to continue it, or the failure outside is fixed.

        Return the rows that are still open. Deliveries before a stop do not count as attempts: none of them was a crash.
        """
        stops = stops_in(rows)
        last = max((row.seq for row in stops), default=0)
        effects = [row for row in rows if row.seq < last and row.message.lane == "effect"]
        over = [*stops, *(row for row in effects if option_of(row.message) == AGAIN)]
        ends = [
            ended(option_of(each) or "", each.invocation_id or "", thread_id=thread_id, parent_id=each.parent_id)
            for each in (row.message for row in over)
        ]
        summary = await self._journal.ledger.thread(thread_id)
        if summary is not None and summary.status == STOPPED:
            await self._journal.write(thread_id, ends, status=GOES_ON)
        elif ends:
            await self._journal.write(thread_id, ends)
        ended_seqs = {row.seq for row in over}
        return [row for row in rows if row.seq not in ended_seqs]

    # ------------------------------------------------------------ back to the caller

    async def answer(self, delivery: DeliveryState, outcome: Any) -> None:
        """Append the outcome of a message, then give it to the caller: as it is stored, if the ledger has redacted it."""
        if delivery.is_call:
            # First stored, then given to the caller. In the opposite order, a crash in between would leave a caller that has
            # acted on an answer which the next run of the handler may not give.
            result = result_of(delivery, outcome)
            stored = await self._close(delivery, result)
            delivery.settle(outcome if stored is result else stored)
        else:
            await self._close(delivery, _delivered(delivery))
            delivery.settle(None)

    async def end_with_error(self, delivery: DeliveryState, error: errors.DeliveryError) -> None:
        """Append the error that ends a message, then give it to the caller."""
        policy = RUNTIME_POLICY if delivery.withdrawn is error else delivery.to
        row = error_result(delivery, error, policy) if delivery.is_call else _delivered(delivery, error)
        try:
            await self._close(delivery, row)
        except errors.LedgerError as exc:
            text = "%s: that %s ended with %s cannot be journaled: %s"
            LOG.warning(text, delivery.to, delivery.type, error.code, log_text(exc), extra=log_fields(delivery, error=exc))
            if delivery.evicted is not None:
                return  # another host has the thread: the caller gets the outcome that it writes
            self._in_flight.abandon(delivery, exc)
            self._recover_later(_thread(delivery))
        else:
            delivery.fail(_as_written(row, error))

    async def _close(self, delivery: DeliveryState, row: Message) -> Message:
        """Append the end of a message together with its leftovers, and return the end as it is stored."""
        is_unsure = delivery.is_unsure or delivery.withdrawn is not None or delivery.attempt > 1
        # One append for the end and its leftovers: after a crash between two appends, recovery would have to search for
        # leftovers.
        ends = await self._leftovers(delivery) if is_unsure else endings(delivery) if delivery.has_leftovers else []
        try:
            (record, *_) = await self._write(delivery, delivery, [row, *ends])
            stored = record.message
        except errors.AppendRefusedError:
            _, found = await self._recorded(delivery)
            if found is None:
                raise
            stored = found  # an earlier append was written, and its confirmation was lost
        if is_unsure and (ends := await self._leftovers(delivery)):
            await self._journal.write(_thread(delivery), ends)  # rows that were being written meanwhile
        self._in_flight.drop(delivery)  # last: until here, a duplicate shares this delivery
        return stored

    async def _leftovers(self, delivery: DeliveryState) -> list[Message]:
        await self._journal.settle(_thread(delivery))
        rows = await self._journal.ledger.open_calls(_thread(delivery))
        return await leftovers(self._journal.ledger, rows, delivery.invocation_id, _thread(delivery), str(delivery.to))

    async def leave_to_next_system(self, delivery: DeliveryState, error: errors.AntiphonError) -> None:
        """Leave a message open for the next system. Its deliveries here are ended, so they do not count as attempts."""
        rows = endings(delivery, is_left=True)
        if rows:
            try:
                await self._journal.write(_thread(delivery), rows)
            except errors.LedgerError as exc:
                LOG.warning("%s: %s", delivery.to, log_text(exc), extra=log_fields(delivery, error=exc))
        parent = delivery.parent
        if parent is not None and delivery.waiter is not None and parent.leave_to_next_system():
            # The handler that asks is cancelled, and does not get the error: it would handle the error and store a final
            # answer.
            self._in_flight.drop(delivery)
            delivery.waiter.cancel()
        else:
            self._in_flight.abandon(delivery, error)


def _is_of_own_thread(delivery: DeliveryState) -> bool:
    """Whether a running handler of the same thread has sent it. That handler stops if the thread is lost."""
    return delivery.parent is not None and delivery.parent.thread_id == delivery.thread_id


def _thread(delivery: DeliveryState) -> str:
    thread_id = delivery.envelope.thread_id
    assert thread_id is not None  # noqa: S101 (only deliveries of a thread come here)
    return thread_id


def _said(delivery: DeliveryState) -> list[Message]:
    """Return the rows of a message. A notice has a second one, DELIVER, which is open until it was handled."""
    if delivery.is_call:
        return [delivery.message]
    return [delivery.message, begun(DELIVER, delivery.id, thread_id=_thread(delivery), parent_id=delivery.id)]


def _delivered(delivery: DeliveryState, error: errors.DeliveryError | None = None) -> Message:
    outcome: dict[str, Any] = {}
    if error is not None:
        outcome = error_fields(error.reason, error.code, retryable=error.retryable)
    return ended(DELIVER, delivery.id, thread_id=_thread(delivery), parent_id=delivery.id, **outcome)


def _as_written(row: Message, error: errors.DeliveryError) -> errors.DeliveryError:
    """Return an error as stored, perhaps cut: a caller that runs again gets the same."""
    payload = row.payload
    if not isinstance(payload, OptionResultPayload):
        return error
    is_same = payload.error_message == error.reason and payload.__weight__() <= MUCH
    return error if is_same else error_of(payload, error.address or "")


def _check_same(recorded: Message, delivery: DeliveryState) -> None:
    """Check that a message equals the one stored under its id.

    Raises:
        HistoryMismatchError: it differs.
    """
    said = delivery.message
    is_same = recorded.to == said.to and says_the_same(recorded.payload, said.payload)
    if not is_same or not says_the_same_value(enclosure_of(recorded), enclosure_of(said)):
        reason = f"{delivery.id!r} says {delivery.type} here, and something else in thread {delivery.thread_id!r}"
        raise errors.HistoryMismatchError(reason, delivery.to)


def _is_call_of(delivery: DeliveryState, row: Message) -> bool:
    """Whether an open call belongs to a message: it is the call itself, or the DELIVER row of a notice."""
    return row.invocation_id == delivery.invocation_id and (row.lane == "effect") != delivery.is_call


def _is_withdrawn(result: Message) -> bool:
    payload = result.payload
    return isinstance(payload, OptionResultPayload) and payload.error_type == errors.WithdrawnError.code
