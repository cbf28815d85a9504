"""Hosts: run the threads that are due, until the caller stops it; list hosts, limits of model requests, and actors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Unpack

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from antiphon._listeners import listener
from antiphon._tasks import beside
from antiphon.agents._config import read_toml
from antiphon.errors import ConfigError, LedgerError, SetupError
from antiphon.ledger import HostStatus, Ledger, Limit, ThreadFilter, ThreadSummary
from antiphon.runtime import Settings, System, ThreadLimit
from antiphon.service._following import chain_text
from antiphon.service._live_text import both, offering_text
from antiphon.service._runs import build_of
from antiphon.service._threads import all_threads
from antiphon.service._values import HostValue, LimitValue, unfit_builds

if TYPE_CHECKING:
    from antiphon.durable import RecoveredRun
    from antiphon.patterns.cast import Pattern
    from antiphon.patterns.postchain import PostChain
    from antiphon.service._runs import RunApp

_LOOK: Final = 0.5
"""Seconds between two looks at the threads of the host. A thread stays with its host for some seconds after it has ended."""
_RUNS_AT_ONCE: Final = 10
_OVER: Final = frozenset({"completed", "failed", "terminated"})

HostedKind: TypeAlias = Literal["taken", "ended", "released"]


@dataclass(frozen=True, slots=True)
class HostedThread:
    """Something that happened to a thread of a host."""

    thread_id: str
    kind: HostedKind
    """`taken`: the host runs it. `ended`: its status says so. `released`: another host may continue it."""
    status: str | None
    reason: str | None = None
    """Why this host cannot continue it."""
    tenant: str | None = None
    """Whose thread it is, if the host works for several tenants."""


async def list_hosts(ledger: Ledger, *, with_ended: bool = False) -> tuple[HostValue, ...]:
    """Return the living hosts of a ledger by name; `with_ended`: also ended ones that were the last to own threads."""
    return tuple(HostValue.of(host) for host in await ledger.hosts() if with_ended or host.is_alive)


# ---------------------------------------------------------------- limits for all hosts


async def list_limits(ledger: Ledger) -> tuple[LimitValue, ...]:
    """Return the limits of model requests by model, with the permits that hosts have under them."""
    return tuple(LimitValue.of(limit) for limit in await ledger.limits.status())


class LimitChanges(TypedDict, total=False):
    """The limits of a model that are changed; None removes one."""

    at_once: int | None
    per_minute: int | None
    cost_per_day: Decimal | None


class _LimitTable(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    at_once: int | None = None
    per_minute: int | None = None
    cost_per_day: int | float | None = None


class _LimitsFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limits: dict[str, _LimitTable] = {}


def read_limits(path: Path) -> tuple[Limit, ...]:
    """Read the limits of a TOML file, which has a table `[limits."MODEL"]` for each model."""
    limits: list[Limit] = []
    for model, table in read_toml(path, _LimitsFile).limits.items():
        cost = None if table.cost_per_day is None else Decimal(str(table.cost_per_day))
        try:
            limits.append(Limit(model, table.at_once, table.per_minute, cost))
        except ValueError as exc:
            raise SetupError(f'{path}: [limits."{model}"]: {exc}') from None
    return tuple(limits)


async def change_limit(
    ledger: Ledger, model: str, *, is_removed: bool = False, **changes: Unpack[LimitChanges]
) -> tuple[LimitValue, ...]:
    """Change some limits of a model for all hosts, or remove all of them first; return the limits of all models."""
    before = [usage.limit for usage in await ledger.limits.status() if usage.limit.model == model and not is_removed]
    try:
        limit = replace(before[0], **changes) if before else Limit(model, **changes)
    except ValueError as exc:
        raise SetupError(str(exc)) from None
    await ledger.limits.set(limit)
    return await list_limits(ledger)


async def apply_limits(ledger: Ledger, limits: Sequence[Limit]) -> tuple[LimitValue, ...]:
    """Make some limits the only ones of a ledger, and return them with their use."""
    for limit in limits:
        await ledger.limits.set(limit)
    for usage in await ledger.limits.status():
        if usage.limit not in limits:
            await ledger.limits.set(Limit(usage.limit.model))
    return await list_limits(ledger)


# ---------------------------------------------------------------- running threads


async def run_host(
    *ledgers: Ledger,
    config: Path | None = None,
    model: str | None = None,
    teams: Sequence[Path] = (),
    team_model: str | None = None,
    thread_limit: int | None = None,
    kinds: Sequence[str] | None = None,
    drain: float | None = None,
    ready: Callable[[HostStatus], None] | None = None,
    on_thread: Callable[[HostedThread], None] | None = None,
    draining: Callable[[int], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run threads of six phases and of teams that are due and that no living host has, until `stop` is set.

    `host_app` does the same for runs of programs.

    Several ledgers are those of several tenants: each has a host of its own here, and they share `thread_limit` evenly while
    threads of several are due.

    After `stop` the actors end, and the threads are free for other hosts at once: unfinished calls stay open, and the next
    host continues them. If a living host has another build, the threads at work end here first, for at most `drain` seconds;
    None is the default of `Settings`. See `System.host`.

    `config` and `model` are those of the six phases; `team_model` overrides the models of the team files. `thread_limit` is
    how many threads may be at work here at once; None is the default of `Settings`. `kinds` are the kinds of threads to
    take, of those that the actors of the six phases and the teams can run; None: all of them. `ready` is called once for
    each ledger, in their order, with this host as the ledger knows it; `on_thread` with what happens to its threads;
    `draining` with the number of threads that end here first.

    Raises:
        ConfigError: a file cannot be read, or is wrong; or two teams have the same pattern.
        SetupError: the actors can run no threads of one of `kinds`.
    """
    from antiphon.service._models import model_in  # noqa: PLC0415 (needs the extra `agents`)
    from antiphon.service._running import new_chain  # noqa: PLC0415
    from antiphon.service._settings import named_model  # noqa: PLC0415

    settings = _settings(config, teams, f"{model} {team_model}", thread_limit=thread_limit, kinds=kinds, drain=drain)
    ready, on_thread, draining = listener(ready), listener(on_thread), listener(draining)
    stop, reporters = (
        stop or asyncio.Event(),
        [_ThreadReporter(ledger, on_thread, is_one=len(ledgers) == 1) for ledger in ledgers],
    )
    async with AsyncExitStack() as stack:
        systems: list[System] = []
        for ledger in ledgers:
            chain = new_chain(ledger, model=named_model(model or model_in(config)), config=config)
            patterns: list[Pattern] = [chain, *_teams(ledger, teams, team_model)]
            systems.append(await _opened(stack, chain, patterns, settings))
        for ledger, system in zip(ledgers, systems, strict=True):
            # The host is told of first, and its threads afterwards: the reader of the lines knows who took them.
            await system.register_host()
            await _tell_ready(ledger, system.host_name, ready)
        hosting = [system.host(stop=stop, draining=draining) for system in systems]
        await _run_to_end(
            hosting, [reporter.tell(system.host_name) for reporter, system in zip(reporters, systems, strict=True)]
        )
    for reporter in reporters:
        await reporter.released()


