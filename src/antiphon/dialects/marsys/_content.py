"""Content of a message: text, or a list of parts as OpenAI has them; its words, and how parts of ours are read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.dialects._content import file_id, json_text, mime_of, split_data_url
from antiphon.dialects._frozen import thawed
from antiphon.dialects._reading import as_object
from antiphon.dialects.openai_chat._read import FILE, read_medium
from antiphon.messages import DataPart, ForeignPart, MediaPart, Part, TextPart, thaw
from antiphon.messages._trusted import text_part

__all__ = ["item_of", "part_of", "text_of", "with_heading"]

_SOUNDS = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/wave": "wav", "audio/mp3": "mp3", "audio/mpeg": "mp3"}


def text_of(content: str | Sequence[Mapping[str, Any]]) -> str:
    """Return the words of a content: the texts of its parts, a line each."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str))


def with_heading(heading: str, content: str | Sequence[Mapping[str, Any]]) -> str | list[Any]:
    """Return a content with words before it."""
    return f"{heading} {content}" if isinstance(content, str) else [{"type": "text", "text": heading}, *thawed(content)]


def part_of(item: dict[str, Any]) -> Part:
    """Return what an item of a list is to us."""
    text = item.get("text") if item.get("type") == "text" else None
    return text_part(text) if isinstance(text, str) else read_medium(item)


def item_of(part: Part) -> dict[str, Any] | None:
    """Return a part as an item of a list; None if the format has none for it."""
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case DataPart():
            return {"type": "text", "text": json_text(part.data)}
        case MediaPart():
            return _medium(part)
        case ForeignPart():
            value = as_object(thaw(part.value))
            return value if value is not None and part_of(value) == part else None
        case _:
            return None


def _medium(part: MediaPart) -> dict[str, Any] | None:
    split = split_data_url(part.url)
    if part.modality == "image" and (split or part.url[:4].lower() == "http"):
        detail = next((notes["detail"] for notes in part.metadata.values() if isinstance(notes.get("detail"), str)), None)
        return {"type": "image_url", "image_url": {"url": part.url, **({"detail": detail} if detail else {})}}
    if part.modality == "audio" and split and (sound := _SOUNDS.get(mime_of(part))):
        return {"type": "input_audio", "input_audio": {"data": split[1], "format": sound}}
    named = {"filename": part.file_name} if part.file_name else {}
    if split and part.modality == "document":
        return {"type": "file", "file": {"file_data": part.url, **named}}
    if (file := file_id(part.url, FILE)) is not None:
        return {"type": "file", "file": {"file_id": file, **named}}
    return None
