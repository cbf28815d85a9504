"""Cast: agents by name, on models that they share, with the tools that each was granted; asked durably, in a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_ai import Agent, RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import Tool
from pydantic_ai.usage import UsageLimits
from typing_extensions import TypedDict

from antiphon.agents import AgentBudget, LedgerDurability, Toolkit
from antiphon.agents.models import model as named_model
from antiphon.agents.toolkit import ToolSettings
from antiphon.agents.tools import BUILTIN_TOOLS, builtin_tools
from antiphon.errors import CastError
from antiphon.ledger import Ledger
from antiphon.patterns.cast._models import HeldModel, Patience, ask_in_turn


class AgentSpec(BaseModel):
    """How one agent is set up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")
    """What others call it, and what stands in the ledger."""
    instructions: str = ""
    model: str | None = None
    """As `antiphon.agents.model` takes it; None: the model of the whole cast."""
    fallback: str | None = None
    """The model to ask when the first one cannot be used."""
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    """Of one answer."""
    tools: tuple[str, ...] = ()
    """What it may use, by name: of the toolkit, or built in."""

    @property
    def models(self) -> tuple[str | None, ...]:
        """The models to ask, one after the other."""
        return (self.model,) if self.fallback is None else (self.model, self.fallback)

    @property
    def settings(self) -> ModelSettings:
        """What its models are asked with."""
        settings = ModelSettings()
        if self.temperature is not None:
            settings["temperature"] = self.temperature
        if self.max_tokens is not None:
            settings["max_tokens"] = self.max_tokens
        return settings

    @model_validator(mode="after")
    def _check_fallback(self) -> Self:
        if self.fallback is not None and self.fallback == self.model:
            raise ValueError("the fallback is another model than the first")
        return self


# ---------------------------------------------------------------- the cast


OutputT = TypeVar("OutputT")
Hear: TypeAlias = Callable[[str], None]
"""Is called with words while they arrive."""

_shared: WeakKeyDictionary[Toolkit, set[str]] = WeakKeyDictionary()
"""What patterns have put into toolkits, by name."""


class CastOptions(TypedDict, total=False):
    """What can be said about a cast; see `Cast`."""

    model: Model | str | None
    toolkit: Toolkit | None
    tools: Iterable[Callable[..., Any] | Tool[Any]]
    patience: Patience
    budget: AgentBudget | None
    thread_budget: AgentBudget | None
    make_model: Callable[[str | None], Model]
    live: bool


class AgentTools(NamedTuple):
    """The tools of one agent."""

    plain: Sequence[Tool[Any]] = ()
    """Called without a guard."""
    guarded: Sequence[AbstractCapability[Any]] = ()
    """Those of a toolkit, which decides on each call."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[OutputT]):
    """What an agent has answered."""

    output: OutputT
    run: AgentRunResult[OutputT]
    model: str | None = None
    """The name of the model that answered; None: the one of the whole cast."""

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The tools that it has called on the way."""
        said = (part for message in self.run.new_messages() if isinstance(message, ModelResponse) for part in message.parts)
        return tuple(part for part in said if isinstance(part, ToolCallPart))


