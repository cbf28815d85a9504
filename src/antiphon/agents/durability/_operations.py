"""What agents do, as operations of the GenAI conventions: a run, a request to a model, a call of a tool.

**Each is told once.** Pydantic AI can make such spans itself (`Agent.instrument_all()`, the capability `Instrumentation`). It
makes them around what the ledger does, so also for a request whose answer is taken from there. A run that is instrumented that
way is told as effects only, below the spans of Pydantic AI: names, tokens and times of models and tools are not there twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability, Instrumentation

from antiphon.agents._run import LedgerRun
from antiphon.runtime import AgentOperation

__all__ = ["capabilities_of", "is_told", "provider_named", "provider_of", "told_as_agent"]

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
"""By the name that Pydantic AI has for a provider, that of the conventions, where it is another:
https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/registry/attributes/gen-ai.md"""
_SEVERAL: Final = "fallback:"


def provider_of(ctx: RunContext[Any]) -> str:
    """Return the provider of the model that a run uses; of several, the first one that is asked."""
    system: str = getattr(ctx.model, "system", "")
    return provider_named(system.removeprefix(_SEVERAL).partition(",")[0])


def provider_named(name: str) -> str:
    """Return a provider as the conventions name it."""
    return _PROVIDERS.get(name, name)


def capabilities_of(ctx: RunContext[Any]) -> list[AbstractCapability[Any]]:
    """Return the capabilities of a run, also those inside of others."""
    found: list[AbstractCapability[Any]] = []
    if ctx.root_capability is not None:
        ctx.root_capability.apply(found.append)
    return found


def is_told(run: LedgerRun, ctx: RunContext[Any]) -> bool:
    """Whether somebody watches who is to be told of models, tools and agents: not where Pydantic AI tells the same."""
    if run.journal.hooks is None:
        return False
    return not any(isinstance(each, Instrumentation) for each in capabilities_of(ctx))


async def told_as_agent(run: LedgerRun, ctx: RunContext[Any], name: str, running: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Have an agent run, and tell that to whoever watches. `name` is what the journal calls it."""
    hooks = run.journal.hooks
    if hooks is None or not is_told(run, ctx):
        return await running()
    agent = ctx.agent
    operation = AgentOperation(
        name if agent is None or agent.name is None else agent.name,
        name,
        description=None if agent is None else agent.description,
        model=getattr(ctx.model, "model_name", None),
        provider=provider_of(ctx),
    )
    return await hooks.operation(run.course, operation, running)
