"""RETRY: a message that failed is tried again. The message itself is found in the ledger, and so is how often it was tried."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import ValidationError

from antiphon.errors import RefusedError
from antiphon.messages import JsonObject, Message, OptionCallPayload, thaw
from antiphon.protocol import ErrorCode, Retry
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._wire import from_wire

if TYPE_CHECKING:
    from antiphon.runtime._kernel import Kernel

__all__ = ["find_original"]


async def find_original(kernel: Kernel, request: Retry, thread_id: str | None) -> Message:
    """Return the message that is to be tried again.

    Raises:
        RefusedError: it was tried often enough, or nobody has it.
    """
    original, tries = None, request.attempt
    if thread_id is not None:
        records = await kernel.journal.ledger.by_invocation(request.original_message_id, thread_id=thread_id)
        calls = [record for record in records if record.message.kind == "option_call" and record.message.lane == "control"]
        if calls:
            original = calls[0].message
            tries = max(tries, await _tries(kernel, request, thread_id, calls[0].seq))
    if tries > request.max_attempts:
        raise RefusedError(f"it was tried {tries - 1} times", ErrorCode.RETRY_EXHAUSTED)
    original = original or _given(request) or kernel.recent.message(request.original_message_id)
    if original is None:
        raise RefusedError(f"nobody has message {request.original_message_id!r}", ErrorCode.VALIDATION_ERROR)
    return original


async def _tries(kernel: Kernel, request: Retry, thread_id: str, seq: int) -> int:
    """Return which try this is: the first was the message itself."""
    tries = 1
    async for record in kernel.journal.ledger.read(thread_id, seq):
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
        raise RefusedError("original_message is no message of the protocol", ErrorCode.VALIDATION_ERROR) from exc
