"""Team files: agents and their pattern in a TOML file, the construction of the pattern, and Python tools of the file.

A Python tool such as `mytools.py:lookup` is a function of a Python file in the folder of the team file. Code runs only if the
caller allows exactly these bytes. So a file is read once: the bytes that are checked are the bytes that run, even if the file
changes meanwhile. A name is looked up only in that file: nothing is imported by name.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from hashlib import sha256
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, Literal, Self, TypeAlias, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_ai import Tool
from typing_extensions import override

from antiphon.agents import AgentBudget
from antiphon.agents._config import known_names, read_small, read_toml
from antiphon.agents.toolkit import ApprovalRule, Toolkit
from antiphon.agents.tools import file_tools
from antiphon.dialects.agent_framework import ScriptStep
from antiphon.errors import ConfigError, SetupError
from antiphon.ledger import Ledger
from antiphon.patterns.cast import AgentSpec, Patience, Pattern, PatternOptions
from antiphon.patterns.options import Executor, Options
from antiphon.patterns.peers import Peers, PeerSpec
from antiphon.patterns.teams import ManagerSpec, Team
from antiphon.patterns.workers import Workers
from antiphon.runtime import Settings

# ---------------------------------------------------------------- Python tools

MayRun: TypeAlias = "Callable[[Path, bytes], bool]"
"""Whether the code of a Python file may run: it gets the path and the content."""

_TOOL: Final = re.compile(r"(?P<file>[A-Za-z0-9_-][A-Za-z0-9_.-]*\.py):(?P<name>[A-Za-z_][A-Za-z0-9_]*)")


def is_python_tool(tool: str) -> bool:
    """Whether a tool of a team file names a Python function. Other tools have no colon in their names."""
    if ":" not in tool:
        return False
    if _TOOL.fullmatch(tool) is None:
        raise ValueError(f"{tool!r}: a Python tool is FILE.py:FUNCTION, with a file in the folder of the team file")
    return True


def file_of(tool: str) -> str:
    """Return the name of the file of a Python tool."""
    return tool.partition(":")[0]


def function_of(tool: str) -> str:
    """Return the name of a tool for agents: for a Python tool, the name of the function."""
    return tool.partition(":")[2] or tool


def python_files(tools: Iterable[str], folder: Path) -> dict[str, bytes]:
    """Return the content of the Python files of tools, by name.

    Raises:
        SetupError: a file cannot be read, or is a link that leads out of the folder.
    """
    contents: dict[str, bytes] = {}
    for name in dict.fromkeys(file_of(tool) for tool in tools if is_python_tool(tool)):
        path = folder / name
        try:
            if path.resolve(strict=True).parent != folder.resolve():
                raise SetupError(f"{name} is a link that leads out of the folder of the team file; copy the file")
            contents[name] = read_small(path)
        except (OSError, ValueError) as exc:
            raise SetupError(f"{name}: {getattr(exc, 'strerror', None) or exc}") from exc
    return contents


def python_tools(tools: Iterable[str], folder: Path, may_run: MayRun | None) -> dict[str, Callable[..., Any] | Tool[Any]]:
    """Return the functions of the Python tools among tools, by name."""
    named = [tool for tool in dict.fromkeys(tools) if is_python_tool(tool)]
    files = python_files(named, folder)
    for name, data in files.items():  # check all of them before any runs
        if may_run is None or not may_run(folder / name, data):
            raise SetupError(f"its tools run {name}, and nobody has allowed that file as it is now")
    modules = {name: _module(folder / name, data) for name, data in files.items()}
    return {function_of(tool): _function(tool, modules[file_of(tool)]) for tool in named}


class _Code(InspectLoader):
    """The loader of a module whose source is already in memory."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path, self._data = path, data

    @override
    def get_source(self, fullname: str) -> str:
        return self._data.decode()

    @override
    def get_code(self, fullname: str) -> Any:
        return self.source_to_code(self._data, str(self._path))


