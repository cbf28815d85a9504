"""Media as formats write them: data URLs taken apart and put together, files that a provider holds, types by ending."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, unquote

from antiphon.messages import MediaPart, Modality

__all__ = ["as_data_url", "described", "file_id", "file_urn", "mime_of", "modality_of", "named_file", "split_data_url"]

_DATA = re.compile(r"data:([^;,]*)((?:;[^;,]*)*?);base64,", re.IGNORECASE)
_PATH = re.compile(r"[^:/?#]+:(?://[^/?#]*)?([^?#]*)")
"""The path of a URL, as RFC 3986 (appendix B) finds it in whatever stands there; `urlsplit` refuses some."""

_MIMES = {
    "gif": "image/gif",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "mov": "video/quicktime",
    "mp3": "audio/mpeg",
    "mp4": "video/mp4",
    "ogg": "audio/ogg",
    "pdf": "application/pdf",
    "png": "image/png",
    "txt": "text/plain",
    "wav": "audio/wav",
    "webm": "video/webm",
    "webp": "image/webp",
}
_ANY_OF = {"image": "image/png", "audio": "audio/wav", "video": "video/mp4", "document": "application/pdf"}


def as_data_url(mime: str, data: str) -> str:
    """Return a URL that holds base64 data itself."""
    return f"data:{mime};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return the type and the base64 data of a data URL; None for any other."""
    found = _DATA.match(url)
    return None if found is None else (found[1], url[found.end() :])


def file_urn(owner: str, file: str) -> str:
    """Return a URL for a file that a provider holds under an id."""
    return f"urn:{owner}:{quote(file, safe='')}" if file else ""


def file_id(url: str, owner: str) -> str | None:
    """Return the id of a file, if this provider holds it."""
    start = f"urn:{owner}:"
    return unquote(url[len(start) :]) if url.startswith(start) else None


def mime_of(part: MediaPart) -> str:
    """Return the type of a medium: as given, as its data URL says, by its ending, or what is usual."""
    if part.mime:
        return part.mime
    if (split := split_data_url(part.url)) is not None and split[0]:
        return split[0]
    path = None if part.url[:5].lower() == "data:" else _PATH.match(part.url)
    ending = "" if path is None else path[1].rpartition(".")[2].lower()
    return _MIMES.get(ending, _ANY_OF[part.modality])


def modality_of(mime: str | None) -> Modality:
    """Return the modality of a type; a document if it is none of the others."""
    match (mime or "").partition("/")[0]:
        case "image" | "audio" | "video" as modality:
            return modality
        case _:
            return "document"


def named_file(name: str | None) -> dict[str, Any]:
    """Return the metadata of a medium that came from a file of a name, if it has one."""
    return {"file": {"name": name}} if name else {}


def described(part: MediaPart) -> str:
    """Return words for a medium that cannot be shown: what is said in it, where that is known."""
    for notes in part.metadata.values():
        if isinstance(said := notes.get("transcript"), str) and said:
            return said
    if part.url[:4].lower() == "http":
        return f"[{part.modality}: {part.url}]"
    name = part.prompt_hint or part.file_name
    return f"[{part.modality} {name}]" if name else f"[{part.modality}, not shown]"
