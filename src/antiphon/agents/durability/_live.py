"""Live: what a model says while it says it, for whoever listens in this process.

Nothing of it is written down: the whole answer is, once, when it is there. Whoever listens too slowly misses some, and
never holds up the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.tools import AgentDepsT, RunContext

from antiphon.agents._run import current_effect, current_run
from antiphon.ledger import Ledger

__all__ = ["Delta", "listen", "live_handler"]

_ROOM = 1_000
"""How many deltas wait for whoever listens, before some are missed."""


@dataclass(frozen=True, slots=True)
class Delta:
    """Something that happens in a thread just now."""

    thread_id: str
    agent: str | None
    invocation_id: str | None
    """The request in whose course it happens; the same comes again if the request is made again. None: between requests."""
    event: AgentStreamEvent


_listeners: WeakKeyDictionary[Ledger, dict[str, list[asyncio.Queue[Delta]]]] = WeakKeyDictionary()


@asynccontextmanager
async def listen(ledger: Ledger, thread_id: str) -> AsyncGenerator[AsyncIterator[Delta], None]:
    """Listen to what agents say in a thread, for an `async with` block; iterate over what it gives.

    Their `LedgerDurability` must say `live=True`, and they must run in this process.
    """
    queue: asyncio.Queue[Delta] = asyncio.Queue(_ROOM)
    queues = _listeners.setdefault(ledger, {}).setdefault(thread_id, [])
    queues.append(queue)
    try:
        yield _each(queue)
    finally:
        queues.remove(queue)
        if not queues:
            _listeners[ledger].pop(thread_id, None)


async def _each(queue: asyncio.Queue[Delta]) -> AsyncIterator[Delta]:
    while True:
        yield await queue.get()


def live_handler(handler: EventStreamHandler[AgentDepsT] | None) -> EventStreamHandler[AgentDepsT]:
    """Return what hands events to those who listen, and then to a handler, if there is one."""

    async def handle(ctx: RunContext[AgentDepsT], stream: AsyncIterable[AgentStreamEvent]) -> None:
        events = _published(None if ctx.agent is None else ctx.agent.name, stream)
        if handler is not None:
            await handler(ctx, events)
        async for _ in events:
            pass

    return handle


async def _published(agent: str | None, stream: AsyncIterable[AgentStreamEvent]) -> AsyncIterator[AgentStreamEvent]:
    async for event in stream:
        _publish(agent, event)
        yield event


def _publish(agent: str | None, event: Any) -> None:
    run, effect = current_run(), current_effect()
    if run is None:
        return
    delta = Delta(run.thread_id, agent, None if effect is None else effect.key, event)
    for queue in _listeners.get(run.ledger, {}).get(run.thread_id, ()):
        if not queue.full():
            queue.put_nowait(delta)
