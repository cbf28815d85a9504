"""The content of a part, read and written: citations, media, and the outcome of a call.

- **Citations** are separate from the answer, with offsets in bytes of UTF-8; in the core, offsets are characters of the part.
- **Media** are bytes in base64, in either alphabet, or files by URI, as a part or in a result.
- **Outcomes** are objects. The service knows two keys: `output` is the result of the function, `error` describes its failure;
  an object with neither key is the result itself. So a result that is an object without these keys is written unchanged
  (`error: null` is no error, and is allowed); any other result as `{"output": …}`. An error is written as
  `{"error": "Type: message"}`, with its details beside it: the keys of an object, or `output`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from antiphon.dialects._content import (
    as_data_url,
    error_of,
    file_id,
    file_urn,
    json_text,
    mime_of,
    modality_of,
    split_data_url,
)
from antiphon.dialects._reading import OutcomeFields, as_object, fresh, notes_of
from antiphon.dialects.gemini._wire import DATA, MODIFIERS, NAME, kept_proof, known, look, proof, respelled, spelled_otherwise
from antiphon.messages import Citation, MediaPart, OptionResultPayload, thaw

# ---------------------------------------------------------------- citations

_SOURCES = ("web", "retrievedContext", "maps", "image")


def read_citations(candidate: Mapping[str, Any], parts: Sequence[dict[str, Any]]) -> dict[int, list[Citation]]:
    """Return the citations of an answer, by the place of the part that they are about."""
    texts = {place: part["text"].encode() for place, part in enumerate(parts) if _is_answer(part)}
    found: dict[int, list[Citation]] = {}
    for place, citation in (*_grounding(candidate, texts), *_recitations(candidate, texts)):
        found.setdefault(place, []).append(citation)
    return found


def _is_answer(part: dict[str, object]) -> bool:
    return isinstance(part.get("text"), str) and part.get("thought") is not True


def _grounding(candidate: Mapping[str, object], texts: Mapping[int, bytes]) -> Iterator[tuple[int, Citation]]:
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


def _source(chunk: dict[str, object]) -> dict[str, object]:
    sources = (as_object(look(chunk, key)) for key in _SOURCES)
    return next((source for source in sources if source is not None), chunk)


def _recitations(candidate: Mapping[str, object], texts: Mapping[int, bytes]) -> Iterator[tuple[int, Citation]]:
    """Yield the quotes of a source. Their offsets count over the whole text of the answer."""
    metadata = as_object(look(candidate, "citationMetadata")) or {}
    for source in _objects(metadata.get("citations") or look(metadata, "citationSources")):
        before = 0
        start, end = _offset(source, "startIndex") or 0, _offset(source, "endIndex")
        for place, text in texts.items():
            if start < before + len(text):
                yield place, _citation(source, text, start - before, None if end is None else end - before)
                break
            before += len(text)


def _citation(source: Mapping[str, object], text: bytes, start: int, end: int | None) -> Citation:
    return Citation(
        url=_text(source, "uri") or _text(source, "sourceUri"),
        title=_text(source, "title"),
        source=_text(source, "documentName"),
        start=_characters(text, start),
        end=None if end is None else _characters(text, end),
    )


def _characters(text: bytes, offset: int) -> int:
    """Return the number of characters that end within a number of bytes."""
    return len(text[: max(0, offset)].decode(errors="ignore"))


def _text(found: Mapping[str, Any], key: str) -> str | None:
    value = look(found, key)
    return value if isinstance(value, str) else None


def _offset(found: Mapping[str, object], key: str) -> int | None:
    value = look(found, key)
    return value if type(value) is int and value >= 0 else None


def _list(value: object) -> list[object]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _objects(value: object) -> list[dict[str, object]]:
    return [each for each in _list(value) if isinstance(each, dict)]


# ---------------------------------------------------------------- media

_SIGNATURE = "thoughtSignature"
_FILE = "gemini-file"
"""The owner of the names of files that are not URLs."""
_LOCATED = re.compile(r"(?:https?|gs)://", re.IGNORECASE)
_TO_STANDARD = str.maketrans("-_", "+/")
_TO_URL_SAFE = str.maketrans("+/", "-_")


def read_medium(part: dict[str, Any]) -> MediaPart | None:
    """Return the medium of a part; None if it has none, or one that the core cannot express."""
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
    """Return a `data:` URL, in the standard base64 alphabet, and the type."""
    mime, data = held.get("mimeType"), held.get("data")
    if not isinstance(mime, str) or not isinstance(data, str):
        return None
    if ("-" in data or "_" in data) and "+" not in data and "/" not in data:
        notes["urlSafe"] = True
        data = data.translate(_TO_STANDARD)
    url = as_data_url(mime, data)
    split = split_data_url(url)
    return (url, mime) if split is not None and split[1] == data else None


def _file(held: dict[str, object]) -> tuple[str, str | None] | None:
    uri, mime = held.get("fileUri"), held.get("mimeType")
    if not isinstance(uri, str):
        return None
    return uri if _LOCATED.match(uri) else file_urn(_FILE, uri), mime if isinstance(mime, str) else None


def write_medium(part: MediaPart, *, is_own: bool = True) -> dict[str, Any] | None:
    """Return the part for a medium; None if it cannot be written. A signature goes only to its own provider (`is_own`)."""
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


# ---------------------------------------------------------------- outcomes

_ERROR = "Error"
"""The type of an error without a type, and the message of an error without a message."""


def read_outcome(response: dict[str, Any]) -> tuple[OutcomeFields, str | None]:
    """Return the result of the call as fields of an option_result, and its layout if it differs from ours."""
    error = response.get("error")
    is_error = _is_error(error)
    given = {key: value for key, value in response.items() if key != "error"} if is_error else response
    form = "output" if given.keys() == {"output"} else "itself"
    result = given["output"] if form == "output" else None if is_error and not given else given
    outcome: OutcomeFields = {"result": result}
    if is_error:
        kind, message = error_of(error if isinstance(error, str) else json_text(error))
        outcome |= {"is_error": True, "error_type": kind, "error_message": message}
    is_usual = result is None or form == ("itself" if _is_itself(result, is_error=is_error) else "output")
    return outcome, None if is_usual else form


def write_outcome(outcome: OptionResultPayload, words: list[str], form: str | None) -> dict[str, object]:
    """Write the result of a call. Its text is added to the output."""
    result = fresh(outcome, "result")
    if words:
        result = "\n".join([*([] if result is None else [json_text(result)]), *words])
    if not outcome.is_error:
        return _laid_out(result, form, is_error=False)
    message = str(outcome.error_message)
    said = message or _ERROR if outcome.error_type == _ERROR else f"{outcome.error_type}: {message}"
    return {"error": said, **({} if result is None else _laid_out(result, form, is_error=True))}


def _laid_out(result: object, form: str | None, *, is_error: bool) -> dict[str, object]:
    found = as_object(result)
    if found is None or form == "output":
        return {"output": result}
    is_plain = found.keys() != {"output"} and not _is_error(found.get("error")) and not (is_error and "error" in found)
    return found if _is_itself(found, is_error=is_error) or (form == "itself" and is_plain) else {"output": result}


def _is_itself(result: object, *, is_error: bool) -> bool:
    """Whether a result is an object that cannot be mistaken for an error or a wrapped output."""
    found = as_object(result)
    if found is None or "output" in found or _is_error(found.get("error")):
        return False
    return not is_error or (bool(found) and "error" not in found)


def _is_error(error: object) -> bool:
    return error is not None and error is not False
