"""The decision on a tool call: permissions, approval rules and `judge`, which applies them.

A call without a grant is denied. A grant names an agent and a tool (`*`: all of them). It may also have a JSON schema that the
arguments must match, a number of calls in a thread, and an expiry time. A revocation is valid until the next grant, even for
an agent that was granted everything.

`judge` is a pure function: it reads no clock and no ledger. The same call under the same circumstances always gets the same
decision.
"""

from __future__ import annotations

from base64 import b32encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from typing import Literal, TypeAlias

from antiphon.agents._guards import TAINTED
from antiphon.agents.toolkit._schema import ANY, Schema, canonical, check_agent, check_tool
from antiphon.messages import Json

# ---------------------------------------------------------------- the call


@dataclass(frozen=True)
class RequestedCall:
    """One call of a tool by an agent."""

    agent: str
    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict[str, object])
    thread_id: str | None = None
    invocation_id: str = ""
    recorded: str | None = None
    """The recorded digest, if sensitive arguments are lost and it cannot be computed."""

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the exact call: another argument, agent, thread or invocation gives another digest.

        In base 32: one in some hundred hexadecimal digests looks like a card number, and would be redacted.
        """
        if self.recorded is not None:
            return self.recorded
        said = [self.agent, self.tool, dict(self.arguments), self.thread_id, self.invocation_id]
        return b32encode(sha256(canonical(said).encode()).digest()).decode().rstrip("=").lower()


# ---------------------------------------------------------------- permissions


@dataclass(frozen=True)
class Grant:
    """The permission of an agent to call a tool.

    Raises:
        ValueError: a name, the schema, the number or the time is not valid.
    """

    agent: str
    tool: str
    where: Schema | None = None
    """A schema that the arguments must match."""
    calls: int | None = None
    """The number of calls in a thread; None: no limit."""
    until: datetime | None = None
    """When it expires; None: never."""

    def __post_init__(self) -> None:
        check_agent(self.agent, or_any=True)
        check_tool(self.tool, or_any=True)
        if self.calls is not None and self.calls < 1:
            raise ValueError(f"a grant is for at least one call, not {self.calls}; to forbid a tool, revoke it")
        if self.until is not None and self.until.utcoffset() is None:
            raise ValueError("the end of a grant needs its zone: use datetime.now(UTC) + timedelta(...)")

    def covers(self, agent: str, tool: str) -> bool:
        """Whether it applies to this agent and this tool."""
        return self.agent in (agent, ANY) and self.tool in (tool, ANY)

    def refusal(self, call: RequestedCall, used: int, now: datetime) -> str | None:
        """Return the reason why it does not permit a call that it covers; None if it permits the call."""
        if self.until is not None and now >= self.until:
            return f"the grant ended at {self.until.isoformat()}"
        if self.calls is not None and used >= self.calls:
            return f"the grant was for {self.calls} call(s) in a thread, and they are used up"
        if self.where is not None and (problems := self.where.problems(call.arguments)):
            return f"the grant is for other arguments: {'; '.join(problems)}"
        return None

    def to_json(self) -> dict[str, Json]:
        """Return it as it is stored."""
        said: dict[str, Json] = {"agent": self.agent, "tool": self.tool}
        if self.where is not None:
            said["where"] = self.where.to_json()
        if self.calls is not None:
            said["calls"] = self.calls
        if self.until is not None:
            said["until"] = self.until.isoformat()
        return said


@dataclass(frozen=True)
class Permit:
    """The result of checking the permissions for a call."""

    allowed: bool
    reason: str
    grant: Grant | None = None
    """The grant that permits it."""


@dataclass(frozen=True)
class Revocation:
    """A revocation: an agent may no longer call a tool, whatever the earlier grants."""

    agent: str
    tool: str

    def covers(self, agent: str, tool: str) -> bool:
        """Whether it applies to this agent and this tool; `*` stands for all."""
        return self.agent in (agent, ANY) and self.tool in (tool, ANY)

    def to_json(self) -> dict[str, Json]:
        """Return it as it is stored."""
        return {"agent": self.agent, "tool": self.tool, "revoked": True}


@dataclass(frozen=True)
class Permissions:
    """Grants and revocations, in order: for an agent and a tool, the last one counts. Immutable: a change returns new ones."""

    changes: tuple[Grant | Revocation, ...] = ()

    @property
    def grants(self) -> tuple[Grant, ...]:
        """All grants, including partly revoked ones."""
        return tuple(change for change in self.changes if isinstance(change, Grant))

    def grant(self, grant: Grant) -> Permissions:
        """Return the permissions with one more grant."""
        kept = tuple(change for change in self.changes if change != grant)
        return Permissions((*kept, grant))

    def revoke(self, agent: str, tool: str = ANY) -> Permissions:
        """Return the permissions with a tool, or all tools, revoked for an agent.

        Raises:
            ValueError: a name is not valid.
        """
        revoked = Revocation(check_agent(agent, or_any=True), check_tool(tool, or_any=True))
        kept = tuple(change for change in self.changes if not revoked.covers(change.agent, change.tool))
        return Permissions((*kept, revoked))

    def of(self, agent: str) -> list[dict[str, Json]]:
        """Return the changes that apply to an agent, in their stored form."""
        return [change.to_json() for change in self.changes if change.agent in (agent, ANY)]

    def knows(self, agent: str, tool: str) -> bool:
        """Whether an agent may call a tool at all: with some arguments, at some time."""
        return bool(self._granted(agent, tool)[0])

    def decide(self, call: RequestedCall, used: Mapping[Grant, int], now: datetime) -> Permit:
        """Check a call; `used` is how many earlier calls of the thread each grant has permitted."""
        grants, was_revoked = self._granted(call.agent, call.tool)
        refusals: list[str] = []
        for grant in grants:
            refusal = grant.refusal(call, used.get(grant, 0), now)
            if refusal is None:
                return Permit(allowed=True, reason="granted", grant=grant)
            refusals.append(refusal)
        if refusals:
            return Permit(allowed=False, reason=refusals[0])
        if was_revoked:
            return Permit(allowed=False, reason=f"{call.tool!r} was revoked for {call.agent!r}")
        return Permit(allowed=False, reason=f"nobody has granted {call.tool!r} to {call.agent!r}")

    def _granted(self, agent: str, tool: str) -> tuple[list[Grant], bool]:
        """Return the valid grants for an agent and a tool, and whether something was revoked."""
        grants: list[Grant] = []
        was_revoked = False
        for change in self.changes:
            if change.covers(agent, tool):
                if isinstance(change, Grant):
                    grants.append(change)
                else:
                    grants.clear()
                    was_revoked = True
        return grants, was_revoked


# ---------------------------------------------------------------- rules, and the decision

Verdict: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True)
class ApprovalRule:
    """A rule for calls that a person must approve: of a tool, by an agent, with certain arguments.

    Raises:
        ValueError: a name is not valid.
    """

    tool: str = ANY
    agent: str = ANY
    where: Schema | None = None
    """A schema of the arguments; None: any."""

    def __post_init__(self) -> None:
        check_agent(self.agent, or_any=True)
        check_tool(self.tool, or_any=True)

    def covers(self, agent: str, tool: str) -> bool:
        """Whether it applies to this agent and this tool, for some arguments."""
        return self.agent in (agent, ANY) and self.tool in (tool, ANY)

    def matches(self, call: RequestedCall) -> bool:
        """Whether it applies to a call."""
        if not self.covers(call.agent, call.tool):
            return False
        return self.where is None or self.where.accepts(call.arguments)


@dataclass(frozen=True)
class ToolDecision:
    """The decision on a call: allow it, ask a person, or deny it."""

    verdict: Verdict
    reason: str
    grant: Grant | None = None

    def to_json(self) -> dict[str, Json]:
        """Return it as it is stored."""
        said: dict[str, Json] = {"verdict": self.verdict, "reason": self.reason}
        return said if self.grant is None else {**said, "grant": self.grant.to_json()}


@dataclass(frozen=True)
class Circumstances:
    """The input of a decision besides the call and the permissions."""

    now: datetime
    used: Mapping[Grant, int]
    """How many calls of the thread each grant has permitted."""
    approval: bool = False
    """Whether each call of the tool needs an approval."""
    tainted: str | None = None
    """The taint of the turn, if the tool does not allow untrusted input; None: no taint."""


def judge(
    permissions: Permissions, rules: Iterable[ApprovalRule], call: RequestedCall, circumstances: Circumstances
) -> ToolDecision:
    """Decide on a call."""
    permit = permissions.decide(call, circumstances.used, circumstances.now)
    if not permit.allowed:
        return ToolDecision("deny", permit.reason)
    if circumstances.approval:
        return ToolDecision("ask", f"{call.tool!r} needs an approval, whatever it is called with", permit.grant)
    if any(rule.matches(call) for rule in rules):
        return ToolDecision("ask", f"a rule asks for an approval of such calls of {call.tool!r}", permit.grant)
    if circumstances.tainted is not None:
        return ToolDecision("ask", f"{TAINTED}: {circumstances.tainted}", permit.grant)
    return ToolDecision("allow", permit.reason, permit.grant)
