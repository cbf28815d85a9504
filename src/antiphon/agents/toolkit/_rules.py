"""Rules: when a call that is permitted needs a person's word too; and the whole decision on a call.

Everything that counts is in the arguments of `judge`: it asks no clock and no ledger, so the same call under the same
circumstances is always judged the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeAlias

from antiphon.agents._guards import TAINTED
from antiphon.agents.toolkit._call import Call
from antiphon.agents.toolkit._names import ANY, check_agent, check_tool
from antiphon.agents.toolkit._permissions import Grant, Permissions
from antiphon.agents.toolkit._schema import Schema

__all__ = ["ApprovalRule", "Circumstances", "Decision", "Verdict", "judge"]

Verdict: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True)
class ApprovalRule:
    """Calls that a person must approve: of a tool, by an agent, with such arguments.

    Raises:
        ValueError: a name is none.
    """

    tool: str = ANY
    agent: str = ANY
    where: Schema | None = None
    """Which arguments; None: any."""

    def __post_init__(self) -> None:
        check_agent(self.agent, or_any=True)
        check_tool(self.tool, or_any=True)

    def covers(self, agent: str, tool: str) -> bool:
        """Whether it is about this agent and this tool, with some arguments."""
        return self.agent in (agent, ANY) and self.tool in (tool, ANY)

    def matches(self, call: Call) -> bool:
        """Whether it is about a call."""
        if not self.covers(call.agent, call.tool):
            return False
        return self.where is None or self.where.accepts(call.arguments)


@dataclass(frozen=True)
class Decision:
    """What becomes of a call: it is allowed, a person is asked, or it is denied."""

    verdict: Verdict
    reason: str
    grant: Grant | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as it is written down."""
        said: dict[str, Any] = {"verdict": self.verdict, "reason": self.reason}
        return said if self.grant is None else {**said, "grant": self.grant.to_json()}


@dataclass(frozen=True)
class Circumstances:
    """What counts besides the call and the permissions."""

    now: datetime
    used: Mapping[Grant, int]
    """How many calls of the thread each grant has permitted."""
    approval: bool = False
    """Whether the tool always needs a person's word."""
    tainted: str | None = None
    """What untrusted content the turn has read, where the tool does not allow that; None: nothing."""


def judge(permissions: Permissions, rules: Iterable[ApprovalRule], call: Call, circumstances: Circumstances) -> Decision:
    """Decide on a call."""
    permit = permissions.decide(call, circumstances.used, circumstances.now)
    if not permit.allowed:
        return Decision("deny", permit.reason)
    if circumstances.approval:
        return Decision("ask", f"{call.tool!r} needs an approval, whatever it is called with", permit.grant)
    if any(rule.matches(call) for rule in rules):
        return Decision("ask", f"a rule asks for an approval of such calls of {call.tool!r}", permit.grant)
    if circumstances.tainted is not None:
        return Decision("ask", f"{TAINTED}: {circumstances.tainted}", permit.grant)
    return Decision("allow", permit.reason, permit.grant)
