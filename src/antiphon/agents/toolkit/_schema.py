"""Names and schemas of tools.

**Names** of tools and agents are ASCII, so that no two different names look alike. A permission names a tool and an agent. A
name with a Cyrillic letter or an invisible character would look like another name to the person who grants it. Such names are
refused: they can neither be registered nor granted.

**Schemas** check whether arguments match the schema of a tool, a grant or a rule, with all of JSON Schema, including
references, formats, `additionalProperties` and conditions. Nothing is fetched: an untrusted schema must not make the process
open a connection. Error messages never contain the values, which may be secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from jsonschema_rs import FancyRegexOptions, ValidationError, Validator, validator_for
from pydantic_ai.toolsets import AbstractToolset, FunctionToolset, PrefixedToolset, RenamedToolset, WrapperToolset

from antiphon.messages import Json

# ---------------------------------------------------------------- names

ANY: Final = "*"
"""All tools, or all agents."""

_TOOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_AGENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,255}", re.ASCII)


def is_tool_name(name: str) -> bool:
    """Whether it is a valid name of a tool."""
    return _TOOL.fullmatch(name) is not None


def check_tool(name: str, *, or_any: bool = False) -> str:
    """Return the name of a tool, if it is valid.

    Raises:
        ValueError: the name of the tool is not valid.
    """
    if is_tool_name(name) or (or_any and name == ANY):
        return name
    raise ValueError(f"{name!r} is not a valid name of a tool: use ASCII letters, digits, '_', '-' and '.', at most 128")


def check_agent(name: str, *, or_any: bool = False) -> str:
    """Return the name of an agent, if it is valid.

    Raises:
        ValueError: the name of the agent is not valid.
    """
    if _AGENT.fullmatch(name) or (or_any and name == ANY):
        return name
    raise ValueError(
        f"{name!r} is not a valid name of an agent: use at most 256 ASCII letters, digits, '_', '-', '.', ':', '/'"
    )


def tool_names(toolset: AbstractToolset[Any]) -> set[str] | None:
    """Return the names of all tools of a toolset, including those that are not always offered; None if they are unknown."""
    if isinstance(toolset, FunctionToolset):
        return set(toolset.tools)
    if not isinstance(toolset, WrapperToolset) or isinstance(toolset, RenamedToolset):
        return None
    names = tool_names(toolset.wrapped)
    if names is None or not isinstance(toolset, PrefixedToolset):
        return names
    return {f"{toolset.prefix}_{name}" for name in names}


# ---------------------------------------------------------------- schemas

_MOST_PROBLEMS: Final = 8
_MOST_WORDS: Final = 500
"""The maximum length of a problem in characters: a schema may list a million allowed values."""
_MASK: Final = "the value"
_PATTERNS: Final = FancyRegexOptions(backtrack_limit=100_000)  # a pattern that takes too long is a refusal


def canonical(value: Any) -> str:
    """Return JSON text that is the same for the same value; `1`, `1.0` and `true` differ.

    Raises:
        ValueError: it is not a JSON value.
        TypeError: it is not a JSON value.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


class Schema:
    """A JSON schema, checked once and ready for use; equal by content."""

    __slots__ = ("_text", "_validator")

    def __init__(self, schema: Mapping[str, object]) -> None:
        """Take a schema.

        Raises:
            ValueError: it is not a JSON schema, or refers to another document.
        """
        try:
            self._text = canonical(dict(schema))
        except (TypeError, ValueError) as exc:
            raise ValueError(f"it is no JSON schema: {exc}") from None
        self._validator = _compiled(self._text)

    def problems(self, arguments: Mapping[str, object]) -> tuple[str, ...]:
        """Return the problems of arguments, a sentence each; empty if they match."""
        found: list[str] = []
        for error in self._validator.iter_errors(dict(arguments)):
            if len(found) == _MOST_PROBLEMS:
                return (*found, "and more")
            found.append(_sentence(error))
        return tuple(found)

    def accepts(self, arguments: Mapping[str, object]) -> bool:
        """Whether arguments match."""
        return self._validator.is_valid(dict(arguments))

    def to_json(self) -> dict[str, Json]:
        """Return a copy of the schema as plain JSON."""
        plain: dict[str, Json] = json.loads(self._text)
        return plain

    def __eq__(self, other: object) -> bool:
        return self._text == other._text if isinstance(other, Schema) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return f"Schema({self._text})"


@lru_cache(maxsize=512)
def _compiled(text: str) -> Validator:
    try:
        return validator_for(json.loads(text), validate_formats=True, offline=True, mask=_MASK, pattern_options=_PATTERNS)
    except (ValidationError, ValueError) as exc:
        raise ValueError(f"it is no JSON schema that can be used: {str(exc).splitlines()[0]}") from None


def _sentence(error: ValidationError) -> str:
    place = ".".join(str(step) for step in error.instance_path)
    said = f"{place}: {error.message}" if place else str(error.message)
    return said if len(said) <= _MOST_WORDS else f"{said[:_MOST_WORDS]}… [cut]"
