"""Hosts: run the threads that are due, until the caller stops it; list the hosts of a ledger, and the actors of a system."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from antiphon.errors import LedgerError, TeamFileError
from antiphon.ledger import HostStatus, Ledger, ThreadFilter, ThreadSummary
from antiphon.runtime import ActorView, DeadLetter, Settings, System
from antiphon.service._runs import build_of
from antiphon.service._threads import all_threads, unfit_json

if TYPE_CHECKING:
    from antiphon.agents import RecoveredRun
    from antiphon.patterns.cast import Pattern
    from antiphon.service._runs import RunApp

_LOOK: Final = 0.5
"""Seconds between two looks at the threads of the host. A thread stays with its host for some seconds after it has ended."""
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


async def list_hosts(ledger: Ledger, *, with_ended: bool = False) -> tuple[HostStatus, ...]:
    """Return the living hosts of a ledger by name; `with_ended`: also those that have ended and were the last to own threads.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    return tuple(each for each in await ledger.hosts() if with_ended or each.is_alive)


def host_json(status: HostStatus) -> dict[str, Any]:
    """Return a host as a JSON object."""
    return {
        "name": status.host.name,
        "build": status.host.build,
        "kinds": list(status.host.kinds),
        "is_alive": status.is_alive,
        "since": status.since,
        "until": status.until,
        "threads": status.threads,
    }


# ---------------------------------------------------------------- running threads


