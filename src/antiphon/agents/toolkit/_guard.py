"""The guard: the one way to a tool. The order of the lines is the guarantee.

1. The arguments are checked against the whole schema. A failure is told, and nothing else happens.
2. The permissions decide, and the decision is written down.
3. If a person must say yes, the question is written down, and nothing is started before the answer is there.
4. The intent is written down.
5. Permission and approval are looked at once more, as they are now: this is where a tool is started.
6. The tool is started, and its outcome is written down.

Outside of a run there is no ledger to write to; the rest holds there too.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic_ai import RunContext

from antiphon.agents._course import as_key
from antiphon.agents._run import LedgerRun, run_scope
from antiphon.agents._withheld import Withheld
from antiphon.agents.toolkit._approvals import Approval, approval_id, find_approval, wait_for_answer
from antiphon.agents.toolkit._book import Book
from antiphon.agents.toolkit._call import Call
from antiphon.agents.toolkit._effect import ToolEffect
from antiphon.agents.toolkit._errors import (
    APPROVAL_DENIED,
    APPROVAL_EXPIRED,
    APPROVAL_REQUIRED,
    PERMISSION_DENIED,
    SENSITIVE_LOST,
    TIMEOUT,
    TOOL_FAILED,
    ToolRefusal,
)
from antiphon.agents.toolkit._execution import execute
from antiphon.agents.toolkit._invocations import Invocations
from antiphon.agents.toolkit._outcome import Outcome
from antiphon.agents.toolkit._policy import Policy
from antiphon.agents.toolkit._results import check_row
from antiphon.agents.toolkit._rules import Circumstances, Decision, judge
from antiphon.agents.toolkit._tool import ToolkitTool
from antiphon.agents.toolkit.taint import Taint, taint_scope
from antiphon.errors import EffectFailedError, HistoryMismatchError, RefusedError, ReplyTimeoutError
from antiphon.ledger import Ledger
from antiphon.messages import Json, OptionCallPayload, current_port, thaw
from antiphon.runtime import FailedError

__all__ = ["Asked", "Guard", "PendingApproval"]


class PendingApproval(Exception):  # noqa: N818 (a state of affairs, on its way to whoever can wait)
    """A person has been asked, and has not answered."""

    def __init__(self, approval: Approval, ledger: Ledger) -> None:
        super().__init__(approval.id)
        self.approval = approval
        self.ledger = ledger
        """Where the answer will be."""


@dataclass(frozen=True)
class Asked:
    """A call on its way to a tool."""

    tool: ToolkitTool
    arguments: dict[str, Any]
    ctx: RunContext[Any]
    invocation: str
    """What it is known by in its run: the same when the program runs again. It stands for one execution."""
    taint: Taint
    run: LedgerRun | None = None
    """The run that it is part of; None: nothing is written down."""
    parent_id: str | None = None
    """The call of the model, if it is one."""
    is_approved: bool = False
    """Whether the program says that somebody has approved it; it counts only where there is no ledger."""

    @property
    def key(self) -> str:
        """What the journal knows it by."""
        return f"tool:{self.tool.name}:{self.invocation}"


class Guard:
    """What stands between an agent and its tools."""

    def __init__(self, policy: Policy, agent: str) -> None:
        self._policy = policy
        self._agent = agent

    async def call(self, asked: Asked) -> Outcome:
        """Have a tool called, if it may be.

        Raises:
            ToolRefusal: it may not, or it failed.
            PendingApproval: a person must say yes first.
            ParkedError: nobody knows whether it was done, and a person must look.
            HistoryMismatchError: the program did something else the last time it ran.
            LedgerError: it could not be written down.
        """
        if asked.run is None:
            return await self._called(asked)
        async with Invocations.of(asked.run).turn(asked.run, asked.invocation):  # one executes, the others get its result
            return await self._called(asked)

    async def _called(self, asked: Asked) -> Outcome:
        run = asked.run
        call = self._call(asked, run)
        if asked.tool.lost(asked.arguments):
            call = await self._recorded(asked, call, run)
        else:
            asked.tool.check_arguments(asked.arguments)
        if run is not None:
            await Invocations.of(run).check(run, asked.invocation, call)
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

    def _call(self, asked: Asked, run: LedgerRun | None) -> Call:
        if run is None:
            return Call(self._agent, asked.tool.name, asked.arguments, None, asked.key)
        invocation_id = f"{run.course.invocation_id}/{asked.key}"
        return Call(self._agent, asked.tool.name, asked.arguments, run.thread_id, invocation_id)

    async def _recorded(self, asked: Asked, call: Call, run: LedgerRun | None) -> Call:
        """Return a call without its sensitive values as the thread knows it: what came of it is given back.

        Raises:
            ToolRefusal: it was not begun, and cannot be without them.
        """
        if run is not None:
            effect = f"{run.course.invocation_id}/{as_key(asked.key)}"
            for row in await run.ledger.by_invocation(effect, thread_id=run.thread_id):
                if row.message.lane == "effect" and isinstance(row.message.payload, OptionCallPayload):
                    said = thaw(row.message.payload.arguments)
                    return replace(call, recorded=said["arguments"]["digest"])
        raise _lost(asked)

    # ------------------------------------------------------------ 2. permission

    async def _decide(self, asked: Asked, call: Call, run: LedgerRun | None) -> Decision:
        policy = self._policy
        book = None if run is None else Book(run)
        if book is not None:
            if (known := await book.recall(call)) is not None:
                return known
            await book.write_permissions(self._agent, policy.permissions)
        tainted = None if asked.tool.allows_untrusted else asked.taint.untrusted
        decision = await self._judge(asked, call, run, tainted=tainted)
        while not policy.uses.take(run, decision.grant, call):  # before anybody waits, so that two are not counted as one
            decision = await self._judge(asked, call, run, tainted=tainted)
        if book is not None:
            await book.write(call, decision)
        return decision

    async def _judge(self, asked: Asked, call: Call, run: LedgerRun | None, *, tainted: str | None) -> Decision:
        policy = self._policy
        used = await policy.uses.others(run, policy.permissions.grants, call)
        circumstances = Circumstances(current_port().now(), used, asked.tool.approval, tainted)
        return judge(policy.permissions, policy.rules, call, circumstances)

    # ------------------------------------------------------------ 3. approval

    async def _require(self, asked: Asked, call: Call, run: LedgerRun | None, reason: str) -> None:
        """Go on only with a person's yes."""
        if run is None:
            if not asked.is_approved:
                raise ToolRefusal(APPROVAL_REQUIRED, f"{reason}; run it in a ledger_run, where a person can be asked")
            return
        approval = await self._question(asked, call, run, reason)
        standing = approval.standing(call.digest)
        if standing == "open" and approval.is_late(current_port().now()):
            approval = await self._close(run, approval)
            standing = approval.standing(call.digest)
        if standing == "open":
            raise PendingApproval(approval, run.ledger)
        if standing != "approved":
            raise _refusal(approval, standing)

    async def _question(self, asked: Asked, call: Call, run: LedgerRun, reason: str) -> Approval:
        """Ask a person, unless that was done."""
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

    async def _close(self, run: LedgerRun, approval: Approval) -> Approval:
        """Close a question that nobody has answered in time; an answer that came just now wins, and is too late."""
        with suppress(HistoryMismatchError):
            await run.note(approval.expiry(), key=f"{approval.id}:expired")
        return cast("Approval", await find_approval(run.ledger, approval.id, thread_id=run.thread_id))

    async def wait(self, ledger: Ledger, approval: Approval) -> bool:
        """Wait for an answer as long as the toolkit says, and say whether it is worth asking for the tool again."""
        return await wait_for_answer(ledger, approval, self._policy.approval_wait)

    # ------------------------------------------------------------ 4. to 6. the tool

    async def _perform(self, asked: Asked, call: Call, run: LedgerRun | None, *, needs_approval: bool) -> Outcome:
        if run is None:
            return await self._start(asked)
        Invocations.of(run).keep(run, asked.invocation, call)
        arguments: dict[str, Json] = {"arguments": asked.tool.shown(asked.arguments), "digest": call.digest}

        async def inside(key: str) -> Json:
            if asked.tool.lost(asked.arguments):
                raise _lost(asked)
            await self._check_again(asked, call, run, needs_approval=needs_approval)
            with run_scope(run.part(key)):  # what the tool does in turn is numbered for itself
                outcome = await self._start(asked)
            check_row(outcome)
            return cast("Json", Withheld.of(run).clean(outcome.to_json()))

        try:
            effect = ToolEffect(run, asked.tool, arguments, key=asked.key, parent_id=asked.parent_id, ctx=asked.ctx)
            said = await effect.call(_failing(inside))
        except RefusedError as exc:
            raise ToolRefusal.from_details(exc.code, exc.reason, exc.details, retryable=exc.retryable) from None
        except ReplyTimeoutError as exc:
            raise ToolRefusal(TIMEOUT, exc.reason, retryable=True) from None
        except EffectFailedError as exc:  # as a person has settled it
            raise ToolRefusal(TOOL_FAILED, exc.reason) from None
        return Outcome.from_json(said)

    async def _check_again(self, asked: Asked, call: Call, run: LedgerRun, *, needs_approval: bool) -> None:
        """Look at permission and approval as they are at this moment. What was read since it was decided does not count."""
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

    async def _start(self, asked: Asked) -> Outcome:
        inner = Taint(asked.taint)
        try:
            with taint_scope(inner):
                outcome = await execute(asked.tool, asked.arguments, asked.ctx, self._cleaner(asked))
        except ToolRefusal as exc:
            exc.untrusted = inner.own
            raise
        return replace(outcome, untrusted=inner.own)

    def _cleaner(self, asked: Asked) -> Callable[[str], str]:
        """Return what takes out of a text what must not be told."""
        withheld = Withheld() if asked.run is None else Withheld.of(asked.run)
        withheld.remember(asked.arguments[name] for name in asked.tool.sensitive if name in asked.arguments)
        return lambda text: self._policy.clean(withheld.clean_text(text))


def _lost(asked: Asked) -> ToolRefusal:
    names = " and ".join(map(repr, asked.tool.lost(asked.arguments)))
    reason = f"what was given for {names} is written down nowhere, and went with the process that had it; give it again"
    return ToolRefusal(SENSITIVE_LOST, reason)


def _source(tool: ToolkitTool) -> str | None:
    return f"what {tool.name!r} returned" if tool.untrusted else None


def _refusal(approval: Approval, standing: str) -> ToolRefusal:
    if standing == "expired":
        return ToolRefusal(APPROVAL_EXPIRED, f"the approval was good until {approval.expires_at.isoformat()}")
    return ToolRefusal(APPROVAL_DENIED, approval.words)


def _failing(inside: Callable[[str], Any]) -> Callable[[str], Any]:
    """Have a refusal recorded as the outcome that it is."""

    async def run(key: str) -> Json:
        try:
            return cast("Json", await inside(key))
        except ToolRefusal as exc:
            raise FailedError(exc.reason, exc.code, details=exc.to_details(), retryable=exc.retryable) from None

    return run
