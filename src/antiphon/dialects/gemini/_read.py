"""Reads a content: each function call and each response becomes a message, and so do the parts between them.

A call needs no id here. If it has none, an id is made from the place and the content of its turn, and marked as not written. A
response without an id, or with an id that no call has, answers the first open call of its name in the turn before.

- **Citations** are separate from the answer, with offsets in bytes of UTF-8; in the core, offsets are characters of the part.
- **Media** are bytes in base64, in either alphabet, or files by URI, as a part or in a result.
- **Outcomes** are objects. The service knows two keys: `output` is the result of the function, `error` describes its failure;
  an object with neither key is the result itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from antiphon.dialects._content import as_data_url, error_of, file_urn, json_text, modality_of, read_arguments, split_data_url
from antiphon.dialects._reading import (
    CallFields,
    OutcomeFields,
    PartsFields,
    Reading,
    ResultFields,
    Unit,
    as_list,
    as_object,
    kind_of,
)
from antiphon.dialects.gemini._wire import ANSWER, DATA, MODIFIERS, NAME, ROLES, kept_proof, known, look, spelled_otherwise
from antiphon.messages import Citation, ForeignPart, MediaPart, Message, OptionCallPayload, Part, ReasoningPart, TextPart
from antiphon.messages._names import is_name

# ---------------------------------------------------------------- citations

_SOURCES = ("web", "retrievedContext", "maps", "image")


def _read_citations(candidate: Mapping[str, Any], parts: Sequence[dict[str, Any]]) -> dict[int, list[Citation]]:
    """Return the citations of an answer, by the place of the part that they are about."""
    texts = {place: part["text"].encode() for place, part in enumerate(parts) if _is_answer(part)}
    by_place: dict[int, list[Citation]] = {}
    for place, citation in (*_grounding(candidate, texts), *_recitations(candidate, texts)):
        by_place.setdefault(place, []).append(citation)
    return by_place


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
            for index in as_list(look(support, "groundingChunkIndices")):
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
        url=_text_at(source, "uri") or _text_at(source, "sourceUri"),
        title=_text_at(source, "title"),
        source=_text_at(source, "documentName"),
        start=_characters(text, start),
        end=None if end is None else _characters(text, end),
    )


def _characters(text: bytes, offset: int) -> int:
    """Return the number of characters that end within a number of bytes."""
    return len(text[: max(0, offset)].decode(errors="ignore"))


def _text_at(box: Mapping[str, Any], key: str) -> str | None:
    value = look(box, key)
    return value if isinstance(value, str) else None


def _offset(box: Mapping[str, object], key: str) -> int | None:
    value = look(box, key)
    return value if type(value) is int and value >= 0 else None


def _objects(value: object) -> list[dict[str, object]]:
    return [item for item in as_list(value) if isinstance(item, dict)]


# ---------------------------------------------------------------- media

SIGNATURE = "thoughtSignature"
FILE = "gemini-file"
"""The owner of the names of files that are not URLs."""
LOCATED = re.compile(r"(?:https?|gs)://", re.IGNORECASE)
_TO_STANDARD = str.maketrans("-_", "+/")


def _read_medium(part: dict[str, Any]) -> MediaPart | None:
    """Return the medium of a part; None if it has none, or one that the core cannot express."""
    keys = known(part)
    inner = as_object(keys.get("inlineData", keys.get("fileData")))
    if inner is None or len(keys.keys() & DATA) != 1 or keys.get("thought") is True:
        return None
    medium = known(inner)
    notes = {key: keys[key] for key in MODIFIERS if key in keys}
    if isinstance(signature := keys.get(SIGNATURE), str):
        notes[SIGNATURE] = kept_proof(signature)
    if isinstance(name := medium.get("displayName"), str):
        notes["displayName"] = name
    if snake := spelled_otherwise(part, inner):
        notes["snake"] = snake
    located = _bytes(medium, notes) if "inlineData" in keys else _file(medium)
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


def _bytes(medium: dict[str, Any], notes: dict[str, Any]) -> tuple[str, str] | None:
    """Return a `data:` URL, in the standard base64 alphabet, and the type."""
    mime, data = medium.get("mimeType"), medium.get("data")
    if not isinstance(mime, str) or not isinstance(data, str):
        return None
    if ("-" in data or "_" in data) and "+" not in data and "/" not in data:
        notes["urlSafe"] = True
        data = data.translate(_TO_STANDARD)
    url = as_data_url(mime, data)
    split = split_data_url(url)
    return (url, mime) if split is not None and split[1] == data else None


def _file(medium: dict[str, object]) -> tuple[str, str | None] | None:
    uri, mime = medium.get("fileUri"), medium.get("mimeType")
    if not isinstance(uri, str):
        return None
    return uri if LOCATED.match(uri) else file_urn(FILE, uri), mime if isinstance(mime, str) else None


# ---------------------------------------------------------------- outcomes


def _read_outcome(response: dict[str, Any]) -> tuple[OutcomeFields, str | None]:
    """Return the result of the call as fields of an option_result, and its layout if it differs from ours."""
    error = response.get("error")
    is_error = says_error(error)
    output = {key: value for key, value in response.items() if key != "error"} if is_error else response
    form = "output" if output.keys() == {"output"} else "itself"
    result = output["output"] if form == "output" else None if is_error and not output else output
    outcome: OutcomeFields = {"result": result}
    if is_error:
        kind, message = error_of(error if isinstance(error, str) else json_text(error))
        outcome |= {"is_error": True, "error_type": kind, "error_message": message}
    is_usual = result is None or form == ("itself" if is_itself(result, is_error=is_error) else "output")
    return outcome, None if is_usual else form


def is_itself(result: object, *, is_error: bool) -> bool:
    """Whether a result is an object that cannot be mistaken for an error or a wrapped output."""
    fields = as_object(result)
    if fields is None or "output" in fields or says_error(fields.get("error")):
        return False
    return not is_error or (bool(fields) and "error" not in fields)


def says_error(error: object) -> bool:
    return error is not None and error is not False


# ---------------------------------------------------------------- contents

_WITH_ID = "\n"
"""The end of the key of open calls with an id: no name contains a line break."""
_TYPES: dict[str, type] = {"id": str, "name": str, "args": dict, "response": dict, "parts": list}


def read(unit: Unit) -> None:
    """Make the messages of one content."""
    if not unit.value.keys() & {"role", "parts"} and unit.root != ANSWER:  # an answer may be cut off before its content
        unit.fail("expected a content with parts")
    speaker = _speaker(unit)
    parts = [known(part) for part in _parts(unit)]
    cited = _read_citations(unit.reading.unit_facts, parts) if unit.reading.unit_facts else {}
    pieces = list(_pieces(parts))
    unit_id = _id(unit)
    turn = unit_id if speaker == "assistant" and len(pieces) > 1 else None
    if any(kind == "functionCall" for kind, _ in pieces):
        unit.reading.waiting, unit.reading.ids = {}, set()
    for kind, places in pieces:
        if kind == "functionCall":
            _call(unit, places[0], parts[places[0]], unit_id, speaker=speaker, turn=turn)
        elif kind == "functionResponse":
            _answer(unit, places[0], parts[places[0]], unit_id)
        else:
            content = [_part(unit, place, parts[place], cited.get(place, ())) for place in places]
            payload: PartsFields = {"kind": "parts", "parts": content}
            unit.say(payload, id=unit_id, policy=speaker, role_hint_for_llm=speaker, turn_id=turn)


def read_instructions(unit: Unit) -> None:
    """Make the messages of the content for instructions."""
    content = [_part(unit, place, known(part), ()) for place, part in enumerate(_parts(unit))]
    unit.say({"kind": "parts", "parts": content}, id=_id(unit), policy="system", role_hint_for_llm="system")


def _parts(unit: Unit) -> list[dict[str, object]]:
    """Return the parts of a content; the service accepts one object instead of a list."""
    only = as_object(unit.value.get("parts"))
    return unit.objects("parts") if only is None else [only]


def _raw_part(unit: Unit, place: int) -> dict[str, Any]:
    parts = unit.value["parts"]
    return cast("dict[str, Any]", parts if isinstance(parts, dict) else parts[place])


def _speaker(unit: Unit) -> str:
    role = unit.maybe_text("role") or ("model" if unit.root == ANSWER else "user")
    if role not in ROLES:
        unit.fail(f"unknown role {role!r}; expected user or model", "role")
    return ROLES[role]


def _id(unit: Unit) -> str:
    return unit.own_id("id" if is_name(unit.value.get("id")) else "")


def _pieces(parts: Sequence[dict[str, object]]) -> Iterator[tuple[str, list[int]]]:
    """Yield the kind and the positions of the parts of each message."""
    run: list[int] = []
    for place, part in enumerate(parts):
        kind = _kind(part)
        if not kind:
            run.append(place)
            continue
        if run:
            yield "", run
            run = []
        yield kind, [place]
    if run or not parts:
        yield "", run


def _kind(part: dict[str, object]) -> str:
    """Return the call or response of a part, if it has one."""
    for kind in ("functionCall", "functionResponse"):
        if kind in part and part.keys() & DATA == {kind}:
            return kind if kind == "functionResponse" or _is_whole(part[kind]) else ""
    return ""


def _is_whole(call: object) -> bool:
    """Whether a call is complete: an incomplete one must not be run."""
    fields = known(cast("dict[str, Any]", call)) if isinstance(call, dict) else {"name": None}
    return "name" in fields and not fields.get("partialArgs") and not fields.get("willContinue")


# ---------------------------------------------------------------- parts


def _part(unit: Unit, place: int, keys: dict[str, Any], citations: Sequence[Citation]) -> Part:
    """Return a part. A part that the core cannot express, or that has no content or several, is kept complete."""
    part = _raw_part(unit, place)
    if keys.keys() & DATA == {"text"}:
        return _text(unit, place, keys, citations)
    return _read_medium(part) or ForeignPart(dialect=NAME, value=part)


def _text(unit: Unit, place: int, keys: dict[str, Any], citations: Sequence[Citation]) -> Part:
    text = unit.text_in(keys, "text", ("parts", place))
    if len(keys) == 1:
        return TextPart(text=text, citations=tuple(citations))
    notes = _notes(unit, place, keys)
    if keys.get("thought") is True:
        signature = keys.get("thoughtSignature")
        if isinstance(signature, str) and notes["thoughtSignature"] == signature:
            del notes["thoughtSignature"]  # not so large that it must be noted
            return ReasoningPart(text=text, signature=signature, metadata={NAME: notes})
        return ReasoningPart(text=text, metadata={NAME: notes})
    return TextPart(text=text, citations=tuple(citations), metadata={NAME: notes} if notes else {})


def _notes(unit: Unit, place: int, keys: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a part: its signature, and keys in another spelling."""
    notes: dict[str, Any] = {}
    if isinstance(keys.get("thoughtSignature"), str):
        notes["thoughtSignature"] = kept_proof(keys["thoughtSignature"])
    if snake := spelled_otherwise(_raw_part(unit, place)):
        notes["snake"] = snake
    return notes


