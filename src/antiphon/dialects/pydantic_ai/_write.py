"""Writes requests and responses, with every default in them.

An utterance of the assistant is a response. All results that follow it are one request. Every other message is a separate
request, so that a longer history begins like a shorter one; Pydantic AI joins adjacent requests when it sends them.
Instructions that were read from a request apply until the next ones, and are written on every request: Pydantic AI uses those
of the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from antiphon.dialects._content import arguments_text, described, text_of
from antiphon.dialects._reading import as_object, fresh
from antiphon.dialects._writing import BodyWriting
from antiphon.dialects.pydantic_ai._content import write_citations, write_file, write_result
from antiphon.dialects.pydantic_ai._read import AUDIO, INSTRUCTIONS
from antiphon.dialects.pydantic_ai._wire import NAME, NOT_IN_REQUESTS, NOT_IN_RESPONSES, with_defaults, write_time, write_usage
from antiphon.messages import (
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    ReasoningPart,
    TextPart,
)
from antiphon.messages._unchecked import json_text_of

OPTIONS = frozenset({"media_labels"})
_ESCAPES = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})
_NONE: Mapping[str, Any] = {}
_TIMED = ("system-prompt", "user-prompt", "retry-feedback", "retry-prompt")


def invocation_in(part: dict[str, object]) -> object:
    """Return the invocation that a part is the call or the result of."""
    return part.get("tool_call_id")


def write(group: Sequence[Message], writing: BodyWriting) -> list[dict[str, Any]]:
    """Write messages that belong together: one unit, or several if a viewpoint gives them different roles."""
    if len(group) == 1:
        return _unit(group, writing)
    sides = groupby(group, lambda message: writing.role(message) == "assistant")
    return [unit for _, messages in sides for unit in _unit(list(messages), writing)]


def _unit(group: Sequence[Message], writing: BodyWriting) -> list[dict[str, object]]:
    unit = _response(group, writing) if writing.role(group[0]) == "assistant" else _request(group, writing)
    return [] if unit is None else [unit]


# ---------------------------------------------------------------- requests


def _request(group: Sequence[Message], writing: BodyWriting) -> dict[str, object] | None:
    parts: list[dict[str, object]] = []
    has_words = False
    for message in group:
        notes = writing.notes(message)
        if type(message.payload) is OptionResultPayload:
            parts.append(write_result(message, message.payload, notes, writing))
        elif notes.get(INSTRUCTIONS) == "here":
            writing.memory[INSTRUCTIONS] = _words(message) or None
            has_words = True
        elif writing.role(message) == "system":
            parts += _system(message, notes, writing)
        else:
            parts += _user(message, notes, writing)
    if not parts and not has_words and not writing.is_native(group[0]):
        return None
    is_without = writing.notes(group[0]).get(INSTRUCTIONS) == "none"
    return {
        "parts": parts,
        "timestamp": None,
        "instructions": None if is_without else writing.memory.get(INSTRUCTIONS),
        "kind": "request",
        "run_id": None,
        "conversation_id": group[0].thread_id,
        "metadata": None,
        "state": "complete",
    }


def _words(message: Message) -> str:
    return "\n".join(line for part in message.parts for line in _line(part))


def _line(part: Part) -> Iterable[str]:
    match part:
        case TextPart() | DataPart():
            return (text_of(part),)
        case MediaPart():
            return (described(part),)
        case _:
            return ()


def _system(message: Message, notes: Mapping[str, Any], writing: BodyWriting) -> list[dict[str, object]]:
    foreign = [value for part in message.parts if (value := _foreign(part, NOT_IN_REQUESTS, writing)) is not None]
    if not any(_line(part) for part in message.parts):
        return foreign
    return [_request_part(message, notes.get("kind", "system-prompt"), _words(message), notes), *foreign]


def _request_part(message: Message, kind: str, content: Any, notes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part of a request with its content, and with its time if parts of that kind have one."""
    part = {"content": content, **with_defaults(kind, notes), "part_kind": kind}
    if kind in _TIMED:
        part["timestamp"] = write_time(message.created_at)
    return part


