"""Messages of the protocol: the three envelopes with their JSON text, the table of message types, and the classes of types.

**Envelopes** are a message, a response, and an error response. The keys of the JSON decide which envelope it is: with a
`message_id` it is a response, and with the type ERROR an error response. So a message refuses that key, and a response of type
ERROR needs the data of an error response, whatever its class.

**Types.** The classes are `Request[its reply]`, `Reply`, and `Notice` for a message without a reply. A class is the model of a
message's `data`, and its declaration adds a row to the table:

    class ThreadCreated(Reply, frozen=True, type="THREAD_CREATED"): ...
    class CreateThread(Request[ThreadCreated], frozen=True, type="CREATE_THREAD", family="thread"): ...

So a type checker knows the type of a reply: `def ask(request: Request[ReplyT]) -> ReplyT`. The classes of `_catalogue.py`
declare the types of the protocol. A program adds its own types in the same way, and validation covers them too.

**Enclosures.** What one actor of a program adds for another travels beside the data, as the `enclosure` of a request or
notice. It is in no envelope and in no JSON text: only code can add it, with `with_enclosure`. So a message that comes in never
has one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, Literal, Self, TypeAlias, TypeVar, cast, overload

from pydantic import Field, PrivateAttr, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError
from typing_extensions import override

from antiphon.errors import DecodeError
from antiphon.messages import Json, JsonObject, current_port, thaw
from antiphon.messages._arguments import check_type
from antiphon.messages._content import Text
from antiphon.messages._json_values import JsonError, parse
from antiphon.messages._settings import new_id
from antiphon.protocol._values import NOTHING, PHASES, Frozen, Object, Open, Timestamp, required_fields

# ---------------------------------------------------------------- envelopes

ERROR: Final = "ERROR"
"""The type of an error response."""

_RETRY = "RETRY"

RESPONSE_TYPES: Final[dict[str, str]] = {}
"""The type of the answer, by the type of its request. `add_entry` writes it when a class declares a type."""


def response_type_of(type: str) -> str:
    """Return the type of the answer: the declared one, else the type with `_RESPONSE` after it."""
    return RESPONSE_TYPES.get(type) or f"{type}_RESPONSE"


class _Envelope(Open, frozen=True):
    """The fields that all envelopes have."""

    id: Text = Field(default_factory=new_id)
    type: Text
    data: Object = NOTHING
    sender: Text | None = None
    """The actor that sends it."""
    receiver: Text | None = None
    """The actor that it is for."""
    timestamp: Timestamp = Field(default_factory=lambda: current_port().now())
    correlation_id: Text | None = None
    """The exchange it belongs to: the same on everything that follows from one message."""


class Message(_Envelope, frozen=True):
    """A request or a notice from one actor to another."""

    @model_validator(mode="after")
    def _is_no_response(self) -> Self:
        if "message_id" in self.__pydantic_extra__:
            raise _refused("A message has no message_id: make it a Response", "message_id")
        return self

    def get_response_type(self, original: Message | None = None) -> str:
        """Return the type of the response to this message; for an undeclared type, the type with `_RESPONSE` after it.

        A RETRY is answered like the message that it retries: pass that as `original`, or put `original_message` into its data.
        """
        if self.type == _RETRY:
            if original is not None:
                return original.get_response_type()
            match self.data:
                case {"original_message": {"type": str(original_type)}}:
                    return response_type_of(original_type)
                case _:
                    pass
        return response_type_of(self.type)

    def reply(self, type: str | None = None, data: Mapping[str, Json] | None = None, **fields: Any) -> Response:
        """Return the response to this message, addressed and correlated; `fields` are other fields of the response."""
        response_type = self.get_response_type() if type is None else type
        return Response(**self._back(fields), type=response_type, data={} if data is None else data)

    def reply_error(self, error_message: str, error_code: str | None = None, **fields: Any) -> ErrorResponse:
        """Return an error response to this message; `data` in `fields` adds details."""
        return ErrorResponse(error_message, error_code, **self._back(fields))

    def _back(self, fields: dict[str, Any]) -> dict[str, Any]:
        correlation_id = self.id if self.correlation_id is None else self.correlation_id
        way = {"sender": self.receiver, "receiver": self.sender, "correlation_id": correlation_id, "message_id": self.id}
        return way | fields


class Response(_Envelope, frozen=True):
    """The answer to a message."""

    message_id: Text | None = None
    """The id of the message that it answers."""

    @model_validator(mode="after")
    def _says_what_failed(self) -> Self:
        if self.type == ERROR:
            _check_text(self.data, "error_message")
            if self.data.get("error_code") is not None:
                _check_text(self.data, "error_code")
        return self


def _check_text(data: Mapping[str, Json], key: str) -> None:
    if not isinstance(data.get(key), str):
        raise _refused(f"The data of an ERROR has text under {key!r}", "data", key)


def _refused(reason: str, *place: str) -> ValidationError:
    """Return an error that Pydantic reports at this place."""
    error = PydanticCustomError("envelope", "{reason}", {"reason": reason})
    return ValidationError.from_exception_data("envelope", [InitErrorDetails(type=error, loc=place, input=None)])


class ErrorResponse(Response, frozen=True):
    """The answer to a message that failed, with the error message and code."""

    type: Literal["ERROR"] = ERROR

    @overload
    def __init__(
        self, /, error_message: str, error_code: str | None = None, message_id: str | None = None, **fields: Any
    ) -> None: ...
    @overload
    def __init__(self, /, *, data: Mapping[str, Json], message_id: str | None = None, **fields: Any) -> None: ...
    def __init__(
        self,
        /,
        error_message: str | None = None,
        error_code: str | None = None,
        message_id: str | None = None,
        **fields: Any,
    ) -> None:
        """Take the message and the code as arguments and further details as `data`, or all of them as `data`.

        An argument wins over the same key of `data`. Without a code, the key is left out.

        Raises:
            ValidationError: a value is not allowed, or there is no error message.
        """
        arguments = {"error_message": error_message, "error_code": error_code}
        reserved = {key: value for key, value in arguments.items() if value is not None}
        extra = fields.pop("data", {})
        data = {**reserved, **cast("Mapping[str, Any]", extra), **reserved} if isinstance(extra, Mapping) else extra
        super().__init__(**fields, data=data, message_id=message_id)

    # Validation sets the fields without `__init__`: data from outside is kept unchanged.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]

    @property
    def error_message(self) -> str:
        """The description of the failure."""
        return cast("str", self.data["error_message"])

    @property
    def error_code(self) -> str | None:
        """The code of the failure: one of `ErrorCode`, or a program's own."""
        return cast("str | None", self.data.get("error_code"))


