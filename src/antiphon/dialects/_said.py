"""What providers' formats share about content: arguments as text and as objects, outcomes as readable text."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any, cast

from antiphon.dialects._content import arguments_text, fresh, json_text
from antiphon.messages import DataPart, OptionCallPayload, OptionResultPayload, TextPart
from antiphon.messages._json import JsonError, parse, write
from antiphon.messages._model import json_text_of

__all__ = [
    "INSTRUCTION",
    "arguments_object",
    "arguments_text",
    "count_of",
    "error_of",
    "error_text",
    "fresh",
    "outcome_text",
    "read_arguments",
    "text_of",
    "unix_time",
]

INSTRUCTION = "[System instruction]: "
"""How an instruction begins that had to become a user's: the format has a place for it only at some points."""

_RAW = "_raw"
"""The one key of an object that stands for arguments which are not an object."""
_ERROR = "Error"
_MOST = 2**53
"""The largest count that the core takes."""
_LATEST = 253_402_300_799
"""The last second of the year 9999."""
_TYPED = re.compile(r"([A-Za-z_][\w.-]{0,63}): (.*)", re.DOTALL)


def count_of(value: Any) -> int | None:
    """Return a number that counts something, if it is one that every JSON reader has exactly."""
    return value if type(value) is int and 0 <= value <= _MOST else None


def unix_time(value: Any) -> datetime | None:
    """Return the time that is so many seconds after 1970 began, if it is one."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return datetime.fromtimestamp(value, UTC) if is_number and 0 <= value <= _LATEST else None


def text_of(part: TextPart | DataPart) -> str:
    """Return a part as text, data as JSON text."""
    return part.text if isinstance(part, TextPart) else json_text(part.data)


def read_arguments(given: Any) -> tuple[dict[str, Any], str | None]:
    """Return arguments from an object or its text, and the text where it is not plainly the JSON of them."""
    if isinstance(given, dict):
        return _unwrapped(cast("dict[str, Any]", given))
    try:
        arguments = parse(str(given).encode())
    except (JsonError, UnicodeEncodeError):
        return {}, str(given)
    if not isinstance(arguments, dict):
        return {}, str(given)
    return cast("dict[str, Any]", arguments), None if write(arguments).decode() == given else str(given)


def _unwrapped(arguments: dict[str, Any]) -> tuple[dict[str, Any], str | None]:
    """Return arguments; of an object that only stands for a text, the text."""
    raw = arguments.get(_RAW) if len(arguments) == 1 else None
    return ({}, raw) if isinstance(raw, str) else (arguments, None)


def arguments_object(call: OptionCallPayload) -> dict[str, Any]:
    """Return arguments as an object; a text that spells none is wrapped in one."""
    text = call.arguments_text
    if text is None or call.arguments or text.strip() in ("", "{}"):
        return cast("dict[str, Any]", fresh(call, "arguments"))
    return {_RAW: text}


def error_text(outcome: OptionResultPayload) -> str:
    """Return an error in words: its type, its message, and its details as JSON."""
    words = str(outcome.error_message)
    if outcome.error_type != _ERROR:
        words = f"{outcome.error_type}: {words}"
    return words if outcome.result is None else f"{words}\n{json_text(outcome.result)}"


def error_of(text: str) -> tuple[str, str]:
    """Return the type and the message of an error in words."""
    found = _TYPED.fullmatch(text)
    return (found[1], found[2]) if found and found[1] != _ERROR else (_ERROR, text)


def outcome_text(outcome: OptionResultPayload) -> str:
    """Return what came of a call as readable text: never `null`, and an error says that it is one."""
    if outcome.is_error:
        words = error_text(outcome)
        return words if outcome.error_type != _ERROR else f"{_ERROR}: {words}"
    result = outcome.__dict__["result"]
    return "" if result is None else result if type(result) is str else json_text_of(outcome, "result")
