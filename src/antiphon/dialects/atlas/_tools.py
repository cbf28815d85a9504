"""Tool calls and their results: the typed way to say them, and the form in which a message keeps them.

A call is `{id, name, arguments}`, a result `{name, result, call_id, status}` and, if it failed, `error`. Other keys are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from antiphon.dialects.atlas._values import decode_fields, refuse
from antiphon.messages import current_port

if TYPE_CHECKING:
    from antiphon.dialects.atlas._values import Encoder, Path

__all__ = ["ToolCall", "ToolResult", "ToolStatus", "decode_call", "encode_call", "encode_result", "encode_text"]

ToolStatus: TypeAlias = Literal["success", "error"]
"""How a tool ended."""


def _no_arguments() -> dict[str, Any]:
    return {}


def _new_id() -> str:
    return current_port().new_id()


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool to be run. Its id, made if none is given, is what the result names."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=_no_arguments)
    id: str = field(default_factory=_new_id)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of a tool call: a result, or the text of an error and no result.

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


def encode_call(given: object, encoder: Encoder, path: Path) -> dict[str, Any]:
    """Return a call in the form a message keeps; it gets an id if it has none.

    Raises:
        ContentError: it is not a call, or holds something that cannot be written.
    """
    if isinstance(given, ToolCall):
        given = {"id": given.id, "name": given.name, "arguments": given.arguments}
    call = _known(given, ("id", "name", "arguments"), path, "a ToolCall or a dict")
    identity = _new_id() if call["id"] is None else call["id"]
    return {
        "id": encode_text(identity, encoder, (*path, "id")),
        "name": encode_text(call["name"], encoder, (*path, "name")),
        "arguments": encoder.fields({} if call["arguments"] is None else call["arguments"], (*path, "arguments")),
        **_others(call, ("id", "name", "arguments"), encoder, path),
    }


def decode_call(encoded: dict[str, Any]) -> dict[str, Any]:
    """Return a kept call as it is given out. Its arguments are an object, never a tag, whatever their keys."""
    rest = {**encoded, "arguments": None}
    return {**decode_fields(rest), "arguments": decode_fields(encoded["arguments"])}


def encode_result(given: object, encoder: Encoder, path: Path) -> dict[str, Any]:
    """Return a result in the form a message keeps.

    Raises:
        ContentError: it is not a result, or holds something that cannot be written.
    """
    if isinstance(given, ToolResult):
        given = {"name": given.name, "result": given.result, "call_id": given.call_id, "status": given.status} | (
            {} if given.error is None else {"error": given.error}
        )
    result = {"status": "success", **_known(given, ("name", "result", "call_id"), path, "a ToolResult or a dict")}
    _check_outcome(result["status"], result["result"], result.get("error"), path)
    return {
        "name": encode_text(result["name"], encoder, (*path, "name")),
        "result": encoder.value(result["result"], (*path, "result")),
        "call_id": encode_text(result["call_id"], encoder, (*path, "call_id")),
        "status": encode_text(result["status"], encoder, (*path, "status")),
        **_others(result, ("name", "result", "call_id", "status"), encoder, path),
    }


def encode_text(given: object, encoder: Encoder, path: Path) -> str:
    """Return text that a message can hold.

    Raises:
        ContentError: it is not text.
    """
    if not isinstance(given, str):
        refuse(f"must be text, not {type(given).__name__}", path)
    return str(encoder.value(str.__str__(given), path))


def _known(given: object, names: tuple[str, ...], path: Path, expected: str) -> dict[Any, Any]:
    """Return a copy of a mapping, with None for what it does not have."""
    if not isinstance(given, Mapping):
        refuse(f"must be {expected}, not {type(given).__name__}", path)
    return {**dict.fromkeys(names), **cast("Mapping[Any, Any]", given)}


def _others(given: Mapping[Any, Any], names: tuple[str, ...], encoder: Encoder, path: Path) -> dict[str, Any]:
    return encoder.fields({key: value for key, value in given.items() if key not in names}, path)
