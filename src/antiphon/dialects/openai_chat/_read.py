"""Reads OpenAI Chat Completions: bodies, and chat messages of six roles with their calls, including the legacy function call.

A body is a request, a response, a bare list of messages, or one message.
"""

from __future__ import annotations

from typing import Any, cast

from antiphon.dialects._body import Body
from antiphon.dialects._content import (
    as_data_url,
    count_of,
    file_urn,
    modality_of,
    named_file,
    outcome_of,
    read_arguments,
    split_data_url,
    unix_time,
    usage_of,
)
from antiphon.dialects._reading import (
    CHAT_KEYS,
    CLAUDE_KEYS,
    CallFields,
    OutcomeFields,
    PartsFields,
    ResultFields,
    Unit,
    as_list,
    as_object,
    content_parts,
    is_one_of,
    sample_units,
    text_at,
)
from antiphon.errors import DecodeError
from antiphon.messages import (
    Citation,
    DataPart,
    ForeignPart,
    MediaPart,
    Part,
    ReasoningPart,
    TextPart,
)

# ---------------------------------------------------------------- bodies

NAME = "openai-chat"
ROLES = frozenset({"developer", "system", "user", "assistant", "tool", "function"})
_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "image", "document", "input_text", "input_image", "output_text"})
_OTHERS = frozenset({"message_id", "metadata", "timestamp", "type", "kind", "parts"})
"""Keys that messages of other formats have."""
_OLLAMA_KEYS = frozenset({"keep_alive", "options"})
"""Keys of a request of Ollama's own, whose answers have another form."""


def open_body(value: object) -> Body:
    body = as_object(value)
    if body is not None and isinstance(body.get("messages"), list):
        return _request(body)
    if body is not None and isinstance(body.get("choices"), list):
        return _response(body)
    if body is not None and "role" in body:
        return Body("one", [body])
    raise DecodeError("expected a request with messages, a response with choices, or a list of messages", dialect=NAME)


def _request(request: dict[str, Any]) -> Body:
    rest = {key: value for key, value in request.items() if key != "messages"}
    tools: list[Any] = rest.pop("tools") if isinstance(rest.get("tools"), list) and rest["tools"] else []
    return Body("request", request["messages"], ("messages",), tools=tools, rest=rest)


def _response(response: dict[str, object]) -> Body:
    """The first choice is the conversation; the others are kept."""
    choices = cast("list[Any]", response["choices"])
    first = as_object(choices[0]) if choices else None
    if first is not None and "message" not in first and first.get("finish_reason"):
        return _facts(response, [])  # an answer that a content filter removed
    if first is None or as_object(first.get("message")) is None:
        raise DecodeError("expected a choice with a message", dialect=NAME, where="choices[0].message")
    rest = {key: value for key, value in first.items() if key != "message"}
    return _facts({**response, "choices": [rest, *choices[1:]]}, [first["message"]])


def _facts(response: dict[str, Any], units: list[Any]) -> Body:
    body = Body("response", units, ("choices",), rest=response, usage=usage_of(response.get("usage"), "prompt", "completion"))
    body.id = response["id"] if isinstance(response.get("id"), str) and response["id"] else None
    body.fields = {"created_at": unix_time(response.get("created"))}
    return body


def read_tool(tool: object) -> dict[str, Any] | None:
    fields = as_object(tool) or {}
    inner = as_object(fields.get(str(fields.get("type", "function"))))
    if inner is None or not isinstance(inner.get("name"), str):
        return None
    parameters = as_object(inner.get("parameters"))
    read = {"name": inner["name"], "description": inner.get("description"), "parameters": parameters or {}}
    return {**read, "metadata": {NAME: {"custom": True}}} if fields.get("type") == "custom" else read


def recognise(data: object) -> str | None:
    body = as_object(data)
    if body is not None and body.get("object") == "chat.completion":
        return "a chat completion"
    if body is not None and "messages" in body:
        return _recognise_request(body)
    units = sample_units(data)
    if not units or not all(is_one_of(unit.get("role"), ROLES) and not _has_blocks(unit) for unit in units):
        return None
    parts = [part["type"] for unit in units for part in content_parts(unit) or ()]
    if any(unit["role"] == "developer" for unit in units) or {"image_url", "input_audio", "file"} & set(parts):
        return "messages with roles and content parts of Chat Completions"
    is_plain = all("content" in unit or "tool_calls" in unit for unit in units) and not any(map(_OTHERS.intersection, units))
    return "roles and content, as Chat Completions and others have them" if is_plain else None