def _module(path: Path, data: bytes) -> ModuleType:
    """Run the code of a file, once per process for the same content."""
    name = f"antiphon_team_{path.stem.replace('.', '_')}_{sha256(str(path).encode() + data).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    loader = _Code(path, data)
    module = module_from_spec(ModuleSpec(name, loader, origin=str(path)))
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look up the module of a class there while the code runs
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as exc:
        del sys.modules[name]
        raise SetupError(f"{path.name} cannot be run: {type(exc).__name__}: {exc}") from exc
    return module


def _function(tool: str, module: ModuleType) -> Callable[..., Any] | Tool[Any]:
    name = function_of(tool)
    function: Any = vars(module).get(name)
    if isinstance(function, Tool) or (callable(function) and not isinstance(function, type)):
        return cast("Callable[..., Any] | Tool[Any]", function)
    functions = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    raise SetupError(f"{file_of(tool)} has no function {name!r}{known_names(name, functions, 'it has', 'none')}")


# ---------------------------------------------------------------- the file

PatternName: TypeAlias = Literal["options", "peers", "teams", "workers"]
Role: TypeAlias = Literal["leader", "manager", "worker"]


class _Section(BaseModel):
    """Unknown keys are refused: a typo must not change permissions silently."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class TeamAgent(AgentSpec):
    """One agent of the team."""

    role: Role = "worker"
    """`leader`: it is asked first; the orchestrator of `teams`, the controller of `workers`, the policy of `options`."""
    manages: tuple[str, ...] = ()
    """The workers of a manager."""
    plans: Literal["steps", "script", "whole"] = "steps"
    """How a manager divides a phase; see `ManagerSpec`."""
    script: tuple[ScriptStep, ...] = ()
    """A fixed script of a manager; without it, a model writes one."""
    is_global: bool = True
    """Whether a manager's syntheses are broadcast; see `ManagerSpec`."""
    peers: tuple[str, ...] | None = None
    """The peers that a peer may ask; None: all."""


class TeamGrant(_Section):
    """A permission in addition to the tools that an agent names: a tool under conditions."""

    agent: str
    tool: str
    where: Mapping[str, Any] | None = None
    """A JSON schema that the arguments must match."""
    calls: int | None = Field(default=None, ge=1)


class TeamServer(_Section):
    """A server of the Model Context Protocol, with tools."""

    url: str | None = None
    command: tuple[str, ...] | None = None
    required: bool = False
    """Whether the team needs it to start."""

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if (self.url is None) == (self.command is None):
            raise ValueError("a server has a url or a command: one of them")
        return self


class TeamBudget(_Section):
    """The budget of a thread, with all agents."""

    requests: int | None = Field(default=None, ge=1)
    tool_calls: int | None = Field(default=None, ge=1)
    tokens: int | None = Field(default=None, ge=1)
    cost: Decimal | None = Field(default=None, gt=0)
    seconds: float | None = Field(default=None, gt=0)

    def as_budget(self) -> AgentBudget:
        """Return it as an `AgentBudget`."""
        return AgentBudget(**self.model_dump())


