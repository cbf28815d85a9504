"""From a team file to a pattern that can be opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from antiphon.agents import Toolkit
from antiphon.agents.toolkit import ApprovalRule
from antiphon.agents.tools import file_tools
from antiphon.errors import TeamFileError
from antiphon.ledger import Ledger
from antiphon.ledger.memory import MemoryLedger
from antiphon.patterns.cast import AgentSpec, Cast, CastError, Pattern
from antiphon.patterns.options import Executor, Options
from antiphon.patterns.peers import Peers, PeerSpec
from antiphon.patterns.team_files._form import PatternName, TeamAgent, TeamFile
from antiphon.patterns.teams import ManagerSpec, Team
from antiphon.patterns.workers import Workers
from antiphon.runtime import Settings

__all__ = ["open_team"]

_SCRIPTED: Final = "scripted:"
_Shared: TypeAlias = dict[str, Any]


def open_team(
    path: Path | str,
    ledger: Ledger | None = None,
    *,
    model: str | None = None,
    files: Path | str | None = None,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
) -> Pattern:
    """Return the pattern that a team file describes; open it with `async with`.

    `model` is for all agents, whatever the file says; `files` is another folder to work on; `settings` are those of every
    system.

    Raises:
        TeamFileError: the file cannot be read, or is wrong; the text says where.
    """
    path = Path(path)
    team = TeamFile.read(path)
    folder = path.resolve().parent
    team = team.model_copy(update={"agents": tuple(_placed(agent, folder, model) for agent in team.agents)})
    try:
        shared: _Shared = {
            "model": model or _beside(team.model, folder),
            "toolkit": _toolkit(team, folder, files),
            "patience": team.patience,
            "thread_budget": team.budget.as_budget(),
        }
        return _BUILDERS[team.pattern](team, ledger, shared, settings)
    except (CastError, ValueError) as exc:
        raise TeamFileError(f"{path}: {exc}") from exc


# ---------------------------------------------------------------- the patterns


def _options(team: TeamFile, ledger: Ledger | None, shared: _Shared, settings: Settings) -> Pattern:
    cast = Cast(MemoryLedger() if ledger is None else ledger, _specs(team.agents), **shared)
    options = Options(shared["toolkit"])
    leader = team.leader.name
    for agent in team.agents:
        options.add_agent(cast, agent.name, to=() if agent.name == leader else (leader,))
    return Executor(cast.ledger, options, policy=leader, settings=settings)


def _peers(team: TeamFile, ledger: Ledger | None, shared: _Shared, settings: Settings) -> Pattern:
    others = [agent for agent in team.agents if agent.role != "leader"]
    specs = [PeerSpec(**_plain(agent), allowed_peers="*" if agent.peers is None else agent.peers) for agent in others]
    leader = team.leader
    first = PeerSpec(**_plain(leader), allowed_peers="*" if leader.peers is None else leader.peers)
    return Peers(ledger, [first, *specs], settings=settings, **shared)


def _teams(team: TeamFile, ledger: Ledger | None, shared: _Shared, settings: Settings) -> Pattern:
    managers = [
        ManagerSpec(
            **_plain(agent),
            workers=agent.manages,
            plans=agent.plans,
            script=agent.script or None,
            is_global=agent.is_global,
        )
        for agent in team.those("manager")
    ]
    (orchestrator,) = _specs([team.leader])
    workers = _specs(team.those("worker"))
    return Team(ledger, orchestrator=orchestrator, managers=managers, workers=workers, settings=settings, **shared)


def _workers(team: TeamFile, ledger: Ledger | None, shared: _Shared, settings: Settings) -> Pattern:
    (controller,) = _specs([team.leader])
    workers = _specs([agent for agent in team.agents if agent.role != "leader"])
    return Workers(ledger, controller, workers, settings=settings, **shared)


_BUILDERS: Final[Mapping[PatternName, Callable[[TeamFile, Ledger | None, _Shared, Settings], Pattern]]] = {
    "options": _options,
    "peers": _peers,
    "teams": _teams,
    "workers": _workers,
}

# ---------------------------------------------------------------- what they share


def _toolkit(team: TeamFile, folder: Path, files: Path | str | None) -> Toolkit:
    rules = [ApprovalRule(tool) for tool in team.approvals]
    toolkit = Toolkit(rules=rules, approvers=team.approvers)
    root = files or (None if team.files is None else folder / team.files)
    for tool in () if root is None else file_tools(root):
        toolkit.add(tool)
    for name, server in team.mcp.items():
        toolkit.add_mcp(server.url or list(server.command or ()), prefix=name, required=server.required)
    for grant in team.grants:
        toolkit.grant(grant.agent, grant.tool, where=grant.where, calls=grant.calls)
    return toolkit


def _placed(agent: TeamAgent, folder: Path, model: str | None) -> TeamAgent:
    """Return an agent on the model that is said for all, or with its script where that is."""
    own = None if model is not None else _beside(agent.model, folder)
    return agent.model_copy(update={"model": own, "fallback": _beside(agent.fallback, folder)})


def _beside(model: str | None, folder: Path) -> str | None:
    """Return the name of a model; a script's file is beside the team's."""
    if model is None or not model.startswith(_SCRIPTED):
        return model
    return f"{_SCRIPTED}{folder / model.removeprefix(_SCRIPTED)}"


def _plain(agent: TeamAgent) -> dict[str, Any]:
    return {name: getattr(agent, name) for name in AgentSpec.model_fields}


def _specs(agents: Any) -> list[AgentSpec]:
    return [AgentSpec(**_plain(agent)) for agent in agents]
