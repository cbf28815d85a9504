"""Bounds of a model request: how long an answer may be, and how long it may take.

A model that never stops speaking would fill the memory of the process, and nothing of it could be written down. So a stream
is given up, and an answer that is too long for the journal is cut: the run goes on with what is written down. A call whose
arguments are cut must not be made. They become text that is no JSON, and the model is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.exceptions import UnexpectedModelBehavior
from pydantic_ai.messages import (
    AgentStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
)
from pydantic_ai.tools import AgentDepsT, RunContext
from pydantic_core import to_json

from antiphon.agents._run import current_run
from antiphon.errors import BudgetExceededError
from antiphon.messages import current_limits
from antiphon.messages._cut import cut, cut_text
from antiphon.runtime import is_too_large

__all__ = ["bounded", "cut_answer", "until"]

_MESSAGES = 4
"""An answer is several messages (reasoning, text, calls): together they may have so many times what one may have."""
_CUT = "[cut]"
_EVENT = 16
"""What an event counts beside its words, so that a stream of empty ones ends too."""


def bounded(handler: EventStreamHandler[AgentDepsT]) -> EventStreamHandler[AgentDepsT]:
    """Return a handler of events that gives up an answer which grows without end, where it would be written down."""

    async def handle(ctx: RunContext[AgentDepsT], stream: AsyncIterable[AgentStreamEvent]) -> None:
        if current_run() is None:
            await handler(ctx, stream)
            return
        events = _counted(stream)
        await handler(ctx, events)
        async for _ in events:  # a handler may stop looking; the answer goes on
            pass

    return handle


async def _counted(stream: AsyncIterable[AgentStreamEvent]) -> AsyncIterator[AgentStreamEvent]:
    most, size = _MESSAGES * current_limits().message_bytes, 0
    async for event in stream:
        size += _EVENT + len(_words(event))
        if size > most:
            raise UnexpectedModelBehavior(
                f"the model has said more than {most:,} characters and does not stop: it is given up"
            )
        yield event


def _words(event: Any) -> str:
    """Return what an event adds to an answer."""
    match event:
        case PartStartEvent(part=TextPart(content=words) | ThinkingPart(content=words) | ToolCallPart(args=str(words))):
            return words
        case PartDeltaEvent(delta=TextPartDelta(content_delta=words) | ToolCallPartDelta(args_delta=str(words))):
            return words
        case PartDeltaEvent(delta=ThinkingPartDelta(content_delta=str(words))):
            return words
        case _:
            return ""


def cut_answer(unit: dict[str, Any]) -> dict[str, Any]:
    """Return an answer, as JSON, that can be written down: one that can, as it is.

    Raises:
        UnexpectedModelBehavior: something is too large in it that cannot be cut, such as an image.
    """
    if not is_too_large(unit):
        return unit
    given: list[dict[str, Any]] = unit["parts"]
    shorter: list[Any] = cut(given, current_limits().message_bytes * 11 // 16)  # with room for what stands beside them
    parts = [_cut_part(*pair) for pair in zip(given, shorter, strict=False)]
    found = {**unit, "parts": parts}
    if is_too_large(found):
        raise _too_large()
    return found


def _cut_part(part: dict[str, Any], shorter: Any) -> dict[str, Any]:
    """Return a part of an answer, as it was cut."""
    if shorter == part:
        return part
    if isinstance(shorter, str) or not shorter.keys() >= part.keys():
        return {"part_kind": "text", "content": shorter if isinstance(shorter, str) else _CUT}
    match part["part_kind"]:
        case "text":
            return {**part, "content": shorter["content"]}
        case "thinking":  # its proof is for the whole
            return {**part, "content": shorter["content"], "signature": None, "provider_details": None}
        case "tool-call":
            return {**shorter, "args": _cut_arguments(part["args"], shorter["args"])}
        case _:
            raise _too_large()


def _cut_arguments(given: Any, shorter: Any) -> Any:
    if shorter == given or isinstance(shorter, str):
        return shorter
    text = to_json(given).decode()
    return cut_text(text, len(to_json(shorter)))


def _too_large() -> UnexpectedModelBehavior:
    return UnexpectedModelBehavior("the model's answer is too large to be written down, and has parts that cannot be cut")


@asynccontextmanager
async def until(seconds: float | None, where: str) -> AsyncGenerator[None, None]:
    """Give a request up after some seconds; None is never.

    Raises:
        BudgetExceededError: it was given up.
    """
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise BudgetExceededError(f"the seconds of the budget were over in the middle of {where!r}: it is given up") from exc
