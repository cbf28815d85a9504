"""Budgets of agents: how much they may use, in a thread and in a run of it, and how much they have used.

What is used is counted from the thread, so it is the same after a crash. What is recorded costs nothing when it is taken from
the journal; what would be done anew is refused when a budget is used up; what was begun may end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeAlias

from antiphon.errors import BudgetExceededError
from antiphon.messages import JsonObject, Message, OptionCallPayload, Usage

Kind: TypeAlias = Literal["request", "tool"]


@dataclass(frozen=True, slots=True)
class AgentBudget:
    """What agents may use; None is no limit."""

    requests: int | None = None
    """To models."""
    tool_calls: int | None = None
    tokens: int | None = None
    """In and out."""
    cost: Decimal | None = None
    """In US dollars, as far as prices are known."""
    depth: int | None = None
    """How many agents may run inside of each other."""
    seconds: float | None = None
    """Since it began, pauses and crashes included; a model request that is not answered by then is given up."""


@dataclass(slots=True)
class Amount:
    """What was used."""

    requests: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost: Decimal = Decimal(0)
    began: datetime | None = None

    def begin(self, kind: Kind) -> None:
        """Count something that is begun."""
        if kind == "request":
            self.requests += 1
        else:
            self.tool_calls += 1

    def pay(self, usage: Usage) -> None:
        """Count what an answer has cost."""
        self.tokens += (usage.input_tokens or 0) + (usage.output_tokens or 0)
        self.cost += usage.cost or 0

    def used_up(self, budget: AgentBudget, kind: Kind, depth: int, now: datetime) -> str | None:
        """Return what of a budget is used up, if it must not be for another thing of a kind; None if nothing is."""
        passed = 0.0 if self.began is None else (now - self.began).total_seconds()
        limits: list[tuple[float | Decimal | None, float | Decimal, str]] = [
            (budget.requests if kind == "request" else None, self.requests, "requests"),
            (budget.tool_calls if kind == "tool" else None, self.tool_calls, "tool calls"),
            (budget.tokens, self.tokens, "tokens"),
            (budget.cost, self.cost, "US dollars"),
            (None if budget.depth is None else budget.depth + 1, depth, "agents inside of each other"),
            (budget.seconds, passed, "seconds"),
        ]
        for limit, used, what in limits:
            if limit is not None and used >= limit:
                return f"{budget.depth if what.startswith('agents') else limit} {what}"
        return None


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """The budgets of an agent."""

    run: AgentBudget = field(default_factory=AgentBudget)
    thread: AgentBudget = field(default_factory=AgentBudget)


class Bounds:
    """The budgets of the agents that are at work in a run: what is done beside them, by a toolkit, counts for all of them."""

    def __init__(self) -> None:
        self.limits: list[BudgetLimits] = []

    def add(self, limits: BudgetLimits) -> None:
        """Have one more agent's budgets count."""
        if limits != BudgetLimits() and limits not in self.limits:
            self.limits.append(limits)


class Spending:
    """What was used in a thread, and in one run of it."""

    def __init__(self) -> None:
        self.thread = Amount()
        self.run = Amount()

    def heard(self, message: Message, root: str) -> None:
        """Count what a row of the thread says."""
        is_of_run = (message.parent_id if message.lane == "talk" else message.invocation_id or "") or ""
        amounts = [self.thread, self.run] if is_of_run.startswith(f"{root}/") else [self.thread]
        kind = kind_of(message)
        for amount in amounts:
            if kind is not None:
                amount.begin(kind)
            if message.usage is not None:
                amount.pay(message.usage)

    def begin(self, kind: Kind) -> None:
        """Count something that is begun now."""
        for amount in (self.thread, self.run):
            amount.begin(kind)

    def pay(self, usage: Usage | None) -> None:
        """Count what an answer has cost that is there now."""
        if usage is not None:
            for amount in (self.thread, self.run):
                amount.pay(usage)

    def seconds_left(self, limits: BudgetLimits, now: datetime) -> float | None:
        """Return how long something may take that is begun now; None: as long as it takes."""
        each = ((self.run, limits.run), (self.thread, limits.thread))
        left = [
            budget.seconds - (now - amount.began).total_seconds()
            for amount, budget in each
            if budget.seconds is not None and amount.began is not None
        ]
        return min(left, default=None)

    def check(self, limits: BudgetLimits, kind: Kind, *, depth: int, now: datetime, where: str) -> None:
        """Refuse something new where a budget is used up.

        Raises:
            BudgetExceededError: one is.
        """
        for amount, budget, whose in ((self.run, limits.run, "the run"), (self.thread, limits.thread, "the thread")):
            if (spent := amount.used_up(budget, kind, depth, now)) is not None:
                raise BudgetExceededError(f"{whose} has used up its {spent}, before {where!r}")


def kind_of(message: Message) -> Kind | None:
    """Return what kind of thing a row begins; None for any other row."""
    payload = message.payload
    if message.lane != "effect" or not isinstance(payload, OptionCallPayload):
        return None
    arguments = payload.arguments.get("arguments")
    if not isinstance(arguments, JsonObject):
        return None
    is_tool = "tool" in arguments or "digest" in arguments  # of an agent, or of a toolkit
    return "request" if "prompt" in arguments else "tool" if is_tool else None
