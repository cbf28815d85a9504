"""Results: whatever a tool returns, as JSON and media that can be written down; and back to what Pydantic AI takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, cast

from pydantic import ValidationError
from pydantic_ai import AudioUrl, BinaryContent, DocumentUrl, ImageUrl, ToolReturn, VideoUrl
from pydantic_ai.messages import FileUrl, TextContent
from pydantic_core import PydanticSerializationError, to_jsonable_python

from antiphon.agents.toolkit._errors import RESULT_INVALID, RESULT_TOO_LARGE, ToolRefusal
from antiphon.agents.toolkit._outcome import Outcome
from antiphon.agents.toolkit._tool import ToolkitTool
from antiphon.messages import Json, MediaPart, Modality, TextPart, current_limits
from antiphon.messages._cut import cut

__all__ = ["as_outcome", "as_tool_return", "check_row"]

_MODALITIES: Final[dict[type[FileUrl], Modality]] = {
    ImageUrl: "image",
    AudioUrl: "audio",
    VideoUrl: "video",
    DocumentUrl: "document",
}
_URLS: Final = {modality: cls for cls, modality in _MODALITIES.items()}


def as_outcome(tool: ToolkitTool, value: Any) -> Outcome:
    """Return what a tool returned as it is written down.

    Raises:
        ToolRefusal: it is no JSON, or too large.
    """
    more: Sequence[Any] = ()
    if isinstance(value, ToolReturn):
        content = value.content
        more = [content] if isinstance(content, str) else content or ()
        value = value.return_value
    values, media = _sorted(value)
    texts = [each if isinstance(each, str) else each.content for each in more if isinstance(each, str | TextContent)]
    media += [part for each in more if (part := _medium(each)) is not None]
    _check_size(sum(len(part.url) for part in media), current_limits().data_url_bytes)
    result, size = _json(tool, values)
    outcome = Outcome(result=result, parts=(*media, *_cut_texts(texts, _most_bytes(tool) - size)))
    try:
        outcome.payload("-", tool.name)
    except ValidationError as exc:
        raise ToolRefusal(RESULT_INVALID, f"it returned what cannot be written down: {exc.errors()[0]['msg']}") from None
    return outcome


def _sorted(value: Any) -> tuple[Any, list[MediaPart]]:
    """Return the JSON and the media of a value: media stand for themselves, or in a list with other things."""
    if (part := _medium(value)) is not None:
        return None, [part]
    if not isinstance(value, list | tuple):
        return value, []
    items = cast("Sequence[Any]", value)
    media = [part for each in items if (part := _medium(each)) is not None]
    if not media:
        return items, []
    rest = [each for each in items if _medium(each) is None]
    return rest[0] if len(rest) == 1 else rest or None, media


def _medium(value: object) -> MediaPart | None:
    if isinstance(value, MediaPart):
        return value
    if isinstance(value, BinaryContent):
        return MediaPart(modality=_modality(value), url=value.data_uri, mime=value.media_type)
    if isinstance(value, FileUrl):
        return MediaPart(modality=_MODALITIES.get(type(value), "document"), url=value.url)
    return None


def _modality(content: BinaryContent) -> Modality:
    return "image" if content.is_image else "audio" if content.is_audio else "video" if content.is_video else "document"


def _json(tool: ToolkitTool, value: Any) -> tuple[Json, int]:
    """Return a value as JSON, cut if it is too large, and how many bytes it takes."""
    try:
        plain: Json = to_jsonable_python(value, bytes_mode="base64")
        size = len(json.dumps(plain, ensure_ascii=False, allow_nan=False).encode())
    except (PydanticSerializationError, TypeError, ValueError, RecursionError):
        reason = f"it returned a {type(value).__qualname__}, which is no JSON"
        raise ToolRefusal(RESULT_INVALID, reason) from None
    most = _most_bytes(tool)
    return (plain, size) if size <= most else (cut(plain, most), most)


def _most_bytes(tool: ToolkitTool) -> int:
    """Return how many bytes of a tool's result are kept: what the tool says, and no more than a row of the ledger takes."""
    return min(tool.max_result_bytes, current_limits().message_bytes * 11 // 16)


def _cut_texts(texts: Sequence[str], most: int) -> list[TextPart]:
    """Return the texts that are shown beside a result, as far as there is room."""
    return [TextPart(text=each) for each in cast("list[str]", cut(list(texts), most))]


def check_row(outcome: Outcome) -> None:
    """Check that an outcome with media can be written down in one row: what is no text cannot be cut.

    Raises:
        ToolRefusal: it is too large.
    """
    if any(isinstance(part, MediaPart) for part in outcome.parts):
        _check_size(len(json.dumps(outcome.to_json())), current_limits().message_bytes * 3 // 4)


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ToolRefusal(RESULT_TOO_LARGE, f"it returned {size} bytes, and at most {most} are taken; ask for less")


def as_tool_return(outcome: Outcome) -> Any:
    """Return an outcome as Pydantic AI takes it; what the runtime knows of its origin goes with it, unseen by the model."""
    media = [_content(part) for part in outcome.parts if isinstance(part, MediaPart)]
    texts = [part.text for part in outcome.parts if isinstance(part, TextPart)]
    value: Any = outcome.result
    if media:
        value = media[0] if value is None and len(media) == 1 else [*([] if value is None else [value]), *media]
    metadata = None if outcome.untrusted is None else {"antiphon": {"untrusted": outcome.untrusted}}
    if metadata is None and not texts:
        return value
    return ToolReturn(value, content=texts or None, metadata=metadata)


def _content(part: MediaPart) -> BinaryContent | FileUrl:
    if part.url[:5].lower() == "data:":
        return BinaryContent.from_data_uri(part.url)
    return _URLS[part.modality](url=part.url)