def _recognise_request(request: dict[str, Any]) -> str | None:
    units = sample_units(request["messages"]) if isinstance(request["messages"], list) else []
    if not units or "system" in request or any(not is_one_of(unit.get("role"), ROLES) or _has_blocks(unit) for unit in units):
        return None
    has_own = not CHAT_KEYS.isdisjoint(request) or any(
        "function" in (as_object(tool) or {}) for tool in as_list(request.get("tools"))
    )
    if not CLAUDE_KEYS.isdisjoint(request) or not _OLLAMA_KEYS.isdisjoint(request):
        return None
    if not has_own and any("input_schema" in (as_object(tool) or {}) for tool in as_list(request.get("tools"))):
        return None
    # Anthropic Messages requires `max_tokens`; here it is optional.
    model = request.get("model")
    is_claude = "max_tokens" in request and isinstance(model, str) and model.startswith("claude-")
    return None if is_claude and not has_own else "a request with messages of Chat Completions"


def _has_blocks(unit: dict[str, Any]) -> bool:
    """Whether content has parts of another provider. A thought that is a list of parts is Mistral's."""
    parts = content_parts(unit)
    return parts is None or any(part["type"] in _BLOCKS and not isinstance(part.get("thinking"), list) for part in parts)


# ---------------------------------------------------------------- messages

FILE, AUDIO = "openai-file", "openai-audio"
"""The owner of the ids of files and spoken answers."""
REASONING = ("reasoning_content", "reasoning")
"""The keys under which compatible servers put the reasoning of the model."""


def read(unit: Unit) -> None:
    role = unit.text("role")
    if role not in ROLES:
        unit.fail(f"unknown role {role!r}; expected one of {', '.join(sorted(ROLES))}", "role")
    match role:
        case "tool":
            _answer(unit, unit.text("tool_call_id"))
        case "function":  # the legacy answer, which names its function and no call
            name = unit.text("name")
            waiting = unit.reading.memory.get(f"legacy {name}")
            _answer(unit, str(waiting.pop(0)) if waiting else f"{unit.own_id('id')}-call", name, {"legacy": True})
        case "assistant":
            _assistant(unit)
        case _:
            _talk(unit, "system" if role == "developer" else role)


def _talk(unit: Unit, role: str) -> None:
    parts: PartsFields = {"kind": "parts", "parts": _content(unit)}
    unit.say(parts, policy=_speaker(unit, role), role_hint_for_llm=role, metadata={NAME: _form(unit)})


def _form(unit: Unit) -> dict[str, Any]:
    """Return a note if one text is given as a list, which is not the usual form."""
    return {"list": True} if len(as_list(unit.value.get("content"))) == 1 else {}


def _speaker(unit: Unit, role: str) -> str:
    return unit.alias(unit.maybe_text("name") or role)


def _assistant(unit: Unit) -> None:
    calls = [_call(unit, index, call) for index, call in enumerate(unit.objects("tool_calls"))]
    legacy = as_object(unit.value.get("function_call"))
    if legacy is not None and (legacy.get("name") != "" or legacy.get("arguments")):  # some servers always send an empty one
        calls.append(_legacy_call(unit, legacy))
    parts = [*_reasoning(unit), *_content(unit), *_spoken(unit)]
    if calls and all(isinstance(part, TextPart) and not part.text for part in parts):
        parts = []
    speaker = _speaker(unit, "assistant")
    turn = unit.own_id("id") if len(calls) + bool(parts) > 1 else None
    drafts: list[tuple[PartsFields | CallFields, dict[str, Any]]] = [*calls]
    if parts or not calls:
        drafts.insert(0, ({"kind": "parts", "parts": parts}, _form(unit)))
    for payload, notes in drafts:
        message = unit.say(payload, policy=speaker, role_hint_for_llm="assistant", turn_id=turn, metadata={NAME: notes})
        if payload["kind"] == "option_call":
            unit.reading.calls[payload["invocation_id"]] = message


def _reasoning(unit: Unit) -> list[Part]:
    thoughts: list[Part] = [
        ReasoningPart(text=text, metadata={NAME: {"key": key}}) for key in REASONING if (text := text_at(unit.value, key))
    ]
    if thoughts:
        return thoughts
    # Else the reasoning is only in OpenRouter's list of details; the residue restores the list itself.
    for item in as_list(unit.value.get("reasoning_details")):
        detail = as_object(item) or {}
        text, sealed = text_at(detail, "text") or text_at(detail, "summary"), text_at(detail, "data")
        if text or sealed:
            thoughts.append(ReasoningPart(text=text or "", encrypted_content=sealed, metadata={NAME: {"detail": True}}))
    return thoughts


def _spoken(unit: Unit) -> list[Part]:
    """Return the other content of an answer: a refusal, audio."""
    parts: list[Part] = []
    if (refusal := unit.maybe_text("refusal")) is not None:
        parts.append(TextPart(text=refusal, metadata={NAME: {"refusal": "field"}}))
    audio = as_object(unit.value.get("audio"))
    if audio is not None and isinstance(audio.get("id"), str) and audio["id"]:
        notes = {"transcript": audio["transcript"]} if isinstance(audio.get("transcript"), str) else {}
        parts.append(MediaPart(modality="audio", url=file_urn(AUDIO, audio["id"]), metadata={NAME: notes} if notes else {}))
    return parts


# ---------------------------------------------------------------- content