def _user(message: Message, notes: Mapping[str, Any], writing: BodyWriting) -> list[dict[str, object]]:
    if "kind" in notes:
        only = message.parts[0] if len(message.parts) == 1 else None
        content = fresh(only, "data") if isinstance(only, DataPart) else _words(message)
        return [_request_part(message, notes["kind"], content, notes)]
    written: list[dict[str, Any]] = []
    items: list[Any] = []
    for part in writing.labelled(message.parts):
        foreign = _foreign(part, NOT_IN_REQUESTS, writing)
        if foreign is None and not _is_spoken(part, writing):
            items += _item(part, writing)
            continue
        if items:
            written.append(_prompt(message, items, notes))
            items = []
        if foreign is None:
            _add_speech(part, written, "user", writing)
        else:
            written.append(foreign)
    return [*written, _prompt(message, items, notes)] if items or "list" in notes else written


def _prompt(message: Message, items: list[object], notes: Mapping[str, object]) -> dict[str, object]:
    is_plain = len(items) == 1 and type(items[0]) is str and "list" not in notes
    return _request_part(message, "user-prompt", items[0] if is_plain else items, notes)


def _item(part: Part, writing: BodyWriting) -> list[object]:
    """Return a piece of a user's content."""
    match part:
        case TextPart():
            notes = writing.notes(part)
            is_tagged = notes.get("kind") == "text-content"
            return [_tagged("text-content", {"content": part.text}, notes) if is_tagged else part.text]
        case DataPart():
            return [_data(part, writing)]
        case MediaPart():
            return [write_file(part, writing) or described(part)]
        case ForeignPart() if part.dialect == NAME:
            value = as_object(writing.foreign_value(part))
            return [] if value is None or "part_kind" in value else [value]
        case _:
            return []


def _tagged(kind: str, fields: dict[str, object], notes: Mapping[str, object]) -> dict[str, object]:
    return {**fields, **with_defaults(kind, notes), "kind": kind}


def _data(part: DataPart, writing: BodyWriting) -> dict[str, object]:
    """Return data, and the text that Pydantic AI makes of it for models that take only text."""
    notes = writing.notes(part)
    text = json_text_of(part, "data").translate(_ESCAPES)
    if (tag := notes.get("tag")) is not None:
        text = f"<{tag}>{text}</{tag}>"
    if (description := notes.get("description")) is not None:
        text = f"{description}\n{text}"
    return _tagged("structured-content", {"value": fresh(part, "data"), "content": text}, notes)


# ---------------------------------------------------------------- speech, and parts that only this format knows


def _foreign(part: Part, misplaced: frozenset[str], writing: BodyWriting) -> dict[str, object] | None:
    """Return a part that was kept complete, if its kind is allowed in a request or response."""
    if not isinstance(part, ForeignPart) or part.dialect != NAME:
        return None
    value = as_object(writing.foreign_value(part)) or {}
    return value if isinstance(value.get("part_kind"), str) and value["part_kind"] not in misplaced else None


def _is_spoken(part: Part, writing: BodyWriting) -> bool:
    return isinstance(part, TextPart | MediaPart) and _note(part, writing).get("kind") in ("speech", AUDIO)


def _note(part: Part, writing: BodyWriting) -> Mapping[str, object]:
    """Return the metadata of the part that contained it."""
    noted: Mapping[str, object] = writing.notes(part).get("part", _NONE)
    return noted


