"""A decision as an effect: the policy is asked once, and what it says and chooses is in the thread before anything starts.

The journal says how many messages that are; they are written in the same append as the outcome, so that a run that is taken
up finds all of a decision or none. A decision that is recorded is never asked for again.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from inspect import isawaitable
from typing import Any, Final

from typing_extensions import override

from antiphon.agents import LedgerRun
from antiphon.agents._run import run_scope
from antiphon.agents.toolkit import ToolkitTool
from antiphon.errors import AppendRefusedError
from antiphon.messages import Conversation, Json, Message, OptionCallPayload, OptionResultPayload, thaw
from antiphon.patterns.options._answer import read_decision
from antiphon.patterns.options._choices import Choices
from antiphon.patterns.options._options import Policy
from antiphon.patterns.options._past import DECIDE, Past
from antiphon.patterns.options._rules import rule_in
from antiphon.runtime.extending import Effect

__all__ = ["INVALID_DECISION", "Decision"]

INVALID_DECISION: Final = "INVALID_DECISION"
"""The code of what a policy says that no thread takes in."""


class Decision(Effect):
    """What a policy makes of what it observes."""

    beyond: str | None = None
    """What its calls go beyond, so that none of them may run; None: nothing."""

    def __init__(
        self,
        run: LedgerRun,
        policy: Policy,
        observations: Conversation,
        choices: Choices,
        *,
        observed: str,
        past: Past,
        tools: Mapping[str, ToolkitTool],
    ) -> None:
        """Make it; `observed` stands for the observations in the journal, `tools` are all options there are."""
        self._run_of = run
        self._policy = policy
        self._observations = observations
        self._choices = choices
        self._past = past
        self._tools = tools
        self._said: tuple[Message, ...] | None = None
        offered = sha256(repr([(tool.name, thaw(tool.parameters)) for tool in choices.tools]).encode()).hexdigest()[:32]
        arguments: dict[str, Json] = {"policy": policy.name, "observed": observed, "options": offered}
        super().__init__(
            run.journal, run.course, "decide", arguments, effects="none", park=run.park, option=DECIDE, forgiven=run.forgiven
        )

    async def make(self) -> tuple[Message, ...]:
        """Have the policy decide, or take what is recorded, and return what it says and chooses.

        Raises:
            EffectFailedError: the policy raised.
            RefusedError: what it said cannot be taken in.
            BudgetExceededError: the run may make no more decisions.
            HistoryMismatchError: the thread has another decision here, or one about something else.
        """
        outcome = await self.perform(self._decide)
        self.beyond = outcome.get("beyond")
        if self._said is None:
            self._said = await self._recorded_before(outcome["messages"])
        return self._said

    async def _recorded_before(self, count: int) -> tuple[Message, ...]:
        """Return the rows right before the outcome: they were written with it, so nobody else can have put them there."""
        rows = await self.journal.ledger.by_invocation(self.id, thread_id=self.thread_id)
        (seq,) = [row.seq for row in rows if row.message.lane == "effect" and row.message.kind == "option_result"]
        said = self.journal.ledger.read(self.thread_id, seq - count - 1, seq)
        return tuple([record.message async for record in said])

    @override
    async def begin(self) -> Message:
        self._past.begin_step()
        await self.journal.check_budget(self.thread_id, self.course.to)
        return await super().begin()

    async def _decide(self, key: str) -> Json:
        with run_scope(self._run_of.part(key)):  # what the policy does in turn is numbered for itself
            chosen = self._policy.decide(self._observations, self._choices)
            if isawaitable(chosen):
                chosen = await chosen
            returned = read_decision(chosen, self._policy.name)  # it may be a generator, which does it only now
        returned = self._past.renamed(returned)
        rule_in(returned)  # it is refused here if it is none
        step = self._past.step_of(returned)
        self._said = tuple(self._row(message, step) for message in returned)
        self._past.hear(self._said)
        beyond = self._past.goes_beyond(sum(message.kind == "option_call" for message in self._said))
        outcome: dict[str, Json] = {"messages": len(self._said)}
        return outcome if beyond is None else {**outcome, "beyond": beyond}

    def _row(self, message: Message, step: int) -> Message:
        """Return what a policy says as it stands in the thread: under its own name, in its turn, in the step it says."""
        own: dict[str, Any] = {
            "policy": self._policy.name,
            "thread_id": self.thread_id,
            "lane": "talk",
            "to": (),
            "step_num": step if message.step_num is None else message.step_num,
            "turn_id": self.id,
            "correlation_id": self.id,
            "parent_id": self.course.invocation_id,
            "role_hint_for_llm": message.role_hint_for_llm or "assistant",
        }
        if isinstance(message.payload, OptionResultPayload):  # of something that it has done by itself
            own |= {"policy": message.payload.option_name, "role_hint_for_llm": "tool", "turn_id": None}
        elif isinstance(message.payload, OptionCallPayload):
            own |= {"role_hint_for_llm": "assistant", "payload": self._shown(message.payload)}
        return message.model_copy(update=own)

    def _shown(self, call: OptionCallPayload) -> OptionCallPayload:
        """Return a call without what must not be written down: without that, the tool says that it is lost."""
        tool = self._tools.get(call.option_name)
        if tool is None or not tool.sensitive:
            return call
        return call.model_copy(update={"arguments": tool.shown(thaw(call.arguments)), "arguments_text": None})

    @override
    async def end(self, outcome: Message) -> Message:
        said = self._said
        if said is None or (isinstance(outcome.payload, OptionResultPayload) and outcome.payload.is_error):
            self._said = None
            return await super().end(outcome)
        try:
            *records, record = await self.journal.write(self.thread_id, [*said, outcome])
        except AppendRefusedError as exc:
            self._said = None
            reason = f"policy {self._policy.name!r} says what no thread takes in: {exc.reason}"
            return await super().end(self._error(reason, INVALID_DECISION, retryable=False))
        self._said = tuple(each.message for each in records)  # as stored: something may have been redacted
        return record.message
