"""Message types: their table, validation with it, and the classes that declare them.

The classes are `Request[its reply]`, `Reply`, and `Notice` for a message without a reply. A class is the model of a message's
`data`, and its declaration adds a row to the table:

    class ThreadCreated(Reply, frozen=True, type="THREAD_CREATED"): ...
    class CreateThread(Request[ThreadCreated], frozen=True, type="CREATE_THREAD", family="thread"): ...

So a type checker knows the type of a reply: `def ask(request: Request[ReplyT]) -> ReplyT`. The classes of `_catalogue.py`
declare the types of the protocol. A program adds its own types in the same way, and validation covers them too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeAlias, TypeVar, cast

from pydantic import ValidationError
from typing_extensions import override

from antiphon.messages import Json, thaw
from antiphon.protocol._envelopes import RESPONSE_TYPES, Message, Response, complaint
from antiphon.protocol._open import Open, required_fields
from antiphon.protocol._values import PHASES

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
    known = _MODELS.get(type, model)
    if (known.__module__, known.__qualname__) != (model.__module__, model.__qualname__):  # the same class again: a notebook
        owner = f"{known.__module__}.{known.__qualname__}"
        raise TypeError(f"{type} is the type of {owner}; choose another for {model.__qualname__}")
    _MODELS[type] = model


def add_entry(entry: Entry) -> None:
    """Declare a type that can be sent.

    Raises:
        TypeError: another class has declared that type.
    """
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

_PHASE = "phase_type"

OpenT = TypeVar("OpenT", bound=Open)


def validate_message(message: Message | Response) -> bool:
    """Return True if the data of a message or response is valid for its type, or its type is not declared.

    Raises:
        ValueError: a field is missing or wrong; the text says which.
    """
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
    _check_phase(type, data, required)
    for name in required:
        _check_there(type, data, name)
    try:
        return model.model_validate(thaw(data))
    except ValidationError as exc:
        where, reason = complaint(exc)
        raise ValueError(f"{type} message has a wrong {where!r} field: {reason}") from exc


def _check_phase(type: str, data: Mapping[str, Json], required: Collection[str]) -> None:
    """Check the phase before all other fields, so that the error is about the phase if it is wrong."""
    if _PHASE in required:
        _check_there(type, data, _PHASE)
    phase = data.get(_PHASE)
    if phase not in PHASES and (phase is not None or _PHASE in required):
        raise ValueError(f"Invalid {_PHASE}: {phase}")


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
        """Return the data of a message as this class.

        Raises:
            ValueError: a field is missing or wrong; the text says which.
        """
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
        """Read the data of a response.

        Raises:
            ValueError: the response is of another type, or a field is missing or wrong.
        """
        if cls.message_type:
            cls._check_type(response.type)
        return cls.from_data(response.data)


ReplyT = TypeVar("ReplyT", bound=Reply, covariant=True)  # noqa: PLC0105 (all end in T)


class Sendable(Data, frozen=True):
    """The data of a message that is not a response."""

    def to_message(self, *, sender: str | None = None, receiver: str | None = None, **fields: Any) -> Message:
        """Return a message with this data; `fields` are other fields of the message."""
        return Message(type=self.message_type, data=self.to_data(), sender=sender, receiver=receiver, **fields)

    @classmethod
    def from_message(cls, message: Message) -> Self:
        """Read the data of a message.

        Raises:
            ValueError: the message is of another type, or a field is missing or wrong.
        """
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
