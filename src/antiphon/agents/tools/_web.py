"""`web_search` and `web_fetch`: Pydantic AI's own tools, off unless `antiphon.toml` turns them on.

Fetching refuses whatever is not public, and looks again at every redirect: names are resolved once, each address is checked
(those hidden inside IPv6 too), and the connection goes to the address that was checked.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic_ai import ModelRetry, RunContext, Tool

from antiphon.agents._config import WebConfig, read_config
from antiphon.agents.tools._effects import LOOKS_OUTSIDE
from antiphon.errors import AntiphonError

__all__ = ["ToolOffError", "web_fetch", "web_search"]

_LONGEST: Final = 4_000
"""Characters of an address or a query."""
_INSTALL = 'pip install "antiphon[web]"'


class ToolOffError(AntiphonError):
    """A tool was asked for that nobody has turned on."""

    def __init__(self, tool: str, line: str) -> None:
        super().__init__(tool, line)
        self.tool = tool
        self.line = line
        """What to write into `antiphon.toml` to turn it on."""

    def __str__(self) -> str:
        return f"{self.tool} is off: what agents ask on the web leaves this machine; to turn it on, write {self.line}"


def web_fetch(config: WebConfig | None = None) -> Tool[Any]:
    """Return the tool that reads a page of the web, as Markdown.

    Raises:
        ConfigError: `antiphon.toml` is wrong.
        ModuleNotFoundError: what it needs is not installed.
        ToolOffError: it is not turned on.
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
        ConfigError: `antiphon.toml` is wrong.
        ModuleNotFoundError: what it needs is not installed.
        ToolOffError: it is not turned on.
    """
    chosen = config or read_config().web
    if chosen.search is None:
        raise ToolOffError("web_search", '`search = "duckduckgo"` into the section [web] of antiphon.toml')
    try:
        from pydantic_ai.common_tools.duckduckgo import duckduckgo_search_tool  # pyright: ignore[reportUnknownVariableType]  # noqa: PLC0415 (an extra)
    except ImportError as exc:
        raise ModuleNotFoundError(f"web_search needs ddgs: {_INSTALL}", name="ddgs") from exc
    return _ours(duckduckgo_search_tool(max_results=chosen.max_results), "web_search", chosen)


def _ours(tool: Tool[Any], name: str, config: WebConfig) -> Tool[Any]:
    tool.name = name
    tool.metadata = LOOKS_OUTSIDE
    tool.args_validator = _check_lengths
    tool.timeout = config.timeout  # of the whole: a page that comes byte by byte is never late for the next
    return tool


def _check_lengths(_: RunContext[Any], **arguments: Any) -> None:
    """Refuse an address or a query that nobody means. To take a long address apart would keep the event loop."""
    for name, value in arguments.items():
        if isinstance(value, str) and len(value) > _LONGEST:
            raise ModelRetry(f"{name} has {len(value)} characters; at most {_LONGEST} are sent")
