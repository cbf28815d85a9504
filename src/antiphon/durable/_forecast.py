"""Forecast: what programs would do with the open runs of a ledger, tried before a deployment in copies of their threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from typing_extensions import override

from antiphon.durable._opened import errors_in
from antiphon.durable._programs import RunProgram, programs_by_name
from antiphon.durable._recovery import AT_ONCE
from antiphon.durable._run import Trial, trial_scope
from antiphon.durable._status import RunStatus, runs
from antiphon.errors import HistoryMismatchError, ParkedError
from antiphon.ledger import Owners
from antiphon.ledger._unopened import check_opened
from antiphon.ledger.memory import MemoryLedger
from antiphon.runtime._rows import text_of

Forecast: TypeAlias = Literal["continues", "stops", "waits", "fails"]
_PATIENCE: Final = 0.05
"""Seconds that the parallel parts of a program have to reach the end of their records, after the first of them has."""


@dataclass(frozen=True, slots=True)
class RunCheck:
    """The forecast for an open run."""

    thread_id: str
    id: str
    name: str
    forecast: Forecast
    """It continues; it stops, because it does not repeat its recorded steps; it waits for a person; it fails before that."""
    reason: str | None = None


async def check_runs(
    ledger: Owners, programs: Iterable[RunProgram[Any]], thread_id: str | None = None, *, at_once: int = AT_ONCE
) -> tuple[RunCheck, ...]:
    """Return the forecast for each open run of a ledger, or of one thread, oldest first. Nothing is written.

    Each run is tried in a copy of its thread, up to the first step that is not recorded: no model, tool or `reconcile`
    function is called. Code between the steps is executed.

    Raises:
        SetupError: one of the values is not a program, or two have the same name.
    """
    check_opened(ledger)
    named, turns = programs_by_name(programs), asyncio.Semaphore(at_once)

    async def check(run: RunStatus) -> RunCheck:
        async with turns:
            return await _check(ledger, named[run.name or ""], run)

    return tuple(await asyncio.gather(*[check(run) for run in await runs(ledger, thread_id) if run.name in named]))


async def _check(ledger: Owners, program: RunProgram[Any], run: RunStatus) -> RunCheck:
    trial = Trial(await _copied(ledger, run.thread_id), _NoStep)
    forecast: Forecast = "continues"
    reason: str | None = None
    try:
        with trial_scope(trial):
            await program.run(run.thread_id, id=run.id, ledger=trial.ledger, on_busy="raise")
    except BaseException as exc:  # the end of the records may be in an exception group, from parallel parts
        errors = errors_in(exc)
        error = next((cause for cause in errors if isinstance(cause, HistoryMismatchError)), errors[0])
        if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
            raise
        if not isinstance(error, _EndOfRecords):
            is_mismatch, is_parked = isinstance(error, HistoryMismatchError), isinstance(error, ParkedError)
            forecast, reason = "stops" if is_mismatch else "waits" if is_parked else "fails", text_of(error)
    await asyncio.sleep(_PATIENCE)  # let parallel parts that the program does not wait for reach their end, too
    return RunCheck(run.thread_id, run.id, program.name, forecast, reason)


class _EndOfRecords(BaseException):
    """Ends a program at its first new step. It is not an `Exception`, so that programs do not catch it."""


class _NoStep(AbstractAsyncContextManager[None, None]):
    """The journal of a check: a new step ends the program."""

    def __init__(self, thread_id: str) -> None:
        pass

    @override
    async def __aenter__(self) -> None:
        await asyncio.sleep(_PATIENCE)
        raise _EndOfRecords

    @override
    async def __aexit__(self, *raised: object) -> None: ...


class _Copy(MemoryLedger):
    """A copy of a thread in memory. Commands that a person is shown are about the ledger that it was copied from."""

    url: str


async def _copied(ledger: Owners, thread_id: str) -> Owners:
    """Return a copy of a thread in memory."""
    copy = _Copy(redaction=await ledger.redaction.of(thread_id) or "off")
    if (url := getattr(ledger, "url", None)) is not None:
        copy.url = url
    rows = [record.message async for record in ledger.read(thread_id)]
    # A branch shares some of its rows with another thread.
    await copy.append(thread_id, [row.model_copy(update={"thread_id": thread_id}) for row in rows], allow_foreign=True)
    return copy
