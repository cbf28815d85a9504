"""Replaying threads: their events from the ledger, and running them again on the installed code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from antiphon.errors import AntiphonError, LedgerError, PlaceError
from antiphon.ledger import Ledger, Record, ThreadFilter
from antiphon.messages import OptionResultPayload, thaw
from antiphon.patterns.postchain import ChainConfig, ChainEvent, Divergence, forecast, rerun
from antiphon.patterns.postchain._chain import event_of
from antiphon.patterns.postchain._config import prepared_agent
from antiphon.patterns.team_files import open_team
from antiphon.patterns.team_files._team_file import TeamFile
from antiphon.runtime._gates import LIFE_ACTOR
from antiphon.service._models import ChainOptions, chain_options
from antiphon.service._settings import chain_config, settings_of, trusted_code
from antiphon.service._threads import RUN_KIND, all_threads, find_thread, list_threads, thread_of
from antiphon.service._transcript import prose
from antiphon.service._values import RerunValue


@dataclass(frozen=True, slots=True)
class ReplayedEvent:
    """Something that happened in a thread, and when."""

    at: datetime
    event: ChainEvent
    is_chain: bool = True
    """False: in a thread of a team."""

    @property
    def answer(self) -> str:
        """At the end of a task: the answer for people, or the error. Teams often answer in JSON: it is shown as Markdown."""
        answer = str(self.event.data.get("response") or self.event.data.get("error_message") or self.event.text)
        return answer if self.is_chain else prose(answer)


async def replay_thread(ledger: Ledger, thread_id: str) -> tuple[ReplayedEvent, ...]:
    """Return what happened in a thread: phases, tools and answers, in their order. No model is called."""
    is_chain = (await find_thread(ledger, thread_id)).pattern == "postchain"
    events: list[ReplayedEvent] = []
    phase: Any = None
    async for record in ledger.read(thread_id):
        event = event_of(record.message, record.seq, phase)
        if event is None and not is_chain:
            event = _end_of_task(record)
        if event is not None:
            phase = event.phase or phase
            events.append(ReplayedEvent(record.recorded_at, event, is_chain))
    return tuple(events)


def _end_of_task(record: Record) -> ChainEvent | None:
    """Return the end of a team's task: the result of a request that no other request has caused; None for any other row."""
    message, payload = record.message, record.message.payload
    if message.lane != "control" or message.parent_id is not None or not isinstance(payload, OptionResultPayload):
        return None
    outcome: Any = {"error_message": payload.error_message} if payload.is_error else thaw(payload.result)
    match outcome:  # the patterns call the answer by these names
        case {"response": str(answer)} | {"content": str(answer)} | {"message": {"content": str(answer)}}:
            data = {"response": answer}
        case {"error_message": str(reason)} if message.policy != str(LIFE_ACTOR):
            data = {"error_message": reason}
        case _:
            return None
    return ChainEvent(
        thread_of(record), "ended", text="completed" if "response" in data else "failed", data=data, seq=record.seq
    )


async def rerun_threads(ledger: Ledger, thread_id: str | None = None, *, config: Path | None = None) -> tuple[RerunValue, ...]:
    """Run stored threads again on the installed code, with the recorded answers of models and tools.

    Without a thread, all that have ended. A thread that cannot run again counts as different.

    Raises:
        PlaceError: the thread has not ended.
    """
    override = None if config is None else ChainConfig.read(config)
    if thread_id:
        return (await _rerun(ledger, thread_id, override),)
    threads = [thread async for thread in list_threads(ledger, order="created_at")]
    ended = [thread for thread in threads if thread.pattern == "postchain" and thread.status in ("completed", "failed")]
    return tuple([await _rerun(ledger, thread.thread_id, override) for thread in ended])


async def _rerun(ledger: Ledger, thread_id: str, config: ChainConfig | None) -> RerunValue:
    await find_thread(ledger, thread_id)
    try:
        options = await _chain_options(ledger, thread_id, config)
        parts = await rerun(ledger, thread_id, config=options.config, tools=options.tools)
    except ValueError as exc:
        raise PlaceError(str(exc), thread_id) from exc
    except LedgerError:
        raise
    except (AntiphonError, TimeoutError) as exc:  # the other threads are still worth a try
        parts = Divergence(1, "it cannot be run again", str(exc) or "it does not come to an end")
    return RerunValue.of(thread_id, parts)


async def _chain_options(ledger: Ledger, thread_id: str, config: ChainConfig | None) -> ChainOptions:
    """Return the options of a thread's chain: with the given configuration, or the recorded one, or none."""
    recorded = await settings_of(ledger, thread_id)
    if recorded is None:
        agent = await prepared_agent(ledger, thread_id)
        # Agents that only choose are those of a small model, which needs its own options again.
        return chain_options(agent.model if agent is not None and agent.outputs == "quotes" else None, config)
    if config is None:
        recorded_config = chain_config(recorded)
        config = ChainConfig.read(recorded_config) if isinstance(recorded_config, Path) else recorded_config
    return chain_options(recorded.model, config)


# ---------------------------------------------------------------- threads that have not ended


@dataclass(frozen=True, slots=True)
class RunningForecast:
    """Which open threads the installed code can continue."""

    tried: tuple[RerunValue, ...]
    """Those of six phases, and of the given teams; one that `differs` cannot be continued."""
    untried: tuple[str, ...]
    """Threads of teams whose file was not given."""

    @property
    def unfit(self) -> tuple[RerunValue, ...]:
        """Those that the installed code cannot continue."""
        return tuple(thread for thread in self.tried if thread.differs)


async def forecast_threads(
    ledger: Ledger, thread_id: str | None = None, *, config: Path | None = None, teams: Sequence[Path] = ()
) -> RunningForecast:
    """Try the open threads of a ledger, or one, on the installed code. Nothing is written, and no model or tool is called.

    Each is continued in a copy up to its next step. A thread that cannot be loaded counts as one that cannot be continued.
    `config` is that of the six phases, `teams` are the files of teams. Runs of programs are for `check_runs`.
    """
    files: dict[str | None, Path] = {TeamFile.read(path).pattern: path for path in teams}
    override = None if config is None else ChainConfig.read(config)
    if thread_id is not None:
        await find_thread(ledger, thread_id)
    tried: list[RerunValue] = []
    untried: list[str] = []
    async for thread in all_threads(ledger, ThreadFilter(open_calls=True, system=False), "created_at"):
        if thread_id not in (None, thread.thread_id) or (thread.kind or "").startswith(RUN_KIND):
            continue
        if thread.pattern == "postchain" or thread.pattern in files:
            tried.append(await _forecast(ledger, thread.thread_id, override, files.get(thread.pattern)))
        else:
            untried.append(thread.thread_id)
    return RunningForecast(tuple(tried), tuple(untried))


async def _forecast(ledger: Ledger, thread_id: str, config: ChainConfig | None, team: Path | None) -> RerunValue:
    try:
        if team is not None:
            parts = await forecast(
                ledger, thread_id, open_pattern=lambda copy: open_team(team, copy, recover=False, may_run=trusted_code(team))
            )
        else:
            options = await _chain_options(ledger, thread_id, config)
            parts = await forecast(ledger, thread_id, config=options.config, tools=options.tools)
    except LedgerError:
        raise
    except AntiphonError as exc:  # the other threads are still worth a try
        parts = Divergence(1, "it cannot be loaded", str(exc))
    return RerunValue.of(thread_id, parts)