def _content(unit: Unit) -> list[Part]:
    content = unit.value.get("content")
    if content is None:
        return []
    if isinstance(content, str):
        return [TextPart(text=content, citations=_citations(unit))]
    if (data := as_object(content)) is not None:  # some servers answer with the requested object itself
        return [DataPart(data=data)]
    return [_part(unit, index, part) for index, part in enumerate(unit.objects("content"))]


def _citations(unit: Unit) -> tuple[Citation, ...]:
    if not isinstance(unit.value.get("annotations"), list):
        return ()
    citations = [as_object(annotation.get("url_citation")) for annotation in unit.objects("annotations")]
    return tuple(
        Citation(
            url=text_at(citation, "url"),
            title=text_at(citation, "title"),
            start=count_of(citation.get("start_index")),
            end=count_of(citation.get("end_index")),
        )
        for citation in citations
        if citation is not None
    )


def _part(unit: Unit, index: int, part: dict[str, Any]) -> Part:
    kind = part.get("type")
    if kind in ("text", "refusal"):
        text = unit.text_in(part, str(kind), ("content", index))
        return TextPart(text=text, metadata={NAME: {"refusal": "part"}} if kind == "refusal" else {})
    return read_medium(part)


def read_medium(part: dict[str, Any]) -> MediaPart | ForeignPart:
    """Return a part other than text: a medium or a foreign part."""
    kind = part.get("type")
    inner = as_object(part.get(kind)) or {} if isinstance(kind, str) else {}
    make = _MEDIA.get(str(kind))
    return (make and make(inner)) or ForeignPart(dialect=NAME, value=part)


def _image(image: dict[str, object]) -> MediaPart | None:
    url, detail = text_at(image, "url"), text_at(image, "detail")
    if not url:
        return None
    return MediaPart(modality="image", url=url, metadata={NAME: {"detail": detail}} if detail else {})


def _audio(audio: dict[str, object]) -> MediaPart | None:
    data, ending = text_at(audio, "data"), text_at(audio, "format")
    return MediaPart(modality="audio", url=as_data_url(f"audio/{ending}", data)) if data and ending else None


def _file(file: dict[str, Any]) -> MediaPart | None:
    url = text_at(file, "file_data") or file_urn(FILE, text_at(file, "file_id") or "")
    if not url:
        return None
    split = split_data_url(url)
    name = named_file(text_at(file, "filename"))
    return MediaPart(modality=modality_of(split[0] if split else None), url=url, metadata=name)


_MEDIA = {"image_url": _image, "input_audio": _audio, "file": _file}


# ---------------------------------------------------------------- calls and results


def _call(unit: Unit, index: int, call: dict[str, Any]) -> tuple[CallFields, dict[str, Any]]:
    kind = call.get("type", "function")
    inner = as_object(call.get(str(kind)))
    if inner is None or not isinstance(inner.get("name"), str):
        unit.fail(f"expected a {kind} with a name", "tool_calls", index, str(kind))
    if not isinstance(call.get("id"), str):
        unit.fail("expected the id of the call", "tool_calls", index, "id")
    arguments = inner.get("input" if kind == "custom" else "arguments", "")
    if not isinstance(arguments, str):
        unit.fail("expected the arguments as JSON text", "tool_calls", index, str(kind), "arguments")
    notes = {"custom": True} if kind == "custom" else {}
    return _call_payload(unit, call["id"], inner["name"], ({}, arguments) if notes else read_arguments(arguments)), notes


def _call_payload(unit: Unit, id: str, name: str, arguments: tuple[dict[str, Any], str | None]) -> CallFields:
    return {
        "kind": "option_call",
        "invocation_id": unit.alias(id or unit.own_id("id")),
        "option_name": unit.alias(name),
        "arguments": arguments[0],
        "arguments_text": arguments[1],
    }


def _legacy_call(unit: Unit, call: dict[str, Any]) -> tuple[CallFields, dict[str, object]]:
    name = call.get("name")
    if not isinstance(name, str):
        unit.fail("expected a function with a name", "function_call")
    payload = _call_payload(unit, f"{unit.own_id('id')}-call", name, read_arguments(str(call.get("arguments", ""))))
    unit.reading.memory.setdefault(f"legacy {name}", []).append(payload["invocation_id"])
    return payload, {"legacy": True}


def _answer(unit: Unit, invocation: str, name: str | None = None, notes: dict[str, object] | None = None) -> None:
    invocation = unit.alias(invocation or unit.own_id("id"))
    option = unit.alias(name) if name else unit.called(invocation) or "unknown"
    content = unit.value.get("content")
    outcome: OutcomeFields = {"result": content}
    if not isinstance(content, str):
        outcome = outcome_of(_content(unit) if isinstance(content, list) else [])
    payload: ResultFields = {"kind": "option_result", "invocation_id": invocation, "option_name": option, **outcome}
    unit.say(payload, policy=option, role_hint_for_llm="tool", metadata={NAME: notes or {}})
