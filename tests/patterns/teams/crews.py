"""Teams for the tests: models that play each of the team by a few lines of Python, and tools that note what they do."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from typing import Any, TypeAlias

from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from antiphon.agents.toolkit import Toolkit
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec, Patience
from antiphon.patterns.teams import ManagerSpec, Team

__all__ = [
    "QUICK",
    "Act",
    "Say",
    "actors_of",
    "agent",
    "manager",
    "phase",
    "plan",
    "play",
    "team_of",
    "types_in",
    "with_workers_elsewhere",
]

QUICK = Patience(attempts=1, backoff=0)

Act: TypeAlias = tuple[str, dict[str, Any]]
"""A tool and its arguments."""
Say: TypeAlias = "str | dict[str, Any] | list[Act] | Exception"
"""A text, a structured output, or tools to use."""
Part: TypeAlias = "Say | Callable[[str, int], Say]"
"""An agent's message: always the same, or a function of its prompt and its number of messages so far."""


def play(parts: dict[str, Part], asked: list[str] | None = None) -> FunctionModel:
    """Return a model that plays each agent of a team, known by its instructions."""

    async def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        name = (info.instructions or "").removeprefix("You are ").partition(".")[0]
        if asked is not None:
            asked.append(name)
        prompt, spoken = _prompt(messages), sum(isinstance(each, ModelResponse) for each in messages)
        part = parts[name]
        said = part(prompt, spoken) if callable(part) else part
        if isinstance(said, Exception):
            raise said
        return ModelResponse(list(_parts(said, info, f"{name} {prompt} {spoken}")))

    return FunctionModel(answer)


def _parts(said: Any, info: AgentInfo, seed: str) -> Iterable[Any]:
    if isinstance(said, str) and info.allow_text_output:
        yield TextPart(said)
    elif isinstance(said, list):
        for number, (tool, arguments) in enumerate(said):
            yield ToolCallPart(tool, arguments, tool_call_id=_id(f"{seed} {number}"))
    else:
        value = {"summary": said} if isinstance(said, str) else said
        yield ToolCallPart(info.output_tools[0].name, value, tool_call_id=_id(seed))


def _id(seed: str) -> str:
    return f"call-{sha256(seed.encode()).hexdigest()[:16]}"


def _prompt(messages: Sequence[ModelMessage]) -> str:
    return "\n".join(str(p.content) for each in messages for p in each.parts if isinstance(p, UserPromptPart))


def agent(name: str, *tools: str) -> AgentSpec:
    return AgentSpec(name=name, instructions=f"You are {name}.", tools=tools)


def manager(name: str, *workers: str, **more: Any) -> ManagerSpec:
    return ManagerSpec(name=name, instructions=f"You are {name}.", workers=workers, **more)


def phase(worker: str, goals: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name or f"Phase of {worker}", "worker": worker, "goals": goals, **more}


def plan(*phases: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"refined_intent": "As you like it.", "phases": list(phases), "rationale": "It is so.", **more}


def team_of(
    parts: dict[str, Part],
    workers: Iterable[AgentSpec],
    managers: Iterable[ManagerSpec] = (),
    *,
    asked: list[str] | None = None,
    ledger: Any = None,
    toolkit: Toolkit | None = None,
    **more: Any,
) -> Team:
    """Return a team whose orchestrator is called so."""
    return Team(
        MemoryLedger() if ledger is None else ledger,
        orchestrator=agent("orchestrator"),
        workers=workers,
        managers=managers,
        model=play(parts, asked),
        toolkit=toolkit,
        patience=QUICK,
        **more,
    )


@asynccontextmanager
async def with_workers_elsewhere(
    parts: dict[str, Part], workers: Iterable[AgentSpec], managers: Iterable[ManagerSpec], **options: Any
) -> AsyncGenerator[Team]:
    """Yield a team without workers; another system on the same ledger has them, and hosts their threads."""
    ledger = MemoryLedger()
    near = team_of(parts, workers, managers, ledger=ledger, roles=("orchestrator", "manager"), **options)
    async with team_of(parts, workers, managers, ledger=ledger, roles=("worker",), **options) as far, near:
        hosting = asyncio.ensure_future(far.system.host())
        await asyncio.sleep(0.01)  # its first beat says that it has workers
        yield near
        hosting.cancel()
        with suppress(asyncio.CancelledError):
            await hosting


async def types_in(team: Team, thread_id: str) -> list[str]:
    """Return the messages of a thread as `sender: type`."""
    found = await team.store.get_messages(thread_id)
    return [f"{each.get('agent_key', each.get('from_manager', '-'))}: {each['type']}" for each in found]


def actors_of(text: str) -> str:
    """Return the first line of a text, which says what it is about."""
    return text.partition("\n")[0]
