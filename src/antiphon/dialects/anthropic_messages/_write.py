"""Writes messages of blocks: an utterance with its calls is one assistant message, its results are one user message.

Messages are not merged: the service reads consecutive messages of one role as one turn. Messages of other formats are written
without empty text, which is refused, and without reasoning, which needs a signature of this provider.
"""

from __future__ import annotations

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.checks import TARGETS
from antiphon.checks._view import PLACEHOLDER
from antiphon.dialects._body import Body
from antiphon.dialects._content import (
    INSTRUCTION,
    arguments_object,
    described,
    error_text,
    file_id,
    mime_of,
    outcome_text,
    shown_below,
    split_data_url,
    text_of,
)
from antiphon.dialects._reading import as_object
from antiphon.dialects._writing import BodyWriting
from antiphon.dialects.anthropic_messages._read import FILE, NAME, SETTINGS, TITLES
from antiphon.messages import (
    Citation,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
    ReasoningPart,
    TextPart,
    Tool,
    thaw,
)
from antiphon.messages._unchecked import EMPTY

OPTIONS = frozenset({"media_labels", "model"})

_FAILED = "Error"
"""The text of an error without a message."""

_IMAGES = TARGETS[NAME].media["user"]["image"].mimes or frozenset()
_TYPES = {"image/jpg": "image/jpeg"}
_PLAIN_TEXT = {"type", "text"}
_STANDARD = str.maketrans("-_", "+/")


def before(previous: Sequence[Message] | None, group: Sequence[Message], writing: BodyWriting) -> dict[str, object] | None:
    """Return a minimal user message, if the first message would be the assistant's."""
    if previous is None and _role(group, writing) == "assistant":
        return {"role": "user", "content": PLACEHOLDER}
    return None


def invocation_in(block: dict[str, object]) -> object:
    """Return the invocation of a block that is a call or a result."""
    return block.get("tool_use_id", block.get("id"))


def write(group: Sequence[Message], writing: BodyWriting) -> list[dict[str, Any]]:
    """Write messages that belong together as one message of blocks; none if nothing of them can be written."""
    first = group[0]
    role = _role(group, writing)
    if role != "system" and (words := _plain_words(group, writing)) is not None:
        return [{"role": role, "content": words}]
    blocks: list[dict[str, object]] = []
    shown: list[dict[str, object]] = []
    for message in group:
        payload = message.payload
        if type(payload) is OptionCallPayload:
            blocks.append(_call(message, payload, writing))
        elif type(payload) is OptionResultPayload:
            blocks.append(answer(message, payload, shown, writing))
        else:
            blocks += _blocks(message, role, writing)
    blocks += shown
    notes = writing.notes(first)
    if role == "system" and ("slot" in notes or not writing.is_native(first)):  # otherwise it was between other messages
        role, blocks = "user", _marked(blocks)
    if not blocks and ("slot" in notes or first.parts or not writing.is_native(first)):
        return []
    return [{"role": role, "content": _content(blocks, notes)}]


def write_instructions(group: Sequence[Message], writing: BodyWriting) -> object:
    """Write the value of `system`; None if nothing of it can be written."""
    blocks = [block for message in group for block in _blocks(message, "system", writing)]
    if not blocks and not writing.is_native(group[0]):
        return None
    return _content(blocks, writing.notes(group[0]))


def _role(group: Sequence[Message], writing: BodyWriting) -> str:
    kind = type(group[0].payload)
    if kind is OptionResultPayload:
        return "user"
    if kind is OptionCallPayload or (len(group) > 1 and any(type(message.payload) is OptionCallPayload for message in group)):
        return "assistant"
    return writing.role(group[0])


def _plain_words(group: Sequence[Message], writing: BodyWriting) -> str | None:
    """Return the text of a message of another format that is one plain text, which most are; else None."""
    payload = group[0].payload
    if len(group) > 1 or type(payload) is not PartsPayload or len(payload.parts) != 1 or writing.is_native(group[0]):
        return None
    part = payload.parts[0]
    if type(part) is not TextPart or part.__dict__["metadata"] is not EMPTY or part.citations:
        return None
    return part.text if part.text and not part.text.isspace() else None


