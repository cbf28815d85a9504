"""The kinds of field that the protocol is made of: text, times, numbers, JSON, the six phases and the states of a thread."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import BeforeValidator, Field, PlainValidator, Strict
from pydantic_core import PydanticCustomError

from antiphon.messages._json import Json
from antiphon.messages._parts import Text
from antiphon.protocol._open import Frozen

__all__ = ["PHASES", "Number", "Object", "Phase", "Positive", "Quantity", "Share", "Text", "ThreadState", "Timestamp", "Value"]

Phase: TypeAlias = Literal["action", "experience", "intention", "observation", "understanding", "yield"]

PHASES: tuple[Phase, ...] = get_args(Phase)
"""The phases of a thread, in the order in which they run."""

ThreadState: TypeAlias = Literal["created", "processing", "paused", "terminated", "completed", "failed"]
"""Where a thread is: created, then processing and paused in turn, and at last one of the other three."""

Object: TypeAlias = Annotated[Mapping[str, Json], Frozen("object")]
"""A JSON object that cannot be changed."""

Value: TypeAlias = Annotated[Json, Frozen("any")]
"""Any JSON value, which cannot be changed."""

_TOO_FINE = re.compile(r"[.,][0-9]{7}")


def _read_time(value: object) -> datetime:
    if isinstance(value, str) and not _TOO_FINE.search(value):
        with suppress(ValueError):
            value = datetime.fromisoformat(value)
    if not isinstance(value, datetime):
        raise PydanticCustomError("time", "A time is a datetime, or ISO 8601 text of at most microseconds", {})
    if value.tzinfo is None:
        return value.replace(tzinfo=UTC)  # programs of this format write UTC without saying so
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise PydanticCustomError("time", "A time lies in the years 1 to 9999 of UTC", {}) from None


Timestamp: TypeAlias = Annotated[datetime, Strict(), BeforeValidator(_read_time)]
"""An aware time in UTC, written with a Z. One without a zone is taken as UTC."""


def _read_number(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise PydanticCustomError("number", "This must be a finite number", {})
    return value


Number: TypeAlias = Annotated[int | float, PlainValidator(_read_number, json_schema_input_type=float)]
"""A finite number, an integer kept as one."""

Quantity: TypeAlias = Annotated[Number, Field(ge=0)]
Share: TypeAlias = Annotated[Number, Field(ge=0, le=1)]
Positive: TypeAlias = Annotated[int, Strict(), Field(ge=1)]
