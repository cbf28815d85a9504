"""The guard: every tool call goes through it. The order of the steps is the guarantee.

1. Check the arguments against the whole schema. On failure, tell the caller and stop.
2. Decide by the permissions, and write the decision to the log.
3. If a person must approve, write the question, and start nothing before there is an answer.
4. Write the intent.
5. Check permission and approval once more, as they are now: a grant may have been revoked since step 2.
6. Start the tool, and write its outcome.

Outside of a run there is no ledger, so nothing is written. The other steps are the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from threading import Lock
from typing import Any, cast
from weakref import WeakValueDictionary

from pydantic_ai import RunContext

from antiphon.agents._guards import Cover, Secrets
from antiphon.agents._observers import count_step
from antiphon.agents._tool_changes import ToolChanges
from antiphon.agents.durability._talk import guards_of
from antiphon.agents.toolkit._decision import (
    ApprovalRule,
    Circumstances,
    DecisionLog,
    Grant,
    GrantUses,
    Permissions,
    RequestedCall,
    ToolDecision,
    judge,
)
from antiphon.agents.toolkit._execution import ToolkitCallEffect, check_row, execute
from antiphon.agents.toolkit._taint import Taint, taint_scope
from antiphon.agents.toolkit._tool import (
    APPROVAL_DENIED,
    APPROVAL_REQUIRED,
    INVOCATION_REUSED,
    PERMISSION_DENIED,
    RESULT_INVALID,
    SENSITIVE_LOST,
    TIMEOUT,
    TOOL_FAILED,
    ToolkitTool,
    ToolOutcome,
    ToolRefusal,
)
from antiphon.durable._approvals import APPROVAL_EXPIRED, Approval, approval_id, check_agent, find_approval, wait_for_answer
from antiphon.durable._run import LedgerRun, current_run, run_scope
from antiphon.errors import (
    EffectFailedError,
    FailedError,
    HistoryMismatchError,
    ParkedError,
    RefusedError,
    ReplyTimeoutError,
    UnknownOutcomeError,
)
from antiphon.ledger import STANDARD_REDACTION, Owners, Redaction
from antiphon.messages import Json, OptionCallPayload, current_port, thaw
from antiphon.messages._arguments import check_type
from antiphon.messages._keys import as_key

# ---------------------------------------------------------------- the policy


@dataclass
class ToolkitPolicy:
    """The policy of a toolkit: permissions, approval rules, approvers, and counts of calls."""

    rules: Sequence[ApprovalRule] = ()
    approvers: tuple[str, ...] = ()
    approval_expires: timedelta = timedelta(days=1)
    approval_wait: float | None = 0.0
    redaction: Redaction = STANDARD_REDACTION
    permissions: Permissions = field(default_factory=Permissions)
    uses: GrantUses = field(default_factory=GrantUses)
    _changing: Lock = field(default_factory=Lock, repr=False)
    """Held while the permissions are changed: threads share a toolkit, and no revocation may be lost."""

    def __post_init__(self) -> None:
        for name in self.approvers:
            check_agent(name)
        check_type("approval_expires", self.approval_expires, timedelta, "timedelta(days=1)")
        if self.approval_expires <= timedelta():
            raise ValueError("approval_expires must be positive")

    @property
    def clean(self) -> Callable[[str], str]:
        """The function that removes secrets from a text."""
        return self.redaction.text

    def cover(self, toolkit: str, agent: str, tools: Mapping[str, ToolkitTool], run: str | None = None) -> Cover:
        """Return the rules that a toolkit with these tools enforces for an agent."""
        permitted = {name: tool for name, tool in sorted(tools.items()) if self.permissions.knows(agent, name)}
        asks = [
            name for name, tool in permitted.items() if tool.approval or any(rule.covers(agent, name) for rule in self.rules)
        ]
        lenient = frozenset(name for name, tool in permitted.items() if tool.allows_untrusted)
        return Cover(toolkit, agent, tuple(permitted), tuple(asks), run, lenient)

    def grant(self, grant: Grant) -> None:
        """Add a grant."""
        with self._changing:
            self.permissions = self.permissions.grant(grant)

    def revoke(self, agent: str, tool: str) -> None:
        """Revoke a tool for an agent."""
        with self._changing:
            self.permissions = self.permissions.revoke(agent, tool)


# ---------------------------------------------------------------- one execution per id


class Invocations:
    """The calls of a run and all its parts, by id: a call is executed once, however often the run makes it.

    The ledger has the executed calls, and a repeated call gets its result from there. This class keeps only data that the
    ledger does not have: the calls that are being executed, so that a second one waits, and the call that each id of this run
    belongs to.
    """

    def __init__(self) -> None:
        self._digests: dict[tuple[str, str], str] = {}
        """By course and id, the digest of the call that was started under it."""
        self._at_work: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def turn(self, run: LedgerRun, id: str) -> asyncio.Lock:
        """Return the lock that a call holds while it is executed."""
        return self._at_work.setdefault(_place(run, id), asyncio.Lock())

    async def check(self, run: LedgerRun, id: str, call: RequestedCall) -> None:
        """Refuse an id that belongs to another call: other arguments, another tool or another agent.

        Raises:
            ToolRefusal: it belongs to another call in this process.
            HistoryMismatchError: it belongs to another call in the thread, which this process has not repeated.
        """
        place = _place(run, id)
        if (digest := self._digests.get(place)) is not None:
            if digest != call.digest:
                raise ToolRefusal(INVOCATION_REUSED, f"{id!r} is the id of another call: give this one an id of its own")
        elif run.is_again and (await guards_of(run)).calls.get(place, call.digest) != call.digest:
            reason = f"the program calls {call.tool!r} under the id {id!r}, which is another call in thread {run.thread_id!r}"
            raise HistoryMismatchError(reason, run.course.to)

    def keep(self, run: LedgerRun, id: str, call: RequestedCall) -> None:
        """Note that a call is started under its id."""
        self._digests[_place(run, id)] = call.digest


def _place(run: LedgerRun, id: str) -> tuple[str, str]:
    return run.course.invocation_id, id


# ---------------------------------------------------------------- the guard


class PendingApproval(Exception):  # noqa: N818 (a state, not an error: the caller waits)
    """A person was asked, and has not answered."""

    def __init__(self, approval: Approval, ledger: Owners) -> None:
        super().__init__(approval.id)
        self.approval = approval
        self.ledger = ledger
        """The ledger in which the answer will be stored."""


@dataclass(frozen=True)
class GuardedCall:
    """A call that the guard processes."""

    tool: ToolkitTool
    arguments: dict[str, object]
    ctx: RunContext[object]
    invocation: str
    """Its id in the run: the same when the program runs again. One id is one execution."""
    taint: Taint
    run: LedgerRun | None = None
    """The run that it is part of; None: nothing is stored."""
    parent_id: str | None = None
    """The id of the model's call, if a model made it."""
    is_approved: bool = False
    """Whether the program states that it was approved. This counts only outside of a run."""

    @property
    def key(self) -> str:
        """Its key in the journal."""
        return f"tool:{self.tool.name}:{self.invocation}"


