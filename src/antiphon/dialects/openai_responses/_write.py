"""Writes items: messages of other formats in short form, which needs no id; native messages in their original form.

A message may become several items. A part that only this format has is an item: signed reasoning, an image that the service
made. The texts between such parts are message items.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from antiphon.dialects._body import Body
from antiphon.dialects._content import arguments_text, described, file_id, mime_of, outcome_text, split_data_url, text_of
from antiphon.dialects._meaning import continued, joined
from antiphon.dialects._writing import BodyWriting
from antiphon.dialects.openai_responses._read import AS_TEXT, FILE, LEFT_OUT, MEDIA_SETTINGS, NAME, TEXT_SETTINGS, THOUGHTS
from antiphon.messages import (
    Citation,
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
from antiphon.messages._unchecked import EMPTY

OPTIONS = frozenset({"image_detail", "media_labels", "model"})
_SIBLING = "openai-chat"
"""The dialect whose parts have the same settings."""
_ENDINGS = {"text/plain": "txt", "text/markdown": "md", "audio/mpeg": "mp3"}
_CUSTOM = "custom calls"
"""The key in `memory` of the invocations of custom tools, whose outputs have another type."""


def alone(group: Sequence[Message], message: Message) -> bool:
    """Return whether a message belongs to the current unit: never, because each message is its own item."""
    return False


def write(group: Sequence[Message], writing: BodyWriting) -> list[dict[str, Any]]:
    message = group[0]
    payload = message.payload
    if type(payload) is OptionCallPayload:
        return _stamped([_call(message, payload, writing)], message, writing.notes(message))
    if type(payload) is OptionResultPayload:
        return [_answer(message, payload, writing)]
    notes, parts, role = writing.notes(message), message.parts, writing.role(message)
    if not notes and len(parts) == 1 and type(parts[0]) is TextPart and parts[0].__dict__["metadata"] is EMPTY:
        return [{"role": role, "content": parts[0].text}]
    if notes.get("agent_message"):
        return [_agent_message(message, writing)]
    return _stamped(_items(message, role, notes, writing), message, notes)


def write_instructions(group: Sequence[Message], writing: BodyWriting) -> str | None:
    """Write the message of the field for instructions; None if it has no text."""
    texts = [text for message in group for text in _texts(message.parts)]
    return "\n".join(texts) if texts or writing.is_native(group[0]) else None


def _stamped(units: list[dict[str, object]], message: Message, notes: Mapping[str, object]) -> list[dict[str, object]]:
    """Return items with the name of the agent, if the originals had one."""
    if notes.get("agent"):
        for unit in units:
            unit["agent"] = {"agent_name": message.policy}
    return units


# ---------------------------------------------------------------- items


def _items(message: Message, role: str, notes: Mapping[str, object], writing: BodyWriting) -> list[dict[str, object]]:
    units: list[dict[str, Any]] = []
    words: list[Part] = []
    is_native = writing.is_native(message)
    for part in message.parts:
        item = _own_item(part, role, writing, is_native=is_native)
        if item is not None:
            units += [*_message(words, role, notes, writing, continued(message)), item]
            words = []
        if isinstance(part, ReasoningPart):
            place = writing.notes(part).get("in")  # the list of its item that the thought is in
            if place in THOUGHTS and units and not words and units[-1].get("type") == "reasoning":
                units[-1].setdefault(place, []).append({"type": THOUGHTS[place], "text": part.text})
        elif item is None:
            words.append(part)
    units += _message(words, role, notes, writing, continued(message))
    if not units and (not message.parts or (is_native and writing.as_policy is None)):
        return [_short(role, [] if notes.get("list") else "", notes)]
    return units


def _own_item(part: Part, role: str, writing: BodyWriting, *, is_native: bool) -> dict[str, object] | None:
    if isinstance(part, TextPart | DataPart):
        return None
    notes = writing.notes(part)
    if isinstance(part, ForeignPart):
        return writing.foreign_value(part) if part.dialect == NAME and notes.get("item") else None
    if role != "assistant" or "id" not in notes:
        return None
    if isinstance(part, ReasoningPart):
        return _reasoning(part, notes["id"]) if notes["id"] or is_native else None
    split = split_data_url(part.url)
    return split and {"type": "image_generation_call", "id": notes["id"], "status": "completed", "result": split[1]}


def _reasoning(part: ReasoningPart, id: str | None) -> dict[str, Any]:
    """Return an item of reasoning, without its thoughts. The list of summaries must be there, even if it is empty."""
    item: dict[str, object] = {"type": "reasoning", "summary": []}
    if id is not None:
        item["id"] = id
    if part.encrypted_content is not None:
        item["encrypted_content"] = part.encrypted_content
    return item


def _message(
    words: Sequence[Part], role: str, notes: Mapping[str, object], writing: BodyWriting, goes_on: Set[int]
) -> list[dict[str, object]]:
    """Return the message item of parts; nothing if none of them can be written."""
    is_list = bool(notes.get("list"))
    if role == "assistant" and not is_list:
        texts = [(part, text) for part in words if (text := _in_words(part)) is not None]
        return [_short(role, joined(texts, goes_on), notes)] if texts else []
    if role == "assistant":
        content = [shown for part in words if (shown := _output(part, writing)) is not None]
    else:
        content = _shown(words, writing)
    is_plain = not is_list and len(content) == 1 and content[0].keys() == {"type", "text"}
    return [_short(role, content[0]["text"] if is_plain else content, notes)] if content else []


def _short(role: str, content: object, notes: Mapping[str, object]) -> dict[str, object]:
    unit = {"role": role, "content": content}
    return {"type": "message", **unit} if role == "assistant" and notes.get("list") else unit


def _agent_message(message: Message, writing: BodyWriting) -> dict[str, object]:
    content = _shown(message.parts, writing)
    return {"type": "agent_message", "author": message.policy, "recipient": "".join(message.to[:1]), "content": content}


# ---------------------------------------------------------------- content


def _in_words(part: Part) -> str | None:
    """Return a part as text, where only text is accepted; None if it is empty."""
    if isinstance(part, TextPart | DataPart):
        return text_of(part)
    return described(part) if isinstance(part, MediaPart) else None


def _texts(parts: Iterable[Part]) -> list[str]:
    return [text for part in parts if (text := _in_words(part)) is not None]


def _output(part: Part, writing: BodyWriting) -> dict[str, object] | None:
    """Return a part in the form of the model's output."""
    if isinstance(part, ForeignPart):
        return writing.foreign_value(part) if part.dialect == NAME else None
    if isinstance(part, TextPart) and writing.notes(part).get("refusal"):
        return {"type": "refusal", "refusal": part.text}
    cited = part.citations if isinstance(part, TextPart) else ()
    return {"type": "output_text", "text": _in_words(part), "annotations": [_annotation(citation) for citation in cited]}


