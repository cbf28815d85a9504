"""Reads a message of blocks: each call and each result becomes a message, and so do the blocks between them.

A block that the core cannot express is kept whole, in its place; so is a block that the format does not allow there. Keys of
a known block that are settings (`cache_control`, the `context` of a document) are noted on the part, and move with it. The
residue restores all other keys.
"""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from typing import Any, TypeAlias, cast

from pydantic import ValidationError

from antiphon.dialects._content import as_data_url, error_of, file_urn, named_file, read_arguments
from antiphon.dialects._reading import CallFields, OutcomeFields, PayloadFields, ResultFields, Unit, as_object, kind_of
from antiphon.dialects.anthropic_messages._wire import FILE, NAME, ROLES, SETTINGS, TITLES
from antiphon.messages import Citation, ForeignPart, MediaPart, OptionCallPayload, Part, ReasoningPart, TextPart
from antiphon.messages.json_values import canonical

_Path: TypeAlias = tuple[str | int, ...]
_Said: TypeAlias = tuple[PayloadFields, dict[str, Any]]
"""The fields of a payload, and the dialect's metadata of the message."""
_Block: TypeAlias = dict[str, Any]
_FILE_NAME = re.compile(r"[^/\\\n]{1,200}\.[A-Za-z][A-Za-z0-9]{0,7}")
"""A title that is the name of a file; any other is a hint for the prompt."""


def read(unit: Unit) -> None:
    """Read one message."""
    role = unit.text("role")
    if role not in ROLES:
        unit.fail(f"unknown role {role!r}; expected one of {', '.join(ROLES)}", "role")
    own_id = unit.own_id("id")
    said = _said(unit, role)
    fields: dict[str, Any] = {"turn_id": own_id} if role == "assistant" and len(said) > 1 else {}
    for payload, notes in said:
        if payload["kind"] == "option_result":
            option = payload["option_name"]
            unit.say(payload, policy=option, role_hint_for_llm="tool", id=own_id, metadata={NAME: notes})
            continue
        message = unit.say(payload, policy=role, role_hint_for_llm=role, id=own_id, metadata={NAME: notes}, **fields)
        if payload["kind"] == "option_call":
            unit.reading.calls[payload["invocation_id"]] = message


def read_instructions(unit: Unit) -> None:
    """Read the value of `system`."""
    given: object = unit.value
    parts = _parts(unit, given, "system", ())
    own_id = f"{NAME}-system-{sha256(canonical(given)).hexdigest()[:12]}"
    metadata = {NAME: _form(given)}
    unit.say({"kind": "parts", "parts": parts}, policy="system", role_hint_for_llm="system", id=own_id, metadata=metadata)


def _said(unit: Unit, role: str) -> list[_Said]:
    content = unit.value.get("content")
    if isinstance(content, str):
        return [({"kind": "parts", "parts": [TextPart(text=content)]}, {})]
    said: list[_Said] = []
    run: list[Part] = []
    for index, block in enumerate(_blocks(unit, content, ("content",))):
        if (made := _call_or_result(unit, role, block, ("content", index))) is None:
            run.append(_part(unit, block, role, ("content", index)))
            continue
        if run:
            said.append(({"kind": "parts", "parts": run}, {}))
            run = []
        said.append(made)
    if run or not said:
        said.append(({"kind": "parts", "parts": run}, {} if said else _form(content)))
    return said


def _form(content: object) -> dict[str, Any]:
    """Return the note that one text was given as a list of blocks, which is not how we would write it."""
    return {"blocks": True} if isinstance(content, list) and len(cast("list[Any]", content)) == 1 else {}


def _blocks(unit: Unit, content: object, path: _Path) -> list[_Block]:
    if not isinstance(content, list):
        unit.fail(f"expected text or a list of blocks, found {kind_of(content)}", *path)
    for index, block in enumerate(cast("list[Any]", content)):
        if not isinstance(block, dict):
            unit.fail(f"expected a block, found {kind_of(block)}", *path, index)
    return cast("list[_Block]", content)


def _text(unit: Unit, block: _Block, key: str, path: _Path) -> str:
    value = block.get(key)
    return value if isinstance(value, str) else unit.fail(f"expected text, found {kind_of(value)}", *path, key)


# ---------------------------------------------------------------- parts


def _parts(unit: Unit, content: object, role: str, path: _Path) -> list[Part]:
    if isinstance(content, str):
        return [TextPart(text=content)]
    blocks = _blocks(unit, content, path)
    return [_part(unit, block, role, (*path, index)) for index, block in enumerate(blocks)]