# ---------------------------------------------------------------- JSON text


def serialize_message(message: Message | Response) -> str:
    """Write a message or response as JSON: its fields, without its class."""
    check_type("message", message, Message | Response, "Message(type='HEARTBEAT')")
    return message.model_dump_json()


def deserialize_message(json_str: str | bytes) -> Message | Response:
    """Read a message, response or error response: a `message_id` tells a response, the type ERROR an error response.

    Raises:
        DecodeError: the text is not JSON, or not an envelope; `where` names the wrong field.
    """
    check_type("json_str", json_str, str | bytes, "the text of a message")
    form = _parse(json_str)
    kind = Message if "message_id" not in form else ErrorResponse if form.get("type") == ERROR else Response
    try:
        return kind.model_validate(form)
    except ValidationError as exc:
        where, reason = complaint(exc)
        raise _error(reason, where) from exc


def _parse(text: str | bytes) -> dict[str, Any]:
    try:
        form = parse(text.encode() if isinstance(text, str) else text)
    except UnicodeEncodeError:
        raise _error("the text has a lone surrogate, which is no Unicode") from None
    except JsonError as exc:
        raise _error(exc.reason) from None
    if not isinstance(form, dict):
        raise _error("not a JSON object")
    return cast("dict[str, Any]", form)


def _error(reason: str, where: str = "") -> DecodeError:
    return DecodeError(reason, dialect="choir", where=where)


def complaint(exc: ValidationError) -> tuple[str, str]:
    """Return the place and the text of Pydantic's first error."""
    errors = exc.errors(include_url=False, include_context=False)
    count = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in errors[0]["loc"])
    return path.removeprefix("."), errors[0]["msg"] + count


