"""The fast path for plain requests and answers, without the dialect.

The dialect reads any history, and computes the residue of each message by writing it again. For a text question, for results
of tools, and for an answer of text, reasoning and calls, the residue is known: it is in the fields of the whole unit. So these
messages are made directly, at a tenth of the cost, and exactly as the dialect makes them; a test checks that. Everything else
goes through the dialect.
"""

from __future__ import annotations

from collections.abc import Set
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

import orjson

from antiphon.agents._guards import Unit
from antiphon.dialects._content import read_arguments
from antiphon.dialects._residue import residue
from antiphon.dialects.pydantic_ai._wire import NAME, kept, read_time, read_usage, write_time, write_usage
from antiphon.messages import DEFAULT_LIMITS, Part, Payload, Usage, current_limits, is_name, trusted
from antiphon.messages.json_values import JsonError, fits, own

_MOST = 64 * 1024
"""Bytes of a unit up to which none of its messages can exceed the limit, however its numbers and escapes are written."""
_REDACTED = ("redacted_thinking", "redacted_content")
"""Ids of reasoning that only its provider can read."""
_SCALARS = (str, int, float, bool, type(None))

_REQUEST: Unit = {
    "timestamp": None,
    "instructions": None,
    "kind": "request",
    "run_id": None,
    "conversation_id": None,
    "metadata": None,
    "state": "complete",
}
"""The fields of a request that the dialect writes, besides its parts."""
_RESPONSE: Unit = {
    "usage": None,
    "model_name": None,
    "model_id": None,
    "timestamp": None,
    "kind": "response",
    "provider_name": None,
    "provider_url": None,
    "canonical_system": None,
    "provider_details": None,
    "provider_response_id": None,
    "finish_reason": None,
    "run_id": None,
    "conversation_id": None,
    "metadata": None,
    "workspace_ref": None,
    "history_digest": None,
    "failed_attempts": None,
    "state": "complete",
}
_PROMPT = {"content", "timestamp", "part_kind"}
_RETURN = {"tool_name", "content", "tool_call_id", "tool_kind", "metadata", "timestamp", "outcome", "retry", "part_kind"}
_DIGESTS: Final = "content_file_digests"
_TEXT = {"content", "id", "provider_name", "provider_details", "citations", "part_kind"}
_THOUGHT = {"content", "id", "signature", "provider_name", "provider_details", "part_kind"}
_NO_NOTES: bytes = own({NAME: {}})
_NOTHING: Final = residue(None, "something")[0]["was"]
"""The hash of the default of most fields."""
_CALL = {"tool_name", "args", "tool_call_id", "tool_kind", "id", "provider_name", "provider_details", "part_kind"}


class PlainMessage(NamedTuple):
    """The content of one message."""

    payload: Payload
    policy: str
    role: Literal["user", "assistant", "tool", "system"]
    time: datetime | None
    notes: Unit
    """The notes of the dialect about it."""


class PlainUnit(NamedTuple):
    """A unit as messages."""

    said: list[PlainMessage]
    metadata: list[bytes]
    """Of each message."""
    usage: Usage | None


_Found: TypeAlias = tuple[list[PlainMessage], Usage | None, Unit]
"""The messages, the usage, and the fields of the whole unit as the dialect would write them."""


class _NotPlainError(Exception):
    """The unit is not plain: the dialect must read it."""


def plain(unit: Unit, held: str | None, beside: Unit) -> PlainUnit | None:
    """Return a request or an answer as messages, if it is plain.

    `held` are the last instructions; `beside` is further metadata of the first message.
    """
    try:
        _look(unit)
        said, usage, written = _request(unit, held) if unit["kind"] == "request" else _answer(unit)
        if patch := _beyond(written, unit):
            said[0].notes["residue"] = patch
        first, *others = said
        metadata = [own({NAME: each.notes}) if each.notes else _NO_NOTES for each in others]
        return PlainUnit(said, [own({NAME: first.notes, **beside}), *metadata], usage)
    except (_NotPlainError, JsonError):
        return None


def _need(is_plain: bool) -> None:
    if not is_plain:
        raise _NotPlainError


def _is_made_of(part: Unit, keys: Set[str]) -> bool:
    return len(part) == len(keys) and keys <= part.keys()


def _look(unit: Unit) -> None:
    """Check the unit: it has only known fields, and is small."""
    written = _REQUEST if unit["kind"] == "request" else _RESPONSE
    _need(len(unit) == len(written) + 1 and written.keys() <= unit.keys() and bool(unit.get("parts")))
    _need(current_limits() is DEFAULT_LIMITS)
    try:
        text = orjson.dumps(unit)
    except TypeError:  # not Unicode, or an integer of more than 64 bits
        raise _NotPlainError from None
    _need(len(text) <= _MOST and fits(text, unit, DEFAULT_LIMITS))


# ---------------------------------------------------------------- requests


