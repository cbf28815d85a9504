"""The configuration of agents: `antiphon.toml`, or the file that `ANTIPHON_CONFIG` names."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from antiphon.errors import AntiphonError, ConfigError

__all__ = ["Config", "ConfigError", "WebConfig", "read_config", "read_small", "read_toml"]

_FILE = "antiphon.toml"
_VARIABLE = "ANTIPHON_CONFIG"
_MOST_BYTES = 1_000_000
"""The limit of a configuration file."""


class _Section(BaseModel):
    """Unknown fields are refused: a typing mistake must not turn something on, or leave it off, in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WebConfig(_Section):
    """What agents may do on the web; by default nothing."""

    search: Literal["duckduckgo"] | None = None
    """The search engine."""
    fetch: bool = False
    allowed_domains: tuple[str, ...] | None = None
    """Only these domains; None: all public ones."""
    blocked_domains: tuple[str, ...] = ()
    max_results: int = Field(default=5, ge=1, le=50)
    max_characters: int = Field(default=20_000, ge=1)
    """The limit of a page's text."""
    max_bytes: int = Field(default=5_000_000, ge=1)
    """The limit of a download, before and after decompression."""
    timeout: int = Field(default=20, ge=1)
    """Seconds."""


class Config(_Section):
    """The whole file."""

    model: str | None = None
    """The default of `antiphon.agents.model`."""
    web: WebConfig = WebConfig()


_FormT = TypeVar("_FormT", bound=BaseModel)


def read_small(path: Path | str) -> bytes:
    """Return the bytes of a small file. Reading stops at the limit: a device has no end.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too large.
    """
    with Path(path).open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES // 1_000_000} MB")
    return data


def read_toml(path: Path | str, form: type[_FormT], error: type[AntiphonError]) -> _FormT:
    """Return the contents of a TOML file, validated as a `form`.

    Raises:
        AntiphonError: of the class `error`: it cannot be read, or is wrong; the text says where.
    """
    try:
        return form.model_validate(tomllib.loads(read_small(path).decode()))
    except OSError as exc:
        raise error(f"{path}: {exc.strerror or exc}") from exc
    except RecursionError:  # its traceback would have a thousand lines
        raise error(f"{path}: nested too deeply") from None
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        raise error(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from exc
    except ValueError as exc:
        raise error(f"{path}: not TOML: {exc}") from exc


def read_config() -> Config:
    """Return the configuration; the default one if there is no file.

    Raises:
        ConfigError: the file cannot be read, or is wrong.
    """
    named = os.environ.get(_VARIABLE)
    path = Path(named or _FILE)
    if not path.exists():
        if not named:
            return Config()
        raise ConfigError(f"{path}: No such file or directory; look at {_VARIABLE}")
    if not named and not path.is_file():  # nobody named it: reading a named pipe would wait for ever
        raise ConfigError(f"{path}: not a file")
    return read_toml(path, Config, ConfigError)
