"""The configuration of a chain: prompts, limits, `ChainConfig`, and changes by INITIALIZE_PHASE and UPDATE_AGENT_CONFIG.

A user's input is accepted whole, or refused with the limit; it is never cut. Agents' answers and tool arguments pass from
phase to phase, so long ones are cut there: otherwise six phases would repeat more text than one message may hold. The ledger
has the full text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import to_json

from antiphon.agents._config import known_names, read_small, read_toml
from antiphon.errors import ConfigError, RefusedError
from antiphon.ledger import Ledger
from antiphon.messages import OptionCallPayload, OptionResultPayload, thaw
from antiphon.messages._json_values import as_text
from antiphon.patterns.cast import Patience
from antiphon.patterns.postchain._context import MENTIONED, config_thread
from antiphon.protocol import PHASES, AgentConfig, ChatTurn, InitializePhase, Phase, PrepareContext, UpdateAgentConfig

_FORM = re.compile(r"version: (\d+)\n\n(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The system prompt of a phase's agent."""

    phase: Phase
    version: int
    text: str

    @property
    def name(self) -> str:
        """Its name in a thread, such as `action@2`."""
        return f"{self.phase}@{self.version}"


@cache
def prompt_of(phase: Phase) -> Prompt:
    """Return the prompt of a phase."""
    assert phase in PHASES  # noqa: S101 (it names a file)
    match = _FORM.fullmatch((Path(__file__).parent / "prompts" / f"{phase}.md").read_text())
    if match is None:
        raise ValueError(f"the prompt of {phase} does not begin with `version: N` and an empty line")
    return Prompt(phase, int(match[1]), match[2].strip())


def prompt_name(phase: Phase, text: str | None) -> str:
    """Return the name of a prompt in a thread: `action@2`; with a hash, if the text is not ours; without text, `own`."""
    ours = prompt_of(phase)
    if text is None or text == ours.text:
        return ours.name if text is not None else f"{phase}@own"
    return f"{phase}@{prompt_digest(text)}"


def prompt_digest(text: str) -> str:
    """Return the hash that identifies a prompt."""
    return sha256(text.encode(errors="replace")).hexdigest()[:_DIGEST]


_DIGEST: Final = 12
"""The length of a hash in the name of a prompt; the number of a version is shorter."""


def prompt_in(name: str, context: Sequence[ChatTurn]) -> str | None:
    """Return the text of a prompt from the context of its phase; None if only the talk with the model has it.

    Then the first turn is one of the conversation. A client may have given that the role `system`: it is no prompt.
    """
    first = next(iter(context), None)
    if first is None or first.role != "system":
        return None
    suffix = name.rpartition("@")[2]
    return first.content if len(suffix) < _DIGEST or suffix == prompt_digest(first.content) else None


PROMPT: Final = "prompt"
"""The field of `RecordedAgent` with the name of the prompt."""


class RecordedAgent(AgentConfig, frozen=True):
    """The configuration of an agent as a thread records it. Only the chain sets its further fields: no message can."""

    prompt: str | None = None
    """The name of its prompt, in place of the text."""
    outputs: int | str | None = None
    """Whether it gives a typed output, and of which kind; None: text."""
    toolkit: str | None = None
    """The toolkit that guards its tools: a program without it does not continue the phase."""
    own: str | None = None
    """The name of an agent of the program: a program without that agent does not continue the phase."""

    @classmethod
    def of(cls, config: AgentConfig, *, toolkit: str | None, own: str | None) -> Self:
        """Return a configuration with its marks, and without anything that a message may have put in their place."""
        marks = {"own": own, "toolkit": toolkit}
        fields = {
            name: value for name, value in config if name in AgentConfig.model_fields and name in config.model_fields_set
        }
        return cls.model_validate({**fields, **{name: mark for name, mark in marks.items() if mark is not None}})


async def recorded_prompt(ledger: Ledger, thread_id: str, name: str) -> str | None:
    """Return the text of a prompt that a thread has recorded, by its name; None if it has not.

    The talk with the model has the text of a prompt of the program, the context of a phase that of a prompt of antiphon.
    """
    digest = name.rpartition("@")[2]
    async for record in ledger.read(thread_id, reverse=True):
        message, payload = record.message, record.message.payload
        if message.lane == "talk" and message.role_hint_for_llm == "system" and prompt_digest(message.text) == digest:
            return message.text
        if message.lane == "talk" or not isinstance(payload, OptionResultPayload) or payload.is_error:
            continue
        prepared: Any = thaw(payload.result)
        if payload.option_name == _PREPARE and prepared["context"]["metadata"].get(PROMPT) == name:
            text = prompt_in(name, [ChatTurn.model_validate(turn) for turn in prepared["context"]["messages"][:1]])
            if text is not None:
                return text
    return None


