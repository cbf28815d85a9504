"""Redelivery: how a message of a thread is delivered again, parked, and settled by a person.

**Redelivery.** A handler that fails gets the message again after the restart, at most `attempts` times in all. A message that
was in flight when its process died is delivered by the next process, at most `recoveries` times. After that it is parked: its
call stays open, together with a row that has the evidence, until a person settles it (`settle`). Redeliveries for other
reasons are not limited: after each answer of a person, or if the same message is sent again.

**Duplicates and RETRY.** Outside of threads, the latest messages with an explicit id are kept (`Recent`), so that a duplicate
gets the answer of the first. In a thread the ledger does the same (`_send.py`). A RETRY finds the message that it names in
its thread, in its own data, or among the kept messages (`find_original`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from antiphon import errors
from antiphon.messages import RUNTIME_POLICY, Json, JsonObject, Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.messages._keys import again_id, base_of, is_below, parent_of, park_id, renamed, reopen_id, settled_id
from antiphon.protocol import ErrorCode, Retry
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._exchange import from_wire
from antiphon.runtime._reporting import warn
from antiphon.runtime._rows import (
    AGAIN,
    PARK,
    REOPEN,
    RUN,
    Cause,
    Standing,
    begun,
    effect_rows,
    ended,
    error_fields,
    is_once,
    is_withdrawn,
    option_of,
    stops_in,
    unused,
)
from antiphon.runtime._settings import GOES_ON, STOPPED
from antiphon.runtime._states import Event, Phase

if TYPE_CHECKING:
    from antiphon.ledger import Owners, Record
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._delivery import DeliveryState, InFlight, Recent
    from antiphon.runtime._elsewhere import RemoteAnswers
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._outcomes import Outcomes
    from antiphon.runtime._settings import Settings


class Redelivery:
    """Delivers messages again, or parks them."""

    def __init__(
        self,
        journal: Journal,
        settings: Settings,
        in_flight: InFlight,
        outcomes: Outcomes,
        answers: RemoteAnswers,
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._in_flight = in_flight
        self._outcomes = outcomes
        self._answers = answers
        self._hooks = journal.hooks

    # ------------------------------------------------------------ after a failure or a restart

    async def failed(self, cell: Cell, delivery: DeliveryState, reason: str, error: BaseException) -> None:
        """Redeliver a message whose handler has failed, after the restart; outside of a thread, answer with the error."""
        if delivery.thread_id is not None:
            await self.redeliver(cell, delivery, reason)
            return
        wrapped = errors.ActorFailedError(reason, delivery.to)
        wrapped.__cause__ = error
        await self._outcomes.end_with_error(delivery, wrapped)

    async def redeliver(self, cell: Cell, delivery: DeliveryState, reason: str) -> None:
        """Redeliver a message of a thread whose handler has failed or was interrupted.

        If the ledger fails, the error is logged, and the message still runs again.
        """
        if delivery.phase is not Phase.RUNNING:
            return  # it has ended, or is delivered again already: its handler has failed while it was interrupted
        delivery.turn(Event.REDELIVER)
        try:
            await self.deliver(cell, delivery, "failed", reason)
        except errors.ActorStoppedError as exc:
            await self._outcomes.refuse(delivery, exc)
        except errors.FencedError as exc:
            if delivery.evicted is None:  # otherwise its caller gets the answer that the new owner writes
                self._in_flight.abandon(delivery, exc)
        except errors.LedgerError as exc:
            text = "%s: that %s is delivered again cannot be journaled: %s"
            warn(text, delivery.to, delivery.type, error=exc, about=delivery)
            self.put_back(cell, delivery)

    def put_back(self, cell: Cell, delivery: DeliveryState) -> None:
        """Handle a message again without a row, because the ledger is unavailable."""
        # A further attempt, although without a row: it looks up its effects, and its end reads the open rows.
        delivery.requeue(cell, delivery.standing.plus_rerun())
        cell.box.put_first(delivery)

    # ------------------------------------------------------------ an open call

    async def recover(
        self, cell: Cell, delivery: DeliveryState, cause: Cause, reason: str, rows: Sequence[Record] | None = None
    ) -> bool:
        """Deliver a stored message that is not in flight; return whether it is still open.

        `rows` are the open calls of its thread, if nothing was awaited since they were read; otherwise they are read again.

        Raises:
            ParkedError: a person must settle it.
            LedgerError: it could not be written down.
        """
        try:
            is_open = await self.deliver_open(cell, delivery, cause, reason, rows)
            if delivery.phase is Phase.REDELIVERING:  # it has ended
                _, result = await self._outcomes.recorded(delivery)
                delivery.turn(Event.CLOSED)
                delivery.settle(result)  # for duplicates that arrived meanwhile
        except BaseException as exc:
            self._in_flight.drop(delivery)
            if isinstance(exc, errors.FencedError | errors.OwnedError) and not delivery.envelope.is_of_host:
                delivery.turn(Event.FENCED)
                if delivery.evicted is None:  # otherwise they wait already
                    delivery.turn(Event.POST)
                    self._answers.add(delivery)  # its callers get the outcome that the new owner writes
            else:
                delivery.refuse(exc)
            raise
        return is_open

    async def deliver_open(
        self, cell: Cell, delivery: DeliveryState, cause: Cause, reason: str, rows: Sequence[Record] | None = None
    ) -> bool:
        """Deliver a message, if its call is open; return whether it is. If it has ended, its outcome is to be read."""
        # In flight before the read: a second recovery of the thread would deliver the message as well. The cell is held,
        # because a passivated cell would take the message into a mailbox that nobody drains.
        delivery.turn(Event.REDELIVER)
        self._in_flight.take_over(delivery)
        cell.held += 1
        thread_id = delivery.thread_id or ""
        try:
            rows = await self._journal.ledger.open_calls(thread_id) if rows is None else rows
            # Open is the call itself, or the DELIVER row of a notice.
            own_rows = (row.message for row in rows if row.message.invocation_id == delivery.invocation_id)
            if not any((row.lane == "effect") != delivery.is_call for row in own_rows):
                self._in_flight.drop(delivery)  # it ended after the caller had read the open calls
                return False
            if Standing.of(rows, delivery.invocation_id).parked is not None:
                raise errors.ParkedError("it waits for a person", delivery.to)
            delivery.standing = Standing.of(await self._go_on(thread_id, rows), delivery.invocation_id)
            await self.deliver(cell, delivery, cause, reason)
            return True
        except errors.ActorStoppedError as exc:
            await self._outcomes.refuse(delivery, exc)
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

    async def deliver(self, cell: Cell, delivery: DeliveryState, cause: Cause, reason: str) -> None:
        """Deliver a message again, or park it if it was delivered too often. A new message is delivered for the first time.

        The row is written before the message is put into the mailbox. If the process dies in between, one delivery too many is
        counted, never one too few: so a message that kills its process is eventually parked.

        Raises:
            ActorStoppedError: its actor has been stopped, and takes no more messages.
            FencedError: its thread was evicted, so another delivery of it is in progress.
            LedgerError: it could not be journaled.
        """
        settings, standing = self._settings, delivery.standing
        has_failed = cause == "failed"
        if standing.failed + 1 >= settings.attempts if has_failed else standing.lost >= settings.recoveries:
            count = len(standing.again) + 1
            await self.park(delivery, f"it was delivered {count} times", {"last": reason})
            return
        if cause != "posted" or standing.again:
            name = partial(again_id, delivery.invocation_id)
            attempt = await self._unused(delivery, name, len(standing.again) + 2)
            row = name(attempt)
            arguments: dict[str, Json] = {"attempt": attempt, "cause": cause, "reason": reason}
            if cause == "recovered":
                arguments |= await self._journal.tenure(delivery.thread_id or "")
            # Checked before and after the row: this host may have received the thread again meanwhile.
            delivery.check_evicted()
            await self._note(AGAIN, row, delivery, arguments)
            standing = delivery.standing = standing.plus(row, cause)  # the end of the message ends the row as well
        delivery.check_evicted()
        if cell.state == "stopped":  # checked after the append: its supervisor may have stopped it meanwhile
            raise errors.ActorStoppedError("it takes no more messages", delivery.to)
        delivery.requeue(cell, standing)
        self._in_flight.take_over(delivery)
        if self._hooks is not None:
            self._hooks.accepted(delivery)
        # After a failure it goes before all waiting messages: later messages of its thread must not overtake it. After a
        # crash, the caller recovers messages in order, so each goes to the end.
        if has_failed:
            cell.box.put_first(delivery)
        else:
            cell.box.put_last(delivery)
        cell.wake()

    async def park(self, delivery: DeliveryState, reason: str, evidence: dict[str, Json]) -> None:
        """Park a message until a person settles it."""
        name = partial(park_id, delivery.invocation_id)
        row = name(await self._unused(delivery, name, 1))
        # The row before the error: a caller that gets the error can find the parked message in the ledger and settle it.
        await self._note(PARK, row, delivery, {"reason": reason, "to": str(delivery.to), **evidence})
        if self._hooks is not None:
            self._hooks.parked(delivery)
        self._in_flight.abandon(delivery, errors.ParkedError(reason, delivery.to))

    async def _unused(self, delivery: DeliveryState, name: Callable[[int], str], first: int) -> int:
        return await unused(self._journal.ledger, delivery.thread_id or "", name, first)

    async def _note(self, option: str, row: str, delivery: DeliveryState, arguments: dict[str, Json]) -> None:
        thread_id = delivery.thread_id or ""
        note = begun(option, row, thread_id=thread_id, parent_id=delivery.invocation_id, arguments=arguments)
        await self._journal.write(thread_id, [note])


class Settlement:
    """A person's decision about a parked message: a result, an error, or another try."""

    def __init__(self, *, result: Json, error: str | None, retry: bool) -> None:
        self.result = result
        self.error = error
        self.retry = retry

    def fields(self) -> dict[str, Any]:
        """Return it as fields of an option result."""
        if self.retry:
            return error_fields("a person says it was not done", errors.WithdrawnError.code, retryable=True)
        if self.error is not None:
            return error_fields(self.error, errors.EffectFailedError.code, retryable=False)
        return {"result": self.result}


