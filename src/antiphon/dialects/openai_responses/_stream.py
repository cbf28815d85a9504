"""Assembles a streamed response: items by index or id, parts by index, and growing text.

The service sends everything at least twice: text in deltas, then complete, then again with its part, its item and the
response. The last version is used, because some fields are only in it (encrypted content, annotations). Text that was not sent
in deltas is reported as one delta when it arrives, so the deltas always add up to the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from typing_extensions import override

from antiphon.dialects._assembler import (
    AssemblerBase,
    Delta,
    DeltaKind,
    EventError,
    StreamFailure,
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

_LAST = frozenset({"completed", "incomplete", "failed", "cancelled"})
"""The final states of a response."""


class _Place(NamedTuple):
    """The place of growing text in an item."""

    type: str
    """The type of the part that holds it, or of the item itself."""
    field: str
    kind: DeltaKind | None
    """The kind of its deltas; None if there are none, because the provider runs that call itself."""
    parts: str = ""
    """The item's list of parts; empty: the item holds the text itself."""
    position: str = ""
    """The key of the position in that list."""


_GROWING = {
    "response.output_text": _Place("output_text", "text", "text", "content", "content_index"),
    "response.refusal": _Place("refusal", "refusal", "refusal", "content", "content_index"),
    "response.reasoning_text": _Place("reasoning_text", "text", "reasoning", "content", "content_index"),
    "response.reasoning_summary_text": _Place("summary_text", "text", "reasoning", "summary", "summary_index"),
    "response.function_call_arguments": _Place("function_call", "arguments", "arguments"),
    "response.custom_tool_call_input": _Place("custom_tool_call", "input", "arguments"),
    "response.mcp_call_arguments": _Place("mcp_call", "arguments", None),
    "response.code_interpreter_call_code": _Place("code_interpreter_call", "code", None),
}
_PARTS = {
    "response.content_part": ("content", "content_index"),
    "response.reasoning_summary_part": ("summary", "summary_index"),
}
_PLACES = {place.type: place for place in _GROWING.values()}


