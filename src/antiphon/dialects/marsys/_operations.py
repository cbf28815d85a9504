"""Functions on messages: prepare them for a model, validate, chain and filter them, and make one from an exception."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, NoReturn, cast

from typing_extensions import TypedDict, Unpack

from antiphon.dialects.marsys._message import Message, read_time, with_heading
from antiphon.messages import current_port

# ---------------------------------------------------------------- between messages and a model

_UNKNOWN = "unknown"


def process_llm_response(response_dict: Mapping[str, Any]) -> Message:
    """Return a model's response as an assistant message, with its tool calls if there are any."""
    return Message(
        role="assistant",
        content=response_dict.get("content") or "",
        tool_calls=response_dict.get("tool_calls") or None,
    )


def process_for_llm(message: Message) -> dict[str, Any]:
    """Return a message in a role that providers know: messages of other agents, and errors, become user messages."""
    match message.role:
        case "agent_call":  # its name is the called agent; the caller is in the metadata
            said = f"Request from {message.caller or _UNKNOWN}"
        case "agent_response":
            said = f"Response from {message.name or _UNKNOWN}"
        case "error":
            kind = f" ({message.error_type})" if message.error_type else ""
            said = f"Error from {message.name or _UNKNOWN}{kind}"
        case _:
            return message.to_llm_dict()
    return {"role": "user", "content": with_heading(f"[{said}]:", message.content)}


# ---------------------------------------------------------------- validation

VALID_ROLES = frozenset({"system", "user", "assistant", "tool", "error", "agent_call", "agent_response"})


def validate_message(message: Message) -> bool:
    """Whether a message is valid; `validation_errors` returns the reasons if it is not."""
    return not validation_errors(message)


def validation_errors(message: Message) -> list[str]:
    """Return the faults of a message, one sentence each; empty if it is valid."""
    return [*_role_errors(message), *_content_errors(message), *_tool_call_errors(message)]


def _role_errors(message: Message) -> Iterator[str]:
    if message.role not in VALID_ROLES:
        yield f"role {message.role!r} is unknown; use one of {', '.join(sorted(VALID_ROLES))}"
    if message.role == "tool" and not message.tool_call_id:
        yield "a tool message needs tool_call_id, the id of the call it answers"
    if message.role == "tool" and not message.name:
        yield "a tool message needs name, the tool that ran"
    if message.role == "agent_call" and not message.name:
        yield "an agent_call needs name, the agent that is called"


def _content_errors(message: Message) -> Iterator[str]:
    if not message.content and not message.tool_calls:
        yield "content is empty; only a message with tool_calls may have none"
    for index, part in enumerate(() if isinstance(message.content, str) else message.content):
        if not _is_name(part.get("type")):
            yield f"content[{index}].type must be text that is not empty"


def _tool_call_errors(message: Message) -> Iterator[str]:
    if message.tool_calls and message.role != "assistant":
        yield f"tool_calls belong to an assistant message, not to role {message.role!r}"
    for index, call in enumerate(message.tool_calls or ()):
        yield from (f"tool_calls[{index}]{error}" for error in _call_errors(call))


def _call_errors(call: Mapping[str, object]) -> Iterator[str]:
    # Id and type may be missing: `to_llm_dict` fills them in.
    if not _is_name(call.get("id", "call")):
        yield ".id must be text that is not empty"
    if call.get("type", "function") != "function":
        yield f".type must be 'function', not {call['type']!r}"
    function = call.get("function")
    if not isinstance(function, Mapping):
        yield ".function must be an object with name and arguments"
        return
    function = cast("Mapping[str, Any]", function)
    if not _is_name(function.get("name")):
        yield ".function.name must be text that is not empty"
    if not isinstance(function.get("arguments", ""), str | Mapping):
        yield ".function.arguments must be JSON text or an object"


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def validate_tool_response(message: Message) -> bool:
    """Whether a message is a tool message whose content is JSON."""
    if message.role != "tool" or not isinstance(message.content, str):
        return False
    try:
        json.loads(message.content, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    return True


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")  # only Python reads NaN and Infinity


# ---------------------------------------------------------------- chains


class MessageChain:
    """A message and the messages that followed from it. The first is kept unchanged: its id is the id of the chain."""

    def __init__(self, initial_message: Message) -> None:
        self.chain_id = initial_message.message_id
        self._messages = [initial_message]

    @property
    def messages(self) -> list[Message]:
        """The messages so far, as a new list."""
        return self.get_chain()

    def add_response(self, message: Message) -> Message:
        """Add a copy that has `chain_id` in its metadata, under the same id, and return the copy."""
        added = message.replace(metadata={**(message.metadata or {}), "chain_id": self.chain_id})
        self._messages.append(added)
        return added

    def get_chain(self) -> list[Message]:
        """Return the messages so far, as a new list."""
        return self._messages.copy()


# ---------------------------------------------------------------- filters


class Criteria(TypedDict, total=False):
    """The criteria for a search of messages. A given criterion applies, even if it is None."""

    role: str
    name: str | None
    message_id: str
    chain_id: str
    after: datetime | str
    before: datetime | str


def _is_in_chain(message: Message, chain_id: str) -> bool:
    return chain_id in (message.chain_id, message.message_id)


_TESTS: dict[str, Callable[[Message, Any], bool]] = {
    "role": lambda message, role: message.role == role,
    "name": lambda message, name: message.name == name,
    "message_id": lambda message, message_id: message.message_id == message_id,
    "chain_id": _is_in_chain,
    "after": lambda message, time: message.timestamp > time,
    "before": lambda message, time: message.timestamp < time,
}


def filter_messages(messages: Iterable[Message], **criteria: Unpack[Criteria]) -> list[Message]:
    """Return the messages that meet all criteria, in their order.

    `after` and `before` exclude the given time; a time without a zone is UTC. `chain_id` finds the whole chain, including its
    first message.

    Raises:
        TypeError: there is no such criterion.
        ValueError: `after` or `before` is not a time.
    """
    if unknown := criteria.keys() - _TESTS:
        raise TypeError(f"no criterion {min(unknown)!r}; there are {', '.join(_TESTS)}")
    wanted = {key: read_time(value) if key in ("after", "before") else value for key, value in criteria.items()}
    return [message for message in messages if all(_TESTS[key](message, value) for key, value in wanted.items())]


# ---------------------------------------------------------------- errors


def error_message(exc: BaseException, name: str | None = None) -> Message:
    """Return an exception as a message of the agent `name`: its text (or, if it has none, its class) and its class."""
    now, error_type = current_port().now(), type(exc).__name__
    # The text may contain a file name that is not valid Unicode, and reporting an error must not fail.
    text = str(exc).encode(errors="backslashreplace").decode()
    return Message(
        role="error",
        content=text or error_type,
        name=name,
        metadata={"error_type": error_type, "timestamp": now.isoformat()},
        timestamp=now,
    )
