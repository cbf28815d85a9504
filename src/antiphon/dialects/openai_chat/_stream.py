"""Assembles a streamed chat completion from chunks, whose choices contain the additions to each message.

No event ends a call: calls are complete when their choice has a finish reason. Fragments of one call share an `index`. Some
proxies give all calls the index 0, so another id at the same index is another call. The id and the name are sent once, or, by
some servers, with every fragment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from typing_extensions import TypedDict

from antiphon.dialects._assembler import (
    DERIVED,
    AssemblerBase,
    Delta,
    DeltaKind,
    called,
    ensure_list,
    grow,
    index_in,
    json_object,
    keep,
    object_in,
    objects_in,
    settled,
    text_in,
    text_so_far,
)
from antiphon.dialects._reading import as_object

_TEXTS: dict[str, DeltaKind] = {
    "content": "text",
    "refusal": "refusal",
    "reasoning_content": "reasoning",
    "reasoning": "reasoning",
}
_ONCE = frozenset({"id", "type", "name", "role", "index", "format", "signature", "thought_signature"})
"""Texts that are not sent in pieces; some servers repeat them with every fragment."""


class _Slot(TypedDict):
    """A tool call so far, and the `index` that its fragments have."""

    index: object
    call: dict[str, Any]


class _Choice(TypedDict):
    """A choice so far: its `message` and `calls` are joined when the body is built."""

    choice: dict[str, Any]
    message: dict[str, Any]
    calls: list[_Slot]


@dataclass(slots=True)
class ChatAssembler(AssemblerBase):
    """A chat completion so far."""

    top: dict[str, Any] = field(default_factory=dict[str, Any])
    """The fields of the answer as a whole."""
    choices: dict[str, _Choice] = field(default_factory=dict[str, _Choice])
    """The choices, by index."""
    places: dict[str, dict[object, int]] = field(default_factory=dict[str, dict[object, int]], metadata=DERIVED)
    """By choice: where the last call of each index is among its calls."""

    @property
    def is_empty(self) -> bool:
        return not self.choices

    @property
    def is_finished(self) -> bool:
        return bool(self.choices) and (self.ended or all(map(_has_reason, self.choices.values())))

    def add(self, event: dict[str, object]) -> Iterator[Delta]:
        if "choices" not in event and not event.get("usage"):
            self.count_unknown(event)
            return
        choices = objects_in(event, "choices")
        for key, value in event.items():
            if key not in ("choices", "obfuscation"):  # the latter only hides the length of a chunk
                before = None if key == "usage" else as_object(self.top.get(key))
                added = as_object(value) if before else None
                keep(self.top, key, value if before is None or added is None else {**before, **added})
        for choice in choices:
            yield from self._add_choice(choice)
        if event.get("usage"):
            yield from self.tell_value("usage", None, event["usage"])

    def _add_choice(self, choice: dict[str, Any]) -> Iterator[Delta]:
        index = index_in(choice, "index", 0)
        so_far = self.choices.setdefault(str(index), _begun(index))
        deltas = [*self._add_message(so_far, object_in(choice, "delta"), str(index))]
        if index == 0:
            yield from deltas
        for key, value in choice.items():
            if key == "logprobs":
                _merge(so_far["choice"], key, value)
            elif key not in ("index", "delta"):
                keep(so_far["choice"], key, value)
        if index == 0 and text_in(choice, "finish_reason"):
            yield Delta("finish", text=choice["finish_reason"])

    def _add_message(self, so_far: _Choice, delta: dict[str, object], choice: str) -> Iterator[Delta]:
        message = so_far["message"]
        for key, value in delta.items():
            if key == "content" and (isinstance(value, list) or isinstance(message.get(key), list)):
                if not isinstance(message.get(key), list):
                    text = text_so_far(message, key)
                    message[key] = [{"type": "text", "text": text}] if text else []
                yield from self._add_parts(message[key], value, choice)
            elif key in _TEXTS and isinstance(value, str):
                text = self.clean(f"{choice} {key}", value)
                grow(message, key, text)
                yield from self.tell(_TEXTS[key], f"{choice} {key}", text)
            elif key == "tool_calls":
                for fragment in objects_in(delta, key):
                    slot, call = self._slot(choice, so_far["calls"], fragment)
                    yield from self._add_call(call, fragment, f"{choice} call {slot}")
            elif key == "function_call" and isinstance(value, dict):
                call = message[key] = _legacy(so_far) or {"name": "", "arguments": ""}
                yield from self._add_inner(call, cast("dict[str, Any]", value), None, f"{choice} function_call")
            else:
                _merge(message, key, value)

    def _slot(self, choice: str, slots: list[_Slot], fragment: dict[str, object]) -> tuple[int, dict[str, object]]:
        """Return the call that a fragment belongs to, and its place in the order of arrival."""
        index, call_id = fragment.get("index"), fragment.get("id")
        places = self.places.get(choice)
        if places is None:  # also after the stream was resumed
            places = self.places[choice] = {_key(slot["index"]): place for place, slot in enumerate(slots)}
        place = places.get(_key(index))
        if place is None or (call_id and slots[place]["call"].get("id") not in (None, "", call_id)):
            slots.append({"index": index, "call": {}})
            place = places[_key(index)] = len(slots) - 1
        return place, slots[place]["call"]

    def _add_parts(self, parts: list[Any], added: Any, choice: str) -> Iterator[Delta]:
        """Add to content in parts, as Mistral streams reasoning; text is appended to the text before it."""
        added_parts = (
            [{"type": "text", "text": added}] if isinstance(added, str) else objects_in({"content": added}, "content")
        )
        for part in added_parts:
            last: dict[str, Any] = parts[-1] if parts else {}
            if (kind := part.get("type")) not in ("text", "thinking"):
                parts.append(part)
                continue
            if last.get("type") != kind:
                last = {**part, kind: [] if kind == "thinking" else ""}
                parts.append(last)
            if kind == "thinking":
                yield from self._add_thought(ensure_list(last, kind), objects_in(part, kind), f"{choice} thinking")
            else:
                text = self.clean(f"{choice} content", text_in(part, "text"))
                grow(last, "text", text)
                yield from self.tell("text", f"{choice} content", text)

    def _add_thought(self, texts: list[Any], added: list[dict[str, Any]], piece: str) -> Iterator[Delta]:
        for part in added:
            text = self.clean(piece, text_in(part, "text"))
            if not texts or part.get("type") != "text" or texts[-1].get("type") != "text":
                texts.append({**part, "text": ""})
            grow(texts[-1], "text", text)
            yield from self.tell("reasoning", piece, text)

    def _add_call(self, call: dict[str, Any], fragment: dict[str, Any], piece: str) -> Iterator[Delta]:
        for key, value in fragment.items():
            if key not in ("index", "function", "custom"):
                _merge(call, key, value)
        for key, text in (("function", "arguments"), ("custom", "input")):
            if isinstance(fragment.get(key), dict):
                inner = call.setdefault(key, {text: ""})
                yield from self._add_inner(inner, fragment[key], call.get("id"), piece)

    def _add_inner(
        self, inner: dict[str, object], fragment: dict[str, object], call_id: object, piece: str
    ) -> Iterator[Delta]:
        """Add to the function of a call: report its name as soon as it is known, then the arguments as they arrive."""
        was_told, added = piece in self.pieces, ""
        for key, value in fragment.items():
            if key in ("arguments", "input") and isinstance(value, str):
                added = self.clean(piece, value)
                grow(inner, key, added)
            else:
                _merge(inner, key, value)
        yield from self.tell_call(piece, inner.get("name"), call_id)
        if piece in self.pieces:
            unheard = added if was_told else text_so_far(inner, "arguments") or text_so_far(inner, "input")
            yield from self.tell("arguments", piece, unheard)

    def unfinished(self) -> tuple[str, ...]:
        opened = (
            called(_name(call), call.get("id"))
            for choice in self.choices.values()
            for call in _calls(choice)
            if not self._is_whole(choice, call)
        )
        return (*opened, *self.half_characters())

    def _is_whole(self, choice: _Choice, call: dict[str, Any]) -> bool:
        """Whether a call is complete. If the stream ends without a finish reason, its arguments must be complete JSON."""
        if _has_reason(choice):
            return True
        return self.ended and json_object(text_so_far(call.get("function", call), "arguments")) is not None

    def body(self, *, only_complete: bool = False) -> dict[str, Any]:
        choices = [self._choice(self.choices[index], only_complete) for index in sorted(self.choices, key=int)]
        return {**settled(self.top), "object": "chat.completion", "choices": choices}

    def _choice(self, choice: _Choice, only_complete: bool) -> dict[str, object]:
        message = dict(choice["message"])
        calls = [
            slot["call"] for slot in _in_order(choice["calls"]) if not only_complete or self._is_whole(choice, slot["call"])
        ]
        if calls:
            message["tool_calls"] = calls
        legacy = _legacy(choice)
        if legacy is not None and only_complete and not self._is_whole(choice, legacy):
            del message["function_call"]
        return cast("dict[str, Any]", settled({**choice["choice"], "message": message}))


ASSEMBLER = ChatAssembler


def _begun(index: int) -> _Choice:
    return {
        "choice": {"index": index, "finish_reason": None},
        "message": {"role": "assistant", "content": None},
        "calls": [],
    }


def _has_reason(choice: _Choice) -> bool:
    """Whether a choice has a finish reason; some servers send an empty text until then."""
    return bool(choice["choice"].get("finish_reason"))


def _key(index: object) -> object:
    """Return an index as a hashable value; it is nearly always a number."""
    return index if isinstance(index, int | float | str | None) else repr(index)


def _in_order(slots: list[_Slot]) -> list[_Slot]:
    def index(slot: _Slot) -> int:
        return slot["index"] if type(slot["index"]) is int else 0

    return sorted(slots, key=index)


def _calls(choice: _Choice) -> list[dict[str, object]]:
    legacy = _legacy(choice)
    return [*(slot["call"] for slot in choice["calls"]), *([legacy] if legacy is not None else [])]


def _legacy(choice: _Choice) -> dict[str, object] | None:
    """Return the legacy `function_call` of a message."""
    return as_object(choice["message"].get("function_call"))


def _name(call: dict[str, Any]) -> str:
    return text_so_far(call.get("function") or call.get("custom") or call, "name")


def _merge(holder: dict[str, object], key: str, value: object) -> None:
    """Add a field that the format does not define, or does not send in pieces, by the most likely meaning.

    Text is appended to text, unless it is sent only once; objects are merged; elements of a list are matched by `index`.
    """
    before = holder.get(key)
    if value is None or (key in _ONCE and before):
        keep(holder, key, None)
    elif isinstance(value, str) and key not in _ONCE and (before is None or text_so_far(holder, key)):
        grow(holder, key, value)
    elif isinstance(value, dict) and isinstance(before, dict):
        for inner, field_value in cast("dict[str, Any]", value).items():
            _merge(cast("dict[str, Any]", before), inner, field_value)
    elif isinstance(value, list) and (before is None or isinstance(before, list)):
        _merge_list(ensure_list(holder, key), cast("list[Any]", value))
    else:
        holder[key] = value


def _merge_list(items: list[Any], added: list[Any]) -> None:
    for item in added:
        element = _known(items, item)
        if element is None:
            items.append(item)
            continue
        for key, value in item.items():
            _merge(element, key, value)


def _known(items: list[object], added: object) -> dict[str, object] | None:
    """Return the element that another one continues, by `index`."""
    index = cast("dict[str, Any]", added).get("index") if isinstance(added, dict) else None
    if index is None:
        return None
    objects = (cast("dict[str, Any]", item) for item in items if isinstance(item, dict))
    return next((item for item in objects if item.get("index") == index), None)
