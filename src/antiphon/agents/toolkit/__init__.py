"""Tools that agents share: functions, toolsets and MCP servers, with permissions and approvals.

Every call goes through one guard (`_guard.py`): it checks the arguments, writes the decision to the log, asks a person where
one must approve, and only then starts the tool. The names below are imported when first used: a program that only answers
approvals does not import Pydantic AI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from antiphon.agents.toolkit._approvals import Approval, answer, find_approval, pending_approvals
    from antiphon.agents.toolkit._decision import (
        ApprovalRule,
        Circumstances,
        Grant,
        Permissions,
        Permit,
        RequestedCall,
        Revocation,
        ToolDecision,
        Verdict,
        judge,
    )
    from antiphon.agents.toolkit._schema import Schema
    from antiphon.agents.toolkit._tool import ToolkitTool, ToolSettings
    from antiphon.agents.toolkit._toolkit import Toolkit, ToolkitCapability
    from antiphon.agents.toolkit._toolset import AgentToolset
    from antiphon.agents.toolkit.taint import quoted

__all__ = [
    "AgentToolset",
    "Approval",
    "ApprovalRule",
    "Circumstances",
    "Grant",
    "Permissions",
    "Permit",
    "RequestedCall",
    "Revocation",
    "Schema",
    "ToolDecision",
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

_HERE = "antiphon.agents.toolkit"
_HOME = {
    **dict.fromkeys(("Approval", "answer", "find_approval", "pending_approvals"), f"{_HERE}._approvals"),
    **dict.fromkeys(("Grant", "Permissions", "Permit", "RequestedCall", "Revocation"), f"{_HERE}._decision"),
    **dict.fromkeys(("ApprovalRule", "Circumstances", "ToolDecision", "Verdict", "judge"), f"{_HERE}._decision"),
    **dict.fromkeys(("Schema",), f"{_HERE}._schema"),
    **dict.fromkeys(("ToolSettings", "ToolkitTool"), f"{_HERE}._tool"),
    **dict.fromkeys(("Toolkit", "ToolkitCapability"), f"{_HERE}._toolkit"),
    **dict.fromkeys(("AgentToolset",), f"{_HERE}._toolset"),
    **dict.fromkeys(("quoted",), f"{_HERE}.taint"),
}

__getattr__, __dir__ = _lazy_names(__name__, _HOME)
