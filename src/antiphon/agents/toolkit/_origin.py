"""Origin: whether a turn has read something that strangers wrote.

No text says so of itself, and none can say the opposite: the runtime marks what it saw come in. A mark is on the result of
a tool that is `untrusted` (in its metadata, which no model sees), on text that the program quotes with `quoted`, and, without
any mark, on documents and media in a prompt, on what a provider's own tools have fetched, and on the results of tools
beside the toolkit that say `untrusted` in their metadata. Marks are only ever added.

Whoever runs an agent inside a tool hands on what the turn outside has read, and gets back what the one inside has.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import cast

from pydantic_ai.messages import (
    BinaryContent,
    FileUrl,
    ModelMessage,
    ModelRequest,
    NativeToolReturnPart,
    TextContent,
    ToolReturnPart,
    UploadedFile,
    UserContent,
    UserPromptPart,
)

__all__ = ["Reading", "current_reading", "enter_reading", "quoted", "reading_scope", "untrusted_in"]

_reading: ContextVar[Reading | None] = ContextVar("antiphon.agents.toolkit.reading", default=None)


class Reading:
    """What a turn has read; `outside` is the turn in whose course it happens."""

    def __init__(self, outside: Reading | None = None) -> None:
        self._outside = outside
        self._untrusted: str | None = None

    @property
    def untrusted(self) -> str | None:
        """Where untrusted content came from, the first that was read; None: there was none."""
        return self._untrusted or (self._outside.untrusted if self._outside else None)

    @property
    def is_inside(self) -> bool:
        """Whether it happens in the course of another turn."""
        return self._outside is not None

    @property
    def own(self) -> str | None:
        """The same, without what the turn outside has read."""
        return self._untrusted

    def mark(self, source: str | None) -> None:
        """Take into account that something was read, here and outside; None: it can be trusted."""
        self._untrusted = self._untrusted or source
        if self._outside is not None:
            self._outside.mark(source)


def current_reading() -> Reading | None:
    """Return what the turn has read that this is part of."""
    return _reading.get()


def enter_reading(reading: Reading | None) -> Reading | None:
    """Make this the turn that is at work, until something else is; return the one that was."""
    before = _reading.get()
    _reading.set(reading)
    return before


@contextmanager
def reading_scope(reading: Reading) -> Generator[Reading]:
    """Make this the turn that is at work."""
    token = _reading.set(reading)
    try:
        yield reading
    finally:
        _reading.reset(token)


def quoted(text: str, source: str = "a quoted text") -> TextContent:
    """Return text that strangers wrote, to be put in a prompt: whoever reads it may use only tools that allow it."""
    return TextContent(text, metadata={"antiphon": {"untrusted": source}})


def untrusted_in(messages: Iterable[ModelMessage], tools: Collection[str] = ()) -> str | None:
    """Return where untrusted content in a history comes from, the first there is; None: there is none.

    `tools` are those whose results are untrusted, whoever ran them.
    """
    for message in messages:
        for part in message.parts:
            if isinstance(part, NativeToolReturnPart) or (isinstance(part, ToolReturnPart) and part.tool_name in tools):
                return f"what {part.tool_name!r} returned"
            if isinstance(message, ModelRequest) and (found := _in_request_part(part)):
                return found
    return None


def _in_request_part(part: object) -> str | None:
    if isinstance(part, ToolReturnPart):
        return _marked(part.metadata)
    if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
        return _in_prompt(part.content)
    return None


def _in_prompt(content: Sequence[UserContent]) -> str | None:
    for each in content:
        if isinstance(each, TextContent):
            if found := _marked(each.metadata):
                return found
        elif isinstance(each, FileUrl | BinaryContent | UploadedFile):
            return f"a file in a prompt ({each.kind})"
    return None


def _marked(metadata: object) -> str | None:
    own = _field(metadata, "antiphon")
    source = _field(own, "untrusted")
    return source if isinstance(source, str) else None


def _field(value: object, name: str) -> object:
    return cast("dict[str, object]", value).get(name) if isinstance(value, dict) else None
