"""Reads OpenAI Responses: bodies, and items. Each item becomes one message.

A body is a request, whose input may be one text, a response, a bare list of items, or one item.

The format does not mark turns. Consecutive items of the assistant form one: reasoning, messages, calls, and the service's own
tools. A message in short form has no id, so a program wrote it: it begins a new turn, unless only reasoning and searches
precede it. An item that the core cannot express becomes a `ForeignPart`, unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, cast

from pydantic import ValidationError

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
    CallFields,
    PartsFields,
    PayloadFields,
    ResultFields,
    Unit,
    as_list,
    as_object,
    is_one_of,
    kind_of,
    sample_units,
    text_at,
)
from antiphon.errors import DecodeError
from antiphon.messages import (
    Citation,
    ForeignPart,
    MediaPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
)

NAME = "openai-responses"
ROLES = frozenset({"user", "assistant", "system", "developer"})
FILE = "openai-file"
"""The owner of the ids of files: the provider, so Chat Completions has the same."""
AS_TEXT = ""
"""Stored under `input` if that was one text and not a list."""
LEFT_OUT = False
"""Stored under `input` if there was none."""

_TOOLS = ("function", "custom")

_ITEMS = frozenset(
    {
        "agent_message",
        "apply_patch_call",
        "apply_patch_call_output",
        "code_interpreter_call",
        "compaction",
        "computer_call",
        "computer_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "function_call",
        "function_call_output",
        "image_generation_call",
        "item_reference",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_approval_response",
        "mcp_call",
        "mcp_list_tools",
        "message",
        "multi_agent_call",
        "multi_agent_call_output",
        "program",
        "program_output",
        "reasoning",
        "shell_call",
        "shell_call_output",
        "tool_search_call",
        "tool_search_output",
        "web_search_call",
    }
)
"""The types by which a list of items is recognised; there are more types."""
_OTHER_KEYS = frozenset({"dimensions", "encoding_format", "input_type", "voice", "generation_config"})
"""Keys of other requests with `model` and `input`: embeddings, speech, Gemini's interactions."""
_OTHER_MODEL = re.compile(r"embed|moderation|-tts")
"""Names of models that take an `input` but not a conversation."""
_PARTS = ("input_text", "input_image", "input_file", "output_text")


# ---------------------------------------------------------------- bodies


def open_body(value: object) -> Body:
    body = as_object(value)
    if body is None:
        raise _no_body()
    if isinstance(body.get("type"), str) or "role" in body:
        return Body("one", [body])
    if isinstance(body.get("input"), list | str):
        return _request(body)
    if isinstance(body.get("output"), list):
        return _response(body)
    if body.get("input") is None and as_object(body.get("prompt")) is not None:
        return _request(body)
    raise _no_body()


def _no_body() -> DecodeError:
    return DecodeError("expected a request with input, a response with output, or a list of items", dialect=NAME)


def _request(request: dict[str, Any]) -> Body:
    rest = {key: value for key, value in request.items() if key != "input"}
    tools: list[Any] = rest.pop("tools") if isinstance(rest.get("tools"), list) and rest["tools"] else []
    units = request.get("input")
    if units is None:  # a stored prompt has all messages
        rest["input"] = None if "input" in request else LEFT_OUT
        units = []
    if isinstance(units, str):
        rest["input"] = AS_TEXT
        units = [{"role": "user", "content": units}]
    instructions = rest.pop("instructions") if rest.get("instructions") is not None else None
    return Body("request", units, ("input",), instructions=instructions, tools=tools, rest=rest)


def _response(response: dict[str, Any]) -> Body:
    """Split a response; its instructions and tools repeat those of the request."""
    rest = {key: value for key, value in response.items() if key != "output"}
    body = Body(
        "response", response["output"], ("output",), rest=rest, usage=usage_of(response.get("usage"), "input", "output")
    )
    body.fields = {"created_at": unix_time(response.get("created_at"))}
    return body


# ---------------------------------------------------------------- tools


