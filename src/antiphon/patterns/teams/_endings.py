"""Endings: what somebody has left open who was stopped, and how whoever had asked it ends that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Final, cast

from antiphon.agents import LedgerRun
from antiphon.errors import DeliveryError
from antiphon.ledger import Tailed
from antiphon.messages import RUNTIME_POLICY, Message, OptionCallPayload, OptionResultPayload
from antiphon.patterns.teams._voice import DIALECT

__all__ = ["end_open_calls", "stopped"]

_GRACE: Final = 5.0
"""Seconds that somebody may take to stop."""


async def stopped(run: LedgerRun, invocation_id: str) -> None:
    """Wait until whoever was asked has stopped, which may take a moment after the time is over.

    What one says who has not stopped yet would be left open.
    """
    now = await run.ledger.horizon()
    if not await _is_at_work(run, invocation_id):
        return
    news = cast("AsyncGenerator[Tailed]", run.ledger.tail(now, thread_id=run.thread_id))
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE), aclosing(news):
            async for _ in news:
                if not await _is_at_work(run, invocation_id):
                    return


async def _is_at_work(run: LedgerRun, invocation_id: str) -> bool:
    """Whether something is open that one was asked, or has asked others."""
    calls = [record.message for record in await run.ledger.open_calls(run.thread_id)]
    return any(call.lane == "control" and _is_of(call.invocation_id or "", invocation_id) for call in calls)


async def end_open_calls(run: LedgerRun, invocation_id: str, error: DeliveryError, *, besides: str = "") -> None:
    """End what somebody has left open who does not go on: tasks, delegations and actions, each with an error."""
    for record in await run.ledger.open_calls(run.thread_id):
        message, call = record.message, record.message.payload
        if message.lane != "talk" or not isinstance(call, OptionCallPayload) or call.invocation_id == besides:
            continue
        if _is_of(message.parent_id or "", invocation_id):
            key = f"ended-{sha256(call.invocation_id.encode()).hexdigest()[:16]}"
            await run.say(_ended(message, call, error), key=key)


def _is_of(parent_id: str, invocation_id: str) -> bool:
    """Whether something was said in the course of a message, or of one that it was said as again."""
    return parent_id == invocation_id or parent_id.startswith((f"{invocation_id}/", f"{invocation_id}~"))


def _ended(message: Message, call: OptionCallPayload, error: DeliveryError) -> Message:
    result = OptionResultPayload(
        invocation_id=call.invocation_id,
        option_name=call.option_name,
        is_error=True,
        error_type=error.code,
        error_message=error.reason,
        retryable=error.retryable,
    )
    return Message(
        policy=RUNTIME_POLICY,
        payload=result,
        role_hint_for_llm="tool",
        in_reply_to=message.id,
        metadata={DIALECT: {"type": "error"}},
    )
