"""The fields of a message in the form it keeps: what each may be, and what it is if it is not given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from enum import Enum
from math import isfinite
from typing import Any, NoReturn, cast

from antiphon.dialects.atlas._tools import encode_call, encode_result, encode_text
from antiphon.dialects.atlas._values import ContentError, Encoder, refuse
from antiphon.messages import current_port

__all__ = ["FIELDS", "encode_field", "encode_message", "parse"]

FIELDS = (
    "content",
    "metadata",
    "task_id",
    "timestamp",
    "tool_calls",
    "tool_results",
    "source_agent",
    "target_agent",
    "message_id",
)


def encode_message(given: object, encoder: Encoder) -> dict[str, Any]:
    """Return all fields in the form a message keeps, then the unknown ones.

    Raises:
        ContentError: it has no content, or a field is not what it must be.
    """
    if not isinstance(given, Mapping):
        refuse(f"a message is a dict, not {type(given).__name__}", ())
    found = cast("Mapping[Any, Any]", given)
    if "content" not in found:
        refuse("is missing; a message has at least a content", ("content",))
    known = {name: encode_field(name, found.get(name), encoder) for name in FIELDS}
    return known | encoder.fields({key: value for key, value in found.items() if key not in FIELDS}, ())


def encode_field(name: str, given: Any, encoder: Encoder) -> Any:
    """Return one field in the form a message keeps, with its default if None is given.

    Raises:
        ContentError: it has the wrong type, or holds something that cannot be written.
    """
    match name:
        case "metadata":
            return _encode_metadata(given, encoder)
        case "timestamp":
            return _encode_timestamp(given)
        case "tool_calls":
            return [encode_call(each, encoder, (name, index)) for index, each in enumerate(_listed(given, name))]
        case "tool_results":
            return [encode_result(each, encoder, (name, index)) for index, each in enumerate(_listed(given, name))]
        case "task_id" | "message_id" if given is None:
            return current_port().new_id()
        case "source_agent" | "target_agent" if given is None:
            return None
        case _:
            return encode_text(given, encoder, (name,))


def _encode_metadata(given: Any, encoder: Encoder) -> dict[str, Any]:
    encoded = encoder.fields({} if given is None else given, ("metadata",))
    kind = given.get("type") if given else None
    if isinstance(kind, Enum) and isinstance(kind.value, str):
        encoded["type"] = kind.value  # a type is text, whoever made the list it stands in
    return encoded


def _encode_timestamp(given: Any) -> float:
    if given is None:
        return current_port().now().timestamp()
    if isinstance(given, bool) or not isinstance(given, int | float):
        refuse(f"must be seconds since 1970 as a number, not {type(given).__name__}", ("timestamp",))
    try:
        seconds = float(given)
    except OverflowError:
        seconds = float("inf")
    return seconds if isfinite(seconds) else refuse("is too large or no number; give seconds since 1970", ("timestamp",))


def _listed(given: Any, name: str) -> list[Any]:
    if given is None:
        return []
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        refuse(f"must be a list, not {type(cast('object', given)).__name__}", (name,))
    return list(cast("Iterable[Any]", given))


# ---------------------------------------------------------------- text


def parse(text: str | bytes) -> Any:
    """Return what JSON text says.

    Raises:
        ContentError: it is not JSON in UTF-8, or an object has a key twice.
    """
    try:
        decoded = str(text, "utf-8") if isinstance(text, bytes | bytearray) else text
        return json.loads(decoded, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        refuse("not JSON that can be read: nested too deep", ())
    except ContentError:
        raise
    except (TypeError, ValueError) as exc:
        raise ContentError(f"not JSON in UTF-8: {exc}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        refuse(f"the key {twice!r} stands twice in one object", ())
    return found


def _no_constant(text: str) -> NoReturn:
    refuse(f"not JSON: {text}; use null or text", ())
