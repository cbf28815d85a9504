"""The settings of a thread: recorded in the thread, used when it continues, and compared with the current files.

A row (`SETTINGS`, in the lane `effect`) has the model, the configuration, the team file, the folder of files, the task and the
budget. The last row counts. It is data: nothing in it is executed. A file is recorded by its path, its hash and its text,
without secrets; the text is for people, and for a configuration of phases, which is only data itself. Code and commands run
only from a file of this machine that has the recorded hash and that this user trusts (`_trust.py`). The author of the ledger
cannot choose what runs.
"""

from __future__ import annotations

import difflib
import os
import shlex
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter

from antiphon.agents._config import read_config, read_small
from antiphon.durable import waiting_for
from antiphon.errors import ConfigError, OwnedError, ServiceError, SettingsError, SetupError
from antiphon.ledger import STANDARD_REDACTION, Ledger, Record
from antiphon.messages import RUNTIME_POLICY, DataPart, JsonObject, Message, PartsPayload, thaw
from antiphon.service._models import choose_model
from antiphon.service._trust import digest_of, is_trusted, is_trusted_content, trust_content, trust_folder

if TYPE_CHECKING:
    from antiphon.agents import AgentBudget
    from antiphon.patterns.postchain import ChainConfig
    from antiphon.runtime import System

_SETTINGS: Final = "SETTINGS"
_BUDGETS: Final = ("requests", "tool_calls", "tokens", "cost", "seconds")
_SHOWN: Final = 40
"""Lines of a difference that are shown."""


