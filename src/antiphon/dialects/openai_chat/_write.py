"""Writes chat messages: one per utterance with its calls, one per result, and a user message for the media of results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.checks._findings import is_native
from antiphon.dialects._body import Body, continues_utterance
from antiphon.dialects._content import (
    arguments_text,
    described,
    file_id,
    mime_of,
    outcome_text,
    shown_below,
    split_data_url,
    text_of,
)
from antiphon.dialects._meaning import continued, is_refusal
from antiphon.dialects._writing import BodyWriting
from antiphon.dialects.openai_chat._read import AUDIO, FILE, NAME
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
    Tool,
    thaw,
)

OPTIONS = frozenset({"image_detail", "media_labels", "model"})
_TEXT = frozenset({"type", "text"})
_LEGACY = "legacy"
_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}


def together(group: Sequence[Message], message: Message) -> bool:
    """Return whether a message belongs to the current unit; results of other formats do: their media follow all of them."""
    if message.payload.kind == "option_result" and group[-1].payload.kind == "option_result":
        return not is_native(message, NAME) and not is_native(group[-1], NAME)
    return continues_utterance(group, message)


def invocation_in(item: dict[str, object]) -> object:
    """Return the invocation of an item of a message that is a call."""
    return item.get("id")


def write(group: Sequence[Message], writing: BodyWriting) -> list[dict[str, Any]]:
    first = group[0]
    if type(first.payload) is OptionResultPayload:
        answers = [_answer(message, writing) for message in group]
        media = [part for _, shown in answers for part in shown]
        return [*(unit for unit, _ in answers), *([{"role": "user", "content": media}] if media else [])]
    role = writing.role(first)
    return _assistant(group, writing) if role == "assistant" else [_talk(first, role, writing)]


def named(unit: dict[str, object], message: Message, writing: BodyWriting) -> dict[str, Any]:
    """Return a unit with the name of the speaker, if it differs from the role."""
    policy = message.__dict__["policy"]
    if policy != unit["role"]:
        unit["name"] = writing.aliases.speakers[policy]
    return unit


def _talk(message: Message, role: str, writing: BodyWriting) -> dict[str, object]:
    content: Any = [part for message_part in writing.labelled(message.parts) for part in _part(message_part, role, writing)]
    if not content or (len(content) == 1 and content[0].keys() == _TEXT and "list" not in writing.notes(message)):
        content = content[0]["text"] if content else ""
    return named({"role": role, "content": content}, message, writing)


def _part(part: Part, role: str, writing: BodyWriting) -> list[dict[str, Any]]:
    match part:
        case TextPart() | DataPart():
            return [{"type": "text", "text": text_of(part)}]
        case MediaPart():
            shown = _medium(part, writing) if role == "user" else None
            return [shown or {"type": "text", "text": described(part)}]
        case ForeignPart() if part.dialect == NAME:
            return [writing.foreign_value(part)]
        case _:
            return []


def _medium(part: MediaPart, writing: BodyWriting) -> dict[str, Any] | None:
    detail = writing.setting(part, "detail", "openai-responses", "pydantic-ai") or writing.options.get("image_detail")
    return write_medium(part, detail)


def write_medium(part: MediaPart, detail: object) -> dict[str, Any] | None:
    """Return a medium as a part of a content, an image with its detail; None if the format does not accept it."""
    split = split_data_url(part.url)
    if part.modality == "image" and (split or part.url[:4].lower() == "http"):
        return {"type": "image_url", "image_url": {"url": part.url, **({"detail": detail} if detail else {})}}
    if part.modality == "audio" and split and (sound := _SOUNDS.get(mime_of(part))):
        return {"type": "input_audio", "input_audio": {"data": split[1], "format": sound}}
    name = {"filename": named} if (named := part.file_name) else {}
    if split and part.modality == "document":
        return {"type": "file", "file": {"file_data": part.url, **name}}
    if (file := file_id(part.url, FILE)) is not None:
        return {"type": "file", "file": {"file_id": file, **name}}
    return None


# ---------------------------------------------------------------- the assistant's text and calls


def _assistant(group: Sequence[Message], writing: BodyWriting) -> list[dict[str, object]]:
    """Return the assistant message; none if nothing of it can be written."""
    calls = [_call(message, writing) for message in group if type(message.payload) is OptionCallPayload]
    unit: dict[str, Any] = {"role": "assistant", "content": None}
    texts: list[dict[str, Any]] = []
    for message in group:
        goes_on = frozenset[int]() if writing.is_native(message) else continued(message)
        for part in message.parts:
            if id(part) in goes_on and isinstance(part, TextPart) and texts and texts[-1].keys() == _TEXT:
                texts[-1]["text"] += part.text
            else:
                _say(part, unit, texts, writing)
    if texts:
        is_plain = len(texts) == 1 and texts[0].keys() == _TEXT and "list" not in writing.notes(group[0])
        unit["content"] = texts[0]["text"] if is_plain else texts
    elif not calls and len(unit) == 2:  # noqa: PLR2004 (nothing but role and content)
        if not writing.is_native(group[0]):
            return []
        unit["content"] = ""
    for call in calls:
        if "function" in call and call["id"] is None:
            unit["function_call"] = call["function"]
    if modern := [call for call in calls if call["id"] is not None]:
        unit["tool_calls"] = modern
    return [named(unit, group[0], writing)]


def _say(part: Part, unit: dict[str, Any], texts: list[dict[str, Any]], writing: BodyWriting) -> None:
    notes = writing.notes(part)
    match part:
        case TextPart() if notes.get("refusal") == "field":
            unit["refusal"] = part.text
        case TextPart() if notes.get("refusal") == "part":
            texts.append({"type": "refusal", "refusal": part.text})
        case TextPart() if is_refusal(part):
            unit["refusal"] = part.text
        case TextPart() | DataPart():
            texts.append({"type": "text", "text": text_of(part)})
        case ReasoningPart() if "key" in notes:
            unit[notes["key"]] = part.text
        case MediaPart() if (audio := file_id(part.url, AUDIO)) is not None:
            unit["audio"] = {"id": audio}
        case MediaPart():
            texts.append({"type": "text", "text": described(part)})
        case ForeignPart() if part.dialect == NAME:
            texts.append(writing.foreign_value(part))
        case _:
            pass


def _call(message: Message, writing: BodyWriting) -> dict[str, object]:
    call = message.payload
    assert isinstance(call, OptionCallPayload)  # noqa: S101 (what a group holds besides parts)
    notes = writing.notes(message)
    name, text = writing.aliases.option(call.option_name), arguments_text(call)
    if notes.get("custom"):
        return {"id": writing.aliases.invocation(message), "type": "custom", "custom": {"name": name, "input": text}}
    if notes.get("legacy"):
        writing.memory[_LEGACY, call.invocation_id] = True
    invocation = None if notes.get("legacy") else writing.aliases.invocation(message)
    return {"id": invocation, "type": "function", "function": {"name": name, "arguments": text}}


# ---------------------------------------------------------------- results


def _answer(message: Message, writing: BodyWriting) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the tool message, and its media for a user message."""
    outcome = message.payload
    assert isinstance(outcome, OptionResultPayload)  # noqa: S101 (what a group of results holds)
    unit: dict[str, object] = {"role": "tool", "content": outcome_text(outcome)}
    unit["tool_call_id"] = writing.aliases.invocation(message)
    if writing.notes(message).get("legacy") or (_LEGACY, outcome.invocation_id) in writing.memory:
        unit = {"role": "function", "name": writing.aliases.option(outcome.option_name), "content": unit["content"]}
    return (unit, []) if not outcome.parts else _with_parts(unit, outcome, writing)


