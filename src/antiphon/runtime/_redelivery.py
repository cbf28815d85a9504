"""Redelivery: how a message of a thread is delivered another time, parked, settled by a person, and cleared away.

**Redelivery.** A handler that fails is given the message again after the restart, `attempts` times in all. A message that was
in hand when its process died is given to the next one, `recoveries` times. After that it is parked: its call stays open, with
the evidence beside it, until a person settles it (`settle`).

**Endings.** When a message ends, so does what is open only for its sake: deliveries of it; effects that its handler began
and did not end; what it asked itself. Usually the envelope knows them (`endings`). Where a handler was stopped in the middle
of something, or another ran before it, only the ledger does (`leftovers`). An effect belongs to the message that is the
longest prefix of its id: `m/agent/tool` is an effect of `m`, unless `m/agent` is a message of its own. Messages that `m` has
sent end for themselves, also those that outlive it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from antiphon.errors import EffectFailedError, FencedError, LedgerError, ParkedError, WithdrawnError
from antiphon.messages import RUNTIME_POLICY, Json, Message, OptionCallPayload, OptionResultPayload
from antiphon.messages.keys import again_id, is_below, parent_of, park_id, settled_id, withdrawn_id
from antiphon.runtime._envelope import Cause, Standing
from antiphon.runtime._failures import LOG, about, words
from antiphon.runtime._rows import AGAIN, DELIVER, PARK, begun, ended, option_of, own_message, unused

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, Record
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._envelope import Envelope, InFlight
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._observer import Hooks
    from antiphon.runtime._settings import Settings

_WITHDRAWN: dict[str, Any] = {
    "is_error": True,
    "error_type": WithdrawnError.code,
    "error_message": "its handler was stopped meanwhile",
    "retryable": True,
}


def endings(envelope: Envelope) -> list[Message]:
    """Return the rows that end what was open only for the sake of a message, as far as the envelope knows."""
    thread_id, parent_id = envelope.thread_id or "", envelope.invocation_id
    rows = [ended(AGAIN, row, thread_id=thread_id, parent_id=parent_id) for row in envelope.standing.again]
    return rows + [_abandoned(intent, thread_id, str(envelope.to)) for intent in envelope.open_effects]


async def leftovers(ledger: Ledger, rows: Sequence[Record], invocation_id: str, thread_id: str, to: str) -> list[Message]:
    """Return the rows that end what is open only for the sake of a message, by the open calls of its thread."""
    parked = {row.message.parent_id for row in rows if option_of(row.message) == PARK}
    found: list[Message] = []
    for message in await _following(ledger, [row.message for row in rows], invocation_id, thread_id):
        payload = message.payload
        assert isinstance(payload, OptionCallPayload)  # noqa: S101 (only calls are open)
        if message.lane == "effect" and payload.option_name == AGAIN:
            found.append(ended(AGAIN, payload.invocation_id, thread_id=thread_id, parent_id=invocation_id))
        elif _is_effect(message) and payload.invocation_id not in parked:
            found.append(_abandoned(message, thread_id, to))
        elif is_asked_of_itself(message):
            found += await leftovers(ledger, rows, payload.invocation_id, thread_id, to)
            found.append(_withdrawn(message, payload))
    return found


async def _following(ledger: Ledger, calls: Sequence[Message], invocation_id: str, thread_id: str) -> list[Message]:
    """Return what is said and done in the course of a message: what says so, and effects of a part of its handling."""
    own = [call for call in calls if call.parent_id == invocation_id]
    for call in calls:
        below = is_below(call.invocation_id, invocation_id) and call.parent_id != invocation_id
        if below and _is_effect(call) and await owner_of(ledger, call, thread_id) == invocation_id:
            own.append(call)
    return own


async def owner_of(ledger: Ledger, effect: Message, thread_id: str) -> str | None:
    """Return the message in whose course an effect was begun; None if the thread has none."""
    name = effect.invocation_id or ""
    while "/" in name:
        name = parent_of(name)
        if any(_is_said(record.message) for record in await ledger.by_invocation(name, thread_id=thread_id)):
            return name
    return None


def _is_said(message: Message) -> bool:
    """Whether a row of an invocation is of a message: of one that was asked, or of the delivery of one that was told."""
    return message.lane != "effect" or option_of(message) == DELIVER


def _is_effect(call: Message) -> bool:
    return call.lane == "effect" and isinstance(call.payload, OptionCallPayload) and "effects" in call.payload.arguments


def is_asked_of_itself(message: Message) -> bool:
    """Whether an actor asks something of itself, which its own handler does at once."""
    is_call = message.lane != "effect" and message.kind == "option_call"
    return is_call and message.parent_id is not None and message.to == (message.policy,)


def _abandoned(intent: Message, thread_id: str, to: str) -> Message:
    """Return what becomes of an effect whose handler has ended before it: if it must not be done twice, a person looks."""
    payload = intent.payload
    assert isinstance(payload, OptionCallPayload)  # noqa: S101 (it was made so)
    effect, option = payload.invocation_id, payload.option_name
    if payload.arguments.get("effects") == "once":
        reason = f"nobody knows whether {option!r} was done: its handler was stopped meanwhile"
        evidence: dict[str, Json] = {"reason": reason, "to": to, "effect": effect, "option": option}
        return begun(PARK, park_id(effect), thread_id=thread_id, parent_id=effect, arguments=evidence)
    return ended(option, effect, thread_id=thread_id, parent_id=intent.parent_id, **_WITHDRAWN)


def _withdrawn(call: Message, payload: OptionCallPayload) -> Message:
    result = OptionResultPayload(invocation_id=payload.invocation_id, option_name=payload.option_name, **_WITHDRAWN)
    return own_message(
        RUNTIME_POLICY,
        result,
        id=withdrawn_id(payload.invocation_id),
        thread_id=call.thread_id,
        to=(call.policy,),
        lane=call.lane,
        correlation_id=call.correlation_id,
        in_reply_to=call.id,
        parent_id=call.parent_id,
    )


class Redelivery:
    """What delivers messages another time, or parks them."""

    def __init__(self, journal: Journal, settings: Settings, in_flight: InFlight, hooks: Hooks | None) -> None:
        self._journal = journal
        self._settings = settings
        self._in_flight = in_flight
        self._hooks = hooks

    async def failed(self, cell: Cell, envelope: Envelope, reason: str) -> None:
        """Put a message back whose handler did not end. Whatever the ledger says, this does not raise."""
        try:
            await self.deliver(cell, envelope, "failed", reason)
        except FencedError as exc:
            self._in_flight.let_go(envelope, exc)
        except LedgerError as exc:
            text = "%s: that %s is delivered again cannot be journaled: %s"
            LOG.warning(text, envelope.to, envelope.type, words(exc), extra=about(envelope, error=exc))
            self.put_back(cell, envelope)

    def put_back(self, cell: Cell, envelope: Envelope) -> None:
        """Have a message handled again of which that cannot be written down."""
        envelope.is_unsure = True
        envelope.reruns += 1
        envelope.begin_again(cell, envelope.standing)
        cell.box.put_first(envelope)

    async def deliver(self, cell: Cell, envelope: Envelope, cause: Cause, reason: str) -> None:
        """Deliver a message another time, or park it if it was often enough.

        Raises:
            LedgerError: it could not be written down.
        """
        if self._is_often_enough(envelope, cause):
            count = len(envelope.standing.again) + 1
            await self.park(envelope, f"it was delivered {count} times", {"last": reason})
            return
        name = partial(again_id, envelope.invocation_id)
        attempt = await self._unused(envelope, name, len(envelope.standing.again) + 2)
        row = name(attempt)
        await self._note(AGAIN, row, envelope, {"attempt": attempt, "cause": cause, "reason": reason})
        envelope.begin_again(cell, envelope.standing.plus(row, cause))
        self._in_flight.take_over(envelope)
        if self._hooks is not None:
            self._hooks.accepted(envelope)
        if cause == "failed":
            cell.box.put_first(envelope)
        else:
            cell.box.put_last(envelope)
        cell.wake()

    def _is_often_enough(self, envelope: Envelope, cause: Cause) -> bool:
        settings, standing = self._settings, envelope.standing
        if cause == "failed":
            return standing.failed + 1 >= settings.attempts
        return len(standing.again) - standing.failed >= settings.recoveries

    async def park(self, envelope: Envelope, reason: str, evidence: dict[str, Json]) -> None:
        """Leave a message to a person.

        Raises:
            LedgerError: it could not be written down.
        """
        name = partial(park_id, envelope.invocation_id)
        row = name(await self._unused(envelope, name, 1))
        await self._note(PARK, row, envelope, {"reason": reason, "to": str(envelope.to), **evidence})
        if self._hooks is not None:
            self._hooks.parked(envelope)
        self._in_flight.let_go(envelope, ParkedError(reason, envelope.to))

    async def _unused(self, envelope: Envelope, name: Callable[[int], str], first: int) -> int:
        return await unused(self._journal.ledger, envelope.thread_id or "", name, first)

    async def _note(self, option: str, row: str, envelope: Envelope, arguments: dict[str, Json]) -> None:
        thread_id = envelope.thread_id or ""
        note = begun(option, row, thread_id=thread_id, parent_id=envelope.invocation_id, arguments=arguments)
        await self._journal.write(thread_id, [note])


class Outcome:
    """What a person says: a result, an error, or that it shall be tried again."""

    def __init__(self, *, result: Json, error: str | None, retry: bool) -> None:
        self.result = result
        self.error = error
        self.retry = retry

    def fields(self) -> dict[str, Any]:
        """Return it as the fields of the result of an effect."""
        if self.retry:
            reason = "a person says it was not done"
            return {"is_error": True, "error_type": WithdrawnError.code, "error_message": reason, "retryable": True}
        if self.error is not None:
            return {"is_error": True, "error_type": EffectFailedError.code, "error_message": self.error, "retryable": False}
        return {"result": self.result}


async def settle(journal: Journal, thread_id: str, invocation_id: str, outcome: Outcome) -> None:
    """Write down that a parked message ends, or goes on. To go on, it has to be delivered then.

    Raises:
        ValueError: it is not parked.
        LedgerError: it could not be written down.
    """
    rows = await journal.ledger.open_calls(thread_id)
    standing = Standing.of(rows, invocation_id)
    if standing.parked is None or not isinstance(standing.parked.payload, OptionCallPayload):
        raise ValueError(f"{invocation_id!r} is not parked in thread {thread_id!r}")
    parked = standing.parked.payload
    ends = [ended(PARK, parked.invocation_id, thread_id=thread_id, parent_id=invocation_id)]
    effect = parked.arguments.get("effect")
    if isinstance(effect, str):
        ends.insert(0, _effect_ended(rows, effect, thread_id, outcome))
    else:
        ends += [ended(AGAIN, row, thread_id=thread_id, parent_id=invocation_id) for row in standing.again]
        if not outcome.retry:
            ends.insert(0, _settled_answer(rows, invocation_id, outcome))
    journal.take_back(thread_id)
    await journal.write(thread_id, ends)


def _effect_ended(rows: tuple[Record, ...], effect: str, thread_id: str, outcome: Outcome) -> Message:
    intent = _find(rows, effect, is_effect=True)
    option = intent.payload.option_name if isinstance(intent.payload, OptionCallPayload) else ""
    return ended(option, effect, thread_id=thread_id, parent_id=intent.parent_id, **outcome.fields())


def _settled_answer(rows: tuple[Record, ...], invocation_id: str, outcome: Outcome) -> Message:
    """Return the result of a parked call, or of the delivery of what was told."""
    call = _find(rows, invocation_id, is_effect=False)  # of what is told, the row of its delivery
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
    found = [row.message for row in rows if row.message.invocation_id == invocation_id]
    return next((message for message in found if (message.lane == "effect") == is_effect), found[0])
