"""Settlement: a person says what becomes of a message that was parked, and the thread goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.errors import EffectFailedError, WithdrawnError
from antiphon.messages import RUNTIME_POLICY, Json, Message, OptionCallPayload, OptionResultPayload
from antiphon.runtime._again import Standing
from antiphon.runtime._rows import AGAIN, PARK, ended

if TYPE_CHECKING:
    from antiphon.ledger import Record
    from antiphon.runtime._kernel import Kernel

__all__ = ["Outcome", "settle"]


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


async def settle(kernel: Kernel, thread_id: str, invocation_id: str, outcome: Outcome) -> None:
    """Have a parked message end, or go on.

    Raises:
        ValueError: it is not parked.
        LedgerError: it could not be written down.
    """
    rows = await kernel.journal.ledger.open_calls(thread_id)
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
            ends.insert(0, _answer(rows, invocation_id, outcome))
    kernel.journal.take_back(thread_id)
    await kernel.journal.write(thread_id, ends)
    await kernel.recovery.message(thread_id, invocation_id)


def _effect_ended(rows: tuple[Record, ...], effect: str, thread_id: str, outcome: Outcome) -> Message:
    intent = _find(rows, effect, is_effect=True)
    option = intent.payload.option_name if isinstance(intent.payload, OptionCallPayload) else ""
    return ended(option, effect, thread_id=thread_id, parent_id=intent.parent_id, **outcome.fields())


def _answer(rows: tuple[Record, ...], invocation_id: str, outcome: Outcome) -> Message:
    """Return the result of a parked call, or of the delivery of what was told."""
    call = _find(rows, invocation_id, is_effect=False)  # of what is told, the row of its delivery
    fields = outcome.fields()
    if outcome.error is not None:
        fields["error_type"] = "SETTLED"
    payload = call.payload
    assert isinstance(payload, OptionCallPayload)  # noqa: S101 (only calls are open)
    return call.model_copy(
        update={
            "id": f"{invocation_id}#settled",
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
