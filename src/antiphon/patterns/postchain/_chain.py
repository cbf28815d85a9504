"""Workshop: what the actors of a chain share: the ledger, the settings, the gates, the agents with their models and tools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic_ai import Agent, RunContext, Tool
from pydantic_ai.agent import EventStreamHandler
from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from antiphon.agents import LedgerDurability, LedgerRun, Toolkit
from antiphon.agents._budget import Amount
from antiphon.agents.durability._talk import Talk
from antiphon.agents.models import model as named_model
from antiphon.errors import AntiphonError, RefusedError, UnguardedToolError
from antiphon.ledger import Ledger, Record
from antiphon.patterns.cast import HeldModel
from antiphon.patterns.postchain._config import ChainConfig, current_agent
from antiphon.patterns.postchain._events import ChainEvents, log_flow
from antiphon.patterns.postchain._lifecycle import LIFE, Lives
from antiphon.patterns.postchain._pausing import Gates, GateState
from antiphon.patterns.postchain._protocol import config_thread
from antiphon.patterns.postchain._tools import ChainTools
from antiphon.protocol import PHASES, AgentConfig, ErrorCode, Phase

_LONG: Final = 200
"""Rows from which on a thread is long: to read fewer takes less than keeping them in mind."""
_MOST: Final = 1_000
"""Long threads that are kept in mind between their turns."""

_NO_RUN: Final = "/"
"""What no run is called."""


class Talks:
    """By thread, what its last agent knew; the one that was kept last is the last."""

    def __init__(self) -> None:
        self._known: dict[str, Talk] = {}

    def seen(self, record: Record) -> None:
        """Take a record that was written just now."""
        talk = self._known.get(record.message.thread_id or "")
        if talk is None:
            return
        if record.seq > talk.seq + 1:
            del self._known[record.message.thread_id or ""]  # there are rows that it does not know
        else:
            talk.reach(record.seq)
            talk.guards.heard(record.message, _NO_RUN)

    def give(self, run: LedgerRun, *, is_first: bool) -> None:
        """Let a run know what the one before it knew; `is_first`: it was not tried before."""
        talk = self._known.pop(run.thread_id, None)
        if talk is not None and is_first:
            talk.spending.run = Amount(began=run.opened.began)
            run.opened.shared[Talk] = talk

    def take(self, run: LedgerRun) -> None:
        """Keep what a run knows that has ended well, for the next one."""
        self._known[run.thread_id] = Talk.of(run)

    def rest(self, thread_id: str) -> None:
        """Keep a thread in mind only if it is long: its turn is over."""
        talk = self._known.pop(thread_id, None)
        if talk is not None and talk.seq >= _LONG:
            self._known[thread_id] = talk
            if len(self._known) > _MOST:
                del self._known[next(iter(self._known))]


_SCRIPT = Path(__file__).with_name("script.toml")
"""What the scripted model says in a chain, unless another script is named: `scripted:mine.toml`."""


@dataclass(frozen=True, slots=True)
class Listener:
    """What an agent's run is given as its dependencies: who hears its words while they come."""

    hear: Callable[[str], None] | None = None


