"""What waits for a person: tool calls that need an approval, and parked calls, whose outcome only a person can record."""

from __future__ import annotations

from antiphon.errors import NotWaitingError
from antiphon.ledger import Ledger
from antiphon.messages import Json, OptionCallPayload, thaw
from antiphon.runtime import Parked, System
from antiphon.service._threads import find_thread
from antiphon.service._values import ApprovalValue, ParkedValue


async def list_approvals(ledger: Ledger, *, thread_id: str | None = None) -> tuple[ApprovalValue, ...]:
    """Return the tool calls that wait for an approval, of one thread or all, oldest first."""
    from antiphon.agents.toolkit import pending_approvals  # noqa: PLC0415 (needs the extra `agents`)

    return tuple(map(ApprovalValue.of, await pending_approvals(ledger, thread_id=thread_id)))


async def open_approval(ledger: Ledger, approval_id: str) -> ApprovalValue | None:
    """Return the approval of an id that waits for an answer; None if none does."""
    from antiphon.durable._approvals import find_approval  # noqa: PLC0415 (needs the extra `agents`)

    approval = await find_approval(ledger, approval_id)
    return ApprovalValue.of(approval) if approval is not None and approval.answer is None else None


async def answer_approval(
    ledger: Ledger, approval_id: str, *, principal: str, approved: bool, reason: str | None = None
) -> ApprovalValue:
    """Approve or deny exactly that call, under a name. The thread continues when its program runs.

    Raises:
        NotWaitingError: it has an answer, which counts; there is no such approval, this person may not answer it, or nobody
            has answered it in time.
    """
    from antiphon.agents.toolkit import answer  # noqa: PLC0415 (needs the extra `agents`)

    return ApprovalValue.of(await answer(ledger, approval_id, principal=principal, approved=approved, reason=reason))


# ---------------------------------------------------------------- parked calls


async def list_parked(ledger: Ledger) -> tuple[ParkedValue, ...]:
    """Return the parked calls of all threads, with the evidence."""
    async with System(ledger) as system:
        return tuple([await _parked_value(ledger, call) for call in await system.parked()])


async def _parked_value(ledger: Ledger, parked: Parked) -> ParkedValue:
    option, arguments, began_at = "", None, None
    started = str(parked.evidence.get("effect") or parked.invocation_id)
    for record in await ledger.find(invocation_id=started, thread_id=parked.thread_id):
        payload = record.message.payload
        if isinstance(payload, OptionCallPayload):
            option, arguments, began_at = payload.option_name, thaw(payload.arguments), record.recorded_at
            break
    return ParkedValue(
        thread_id=parked.thread_id,
        invocation_id=parked.invocation_id,
        reason=parked.reason,
        option=option,
        arguments=arguments,
        began_at=began_at,
        evidence=dict(parked.evidence),
    )


async def settle_call(
    ledger: Ledger,
    thread_id: str,
    invocation_id: str,
    *,
    result: Json = None,
    error: str | None = None,
    retry: bool = False,
) -> str | None:
    """Record the outcome of a parked call: a result, an error, or that it did not run. Return the pattern of the thread.

    With `retry`, the call may also be the last one of an open run, which ended with its failure: the run repeats it.

    Raises:
        NotWaitingError: the call is not parked, and no run ended with its failure.
    """
    summary = await find_thread(ledger, thread_id)
    async with System(ledger) as system:
        try:
            await system.settle(thread_id, invocation_id, result=result, error=error, retry=retry)
        except ValueError as exc:
            also = ", and no run ended with its failure" if retry else ""
            raise NotWaitingError(f"{invocation_id!r} is not parked in thread {thread_id!r}{also}", thread_id) from exc
    return summary.pattern
