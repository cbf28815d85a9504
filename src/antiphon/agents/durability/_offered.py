"""A server's tool that a model was offered before the process ended, and that may be another one now.

What was offered is recorded, and a run that goes on offers the same. So before a tool is called there, it is looked at again.
"""

from __future__ import annotations

from typing import Any

from pydantic_ai.durable_exec import DynamicToolsetCallToolParams, ToolsetCallToolId, ToolsetCallToolParams

from antiphon.agents._run import LedgerRun

__all__ = ["change_since_offered"]


async def change_since_offered(
    run: LedgerRun, id: object, params: ToolsetCallToolParams | DynamicToolsetCallToolParams
) -> str | None:
    """Return what has become of a server's tool since it was offered; None if it takes what it took."""
    is_served = isinstance(id, ToolsetCallToolId) and id.toolset_kind == "mcp"
    if not run.is_again or not is_served or not isinstance(params, ToolsetCallToolParams) or params.tool is None:
        return None
    async with params.tool.toolset as toolset:
        tools: dict[str, Any] = await toolset.get_tools(params.ctx)
    now = tools.get(params.name)
    if now is None:
        return f"{params.name!r} is offered no more, and was not called"
    if now.tool_def.parameters_json_schema != params.tool.tool_def.parameters_json_schema:
        return f"{params.name!r} takes other arguments now, and was not called"
    return None
