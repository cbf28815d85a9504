"""Reads and writes MARSYS messages.

There are seven roles: three for talk, two for the calls and answers of agents, one for tools, one for errors. An utterance
with its tool calls is one message; everything else is a message of its own. A content is text, or a list of parts in OpenAI's
form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from antiphon.dialects._content import (
    arguments_text,
    has_words,
    json_text,
    message_text,
    read_arguments,
    result_text,
    time_text,
)
from antiphon.dialects._meaning import PARTS, continued
from antiphon.dialects._purpose import (
    ERROR,
    FAILURE,
    call_purpose,
    failed,
    is_task,
    metadata_of,
    note,
    purpose_of,
    request_of,
    shared_notes,
    with_purpose,
)
from antiphon.dialects._reading import CallFields, ResultFields, Unit, as_object, is_one_of, notes_of, sample_units, text_at
from antiphon.dialects._unit_dialect import UnitDialect, Writing
from antiphon.dialects.marsys._message import text_of
from antiphon.dialects.openai_chat._read import read_medium
from antiphon.dialects.openai_chat._write import write_medium
from antiphon.messages import (
    RUNTIME_POLICY,
    DataPart,
    ForeignPart,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    TextPart,
    thaw,
)
from antiphon.messages._unchecked import text_part

# ---------------------------------------------------------------- parts


def part_of(item: dict[str, object]) -> Part:
    """Return an item of a list as a part."""
    text = item.get("text") if item.get("type") == "text" else None
    return text_part(text) if isinstance(text, str) else read_medium(item)


def item_of(part: Part) -> dict[str, object] | None:
    """Return a part as an item of a list; None if the format has none for it."""
    match part:
        case TextPart():
            return {"type": "text", "text": part.text}
        case DataPart():
            return {"type": "text", "text": json_text(part.data)}
        case MediaPart():
            namespaces = part.metadata.values()
            detail = next((notes["detail"] for notes in namespaces if isinstance(notes.get("detail"), str)), None)
            return write_medium(part, detail)
        case ForeignPart():
            value = as_object(thaw(part.value))
            return value if value is not None and part_of(value) == part else None
        case _:
            return None


# ---------------------------------------------------------------- reading


def read(unit: Unit) -> None:
    role = unit.text("role")
    unit.id = unit.own_id("message_id")
    unit.created_at = unit.iso_time("timestamp")
    _note(unit)
    match role:
        case "system" | "user" | "assistant":
            _read_talk(unit, role)
        case "tool" if invocation := unit.maybe_text("tool_call_id"):
            if text_at(unit.object("metadata"), "error_type"):
                _read_failure(unit, role)
            else:
                _read_answer(unit, invocation, role)
        case "agent_call":
            _read_agent_call(unit)
        case "agent_response" if call := _call(unit):
            _read_answer(unit, call, role)
        case "error" if unit.maybe_text("tool_call_id") or _call(unit) in unit.reading.calls:
            _read_failure(unit, role)
        case "tool" | "agent_response" | "error":
            _read_orphan(unit, role)
        case _:
            unit.fail(f"unknown role {role!r}; expected one of the seven", "role")


def _note(unit: Unit, *read: str, purpose: str | None = None) -> None:
    note(unit, unit.value.get("metadata"), *read, purpose=purpose)


def _read_talk(unit: Unit, role: str) -> None:
    policy = unit.maybe_text("name") or role
    calls = unit.objects("tool_calls")
    parts = _parts(unit)
    if len(calls) + bool(parts) > 1:
        own_id, ids = unit.own_id("message_id"), unit.reading.ids
        unit.turn_id = own_id if own_id not in ids else f"{own_id}@{unit.position}"  # an earlier unit may have the same id
        ids.add(unit.turn_id)
    if parts or not calls:
        unit.say({"kind": "parts", "parts": parts}, policy=policy, role_hint_for_llm=role)
    for index, call in enumerate(calls):
        _read_tool_call(unit, index, call, policy)


def _parts(unit: Unit) -> list[Part]:
    """Return the parts of a content: its text, or the items of its list."""
    if isinstance(unit.value.get("content"), list):
        return [part_of(item) for item in unit.objects("content")]
    text = unit.maybe_text("content")
    return [text_part(text)] if text else []


def _words(unit: Unit) -> str:
    """Return the text of a required content."""
    is_list = isinstance(unit.value.get("content"), list)
    return text_of(unit.objects("content")) if is_list else unit.text("content")


def _read_tool_call(unit: Unit, index: int, call: dict[str, Any], policy: str) -> None:
    path = ("tool_calls", index)
    function = as_object(call.get("function")) or {}
    name = function.get("name")
    if not isinstance(name, str):
        unit.fail("expected a function with a name", *path, "function")
    invocation = call.get("id", f"{unit.id}-call-{index}")
    arguments, text = _arguments(unit, function.get("arguments", {}), (*path, "function", "arguments"))
    payload: CallFields = {
        "kind": "option_call",
        "invocation_id": invocation,
        "option_name": name,
        "arguments": arguments,
        "arguments_text": text,
    }
    metadata = _as("assistant") if list(arguments) == ["request"] else {}  # a tool, although its name looks like an agent's
    metadata |= shared_notes(call_purpose(payload, is_task=False), {})
    if not unit.messages and metadata:
        _note(unit, purpose=call_purpose(payload, is_task=False))
    message = unit.say(payload, policy=policy, role_hint_for_llm="assistant", metadata=metadata)
    unit.reading.calls[message.invocation_id or ""] = message


def _arguments(unit: Unit, value: object, path: tuple[str | int, ...]) -> tuple[dict[str, Any], str | None]:
    """Return the arguments, and their text if it is not the compact JSON of them."""
    if (plain := as_object(value)) is not None:
        return plain, None
    if not isinstance(value, str):
        unit.fail("expected the arguments as JSON text", *path)
    return read_arguments(value)


def _names(unit: Unit) -> list[str]:
    """Return the key that pairs an agent's call with its answer: the interaction, else the task (which may have several)."""
    ids = [unit.object("metadata").get(key) for key in ("interaction_id", "task_id")]
    return [name for name in ids if isinstance(name, str) and name]