def prompt_text(phase: str, prompt: str | Path) -> str:
    """Return the prompt of a phase: the text, or the content of a file of the program."""
    if isinstance(prompt, str):
        return prompt
    try:
        text = read_small(prompt).decode().strip()
    except (OSError, ValueError) as exc:
        raise ConfigError(f"prompts.{phase}: {prompt}: {getattr(exc, 'strerror', None) or exc}") from exc
    if not text:
        raise ConfigError(f"prompts.{phase}: {prompt} is empty")
    return text


TOO_LARGE: Final = "TOO_LARGE"
"""The code of an input that is too large."""
ANSWER: Final = 16_000
"""The maximum length of an answer for other phases and the client, in characters."""
_MOST_METADATA: Final = 8_000
"""The maximum size of a thread's metadata as JSON, in bytes: every message to a phase contains them."""


def check_input(text: object, limit: int) -> None:
    """Refuse an input that is too long."""
    size = len(text) if isinstance(text, str) else 0
    if size > limit:
        advice = "add it to the knowledge base and ask about it, or raise `input_limit`"
        details = {"limit": limit, "size": size}
        raise RefusedError(f"the input has {size} characters, more than {limit}: {advice}", TOO_LARGE, details=details)


def check_metadata(user_id: str, metadata: Mapping[str, Any] | None) -> None:
    """Refuse metadata of a thread that is too large."""
    size = len(user_id.encode(errors="replace")) + len(to_json(dict(metadata or {}), fallback=str))
    if size > _MOST_METADATA:
        reason = f"user_id and metadata have {size} bytes, more than {_MOST_METADATA}: say where to find it instead"
        raise RefusedError(reason, TOO_LARGE, details={"limit": _MOST_METADATA, "size": size})


