"""A decision as an effect: the policy is asked once, and its messages are recorded before any call starts.

The outcome in the journal has the number of messages of the decision. They are written in one append with it, so a run that
continues after a crash finds all of a decision or nothing, and a recorded decision is never made again. `Past` is the thread
before and during the run. It is read once when a run starts or restarts; its counters matter only for new decisions, because a
recorded decision has its step, and whether it exceeded a limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from inspect import isawaitable
from typing import Any, Final, NamedTuple, cast

from pydantic_core import to_jsonable_python
from typing_extensions import override

from antiphon.agents._tool_names import name_among
from antiphon.agents.durability._talk import ThreadTalk
from antiphon.agents.toolkit import ToolkitTool
from antiphon.durable import LedgerRun
from antiphon.durable._run import run_scope
from antiphon.errors import AppendRefusedError, BudgetExceededError
from antiphon.ledger import Ledger
from antiphon.messages import (
    Conversation,
    DataPart,
    Json,
    MediaPart,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    Part,
    PartsPayload,
    TextPart,
    current_port,
    thaw,
)
from antiphon.patterns._decisions import ThreadTop
from antiphon.patterns.options._calls import ExecutorSetup
from antiphon.patterns.options._options import Choices, Policy, decide_by_model
from antiphon.patterns.options._rules import DECIDE, ExecutorLimits, rule_in
from antiphon.runtime._effects import Effect

# ---------------------------------------------------------------- the result of a policy


class PolicyAnswer(NamedTuple):
    """The answer of a loop: the last text and data of its policy."""

    parts: tuple[Part, ...] = ()

    @classmethod
    def of(cls, decision: Iterable[Message]) -> PolicyAnswer:
        """Return the parts of the messages that are not calls."""
        return cls(tuple(part for message in decision if message.kind == "parts" for part in message.parts))

    @property
    def text(self) -> str | None:
        """The answer as text: data as JSON, media as their URL; None if there is no answer."""
        texts = [_text(part) for part in self.parts]
        return "\n".join(text for text in texts if text is not None) if texts else None

    @property
    def data(self) -> Any:
        """The answer as JSON, if it has data: a single value, or a list of values and the texts between them; else None."""
        parts = [part for part in self.parts if isinstance(part, TextPart | DataPart)]
        if not any(isinstance(part, DataPart) for part in parts):
            return None
        values = [thaw(part.data) if isinstance(part, DataPart) else part.text for part in parts]
        return values[0] if len(values) == 1 else values

    @property
    def value(self) -> Any:
        """The answer as the result of an option: data, else text, with media."""
        media = [part for part in self.parts if isinstance(part, MediaPart)]
        without_media = PolicyAnswer(tuple(part for part in self.parts if not isinstance(part, MediaPart)))
        has_data = any(isinstance(part, DataPart) for part in without_media.parts)
        value = without_media.data if has_data else without_media.text
        return [value, *media] if media else value


def _text(part: Part) -> str | None:
    match part:
        case TextPart(text=text):
            return text
        case DataPart(data=data):
            return json.dumps(thaw(data), ensure_ascii=False)
        case MediaPart(url=url):
            return url
        case _:
            return None


def read_decision(value: Any, policy: str) -> list[Message]:
    """Return the result of a policy as messages: any other value becomes a message with that value."""
    if isinstance(value, Message):
        return [value]
    if value is None:
        return []
    if isinstance(value, list | tuple | Iterator):
        items = list(cast("Iterable[Any]", value))
        messages = [item for item in items if isinstance(item, Message)]
        if len(messages) == len(items):
            return messages
        if messages:
            stranger = next(item for item in items if not isinstance(item, Message))
            raise TypeError(f"policy {policy!r} returned messages and a {type(stranger).__name__}: return one or the other")
        value = items
    part = TextPart(text=value) if isinstance(value, str) else DataPart(data=to_jsonable_python(value))
    return [Message(policy=policy, payload=PartsPayload(parts=(part,)), role_hint_for_llm="assistant")]


# ---------------------------------------------------------------- the thread


@dataclass
class Past:
    """The state of a thread for all loops of a run."""

    limits: ExecutorLimits
    before: tuple[Message, ...] = ()
    """The messages of the thread before the run, without those nested in earlier runs."""
    taken: set[str] = field(default_factory=set[str])
    """The invocation ids that the talk of the thread uses."""
    step: int = 0
    """The last step of the thread."""
    steps: int = 0
    """Decisions of the run; the fields below also apply to the run."""
    calls: int = 0
    began: datetime | None = None

    @classmethod
    async def read(cls, run: LedgerRun, limits: ExecutorLimits) -> Past:
        """Read the thread of a run."""
        past, root = cls(limits), run.course.invocation_id
        top = ThreadTop()
        async for record in run.ledger.read(run.thread_id):
            message = record.message
            past.step = max(past.step, message.step_num or 0)
            if message.invocation_id == root and past.began is None:
                past.began, past.before = record.recorded_at, tuple(top.messages)
            past._count(message, root)
            top.take(message)
        return past

    def _count(self, message: Message, root: str) -> None:
        payload = message.payload
        if not isinstance(payload, OptionCallPayload):
            return
        if message.lane == "talk":
            self.taken.add(payload.invocation_id)
            if message.step_num is not None and _is_within(message.parent_id, root):
                self.calls += 1
        elif payload.option_name == DECIDE and _is_within(message.parent_id, root):
            self.steps += 1

    def begin_step(self) -> None:
        """Count a decision that is about to be made."""
        limits = self.limits
        if limits.steps is not None and self.steps >= limits.steps:
            raise BudgetExceededError(f"the run has used up its {limits.steps} steps")
        if limits.seconds is not None and self.began is not None:
            passed = (current_port().now() - self.began).total_seconds()
            if passed >= limits.seconds:
                raise BudgetExceededError(f"the run has used up its {limits.seconds:g} seconds")
        self.steps += 1

    def read_steps(self, messages: Iterable[Message]) -> None:
        """Read the step numbers of messages of the run: later steps come after them."""
        self.step = max([self.step, *(message.step_num or 0 for message in messages)])

    def step_of(self, decision: Sequence[Message]) -> int:
        """Return the step for messages without a number: the step of the first message with one, else a new step."""
        return next((message.step_num for message in decision if message.step_num is not None), self.step + 1)

    def renamed(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with invocation ids that are unique in the thread: some models count from 1 in each answer."""
        new_ids: dict[str, str] = {}
        renamed: list[Message] = []
        for message in messages:
            payload = message.payload
            if isinstance(payload, OptionCallPayload):
                invocation_id = payload.invocation_id
                new_ids[invocation_id] = current_port().new_id() if invocation_id in self.taken else invocation_id
                self.taken.add(new_ids[invocation_id])
            renamed.append(_renamed(message, new_ids))
        return renamed

    def count_calls(self, calls: int) -> str | None:
        """Count calls, and return the limit that they exceed; None: no limit."""
        self.calls += calls
        most = self.limits.calls
        return f"the run has used up its {most} calls" if most is not None and self.calls > most else None


