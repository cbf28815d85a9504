"""Tools: functions that are declared, several in one tool of a request, beside tools that the service itself runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, cast

from antiphon.dialects._reading import as_object, kind_of, notes_of
from antiphon.dialects.gemini._keys import NAME
from antiphon.errors import DecodeError
from antiphon.messages import Tool, thaw

__all__ = ["join_tools", "native_tools", "read_tool", "split_tools", "write_tool"]

_LISTS = ("functionDeclarations", "function_declarations")
_JSON_SCHEMA = "parametersJsonSchema"
_OPEN_API = "parameters"
"""Where a schema of Google's own stands, which is JSON Schema but for the capitals of its types."""
_BY_NAME = ("properties", "defs", "$defs")
_INSIDE = ("items", "anyOf", "any_of", "prefixItems", "prefix_items", "additionalProperties", "additional_properties")


# ---------------------------------------------------------------- all of a request


def split_tools(tools: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return the functions of all tools, and the tools with the number of them in their place."""
    functions: list[Any] = []
    frames: list[Any] = []
    for place, tool in enumerate(tools):
        frame = as_object(tool)
        if frame is not None:
            frame = {
                key: _moved(value, functions, f"tools[{place}].{key}") if key in _LISTS else value
                for key, value in frame.items()
            }
        frames.append(tool if frame is None else frame)
    return functions, frames


def _moved(value: Any, functions: list[Any], where: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, list):
        raise DecodeError(f"expected a list, found {kind_of(value)}", dialect=NAME, where=where)
    functions += cast("list[Any]", value)
    return len(cast("list[Any]", value))


def native_tools(frames: list[Any]) -> list[str]:
    """Return the names of the tools that the service runs itself."""
    found = [item for frame in frames for item in (as_object(frame) or {}).items()]
    return [key for key, value in found if key not in _LISTS and value is not None]


def join_tools(functions: list[Any], frames: list[Any]) -> list[Any]:
    """Return tools with as many functions as each had; the last one that has any takes what is left over."""
    counts = [
        value for frame in frames for key, value in (as_object(frame) or {}).items() if key in _LISTS and value is not None
    ]
    if not counts:
        return [*frames, {_LISTS[0]: functions}] if functions else frames
    counts[-1] += max(0, len(functions) - sum(counts))
    sizes, left = iter(counts), iter(functions)
    tools = [_filled(frame, sizes, left) for frame in frames]
    return [tool for tool, frame in zip(tools, frames, strict=True) if tool or not frame]


def _filled(frame: Any, sizes: Iterator[int], left: Iterator[Any]) -> Any:
    """Return a tool with its functions; without the key if all that it had are gone."""
    if (given := as_object(frame)) is None:
        return frame
    tool: dict[str, Any] = {}
    for key, value in given.items():
        if key not in _LISTS or value is None:
            tool[key] = value
        elif (taken := list(islice(left, next(sizes)))) or not value:
            tool[key] = taken
    return tool


# ---------------------------------------------------------------- one function


def read_tool(tool: Any) -> dict[str, Any] | None:
    """Return what the core knows of a function."""
    given = as_object(tool) or {}
    if not isinstance(given.get("name"), str):
        return None
    read = {"name": given["name"], "description": given.get("description")}
    for key in (_JSON_SCHEMA, "parameters_json_schema", _OPEN_API):
        if (schema := as_object(given.get(key))) is not None:
            read["parameters"] = _typed(schema, str.lower) if key == _OPEN_API else schema
            read["metadata"] = {} if key == _JSON_SCHEMA else {NAME: {"schema": key}}
            break
    return read


def write_tool(tool: Tool, name: str) -> dict[str, Any]:
    """Write a function."""
    function: dict[str, Any] = {"name": name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters:
        key = notes_of(tool, NAME).get("schema", _JSON_SCHEMA)
        schema = thaw(tool.parameters)
        function[key] = _typed(schema, str.upper) if key == _OPEN_API else schema
    return function


def _typed(schema: Any, spell: Callable[[str], str]) -> Any:
    """Return a schema with its types spelled otherwise."""
    if isinstance(schema, list):
        return [_typed(each, spell) for each in cast("list[Any]", schema)]
    found = as_object(schema)
    return schema if found is None else {key: _typed_value(key, value, spell) for key, value in found.items()}


def _typed_value(key: str, value: Any, spell: Callable[[str], str]) -> Any:
    if key == "type":
        return spell(value) if isinstance(value, str) else value
    if key in _BY_NAME and isinstance(value, dict):
        return {name: _typed(each, spell) for name, each in cast("dict[str, Any]", value).items()}
    return _typed(value, spell) if key in _INSIDE else value
