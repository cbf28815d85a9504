"""The decision on a tool call: permissions, approval rules and `judge`, which applies them; and the log of decisions.

A call without a grant is denied. A grant names an agent and a tool (`*`: all of them). It may also have a JSON schema that the
arguments must match, a number of calls in a thread, and an expiry time. A revocation is valid until the next grant, even for
an agent that was granted everything.

`judge` is a pure function: it reads no clock and no ledger. The same call under the same circumstances always gets the same
decision.

**The log** is rows of a thread: the decisions on tool calls, and the taint of agents. A decision is written before anything
follows from it. A program that runs again gets the recorded decision, because the tool may have been started based on it. The
guard checks permission and approval once more right before it starts a tool.
"""

from __future__ import annotations

from base64 import b32encode
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import sha256
from threading import Lock
from typing import Any, Final, Literal, TypeAlias
from weakref import WeakKeyDictionary, WeakValueDictionary

from antiphon.agents._guards import TAINTED, Cover
from antiphon.agents.durability._talk import guards_of
from antiphon.agents.toolkit._taint import Taint
from antiphon.agents.toolkit._tool import Schema, canonical, check_tool
from antiphon.durable._approvals import ANY, check_agent
from antiphon.durable._run import LedgerRun
from antiphon.ledger import Owners
from antiphon.messages import RUNTIME_POLICY, DataPart, Json, JsonObject, Message, PartsPayload, thaw
from antiphon.messages._arguments import check_type

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
        content = [self.agent, self.tool, dict(self.arguments), self.thread_id, self.invocation_id]
        return b32encode(sha256(canonical(content).encode()).digest()).decode().rstrip("=").lower()


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
        check_type("calls", self.calls, int | None, "1")
        check_type("until", self.until, datetime | None, "datetime.now(UTC) + timedelta(hours=1)")
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
        fields: dict[str, Json] = {"agent": self.agent, "tool": self.tool}
        if self.where is not None:
            fields["where"] = self.where.to_json()
        if self.calls is not None:
            fields["calls"] = self.calls
        if self.until is not None:
            fields["until"] = self.until.isoformat()
        return fields


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
        others = tuple(change for change in self.changes if change != grant)
        return Permissions((*others, grant))

    def revoke(self, agent: str, tool: str = ANY) -> Permissions:
        """Return the permissions with a tool, or all tools, revoked for an agent.

        Raises:
            ValueError: a name is not valid.
        """
        revoked = Revocation(check_agent(agent, or_any=True), check_tool(tool, or_any=True))
        others = tuple(change for change in self.changes if not revoked.covers(change.agent, change.tool))
        return Permissions((*others, revoked))

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
        fields: dict[str, Json] = {"verdict": self.verdict, "reason": self.reason}
        return fields if self.grant is None else {**fields, "grant": self.grant.to_json()}


@dataclass(frozen=True)
class Circumstances:
    """The input of a decision besides the call and the permissions."""

    now: datetime
    used: Mapping[Grant, int]
    """How many calls of the thread each grant has permitted."""
    approval: bool
    """Whether each call of the tool needs an approval."""
    tainted: str | None
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


# ---------------------------------------------------------------- the log

_DECIDED: Final = "TOOL_PERMISSION"
_PERMITTED: Final = "TOOL_PERMISSIONS"
_READ: Final = "TOOL_READING"


class _Page:
    """The rows that one run has written so far."""

    def __init__(self) -> None:
        self.permissions: set[str] = set()
        self.decisions: dict[str, ToolDecision] = {}
        """By digest of the call. A call that waits for a person is repeated, and any other call may be repeated under the same
        id."""
        self.readings: set[str] = set()
        """The parts of the run that have written their taint."""


class DecisionLog:
    """Writes the permissions of an agent and the decisions on its calls as rows of a run."""

    def __init__(self, run: LedgerRun) -> None:
        self._run = run
        self._page = run.opened.share(_Page)

    async def recall(self, call: RequestedCall) -> ToolDecision | None:
        """Return the recorded decision on a call; None if there is none."""
        if call.digest in self._page.decisions:
            return self._page.decisions[call.digest]
        if not self._run.is_again:
            return None
        rows = await self._run.ledger.find(correlation_id=_correlation(call), thread_id=self._run.thread_id)
        decision = next((data for row in rows if (data := _data(row.message)).get("type") == _DECIDED), None)
        if decision is None:
            return None
        verdict: Verdict = decision["verdict"]
        return ToolDecision(verdict, str(decision["reason"]))

    async def write(self, call: RequestedCall, decision: ToolDecision) -> None:
        """Write the decision on a call."""
        data = {"type": _DECIDED, "agent": call.agent, "tool": call.tool, "digest": call.digest, **decision.to_json()}
        await self._run.note(_row(data, _correlation(call)), key=_correlation(call))
        self._page.decisions[call.digest] = decision

    async def write_permissions(self, agent: str, permissions: Permissions) -> None:
        """Write the permissions of an agent, unless the thread has them."""
        data: dict[str, Json] = {"type": _PERMITTED, "agent": agent, "changes": permissions.of(agent)}
        name = f"permissions:{sha256(canonical(data).encode()).hexdigest()[:24]}"
        if name in self._page.permissions:
            return
        self._page.permissions.add(name)
        if not await self._run.ledger.find(correlation_id=name, thread_id=self._run.thread_id):
            await self._run.note(_row(data, name), key=name)


