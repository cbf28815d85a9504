"""Tools that agents share: functions, toolsets and MCP servers, with permissions and approvals.

Every call goes through one guard (`_guard.py`): arguments are checked, a decision is written down, a person is asked where
one must be, and only then a tool is started. The names below are imported when first used: whoever only answers questions
does without Pydantic AI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from antiphon.agents.toolkit._approvals import Approval, answer, find_approval, pending_approvals
    from antiphon.agents.toolkit._call import Call
    from antiphon.agents.toolkit._capability import ToolkitCapability
    from antiphon.agents.toolkit._origin import quoted
    from antiphon.agents.toolkit._permissions import Grant, Permissions, Permit, Revocation
    from antiphon.agents.toolkit._rules import ApprovalRule, Circumstances, Decision, Verdict, judge
    from antiphon.agents.toolkit._schema import Schema
    from antiphon.agents.toolkit._tool import ToolkitTool, ToolSettings
    from antiphon.agents.toolkit._toolkit import Toolkit
    from antiphon.agents.toolkit._toolset import AgentToolset

__all__ = [
    "AgentToolset",
    "Approval",
    "ApprovalRule",
    "Call",
    "Circumstances",
    "Decision",
    "Grant",
    "Permissions",
    "Permit",
    "Revocation",
    "Schema",
    "ToolSettings",
    "Toolkit",
    "ToolkitCapability",
    "ToolkitTool",
    "Verdict",
    "answer",
    "find_approval",
    "judge",
    "pending_approvals",
    "quoted",
]

_HOME = {
    **dict.fromkeys(("Approval", "answer", "find_approval", "pending_approvals"), "_approvals"),
    **dict.fromkeys(("Call",), "_call"),
    **dict.fromkeys(("ToolkitCapability",), "_capability"),
    **dict.fromkeys(("quoted",), "_origin"),
    **dict.fromkeys(("Grant", "Permissions", "Permit", "Revocation"), "_permissions"),
    **dict.fromkeys(("ApprovalRule", "Circumstances", "Decision", "Verdict", "judge"), "_rules"),
    **dict.fromkeys(("Schema",), "_schema"),
    **dict.fromkeys(("ToolSettings", "ToolkitTool"), "_tool"),
    **dict.fromkeys(("Toolkit",), "_toolkit"),
    **dict.fromkeys(("AgentToolset",), "_toolset"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'antiphon.agents.toolkit' has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 (only when a name is first used)

    value = getattr(import_module(f"antiphon.agents.toolkit.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