class TeamFile(_Section):
    """The whole file."""

    pattern: PatternName
    """The name of the pattern."""
    about: str = ""
    """The purpose of the team, in a sentence."""
    model: str | None = None
    """The model of agents that name none, a name for `antiphon.agents.model`; a script is relative to this file."""
    files: str | None = None
    """The folder whose files tools may read, relative to this file."""
    agents: tuple[TeamAgent, ...] = Field(min_length=1)
    grants: tuple[TeamGrant, ...] = ()
    approvals: tuple[str, ...] = ()
    """Tools that need an approval for each call."""
    approvers: tuple[str, ...] = ()
    mcp: Mapping[str, TeamServer] = Field(default_factory=dict[str, TeamServer])
    """Tool servers by name, which is the prefix of the names of their tools."""
    budget: TeamBudget = TeamBudget()
    patience: Patience = Patience()

    @classmethod
    def read(cls, path: Path | str) -> Self:
        """Read a file."""
        return read_toml(path, cls)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = [agent.name for agent in self.agents]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two agents are called {name!r}")
        named = [(agent.name, name) for agent in self.agents for name in (*agent.manages, *(agent.peers or ()))]
        for namer, name in (*named, *(("a grant", grant.agent) for grant in self.grants)):
            if name not in names:
                hint = known_names(name, names, "there are", "none")
                raise ValueError(f"{namer} names {name!r}, and there is no such agent{hint}")
        return self

    @model_validator(mode="after")
    def _check_leader(self) -> Self:
        leaders = [agent.name for agent in self.agents if agent.role == "leader"]
        if len(leaders) != 1:
            raise ValueError(f'one agent has role = "leader", and only one; there are {len(leaders)}')
        return self

    @model_validator(mode="after")
    def _check_python(self) -> Self:
        names: dict[str, str] = {}
        for tool in filter(is_python_tool, self.named_tools):
            if names.setdefault(function_of(tool), tool) != tool:
                raise ValueError(f"{names[function_of(tool)]!r} and {tool!r} have the same name; rename one of the functions")
        return self

    @property
    def named_tools(self) -> tuple[str, ...]:
        """All tools that the file names, in its spelling."""
        of_agents = [tool for agent in self.agents for tool in (*agent.tools, *(step.tool_name for step in agent.script))]
        return (*of_agents, *(grant.tool for grant in self.grants), *self.approvals)

    @property
    def runs_code(self) -> bool:
        """Whether it starts commands or runs Python files."""
        return any(server.command for server in self.mcp.values()) or any(map(is_python_tool, self.named_tools))

    def python_files(self, folder: Path | str) -> dict[str, bytes]:
        """Return the Python files whose functions are tools of the team, by name; `folder` is the folder of the team file."""
        return python_files(self.named_tools, Path(folder))

    @property
    def leader(self) -> TeamAgent:
        """The agent that is asked first."""
        return next(agent for agent in self.agents if agent.role == "leader")

    @property
    def followers(self) -> tuple[TeamAgent, ...]:
        """The other agents."""
        return tuple(agent for agent in self.agents if agent.role != "leader")

    def those(self, role: Role) -> tuple[TeamAgent, ...]:
        """Return the agents with a role."""
        return tuple(agent for agent in self.agents if agent.role == role)


# ---------------------------------------------------------------- the pattern

_SCRIPTED: Final = "scripted:"


def open_team(
    path: Path | str,
    ledger: Ledger | None = None,
    *,
    model: str | None = None,
    files: Path | str | None = None,
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    recover: bool = True,
    budget: AgentBudget | None = None,
    live: bool = False,
    may_run: MayRun | None = None,
) -> Pattern:
    """Return the pattern that a team file describes; open it with `async with`.

    `model` overrides the models of the file, `files` its folder, and `budget` the budget of a thread. `settings` are the
    settings of the system; `recover` is as in every `Pattern`, and `live` as in a `Cast`. `may_run` decides on the Python
    files of its tools, by their path and content; without it, none runs.

    Raises:
        ConfigError: the file cannot be read, or is invalid; the text has the place.
    """
    path = Path(path)
    team = TeamFile.read(path)
    folder = path.resolve().parent
    team = team.model_copy(update={"agents": tuple(_placed(agent, folder, model) for agent in team.agents)})
    try:
        functions = python_tools(team.named_tools, folder, may_run)
        team = _with_plain_names(team)
        toolkit = _toolkit(team, folder, files, functions)
        options: PatternOptions = {
            "model": model or _beside(team.model, folder),
            "toolkit": toolkit,
            "patience": team.patience,
            "thread_budget": budget or team.budget.as_budget(),
            "settings": settings,
            "recover": recover,
            "live": live,
        }
        pattern = _pattern(team, ledger, options)
        _check_tools(team, toolkit)  # after the tools that the pattern adds
    except (SetupError, ValueError) as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    return pattern


# ---------------------------------------------------------------- the patterns


