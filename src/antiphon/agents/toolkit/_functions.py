"""Functions as tools: the schema comes from type hints and docstring; those that are not async run in threads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Unpack

from pydantic import ValidationError
from pydantic_ai import RunContext, Tool

from antiphon.agents.toolkit._schema import canonical
from antiphon.agents.toolkit._tool import ToolkitTool, ToolSettings

__all__ = ["function_tool"]


def function_tool(
    function: Callable[..., Any] | Tool[Any],
    *,
    name: str | None = None,
    description: str | None = None,
    **settings: Unpack[ToolSettings],
) -> ToolkitTool:
    """Return a function, or a tool of Pydantic AI, as a tool. A tool's own settings count where nothing else is said.

    Raises:
        ValueError: the name or a setting is none.
    """
    tool: Tool[Any] = function if isinstance(function, Tool) else Tool[Any](function, name=name)  # pyright: ignore[reportUnknownVariableType]
    own: ToolSettings = {"approval": tool.requires_approval, "timeout": tool.timeout}
    said = (tool.metadata or {}).get("antiphon", {})
    if "effects" in said:
        own["effects"] = said["effects"]
    own.update(settings)
    schema = tool.function_schema

    async def start(arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
        return await schema.call(schema.validator.validate_json(canonical(arguments)), ctx)

    return ToolkitTool(
        name or tool.name,
        description if description is not None else tool.description or "",
        schema.json_schema,
        start,
        partial(_problems, tool),
        **own,
    )


def _problems(tool: Tool[Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return what the types of the function find wrong that the JSON schema did not, without what was given."""
    try:
        tool.function_schema.validator.validate_json(canonical(dict(arguments)))
    except ValidationError as exc:
        found = json.loads(exc.json(include_input=False, include_url=False, include_context=False))
        return [f"{'.'.join(str(step) for step in each['loc'])}: {each['msg']}" for each in found]
    return []
