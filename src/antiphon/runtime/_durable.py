"""Durable: the way of a message that is said in a thread.

It is appended first, then put into the mailbox; its outcome is appended first, then given to whoever waits. So a crash
leaves an open call, and recovery delivers it again.

What a handler says has an id made of the id of what it handles and a number. So a handler that runs again says the same
things under the same ids: before it says one, `_recall` looks whether the ledger has it, and takes the answer that is
there, or waits for the one that is on its way. If the ledger has something else under that id, this is not the code
that wrote the thread.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from antiphon.errors import (
    ActorStoppedError,
    AntiphonError,
    AppendRefusedError,
    DeliveryError,
    HistoryMismatchError,
    LedgerError,
    LedgerUnavailableError,
    ParkedError,
    WithdrawnError,
)
from antiphon.messages import RUNTIME_POLICY, Message, OptionResultPayload
from antiphon.messages._model import MUCH
from antiphon.runtime._failures import LOG, log_fields, log_text
from antiphon.runtime._redelivery import endings, leftovers
from antiphon.runtime._results import error_of, error_result, result_of
from antiphon.runtime._rows import DELIVER, Standing, begun, ended, error_fields, says_the_same

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.ledger import Record
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._envelope import DeliveryState, InFlight
    from antiphon.runtime._hooks import DeadLetters
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._redelivery import Redelivery
    from antiphon.runtime._run import Lifetime

A_WHILE: Final = 2.0
"""Seconds after which what was being written is written, or never will be."""


class Durable:
    """What carries messages of threads."""

    def __init__(
        self,
        lifetime: Lifetime,
        journal: Journal,
        in_flight: InFlight,
        redelivery: Redelivery,
        dead: DeadLetters,
        *,
        run_command: Callable[[Cell, DeliveryState], None],
        recover_later: Callable[[str], None],
    ) -> None:
        """Make it.

        `obey` does a command to a cell. `doubt` has a thread recovered later, of which it is not sure what was written to it.
        """
        self._lifetime = lifetime
        self._journal = journal
        self._in_flight = in_flight
        self._redelivery = redelivery
        self._dead = dead
        self._run_command = run_command
        self._recover_later = recover_later

    # ------------------------------------------------------------ there

    async def append_and_deliver(self, cell: Cell, delivery: DeliveryState, until: float) -> None:
        """Append a message to its thread, then deliver it."""
        if delivery.parent is None:
            self._journal.reclaim(_thread(delivery))  # a caller from outside wants it here
        cell.held += 1
        try:
            await self._append_and_deliver(cell, delivery, until)
        finally:
            cell.held -= 1

    async def _append_and_deliver(self, cell: Cell, delivery: DeliveryState, until: float) -> None:
        if delivery.may_be_known and await self._find_recorded(cell, delivery):
            return
        self._in_flight.take_over(delivery)  # before it is written: a recovery of its thread must not think that nobody has it
        try:
            await self._append(cell, delivery, until)
        except BaseException as exc:
            self._drop_unwritten(delivery, exc)
            raise

    def _drop_unwritten(self, delivery: DeliveryState, error: BaseException) -> None:
        """Have a message in hand no more that could not be written down, or of which it is not sure that it was.

        Its sender gets the error. Those who said the same meanwhile wait for this one, and nobody else would tell them.
        """
        self._in_flight.drop(delivery)
        delivery.fail_duplicates(error)
        if isinstance(error, LedgerUnavailableError):
            self._recover_later(_thread(delivery))
        elif isinstance(error, asyncio.CancelledError):
            self._lifetime.start(self._withdraw_unconfirmed(delivery))

    async def _withdraw_unconfirmed(self, delivery: DeliveryState) -> None:
        """End a message whose sender was stopped while it was being written down, if it was; what is told is delivered."""
        if not delivery.is_call:
            self._recover_later(_thread(delivery))
            return
        await asyncio.sleep(A_WHILE)
        try:
            call, result = await self._recorded(delivery)
        except LedgerError:
            self._recover_later(_thread(delivery))
            return
        if call is not None and result is None and not self._in_flight.has(delivery):
            delivery.use_stored(call)
            delivery.waiter, delivery.is_unsure = None, True  # it may have been delivered again meanwhile
            await self.end_with_error(delivery, WithdrawnError("whoever asked was cancelled", delivery.to))

    async def append_own(self, delivery: DeliveryState) -> bool:
        """Append a message that is not delivered, because whoever says it handles it; say whether its outcome is there."""
        if delivery.parent is not None and delivery.parent.attempt > 1:
            call, result = await self._recorded(delivery)
            if call is not None:
                _check_same(call.message, delivery)
                delivery.use_stored(call)
                delivery.standing = delivery.parent.standing  # what it says may be known too
                if result is not None:
                    delivery.may_be_known = True
                    delivery.settle(result)
                return result is not None
        (record, *_) = await self._write(delivery, delivery.parent, _said(delivery))
        delivery.use_stored(record)
        return False

    async def find_own(self, delivery: DeliveryState) -> tuple[Record | None, Message | None]:
        """Return what the ledger has of something that an actor works out, and of its outcome.

        Raises:
            HistoryMismatchError: it was something else the last time.
        """
        call, result = await self._recorded(delivery)
        if call is not None:
            _check_same(call.message, delivery)
        return call, result

    async def _write(self, delivery: DeliveryState, course: DeliveryState | None, rows: list[Message]) -> tuple[Record, ...]:
        """Append rows in the course of a message, after those that were put off there; return the records of the rows."""
        thread_id = _thread(delivery)
        if course is None or course.thread_id != thread_id:
            return await self._journal.write(thread_id, rows)
        deferred_rows, marks = course.take_deferred()
        try:
            return (await self._journal.write(thread_id, [*deferred_rows, *rows], **marks))[len(deferred_rows) :]
        except BaseException:
            course.deferred_rows, course.marks = (*deferred_rows, *course.deferred_rows), {**marks, **course.marks}
            raise

    async def _append(self, cell: Cell, delivery: DeliveryState, until: float) -> None:
        await self._journal.check_budget(_thread(delivery), delivery.to)
        if not cell.box.reserve():
            await cell.wait_for_room(delivery, until)
        is_delivered = False
        try:
            (record, *_) = await self._write(delivery, delivery.parent, _said(delivery))
            delivery.use_stored(record)
            is_delivered = await self._hand_over(cell, delivery)
        finally:
            if not is_delivered:
                cell.box.release()

    async def is_open(self, delivery: DeliveryState) -> bool:
        """Whether nobody has a message in hand, and it has no outcome."""
        _, result = await self._recorded(delivery)
        return result is None and not self._in_flight.has(delivery)

    async def hand_over(self, cell: Cell, delivery: DeliveryState) -> None:
        """Deliver what was appended, however full the mailbox is."""
        cell.box.waiting += 1
        if not await self._hand_over(cell, delivery):
            cell.box.release()

    async def _hand_over(self, cell: Cell, delivery: DeliveryState) -> bool:
        """Deliver what was appended; say whether it has taken the room in the mailbox."""
        self._in_flight.take_over(delivery)
        if delivery.is_command:
            self._run_command(cell, delivery)
            return False
        if cell.state == "stopped":
            await self._refuse(delivery, ActorStoppedError("it takes no more messages", delivery.to))
            return False
        cell.deliver(delivery)
        return True

    async def _refuse(self, delivery: DeliveryState, error: DeliveryError) -> None:
        """End a message that was appended, and whose actor takes no more; if that is for the system's end, leave it."""
        if self._lifetime.is_closing:
            await self.leave_to_next_system(delivery, error)
        elif not delivery.is_settled:
            self._dead.add_unless_asked(delivery, error)
            await self.end_with_error(delivery, error)

    async def _find_recorded(self, cell: Cell, delivery: DeliveryState) -> bool:
        """Look whether a message was said before; if so, see to it that its outcome comes."""
        while True:
            if (known := self._in_flight.get(delivery)) is not None:
                _check_same(known.message, delivery)
                known.share_outcome(delivery)
                return True
            call, result = await self._recorded(delivery)
            if self._in_flight.has(delivery):
                continue  # somebody began to say it while we were looking
            if call is None:
                self._in_flight.take_over(delivery)
                return False
            _check_same(call.message, delivery)
            if result is None:
                delivery.use_stored(call)
                if await self._redeliver_said(cell, delivery):
                    return True
                continue  # it has ended meanwhile
            if not (delivery.envelope.is_derived and _is_withdrawn(result)):
                delivery.settle(result)
                return True
            delivery.rename()

    async def _recorded(self, delivery: DeliveryState) -> tuple[Record | None, Message | None]:
        """Return what the ledger has of a message and of its outcome."""
        records = await self._journal.ledger.by_invocation(delivery.invocation_id, thread_id=_thread(delivery))
        lane = "effect" if not delivery.is_call else "control" if delivery.envelope.said is not None else delivery.message.lane
        rows = [record for record in records if record.message.lane == lane]  # talk of the same id is no answer to a request
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

    async def redeliver(self, cell: Cell, delivery: DeliveryState, reason: str) -> bool:
        """Deliver a message that the ledger has and nobody has in hand; say whether it is still open.

        Raises:
            ParkedError: it waits for a person.
            LedgerError: it could not be written down.
        """
        try:
            is_open = await self._redeliver(cell, delivery, reason)
            if not is_open:
                _, result = await self._recorded(delivery)
                delivery.settle(result)  # somebody may have asked the same meanwhile
        except BaseException as exc:
            self._in_flight.drop(delivery)
            delivery.fail_duplicates(exc)
            raise
        return is_open

    async def _redeliver(self, cell: Cell, delivery: DeliveryState, reason: str) -> bool:
        self._in_flight.take_over(delivery)
        cell.held += 1
        try:
            rows = await self._journal.ledger.open_calls(_thread(delivery))
            if not any(_is_call_of(delivery, row.message) for row in rows):
                self._in_flight.drop(delivery)  # what said that it is open was read before it ended
                return False
            delivery.standing = Standing.of(rows, delivery.invocation_id)
            if delivery.standing.parked is not None:
                raise ParkedError("it waits for a person", delivery.to)
            await self._redelivery.deliver(cell, delivery, "recovered", reason)
            return True
        finally:
            cell.held -= 1

    # ------------------------------------------------------------ and back

    async def answer(self, delivery: DeliveryState, outcome: Any) -> None:
        """Append the outcome of a message, then give it to whoever waits."""
        if delivery.is_call:
            result = result_of(delivery, outcome)
            stored = await self._close(delivery, result)
            delivery.settle(outcome if stored is result else stored)
        else:
            await self._close(delivery, _delivered(delivery))
            delivery.settle(None)

    async def end_with_error(self, delivery: DeliveryState, error: DeliveryError) -> None:
        """Append that a message ends with an error, then give that to whoever waits."""
        policy = RUNTIME_POLICY if delivery.withdrawn is error else delivery.to
        row = error_result(delivery, error, policy) if delivery.is_call else _delivered(delivery, error)
        try:
            await self._close(delivery, row)
        except LedgerError as exc:
            text = "%s: that %s ended with %s cannot be journaled: %s"
            LOG.warning(text, delivery.to, delivery.type, error.code, log_text(exc), extra=log_fields(delivery, error=exc))
            self._in_flight.abandon(delivery, exc)
            self._recover_later(_thread(delivery))
        else:
            delivery.fail(_as_written(row, error))

    async def _close(self, delivery: DeliveryState, row: Message) -> Message:
        """Append the end of a message, and return that as the ledger has it."""
        is_unsure = delivery.is_unsure or delivery.withdrawn is not None or delivery.attempt > 1
        ends = await self._leftovers(delivery) if is_unsure else endings(delivery) if delivery.has_leftovers else []
        try:
            (record, *_) = await self._write(delivery, delivery, [row, *ends])
            stored = record.message
        except AppendRefusedError:
            _, found = await self._recorded(delivery)
            if found is None:
                raise
            stored = found  # it was appended before, and the acknowledgement was lost
        if is_unsure and (ends := await self._leftovers(delivery)):
            await self._journal.write(_thread(delivery), ends)  # of something that was being written at the same time
        self._in_flight.drop(delivery)
        return stored

    async def _leftovers(self, delivery: DeliveryState) -> list[Message]:
        await self._journal.settle(_thread(delivery))
        rows = await self._journal.ledger.open_calls(_thread(delivery))
        return await leftovers(self._journal.ledger, rows, delivery.invocation_id, _thread(delivery), str(delivery.to))

    async def leave_to_next_system(self, delivery: DeliveryState, error: AntiphonError) -> None:
        """Leave a message to the next system, in good order: that it was delivered here is not held against it."""
        rows = endings(delivery)
        if rows:
            try:
                await self._journal.write(_thread(delivery), rows)
            except LedgerError as exc:
                LOG.warning("%s: %s", delivery.to, log_text(exc), extra=log_fields(delivery, error=exc))
        parent = delivery.parent
        if parent is not None and delivery.waiter is not None and parent.leave_to_next_system():
            # Not the error: the handler that asked would answer with it, or with what it does about an error, for good.
            self._in_flight.drop(delivery)
            delivery.waiter.cancel()
        else:
            self._in_flight.abandon(delivery, error)


