"""Tools as Atlas knows them: a class with a schema and an `execute`, or a function."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic_ai import Tool as PydanticTool
from typing_extensions import override

from antiphon.agents.toolkit._schema import Schema

__all__ = ["FunctionTool", "Tool", "ToolSchema"]


@dataclass(frozen=True)
class ToolSchema:
    """What a tool is called with."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """A JSON schema of an object."""
    returns: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def from_function(cls, function: Callable[..., Any], name: str | None = None, description: str | None = None) -> Self:
        """Return the schema that type hints and docstring say."""
        made = PydanticTool[Any](function, name=name, description=description)
        known = made.tool_def
        return cls(made.name, known.description or "", known.parameters_json_schema, known.return_schema or {})


class Tool(ABC):
    """A tool. Subclass it, give it a schema, and do the work in `execute`."""

    @property
    @abstractmethod
    def schema(self) -> ToolSchema:
        """What it is called with."""

    @abstractmethod
    def execute(self, **arguments: Any) -> Any:
        """Do it; the arguments have been checked."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.schema.name

    @property
    def description(self) -> str:
        """What it does, for whoever chooses it."""
        return self.schema.description

    def validate_args(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return what is wrong with arguments, by the whole schema; nothing if they are well."""
        return list(Schema(self.schema.parameters).problems(arguments))


class FunctionTool(Tool):
    """A function as a tool."""

    def __init__(self, function: Callable[..., Any], name: str | None = None, description: str | None = None) -> None:
        self.function = function
        self._schema = ToolSchema.from_function(function, name, description)

    @property
    @override
    def schema(self) -> ToolSchema:
        return self._schema

    @override
    def execute(self, **arguments: Any) -> Any:
        return self.function(**arguments)
