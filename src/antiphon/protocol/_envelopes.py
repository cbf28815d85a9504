"""The three envelopes (a message, a response, and an error response), and their JSON text.

The keys of the JSON decide which envelope it is: with a `message_id` it is a response, and with the type ERROR an error
response. So a message refuses that key, and a response of type ERROR needs the data of an error response, whatever its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, Literal, Self, cast, overload

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from antiphon.errors import DecodeError
from antiphon.messages import Json, Text, current_port, new_id
from antiphon.messages.json_values import JsonError, parse
from antiphon.protocol._open import NOTHING, Open
from antiphon.protocol._values import Object, Timestamp

ERROR: Final = "ERROR"
"""The type of an error response."""

_RETRY = "RETRY"

RESPONSE_TYPES: Final[dict[str, str]] = {}
"""The type of the answer, by the type of its request. `add_entry` writes it when a class declares a type."""


def response_type_of(type: str) -> str:
    """Return the type of the answer: the declared one, else the type with `_RESPONSE` after it."""
    return RESPONSE_TYPES.get(type) or f"{type}_RESPONSE"


def _now() -> datetime:
    return current_port().now()


class _Envelope(Open, frozen=True):
    """The fields that all envelopes have."""

    id: Text = Field(default_factory=new_id)
    type: Text
    data: Object = NOTHING
    sender: Text | None = None
    """The actor that sends it."""
    receiver: Text | None = None
    """The actor that it is for."""
    timestamp: Timestamp = Field(default_factory=_now)
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
        """Return the response to this message, addressed and correlated; `fields` are other fields of the response.

        Raises:
            ValidationError: a value is not allowed.
        """
        response_type = self.get_response_type() if type is None else type
        return Response(**self._back(fields), type=response_type, data={} if data is None else data)

    def reply_error(self, error_message: str, error_code: str | None = None, **fields: Any) -> ErrorResponse:
        """Return an error response to this message; `data` in `fields` adds details.

        Raises:
            ValidationError: a value is not allowed.
        """
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
        given = {"error_message": error_message, "error_code": error_code}
        reserved = {key: value for key, value in given.items() if value is not None}
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
    return message.model_dump_json()


def deserialize_message(json_str: str | bytes) -> Message | Response:
    """Read a message, response or error response: a `message_id` tells a response, the type ERROR an error response.

    Raises:
        DecodeError: the text is not JSON, or not an envelope; `where` names the wrong field.
    """
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
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in errors[0]["loc"])
    return path.removeprefix("."), errors[0]["msg"] + more
