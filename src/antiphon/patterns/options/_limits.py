"""ExecutorLimits: how far a run may go. What it may cost is the thread's budget, in the settings of the runtime."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["ExecutorLimits"]


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
