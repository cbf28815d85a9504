"""The door: what other processes say to a thread that runs here. They post it to the ledger, and it is taken up from there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, cast

from antiphon.ledger import Ledger, Tailed
from antiphon.messages import OptionResultPayload, thaw
from antiphon.patterns.postchain._edge import thread_address
from antiphon.patterns.postchain._life import is_known
from antiphon.protocol import ErrorCode, Message, Notice, Response, response_type_of
from antiphon.runtime import Actor, Context, System, error_of, error_response, from_wire, handles

if TYPE_CHECKING:
    from antiphon.patterns.postchain._workshop import Workshop

__all__ = ["DOOR", "DoorActor", "answer_of_owner", "listen"]

DOOR: Final = "door/1"
OUTSIDE: Final = "client/outside"
"""Who speaks that is another process."""
_LOOK: Final = 0.05
"""Seconds between two looks for an answer."""


class TakeUp(Notice, frozen=True, type="TAKE_UP", family="thread"):
    """Somebody has posted a message to a thread."""

    thread_id: str
    invocation_id: str


class DoorActor(Actor):
    """Takes up what was posted."""

    @handles
    async def take_up(self, notice: TakeUp, context: Context) -> None:
        await context.recover_message(notice.thread_id, notice.invocation_id)


async def listen(system: System, workshop: Workshop, horizon: str) -> None:
    """Take up what other processes post to threads that are at work here, until it is cancelled."""
    tailing = cast("AsyncGenerator[Tailed, None]", system.ledger.tail(horizon))
    async with aclosing(tailing) as records:
        async for tailed in records:
            message = tailed.record.message
            if message.policy == OUTSIDE and message.kind == "option_call" and message.thread_id in workshop.at_work:
                taken = TakeUp(thread_id=message.thread_id, invocation_id=message.invocation_id or "")
                await system.tell(DOOR, taken)


async def answer_of_owner(ledger: Ledger, message: dict[str, Any], patience: float) -> tuple[Message, Response | None]:
    """Post a message to its thread, and return it with the response of the process that runs the thread, if it gives one.

    Raises:
        LedgerError: the ledger cannot be used.
    """
    thread_id = str(message["data"]["thread_id"])
    wire = Message(type=message["type"], data=message["data"], sender=OUTSIDE, receiver=thread_address(thread_id))
    if not await is_known(ledger, thread_id):
        return wire, wire.reply_error(f"there is no thread {thread_id!r}: create it first", ErrorCode.THREAD_NOT_FOUND)
    posted = from_wire(wire, thread_id)
    await ledger.post(thread_id, posted)
    until = asyncio.get_running_loop().time() + patience
    while asyncio.get_running_loop().time() < until:
        for record in await ledger.by_invocation(wire.id, thread_id=thread_id):
            if isinstance(record.message.payload, OptionResultPayload):
                return wire, _response(wire, record.message.payload)
        await asyncio.sleep(_LOOK)
    return wire, None


def _response(wire: Message, result: OptionResultPayload) -> Response:
    if result.is_error:
        return error_response(wire, error_of(result, wire.receiver or ""))
    return wire.reply(response_type_of(wire.type), cast("dict[str, Any]", thaw(result.result)))