def _with_parts(
    unit: dict[str, object], outcome: OptionResultPayload, writing: BodyWriting
) -> tuple[dict[str, object], list[dict[str, object]]]:
    texts = [{"type": "text", "text": unit["content"]}] if unit["content"] else []
    media: list[dict[str, Any]] = []
    for part in outcome.parts:
        if isinstance(part, MediaPart) and (shown := _medium(part, writing)) is not None:
            reference, labelled = shown_below(part, unit.get("tool_call_id", outcome.option_name), shown)
            texts.append(reference)
            media += labelled
        else:
            texts += _part(part, "tool", writing)
    return {**unit, "content": texts or ""}, media


# ---------------------------------------------------------------- bodies and tools


def close_body(body: Body) -> object:
    match body.shape:
        case "one" if len(body.units) == 1:
            return body.units[0]
        case "response" if len(body.units) == 1:
            choices = body.rest["choices"]
            return {**body.rest, "choices": [{**choices[0], "message": body.units[0]}, *choices[1:]]}
        case "response" if not body.units:
            return body.rest
        case "list" | "one" if not body.tools:
            return body.units
        case _:
            settings = {} if body.shape == "response" else body.rest
            return {**settings, "messages": body.units, **({"tools": body.tools} if body.tools else {})}


def write_tool(tool: Tool, name: str) -> dict[str, Any]:
    function: dict[str, object] = {"name": name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters:
        function["parameters"] = thaw(tool.parameters)
    return {"type": "function", "function": function}
