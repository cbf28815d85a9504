"""Reads Anthropic Messages: bodies, and messages of blocks. Calls, results and the blocks between them become messages.

A body is a request, a response, a bare list of messages, or one message.

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

from antiphon.dialects._body import Body
from antiphon.dialects._content import as_data_url, count_of, error_of, file_urn, named_file, outcome_of, read_arguments
from antiphon.dialects._reading import (
    CHAT_KEYS,
    CLAUDE_KEYS,
    CallFields,
    OutcomeFields,
    PayloadFields,
    ResultFields,
    Unit,
    as_list,
    as_object,
    content_parts,
    is_one_of,
    kind_of,
    sample_units,
)
from antiphon.errors import DecodeError
from antiphon.messages import Citation, ForeignPart, MediaPart, Part, ReasoningPart, TextPart, Usage
from antiphon.messages._json_values import canonical
from antiphon.messages._names import is_name

NAME = "anthropic-messages"
FILE = "anthropic-file"
"""The owner of the ids of files."""
ROLES = ("user", "assistant", "system")

SETTINGS = {
    "text": ("cache_control",),
    "image": ("cache_control", "transformations"),
    "document": ("cache_control", "citations", "context"),
    "tool_use": ("cache_control", "caller", "toolset_name"),
    "tool_result": ("cache_control", "toolset_name"),
}
"""Keys of a block that are settings, by its type: noted on the part, or on the message of a call or result."""
TITLES: dict[str, str] = dict.fromkeys(("char_location", "page_location", "content_block_location"), "document_title")
"""The key of the title of a citation, by its type, if it is not `title`."""

_OWN_BLOCKS = frozenset(
    {
        "document",
        "image",
        "redacted_thinking",
        "search_result",
        "server_tool_use",
        "thinking",
        "tool_result",
        "tool_use",
        "web_search_tool_result",
    }
)
"""Types of blocks by which the format is recognised."""
_OTHER_MODEL = re.compile(r"(chat)?gpt-|o\d|gemini-|(mi|magi|mini|code|dev|pix|vox)stral-|palmyra-|command-|.+/")
"""Names of models that do not use this format; a name with a slash belongs to a server of many providers' models."""
_COUNTED = frozenset({"model", "messages", "thinking", "tool_choice", "tools"})
"""Keys of a request to count tokens, which has no `max_tokens`."""


# ---------------------------------------------------------------- bodies


def open_body(value: object) -> Body:
    body = as_object(value)
    if body is not None and isinstance(body.get("messages"), list):
        return _request(body)
    if body is not None and "role" in body:
        return _response(body) if body.get("type") == "message" else Body("one", [body])
    raise DecodeError("expected a request with messages, a response, or a list of messages", dialect=NAME)


def _request(request: dict[str, Any]) -> Body:
    rest = {key: value for key, value in request.items() if key != "messages"}
    system = rest.pop("system") if rest.get("system") is not None else None
    tools: list[Any] = rest.pop("tools") if isinstance(rest.get("tools"), list) and rest["tools"] else []
    return Body("request", request["messages"], ("messages",), instructions=system, slot="system", tools=tools, rest=rest)


def _response(response: dict[str, Any]) -> Body:
    """Take a response apart: one message with other fields. Its id stays there: a message of a request must not have one."""
    unit = {key: response[key] for key in ("role", "content") if key in response}
    rest = {key: value for key, value in response.items() if key not in unit}
    own_id = response.get("id")
    return Body("one", [unit], rest=rest, usage=_usage(response.get("usage")), id=own_id if is_name(own_id) else None)