def _part(unit: Unit, block: _Block, role: str, path: _Path) -> Part:
    match block.get("type"):
        case "text":
            text = _text(unit, block, "text", path)
            return TextPart(text=text, citations=_citations(block), metadata=_settings(block))
        case "image" | "document":
            return _medium(block) or ForeignPart(dialect=NAME, value=block)
        case "thinking" if role == "assistant":
            signature = block.get("signature")
            proof = signature if isinstance(signature, str) else None
            return ReasoningPart(text=_text(unit, block, "thinking", path), signature=proof, metadata={NAME: {}})
        case "redacted_thinking" if role == "assistant":
            return ReasoningPart(encrypted_content=_text(unit, block, "data", path), metadata={NAME: {}})
        case _:
            return ForeignPart(dialect=NAME, value=block)


def _settings(block: _Block) -> dict[str, dict[str, Any]]:
    found = {key: block[key] for key in SETTINGS[block["type"]] if block.get(key) is not None}
    return {NAME: found} if found else {}


def _medium(block: _Block) -> MediaPart | None:
    source, title = as_object(block.get("source")), block.get("title")
    url = None if source is None else _url(source)
    if not url:
        return None
    title = title if isinstance(title, str) and title else None
    name = title if title is not None and _FILE_NAME.fullmatch(title) else None
    metadata = {**_settings(block), **named_file(name)}
    try:
        return MediaPart(modality=block["type"], url=url, prompt_hint=None if name else title, metadata=metadata)
    except ValidationError:  # a URL that the core refuses
        return None


def _url(source: dict[str, Any]) -> str | None:
    match source:
        case {"type": "base64", "media_type": str(mime), "data": str(data)}:
            return as_data_url(mime, data)
        case {"type": "text", "data": str(text)}:
            return as_data_url("text/plain", b64encode(text.encode()).decode())
        case {"type": "url", "url": str(url)}:
            return url
        case {"type": "file", "file_id": str(file)}:
            return file_urn(FILE, file)
        case _:
            return None


def _citations(block: _Block) -> tuple[Citation, ...]:
    """Return the citations of a text: they cover all of it, so no offsets are needed."""
    given = block.get("citations")
    found = [as_object(each) for each in cast("list[Any]", given)] if isinstance(given, list) else []
    return () if None in found else tuple(_citation(each) for each in found if each is not None)


def _citation(given: dict[str, Any]) -> Citation:
    title = TITLES.get(str(given.get("type")), "title")
    said = {key: given[key] for key in ("url", title, "source", "cited_text") if isinstance(given.get(key), str)}
    rest = {key: value for key, value in given.items() if key not in said}
    return Citation(
        url=said.get("url"),
        title=said.get(title),
        source=said.get("source"),
        quote=said.get("cited_text"),
        metadata={NAME: rest},
    )


# ---------------------------------------------------------------- calls and results


def _call_or_result(unit: Unit, role: str, block: _Block, path: _Path) -> _Said | None:
    kind = block.get("type")
    if kind == "tool_use" and role == "assistant":
        return _call(unit, block, path)
    return _result(unit, block, path) if kind == "tool_result" and role == "user" else None


def _invocation(unit: Unit, block: _Block, key: str, path: _Path) -> str:
    return unit.alias(_text(unit, block, key, path) or f"{unit.own_id('id')}-{path[-1]}")


def _call(unit: Unit, block: _Block, path: _Path) -> _Said:
    given = block.get("input")
    if given is not None and not isinstance(given, dict):
        unit.fail(f"expected an object, found {kind_of(given)}", *path, "input")
    arguments, text = read_arguments(given or {})
    payload: CallFields = {
        "kind": "option_call",
        "invocation_id": _invocation(unit, block, "id", path),
        "option_name": unit.alias(_text(unit, block, "name", path)),
        "arguments": arguments,
        "arguments_text": text,
    }
    return payload, _settings(block).get(NAME, {})


def _result(unit: Unit, block: _Block, path: _Path) -> _Said:
    invocation = _invocation(unit, block, "tool_use_id", path)
    call = unit.reading.calls.get(invocation)
    option = call.payload.option_name if call is not None and isinstance(call.payload, OptionCallPayload) else "unknown"
    content = block.get("content")
    parts = [] if content is None else _parts(unit, content, "result", (*path, "content"))
    outcome = _error(parts) if block.get("is_error") is True else _success(parts)
    payload: ResultFields = {"kind": "option_result", "invocation_id": invocation, "option_name": option, **outcome}
    return payload, {**_settings(block).get(NAME, {}), **_form(content)}


def _success(parts: list[Part]) -> OutcomeFields:
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return {"result": parts[0].text}
    return {"parts": parts} if parts else {}


def _error(parts: list[Part]) -> OutcomeFields:
    """Return an error: its text, and its other content."""
    words = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    error_type, message = error_of(words)
    shown = [part for part in parts if not isinstance(part, TextPart)]
    return {"is_error": True, "error_type": error_type, "error_message": message, "parts": shown}
