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
from antiphon.messages.trusted import MUCH
from antiphon.runtime._envelope import Standing
from antiphon.runtime._failures import LOG, about, words
from antiphon.runtime._redelivery import endings, leftovers
from antiphon.runtime._results import error_of, error_result, result_of
from antiphon.runtime._rows import DELIVER, begun, ended, error_fields, says_the_same

if TYPE_CHECKING:
    from collections.abc import Callable

    from antiphon.ledger import Record
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._envelope import Envelope, InFlight
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._observer import DeadLetters
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
        obey: Callable[[Cell, Envelope], None],
        doubt: Callable[[str], None],
    ) -> None:
        """Make it.

        `obey` does a command to a cell. `doubt` has a thread recovered later, of which it is not sure what was written to it.
        """
        self._lifetime = lifetime
        self._journal = journal
        self._in_flight = in_flight
        self._redelivery = redelivery
        self._dead = dead
        self._obey = obey
        self._doubt = doubt

    # ------------------------------------------------------------ there

    async def say(self, cell: Cell, envelope: Envelope, until: float) -> None:
        """Append a message to its thread, then deliver it."""
        if envelope.parent is None:
            self._journal.take_back(_thread(envelope))  # a caller from outside wants it here
        cell.held += 1
        try:
            await self._say(cell, envelope, until)
        finally:
            cell.held -= 1

    async def _say(self, cell: Cell, envelope: Envelope, until: float) -> None:
        if envelope.may_be_known and await self._recall(cell, envelope):
            return
        self._in_flight.take_over(envelope)  # before it is written: a recovery of its thread must not think that nobody has it
        try:
            await self._append(cell, envelope, until)
        except BaseException as exc:
            self._drop_unsaid(envelope, exc)
            raise

    def _drop_unsaid(self, envelope: Envelope, error: BaseException) -> None:
        """Have a message in hand no more that could not be written down, or of which it is not sure that it was.

        Its sender gets the error. Those who said the same meanwhile wait for this one, and nobody else would tell them.
        """
        self._in_flight.drop(envelope)
        envelope.disappoint(error)
        if isinstance(error, LedgerUnavailableError):
            self._doubt(_thread(envelope))
        elif isinstance(error, asyncio.CancelledError):
            self._lifetime.start(self._take_back(envelope))

    async def _take_back(self, envelope: Envelope) -> None:
        """End a message whose sender was stopped while it was being written down, if it was; what is told is delivered."""
        if not envelope.is_call:
            self._doubt(_thread(envelope))
            return
        await asyncio.sleep(A_WHILE)
        try:
            call, result = await self._recorded(envelope)
        except LedgerError:
            self._doubt(_thread(envelope))
            return
        if call is not None and result is None and not self._in_flight.has(envelope):
            envelope.take(call)
            envelope.waiter, envelope.is_unsure = None, True  # it may have been delivered again meanwhile
            await self.put_away(envelope, WithdrawnError("whoever asked was cancelled", envelope.to))

    async def note(self, envelope: Envelope) -> bool:
        """Append a message that is not delivered, because whoever says it handles it; say whether its outcome is there."""
        if envelope.parent is not None and envelope.parent.attempt > 1:
            call, result = await self._recorded(envelope)
            if call is not None:
                _check_same(call.message, envelope)
                envelope.take(call)
                envelope.standing = envelope.parent.standing  # what it says may be known too
                if result is not None:
                    envelope.may_be_known = True
                    envelope.settle(result)
                return result is not None
        (record, *_) = await self._write(envelope, envelope.parent, _said(envelope))
        envelope.take(record)
        return False

    async def known(self, envelope: Envelope) -> tuple[Record | None, Message | None]:
        """Return what the ledger has of something that an actor works out, and of its outcome.

        Raises:
            HistoryMismatchError: it was something else the last time.
        """
        call, result = await self._recorded(envelope)
        if call is not None:
            _check_same(call.message, envelope)
        return call, result

    async def _write(self, envelope: Envelope, course: Envelope | None, rows: list[Message]) -> tuple[Record, ...]:
        """Append rows in the course of a message, after those that were put off there; return the records of the rows."""
        thread_id = _thread(envelope)
        if course is None or course.thread_id != thread_id:
            return await self._journal.write(thread_id, rows)
        put_off, marks = course.take_put_off()
        try:
            return (await self._journal.write(thread_id, [*put_off, *rows], **marks))[len(put_off) :]
        except BaseException:
            course.put_off, course.marks = (*put_off, *course.put_off), {**marks, **course.marks}
            raise

    async def _append(self, cell: Cell, envelope: Envelope, until: float) -> None:
        await self._journal.check_budget(_thread(envelope), envelope.to)
        if not cell.box.reserve():
            await cell.room(envelope, until)
        is_delivered = False
        try:
            (record, *_) = await self._write(envelope, envelope.parent, _said(envelope))
            envelope.take(record)
            is_delivered = await self._hand_over(cell, envelope)
        finally:
            if not is_delivered:
                cell.box.release()

    async def is_open(self, envelope: Envelope) -> bool:
        """Whether nobody has a message in hand, and it has no outcome."""
        _, result = await self._recorded(envelope)
        return result is None and not self._in_flight.has(envelope)

    async def hand_over(self, cell: Cell, envelope: Envelope) -> None:
        """Deliver what was appended, however full the mailbox is."""
        cell.box.waiting += 1
        if not await self._hand_over(cell, envelope):
            cell.box.release()

    async def _hand_over(self, cell: Cell, envelope: Envelope) -> bool:
        """Deliver what was appended; say whether it has taken the room in the mailbox."""
        self._in_flight.take_over(envelope)
        if envelope.is_command:
            self._obey(cell, envelope)
            return False
        if cell.state == "stopped":
            await self._refuse(envelope, ActorStoppedError("it takes no more messages", envelope.to))
            return False
        cell.deliver(envelope)
        return True

    async def _refuse(self, envelope: Envelope, error: DeliveryError) -> None:
        """End a message that was appended, and whose actor takes no more; if that is for the system's end, leave it."""
        if self._lifetime.is_closing:
            await self.leave(envelope, error)
        elif not envelope.is_settled:
            self._dead.add_unless_asked(envelope, error)
            await self.put_away(envelope, error)

    async def _recall(self, cell: Cell, envelope: Envelope) -> bool:
        """Look whether a message was said before; if so, see to it that its outcome comes."""
        while True:
            if (known := self._in_flight.get(envelope)) is not None:
                _check_same(known.message, envelope)
                known.share(envelope)
                return True
            call, result = await self._recorded(envelope)
            if self._in_flight.has(envelope):
                continue  # somebody began to say it while we were looking
            if call is None:
                self._in_flight.take_over(envelope)
                return False
            _check_same(call.message, envelope)
            if result is None:
                envelope.take(call)
                if await self._take_up_said(cell, envelope):
                    return True
                continue  # it has ended meanwhile
            if not (envelope.is_derived and _is_withdrawn(result)):
                envelope.settle(result)
                return True
            envelope.rename()

    async def _recorded(self, envelope: Envelope) -> tuple[Record | None, Message | None]:
        """Return what the ledger has of a message and of its outcome."""
        records = await self._journal.ledger.by_invocation(envelope.invocation_id, thread_id=_thread(envelope))
        lane = "effect" if not envelope.is_call else "control" if envelope.said is not None else envelope.message.lane
        rows = [record for record in records if record.message.lane == lane]  # talk of the same id is no answer to a request
        call = next((row for row in rows if row.message.kind == "option_call"), None)
        result = next((row.message for row in rows if row.message.kind == "option_result"), None)
        if call is None or envelope.is_call:
            return call, result
        return await self._journal.before(_thread(envelope), call), result

    async def _take_up_said(self, cell: Cell, envelope: Envelope) -> bool:
        try:
            return await self._take_up(cell, envelope, "it was said again")
        except BaseException as exc:
            self._drop_unsaid(envelope, exc)
            raise

    async def take_up(self, cell: Cell, envelope: Envelope, reason: str) -> bool:
        """Deliver a message that the ledger has and nobody has in hand; say whether it is still open.

        Raises:
            ParkedError: it waits for a person.
            LedgerError: it could not be written down.
        """
        try:
            is_open = await self._take_up(cell, envelope, reason)
            if not is_open:
                _, result = await self._recorded(envelope)
                envelope.settle(result)  # somebody may have asked the same meanwhile
        except BaseException as exc:
            self._in_flight.drop(envelope)
            envelope.disappoint(exc)
            raise
        return is_open

    async def _take_up(self, cell: Cell, envelope: Envelope, reason: str) -> bool:
        self._in_flight.take_over(envelope)
        cell.held += 1
        try:
            rows = await self._journal.ledger.open_calls(_thread(envelope))
            if not any(_is_call_of(envelope, row.message) for row in rows):
                self._in_flight.drop(envelope)  # what said that it is open was read before it ended
                return False
            envelope.standing = Standing.of(rows, envelope.invocation_id)
            if envelope.standing.parked is not None:
                raise ParkedError("it waits for a person", envelope.to)
            await self._redelivery.deliver(cell, envelope, "recovered", reason)
            return True
        finally:
            cell.held -= 1

    # ------------------------------------------------------------ and back

    async def answer(self, envelope: Envelope, outcome: Any) -> None:
        """Append the outcome of a message, then give it to whoever waits."""
        if envelope.is_call:
            result = result_of(envelope, outcome)
            stored = await self._close(envelope, result)
            envelope.settle(outcome if stored is result else stored)
        else:
            await self._close(envelope, _delivered(envelope))
            envelope.settle(None)

    async def put_away(self, envelope: Envelope, error: DeliveryError) -> None:
        """Append that a message ends with an error, then give that to whoever waits."""
        policy = RUNTIME_POLICY if envelope.withdrawn is error else envelope.to
        row = error_result(envelope, error, policy) if envelope.is_call else _delivered(envelope, error)
        try:
            await self._close(envelope, row)
        except LedgerError as exc:
            text = "%s: that %s ended with %s cannot be journaled: %s"
            LOG.warning(text, envelope.to, envelope.type, error.code, words(exc), extra=about(envelope, error=exc))
            self._in_flight.let_go(envelope, exc)
            self._doubt(_thread(envelope))
        else:
            envelope.fail(_as_written(row, error))

    async def _close(self, envelope: Envelope, row: Message) -> Message:
        """Append the end of a message, and return that as the ledger has it."""
        is_unsure = envelope.is_unsure or envelope.withdrawn is not None or envelope.attempt > 1
        ends = await self._leftovers(envelope) if is_unsure else endings(envelope) if envelope.has_leftovers else []
        try:
            (record, *_) = await self._write(envelope, envelope, [row, *ends])
            stored = record.message
        except AppendRefusedError:
            _, found = await self._recorded(envelope)
            if found is None:
                raise
            stored = found  # it was appended before, and the acknowledgement was lost
        if is_unsure and (ends := await self._leftovers(envelope)):
            await self._journal.write(_thread(envelope), ends)  # of something that was being written at the same time
        self._in_flight.drop(envelope)
        return stored

    async def _leftovers(self, envelope: Envelope) -> list[Message]:
        await self._journal.settle(_thread(envelope))
        rows = await self._journal.ledger.open_calls(_thread(envelope))
        return await leftovers(self._journal.ledger, rows, envelope.invocation_id, _thread(envelope), str(envelope.to))

    async def leave(self, envelope: Envelope, error: AntiphonError) -> None:
        """Leave a message to the next system, in good order: that it was delivered here is not held against it."""
        rows = endings(envelope)
        if rows:
            try:
                await self._journal.write(_thread(envelope), rows)
            except LedgerError as exc:
                LOG.warning("%s: %s", envelope.to, words(exc), extra=about(envelope, error=exc))
        parent = envelope.parent
        if parent is not None and envelope.waiter is not None and parent.leave():
            # Not the error: the handler that asked would answer with it, or with what it does about an error, for good.
            self._in_flight.drop(envelope)
            envelope.waiter.cancel()
        else:
            self._in_flight.let_go(envelope, error)


