"""Assembles streamed Gemini responses: each chunk is a complete response with the next parts.

The format does not mark a continued part. Consecutive texts are one text, unless they differ in kind or one of them is signed:
a signature is valid only for its part as it was sent. A call is sent whole or, on the enterprise endpoint, as values at JSON
paths; the call is complete with the first part that lacks `willContinue`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import StringIO
from itertools import pairwise
from types import MappingProxyType
from typing import Any, cast

from antiphon.dialects._assembler import (
    AssemblerBase,
    Delta,
    EventError,
    called,
    ensure_list,
    grow,
    grown,
    index_in,
    json_text,
    keep,
    object_in,
    objects_in,
    settled,
    text_in,
)
from antiphon.messages._settings import current_limits

_SIGNATURE = "thoughtSignature"
_STEP = re.compile(r"""\.([^.\[\]'"\s]+)|\[(\d{1,9})\]|\['((?:[^'\\]|\\.)*)'\]|\["((?:[^"\\]|\\.)*)"\]""")
_VALUES = ("numberValue", "boolValue")
"""Besides text; without any, the value is null."""
_NO_NAMES: Mapping[int, str] = MappingProxyType({})
_REASONS: Mapping[int, str] = MappingProxyType({1: "STOP", 2: "MAX_TOKENS", 3: "SAFETY", 4: "RECITATION", 5: "OTHER"})
"""Reasons to finish, by their number."""
_EXTENDED = frozenset({"chosenCandidates", "topCandidates"})
"""Lists of which each chunk has the next elements."""
_UNITED = frozenset({"citations", "citationSources"})
"""Lists of which each chunk has the next elements, or all so far."""


@dataclass(slots=True)
class GeminiAssembler(AssemblerBase):
    """A response so far."""

    top: dict[str, Any] = field(default_factory=dict[str, Any])
    """The fields of the response as a whole."""
    candidates: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """By index, with content."""
    opened: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """The parts of each candidate that are calls with incomplete arguments."""

    @property
    def is_empty(self) -> bool:
        return not self.candidates and not self.top

    @property
    def is_finished(self) -> bool:
        if not self.candidates:
            return bool(object_in(self.top, "promptFeedback").get("blockReason"))
        return all(candidate.get("finishReason") for candidate in self.candidates.values())

    def add(self, event: dict[str, object]) -> Iterator[Delta]:
        if not event.keys() & {"candidates", "promptFeedback", "usageMetadata", "responseId"}:
            self.count_unknown(event)
            return
        candidates = objects_in(event, "candidates")
        for key, value in event.items():
            if key != "candidates":
                _merge(self.top, key, value)
        for candidate in candidates:
            index = index_in(candidate, "index", 0)
            deltas = [*self._add_candidate(str(index), candidate)]
            if index == 0:
                yield from deltas
        if object_in(event, "usageMetadata"):
            yield from self.tell_value("usage", None, self.top["usageMetadata"])
        if reason := _reason(object_in(event, "promptFeedback"), "blockReason"):
            yield Delta("finish", text=reason)

    def _add_candidate(self, index: str, candidate: dict[str, object]) -> Iterator[Delta]:
        so_far = self.candidates.setdefault(index, {})
        for key, value in candidate.items():
            if key != "content":
                _merge(so_far, key, value)
        if "content" in candidate:
            content, content_so_far = object_in(candidate, "content"), object_in(so_far, "content")
            so_far["content"] = content_so_far
            for key, value in content.items():
                if key != "parts":
                    keep(content_so_far, key, value)
            parts = ensure_list(content_so_far, "parts")
            for part in objects_in(content, "parts"):
                yield from self._add_part(index, parts, part)
        if reason := _reason(candidate, "finishReason", _REASONS):
            yield Delta("finish", text=reason)

    # ---------------------------------------------------------------- parts

    def _add_part(self, index: str, parts: list[Any], part: dict[str, Any]) -> Iterator[Delta]:
        if isinstance(part.get("text"), str):
            yield from self._add_text(index, parts, part)
        elif isinstance(part.get("functionCall"), dict):
            yield from self._add_call(index, parts, part)
        else:
            parts.append(part)
        if isinstance(part.get(_SIGNATURE), str):
            yield from self.tell("signature", _piece(index, parts), part[_SIGNATURE])

    def _add_text(self, index: str, parts: list[Any], part: dict[str, Any]) -> Iterator[Delta]:
        last: dict[str, Any] = parts[-1] if parts else {}
        if not _goes_on(last, part):
            last = {**part, "text": ""}
            parts.append(last)
        piece = _piece(index, parts)
        text = self.clean(piece, part["text"])
        grow(last, "text", text)
        yield from self.tell("reasoning" if part.get("thought") else "text", piece, text)

    def _add_call(self, index: str, parts: list[Any], part: dict[str, Any]) -> Iterator[Delta]:
        added, opened = part["functionCall"], self.opened.setdefault(index, [])
        place = len(parts)
        # A part continues the open call if it has no name, or the same id.
        if opened and (
            not added.get("name") or (added.get("id") and added["id"] == parts[opened[-1]]["functionCall"].get("id"))
        ):
            place = opened.pop()
        if place == len(parts):
            parts.append({"functionCall": {}})
        for key, value in part.items():
            if key != "functionCall":
                keep(parts[place], key, value)
        call, piece = parts[place]["functionCall"], f"{index} {place}"
        for key, value in added.items():
            if key not in ("partialArgs", "willContinue"):
                keep(call, key, value)
        if added.get("willContinue"):
            opened.append(place)
        yield from self.tell_call(piece, call.get("name"), call.get("id"))
        if isinstance(added.get("args"), dict):
            yield from self.tell("arguments", piece, json_text(added["args"]))
        yield from self._add_values(call, piece, objects_in(added, "partialArgs"))

    def _add_values(self, call: dict[str, Any], piece: str, values: list[dict[str, Any]]) -> Iterator[Delta]:
        for value in values:
            path = text_in(value, "jsonPath")
            call["args"] = object_in(call, "args")
            if isinstance(value.get("stringValue"), str):
                value["stringValue"] = self.clean(f"{piece} {path}", value["stringValue"])
            _set(call["args"], _steps(path), value)
            yield from self.tell_value("arguments", piece, value)

    # ---------------------------------------------------------------- the body so far

    def unfinished(self) -> tuple[str, ...]:
        places = ((index, place) for index, opened in self.opened.items() for place in opened)
        calls = (self.candidates[index]["content"]["parts"][place]["functionCall"] for index, place in places)
        return (*(called(call.get("name"), call.get("id")) for call in calls), *self.half_characters())

    def body(self, *, only_complete: bool = False) -> dict[str, Any]:
        candidates = [self._candidate(index, only_complete) for index in sorted(self.candidates, key=int)]
        top = settled(self.top)
        return {**top, "candidates": candidates} if candidates else cast("dict[str, Any]", top)

    def _candidate(self, index: str, only_complete: bool) -> dict[str, object]:
        candidate = cast("dict[str, Any]", settled(self.candidates[index]))
        parts, opened = candidate.get("content", {}).get("parts", []), self.opened.get(index, [])
        complete = [part for place, part in enumerate(parts) if not (only_complete and place in opened)]
        if any(not _is_nothing(part) for part in complete):
            complete = [part for part in complete if not _is_nothing(part)]
        if "content" in candidate:
            candidate["content"]["parts"] = complete
        return candidate


ASSEMBLER = GeminiAssembler


def _reason(holder: dict[str, object], key: str, names: Mapping[int, str] = _NO_NAMES) -> str:
    """Return a finish reason; some servers send its number."""
    value = holder.get(key)
    return names.get(value, str(value)) if type(value) is int and value else "" if value == 0 else text_in(holder, key)


def _piece(index: str, parts: list[object]) -> str:
    return f"{index} {len(parts) - 1}"


def _goes_on(last: dict[str, object], part: dict[str, object]) -> bool:
    """Whether a text continues the text before it: they differ only in the text, and neither is signed."""
    if "text" not in last or _SIGNATURE in last or _SIGNATURE in part:
        return False
    rests = ({key: value for key, value in text_part.items() if key != "text"} for text_part in (last, part))
    return next(rests) == next(rests)


def _is_nothing(part: dict[str, object]) -> bool:
    """Whether a part is the empty text of a chunk without text."""
    return part.get("text") == "" and part.keys() <= {"text", "thought"}


def _merge(holder: dict[str, Any], key: str, value: Any) -> None:
    """Add the fields of a response or candidate: values replace earlier ones, key by key; a few lists are extended."""
    before = holder.get(key)
    if isinstance(before, dict) and isinstance(value, dict):
        for inner, field_value in cast("dict[str, Any]", value).items():
            _merge(cast("dict[str, Any]", before), inner, field_value)
    elif isinstance(before, list) and isinstance(value, list) and key in _EXTENDED | _UNITED:
        items, added = cast("list[Any]", before), cast("list[Any]", value)
        items += [field_value for field_value in added if key in _EXTENDED or field_value not in items]
    else:
        keep(holder, key, value)


# ---------------------------------------------------------------- values at JSON paths


def _steps(path: str) -> list[str | int]:
    """Take a JSON path apart: names and positions, as RFC 9535 writes a path to one value."""
    steps: list[str | int] = []
    end = 1
    while path[:1] == "$" and (match := _STEP.match(path, end)) is not None:
        name, position, single, double = match.groups()
        steps.append(int(position) if position is not None else re.sub(r"\\(.)", r"\1", name or single or double or ""))
        end = match.end()
    if not steps or end != len(path) or isinstance(steps[0], int) or len(steps) > current_limits().depth:
        raise EventError(f"expected the path of one argument, found {path[:80]!r}", "jsonPath")
    return steps


def _set(arguments: dict[str, Any], steps: list[str | int], value: dict[str, Any]) -> None:
    """Put a value at a path; text is appended to text."""
    holder: Any = arguments
    for step, after in pairwise(steps):
        holder = _at(holder, step, [] if isinstance(after, int) else {})
    before, text = _at(holder, steps[-1], None), value.get("stringValue")
    if isinstance(text, str):
        holder[steps[-1]] = grown(before if isinstance(before, str | StringIO) else None, text)
    else:
        holder[steps[-1]] = next((value[kind] for kind in _VALUES if value.get(kind) is not None), None)


def _at(holder: object, step: str | int, begun: object) -> object:
    """Return the value of a container at a step; create it if it is missing."""
    if isinstance(step, str) and isinstance(holder, dict):
        return cast("dict[str, Any]", holder).setdefault(step, begun)
    if isinstance(step, int) and isinstance(holder, list) and step <= len(cast("list[Any]", holder)):
        values = cast("list[Any]", holder)
        if step == len(values):
            values.append(begun)
        return values[step]
    raise EventError(f"no value can be put at {step!r}", "jsonPath")
