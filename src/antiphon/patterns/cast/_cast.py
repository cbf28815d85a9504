"""Cast: named agents that share models and a toolkit. Their requests are durable effects of a run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Generic, NamedTuple, Self, TypeAlias, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, model_validator
from pydantic_ai import Agent, RunContext
from pydantic_ai.agent import AbstractAgent, EventStreamHandler
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec import BaseDurabilityCapability
from pydantic_ai.messages import (
    AgentStreamEvent,
    ModelMessage,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
)
from pydantic_ai.models import Model
from pydantic_ai.run import AgentRunResult
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import Tool
from pydantic_ai.usage import UsageLimits
from pydantic_core import from_json, to_json
from typing_extensions import TypedDict, override

from antiphon._listeners import listener
from antiphon.agents import AgentBudget, LedgerDurability
from antiphon.agents._config import known_names
from antiphon.agents.durability._quotes import Quotation, quoting
from antiphon.agents.models import model as named_model
from antiphon.agents.toolkit import Toolkit, ToolSettings
from antiphon.agents.tools import builtin_tools
from antiphon.agents.tools._builtin import BUILTIN_TOOLS
from antiphon.durable._budget import BudgetLimits
from antiphon.errors import SetupError
from antiphon.ledger import Ledger
from antiphon.ledger._unopened import check_opened
from antiphon.messages._arguments import check_each, check_type
from antiphon.patterns.cast._models import CastAgent, HeldModel, Outages, Patience, ask_in_turn


class AgentSpec(BaseModel):
    """The configuration of one agent: its model, instructions and tools, or an existing agent.

    An existing agent keeps its model, its settings, its tools and its instructions. The cast makes its runs durable, unless it
    has `LedgerDurability` itself, and adds `instructions` and `tools`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default=cast("Any", ...), pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,63}$")
    """Its name for other agents and in the ledger. Only an existing agent brings one: the cast tells type checkers so."""
    instructions: str = ""
    model: str | None = None
    """A model name for `antiphon.agents.model`; None: the model of the cast."""
    fallback: str | None = None
    """The model to ask when the first one fails."""
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int | None = Field(default=None, ge=1)
    """The maximum length of one answer."""
    tools: tuple[str, ...] = ()
    """The names of the tools that it may use, from the toolkit or built-in."""
    agent: InstanceOf[AbstractAgent[Any, Any]] | None = Field(default=None, exclude=True, repr=False)
    """An existing agent."""
    deps: Any = Field(default=None, exclude=True, repr=False)
    """The dependencies of that agent."""

    @override
    def __hash__(self) -> int:
        return hash(self.name)  # an agent has no hash

    @property
    def models(self) -> tuple[str | None, ...]:
        """Its models: the first, then the fallback."""
        return (self.model,) if self.fallback is None else (self.model, self.fallback)

    @property
    def settings(self) -> ModelSettings:
        """The settings of its model requests."""
        settings = ModelSettings()
        if self.temperature is not None:
            settings["temperature"] = self.temperature
        if self.max_tokens is not None:
            settings["max_tokens"] = self.max_tokens
        return settings

    @model_validator(mode="before")
    @classmethod
    def _name_agent(cls, value: Any) -> Any:
        fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
        agent = cast("Any", fields.get("agent"))
        if "name" in fields or not isinstance(agent, AbstractAgent):
            return cast("Any", value)
        if agent.name is None:
            raise ValueError("the agent has no name: give one")
        return {**fields, "name": agent.name}

    @model_validator(mode="after")
    def _check_agent(self) -> Self:
        settings = [name for name in ("model", "fallback", "temperature", "max_tokens") if getattr(self, name) is not None]
        if self.agent is not None and settings:
            raise ValueError(f"an agent that exists has its own {' and '.join(settings)}: set it there")
        if self.agent is None and self.deps is not None:
            raise ValueError("deps are for an agent that exists: give it as agent=")
        return self

    @model_validator(mode="after")
    def _check_fallback(self) -> Self:
        if self.fallback is not None and self.fallback == self.model:
            raise ValueError("the fallback must be another model than the first")
        return self


