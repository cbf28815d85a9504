"""Functions as tools: the schema comes from type hints and docstring; those that are not async run in threads."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any, Unpack

from pydantic import ValidationError
from pydantic_ai import RunContext, Tool

from antiphon.agents.toolkit._schema import canonical
from antiphon.agents.toolkit._tool import ToolkitTool, ToolSettings, own_settings

__all__ = ["check_by", "function_tool"]


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
    own.update(own_settings(tool.metadata))
    own.update(settings)
    schema = tool.function_schema

    async def start(arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
        validated = schema.validator.validate_json(canonical(arguments))
        await check_by(tool.args_validator, validated, ctx)
        return await schema.call(validated, ctx)

    return ToolkitTool(
        name or tool.name,
        description if description is not None else tool.description or "",
        schema.json_schema,
        start,
        partial(_problems, tool),
        **own,
    )


async def check_by(validator: Callable[..., Any] | None, arguments: dict[str, Any], ctx: RunContext[Any]) -> None:
    """Have arguments checked by what a tool brings along for that; it raises what it wants to be told."""
    if validator is not None and isawaitable(found := validator(ctx, **arguments)):
        await found


def _problems(tool: Tool[Any], arguments: Mapping[str, Any]) -> list[str]:
    """Return what the types of the function find wrong that the JSON schema did not, without what was given."""
    try:
        tool.function_schema.validator.validate_json(canonical(dict(arguments)))
    except ValidationError as exc:
        found = json.loads(exc.json(include_input=False, include_url=False, include_context=False))
        return [f"{'.'.join(str(step) for step in each['loc'])}: {each['msg']}" for each in found]
    return []
