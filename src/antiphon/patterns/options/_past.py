"""Past: what a thread has of a run, and of what was said before it; and from there on, what the run does.

It is read once when a run begins, or begins again. The numbers only matter for what is decided anew: a decision that is
recorded has its step, and whether it went beyond a limit, beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from antiphon.agents import LedgerRun
from antiphon.errors import BudgetExceededError
from antiphon.ledger import Ledger
from antiphon.messages import Conversation, Message, OptionCallPayload, PartsPayload, current_port
from antiphon.patterns.decisions._top import RUN, Top
from antiphon.patterns.options._limits import ExecutorLimits

__all__ = ["DECIDE", "PATTERN", "RUN", "Past", "top_of"]

PATTERN: Final = "options"
"""What lists of threads call it."""
DECIDE: Final = "DECIDE"
"""What the journal calls a decision."""


@dataclass
class Past:
    """What counts of a thread, for all loops of a run."""

    limits: ExecutorLimits
    before: tuple[Message, ...] = ()
    """What was said in the thread before the run, without what was nested in earlier ones."""
    taken: set[str] = field(default_factory=set[str])
    """The invocations of the thread's talk."""
    step: int = 0
    """The last step of the thread."""
    steps: int = 0
    """Of the run, as are the others."""
    calls: int = 0
    began: datetime | None = None

    @classmethod
    async def read(cls, run: LedgerRun, limits: ExecutorLimits) -> Past:
        """Read the thread of a run."""
        past, root = cls(limits), run.course.invocation_id
        top = Top()
        async for record in run.ledger.read(run.thread_id):
            message = record.message
            past.step = max(past.step, message.step_num or 0)
            if message.invocation_id == root and past.began is None:
                past.began, past.before = record.recorded_at, tuple(top.messages)
            past._count(message, root)
            top.hear(message)
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
        """Count a decision that is about to be made.

        Raises:
            BudgetExceededError: the run may make none any more.
        """
        limits = self.limits
        if limits.steps is not None and self.steps >= limits.steps:
            raise BudgetExceededError(f"the run has used up its {limits.steps} steps")
        if limits.seconds is not None and self.began is not None:
            passed = (current_port().now() - self.began).total_seconds()
            if passed >= limits.seconds:
                raise BudgetExceededError(f"the run has used up its {limits.seconds:g} seconds")
        self.steps += 1

    def hear(self, messages: Iterable[Message]) -> None:
        """Take the steps of messages into account that are said in the run: later steps come after them."""
        self.step = max([self.step, *(message.step_num or 0 for message in messages)])

    def step_of(self, decision: Sequence[Message]) -> int:
        """Return the step of what a decision does not number: that of the first message it numbers, else a new one."""
        given = next((message.step_num for message in decision if message.step_num is not None), None)
        return self.step + 1 if given is None else given

    def renamed(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages of a decision with invocations that no other call of the thread has: models count from 1."""
        others: dict[str, str] = {}
        found: list[Message] = []
        for message in messages:
            payload = message.payload
            if isinstance(payload, OptionCallPayload):
                own = payload.invocation_id
                others[own] = current_port().new_id() if own in self.taken else own
                self.taken.add(others[own])
            found.append(_renamed(message, others))
        return found

    def goes_beyond(self, calls: int) -> str | None:
        """Count calls, and return what they go beyond; None: nothing."""
        self.calls += calls
        most = self.limits.calls
        return f"the run has used up its {most} calls" if most is not None and self.calls > most else None


async def top_of(ledger: Ledger, thread_id: str) -> Conversation:
    """Return what is said at the top of a thread."""
    top = Top()
    async for record in ledger.read(thread_id):
        top.hear(record.message)
    return Conversation(top.messages)


def _renamed(message: Message, others: Mapping[str, str]) -> Message:
    payload = message.payload
    if isinstance(payload, PartsPayload) or payload.invocation_id not in others:
        return message
    return message.model_copy(update={"payload": payload.model_copy(update={"invocation_id": others[payload.invocation_id]})})


def _is_within(parent_id: str | None, root: str) -> bool:
    return parent_id is not None and (parent_id == root or parent_id.startswith(f"{root}/"))