class Guard:
    """Checks and executes the tool calls of one agent."""

    def __init__(self, policy: ToolkitPolicy, agent: str) -> None:
        self._policy = policy
        self._agent = agent

    async def call(self, asked: GuardedCall) -> ToolOutcome:
        """Execute a call, if it is allowed.

        Raises:
            ToolRefusal: it is not allowed, or it failed.
            PendingApproval: a person must approve it first.
            ParkedError: its outcome is unknown, and a person must settle it.
            HistoryMismatchError: the program does not repeat its recorded steps.
        """
        if asked.run is None:
            return await self._called(asked)
        invocations = asked.run.opened.share(Invocations)
        async with invocations.turn(asked.run, asked.invocation):  # one executes, the others get its result
            return await self._called(asked)

    async def call_and_wait(self, asked: GuardedCall) -> ToolOutcome:
        """Execute a call, and wait for the person who must approve it first, as long as the policy allows.

        Raises:
            ParkedError: nobody has answered in time; otherwise like `call`.
        """
        try:
            return await self.call(asked)
        except PendingApproval as exc:
            pending = exc
        if not await self.wait(pending.ledger, pending.approval):
            raise waits_for(pending.ledger, pending.approval)
        return await self.call(asked)

    async def _called(self, asked: GuardedCall) -> ToolOutcome:
        run = asked.run
        call = self._call(asked, run)
        if asked.tool.lost(asked.arguments):
            call = await self._recorded(asked, call, run)
        else:
            asked.tool.check_arguments(asked.arguments)
        if run is not None:
            await run.opened.share(Invocations).check(run, asked.invocation, call)
        decision = await self._decide(asked, call, run)
        if decision.verdict == "deny":
            raise ToolRefusal(PERMISSION_DENIED, decision.reason)
        needs_approval = decision.verdict == "ask"
        if needs_approval:
            await self._require(asked, call, run, decision.reason)
        try:
            outcome = await self._perform(asked, call, run, needs_approval=needs_approval)
        except ToolRefusal as exc:
            asked.taint.mark(exc.untrusted or _source(asked.tool))
            raise
        outcome = replace(outcome, untrusted=outcome.untrusted or _source(asked.tool))
        asked.taint.mark(outcome.untrusted)
        return outcome

    def _call(self, asked: GuardedCall, run: LedgerRun | None) -> RequestedCall:
        if run is None:
            return RequestedCall(self._agent, asked.tool.name, asked.arguments, None, asked.key)
        invocation_id = f"{run.course.invocation_id}/{asked.key}"
        return RequestedCall(self._agent, asked.tool.name, asked.arguments, run.thread_id, invocation_id)

    async def _recorded(self, asked: GuardedCall, call: RequestedCall, run: LedgerRun | None) -> RequestedCall:
        """Return a call whose sensitive values are lost, with its recorded digest, so that its recorded outcome is found.

        Raises:
            ToolRefusal: it had not started, and cannot start without them.
        """
        if run is not None:
            effect = f"{run.course.invocation_id}/{as_key(asked.key)}"
            for row in await run.ledger.find(invocation_id=effect, thread_id=run.thread_id):
                if row.message.lane == "effect" and isinstance(row.message.payload, OptionCallPayload):
                    recorded = thaw(row.message.payload.arguments)
                    return replace(call, recorded=recorded["arguments"]["digest"])
        raise _lost(asked)

    # ------------------------------------------------------------ 2. permission

    async def _decide(self, asked: GuardedCall, call: RequestedCall, run: LedgerRun | None) -> ToolDecision:
        policy = self._policy
        book = None if run is None else DecisionLog(run)
        if book is not None:
            if (recorded := await book.recall(call)) is not None:
                return recorded
            await book.write_permissions(self._agent, policy.permissions)
        tainted = None if asked.tool.allows_untrusted else asked.taint.untrusted
        decision = await self._judge(asked, call, run, tainted=tainted)
        while not policy.uses.take(run, decision.grant, call):  # before any await, so that two calls are not counted as one
            decision = await self._judge(asked, call, run, tainted=tainted)
        if book is not None:
            await book.write(call, decision)
        return decision

    async def _judge(
        self, asked: GuardedCall, call: RequestedCall, run: LedgerRun | None, *, tainted: str | None
    ) -> ToolDecision:
        policy = self._policy
        used = await policy.uses.other_calls(run, policy.permissions.grants, call)
        circumstances = Circumstances(current_port().now(), used, asked.tool.approval, tainted)
        return judge(policy.permissions, policy.rules, call, circumstances)

    # ------------------------------------------------------------ 3. approval

    async def _require(self, asked: GuardedCall, call: RequestedCall, run: LedgerRun | None, reason: str) -> None:
        """Return if a person has approved the call; raise otherwise."""
        if run is None:
            if not asked.is_approved:
                raise ToolRefusal(APPROVAL_REQUIRED, f"{reason}; run it in a ledger_run, where a person can be asked")
            return
        approval = await self._question(asked, call, run, reason)
        standing = approval.standing(call.digest)
        if standing == "open" and approval.is_late(current_port().now()):
            # An answer that arrived just before wins, and has also expired.
            with suppress(HistoryMismatchError):
                await run.note(approval.expiry(), key=f"{approval.id}:expired")
            approval = cast("Approval", await find_approval(run.ledger, approval.id, thread_id=run.thread_id))
            standing = approval.standing(call.digest)
        if standing == "open":
            raise PendingApproval(approval, run.ledger)
        if standing != "approved":
            raise _refusal(approval, standing)

    async def _question(self, asked: GuardedCall, call: RequestedCall, run: LedgerRun, reason: str) -> Approval:
        """Ask a person, unless the question exists."""
        name = approval_id(call.digest)
        there = await find_approval(run.ledger, name, thread_id=run.thread_id)
        if there is not None:
            return there
        approval = Approval(
            id=name,
            thread_id=run.thread_id,
            agent=call.agent,
            tool=call.tool,
            arguments=asked.tool.shown(call.arguments),
            digest=call.digest,
            reason=reason,
            expires_at=current_port().now() + self._policy.approval_expires,
            approvers=self._policy.approvers,
        )
        record = await run.note(approval.question(), key=name)
        return replace(approval, message_id=record.message.id)

    async def wait(self, ledger: Owners, approval: Approval) -> bool:
        """Wait for an answer as long as the policy allows. Return whether the call should be made again."""
        return await wait_for_answer(ledger, approval, self._policy.approval_wait)

    # ------------------------------------------------------------ 4. to 6. the tool

    async def _perform(
        self, asked: GuardedCall, call: RequestedCall, run: LedgerRun | None, *, needs_approval: bool
    ) -> ToolOutcome:
        if run is None:
            return await self._start(asked)
        run.opened.share(Invocations).keep(run, asked.invocation, call)
        arguments: dict[str, Json] = {"arguments": asked.tool.shown(asked.arguments), "digest": call.digest}

        async def inside(_: str) -> Json:
            if asked.tool.lost(asked.arguments):
                raise _lost(asked)
            await self._check_again(asked, call, run, needs_approval=needs_approval)
            with run_scope(run.part(effect.key)):  # effects inside the tool are numbered separately
                try:
                    outcome = await self._start(replace(asked, ctx=changes.begin()))
                except ToolRefusal as exc:
                    if exc.code != RESULT_INVALID or exc.returned is None or asked.tool.effects != "once":
                        raise
                    effect.evidence = {"returned": cast("Json", exc.returned)}
                    reason = f"it ran, and its result cannot be recorded: {exc.reason}"  # a model would call it again
                    raise UnknownOutcomeError(f"{reason}: {exc.returned['value']}") from None
            check_row(outcome)
            return {**cast("dict[str, Json]", run.opened.share(Secrets).clean(outcome.to_json())), **changes.stored()}

        changes = ToolChanges(run.watch, asked.tool.name, asked.ctx)
        effect = ToolkitCallEffect(run, asked.tool, arguments, key=asked.key, parent_id=asked.parent_id, ctx=asked.ctx)
        try:
            async with run.watch.alone((current_run() or run).invocation_id):
                result = await effect.call(_failing(inside, changes))
                changes.restore(result, effect.id)
        except RefusedError as exc:
            changes.restore(exc.details, effect.id)
            raise ToolRefusal.from_details(exc.code, exc.reason, exc.details, retryable=exc.retryable) from None
        except ReplyTimeoutError as exc:
            raise ToolRefusal(TIMEOUT, exc.reason, retryable=True) from None
        except EffectFailedError as exc:  # settled by a person
            raise ToolRefusal(TOOL_FAILED, exc.reason) from None
        finally:
            count_step(run, asked.ctx, was_done=changes.did_run)
        changes.check()
        return ToolOutcome.from_json(result)

    async def _check_again(self, asked: GuardedCall, call: RequestedCall, run: LedgerRun, *, needs_approval: bool) -> None:
        """Check permission and approval as they are now. Taint that came after the decision does not count."""
        decision = await self._judge(asked, call, run, tainted=None)
        if decision.verdict == "deny":
            raise ToolRefusal(PERMISSION_DENIED, decision.reason)
        if not needs_approval:
            if decision.verdict == "ask":
                raise ToolRefusal(APPROVAL_REQUIRED, f"{decision.reason}, and did not when it was decided; call it again")
            return
        approval = await find_approval(run.ledger, approval_id(call.digest), thread_id=run.thread_id)
        if approval is None or approval.standing(call.digest) != "approved":
            raise ToolRefusal(APPROVAL_DENIED, "nobody has approved this call")
        if approval.is_late(current_port().now()):
            raise _refusal(approval, "expired")

    async def _start(self, asked: GuardedCall) -> ToolOutcome:
        inner, withheld = Taint(asked.taint), Secrets() if asked.run is None else asked.run.opened.share(Secrets)
        withheld.remember(asked.arguments[name] for name in asked.tool.sensitive if name in asked.arguments)

        def clean(text: str) -> str:
            return self._policy.clean(withheld.clean_text(text))

        try:
            with taint_scope(inner):
                outcome = await execute(asked.tool, asked.arguments, asked.ctx, clean)
        except ToolRefusal as exc:
            exc.untrusted = inner.source_here
            raise
        return replace(outcome, untrusted=outcome.untrusted or inner.source_here)


