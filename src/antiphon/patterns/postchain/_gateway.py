"""The gateway: messages of the protocol from outside, as JSON.

A message without a receiver is routed by its type and data. A message about a thread is journaled in that thread, a message
that configures an agent in the agent's own thread, and a direct question to an agent in a new thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

import orjson
from pydantic import ValidationError

from antiphon import protocol
from antiphon.errors import ActorFailedError, DecodeError, DeliveryError, RefusedError
from antiphon.ledger import Ledger
from antiphon.messages import OptionCallPayload, OptionResultPayload, thaw
from antiphon.messages._keys import kind_of
from antiphon.messages._names import is_name
from antiphon.patterns.postchain._config import check_input
from antiphon.patterns.postchain._context import (
    CLIENT,
    OUTSIDE,
    SUPERVISOR,
    AskChain,
    RunThread,
    agent_of,
    config_thread,
    thread_address,
    thread_of_message,
)
from antiphon.patterns.postchain._lifecycle import is_known
from antiphon.protocol._messages import enclosed_messages
from antiphon.runtime import Actor, Context, System, handles
from antiphon.runtime._exchange import error_response, from_wire, response_type

ClientMessage: TypeAlias = protocol.ThreadResult | protocol.ErrorNotification | protocol.AgentStreamChunk
"""A message to a client."""


class ClientActor(Actor):
    """The endpoint of a user: passes results, failures and streamed text to listeners. The ledger has them, too."""

    concurrency = 100

    def __init__(self, notify: Callable[[str, ClientMessage], None]) -> None:
        """Make it; `notify` is called with the client's address and the message."""
        self._notify = notify

    @handles
    async def thread_result(self, result: protocol.ThreadResult, context: Context) -> None:
        self._notify(context.address, result)

    @handles
    async def error_notification(
        self, notification: protocol.ErrorNotification, context: Context
    ) -> protocol.ErrorAcknowledged:
        self._notify(context.address, notification)
        return protocol.ErrorAcknowledged(actor_id=notification.actor_id, action_taken="ignore", error_logged=True)

    @handles
    async def stream_chunk(self, chunk: protocol.AgentStreamChunk, context: Context) -> None:
        self._notify(context.address, chunk)


_OF_THREAD: Final = frozenset(f"{move}_THREAD" for move in ("START", "PAUSE", "RESUME", "TERMINATE", "SUBSCRIBE")) | {
    "GET_THREAD_STATUS"
}
_OF_PHASE: Final = frozenset({"PROCESS_PHASE", "PREPARE_CONTEXT", "INITIALIZE_PHASE"})
_OF_AGENT: Final = frozenset({"INVOKE_AGENT", "PROCESS_WITH_AGENT", "UPDATE_AGENT_CONFIG"})
_OF_CELL: Final = frozenset({"RESTART", "STOP"})
_WITHOUT_THREAD: Final = frozenset({"HEARTBEAT", "SUPERVISE", "RESTART", "STOP", "ERROR", "ERROR_NOTIFICATION"})
_OWN_KINDS: Final = frozenset({"thread", "agent", "supervisor", "door", "delegate", *protocol.PHASES})
_OF_ACTORS: Final = frozenset(
    {protocol.ThreadResult.message_type, protocol.AgentStreamChunk.message_type, RunThread.message_type, AskChain.message_type}
)
"""Messages that only actors may send: from outside, they would be forged results, or runs that nobody has started."""
_INPUTS: Final = ("initial_input", "input")
"""The fields with a user's text."""


class _Route(NamedTuple):
    address: str
    thread_id: str | None


