"""Common code of the handlers of all patterns: the run around a handler, messages that stay open and why, closing of calls.

A handler that cannot continue here may continue later, or in another program: after a person has settled or approved something
(`ParkedError`), has fixed a failure outside or given a new budget (`StoppedError`), or in a program with the toolkit that
guards the tools (`UnguardedToolError`). If the handler just raised that error, it would be the final answer. Inside
`left_open`, the message stays open instead: the caller gets the error, and the same request continues from there, in this
process or the next. A row `STOPPED` records why it stopped; that row is open until the thread is resumed.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar, cast

from typing_extensions import override

from antiphon.agents.toolkit import Approval
from antiphon.durable import LedgerRun, ledger_run
from antiphon.errors import BudgetExceededError, DeliveryError, ParkedError, StoppedError, UnguardedToolError, WithdrawnError
from antiphon.ledger import Tailed
from antiphon.messages import RUNTIME_POLICY, Json, Message, OptionCallPayload, OptionResultPayload
from antiphon.messages._keys import stop_id
from antiphon.messages._long_values import cut_text
from antiphon.runtime import Actor, Context
from antiphon.runtime._rows import APPROVE, STOP, begun, unused
from antiphon.runtime._settings import STOPPED

# ---------------------------------------------------------------- messages that stay open

RESTS: Final = (ParkedError, UnguardedToolError)
"""The errors that leave a message open; a `StoppedError` is a `ParkedError`."""
_LONGEST: Final = 4000
"""The maximum size of a stored reason, in bytes."""


@asynccontextmanager
async def left_open(context: Context) -> AsyncGenerator[None]:
    """Leave the message open if the block must wait for a person or for a program with the toolkit, or was stopped."""
    try:
        try:
            yield
        except BudgetExceededError as exc:
            if exc.limit is None:
                raise  # a limit set in the program, which cannot be raised from outside
            raise stopped_by_budget(exc) from exc
    except RESTS as exc:
        if not context.is_answered:
            if isinstance(exc, StoppedError) and exc.row is None:
                # Before the caller gets the error: it reads the reason from this row.
                await _write_stop(context, exc)
            context.leave_open(exc)
        raise


def stopped_by_budget(error: BudgetExceededError) -> StoppedError:
    """Return the error of work that continues when it gets a new budget."""
    return StoppedError(error.reason, error.address, cause=error.code)


async def _write_stop(context: Context, error: StoppedError) -> None:
    thread_id, invocation_id = context.thread_id or "", context.course.invocation_id
    number = await unused(context.ledger, thread_id, partial(stop_id, invocation_id), 1)
    arguments: dict[str, Json] = {"reason": cut_text(error.reason, _LONGEST), "code": error.cause}
    row = begun(STOP, stop_id(invocation_id, number), thread_id=thread_id, parent_id=invocation_id, arguments=arguments)
    await context.journal.write(thread_id, [row])
    error.row = row.invocation_id


# ---------------------------------------------------------------- the actor of an agent


class AgentActor(Actor):
    """The base class of actors of agents: each handles its messages concurrently, also those of one thread.

    Otherwise agents that ask each other in a cycle would wait for themselves, and tasks that are delegated in parallel would
    be done one after the other.
    """

    concurrency = 1000

    @classmethod
    @override
    def ordering_key(cls, message: Message) -> str | None:
        return message.id


# ---------------------------------------------------------------- the run around a handler

_LOG: Final = logging.getLogger("antiphon.patterns")

UNHURRIED: Final = 10 * 365 * 86400.0
"""Seconds that actors of a thread wait for each other: long, because a person may have to answer. Models have their own
limit."""


def request_key(name: str, *parts: str) -> str:
    """Return the id of a request. The same text gives the same id, so a thread has such a request once."""
    return f"{name}-{sha256(repr(parts).encode(errors='backslashreplace')).hexdigest()[:24]}"


def log_unexpected(error: Exception, context: Context) -> None:
    """Log an exception that becomes an error answer: the answer does not contain the place in the code.

    The log record names the message. It does not contain the error's text, which may quote messages.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else "an unknown place"
    kind = type(error).__qualname__
    fields = {
        "antiphon.actor.address": context.address,
        "antiphon.message.id": context.message.id,
        "antiphon.thread.id": context.thread_id,
        "error.type": kind,
    }
    text = "%s could not process message %s: %s at %s"
    _LOG.error(text, context.address, context.message.id, kind, where, extra=fields)


@dataclass(slots=True)
class HandlerRun:
    """A message that is being handled."""

    run: LedgerRun
    status: str = "completed"
    """The status of the thread when it is done."""