class Workshop:
    """What is made once and used by all actors of a chain."""

    def __init__(
        self,
        ledger: Ledger,
        config: ChainConfig,
        *,
        model: Model | None = None,
        tools: Iterable[Callable[..., Any] | Tool[Any]] = (),
        toolkit: Toolkit | None = None,
        make_model: Callable[[str], Model] | None = None,
    ) -> None:
        self.ledger = ledger
        self.config = config
        self.gates = Gates(self._look)
        self.events = ChainEvents()
        self.lives = Lives()
        self.talks = Talks()
        self.tools = ChainTools(ledger, tools, toolkit)
        self.tools.grant({phase: config.agent(phase).tools or () for phase in PHASES})
        self.at_work: dict[str, asyncio.Event] = {}
        """The threads that run here, each with what is set when it does not any more."""
        self._given_model = model
        self._make_model = make_model or make_named_model
        self._configs: dict[Phase, AgentConfig] = {}
        self._models: dict[str, HeldModel] = {}
        self._agents: dict[tuple[str, Phase, bool], Agent[Listener, str]] = {}

    async def _look(self, thread_id: str) -> GateState:
        life = self.lives.latest(thread_id)
        if life is None:
            life = await self.ledger.replay(thread_id, LIFE.fold())
        return "closed" if life.status == "paused" else "over" if life.status == "terminated" else "open"

    # ------------------------------------------------------------ how agents are set up

    async def agent_config(self, phase: Phase) -> AgentConfig:
        """Return how the agent of a phase is set up now."""
        if phase not in self._configs:
            config = await current_agent(self.ledger, phase, self.config.agent(phase))
            self._configs[phase] = self.tools.marked(config)
        return self._configs[phase]

    def seen(self, record: Record) -> None:
        """Take a record that was written just now."""
        thread_id = record.message.thread_id or ""
        for phase in PHASES if thread_id.startswith("system/") else ():
            if thread_id == config_thread(phase):
                self._configs.pop(phase, None)
        self.lives.seen(record)
        self.talks.seen(record)
        self.events.seen(record)
        log_flow(record)

    # ------------------------------------------------------------ agents

    def agent(self, phase: Phase, config: AgentConfig, model: str | None, *, streams: bool) -> Agent[Listener, str]:
        """Return the agent that a configuration describes, on one of its models; the same one for the same configuration.

        Raises:
            UnguardedToolError: its tools are guarded by a toolkit that is not here.
            AntiphonError, ModuleNotFoundError, ValueError: a model or a tool cannot be had; the text says why.
        """
        if (reason := self.tools.lacks(config)) is not None:
            raise UnguardedToolError(reason)
        key = (config.model_copy(update={"model": model}).model_dump_json(), phase, streams)
        if key not in self._agents:
            self._agents[key] = self._made(phase, config, self.model(model), _hear if streams else None)
        return self._agents[key]

    def model(self, name: str | None) -> HeldModel:
        """Return the model of a name.

        Raises:
            AntiphonError: it cannot be had; the text says why.
        """
        key = name or ""
        if key not in self._models:
            made = self._new_model(name)
            turns = asyncio.Semaphore(self.config.concurrency)
            self._models[key] = HeldModel(made, turns, self.config.timeout, self.gates)
        return self._models[key]

    async def check(self, phase: Phase, config: AgentConfig) -> None:
        """Refuse how an agent is to be set up, where it could not run so.

        Raises:
            RefusedError: the model cannot be had, or a tool is not there or not the phase's.
        """
        await self.tools.check(phase, config.tools or ())
        if config.model is None:
            return
        try:
            self.model(config.model)
        except AntiphonError as exc:
            raise RefusedError(f"the model {config.model!r} cannot be had: {exc}", ErrorCode.VALIDATION_ERROR) from exc

    def _new_model(self, name: str | None) -> Model:
        given = self._given_model
        if given is not None and name in (None, given.model_id):
            return given
        return self._make_model(name or "")

    def _made(
        self, phase: Phase, config: AgentConfig, model: HeldModel, handler: EventStreamHandler[Listener] | None
    ) -> Agent[Listener, str]:
        settings, names = ModelSettings(), config.tools or ()
        durability = LedgerDurability[Listener](self.ledger, event_stream_handler=handler)
        if config.temperature is not None:
            settings["temperature"] = config.temperature
        if config.max_tokens is not None:
            settings["max_tokens"] = config.max_tokens
        return Agent(
            model,
            name=phase,
            deps_type=Listener,
            output_type=str,
            instructions=config.system_prompt,
            model_settings=settings,
            tools=self.tools.plain(names),
            capabilities=[durability, *self.tools.guarded(phase, names)],
        )


def make_named_model(name: str) -> Model:
    """Return the model of a name; none is the default one.

    Raises:
        AntiphonError: it cannot be had; the text says why.
    """
    return named_model(name or None, script=_SCRIPT if name == "scripted" else None)


async def _hear(context: RunContext[Listener], events: Any) -> None:
    """Give the words of a model to whoever listens, as they come."""
    hear = context.deps.hear
    async for event in events:
        match event:
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                if hear is not None and text:
                    hear(text)
            case _:
                pass
