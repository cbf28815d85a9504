"""Ref: an actor as others see it, with the surface of the protocol: `response = await actor.receive(message)`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from antiphon.errors import ActorFailedError, DeliveryError
from antiphon.messages import Message, OptionResultPayload, is_name
from antiphon.protocol import ErrorCode, Response, validate_message
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._results import response_type
from antiphon.runtime._wire import error_response, from_wire, response_of

if TYPE_CHECKING:
    from antiphon.runtime._system import System

__all__ = ["Ref"]


class Ref:
    """An actor, by its address."""

    def __init__(self, system: System, address: str) -> None:
        self._system = system
        self.address = address

    async def receive(self, message: WireMessage, *, within: float | None = None) -> Response:
        """Have the actor handle a message, and return its response; whatever goes wrong is an error response.

        A message whose data names a thread is journaled there. The same message again gets the same response.
        """
        try:
            validate_message(message)
        except ValueError as exc:
            return message.reply_error(str(exc), ErrorCode.VALIDATION_ERROR)
        thread_id: Any = message.data.get("thread_id")
        return await self._answer(message, thread_id if is_name(thread_id) else None, within)

    async def _answer(self, wire: WireMessage, thread_id: str | None, within: float | None) -> Response:
        message = from_wire(wire.model_copy(update={"receiver": str(self.address)}), thread_id)
        try:
            if message.kind != "option_call":
                await self._system.tell(self.address, message, within=within, sender=message.policy)
                return wire.reply(data={})
            result = await self._system.ask(self.address, message, within=within, sender=message.policy)
        except ActorFailedError as exc:
            return wire.reply_error(f"Error processing message: {exc.reason}", exc.code)
        except DeliveryError as exc:
            return error_response(wire, exc)
        return _response(wire, result)


def _response(wire: WireMessage, result: Message) -> Response:
    assert isinstance(result.payload, OptionResultPayload)  # noqa: S101 (the outcome of a call)
    return response_of(wire, result.payload, response_type(result), result.policy)
