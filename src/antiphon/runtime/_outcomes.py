"""Outcomes: how a delivery ends, in the order in which it happens: the handler's result or error, its row, its callers.

**Write first.** In a thread, the end is appended, then given to the callers. In the opposite order, a crash in between would
leave a caller that has acted on an answer which the next run of the handler may not give.

**One append** has the end and its leftovers (`_leftovers.py`): after a crash between two, recovery would have to search for
them.

**Left open.** A call without an end is delivered by the next owner of its thread. So a message that cannot be ended here is
only taken out of flight, and its callers get the error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon import errors
from antiphon.messages import RUNTIME_POLICY, Message, OptionResultPayload
from antiphon.messages._unchecked import MUCH
from antiphon.runtime._exchange import error_result, result_of
from antiphon.runtime._leftovers import endings, leftovers
from antiphon.runtime._reporting import warn
from antiphon.runtime._rows import DELIVER, ended, error_fields, error_of, stored_code
from antiphon.runtime._states import Event

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from antiphon.ledger import Record
    from antiphon.runtime._actor import Lifetime
    from antiphon.runtime._delivery import DeliveryState, InFlight
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._reporting import DeadLetters


class Outcomes:
    """Ends deliveries, or leaves them open."""

    def __init__(
        self,
        lifetime: Lifetime,
        journal: Journal,
        in_flight: InFlight,
        dead: DeadLetters,
        *,
        answers_mismatches: bool,
        recover_later: Callable[[str], None],
    ) -> None:
        """Make it.

        `answers_mismatches`: a `HistoryMismatchError` is an answer, and not a reason to leave the thread to another build.
        `recover_later` reads a thread again after an unconfirmed append.
        """
        self._lifetime = lifetime
        self._journal = journal
        self._in_flight = in_flight
        self._dead = dead
        self.answers_mismatches = answers_mismatches
        self._recover_later = recover_later
        self.give_up_thread: Callable[[DeliveryState, errors.HistoryMismatchError], Awaitable[None]]
        """Gives up the thread of a message that this build cannot continue. Set when the system is put together."""

    # ------------------------------------------------------------ an end

    async def answer(self, delivery: DeliveryState, outcome: Any) -> None:
        """End a message with an outcome. The caller gets it as it is stored, if the ledger has redacted it."""
        if delivery.is_settled:
            return
        if delivery.thread_id is None:
            delivery.settle(outcome)
        elif delivery.is_call:
            result = result_of(delivery, outcome)
            stored = await self._close(delivery, result)
            delivery.callers.serve(outcome if stored is result else stored)
        else:
            await self._close(delivery, _delivered(delivery))
            delivery.callers.serve(None)

    async def end_with_error(self, delivery: DeliveryState, error: errors.DeliveryError) -> None:
        """End a message with an error; without a caller, it becomes a dead letter."""
        if delivery.is_settled or delivery.evicted is not None:
            return  # of an evicted message, the caller gets the outcome that the new owner writes
        self._dead.add_unless_asked(delivery, error)
        if delivery.thread_id is None:
            delivery.settle(None, error)
            return
        policy = RUNTIME_POLICY if delivery.callers.withdrawn is error else delivery.to
        row = error_result(delivery, error, policy) if delivery.is_call else _delivered(delivery, error)
        try:
            await self._close(delivery, row)
        except errors.LedgerError as exc:
            text = "%s: that %s ended with %s cannot be journaled: %s"
            warn(text, delivery.to, delivery.type, error.code, error=exc, about=delivery)
            if delivery.evicted is None:
                self._in_flight.abandon(delivery, exc)
                self._recover_later(delivery.thread_id)
        else:
            delivery.callers.serve(None, _as_written(row, error))

    async def _close(self, delivery: DeliveryState, row: Message) -> Message:
        """Append the end of a message together with its leftovers, and return the end as it is stored."""
        delivery.turn(Event.END)
        work, thread_id = delivery.work, delivery.thread_id or ""
        is_unsure = work.is_unsure or delivery.callers.withdrawn is not None or delivery.attempt > 1
        try:
            ends: list[Message] = []
            if is_unsure:
                ends = await self._leftovers(delivery)
            elif delivery.standing.again or work.open_effects:
                ends = endings(delivery)
            try:
                (record, *_) = await self._journal.write_of(work, thread_id, [row, *ends])
                stored = record.message
            except errors.AppendRefusedError:
                _, result = await self.recorded(delivery)
                if result is None:
                    raise
                stored = result  # an earlier append was written, and its confirmation was lost
            if is_unsure and (ends := await self._leftovers(delivery)):
                await self._journal.write(thread_id, ends)  # rows that were being written meanwhile
        except BaseException:
            delivery.turn(Event.UNSTORED)
            raise
        self._in_flight.drop(delivery)  # last: until here, a duplicate shares this delivery
        delivery.turn(Event.STORED)
        return stored

    async def _leftovers(self, delivery: DeliveryState) -> list[Message]:
        thread_id = delivery.thread_id or ""
        await self._journal.settle(thread_id)
        rows = await self._journal.ledger.open_calls(thread_id)
        return await leftovers(self._journal.ledger, rows, delivery.invocation_id, thread_id, str(delivery.to))

    async def recorded(self, delivery: DeliveryState) -> tuple[Record | None, Message | None]:
        """Return the stored record of a message, and its stored outcome."""
        thread_id = delivery.thread_id or ""
        records = await self._journal.ledger.find(invocation_id=delivery.invocation_id, thread_id=thread_id)
        lane = (
            "effect" if not delivery.is_call else "control" if delivery.envelope.request is not None else delivery.message.lane
        )
        # Talk with the same id is not an answer to a request.
        rows = [record for record in records if record.message.lane == lane]
        call = next((row for row in rows if row.message.kind == "option_call"), None)
        result = next((row.message for row in rows if row.message.kind == "option_result"), None)
        if call is None or delivery.is_call:
            return call, result
        return await self._journal.before(thread_id, call), result

    async def is_open(self, delivery: DeliveryState) -> bool:
        """Whether a message has no outcome, and is not in flight here."""
        _, result = await self.recorded(delivery)
        return result is None and not self._in_flight.has(delivery)

    # ------------------------------------------------------------ no end

    def abandon(self, delivery: DeliveryState, error: errors.AntiphonError) -> None:
        """Stop handling a message without a row. The caller gets the error; in a thread the call stays open."""
        if delivery.thread_id is not None:
            self._in_flight.abandon(delivery, error)
        elif not delivery.is_settled:
            delivery.settle(None, error)

    def leave_open(self, delivery: DeliveryState, error: errors.AntiphonError) -> None:
        """Abandon a message whose handler waits for something outside, such as the answer of a person."""
        if delivery.thread_id is None:
            self.abandon(delivery, error)
        else:
            self._in_flight.leave_open(delivery, error)

    async def refuse(self, delivery: DeliveryState, error: errors.DeliveryError) -> None:
        """End an appended message whose actor has stopped. If the system closes, leave it open for the next one."""
        if self._lifetime.is_closing:
            await self.leave_to_next_system(delivery, error)
        else:
            await self.end_with_error(delivery, error)

    async def leave_to_next_system(self, delivery: DeliveryState, error: errors.AntiphonError) -> None:
        """Leave a message open for the next system. Its deliveries here are ended, so they do not count as attempts."""
        if delivery.evicted is None and (rows := endings(delivery, is_left=True)):
            try:
                await self._journal.write(delivery.thread_id or "", rows)
            except errors.LedgerError as exc:
                warn("%s: %s", delivery.to, error=exc, about=delivery)
        parent, waiter = delivery.parent, delivery.callers.waiter
        if not delivery.is_settled and parent is not None and waiter is not None and parent.leave_to_next_system():
            # The handler that asks is cancelled, and does not get the error: it would handle the error and store a final
            # answer.
            self._in_flight.drop(delivery)
            delivery.turn(Event.LEAVE)
            waiter.cancel()
        else:
            self._in_flight.abandon(delivery, error)

    async def give_up(self, delivery: DeliveryState, error: errors.HistoryMismatchError) -> None:
        """Give up the thread of a message that the code here cannot continue. The message stays open for another build."""
        if self.answers_mismatches:
            await self.end_with_error(delivery, error)
        else:
            await self.give_up_thread(delivery, error)


def _delivered(delivery: DeliveryState, error: errors.DeliveryError | None = None) -> Message:
    outcome: dict[str, Any] = {}
    if error is not None:
        outcome = error_fields(error.reason, stored_code(error), retryable=error.retryable)
    return ended(DELIVER, delivery.id, thread_id=delivery.thread_id or "", parent_id=delivery.id, **outcome)


def _as_written(row: Message, error: errors.DeliveryError) -> errors.DeliveryError:
    """Return an error as stored, perhaps cut: a caller that runs again gets the same."""
    payload = row.payload
    if not isinstance(payload, OptionResultPayload):
        return error
    is_same = payload.error_message == error.reason and payload.__weight__() <= MUCH
    return error if is_same else error_of(payload, error.address or "")
