"""The configuration of agents: `antiphon.toml`, or the file that `ANTIPHON_CONFIG` names; and errors about unknown names."""

from __future__ import annotations

import errno
import os
import stat
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from antiphon.errors import ConfigError
from antiphon.messages._arguments import check_type

_FILE = "antiphon.toml"
_VARIABLE = "ANTIPHON_CONFIG"
_MOST_BYTES = 1_000_000
"""The limit of a configuration file."""


class _Section(BaseModel):
    """Unknown fields are refused: a typo must not silently change a setting."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class WebConfig(_Section):
    """The web access of agents; by default none."""

    search: Literal["duckduckgo"] | None = None
    """The search engine."""
    fetch: bool = False
    allowed_domains: tuple[str, ...] | None = None
    """Only these domains; None: all public ones."""
    blocked_domains: tuple[str, ...] = ()
    max_results: int = Field(default=5, ge=1, le=50)
    max_characters: int = Field(default=20_000, ge=1)
    """The maximum length of a page's text."""
    max_bytes: int = Field(default=5_000_000, ge=1)
    """The limit of a download, before and after decompression."""
    timeout: int = Field(default=20, ge=1)
    """Seconds."""


class Config(_Section):
    """The whole file."""

    model: str | None = None
    """The default of `antiphon.agents.model`."""
    web: WebConfig = WebConfig()


_SHOWN = 10
"""How many names an error lists."""


def known_names(wrong: str, names: Iterable[str], has: str = "it has", none: str = "no tool", also: Iterable[str] = ()) -> str:
    """Return the end of an error about an unknown name: the name that was probably meant, or the known names.

    `also` are names that may be meant, but are not listed.
    """
    check_type("a name", wrong, str, "'ada'")
    sorted_names = sorted(names)
    if close := get_close_matches(wrong, (*sorted_names, *also), 1):
        return f"; is it {close[0]!r}?"
    shown = ", ".join(map(repr, sorted_names[:_SHOWN])) + (", …" if len(sorted_names) > _SHOWN else "")
    return f"; {has} {shown or none}"


_FormT = TypeVar("_FormT", bound=BaseModel)


def open_regular(path: Path | str) -> BinaryIO:
    """Open a regular file. A pipe would wait for ever for a writer, and opening a device has effects.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR)) if os.path.isdir(path) else _irregular()
    # It may have been replaced since: so opening does not wait, and what was opened is checked again.
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(number, "rb")
    if not stat.S_ISREG(os.fstat(number).st_mode):
        file.close()
        raise _irregular()
    return file


def _irregular() -> OSError:
    return OSError(errno.EINVAL, "not a regular file")


def read_small(path: Path | str) -> bytes:
    """Return the bytes of a small regular file.

    Raises:
        OSError: it cannot be read, or is no regular file.
        ValueError: it is too large.
    """
    with open_regular(path) as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"larger than {_MOST_BYTES // 1_000_000} MB")
    return data


def read_toml(path: Path | str, form: type[_FormT]) -> _FormT:
    """Return the contents of a TOML file, validated as a `form`.

    Raises:
        ConfigError: it cannot be read, or is not valid; the text has the place.
    """
    try:
        return form.model_validate(tomllib.loads(read_small(path).decode()))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or exc}") from exc
    except RecursionError:  # its traceback would have a thousand lines
        raise ConfigError(f"{path}: nested too deeply") from None
    except ValidationError as exc:
        place, problem = first_problem(exc, form)
        raise ConfigError(": ".join(filter(None, (str(path), place, problem)))) from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not TOML: it is not text in UTF-8") from exc
    except ValueError as exc:
        raise ConfigError(f"{path}: not TOML: {exc}") from exc


def first_problem(error: ValidationError, form: type[BaseModel]) -> tuple[str, str]:
    """Return place and text of the first problem of a file; for an unknown key, with the key that was probably meant."""
    first = error.errors(include_url=False)[0]
    *place, last = first["loc"] or ("",)
    if first["type"] == "extra_forbidden":
        problem = f"there is no key {last!r}{known_names(str(last), _keys(form, place), 'there are', 'none')}"
    else:
        problem = first["msg"].removeprefix("Value error, ")
    return ".".join(map(str, first["loc"])), problem


def _keys(form: type[BaseModel], place: Sequence[int | str]) -> list[str]:
    """Return the keys that a table of a file may have. List indexes and table names are not fields."""
    for step in place:
        if isinstance(step, str) and step in form.model_fields:
            form = next(_forms(form.model_fields[step].annotation), form)
    return list(form.model_fields)


def _forms(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation, such as that of a tuple of them."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _forms(argument)


def read_config() -> Config:
    """Return the configuration; the default one if there is no file.

    Raises:
        ConfigError: the file cannot be read, or is not valid.
    """
    named = os.environ.get(_VARIABLE)
    path = Path(named or _FILE)
    if not path.exists():
        if not named:
            return Config()
        raise ConfigError(f"{path}: No such file or directory; look at {_VARIABLE}")
    return read_toml(path, Config)
