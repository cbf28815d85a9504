"""The fields of a message in stored form: the allowed values and the default of each.

A tool call is `{id, name, arguments}`, a result `{name, result, call_id, status}` and, if it failed, `error`. Other keys are
kept. `ToolCall` and `ToolResult` are their typed forms. What a message cannot hold raises a `ContentError`, with its path.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from typing import Any, Literal, NoReturn, TypeAlias, cast

from antiphon.dialects.atlas._values import ContentError, Encoder, Path, decode_fields, refuse
from antiphon.messages import current_port

# ---------------------------------------------------------------- tool calls and results

ToolStatus: TypeAlias = Literal["success", "error"]
"""How a tool ended."""


def _new_id() -> str:
    return current_port().new_id()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool to run. The result refers to its id, which is generated if none is given."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    id: str = field(default_factory=_new_id)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of a tool call: a result, or the text of an error and no result.

    Raises:
        ValueError: the status is neither, an error has no text or has a result, or a success has an error.
    """

    name: str
    result: Any
    call_id: str
    status: ToolStatus = "success"
    error: str | None = None

    def __post_init__(self) -> None:
        _check_outcome(self.status, self.result, self.error, ())


def _check_outcome(status: object, result: object, error: object, path: Path) -> None:
    if status not in ("success", "error"):
        refuse(f"the status must be 'success' or 'error', not {status!r}", path)
    if status == "success" and error is not None:
        refuse("a result with an error must have the status 'error'", path)
    if status == "error" and not (isinstance(error, str) and error):
        refuse("the status 'error' needs the text of the error", path)
    if status == "error" and result is not None:
        refuse("the status 'error' has no result; put what there is to say into the error or the content", path)


def encode_call(value: object, encoder: Encoder, path: Path) -> dict[str, Any]:
    """Return a call in the stored form; it gets an id if it has none."""
    if isinstance(value, ToolCall):
        value = {"id": value.id, "name": value.name, "arguments": value.arguments}
    call = _known(value, ("id", "name", "arguments"), path, "a ToolCall or a dict")
    identity = _new_id() if call["id"] is None else call["id"]
    return {
        "id": encode_text(identity, encoder, (*path, "id")),
        "name": encode_text(call["name"], encoder, (*path, "name")),
        "arguments": encoder.fields({} if call["arguments"] is None else call["arguments"], (*path, "arguments")),
        **_others(call, ("id", "name", "arguments"), encoder, path),
    }


def decode_call(encoded: dict[str, Any]) -> dict[str, Any]:
    """Return a stored call as the caller sees it. Its arguments are an object, never a tag, whatever their keys."""
    rest = {**encoded, "arguments": None}
    return {**decode_fields(rest), "arguments": decode_fields(encoded["arguments"])}


def encode_result(value: object, encoder: Encoder, path: Path) -> dict[str, Any]:
    """Return a result in the stored form."""
    if isinstance(value, ToolResult):
        value = {"name": value.name, "result": value.result, "call_id": value.call_id, "status": value.status} | (
            {} if value.error is None else {"error": value.error}
        )
    result = {"status": "success", **_known(value, ("name", "result", "call_id"), path, "a ToolResult or a dict")}
    _check_outcome(result["status"], result["result"], result.get("error"), path)
    return {
        "name": encode_text(result["name"], encoder, (*path, "name")),
        "result": encoder.value(result["result"], (*path, "result")),
        "call_id": encode_text(result["call_id"], encoder, (*path, "call_id")),
        "status": encode_text(result["status"], encoder, (*path, "status")),
        **_others(result, ("name", "result", "call_id", "status"), encoder, path),
    }


def encode_text(value: object, encoder: Encoder, path: Path) -> str:
    """Return text that a message can hold."""
    if not isinstance(value, str):
        refuse(f"must be text, not {type(value).__name__}", path)
    return str(encoder.value(str.__str__(value), path))


def _known(value: object, names: tuple[str, ...], path: Path, expected: str) -> dict[object, object]:
    """Return a copy of a mapping, with None for missing keys."""
    if not isinstance(value, Mapping):
        refuse(f"must be {expected}, not {type(value).__name__}", path)
    return {**dict.fromkeys(names), **cast("Mapping[Any, Any]", value)}


def _others(fields: Mapping[object, object], names: tuple[str, ...], encoder: Encoder, path: Path) -> dict[str, object]:
    return encoder.fields({key: value for key, value in fields.items() if key not in names}, path)


# ---------------------------------------------------------------- all fields

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


def encode_message(value: object, encoder: Encoder) -> dict[str, object]:
    """Return all fields in the stored form, then the unknown ones."""
    if not isinstance(value, Mapping):
        refuse(f"a message is a dict, not {type(value).__name__}", ())
    fields = cast("Mapping[Any, Any]", value)
    if "content" not in fields:
        refuse("is missing; a message has at least a content", ("content",))
    encoded = {name: encode_field(name, fields.get(name), encoder) for name in FIELDS}
    return encoded | encoder.fields({key: value for key, value in fields.items() if key not in FIELDS}, ())


def encode_field(name: str, value: object, encoder: Encoder) -> Any:
    """Return one field in the stored form, with its default if None is given."""
    match name:
        case "metadata":
            return _encode_metadata(value, encoder)
        case "timestamp":
            return _encode_timestamp(value)
        case "tool_calls":
            return [encode_call(item, encoder, (name, index)) for index, item in enumerate(_listed(value, name))]
        case "tool_results":
            return [encode_result(item, encoder, (name, index)) for index, item in enumerate(_listed(value, name))]
        case "task_id" | "message_id" if value is None:
            return current_port().new_id()
        case "source_agent" | "target_agent" if value is None:
            return None
        case _:
            return encode_text(value, encoder, (name,))


def _encode_metadata(metadata: Any, encoder: Encoder) -> dict[str, Any]:
    encoded = encoder.fields({} if metadata is None else metadata, ("metadata",))
    kind = metadata.get("type") if metadata else None
    if isinstance(kind, Enum) and isinstance(kind.value, str):
        encoded["type"] = kind.value  # a type is text, even in a list that a program made
    return encoded


def _encode_timestamp(value: object) -> float:
    if value is None:
        return current_port().now().timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        refuse(f"must be seconds since 1970 as a number, not {type(value).__name__}", ("timestamp",))
    try:
        seconds = float(value)
    except OverflowError:
        seconds = float("inf")
    return seconds if isfinite(seconds) else refuse("is too large or no number; give seconds since 1970", ("timestamp",))


def _listed(value: object, name: str) -> list[object]:
    if value is None:
        return []
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        refuse(f"must be a list, not {type(cast('object', value)).__name__}", (name,))
    return list(cast("Iterable[Any]", value))


# ---------------------------------------------------------------- text


def parse(text: str | bytes) -> Any:
    """Return the value of a JSON text."""
    try:
        decoded = str(text, "utf-8") if isinstance(text, bytes | bytearray) else text
        return json.loads(decoded, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        refuse("not JSON that can be read: nested too deep", ())
    except ContentError:
        raise
    except (TypeError, ValueError) as exc:
        raise ContentError(f"not JSON in UTF-8: {exc}") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        refuse(f"the key {twice!r} stands twice in one object", ())
    return fields


def _no_constant(text: str) -> NoReturn:
    refuse(f"not JSON: {text}; use null or text", ())
