"""Tools of others: toolsets of Pydantic AI, and servers that speak the Model Context Protocol.

Their tools are listed anew for each step, because they may change. What they say about themselves (that they only read, that
they may be repeated) is not believed: whoever registers them says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_ai import RunContext
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_ai.usage import RunUsage

from antiphon.agents.toolkit._functions import check_by
from antiphon.agents.toolkit._names import is_tool_name
from antiphon.agents.toolkit._slots import Slots
from antiphon.agents.toolkit._tool import ToolkitTool, ToolSettings, own_settings

__all__ = ["ForeignTools", "bare_context", "mcp_toolset"]


@dataclass(frozen=True)
class ForeignTools:
    """A toolset, and what is said about its tools: all of them, or some by name."""

    toolset: AbstractToolset[Any]
    settings: ToolSettings
    by_name: Mapping[str, ToolSettings] = field(default_factory=dict[str, ToolSettings])
    _slots: dict[str, Slots] = field(default_factory=dict[str, Slots], repr=False)

    async def tools(self, ctx: RunContext[Any]) -> dict[str, ToolkitTool]:
        """Return its tools, as they are now. A name that could be mistaken for another is left out."""
        found = await self.toolset.get_tools(ctx)
        return {name: self._tool(tool) for name, tool in found.items() if is_tool_name(name)}

    def _tool(self, tool: ToolsetTool[Any]) -> ToolkitTool:
        known = tool.tool_def
        own: ToolSettings = {"approval": known.kind == "unapproved", "timeout": known.timeout}

        async def start(arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
            validated = tool.args_validator.validate_python(arguments)
            await check_by(tool.args_validator_func, validated, ctx)
            return await self.toolset.call_tool(known.name, validated, ctx, tool)

        settings: ToolSettings = {
            **own,
            **own_settings(known.metadata),
            **self.settings,
            **self.by_name.get(known.name, {}),
        }
        return ToolkitTool(
            known.name,
            known.description or "",
            known.parameters_json_schema,
            start,
            shared_slots=self._slots.setdefault(known.name, Slots(settings.get("concurrency"))),
            **settings,
        )


def mcp_toolset(
    server: str | Sequence[str], *, env: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> AbstractToolset[Any]:
    """Return a server's tools: of a URL over HTTP, of a command over its standard input and output.

    Raises:
        ModuleNotFoundError: what it takes is not installed; the message says what to install.
    """
    try:
        from fastmcp.client.transports import StdioTransport  # noqa: PLC0415 (only where it is used)
        from pydantic_ai.mcp import MCPToolset  # noqa: PLC0415
    except ImportError as exc:
        raise ModuleNotFoundError('MCP servers need more: pip install "antiphon[mcp]"') from exc
    if isinstance(server, str):
        return MCPToolset[Any](server, headers=dict(headers or {}), tool_error_behavior="failed")
    command, *arguments = server
    transport = StdioTransport(command=command, args=arguments, env=dict(env or {}), keep_alive=False)
    return MCPToolset[Any](transport, tool_error_behavior="failed")


def bare_context() -> RunContext[Any]:
    """Return what a tool is given that is called outside of an agent's run."""
    nobody: Any = None
    return RunContext[Any](deps=None, model=nobody, usage=RunUsage())
