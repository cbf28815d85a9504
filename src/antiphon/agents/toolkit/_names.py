"""Names of tools and agents: plain ASCII, so that no two of them look alike.

A permission names a tool and an agent. A name with a Cyrillic letter or an invisible character would look like another name to
the person who grants it. Such names are refused: they can neither be registered nor granted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

ANY: Final = "*"
"""All tools, or all agents."""

_TOOL = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", re.ASCII)
_AGENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,255}", re.ASCII)


def is_tool_name(name: str) -> bool:
    """Whether it is a valid name of a tool."""
    return _TOOL.fullmatch(name) is not None


def check_tool(name: str, *, or_any: bool = False) -> str:
    """Return the name of a tool, if it is valid.

    Raises:
        ValueError: the name of the tool is not valid.
    """
    if is_tool_name(name) or (or_any and name == ANY):
        return name
    raise ValueError(f"{name!r} is not a valid name of a tool: use ASCII letters, digits, '_', '-' and '.', at most 128")


def check_agent(name: str, *, or_any: bool = False) -> str:
    """Return the name of an agent, if it is valid.

    Raises:
        ValueError: the name of the agent is not valid.
    """
    if _AGENT.fullmatch(name) or (or_any and name == ANY):
        return name
    raise ValueError(
        f"{name!r} is not a valid name of an agent: use at most 256 ASCII letters, digits, '_', '-', '.', ':', '/'"
    )


_SHOWN = 10


def known_names(wrong: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the name that was probably meant, or the names that there are."""
    known = sorted(names)
    if close := get_close_matches(wrong, known, 1):
        return f"; is it {close[0]!r}?"
    shown = ", ".join(map(repr, known[:_SHOWN])) + (", …" if len(known) > _SHOWN else "")
    return f"; it has {shown}" if known else "; it has no tool"
