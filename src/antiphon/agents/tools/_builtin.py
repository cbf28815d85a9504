"""`builtin_tools` returns the tools of names in a configuration; and the two tools for the web.

`web_search` and `web_fetch` are Pydantic AI's own tools, disabled unless `antiphon.toml` enables them. Fetching refuses every
address that is not public, and checks again at every redirect: names are resolved once, each address is checked (including
IPv4 addresses inside IPv6), and the connection uses the checked address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import Any, Final

from pydantic_ai import ModelRetry, RunContext, Tool

from antiphon.agents.config import WebConfig, read_config
from antiphon.agents.tools._calculator import calculator
from antiphon.agents.tools._lookup import Scope, knowledge_base, memory_retrieval
from antiphon.errors import ToolOffError
from antiphon.ledger import Ledger

# ---------------------------------------------------------------- the web

_LONGEST: Final = 4_000
"""Characters of an address or a query."""
_INSTALL = 'pip install "antiphon[web]"'


def web_fetch(config: WebConfig | None = None) -> Tool[Any]:
    """Return the tool that reads a page of the web, as Markdown.

    Raises:
        ConfigError: `antiphon.toml` is not valid.
        ModuleNotFoundError: a package that it needs is not installed.
        ToolOffError: it is not enabled.
    """
    chosen = config or read_config().web
    if not chosen.fetch:
        raise ToolOffError("web_fetch", "`fetch = true` into the section [web] of antiphon.toml")
    try:
        from pydantic_ai.common_tools.web_fetch import web_fetch_tool  # noqa: PLC0415 (an extra)
    except ImportError as exc:
        raise ModuleNotFoundError(f"web_fetch needs markdownify: {_INSTALL}", name="markdownify") from exc
    allowed = None if chosen.allowed_domains is None else list(chosen.allowed_domains)
    tool = web_fetch_tool(
        max_content_length=chosen.max_characters,
        timeout=chosen.timeout,
        max_download_bytes=chosen.max_bytes,
        allowed_domains=allowed,
        blocked_domains=list(chosen.blocked_domains),
    )
    return _ours(tool, "web_fetch", chosen)


def web_search(config: WebConfig | None = None) -> Tool[Any]:
    """Return the tool that searches the web.

    Raises:
        ConfigError: `antiphon.toml` is not valid.
        ModuleNotFoundError: a package that it needs is not installed.
        ToolOffError: it is not enabled.
    """
    chosen = config or read_config().web
    if chosen.search is None:
        raise ToolOffError("web_search", '`search = "duckduckgo"` into the section [web] of antiphon.toml')
    try:
        from pydantic_ai.common_tools.duckduckgo import duckduckgo_search_tool  # pyright: ignore[reportUnknownVariableType]  # noqa: PLC0415 (an extra)
    except ImportError as exc:
        raise ModuleNotFoundError(f"web_search needs ddgs: {_INSTALL}", name="ddgs") from exc
    return _ours(duckduckgo_search_tool(max_results=chosen.max_results), "web_search", chosen)


_METADATA: dict[str, Any] = {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": False}}
"""It changes nothing. Its result is untrusted. Its arguments leave the machine: after untrusted input it needs an approval."""


def _ours(tool: Tool[Any], name: str, config: WebConfig) -> Tool[Any]:
    tool.name = name
    tool.metadata = _METADATA
    tool.args_validator = _check_lengths
    # A limit of the whole request: a server that sends byte by byte never exceeds a limit per read.
    tool.timeout = config.timeout
    return tool


def _check_lengths(_: RunContext[object], **arguments: Any) -> None:
    """Refuse an absurdly long address or query. Parsing a long address would block the event loop."""
    for name, value in arguments.items():
        if isinstance(value, str) and len(value) > _LONGEST:
            raise ModelRetry(f"{name} has {len(value)} characters; at most {_LONGEST} are sent")


# ---------------------------------------------------------------- by name

BUILTIN_TOOLS = ("calculator", "knowledge_base", "memory_retrieval", "web_fetch", "web_search")


def builtin_tools(
    names: Iterable[str], *, ledger: Ledger | None = None, memory: Scope = "thread", web: WebConfig | None = None
) -> list[Tool[Any]]:
    """Return the tools with these names. Tools that search a ledger need it.

    Raises:
        ConfigError: `antiphon.toml` was needed, and is not valid.
        ModuleNotFoundError: a package that a tool needs is not installed.
        ToolOffError: a tool is not enabled.
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
