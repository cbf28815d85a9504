"""Script: what a scripted model says, as data, and how it is read from a TOML or JSON file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from antiphon.agents._config import read_small
from antiphon.agents.models._errors import ScriptError

__all__ = ["Call", "Rule", "Script", "Turn", "load_script"]


class _Form(BaseModel):
    """A typing mistake in a script must not become a turn that says nothing."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Call(_Form):
    """A tool to be called. A string in the arguments may name what was said: see `Turn`."""

    tool: str = Field(min_length=1)
    arguments: dict[str, JsonValue] = {}


class Turn(_Form):
    """One answer of the model: a text, calls, or a structured output.

    `{text}` in a string stands for what the user said, `{result}` for what the last tool gave, `{result_1}` for what the first
    one gave since the user spoke, `{NAME}` for what a group of that name in the rule's `when` found. A dot leads on:
    `{result.city}`, `{result.0}`. A string that is nothing but one of them becomes the value itself.
    """

    text: str | None = None
    calls: tuple[Call, ...] = ()
    output: JsonValue | None = None
    """Given by way of the output that the agent wants: its output tool, or JSON as text."""
    input_tokens: int = Field(default=0, ge=0)
    """What the turn is said to have cost: nothing, unless a script says otherwise."""
    output_tokens: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_says_something(self) -> Self:
        if self.text is None and not self.calls and self.output is None:
            raise ValueError("a turn has a text, calls or an output")
        return self


class Rule(_Form):
    """What to answer when the user's last words match, and when the agent has the tools."""

    when: str = ""
    """A regular expression that is searched for, whatever the case; an empty one matches everything."""
    tools: tuple[str, ...] = ()
    """The rule is passed over unless the agent has all of them."""
    turns: tuple[Turn, ...] = Field(min_length=1)
    """One after the other, until the user speaks again."""

    @model_validator(mode="after")
    def _check_pattern(self) -> Self:
        try:
            re.compile(self.when)
        except re.error as exc:
            raise ValueError(f"when is no regular expression: {exc}") from exc
        return self


class Script(_Form):
    """Rules, the first that fits is taken; or turns, one for each answer of a conversation."""

    name: str = "script"
    rules: tuple[Rule, ...] = ()
    turns: tuple[Turn, ...] = ()

    @model_validator(mode="after")
    def _check_has_one_of_them(self) -> Self:
        if bool(self.rules) == bool(self.turns):
            raise ValueError("a script has rules or turns: one of them, not both")
        return self


def load_script(path: Path | str) -> Script:
    """Read a script from a file, TOML unless its name ends in `.json`. Its name is the file's, if it has none of its own.

    Raises:
        ScriptError: the file cannot be read, or is no script.
    """
    path = Path(path)
    try:
        value = _parsed(path)
        return Script.model_validate({"name": path.stem, **value})
    except OSError as exc:
        raise ScriptError(f"cannot read the script: {exc.strerror or exc}", str(path)) from exc
    except ValidationError as exc:
        first = exc.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ScriptError(first["msg"], str(path), where) from exc
    except ValueError as exc:
        raise ScriptError(f"not a script: {exc}", str(path)) from exc
    except RecursionError:  # its traceback would have a thousand lines
        raise ScriptError("nested too deeply", str(path)) from None


def _parsed(path: Path) -> Mapping[str, Any]:
    data = read_small(path)
    value = json.loads(data) if path.suffix == ".json" else tomllib.loads(data.decode())
    if not isinstance(value, dict):
        raise ValueError("a script is an object")  # noqa: TRY004 (it is about a file, not about code)
    return cast("dict[str, Any]", value)