def read_tool(tool: object) -> dict[str, object] | None:
    """Return name, description and parameters of a tool that the caller runs; None for the service's own tools."""
    fields = as_object(tool) or {}
    if not is_one_of(fields.get("type"), _TOOLS) or not isinstance(fields.get("name"), str):
        return None
    parameters = as_object(fields.get("parameters"))
    read: dict[str, object] = {
        "name": fields["name"],
        "description": fields.get("description"),
        "parameters": parameters or {},
    }
    return {**read, "metadata": {NAME: {"custom": True}}} if fields["type"] == "custom" else read


# ---------------------------------------------------------------- recognition


def recognise(data: Any) -> str | None:
    body = as_object(data)
    if body is None or "type" in body:
        return _recognise_items(data)
    if body.get("object") == "response" and isinstance(body.get("output"), list):
        return "a response with output items"
    input_ = body.get("input")
    if not _OTHER_KEYS.isdisjoint(body) or _OTHER_MODEL.search(str(body.get("model"))):
        return None
    if isinstance(input_, str):
        return "a request with a text as input" if "model" in body or "instructions" in body else None
    if isinstance(input_, list) and (units := sample_units(cast("list[Any]", input_))):
        are_messages = all(_has_role(unit) and "content" in unit for unit in units)
        if "model" in body or are_messages or _recognise_items(input_):
            return "a request with input items"
    is_stored = as_object(body.get("prompt")) is not None and "id" in body["prompt"] and "messages" not in body
    return "a request with a stored prompt" if is_stored and input_ is None else None


def _recognise_items(data: Any) -> str | None:
    units = sample_units(data)
    are_items = all(_is_item(unit) or _has_role(unit) for unit in units)
    parts = [as_object(part) or {} for unit in units for part in as_list(unit.get("content"))]
    has_own = any(map(_is_item, units)) or any(is_one_of(part.get("type"), _PARTS) for part in parts)
    return "items of Responses" if are_items and has_own else None


def _has_role(unit: dict[str, object]) -> bool:
    return isinstance(unit.get("role"), str) and unit["role"] in ROLES


def _is_item(unit: dict[str, object]) -> bool:
    """Whether it is an item by its type. A `message` with a model is a whole answer of another provider."""
    kind = unit.get("type")
    return isinstance(kind, str) and kind in _ITEMS and (kind != "message" or ("role" in unit and "model" not in unit))


# ---------------------------------------------------------------- items

THOUGHTS = {"summary": "summary_text", "content": "reasoning_text"}
"""The keys of the texts of a reasoning item, with their types."""
TEXT_SETTINGS = ("prompt_cache_breakpoint",)
MEDIA_SETTINGS = ("detail", *TEXT_SETTINGS)
"""The settings of a part that are stored in its metadata."""

_BY_THE_CALLER = frozenset(
    {
        "apply_patch_call_output",
        "compaction_trigger",
        "computer_call_output",
        "configuration_update",
        "local_shell_call_output",
        "mcp_approval_response",
        "shell_call_output",
    }
)
"""Items that the model does not make."""


def read_instructions(unit: Unit) -> None:
    text: object = unit.value
    if not isinstance(text, str):
        unit.fail(f"expected text, found {kind_of(text)}")
    place = f"{NAME}-instructions-{sha256(text.encode()).hexdigest()[:12]}"
    unit.say({"kind": "parts", "parts": [TextPart(text=text)]}, policy="system", role_hint_for_llm="system", id=place)


def read(unit: Unit) -> None:
    """Make the message of one item."""
    kind = unit.maybe_text("type") or ("message" if "role" in unit.value else "")
    if kind == "error" or kind.startswith("response."):
        unit.fail(f"{kind!r} is an event of a stream; expected an item", "type")
    _READERS.get(kind, _foreign)(unit)


# ---------------------------------------------------------------- speakers and turns


def _say(unit: Unit, payload: PayloadFields, notes: dict[str, Any], *, is_short: bool = False) -> Message:
    """Make a message of the assistant, or of the agent that the item names, as part of the turn."""
    agent = (as_object(unit.value.get("agent")) or {}).get("agent_name")
    is_named = isinstance(agent, str) and bool(agent)
    policy = unit.alias(str(agent)) if is_named else "assistant"
    mine = {**notes, "agent": True} if is_named else notes
    last = unit.reading.messages[-1] if unit.reading.messages else None
    turn = None if last is None or last.policy != policy else last.turn_id
    if (
        is_short
        and last is not None
        and (last.kind == "option_call" or any(isinstance(part, TextPart) for part in last.parts))
    ):
        turn = None  # a program wrote the short form, so it begins a turn, unless only reasoning and searches precede it
    turn = turn or unit.own_id("id")
    return unit.say(payload, policy=policy, role_hint_for_llm="assistant", turn_id=turn, metadata={NAME: mine})


