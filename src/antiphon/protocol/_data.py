"""What a type of message says, as classes: `Request[its reply]`, `Reply`, and `Notice` for what is only told.

A class is the model of a message's `data`, and declaring it writes the row of the table:

    class ThreadCreated(Reply, frozen=True, type="THREAD_CREATED"): ...
    class CreateThread(Request[ThreadCreated], frozen=True, type="CREATE_THREAD", family="thread"): ...

So a type checker knows what comes back: `def ask(request: Request[ReplyT]) -> ReplyT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

from typing_extensions import override

from antiphon.protocol._envelopes import Message
from antiphon.protocol._open import Open
from antiphon.protocol._table import Entry, add_entry, add_model
from antiphon.protocol._validation import read_data

if TYPE_CHECKING:
    from antiphon.messages import Json
    from antiphon.protocol._envelopes import Response

__all__ = ["Notice", "Reply", "Request"]


class Data(Open, frozen=True):
    """The data of one type of message."""

    message_type: ClassVar[str] = ""
    """The type of the messages that carry it; empty for a reply that takes the type its request's fallback gives."""

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
        """Return it as the plain `data` of a message: what was given, and nothing else."""
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
    """The data of a response. By itself, without a type of its own, it is an answer of any kind."""

    def to_response(self, message: Message, **fields: Any) -> Response:
        """Return the response to a message that says this; `fields` are other fields of the response."""
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


class Said(Data, frozen=True):
    """The data of a message that an actor sends of its own accord."""

    def to_message(self, *, sender: str | None = None, receiver: str | None = None, **fields: Any) -> Message:
        """Return the message that says this; `fields` are other fields of the message."""
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


class Notice(Said, frozen=True):
    """The data of a message to which no answer is due."""

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        cls._check_declared()

    @classmethod
    @override
    def _declare(cls, family: str) -> None:
        add_entry(Entry(cls.message_type, family, cls, None, None))


class Request(Said, Generic[ReplyT], frozen=True):
    """The data of a message that is answered by a `ReplyT`, or by an error."""

    @classmethod
    @override
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if cls.__pydantic_generic_metadata__["origin"] is None:  # `Request[X]` itself is no request
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
