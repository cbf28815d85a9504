"""The messages between peers: requests with their limits and flows, and letters, which record them in the form of MARSYS.

A thread of a star or a pipeline of peers can be checked against its flow.

**Letters** are messages of the thread. An `agent_call` is an option call whose option is a peer; the `agent_response` or
`error` that answers it is its result. An error that answers no call, because the call was refused, has the refused caller as
its policy. The metadata has sender and receiver, so that readers need not parse the form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from antiphon.dialects import decode, encode, marsys
from antiphon.dialects.marsys import process_for_llm, sanitize_tool_name, with_heading
from antiphon.ledger import Record
from antiphon.messages import Conversation, JsonObject, Message, OptionCallPayload, OptionResultPayload, TextPart, thaw
from antiphon.messages._keys import key_of, kind_of
from antiphon.patterns.cast._pattern import json_text
from antiphon.protocol import Reply, Request
from antiphon.protocol._automaton import Choice, Pattern, Sequence
from antiphon.protocol.flows import Flow, Step, choice, repeat, sequence

# ---------------------------------------------------------------- requests

KIND: Final = "peer"
PATTERN: Final = "peers"
"""The name of the pattern in the ledger."""


class PeerAnswered(Reply, frozen=True, type="PEER_ANSWERED"):
    """The answer of a peer."""

    content: str
    completion_time: float
    """Seconds that it took."""
    untrusted: str | None = None
    """The source of untrusted content that the peer has read, if any."""


class InvokePeer(Request[PeerAnswered], frozen=True, type="INVOKE_PEER", family="agent"):
    """A request to a peer. The caller is the sender that the runtime recorded."""

    request: str
    depth: int = 0
    """The length of the chain of callers; 0: a user asks."""
    context_message_ids: tuple[str, ...] = ()
    """Messages of the thread that are passed on, by id."""
    untrusted: str | None = None
    """The source of untrusted content that the caller has read, if any."""
    task_id: str | None = None
    """The task that the caller names; this peer's own requests name the same."""
    message_id: str | None = None
    """The message of the thread that is the request, if it is more than text."""


class PeerHeard(Reply, frozen=True, type="PEER_HEARD"):
    """The recorded answer or error of a peer that was asked."""

    message_id: str


class DelegateToPeer(Request[PeerHeard], frozen=True, type="DELEGATE_TO_PEER", family="agent"):
    """Ask another peer, without a decision of a model."""

    target: str
    request: str
    context_message_ids: tuple[str, ...] = ()
    task_id: str | None = None
    """The task that the caller says it is part of."""
    message_id: str | None = None
    """The id of the caller's `agent_call`, if it wrote one."""


def address_of(name: str) -> str:
    """Return the address of a peer."""
    return f"{KIND}/{name}"


def peer_at(address: str) -> str | None:
    """Return the peer of an address; None: it is not the address of a peer."""
    return (key_of(address) or None) if kind_of(address) == KIND else None


# ---------------------------------------------------------------- limits