class Cast:
    """Who takes part. What is asked in an `async with ledger_run(…)` block is done once, whatever happens to the process."""

    def __init__(
        self,
        ledger: Ledger,
        agents: Iterable[AgentSpec] = (),
        *,
        model: Model | str | None = None,
        toolkit: Toolkit | None = None,
        tools: Iterable[Callable[..., Any] | Tool[Any]] = (),
        patience: Patience = Patience(),  # noqa: B008 (frozen)
        budget: AgentBudget | None = None,
        thread_budget: AgentBudget | None = None,
        make_model: Callable[[str | None], Model] = named_model,
        live: bool = False,
        capabilities: Sequence[AbstractCapability[object]] = (),
    ) -> None:
        """Gather them; nothing is asked yet.

        `model` is for those that name none. Tools come from the `toolkit`, which others may share, from `tools`, or are built
        in; an agent is granted those that its `AgentSpec` names, and nothing else. `budget` is what one run may use with all
        its agents, `thread_budget` what a thread may. With `live`, words can be heard while they come: see
        `antiphon.agents.listen`. `capabilities` are what all agents have besides durability and tools.

        Raises:
            CastError: two have the same name, or there is no such tool.
        """
        self.ledger = ledger
        self.toolkit = toolkit or Toolkit()
        self.patience = patience
        self._given, self._make_model = model, make_model
        self._durability: dict[str, Any] = {"budget": budget, "thread_budget": thread_budget, "live": live}
        self._capabilities = tuple(capabilities)
        self._specs: dict[str, AgentSpec] = {}
        self._models: dict[str | None, HeldModel] = {}
        self._agents: dict[Any, Agent[object, Any]] = {}
        self._added: set[str] = set()
        for tool in tools:
            self._added.add(self.toolkit.add(tool).name)
        for spec in agents:
            self.add(spec)

    # ------------------------------------------------------------ who

    @property
    def names(self) -> tuple[str, ...]:
        """Who takes part."""
        return tuple(self._specs)

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def add(self, spec: AgentSpec) -> AgentSpec:
        """Let another take part, with the tools that it names.

        Raises:
            CastError: the name is taken, or a tool cannot be had.
        """
        if spec.name in self._specs:
            raise CastError(f"two agents are called {spec.name!r}; give one another name")
        for tool in spec.tools:
            self._have_tool(tool)
            self.toolkit.grant(spec.name, tool)
        self._specs[spec.name] = spec
        return spec

    def have_tool(self, function: Callable[..., Any], **settings: Unpack[ToolSettings]) -> str:
        """Have a tool of a pattern's own in the toolkit, once, however many share that; return its name.

        There, what is called beside it ends before the turn waits for a person.

        Raises:
            ValueError: somebody else has a tool of its name there.
        """
        there, name = _shared.setdefault(self.toolkit, set()), function.__name__
        if name not in there:
            there.add(self.toolkit.add(function, **settings).name)
        return name

    def remove(self, name: str) -> None:
        """Let somebody take part no more, and use no tool.

        Raises:
            CastError: there is none of the name.
        """
        for tool in self.spec(name).tools:
            self.toolkit.revoke(name, tool)
        del self._specs[name]
        self._agents = {key: agent for key, agent in self._agents.items() if key[0].name != name}

    def spec(self, name: str) -> AgentSpec:
        """Return how an agent is set up.

        Raises:
            CastError: there is none of the name.
        """
        if name not in self._specs:
            raise CastError(f"there is no agent {name!r}; there are {', '.join(self._specs) or 'none'}")
        return self._specs[name]

    def _have_tool(self, name: str) -> None:
        if name not in BUILTIN_TOOLS or name in self._added:
            return  # of the toolkit: servers say only when they are asked what they have
        self._added.add(name)
        try:
            (tool,) = builtin_tools([name], ledger=self.ledger)
            self.toolkit.add(tool)
        except ValueError as exc:
            raise CastError(str(exc)) from exc

    # ------------------------------------------------------------ asking

    async def ask(
        self,
        agent: str | AgentSpec,
        prompt: str | Sequence[Any],
        *,
        output: type[OutputT] | Any = str,
        history: Sequence[ModelMessage] = (),
        toolset: Sequence[Tool[Any]] = (),
        instructions: str | None = None,
        requests: int | None = None,
        hear: Hear | None = None,
        known_as: str | None = None,
    ) -> Answer[OutputT]:
        """Have an agent answer: a text, or whatever `output` is for Pydantic AI.

        The agent is named, or described: a pattern that records how an agent was set up gives that. `toolset` are tools of
        this agent alone, besides those that it was granted; always give it the same ones. `instructions` are told this time,
        after those of its `AgentSpec`; `requests` is how often its model is asked at most. `hear` is called with the words of
        the answer while they arrive. Errors call the agent `known_as`, or by its name.

        Raises:
            CastError: there is no agent of the name.
            RefusedError: its models do not answer, after all patience.
            ParkedError: a person must settle something, or approve it.
            BudgetExceededError, HistoryMismatchError, LedgerError: as in every run.
        """
        spec = self.spec(agent) if isinstance(agent, str) else agent
        limits = None if requests is None else UsageLimits(request_limit=requests)
        given: dict[str, Any] = {"message_history": list(history) or None, "instructions": instructions, "deps": hear}

        async def ask(model: str | None) -> Answer[OutputT]:
            made = self._agent(spec, model, output, tuple(toolset), is_heard=hear is not None)
            run = await made.run(prompt, usage_limits=limits, **given)
            return Answer(run.output, run, model)

        return await ask_in_turn(spec.models, ask, self.patience, who=known_as or spec.name)

    def tools_of(self, spec: AgentSpec) -> AgentTools:
        """Return the tools that an agent has by its `AgentSpec`.

        Raises:
            AntiphonError, ModuleNotFoundError, ValueError: one cannot be had; the text says why.
        """
        return AgentTools((), (self.toolkit.capability(spec.name),))

    def model(self, name: str | None) -> HeldModel:
        """Return the model of a name; None is that of the whole cast.

        Raises:
            AntiphonError: it cannot be had; the text says why.
        """
        if name not in self._models:
            turns = asyncio.Semaphore(self.patience.concurrency)
            self._models[name] = HeldModel(self._made_model(name), turns, self.patience.timeout)
        return self._models[name]

    def _made_model(self, name: str | None) -> Model:
        given = self._given
        if name is None and isinstance(given, Model):
            return given
        return self._make_model(name or (given if isinstance(given, str) else None))

    def _agent(
        self, spec: AgentSpec, model: str | None, output: Any, toolset: tuple[Tool[Any], ...], *, is_heard: bool
    ) -> Agent[object, Any]:
        own = tuple(id(tool) for tool in toolset)  # a tool has no hash; the agent below keeps it alive
        key = (spec, model, output if isinstance(output, type) else repr(output), own, is_heard)
        if key not in self._agents:
            handler = _tell_words if is_heard else None
            durability = LedgerDurability[object](self.ledger, event_stream_handler=handler, **self._durability)
            tools = self.tools_of(spec)
            self._agents[key] = Agent(
                self.model(model),
                name=spec.name,
                deps_type=object,
                output_type=output,
                instructions=spec.instructions or None,
                model_settings=spec.settings,
                tools=(*toolset, *tools.plain),
                capabilities=[durability, *tools.guarded, *self._capabilities],
            )
        return self._agents[key]


async def _tell_words(context: RunContext[object], events: AsyncIterable[AgentStreamEvent]) -> None:
    """Give the words of a model to the `hear` of the run while they arrive."""
    hear = cast("Hear", context.deps)
    async for event in events:
        match event:
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                if text:
                    hear(text)
            case _:
                pass