# ---------------------------------------------------------------- calls and results


def _contents(unit: Unit, place: int, keys: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the contents of a part that have the right type."""
    if not isinstance(keys[kind], dict):
        unit.fail(f"expected an object, found {kind_of(keys[kind])}", "parts", place, kind)
    contents = known(keys[kind])
    for key, expected in _TYPES.items():
        if key in contents and not isinstance(contents[key], expected):
            kind_name = kind_of(expected())
            unit.fail(f"expected {kind_name}, found {kind_of(contents[key])}", "parts", place, kind, key)
    return contents


def _call(unit: Unit, place: int, keys: dict[str, Any], unit_id: str, *, speaker: str, turn: str | None) -> None:
    contents = _contents(unit, place, keys, "functionCall")
    arguments, text = read_arguments(contents.get("args", {}))
    option = unit.alias(contents["name"])
    invocation = unit.alias(contents["id"]) if contents.get("id") else f"{unit_id}-{place}"
    payload: CallFields = {
        "kind": "option_call",
        "invocation_id": invocation,
        "option_name": option,
        "arguments": arguments,
        "arguments_text": text,
    }
    notes = _notes(unit, place, keys) | ({} if contents.get("id") else {"no_id": True})
    call = unit.say(payload, id=unit_id, policy=speaker, role_hint_for_llm=speaker, turn_id=turn, metadata={NAME: notes})
    unit.reading.calls[invocation] = call
    unit.reading.waiting.setdefault(option if "no_id" in notes else f"{option}{_WITH_ID}", []).append(call)


def _answer(unit: Unit, place: int, keys: dict[str, Any], unit_id: str) -> None:
    contents = _contents(unit, place, keys, "functionResponse")
    invocation, option = unit.alias(contents.get("id", "")), unit.alias(contents.get("name", ""))
    call = _answered(unit, invocation, option)
    if call is not None:
        invocation = str(call.invocation_id)
    option = option or ("unknown" if call is None else cast("OptionCallPayload", call.payload).option_name)
    outcome: OutcomeFields = {}
    form = None
    if "response" in contents:
        outcome, form = _read_outcome(contents["response"])
    notes = _notes(unit, place, keys) | ({} if contents.get("id") else {"no_id": True}) | ({"form": form} if form else {})
    payload: ResultFields = {
        "kind": "option_result",
        "invocation_id": invocation or f"{unit_id}-{place}",
        "option_name": option,
        "parts": [_read_medium(part) or ForeignPart(dialect=NAME, value=part) for part in _shown(unit, place, contents)],
        **outcome,
    }
    unit.say(payload, id=unit_id, policy=option, role_hint_for_llm="tool", metadata={NAME: notes})


def _answered(unit: Unit, invocation: str, option: str) -> Message | None:
    """Return the call that a response answers, and remove it from the open calls."""
    reading = unit.reading
    call = reading.calls.get(invocation) if invocation else None
    for queue in (option, *(() if invocation else (f"{option}{_WITH_ID}",))):
        call = call or _first_open(reading, queue)
    if call is not None:
        reading.ids.add(str(call.invocation_id))
    return call


def _first_open(reading: Reading, queue: str) -> Message | None:
    waiting = reading.waiting.get(queue)
    while waiting:
        call = waiting.pop(0)
        if call.invocation_id not in reading.ids:
            return call
    return None


def _shown(unit: Unit, place: int, contents: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the other content of a response."""
    parts = cast("list[Any]", contents.get("parts", []))
    for index, part in enumerate(parts):
        if not isinstance(part, dict):
            unit.fail(f"expected an object, found {kind_of(part)}", "parts", place, "functionResponse", "parts", index)
    return parts