def _request(unit: Unit, held: str | None) -> _Found:
    told, parts = unit["instructions"] or None, unit["parts"]
    _need(told == held or type(told) is str)  # the dialect has to write that there are no instructions any more
    if len(parts) == 1 and parts[0]["part_kind"] == "user-prompt":
        said = [_prompt(parts[0])]
    else:
        _need(told == held)
        said = [_return(part) for part in parts]
        _need(len({part["tool_call_id"] for part in parts}) == len(parts))
    if told != held:
        said = [
            _instructions(cast("str", told), unit),
            *(each._replace(notes={"joined": True, **each.notes}) for each in said),
        ]
    return said, None, {**_REQUEST, "instructions": told}


def _instructions(told: str, unit: Unit) -> PlainMessage:
    """Return instructions, which are written where they change."""
    payload = trusted.parts_payload((trusted.text_part(told),))
    return PlainMessage(payload, "system", "system", _time(unit), {"instructions": "here"})


def _prompt(part: Unit) -> PlainMessage:
    _need(_is_made_of(part, _PROMPT) and type(part["content"]) is str)
    payload = trusted.parts_payload((trusted.text_part(part["content"]),))
    return PlainMessage(payload, "user", "user", _time(part), {})


def _return(part: Unit) -> PlainMessage:
    tool, content = part.get("tool_name"), part.get("content")
    keys = _RETURN if type(content) in _SCALARS else {*_RETURN, _DIGESTS}
    _need(part["part_kind"] == "tool-return" and _is_made_of(part, keys) and part["outcome"] == "success")
    _need(not part.get(_DIGESTS) and not _has_files(content))
    _need(is_name(tool) and is_name(part["tool_call_id"]))
    payload = trusted.option_result_payload(part["tool_call_id"], cast("str", tool), own(content))
    return PlainMessage(payload, cast("str", tool), "tool", _time(part), kept(part, "tool-return"))


def _has_files(content: Any) -> bool:
    items = cast("list[Any]", content) if isinstance(content, list) else [content]
    return any(isinstance(item, dict) and cast("Unit", item).get("kind") == "binary" for item in items)


def _time(part: Unit) -> datetime | None:
    time = read_time(part["timestamp"])
    _need(write_time(time) == part["timestamp"])
    return time


# ---------------------------------------------------------------- answers


def _answer(unit: Unit) -> _Found:
    time, usage = read_time(unit["timestamp"]), read_usage(unit["usage"])
    said: list[PlainMessage] = []
    spoken: list[Part] = []
    for part in unit["parts"]:
        if part["part_kind"] == "tool-call":
            said += _spoken(spoken, time)
            spoken = []
            said.append(_call(part, time))
        else:
            spoken.append(_words(part))
    said += _spoken(spoken, time)
    calls = [part["tool_call_id"] for part in unit["parts"] if part["part_kind"] == "tool-call"]
    _need(len(set(calls)) == len(calls))
    return said, usage, {**_RESPONSE, "usage": write_usage(usage), "timestamp": write_time(time)}


def _spoken(parts: list[Part], time: datetime | None) -> list[PlainMessage]:
    return [PlainMessage(trusted.parts_payload(tuple(parts)), "assistant", "assistant", time, {})] if parts else []


def _words(part: Unit) -> Part:
    content, kind = part.get("content"), part["part_kind"]
    _need(type(content) is str)
    if kind == "text":
        _need(_is_made_of(part, _TEXT) and part["citations"] is None)
        notes = kept(part, "text")
        return trusted.text_part(cast("str", content), metadata=own({NAME: notes}) if notes else None)
    _need(kind == "thinking" and _is_made_of(part, _THOUGHT) and part["id"] not in _REDACTED)
    signature = part["signature"]
    _need(signature is None or (type(signature) is str and bool(signature)))
    return trusted.reasoning_part(cast("str", content), signature, metadata=own({NAME: kept(part, "thinking")}))


def _call(part: Unit, time: datetime | None) -> PlainMessage:
    given, tool, invocation = part.get("args"), part.get("tool_name"), part.get("tool_call_id")
    _need(_is_made_of(part, _CALL) and is_name(tool) and is_name(invocation) and type(given) in (dict, str, type(None)))
    arguments, text = read_arguments(given) if type(given) is str else (given or {}, None)
    payload = trusted.option_call_payload(
        cast("str", invocation), cast("str", tool), own(arguments) if arguments else None, text
    )
    form = {} if type(given) is dict else {"args": "none" if given is None else "text"}
    return PlainMessage(payload, "assistant", "assistant", time, {**form, **kept(part, "tool-call")})


# ---------------------------------------------------------------- the residue


def _beyond(written: Unit, unit: Unit) -> list[Unit]:
    """Return the residue of the fields of the whole unit, in its order."""
    patch: list[Unit] = []
    for name in sorted([name for name, value in written.items() if not _is_same(value, unit[name])]):
        if written[name] is None:
            patch.append({"at": [0, name], "is": unit[name], "was": _NOTHING})
        else:
            patch += residue([{name: written[name]}], [{name: unit[name]}])
    return patch


def _is_same(written: Any, given: Any) -> bool:
    if written is given:
        return True
    if type(written) is not type(given):
        return False
    return orjson.dumps(written) == orjson.dumps(given) if isinstance(written, dict) else bool(written == given)