class PeerLimits(BaseModel):
    """The limits of peers in one task of a user."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_depth: int = Field(default=5, ge=0)
    """The maximum length of a chain of callers: a peer asks a peer that asks a peer, and so on."""
    max_interactions: int = Field(default=10, ge=0)
    """How often peers may ask each other, in all branches together."""
    remember: int = Field(default=5, ge=0)
    """How many of its earlier exchanges in a thread are in the prompt of a peer."""
    added_messages: int = Field(default=50, ge=0)
    """How many added messages of its memory, and of each shared memory, are in the prompt of a peer."""
    within: float = Field(default=3600.0, gt=0)
    """Seconds that a peer may take to answer another, including approvals by people."""
    failures: int = Field(default=5, ge=1)
    """How many consecutive failures, in all threads, open the circuit breaker of a peer."""
    recovery: float = Field(default=60.0, ge=0)
    """Seconds after the last failure before the peer may be probed."""


# ---------------------------------------------------------------- flows

_USER = "user"


def star_flow(center: str, leaves: Iterable[str]) -> Flow:
    """A user asks the center, which asks the others, possibly concurrently, before it answers."""
    leaves = tuple(leaves)
    exchanges = [part for leaf in leaves for part in (_asks(center, leaf), _answers(leaf, center))]
    task = sequence(_asks(_USER, center), repeat(choice(*exchanges)), _answers(center, _USER))
    return Flow("star", f"{center} asks {', '.join(leaves)}, who ask nobody.", repeat(task, least=1), _roles(center, *leaves))


def pipeline_flow(*names: str) -> Flow:
    """A user asks the first peer, which asks the next before it answers, and so on; nobody asks out of turn."""
    description = f"Each asks the next: {', '.join(names)}."
    return Flow("pipeline", description, repeat(_nested(_USER, names), least=1), _roles(*names))


def _nested(caller: str, names: tuple[str, ...]) -> Sequence:
    """Return the flow in which the first peer is asked and may ask the second, and so on, and each answers."""
    first, *following = names
    inner: list[Pattern] = [repeat(_nested(first, tuple(following)))] if following else []
    return sequence(_asks(caller, first), *inner, _answers(first, caller))


def _asks(caller: str, callee: str) -> Step:
    return Step(caller, callee, InvokePeer.message_type)


def _answers(callee: str, caller: str) -> Choice:
    return choice(Step(callee, caller, PeerAnswered.message_type), Step(callee, caller, "ERROR"))


def _roles(*names: str) -> tuple[tuple[str, str], ...]:
    return ((_USER, _USER), *((name, address_of(name)) for name in names))


# ---------------------------------------------------------------- letters

_NAMESPACE: Final = "peers"
_DIALECT: Final = "marsys"
_MESSAGE_ID: Final = "message_id"


class Refusal(NamedTuple):
    """The error of a call that was not made, or got no answer."""

    error_type: str
    reason: str
    retryable: bool = False


class Letter(NamedTuple):
    """The sender, the receiver and the exchange of a letter."""

    task_id: str
    caller: str
    callee: str
    untrusted: str | None


@dataclass(frozen=True, slots=True)
class Exchange:
    """One peer that asks another."""

    id: str
    """The id that pairs the call with its answer, unique to the exchange."""
    root: str
    """The task of the user that it is part of."""
    caller: str
    callee: str
    request: str
    depth: int
    context_message_ids: tuple[str, ...] = ()
    untrusted: str | None = None
    caller_task: str | None = None
    """The task that the caller names; several exchanges may have the same."""
    message_id: str | None = None
    """The caller's id of the call, if the caller wrote it as a message."""

    @property
    def task_id(self) -> str:
        """The task that the letters name."""
        return self.caller_task or self.id

    def call(self) -> Message:
        """Return the letter with the request."""
        return self._message(self._call, untrusted=self.untrusted, message_id=self.message_id)

    def response(self, content: str, completion_time: float, untrusted: str | None) -> Message:
        """Return the letter with the answer."""
        metadata = self._metadata({"completion_time": completion_time})
        unit = {"role": "agent_response", "content": content, "name": self.callee, "metadata": metadata}
        return self._message(self._call, unit, untrusted=untrusted)

    def failure(self, error: Refusal) -> Message:
        """Return the letter with the error of the call."""
        return self._message(self._call, self._error(error))

    def refused(self, refusal: Refusal) -> Message:
        """Return the letter with the refusal of the call."""
        return self._message(self._error(refusal))

    @property
    def _call(self) -> dict[str, Any]:
        metadata = self._metadata({"depth": self.depth})
        return {"role": "agent_call", "content": self.request, "name": self.callee, "metadata": metadata}

    def _error(self, refusal: Refusal) -> dict[str, Any]:
        metadata = self._metadata({"error_type": refusal.error_type, "retryable": refusal.retryable})
        return {"role": "error", "content": refusal.reason, "name": self.caller, "metadata": metadata}

    def _metadata(self, details: dict[str, Any]) -> dict[str, Any]:
        """Return the metadata of a unit of the task with these details."""
        interaction = {} if self.caller_task is None else {"interaction_id": self.id}
        return {"caller": self.caller, "callee": self.callee, "task_id": self.task_id, **interaction, **details}

    def _message(self, *units: dict[str, Any], untrusted: str | None = None, message_id: str | None = None) -> Message:
        """Return the last of the units as a message of the task; it is read after those before it."""
        message = decode(list(units), _DIALECT)[-1]
        letter: dict[str, Any] = {"task_id": self.task_id, "caller": self.caller, "callee": self.callee}
        if message_id is not None:
            letter[_MESSAGE_ID] = message_id
        if untrusted is not None:
            letter["untrusted"] = untrusted
        metadata = {name: thaw(value) for name, value in message.metadata.items()}
        return message.model_copy(update={"correlation_id": self.root, "metadata": {**metadata, _NAMESPACE: letter}})