# ---------------------------------------------------------------- the table

SentClass: TypeAlias = "type[Request[Any]] | type[Notice]"
ReplyClass: TypeAlias = "type[Reply]"


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: a type that can be sent, and its answer."""

    type: str
    family: str
    """Its group: thread, phase, agent, system, error or talk; `other` for a program's own types."""
    data: SentClass
    """The model of its data."""
    response_type: str | None
    """None if the type has no answer."""
    response: ReplyClass | None
    """The model of the answer's data; `Reply` itself if the answer may be of any type."""


_ENTRIES: dict[str, Entry] = {}
_MODELS: dict[str, type[Open]] = {}
"""The model of the data of every type, answers included."""


def add_model(type: str, model: type[Open]) -> None:
    """Declare the model of a type's data.

    Raises:
        TypeError: another class has declared that type.
    """
    declared = _MODELS.get(type, model)
    if (declared.__module__, declared.__qualname__) != (
        model.__module__,
        model.__qualname__,
    ):  # the same class again: a notebook
        owner = f"{declared.__module__}.{declared.__qualname__}"
        raise TypeError(f"{type} is the type of {owner}; choose another for {model.__qualname__}")
    _MODELS[type] = model


def add_entry(entry: Entry) -> None:
    """Declare a type that can be sent."""
    add_model(entry.type, entry.data)
    _ENTRIES[entry.type] = entry
    if entry.response_type:
        RESPONSE_TYPES[entry.type] = entry.response_type


def entries() -> tuple[Entry, ...]:
    """Return all rows, in the order of their declaration."""
    return tuple(_ENTRIES.values())


def find_entry(type: str) -> Entry | None:
    """Return the row of a type that can be sent; None for an answer's type and for one that is not declared."""
    return _ENTRIES.get(type)


def find_model(type: str) -> type[Open] | None:
    """Return the model of a type's data; None for a type that is not declared."""
    return _MODELS.get(type)


# ---------------------------------------------------------------- validation


def enclosed_messages(type: str, data: Mapping[str, Json]) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """Yield the type and data of a message, and of those that it carries: a RETRY may carry its original.

    What may not come in by itself may not come in so.
    """
    yield type, data
    match data.get("original_message"):
        case {"type": str(inner), **rest} if type == _RETRY:
            content = rest.get("data")
            yield from enclosed_messages(inner, cast("Mapping[str, Json]", content) if isinstance(content, Mapping) else {})
        case _:
            pass


_PHASE = "phase_type"
_NOTHING: Final = JsonObject({})
_ENCLOSED: Final = Frozen("object")

OpenT = TypeVar("OpenT", bound=Open)


def validate_message(message: Message | Response) -> bool:
    """Return True if the data of a message or response is valid for its type, or its type is not declared.

    Raises:
        ValueError: a field is missing or wrong; the text says which.
    """
    check_type("message", message, Message | Response, "Message(type='HEARTBEAT')")
    model = find_model(message.type)
    if model is not None:
        read_data(message.type, model, message.data)
    return True


def read_data(type: str, model: type[OpenT], data: Mapping[str, Json]) -> OpenT:
    """Return the data of a message of this type as its model.

    Raises:
        ValueError: a field is missing or wrong; the text says which.
    """
    required = required_fields(model)
    # The phase first, so that the error is about the phase if it is wrong.
    if _PHASE in required:
        _check_there(type, data, _PHASE)
    phase = data.get(_PHASE)
    if phase not in PHASES and (phase is not None or _PHASE in required):
        raise ValueError(f"Invalid {_PHASE}: {phase}")
    for name in required:
        _check_there(type, data, name)
    try:
        return model.model_validate(thaw(data))
    except ValidationError as exc:
        where, reason = complaint(exc)
        raise ValueError(f"{type} message has a wrong {where!r} field: {reason}") from exc


def _check_there(type: str, data: Mapping[str, Json], name: str) -> None:
    if name not in data:
        raise ValueError(f"{type} message must contain '{name}' field")


# ---------------------------------------------------------------- the classes