async def settle(journal: Journal, thread_id: str, invocation_id: str, outcome: Settlement) -> None:
    """Journal the decision about a parked message. For another try, the caller delivers it afterwards.

    Raises:
        ValueError: it is not parked.
        LedgerError: it could not be journaled.
    """
    rows = await journal.ledger.open_calls(thread_id)
    standing = Standing.of(rows, invocation_id)
    if standing.parked is None or not isinstance(standing.parked.payload, OptionCallPayload):
        raise ValueError(f"{invocation_id!r} is not parked in thread {thread_id!r}")
    effect = standing.parked.payload.arguments.get("effect")
    # All rows that park it for the same: if an append was written and not confirmed, the message was parked once more.
    about = [row.message for row in rows if row.message.parent_id == invocation_id and option_of(row.message) == PARK]
    parked = [row.payload for row in about if isinstance(row.payload, OptionCallPayload) and row.lane == "effect"]
    same = [row.invocation_id for row in parked if row.arguments.get("effect") == effect]
    ends = [ended(PARK, row, thread_id=thread_id, parent_id=invocation_id) for row in same]
    if isinstance(effect, str):
        intent = _find(rows, effect, is_effect=True)
        option = option_of(intent) or ""
        ends.insert(0, ended(option, effect, thread_id=thread_id, parent_id=intent.parent_id, **outcome.fields()))
    else:
        ends += [ended(AGAIN, row, thread_id=thread_id, parent_id=invocation_id) for row in standing.again]
        if not outcome.retry:
            ends.insert(0, _settled_answer(rows, invocation_id, outcome))
    # One append: the outcome and the end of PARK. With two, a crash in between would leave a settled message that is still
    # parked, or one that is neither settled nor parked and runs again.
    await journal.write(thread_id, ends)


