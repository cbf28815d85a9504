"""`builtin_tools`: from names, as a configuration has them, to tools."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any

from pydantic_ai import Tool

from antiphon.agents._config import WebConfig
from antiphon.agents.tools._calculator import calculator
from antiphon.agents.tools._lookup import knowledge_base
from antiphon.agents.tools._memory import Scope, memory_retrieval
from antiphon.agents.tools._web import web_fetch, web_search
from antiphon.ledger import Ledger

__all__ = ["BUILTIN_TOOLS", "builtin_tools"]

BUILTIN_TOOLS = ("calculator", "knowledge_base", "memory_retrieval", "web_fetch", "web_search")


def builtin_tools(
    names: Iterable[str], *, ledger: Ledger | None = None, memory: Scope = "thread", web: WebConfig | None = None
) -> list[Tool[Any]]:
    """Return the tools of these names. Those that look something up need the ledger that it is in.

    Raises:
        ConfigError: `antiphon.toml` was needed, and is wrong.
        ModuleNotFoundError: what a tool needs is not installed.
        ToolOffError: a tool is not turned on.
        ValueError: there is no tool of a name, or it needs a ledger.
    """

    def of_ledger(make: Callable[[Ledger], Tool[Any]], name: str) -> Tool[Any]:
        if ledger is None:
            raise ValueError(f"{name} looks things up in a ledger: give one")
        return make(ledger)

    def made(name: str) -> Tool[Any]:
        match name:
            case "calculator":
                return calculator()
            case "knowledge_base":
                return of_ledger(knowledge_base, name)
            case "memory_retrieval":
                return of_ledger(lambda given: memory_retrieval(given, scope=memory), name)
            case "web_fetch":
                return web_fetch(web)
            case "web_search":
                return web_search(web)
            case _:
                near = get_close_matches(name, BUILTIN_TOOLS, n=1)
                hint = f"; perhaps {near[0]!r}" if near else f"; there are {', '.join(BUILTIN_TOOLS)}"
                raise ValueError(f"no built-in tool is called {name!r}{hint}")

    return [made(name) for name in names]