# ---------------------------------------------------------------- messages, thoughts, and unknown items


def _message(unit: Unit) -> None:
    role = unit.text("role")
    if role not in ROLES:
        unit.fail(f"unknown role {role!r}; expected one of {', '.join(sorted(ROLES))}", "role")
    payload: PartsFields = {"kind": "parts", "parts": _content(unit, "content")}
    notes = _form(unit, "content")
    if role == "assistant":
        _say(unit, payload, notes, is_short=unit.value.get("id") is None)
    else:
        speaker = "system" if role == "developer" else role
        unit.say(payload, policy=speaker, role_hint_for_llm=speaker, metadata={NAME: notes})


def _agent_message(unit: Unit) -> None:
    author, recipient = unit.alias(unit.text("author")), unit.alias(unit.text("recipient"))
    payload: PartsFields = {"kind": "parts", "parts": _content(unit, "content")}
    notes = {**_form(unit, "content"), "agent_message": True}
    unit.say(payload, policy=author, to=(recipient,), metadata={NAME: notes})


def _reasoning(unit: Unit) -> None:
    thoughts = [(place, thought) for place in THOUGHTS for thought in unit.objects(place)]
    if any(thought.get("type") != THOUGHTS[place] or not isinstance(thought.get("text"), str) for place, thought in thoughts):
        _foreign(unit)
        return
    noted: list[tuple[str, dict[str, Any]]] = [(thought["text"], {"in": place}) for place, thought in thoughts] or [("", {})]
    noted[0][1]["id"] = unit.maybe_text("id")
    proof = unit.maybe_text("encrypted_content")
    parts = [ReasoningPart(text=text, metadata={NAME: notes}) for text, notes in noted]
    parts[0] = parts[0].model_copy(update={"encrypted_content": proof})
    _say(unit, {"kind": "parts", "parts": parts}, {})


def _generated_image(unit: Unit) -> None:
    image_id, result = unit.maybe_text("id"), unit.maybe_text("result")
    ending = unit.value.get("output_format")
    mime = f"image/{ending}" if isinstance(ending, str) and ending.isalnum() else "image/png"
    image = _medium("image", as_data_url(mime, result) if result else "", notes={"id": image_id}) if image_id else None
    if image is None:
        _foreign(unit)
    else:
        _say(unit, {"kind": "parts", "parts": [image]}, {})


def _foreign(unit: Unit) -> None:
    part = ForeignPart(dialect=NAME, value=unit.value, metadata={NAME: {"item": True}})
    payload: PartsFields = {"kind": "parts", "parts": [part]}
    kind, role = unit.value.get("type"), unit.value.get("role")
    if role in ("system", "developer"):
        unit.say(payload, policy="system", role_hint_for_llm="system")
    elif role == "user" or (isinstance(kind, str) and kind in _BY_THE_CALLER):
        unit.say(payload, policy="user", role_hint_for_llm="user")
    else:
        _say(unit, payload, {})


# ---------------------------------------------------------------- calls and results


def _call(unit: Unit) -> None:
    is_custom = unit.value["type"] == "custom_tool_call"
    input_ = unit.text("input" if is_custom else "arguments")
    arguments, text = ({}, input_) if is_custom else read_arguments(input_)
    invocation = unit.alias(unit.text("call_id") or unit.own_id("id"))
    payload: CallFields = {
        "kind": "option_call",
        "invocation_id": invocation,
        "option_name": unit.alias(unit.text("name")),
        "arguments": arguments,
        "arguments_text": text,
    }
    unit.reading.calls[invocation] = _say(unit, payload, {"custom": True} if is_custom else {})


