"""The name of a tool in a call, as a program knows the tool: the rule by which formats write names, and runs look them up."""

from __future__ import annotations

from collections.abc import Container

from antiphon.dialects.marsys import sanitize_tool_name


def name_among(tools: Container[str], name: str) -> str:
    """Return the name of the called tool: models put `functions.` before it, or use characters that no name has."""
    if name in tools:
        return name
    plain = sanitize_tool_name(name)
    return plain if plain in tools else name
