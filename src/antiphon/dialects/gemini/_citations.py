"""Citations: what the facts beside an answer say about its words, given in bytes of UTF-8, kept in characters of the part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from antiphon.dialects._reading import as_object
from antiphon.dialects.gemini._keys import look
from antiphon.messages import Citation

__all__ = ["read_citations"]

_SOURCES = ("web", "retrievedContext", "maps", "image")


def read_citations(candidate: Mapping[str, Any], parts: Sequence[dict[str, Any]]) -> dict[int, list[Citation]]:
    """Return the citations of an answer, by the place of the part that they are about."""
    texts = {place: part["text"].encode() for place, part in enumerate(parts) if _is_answer(part)}
    found: dict[int, list[Citation]] = {}
    for place, citation in (*_grounding(candidate, texts), *_recitations(candidate, texts)):
        found.setdefault(place, []).append(citation)
    return found


def _is_answer(part: dict[str, Any]) -> bool:
    return isinstance(part.get("text"), str) and part.get("thought") is not True


def _grounding(candidate: Mapping[str, Any], texts: Mapping[int, bytes]) -> Iterator[tuple[int, Citation]]:
    """Yield a citation for each source of each segment. A zero is left out on the wire."""
    grounding = as_object(look(candidate, "groundingMetadata")) or {}
    chunks = _objects(look(grounding, "groundingChunks"))
    for support in _objects(look(grounding, "groundingSupports")):
        segment = as_object(support.get("segment")) or {}
        place = _offset(segment, "partIndex") or 0
        if place in texts:
            start, end = _offset(segment, "startIndex") or 0, _offset(segment, "endIndex")
            for index in _list(look(support, "groundingChunkIndices")):
                if type(index) is int and 0 <= index < len(chunks):
                    yield place, _citation(_source(chunks[index]), texts[place], start, end)


def _source(chunk: dict[str, Any]) -> dict[str, Any]:
    sources = (as_object(look(chunk, key)) for key in _SOURCES)
    return next((source for source in sources if source is not None), chunk)


def _recitations(candidate: Mapping[str, Any], texts: Mapping[int, bytes]) -> Iterator[tuple[int, Citation]]:
    """Yield what was said in the words of a source. Its offsets count through all the text of the answer."""
    metadata = as_object(look(candidate, "citationMetadata")) or {}
    for source in _objects(metadata.get("citations") or look(metadata, "citationSources")):
        before = 0
        start, end = _offset(source, "startIndex") or 0, _offset(source, "endIndex")
        for place, text in texts.items():
            if start < before + len(text):
                yield place, _citation(source, text, start - before, None if end is None else end - before)
                break
            before += len(text)


def _citation(source: Mapping[str, Any], text: bytes, start: int, end: int | None) -> Citation:
    return Citation(
        url=_text(source, "uri") or _text(source, "sourceUri"),
        title=_text(source, "title"),
        source=_text(source, "documentName"),
        start=_characters(text, start),
        end=None if end is None else _characters(text, end),
    )


def _characters(text: bytes, offset: int) -> int:
    """Return how many characters end within so many bytes."""
    return len(text[: max(0, offset)].decode(errors="ignore"))


def _text(found: Mapping[str, Any], key: str) -> str | None:
    value = look(found, key)
    return value if isinstance(value, str) else None


def _offset(found: Mapping[str, Any], key: str) -> int | None:
    value = look(found, key)
    return value if type(value) is int and value >= 0 else None


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in _list(value) if isinstance(each, dict)]
