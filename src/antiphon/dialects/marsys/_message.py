"""Message: a frozen message of a MARSYS system, with its JSON form and its form for a model.

Its fields hold text, immutable JSON, and times. Each is checked when a message is made.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import Annotated, Any, Self, TypeAlias, cast

from pydantic import AfterValidator, ConfigDict, Field, PlainValidator, ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import override

from antiphon.dialects._frozen import frozen, thawed
from antiphon.messages import current_limits, current_port
from antiphon.messages.json_values import JsonError, canonical, copy_checked, parse, write

# ---------------------------------------------------------------- fields

# Python drops a finer fraction silently.
_FINER_THAN_MICROSECONDS = re.compile(r"[.,][0-9]{7}")


def as_object(value: object, what: str) -> Mapping[str, Any]:
    """Return a value typed as a dict.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be an object (a dict), not {type(value).__name__}")  # noqa: TRY004
    return cast("Mapping[str, Any]", value)


def read_time(value: object) -> datetime:
    """Return a time with a fixed offset; one without a zone is UTC.

    The offset is fixed because Python treats two times of different zones as unequal in the hour when the clock is set back.
    """
    if isinstance(value, str) and not _FINER_THAN_MICROSECONDS.search(value):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise PydanticCustomError("time", "A time is a datetime, or ISO 8601 text of at most microseconds", {})
    offset = value.utcoffset() or timedelta(0)
    if offset.microseconds:  # ISO 8601 has no such offset, and Python cannot read its own output
        raise PydanticCustomError("time", "A time's offset from UTC is in whole seconds", {})
    return value.replace(tzinfo=timezone(offset), fold=0)


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
    function = form.get("function")
    if isinstance(function, dict):
        form["function"] = _llm_function(cast("dict[str, Any]", function))
    return form


def _llm_function(function: dict[str, Any]) -> dict[str, Any]:
    name, arguments = function.get("name"), function.get("arguments")
    if isinstance(name, str):
        function["name"] = sanitize_tool_name(name)
    if not isinstance(arguments, str):
        function["arguments"] = "{}" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return function


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
        said = (self.role, self.name, self.message_id, self.tool_call_id, self.timestamp)
        return (*said, canonical(thawed([self.content, self.tool_calls, self.metadata, self.extra])))

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
        """Return a copy with some fields changed; id and time stay the same.

        Raises:
            ValidationError: a changed field is not allowed.
            TypeError: there is no such field.
        """
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
        said: Any = as_object(response, "a response")
        if processor is not None:
            said = processor(deepcopy(dict(response)))
            if isinstance(said, Message):
                return said
            said = as_object(said, "what a processor returns, unless it is a Message,")
        defaults = {"message_id": default_id, "role": default_role, "name": default_name}
        given = {key: value for key, value in said.items() if value is not None or key not in defaults}
        return cls.from_dict({**defaults, **given, "tool_calls": said.get("tool_calls") or None})

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
        """Return the message of a JSON text.

        Raises:
            ValidationError: a field is not valid; the error names it.
            ValueError: it is not a JSON object.
        """
        try:
            data = parse(text.encode() if isinstance(text, str) else text)
        except (JsonError, UnicodeEncodeError) as exc:
            raise ValueError(f"a message is JSON text: {getattr(exc, 'reason', exc)}") from None
        return cls.from_dict(data)


Processor: TypeAlias = Callable[[dict[str, Any]], "Mapping[str, Any] | Message"]
"""A function that changes a response before it becomes a message."""
