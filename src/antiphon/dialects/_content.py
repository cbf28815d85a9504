"""Content as formats write it: text, arguments, results and errors as text and as objects, media as URLs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, cast
from urllib.parse import quote, unquote

import orjson

from antiphon.dialects._meaning import continued, joined
from antiphon.dialects._reading import OutcomeFields, as_object, fresh
from antiphon.messages import (
    DataPart,
    MediaPart,
    Message,
    Modality,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    TextPart,
    Usage,
)
from antiphon.messages._json_values import JsonError, parse, plain, write
from antiphon.messages._unchecked import json_text_of


def json_text(value: object) -> str:
    """Return a JSON value as compact text; text as itself."""
    return value if isinstance(value, str) else write(plain(value)).decode()


def arguments_text(call: OptionCallPayload) -> str:
    """Return arguments as text: the original text, if there is one."""
    return json_text_of(call, "arguments") if call.arguments_text is None else call.arguments_text


def message_text(message: Message) -> str:
    """Return a message's parts as text, data as JSON text."""
    parts = message.parts
    return parts[0].text if len(parts) == 1 and parts[0].kind == "text" else joined(_lines(parts), continued(message))


def _lines(parts: Iterable[Part]) -> list[tuple[Part, str]]:
    return [(part, line) for part in parts if (line := _line(part)) is not None]


def _line(part: Part) -> str | None:
    return part.text if part.kind == "text" else json_text(part.data) if part.kind == "data" else None


def has_words(message: Message) -> bool:
    """Whether a message has text."""
    return any(line for _, line in _lines(message.parts))


def time_text(time: datetime) -> str:
    """Return a time in UTC as ISO 8601: what `isoformat` gives, in a fifth of the time."""
    return orjson.dumps(time)[1:-1].decode()


def result_text(outcome: OptionResultPayload) -> str | None:
    """Return a result as text, JSON as JSON text; None for no result."""
    result = outcome.__dict__["result"]
    return result if result is None or type(result) is str else json_text_of(outcome, "result")


# ---------------------------------------------------------------- arguments and outcomes of providers' formats

INSTRUCTION = "[System instruction]: "
"""The prefix of an instruction that is written as user text, because the format does not accept it at this position."""

_RAW = "_raw"
"""The only key of an object that wraps arguments which are not an object."""
_ERROR = "Error"
_MOST = 2**53
"""The largest count that the core takes."""
_LATEST = 253_402_300_799
"""The last second of the year 9999."""
_TYPED = re.compile(r"([A-Za-z_][\w.-]{0,63}): (.*)", re.DOTALL)


def count_of(value: object) -> int | None:
    """Return a count, if it is a number that every JSON reader reads exactly; else None."""
    return value if type(value) is int and 0 <= value <= _MOST else None


def unix_time(value: Any) -> datetime | None:
    """Return the time of a Unix timestamp; None if it is not valid."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return datetime.fromtimestamp(value, UTC) if is_number and 0 <= value <= _LATEST else None


def usage_of(value: object, asked: str, answered: str) -> Usage | None:
    """Return the usage in OpenAI's formats, which differ in the words for what was asked and what was answered."""
    usage = as_object(value)
    if usage is None:
        return None
    input_details = as_object(usage.get(f"{asked}_tokens_details")) or {}
    output_details = as_object(usage.get(f"{answered}_tokens_details")) or {}
    counts = {
        "input_tokens": usage.get(f"{asked}_tokens"),
        "output_tokens": usage.get(f"{answered}_tokens"),
        "cache_read_tokens": input_details.get("cached_tokens"),
        "cache_write_tokens": input_details.get("cache_write_tokens"),
        "reasoning_tokens": output_details.get("reasoning_tokens"),
    }
    return Usage.model_validate({name: count_of(count) for name, count in counts.items()})


def text_of(part: TextPart | DataPart) -> str:
    """Return a part as text, data as JSON text."""
    return part.text if isinstance(part, TextPart) else json_text(part.data)


