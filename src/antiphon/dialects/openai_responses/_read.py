"""Reads items: each becomes one message, and consecutive text, reasoning and calls of the assistant are one turn.

The format does not mark turns. Consecutive items of the assistant form one: reasoning, messages, calls, and the service's own
tools. A message in short form has no id, so a program wrote it: it begins a new turn, unless only reasoning and searches
precede it. An item that the core cannot express becomes a `ForeignPart`, unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, cast

from pydantic import ValidationError

from antiphon.dialects._content import as_data_url, count_of, file_urn, modality_of, named_file, read_arguments, split_data_url
from antiphon.dialects._reading import CallFields, PartsFields, PayloadFields, ResultFields, Unit, as_object, kind_of
from antiphon.dialects.openai_responses._wire import FILE, NAME, ROLES
from antiphon.messages import Citation, ForeignPart, MediaPart, Message, OptionCallPayload, Part, ReasoningPart, TextPart

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
    """Read the field for instructions."""
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
    turn = _turn(unit, policy, is_short=is_short)
    return unit.say(payload, policy=policy, role_hint_for_llm="assistant", turn_id=turn, metadata={NAME: mine})


def _turn(unit: Unit, policy: str, *, is_short: bool) -> str:
    last = unit.reading.messages[-1] if unit.reading.messages else None
    if last is None or last.turn_id is None or last.policy != policy or (is_short and _has_spoken(last)):
        return unit.own_id("id")
    return last.turn_id


def _has_spoken(message: Message) -> bool:
    return message.kind == "option_call" or any(isinstance(part, TextPart) for part in message.parts)


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
    if any(each.get("type") != THOUGHTS[place] or not isinstance(each.get("text"), str) for place, each in thoughts):
        _foreign(unit)
        return
    noted: list[tuple[str, dict[str, Any]]] = [(each["text"], {"in": place}) for place, each in thoughts] or [("", {})]
    noted[0][1]["id"] = unit.maybe_text("id")
    proof = unit.maybe_text("encrypted_content")
    parts = [ReasoningPart(text=text, metadata={NAME: notes}) for text, notes in noted]
    parts[0] = parts[0].model_copy(update={"encrypted_content": proof})
    _say(unit, {"kind": "parts", "parts": parts}, {})


def _generated_image(unit: Unit) -> None:
    made, result = unit.maybe_text("id"), unit.maybe_text("result")
    ending = unit.value.get("output_format")
    mime = f"image/{ending}" if isinstance(ending, str) and ending.isalnum() else "image/png"
    image = _medium("image", as_data_url(mime, result) if result else "", notes={"id": made}) if made else None
    if image is None:
        _foreign(unit)
    else:
        _say(unit, {"kind": "parts", "parts": [image]}, {})


def _foreign(unit: Unit) -> None:
    whole = ForeignPart(dialect=NAME, value=unit.value, metadata={NAME: {"item": True}})
    payload: PartsFields = {"kind": "parts", "parts": [whole]}
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
    given = unit.text("input" if is_custom else "arguments")
    arguments, text = ({}, given) if is_custom else read_arguments(given)
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
    call = unit.reading.calls.get(invocation)
    called = call.payload.option_name if call is not None and isinstance(call.payload, OptionCallPayload) else "unknown"
    name = unit.maybe_text("name")
    option = unit.alias(name) if name else called
    parts = _content(unit, "output")
    payload: ResultFields = {"kind": "option_result", "invocation_id": invocation, "option_name": option}
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        payload["result"] = parts[0].text
    else:
        payload["parts"] = parts
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
            found = _image(part)
        case "input_file":
            found = _file(part)
        case _:
            found = None
    return found or ForeignPart(dialect=NAME, value=part)


def _text(unit: Unit, place: tuple[str, int], part: dict[str, Any], key: str) -> TextPart:
    text = part.get(key)
    if not isinstance(text, str):
        unit.fail(f"expected text, found {kind_of(text)}", *place, key)
    notes = _settings(part, TEXT_SETTINGS)
    if key == "refusal":
        notes["refusal"] = True
    return TextPart(text=text, citations=_citations(part.get("annotations")), metadata={NAME: notes} if notes else {})


def _settings(part: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: part[name] for name in names if part.get(name) is not None}


def _image(part: dict[str, object]) -> MediaPart | None:
    url = _str(part, "image_url") or file_urn(FILE, _str(part, "file_id") or "")
    return _medium("image", url, notes=_settings(part, MEDIA_SETTINGS))


def _file(part: dict[str, object]) -> MediaPart | None:
    url = _str(part, "file_data") or _str(part, "file_url") or file_urn(FILE, _str(part, "file_id") or "")
    split = split_data_url(url)
    modality = modality_of(split[0] if split else None)
    notes = _settings(part, MEDIA_SETTINGS)
    if modality != "document":
        notes["file"] = True
    return _medium(modality, url, notes=notes, name=_str(part, "filename"))


def _medium(modality: str, url: str, *, notes: dict[str, object], name: str | None = None) -> MediaPart | None:
    """Return a medium; None if the core refuses its URL."""
    metadata = {**({NAME: notes} if notes else {}), **named_file(name)}
    try:
        return MediaPart.model_validate({"modality": modality, "url": url, "metadata": metadata})
    except ValidationError:
        return None


# ---------------------------------------------------------------- citations


def _citations(given: object) -> tuple[Citation, ...]:
    found = [as_object(each) for each in cast("list[Any]", given)] if isinstance(given, list) else []
    return tuple(_citation(each) for each in found if each is not None)


def _citation(given: dict[str, object]) -> Citation:
    """Return a citation; its kind is stored if its fields do not show it."""
    kind = given.get("type")
    end = _count(given, "end_index")
    if kind == "url_citation":
        return Citation(url=_str(given, "url"), title=_str(given, "title"), start=_count(given, "start_index"), end=end)
    start = _count(given, "index" if kind == "file_citation" else "start_index")
    source, title = _str(given, "file_id"), _str(given, "filename")
    notes = {"type": kind} if isinstance(kind, str) and kind != "file_citation" else {}
    return Citation(source=source, title=title, start=start, end=end, metadata={NAME: notes} if notes else {})


def _str(found: dict[str, Any], key: str) -> str | None:
    return found[key] if isinstance(found.get(key), str) else None


def _count(found: dict[str, object], key: str) -> int | None:
    return count_of(found.get(key))


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
