"""Reads and writes citations, files, and the return of a tool.

**Citations.** A citation of Pydantic AI may have several sources. In the core each source is one citation, and those that
belong together are marked.

**Files.** A file is given by URL, as bytes, or by an id at a provider. Bytes are base64: here in the URL-safe alphabet, in the
core in the standard alphabet, which every other format uses.

**The return of a tool** is JSON that may contain files, and its outcome: `failed` and `retried` are errors. A return that is a
file, or a list with files in it, is read as parts in order: text, files and data. Files deeper inside data stay data. Their
digests are kept, so that Pydantic AI recognises them again.
"""

from __future__ import annotations

import json
from base64 import b64encode, urlsafe_b64encode
from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Mapping, Sequence
from hashlib import sha1, sha256
from typing import Any, TypeAlias, cast

from pydantic import ValidationError

from antiphon.dialects._content import (
    as_data_url,
    described,
    error_of,
    error_text,
    file_id,
    file_urn,
    json_text,
    mime_of,
    modality_of,
    split_data_url,
)
from antiphon.dialects._reading import OutcomeFields, ResultFields, Unit, as_list, as_object, fresh
from antiphon.dialects._writing import BodyWriting
from antiphon.dialects.pydantic_ai._wire import NAME, non_defaults, with_defaults, write_time
from antiphon.messages import Citation, DataPart, ForeignPart, MediaPart, Message, OptionResultPayload, Part, TextPart, thaw
from antiphon.messages._json_values import JsonError, parse, plain
from antiphon.messages._names import is_name

# ---------------------------------------------------------------- citations

_WORDS = {"web": {"url": "url", "title": "title"}, "document": {"document_id": "source", "title": "title"}}
"""The modality of a source, by its kind."""


def read_citations(value: object) -> tuple[Citation, ...]:
    """Return the citations of a text; other data is left to the residue."""
    citations: list[Citation] = []
    for item in as_list(value):
        fields = as_object(item) or {}
        anchor = as_object(fields.get("anchor")) or {}
        sources = [as_object(source) or {} for source in as_list(fields.get("sources"))]
        if all(str(source.get("kind")) in _WORDS for source in sources):
            citations += [_citation(source, anchor, is_first=place == 0) for place, source in enumerate(sources)]
    return tuple(citations)


def _citation(source: dict[str, Any], anchor: dict[str, Any], *, is_first: bool) -> Citation:
    words = _WORDS[source["kind"]]
    fields: dict[str, Any] = {words[key]: value for key, value in source.items() if key in words and isinstance(value, str)}
    notes: dict[str, Any] = {} if is_first else {"joined": True}
    quotes = [excerpt for excerpt in as_list(source.get("excerpts")) if isinstance(excerpt, str)]
    if quotes:
        fields["quote"] = quotes[0]
    if quotes[1:]:
        notes["excerpts"] = quotes[1:]
    if anchor.get("kind") == "marker":
        notes["anchor"] = "marker"
    fields |= {key: anchor[key] for key in ("start", "end") if type(anchor.get(key)) is int and 0 <= anchor[key] <= 2**53}
    return Citation(**fields, metadata={NAME: notes} if notes else {})


def write_citations(citations: Sequence[Citation]) -> list[dict[str, object]] | None:
    """Write the citations of a text; None if it has none."""
    written: list[dict[str, Any]] = []
    for citation in citations:
        notes = plain(citation.metadata).get(NAME, {})
        source = _source(citation, notes)
        if source is None:
            continue
        if written and notes.get("joined"):
            written[-1]["sources"].append(source)
        else:
            start, end, anchor = citation.start, citation.end, None
            if start is not None and end is not None and end > start:
                anchor = {"start": start, "end": end, "kind": notes.get("anchor", "content")}
            written.append({"sources": [source], "anchor": anchor})
    return written or None


