"""How a chain is set up: prompts, limits, `ChainConfig`, and what INITIALIZE_PHASE and UPDATE_AGENT_CONFIG change.

A user's input is accepted whole or refused with the limit; it is never cut. Agents' answers and tool arguments pass from phase
to phase, so long ones are cut there: six phases would otherwise repeat more than one message may hold. The ledger has the
full text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from antiphon.agents.config import read_toml
from antiphon.errors import ChainConfigError, RefusedError
from antiphon.ledger import Ledger
from antiphon.messages import OptionCallPayload, OptionResultPayload, thaw
from antiphon.patterns.cast import Patience
from antiphon.patterns.postchain._protocol import config_thread
from antiphon.protocol import PHASES, AgentConfig, InitializePhase, Phase, PrepareContext, UpdateAgentConfig

_FORM = re.compile(r"version: (\d+)\n\n(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a phase's agent is told before anything else."""

    phase: Phase
    version: int
    text: str

    @property
    def name(self) -> str:
        """What a thread records, such as `action@1`."""
        return f"{self.phase}@{self.version}"


@cache
def prompt_of(phase: Phase) -> Prompt:
    """Return the prompt of a phase."""
    assert phase in PHASES  # noqa: S101 (it names a file)
    found = _FORM.fullmatch((Path(__file__).parent / "prompts" / f"{phase}.md").read_text())
    if found is None:
        raise ValueError(f"the prompt of {phase} does not begin with `version: N` and an empty line")
    return Prompt(phase, int(found[1]), found[2].strip())


TOO_LARGE: Final = "TOO_LARGE"
"""The code of what is refused for its size."""
ANSWER: Final = 16_000
"""Characters of an answer that other phases, and the client, are told."""
MENTIONED: Final = 600
"""Characters of a source or an argument that the context keeps."""
_ABOUT: Final = 8_000
"""Bytes of what is said about a thread besides the input, as JSON: it goes with every message to a phase."""


def check_input(text: object, limit: int) -> None:
    """Refuse an input that is too long, before anything is done with it.

    Raises:
        RefusedError: it is: TOO_LARGE, with the limit.
    """
    size = len(text) if isinstance(text, str) else 0
    if size > limit:
        advice = "add it to the knowledge base and ask about it, or raise `input_limit`"
        details = {"limit": limit, "size": size}
        raise RefusedError(f"the input has {size} characters, more than {limit}: {advice}", TOO_LARGE, details=details)


def check_about(user_id: str, metadata: Mapping[str, Any] | None) -> None:
    """Refuse to carry more about a thread than is concise.

    Raises:
        RefusedError: it is: TOO_LARGE, with the limit.
    """
    size = len(user_id.encode(errors="replace")) + len(to_json(dict(metadata or {}), fallback=str))
    if size > _ABOUT:
        reason = f"user_id and metadata have {size} bytes, more than {_ABOUT}: say where to find it instead"
        raise RefusedError(reason, TOO_LARGE, details={"limit": _ABOUT, "size": size})


