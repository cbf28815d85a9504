"""Citations: one of theirs may have several sources; in the core each source is one, and those of one citation are marked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from antiphon.dialects._reading import as_object
from antiphon.dialects.pydantic_ai._wire import NAME
from antiphon.messages import Citation, thaw
from antiphon.messages._json import plain

__all__ = ["read_citations", "write_citations"]

_WORDS = {"web": {"url": "url", "title": "title"}, "document": {"document_id": "source", "title": "title"}}
"""Our words for what a source holds, by its kind."""


def read_citations(given: Any) -> tuple[Citation, ...]:
    """Return what a text rests on; what is no citation is left to the residue."""
    if not isinstance(given, list):
        return ()
    found = (as_object(each) or {} for each in cast("list[Any]", given))
    return tuple(citation for each in found for citation in _of_one(each))


def _of_one(given: dict[str, Any]) -> list[Citation]:
    sources = given.get("sources")
    known = [as_object(each) or {} for each in cast("list[Any]", sources)] if isinstance(sources, list) else []
    if not all(str(each.get("kind")) in _WORDS for each in known):
        return []
    anchor = as_object(given.get("anchor")) or {}
    return [_citation(source, anchor, is_first=place == 0) for place, source in enumerate(known)]


def _citation(source: dict[str, Any], anchor: dict[str, Any], *, is_first: bool) -> Citation:
    words = _WORDS[source["kind"]]
    said: dict[str, Any] = {words[key]: value for key, value in source.items() if key in words and isinstance(value, str)}
    notes: dict[str, Any] = {} if is_first else {"joined": True}
    excerpts = source.get("excerpts")
    quotes = [each for each in cast("list[Any]", excerpts) if isinstance(each, str)] if isinstance(excerpts, list) else []
    if quotes:
        said["quote"] = quotes[0]
    if quotes[1:]:
        notes["excerpts"] = quotes[1:]
    if anchor.get("kind") == "marker":
        notes["anchor"] = "marker"
    said |= {key: anchor[key] for key in ("start", "end") if type(anchor.get(key)) is int and 0 <= anchor[key] <= 2**53}
    return Citation(**said, metadata={NAME: notes} if notes else {})


def write_citations(citations: Sequence[Citation]) -> list[dict[str, Any]] | None:
    """Write what a text rests on; None for nothing."""
    written: list[dict[str, Any]] = []
    for citation in citations:
        notes = plain(citation.metadata).get(NAME, {})
        source = _source(citation, notes)
        if source is None:
            continue
        if written and notes.get("joined"):
            written[-1]["sources"].append(source)
        else:
            written.append({"sources": [source], "anchor": _anchor(citation, notes)})
    return written or None


def _source(citation: Citation, notes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return where it comes from; None if nothing says so."""
    excerpts = ([] if citation.quote is None else [citation.quote]) + thaw(notes.get("excerpts", []))
    if citation.url is not None:
        return {"url": citation.url, "title": citation.title, "excerpts": excerpts, "kind": "web"}
    if not (citation.source or citation.title or excerpts):
        return None
    return {"document_id": citation.source, "title": citation.title, "excerpts": excerpts, "kind": "document"}


def _anchor(citation: Citation, notes: Mapping[str, Any]) -> dict[str, Any] | None:
    if citation.start is None or citation.end is None or citation.end <= citation.start:
        return None
    return {"start": citation.start, "end": citation.end, "kind": notes.get("anchor", "content")}