def cut(text: str, most: int = ANSWER) -> str:
    """Return a text, or its beginning with a note about the missing part."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most} more characters are in the ledger)"


def cut_values(arguments: Mapping[str, Any], most: int = MENTIONED) -> dict[str, Any]:
    """Return the arguments of a call, each truncated."""
    values: dict[str, Any] = {}
    for name, value in arguments.items():
        is_short = isinstance(value, bool | int | float | None)
        text = "" if is_short else as_text(value)
        values[name] = value if len(text) <= most else cut(text, most)
    return values


_PREPARE: Final = PrepareContext.message_type
_CHANGES: Final = (InitializePhase.message_type, UpdateAgentConfig.message_type)


class ChainConfig(BaseModel):
    """The configuration of a chain. Settings in `phases` override those for all phases."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = None
    """A model name for `antiphon.agents.model`; None: that of the environment or of `antiphon.toml`."""
    fallback: str | None = None
    """The model to ask when the first one fails."""
    temperature: float | None = Field(default=None, ge=0)
    max_tokens: int = Field(default=800, ge=1)
    """The maximum length of one answer; a typed output that is cut off is invalid."""
    phases: Mapping[Phase, AgentConfig] = Field(default_factory=dict[Phase, AgentConfig])
    prompts: Mapping[Phase, Path] = Field(default_factory=dict[Phase, Path])
    """By phase, a file with the prompt of its agent. In a TOML file, paths are relative to that file."""
    embedder: str | None = None
    """An embedder of Pydantic AI, such as `openai:text-embedding-3-small`: documents are also found by meaning."""
    retriever: str | None = None
    """The retriever that a package offers, instead of the documents of the ledger; see `antiphon.retrieval.open_retriever`."""
    outputs: Literal["typed", "text", "quotes"] = "typed"
    """Whether agents are asked for typed outputs, which contain their judgements; with text, code decides. With quotes, agents
    only choose, and the answer is assembled from verbatim quotes and results of tools."""

    max_cycles: int = Field(default=1, ge=1)
    """How often a turn may go through the phases: with 1, the last phase always answers."""
    enough_confidence: float = Field(default=0.9, ge=0, le=1)
    """From this confidence on, the last phase answers."""
    least_change: float = Field(default=0.1, ge=0, le=1)
    """If the confidence has changed by less since the last cycle, the last phase answers: it has converged."""

    input_limit: int = Field(default=50_000, ge=200, le=80_000)
    """The maximum length of a user's input in characters; a longer one is refused."""
    history: int = Field(default=6, ge=0)
    """How many earlier turns are in the prompt of a phase, if they fit into `context_limit` characters."""
    drafts: bool = True
    """Whether a prompt has the answer of the previous phase; a very small model just repeats it."""
    max_sources: int = Field(default=5, ge=0)
    """The maximum number of sources."""
    context_limit: int = Field(default=4000, ge=200)
    """The room for sources and drafts in a prompt, in characters; at most 70 percent are used."""

    timeout: float = Field(default=120.0, gt=0)
    """The time limit of an answer, in seconds."""
    attempts: int = Field(default=3, ge=1)
    """How often a failing model is asked before the fallback and, in the end, the supervisor."""
    backoff: float = Field(default=0.5, ge=0)
    """Seconds before the second attempt; doubled for each further one, unless the provider sends a delay."""
    longest_backoff: float = Field(default=30.0, ge=0)
    restarts: int = Field(default=2, ge=0)
    """How often the manager of an agent is restarted for one request before the thread fails."""
    concurrency: int = Field(default=64, ge=1)
    """The number of concurrent requests to a model, from all threads together."""

    @field_validator("phases")
    @classmethod
    def _check_keys(cls, phases: Mapping[Phase, AgentConfig]) -> Mapping[Phase, AgentConfig]:
        """Refuse unknown settings of an agent. In messages they are allowed; in a configuration they are typos."""
        for phase, agent in phases.items():
            for key in agent.model_extra or ():
                hint = known_names(key, AgentConfig.model_fields, "there are", "none")
                raise ValueError(f"{phase}: there is no key {key!r}{hint}")
        return phases

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a TOML file: the fields of this class, and tables such as `[phases.action]` with the fields of an agent."""
        config = read_toml(path, cls)
        prompts = {phase: Path(path).parent / name for phase, name in config.prompts.items()}
        return config.model_copy(update={"prompts": prompts}) if prompts else config

    @property
    def patience(self) -> Patience:
        """The time limit, retries and concurrency of model requests."""
        return Patience(**{name: getattr(self, name) for name in Patience.model_fields})

    def agent(self, phase: Phase) -> AgentConfig:
        """Return the complete configuration of a phase's agent."""
        text = prompt_text(phase, self.prompts[phase]) if phase in self.prompts else prompt_of(phase).text
        base = AgentConfig(tools=_TOOLS.get(phase, ()), system_prompt=text, max_tokens=self.max_tokens)
        if self.model is not None:
            base = base.model_copy(update={"model": self.model})
        if self.temperature is not None:
            base = base.model_copy(update={"temperature": self.temperature})
        return base.merged(self.phases[phase]) if phase in self.phases else base


_TOOLS: Final[Mapping[Phase, tuple[str, ...]]] = {"action": ("calculator", "knowledge_base")}
"""The default tools of the phases."""


async def prepared_agent(ledger: Ledger, thread_id: str, phase: str | None = None) -> RecordedAgent | None:
    """Return the configuration of an agent that the thread recorded last; None: there is none, or not for this phase."""
    async for record in ledger.read(thread_id, reverse=True):
        payload = record.message.payload
        if record.message.lane != "control":
            continue
        if isinstance(payload, OptionResultPayload) and payload.option_name == _PREPARE and not payload.is_error:
            prepared: Any = thaw(payload.result)
            if phase not in (None, prepared["phase_type"]):
                return None
            return RecordedAgent.model_validate(prepared["context"]["metadata"]["agent"])
    return None


async def current_agent(ledger: Ledger, phase: Phase, initial: AgentConfig) -> AgentConfig:
    """Return the current configuration of a phase's agent: INITIALIZE_PHASE replaces it, UPDATE_AGENT_CONFIG is merged."""
    config, asked = initial, dict[str, AgentConfig]()
    async for record in ledger.read(config_thread(phase)):
        payload = record.message.payload
        if record.message.lane != "control":
            continue
        if isinstance(payload, OptionCallPayload) and payload.option_name in _CHANGES:
            asked[payload.invocation_id] = AgentConfig.model_validate(thaw(payload.arguments)["config"])
        elif isinstance(payload, OptionResultPayload) and payload.invocation_id in asked:
            change = asked.pop(payload.invocation_id)
            if not payload.is_error:
                config = (initial if payload.option_name == InitializePhase.message_type else config).merged(change)
    return config