@dataclass(slots=True)
class ResponsesAssembler(AssemblerBase):
    """A response so far."""

    response: dict[str, Any] = field(default_factory=dict[str, Any])
    """The latest fields of the response, without its output."""
    items: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """The items of its output, by index."""
    done: list[str] = field(default_factory=list[str])
    """The indexes of the complete items."""
    final: list[Any] = field(default_factory=list[Any])
    """The complete output from the final event."""
    is_finished: bool = False
    begins: dict[str, int] = field(default_factory=dict[str, int])
    """The position of the first part, by item and list: some servers count from 1."""

    @property
    def is_empty(self) -> bool:
        return not self.response and not self.items

    @override
    def failure_in(self, event: Mapping[str, object]) -> StreamFailure | None:
        response = event.get("response")
        if event.get("type") != "response.failed" or not isinstance(response, dict):
            return AssemblerBase.failure_in(self, event)
        error = cast("dict[str, Any]", response).get("error")
        return AssemblerBase.failure_in(self, {"type": "error", "error": error or {"message": "the response failed"}})

    def add(self, event: dict[str, Any]) -> Iterator[Delta]:
        stem, _, verb = text_in(event, "type").rpartition(".")
        if isinstance(event.get("response"), dict):
            yield from self._add_response(event["response"])
        elif stem == "response.output_item" and verb in ("added", "done"):
            yield from self._put_item(self._index(event), object_in(event, "item"), is_done=verb == "done")
        elif stem in _PARTS and verb in ("added", "done"):
            yield from self._put_part(event, *_PARTS[stem])
        elif stem in _GROWING and verb in ("delta", "done"):
            yield from self._add_text(event, _GROWING[stem], verb)
        elif stem == "response.output_text.annotation" and verb == "added":
            yield from self._add_annotation(event)
        else:
            self.count_unknown(event)

    # ---------------------------------------------------------------- the response

    def _add_response(self, response: dict[str, Any]) -> Iterator[Delta]:
        output = objects_in(response, "output")
        self.response = {key: value for key, value in response.items() if key != "output"}
        status = text_in(response, "status")
        for position, item in enumerate(output):
            index = self._known(item, default=position)
            if status in _LAST or index not in self.items:
                yield from self._put_item(index, item, is_done=status in _LAST)
        if status not in _LAST:
            return
        self.final, self.is_finished = output, True
        if response.get("usage"):
            yield from self.tell_value("usage", None, response["usage"])
        yield Delta("finish", text=text_in(object_in(response, "incomplete_details"), "reason") or status)

    # ---------------------------------------------------------------- items and their parts

    def _put_item(self, index: str, item: dict[str, object], *, is_done: bool) -> Iterator[Delta]:
        if not item:
            return
        texts_before = {
            piece: text_so_far(holder, place.field) for piece, holder, place in _texts(index, self.items.get(index, {}))
        }
        self.items[index] = item
        is_new = is_done and index not in self.done
        if is_new:
            self.done.append(index)
        if item.get("type") in ("function_call", "custom_tool_call"):
            yield from self.tell_call(index, item.get("name"), item.get("call_id"))
        for piece, holder, place in _texts(index, item):
            yield from self._tell_new(place, piece, texts_before.get(piece, ""), text_in(holder, place.field))
        if is_new and item.get("type") == "reasoning":
            piece = next((piece for piece in self.pieces if piece.startswith(f"{index} ")), f"{index} summary 0")
            yield from self.tell("signature", piece, text_in(item, "encrypted_content"))

    def _tell_new(self, place: _Place, piece: str, before: str, text: str) -> Iterator[Delta]:
        self.halves.pop(piece, None)  # the whole text was sent again
        if place.kind is not None and text.startswith(before):
            yield from self.tell(place.kind, piece, text[len(before) :])

    def _put_part(self, event: dict[str, object], parts: str, key: str) -> Iterator[Delta]:
        index, item = self._item_of(event)
        item_parts = ensure_list(item, parts)
        position, part = index_in(event, key, 0), object_in(event, "part")
        place = _PLACES.get(str(part.get("type")))
        where = self._place(f"{index} {parts}", position, item_parts)
        before = _part_at(item_parts, where, {})
        item_parts[where] = part
        if place is not None and place.parts == parts:
            piece, reported = f"{index} {parts} {position}", text_so_far(before, place.field)
            self.number(piece)  # parts are numbered at their start, not at their first text
            yield from self._tell_new(place, piece, reported, text_in(part, place.field))

    def _index(self, event: dict[str, object]) -> str:
        """Return the index of the item that an event refers to; some servers send only an id."""
        if event.get("output_index") is not None:
            return str(index_in(event, "output_index"))
        return self._known({"id": event.get("item_id"), **object_in(event, "item")}, default=len(self.items))

    def _known(self, item: dict[str, object], *, default: int) -> str:
        """Return the index under which an item was streamed, by its id: some servers leave gaps."""
        ids = [item[key] for key in ("id", "call_id") if item.get(key)]
        indexes = (
            index for index, streamed in self.items.items() if streamed.get("id") in ids or streamed.get("call_id") in ids
        )
        return next(indexes, str(default))

    def _item_of(self, event: dict[str, object]) -> tuple[str, dict[str, object]]:
        index = self._index(event)
        if index not in self.items:
            raise EventError(f"no item {index} has begun", "output_index")
        return index, self.items[index]

    def _place(self, owner: str, position: int, parts: list[object]) -> int:
        """Return the index of a part in its list, counted from the first."""
        if position and not parts:
            self.begins[owner] = position
        return position - self.begins.get(owner, 0)

    # ---------------------------------------------------------------- growing text

    def _add_text(self, event: dict[str, object], place: _Place, verb: str) -> Iterator[Delta]:
        index, holder = self._item_of(event)
        piece = index
        if place.parts:
            position = index_in(event, place.position, 0)
            piece = f"{index} {place.parts} {position}"
            item_parts = ensure_list(holder, place.parts)
            holder = _part_at(item_parts, self._place(f"{index} {place.parts}", position, item_parts), _begun(place))
        if verb == "done":
            reported, text = text_so_far(holder, place.field), text_in(event, place.field)
            holder[place.field] = text
            yield from self._tell_new(place, piece, reported, text)
            return
        text = self.clean(piece, text_in(event, "delta"))
        grow(holder, place.field, text)
        if event.get("logprobs"):
            ensure_list(holder, "logprobs").extend(objects_in(event, "logprobs"))
        if place.kind is not None:
            yield from self.tell(place.kind, piece, text)

    def _add_annotation(self, event: dict[str, object]) -> Iterator[Delta]:
        index, item = self._item_of(event)
        position = index_in(event, "content_index", 0)
        item_parts = ensure_list(item, "content")
        where = self._place(f"{index} content", position, item_parts)
        part = _part_at(item_parts, where, _begun(_PLACES["output_text"]))
        annotation, annotations = object_in(event, "annotation"), ensure_list(part, "annotations")
        _part_at(annotations, min(index_in(event, "annotation_index"), len(annotations)), annotation)
        yield from self.tell_value("citation", f"{index} content {position}", annotation)

    # ---------------------------------------------------------------- the body so far

    def unfinished(self) -> tuple[str, ...]:
        if self.final:
            return ()
        opened = (_named(item) for index, item in self.items.items() if index not in self.done and not _is_talk(item))
        return (*opened, *self.half_characters())

    def body(self, *, only_complete: bool = False) -> dict[str, Any]:
        items = [(index, self.items[index]) for index in sorted(self.items, key=int)]
        output = self.final or [item for index, item in items if not only_complete or index in self.done or _is_talk(item)]
        return cast("dict[str, Any]", settled({"object": "response", **self.response, "output": output}))


ASSEMBLER = ResponsesAssembler


def _texts(index: str, item: dict[str, object]) -> Iterator[tuple[str, dict[str, object], _Place]]:
    """Yield each text of an item that deltas report: its piece, its container, and its place."""
    place = _PLACES.get(str(item.get("type")))
    if place is not None and not place.parts:
        yield index, item, place
    for parts in ("summary", "content"):
        for position, part in enumerate(objects_in(item, parts)):
            place = _PLACES.get(str(part.get("type")))
            if place is not None and place.parts == parts:
                yield f"{index} {parts} {position}", part, place


def _part_at(parts: list[object], position: int, begun: dict[str, object]) -> dict[str, object]:
    """Return the part at a position; the next one begins, one beyond it is refused."""
    if not 0 <= position <= len(parts):
        raise EventError(f"expected a position up to {len(parts)}, found {position}")
    if position == len(parts):
        parts.append(begun)
    if not isinstance(parts[position], dict):
        raise EventError(f"expected an object at position {position}")
    return cast("dict[str, Any]", parts[position])


def _begun(place: _Place) -> dict[str, object]:
    part: dict[str, object] = {"type": place.type, place.field: ""}
    return {**part, "annotations": []} if place.type == "output_text" else part


def _is_talk(item: dict[str, object]) -> bool:
    """Whether an item is text, of which an incomplete part is usable."""
    return item.get("type") == "message"


def _named(item: dict[str, object]) -> str:
    if item.get("call_id"):
        return called(item.get("name") or item.get("type"), item["call_id"])
    return f"the item {item.get('id')} ({item.get('type')})"
