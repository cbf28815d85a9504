"""ManagerSpec, TeamLimits: how a manager is set up, and when a team has had enough."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from antiphon.dialects.agent_framework import ScriptStep
from antiphon.patterns.cast import AgentSpec

__all__ = ["ManagerSpec", "TeamLimits"]


class ManagerSpec(AgentSpec):
    """How one manager is set up: an agent that has others work."""

    workers: tuple[str, ...] = Field(min_length=1)
    """Whom it may delegate to, by name."""
    plans: Literal["steps", "script", "whole"] = "steps"
    """How it breaks a phase down: into steps, each a task in words; into a script of tool calls; or not at all, so that each
    of its workers gets the whole.
    """
    script: tuple[ScriptStep, ...] | None = None
    """The script of every phase of its own, where no model shall write one."""
    is_global: bool = True
    """Whether its syntheses are broadcast: seen by every agent, and told to the next phase. If not, only the orchestrator
    gets them.
    """


class TeamLimits(BaseModel):
    """When something has gone on for long enough. Whatever ends by one of these ends as a failure."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    iterations: int = Field(default=10, ge=1)
    """How often a worker may use tools for one task, before it has to answer."""
    window: int = Field(default=5, ge=1)
    repeats: int = Field(default=3, ge=2)
    """How often the same action may have the same result among the last `window` actions."""
    stagnation: int = Field(default=6, ge=2)
    """How many actions in a row may fail, or tell what was known before."""
    phases: int = Field(default=12, ge=1)
    """How many phases a plan may have."""
    steps: int = Field(default=24, ge=1)
    """How many steps a phase may have."""
    conversation: int = Field(default=8, ge=0)
    """How many messages of the conversation the orchestrator is shown: messages, not turns."""
    phase_seconds: float | None = Field(default=None, gt=0)
    """Seconds that a manager may take for a phase; None: as many as it takes."""
    task_seconds: float | None = Field(default=None, gt=0)
    """Seconds that a worker may take for a task."""
