"""What a folder says about its agents: `antiphon.toml`, or the file that `ANTIPHON_CONFIG` names."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from antiphon.errors import AntiphonError

__all__ = ["Config", "ConfigError", "WebConfig", "read_config"]

_FILE = "antiphon.toml"
_VARIABLE = "ANTIPHON_CONFIG"


class ConfigError(AntiphonError):
    """The file cannot be read, or says something that nobody understands."""


class _Section(BaseModel):
    """A typing mistake must not turn something on, or leave it off, in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WebConfig(_Section):
    """What agents may do on the web: nothing, unless it says so here."""

    search: Literal["duckduckgo"] | None = None
    """Whom to ask."""
    fetch: bool = False
    allowed_domains: tuple[str, ...] | None = None
    """Only from these; None: from all that are public."""
    blocked_domains: tuple[str, ...] = ()
    max_results: int = Field(default=5, ge=1, le=50)
    max_characters: int = Field(default=20_000, ge=1)
    """What is kept of a page."""
    max_bytes: int = Field(default=5_000_000, ge=1)
    """What is read of it, before and after it is unpacked."""
    timeout: int = Field(default=20, ge=1)
    """Seconds."""


class Config(_Section):
    """The whole file."""

    model: str | None = None
    """What `antiphon.agents.model` gives where nothing else is said."""
    web: WebConfig = WebConfig()


def read_config() -> Config:
    """Read what is configured; nothing is, if there is no file.

    Raises:
        ConfigError: the file cannot be read, or is wrong.
    """
    named = os.environ.get(_VARIABLE)
    path = Path(named or _FILE)
    if not named and not path.is_file():
        return Config()
    try:
        return Config.model_validate(tomllib.loads(path.read_text()))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or exc}; look at {_VARIABLE}") from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        raise ConfigError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from exc
    except ValueError as exc:
        raise ConfigError(f"{path}: not TOML: {exc}") from exc
