"""ExecutorActor: runs policies in threads, and completes open calls.

The loop: a policy decides, every call without a result is run, the results are appended in the order of the calls, and the
policy decides again. The loop ends when a decision calls nothing: then its text is the answer. An option that is a policy runs
the same loop as part of the run, with its own keys, in the same thread. The `parent_id` of a loop's message is the invocation
that runs the loop, and the ids of nested work start with that id.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import sha256
from typing import Any

from antiphon.agents import LedgerRun, current_run
from antiphon.agents.extending import Bounds, ThreadTalk
from antiphon.errors import BudgetExceededError, DecodeError, RefusedError
from antiphon.ledger import from_outside
from antiphon.messages import Conversation, Message, PartsPayload, TextPart, dumps, loads
from antiphon.patterns.cast import handling
from antiphon.patterns.options._calls import ExecutorSetup, complete, read_taint
from antiphon.patterns.options._decision import DecisionEffect, Past, PolicyAnswer
from antiphon.patterns.options._options import Choices, Policy, nesting
from antiphon.patterns.options._protocol import PATTERN, CallsCompleted, CompleteCalls, PolicyRan, RunPolicy
from antiphon.patterns.options._rules import rule_in
from antiphon.protocol import ErrorCode
from antiphon.runtime import Actor, Context, handles

# ---------------------------------------------------------------- the loop


class Loop:
    """The loop of one policy."""

    def __init__(self, setup: ExecutorSetup, run: LedgerRun, policy: Policy, past: Past, *, depth: int = 0) -> None:
        self._setup, self._run, self._policy, self._past, self._depth = setup, run, policy, past, depth
        self._hash = sha256()

    async def go(self, observations: Iterable[Message], *, unhashed: Collection[str] = ()) -> PolicyAnswer:
        """Ask the policy until it calls nothing, and return its last answer.

        `unhashed` has the ids of observations that are not hashed, so that runs which started without them can continue.

        Raises:
            BudgetExceededError: a limit is reached.
            EffectFailedError, RefusedError: the policy cannot decide.
            ParkedError: a person must settle or approve something.
            HistoryMismatchError: the thread records another course of this run.
            LedgerError: it cannot be stored.
        """
        options, name = self._setup.options, self._policy.name
        choices, tools = Choices(name, await options.offered_to(name)), await options.tools()
        seen = self._seen(Conversation((), tools=choices.tools), observations, unhashed)
        with nesting(self._nest):
            while True:
                observed = self._hash.hexdigest()[:32]
                decision = DecisionEffect(
                    self._setup, self._run, self._policy, seen, choices, observed=observed, past=self._past, tools=tools
                )
                said = await decision.make()
                calls = Conversation(said).open_calls()
                if not calls:
                    return PolicyAnswer.of(said)
                rule = rule_in(said) or self._setup.rule
                results = await complete(self._setup, self._run, calls, rule, beyond=decision.beyond)
                seen = self._seen(seen, [*said, *results])

    def _seen(self, observations: Conversation, more: Iterable[Message], unhashed: Collection[str] = ()) -> Conversation:
        added = list(more)
        for message in added:
            if message.id not in unhashed:
                self._hash.update(dumps(message))
        return observations.extend(added)

    async def _nest(self, policy: Policy, task: str) -> Any:
        """Run another policy as part of this loop."""
        limits, run = self._setup.limits, current_run()
        if self._depth >= limits.depth:
            raise BudgetExceededError(f"the run has used up its {limits.depth} policies inside of each other")
        assert run is not None  # noqa: S101 (an option is called inside of a run)
        asked = Message(policy=self._policy.name, payload=PartsPayload(parts=(TextPart(text=task),)), role_hint_for_llm="user")
        record = await run.say(asked, key="task")
        loop = Loop(self._setup, run, policy, self._past, depth=self._depth + 1)
        return (await loop.go([record.message])).value


# ---------------------------------------------------------------- the actor


class ExecutorActor(Actor):
    """Runs policies in threads; those of one thread one after the other."""

    concurrency = 1000

    def __init__(self, setup: ExecutorSetup) -> None:
        self._setup = setup

    @handles
    async def run(self, request: RunPolicy, context: Context) -> PolicyRan:
        """Run a policy to its end."""
        policies = self._setup.options.policies
        if request.policy not in policies:
            reason = f"there is no policy {request.policy!r}; there are {', '.join(policies) or 'none'}"
            raise RefusedError(reason, ErrorCode.VALIDATION_ERROR)
        policy = self._setup.options.find(request.policy)
        async with handling(context, PATTERN) as here:
            run = here.run
            self._limit(run)
            past = await Past.read(run, self._setup.limits)
            given, closed = await _hear(run, request.observations, outside=True)
            asked: list[Message] = []
            if request.input is not None:
                asked, _ = await _write(run, [_asked(run.course.invocation_id, request.input)])
            # After a crash they are read from the thread: both ways must number the steps in the same way.
            past.hear([*given, *asked])
            read_taint(run, [*past.before, *given])
            loop = Loop(self._setup, run, policy, past)
            answer = await loop.go([*past.before, *given, *closed, *asked], unhashed={each.id for each in closed})
        return PolicyRan(response=answer.text, **({} if answer.data is None else {"data": answer.data}))

    @handles
    async def complete(self, request: CompleteCalls, context: Context) -> CallsCompleted:
        """Complete the calls of a conversation."""
        async with handling(context, PATTERN) as here:
            run = here.run
            self._limit(run)
            past = await Past.read(run, self._setup.limits)
            given, _ = await _hear(run, request.observations, outside=False)  # not closed: these calls must run
            calls = Conversation([*past.before, *given]).open_calls()
            if not calls:
                return CallsCompleted()
            read_taint(run, [*past.before, *given])
            beyond = past.goes_beyond(len(calls))
            results = await complete(self._setup, run, calls, self._setup.rule, beyond=beyond)
        return CallsCompleted(results=tuple(result.id for result in results))

    def _limit(self, run: LedgerRun) -> None:
        """Apply the budgets of the cast to a run.

        This precedes reading the thread, because only then are its requests counted.
        """
        ThreadTalk.of(run).spending.deciding_agents = frozenset(spec.name for spec in self._setup.options.agents)
        run.opened.share(Bounds).add(self._setup.cast.budgets)


async def _hear(run: LedgerRun, observations: tuple[str, ...], *, outside: bool) -> tuple[list[Message], list[Message]]:
    """Write the observations to the thread once; return them as stored, and the results that closed open calls in them.

    They become talk without receivers, whatever their fields. `outside` closes the open calls.

    Raises:
        RefusedError: an observation is not a valid message.
    """
    try:
        rows = [_heard(loads(each.encode(), Message), keeps_mark=outside) for each in observations]
    except DecodeError as exc:
        raise RefusedError(str(exc), ErrorCode.VALIDATION_ERROR) from exc
    return await _write(run, rows, outside=outside)


def _heard(message: Message, *, keeps_mark: bool) -> Message:
    """Return a message from outside as talk, so that no actor treats it as a request.

    The runtime's metadata is removed, except the mark of untrusted content.
    """
    talk = message.model_copy(update={"lane": "talk", "to": ()})
    if keeps_mark:
        return from_outside(talk)
    return talk.model_copy(update={"metadata": {name: value for name, value in talk.metadata.items() if name != "antiphon"}})


async def _write(run: LedgerRun, rows: list[Message], *, outside: bool = False) -> tuple[list[Message], list[Message]]:
    if not rows:
        return [], []
    own = [row.model_copy(update={"thread_id": run.thread_id}) for row in rows]
    records = await run.journal.write(run.thread_id, own, allow_foreign=True, outside=outside)
    said = [record.message for record in records]
    return said[: len(own)], said[len(own) :]  # the ledger has appended the results of open calls after them


def _asked(run_id: str, text: str) -> Message:
    """Return the task of a run as a user's message."""
    said = PartsPayload(parts=(TextPart(text=text),))
    return Message(id=f"{run_id}/said", policy="user", payload=said, role_hint_for_llm="user", parent_id=run_id)