def _paired_by(unit: Unit, invocation: str | None) -> str:
    """Return the key whose value became the invocation, or names its call; the other one is the user's."""
    calls, metadata = unit.reading.calls, unit.object("metadata")
    for key in ("interaction_id", "task_id"):
        name = metadata.get(key)
        if (
            isinstance(name, str)
            and name
            and (name == invocation or (name in calls and calls[name].invocation_id == invocation))
        ):
            return key
    return ""


def _call(unit: Unit) -> str | None:
    """Return the invocation that an agent's answer belongs to."""
    calls, names = unit.reading.calls, _names(unit)
    invocation = next((calls[name].invocation_id for name in names if name in calls), None)
    return invocation or next(iter(names), None)


def _read_agent_call(unit: Unit) -> None:
    caller = unit.object("metadata").get("caller")
    payload: CallFields = {
        "kind": "option_call",
        "invocation_id": next(iter(_names(unit)), None) or unit.own_id("message_id"),
        "option_name": unit.text("name"),
        "arguments": {"request": _words(unit)},
    }
    if not all(isinstance(part, TextPart) for part in _parts(unit)):
        payload["arguments"]["content"] = unit.value["content"]
    policy = caller if isinstance(caller, str) and caller else "unknown"
    paired = _paired_by(unit, payload["invocation_id"])
    _note(unit, *(["caller"] if policy == caller else []), paired, purpose=call_purpose(payload, is_task=True))
    message = unit.say(payload, policy=policy, role_hint_for_llm="assistant", metadata=_as("agent_call"))
    unit.reading.calls[payload["invocation_id"]] = message
    for name in _names(unit):
        unit.reading.calls.setdefault(name, message)


def _read_answer(unit: Unit, invocation: str, role: str) -> None:
    name = unit.maybe_text("name") or unit.called(invocation) or "unknown"
    payload: ResultFields = {"kind": "option_result", "invocation_id": invocation, "option_name": name}
    content = unit.value.get("content")
    parts = _parts(unit) if isinstance(content, list) else []
    if any(not isinstance(part, TextPart) for part in parts):
        payload["parts"] = parts
    else:
        payload["result"] = None if content is None else _words(unit)
    metadata = _as(role) if role == "agent_response" else {}
    if role == "agent_response":
        _note(unit, _paired_by(unit, invocation))
    unit.say(payload, policy=name, role_hint_for_llm="tool", metadata=metadata)