async def _opened(stack: AsyncExitStack, chain: PostChain, patterns: Sequence[Pattern], settings: Settings) -> System:
    """Open the system of one ledger."""
    from antiphon.patterns.cast import together  # noqa: PLC0415 (needs the extra `agents`)
    from antiphon.service._running import agent_text  # noqa: PLC0415
    from antiphon.service._schedules import keep_schedules  # noqa: PLC0415

    # Without recovery, which takes all that is due: `host` takes no more than its limit.
    system = await stack.enter_async_context(together(*patterns, settings=settings, recover=False))
    keep_schedules(system, chain)
    if unknown := sorted({*(settings.kinds or ())} - {*system.kinds}):
        raise SetupError(f"this host runs no threads of kind {unknown[0]!r}; it has {', '.join(system.kinds)}")
    source = both(chain_text(chain), agent_text(chain.ledger))
    await stack.enter_async_context(offering_text(system.host_name, source, chain.ledger))
    return system


def _settings(
    config: Path | None,
    teams: Sequence[Path],
    models: str,
    *,
    thread_limit: int | None,
    kinds: Sequence[str] | None,
    drain: float | None,
) -> Settings:
    """Return the settings of a host, whose build follows from its files and models."""
    from antiphon.service._settings import code_files  # noqa: PLC0415 (needs the extra `agents`)

    files = [file.path for team in teams for file in code_files(team)]
    # Modules that are first used here are imported in the event loop, and nobody else waits for it: it is not watched.
    settings = Settings(block_limit=None, build=build_of((config, *files), models), kinds=tuple(kinds) if kinds else None)
    limit = ThreadLimit() if thread_limit is None else ThreadLimit(thread_limit)
    return replace(settings, thread_limit=limit, drain=settings.drain if drain is None else drain)


