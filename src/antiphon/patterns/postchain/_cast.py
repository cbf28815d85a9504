"""The agents of the six phases: their current configuration, models and tools.

A thread records the configuration of an agent when a phase starts, and uses it until the phase ends. Tools are functions of
the program, built-in, or from a toolkit, which has the permissions. Without a toolkit, an agent has the tools that its phase
names. With one, all tools are in it: each call is checked and recorded, and a call that needs an approval does not start
before it is approved. Tools that the program's own configuration names are granted, unless the toolkit has a rule for them.
Tools that a message names (INITIALIZE_PHASE, UPDATE_AGENT_CONFIG) are not granted: only a program can grant.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, Unpack, cast
from weakref import WeakKeyDictionary

from pydantic_ai import RunContext, Tool
from pydantic_ai.agent import AbstractAgent
from pydantic_ai.messages import UserContent
from pydantic_ai.models import Model
from pydantic_ai.toolsets import ToolsetTool
from typing_extensions import override

from antiphon.agents._config import known_names
from antiphon.agents._guards import ThreadGuards
from antiphon.agents.durability._quotes import Quotation
from antiphon.agents.models import model as named_model
from antiphon.agents.toolkit import AgentToolset, Toolkit, ToolkitCapability
from antiphon.agents.tools import builtin_tools
from antiphon.agents.tools._builtin import BUILTIN_TOOLS
from antiphon.errors import AntiphonError, ConfigError, RefusedError, UnguardedToolError
from antiphon.ledger import Ledger, Record
from antiphon.messages import thaw
from antiphon.messages._arguments import check_type
from antiphon.patterns.cast import AgentSpec, Answer, Cast
from antiphon.patterns.cast._cast import AgentTools, CastOptions, OnText
from antiphon.patterns.postchain._config import ChainConfig, RecordedAgent, current_agent
from antiphon.patterns.postchain._context import agent_of, config_thread
from antiphon.patterns.postchain._outputs import FORMS, TEXT_FIELDS, CheckedDurability, FormRequest, asking_for_form
from antiphon.patterns.postchain._retrieval import choice_of
from antiphon.protocol import PHASES, AgentConfig, AgentContext, ErrorCode, Phase
from antiphon.retrieval import Retriever


class _CachedConfig(NamedTuple):
    """A cached configuration of an agent."""

    length: int
    """The length of the thread that it was read from."""
    config: RecordedAgent
    checked_at: float
    """The time of the check, by the clock of the event loop."""


async def go_on_with(phase: Phase, reason: str) -> str:
    """Do not answer yet: have the question go through another phase first.

    Args:
        phase: The phase to go on with, and all that follow it.
        reason: What is missing.
    """
    return f"after this, the thread goes on with {phase}, if it may"


GO_ON_WITH: Final = go_on_with.__name__
"""The name of the tool."""

_built_in: WeakKeyDictionary[Toolkit, dict[str, Ledger]] = WeakKeyDictionary()
"""The tools that chains have added to toolkits, by name, with the ledger that each reads."""
_SCRIPT = Path(__file__).with_name("script.toml")
"""The default script of the scripted model in a chain; `scripted:mine.toml` names another."""
_FRESH: Final = 0.2
"""Seconds for which a configuration is used before it is compared with the ledger again."""
_GO_ON = Tool[Any](go_on_with, metadata={"antiphon": {"effects": "none", "allows_untrusted": True}})
_BUILT_IN = (*BUILTIN_TOOLS, _GO_ON.name)


class ChainCast(Cast):
    """The agents of the phases, on the models and with the tools of one chain."""

    durability = CheckedDurability

    def __init__(
        self,
        ledger: Ledger,
        config: ChainConfig,
        agents: Mapping[Phase, OwnAgent] | None = None,
        retriever: Retriever | None = None,
        **options: Unpack[CastOptions],
    ) -> None:
        """Make it; no model is asked yet. `agents` are agents of the program, by phase; `retriever` finds their documents."""
        self.tools = ChainTools(ledger, options.get("tools", ()), options.get("toolkit"), retriever)
        self._config = config
        self._program_agents = {phase: _own_agent(phase, agent, config) for phase, agent in (agents or {}).items()}
        self.tools.grant({phase: self._initial(phase).tools or () for phase in PHASES})
        self.prompts: dict[str, str] = {}
        """The prompts of agents, by the names under which threads record them."""
        self.recorded_configs: dict[bytes, RecordedAgent] = {}
        """The parsed configurations that threads record, by their JSON; each with the text of its prompt."""
        self._configs: dict[Phase, _CachedConfig] = {}
        """The current configurations, each with the length of the thread that it was read from: another host may change it."""
        cast_options: CastOptions = {**options, "tools": (), "model": None, "make_model": _models(options)}
        cast_options.setdefault("patience", config.patience)
        super().__init__(ledger, **cast_options)
        if "make_model" not in options:
            self.closing_models(except_for=options.get("model"))
        self._types: dict[str, Any] = {}
        """By phase of the program, the output type of its agent."""
        self._added_phases: dict[str, RecordedAgent] = {}
        self._forms: dict[str | None, bool] = {}
        """By the name of a model, whether it can give a typed output."""

    @override
    def tools_of(self, spec: AgentSpec) -> AgentTools:
        return AgentTools(self.tools.plain(spec.tools), self.tools.guarded(spec.name, spec.tools))

    async def ask_phase(
        self,
        phase: Phase,
        config: RecordedAgent,
        prompt: str | Sequence[UserContent],
        on_text: OnText | None,
        *,
        form: FormRequest | None = None,
        history: Quotation = Quotation(),  # noqa: B008 (never changed)
        request_context: AgentContext | None = None,
    ) -> Answer[Any]:
        """Ask the agent of a phase, with the configuration `config`; with a `form`, for a typed output.

        `request_context` comes from the client: tools and dynamic prompts find it in the metadata of their context.
        """
        if (reason := self.lacks(phase, config)) is not None:
            raise UnguardedToolError(reason)
        output: Any
        if config.own is not None:
            spec, output = self._program_agents[phase], None
            instructions = "\n\n".join(text for text in (spec.instructions, config.system_prompt) if text)
            spec = spec.model_copy(update={"instructions": instructions, "tools": config.tools or ()})
            agent_output: Any = spec.agent.output_type if spec.agent is not None else str
            is_form = isinstance(agent_output, type) and issubclass(agent_output, FORMS[phase])
            text_field = TEXT_FIELDS[phase] if is_form else None
        else:
            spec, output, text_field = self._configured_spec(phase, config), self._types.get(phase, str), None
            if form is not None and form.is_choice:
                output = choice_of(len(form.sources.ids))
            elif form is not None:
                output, text_field = FORMS[phase], TEXT_FIELDS[phase]
        metadata = None
        if request_context is not None:
            metadata = {"user_id": request_context.user_id, "metadata": thaw(request_context.metadata)}
        with asking_for_form(form):
            return await self.ask(
                spec,
                prompt,
                output=output,
                history=history,
                on_text=on_text,
                text_field=text_field,
                label=agent_of(phase),
                metadata=metadata,
            )

    def _configured_spec(self, phase: Phase, config: RecordedAgent) -> AgentSpec:
        """Return the agent that a configuration describes."""
        fallback = self._config.fallback
        return AgentSpec(
            name=phase,
            instructions=config.system_prompt or "",
            model=config.model,
            fallback=None if fallback == config.model else fallback,
            temperature=config.temperature,
            max_tokens=config.max_tokens,
            tools=config.tools or (),
        )

    def add_phase(self, name: str, config: AgentConfig, output: Any) -> None:
        """Add the agent of a phase of the program, with the output type `output`."""
        common = {name: getattr(self._config, name) for name in ("model", "temperature", "max_tokens")}
        full = AgentConfig(**{name: value for name, value in common.items() if value is not None})
        self._types[name] = output
        self._added_phases[name] = self.tools.marked(full.merged(config))
        self.tools.grant({cast("Phase", name): config.tools or ()})

    def own_config(self, name: str) -> RecordedAgent:
        """Return the configuration of the agent of a phase of the program."""
        return self._added_phases[name]

    def lacks(self, phase: Phase, config: RecordedAgent) -> str | None:
        """Return the reason why an agent with a recorded configuration cannot run here; None: it can."""
        name = config.own
        if name is not None and (phase not in self._program_agents or name != _name_of(self._program_agents[phase])):
            return f"the agent of its {phase} phase is {name!r}, which only the program has that the thread is of"
        return self.tools.lacks(config)

    def _initial(self, phase: Phase) -> AgentConfig:
        """Return the configuration of a phase's agent before any change by a message."""
        if phase not in self._program_agents:
            return self._config.agent(phase)
        return AgentConfig(tools=self._program_agents[phase].tools).merged(self._config.phases.get(phase, AgentConfig()))

    def gives_forms(self, config: RecordedAgent) -> bool:
        """Whether an agent with a configuration is asked for a typed output: unless the chain or the model requires text."""
        if self._config.outputs == "text":
            return False
        if config.own is not None:
            return True
        if config.model not in self._forms:
            try:
                profile = self.model(config.model).profile
            except (AntiphonError, ModuleNotFoundError, ValueError):
                return True  # the model cannot be loaded: a request raises the reason
            keys = ("supports_json_schema_output", "supports_json_object_output")
            self._forms[config.model] = profile.get("supports_tools", True) or any(profile.get(key, False) for key in keys)
        return self._forms[config.model]

    async def agent_config(self, phase: Phase) -> RecordedAgent:
        """Return the current configuration of a phase's agent. A change by another host is noticed after `_FRESH`."""
        cached, now = self._configs.get(phase), asyncio.get_running_loop().time()
        if cached is not None and now < cached.checked_at + _FRESH:
            return cached.config
        if cached is not None:
            self._configs[phase] = cached._replace(checked_at=now)  # before the read: other threads then need not compare
        length = (await self.ledger.head(config_thread(phase))).seq
        if cached is None or cached.length != length:
            config = await current_agent(self.ledger, phase, self._initial(phase))
            # Marked with what a thread records: the toolkit, and an agent of the program.
            own = _name_of(self._program_agents[phase]) if phase in self._program_agents else None
            cached = self._configs[phase] = _CachedConfig(length, self.tools.marked(config, own=own), now)
        return cached.config

    def seen(self, record: Record) -> None:
        """Read a new record: it may change the configuration of an agent."""
        thread_id = record.message.thread_id or ""
        for phase in PHASES if thread_id.startswith("system/") else ():
            if thread_id == config_thread(phase):
                self._configs.pop(phase, None)

    async def check(self, phase: Phase, config: AgentConfig) -> None:
        """Refuse a configuration with which an agent could not run."""
        if phase in self._program_agents and (settings := _own_settings(config)):
            reason = f"the agent of the {phase} phase is one of the program, which has its own {' and '.join(settings)}"
            raise RefusedError(reason, ErrorCode.VALIDATION_ERROR)
        await self.tools.check(phase, config.tools or ())
        if config.model is None:
            return
        try:
            self.model(config.model)
        except AntiphonError as exc:
            raise RefusedError(f"the model {config.model!r} cannot be loaded: {exc}", ErrorCode.VALIDATION_ERROR) from exc