def _read_failure(unit: Unit, role: str) -> None:
    """Make the error result of a call: from a tool message with an `error_type`, or from an error that names its call."""
    invocation = unit.maybe_text("tool_call_id") or str(_call(unit))
    context = unit.object("metadata")
    called, name = unit.called(invocation), unit.maybe_text("name")
    message = "" if role == "tool" and unit.value.get("content") is None else _words(unit)
    payload: ResultFields = {
        "kind": "option_result",
        "invocation_id": invocation,
        "option_name": ((name or called) if role == "tool" else (called or name)) or "unknown",
        **failed(context, message, context.get("details")),
    }
    metadata = _as(role) if role == "error" else {}
    paired = "" if unit.maybe_text("tool_call_id") else _paired_by(unit, invocation)
    _note(unit, *FAILURE, paired)
    unit.say(payload, policy=RUNTIME_POLICY, role_hint_for_llm="tool", metadata=metadata)


def _read_orphan(unit: Unit, role: str) -> None:
    """Make a message from an answer whose call was not found."""
    if role == "error":
        _note(unit, purpose=ERROR)
    notes = _as(role) if role == "error" else {"marsys": {"role": role, "orphan": role}}
    unit.say({"kind": "parts", "parts": _parts(unit)}, policy=unit.maybe_text("name") or role, metadata=notes)


def _as(role: str) -> dict[str, dict[str, str]]:
    return {"marsys": {"role": role}}


# ---------------------------------------------------------------- writing

_TALKING = ("system", "user", "assistant")


def together(group: Sequence[Message], message: Message) -> bool:
    """Return whether a message belongs to the current unit: an utterance is one message, text first, then its calls."""
    first = group[0]
    return (
        first.turn_id is not None
        and first.turn_id == message.turn_id
        and first.policy == message.policy
        and message.payload.kind == "option_call"
        and first.payload.kind != "option_result"
        and (first.payload.kind != "parts" or has_words(first) or _needs_list(first.parts))
        and not _asks_agent(first)
        and not _asks_agent(message)
    )


def _asks_agent(message: Message) -> bool:
    """Whether a message is an agent_call: natively, or because it looks like one and has no other native role."""
    role = _role_of(message)
    return is_task(message) if role is None else role == "agent_call"


def write(group: Sequence[Message], writing: Writing) -> dict[str, Any]:
    first, payload = group[0], group[0].payload
    if payload.kind == "option_result":
        unit = _write_failure(first, payload, writing) if payload.is_error else _write_answer(first, payload, writing)
    elif payload.kind == "option_call" and _asks_agent(first):
        unit = {
            "role": "agent_call",
            "content": request_of(payload) or json_text(payload.arguments),
            "name": payload.option_name,
            "metadata": {"caller": first.policy, _pairing_key(first): payload.invocation_id},
        }
    else:
        unit = _write_talk(group, writing)
    _add_metadata(unit, first)
    unit["message_id"] = first.id
    if first.created_at is not None:
        unit["timestamp"] = time_text(first.created_at)
    return unit


def _add_metadata(unit: dict[str, Any], first: Message) -> None:
    """Add the user's own metadata; keys of the format win."""
    shown = ERROR if unit["role"] == "error" else "task" if unit["role"] == "agent_call" else None
    shown = "tool" if "tool_calls" in unit else shown
    if metadata := {**with_purpose(first, shown), **unit.get("metadata", {})}:
        unit["metadata"] = metadata


def _role_of(message: Message) -> str | None:
    """Return the native role of a message, if the core cannot express it."""
    return text_at(notes_of(message, "marsys"), "role")


def _write_talk(group: Sequence[Message], writing: Writing) -> dict[str, object]:
    first = group[0]
    calls = [_write_tool_call(message.payload) for message in group if message.payload.kind == "option_call"]
    role = "assistant" if calls else _role_of(first) or _talking_role(first, writing.as_policy)
    if not calls and purpose_of(first) == ERROR:
        role = "error"
    content: object = ""
    if first.payload.kind == "parts":
        is_list = _needs_list(first.parts)
        content = _list(first, first.parts) if is_list else message_text(first)
    unit: dict[str, object] = {"role": role, "content": content}
    if first.policy != role:
        unit["name"] = first.policy
    if calls:
        unit["tool_calls"] = calls
    return unit


