"""Requests to the executor, the limits of a run, and what the journal calls them."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from antiphon.patterns.decisions import RUN
from antiphon.protocol import Reply, Request

PATTERN: Final = "options"
"""What lists of threads call it."""
DECIDE: Final = "DECIDE"
"""What the journal calls a decision."""


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


# ---------------------------------------------------------------- limits


class ExecutorLimits(BaseModel):
    """How far one run may go, with everything that is nested in it; None is no limit. What was begun may end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int | None = Field(default=100, ge=1)
    """Decisions of policies."""
    calls: int | None = Field(default=None, ge=0)
    """Calls of options."""
    seconds: float | None = Field(default=None, gt=0)
    """Since it was asked for, crashes included."""
    depth: int = Field(default=8, ge=0)
    """How many policies may run inside of each other."""
    parallel: int = Field(default=16, ge=1)
    """How many calls of one decision are at work at once."""