OwnAgent: TypeAlias = AbstractAgent[Any, Any] | AgentSpec
"""An agent of the program: an agent of Pydantic AI, or an `AgentSpec` with one."""


def _own_agent(phase: Phase, agent: OwnAgent, config: ChainConfig) -> AgentSpec:
    """Return an agent of the program under the name of its phase."""
    if phase not in PHASES:
        raise ConfigError(f"agents: there is no phase {phase!r}{known_names(phase, PHASES, 'there are', 'none')}")
    check_type(f"agents.{phase}", agent, AbstractAgent | AgentSpec, "AgentSpec(agent=agent)")
    if isinstance(agent, AgentSpec) and agent.agent is None:
        raise ConfigError(f"agents.{phase}: give an agent, `AgentSpec(agent=…)`, or configure `phases.{phase}`")
    if settings := _own_settings(config.phases.get(phase, AgentConfig())):
        raise ConfigError(f"phases.{phase}: an agent that exists has its own {' and '.join(settings)}: set it there")
    return agent.model_copy(update={"name": phase}) if isinstance(agent, AgentSpec) else AgentSpec(name=phase, agent=agent)


def _own_settings(config: AgentConfig) -> list[str]:
    return [name for name in ("model", "temperature", "max_tokens") if getattr(config, name) is not None]