def _annotation(citation: Citation) -> dict[str, object]:
    """Return a citation of its original kind, else of the kind that fits its fields."""
    kind = citation.metadata.get(NAME, {}).get("type") or ("file_citation" if citation.source else "url_citation")
    title, start = citation.title or "", citation.start or 0
    span = {"start_index": start, "end_index": start if citation.end is None else citation.end}
    match kind:
        case "url_citation":
            return {"type": kind, "url": citation.url or "", "title": title, **span}
        case "file_citation":
            return {"type": kind, "file_id": citation.source or "", "filename": title, "index": start}
        case "container_file_citation":
            return {"type": kind, "file_id": citation.source or "", "filename": title, **span}
        case _:
            return {"type": kind}


def _shown(parts: Iterable[Part], writing: BodyWriting) -> list[dict[str, Any]]:
    """Return parts in the form of a user's input or a result; if labels are on, with a label before each medium."""
    content: list[dict[str, Any]] = []
    for part in writing.labelled(parts):
        if isinstance(part, TextPart | DataPart):
            content.append({"type": "input_text", "text": text_of(part), **_settings(part, TEXT_SETTINGS, writing)})
        elif isinstance(part, MediaPart):
            content.append(_medium(part, writing) or {"type": "input_text", "text": described(part)})
        elif isinstance(part, ForeignPart) and part.dialect == NAME and not writing.notes(part).get("item"):
            content.append(writing.foreign_value(part))
    return content


