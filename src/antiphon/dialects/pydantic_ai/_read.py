"""Reads a request (each part becomes a message) or a response (each call becomes a message, and so do the parts between).

The instructions of a request are separate from its parts, and Pydantic AI repeats them on each request. Where they change,
they become a system message after the results with which the request begins: nothing may come between a call and its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias, cast

from antiphon.dialects._content import read_arguments
from antiphon.dialects._reading import CallFields, PartsFields, PayloadFields, Unit, as_object, kind_of
from antiphon.dialects.pydantic_ai._content import is_result, read_citations, read_file, read_invocation, read_result
from antiphon.dialects.pydantic_ai._wire import NAME, non_defaults, read_time, read_usage
from antiphon.messages import DataPart, ForeignPart, MediaPart, Part, ReasoningPart, TextPart, Usage
from antiphon.messages._json_values import canonical
from antiphon.messages._names import is_name

INSTRUCTIONS = "instructions"
"""The note on a message that was read from the instructions of a request, and on a request that clears earlier ones."""
AUDIO = "speech-audio"
"""The metadata of audio whose transcript precedes it."""
_REDACTED = ("redacted_thinking", "redacted_content")
"""Ids of thoughts that only their provider can read."""

_Path: TypeAlias = tuple[str | int, ...]
_VOICES = {"system-prompt": "system", "instruction-delta": "system", "user-prompt": "user", "speech": "user"}
"""The policy of a part of a request, by its kind; parts of all other kinds are by Pydantic AI itself."""
_USUAL = ("system-prompt", "user-prompt")
_TEXTUAL = ("system-prompt", "instruction-delta", "retry-feedback", "retry-prompt", "compaction")
"""Kinds of parts whose content is text; the content of a retry may also be a list of errors."""


class _Draft(NamedTuple):
    """The content of a message that is about to be made."""

    payload: PayloadFields
    policy: str
    role: str
    notes: dict[str, Any]
    time: datetime | None


def read(unit: Unit) -> None:
    """Make the messages of a request or a response."""
    match unit.value.get("kind"):
        case "request":
            _request(unit)
        case "response":
            _response(unit)
        case kind:
            unit.fail(f"expected 'request' or 'response', found {repr(kind)[:40]}", "kind")


def _parts(unit: Unit) -> list[dict[str, object]]:
    if not isinstance(unit.value.get("parts"), list):
        unit.fail(f"expected a list, found {kind_of(unit.value.get('parts'))}", "parts")
    parts = unit.objects("parts")
    for index, part in enumerate(parts):
        unit.text_in(part, "part_kind", ("parts", index))
    return parts


def _say(unit: Unit, drafts: Sequence[_Draft], usage: Usage | None = None) -> None:
    """Make all messages of a unit; the usage is that of the first message."""
    response_id, thread = unit.value.get("provider_response_id"), unit.value.get("conversation_id")
    if is_name(response_id):
        own_id = cast("str", response_id)
    else:
        own_id = f"{NAME}-{unit.position or 0}-{sha256(canonical(unit.value)).hexdigest()[:12]}"
    thread_id = cast("str", thread) if is_name(thread) else None
    turn = own_id if len(drafts) > 1 and unit.value["kind"] == "response" else None
    for payload, policy, role, notes, time in drafts:
        unit.say(
            payload,
            policy=policy,
            role_hint_for_llm=role,
            id=own_id,
            turn_id=turn,
            thread_id=thread_id,
            created_at=time,
            usage=usage,
            metadata={NAME: notes},
        )
        usage = None


# ---------------------------------------------------------------- requests


def _request(unit: Unit) -> None:
    time = read_time(unit.value.get("timestamp"))
    words, is_without = _instructions(unit)
    waiting = (
        [] if words is None else [_Draft(_spoken([TextPart(text=words)]), "system", "system", {INSTRUCTIONS: "here"}, time)]
    )
    drafts: list[_Draft] = []
    for index, part in enumerate(_parts(unit)):
        if waiting and not is_result(part):
            drafts.append(waiting.pop())
        drafts.append(_of_request(unit, part, ("parts", index), time))
    drafts += waiting
    if not drafts:
        drafts.append(_Draft(_spoken([]), "user", "user", {}, time))
    if is_without:
        drafts[0].notes[INSTRUCTIONS] = "none"
    _say(unit, drafts)


def _instructions(unit: Unit) -> tuple[str | None, bool]:
    """Return instructions that are new, and whether there are none though some were given before."""
    words = unit.maybe_text("instructions") or None
    last = unit.reading.memory.get(INSTRUCTIONS)
    if words is None:
        return None, last is not None
    unit.reading.memory[INSTRUCTIONS] = words
    return None if words == last else words, False


def _spoken(parts: list[Part]) -> PartsFields:
    return {"kind": "parts", "parts": parts}


def _of_request(unit: Unit, part: dict[str, Any], path: _Path, time: datetime | None) -> _Draft:
    kind = part["part_kind"]
    if "timestamp" in part:
        time = read_time(part["timestamp"])
    if is_result(part):
        payload, notes = read_result(unit, part, path)
        return _Draft(payload, payload["option_name"], "tool", notes, time)
    parts, notes = _content(unit, part, path) if kind == "user-prompt" else (_textual(unit, part, path), {})
    policy = _VOICES.get(kind, "runtime")
    role = "system" if policy == "system" else "user"
    if parts is None:
        return _Draft(_spoken([ForeignPart(dialect=NAME, value=part)]), "runtime", "user", {}, time)
    if kind != "speech":
        notes |= non_defaults(part, kind) if kind in _USUAL else {"kind": kind, **non_defaults(part, kind)}
    return _Draft(_spoken(parts), policy, role, notes, time)


def _textual(unit: Unit, part: dict[str, Any], path: _Path) -> list[Part] | None:
    """Return the content of a part; None for a part that is only bookkeeping."""
    kind, content = part["part_kind"], part.get("content")
    if kind == "speech":
        return _speech(unit, part, path) or None
    if kind not in _TEXTUAL or (content is None and kind in ("compaction", "instruction-delta")):
        return None
    if isinstance(content, list) and kind in ("retry-feedback", "retry-prompt"):
        return [DataPart(data=cast("Any", content))]
    return [TextPart(text=unit.text_in(part, "content", path))]


def _content(unit: Unit, part: dict[str, Any], path: _Path) -> tuple[list[Part] | None, dict[str, Any]]:
    content = part.get("content")
    if isinstance(content, str):
        return [TextPart(text=content)], {}
    if not isinstance(content, list):
        unit.fail(f"expected text or a list, found {kind_of(content)}", *path, "content")
    items = cast("list[Any]", content)
    parts = [_item(unit, item, (*path, "content", index)) for index, item in enumerate(items)]
    return parts, {"list": True} if len(items) <= 1 else {}


def _item(unit: Unit, value: Any, path: _Path) -> Part:
    if isinstance(value, str):
        return TextPart(text=value)
    item = as_object(value)
    if item is None:
        unit.fail(f"expected text or an object, found {kind_of(value)}", *path)
    match item.get("kind"):
        case "text-content":
            notes = {"kind": "text-content", **non_defaults(item, "text-content")}
            return TextPart(text=unit.text_in(item, "content", path), metadata={NAME: notes})
        case "structured-content" if "value" in item:
            notes = non_defaults(item, "structured-content")
            return DataPart(data=item["value"], metadata={NAME: notes} if notes else {})
        case _:
            return read_file(item) or ForeignPart(dialect=NAME, value=item)


# ---------------------------------------------------------------- responses


def _response(unit: Unit) -> None:
    time = read_time(unit.value.get("timestamp"))
    drafts: list[_Draft] = []
    run: list[Part] = []
    for index, part in enumerate(_parts(unit)):
        if part["part_kind"] != "tool-call":
            run += _of_response(unit, part, ("parts", index))
            continue
        if run:
            drafts.append(_Draft(_spoken(run), "assistant", "assistant", {}, time))
            run = []
        payload, notes = _call(unit, part, ("parts", index))
        drafts.append(_Draft(payload, "assistant", "assistant", notes, time))
    if run or not drafts:
        drafts.append(_Draft(_spoken(run), "assistant", "assistant", {}, time))
    _say(unit, drafts, read_usage(unit.value.get("usage")))


def _of_response(unit: Unit, part: dict[str, Any], path: _Path) -> Sequence[Part]:
    match part["part_kind"]:
        case "text":
            notes = non_defaults(part, "text")
            text, citations = unit.text_in(part, "content", path), read_citations(part.get("citations"))
            return [TextPart(text=text, citations=citations, metadata={NAME: notes} if notes else {})]
        case "thinking":
            return [_thought(unit, part, path)]
        case "file":
            file = read_file(as_object(part.get("content")) or {})
            return [ForeignPart(dialect=NAME, value=part) if file is None else _noted(file, non_defaults(part, "file"))]
        case "speech":
            return _speech(unit, part, path) or [ForeignPart(dialect=NAME, value=part)]
        case _:
            return [ForeignPart(dialect=NAME, value=part)]


def _thought(unit: Unit, part: dict[str, Any], path: _Path) -> ReasoningPart:
    signature = part.get("signature")
    proof = signature if isinstance(signature, str) else None
    text, metadata = unit.text_in(part, "content", path), {NAME: non_defaults(part, "thinking")}
    if part.get("id") in _REDACTED:
        return ReasoningPart(text=text, encrypted_content=proof, metadata=metadata)
    return ReasoningPart(text=text, signature=proof, metadata=metadata)


def _speech(unit: Unit, part: dict[str, Any], path: _Path) -> list[Part]:
    """Return speech: its transcript, its audio, or both; nothing if neither was stored."""
    notes = {"kind": "speech", **non_defaults(part, "speech")}
    parts: list[Part] = []
    if part.get("transcript") is not None:
        parts.append(TextPart(text=unit.text_in(part, "transcript", path), metadata={NAME: {"part": notes}}))
    sound = read_file(as_object(part.get("audio")) or {})
    if sound is not None:
        parts.append(_noted(sound, {"kind": AUDIO} if parts else notes))
    return parts


def _noted(part: MediaPart, notes: dict[str, Any]) -> MediaPart:
    """Return a file with the metadata of the part that contained it, besides its own."""
    if not notes:
        return part
    return part.model_copy(update={"metadata": {NAME: {**part.metadata.get(NAME, {}), "part": notes}}})


def _call(unit: Unit, part: dict[str, Any], path: _Path) -> tuple[CallFields, dict[str, Any]]:
    args = part.get("args")
    if args is not None and not isinstance(args, str | dict):
        unit.fail(f"expected an object or its text, found {kind_of(args)}", *path, "args")
    arguments, text = read_arguments(args) if isinstance(args, str) else (cast("dict[str, Any]", args or {}), None)
    payload: CallFields = {
        "kind": "option_call",
        "invocation_id": read_invocation(unit, part, path),
        "option_name": unit.alias(unit.text_in(part, "tool_name", path)),
        "arguments": arguments,
        "arguments_text": text,
    }
    form = {} if isinstance(args, dict) else {"args": "none" if args is None else "text"}
    return payload, {**form, **non_defaults(part, "tool-call")}
