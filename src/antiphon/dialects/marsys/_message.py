"""Message: a frozen message of a MARSYS system, with its JSON form and its form for a model; and functions on messages.

Its fields hold text, immutable JSON, and times. Each is checked when a message is made. The functions prepare messages for a
model, validate, chain and filter them, and make one from an exception.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import Annotated, Any, NoReturn, Self, TypeAlias, cast

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import TypedDict, Unpack, override

from antiphon.dialects._frozen import frozen, thawed
from antiphon.messages import current_port
from antiphon.messages._json_values import JsonError, canonical, copy_checked, parse, write
from antiphon.messages._message import any_time
from antiphon.messages._settings import current_limits

# ---------------------------------------------------------------- fields


def as_object(value: object, what: str) -> Mapping[str, Any]:
    """Return a value typed as a dict."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be an object (a dict), not {type(value).__name__}")  # noqa: TRY004
    return cast("Mapping[str, Any]", value)


def read_time(value: object) -> datetime:
    """Return a time with a fixed offset; one without a zone is UTC.

    The offset is fixed because Python treats two times of different zones as unequal in the hour when the clock is set back.
    """
    time = any_time(value)
    offset = time.utcoffset() or timedelta(0)
    if offset.microseconds:  # ISO 8601 has no such offset, and Python cannot read its own output
        raise PydanticCustomError("time", "A time's offset from UTC is in whole seconds", {})
    return time.replace(tzinfo=timezone(offset), fold=0)


def _own(value: object) -> Any:
    """Return a private copy of a caller's JSON, made of plain dicts and lists."""
    try:
        return copy_checked(value, current_limits())
    except JsonError as exc:
        error = PydanticCustomError("json", "{reason}", {"reason": exc.reason})
        # Pydantic puts the path after the name of the field.
        details = [InitErrorDetails(type=error, loc=exc.path, input=value)]
        raise ValidationError.from_exception_data("json", details) from None


def _own_text(value: str) -> str:
    return cast("str", _own(value))


def _own_object(value: object) -> dict[str, Any]:
    owned = _own(value)
    if type(owned) is not dict:
        raise PydanticCustomError("json_object", "This must be a JSON object (a dict)", {})
    return cast("dict[str, Any]", frozen(owned))


def _own_calls(value: object) -> list[Any]:
    owned = _own(value)
    if type(owned) is not list or not all(type(call) is dict for call in cast("list[Any]", owned)):
        raise PydanticCustomError("tool_calls", "Tool calls are a list of JSON objects (dicts)", {})
    return cast("list[Any]", frozen(owned))


def _own_content(value: object) -> Any:
    owned = _own(value)
    if type(owned) is str:
        return owned
    if type(owned) is not list or not all(type(part) is dict for part in cast("list[Any]", owned)):
        raise PydanticCustomError("content", "Content is text, or a list of parts (dicts) as OpenAI has them", {})
    return frozen(owned)


Text: TypeAlias = Annotated[str, AfterValidator(_own_text)]
Time: TypeAlias = Annotated[datetime, PlainValidator(read_time)]
# The type is what the constructor accepts; reading returns a frozen dict or a frozen list.
Content: TypeAlias = Annotated[str | Sequence[Mapping[str, Any]], PlainValidator(_own_content)]
Object: TypeAlias = Annotated[Mapping[str, Any], PlainValidator(_own_object)]
Calls: TypeAlias = Annotated[Sequence[Mapping[str, Any]], PlainValidator(_own_calls)]


# ---------------------------------------------------------------- text


def text_of(content: str | Sequence[Mapping[str, object]]) -> str:
    """Return the text of a content: the texts of its parts, one per line."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


def with_heading(heading: str, content: str | Sequence[Mapping[str, object]]) -> str | list[Any]:
    """Return a content with text before it."""
    return f"{heading} {content}" if isinstance(content, str) else [{"type": "text", "text": heading}, *thawed(content)]


# ---------------------------------------------------------------- tool calls and tool names in the provider's form

_PREFIX = "functions."
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")


def sanitize_tool_name(name: str) -> str:
    """Return a name that providers accept: without the prefix `functions.`, and with only ASCII letters, digits, `_` and `-`.

    A name that consists only of the prefix keeps it, so that no name becomes empty.
    """
    while name.startswith(_PREFIX) and name != _PREFIX:
        name = name.removeprefix(_PREFIX)
    return _NOT_IN_A_NAME.sub("_", name)


def llm_tool_calls(calls: Sequence[Mapping[str, object]], message_id: str) -> list[dict[str, Any]]:
    """Return tool calls in the provider's complete form; other keys of a call are kept."""
    return [_llm_tool_call(thawed(call), f"{message_id}/{index}") for index, call in enumerate(calls)]