# ---------------------------------------------------------------- the cast


OutputT = TypeVar("OutputT")
OnText: TypeAlias = Callable[[str], None]
"""A function that is called with the text of an answer while it arrives."""

_shared: WeakKeyDictionary[Toolkit, set[str]] = WeakKeyDictionary()
"""The tools that patterns have added to toolkits, by name."""
_builtin: WeakKeyDictionary[Toolkit, dict[str, Ledger]] = WeakKeyDictionary()
"""The built-in tools that casts have added to toolkits, each with the ledger that it reads."""


class CastOptions(TypedDict, total=False):
    """The keyword arguments of a cast; see `Cast`."""

    model: Model | str | None
    toolkit: Toolkit | None
    tools: Iterable[Callable[..., Any] | Tool[Any]]
    patience: Patience
    budget: AgentBudget | None
    thread_budget: AgentBudget | None
    make_model: Callable[[str | None], Model]
    live: bool


def checked_options(options: CastOptions) -> CastOptions:
    """Return options; refuse those of another type before anything reads them."""
    check_type("model", options.get("model"), Model | str | None, "'openai:gpt-4o'")
    check_type("toolkit", options.get("toolkit"), Toolkit | None, "Toolkit()")
    check_type("patience", options.get("patience", Patience()), Patience, "Patience(attempts=3)")
    for name, budget in (("budget", options.get("budget")), ("thread_budget", options.get("thread_budget"))):
        check_type(name, budget, AgentBudget | None, "AgentBudget(requests=20)")
    if "tools" not in options:
        return options
    return {**options, "tools": check_each("tools", options["tools"], Callable | Tool, "a function")}


class AgentTools(NamedTuple):
    """The tools of one agent."""

    plain: Sequence[Tool[Any]] = ()
    """Called without a guard."""
    guarded: Sequence[AbstractCapability[Any]] = ()
    """The tools of a toolkit, which checks each call."""