async def reopen(journal: Journal, thread_id: str, effect: str) -> None:
    """Journal that the failure of an effect does not count: the run that ended with it runs the effect again."""
    row = reopen_id(effect)
    rows = [option(REOPEN, row, thread_id=thread_id, parent_id=effect) for option in (begun, ended)]
    await journal.write(thread_id, rows)


async def last_failure(ledger: Owners, thread_id: str, invocation_id: str) -> str | None:
    """Return the last attempt of an effect, if it failed and a run ended with that; else None.

    The run must be open, with nothing recorded after the failure: a program that continued has handled the failure, and keeps
    it. An effect inside another effect that must not run twice is not rerun on its own.
    """
    effect, rows = invocation_id, await effect_rows(ledger, thread_id, invocation_id)
    while later := await effect_rows(ledger, thread_id, renamed(effect)):
        effect, rows = renamed(effect), later
    calls = [row.message for row in await ledger.open_calls(thread_id) if row.message.lane == "effect"]
    runs = [call.invocation_id or "" for call in calls if option_of(call) == RUN]
    run = next((run for run in runs if is_below(effect, run)), None)
    outcome = rows[-1].message.payload if rows else None
    if run is None or not isinstance(outcome, OptionResultPayload) or not outcome.is_error or is_withdrawn(outcome):
        return None
    async for record in ledger.read(thread_id, after=rows[-1].seq):
        message = record.message
        if message.lane != "effect" or not is_below(message.invocation_id, run) or option_of(message) in (None, REOPEN):
            continue
        if not is_below(effect, base_of(message.invocation_id or "")):  # a call around it that starts again meets the failure
            return None
    around = parent_of(effect)
    while is_below(around, run):
        outer = await effect_rows(ledger, thread_id, around)
        if outer and is_once(outer[0].message):
            return None
        around = parent_of(around)
    return effect


