"""The loop: a policy decides, every call without a result is run, the results are appended in the order of the calls; again.

It ends when a decision calls nothing: then what the policy said is the answer. An option that is a policy runs the same loop
as a part of the run: in its own space of keys, in the same thread. `parent_id` of what is said in a loop is the invocation
in whose course it runs, and everything below it begins with that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from hashlib import sha256
from typing import Any

from antiphon.agents import LedgerRun, current_run
from antiphon.errors import BudgetExceededError
from antiphon.messages import Conversation, Message, PartsPayload, TextPart, dumps
from antiphon.patterns.options._answer import Answer
from antiphon.patterns.options._calls import Workshop, complete
from antiphon.patterns.options._choices import Choices
from antiphon.patterns.options._decision import Decision
from antiphon.patterns.options._nesting import nesting
from antiphon.patterns.options._options import Policy
from antiphon.patterns.options._past import Past
from antiphon.patterns.options._rules import rule_in

__all__ = ["Loop"]


class Loop:
    """A policy at work."""

    def __init__(self, workshop: Workshop, run: LedgerRun, policy: Policy, past: Past, *, depth: int = 0) -> None:
        self._workshop, self._run, self._policy, self._past, self._depth = workshop, run, policy, past, depth
        self._hash = sha256()

    async def go(self, observations: Iterable[Message], *, unhashed: Collection[str] = ()) -> Answer:
        """Have the policy decide until it calls nothing, and return what it said then.

        `unhashed` are observations, by id, that no hash is made of: runs that were begun without them still go on.

        Raises:
            BudgetExceededError: the run may not go on.
            EffectFailedError, RefusedError: the policy cannot decide.
            ParkedError: a person must settle or approve something.
            HistoryMismatchError: the thread says that something else was done.
            LedgerError: it cannot be written down.
        """
        options, name = self._workshop.options, self._policy.name
        choices, tools = Choices(name, await options.offered_to(name)), await options.tools()
        seen = self._seen(Conversation((), tools=choices.tools), observations, unhashed)
        with nesting(self._nest):
            while True:
                observed = self._hash.hexdigest()[:32]
                decision = Decision(self._run, self._policy, seen, choices, observed=observed, past=self._past, tools=tools)
                said = await decision.make()
                calls = Conversation(said).open_calls()
                if not calls:
                    return Answer.of(said)
                rule = rule_in(said) or self._workshop.rule
                results = await complete(self._workshop, self._run, calls, rule, beyond=decision.beyond)
                seen = self._seen(seen, [*said, *results])

    def _seen(self, observations: Conversation, more: Iterable[Message], unhashed: Collection[str] = ()) -> Conversation:
        added = list(more)
        for message in added:
            if message.id not in unhashed:
                self._hash.update(dumps(message))
        return observations.extend(added)

    async def _nest(self, policy: Policy, task: str) -> Any:
        """Have another policy do a task as a part of this."""
        limits, run = self._workshop.limits, current_run()
        if self._depth >= limits.depth:
            raise BudgetExceededError(f"the run has used up its {limits.depth} policies inside of each other")
        assert run is not None  # noqa: S101 (an option is called inside of a run)
        asked = Message(policy=self._policy.name, payload=PartsPayload(parts=(TextPart(text=task),)), role_hint_for_llm="user")
        record = await run.say(asked, key="task")
        loop = Loop(self._workshop, run, policy, self._past, depth=self._depth + 1)
        return (await loop.go([record.message])).value
