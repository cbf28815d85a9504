"""Assembles the events of a Pydantic AI model response: parts by index, each started, changed and ended.

There is no event for the end of the response. The end event of the last part says that no other part follows, which is
equivalent. The events contain only the parts, so the assembled response has no usage, model or time.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from antiphon.dialects._assembler import (
    DERIVED,
    AssemblerBase,
    Delta,
    DeltaKind,
    EventError,
    called,
    ensure_list,
    grow,
    index_in,
    object_in,
    objects_in,
    settled,
    text_in,
    text_so_far,
)

_TEXTS: dict[str, tuple[str, DeltaKind]] = {
    "text": ("content", "text"),
    "thinking": ("content", "reasoning"),
    "tool-call": ("args", "arguments"),
    "speech": ("transcript", "text"),
}
_PART_OF = {"text": "text", "thinking": "thinking", "tool_call": "tool-call", "speech": "speech"}
_TALK = ("text", "speech")


@dataclass(slots=True)
class PydanticAssembler(AssemblerBase):
    """A model response so far."""

    parts: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """By index."""
    opened: list[str] = field(default_factory=list[str])
    """The parts that have not ended."""
    open_indices: set[str] = field(default_factory=set[str], metadata=DERIVED)
    """The same as a set."""
    is_last: bool = False
    """Whether the part that ended last was the last one."""

    @property
    def is_empty(self) -> bool:
        return not self.parts

    @property
    def is_finished(self) -> bool:
        return self.is_last and not self.opened

    def add(self, event: dict[str, object]) -> Iterator[Delta]:
        match event.get("event_kind"):
            case "part_start":
                index = str(index_in(event, "index"))
                yield from self._start(index, object_in(event, "part"))
            case "part_delta":
                index = str(index_in(event, "index"))
                yield from self._change(index, object_in(event, "delta"))
            case "part_end":
                index = str(index_in(event, "index"))
                yield from self._end(index, object_in(event, "part"))
                self.is_last = event.get("next_part_kind") is None
            case "final_result":
                pass  # of the agent's run, not of the response
            case _:
                self.count_unknown(event)

    def _start(self, index: str, part: dict[str, object]) -> Iterator[Delta]:
        """Begin a part; a second beginning replaces the part, and counts as a new piece."""
        if index in self.pieces:
            self.pieces[f"{index} before {len(self.pieces)}"] = self.pieces.pop(index)
        self.parts[index] = part
        self.is_last = False
        if not self._is_open(index):
            self.opened.append(index)
            self.open_indices.add(index)
        yield from self._tell_new(index, "", part)

    def _end(self, index: str, part: dict[str, object]) -> Iterator[Delta]:
        """Replace the part by its final form."""
        key, _ = _TEXTS.get(str(part.get("part_kind")), ("", None))
        reported = text_so_far(self.parts.get(index, {}), key)
        self.parts[index] = part
        self.halves.pop(index, None)
        if self._is_open(index):
            self.opened.remove(index)
            self.open_indices.discard(index)
        yield from self._tell_new(index, reported, part)

    def _is_open(self, index: str) -> bool:
        if len(self.open_indices) != len(self.opened):  # after the stream was resumed
            self.open_indices = set(self.opened)
        return index in self.open_indices

    def _tell_new(self, index: str, reported: str, part: dict[str, Any]) -> Iterator[Delta]:
        key, kind = _TEXTS.get(str(part.get("part_kind")), ("", None))
        if kind is None:
            return
        if kind == "arguments":
            yield from self.tell_call(index, part.get("tool_name"), part.get("tool_call_id"))
        value = part.get(key)
        if isinstance(value, dict) and value and not reported and self._is_open(index):
            yield from self.tell_value("arguments", index, value)
        elif isinstance(value, str) and value.startswith(reported):
            yield from self.tell(kind, index, value[len(reported) :])

    # ---------------------------------------------------------------- changes

    def _change(self, index: str, delta: dict[str, object]) -> Iterator[Delta]:
        part, kind = self.parts.get(index), delta.get("part_delta_kind")
        if part is None:
            raise EventError(f"no part {index} has begun", "index")
        if part.get("part_kind") not in (_PART_OF.get(str(kind)), f"builtin-{_PART_OF.get(str(kind))}"):
            raise EventError(f"expected a change of a {part.get('part_kind')} part, found {kind!r}", "part_delta_kind")
        match kind:
            case "text" | "thinking":
                yield from self._add_words(index, part, delta)
            case "tool_call":
                yield from self._add_arguments(index, part, delta)
            case _:
                yield from self._add_speech(index, part, delta)
        if text_in(delta, "provider_name"):
            part["provider_name"] = delta["provider_name"]
        if details := object_in(delta, "provider_details"):
            part["provider_details"] = {**object_in(part, "provider_details"), **details}

    def _add_words(self, index: str, part: dict[str, Any], delta: dict[str, Any]) -> Iterator[Delta]:
        text = self.clean(index, text_in(delta, "content_delta"))
        if text:
            grow(part, "content", text)
            yield from self.tell(_TEXTS[str(part["part_kind"])][1], index, text)
        if delta.get("citations_delta") is not None:
            part["citations"] = objects_in(delta, "citations_delta")
            for citation in part["citations"]:
                yield from self.tell_value("citation", index, citation)
        if delta.get("signature_delta") is not None:
            part["signature"] = text_in(delta, "signature_delta")
            yield from self.tell("signature", index, part["signature"])

    def _add_arguments(self, index: str, part: dict[str, Any], delta: dict[str, Any]) -> Iterator[Delta]:
        if text_in(delta, "tool_name_delta"):
            grow(part, "tool_name", delta["tool_name_delta"])
        if text_in(delta, "tool_call_id"):
            part["tool_call_id"] = delta["tool_call_id"]
        added = delta.get("args_delta")
        if isinstance(added, dict):
            part["args"] = {**object_in(part, "args"), **added}
            deltas = self.tell_value("arguments", index, added)
        else:
            text = self.clean(index, text_in(delta, "args_delta"))
            if text:
                grow(part, "args", text)
            deltas = self.tell("arguments", index, text)
        if part["part_kind"] == "tool-call":
            yield from deltas

    def _add_speech(self, index: str, part: dict[str, Any], delta: dict[str, Any]) -> Iterator[Delta]:
        """Add to speech; a revised transcript yields no delta."""
        text = self.clean(index, text_in(delta, "transcript_delta"))
        if delta.get("transcript") is not None:
            part["transcript"] = text_in(delta, "transcript")
        elif text:
            grow(part, "transcript", text)
        yield from self.tell("text", index, text)
        audio = object_in(part, "audio")
        if audio and text_in(delta, "audio_chunk"):
            audio["data"] = _joined(text_in(audio, "data"), delta["audio_chunk"])
        if objects_in(delta, "timestamps"):
            ensure_list(part, "timestamps").extend(delta["timestamps"])

    # ---------------------------------------------------------------- the body so far

    def unfinished(self) -> tuple[str, ...]:
        parts = ((index, self.parts[index]) for index in self.opened)
        return (*(_named(index, part) for index, part in parts if part.get("part_kind") not in _TALK), *self.half_characters())

    def body(self, *, only_complete: bool = False) -> dict[str, Any]:
        parts = [(index, self.parts[index]) for index in sorted(self.parts, key=int)]
        complete = [
            part for index, part in parts if not only_complete or not self._is_open(index) or part.get("part_kind") in _TALK
        ]
        state = {} if self.is_finished else {"state": "interrupted"}
        return cast("dict[str, Any]", settled({"parts": complete, "kind": "response", **state}))


ASSEMBLER = PydanticAssembler


def _joined(first: str, second: str) -> str:
    """Join two pieces of sound, each in base64."""
    try:
        return urlsafe_b64encode(urlsafe_b64decode(first) + urlsafe_b64decode(second)).decode()
    except (Base64Error, ValueError):
        raise EventError("expected sound in base64", "audio_chunk") from None


def _named(index: str, part: dict[str, object]) -> str:
    if part.get("tool_call_id"):
        return called(part.get("tool_name"), part["tool_call_id"])
    return f"part {index} ({part.get('part_kind')})"