def _answer(unit: Unit) -> None:
    invocation = unit.alias(unit.maybe_text("call_id") or unit.own_id("id"))
    name = unit.maybe_text("name")
    option = unit.alias(name) if name else unit.called(invocation) or "unknown"
    outcome = outcome_of(_content(unit, "output"))
    payload: ResultFields = {"kind": "option_result", "invocation_id": invocation, "option_name": option, **outcome}
    notes = _form(unit, "output")
    if unit.value["type"] == "custom_tool_call_output":
        notes["custom"] = True
    unit.say(payload, policy=option, role_hint_for_llm="tool", metadata={NAME: notes})


# ---------------------------------------------------------------- content


def _form(unit: Unit, key: str) -> dict[str, Any]:
    return {"list": True} if isinstance(unit.value[key], list) else {}


def _content(unit: Unit, key: str) -> list[Part]:
    content = unit.value.get(key)
    if isinstance(content, str):
        return [TextPart(text=content)]
    if not isinstance(content, list):
        unit.fail(f"expected text or a list of parts, found {kind_of(content)}", key)
    return [_part(unit, (key, index), part) for index, part in enumerate(unit.objects(key))]


def _part(unit: Unit, place: tuple[str, int], part: dict[str, Any]) -> Part:
    match part.get("type"):
        case "input_text" | "output_text":
            return _text(unit, place, part, "text")
        case "refusal":
            return _text(unit, place, part, "refusal")
        case "input_image":
            medium = _image(part)
        case "input_file":
            medium = _file(part)
        case _:
            medium = None
    return medium or ForeignPart(dialect=NAME, value=part)


def _text(unit: Unit, place: tuple[str, int], part: dict[str, Any], key: str) -> TextPart:
    text, notes = unit.text_in(part, key, place), _settings(part, TEXT_SETTINGS)
    if key == "refusal":
        notes["refusal"] = True
    return TextPart(text=text, citations=_citations(part.get("annotations")), metadata={NAME: notes} if notes else {})


def _settings(part: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: part[name] for name in names if part.get(name) is not None}


def _image(part: dict[str, object]) -> MediaPart | None:
    url = text_at(part, "image_url") or file_urn(FILE, text_at(part, "file_id") or "")
    return _medium("image", url, notes=_settings(part, MEDIA_SETTINGS))


def _file(part: dict[str, object]) -> MediaPart | None:
    url = text_at(part, "file_data") or text_at(part, "file_url") or file_urn(FILE, text_at(part, "file_id") or "")
    split = split_data_url(url)
    modality = modality_of(split[0] if split else None)
    notes = _settings(part, MEDIA_SETTINGS)
    if modality != "document":
        notes["file"] = True
    return _medium(modality, url, notes=notes, name=text_at(part, "filename"))


def _medium(modality: str, url: str, *, notes: dict[str, object], name: str | None = None) -> MediaPart | None:
    """Return a medium; None if the core refuses its URL."""
    metadata = {**({NAME: notes} if notes else {}), **named_file(name)}
    try:
        return MediaPart.model_validate({"modality": modality, "url": url, "metadata": metadata})
    except ValidationError:
        return None


# ---------------------------------------------------------------- citations


def _citations(value: object) -> tuple[Citation, ...]:
    annotations = [as_object(annotation) for annotation in as_list(value)]
    return tuple(_citation(annotation) for annotation in annotations if annotation is not None)


def _citation(annotation: dict[str, object]) -> Citation:
    """Return a citation; its kind is stored if its fields do not show it."""
    kind = annotation.get("type")
    end = count_of(annotation.get("end_index"))
    start = count_of(annotation.get("index" if kind == "file_citation" else "start_index"))
    if kind == "url_citation":
        return Citation(url=text_at(annotation, "url"), title=text_at(annotation, "title"), start=start, end=end)
    source, title = text_at(annotation, "file_id"), text_at(annotation, "filename")
    notes = {"type": kind} if isinstance(kind, str) and kind != "file_citation" else {}
    return Citation(source=source, title=title, start=start, end=end, metadata={NAME: notes} if notes else {})


_READERS = {
    "message": _message,
    "agent_message": _agent_message,
    "reasoning": _reasoning,
    "image_generation_call": _generated_image,
    "function_call": _call,
    "custom_tool_call": _call,
    "function_call_output": _answer,
    "custom_tool_call_output": _answer,
}