class Data(Open, frozen=True):
    """The data of one type of message."""

    message_type: ClassVar[str] = ""
    """The type of its messages; empty for a reply whose type is that of its request with `_RESPONSE` after it."""

    def __init_subclass__(cls, *, type: str = "", family: str = "other", **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, *, type: str = "", family: str = "other", **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if type:
            cls.message_type = type
            cls._declare(family)

    @classmethod
    def _declare(cls, family: str) -> None:
        add_model(cls.message_type, cls)

    def to_data(self) -> dict[str, Any]:
        """Return it as the plain `data` of a message, with only the fields that are set."""
        return self.model_dump(mode="json", exclude_unset=True)

    @classmethod
    def from_data(cls, data: Mapping[str, Json]) -> Self:
        """Return the data of a message as this class."""
        return read_data(cls.message_type or cls.__name__, cls, data)

    @classmethod
    def _check_type(cls, type: str) -> None:
        if type != cls.message_type:
            raise ValueError(f"{cls.__name__} is the data of {cls.message_type}, not of {type}")


class Reply(Data, frozen=True):
    """The data of a response. `Reply` itself, which has no type, is an answer of any type."""

    def to_response(self, message: Message, **fields: Any) -> Response:
        """Return a response to a message with this data; `fields` are other fields of the response."""
        return message.reply(self.message_type or None, self.to_data(), **fields)

    @classmethod
    def from_response(cls, response: Response) -> Self:
        """Read the data of a response."""
        if cls.message_type:
            cls._check_type(response.type)
        return cls.from_data(response.data)


ReplyT = TypeVar("ReplyT", bound=Reply, covariant=True)  # noqa: PLC0105 (all end in T)


class Sendable(Data, frozen=True):
    """The data of a message that is not a response."""

    _enclosure: JsonObject | None = PrivateAttr(default=None)

    @property
    def enclosure(self) -> Mapping[str, Json]:
        """What the sending actor has added beside the data; empty for every message from outside."""
        # Read where Pydantic keeps it: every message is asked for it, and the attribute goes through `__getattr__`.
        private = self.__pydantic_private__
        enclosure: JsonObject | None = private["_enclosure"] if private else None
        return _NOTHING if enclosure is None else enclosure

    def with_enclosure(self, enclosure: Mapping[str, Json]) -> Self:
        """Return a copy with this enclosure in place of any other. The runtime stores it with the message.

        Raises:
            ValueError: it is not JSON.
        """
        copied = copy(self)
        private = {"_enclosure": _ENCLOSED.take(enclosure) if enclosure else None}
        object.__setattr__(copied, "__pydantic_private__", private)
        return copied

    def to_message(self, *, sender: str | None = None, receiver: str | None = None, **fields: Any) -> Message:
        """Return a message with this data; `fields` are other fields of the message."""
        return Message(type=self.message_type, data=self.to_data(), sender=sender, receiver=receiver, **fields)

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """Read the data of a message."""
        cls._check_type(message.type)
        return cls.from_data(message.data)

    @classmethod
    def _check_declared(cls) -> None:
        if not cls.message_type:
            raise TypeError(f"{cls.__name__} needs a type: declare it with type='…' after its base")


class Notice(Sendable, frozen=True):
    """The data of a message that has no answer."""

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._check_declared()

    @classmethod
    @override
    def _declare(cls, family: str) -> None:
        add_entry(Entry(cls.message_type, family, cls, None, None))


class Request(Sendable, Generic[ReplyT], frozen=True):
    """The data of a message that is answered by a `ReplyT`, or by an error."""

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.__pydantic_generic_metadata__["origin"] is None:  # `Request[X]` itself declares no type
            cls._check_declared()

    @classmethod
    @override
    def _declare(cls, family: str) -> None:
        reply: type[Reply] = cls.reply_class()
        response_type = reply.message_type or f"{cls.message_type}_RESPONSE"
        add_entry(Entry(cls.message_type, family, cls, response_type, reply))
        if not reply.message_type and reply is not Reply:
            add_model(response_type, reply)

    @classmethod
    def reply_class(cls) -> type[ReplyT]:
        """Return the class of its reply."""
        arguments = (base.__pydantic_generic_metadata__["args"] for base in cls.__mro__ if issubclass(base, Request))
        return cast("type[ReplyT]", next((args[0] for args in arguments if args), Reply))