def _marked(blocks: list[dict[str, Any]]) -> list[dict[str, object]]:
    """Return the texts of an instruction, marked as an instruction."""
    texts = [block for block in blocks if block.get("type") == "text"]
    if texts:
        texts[0]["text"] = INSTRUCTION + texts[0]["text"]
    return texts


def _content(blocks: list[dict[str, Any]], notes: Mapping[str, Any]) -> str | list[dict[str, Any]]:
    """Return one plain text as such, unless it came as a block."""
    if len(blocks) == 1 and blocks[0].keys() == _PLAIN_TEXT and blocks[0]["type"] == "text" and "blocks" not in notes:
        text: str = blocks[0]["text"]
        return text
    return blocks


# ---------------------------------------------------------------- parts


def _blocks(message: Message, role: str, writing: BodyWriting) -> list[dict[str, object]]:
    is_native = writing.is_native(message)
    blocks: list[dict[str, object]] = []
    for part in writing.labelled(message.parts):
        if type(part) is TextPart and part.__dict__["metadata"] is EMPTY and not part.citations:
            block: dict[str, object] | None = {"type": "text", "text": part.text}
        else:
            block = _block(part, role, message, writing)
        if block is not None and (is_native or not _is_blank(block)):
            blocks.append(block)
    return blocks


def _is_blank(block: dict[str, Any]) -> bool:
    """Whether a block is a blank text, which the service refuses."""
    return block.get("type") == "text" and not str(block.get("text", "")).strip()


def _block(part: Part, role: str, message: Message, writing: BodyWriting) -> dict[str, Any] | None:
    """Return a part as a block; None if it cannot be written in this role."""
    match part:
        case TextPart() | DataPart():
            return _text(part, writing)
        case MediaPart():
            shown = _medium(part, writing) if role in ("user", "result") else None
            return shown or {"type": "text", "text": described(part)}
        case ReasoningPart() if role == "assistant" and NAME in part.metadata:
            return _thought(part, writing.is_native(message))
        case ForeignPart() if part.dialect == NAME:
            # A native block is written only in its original role, which a viewpoint may change.
            is_role = role == "result" or message.role_hint_for_llm in (None, role)
            if not (writing.is_native(message) if role == "system" else is_role):
                return None
            return as_object(writing.foreign_value(part))
        case _:
            return None


def _text(part: TextPart | DataPart, writing: BodyWriting) -> dict[str, Any]:
    block: dict[str, object] = {"type": "text", "text": text_of(part)}
    sources = part.citations if isinstance(part, TextPart) else ()
    if citations := [_citation(citation) for citation in sources if NAME in citation.metadata]:
        block["citations"] = citations
    return _with_settings(block, writing.notes(part))


def _citation(citation: Citation) -> dict[str, object]:
    """Return a native citation. Others cannot be written: they lack the place in a document, or its signature."""
    rest = thaw(citation.metadata[NAME])
    title = TITLES.get(str(rest.get("type")), "title")
    words = {"cited_text": citation.quote, title: citation.title, "url": citation.url, "source": citation.source}
    return {**rest, **{key: value for key, value in words.items() if value is not None}}


def _thought(part: ReasoningPart, is_native: bool) -> dict[str, Any] | None:
    if part.encrypted_content is not None:
        return {"type": "redacted_thinking", "data": part.encrypted_content}
    if part.signature is not None:
        return {"type": "thinking", "thinking": part.text, "signature": part.signature}
    return {"type": "thinking", "thinking": part.text} if is_native else None


def _with_settings(block: dict[str, Any], notes: Mapping[str, Any]) -> dict[str, object]:
    if notes:
        block.update((key, thaw(notes[key])) for key in SETTINGS[block["type"]] if key in notes)
    return block


# ---------------------------------------------------------------- media


def _medium(part: MediaPart, writing: BodyWriting) -> dict[str, Any] | None:
    source = _source(part)
    if source is None:
        return None
    block: dict[str, object] = {"type": part.modality, "source": source}
    if part.modality == "document" and (title := part.prompt_hint or part.file_name):
        block["title"] = title
    return _with_settings(block, writing.notes(part))


