"""The toolkit under the names of Atlas, for code that runs in threads and has no event loop.

It is a thin layer: permissions, checks and limits are those of `Toolkit`. A program with an event loop uses `Toolkit`. The
corresponding agent is `antiphon.patterns.workers.ToolCapableAgent`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, Unpack

from pydantic_ai import Tool as PydanticTool
from typing_extensions import override

from antiphon.agents._tool_names import name_among
from antiphon.agents.toolkit._tool import INVALID_ARGUMENTS, PERMISSION_DENIED, Schema, ToolSettings
from antiphon.agents.toolkit._toolkit import Toolkit
from antiphon.durable._approvals import ANY
from antiphon.messages import OptionResultPayload, thaw
from antiphon.messages._arguments import check_type

# ---------------------------------------------------------------- tools


@dataclass(frozen=True)
class ToolSchema:
    """The description and the parameters of a tool."""

    name: str
    description: str
    parameters: Mapping[str, object]
    """A JSON schema of an object."""
    returns: Mapping[str, object] = field(default_factory=dict[str, object])

    @classmethod
    def from_function(cls, function: Callable[..., Any], name: str | None = None, description: str | None = None) -> Self:
        """Return the schema from type hints and docstring."""
        tool = PydanticTool[Any](function, name=name, description=description)
        definition = tool.tool_def
        return cls(tool.name, definition.description or "", definition.parameters_json_schema, definition.return_schema or {})


class Tool(ABC):
    """A tool. Subclass it, give it a schema, and do the work in `execute`."""

    @property
    @abstractmethod
    def schema(self) -> ToolSchema:
        """Its description and parameters."""

    @abstractmethod
    def execute(self, **arguments: Any) -> Any:
        """Run the tool; the arguments have been checked."""

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.schema.name

    @property
    def description(self) -> str:
        """What it does, for the model."""
        return self.schema.description

    def validate_args(self, arguments: Mapping[str, object]) -> list[str]:
        """Return the problems of arguments against the whole schema; empty if they match."""
        return list(Schema(self.schema.parameters).problems(arguments))


class FunctionTool(Tool):
    """A function as a tool."""

    def __init__(self, function: Callable[..., Any], name: str | None = None, description: str | None = None) -> None:
        check_type("a tool", function, Callable, "a function")
        self.function = function
        self._schema = ToolSchema.from_function(function, name, description)

    @property
    @override
    def schema(self) -> ToolSchema:
        return self._schema

    @override
    def execute(self, **arguments: Any) -> Any:
        return self.function(**arguments)


# ---------------------------------------------------------------- the toolkit


class AgentToolkit:
    """Tools and permissions. Without a grant, no agent may use a tool."""

    def __init__(self, toolkit: Toolkit | None = None) -> None:
        self.toolkit = toolkit or Toolkit()
        self._tools: dict[str, Tool] = {}

    # ------------------------------------------------------------ tools

    def register_tool(self, tool: Tool | Callable[..., Any], **settings: Unpack[ToolSettings]) -> str:
        """Add a tool or a function, and return its name.

        Raises:
            ValueError: a tool has this name already, or a setting is not valid.
        """
        registered = tool if isinstance(tool, Tool) else FunctionTool(tool)
        schema = registered.schema
        if isinstance(registered, FunctionTool):
            self.toolkit.add(registered.function, name=registered.name, description=registered.description, **settings)
        else:
            schema_tool = PydanticTool[Any].from_schema(
                registered.execute, registered.name, registered.description, dict(schema.parameters)
            )
            self.toolkit.add(schema_tool, **settings)
        self._tools[registered.name] = registered
        return registered.name

    def get_tool(self, name: str) -> Tool | None:
        """Return a tool; None: no tool has this name."""
        check_type("the name of a tool", name, str, "'calculator'")
        return self._tools.get(name)

    def get_tool_descriptions(self, agent_id: str) -> list[ToolSchema]:
        """Return the descriptions of the tools that an agent may use."""
        return [self._tools[name].schema for name in self.get_accessible_tools(agent_id)]

    # ------------------------------------------------------------ permissions

    def grant_permission(self, agent_id: str, tool_name: str) -> None:
        """Let an agent use a tool; `*`: all of them.

        Raises:
            ValueError: there is no such tool.
        """
        self._check_exists(tool_name)
        self.toolkit.grant(agent_id, tool_name)

    def grant_all_permissions(self, agent_id: str) -> None:
        """Let an agent use all tools, including future ones."""
        self.toolkit.grant(agent_id, ANY)

    def revoke_permission(self, agent_id: str, tool_name: str) -> None:
        """Revoke a tool for an agent, even if all tools were granted."""
        self.toolkit.revoke(agent_id, tool_name)

    def has_permission(self, agent_id: str, tool_name: str) -> bool:
        """Whether an agent may use a tool."""
        check_type("the name of a tool", tool_name, str, "'calculator'")
        return tool_name in self._tools and self.toolkit.permissions.knows(agent_id, tool_name)

    def get_accessible_tools(self, agent_id: str) -> list[str]:
        """Return the names of the tools that an agent may use."""
        return [name for name in self._tools if self.has_permission(agent_id, name)]

    # ------------------------------------------------------------ use

    def execute_tool(self, agent_id: str, tool_name: str, args: Mapping[str, object] | None = None) -> Any:
        """Call a tool for an agent, and return its result.

        Raises:
            ValueError: there is no such tool, or the arguments do not match. It was not started.
            PermissionError: the call is not permitted. It was not started.
            RuntimeError: it failed.
        """
        check_type("the name of a tool", tool_name, str, "'calculator'")
        self._check_exists(name_among(self._tools, tool_name))
        payload = self.call(agent_id, tool_name, args or {})
        if not payload.is_error:
            return thaw(payload.result)
        reason = f"{tool_name}: {payload.error_message}"
        if payload.error_type == INVALID_ARGUMENTS:
            raise ValueError(reason)
        if payload.error_type == PERMISSION_DENIED:
            raise PermissionError(reason)
        raise RuntimeError(reason)

    def call(
        self, agent_id: str, tool_name: str, args: Mapping[str, object], call_id: str | None = None
    ) -> OptionResultPayload:
        """Call a tool for an agent, and return the outcome: a refusal is also an outcome.

        Raises:
            RuntimeError: it was called in an event loop, and would block it.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self.toolkit.call(agent_id, tool_name, args, invocation_id=call_id))
        raise RuntimeError("this would block the event loop: await toolkit.call(...) there")

    def _check_exists(self, tool_name: str) -> None:
        check_type("the name of a tool", tool_name, str, "'calculator'")
        if tool_name != ANY and tool_name not in self._tools:
            raise ValueError(f"there is no tool {tool_name!r}; register it first")