async def run_host(
    ledger: Ledger,
    *,
    config: Path | None = None,
    model: str | None = None,
    teams: Sequence[Path] = (),
    team_model: str | None = None,
    ready: Callable[[HostStatus], None] | None = None,
    hear: Callable[[HostedThread], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Run threads of six phases and of teams that are due and that no living host has, until `stop` is set.

    `host_app` does the same for runs of programs.

    Then the actors end, and the threads are free for other hosts at once: unfinished calls stay open, and the next host
    continues them. `config` and `model` are those of the six phases; `team_model` overrides the models of the team files.
    `ready` is called once, with this host as the ledger knows it; `hear` with what happens to its threads.

    Raises:
        ChainConfigError, TeamFileError: a file cannot be read, or is wrong; or two teams have the same pattern.
        ModelError: the model cannot be used.
        LedgerError: the ledger cannot be used at the beginning.
    """
    from antiphon.patterns.cast import together  # noqa: PLC0415 (needs the extra `agents`)
    from antiphon.service._running import new_chain  # noqa: PLC0415
    from antiphon.service._settings import code_files  # noqa: PLC0415

    # Modules that are first used here are imported in the event loop, and nobody else waits for it.
    used = [each.path for team in teams for each in code_files(team)]
    settings = Settings(block_limit=None, build=build_of((config, *used), f"{model} {team_model}"))
    told = _Told(ledger, hear)
    patterns = [new_chain(ledger, model=model, config=config), *_teams(ledger, teams, team_model)]
    async with together(*patterns, settings=settings) as system:
        # The host is told of first, and its threads afterwards: the reader of the lines knows who took them.
        await _tell_ready(ledger, system.host_name, ready)
        hosting = asyncio.ensure_future(system.host())
        telling = asyncio.ensure_future(told.tell(system.host_name))
        stopping = asyncio.ensure_future((stop or asyncio.Event()).wait())
        try:
            await asyncio.wait((hosting, telling, stopping), return_when=asyncio.FIRST_COMPLETED)
            for work in (hosting, telling):
                if work.done():
                    work.result()
        finally:
            for task in (hosting, telling, stopping):
                task.cancel()
            await asyncio.gather(hosting, telling, stopping, return_exceptions=True)
    await told.released()


async def host_app(
    ledger: Ledger,
    app: RunApp,
    *,
    ready: Callable[[HostStatus], None] | None = None,
    hear: Callable[[RecoveredRun], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Continue the runs of an app that dead or stopped processes leave, until `stop` is set.

    `ready` is called once, with this host as the ledger knows it; `hear` with each run that was continued.

    Raises:
        SetupError: one of the programs is none, or two have the same name.
        LedgerError: the ledger cannot be used at the beginning.
    """
    from antiphon.agents import host_runs  # noqa: PLC0415 (only where it is used)

    async def tell(name: str) -> None:
        await _tell_ready(ledger, name, ready)

    await host_runs(ledger, app.programs, ready=tell, hear=hear, stop=stop, build=app.build)


async def _tell_ready(ledger: Ledger, name: str, ready: Callable[[HostStatus], None] | None) -> None:
    if ready is not None:
        (own,) = [each for each in await ledger.hosts() if each.host.name == name]
        ready(own)


def _teams(ledger: Ledger, teams: Sequence[Path], model: str | None) -> list[Pattern]:
    from antiphon.patterns.team_files import TeamFile, open_team  # noqa: PLC0415 (needs the extra `agents`)
    from antiphon.service._settings import trusted_code  # noqa: PLC0415

    named: dict[str, Path] = {}
    for path in teams:
        other = named.setdefault(TeamFile.read(path).pattern, path)
        if other is not path:
            # Their actors have the same kinds, so a thread of one would be given to the agents of the other.
            both = f"{other} and {path} have the same pattern"
            raise TeamFileError(f"{both}: a host runs one team of each pattern; start another host for the other team")
    return [open_team(path, ledger, model=model, may_run=trusted_code(path)) for path in teams]


class _Told:
    """Tells what happens to the threads of a host, as the ledger has it."""

    def __init__(self, ledger: Ledger, hear: Callable[[HostedThread], None] | None) -> None:
        self._ledger = ledger
        self._hear = hear
        self._known: dict[str, bool] = {}
        """The threads that the host has, each with whether its end was told."""

    async def tell(self, name: str) -> None:
        """Look at the threads of a host again and again, until this is cancelled."""
        while True:
            with suppress(LedgerError):  # the host itself reports it; it is looked at again
                await self._look(name)
            await asyncio.sleep(_LOOK)

    async def _look(self, name: str) -> None:
        wanted = ThreadFilter(owner=name, system=False)
        owned = {each.thread_id: each async for each in all_threads(self._ledger, wanted, "created_at")}
        for thread in owned.values():
            is_over = thread.status in _OVER
            if self._known.get(thread.thread_id) is None or (self._known[thread.thread_id] and not is_over):
                self._say(thread, "taken")
            if is_over and not self._known.get(thread.thread_id):
                self._say(thread, "ended")
            self._known[thread.thread_id] = is_over
        for thread_id in [each for each in self._known if each not in owned]:
            await self._left(thread_id)

    async def released(self) -> None:
        """Tell which threads the host has left to others at its end."""
        for thread_id in tuple(self._known):
            await self._left(thread_id)

    async def _left(self, thread_id: str) -> None:
        is_told = self._known.pop(thread_id)
        found = await self._ledger.thread(thread_id)
        if found is not None and not is_told:
            self._say(found, "ended" if found.status in _OVER else "released")

    def _say(self, thread: ThreadSummary, kind: HostedKind) -> None:
        if self._hear is not None:
            reasons = unfit_json(thread) if kind == "released" else []
            reason = "; ".join(str(each["reason"]) for each in reasons) or None
            self._hear(HostedThread(thread.thread_id, kind, thread.status, reason))


# ---------------------------------------------------------------- actors, and the messages that none of them will handle


def actors(system: System) -> tuple[ActorView, ...]:
    """Return the actors of a system: address, supervisor, state, restarts, waiting messages, load."""
    return system.actors()


def actor_json(actor: ActorView) -> dict[str, Any]:
    """Return an actor as a JSON object."""
    return asdict(actor)


@dataclass(frozen=True, slots=True)
class DeadLetterReport:
    """The messages that no actor will handle."""

    latest: tuple[DeadLetter, ...]
    """The latest ones; `Settings.dead_letters` says how many are kept."""
    counts: Mapping[str, int]
    """The number of all of them, by error code."""

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON object, without the content of the messages."""
        latest = [
            {"message_id": each.message.id, "to": each.to, "code": each.code, "reason": each.reason, "at": each.at}
            for each in self.latest
        ]
        return {"total": self.total, "counts": dict(self.counts), "latest": latest}


def dead_letters(system: System) -> DeadLetterReport:
    """Return the dead letters of a system, with their counts."""
    return DeadLetterReport(system.dead_letters, system.dead_letter_counts)