def _usage(value: object) -> Usage | None:
    """Return the usage. The format's `input_tokens` excludes cached tokens; in the core it is the whole prompt."""
    usage = as_object(value)
    if usage is None:
        return None
    details = as_object(usage.get("output_tokens_details")) or {}
    read, written = count_of(usage.get("cache_read_input_tokens")), count_of(usage.get("cache_creation_input_tokens"))
    fresh = count_of(usage.get("input_tokens"))
    return Usage(
        input_tokens=None if fresh is None else count_of(fresh + (read or 0) + (written or 0)),
        output_tokens=count_of(usage.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        reasoning_tokens=count_of(details.get("thinking_tokens")),
    )


# ---------------------------------------------------------------- tools


def read_tool(tool: object) -> dict[str, Any] | None:
    """Return name, description and parameters of a tool; None for a tool that the provider runs, or knows the schema of."""
    fields = as_object(tool) or {}
    schema = as_object(fields.get("input_schema"))
    if fields.get("type", "custom") not in ("custom", None) or schema is None or not isinstance(fields.get("name"), str):
        return None
    return {"name": fields["name"], "description": fields.get("description"), "parameters": schema}


# ---------------------------------------------------------------- recognition


def recognise(data: object) -> str | None:
    body = as_object(data)
    if body is not None and isinstance(body.get("messages"), list):
        return _recognise_request(body)
    if body is not None and body.get("type") == "message" and "stop_reason" in body:
        return "a response with a stop_reason"
    units = sample_units(data)
    return "messages with blocks of Anthropic Messages" if _are_messages(units) and any(map(_has_blocks, units)) else None


def _recognise_request(request: dict[str, object]) -> str | None:
    units, tools = sample_units(request["messages"]), [as_object(tool) or {} for tool in as_list(request.get("tools"))]
    system = request.get("system", "")
    are_blocks = all("type" in (as_object(block) or {}) for block in as_list(system))
    if not _are_messages(units) or any("function" in tool for tool in tools) or not (isinstance(system, str) or are_blocks):
        return None
    if "system" in request or any(map(_has_blocks, units)) or any("input_schema" in tool for tool in tools):
        return "a request of Anthropic Messages"
    model = request.get("model")
    is_cohere = isinstance(model, str) and model.startswith("command-")
    if not CLAUDE_KEYS.isdisjoint(request) and not is_cohere:
        return "a request with keys of Anthropic Messages"
    if not CHAT_KEYS.isdisjoint(request) or (isinstance(model, str) and _OTHER_MODEL.match(model)):
        return None
    # Chat Completions has it too, but as an optional setting that is deprecated.
    if "max_tokens" in request:
        return "a request with messages and max_tokens"
    is_count = isinstance(model, str) and model.startswith("claude-") and request.keys() <= _COUNTED
    return "a request to count the tokens of messages" if is_count else None


def _are_messages(units: list[dict[str, object]]) -> bool:
    return bool(units) and all(
        is_one_of(unit.get("role"), ROLES) and "tool_calls" not in unit and content_parts(unit) is not None for unit in units
    )


def _has_blocks(unit: dict[str, Any]) -> bool:
    """Whether content has blocks that only this format has. A thought without a signature is Mistral's or Cohere's."""
    parts = content_parts(unit) or []
    return any(part["type"] in _OWN_BLOCKS and ("thinking" not in part or "signature" in part) for part in parts)


# ---------------------------------------------------------------- messages

_Path: TypeAlias = tuple[str | int, ...]
_Draft: TypeAlias = tuple[PayloadFields, dict[str, Any]]
"""The fields of a payload, and the dialect's metadata of the message."""
_Block: TypeAlias = dict[str, Any]
_FILE_NAME = re.compile(r"[^/\\\n]{1,200}\.[A-Za-z][A-Za-z0-9]{0,7}")
"""A title that is the name of a file; any other is a hint for the prompt."""


def read(unit: Unit) -> None:
    role = unit.text("role")
    if role not in ROLES:
        unit.fail(f"unknown role {role!r}; expected one of {', '.join(ROLES)}", "role")
    own_id = unit.own_id("id")
    drafts = _drafts(unit, role)
    turn = own_id if role == "assistant" and len(drafts) > 1 else None
    for payload, notes in drafts:
        if payload["kind"] == "option_result":
            option = payload["option_name"]
            unit.say(payload, policy=option, role_hint_for_llm="tool", id=own_id, metadata={NAME: notes})
            continue
        message = unit.say(payload, policy=role, role_hint_for_llm=role, id=own_id, turn_id=turn, metadata={NAME: notes})
        if payload["kind"] == "option_call":
            unit.reading.calls[payload["invocation_id"]] = message


def read_instructions(unit: Unit) -> None:
    value: object = unit.value
    parts = _parts(unit, value, "system", ())
    own_id = f"{NAME}-system-{sha256(canonical(value)).hexdigest()[:12]}"
    metadata = {NAME: _form(value)}
    unit.say({"kind": "parts", "parts": parts}, policy="system", role_hint_for_llm="system", id=own_id, metadata=metadata)


def _drafts(unit: Unit, role: str) -> list[_Draft]:
    content = unit.value.get("content")
    if isinstance(content, str):
        return [({"kind": "parts", "parts": [TextPart(text=content)]}, {})]
    drafts: list[_Draft] = []
    run: list[Part] = []
    for index, block in enumerate(_blocks(unit, content, ("content",))):
        path = ("content", index)
        reader = _call if role == "assistant" else _result if role == "user" else None
        if reader is None or block.get("type") != ("tool_use" if role == "assistant" else "tool_result"):
            run.append(_part(unit, block, role, path))
            continue
        if run:
            drafts.append(({"kind": "parts", "parts": run}, {}))
            run = []
        drafts.append(reader(unit, block, path))
    if run or not drafts:
        drafts.append(({"kind": "parts", "parts": run}, {} if drafts else _form(content)))
    return drafts


def _form(content: object) -> dict[str, Any]:
    """Return the note that one text was given as a list of blocks, which is not how we would write it."""
    return {"blocks": True} if len(as_list(content)) == 1 else {}


def _blocks(unit: Unit, content: object, path: _Path) -> list[_Block]:
    if not isinstance(content, list):
        unit.fail(f"expected text or a list of blocks, found {kind_of(content)}", *path)
    for index, block in enumerate(cast("list[Any]", content)):
        if not isinstance(block, dict):
            unit.fail(f"expected a block, found {kind_of(block)}", *path, index)
    return cast("list[_Block]", content)


# ---------------------------------------------------------------- parts


def _parts(unit: Unit, content: object, role: str, path: _Path) -> list[Part]:
    if isinstance(content, str):
        return [TextPart(text=content)]
    blocks = _blocks(unit, content, path)
    return [_part(unit, block, role, (*path, index)) for index, block in enumerate(blocks)]


def _part(unit: Unit, block: _Block, role: str, path: _Path) -> Part:
    match block.get("type"):
        case "text":
            text = unit.text_in(block, "text", path)
            return TextPart(text=text, citations=_citations(block), metadata=_settings(block))
        case "image" | "document":
            return _medium(block) or ForeignPart(dialect=NAME, value=block)
        case "thinking" if role == "assistant":
            signature = block.get("signature")
            proof = signature if isinstance(signature, str) else None
            return ReasoningPart(text=unit.text_in(block, "thinking", path), signature=proof, metadata={NAME: {}})
        case "redacted_thinking" if role == "assistant":
            return ReasoningPart(encrypted_content=unit.text_in(block, "data", path), metadata={NAME: {}})
        case _:
            return ForeignPart(dialect=NAME, value=block)


def _settings(block: _Block) -> dict[str, dict[str, Any]]:
    settings = {key: block[key] for key in SETTINGS[block["type"]] if block.get(key) is not None}
    return {NAME: settings} if settings else {}


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
    value = block.get("citations")
    citations = [as_object(citation) for citation in as_list(value)]
    return () if None in citations else tuple(_citation(citation) for citation in citations if citation is not None)


def _citation(citation: dict[str, Any]) -> Citation:
    title = TITLES.get(str(citation.get("type")), "title")
    texts = {key: citation[key] for key in ("url", title, "source", "cited_text") if isinstance(citation.get(key), str)}
    rest = {key: value for key, value in citation.items() if key not in texts}
    return Citation(
        url=texts.get("url"),
        title=texts.get(title),
        source=texts.get("source"),
        quote=texts.get("cited_text"),
        metadata={NAME: rest},
    )


# ---------------------------------------------------------------- calls and results


def _invocation(unit: Unit, block: _Block, key: str, path: _Path) -> str:
    return unit.alias(unit.text_in(block, key, path) or f"{unit.own_id('id')}-{path[-1]}")


def _call(unit: Unit, block: _Block, path: _Path) -> _Draft:
    input_ = block.get("input")
    if input_ is not None and not isinstance(input_, dict):
        unit.fail(f"expected an object, found {kind_of(input_)}", *path, "input")
    arguments, text = read_arguments(input_ or {})
    payload: CallFields = {
        "kind": "option_call",
        "invocation_id": _invocation(unit, block, "id", path),
        "option_name": unit.alias(unit.text_in(block, "name", path)),
        "arguments": arguments,
        "arguments_text": text,
    }
    return payload, _settings(block).get(NAME, {})


def _result(unit: Unit, block: _Block, path: _Path) -> _Draft:
    invocation = _invocation(unit, block, "tool_use_id", path)
    option = unit.called(invocation) or "unknown"
    content = block.get("content")
    parts = [] if content is None else _parts(unit, content, "result", (*path, "content"))
    outcome = _error(parts) if block.get("is_error") is True else outcome_of(parts)
    payload: ResultFields = {"kind": "option_result", "invocation_id": invocation, "option_name": option, **outcome}
    return payload, {**_settings(block).get(NAME, {}), **_form(content)}


def _error(parts: list[Part]) -> OutcomeFields:
    """Return an error: its text, and its other content."""
    words = "\n".join(part.text for part in parts if isinstance(part, TextPart))
    error_type, message = error_of(words)
    shown = [part for part in parts if not isinstance(part, TextPart)]
    return {"is_error": True, "error_type": error_type, "error_message": message, "parts": shown}