@dataclass(frozen=True, slots=True)
class UsedFile:
    """A file that a thread has used."""

    path: str
    digest: str
    text: str
    """Without secrets."""

    @classmethod
    def read(cls, path: Path) -> UsedFile:
        """Read a file."""
        data = _data(path)
        return cls(str(path.resolve()), digest_of(data), STANDARD_REDACTION.text(data.decode(errors="replace")))

    @property
    def is_whole(self) -> bool:
        """Whether the text is all of the file: nothing in it was secret."""
        return digest_of(self.text.encode()) == self.digest

    def difference(self) -> str:
        """Return how the file on this machine differs from the recorded one, for people; empty: it does not."""
        try:
            now = UsedFile.read(Path(self.path))
        except ConfigError as exc:
            return str(exc)
        if now.digest == self.digest:
            return ""
        lines = difflib.unified_diff(
            self.text.splitlines(), now.text.splitlines(), "as the thread has it", "as it is now", lineterm="", n=1
        )
        return "\n".join(list(lines)[:_SHOWN]) or "secrets in it have changed"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of a thread."""

    model: str | None = None
    """The chosen model; for a team, the one that overrides the models of its file."""
    config: UsedFile | None = None
    team: UsedFile | None = None
    files: str | None = None
    """The folder that a team works on, if it was given in addition to the team file."""
    task: str | None = None
    """The last task of a team."""
    documents: tuple[str, ...] = ()
    """The documents that were added for it; the ledger has them."""
    budget: Mapping[str, float] | None = None
    """The budget of the thread, if one was given for it."""

    @classmethod
    def of_team(
        cls, team: Path, task: str, *, model: str | None, files: Path | None, budget: Mapping[str, float] | None
    ) -> RunSettings:
        """Return the settings of a task for a team."""
        folder = None if files is None else str(files.resolve())
        return cls(model=model, team=UsedFile.read(team), files=folder, task=task, budget=budget)

    def agent_budget(self) -> AgentBudget | None:
        """Return the budget of the thread; None: the one of its file, or none."""
        from antiphon.agents import AgentBudget  # noqa: PLC0415 (only where it is used)

        if self.budget is None:
            return None
        limits: dict[str, Any] = dict(self.budget)
        if "cost" in limits:
            limits["cost"] = Decimal(str(limits["cost"]))
        return AgentBudget(**limits)


_FORM: Final = TypeAdapter(RunSettings)


# ---------------------------------------------------------------- in the thread


async def settings_of(ledger: Ledger, thread_id: str) -> RunSettings | None:
    """Return the latest recorded settings of a thread; None if it has none."""
    rows = await _rows(ledger, thread_id)
    return None if not rows else _settings_in(rows[-1])


async def is_of_team(ledger: Ledger, thread_id: str) -> bool:
    """Whether a thread says that a team has worked in it."""
    settings = await settings_of(ledger, thread_id)
    return settings is not None and settings.team is not None


async def _rows(ledger: Ledger, thread_id: str) -> list[Record]:
    """Return the rows of settings. Only the runtime writes in that lane: what was imported is talk."""
    rows = await ledger.find(correlation_id=_SETTINGS, thread_id=thread_id)
    return [row for row in rows if row.message.lane == "effect" and row.message.policy == RUNTIME_POLICY]


def _settings_in(row: Record) -> RunSettings | None:
    match row.message.parts:
        case (DataPart(data=JsonObject() as form),):
            settings = _FORM.validate_python(thaw(form).get("data") or {})
            return settings if settings.budget is None else replace(settings, budget=checked_budget(settings.budget))
        case _:
            return None


async def record_settings(ledger: Ledger, thread_id: str, settings: RunSettings, system: System | None = None) -> None:
    """Record the settings of a thread, unless its last row has the same.

    `system` is the one that runs it; without it, the thread must be new. A thread that another living host has is left alone.
    """
    rows = await _rows(ledger, thread_id)
    data: dict[str, Any] = STANDARD_REDACTION.value(_FORM.dump_python(settings, mode="json", exclude_defaults=True))
    if rows and _settings_in(rows[-1]) == settings:
        return
    payload = PartsPayload(parts=(DataPart(data={"type": _SETTINGS, "data": data}),))
    row = Message(
        id=f"{thread_id}@settings{len(rows) + 1}",
        policy=RUNTIME_POLICY,
        payload=payload,
        thread_id=thread_id,
        correlation_id=_SETTINGS,
        lane="effect",
    )
    if system is None:
        await ledger.append(thread_id, [row])
        return
    with suppress(OwnedError):  # the other host runs it with its own settings
        await system.append_note(thread_id, row)


# ---------------------------------------------------------------- the settings in use


def chosen_model(name: str | None) -> str | None:
    """Return the name of the chosen model: by the caller, the environment or `antiphon.toml`, else the best installed one."""
    return named_model(name) or choose_model(None).name


def named_model(name: str | None) -> str | None:
    """Return the model that the caller, the environment or `antiphon.toml` names; None: none of them does."""
    return name or os.environ.get("ANTIPHON_MODEL") or read_config().model


def chain_config(settings: RunSettings) -> Path | ChainConfig | None:
    """Return the recorded configuration of the phases of a thread: the file if it is unchanged, else its recorded text.

    Raises:
        SettingsError: the file has changed, and the recorded text is not whole.
        ConfigError: the recorded text is not a configuration.
    """
    from antiphon.patterns.postchain import ChainConfig  # noqa: PLC0415 (only where it is used)

    file = settings.config
    if file is None:
        return None
    difference = file.difference()
    if not difference:
        return Path(file.path)
    if not file.is_whole:
        raise SettingsError(f"the configuration {file.path} is not what the thread was run with: {difference}", "--config")
    try:
        return ChainConfig.model_validate(tomllib.loads(file.text))
    except ValueError as exc:
        raise ConfigError(f"{file.path}, as the thread has it: {exc}") from exc


def team_path(settings: RunSettings) -> Path:
    """Return the recorded team file of a thread, if it is unchanged and this user trusts the code that it runs.

    Raises:
        SettingsError: it has changed or is gone, or its commands or its folder are not trusted.
    """
    from antiphon.patterns.team_files._team_file import TeamFile  # noqa: PLC0415 (needs the extra `agents`)

    file = settings.team
    if file is None:
        raise SettingsError("the thread does not say which team file it was run with", "--team")
    if difference := file.difference():
        raise SettingsError(f"the team file {file.path} is not what the thread was run with:\n{difference}", "--team")
    path = Path(file.path)
    if TeamFile.read(path).runs_code and not is_trusted_content(_data(path)):
        reason = f"{path} runs code, and you have not run or trusted it"
        raise SettingsError(f"{reason}: look at it first", "--team")
    if settings.files is not None and not is_trusted(Path(settings.files)):
        raise SettingsError(f"the thread works on the folder {settings.files}, which you have not given to a team", "--files")
    return path


def trust_named(team: Path, files: Path | None) -> None:
    """Trust the commands of a team file that this user has named, and its folder, so that the thread can be resumed by its id.

    If the list cannot be written, the run still starts; the file must be named again the next time.
    """
    from antiphon.patterns.team_files._team_file import TeamFile  # noqa: PLC0415 (needs the extra `agents`)

    with suppress(SetupError):
        if TeamFile.read(team).runs_code:
            trust_content(_data(team), team)
        if files is not None:
            trust_folder(files)


def trusted_code(team: Path) -> Callable[[Path, bytes], bool]:
    """Return the decision on the Python files of a team: those that this user trusts with their present content may run.

    The function raises a `SetupError` for another one, which says how to trust it.
    """

    def may_run(path: Path, data: bytes) -> bool:
        if not is_trusted_content(data):
            reason = f"its tools run {path.name}, and you have not trusted that file as it is now"
            raise SetupError(f"{reason}; `antiphon trust {shlex.quote(str(team))}` shows it first")
        return True

    return may_run


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A file that can be trusted: a team file, or code that it runs."""

    path: Path
    data: bytes
    commands: tuple[str, ...] = ()
    """Of a team file, the commands that it starts."""

    @property
    def digest(self) -> str:
        """The hash of the content, as the list of trusted files has it."""
        return digest_of(self.data)


