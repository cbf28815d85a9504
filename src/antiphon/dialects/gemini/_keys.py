"""The keys of generateContent in their two spellings: the service writes `inlineData`, its clients `inline_data` as well.

We write camel case. Where something came in snake case, a note says so, and it is written so again: kept as an unknown key
instead, it would stand beside ours as soon as somebody edits the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

__all__ = ["DATA", "MODIFIERS", "NAME", "kept_proof", "known", "look", "proof", "respelled", "spelled_otherwise"]

NAME = "gemini"

DATA = frozenset(
    {
        "text",
        "inlineData",
        "fileData",
        "functionCall",
        "functionResponse",
        "executableCode",
        "codeExecutionResult",
        "toolCall",
        "toolResponse",
    }
)
"""What a part holds: one of these."""

MODIFIERS = (
    "thoughtSignature",
    "videoMetadata",
    "mediaResolution",
    "mediaProcessing",
    "partMetadata",
    "speechMetadata",
    "audioTranscription",
)
"""What a part may say about what it holds."""

_OPAQUE = "data:;base64,"
_LARGE = 64 * 1024
_MEDIA = ("inlineData", "fileData")
_INNER = (
    "mimeType",
    "data",
    "fileUri",
    "displayName",
    "id",
    "name",
    "args",
    "partialArgs",
    "willContinue",
    "response",
    "parts",
)


@cache
def _snake(key: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key)


_CAMEL = {spelling: key for key in (*DATA, *MODIFIERS, "thought", *_INNER) for spelling in (key, _snake(key))}


def look(box: Mapping[str, Any], key: str) -> Any:
    """Return what an object says under a key, in either spelling."""
    value = box.get(key)
    return box.get(_snake(key)) if value is None else value


def known(box: dict[str, Any]) -> dict[str, Any]:
    """Return what a part, or what it holds, says under the keys that we know, in camel case; null says nothing."""
    return {_CAMEL[key]: value for key, value in box.items() if value is not None and key in _CAMEL}


def kept_proof(signature: str) -> str:
    """Return a proof as it is noted: the service makes some of several MB, which a message may hold as a `data:` URL only."""
    return f"{_OPAQUE}{signature}" if len(signature) > _LARGE else signature


def proof(note: str) -> str:
    """Return a proof that was noted."""
    return note.removeprefix(_OPAQUE)


def spelled_otherwise(*boxes: dict[str, Any]) -> list[str]:
    """Return the keys, in camel case, that are in snake case in one of these objects."""
    return [key for box in boxes for spelling in box if (key := _CAMEL.get(spelling, spelling)) != spelling]


def respelled(part: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Return a part with these of its keys, and of those of its medium, in snake case."""
    return {
        _snake(key) if key in keys else key: respelled(value, keys) if key in _MEDIA else value for key, value in part.items()
    }