@dataclass(frozen=True, slots=True)
class Answer(Generic[OutputT]):
    """The answer of an agent."""

    output: OutputT
    run: AgentRunResult[OutputT]
    model: str | None = None
    """The name of the model that answered; None: the model of the cast."""

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls of the run."""
        return tuple(use.call for use in tool_uses(self.run.new_messages()))


class ToolUse(NamedTuple):
    """A tool call of a run, and its result; None: it has none, for example because it was refused."""

    call: ToolCallPart
    result: ToolReturnPart | None = None


def tool_uses(messages: Iterable[ModelMessage]) -> list[ToolUse]:
    """Return the tool calls of a run, in order, each with its result.

    A model may reuse an id in a later answer: a result belongs to the latest call of its id.
    """
    uses: list[ToolUse] = []
    waiting: dict[str, int] = {}
    for part in (part for message in messages for part in message.parts):
        if isinstance(part, ToolCallPart):
            waiting[part.tool_call_id] = len(uses)
            uses.append(ToolUse(part))
        elif isinstance(part, ToolReturnPart) and part.tool_call_id in waiting:
            place = waiting.pop(part.tool_call_id)
            uses[place] = uses[place]._replace(result=part)
    return uses


class Cast:
    """Named agents. A request in an `async with ledger_run(…)` block is made once, even if the process dies in between."""

    durability: ClassVar[type[LedgerDurability[Any]]] = LedgerDurability
    """The capability of the agents. Extend it in a subclass: each further capability slows down every step of a run."""

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
        """Make it; no model is asked yet.

        `model` is for agents that name none. Tools come from the `toolkit`, which others may share, from `tools`, or are
        built-in; an agent may use only the tools that its `AgentSpec` names. `budget` is the budget of one run with all its
        agents, `thread_budget` that of a thread. With `live`, models stream, and `antiphon.agents.listen` receives the words
        while they arrive. `capabilities` are added to all agents, besides durability and tools.

        Raises:
            SetupError: two agents have the same name, or a tool does not exist.
        """
        check_opened(ledger)
        options: CastOptions = {"model": model, "toolkit": toolkit, "tools": tools, "patience": patience}
        options = checked_options({**options, "budget": budget, "thread_budget": thread_budget})
        self.ledger = ledger
        self.toolkit = toolkit or Toolkit()
        self._is_shared = toolkit is not None
        """Whether others may add tools until the pattern is opened, such as a tool that asks the pattern itself."""
        self.patience = patience
        self._default_model, self._make_model = model, make_model
        self.live = live
        """Whether models stream their answers."""
        self.budgets = BudgetLimits(budget or AgentBudget(), thread_budget or AgentBudget())
        """The budgets of a run, and of a thread."""
        self._capabilities = tuple(capabilities)
        self._specs: dict[str, AgentSpec] = {}
        self._models: dict[str | None, HeldModel] = {}
        self._closes_models, self._program_model = make_model is named_model, model
        """Whether models that were made from names are closed with the cast; and the model of the program, which is not."""
        self._agents: dict[Any, Agent[object, Any]] = {}
        self._added: set[str] = set()
        for tool in options.get("tools", ()):
            self._added.add(self.toolkit.add(tool).name)
        for spec in check_each("agents", agents, AgentSpec, 'AgentSpec(name="ada")'):
            self.add(spec)

    # ------------------------------------------------------------ agents

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the agents."""
        return tuple(self._specs)

    def __contains__(self, name: object) -> bool:
        return name in self._specs

    def add(self, spec: AgentSpec) -> AgentSpec:
        """Add an agent, and grant it the tools that it names.

        Raises:
            SetupError: the name is taken, or a tool does not exist.
        """
        check_type("an agent", spec, AgentSpec, 'AgentSpec(name="ada")')
        if spec.name in self._specs:
            raise SetupError(f"two agents are called {spec.name!r}; give one another name")
        for tool in spec.tools:
            if tool in BUILTIN_TOOLS and tool not in self._added:
                self._add_builtin(tool)
            if not self._is_shared:
                self.toolkit.check_name(tool, f"agent {spec.name!r}", or_built_in=True)
        for tool in spec.tools:
            self.toolkit.grant(spec.name, tool)
        self._specs[spec.name] = spec
        return spec

    def have_tool(self, function: Callable[..., Any], **settings: Unpack[ToolSettings]) -> str:
        """Add a tool of the pattern to the toolkit, once, even if several patterns share the toolkit; return its name.

        As a tool of the toolkit, it may wait for a person: calls of the same step end first.

        Raises:
            ValueError: the toolkit has another tool with its name.
        """
        added, name = _shared.setdefault(self.toolkit, set()), function.__name__
        if name not in added:
            added.add(self.toolkit.add(function, **settings).name)
        return name

    def remove(self, name: str) -> None:
        """Remove an agent, and revoke its tools."""
        for tool in self.spec(name).tools:
            self.toolkit.revoke(name, tool)
        del self._specs[name]
        self._agents = {key: agent for key, agent in self._agents.items() if key[0].name != name}

    def spec(self, name: str) -> AgentSpec:
        """Return the configuration of an agent."""
        check_type("the name of an agent", name, str, "'ada'")
        if name not in self._specs:
            raise SetupError(f"there is no agent {name!r}{known_names(name, self._specs, 'there are', 'none')}")
        return self._specs[name]

    def _add_builtin(self, name: str) -> None:
        self._added.add(name)
        ledgers = _builtin.setdefault(self.toolkit, {})
        if ledgers.get(name) is self.ledger:
            return  # another cast with this toolkit has added it
        try:
            (tool,) = builtin_tools([name], ledger=self.ledger)
            self.toolkit.add(tool)
            ledgers[name] = self.ledger
        except ValueError as exc:
            raise SetupError(str(exc)) from exc

    # ------------------------------------------------------------ requests

    async def ask(
        self,
        agent: str | AgentSpec,
        prompt: str | Sequence[Any],
        *,
        output: type[OutputT] | Any = str,
        history: Quotation = Quotation(),  # noqa: B008 (never changed)
        toolset: Sequence[Tool[Any]] = (),
        instructions: str | None = None,
        requests: int | None = None,
        on_text: OnText | None = None,
        text_field: str | None = None,
        label: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> Answer[OutputT]:
        """Ask an agent; the answer is text, or has the type `output`, as in Pydantic AI; None: the type of an existing agent.

        `agent` is a name, or a spec, for patterns that record the configuration of an agent. `toolset` has tools only for this
        agent, in addition to its granted tools; always pass the same ones. `instructions` are added to those of its
        `AgentSpec`, for this request only; `requests` limits the model requests. `on_text` is called with the text of the
        answer while it arrives: for a structured output, with the text of the field `text_field`. `history` comes before the
        prompt; the ledger has it, so that it is not recorded again. `label` is the agent's name in errors. `metadata` is that
        of the run, which tools and dynamic prompts read from their `RunContext`.

        Raises:
            RefusedError: its models do not answer after all retries.
            StoppedError: they do not answer because of something outside, or a budget is spent; the request stays open.
        """
        check_type("agent", agent, str | AgentSpec, "'ada'")
        spec = self.spec(agent) if isinstance(agent, str) else agent
        limits = None if requests is None else UsageLimits(request_limit=requests)
        if spec.agent is not None and (plain := (*toolset, *self.tools_of(spec).plain)):
            names = ", ".join(repr(tool.name) for tool in plain)
            raise SetupError(
                f"agent {spec.name!r} exists, and cannot be given {names} for a run: add it to the agent or a toolkit"
            )
        messages = list(history.messages) or None
        live_text = None if on_text is None else LiveText(listener(on_text), text_field)

        async def ask(model: str | None) -> Answer[OutputT]:
            if spec.agent is None:
                agent = self._agent(spec, model, output, tuple(toolset), is_live=live_text is not None)
                run = await agent.run(
                    prompt,
                    message_history=messages,
                    instructions=instructions,
                    deps=live_text,
                    usage_limits=limits,
                    metadata=metadata,
                )
                return Answer(run.output, run, model)
            run = await spec.agent.run(
                prompt,
                output_type=output,
                message_history=messages,
                instructions="\n\n".join(text for text in (spec.instructions, instructions) if text) or None,
                deps=spec.deps,
                usage_limits=limits,
                metadata=metadata,
                capabilities=self._capabilities_for(spec, spec.agent, live_text),
            )
            return Answer(run.output, run)

        with quoting(history):
            return await ask_in_turn(spec.models, ask, self.patience, who=label or spec.name)

    def _capabilities_for(
        self, spec: AgentSpec, agent: AbstractAgent[Any, Any], live_text: LiveText | None
    ) -> list[AbstractCapability[Any]]:
        """Return what a run of an existing agent needs: tools, and durability unless its own capability gives it."""
        capabilities: list[AbstractCapability[Any]] = [*self.tools_of(spec).guarded, *self._capabilities]
        agent_capabilities: list[AbstractCapability[Any]] = []
        agent.root_capability.apply(agent_capabilities.append)
        if not any(isinstance(capability, BaseDurabilityCapability) for capability in agent_capabilities):
            handler = None if live_text is None else live_text.handle
            capabilities.insert(0, self._durability(spec.name, handler, self._outages(spec)))
        return capabilities

    def _outages(self, spec: AgentSpec, model: str | None = None) -> Outages:
        return Outages(patience=self.patience, who=spec.name, is_last=model == spec.models[-1])

    def _durability(
        self, name: str | None, handler: EventStreamHandler[Any] | None, outages: Outages
    ) -> LedgerDurability[Any]:
        return self.durability(
            self.ledger,
            budget=self.budgets.run,
            thread_budget=self.budgets.thread,
            live=self.live,
            event_stream_handler=handler,
            name=name,
            outages=outages,
        )

    def tools_of(self, spec: AgentSpec) -> AgentTools:
        """Return the tools that the `AgentSpec` of an agent names."""
        return AgentTools((), (self.toolkit.capability(spec.name),))

    def model(self, name: str | None) -> HeldModel:
        """Return a model by name; None: the model of the cast.

        Raises:
            AntiphonError: it cannot be loaded; the text has the reason.
        """
        if name not in self._models:
            turns = asyncio.Semaphore(self.patience.concurrency)
            default = self._default_model
            if name is None and isinstance(default, Model):
                model = default
            else:
                model = self._make_model(name or (default if isinstance(default, str) else None))
            self._models[name] = HeldModel(model, turns, self.patience.timeout)
        return self._models[name]

    async def close(self) -> None:
        """Close the connections of the models that were made from names. A model that is asked afterwards opens new ones."""
        for model in self._models.values():
            provider = model.provider if self._closes_models and model.wrapped is not self._program_model else None
            if provider is not None:
                async with provider:  # to leave it closes the HTTP client that it has made
                    pass

    def closing_models(self, *, except_for: Model | str | None = None) -> Self:
        """Return the cast, which closes the models that `make_model` returns: it is no function of a program."""
        self._closes_models, self._program_model = True, except_for
        return self

    def _agent(
        self, spec: AgentSpec, model: str | None, output: Any, toolset: tuple[Tool[Any], ...], *, is_live: bool
    ) -> Agent[object, Any]:
        tool_ids = tuple(id(tool) for tool in toolset)  # tools have no hash; the agent below holds them, so no id is reused
        key = (spec, model, output if isinstance(output, type) else repr(output), tool_ids, is_live)
        if key not in self._agents:
            durability = self._durability(None, _pass_on_text if is_live else None, self._outages(spec, model))
            tools = self.tools_of(spec)
            self._agents[key] = CastAgent(
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


async def _pass_on_text(context: RunContext[object], events: AsyncIterable[AgentStreamEvent]) -> None:
    """Pass the text of a model to the listener of the run, which is its dependency, while it arrives."""
    await cast("LiveText", context.deps).handle(context, events)


@dataclass(slots=True)
class LiveText:
    """Passes an answer to a listener: its text, or the field `field` of JSON; an empty text when the answer starts again."""

    on_text: OnText
    field: str | None = None
    has_begun: bool = False

    async def handle(self, _: RunContext[Any], events: AsyncIterable[AgentStreamEvent]) -> None:
        """Pass on the text of one response of a model, which is requested again if it fails."""
        parts: dict[int, TextPieces] = {}
        is_new = self.has_begun

        def pass_on(text: str) -> None:
            nonlocal is_new
            if is_new:
                self.on_text("")
            is_new, self.has_begun = False, True
            self.on_text(text)

        async for event in events:
            if isinstance(event, PartStartEvent) and event.index in parts:  # a failed response: it is requested again
                is_new = self.has_begun
                parts.clear()
            match event:
                case PartStartEvent(part=TextPart(content=piece)):
                    parts[event.index] = TextPieces(pass_on, self.field)
                case PartStartEvent(part=ToolCallPart(args=piece, tool_name=name)) if (
                    self.field is not None and name.startswith(_OUTPUT_TOOL)
                ):
                    parts[event.index] = TextPieces(pass_on, self.field)
                case PartDeltaEvent(delta=TextPartDelta(content_delta=piece) | ToolCallPartDelta(args_delta=piece)):
                    pass
                case _:
                    continue
            if piece and event.index in parts:
                parts[event.index].take(to_json(piece).decode() if isinstance(piece, dict) else piece)


_OUTPUT_TOOL: Final = "final_result"
"""The prefix of the names of output tools."""


class TextPieces:
    """Passes on text that arrives in pieces. For a JSON object, it passes on one text field."""

    def __init__(self, on_text: OnText, field: str | None = None) -> None:
        self._on_text, self._field = on_text, field
        self._received, self._passed_on = "", 0

    def take(self, piece: str) -> None:
        """Take the next piece."""
        self._received += piece
        text = self._text()
        if len(text) > self._passed_on:
            self._on_text(text[self._passed_on :])
            self._passed_on = len(text)

    def _text(self) -> str:
        """Return the text that can be passed on so far."""
        start = self._received.lstrip()
        if self._field is None or not start.startswith("{"):
            return self._received if start else ""
        try:
            value: Any = from_json(self._received, allow_partial="trailing-strings")
        except ValueError:
            return ""  # it is cut within an escape, or is not JSON
        text = value.get(self._field)
        return text if isinstance(text, str) else ""
