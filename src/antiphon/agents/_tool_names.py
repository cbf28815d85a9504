"""The name of a tool in a call, as a program knows the tool: the rule by which formats write names, and runs look them up."""

from __future__ import annotations

from collections.abc import Container
from typing import Any, cast

from antiphon.dialects.marsys import sanitize_tool_name


def name_among(tools: Container[str], name: str) -> str:
    """Return the name of the called tool: models put `functions.` before it, or use characters that no name has."""
    if name in tools:
        return name
    plain = sanitize_tool_name(name)
    return plain if plain in tools else name


def plainly_named(answer: dict[str, Any], tools: Container[str]) -> dict[str, Any]:
    """Return the answer of a model with the names of the tools that it means."""
    parts = cast("list[dict[str, Any]]", answer["parts"])
    if all(part["part_kind"] != "tool-call" or part["tool_name"] in tools for part in parts):
        return answer
    named = [
        {**part, "tool_name": name_among(tools, part["tool_name"])} if part["part_kind"] == "tool-call" else part
        for part in parts
    ]
    return {**answer, "parts": named}