def _settings(part: Part, names: Iterable[str], writing: BodyWriting) -> dict[str, Any]:
    if part.__dict__["metadata"] is EMPTY:
        return {}
    settings = {name: writing.setting(part, name, _SIBLING) for name in names}
    return {name: thaw(value) for name, value in settings.items() if value is not None}


def _medium(part: MediaPart, writing: BodyWriting) -> dict[str, Any] | None:
    """Return an image or a file; None if it cannot be written."""
    as_file = part.modality == "document" or bool(writing.notes(part).get("file"))
    if not as_file and part.modality != "image":
        return None
    source = _source(part.url, as_file=as_file)
    if source is None:
        return None
    settings = _settings(part, MEDIA_SETTINGS, writing)
    if not as_file:
        return {"type": "input_image", "detail": writing.options.get("image_detail") or "auto", **source, **settings}
    name = part.file_name
    if name is None and "file_data" in source:  # the service refuses bytes without a name
        mime = mime_of(part)
        kind = mime.partition("/")[2]
        name = f"{part.modality}.{_ENDINGS.get(mime) or (kind if kind.isalnum() else 'bin')}"
    return {"type": "input_file", **source, **({"filename": name} if name else {}), **settings}


def _source(url: str, *, as_file: bool) -> dict[str, str] | None:
    if (file := file_id(url, FILE)) is not None:
        return {"file_id": file}
    if split_data_url(url) is not None:
        return {"file_data" if as_file else "image_url": url}
    return {"file_url" if as_file else "image_url": url} if url[:4].lower() == "http" else None


# ---------------------------------------------------------------- calls and results


def _call(message: Message, call: OptionCallPayload, writing: BodyWriting) -> dict[str, object]:
    unit = {"call_id": writing.aliases.invocation(message), "name": writing.aliases.option(call.option_name)}
    if writing.notes(message).get("custom"):
        writing.memory.setdefault(_CUSTOM, set()).add(call.invocation_id)
        return {"type": "custom_tool_call", **unit, "input": arguments_text(call)}
    return {"type": "function_call", **unit, "arguments": arguments_text(call) or "{}"}


def _answer(message: Message, outcome: OptionResultPayload, writing: BodyWriting) -> dict[str, Any]:
    notes = writing.notes(message)
    is_custom = notes.get("custom") or message.invocation_id in writing.memory.get(_CUSTOM, ())
    output: Any = outcome_text(outcome)
    if outcome.parts or notes.get("list"):
        is_empty_text = not outcome.parts and outcome.result is not None
        words = [{"type": "input_text", "text": output}] if output or is_empty_text else []
        output = words + _shown(outcome.parts, writing)
        if not output and not notes.get("list"):
            output = ""
    kind = "custom_tool_call_output" if is_custom else "function_call_output"
    return {"type": kind, "call_id": writing.aliases.invocation(message), "output": output}


# ---------------------------------------------------------------- bodies and tools


def close_body(body: Body) -> object:
    is_bare = not body.tools and body.instructions is None
    match body.shape:
        case "one" if is_bare and len(body.units) == 1:
            return body.units[0]
        case "response" if is_bare:
            return {**body.rest, "output": body.units}
        case "list" | "one" if is_bare:
            return body.units
        case _:
            return _closed_request(body)


def _closed_request(body: Body) -> dict[str, object]:
    request = {**body.rest} if body.shape == "request" else {}
    if body.instructions is not None:
        request["instructions"] = body.instructions
    message: dict[str, Any] = body.units[0] if len(body.units) == 1 else {}
    is_message = message.keys() == {"role", "content"} and message["role"] == "user" and isinstance(message["content"], str)
    is_text = request.get("input") == AS_TEXT and is_message
    if not body.units and "input" in request and request["input"] != AS_TEXT:
        if request["input"] is LEFT_OUT:
            del request["input"]
    else:
        request["input"] = message["content"] if is_text else body.units
    if body.tools:
        request["tools"] = body.tools
    return request


def write_tool(tool: Tool, name: str) -> dict[str, object]:
    """Write a tool. It is marked as not strict, because strict is the default and other schemas may not meet its rules."""
    parameters: object = thaw(tool.parameters) if tool.parameters else {"type": "object", "properties": {}}
    written: dict[str, object] = {"type": "function", "name": name, "parameters": parameters, "strict": False}
    if tool.description is not None:
        written["description"] = tool.description
    return written