def _source(citation: Citation, notes: Mapping[str, Any]) -> dict[str, object] | None:
    """Return the source; None if it is unknown."""
    excerpts = ([] if citation.quote is None else [citation.quote]) + thaw(notes.get("excerpts", []))
    if citation.url is not None:
        return {"url": citation.url, "title": citation.title, "excerpts": excerpts, "kind": "web"}
    if not (citation.source or citation.title or excerpts):
        return None
    return {"document_id": citation.source, "title": citation.title, "excerpts": excerpts, "kind": "document"}


# ---------------------------------------------------------------- files

_Item: TypeAlias = Mapping[str, Any]

_MODALITIES = {"image-url": "image", "audio-url": "audio", "video-url": "video", "document-url": "document"}
_PROVIDERS = ("anthropic", "openai", "google", "google-cloud", "google-gla", "google-vertex", "bedrock", "xai")
"""Providers that store uploaded files."""
_KEYS = frozenset({"url", "force_download", "vendor_metadata", "kind", "media_type", "identifier"})
_UPLOADED_KEYS = (_KEYS - {"url", "force_download"}) | {"file_id", "provider_name"}
_LOCATED = ("https://", "http://", "gs://", "s3://")
_DETAIL = ("openai-chat", "openai-responses")
"""Dialects that have the setting `detail` for images."""
_TO_STANDARD = str.maketrans("-_", "+/")


# ---------------------------------------------------------------- files: reading


def read_file(item: _Item) -> MediaPart | None:
    """Return the file that an object describes; None if it describes none, or one that the core cannot hold."""
    kind = str(item.get("kind"))
    located = _bytes(item) if kind == "binary" else _uploaded(item) if kind == "uploaded-file" else _linked(item, kind)
    if located is None:
        return None
    try:
        return MediaPart(**located)
    except ValidationError:  # a URL or a name that the core does not take
        return None


def _bytes(item: _Item) -> dict[str, Any] | None:
    data = _decoded(item["data"]) if isinstance(item.get("data"), str) else None
    mime = item.get("media_type")
    if data is None or not isinstance(mime, str):
        return None
    url = as_data_url(mime, b64encode(data).decode())
    if split_data_url(url) is None:
        return None
    return {"modality": modality_of(mime), "url": url, **_names(item, data), **_notes(_vendor(item))}


def _decoded(data: str) -> bytes | None:
    """Return the bytes that base64 of either alphabet spells; the padding may be missing."""
    standard = data.translate(_TO_STANDARD)
    try:
        return a2b_base64(standard + "=" * (-len(standard) % 4), strict_mode=True)
    except (Base64Error, ValueError):
        return None


def _uploaded(item: _Item) -> dict[str, Any] | None:
    file, owner = item.get("file_id"), item.get("provider_name")
    if not isinstance(file, str) or owner not in _PROVIDERS:
        return None
    is_located = file.startswith(_LOCATED)
    notes = {**_vendor(item), **({"provider_name": owner} if is_located else {})}
    url = file if is_located else file_urn(f"{owner}-file", file)
    mime = item.get("media_type")
    mime = mime if isinstance(mime, str) else "application/octet-stream"
    return {"modality": modality_of(mime), "url": url, "mime": mime, **_names(item, file.encode()), **_notes(notes)}


def _linked(item: _Item, kind: str) -> dict[str, Any] | None:
    url, mime = item.get("url"), item.get("media_type")
    if kind not in _MODALITIES or not isinstance(url, str):
        return None
    notes = {**_vendor(item), **non_defaults(item, kind)}
    mime = mime if isinstance(mime, str) and mime else None
    return {"modality": _MODALITIES[kind], "url": url, "mime": mime, **_names(item, url.encode()), **_notes(notes)}