async def top_of(ledger: Ledger, thread_id: str) -> Conversation:
    """Return the talk of a thread, without nested loops."""
    top = ThreadTop()
    async for record in ledger.read(thread_id):
        top.take(record.message)
    return Conversation(top.messages)


def _renamed(message: Message, new_ids: Mapping[str, str]) -> Message:
    payload = message.payload
    if isinstance(payload, PartsPayload) or payload.invocation_id not in new_ids:
        return message
    return message.model_copy(update={"payload": payload.model_copy(update={"invocation_id": new_ids[payload.invocation_id]})})


def _is_within(parent_id: str | None, root: str) -> bool:
    return parent_id is not None and (parent_id == root or parent_id.startswith(f"{root}/"))


# ---------------------------------------------------------------- the decision


INVALID_DECISION: Final = "INVALID_DECISION"
"""The code of a decision whose messages the ledger refuses."""


class DecisionEffect(Effect):
    """One decision of a policy."""

    exceeded: str | None = None
    """The limit that its calls exceed, so that none may run; None: no limit."""

    def __init__(
        self,
        setup: ExecutorSetup,
        run: LedgerRun,
        policy: Policy,
        observations: Conversation,
        choices: Choices,
        *,
        observed: str,
        past: Past,
        tools: Mapping[str, ToolkitTool],
    ) -> None:
        """Make it; `observed` is the hash of the observations for the journal, `tools` are all options."""
        self._setup = setup
        self._run_of = run
        self._policy = policy
        self._observations = observations
        self._choices = choices
        self._past = past
        self._tools = tools
        self._messages: tuple[Message, ...] | None = None
        offered = sha256(repr([(tool.name, thaw(tool.parameters)) for tool in choices.tools]).encode()).hexdigest()[:32]
        arguments: dict[str, Json] = {"policy": policy.name, "observed": observed, "options": offered}
        park, forgiven = run.opened.park, run.opened.recorded.forgiven
        super().__init__(
            run.journal, run.course, "decide", arguments, effects="none", park=park, option=DECIDE, forgiven=forgiven
        )

    async def make(self) -> tuple[Message, ...]:
        """Ask the policy, or read the recorded decision, and return its messages."""
        outcome = await self.perform(self._decide)
        self.exceeded = outcome.get("beyond")
        if self._messages is None:
            # The rows right before the outcome: they were written in the same append, so they are the decision's.
            rows = await self.journal.ledger.find(invocation_id=self.id, thread_id=self.thread_id)
            (seq,) = [row.seq for row in rows if row.message.lane == "effect" and row.message.kind == "option_result"]
            records = self.journal.ledger.read(self.thread_id, seq - outcome["messages"] - 1, seq)
            self._messages = tuple([record.message async for record in records])
        return self._messages

    @override
    async def begin(self) -> Message:
        self._past.begin_step()
        await self.journal.check_budget(self.thread_id, self.course.to)
        if self._policy.agent is not None:
            await self._run_of.opened.share(ThreadTalk).spend(self._run_of, [self._setup.cast.budgets], "request", self.id)
        return await super().begin()

    async def _decide(self, _: str) -> Json:
        with run_scope(self._run_of.part(self.key)):  # effects of the policy get separate keys
            policy, value = self._policy, cast("Any", None)
            if policy.decide is not None:
                value = policy.decide(self._observations, self._choices)
            elif policy.agent is not None:
                value = decide_by_model(self._setup.cast, policy.agent, self._observations, self._choices)
            if isawaitable(value):
                value = await value
            messages = read_decision(value, self._policy.name)  # inside the block, because a generator runs only here
        messages = self._past.renamed(messages)
        rule_in(messages)  # raises if the rule is invalid, before anything is recorded
        step = self._past.step_of(messages)
        self._messages = tuple(self._row(message, step) for message in messages)
        self._past.read_steps(self._messages)
        exceeded = self._past.count_calls(sum(message.kind == "option_call" for message in self._messages))
        outcome: dict[str, Json] = {"messages": len(self._messages)}
        return outcome if exceeded is None else {**outcome, "beyond": exceeded}

    def _row(self, message: Message, step: int) -> Message:
        """Return a message of a decision as a row: with the policy's name, the decision's turn, and its step."""
        fields: dict[str, Any] = {
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
        if isinstance(message.payload, OptionResultPayload):  # the policy has executed its own call
            fields |= {"policy": message.payload.option_name, "role_hint_for_llm": "tool", "turn_id": None}
        elif isinstance(message.payload, OptionCallPayload):
            fields |= {"role_hint_for_llm": "assistant", "payload": self._shown(message.payload)}
        return message.model_copy(update=fields)

    def _shown(self, call: OptionCallPayload) -> OptionCallPayload:
        """Return a call without its sensitive arguments. The tool then fails with an error that says so."""
        tool = self._tools.get(name_among(self._tools, call.option_name))
        if tool is None or not tool.sensitive:
            return call
        return call.model_copy(update={"arguments": tool.shown(thaw(call.arguments)), "arguments_text": None})

    @override
    async def end(self, outcome: Message) -> Message:
        messages = self._messages
        if messages is None or (isinstance(outcome.payload, OptionResultPayload) and outcome.payload.is_error):
            self._messages = None
            return await super().end(outcome)
        try:
            *records, record = await self.journal.write(self.thread_id, [*messages, outcome])
        except AppendRefusedError as exc:
            self._messages = None
            reason = f"policy {self._policy.name!r} returned messages that cannot be stored: {exc.reason}"
            return await super().end(self._error(reason, INVALID_DECISION, retryable=False))
        # The stored messages count: the ledger may have redacted them.
        self._messages = tuple(stored.message for stored in records)
        return record.message
