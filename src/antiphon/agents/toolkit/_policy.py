"""What a toolkit allows, and the state behind it: permissions, rules, who may approve, what was decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from antiphon.agents.toolkit._book import Uses, change_name
from antiphon.agents.toolkit._names import check_agent
from antiphon.agents.toolkit._permissions import Grant, Permissions
from antiphon.agents.toolkit._rules import ApprovalRule
from antiphon.ledger import STANDARD_REDACTION, Redaction

__all__ = ["Policy"]


@dataclass
class Policy:
    """What a toolkit allows."""

    rules: Sequence[ApprovalRule] = ()
    approvers: tuple[str, ...] = ()
    approval_expires: timedelta = timedelta(days=1)
    approval_wait: float | None = 0.0
    redaction: Redaction = STANDARD_REDACTION
    permissions: Permissions = field(default_factory=Permissions)
    uses: Uses = field(default_factory=Uses)
    changes: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """What was granted and revoked, in order, by the name of the change."""

    def __post_init__(self) -> None:
        for name in self.approvers:
            check_agent(name)
        if self.approval_expires <= timedelta():
            raise ValueError("an approval must be good for some time")

    @property
    def clean(self) -> Callable[[str], str]:
        """What takes secrets out of a text."""
        return self.redaction.text

    def grant(self, grant: Grant) -> None:
        """Permit something from now on."""
        self.permissions = self.permissions.grant(grant)
        self._changed({"type": "TOOL_GRANTED", **grant.to_json()})

    def revoke(self, agent: str, tool: str) -> None:
        """Forbid something from now on."""
        self.permissions = self.permissions.revoke(agent, tool)
        self._changed({"type": "TOOL_REVOKED", "agent": agent, "tool": tool})

    def _changed(self, said: dict[str, Any]) -> None:
        self.changes[change_name({**said, "number": len(self.changes)})] = said
