"""A value that a JSON schema allows, for a model that has no mind of its own to make one up.

It is the smallest that fits, with one text for every string. Two rules make it useful: a default is taken, and of several
words the one is chosen that follows the one the instructions name, so that phases and stages go on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

__all__ = ["Filler"]

_DEEPEST = 24
"""Levels of a schema that refers to itself, before the only way out is taken to be none."""
_FORMATS = {
    "date-time": "1970-01-01T00:00:00Z",
    "date": "1970-01-01",
    "time": "00:00:00Z",
    "duration": "PT0S",
    "email": "scripted@example.com",
    "uri": "https://example.com/scripted",
    "uuid": "00000000-0000-0000-0000-000000000000",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "binary": "",
}

_Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Filler:
    """How to fill in one schema."""

    root: _Schema
    text: str
    """What every string says."""
    instructions: str = ""

    def value(self) -> Any:
        """Return a value for the whole schema.

        Raises:
            ValueError: there is none that can be found, because the schema goes on without end.
        """
        return self._of(self.root, 0)

    def _of(self, schema: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError("the schema refers to itself without end")
        if not isinstance(schema, Mapping):  # True: anything
            return self.text
        found = self._whole(cast("_Schema", schema))
        if "default" in found:
            return found["default"]
        if "const" in found:
            return found["const"]
        if "enum" in found:
            return self._chosen(found["enum"])
        for several in ("anyOf", "oneOf"):
            if several in found:
                return self._first_that_ends(found[several], depth)
        return self._typed(found, depth)

    def _whole(self, schema: _Schema) -> _Schema:
        """Return a schema with what it refers to, and what it must be besides, in one."""
        whole = {key: value for key, value in schema.items() if key not in ("$ref", "allOf")}
        if "$ref" in schema:
            whole = {**self._referred(schema["$ref"]), **whole}
        for each in schema.get("allOf", ()):
            whole = {**self._whole(each), **whole}
        return whole

    def _referred(self, ref: str) -> _Schema:
        found: Any = self.root
        for step in ref.removeprefix("#").split("/")[1:]:
            found = found[step.replace("~1", "/").replace("~0", "~")]
        return self._whole(found)

    def _chosen(self, values: Sequence[Any]) -> Any:
        for place, value in enumerate(values):
            if isinstance(value, str) and value and re.search(rf"\b{re.escape(value)}\b", self.instructions, re.IGNORECASE):
                return values[min(place + 1, len(values) - 1)]
        return values[0]

    def _first_that_ends(self, variants: Sequence[Any], depth: int) -> Any:
        for variant in variants:
            try:
                return self._of(variant, depth + 1)
            except ValueError:
                continue
        raise ValueError("the schema refers to itself without end")

    def _typed(self, schema: _Schema, depth: int) -> Any:
        kind: Any = schema.get("type", "object" if "properties" in schema else "string")
        name: str = kind if isinstance(kind, str) else kind[0]
        match name:
            case "object":
                wanted = schema.get("properties", {})
                return {name: self._of(wanted.get(name, True), depth + 1) for name in schema.get("required", ())}
            case "array":
                return self._items(schema, depth)
            case "integer":
                return math.ceil(_number(schema))
            case "number":
                return _number(schema)
            case "boolean":
                return False
            case "null":
                return None
            case _:
                return self._string(schema)

    def _items(self, schema: _Schema, depth: int) -> list[Any]:
        before: list[Any] = [self._of(each, depth + 1) for each in schema.get("prefixItems", ())]
        missing = max(schema.get("minItems", 0) - len(before), 0)
        return before + [self._of(schema.get("items", True), depth + 1) for _ in range(missing)]

    def _string(self, schema: _Schema) -> str:
        if schema.get("format") in _FORMATS:
            return _FORMATS[schema["format"]]
        return self.text[: schema.get("maxLength")].ljust(schema.get("minLength", 0), ".")


def _number(schema: _Schema) -> float:
    """Return the middle of what is allowed; where one end is open, what is nearest to nought."""
    low: float = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf))
    high: float = schema.get("maximum", schema.get("exclusiveMaximum", math.inf))
    if math.isfinite(low) and math.isfinite(high):
        return (low + high) / 2
    return max(low + ("exclusiveMinimum" in schema), min(high - ("exclusiveMaximum" in schema), 0))
