"""Times: ISO 8601 text in a message; text, a datetime or seconds since 1970 in a builder."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TypeAlias

from antiphon.messages import current_port

__all__ = ["Timestamp", "is_iso", "iso"]

Timestamp: TypeAlias = "str | datetime | float"
"""What a builder takes as a time."""

# `datetime.fromisoformat` takes more than date and time, and more in each Python version: the shape is fixed here.
_HOUR, _SIXTY, _FRACTION, _ZONE = r"([01]\d|2[0-3])", r"[0-5]\d", r"([.,]\d+)?", r"(Z|[+-]\d\d(:?\d\d)?)?"
_EXTENDED = re.compile(rf"\d{{4}}-\d\d-\d\d[T ]{_HOUR}:{_SIXTY}(:{_SIXTY}{_FRACTION})?{_ZONE}", re.ASCII)
_BASIC = re.compile(rf"\d{{8}}T{_HOUR}{_SIXTY}({_SIXTY}{_FRACTION})?{_ZONE}", re.ASCII)


def is_iso(text: str) -> bool:
    """Whether a text is a date and a time in ISO 8601, with or without a zone."""
    if not _EXTENDED.fullmatch(text) and not _BASIC.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False  # the right shape, but no such day or zone
    return True


def iso(time: Timestamp | None) -> str:
    """Return a time as a message has it; the port's for None. Text is returned as it is, to be checked with the message.

    Raises:
        ValueError: it is of another type, has no zone, or lies outside the years 1 to 9999.
    """
    if isinstance(time, str):
        return time
    if time is None:
        time = current_port().now()
    try:
        return _moment(time).astimezone(UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError) as exc:
        raise ValueError(f"{time!r} is no timestamp: {exc}") from exc


def _moment(time: object) -> datetime:
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ValueError("it needs its zone: use datetime.now(UTC)")
        return time
    if isinstance(time, int | float) and not isinstance(time, bool):
        return datetime.fromtimestamp(time, UTC)
    raise ValueError("give ISO 8601 text, a datetime or seconds since 1970")