def _pattern(team: TeamFile, ledger: Ledger | None, options: PatternOptions) -> Pattern:
    (leader,), followers = _specs([team.leader]), _specs(team.followers)
    match team.pattern:
        case "options":
            policies = Options(options.get("toolkit"))
            for spec in _specs(team.agents):
                policies.add_agent(spec, to=() if spec.name == leader.name else (leader.name,))
            return Executor(ledger, policies, policy=leader.name, **options)
        case "peers":
            peers = [
                PeerSpec(**_spec_fields(agent), allowed_peers="*" if agent.peers is None else agent.peers)
                for agent in (team.leader, *team.followers)
            ]
            return Peers(ledger, peers, **options)
        case "teams":
            managers = [
                ManagerSpec(
                    **_spec_fields(agent),
                    workers=agent.manages,
                    plans=agent.plans,
                    script=agent.script or None,
                    is_global=agent.is_global,
                )
                for agent in team.those("manager")
            ]
            return Team(ledger, _specs(team.those("worker")), orchestrator=leader, managers=managers, **options)
        case "workers":  # pragma: no branch (there is no other)
            return Workers(ledger, followers, controller=leader, **options)


# ---------------------------------------------------------------- common parts


def _toolkit(team: TeamFile, folder: Path, files: Path | str | None, functions: Mapping[str, Any]) -> Toolkit:
    rules = [ApprovalRule(tool) for tool in team.approvals]
    toolkit = Toolkit(rules=rules, approvers=team.approvers)
    for name, function in functions.items():
        toolkit.add(function, name=name)
    root = files or (None if team.files is None else folder / team.files)
    for tool in () if root is None else file_tools(root):
        toolkit.add(tool)
    for name, server in team.mcp.items():
        toolkit.add_mcp(server.url or list(server.command or ()), prefix=name, required=server.required)
    for grant in team.grants:
        toolkit.grant(grant.agent, grant.tool, where=grant.where, calls=grant.calls)
    return toolkit


def _with_plain_names(team: TeamFile) -> TeamFile:
    """Return the team with its Python tools under the names of their functions."""
    return team.model_copy(
        update={
            "agents": tuple(_renamed(agent) for agent in team.agents),
            "grants": tuple(grant.model_copy(update={"tool": function_of(grant.tool)}) for grant in team.grants),
            "approvals": tuple(map(function_of, team.approvals)),
        }
    )


def _renamed(agent: TeamAgent) -> TeamAgent:
    script = tuple(step.model_copy(update={"tool_name": function_of(step.tool_name)}) for step in agent.script)
    return agent.model_copy(update={"tools": tuple(map(function_of, agent.tools)), "script": script})


def _check_tools(team: TeamFile, toolkit: Toolkit) -> None:
    """Refuse names of tools that do not exist, unless an MCP server may have them."""
    for agent in team.agents:
        for tool in agent.tools:
            toolkit.check_name(tool, f"agent {agent.name!r}", or_built_in=True)
        for step in agent.script:
            toolkit.check_name(step.tool_name, f"the script of manager {agent.name!r}", or_built_in=True)
    toolkit.check_names()


def _placed(agent: TeamAgent, folder: Path, model: str | None) -> TeamAgent:
    """Return an agent with the overriding model, or with the path of its own script."""
    agent_model = None if model is not None else _beside(agent.model, folder)
    return agent.model_copy(update={"model": agent_model, "fallback": _beside(agent.fallback, folder)})


def _beside(model: str | None, folder: Path) -> str | None:
    """Return the name of a model; the path of a script is relative to the team file."""
    if model is None or not model.startswith(_SCRIPTED):
        return model
    return f"{_SCRIPTED}{folder / model.removeprefix(_SCRIPTED)}"


def _spec_fields(agent: TeamAgent) -> dict[str, Any]:
    return {name: getattr(agent, name) for name in AgentSpec.model_fields}


def _specs(agents: Iterable[TeamAgent]) -> list[AgentSpec]:
    return [AgentSpec(**_spec_fields(agent)) for agent in agents]
