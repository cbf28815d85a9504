"""Approvals: a person approves or denies one exact call. The question and the answer are rows of the ledger.

The question is a call `APPROVE` in the thread, open until a person answers, so it outlives every process. Its id is derived
from the digest of the call: the same call finds its question again, and a different call (other arguments, another agent,
thread or invocation) has another question. The answer is the result of that call, posted under the name of the person; a call
has one result, so there is one answer. The answer is checked again when the tool is started: it must be for this digest, from
a person who may answer, and not expired.

Only a row from a person counts. Text that says "approved" has no effect.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import dropwhile
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

from pydantic import AwareDatetime, BaseModel, Strict, ValidationError

from antiphon.errors import AppendRefusedError, NotWaitingError
from antiphon.ledger import Owners, Record, Tailed, open_calls_of
from antiphon.ledger._open import command_line
from antiphon.ledger._unopened import check_opened
from antiphon.messages import (
    RUNTIME_POLICY,
    Json,
    JsonObject,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    current_port,
    thaw,
)
from antiphon.messages._arguments import check_type
from antiphon.messages._message import RESERVED_POLICIES
from antiphon.runtime._rows import APPROVE

ANY: Final = "*"
"""All tools, or all agents."""
APPROVAL_EXPIRED: Final = "APPROVAL_EXPIRED"
"""The code of a call whose question nobody has answered in time."""
_AGENT: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,255}", re.ASCII)
_OWN: Final = "antiphon"
_ID_LENGTH: Final = 16

Standing: TypeAlias = Literal["open", "approved", "denied", "expired"]


def check_agent(name: str, *, or_any: bool = False) -> str:
    """Return the name of an agent, if it is valid."""
    check_type("the name of an agent", name, str, "'clerk'")
    if _AGENT.fullmatch(name) or (or_any and name == ANY):
        return name
    raise ValueError(
        f"{name!r} is not a valid name of an agent: use at most 256 ASCII letters, digits, '_', '-', '.', ':', '/'"
    )


def approval_id(digest: str) -> str:
    """Return the id of the question about a call."""
    return f"approval-{digest[:_ID_LENGTH]}"


class _Question(BaseModel, strict=True):
    """The arguments of the row with the question."""

    agent: str
    tool: str
    arguments: dict[str, object]
    digest: str
    reason: str
    expires_at: Annotated[AwareDatetime, Strict(strict=False)]
    approvers: Annotated[tuple[str, ...], Strict(strict=False)] = ()


@dataclass(frozen=True)
class Approval:
    """A question to a person, and the answer if there is one."""

    id: str
    thread_id: str
    agent: str
    tool: str
    arguments: Mapping[str, Any]
    """The arguments for display, without sensitive values."""
    digest: str
    """The digest of the exact call."""
    reason: str
    """Why a person is asked."""
    expires_at: datetime
    approvers: tuple[str, ...] = ()
    """The people who may answer; empty: everybody who can write to the ledger."""
    message_id: str = ""
    answer: Message | None = None

    def command(self, ledger: Owners | None = None) -> str:
        """Return the command line that approves it, as a person may paste it into a shell."""
        return command_line(ledger, "approve", self.id, "--as", (*self.approvers, "NAME")[0])

    # ------------------------------------------------------------ as rows

    def question(self) -> Message:
        """Return the row with the question."""
        asked: dict[str, Json] = {
            "agent": self.agent,
            "tool": self.tool,
            "arguments": dict(self.arguments),
            "digest": self.digest,
            "reason": self.reason,
            "expires_at": self.expires_at.isoformat(),
            "approvers": list(self.approvers),
        }
        payload = OptionCallPayload(invocation_id=self.id, option_name=APPROVE, arguments=asked)
        return Message(policy=RUNTIME_POLICY, payload=payload, lane="control")

    def expiry(self) -> Message:
        """Return the row that closes an expired question."""
        payload = OptionResultPayload(
            invocation_id=self.id,
            option_name=APPROVE,
            is_error=True,
            error_type=APPROVAL_EXPIRED,
            error_message=f"nobody has answered until {self.expires_at.isoformat()}",
            retryable=False,
        )
        return Message(policy=RUNTIME_POLICY, payload=payload, lane="control", in_reply_to=self.message_id)

    @classmethod
    def of(cls, rows: tuple[Record, ...], thread_id: str) -> Approval | None:
        """Return the approval in the rows of an invocation; None if they are not a question of a guard."""
        asked = next((row.message for row in rows if _is_question(row.message)), None)
        if asked is None:
            return None
        if (approval := cls.of_question(asked, thread_id)) is None:
            return None
        # The first result after the question closed it. Earlier results, and those of other threads, do not count.
        since = dropwhile(lambda message: message is not asked, (row.message for row in rows))
        return replace(approval, answer=next((message for message in since if message.kind == "option_result"), None))

    @classmethod
    def of_question(cls, asked: Message, thread_id: str | None = None) -> Approval | None:
        """Return the approval that a row asks for, without its answer; None if the row is not a question of a guard."""
        if not _is_question(asked) or not isinstance(asked.payload, OptionCallPayload):
            return None
        try:
            question = _Question.model_validate(thaw(asked.payload.arguments))
        except ValidationError:
            return None  # it was forged
        thread_id = thread_id or asked.thread_id or ""
        return cls(id=asked.payload.invocation_id, thread_id=thread_id, message_id=asked.id, **question.model_dump())

    # ------------------------------------------------------------ the state

    def standing(self, digest: str) -> Standing:
        """Return the state of the approval for a call with this digest. An unclear answer is a denial."""
        if self.answer is None:
            return "open"
        if self.answer.policy == RUNTIME_POLICY:
            return "expired"
        answer, decision = self.answer, _decision(self.answer)
        is_theirs = decision.get("digest") == digest == self.digest and self.refusal(answer.policy) is None
        # `answer` has posted it: on the control lane, in reply to this question, with a mark that nothing else sets.
        mark = answer.metadata.get(_OWN)
        is_marked = isinstance(mark, JsonObject) and mark.get("principal") == answer.policy
        is_signed = is_marked and answer.in_reply_to == self.message_id and answer.lane == "control"
        return "approved" if is_theirs and is_signed and decision.get("approved") is True else "denied"

    def is_late(self, now: datetime) -> bool:
        """Whether it has expired, with or without an answer."""
        return now >= self.expires_at

    @property
    def words(self) -> str:
        """The person who answered, and the reason, as text for the caller."""
        reason = None if self.answer is None else _decision(self.answer).get("reason")
        who = "nobody" if self.answer is None else repr(self.answer.policy)
        return f"{who} said no" + (f": {reason}" if reason else "")

    def refusal(self, principal: str) -> str | None:
        """Return the reason why a person may not answer; None if they may."""
        try:
            check_agent(principal)
        except ValueError as exc:
            return str(exc)
        if principal in RESERVED_POLICIES or principal == self.agent:
            return f"{principal!r} cannot approve: it is the machine, or the agent that wants it"
        if self.approvers and principal not in self.approvers:
            return f"{principal!r} may not answer; {', '.join(self.approvers)} may"
        return None


def _is_question(message: Message) -> bool:
    payload = message.payload
    is_call = isinstance(payload, OptionCallPayload) and payload.option_name == APPROVE
    return is_call and message.lane == "control" and message.policy == RUNTIME_POLICY


def _decision(answer: Message) -> dict[str, object]:
    payload = answer.payload
    result = payload.result if isinstance(payload, OptionResultPayload) else None
    return thaw(result) if isinstance(result, JsonObject) else {}


async def find_approval(ledger: Owners, id: str, *, thread_id: str | None = None) -> Approval | None:
    """Return the question of an id, with its answer; None if there is none."""
    check_opened(ledger)
    rows = await ledger.find(invocation_id=id, thread_id=thread_id)
    if thread_id is None:  # a fork has closed its copy of the question, and an imported history may contain it
        thread_id = next((row.message.thread_id for row in rows if _is_question(row.message)), None)
        rows = tuple(row for row in rows if row.message.thread_id == thread_id)
    return None if thread_id is None else Approval.of(rows, thread_id)


async def pending_approvals(ledger: Owners, *, thread_id: str | None = None) -> tuple[Approval, ...]:
    """Return every question that waits for an answer, of one thread or all, oldest first."""
    check_opened(ledger)
    if thread_id is not None:
        rows = await ledger.open_calls(thread_id)
    else:
        rows = tuple([row async for row in open_calls_of(ledger, APPROVE)])
    approvals = (Approval.of((row,), thread_id or row.message.thread_id or "") for row in rows)
    return tuple(approval for approval in approvals if approval is not None)


async def answer(ledger: Owners, id: str, *, principal: str, approved: bool, reason: str | None = None) -> Approval:
    """Answer a question, under a name.

    Raises:
        NotWaitingError: it has an answer, which counts; there is no such question, this person may not answer it, or nobody
            has answered it in time.
    """
    asked = await find_approval(ledger, id)
    if asked is None:
        raise NotWaitingError(f"there is no approval {id!r}")
    if (refusal := asked.refusal(principal)) is not None:
        raise NotWaitingError(refusal, asked.thread_id, code="NOT_APPROVER")
    if asked.answer is not None and asked.answer.policy != RUNTIME_POLICY:
        raise _answered(asked)
    if asked.is_late(current_port().now()):
        raise NotWaitingError(f"approval {id!r} expired at {asked.expires_at.isoformat()}", asked.thread_id, code="EXPIRED")
    try:
        await ledger.post(asked.thread_id, _answer_row(asked, principal, approved, reason))
    except AppendRefusedError:
        there = await find_approval(ledger, id, thread_id=asked.thread_id)
        if there is None or there.answer is None:  # the thread refuses it for another reason
            raise
        raise _answered(there) from None
    return asked


def _answered(approval: Approval) -> NotWaitingError:
    decision = approval.standing(approval.digest)
    if approval.answer is None or decision == "expired":
        return NotWaitingError(f"{approval.id!r} was closed without an answer", approval.thread_id, code="EXPIRED")
    by = approval.answer.policy
    reason = f"{approval.id!r} is answered already: {by!r} {decision} it"
    return NotWaitingError(reason, approval.thread_id, code="ALREADY_ANSWERED", decision=decision, by=by)


def _answer_row(asked: Approval, principal: str, approved: bool, reason: str | None) -> Message:
    decision: dict[str, Json] = {"approved": approved, "digest": asked.digest}
    if reason is not None:
        decision["reason"] = reason
    return Message(
        policy=principal,
        payload=OptionResultPayload(invocation_id=asked.id, option_name=APPROVE, result=decision),
        to=(RUNTIME_POLICY,),
        lane="control",
        in_reply_to=asked.message_id,
        created_at=current_port().now(),
        metadata={_OWN: {"principal": principal}},
    )


async def wait_for_answer(ledger: Owners, asked: Approval, seconds: float | None) -> bool:
    """Wait for an answer, for some seconds (None: until it expires). Return whether it was answered or has expired."""
    horizon = await ledger.horizon()
    there = await find_approval(ledger, asked.id, thread_id=asked.thread_id)
    if there is not None and there.answer is not None:
        return True
    rest = max(0.0, (asked.expires_at - current_port().now()).total_seconds())
    try:
        async with asyncio.timeout(rest if seconds is None else min(rest, seconds)):
            tail = cast("AsyncGenerator[Tailed]", ledger.tail(horizon, thread_id=asked.thread_id))
            async with aclosing(tail) as news:
                async for tailed in news:
                    if tailed.record.message.invocation_id == asked.id:
                        break
    except TimeoutError:
        return asked.is_late(current_port().now())
    return True