def _thread(delivery: DeliveryState) -> str:
    thread_id = delivery.envelope.thread_id
    assert thread_id is not None  # noqa: S101 (only deliveries of a thread come here)
    return thread_id


def _said(delivery: DeliveryState) -> list[Message]:
    """Return the rows that say a message: what is told has one more, which is open until it was handled."""
    if delivery.is_call:
        return [delivery.message]
    return [delivery.message, begun(DELIVER, delivery.id, thread_id=_thread(delivery), parent_id=delivery.id)]


def _delivered(delivery: DeliveryState, error: DeliveryError | None = None) -> Message:
    outcome: dict[str, Any] = {}
    if error is not None:
        outcome = error_fields(error.reason, error.code, retryable=error.retryable)
    return ended(DELIVER, delivery.id, thread_id=_thread(delivery), parent_id=delivery.id, **outcome)


def _as_written(row: Message, error: DeliveryError) -> DeliveryError:
    """Return an error as its row says it, cut or cleaned: the caller gets the same if it runs again."""
    payload = row.payload
    if not isinstance(payload, OptionResultPayload):
        return error
    is_same = payload.error_message == error.reason and payload.__weight__() <= MUCH
    return error if is_same else error_of(payload, error.address or "")


def _check_same(recorded: Message, delivery: DeliveryState) -> None:
    """Refuse to say something else under the id of what was said.

    Raises:
        HistoryMismatchError: it is something else.
    """
    said = delivery.message
    if recorded.to != said.to or not says_the_same(recorded.payload, said.payload):
        reason = f"{delivery.id!r} says {delivery.type} here, and something else in thread {delivery.thread_id!r}"
        raise HistoryMismatchError(reason, delivery.to)


def _is_call_of(delivery: DeliveryState, row: Message) -> bool:
    """Whether an open call is that of a message: the call itself, or the delivery of what is told."""
    return row.invocation_id == delivery.invocation_id and (row.lane == "effect") != delivery.is_call


def _is_withdrawn(result: Message) -> bool:
    payload = result.payload
    return isinstance(payload, OptionResultPayload) and payload.error_type == WithdrawnError.code