def _add_speech(part: Part, written: list[dict[str, object]], speaker: str, writing: BodyWriting) -> None:
    """Add a transcript, or audio; audio is added to the transcript before it, if it belongs to it."""
    notes = _note(part, writing)
    file = write_file(part, writing) if isinstance(part, MediaPart) else None
    sound = file if file is not None and file["kind"] == "binary" else None
    last = written[-1] if written else _NONE
    if notes["kind"] == AUDIO and last.get("part_kind") == "speech" and last["audio"] is None:
        written[-1]["audio"] = sound
        return
    words = part.text if isinstance(part, TextPart) else None
    speech = {"speaker": speaker, "transcript": words, "audio": sound}
    written.append({**speech, **with_defaults("speech", notes), "part_kind": "speech"})


# ---------------------------------------------------------------- responses


def _response(group: Sequence[Message], writing: BodyWriting) -> dict[str, object] | None:
    parts: list[dict[str, object]] = []
    for message in group:
        if type(message.payload) is OptionCallPayload:
            parts.append(_call(message, message.payload, writing))
            continue
        for part in message.parts:
            _answer(part, parts, writing)
    first = group[0]
    if not parts and not writing.is_native(first):
        return None
    return {
        "parts": parts,
        "usage": write_usage(first.usage),
        "model_name": None,
        "model_id": None,
        "timestamp": write_time(first.created_at),
        "kind": "response",
        "provider_name": None,
        "provider_url": None,
        "canonical_system": None,
        "provider_details": None,
        "provider_response_id": None,
        "finish_reason": None,
        "run_id": None,
        "conversation_id": first.thread_id,
        "metadata": None,
        "workspace_ref": None,
        "history_digest": None,
        "failed_attempts": None,
        "state": "complete",
    }


def _answer(part: Part, written: list[dict[str, object]], writing: BodyWriting) -> None:
    """Add a part of the assistant's message."""
    if _is_spoken(part, writing):
        _add_speech(part, written, "assistant", writing)
        return
    match part:
        case TextPart():
            text = {"content": part.text, **with_defaults("text", writing.notes(part)), "part_kind": "text"}
            written.append({**text, "citations": write_citations(part.citations)})
        case DataPart():
            written.append(_text(text_of(part)))
        case MediaPart():
            written.append(_file(part, writing) or _text(described(part)))
        case ReasoningPart():
            written += _thought(part, writing)
        case _:
            foreign = _foreign(part, NOT_IN_RESPONSES, writing)
            written += [] if foreign is None else [foreign]


def _text(text: str) -> dict[str, Any]:
    return {"content": text, **with_defaults("text", _NONE), "citations": None, "part_kind": "text"}


def _file(part: MediaPart, writing: BodyWriting) -> dict[str, object] | None:
    """Return a file that the model made: it is always given as bytes."""
    file = write_file(part, writing)
    if file is None or file["kind"] != "binary":
        return None
    return {"content": file, **with_defaults("file", _note(part, writing)), "part_kind": "file"}


def _thought(part: ReasoningPart, writing: BodyWriting) -> list[dict[str, Any]]:
    """Return a thought, with its signature if it came from this format; None if it has neither text nor signature."""
    is_own = NAME in part.metadata
    if not is_own and not part.text:
        return []
    proof = (part.signature or part.encrypted_content) if is_own else None
    thought = {"content": part.text, "signature": proof, **with_defaults("thinking", writing.notes(part))}
    return [{**thought, "part_kind": "thinking"}]


def _call(message: Message, call: OptionCallPayload, writing: BodyWriting) -> dict[str, object]:
    notes = writing.notes(message)
    return {
        "tool_name": writing.aliases.option(call.option_name),
        "args": _arguments(call, notes.get("args")),
        "tool_call_id": writing.aliases.invocation(message),
        **with_defaults("tool-call", notes),
        "part_kind": "tool-call",
    }


def _arguments(call: OptionCallPayload, form: str | None) -> object:
    """Return arguments in their original form: an object, its text, or null. Those of other formats are an object."""
    if call.arguments_text is not None or form == "text":
        return arguments_text(call)
    return None if form == "none" and not call.arguments else fresh(call, "arguments")
