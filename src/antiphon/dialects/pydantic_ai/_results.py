"""Reads and writes the return of a tool: JSON that may contain files, and its outcome. `failed` and `retried` are errors.

A return that is a file, or a list with files in it, is read as parts in order: text, files and data. Files deeper inside data
stay data. Their digests are kept, so that Pydantic AI recognises them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from antiphon.dialects._content import described, error_of, error_text, json_text
from antiphon.dialects._reading import OutcomeFields, ResultFields, Unit, as_object, fresh, kind_of
from antiphon.dialects._writing import BodyWriting
from antiphon.dialects.pydantic_ai._content import digest, is_recorded, read_file, write_file
from antiphon.dialects.pydantic_ai._wire import NAME, kept, spelled, write_time
from antiphon.messages import DataPart, ForeignPart, MediaPart, Message, OptionResultPayload, Part, TextPart
from antiphon.messages.json_values import JsonError, parse

DIGESTS = "content_file_digests"
_SCALARS = (str, int, float, bool, type(None))


def is_result(part: Mapping[str, Any]) -> bool:
    """Whether a part answers a call; a legacy retry prompt does, if it names the tool."""
    return part["part_kind"] == "tool-return" or (part["part_kind"] == "retry-prompt" and part.get("tool_name") is not None)


def text_in(unit: Unit, part: Mapping[str, Any], key: str, path: Sequence[str | int]) -> str:
    """Return a text that must be there."""
    value = part.get(key)
    return value if isinstance(value, str) else unit.fail(f"expected text, found {kind_of(value)}", *path, key)


# ---------------------------------------------------------------- reading


def read_result(unit: Unit, part: dict[str, Any], path: Sequence[str | int]) -> tuple[ResultFields, dict[str, Any]]:
    """Return the fields of the payload, and the metadata of the message."""
    given = part.get("tool_call_id")
    if given is not None and not isinstance(given, str):
        unit.fail(f"expected text, found {kind_of(given)}", *path, "tool_call_id")
    payload: ResultFields = {
        "kind": "option_result",
        "invocation_id": unit.alias(given or f"{NAME}-{unit.position or 0}-{path[-1]}"),
        "option_name": unit.alias(text_in(unit, part, "tool_name", path)),
    }
    is_legacy = part["part_kind"] == "retry-prompt"
    outcome = "retried" if is_legacy else part.get("outcome")
    said, notes = _error(part, str(outcome)) if outcome in ("failed", "retried") else _success(part)
    if is_legacy:
        return {**payload, **said}, {**notes, "kind": "retry-prompt"}
    if outcome not in ("success", "failed", "retried") and isinstance(outcome, str):
        notes["outcome"] = outcome
    return {**payload, **said}, {**notes, **kept(part, "tool-return")}


def _success(part: dict[str, object]) -> tuple[OutcomeFields, dict[str, object]]:
    content, parts, notes = part.get("content"), *_shown(part)
    return ({"result": content}, notes) if parts is None else ({"parts": parts}, notes)


def _error(part: dict[str, object], outcome: str) -> tuple[OutcomeFields, dict[str, object]]:
    content, parts, notes = part.get("content"), *_shown(part)
    shown = parts or []
    if parts is None:
        words = "" if content is None else json_text(content)
        if not isinstance(content, str | None):
            notes["json"] = True
    else:
        words = parts[0].text if isinstance(parts[0], TextPart) else ""
        shown = parts[1:] if words else parts
    error_type, message = error_of(words)
    said: OutcomeFields = {"is_error": True, "error_type": error_type, "error_message": message, "parts": shown}
    if outcome == "retried":
        said["retryable"] = True
    return said, notes


def _shown(part: dict[str, Any]) -> tuple[list[Part] | None, dict[str, Any]]:
    """Return content as parts, if it contains files; and metadata for what the parts do not show."""
    content, record = part.get("content"), part.get(DIGESTS)
    digests = cast("list[Any]", record) if isinstance(record, list) else None
    items: list[object] = cast("list[Any]", content) if isinstance(content, list) else [content]
    files = [_file(item, digests) for item in items]
    seen = {digest(item) for item, file in zip(items, files, strict=True) if file is not None}
    more = sorted({each for each in digests or () if isinstance(each, str) and each not in seen})
    notes: dict[str, object] = {"digests": more} if more else {}
    if not any(files):
        return None, notes
    if content is items and len(items) == 1:
        notes["list"] = True
    return [file or _said(item) for item, file in zip(items, files, strict=True)], notes


def _file(item: object, digests: list[object] | None) -> MediaPart | None:
    given = as_object(item)
    return read_file(given) if given is not None and is_recorded(given, digests) else None


def _said(item: Any) -> Part:
    return TextPart(text=item) if isinstance(item, str) else DataPart(data=item)


# ---------------------------------------------------------------- writing


def write_result(
    message: Message, payload: OptionResultPayload, notes: Mapping[str, Any], writing: BodyWriting
) -> dict[str, object]:
    """Write the return of a tool."""
    content, digests = _content(payload, notes, writing)
    written: dict[str, Any] = {
        "tool_name": writing.aliases.option(payload.option_name),
        "content": content,
        "tool_call_id": writing.aliases.invocation(message),
        "timestamp": write_time(message.created_at),
    }
    if notes.get("kind") == "retry-prompt":
        return {**written, "part_kind": "retry-prompt"}
    written |= spelled("tool-return", notes)
    written["outcome"] = _outcome(payload, notes)
    written["part_kind"] = "tool-return"
    if type(content) not in _SCALARS:
        written[DIGESTS] = sorted({*digests, *notes.get("digests", ())})
    return written


def _outcome(payload: OptionResultPayload, notes: Mapping[str, object]) -> str:
    if not payload.is_error:
        return str(notes.get("outcome", "success"))
    return "retried" if payload.retryable else "failed"


def _content(payload: OptionResultPayload, notes: Mapping[str, Any], writing: BodyWriting) -> tuple[Any, list[str]]:
    """Return the content, and the digests of the files in it that need one."""
    said = _error_content(payload, notes) if payload.is_error else fresh(payload, "result")
    if not payload.parts:
        return said, []
    items: list[object] = [] if said is None or said == "" else [said]
    digests: list[str] = []
    for part in payload.parts:
        match part:
            case TextPart():
                items.append(part.text)
            case DataPart():
                items.append(fresh(part, "data"))
            case MediaPart():
                file = write_file(part, writing)
                items.append(described(part) if file is None else file)
                digests += [digest(file)] if file is not None and file["kind"] != "binary" else []
            case ForeignPart() if part.dialect == NAME:
                items.append(writing.own(part))
            case _:
                pass
    if len(items) == 1 and "list" not in notes:
        return items[0], digests
    return items or said, digests


def _error_content(payload: OptionResultPayload, notes: Mapping[str, object]) -> object:
    """Return an error as text; as JSON, if the text is JSON and the original was."""
    words = error_text(payload)
    if notes.get("json"):
        try:
            return parse(words.encode())
        except JsonError:
            pass
    return words
