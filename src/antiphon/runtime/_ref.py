"""Ref: an actor as others see it, with the surface of the protocol: `response = await actor.receive(message)`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from antiphon.errors import ActorFailedError, DeliveryError
from antiphon.messages import Message, OptionResultPayload
from antiphon.protocol import ErrorCode, Response, validate_message
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._entry import named_thread
from antiphon.runtime._handling import context_in
from antiphon.runtime._results import response_type
from antiphon.runtime._wire import error_response, from_wire, response_of

if TYPE_CHECKING:
    from antiphon.runtime._system import System

__all__ = ["Ref", "response_to"]


class Ref:
    """An actor, by its address."""

    def __init__(self, system: System, address: str) -> None:
        self._system = system
        self.address = address

    async def receive(self, message: WireMessage, *, within: float | None = None) -> Response:
        """Have the actor handle a message, and return its response; whatever goes wrong is an error response.

        Within a handler of this system, the message follows from the one that is handled there (`Context.send_message`).
        Otherwise a message whose data names a thread is journaled there, and the same message again gets the same response.
        """
        addressed = message.model_copy(update={"receiver": str(self.address)})
        context = context_in(self._system)
        if context is not None:
            return await context.send_message(addressed, within=within)
        return await response_to(message, partial(self._send, addressed, within))

    async def _send(self, wire: WireMessage, within: float | None) -> Message | None:
        message = from_wire(wire, named_thread(wire))
        if message.kind == "option_call":
            return await self._system.ask(self.address, message, within=within, sender=message.policy)
        await self._system.tell(self.address, message, within=within, sender=message.policy)
        return None


async def response_to(wire: WireMessage, send: Callable[[], Awaitable[Message | None]]) -> Response:
    """Return the response to a message of the protocol: its result, nothing if none is due, or the error of sending it."""
    try:
        validate_message(wire)
    except ValueError as exc:
        return wire.reply_error(str(exc), ErrorCode.VALIDATION_ERROR)
    try:
        result = await send()
    except ActorFailedError as exc:
        return wire.reply_error(f"Error processing message: {exc.reason}", exc.code)
    except DeliveryError as exc:
        return error_response(wire, exc)
    if result is None:
        return wire.reply(data={})
    assert isinstance(result.payload, OptionResultPayload)  # noqa: S101 (the outcome of a call)
    return response_of(wire, result.payload, response_type(result), result.policy)
