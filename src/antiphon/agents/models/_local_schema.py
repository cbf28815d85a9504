"""What a schema must say for a small model: the grammar that it is held to ends, and cannot leave what is allowed.

The server makes a grammar of a schema, and the model cannot but follow it. Two things would spoil that. A text without a
longest length goes on until the answer is cut off, and is then no JSON. And grammars know no bounds of fractions: so a number
between two bounds becomes a choice of some numbers between them.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai.profiles import JsonSchemaTransformer
from typing_extensions import override

__all__ = ["BoundedSchema"]

_LONGEST_TEXT = 200
_MOST_ITEMS = 4
_STEPS = 20
"""Into how many steps a range of fractions is divided."""


class BoundedSchema(JsonSchemaTransformer):
    """A schema of which every text and list has an end, every number is between its bounds, and all stands where it is used.

    A grammar does not follow references: what stands behind one is not held to anything.
    """

    def __init__(self, schema: dict[str, Any], *, strict: bool | None = None) -> None:
        super().__init__(schema, strict=strict, prefer_inlined_defs=True)

    @override
    def transform(self, schema: dict[str, Any]) -> dict[str, Any]:
        match schema.get("type"):
            case "string" if not schema.keys() & {"enum", "const", "pattern", "format"}:
                return {**schema, "maxLength": min(schema.get("maxLength", _LONGEST_TEXT), _LONGEST_TEXT)}
            case "array":
                most = max(_MOST_ITEMS, schema.get("minItems", 0))
                return {**schema, "maxItems": min(schema.get("maxItems", most), most)}
            case "number":
                return _steps(schema)
            case _:
                return schema


def _steps(schema: dict[str, Any]) -> dict[str, Any]:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None or high is None or "enum" in schema or "const" in schema:
        return schema
    first, last = int("minimum" not in schema), _STEPS + int("maximum" in schema)
    values = [round(low + (high - low) * step / _STEPS, 12) for step in range(first, last)]
    return {"enum": values, **{key: schema[key] for key in ("title", "description") if key in schema}}