def _vendor(item: _Item) -> dict[str, object]:
    """Return a provider's settings for a file; the setting that several dialects share has its own name."""
    settings = as_object(item.get("vendor_metadata"))
    if settings is None:
        return {}
    detail = settings.get("detail")
    named = {"detail": detail} if isinstance(detail, str) else {}
    rest = {key: value for key, value in settings.items() if key not in named}
    return {**named, **({"vendor_metadata": rest} if rest or not named else {})}


def _names(item: _Item, content: bytes) -> dict[str, object]:
    identifier = item.get("identifier")
    return {"id": identifier} if is_name(identifier) and identifier != _identifier(content) else {}


def _notes(notes: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {NAME: notes}} if notes else {}


def _identifier(content: bytes) -> str:
    """Return the name that Pydantic AI gives to a file which has none."""
    return sha1(content, usedforsecurity=False).hexdigest()[:6]


# ---------------------------------------------------------------- files: writing


def write_file(part: MediaPart, writing: BodyWriting) -> dict[str, object] | None:
    """Write a file; None for one that a provider holds which Pydantic AI does not know."""
    split = split_data_url(part.url)
    data = None if split is None else _decoded(split[1])
    if split is not None and data is not None:
        mime = part.url[len("data:") :].rpartition(",")[0][: -len(";base64")] or mime_of(part)
        spelling = {"data": urlsafe_b64encode(data).decode(), "media_type": mime, "kind": "binary"}
        return _written(spelling, part, data, writing)
    notes = writing.notes(part)
    owner = next((provider for provider in _PROVIDERS if part.url.startswith(f"urn:{provider}-file:")), None)
    file = part.url if "provider_name" in notes else file_id(part.url, f"{owner}-file")
    if file is not None:
        holder = notes.get("provider_name", owner)
        spelling = {"file_id": file, "provider_name": holder, "media_type": mime_of(part), "kind": "uploaded-file"}
        return _written(spelling, part, file.encode(), writing)
    if part.url[:4].lower() == "urn:":
        return None
    kind = f"{part.modality}-url"
    spelling = {"url": part.url, **with_defaults(kind, notes), "media_type": mime_of(part), "kind": kind}
    return _written(spelling, part, part.url.encode(), writing)


def _written(spelling: dict[str, Any], part: MediaPart, content: bytes, writing: BodyWriting) -> dict[str, Any]:
    vendor: dict[str, Any] | None = thaw(writing.notes(part).get("vendor_metadata"))
    if (detail := writing.setting(part, "detail", *_DETAIL)) is not None:
        vendor = {**(vendor or {}), "detail": detail}
    return {**spelling, "vendor_metadata": vendor, "identifier": part.id or _identifier(content)}


# ---------------------------------------------------------------- files inside a tool's return