async def begin_under(run: LedgerRun, cover: Cover) -> None:
    """Let an agent start or continue under a toolkit, and write the mark for that, unless the thread has it."""
    if run.opened.is_finished or not cover.tools:
        return
    mark = (await guards_of(run)).enter(cover, run.thread_id)
    if mark is not None:
        await run.note_soon(mark, key=f"guard:{cover.digest}")


class TaintLog:
    """Writes the taint of agents that run inside a tool of another agent as rows.

    A tool with a recorded outcome does not run again, and neither does the agent inside it: the row has the taint of that
    agent.
    """

    def __init__(self, run: LedgerRun) -> None:
        self._run = run
        self._part = run.course.invocation_id
        self._written = run.opened.share(_Page).readings

    async def keep(self, taint: Taint, agent_run: str | None) -> None:
        """Write the taint of an inner turn, and add the recorded taint."""
        if self._run.is_again:
            await self._recall(taint, agent_run)
        if taint.is_inside and taint.source_here is not None and self._part not in self._written:
            self._written.add(self._part)
            await self._run.note(_row({"type": _READ, "source": taint.source_here}, _READ), key=_READ)

    async def _recall(self, taint: Taint, agent_run: str | None) -> None:
        for row in await self._run.ledger.find(correlation_id=_READ, thread_id=self._run.thread_id):
            data, name = _data(row.message), row.message.id
            if data.get("type") != _READ:
                continue
            if name.startswith(f"{self._part}/"):
                self._written.add(self._part)
            if agent_run is not None and name.startswith(f"{agent_run}/"):
                taint.mark(str(data["source"]))


class GrantUses:
    """How many calls each grant has permitted in each thread. Grants without a limit are not counted."""

    def __init__(self) -> None:
        self._taking = Lock()
        self._outside = _Counted()
        """The calls outside of threads."""
        self._ledgers: WeakKeyDictionary[Owners, WeakValueDictionary[str, _Counted]] = WeakKeyDictionary()
        """By ledger and thread, while a run of the thread is open. The next run counts again, from the ledger."""

    async def other_calls(self, run: LedgerRun | None, grants: tuple[Grant, ...], call: RequestedCall) -> dict[Grant, int]:
        """Return how many other calls of the thread each grant has permitted."""
        if not any(grant.calls for grant in grants):
            return {}
        counted = self._of(run)
        if run is not None:
            await counted.read_on(run)
        this_call = set[str]() if run is None else {call.digest}
        return {grant: len(counted.calls[canonical(grant.to_json())] - this_call) for grant in grants if grant.calls}

    def take(self, run: LedgerRun | None, grant: Grant | None, call: RequestedCall) -> bool:
        """Count a call that a grant permits; False if a parallel call was faster and used the last permitted call."""
        if grant is None or grant.calls is None:
            return True
        with self._taking:
            counted = self._of(run).calls[canonical(grant.to_json())]
            # In a run, a repeated call gets the result of the first. Outside of a run, it is executed again.
            digest = f"{call.digest}#{len(counted)}" if run is None else call.digest
            if len(counted - {digest}) >= grant.calls:
                return False
            counted.add(digest)
            return True

    def _of(self, run: LedgerRun | None) -> _Counted:
        if run is None:
            return self._outside
        counts = run.opened.share(_Held).counts
        if self not in counts:
            threads = self._ledgers.setdefault(run.ledger, WeakValueDictionary())
            counts[self] = threads.setdefault(run.thread_id, _Counted())
        return counts[self]


class _Held:
    """The counts of a run. They are kept while it is open."""

    def __init__(self) -> None:
        self.counts: dict[GrantUses, _Counted] = {}


class _Counted:
    """The counts of a thread, as far as it was read: other processes may append to it."""

    def __init__(self) -> None:
        self.calls: dict[str, set[str]] = defaultdict(set)
        """By grant, the digests of the calls."""
        self._seq = 0

    async def read_on(self, run: LedgerRun) -> None:
        async for record in run.ledger.read(run.thread_id, self._seq):
            decided = _data(record.message)
            if decided.get("type") == _DECIDED and "grant" in decided:
                self.calls[canonical(decided["grant"])].add(str(decided["digest"]))
            self._seq = max(self._seq, record.seq)


def _correlation(call: RequestedCall) -> str:
    return f"permission:{call.digest}"


def _row(data: dict[str, Json], correlation_id: str) -> Message:
    return Message(policy=RUNTIME_POLICY, payload=PartsPayload(parts=(DataPart(data=data),)), correlation_id=correlation_id)


def _data(message: Message) -> dict[str, Any]:
    """Return the data of a control row of the runtime; empty for any other row."""
    if message.lane != "control" or message.policy != RUNTIME_POLICY or not isinstance(message.payload, PartsPayload):
        return {}
    parts = message.payload.parts
    data = parts[0].data if len(parts) == 1 and isinstance(parts[0], DataPart) else None
    return thaw(data) if isinstance(data, JsonObject) else {}
