"""What a toolkit allows, and the state behind it: permissions, rules, who may approve, what was decided."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Lock

from antiphon.agents._guards import Cover
from antiphon.agents.toolkit._book import Uses
from antiphon.agents.toolkit._names import check_agent
from antiphon.agents.toolkit._permissions import Grant, Permissions
from antiphon.agents.toolkit._rules import ApprovalRule
from antiphon.agents.toolkit._tool import ToolkitTool
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
    _changing: Lock = field(default_factory=Lock, repr=False)
    """Held while the permissions are changed: threads share a toolkit, and a revocation must not get lost."""

    def __post_init__(self) -> None:
        for name in self.approvers:
            check_agent(name)
        if self.approval_expires <= timedelta():
            raise ValueError("an approval must be good for some time")

    @property
    def clean(self) -> Callable[[str], str]:
        """What takes secrets out of a text."""
        return self.redaction.text

    def cover(self, toolkit: str, agent: str, tools: Mapping[str, ToolkitTool], run: str | None = None) -> Cover:
        """Return what a toolkit with these tools holds over an agent."""
        own = {name: tool for name, tool in sorted(tools.items()) if self.permissions.knows(agent, name)}
        asks = [name for name, tool in own.items() if tool.approval or any(rule.covers(agent, name) for rule in self.rules)]
        lenient = frozenset(name for name, tool in own.items() if tool.allows_untrusted)
        return Cover(toolkit, agent, tuple(own), tuple(asks), run, lenient)

    def grant(self, grant: Grant) -> None:
        """Permit something from now on."""
        with self._changing:
            self.permissions = self.permissions.grant(grant)

    def revoke(self, agent: str, tool: str) -> None:
        """Forbid something from now on."""
        with self._changing:
            self.permissions = self.permissions.revoke(agent, tool)