def digest(item: object) -> str:
    """Return the digest that marks an object in a tool's return as a file."""
    return sha256(json.dumps(item, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def is_recorded(item: _Item, digests: list[object] | None) -> bool:
    """Whether a tool's return marks an object in it as a file, as opposed to data that only looks like one.

    Bytes need no digest. A return without any digests is of an older Pydantic AI: there, a web link is a file.
    """
    kind, mime = str(item.get("kind")), item.get("media_type")
    if kind == "binary":
        return True
    if kind == "uploaded-file":
        return digests is not None and item.keys() <= _UPLOADED_KEYS and digest(item) in digests
    if kind not in _MODALITIES or "media_type" not in item or mime == "":
        return False
    if digests is None:
        return str(item.get("url")).lower().startswith(("http://", "https://"))
    return item.keys() <= _KEYS and digest(item) in digests


# ---------------------------------------------------------------- the return of a tool

DIGESTS = "content_file_digests"
_SCALARS = (str, int, float, bool, type(None))


def is_result(part: Mapping[str, Any]) -> bool:
    """Whether a part answers a call; a legacy retry prompt does, if it names the tool."""
    return part["part_kind"] == "tool-return" or (part["part_kind"] == "retry-prompt" and part.get("tool_name") is not None)


def read_invocation(unit: Unit, part: dict[str, Any], path: Sequence[str | int]) -> str:
    """Return the id of a call or of its result; one made from its place if it has none."""
    own_id = "" if part.get("tool_call_id") is None else unit.text_in(part, "tool_call_id", path)
    return unit.alias(own_id or f"{NAME}-{unit.position or 0}-{path[-1]}")


# ---------------------------------------------------------------- the return of a tool: reading


def read_result(unit: Unit, part: dict[str, Any], path: Sequence[str | int]) -> tuple[ResultFields, dict[str, Any]]:
    """Return the fields of the payload, and the metadata of the message."""
    payload: ResultFields = {
        "kind": "option_result",
        "invocation_id": read_invocation(unit, part, path),
        "option_name": unit.alias(unit.text_in(part, "tool_name", path)),
    }
    is_legacy = part["part_kind"] == "retry-prompt"
    outcome = "retried" if is_legacy else part.get("outcome")
    result, notes = _error(part, str(outcome)) if outcome in ("failed", "retried") else _success(part)
    if is_legacy:
        return {**payload, **result}, {**notes, "kind": "retry-prompt"}
    if outcome not in ("success", "failed", "retried") and isinstance(outcome, str):
        notes["outcome"] = outcome
    return {**payload, **result}, {**notes, **non_defaults(part, "tool-return")}


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
    result: OutcomeFields = {"is_error": True, "error_type": error_type, "error_message": message, "parts": shown}
    if outcome == "retried":
        result["retryable"] = True
    return result, notes


def _shown(part: dict[str, Any]) -> tuple[list[Part] | None, dict[str, Any]]:
    """Return content as parts, if it contains files; and metadata for what the parts do not show."""
    content, record = part.get("content"), part.get(DIGESTS)
    digests = cast("list[Any]", record) if isinstance(record, list) else None
    items = cast("list[Any]", content) if isinstance(content, list) else [content]
    files = [_file(item, digests) for item in items]
    seen = {digest(item) for item, file in zip(items, files, strict=True) if file is not None}
    unshown = sorted({text for text in digests or () if isinstance(text, str) and text not in seen})
    notes: dict[str, object] = {"digests": unshown} if unshown else {}
    if not any(files):
        return None, notes
    if content is items and len(items) == 1:
        notes["list"] = True
    pairs = zip(items, files, strict=True)
    return [file or (TextPart(text=item) if isinstance(item, str) else DataPart(data=item)) for item, file in pairs], notes


def _file(item: object, digests: list[object] | None) -> MediaPart | None:
    fields = as_object(item)
    return read_file(fields) if fields is not None and is_recorded(fields, digests) else None


# ---------------------------------------------------------------- the return of a tool: writing


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
    written |= with_defaults("tool-return", notes)
    failure = "retried" if payload.retryable else "failed"
    written["outcome"] = failure if payload.is_error else str(notes.get("outcome", "success"))
    written["part_kind"] = "tool-return"
    if type(content) not in _SCALARS:
        written[DIGESTS] = sorted({*digests, *notes.get("digests", ())})
    return written


def _content(payload: OptionResultPayload, notes: Mapping[str, Any], writing: BodyWriting) -> tuple[Any, list[str]]:
    """Return the content, and the digests of the files in it that need one."""
    result = _error_content(payload, notes) if payload.is_error else fresh(payload, "result")
    if not payload.parts:
        return result, []
    items: list[object] = [] if result is None or result == "" else [result]
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
                items.append(writing.foreign_value(part))
            case _:
                pass
    if len(items) == 1 and "list" not in notes:
        return items[0], digests
    return items or result, digests


def _error_content(payload: OptionResultPayload, notes: Mapping[str, object]) -> object:
    """Return an error as text; as JSON, if the text is JSON and the original was."""
    words = error_text(payload)
    if notes.get("json"):
        try:
            return parse(words.encode())
        except JsonError:
            pass
    return words
