"""JSON schemas: whether arguments match the schema of a tool, a grant or a rule, by the whole of JSON Schema.

References, formats, `additionalProperties` and conditions count. Nothing is fetched: an untrusted schema must not make the
process open a connection. Error messages never contain the values, which may be secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from jsonschema_rs import FancyRegexOptions, ValidationError, Validator, validator_for

from antiphon.messages import Json

_MOST_PROBLEMS: Final = 8
_MOST_WORDS: Final = 500
"""Characters of a problem that are kept: a schema may list a million allowed values."""
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
