"""TeamFile: who works together, and how, as a TOML file says it."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from antiphon.agents import AgentBudget
from antiphon.agents._config import read_toml
from antiphon.dialects.agent_framework import ScriptStep
from antiphon.errors import TeamFileError
from antiphon.patterns.cast import AgentSpec, Patience

__all__ = ["PatternName", "TeamAgent", "TeamFile", "TeamFileError"]

PatternName: TypeAlias = Literal["options", "peers", "teams", "workers"]
Role: TypeAlias = Literal["leader", "manager", "worker"]


class _Section(BaseModel):
    """A typing mistake must not grant something, or leave it out, in silence."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TeamAgent(AgentSpec):
    """One of the team."""

    role: Role = "worker"
    """`leader`: who is asked first; the orchestrator of `teams`, the controller of `workers`, the policy of `options`."""
    manages: tuple[str, ...] = ()
    """The workers of a manager."""
    plans: Literal["steps", "script", "whole"] = "steps"
    """How a manager breaks a phase down; see `ManagerSpec`."""
    script: tuple[ScriptStep, ...] = ()
    """The script of a manager that no model shall write one for."""
    is_global: bool = True
    """Whether a manager's syntheses are broadcast; see `ManagerSpec`."""
    peers: tuple[str, ...] | None = None
    """Whom a peer may call; None: everybody."""


class TeamGrant(_Section):
    """What an agent may do besides using the tools that it names: a tool under conditions."""

    agent: str
    tool: str
    where: Mapping[str, Any] | None = None
    """A JSON schema that the arguments must meet."""
    calls: int | None = Field(default=None, ge=1)


class TeamServer(_Section):
    """A server of the Model Context Protocol, with tools."""

    url: str | None = None
    command: tuple[str, ...] | None = None
    required: bool = False
    """Whether nothing is done without it."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.url is None) == (self.command is None):
            raise ValueError("a server has a url or a command: one of them")
        return self


class TeamBudget(_Section):
    """What a task may use, with all agents."""

    requests: int | None = Field(default=None, ge=1)
    tool_calls: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    cost: Decimal | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, gt=0)

    def as_budget(self) -> AgentBudget:
        """Return it as agents have it."""
        return AgentBudget(**self.model_dump())


class TeamFile(_Section):
    """The whole file."""

    pattern: PatternName
    """How they work together."""
    about: str = ""
    """What the team is good for, in a sentence."""
    model: str | None = None
    """For agents that name none, as `antiphon.agents.model` takes it; a script's file is beside this one."""
    files: str | None = None
    """The folder whose files tools may read, beside this file."""
    agents: tuple[TeamAgent, ...] = Field(min_length=1)
    grants: tuple[TeamGrant, ...] = ()
    approvals: tuple[str, ...] = ()
    """Tools that a person must approve, call by call."""
    approvers: tuple[str, ...] = ()
    mcp: Mapping[str, TeamServer] = Field(default_factory=dict[str, TeamServer])
    """Servers with tools; the name is what their tools' names begin with."""
    budget: TeamBudget = TeamBudget()
    patience: Patience = Patience()

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a file.

        Raises:
            TeamFileError: it cannot be read, or is wrong; the text says where.
        """
        return read_toml(path, cls, TeamFileError)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [agent.name for agent in self.agents]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two agents are called {name!r}")
        named = [(agent.name, other) for agent in self.agents for other in (*agent.manages, *(agent.peers or ()))]
        for agent, other in (*named, *(("a grant", grant.agent) for grant in self.grants)):
            if other not in names:
                raise ValueError(f"{agent} names {other!r}, and there is no such agent; there are {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _check_leader(self) -> Self:
        leaders = [agent.name for agent in self.agents if agent.role == "leader"]
        if len(leaders) != 1:
            raise ValueError(f'one agent has role = "leader", and only one; there are {len(leaders)}')
        return self

    @property
    def leader(self) -> TeamAgent:
        """Who is asked first."""
        return next(agent for agent in self.agents if agent.role == "leader")

    def those(self, role: Role) -> tuple[TeamAgent, ...]:
        """Return the agents of a role."""
        return tuple(agent for agent in self.agents if agent.role == role)
