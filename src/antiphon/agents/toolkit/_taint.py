"""Taint: whether a turn has read untrusted content, that is, content that an outsider could have written.

The runtime tracks taint, never a model. Content cannot mark itself, and cannot remove a mark:

- the result of a tool that is `untrusted` has the mark in its metadata, which no model sees;
- `quoted` marks text that the program puts into a prompt;
- documents and media in a prompt or in the messages of a thread, results of a provider's own tools, and results of tools
  outside the toolkit that say `untrusted` in their metadata count as untrusted without a mark.

Marks are only added. An agent that runs inside a tool starts with the taint of the outer turn, and its own taint is added
to the outer turn.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

from pydantic_ai.messages import (
    BinaryContent,
    FileUrl,
    ModelMessage,
    ModelRequest,
    NativeToolReturnPart,
    StructuredContent,
    TextContent,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)

from antiphon.dialects.pydantic_ai import DIALECT
from antiphon.ledger import is_foreign
from antiphon.messages import ForeignPart, Json, JsonArray, MediaPart, Message

_FILES = frozenset({"audio-url", "binary", "document-url", "image-url", "uploaded-file", "video-url"})
"""The kinds of files in prompts, as Pydantic AI writes them."""

_current: ContextVar[Taint | None] = ContextVar("antiphon.agents.toolkit.taint", default=None)


class Taint:
    """The taint of one turn. `outside` is the taint of the enclosing turn."""

    def __init__(self, outside: Taint | None = None) -> None:
        self._outside = outside
        self._untrusted: str | None = None

    @property
    def untrusted(self) -> str | None:
        """The source of the first untrusted content that was read, here or outside; None: nothing untrusted was read."""
        return self._untrusted or (self._outside.untrusted if self._outside else None)

    @property
    def is_inside(self) -> bool:
        """Whether the turn runs inside another turn."""
        return self._outside is not None

    @property
    def source_here(self) -> str | None:
        """The source of the first untrusted content that this turn itself has read."""
        return self._untrusted

    def mark(self, source: str | None) -> None:
        """Add a source of untrusted content, here and outside. None adds nothing."""
        self._untrusted = self._untrusted or source
        if self._outside is not None:
            self._outside.mark(source)


def current_taint() -> Taint | None:
    """Return the taint of the current turn; None outside of a turn."""
    return _current.get()


def enter_taint(taint: Taint | None) -> Taint | None:
    """Set the taint of the current turn until the next call; return the previous one."""
    before = _current.get()
    _current.set(taint)
    return before


@contextmanager
def taint_scope(taint: Taint) -> Generator[Taint]:
    """Set the taint of the current turn for the length of a `with` block."""
    token = _current.set(taint)
    try:
        yield taint
    finally:
        _current.reset(token)


def quoted(text: str, source: str = "a quoted text") -> TextContent:
    """Return text for a prompt that is marked as untrusted: the turn may then use only tools that allow untrusted input."""
    return TextContent(text, metadata={"antiphon": {"untrusted": source}})


def untrusted_in(messages: Iterable[ModelMessage], tools: Collection[str]) -> str | None:
    """Return the source of the first untrusted content in a history; None if there is none.

    `tools` are the names of tools whose results are untrusted.
    """
    for message in messages:
        for part in message.parts:
            if isinstance(part, NativeToolReturnPart) or (isinstance(part, ToolReturnPart) and part.tool_name in tools):
                return f"what {part.tool_name!r} returned"
            if isinstance(message, ModelRequest) and (source := _in_request_part(part)):
                return source
    return None


def untrusted_source(message: Message) -> str | None:
    """Return the source of untrusted content in a message of a thread; None if there is none.

    It has the mark of the runtime, or is a file that was not written by a model, or is a result of a provider's own tool: the
    rule of `untrusted_in`, for what agents and policies read of a thread. A message that was told to a model, or a result of a
    tool, has the mark in the metadata of its dialect.
    """
    if source := next(filter(None, map(_mark_in, (message.metadata, *(part.metadata for part in message.parts)))), None):
        return source
    is_written = message.role_hint_for_llm == "assistant"
    for part in message.parts:
        if isinstance(part, MediaPart) and not is_written:
            return f"a file in a prompt ({part.modality})"
        if isinstance(part, ForeignPart) and not is_foreign(message) and (source := _in_foreign(part, is_written=is_written)):
            return source
    return None


def _in_foreign(part: ForeignPart, *, is_written: bool) -> str | None:
    """Return the source of untrusted content in a part that only its dialect can read: the part may be what a tool found."""
    if part.dialect != DIALECT.name:
        return f"content of {part.dialect}"
    return _mark_in(part.value) or _in_part(part.value, is_written=is_written)


def _in_part(value: Json, *, is_written: bool) -> str | None:
    match value:
        case {"part_kind": "builtin-tool-return", "tool_name": str(name)}:
            return f"what {name!r} returned"
        case {"kind": str(kind)} if kind in _FILES and not is_written:
            return f"a file in a prompt ({kind})"
        case {"content": inside}:
            return _in_part(inside, is_written=is_written)
        case JsonArray():
            return next(filter(None, (_in_part(each, is_written=is_written) for each in value)), None)
        case _:
            return None


def _mark_in(value: Json) -> str | None:
    match value:
        case {"antiphon": {"untrusted": str(source)}}:
            return source
        case Mapping():
            inside: Iterable[Json] = value.values()
        case JsonArray():
            inside = value
        case _:
            return None
    return next(filter(None, map(_mark_in, inside)), None)


def _in_request_part(part: object) -> str | None:
    if isinstance(part, ToolReturnPart):
        return _marked(part.metadata)
    contents = part.content if isinstance(part, UserPromptPart) and not isinstance(part.content, str) else ()
    for content in contents:
        if isinstance(content, TextContent | StructuredContent) and (source := _marked(content.metadata)):
            return source
        if isinstance(content, FileUrl | BinaryContent | UploadedFile):
            return f"a file in a prompt ({content.kind})"
    return None


def _marked(metadata: object) -> str | None:
    notes = _field(metadata, "antiphon")
    source = _field(notes, "untrusted")
    return source if isinstance(source, str) else None


def _field(value: object, name: str) -> object:
    return cast("dict[str, object]", value).get(name) if isinstance(value, dict) else None
