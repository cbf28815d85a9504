"""Wait until a stopped handler has stopped, and end the calls that it left open in the talk of its thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from hashlib import sha256
from typing import Any, Final, cast

from antiphon.agents import LedgerRun
from antiphon.errors import DeliveryError
from antiphon.ledger import Tailed
from antiphon.messages import RUNTIME_POLICY, Message, OptionCallPayload, OptionResultPayload

__all__ = ["end_open_calls", "stopped"]

_GRACE: Final = 5.0
"""Seconds that a handler may take to stop."""


async def stopped(run: LedgerRun, invocation_id: str) -> None:
    """Wait until the handler of a call has stopped, at most 5 seconds.

    A call that it makes before it stops would be left open.
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
    """Whether a request is open: the call itself, or one that its handler has made."""
    calls = [record.message for record in await run.ledger.open_calls(run.thread_id)]
    return any(call.lane == "control" and _is_part_of(call.invocation_id or "", invocation_id) for call in calls)


async def end_open_calls(
    run: LedgerRun,
    invocation_id: str,
    error: DeliveryError,
    *,
    fields: Callable[[Message], Mapping[str, Any]],
    besides: str = "",
) -> None:
    """End each call that is open in the talk of `invocation_id`, except the call `besides`. A second time it does nothing.

    `fields` returns what the result of a call has beside its payload, such as the metadata of a dialect.

    Raises:
        LedgerError: it could not be written down.
    """
    for record in await run.ledger.open_calls(run.thread_id):
        message, call = record.message, record.message.payload
        if message.lane != "talk" or not isinstance(call, OptionCallPayload) or call.invocation_id == besides:
            continue
        if _is_part_of(message.parent_id or "", invocation_id):
            key = f"ended-{sha256(call.invocation_id.encode()).hexdigest()[:16]}"
            await run.say(_ended(message, call, error, fields(message)), key=key)


def _is_part_of(parent_id: str, invocation_id: str) -> bool:
    """Whether something was said in the course of a message, or of one that it was said as again."""
    return parent_id == invocation_id or parent_id.startswith((f"{invocation_id}/", f"{invocation_id}~"))


def _ended(message: Message, call: OptionCallPayload, error: DeliveryError, fields: Mapping[str, Any]) -> Message:
    result = OptionResultPayload(
        invocation_id=call.invocation_id,
        option_name=call.option_name,
        is_error=True,
        error_type=error.code,
        error_message=error.reason,
        retryable=error.retryable,
    )
    return Message(policy=RUNTIME_POLICY, payload=result, role_hint_for_llm="tool", in_reply_to=message.id, **fields)