def cut(text: str, most: int = ANSWER) -> str:
    """Return a text, or its beginning with a note that says what is missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most} more characters are in the ledger)"


def cut_values(arguments: Mapping[str, Any], most: int = MENTIONED) -> dict[str, Any]:
    """Return the arguments of a call, of each the beginning."""
    return {name: _cut_value(value, most) for name, value in arguments.items()}


def _cut_value(value: Any, most: int) -> Any:
    if isinstance(value, bool | int | float | None):
        return value
    text = value if isinstance(value, str) else to_json(value, fallback=str).decode()
    return value if len(text) <= most else cut(text, most)


_PREPARE: Final = PrepareContext.message_type
_CHANGES: Final = (InitializePhase.message_type, UpdateAgentConfig.message_type)


class ChainConfig(BaseModel):
    """How a chain is set up. What `phases` says about one counts before what is said for all."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = None
    """As `antiphon.agents.models.model` takes it; None: what the environment or `antiphon.toml` says."""
    fallback: str | None = None
    """The model to ask when the first one cannot be used."""
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int = Field(default=400, ge=1)
    """Of one answer."""
    phases: Mapping[Phase, AgentConfig] = Field(default_factory=dict[Phase, AgentConfig])

    max_cycles: int = Field(default=1, ge=1)
    """How often a turn may go through the phases: with 1, the last phase always answers."""
    enough_confidence: float = Field(default=0.9, ge=0, le=1)
    """From here on, the last phase answers."""
    least_change: float = Field(default=0.1, ge=0, le=1)
    """If the confidence has changed by less since the last cycle, the last phase answers: it has converged."""

    input_limit: int = Field(default=50_000, ge=200, le=80_000)
    """Characters of one input of a user; a longer one is refused."""
    history: int = Field(default=6, ge=0)
    """How many earlier turns a phase is told, as far as they fit into `context_limit` characters."""
    drafts: bool = True
    """Whether a phase is told what the one before it has said; a very small model repeats it instead of reading on."""
    found: int = Field(default=5, ge=0)
    """How many sources are looked for."""
    context_limit: int = Field(default=4000, ge=200)
    """Characters of sources and drafts that a model is told at most; kept to 70 percent of it."""

    timeout: float = Field(default=120.0, gt=0)
    """Seconds that a model may take to answer."""
    attempts: int = Field(default=3, ge=1)
    """How often a model is asked that fails, before the fallback is asked, and in the end the supervisor."""
    backoff: float = Field(default=0.5, ge=0)
    """Seconds before the second try; doubled with each, unless the provider says how long to wait."""
    longest_backoff: float = Field(default=30.0, ge=0)
    restarts: int = Field(default=2, ge=0)
    """How often the manager of an agent is begun anew for one request, before the thread fails."""
    concurrency: int = Field(default=64, ge=1)
    """How many requests a model gets at once, from all threads together."""

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a TOML file: the fields of this class, and a table `[phases.action]` and so on with those of an agent.

        Raises:
            ChainConfigError: it cannot be read, or is wrong.
        """
        return read_toml(path, cls, ChainConfigError)

    @property
    def patience(self) -> Patience:
        """How models are asked."""
        return Patience(**{name: getattr(self, name) for name in Patience.model_fields})

    def agent(self, phase: Phase) -> AgentConfig:
        """Return how the agent of a phase is set up, with everything said."""
        base = AgentConfig(tools=_TOOLS.get(phase, ()), system_prompt=prompt_of(phase).text, max_tokens=self.max_tokens)
        if self.model is not None:
            base = base.model_copy(update={"model": self.model})
        if self.temperature is not None:
            base = base.model_copy(update={"temperature": self.temperature})
        return base.merged(self.phases[phase]) if phase in self.phases else base


_TOOLS: Final[Mapping[Phase, tuple[str, ...]]] = {"action": ("calculator", "knowledge_base")}
"""What agents may use, unless something else is said."""


async def prepared_agent(ledger: Ledger, thread_id: str, phase: Phase | None) -> AgentConfig | None:
    """Return how the agent of a phase was set up when a thread came to that phase last; None if it has not."""
    async for record in ledger.read(thread_id, reverse=True):
        payload = record.message.payload
        if record.message.lane != "control":
            continue
        if isinstance(payload, OptionResultPayload) and payload.option_name == _PREPARE and not payload.is_error:
            said: Any = thaw(payload.result)
            is_it = said["phase_type"] == phase
            return AgentConfig.model_validate(said["context"]["metadata"]["agent"]) if is_it else None
    return None


async def current_agent(ledger: Ledger, phase: Phase, initial: AgentConfig) -> AgentConfig:
    """Return how a phase's agent is set up now: INITIALIZE_PHASE has replaced it, UPDATE_AGENT_CONFIG was merged into it."""
    config, asked = initial, dict[str, AgentConfig]()
    async for record in ledger.read(config_thread(phase)):
        payload = record.message.payload
        if record.message.lane != "control":
            continue
        if isinstance(payload, OptionCallPayload) and payload.option_name in _CHANGES:
            asked[payload.invocation_id] = AgentConfig.model_validate(thaw(payload.arguments)["config"])
        elif isinstance(payload, OptionResultPayload) and payload.invocation_id in asked:
            given = asked.pop(payload.invocation_id)
            if not payload.is_error:
                config = (initial if payload.option_name == InitializePhase.message_type else config).merged(given)
    return config