def letter_of(message: Message) -> Letter | None:
    """Return sender and receiver, if a message is a letter."""
    letter = message.metadata.get(_NAMESPACE)
    if message.lane != "talk" or not isinstance(letter, JsonObject):
        return None
    untrusted = letter.get("untrusted")
    match letter.get("task_id"), letter.get("caller"), letter.get("callee"):
        case (str(task_id), str(caller), str(callee)):
            return Letter(task_id, caller, callee, untrusted if isinstance(untrusted, str) else None)
        case _:
            return None  # from an imported history


def as_known(message: Message) -> Message:
    """Return a message with the id that peers use: that of the program's `agent_call`."""
    letter = message.metadata.get(_NAMESPACE)
    message_id = letter.get(_MESSAGE_ID) if isinstance(letter, JsonObject) and message.lane == "talk" else None
    return message.model_copy(update={"id": message_id}) if isinstance(message_id, str) else message


def role_of(message: Message) -> str:
    """Return the role that MARSYS has for a message."""
    notes = message.metadata.get(_DIALECT)
    if isinstance(notes, JsonObject) and isinstance(role := notes.get("role"), str):
        return role
    match message.kind:
        case "option_call":
            return "assistant"
        case "option_result":
            return "tool"
        case _:
            return message.role_hint_for_llm or "user"


def text_of(message: Message) -> str:
    """Return a message as text: its text, a call or a result."""
    match message.payload:
        case OptionResultPayload(is_error=True, error_message=why):
            return f"error: {why}"
        case OptionResultPayload(result=None, parts=parts) if parts:
            return "\n".join(part.text for part in parts if isinstance(part, TextPart))
        case OptionResultPayload(result=result):
            return json_text(thaw(result))
        case OptionCallPayload(option_name=option, arguments=arguments):
            return f"{option}({json_text(thaw(arguments))})"
        case _:
            return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def dated(record: Record) -> Message:
    """Return a message of a thread with a time: for a letter, the time of its record."""
    message = as_known(record.message)
    return message if message.created_at is not None else message.model_copy(update={"created_at": record.recorded_at})


def marsys_form(messages: Conversation) -> list[marsys.Message]:
    """Return messages of a thread in the form of MARSYS."""
    units: Any = encode(messages, _DIALECT).value
    return [marsys.Message.from_dict(unit) for unit in units]


# ---------------------------------------------------------------- to and from a model that speaks the format of OpenAI


def from_model(name: str, response: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's response as a message of the peer: with its name, plain tool names, and without nulls."""
    message = {key: value for key, value in response.items() if value is not None}
    message |= {"role": "assistant", "name": name, "content": message.get("content") or ""}
    if calls := message.pop("tool_calls", None):
        message["tool_calls"] = [_plain(call) for call in calls]
    return message


def for_model(name: str, message: marsys.Message) -> dict[str, Any]:
    """Return a message for the peer's model: the peer's requests are the assistant's, all others a user's.

    So forwarded messages of other agents also become a user's; otherwise the model would treat them as its own.
    """
    if message.role == "agent_call" and message.caller == name:
        return {"role": "assistant", "content": with_heading(f"[Request to {message.name}]:", message.content)}
    if message.role == "assistant" and message.name not in (None, name):
        return {"role": "user", "content": with_heading(f"[Message from {message.name}]:", _content_with_calls(message))}
    return process_for_llm(message)


def _content_with_calls(message: marsys.Message) -> str | list[Any]:
    """Return an agent's text with its tool calls, without their results."""
    calls = message.to_llm_dict().get("tool_calls", ())
    texts = [f"{call['function']['name']}({call['function']['arguments']})" for call in calls]
    if isinstance(message.content, str):
        return " ".join(text for text in (message.content, *texts) if text)
    return [*message.content, *({"type": "text", "text": text} for text in texts)]


def _plain(call: Any) -> Any:
    match call:
        case {"function": {"name": str(tool)} as function}:
            return {**call, "function": {**function, "name": sanitize_tool_name(tool)}}
        case _:
            return call