def _needs_list(parts: Sequence[Part]) -> bool:
    """Whether parts have content that a text cannot hold and a list can."""
    return any(not isinstance(part, TextPart | DataPart) and item_of(part) is not None for part in parts)


def _list(message: Message, parts: Sequence[Part]) -> list[dict[str, object]]:
    items: list[dict[str, Any]] = []
    goes_on = continued(message)
    for part in parts:
        item = item_of(part)
        if id(part) in goes_on and items and item is not None and items[-1]["type"] == "text":
            items[-1]["text"] += item["text"]
        elif item is not None:
            items.append(item)
    return items


def _talking_role(message: Message, as_policy: str | None) -> str:
    if as_policy is not None and message.policy != "system":
        return "assistant" if message.policy == as_policy else "user"
    if message.role_hint_for_llm in _TALKING:
        return str(message.role_hint_for_llm)
    return message.policy if message.policy in _TALKING else "assistant"


def _write_tool_call(call: OptionCallPayload) -> dict[str, object]:
    text = arguments_text(call)
    return {"id": call.invocation_id, "type": "function", "function": {"name": call.option_name, "arguments": text}}


def _pairing_key(message: Message) -> str:
    """Return the key that pairs a call with its answer; `task_id`, unless the user's own metadata has that."""
    return "interaction_id" if "task_id" in metadata_of(message) else "task_id"


def _write_answer(message: Message, outcome: OptionResultPayload, writing: Writing) -> dict[str, object]:
    shows = outcome.result is None and _needs_list(outcome.parts)
    content: object = _list(message, outcome.parts) if shows else result_text(outcome)
    call = writing.call_of(message)
    unit: dict[str, object] = {"role": "tool", "name": outcome.option_name, "tool_call_id": outcome.invocation_id}
    if _role_of(message) == "agent_response" or (call is not None and _asks_agent(call)):
        unit = {
            "role": "agent_response",
            "name": outcome.option_name,
            "metadata": {_pairing_key(message): outcome.invocation_id},
        }
    if content is not None:
        unit["content"] = content
    return unit


def _write_failure(message: Message, outcome: OptionResultPayload, writing: Writing) -> dict[str, Any]:
    """Write a failure: of a tool as a tool message, so that its call has a result; of an agent as an error."""
    metadata = {"error_type": outcome.error_type, "retryable": outcome.retryable, "details": writing.json(outcome, "result")}
    unit = {
        "role": "tool",
        "content": outcome.error_message,
        "name": outcome.option_name,
        "tool_call_id": outcome.invocation_id,
        "metadata": {key: value for key, value in metadata.items() if value is not None},
    }
    call = writing.call_of(message)
    if _role_of(message) == "error" or (call is not None and _asks_agent(call)):
        unit["role"] = "error"
        if call is not None:
            del unit["name"]
    return unit


# ---------------------------------------------------------------- the dialect

_ROLES = frozenset({"system", "user", "assistant", "tool", "error", "agent_call", "agent_response"})
_OWN = frozenset({"message_id", "metadata", "timestamp"})


def recognise(data: object) -> str | None:
    units = sample_units(data)
    if not units or not all(is_one_of(unit.get("role"), _ROLES) and "type" not in unit for unit in units):
        return None
    native = [unit for unit in units if _OWN & unit.keys() or unit["role"] in ("error", "agent_call", "agent_response")]
    return "roles of MARSYS, and keys that only it has" if native else None


DIALECT = UnitDialect(
    name="marsys",
    summary="MARSYS messages with seven roles",
    read=read,
    together=together,
    write=write,
    recognise=recognise,
    otherwise="a MARSYS message has no place for it",
    reasons={
        **dict.fromkeys(
            PARTS, "a list in MARSYS says texts, images, sounds and files; a result in words shows nothing besides"
        ),
        "text": "data parts are written as JSON text",
        "speaker": "the sender of a result is the called tool or agent, that of an error the runtime",
        "option": "an error names the option that was called",
        "result": "a result in MARSYS is text",
        "time": "a message has one time",
        "purpose": "a call in a list says its tool and arguments",
        "metadata": "calls of one message share its metadata, and its own keys are those of the format",
    },
    wire=frozenset(
        {
            *("role", "content", "name", "message_id", "tool_calls", "tool_call_id", "timestamp", "task_id", "interaction_id"),
            *("caller", "id", "type", "function", "arguments"),
        }
    ),
)