def _source(part: MediaPart) -> dict[str, object] | None:
    """Return the source of a medium; None if the format does not accept it."""
    if part.modality not in ("image", "document"):
        return None
    if (file := file_id(part.url, FILE)) is not None:
        return {"type": "file", "file_id": file}
    mime = _TYPES.get(mime_of(part), mime_of(part))
    if (split := split_data_url(part.url)) is not None:
        data = split[1]
        if mime in _IMAGES if part.modality == "image" else mime == "application/pdf":
            return {"type": "base64", "media_type": mime, "data": data.translate(_STANDARD)}
        if part.modality == "document" and mime.startswith("text/") and (text := _decoded(data)):
            return {"type": "text", "media_type": "text/plain", "data": text}
        return None
    if part.url[:4].lower() == "http" and (part.modality == "image" or mime == "application/pdf"):
        return {"type": "url", "url": part.url}
    return None


def _decoded(data: str) -> str | None:
    try:
        return b64decode(data.translate(_STANDARD), validate=True).decode()
    except (NotBase64, UnicodeDecodeError):
        return None


# ---------------------------------------------------------------- calls and results


def _call(message: Message, call: OptionCallPayload, writing: BodyWriting) -> dict[str, object]:
    block: dict[str, object] = {
        "type": "tool_use",
        "id": writing.aliases.invocation(message),
        "name": writing.aliases.option(call.option_name),
        "input": arguments_object(call),
    }
    return _with_settings(block, writing.notes(message))


def answer(
    message: Message, outcome: OptionResultPayload, shown: list[dict[str, object]], writing: BodyWriting
) -> dict[str, object]:
    """Return a result. Content that an error must not contain goes into `shown`, which is written after the results."""
    block: dict[str, object] = {"type": "tool_result", "tool_use_id": writing.aliases.invocation(message)}
    notes, blocks = writing.notes(message), list[dict[str, Any]]()
    if outcome.is_error:
        block["is_error"] = True
        blocks = _error_blocks(message, outcome, shown, writing)
    else:
        if outcome.__dict__["result"] is not None:
            blocks.append({"type": "text", "text": outcome_text(outcome)})
        if outcome.parts:
            blocks += filter(None, (_block(part, "result", message, writing) for part in outcome.parts))
            is_native = writing.is_native(message)
            blocks = [written for written in blocks if is_native or not _is_blank(written)]
    if blocks:
        block["content"] = _content(blocks, notes)
    return _with_settings(block, notes)


def _error_blocks(
    message: Message, outcome: OptionResultPayload, shown: list[dict[str, Any]], writing: BodyWriting
) -> list[dict[str, Any]]:
    """Return an error as text only: the service refuses other content in it."""
    words = error_text(outcome)
    blocks = [{"type": "text", "text": _FAILED if not words or words.isspace() else words}]
    for part in outcome.parts:
        block = _block(part, "result", message, writing)
        if block is not None and block.get("type") == "text":
            blocks += [] if _is_blank(block) else [block]
        elif isinstance(part, MediaPart) and block is not None:
            reference, labelled = shown_below(part, writing.aliases.invocation(message), block)
            blocks.append(reference)
            shown += labelled
    return blocks


# ---------------------------------------------------------------- bodies and tools


def close_body(body: Body) -> object:
    has_more = body.instructions is not None or bool(body.tools)
    if body.shape == "one" and len(body.units) == 1 and not has_more:
        return {**body.rest, **body.units[0]}
    if body.shape == "list" and not has_more:
        return body.units
    request = dict(body.rest) if body.shape == "request" else {}
    if body.instructions is not None:
        request["system"] = body.instructions
    request["messages"] = body.units
    if body.tools:
        request["tools"] = body.tools
    return request


def write_tool(tool: Tool, name: str) -> dict[str, Any]:
    """Write a tool. Its schema must be that of an object."""
    written: dict[str, object] = {"name": name}
    if tool.description is not None:
        written["description"] = tool.description
    written["input_schema"] = {"type": "object", **thaw(tool.parameters)}
    return written
