"""Opening a run: claim its thread, find its earlier attempts, and read how they ended.

A finished run is read without a claim, by any number of readers at once.

**Busy.** A run is busy while it is open elsewhere in this process, or another living host owns its thread. A second caller
that joins waits without a claim, and polls: when the run has ended, it reads the recorded run; when the owner has died or
released the thread with the run open, it claims the thread and continues the run. It never waits for an enclosing block,
because that block waits for it.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias, cast

from antiphon.durable._course import RunCourse
from antiphon.durable._history import (
    FAILED,
    FAILED_STATUS,
    PROGRAM,
    RUN_KIND,
    History,
    Recorded,
    failures_of,
    has_ended,
    input_of,
    run_rows,
    waits_for_person,
)
from antiphon.durable._opened import FinishedJournal, OnChange, Opened
from antiphon.durable._tenure import BUSY, Tenure, tenure_of, to_the_end
from antiphon.errors import (
    AppendRefusedError,
    FencedError,
    HistoryMismatchError,
    OwnedError,
    ParkedError,
    RefusedError,
    WithdrawnError,
)
from antiphon.ledger import Owners, Record, replay
from antiphon.ledger._open import command_line
from antiphon.messages import Json, current_port
from antiphon.messages._arguments import check_choice
from antiphon.messages._json_values import JsonError
from antiphon.messages._json_values import own as copied
from antiphon.messages._keys import again_id, as_key, park_id
from antiphon.messages._names import is_name
from antiphon.runtime._journal import Admit, Journal, observe
from antiphon.runtime._lease import is_of_this_process
from antiphon.runtime._reporting import Observer
from antiphon.runtime._rows import AGAIN, PARK, RUN, Standing, begun, ended, says_the_same_value, unused
from antiphon.runtime._settings import GOES_ON, STOPPED, Settings

_RECOVERIES: Final = Settings().recoveries


OnBusy: TypeAlias = Literal["join", "raise"]
"""The behaviour of a caller if the run is already open, or another process owns the thread: wait for it, or raise."""

_OWN_SYSTEM: Final = "a system of this program has it: in a handler, use ledger_run(context)"
_FIRST_LOOK: Final = 0.02
_LONGEST_PAUSE: Final = 0.5
"""The longest time between two polls of a busy thread, in seconds. The first pauses are shorter, because most repeated runs
are short."""


def program_name() -> str:
    """Return the name of this program: the name of its main module or file, or `program`."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    name = spec.name.removesuffix(".__main__") if spec is not None else Path(file).stem if file else ""
    return name if is_name(name) else "program"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a program asks of its run: see `ledger_run`.

    Raises:
        ValueError: `on_busy` or `on_change` is not one of its values, or `input` is not JSON.
    """

    name: str | None = None
    """The name of the program; None: that of the main module or file."""
    admit: Admit | None = None
    observer: Observer | None = None
    on_busy: OnBusy = "join"
    input: Json = None
    """Recorded when the run starts. For a run that was started before, it must be the same, or None."""
    on_change: OnChange | None = None
    required: bool = False

    def __post_init__(self) -> None:
        check_choice("on_busy", self.on_busy, OnBusy)
        check_choice("on_change", self.on_change, OnChange)
        try:
            copied(self.input)
        except JsonError as exc:
            place = "".join(f"[{step!r}]" for step in exc.path)
            raise ValueError(f"input{place} of a run is recorded as JSON: {exc.reason}") from None

    @property
    def program(self) -> str:
        """The name of the program."""
        return program_name() if self.name is None else self.name


class Opening:
    """The steps that open a run, as a program asks for it."""

    def __init__(self, ledger: Owners, thread_id: str, id: str, options: RunOptions) -> None:
        self._ledger = ledger
        self._thread_id = thread_id
        self._id = f"{thread_id}/{as_key(id)}"
        self._kind = f"{RUN_KIND}/{options.program}"
        self._options = options

    async def open(self) -> Opened:
        """Start or continue the run, or read it if it has ended.

        Raises:
            HistoryMismatchError: the run was started with another input.
            ParkedError: it was continued too often, and a person must settle it.
            OwnedError: it is already open, or another living process owns the thread; only with `on_busy="raise"`.
            FencedError: another process has taken over the thread while other runs of it are active here; only with
                `on_busy="raise"`.
            RefusedError: the thread is paused.
            WithdrawnError: the thread is terminated.
        """
        while (finished := await self._finished()) is None:
            tenure = tenure_of(self._ledger, self._thread_id)
            if tenure.has(self._id):
                if self._options.on_busy == "raise":
                    raise await tenure.refusal()
                await tenure.until_left(self._id)
                continue
            # No await between the check of the tenure and `join`, which adds the run at once: two callers must not both start.
            try:
                await tenure.join(self._id, self._kind)
                return await self._claim(tenure)
            except OwnedError as exc:
                await to_the_end(tenure.leave(self._id, self._kind))
                await self._check_may_wait(exc)
                await self._until_free()
            except FencedError:
                await to_the_end(tenure.leave(self._id, self._kind))
                if self._options.on_busy == "raise":
                    raise
                # The thread is lost for all runs here, and can be claimed again only after they have ended.
                await tenure.until_over()
            except BaseException:
                await to_the_end(tenure.leave(self._id, self._kind))
                raise
        return finished

    async def _finished(self) -> Opened | None:
        """Return a finished run, which is only read, without a claim of the thread. None if the run has not ended."""
        rows = await run_rows(self._ledger, self._thread_id, self._id)
        if not has_ended(rows):
            return None
        self._check_input(rows[0])
        journal = FinishedJournal(self._ledger)
        observe(journal, self._options.observer)
        recorded = await Recorded.of_finished(self._ledger, self._thread_id, self._id, rows)
        return Opened(journal, RunCourse(self._thread_id, self._id, PROGRAM, 2), _no_park, self._id, recorded)

    def _check_input(self, run: Record) -> None:
        """Refuse another input than the recorded one. The thread is not marked: the caller is wrong, not the program."""
        if self._options.input is not None and not says_the_same_value(input_of(run), self._options.input):
            raise HistoryMismatchError(f"run {self._id!r} was begun with another input: give this one another id", PROGRAM)

    async def _check_may_wait(self, busy: OwnedError) -> None:
        """Refuse to wait, if the caller does not allow it, or if the owner may wait for the caller."""
        if self._options.on_busy == "raise":
            raise OwnedError(busy.thread_id or "", busy.owner, busy.until, BUSY) from None
        for host in [status.host for status in await self._ledger.hosts()]:
            is_here = host.name == busy.owner and is_of_this_process(host)
            if is_here and not any(kind.startswith(f"{RUN_KIND}/") for kind in host.kinds):
                # Its handler may be the caller: it would wait until its deadline, because the thread is not released before.
                raise OwnedError(busy.thread_id or "", busy.owner, busy.until, _OWN_SYSTEM) from None

    async def _until_free(self) -> None:
        """Wait until the run has ended, or no living host owns its thread.

        It only reads: even a refused claim would take the write lock of a file.
        """
        pause = _FIRST_LOOK
        while True:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LONGEST_PAUSE)
            summary = await self._ledger.thread(self._thread_id)
            if summary is None or summary.owner is None or has_ended(await run_rows(self._ledger, self._thread_id, self._id)):
                return
            if not any(status.is_alive and status.host.name == summary.owner for status in await self._ledger.hosts()):
                return

    # ------------------------------------------------------------ as the owner of the thread

    async def _claim(self, tenure: Tenure) -> Opened:
        """Claim the thread, and start or continue the run. If another host has ended the run meanwhile, it is read."""
        journal = copy(tenure.journal)  # the thread is that of all its runs; what follows is of this one
        journal.deferred = []
        journal.admit = self._options.admit or tenure.journal.admit
        observe(journal, self._options.observer)
        if await journal.own(self._thread_id, self._kind) > 1:
            await self._check_held()  # checked as the owner: no other host can pause it now
        rows = await run_rows(self._ledger, self._thread_id, self._id)  # no other host can start or end it
        if not rows:
            attempt, recorded = 1, await self._first(journal)
        elif not has_ended(rows):
            self._check_input(rows[0])
            attempt, recorded = await self._again(journal, rows[0])
        else:
            finished = cast("Opened", await self._finished())
            tenure.begin(cast("RunCourse", finished.course))
            return replace(finished, tenure=tenure, kind=self._kind)
        course = RunCourse(self._thread_id, self._id, PROGRAM, attempt)
        tenure.begin(course)

        async def park(reason: str, evidence: dict[str, Json]) -> None:
            """Park an effect for a person. The other effects of the run continue."""
            await self._park(journal, str(evidence["effect"]), {"reason": reason, "to": PROGRAM, **evidence})

        return Opened(journal, course, park, self._id, recorded, tenure, self._kind)

    async def _first(self, journal: Journal) -> Recorded:
        began = current_port().now()
        if self._options.input is None:
            await journal.write_soon(self._thread_id, [begun(RUN, self._id, thread_id=self._thread_id)])
            return Recorded(began)
        # Stored before anything else: then another program can continue the run, wherever this one dies.
        arguments: dict[str, Json] = {"program": self._options.program, "input": self._options.input}
        row = begun(RUN, self._id, thread_id=self._thread_id, arguments=arguments)
        (record,) = await journal.write(self._thread_id, [row])
        return Recorded(began, input_of(record))  # as stored: a later process gets the same value

    async def _check_held(self) -> None:
        """Refuse a paused or terminated thread: this process has nothing that could resume it."""
        from antiphon.protocol import ErrorCode  # noqa: PLC0415 (a run of a thread that nobody has owned needs no protocol)
        from antiphon.runtime._gates import LIFE  # noqa: PLC0415 (see above)

        life = await replay(self._ledger, self._thread_id, LIFE.fold())
        if life.held == "terminated":
            raise WithdrawnError(f"thread {self._thread_id!r} is terminated")
        if life.held == "paused":
            command = command_line(self._ledger, "resume", self._thread_id)
            reason = f"thread {self._thread_id!r} is paused: resume it first, with `{command}`"
            raise RefusedError(reason, ErrorCode.INVALID_STATE)

    async def _again(self, journal: Journal, run: Record) -> tuple[int, Recorded]:
        ledger = self._ledger
        rows = await ledger.open_calls(self._thread_id)
        standing = Standing.of(rows, self._id)
        if standing.parked is not None:
            command = command_line(ledger, "parked")
            raise ParkedError(f"run {self._id!r} waits for a person: see `{command}`")
        if len(standing.again) >= _RECOVERIES:
            reason = f"it was begun {len(standing.again) + 1} times, and never ended"
            time = await unused(ledger, self._thread_id, partial(park_id, self._id), 1)
            await self._park(journal, self._id, {"reason": reason, "to": PROGRAM}, time)
            command = command_line(ledger, "settle", self._thread_id, self._id, options="--retry")
            raise ParkedError(f"run {self._id!r} waits for a person: {reason}; to start it again: `{command}`")
        attempt = await unused(ledger, self._thread_id, partial(again_id, self._id), len(standing.again) + 2)
        row = again_id(self._id, attempt)
        failures = [ended(FAILED, row, thread_id=self._thread_id, parent_id=self._id) for row in failures_of(rows, self._id)]
        arguments: dict[str, Json] = {"attempt": attempt, "cause": "recovered", "reason": "the program was started again"}
        arguments |= await journal.tenure(self._thread_id)
        again = begun(AGAIN, row, thread_id=self._thread_id, parent_id=self._id, arguments=arguments)
        summary = await ledger.thread(self._thread_id)
        # A pattern sets the status `failed` of its thread itself.
        ends = (STOPPED,) if summary is None or summary.pattern is not None else (STOPPED, FAILED_STATUS)
        had_stopped = summary is not None and summary.status in ends
        if waits_for_person(rows, self._id) and not (failures or had_stopped or standing.again):
            # Deferred until the attempt writes something else: a caller that asks again and again must not lengthen a thread
            # that waits for a person. An earlier attempt came to this point and ended well, so nothing need count that this
            # one was begun; after the answer, every attempt is counted again.
            journal.deferred = [again]
        else:
            await journal.write(self._thread_id, [*failures, again], status=GOES_ON if had_stopped else None)
        history = await History.read(ledger, self._thread_id, self._id, run.seq)
        recorded = Recorded(
            run.recorded_at,
            input_of(run),
            again=(*standing.again, row),
            had_stopped=had_stopped,
            forgiven=history.forgiven,
            agents=history.agents,
            steps=history.steps,
        )
        return attempt, recorded

    async def _park(self, journal: Journal, effect_id: str, evidence: dict[str, Json], time: int = 1) -> None:
        row = begun(PARK, park_id(effect_id, time), thread_id=self._thread_id, parent_id=effect_id, arguments=evidence)
        with suppress(AppendRefusedError):  # it is already parked, for another reason
            await journal.write(self._thread_id, [row])


async def _no_park(reason: str, evidence: dict[str, Json]) -> None:
    """Park nothing: a finished run starts nothing, so no outcome can be unknown."""