def _llm_tool_call(call: dict[str, Any], place: str) -> dict[str, Any]:
    form = {"id": call.pop("id", None) or _id_of(place), "type": call.pop("type", None) or "function", **call}
    if isinstance(form.get("function"), dict):
        function = cast("dict[str, Any]", form["function"])
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(name, str):
            function["name"] = sanitize_tool_name(name)
        if not isinstance(arguments, str):
            function["arguments"] = "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return form


def _id_of(place: str) -> str:
    # Derived from the position, not random: the same message gives the same dict each time. OpenAI allows 40 characters.
    return f"call_{sha256(place.encode()).hexdigest()[:24]}"


# ---------------------------------------------------------------- the message

FIELDS = ("role", "content", "name", "message_id", "tool_calls", "tool_call_id", "metadata", "timestamp")
"""The keys of the JSON form, in the format's order."""

_CONFIG = ConfigDict(strict=True, extra="forbid", validate_default=True)


def _no_field(extra: Mapping[str, object]) -> Mapping[str, Any]:
    if taken := [name for name in FIELDS if name in extra]:
        raise PydanticCustomError("extra", "{taken} is a field of its own; give it as an argument", {"taken": taken[0]})
    return extra


@dataclass(frozen=True, slots=True, eq=False, config=_CONFIG)
class Message:
    """A frozen message, with copies of its tool calls and metadata, which cannot be changed either.

    Any role and any form of tool call can be constructed: `validation_errors` reports the faults.

    ```python
    from antiphon.dialects.marsys import Message

    print(Message("assistant", "On it.", name="weather_agent").to_llm_dict())
    #> {'role': 'assistant', 'content': 'On it.', 'name': 'weather_agent'}
    ```
    """

    role: Text
    content: Content
    """Text, or a list of parts in OpenAI's form: `{"type": "text", …}`, `{"type": "image_url", …}`; `text` has only the
    text."""
    name: Text | None = None
    """By role: the speaker of an assistant or error message, the tool, or the agent that is called or responds."""
    message_id: Text = Field(default_factory=lambda: current_port().new_id())
    tool_calls: Calls | None = None
    """As given; `to_llm_dict` completes them."""
    tool_call_id: Text | None = None
    """For a tool message, the `id` of the call that it answers."""
    metadata: Object | None = None
    """Context that is never sent to a model: `caller` and `task_id` of an agent_call, `error_type` of an error, and others."""
    timestamp: Time = Field(default_factory=lambda: current_port().now())
    """With a time zone; a time without one is read as UTC."""
    extra: Annotated[Object, AfterValidator(_no_field)] = Field(default_factory=dict, kw_only=True)
    """Keys of the JSON form that are not fields; they are written back."""

    # ------------------------------------------------------------ equality

    @override
    def __eq__(self, other: object) -> bool:
        return self._content() == other._content() if isinstance(other, Message) else NotImplemented

    @override
    def __hash__(self) -> int:
        return hash(self._content())

    def _content(self) -> tuple[Any, ...]:
        """Return the content by which two messages are equal; in JSON, `1`, `1.0` and `true` differ."""
        texts = (self.role, self.name, self.message_id, self.tool_call_id, self.timestamp)
        return (*texts, canonical(thawed([self.content, self.tool_calls, self.metadata, self.extra])))

    @property
    def text(self) -> str:
        """The text of the content: the content itself, or the texts of its parts, one per line."""
        return text_of(self.content)

    # ------------------------------------------------------------ metadata

    @property
    def caller(self) -> str | None:
        """The agent that made an agent_call."""
        return self._text_in_metadata("caller")

    @property
    def task_id(self) -> str | None:
        """The id that pairs an agent_call with its agent_response."""
        return self._text_in_metadata("task_id")

    @property
    def chain_id(self) -> str | None:
        """The id of the first message of its chain."""
        return self._text_in_metadata("chain_id")

    @property
    def error_type(self) -> str | None:
        """The class of the exception that an error message reports."""
        return self._text_in_metadata("error_type")

    def _text_in_metadata(self, key: str) -> str | None:
        value = (self.metadata or {}).get(key)
        return value if isinstance(value, str) else None

    # ------------------------------------------------------------ copies

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed; id and time stay the same."""
        return dataclasses.replace(self, **changes)

    def forward(self, to: str, *, by: str | None = None) -> Self:
        """Return the message for forwarding to another agent: the same id and time, and the route in the metadata.

        An agent_call becomes a call of `to`; its caller, who gets the response, stays the same.
        """
        way = {"forwarded_to": to} if by is None else {"forwarded_to": to, "forwarded_by": by}
        callee = to if self.role == "agent_call" else self.name
        return self.replace(name=callee, metadata={**(self.metadata or {}), **way})

    # ------------------------------------------------------------ for a model

    def to_llm_dict(self, *, null_content: bool = False) -> dict[str, Any]:
        """Return the provider's form: role, content and name; complete tool calls; no None values.

        The role stays unchanged: `process_for_llm` maps roles that no provider knows to `user`. With `null_content`,
        a message that only calls tools has `None` as its content instead of `""`.
        """
        only_calls = bool(self.tool_calls) and not self.content
        content = None if null_content and only_calls else thawed(self.content)
        form: dict[str, Any] = {"role": self.role, "content": content}
        if self.name:
            form["name"] = sanitize_tool_name(self.name)
        if self.tool_calls:
            form["tool_calls"] = llm_tool_calls(self.tool_calls, self.message_id)
        if self.tool_call_id is not None:
            form["tool_call_id"] = self.tool_call_id
        return form

    @classmethod
    def from_response_dict(
        cls,
        response: Mapping[str, object],
        processor: Processor | None = None,
        default_id: str | None = None,
        default_role: str = "assistant",
        default_name: str | None = None,
    ) -> Message:
        """Make a message from a model's response.

        The processor gets a copy of the response first. It returns another dict, or a `Message`, which is then the result.
        The defaults replace missing fields of the response.

        Raises:
            ValueError: the response, or the return value of the processor, is not a message.
        """
        form: Any = as_object(response, "a response")
        if processor is not None:
            form = processor(deepcopy(dict(response)))
            if isinstance(form, Message):
                return form
            form = as_object(form, "what a processor returns, unless it is a Message,")
        defaults = {"message_id": default_id, "role": default_role, "name": default_name}
        fields = {key: value for key, value in form.items() if value is not None or key not in defaults}
        return cls.from_dict({**defaults, **fields, "tool_calls": form.get("tool_calls") or None})

    # ------------------------------------------------------------ JSON

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: the fields that are not None, the time as ISO 8601 with its offset."""
        form: dict[str, Any] = {field: getattr(self, field) for field in FIELDS if getattr(self, field) is not None}
        form["timestamp"] = self.timestamp.isoformat()
        return {key: thawed(value) for key, value in {**form, **self.extra}.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        """Return the message of a JSON form. A content that is missing or null is `""`; a missing id or time is a new one.

        Raises:
            ValidationError: a field is not valid; the error names it.
            ValueError: the value is not a dict.
        """
        data = as_object(data, "a message")
        fields: dict[str, Any] = {field: data[field] for field in FIELDS if data.get(field) is not None}
        fields.setdefault("content", "")
        return cls(**fields, extra={key: value for key, value in data.items() if key not in FIELDS})

    def to_json(self) -> str:
        """Return the JSON form as text."""
        return write(self.to_dict()).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Return the message of a JSON text."""
        try:
            data = parse(text.encode() if isinstance(text, str) else text)
        except (JsonError, UnicodeEncodeError) as exc:
            raise ValueError(f"a message is JSON text: {getattr(exc, 'reason', exc)}") from None
        return cls.from_dict(data)


Processor: TypeAlias = Callable[[dict[str, Any]], "Mapping[str, Any] | Message"]
"""A function that changes a response before it becomes a message."""


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
            heading = f"Request from {message.caller or _UNKNOWN}"
        case "agent_response":
            heading = f"Response from {message.name or _UNKNOWN}"
        case "error":
            kind = f" ({message.error_type})" if message.error_type else ""
            heading = f"Error from {message.name or _UNKNOWN}{kind}"
        case _:
            return message.to_llm_dict()
    return {"role": "user", "content": with_heading(f"[{heading}]:", message.content)}


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


_TESTS: dict[str, Callable[[Message, Any], bool]] = {
    "role": lambda message, role: message.role == role,
    "name": lambda message, name: message.name == name,
    "message_id": lambda message, message_id: message.message_id == message_id,
    "chain_id": lambda message, chain_id: chain_id in (message.chain_id, message.message_id),
    "after": lambda message, time: message.timestamp > time,
    "before": lambda message, time: message.timestamp < time,
}


def filter_messages(messages: Iterable[Message], **criteria: Unpack[Criteria]) -> list[Message]:
    """Return the messages that meet all criteria, in their order.

    `after` and `before` exclude the given time; a time without a zone is UTC. `chain_id` finds the whole chain, including its
    first message.
    """
    if unknown := criteria.keys() - _TESTS:
        raise TypeError(f"no criterion {min(unknown)!r}; there are {', '.join(_TESTS)}")
    values = {key: read_time(value) if key in ("after", "before") else value for key, value in criteria.items()}
    return [message for message in messages if all(_TESTS[key](message, value) for key, value in values.items())]


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
