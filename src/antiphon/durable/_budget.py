"""Budgets of agents: the limits of a thread and of a run in it, and the usage so far.

Usage is counted from the thread, so it is the same after a crash. A recorded outcome costs nothing. When a budget is used up,
a new effect is refused; a started one may finish.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeAlias

from antiphon.durable._course import recorded_arguments
from antiphon.errors import BudgetExceededError
from antiphon.messages import Message, Usage

Kind: TypeAlias = Literal["request", "tool"]


@dataclass(frozen=True, slots=True)
class AgentBudget:
    """The limits of agents; None means no limit."""

    requests: int | None = None
    """Model requests."""
    tool_calls: int | None = None
    tokens: int | None = None
    """Input and output tokens."""
    cost: Decimal | None = None
    """In US dollars, as far as prices are known."""
    depth: int | None = None
    """The nesting depth of agents."""
    seconds: float | None = None
    """Seconds since the start of the run, including pauses and crashes. A model request that takes longer is cancelled."""


@dataclass(slots=True)
class Amount:
    """The usage so far."""

    requests: int = 0
    tool_calls: int = 0
    tokens: int = 0
    cost: Decimal = Decimal(0)
    began: datetime | None = None

    def begin(self, kind: Kind) -> None:
        """Count an effect that starts."""
        if kind == "request":
            self.requests += 1
        else:
            self.tool_calls += 1

    def pay(self, usage: Usage) -> None:
        """Count the cost of an answer."""
        self.tokens += (usage.input_tokens or 0) + (usage.output_tokens or 0)
        self.cost += usage.cost or 0

    def used_up(self, budget: AgentBudget, kind: Kind, depth: int, now: datetime) -> str | None:
        """Return the limit that forbids another effect of a kind; None if there is none."""
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
    """The budgets of the agents that are active in a run. A toolkit's calls count for all of them."""

    def __init__(self) -> None:
        self.limits: list[BudgetLimits] = []

    def add(self, limits: BudgetLimits) -> None:
        """Add the budgets of an agent."""
        if limits != BudgetLimits() and limits not in self.limits:
            self.limits.append(limits)


class Spending:
    """Usage of a thread, and of one run of it."""

    def __init__(self) -> None:
        self.thread = Amount()
        self.run = Amount()
        self.deciding_agents: frozenset[str] = frozenset()
        """The policies of the options pattern that are agents: each of their decisions is a model request."""

    def read_row(self, message: Message, root: str) -> None:
        """Count a row of the thread."""
        origin = (message.parent_id if message.lane == "talk" else message.invocation_id) or ""
        is_of_run = origin == root or origin.startswith(f"{root}/")
        amounts = [self.thread, self.run] if is_of_run else [self.thread]
        kind = kind_of(message, self.deciding_agents)
        for amount in amounts:
            if kind is not None:
                amount.begin(kind)
            if message.usage is not None:
                amount.pay(message.usage)

    def begin(self, kind: Kind) -> None:
        """Count an effect that starts now."""
        for amount in (self.thread, self.run):
            amount.begin(kind)

    def pay(self, usage: Usage | None) -> None:
        """Count the cost of a new answer."""
        if usage is not None:
            for amount in (self.thread, self.run):
                amount.pay(usage)

    def seconds_left(self, limits: BudgetLimits, now: datetime) -> float | None:
        """Return how many seconds an effect that starts now may take; None: no limit."""
        seconds = [
            budget.seconds - (now - amount.began).total_seconds()
            for amount, budget in ((self.run, limits.run), (self.thread, limits.thread))
            if budget.seconds is not None and amount.began is not None
        ]
        return min(seconds, default=None)

    def check(self, limits: BudgetLimits, kind: Kind, *, depth: int, now: datetime, where: str) -> None:
        """Refuse a new effect if a budget is used up."""
        for amount, budget, whose in ((self.run, limits.run, "the run"), (self.thread, limits.thread, "the thread")):
            if (spent := amount.used_up(budget, kind, depth, now)) is not None:
                error = BudgetExceededError(f"{whose} has used up its {spent}, before {where!r}")
                error.limit = spent
                raise error


def kind_of(message: Message, deciding_agents: Collection[str] = ()) -> Kind | None:
    """Return the kind of effect that a row starts; None for any other row. Decisions of functions are not counted."""
    if (arguments := recorded_arguments(message)) is None:
        return None
    if "prompt" in arguments or ("observed" in arguments and arguments.get("policy") in deciding_agents):
        return "request"
    return "tool" if "tool" in arguments or "digest" in arguments else None  # of an agent, or of a toolkit
