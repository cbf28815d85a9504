"""What the fields of a message hold: text, JSON that cannot be changed, and times, each checked when a message is made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Annotated, Any, TypeAlias, cast

from pydantic import AfterValidator, PlainValidator, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from antiphon.dialects._frozen import frozen
from antiphon.messages import current_limits
from antiphon.messages._json import JsonError, copy_checked

__all__ = ["Calls", "Content", "Object", "Text", "Time", "as_object", "read_time"]

# Python cuts a finer fraction without a word.
_FINER_THAN_MICROSECONDS = re.compile(r"[.,][0-9]{7}")


def as_object(value: object, what: str) -> Mapping[str, Any]:
    """Return a value that is to be a dict, typed as one.

    Raises:
        ValueError: it is something else.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{what} must be an object (a dict), not {type(value).__name__}")  # noqa: TRY004
    return cast("Mapping[str, Any]", value)


def read_time(value: object) -> datetime:
    """Return a time with a fixed offset; one without a zone is UTC.

    The offset is fixed because Python holds two times of different zones for unequal where the clock is put back.
    """
    if isinstance(value, str) and not _FINER_THAN_MICROSECONDS.search(value):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise PydanticCustomError("time", "A time is a datetime, or ISO 8601 text of at most microseconds", {})
    offset = value.utcoffset() or timedelta(0)
    if offset.microseconds:  # ISO 8601 has no such thing, and Python does not read back what it writes
        raise PydanticCustomError("time", "A time's offset from UTC is in whole seconds", {})
    return value.replace(tzinfo=timezone(offset), fold=0)


def _own(value: Any) -> Any:
    """Return a private copy of a caller's JSON, made of plain dicts and lists."""
    try:
        return copy_checked(value, current_limits())
    except JsonError as exc:
        error = PydanticCustomError("json", "{reason}", {"reason": exc.reason})
        # Pydantic puts the path behind the name of the field.
        details = [InitErrorDetails(type=error, loc=exc.path, input=value)]
        raise ValidationError.from_exception_data("json", details) from None


def _own_text(value: str) -> str:
    return cast("str", _own(value))


def _own_object(value: Any) -> dict[str, Any]:
    owned = _own(value)
    if type(owned) is not dict:
        raise PydanticCustomError("json_object", "This must be a JSON object (a dict)", {})
    return cast("dict[str, Any]", frozen(owned))


def _own_calls(value: Any) -> list[Any]:
    owned = _own(value)
    if type(owned) is not list or not all(type(call) is dict for call in cast("list[Any]", owned)):
        raise PydanticCustomError("tool_calls", "Tool calls are a list of JSON objects (dicts)", {})
    return cast("list[Any]", frozen(owned))


def _own_content(value: Any) -> Any:
    owned = _own(value)
    if type(owned) is str:
        return owned
    if type(owned) is not list or not all(type(part) is dict for part in cast("list[Any]", owned)):
        raise PydanticCustomError("content", "Content is text, or a list of parts (dicts) as OpenAI has them", {})
    return frozen(owned)


Text: TypeAlias = Annotated[str, AfterValidator(_own_text)]
Time: TypeAlias = Annotated[datetime, PlainValidator(read_time)]
# Typed as what they can be made from; what is read is a dict and a list that cannot be changed.
Content: TypeAlias = Annotated[str | Sequence[Mapping[str, Any]], PlainValidator(_own_content)]
Object: TypeAlias = Annotated[Mapping[str, Any], PlainValidator(_own_object)]
Calls: TypeAlias = Annotated[Sequence[Mapping[str, Any]], PlainValidator(_own_calls)]
