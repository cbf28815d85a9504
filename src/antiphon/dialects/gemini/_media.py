"""Media: bytes in base64, in either alphabet, and files by URI, as a part or in a result."""

from __future__ import annotations

import re
from typing import Any

from pydantic import ValidationError

from antiphon.dialects._content import as_data_url, file_id, file_urn, mime_of, modality_of, split_data_url
from antiphon.dialects._reading import as_object, notes_of
from antiphon.dialects.gemini._keys import DATA, MODIFIERS, NAME, kept_proof, known, proof, respelled, spelled_otherwise
from antiphon.messages import MediaPart, thaw

__all__ = ["read_medium", "write_medium"]

_SIGNATURE = "thoughtSignature"
_FILE = "gemini-file"
"""Whose ids the names of files are, where they are no URLs."""
_LOCATED = re.compile(r"(?:https?|gs)://", re.IGNORECASE)
_TO_STANDARD = str.maketrans("-_", "+/")
_TO_URL_SAFE = str.maketrans("+/", "-_")


def read_medium(part: dict[str, Any]) -> MediaPart | None:
    """Return the medium that a part holds; None if it holds none, or one that the core cannot."""
    given = known(part)
    inner = as_object(given.get("inlineData", given.get("fileData")))
    if inner is None or len(given.keys() & DATA) != 1 or given.get("thought") is True:
        return None
    held = known(inner)
    notes = {key: given[key] for key in MODIFIERS if key in given}
    if isinstance(signature := given.get(_SIGNATURE), str):
        notes[_SIGNATURE] = kept_proof(signature)
    if isinstance(name := held.get("displayName"), str):
        notes["displayName"] = name
    if snake := spelled_otherwise(part, inner):
        notes["snake"] = snake
    located = _bytes(held, notes) if "inlineData" in given else _file(held)
    if located is None:
        return None
    url, mime = located
    try:
        return MediaPart(
            modality=modality_of(mime),
            url=url,
            mime=mime,
            prompt_hint=notes.get("displayName"),
            metadata={NAME: notes} if notes else {},
        )
    except ValidationError:
        return None


def _bytes(held: dict[str, Any], notes: dict[str, Any]) -> tuple[str, str] | None:
    """Return a data URL, in the alphabet that all others use, and the type."""
    mime, data = held.get("mimeType"), held.get("data")
    if not isinstance(mime, str) or not isinstance(data, str):
        return None
    if ("-" in data or "_" in data) and "+" not in data and "/" not in data:
        notes["urlSafe"] = True
        data = data.translate(_TO_STANDARD)
    url = as_data_url(mime, data)
    split = split_data_url(url)
    return (url, mime) if split is not None and split[1] == data else None


def _file(held: dict[str, Any]) -> tuple[str, str | None] | None:
    uri, mime = held.get("fileUri"), held.get("mimeType")
    if not isinstance(uri, str):
        return None
    return uri if _LOCATED.match(uri) else file_urn(_FILE, uri), mime if isinstance(mime, str) else None


def write_medium(part: MediaPart, *, is_own: bool = True) -> dict[str, Any] | None:
    """Return the part for a medium; None for one that cannot be shown. A proof is only for who gave it (`is_own`)."""
    notes = notes_of(part, NAME)
    held: dict[str, Any] = {"mimeType": mime_of(part)}
    if (split := split_data_url(part.url)) is not None:
        held["data"] = split[1].translate(_TO_URL_SAFE) if notes.get("urlSafe") else split[1]
        written: dict[str, Any] = {"inlineData": held}
    elif (uri := part.url if _LOCATED.match(part.url) else file_id(part.url, _FILE)) is not None:
        held["fileUri"] = uri
        written = {"fileData": held}
    else:
        return None
    if notes:
        if "displayName" in notes:
            held["displayName"] = notes["displayName"]
        written |= {key: thaw(notes[key]) for key in MODIFIERS if key in notes and (is_own or key != _SIGNATURE)}
        if isinstance(signature := written.get(_SIGNATURE), str):
            written[_SIGNATURE] = proof(signature)
        if "snake" in notes:
            written = respelled(written, notes["snake"])
    return written