class Gateway:
    """The entry point for messages of the protocol."""

    def __init__(self, system: System, ledger: Ledger, input_limit: int, own_phases: Iterable[str] = ()) -> None:
        """Make it; `own_phases` are phases that the protocol does not know: with any, no protocol message is accepted."""
        self._own_phases = tuple(own_phases)
        self._system = system
        self._ledger = ledger
        self._input_limit = input_limit

    async def send(self, data: Mapping[str, Any] | str | bytes, *, within: float | None = None) -> dict[str, Any]:
        """Send a message, and return its response. Errors are also responses."""
        try:
            wire = _read(data)
        except (DecodeError, ValueError) as exc:
            return _plain(
                protocol.Message(type="INVALID", receiver=CLIENT).reply_error(str(exc), protocol.ErrorCode.VALIDATION_ERROR)
            )
        return _plain(await self._answered(wire, within))

    async def _answered(self, wire: protocol.Message, within: float | None) -> protocol.Response:
        if self._own_phases:
            named = ", ".join(self._own_phases)
            reason = f"the phases of this chain are not those of the protocol: {named}; use it from Python"
            return wire.reply_error(reason, protocol.ErrorCode.VALIDATION_ERROR)
        try:
            protocol.validate_message(wire)
            _check_sender(wire.sender)
            for kind, fields in enclosed_messages(wire.type, wire.data):
                _check_type(kind, wire.receiver)
                for name in _INPUTS:
                    check_input(fields.get(name), self._input_limit)
        except ValueError as exc:
            return wire.reply_error(str(exc), protocol.ErrorCode.VALIDATION_ERROR)
        except RefusedError as exc:
            return error_response(wire, exc)
        route = await self._natural_route(wire)
        if wire.receiver is not None:
            route = route._replace(address=wire.receiver)
        if wire.type in _OF_THREAD and not await is_known(self._ledger, route.thread_id or ""):
            reason = f"there is no thread {wire.data['thread_id']!r}: create it first"
            return wire.reply_error(reason, protocol.ErrorCode.THREAD_NOT_FOUND)
        return await self._deliver(wire, route, within)

    async def _deliver(self, wire: protocol.Message, route: _Route, within: float | None) -> protocol.Response:
        sender = wire.sender if wire.sender and "/" in wire.sender else f"client/{wire.sender}" if wire.sender else CLIENT
        routed = wire.model_copy(update={"receiver": route.address, "sender": sender})
        try:
            message = from_wire(routed, route.thread_id)
            if not isinstance(message.payload, OptionCallPayload):
                await self._system.tell(route.address, message, sender=sender, within=within)
                return wire.reply(data={})
            result = await self._system.ask(route.address, message, sender=sender, within=within)
        except ActorFailedError as exc:
            return wire.reply_error(f"Error processing message: {exc.reason}", exc.code)
        except DeliveryError as exc:
            return error_response(wire, exc)
        except ValidationError as exc:
            return wire.reply_error("; ".join(error["msg"] for error in exc.errors()), protocol.ErrorCode.VALIDATION_ERROR)
        except ValueError as exc:
            return wire.reply_error(str(exc), protocol.ErrorCode.VALIDATION_ERROR)
        assert isinstance(result.payload, OptionResultPayload)  # noqa: S101 (the answer to a call)
        value: Any = thaw(result.payload.result)
        data = cast("dict[str, Any]", value) if isinstance(value, dict) else {"result": value}
        return wire.reply(response_type(result), data, sender=result.policy)

    # ------------------------------------------------------------ routing

    async def _natural_route(self, wire: protocol.Message) -> _Route:
        """Return the receiver of a message by its type and data."""
        kind, data = wire.type, wire.data
        thread_id: Any = data.get("thread_id") if is_name(data.get("thread_id")) else None
        if kind == "CREATE_THREAD":
            thread_id = thread_of_message(wire.id)
        if kind in _OF_THREAD or kind == "CREATE_THREAD":
            return _Route(thread_address(thread_id), thread_id)
        if kind in _OF_PHASE:
            phase = str(data["phase_type"])
            return _Route(f"{phase}/1", thread_id or config_thread(phase))
        if kind in _OF_AGENT:
            return self._to_agent(wire)
        if kind == "RETRY":
            return await self._to_original(str(data["original_message_id"]))
        if kind in _OF_CELL and data.get("actor_id"):
            return _Route(str(data["actor_id"]), None)
        return _Route(SUPERVISOR, None if kind in _WITHOUT_THREAD else thread_id)

    def _to_agent(self, wire: protocol.Message) -> _Route:
        agent = str(wire.data.get("agent_id") or wire.receiver or agent_of("action"))
        if wire.type == "UPDATE_AGENT_CONFIG":
            return _Route(agent, config_thread(agent.removeprefix(agent_of(""))))
        return _Route(agent, f"asked-{thread_of_message(wire.id)}")

    async def _to_original(self, message_id: str) -> _Route:
        """Return the receiver and the thread of the request to retry."""
        for record in await self._ledger.find(invocation_id=message_id):
            message = record.message
            if message.lane == "control" and message.kind == "option_call" and message.to:
                return _Route(message.to[0], message.thread_id)
        return _Route(SUPERVISOR, None)


def _read(data: Any) -> protocol.Message:
    """Parse a message; an error that answers none of our requests is handled like any other message."""
    if not isinstance(data, Mapping | str | bytes):
        reason = f"a message is JSON, as text or as a dict with `type` and `data`, not a {type(data).__name__}"
        raise ValueError(reason)  # noqa: TRY004 (it is answered with an ERROR, as any other invalid message)
    try:
        text = orjson.dumps(dict(cast("Mapping[str, Any]", data))) if isinstance(data, Mapping) else data
    except orjson.JSONEncodeError as exc:
        raise ValueError(f"a message is JSON: {exc}") from exc
    wire = protocol.deserialize_message(text)
    if isinstance(wire, protocol.Message):
        return wire
    return protocol.Message(id=wire.id, type=wire.type, data=thaw(wire.data), sender=wire.sender, receiver=wire.receiver)


def _check_sender(sender: str | None) -> None:
    """Refuse a sender from outside that has the address of an actor."""
    if sender is not None and kind_of(sender) in _OWN_KINDS and "/" in sender:
        raise ValueError(f"sender {sender!r} is an actor of the chain, which speaks for itself: say who you are")


def _check_type(kind: str, receiver: str | None) -> None:
    """Refuse messages that only actors may send. A client is told of a failure only by its thread."""
    is_forged = kind == protocol.ErrorNotification.message_type and kind_of(receiver or "") == kind_of(CLIENT)
    if kind in _OF_ACTORS or is_forged:
        raise ValueError(f"{kind} is what actors of the chain say to each other and to clients; it does not come from outside")


def _plain(response: protocol.Response) -> dict[str, Any]:
    return response.model_dump(mode="json", exclude_none=True)


async def post_request(ledger: Ledger, message: Mapping[str, Any]) -> None:
    """Post a request about a thread to it: the next program that owns the thread carries it out."""
    thread_id = str(message["data"]["thread_id"])
    wire = protocol.Message(**message, sender=OUTSIDE, receiver=thread_address(thread_id))
    await ledger.post(thread_id, from_wire(wire, thread_id))