@asynccontextmanager
async def handling(context: Context, pattern: str) -> AsyncGenerator[HandlerRun]:
    """Record the effects of a handler inside the block, and update the status of the thread.

    If the block must wait for a person, or for a program with the toolkit, the message stays open. The status of a thread that
    another pattern started is left to that pattern.
    """
    async with left_open(context), ledger_run(context) as run:
        handler = HandlerRun(run)
        if not await _is_own(context, pattern):
            yield handler
            return
        gates = context.journal.gates
        assert gates is not None  # noqa: S101 (a system's journal has them)
        await gates.passed(run.thread_id)  # before the mark: a paused or terminated thread keeps that status in lists
        context.mark(status="processing", pattern=pattern, unless_held=True)
        try:
            yield handler
        except BudgetExceededError as exc:
            if exc.limit is not None:
                await run.journal.write(run.thread_id, (), status_unless_held=STOPPED, pattern=pattern)
            else:
                context.mark(status="failed", pattern=pattern, unless_held=True)
            raise
        except RESTS as exc:
            status = STOPPED if isinstance(exc, StoppedError) else "waiting"
            await run.journal.write(run.thread_id, (), status_unless_held=status, pattern=pattern)
            raise
        except DeliveryError:
            context.mark(status="failed", pattern=pattern, unless_held=True)
            raise
        await gates.passed(run.thread_id)  # a paused thread does not end
        context.mark(status=handler.status, pattern=pattern, unless_held=True)


async def _is_own(context: Context, pattern: str) -> bool:
    """Whether a message is a task of the pattern itself, and not part of other work."""
    if context.message.parent_id is not None:
        return False
    summary = await context.ledger.thread(context.thread_id or "")
    return summary is None or summary.pattern in (None, pattern)


# ---------------------------------------------------------------- work in parallel

ResultT = TypeVar("ResultT")


async def side_by_side(works: Iterable[Awaitable[ResultT]]) -> list[ResultT]:
    """Run awaitables in parallel, all to the end; return their results, or raise the error of the first that failed.

    If the others were cancelled instead, the calls that they have made would stay open.
    """
    results: list[ResultT] = []
    for outcome in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results


# ---------------------------------------------------------------- calls that a stopped handler left open

_GRACE: Final = 5.0
"""Seconds that a handler may take to stop."""


async def stopped(run: LedgerRun, invocation_id: str) -> None:
    """Wait until the handler of a call has stopped, for at most 5 seconds.

    A call that it makes before it stops would be left open.
    """
    now = await run.ledger.horizon()
    if not await _is_at_work(run, invocation_id):
        return
    news = cast("AsyncGenerator[Tailed]", run.ledger.tail(now, thread_id=run.thread_id))
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE), aclosing(news):
            async for _ in news:
                if not await _is_at_work(run, invocation_id):
                    return


async def _is_at_work(run: LedgerRun, invocation_id: str) -> bool:
    """Whether a request is open: the call itself, or one that its handler has made."""
    calls = [record.message for record in await run.ledger.open_calls(run.thread_id)]
    return any(call.lane == "control" and _is_part_of(call.invocation_id or "", invocation_id) for call in calls)


async def end_open_calls(
    run: LedgerRun,
    invocation_id: str,
    error: DeliveryError,
    *,
    fields: Callable[[Message], Mapping[str, Any]],
    besides: str = "",
) -> None:
    """End each open call in the talk of `invocation_id`, except the call `besides`. A second call does nothing.

    `fields` returns the fields of the result besides its payload, such as the metadata of a dialect.
    """
    for record in await run.ledger.open_calls(run.thread_id):
        message, call = record.message, record.message.payload
        if message.lane != "talk" or not isinstance(call, OptionCallPayload) or call.invocation_id == besides:
            continue
        if _is_part_of(message.parent_id or "", invocation_id):
            key = f"ended-{sha256(call.invocation_id.encode()).hexdigest()[:16]}"
            result = failed_result(call.invocation_id, call.option_name, error.code, error.reason, retryable=error.retryable)
            settled: dict[str, Any] = {"role_hint_for_llm": "tool", "in_reply_to": message.id, **fields(message)}
            await run.say(Message(policy=RUNTIME_POLICY, payload=result, **settled), key=key)


def _is_part_of(parent_id: str, invocation_id: str) -> bool:
    """Whether a parent id belongs to a message, or to a repetition of it."""
    return parent_id == invocation_id or parent_id.startswith((f"{invocation_id}/", f"{invocation_id}~"))


def failed_result(
    invocation_id: str, option_name: str, code: str, reason: str, *, retryable: bool = False
) -> OptionResultPayload:
    """Return the result of a call that has failed, or was not made."""
    return OptionResultPayload(
        invocation_id=invocation_id,
        option_name=option_name,
        is_error=True,
        error_type=code,
        error_message=reason,
        retryable=retryable,
    )


# ---------------------------------------------------------------- approvals


def withdrawal(approval: Approval) -> Message:
    """Return the row that closes an approval that is no longer needed."""
    payload = failed_result(approval.id, APPROVE, WithdrawnError.code, "the thread is terminated")
    return Message(policy=RUNTIME_POLICY, payload=payload, lane="control", in_reply_to=approval.message_id)
