"""Assembles a streamed Anthropic message: blocks by index, each started, extended and stopped.

The input of a call is an object, but it is sent as pieces of JSON text. The text is kept beside the block until the block
stops. Without any piece, the input is that of the start event: `{}`. If the text is not a complete object when the block stops
(the model ran out of tokens, or the request asked for unchecked input), the call stays incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from antiphon.dialects._assembler import (
    AssemblerBase,
    Delta,
    DeltaKind,
    EventError,
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

_TEXTS: dict[str, tuple[str, DeltaKind]] = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "reasoning")}


@dataclass(slots=True)
class MessagesAssembler(AssemblerBase):
    """A message so far."""

    message: dict[str, Any] = field(default_factory=dict[str, Any])
    """The message without its content."""
    blocks: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """Its content, by index."""
    inputs: dict[str, object] = field(default_factory=dict[str, Any])
    """The text of the input of calls, by the index of their block, until it is complete."""
    opened: list[str] = field(default_factory=list[str])
    """The blocks that have not stopped."""
    is_stopped: bool = False

    @property
    def is_empty(self) -> bool:
        return not self.message

    @property
    def is_finished(self) -> bool:
        """Some proxies lose the last event; the event before it has the stop reason, and comes after all blocks."""
        return self.is_stopped or bool(self.message.get("stop_reason") and not self.opened)

    def add(self, event: dict[str, object]) -> Iterator[Delta]:
        match text_in(event, "type"):
            case "message_start":
                yield from self._start(object_in(event, "message"))
            case "content_block_start":
                yield from self._begin(str(index_in(event, "index")), object_in(event, "content_block"))
            case "content_block_delta":
                index = str(index_in(event, "index"))
                yield from self._add_to(index, self._block(index), object_in(event, "delta"))
            case "content_block_stop":
                self._stop(str(index_in(event, "index")))
            case "message_delta":
                yield from self._add_to_message(event)
            case "message_stop":
                self._check_started()
                for index in list(self.opened):
                    self._stop(index)
                self.is_stopped = True
            case "ping":
                pass
            case _:
                self.count_unknown(event)

    # ---------------------------------------------------------------- the message

    def _start(self, message: dict[str, object]) -> Iterator[Delta]:
        if self.message:
            raise EventError("a second message begins in one stream")
        content = objects_in(message, "content")
        self.message = {"type": "message", **{key: value for key, value in message.items() if key != "content"}}
        for index, block in enumerate(content):
            yield from self._begin(str(index), block)
            self._stop(str(index))
        if object_in(message, "usage"):
            yield from self.tell_value("usage", None, message["usage"])

    def _check_started(self) -> None:
        if not self.message:
            raise EventError("no message has begun")

    def _add_to_message(self, event: dict[str, Any]) -> Iterator[Delta]:
        """Counts in `usage` are totals so far: they replace earlier ones; null is ignored."""
        self._check_started()
        delta, usage = object_in(event, "delta"), object_in(event, "usage")
        totals = self.message["usage"] = object_in(self.message, "usage")
        top = {key: value for key, value in event.items() if key not in ("type", "delta", "usage")}
        for holder, added in ((self.message, delta), (self.message, top), (totals, usage)):
            for key, value in added.items():
                keep(holder, key, value)
        if usage:
            yield from self.tell_value("usage", None, totals)
        if text_in(delta, "stop_reason"):
            yield Delta("finish", text=delta["stop_reason"])

    # ---------------------------------------------------------------- its blocks

    def _block(self, index: str) -> dict[str, Any]:
        if index not in self.blocks:
            raise EventError(f"no block {index} has begun", "index")
        return self.blocks[index]

    def _begin(self, index: str, block: dict[str, object]) -> Iterator[Delta]:
        self._check_started()
        if index in self.blocks:
            raise EventError(f"block {index} has begun before", "index")
        self.blocks[index] = block
        self.opened.append(index)
        if block.get("type") == "tool_use":
            yield from self.tell_call(index, block.get("name"), block.get("id"))
        if block.get("type") == "fallback":
            successor = block.get("to")  # the model that continues the answer: its name, or an object with it
            name = successor if (model := as_object(successor)) is None else model.get("model")
            keep(self.message, "model", name if isinstance(name, str) and name else None)
        for key, kind in _TEXTS.values():
            if block.get("type") == key:
                yield from self.tell(kind, index, text_in(block, key))

    def _add_to(self, index: str, block: dict[str, Any], delta: dict[str, Any]) -> Iterator[Delta]:
        match kind := text_in(delta, "type"):
            case "text_delta" | "thinking_delta":
                key, delta_kind = _TEXTS[kind]
                text = self.clean(index, text_in(delta, key))
                grow(block, key, text)
                yield from self.tell(delta_kind, index, text)
            case "input_json_delta":
                text = self.clean(index, text_in(delta, "partial_json"))
                grow(self.inputs, index, text)
                if block.get("type") == "tool_use":
                    yield from self.tell("arguments", index, text)
            case "signature_delta":
                block["signature"] = text_in(delta, "signature")
                yield from self.tell("signature", index, block["signature"])
            case "citations_delta":
                citation = object_in(delta, "citation")
                ensure_list(block, "citations").append(citation)
                yield from self.tell_value("citation", index, citation)
            case _:
                _add_unknown(block, delta)

    def _stop(self, index: str) -> None:
        """Put the complete input of a call into its block."""
        block = self._block(index)
        if index in self.opened:
            self.opened.remove(index)
        text = text_so_far(self.inputs, index)
        if not text:
            self.inputs.pop(index, None)
            if text_in(block, "type").endswith("tool_use"):
                block.setdefault("input", {})
        elif (arguments := json_object(text)) is not None:
            block["input"] = arguments
            del self.inputs[index]

    # ---------------------------------------------------------------- the body so far

    def _is_whole(self, index: str) -> bool:
        return index not in self.opened and index not in self.inputs

    def unfinished(self) -> tuple[str, ...]:
        opened = (
            _named(index, block)
            for index, block in self.blocks.items()
            if not self._is_whole(index) and block.get("type") != "text"
        )
        return (*opened, *self.half_characters())

    def body(self, *, only_complete: bool = False) -> dict[str, Any]:
        blocks = [(index, self.blocks[index]) for index in sorted(self.blocks, key=int)]
        content = [
            block for index, block in blocks if not only_complete or self._is_whole(index) or block.get("type") == "text"
        ]
        return cast("dict[str, Any]", settled({**self.message, "content": content}))


ASSEMBLER = MessagesAssembler


def _add_unknown(block: dict[str, object], delta: dict[str, object]) -> None:
    """Keep unknown fields of a delta: text is appended to text, other values replace."""
    for key, value in delta.items():
        if key == "type":
            continue
        if isinstance(value, str) and text_so_far(block, key):
            grow(block, key, value)
        else:
            keep(block, key, value)


def _named(index: str, block: dict[str, object]) -> str:
    if block.get("id"):
        return called(block.get("name"), block["id"])
    return f"block {index} ({block.get('type')})"
