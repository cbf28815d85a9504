"""Tools that agents share: functions, toolsets and MCP servers, with permissions and approvals.

Every call goes through one guard (`_guard.py`): arguments are checked, a decision is written down, a person is asked where
one must be, and only then a tool is started. The names below are imported when first used: whoever only answers questions
does without Pydantic AI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon._lazy import lazy_names as _lazy_names

if TYPE_CHECKING:
    from antiphon.agents.toolkit._approvals import Approval, answer, find_approval, pending_approvals
    from antiphon.agents.toolkit._decision import (
        ApprovalRule,
        Call,
        Circumstances,
        Decision,
        Grant,
        Permissions,
        Permit,
        Revocation,
        Verdict,
        judge,
    )
    from antiphon.agents.toolkit._schema import Schema
    from antiphon.agents.toolkit._tool import ToolkitTool, ToolSettings
    from antiphon.agents.toolkit._toolkit import Toolkit
    from antiphon.agents.toolkit._toolset import AgentToolset, ToolkitCapability
    from antiphon.agents.toolkit.taint import quoted

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

_HERE = "antiphon.agents.toolkit"
_HOME = {
    **dict.fromkeys(("Approval", "answer", "find_approval", "pending_approvals"), f"{_HERE}._approvals"),
    **dict.fromkeys(("Call", "Grant", "Permissions", "Permit", "Revocation"), f"{_HERE}._decision"),
    **dict.fromkeys(("ApprovalRule", "Circumstances", "Decision", "Verdict", "judge"), f"{_HERE}._decision"),
    **dict.fromkeys(("Schema",), f"{_HERE}._schema"),
    **dict.fromkeys(("ToolSettings", "ToolkitTool"), f"{_HERE}._tool"),
    **dict.fromkeys(("Toolkit",), f"{_HERE}._toolkit"),
    **dict.fromkeys(("AgentToolset", "ToolkitCapability"), f"{_HERE}._toolset"),
    **dict.fromkeys(("quoted",), f"{_HERE}.taint"),
}

__getattr__, __dir__ = _lazy_names(__name__, _HOME)
