"""Requests to the executor, the limits of a run, and their names in the journal."""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from antiphon.patterns.decisions import RUN
from antiphon.protocol import Reply, Request

PATTERN: Final = "options"
"""The name of the pattern in lists of threads."""
DECIDE: Final = "DECIDE"
"""The name of a decision in the journal."""


class PolicyRan(Reply, frozen=True, type="POLICY_RAN"):
    """The answer of the policy."""

    response: str | None = None
    data: Any = None
    """The same as a JSON value, if it is more than text."""


class RunPolicy(Request[PolicyRan], frozen=True, type=RUN, family="options"):
    """Run a policy and its calls until it calls nothing."""

    policy: str
    input: str | None = None
    """The task, as text."""
    observations: tuple[str, ...] = ()
    """The messages to observe, in the house format."""


class CallsCompleted(Reply, frozen=True, type="CALLS_COMPLETED"):
    """All calls have results."""

    results: tuple[str, ...] = ()
    """The ids of the results."""


class CompleteCalls(Request[CallsCompleted], frozen=True, type="COMPLETE_CALLS", family="options"):
    """Run every call of the thread that has no result, except those of nested loops."""

    observations: tuple[str, ...] = ()
    """A conversation to append first, in the same form."""


# ---------------------------------------------------------------- limits


class ExecutorLimits(BaseModel):
    """The limits of one run with everything nested in it; None: no limit. Work that has started may end."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int | None = Field(default=100, ge=1)
    """Decisions of policies."""
    calls: int | None = Field(default=None, ge=0)
    """Calls of options."""
    seconds: float | None = Field(default=None, gt=0)
    """Since the request, including downtime."""
    depth: int = Field(default=8, ge=0)
    """How deep policies may be nested."""
    parallel: int = Field(default=16, ge=1)
    """How many calls of one decision run in parallel."""
