"""The edge: any message of the protocol comes in as JSON, goes to the actor that it is for, and is answered as JSON.

A message without a receiver goes where its type and data say. What concerns a thread is journaled there, what sets an agent up
in the thread of that agent, and a question to an agent alone in a thread of its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Final, NamedTuple, cast

import orjson
from pydantic import ValidationError

from antiphon.errors import ActorFailedError, DecodeError, DeliveryError, RefusedError
from antiphon.ledger import Ledger
from antiphon.messages import OptionCallPayload, OptionResultPayload, is_name, thaw
from antiphon.patterns.postchain._bounds import check_input
from antiphon.patterns.postchain._client import CLIENT
from antiphon.patterns.postchain._config import agent_of, config_thread
from antiphon.patterns.postchain._life import is_known
from antiphon.patterns.postchain._supervisor import SUPERVISOR
from antiphon.protocol import PHASES, ErrorCode, Message, Response, deserialize_message, validate_message
from antiphon.runtime import System, error_response, from_wire, response_type

__all__ = ["Edge", "thread_address", "thread_of_message"]

_OF_THREAD: Final = frozenset(f"{move}_THREAD" for move in ("START", "PAUSE", "RESUME", "TERMINATE", "SUBSCRIBE")) | {
    "GET_THREAD_STATUS"
}
_OF_PHASE: Final = frozenset({"PROCESS_PHASE", "PREPARE_CONTEXT", "INITIALIZE_PHASE"})
_OF_AGENT: Final = frozenset({"INVOKE_AGENT", "PROCESS_WITH_AGENT", "UPDATE_AGENT_CONFIG"})
_OF_CELL: Final = frozenset({"RESTART", "STOP"})
_WITHOUT_THREAD: Final = frozenset({"HEARTBEAT", "SUPERVISE", "RESTART", "STOP", "ERROR", "ERROR_NOTIFICATION"})
_OWN_KINDS: Final = frozenset({"thread", "agent", "supervisor", "door", *PHASES})
_INPUTS: Final = ("initial_input", "input")
"""The fields that have what a user says."""


class _Route(NamedTuple):
    address: str
    thread_id: str | None


def thread_of_message(message_id: str) -> str:
    """Return the thread that a CREATE_THREAD makes: the same message, the same thread."""
    digest = hashlib.blake2b(message_id.encode(errors="replace"), digest_size=10).digest()
    return f"t-{base64.b32encode(digest).decode().lower()}"


def thread_address(thread_id: str) -> str:
    """Return where the actor of a thread lives."""
    return f"thread/{thread_id}"


class Edge:
    """Where messages of the protocol come in."""

    def __init__(self, system: System, ledger: Ledger, input_limit: int) -> None:
        self._system = system
        self._ledger = ledger
        self._input_limit = input_limit

    async def send(self, data: Mapping[str, Any] | str | bytes, *, within: float | None = None) -> dict[str, Any]:
        """Send a message, and return its response. Whatever goes wrong is a response too."""
        try:
            wire = _read(data)
        except (DecodeError, ValueError) as exc:
            return _plain(Message(type="INVALID", receiver=CLIENT).reply_error(str(exc), ErrorCode.VALIDATION_ERROR))
        return _plain(await self._answered(wire, within))

    async def _answered(self, wire: Message, within: float | None) -> Response:
        try:
            validate_message(wire)
            _check_sender(wire.sender)
            for name in _INPUTS:
                check_input(wire.data.get(name), self._input_limit)
        except ValueError as exc:
            return wire.reply_error(str(exc), ErrorCode.VALIDATION_ERROR)
        except RefusedError as exc:
            return error_response(wire, exc)
        route = await self._route(wire)
        if wire.type in _OF_THREAD and not await is_known(self._ledger, route.thread_id or ""):
            reason = f"there is no thread {wire.data['thread_id']!r}: create it first"
            return wire.reply_error(reason, ErrorCode.THREAD_NOT_FOUND)
        return await self._deliver(wire, route, within)

    async def _deliver(self, wire: Message, route: _Route, within: float | None) -> Response:
        sender = wire.sender if wire.sender and "/" in wire.sender else f"client/{wire.sender}" if wire.sender else CLIENT
        own = wire.model_copy(update={"receiver": route.address, "sender": sender})
        try:
            message = from_wire(own, route.thread_id)
            if not isinstance(message.payload, OptionCallPayload):
                await self._system.tell(route.address, message, sender=sender, within=within)
                return wire.reply(data={})
            result = await self._system.ask(route.address, message, sender=sender, within=within)
        except ActorFailedError as exc:
            return wire.reply_error(f"Error processing message: {exc.reason}", exc.code)
        except DeliveryError as exc:
            return error_response(wire, exc)
        except ValidationError as exc:
            return wire.reply_error("; ".join(each["msg"] for each in exc.errors()), ErrorCode.VALIDATION_ERROR)
        except ValueError as exc:
            return wire.reply_error(str(exc), ErrorCode.VALIDATION_ERROR)
        assert isinstance(result.payload, OptionResultPayload)  # noqa: S101 (the answer to a call)
        value: Any = thaw(result.payload.result)
        data = cast("dict[str, Any]", value) if isinstance(value, dict) else {"result": value}
        return wire.reply(response_type(result), data, sender=result.policy)

    # ------------------------------------------------------------ where to

    async def _route(self, wire: Message) -> _Route:
        natural = await self._natural(wire)
        return natural if wire.receiver is None else natural._replace(address=wire.receiver)

    async def _natural(self, wire: Message) -> _Route:
        """Return where a message belongs by its type and data."""
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

    def _to_agent(self, wire: Message) -> _Route:
        agent = str(wire.data.get("agent_id") or wire.receiver or agent_of("action"))
        if wire.type == "UPDATE_AGENT_CONFIG":
            return _Route(agent, config_thread(agent.removeprefix(agent_of(""))))
        return _Route(agent, f"asked-{thread_of_message(wire.id)}")

    async def _to_original(self, message_id: str) -> _Route:
        """Return who was asked, and where, what is to be tried again."""
        for record in await self._ledger.by_invocation(message_id):
            message = record.message
            if message.lane == "control" and message.kind == "option_call" and message.to:
                return _Route(message.to[0], message.thread_id)
        return _Route(SUPERVISOR, None)


def _read(data: Mapping[str, Any] | str | bytes) -> Message:
    """Read what came in; an error that answers nothing of ours is told like any other message."""
    if isinstance(data, Mapping):
        data = orjson.dumps(dict(data)).decode()
    wire = deserialize_message(data if isinstance(data, str) else data.decode())
    if isinstance(wire, Message):
        return wire
    return Message(id=wire.id, type=wire.type, data=thaw(wire.data), sender=wire.sender, receiver=wire.receiver)


def _check_sender(sender: str | None) -> None:
    """Refuse to let somebody outside speak for an actor: who has said what is what a ledger is about.

    Raises:
        ValueError: somebody does.
    """
    if sender is not None and sender.partition("/")[0] in _OWN_KINDS and "/" in sender:
        raise ValueError(f"sender {sender!r} is an actor of the chain, which speaks for itself: say who you are")


def _plain(response: Response) -> dict[str, Any]:
    return response.model_dump(mode="json", exclude_none=True)