def waits_for(ledger: Owners, *approvals: Approval) -> ParkedError:
    """Return the error that names the missing approvals, with the complete commands that give them."""
    how = " and ".join(f"`{approval.command(ledger)}`" for approval in approvals)
    why = "; ".join(dict.fromkeys(approval.reason for approval in approvals))
    return ParkedError(f"it waits for a person, because {why}: {how}, or deny; then run it again")


def _lost(asked: GuardedCall) -> ToolRefusal:
    names = " and ".join(map(repr, asked.tool.lost(asked.arguments)))
    reason = f"what was given for {names} is written down nowhere, and went with the process that had it; give it again"
    return ToolRefusal(SENSITIVE_LOST, reason)


def _source(tool: ToolkitTool) -> str | None:
    return f"what {tool.name!r} returned" if tool.untrusted else None


def _refusal(approval: Approval, standing: str) -> ToolRefusal:
    if standing == "expired":
        return ToolRefusal(APPROVAL_EXPIRED, f"the approval was good until {approval.expires_at.isoformat()}")
    return ToolRefusal(APPROVAL_DENIED, approval.words)


def _failing(inside: Callable[[str], Any], changes: ToolChanges) -> Callable[[str], Any]:
    """Store a refusal as the outcome of the effect, with the changes that the tool made before."""

    async def run(key: str) -> Json:
        try:
            return cast("Json", await inside(key))
        except ToolRefusal as exc:
            details = {**exc.to_details(), **changes.stored()}
            raise FailedError(exc.reason, exc.code, details=details, retryable=exc.retryable) from None

    return run
