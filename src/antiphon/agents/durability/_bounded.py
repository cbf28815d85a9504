"""Bounds of a model request: how long an answer may be that is streamed, and how long it may take.

A model that never stops speaking would fill the memory of the process, and nothing of it could be written down.
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

from antiphon.agents._run import current_run
from antiphon.errors import BudgetExceededError
from antiphon.messages import current_limits

__all__ = ["bounded", "until"]

_MESSAGES = 4
"""An answer is several messages (reasoning, text, calls): together they may have so many times what one may have."""
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
