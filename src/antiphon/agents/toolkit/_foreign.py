"""Tools of others: toolsets of Pydantic AI, and servers that speak the Model Context Protocol.

Their tools are listed anew for each step, because they may change. In a run the list is written down: a program that runs
again is offered what was offered then, whatever there is now, until it comes to what is new. A tool is started only if it is
still what was offered. What they say about themselves (that they only read, that they may be repeated) is not believed:
whoever registers them says so.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from typing import Any, cast

from pydantic_ai import RunContext
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_ai.usage import RunUsage

from antiphon.agents._run import LedgerRun
from antiphon.agents.durability._found import Found
from antiphon.agents.toolkit._errors import TOOL_CHANGED, ToolRefusal
from antiphon.agents.toolkit._functions import check_by
from antiphon.agents.toolkit._names import is_tool_name
from antiphon.agents.toolkit._schema import canonical
from antiphon.agents.toolkit._slots import Slots
from antiphon.agents.toolkit._tool import ToolkitTool, ToolSettings, own_settings
from antiphon.errors import HistoryMismatchError
from antiphon.messages import Json

__all__ = ["ForeignTools", "bare_context", "mcp_toolset"]

_LISTED = "LIST_TOOLS"
"""What the journal calls it that somebody was asked for their tools."""


@dataclass(frozen=True)
class _Offer:
    """A tool as it is offered."""

    name: str
    description: str
    parameters: dict[str, Any]
    settings: ToolSettings

    @classmethod
    def of(cls, tool: ToolDefinition) -> _Offer:
        own: ToolSettings = {"approval": tool.kind == "unapproved", "timeout": tool.timeout}
        settings: ToolSettings = {**own, **own_settings(tool.metadata)}
        return cls(tool.name, tool.description or "", dict(tool.parameters_json_schema), settings)

    def change(self, now: _Offer | None) -> str | None:
        """Return what has become of it; None if it takes what it took. Its description is for the model, and may change."""
        if now is None:
            return "is offered no more"
        return None if now.parameters == self.parameters else "takes other arguments now"


@dataclass(frozen=True)
class ForeignTools:
    """A toolset, and what is said about its tools: all of them, or some by name."""

    toolset: AbstractToolset[Any]
    settings: ToolSettings
    by_name: Mapping[str, ToolSettings] = field(default_factory=dict[str, ToolSettings])
    _slots: dict[str, Slots] = field(default_factory=dict[str, Slots], repr=False)

    async def tools(self, ctx: RunContext[Any], run: LedgerRun | None = None, key: str = "tools") -> dict[str, ToolkitTool]:
        """Return its tools, as they are now; in a run that runs again, as they were then.

        A name that could be mistaken for another is left out. `key` is what the list is known by in the run.
        """
        offers = await self._offers(ctx) if run is None else await self._recorded(ctx, run, key)
        return {offer.name: self._tool(offer) for offer in offers}

    async def _offers(self, ctx: RunContext[Any]) -> list[_Offer]:
        found = await self.toolset.get_tools(ctx)
        return [_Offer.of(tool.tool_def) for name, tool in found.items() if is_tool_name(name)]

    async def _recorded(self, ctx: RunContext[Any], run: LedgerRun, key: str) -> list[_Offer]:
        found, seen = Found.of(run), list[_Offer]()

        async def look(id: str) -> Json:
            seen[:] = await self._offers(ctx)
            return found.write(f"{run.course.invocation_id}/{key}", id, _written(seen))

        said = await found.read(run, await run.effect(key, {}, look, effects="none", option=_LISTED))
        offers = [_Offer(**offer) for offer in said["tools"]]
        if said["digest"] == _digest(offers):
            return offers
        now = seen or await self._offers(ctx)  # the ledger has taken something out that looks like a secret
        if said["digest"] != _digest(now):
            reason = f"{self.toolset.label} offers other tools than thread {run.thread_id!r} says, in {key!r}"
            raise HistoryMismatchError(reason, run.course.to)
        return now

    def _tool(self, offer: _Offer) -> ToolkitTool:
        async def start(arguments: dict[str, Any], ctx: RunContext[Any]) -> Any:
            tool = await self._still(offer, ctx)
            validated = tool.args_validator.validate_python(arguments)
            await check_by(tool.args_validator_func, validated, ctx)
            return await self.toolset.call_tool(offer.name, validated, ctx, tool)

        settings: ToolSettings = {**offer.settings, **self.settings, **self.by_name.get(offer.name, {})}
        return ToolkitTool(
            offer.name,
            offer.description,
            offer.parameters,
            start,
            shared_slots=self._slots.setdefault(offer.name, Slots(settings.get("concurrency"))),
            **settings,
        )

    async def _still(self, offer: _Offer, ctx: RunContext[Any]) -> ToolsetTool[Any]:
        """Return a tool that was offered, if it is still what it was.

        Raises:
            ToolRefusal: it is not. The model has called another tool than the one that would be started.
        """
        tool = (await self.toolset.get_tools(ctx)).get(offer.name)
        change = offer.change(None if tool is None else _Offer.of(tool.tool_def))
        if tool is None or change is not None:
            raise ToolRefusal(TOOL_CHANGED, f"{offer.name!r} {change}, and was not started")
        return tool


def _written(offers: list[_Offer]) -> Json:
    return {"tools": cast("list[Json]", [asdict(offer) for offer in offers]), "digest": _digest(offers)}


def _digest(offers: list[_Offer]) -> str:
    return b32encode(sha256(canonical([asdict(offer) for offer in offers]).encode()).digest()).decode().rstrip("=").lower()


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