async def _run_to_end(works: Sequence[Coroutine[Any, Any, None]], background: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run some works to their end, with endless ones beside them. If one fails, all end, and its error is raised."""
    async with beside(*works) as ending, beside(*background) as endless:
        while pending := [task for task in ending if not task.done()]:
            done, _ = await asyncio.wait([*pending, *endless], return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()


async def host_app(
    ledger: Ledger,
    app: RunApp,
    *,
    thread_limit: int | None = None,
    ready: Callable[[HostStatus], None] | None = None,
    on_run: Callable[[RecoveredRun], None] | None = None,
    stop: asyncio.Event | None = None,
    drain: float | None = None,
    draining: Callable[[int], None] | None = None,
) -> None:
    """Continue the runs of an app that dead or stopped processes leave, until `stop` is set.

    If a living host has another build, the runs at work end here first, for at most `drain` seconds, as in `run_host`.

    `thread_limit` is how many threads may be at work here at once; None: ten. `ready` is called once,
    with this host as the ledger knows it; `on_run` with each run that was continued; `draining` with the number of threads
    whose runs end here first.

    Raises:
        SetupError: one of the programs is none, or two have the same name.
    """
    from antiphon.durable import host_runs  # noqa: PLC0415 (only where it is used)
    from antiphon.service._running import agent_text  # noqa: PLC0415

    ready = listener(ready)
    async with AsyncExitStack() as stack:

        async def serve_text(name: str) -> None:
            await stack.enter_async_context(offering_text(name, agent_text(ledger), ledger))
            await _tell_ready(ledger, name, ready)

        await host_runs(
            ledger,
            app.programs,
            hear=on_run,
            ready=serve_text,
            stop=stop,
            at_once=_RUNS_AT_ONCE if thread_limit is None else thread_limit,
            build=app.build,
            drain=drain,
            draining=draining,
        )


async def _tell_ready(ledger: Ledger, name: str, ready: Callable[[HostStatus], None] | None) -> None:
    if ready is not None:
        (status,) = [status for status in await ledger.hosts() if status.host.name == name]
        ready(status)


def _teams(ledger: Ledger, teams: Sequence[Path], model: str | None) -> list[Pattern]:
    from antiphon.patterns.team_files import open_team  # noqa: PLC0415 (needs the extra `agents`)
    from antiphon.patterns.team_files._team_file import TeamFile  # noqa: PLC0415 (needs the extra `agents`)
    from antiphon.service._settings import trusted_code  # noqa: PLC0415

    named: dict[str, Path] = {}
    for path in teams:
        other = named.setdefault(TeamFile.read(path).pattern, path)
        if other is not path:
            # Their actors have the same kinds, so a thread of one would be given to the agents of the other.
            both = f"{other} and {path} have the same pattern"
            raise ConfigError(f"{both}: a host runs one team of each pattern; start another host for the other team")
    return [open_team(path, ledger, model=model, may_run=trusted_code(path), live=True) for path in teams]


class _ThreadReporter:
    """Tells what happens to the threads of a host, as the ledger has it."""

    def __init__(self, ledger: Ledger, on_thread: Callable[[HostedThread], None] | None, *, is_one: bool) -> None:
        self._ledger = ledger
        self._on_thread = on_thread
        self._tenant: str | None = None if is_one else getattr(ledger, "tenant", None)
        self._reported: dict[str, bool] = {}
        """The threads that the host has, each with whether its end was told."""

    async def tell(self, name: str) -> None:
        """Look at the threads of a host again and again, until this is cancelled."""
        while True:
            with suppress(LedgerError):  # the host itself reports it; it is looked at again
                await self._look(name)
            await asyncio.sleep(_LOOK)

    async def _look(self, name: str) -> None:
        query = ThreadFilter(owner=name, system=False)
        owned = {thread.thread_id: thread async for thread in all_threads(self._ledger, query, "created_at")}
        for thread in owned.values():
            is_over = thread.status in _OVER
            if self._reported.get(thread.thread_id) is None or (self._reported[thread.thread_id] and not is_over):
                self._say(thread, "taken")
            if is_over and not self._reported.get(thread.thread_id):
                self._say(thread, "ended")
            self._reported[thread.thread_id] = is_over
        for thread_id in [thread_id for thread_id in self._reported if thread_id not in owned]:
            await self._left(thread_id)

    async def released(self) -> None:
        """Tell which threads the host has left to others at its end."""
        for thread_id in tuple(self._reported):
            await self._left(thread_id)

    async def _left(self, thread_id: str) -> None:
        is_told = self._reported.pop(thread_id)
        summary = await self._ledger.thread(thread_id)
        if summary is not None and not is_told:
            self._say(summary, "ended" if summary.status in _OVER else "released")

    def _say(self, thread: ThreadSummary, kind: HostedKind) -> None:
        if self._on_thread is not None:
            builds = unfit_builds(thread) if kind == "released" else ()
            reason = "; ".join(build.reason for build in builds) or None
            self._on_thread(HostedThread(thread.thread_id, kind, thread.status, reason, self._tenant))