def code_files(path: Path) -> tuple[CodeFile, ...]:
    """Return what is trusted with a file: a team file and the Python files of its tools, or only the file itself."""
    if path.suffix == ".py":
        return (CodeFile(path, _data(path)),)
    from antiphon.patterns.team_files._team_file import TeamFile  # noqa: PLC0415 (needs the extra `agents`)

    team = TeamFile.read(path)
    commands = tuple(shlex.join(server.command) for server in team.mcp.values() if server.command)
    try:
        python = team.python_files(path.resolve().parent)
    except SetupError as exc:
        raise ConfigError(f"{path}: {exc}") from exc
    folder = path.resolve().parent if path.is_symlink() else path.parent
    return (CodeFile(path, _data(path), commands), *(CodeFile(folder / name, data) for name, data in python.items()))


def _data(path: Path) -> bytes:
    try:
        return read_small(path)
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: {getattr(exc, 'strerror', None) or exc}") from exc


# ---------------------------------------------------------------- budgets


def read_budget(texts: Sequence[str]) -> dict[str, float] | None:
    """Return a budget from texts such as `requests=20`; None if there are none."""
    numbers: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            numbers[name.replace("-", "_")] = float(number)
        except ValueError:
            numbers[name] = -1
    return checked_budget(numbers) if numbers else None


def checked_budget(budget: Mapping[str, float]) -> dict[str, float]:
    """Return a budget whose names and numbers are right."""
    for name, number in budget.items():
        if name not in _BUDGETS or not number > 0:
            raise SetupError(f"a budget is NAME=NUMBER, such as requests=20; names are {', '.join(_BUDGETS)}; not {name!r}")
    counted = ("requests", "tool_calls", "tokens")
    return {name: int(number) if name in counted else number for name, number in budget.items()}


async def check_budget(ledger: Ledger, thread_id: str, budget: Mapping[str, float] | None) -> None:
    """Refuse to resume a thread that has spent its budget without a new one: it would stop again at once."""
    waiting = await waiting_for(ledger, thread_id)
    if budget is None and waiting is not None and waiting.stopped_by == "BUDGET_EXCEEDED":
        raise ServiceError(f"thread {thread_id} has stopped: {waiting.reason}", thread_id, code="BUDGET_NEEDED")