def read_arguments(value: Any) -> tuple[dict[str, Any], str | None]:
    """Return arguments from an object or its text, and the text if it is not the plain JSON of the arguments."""
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        raw = fields.get(_RAW) if len(fields) == 1 else None  # the object may only wrap a text
        return ({}, raw) if isinstance(raw, str) else (fields, None)
    try:
        arguments = parse(str(value).encode())
    except (JsonError, UnicodeEncodeError):
        return {}, str(value)
    if not isinstance(arguments, dict):
        return {}, str(value)
    return cast("dict[str, Any]", arguments), None if write(arguments).decode() == value else str(value)


def arguments_object(call: OptionCallPayload) -> dict[str, object]:
    """Return arguments as an object; a text that is not a JSON object is wrapped in one."""
    text = call.arguments_text
    if text is None or call.arguments or text.strip() in ("", "{}"):
        return cast("dict[str, Any]", fresh(call, "arguments"))
    return {_RAW: text}


def outcome_of(parts: Sequence[Part]) -> OutcomeFields:
    """Return the outcome of a call that succeeded: a single text is its result, other content is shown beside it."""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return {"result": parts[0].text}
    return {"parts": parts}


def error_text(outcome: OptionResultPayload) -> str:
    """Return an error in words: its type, its message, and its details as JSON."""
    words = str(outcome.error_message)
    if outcome.error_type != _ERROR:
        words = f"{outcome.error_type}: {words}"
    return words if outcome.result is None else f"{words}\n{json_text(outcome.result)}"


def error_of(text: str) -> tuple[str, str]:
    """Return the type and the message of an error in words."""
    match = _TYPED.fullmatch(text)
    return (match[1], match[2]) if match and match[1] != _ERROR else (_ERROR, text)


def outcome_text(outcome: OptionResultPayload) -> str:
    """Return the outcome of a call as readable text: never `null`, and an error is marked as one."""
    if outcome.is_error:
        words = error_text(outcome)
        return words if outcome.error_type != _ERROR else f"{_ERROR}: {words}"
    result = outcome.__dict__["result"]
    return "" if result is None else result if type(result) is str else json_text_of(outcome, "result")


# ---------------------------------------------------------------- media

_DATA = re.compile(r"data:([^;,]*)((?:;[^;,]*)*?);base64,", re.IGNORECASE)
_PATH = re.compile(r"[^:/?#]+:(?://[^/?#]*)?([^?#]*)")
"""The path of a URL, by the regular expression of RFC 3986 (appendix B); `urlsplit` refuses some URLs."""

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
    """Return a `data:` URL with base64 data."""
    return f"data:{mime};base64,{data}"


def split_data_url(url: str) -> tuple[str, str] | None:
    """Return the type and the base64 data of a `data:` URL; None for any other URL."""
    match = _DATA.match(url)
    return None if match is None else (match[1], url[match.end() :])


def file_urn(owner: str, file: str) -> str:
    """Return a URL for a file that a provider holds under an id."""
    return f"urn:{owner}:{quote(file, safe='')}" if file else ""


def file_id(url: str, owner: str) -> str | None:
    """Return the id of a file, if this provider holds it."""
    start = f"urn:{owner}:"
    return unquote(url[len(start) :]) if url.startswith(start) else None


def mime_of(part: MediaPart) -> str:
    """Return the type of a medium: the given one, else that of its `data:` URL, else by its file ending, else the default."""
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


def shown_below(part: MediaPart, owner: object, medium: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the text for a medium that a result cannot hold, and the medium under its label, for after the results."""
    label = f"{part.modality} of {owner}"
    return {"type": "text", "text": f"[{label}: shown below]"}, [{"type": "text", "text": f"{label}:"}, medium]


def described(part: MediaPart) -> str:
    """Return a text that replaces a medium: its content, if that is known."""
    for notes in part.metadata.values():
        if isinstance(transcript := notes.get("transcript"), str) and transcript:
            return transcript
    if part.url[:4].lower() == "http":
        return f"[{part.modality}: {part.url}]"
    name = part.prompt_hint or part.file_name
    return f"[{part.modality} {name}]" if name else f"[{part.modality}, not shown]"