def _thread(envelope: Envelope) -> str:
    assert envelope.thread_id is not None  # noqa: S101 (only what is said in a thread comes here)
    return envelope.thread_id


def _said(envelope: Envelope) -> list[Message]:
    """Return the rows that say a message: what is told has one more, which is open until it was handled."""
    if envelope.is_call:
        return [envelope.message]
    return [envelope.message, begun(DELIVER, envelope.id, thread_id=_thread(envelope), parent_id=envelope.id)]


def _delivered(envelope: Envelope, error: DeliveryError | None = None) -> Message:
    outcome: dict[str, Any] = {}
    if error is not None:
        outcome = error_fields(error.reason, error.code, retryable=error.retryable)
    return ended(DELIVER, envelope.id, thread_id=_thread(envelope), parent_id=envelope.id, **outcome)


def _as_written(row: Message, error: DeliveryError) -> DeliveryError:
    """Return an error as its row says it, cut or cleaned: the caller gets the same if it runs again."""
    payload = row.payload
    if not isinstance(payload, OptionResultPayload):
        return error
    is_same = payload.error_message == error.reason and payload.__weight__() <= MUCH
    return error if is_same else error_of(payload, error.address or "")


def _check_same(recorded: Message, envelope: Envelope) -> None:
    """Refuse to say something else under the id of what was said.

    Raises:
        HistoryMismatchError: it is something else.
    """
    said = envelope.message
    if recorded.to != said.to or not says_the_same(recorded.payload, said.payload):
        reason = f"{envelope.id!r} says {envelope.type} here, and something else in thread {envelope.thread_id!r}"
        raise HistoryMismatchError(reason, envelope.to)


def _is_call_of(envelope: Envelope, row: Message) -> bool:
    """Whether an open call is that of a message: the call itself, or the delivery of what is told."""
    return row.invocation_id == envelope.invocation_id and (row.lane == "effect") != envelope.is_call


def _is_withdrawn(result: Message) -> bool:
    payload = result.payload
    return isinstance(payload, OptionResultPayload) and payload.error_type == WithdrawnError.code