def _name_of(spec: AgentSpec) -> str:
    return (spec.agent.name if spec.agent is not None else None) or "agent"


def make_named_model(name: str | None) -> Model:
    """Return a model by name; None: the default model."""
    return named_model(name or None, script=_SCRIPT if name == "scripted" else None)


def _models(options: CastOptions) -> Callable[[str | None], Model]:
    """Return the function that makes models from names; the program's own model has its id as a name."""
    model, make = options.get("model"), options.get("make_model", make_named_model)
    program_model = model if isinstance(model, Model) else None
    return lambda name: program_model if program_model is not None and name in (None, program_model.model_id) else make(name)


class ChainTools:
    """The tools that agents of a chain may name."""

    def __init__(
        self,
        ledger: Ledger,
        tools: Iterable[Callable[..., Any] | Tool[Any]] = (),
        toolkit: Toolkit | None = None,
        retriever: Retriever | None = None,
    ) -> None:
        """Collect them."""
        self._ledger = ledger
        self._toolkit = toolkit
        self._retriever = retriever
        as_tools = [tool if isinstance(tool, Tool) else Tool[Any](tool) for tool in tools]  # pyright: ignore[reportUnknownVariableType]
        self._program_tools = {tool.name: tool for tool in cast("list[Tool[Any]]", as_tools)}
        if toolkit is not None:
            with suppress(ImportError):  # loaded with the first agent: it takes a second, which would block the event loop
                import_module("pydantic_ai.mcp")
            for tool in self._program_tools.values():
                toolkit.add(tool)

    def marked(self, config: AgentConfig, *, own: str | None = None) -> RecordedAgent:
        """Return the configuration of an agent, marked with the toolkit that guards its tools, if any.

        The thread records it: a process without the toolkit must not run that agent's tools unguarded. `own` is the name of
        an agent of the program.
        """
        toolkit = self._toolkit.name if self._toolkit is not None and config.tools else None
        return RecordedAgent.of(config, toolkit=toolkit, own=own)

    def lacks(self, config: RecordedAgent) -> str | None:
        """Return the reason why an agent with a recorded configuration cannot run here; None: it can."""
        name = config.toolkit
        if name is None or (self._toolkit is not None and self._toolkit.name == name):
            return None
        return f"its tools are those of the toolkit {name!r}, which only the program has that the thread is of"

    async def unguarded(self, thread_id: str, phase: Phase, config: AgentConfig) -> str | None:
        """Return why the tools of an agent cannot run here, by the toolkits that the thread records; None: they can."""
        guards = ThreadGuards()
        async for record in self._ledger.read(thread_id):
            guards.read_row(record.message, thread_id)
        try:
            if self._toolkit is None:
                guards.check_plain(None, config.tools or (), thread_id)
            else:
                async with await self._toolkit.connect():
                    tools = await self._toolkit.tools()
                named = {name: tools[name] for name in config.tools or () if name in tools}
                guards.enter(self._toolkit.policy.cover(self._toolkit.name, phase, named), thread_id)
        except UnguardedToolError as exc:
            return exc.reason
        return None

    def grant(self, named: Mapping[Phase, tuple[str, ...]]) -> None:
        """Grant phases the tools that the program's configuration names for them."""
        for phase, names in named.items():
            for name in names:
                known_tools = {*self._program_tools, *_BUILT_IN}
                if name not in known_tools and self._toolkit is None:  # with one, grants are checked when the chain is opened
                    hint = known_names(name, known_tools, "there are", "none")
                    raise ConfigError(f"phases.{phase}.tools: there is no tool {name!r}{hint}")
        toolkit = self._toolkit
        if toolkit is None:
            return
        for phase, names in named.items():
            self._add_built_in(toolkit, names)
            for name in names:
                if not any(change.covers(phase, name) for change in toolkit.permissions.changes):
                    toolkit.grant(phase, name)

    async def check(self, phase: Phase, names: Iterable[str]) -> None:
        """Refuse unknown tools, and tools that a phase may not use."""
        known_tools = {*self._program_tools, *_BUILT_IN}
        if self._toolkit is not None:
            async with await self._toolkit.connect():
                known_tools.update(await self._toolkit.tools())
        for name in names:
            if name not in known_tools:
                hint = known_names(name, known_tools, "there are", "none")
                raise RefusedError(f"there is no tool {name!r}{hint}", ErrorCode.VALIDATION_ERROR)
            if self._toolkit is not None and not self._toolkit.permissions.knows(phase, name):
                advice = f"the program can, by `toolkit.grant({phase!r}, {name!r})`"
                raise RefusedError(f"nobody has granted {name!r} to {phase!r}; {advice}", ErrorCode.VALIDATION_ERROR)

    # ------------------------------------------------------------ for an agent

    def plain(self, names: tuple[str, ...]) -> list[Tool[Any]]:
        """Return tools by name, for an agent of a chain without a toolkit."""
        if self._toolkit is not None:
            return []
        program_tools = [self._program_tools[name] for name in names if name in self._program_tools]
        return program_tools + [self._built_in(name) for name in names if name not in self._program_tools]

    def _built_in(self, name: str) -> Tool[Any]:
        return _GO_ON if name == _GO_ON.name else builtin_tools([name], ledger=self._ledger, retriever=self._retriever)[0]

    def guarded(self, phase: str, names: tuple[str, ...]) -> list[ToolkitCapability]:
        """Return the tools as a capability of the toolkit, if there is one and the agent has tools."""
        if self._toolkit is None or not names:
            return []
        self._add_built_in(self._toolkit, names)
        return [_Named(self._toolkit, phase, frozenset(names))]

    def _add_built_in(self, toolkit: Toolkit, names: Iterable[str]) -> None:
        """Add built-in tools to the toolkit; a tool of the program with the same name takes precedence."""
        ledgers = _built_in.setdefault(toolkit, {})
        for name in names:
            if name in ledgers:
                if ledgers[name] is not self._ledger and name != _GO_ON.name:
                    reason = f"{name!r} of this toolkit looks into the ledger of another chain"
                    raise ConfigError(f"{reason}: give each chain with a ledger of its own a toolkit of its own")
            elif name in _BUILT_IN and name not in self._program_tools:
                tool = self._built_in(name)
                try:
                    toolkit.add(tool)
                except ValueError:
                    continue  # the program's own
                ledgers[name] = self._ledger


@dataclass
class _Named(ToolkitCapability):
    """The tools of a toolkit that a phase may use: those that it names and was granted."""

    names: frozenset[str] = frozenset()

    @override
    def get_toolset(self) -> AgentToolset:
        return _NamedToolset(self.toolkit, self.agent, self.names)


class _NamedToolset(AgentToolset):
    def __init__(self, toolkit: Toolkit, agent: str, names: frozenset[str]) -> None:
        super().__init__(toolkit, agent)
        self._names = names

    @override
    async def get_tools(self, ctx: RunContext[Any]) -> dict[str, ToolsetTool[Any]]:
        return {name: tool for name, tool in (await super().get_tools(ctx)).items() if name in self._names}
