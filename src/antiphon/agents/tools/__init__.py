"""Tools that come with antiphon: arithmetic, memory, documents, and the web, where it is turned on.

The names below are imported when first used, so that what is not used costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from antiphon.agents.config import WebConfig
    from antiphon.agents.tools._builtin import BUILTIN_TOOLS, builtin_tools, web_fetch, web_search
    from antiphon.agents.tools._calculator import calculate, calculator
    from antiphon.agents.tools._files import file_tools
    from antiphon.agents.tools._knowledge import AddedDocument, KnowledgeBase, Passage
    from antiphon.agents.tools._lookup import MemoryMatch, Scope, knowledge_base, memory_retrieval
    from antiphon.errors import CalculationError, ToolOffError

__all__ = [
    "BUILTIN_TOOLS",
    "AddedDocument",
    "CalculationError",
    "KnowledgeBase",
    "MemoryMatch",
    "Passage",
    "Scope",
    "ToolOffError",
    "WebConfig",
    "builtin_tools",
    "calculate",
    "calculator",
    "file_tools",
    "knowledge_base",
    "memory_retrieval",
    "web_fetch",
    "web_search",
]

_HERE = "antiphon.agents.tools"
_HOME = {
    **dict.fromkeys(("BUILTIN_TOOLS", "builtin_tools", "web_fetch", "web_search"), f"{_HERE}._builtin"),
    **dict.fromkeys(("CalculationError", "ToolOffError"), "antiphon.errors"),
    **dict.fromkeys(("calculate", "calculator"), f"{_HERE}._calculator"),
    **dict.fromkeys(("AddedDocument", "KnowledgeBase", "Passage"), f"{_HERE}._knowledge"),
    **dict.fromkeys(("MemoryMatch", "Scope", "knowledge_base", "memory_retrieval"), f"{_HERE}._lookup"),
    "WebConfig": "antiphon.agents.config",
    "file_tools": f"{_HERE}._files",
}

__getattr__, __dir__ = _lazy_names(__name__, _HOME)
