"""ExecutorActor: has policies run in threads, and calls completed; and what it is asked."""

from __future__ import annotations

from typing import Any

from antiphon.agents import LedgerRun
from antiphon.errors import DecodeError, RefusedError
from antiphon.ledger import from_outside
from antiphon.messages import Conversation, Message, PartsPayload, TextPart, loads
from antiphon.patterns.cast import handling
from antiphon.patterns.options._calls import Workshop, complete
from antiphon.patterns.options._heed import heed
from antiphon.patterns.options._loop import Loop
from antiphon.patterns.options._past import PATTERN, RUN, Past
from antiphon.protocol import ErrorCode, Reply, Request
from antiphon.runtime import Actor, Context, handles

__all__ = ["CallsCompleted", "CompleteCalls", "ExecutorActor", "PolicyRan", "RunPolicy"]


class PolicyRan(Reply, frozen=True, type="POLICY_RAN"):
    """What the policy answered."""

    response: str | None = None
    data: Any = None
    """The same as a JSON value, where it is more than text."""


class RunPolicy(Request[PolicyRan], frozen=True, type=RUN, family="options"):
    """Have a policy decide, and what it calls run, until it calls nothing."""

    policy: str
    input: str | None = None
    """What is asked, as text."""
    observations: tuple[str, ...] = ()
    """What is to be observed, as messages of the house format, to the letter."""


class CallsCompleted(Reply, frozen=True, type="CALLS_COMPLETED"):
    """They have their results."""

    results: tuple[str, ...] = ()
    """The ids of those."""


class CompleteCalls(Request[CallsCompleted], frozen=True, type="COMPLETE_CALLS", family="options"):
    """Run every call at the top of the thread that has no result."""

    observations: tuple[str, ...] = ()
    """A conversation to be said in the thread before, in the same form."""


class ExecutorActor(Actor):
    """Runs policies, each in its thread; those of one thread after each other."""

    concurrency = 1000

    def __init__(self, workshop: Workshop) -> None:
        self._workshop = workshop

    @handles
    async def run(self, request: RunPolicy, context: Context) -> PolicyRan:
        """Run a policy to its end."""
        policies = self._workshop.options.policies
        if request.policy not in policies:
            reason = f"there is no policy {request.policy!r}; there are {', '.join(policies) or 'none'}"
            raise RefusedError(reason, ErrorCode.VALIDATION_ERROR)
        policy = self._workshop.options.find(request.policy)
        async with handling(context, PATTERN) as here:
            run = here.run
            past = await Past.read(run, self._workshop.limits)
            given, closed = await _hear(run, request.observations, outside=True)
            asked: list[Message] = []
            if request.input is not None:
                asked, _ = await _write(run, [_asked(run.course.invocation_id, request.input)])
            past.hear([*given, *asked])  # read again after a crash, the thread has them: the steps must be the same
            heed(run, [*past.before, *given])
            loop = Loop(self._workshop, run, policy, past)
            answer = await loop.go([*past.before, *given, *closed, *asked], unhashed={each.id for each in closed})
        return PolicyRan(response=answer.text, **({} if answer.data is None else {"data": answer.data}))

    @handles
    async def complete(self, request: CompleteCalls, context: Context) -> CallsCompleted:
        """Complete the calls of a conversation."""
        async with handling(context, PATTERN) as here:
            run = here.run
            past = await Past.read(run, self._workshop.limits)
            given, _ = await _hear(run, request.observations, outside=False)  # its open calls are what is to be run
            calls = Conversation([*past.before, *given]).open_calls()
            if not calls:
                return CallsCompleted()
            heed(run, [*past.before, *given])
            beyond = past.goes_beyond(len(calls))
            results = await complete(self._workshop, run, calls, self._workshop.rule, beyond=beyond)
        return CallsCompleted(results=tuple(result.id for result in results))


async def _hear(run: LedgerRun, observations: tuple[str, ...], *, outside: bool) -> tuple[list[Message], list[Message]]:
    """Write the observations to the thread, once; return them as stored, and the results that closed open calls in them.

    They are talk, whatever they say of themselves, and are addressed to nobody. `outside` closes the calls that are open.

    Raises:
        RefusedError: it is none.
    """
    try:
        rows = [_heard(loads(each.encode(), Message)) for each in observations]
    except DecodeError as exc:
        raise RefusedError(str(exc), ErrorCode.VALIDATION_ERROR) from exc
    return await _write(run, rows, outside=outside)


def _heard(message: Message) -> Message:
    """Return a message from elsewhere as talk: whatever it says of itself, it is no order to an actor.

    Of the runtime's metadata only the mark of untrusted content stays.
    """
    return from_outside(message.model_copy(update={"lane": "talk", "to": ()}))


async def _write(run: LedgerRun, rows: list[Message], *, outside: bool = False) -> tuple[list[Message], list[Message]]:
    if not rows:
        return [], []
    own = [row.model_copy(update={"thread_id": run.thread_id}) for row in rows]
    records = await run.journal.write(run.thread_id, own, allow_foreign=True, outside=outside)
    said = [record.message for record in records]
    return said[: len(own)], said[len(own) :]  # after them, the results of calls that were open


def _asked(run_id: str, text: str) -> Message:
    """Return what a user asks in a run."""
    said = PartsPayload(parts=(TextPart(text=text),))
    return Message(id=f"{run_id}/said", policy="user", payload=said, role_hint_for_llm="user", parent_id=run_id)
