"""Reports a run to observers: its operations by the GenAI conventions, and deltas while a model answers.

**Each operation is reported once.** Pydantic AI can make such spans itself (`Agent.instrument_all()`, the capability
`Instrumentation`). It makes them outside of the ledger, and therefore also for a request whose answer comes from the ledger.
Such spans get a mark, by which `antiphon.telemetry.CountOnce` leaves out their tokens. A run that is instrumented that way is
reported as effects only, below the spans of Pydantic AI: names, tokens and times of models and tools are not reported twice.

**Deltas are not stored.** The complete answer is stored once. A slow listener misses deltas, and never delays the agent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from opentelemetry import trace  # comes with Pydantic AI
from pydantic_ai.capabilities import AbstractCapability, Instrumentation
from pydantic_ai.messages import AgentStreamEvent
from pydantic_ai.tools import RunContext

from antiphon.durable._run import LedgerRun, at_end, current_effect, current_run
from antiphon.ledger import Owners
from antiphon.ledger._unopened import check_opened
from antiphon.runtime import AgentOperation

# ---------------------------------------------------------------- operations

ResultT = TypeVar("ResultT")

_PROVIDERS: Final = {
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "bedrock-mantle": "aws.bedrock",
    "google": "gcp.gemini",
    "google-cloud": "gcp.vertex_ai",
    "google-gla": "gcp.gemini",
    "google-vertex": "gcp.vertex_ai",
    "grok": "x_ai",
    "mistral": "mistral_ai",
    "moonshotai": "moonshot_ai",
    "xai": "x_ai",
}
"""From Pydantic AI's name of a provider to the name in the conventions, where they differ:
https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/registry/attributes/gen-ai.md"""
_SEVERAL: Final = "fallback:"
_REPLAYED: Final = "antiphon.replayed"
"""The attribute of spans whose step is taken from the ledger."""


def provider_of(ctx: RunContext[object]) -> str:
    """Return the provider of a run's model; for a fallback model, the first provider."""
    system: str = getattr(ctx.model, "system", "")
    return provider_named(system.removeprefix(_SEVERAL).partition(",")[0])


def provider_named(name: str) -> str:
    """Return a provider as the conventions name it."""
    return _PROVIDERS.get(name, name)


def capabilities_of(ctx: RunContext[object]) -> list[AbstractCapability[object]]:
    """Return the capabilities of a run, including nested ones."""
    return [] if ctx.root_capability is None else leaves_of(ctx.root_capability)


def leaves_of(root: AbstractCapability[Any]) -> list[AbstractCapability[Any]]:
    """Return a capability, or the ones in it."""
    capabilities: list[AbstractCapability[Any]] = []
    root.apply(capabilities.append)
    return capabilities


def is_observed(run: LedgerRun, ctx: RunContext[object]) -> bool:
    """Whether operations are reported to observers: there are observers, and Pydantic AI does not report the same."""
    return run.journal.hooks is not None and not _is_instrumented(ctx)


def _is_instrumented(ctx: RunContext[object]) -> bool:
    """Whether Pydantic AI makes spans for the run."""
    return any(isinstance(capability, Instrumentation) for capability in capabilities_of(ctx))


def count_step(run: LedgerRun, ctx: RunContext[object], *, was_done: bool) -> None:
    """Count a request or a call of an agent. If its outcome is recorded, mark the span that Pydantic AI made for it."""
    if was_done:
        run.done += 1
    else:
        run.replayed += 1
        _mark_replayed(ctx)


def _mark_replayed(ctx: RunContext[object]) -> None:
    if _is_instrumented(ctx):
        trace.get_current_span().set_attribute(_REPLAYED, True)


async def observed_agent(
    run: LedgerRun, ctx: RunContext[object], name: str, running: Callable[[], Awaitable[ResultT]]
) -> ResultT:
    """Run an agent, and report the run to observers. `name` is its name in the journal."""
    hooks = run.journal.hooks
    if hooks is None or not is_observed(run, ctx):
        result = await running()
        if run.replayed and not run.done:
            _mark_replayed(ctx)
        return result
    agent = ctx.agent
    operation = AgentOperation(
        name if agent is None or agent.name is None else agent.name,
        name,
        description=None if agent is None else agent.description,
        model=getattr(ctx.model, "model_name", None),
        provider=provider_of(ctx),
    )
    return await hooks.operation(run.course, operation, running)


# ---------------------------------------------------------------- live

_ROOM = 1_000
"""How many deltas wait for a listener before it misses some."""


@dataclass(frozen=True, slots=True)
class LiveDelta:
    """One event of a model's answer, while it is streamed."""

    thread_id: str
    agent: str | None
    invocation_id: str | None
    """The request that it belongs to; it stays the same if the request is repeated. None: between requests."""
    event: AgentStreamEvent


_listeners: WeakKeyDictionary[Owners, dict[str, list[asyncio.Queue[LiveDelta | None]]]] = WeakKeyDictionary()


@asynccontextmanager
async def listen(ledger: Owners, thread_id: str) -> AsyncGenerator[AsyncIterator[LiveDelta], None]:
    """Listen to the agents of a thread, for an `async with` block; iterate over the deltas it yields.

    The deltas end with the last open run of the thread. Only agents in this process whose `LedgerDurability` has `live=True`
    produce deltas.
    """
    check_opened(ledger)
    queue: asyncio.Queue[LiveDelta | None] = asyncio.Queue(_ROOM)
    queues = _listeners.setdefault(ledger, {}).setdefault(thread_id, [])
    queues.append(queue)
    try:
        with at_end(ledger, thread_id, lambda: _end(queue)):
            yield _deltas(queue)
    finally:
        queues.remove(queue)
        if not queues:
            _listeners[ledger].pop(thread_id, None)


def _end(queue: asyncio.Queue[LiveDelta | None]) -> None:
    if queue.full():  # a slow listener misses deltas, but must not miss the end
        queue.get_nowait()
    queue.put_nowait(None)


async def _deltas(queue: asyncio.Queue[LiveDelta | None]) -> AsyncIterator[LiveDelta]:
    while (delta := await queue.get()) is not None:
        yield delta


def live_publisher(agent: str | None) -> Callable[[Any], None] | None:
    """Return the function that passes events of an agent to listeners of the current run's thread; None outside of a run."""
    run, effect = current_run(), current_effect()
    if run is None:
        return None
    key = None if effect is None else effect.key

    def publish(event: Any) -> None:
        for queue in _listeners.get(run.ledger, {}).get(run.thread_id, ()):
            if not queue.full():
                queue.put_nowait(LiveDelta(run.thread_id, agent, key, event))

    return publish


def publish_live(agent: str | None, event: Any) -> None:
    """Pass an event of an agent's model to the listeners of the current run's thread; outside of a run, do nothing."""
    if (publish := live_publisher(agent)) is not None:
        publish(event)