def _settled_answer(rows: tuple[Record, ...], invocation_id: str, outcome: Settlement) -> Message:
    """Return the result of a parked call, or of the DELIVER row of a parked notice."""
    call = _find(rows, invocation_id, is_effect=False)  # for a notice, its DELIVER row
    fields = outcome.fields()
    if outcome.error is not None:
        fields["error_type"] = "SETTLED"
    payload = call.payload
    assert isinstance(payload, OptionCallPayload)  # noqa: S101 (only calls are open)
    return call.model_copy(
        update={
            "id": settled_id(invocation_id),
            "policy": RUNTIME_POLICY,
            "payload": OptionResultPayload(
                invocation_id=payload.invocation_id,
                option_name=payload.option_name,
                **fields,
            ),
            "to": (call.policy,),
            "in_reply_to": call.id,
            "metadata": {},
        }
    )


def _find(rows: tuple[Record, ...], invocation_id: str, *, is_effect: bool) -> Message:
    messages = [row.message for row in rows if row.message.invocation_id == invocation_id]
    return next((message for message in messages if (message.lane == "effect") == is_effect), messages[0])


# ---------------------------------------------------------------- duplicates and RETRY


async def find_original(ledger: Owners, recent: Recent, request: Retry, thread_id: str | None) -> Message:
    """Return the message that a RETRY names.

    Raises:
        RefusedError: it was tried too often, is unknown, or is itself a RETRY: then the first message is to be named.
    """
    original, tries = None, request.attempt
    if thread_id is not None:
        records = await ledger.find(invocation_id=request.original_message_id, thread_id=thread_id)
        calls = [record for record in records if record.message.kind == "option_call" and record.message.lane == "control"]
        if calls:
            original = calls[0].message
            tries = max(tries, await _tries(ledger, request, thread_id, calls[0].seq))
    if tries > request.max_attempts:
        raise errors.RefusedError(f"it was tried {tries - 1} times", ErrorCode.RETRY_EXHAUSTED)
    original = original or _given(request) or recent.message(request.original_message_id)
    if original is None:
        raise errors.RefusedError(f"nobody has message {request.original_message_id!r}", ErrorCode.VALIDATION_ERROR)
    if isinstance(original.payload, OptionCallPayload) and original.payload.option_name == Retry.message_type:
        # A RETRY of a RETRY would not find what the first message has done, and do it again.
        reason = f"message {request.original_message_id!r} is a RETRY: name the message that was retried first"
        raise errors.RefusedError(reason, ErrorCode.VALIDATION_ERROR)
    return original


async def _tries(ledger: Owners, request: Retry, thread_id: str, seq: int) -> int:
    """Return the number of this attempt; the message itself was the first."""
    tries = 1
    async for record in ledger.read(thread_id, seq):
        match record.message.payload:
            case OptionCallPayload(option_name=Retry.message_type, arguments={"original_message_id": str(original)}):
                tries += original == request.original_message_id
            case _:
                pass
    return tries


def _given(request: Retry) -> Message | None:
    if not isinstance(request.original_message, JsonObject):
        return None
    try:
        return from_wire(WireMessage.model_validate(thaw(request.original_message)), None)
    except ValidationError as exc:
        raise errors.RefusedError("original_message is no message of the protocol", ErrorCode.VALIDATION_ERROR) from exc
