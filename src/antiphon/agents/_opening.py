"""Opening a run: who owns its thread, whether it was begun before, and how it ended then.

A run is a course of effects outside of actors. `RunPart` is a part of it that numbers its effects for itself.

**Owner.** The runs of a process on one ledger are one host (`ProcessHost`). The first run of a thread claims it, further runs
share it, and the last one gives it up. While another living host has the thread, a run is refused with `OwnedError`. If this
process slept past its lease and another host took the thread over, the thread is lost for all its runs here: nothing is
written or started any more (`RunCourse.evicted`), and it is claimed again only by a run that is opened after they have ended.
A finished run is read without a claim.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from typing_extensions import override

from antiphon.agents._budget import kind_of
from antiphon.errors import (
    AppendRefusedError,
    FencedError,
    HistoryMismatchError,
    LedgerError,
    OwnedError,
    ParkedError,
    RefusedError,
    WithdrawnError,
)
from antiphon.ledger import Ledger, Record
from antiphon.messages import (
    RUNTIME_POLICY,
    Json,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    current_port,
    is_name,
)
from antiphon.messages.keys import again_id, as_key, counted, is_below, parent_of, park_id
from antiphon.protocol import ErrorCode
from antiphon.runtime import Admit, Budget, Observer, Settings
from antiphon.runtime.extending import (
    AGAIN,
    GOES_ON,
    LIFE,
    PARK,
    REOPEN,
    RUN,
    STOPPED,
    Course,
    Journal,
    Park,
    Standing,
    begun,
    ended,
    has_other_build,
    observe,
    process_host,
    unfit_reason,
    unused,
)

# ---------------------------------------------------------------- courses


class EffectKeys:
    """Numbers effects of the same name, so that each has a key of its own."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next_key(self, name: str | None = None) -> str:
        """Return the key of the next effect of a name."""
        key = as_key(name or "effect")
        self._counts[key] += 1
        count = self._counts[key]
        return counted(key, count)


class RunCourse(EffectKeys):
    """A run: what a program does in a thread, outside of actors."""

    def __init__(self, thread_id: str, invocation_id: str, to: str, attempt: int) -> None:
        super().__init__()
        self.thread_id: str | None = thread_id
        self.invocation_id = invocation_id
        self.to = to
        self.attempt = attempt
        self.open_effects: tuple[Message, ...] = ()
        self.evicted: FencedError | None = None

    def wait(self, change: int) -> None:
        """Do nothing: a run has no mailbox whose waiting is counted."""


class RunPart(EffectKeys):
    """A part of a course with numbers of its own: the run of one agent, or the work of one tool."""

    def __init__(self, whole: Course, invocation_id: str, to: str) -> None:
        super().__init__()
        self._whole = whole
        self.invocation_id = invocation_id
        self.to = to

    @property
    def thread_id(self) -> str | None:
        """The one of the whole course."""
        return self._whole.thread_id

    @property
    def attempt(self) -> int:
        """The one of the whole course."""
        return self._whole.attempt

    @property
    def open_effects(self) -> tuple[Message, ...]:
        """The ones of the whole course."""
        return self._whole.open_effects

    @open_effects.setter
    def open_effects(self, rows: tuple[Message, ...]) -> None:
        self._whole.open_effects = rows

    @property
    def evicted(self) -> FencedError | None:
        """The one of the whole course."""
        return self._whole.evicted

    def wait(self, change: int) -> None:
        """Count waiting in the whole course."""
        self._whole.wait(change)

    @override
    def __repr__(self) -> str:
        return f"<Part {self.invocation_id!r}>"


# ---------------------------------------------------------------- opening

SharedT = TypeVar("SharedT")

_RECOVERIES = Settings().recoveries


class _Finished(Journal):
    """The journal of a finished run. It is only read, so the thread is not claimed."""

    @override
    async def own(self, thread_id: str, kind: str | None = None) -> int:
        return self.epoch(thread_id)

    @override
    async def write(self, thread_id: str, messages: Any, **more: Any) -> tuple[Record, ...]:
        rows: list[Message] = list(messages)
        written: dict[str, Record] = {}
        async for record in self.ledger.read(thread_id):
            written.setdefault(record.message.id, record)  # a later one of the same id comes from an imported history
        if missing := [row for row in rows if row.id not in written]:
            where = missing[0].parent_id
            reason = (
                f"the run is finished in thread {thread_id!r}, and this program does more, in {where!r}; give it another id"
            )
            raise HistoryMismatchError(reason)
        return tuple(written[row.id] for row in rows)

    @override
    async def write_soon(self, thread_id: str, messages: Sequence[Message]) -> Sequence[Message]:
        return [record.message for record in await self.write(thread_id, messages)]


@dataclass(frozen=True)
class Opened:
    """An opened run: its journal, its course, and what its parts share."""

    journal: Journal
    course: Course
    park: Park
    forgiven: Collection[str] = ()
    agents: Collection[str] = ()
    """The runs of agents that an earlier attempt of this run has recorded."""
    tenure: Tenure | None = field(default=None, repr=False)
    kind: str = ""
    """That of the thread, if it was claimed for this run."""
    again: tuple[str, ...] = ()
    """The rows that record further attempts."""
    was_stopped: bool = False
    """Whether the thread was stopped before, because a program could not continue it."""
    root: str = ""
    """The invocation id of the whole run."""
    began: datetime | None = None
    """When the first attempt began."""
    shared: dict[type[Any], Any] = field(default_factory=dict[type[Any], Any], repr=False)
    """Objects that all parts of the run share, by class."""

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended in an earlier process: nothing is started."""
        return isinstance(self.journal, _Finished)

    def within(self, course: Course) -> Opened:
        """Return the same for a part of the run."""
        return Opened(
            self.journal,
            course,
            self.park,
            self.forgiven,
            self.agents,
            again=self.again,
            root=self.root,
            began=self.began,
            shared=self.shared,
        )

    def share(self, cls: type[SharedT]) -> SharedT:
        """Return the object of a class that all parts of the run share."""
        if cls not in self.shared:
            self.shared[cls] = cls()
        return cast("SharedT", self.shared[cls])

    async def give_up(self, error: HistoryMismatchError) -> None:
        """Leave the thread to other code, if it was claimed for this run: this program does not repeat what it did."""
        if self.tenure is not None and not self.is_finished:
            await self.tenure.give_up(error)

    async def close(self) -> None:
        """Write the end of the run, if this process owns it."""
        if self.tenure is None or self.is_finished:
            return
        thread_id, invocation_id = self.course.thread_id or "", self.course.invocation_id
        rows = [_abandoned(intent, thread_id) for intent in await self._open_effects(thread_id)]
        rows += [ended(RUN, invocation_id, thread_id=thread_id)]
        rows += [ended(AGAIN, row, thread_id=thread_id, parent_id=invocation_id) for row in self.again]
        await self.journal.write(thread_id, rows, **({"status": "completed"} if self.was_stopped else {}))

    async def _open_effects(self, thread_id: str) -> Sequence[Message]:
        """Return effects that began and did not end, here or in a process that died, and that this attempt did not reach."""
        if not self.again:
            return self.course.open_effects
        await self.journal.settle(thread_id)
        rows = [record.message for record in await self.journal.ledger.open_calls(thread_id)]
        parked = {row.parent_id for row in rows if _option(row) == PARK}
        own = [row for row in rows if row.lane == "effect" and is_below(row.invocation_id, self.root)]
        return [row for row in own if _option(row) != PARK and row.invocation_id not in parked]

    async def leave(self) -> None:
        """Give the thread up, if it was claimed for this run and no other run here needs it."""
        if self.tenure is not None:
            await self.tenure.leave(self.course.invocation_id, self.kind)


def _option(call: Message) -> str | None:
    return call.payload.option_name if isinstance(call.payload, OptionCallPayload) else None


def _abandoned(intent: Message, thread_id: str) -> Message:
    """Return the row that closes an effect the run has left open. One with effects `once` is parked for a person."""
    payload = intent.payload
    assert isinstance(payload, OptionCallPayload)  # noqa: S101 (it was made so)
    effect, option = payload.invocation_id, payload.option_name
    if payload.arguments.get("effects") == "once":
        reason = f"nobody knows whether {option!r} was done: the run did not wait for it"
        evidence: dict[str, Json] = {"reason": reason, "to": "program", "effect": effect, "option": option}
        return begun(PARK, park_id(effect), thread_id=thread_id, parent_id=effect, arguments=evidence)
    error: dict[str, Any] = {"error_message": "the run did not wait for it", "retryable": True}
    code = WithdrawnError.code
    return ended(option, effect, thread_id=thread_id, parent_id=intent.parent_id, is_error=True, error_type=code, **error)


class Tenure:
    """A thread that this process owns, and its running runs."""

    def __init__(self, ledger: Ledger, thread_id: str) -> None:
        self._thread_id = thread_id
        self._host = process_host(ledger)
        self.journal = Journal(ledger, Budget(), host=self._host.host, has_attempts=True)
        self.journal.on_lost = self._evict
        self._at_work: dict[str, RunCourse | None] = {}
        """By invocation; None until the run is open."""
        self._lost: FencedError | None = None

    @property
    def is_over(self) -> bool:
        """Whether no run is at work."""
        return not self._at_work

    def has(self, invocation_id: str) -> bool:
        """Whether a run is at work."""
        return invocation_id in self._at_work

    async def join(self, invocation_id: str, kind: str) -> None:
        """Add a run."""
        self._at_work[invocation_id] = None
        await self._host.join(kind)

    def begin(self, course: RunCourse) -> None:
        """Set the course of a run: it is evicted when the thread is lost."""
        course.evicted = self._lost
        self._at_work[course.invocation_id] = course

    async def leave(self, invocation_id: str, kind: str) -> None:
        """Remove a run. After the last one, the thread is free for other hosts."""
        del self._at_work[invocation_id]
        await self._host.leave(self._release if self.is_over else None, kind=kind)

    async def give_up(self, error: HistoryMismatchError) -> None:
        """Release the thread for other code, unless other runs here need it: this program cannot continue it."""
        thread_id, journal = self._thread_id, self.journal
        if len(self._at_work) > 1 or not journal.epoch(thread_id):
            return
        with suppress(LedgerError, HistoryMismatchError):  # the program gets the error, and the thread is released at the end
            await journal.settle(thread_id)
            if not await has_other_build(journal.ledger, thread_id, self._host.build):
                await journal.write(thread_id, (), status=STOPPED)
            await journal.release(thread_id, unfit=self._host.build, reason=unfit_reason(error))

    async def _release(self) -> None:
        await self.journal.release(self._thread_id)

    def _evict(self, thread_id: str, error: FencedError) -> None:
        """Bar all runs of the thread: another host has it, and does what they would do."""
        self._lost = error
        for course in self._at_work.values():
            if course is not None:
                course.evicted = error


_tenures: WeakKeyDictionary[Ledger, dict[str, Tenure]] = WeakKeyDictionary()
"""By ledger and thread: the runs of a thread share its epoch. A thread without running runs is claimed again."""


def _tenure(ledger: Ledger, thread_id: str) -> Tenure:
    threads = _tenures.setdefault(ledger, {})
    for other in [name for name, tenure in threads.items() if tenure.is_over]:
        del threads[other]
    return threads.setdefault(thread_id, Tenure(ledger, thread_id))


_OTHER_HOST = "wait until that program has ended, stop it, or run in another thread"


async def open_run(
    ledger: Ledger,
    thread_id: str,
    id: str,
    *,
    name: str | None = None,
    admit: Admit | None = None,
    observer: Observer | None = None,
) -> Opened:
    """Begin or continue a run. `admit` is called before each effect, and the observer is notified of each.

    Raises:
        ParkedError: it was continued too often, and a person must look at it.
        OwnedError: another living process has the thread.
        FencedError: another process has taken the thread over while other runs of it are running in this one.
        RefusedError: the thread is paused.
        WithdrawnError: the thread is terminated.
        RuntimeError: it is running in this process.
        LedgerError: the ledger cannot be used.
    """
    tenure, invocation_id = _tenure(ledger, thread_id), f"{thread_id}/{as_key(id)}"
    if tenure.has(invocation_id):
        raise RuntimeError(f"run {id!r} of thread {thread_id!r} is open in this process; give the other run another id")
    kind = f"{RUN_KIND}/{program_name() if name is None else name}"
    opening = _Opening(tenure, thread_id, invocation_id, kind, admit=admit, observer=observer)
    try:
        await tenure.join(invocation_id, kind)
        return await opening.open()
    except OwnedError as exc:
        await tenure.leave(invocation_id, kind)
        raise OwnedError(thread_id, exc.owner, exc.until, _OTHER_HOST) from None
    except BaseException:
        await tenure.leave(invocation_id, kind)
        raise


RUN_KIND: Final = "run"
"""Threads of runs have the kind `run/NAME` in the ledger."""


def program_name() -> str:
    """Return the name of this program: that of the module or file it was started as, or `program`."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    found = spec.name.removesuffix(".__main__") if spec is not None else Path(file).stem if file else ""
    return found if is_name(found) else "program"


def _passing(journal: Journal, admit: Admit | None, observer: Observer | None) -> Journal:
    """Return the journal for one of the runs, with the `admit` and the observer of that run."""
    own = copy(journal)
    own.admit = admit or journal.admit
    observe(own, observer)
    return own


class _Opening:
    """The steps that open a run."""

    def __init__(
        self,
        tenure: Tenure,
        thread_id: str,
        invocation_id: str,
        kind: str,
        *,
        admit: Admit | None,
        observer: Observer | None,
    ) -> None:
        self._tenure = tenure
        self._journal = _passing(tenure.journal, admit, observer)
        self._observer = observer
        self._thread_id = thread_id
        self._id = invocation_id
        self._kind = kind

    async def open(self) -> Opened:
        rows = await self._rows()
        if not rows or rows[-1].message.kind != "option_result":
            if await self._journal.own(self._thread_id, self._kind) > 1:
                await self._check_held()  # as the owner: nobody else can pause it from here on
            rows = await self._rows()  # again, as the owner: another host may have begun or ended it since
        if not rows:
            await self._journal.write_soon(self._thread_id, [begun(RUN, self._id, thread_id=self._thread_id)])
            return self._opened(1, began=current_port().now())
        if len(rows) == 1:
            return await self._again(rows[0])
        finished = _Finished(self._journal.ledger, Budget())
        observe(finished, self._observer)
        return replace(self._opened(2, began=rows[0].recorded_at), journal=finished)

    async def _check_held(self) -> None:
        """Refuse a thread that was paused or terminated: nobody in this process could resume it."""
        held = (await self._journal.ledger.replay(self._thread_id, LIFE.fold())).held
        if held == "terminated":
            raise WithdrawnError(f"thread {self._thread_id!r} is terminated")
        if held == "paused":
            reason = f"thread {self._thread_id!r} is paused: resume it first, with `antiphon resume {self._thread_id}`"
            raise RefusedError(reason, ErrorCode.INVALID_STATE)

    async def _rows(self) -> list[Record]:
        """Return the rows that say that the run has begun, and that it has ended."""
        records = await self._journal.ledger.by_invocation(self._id, thread_id=self._thread_id)
        return [record for record in records if record.message.lane == "effect"]

    def _opened(self, attempt: int, **more: Any) -> Opened:
        course = RunCourse(self._thread_id, self._id, "program", attempt)
        self._tenure.begin(course)
        return Opened(self._journal, course, self._park, tenure=self._tenure, kind=self._kind, root=self._id, **more)

    async def _again(self, run: Record) -> Opened:
        standing = Standing.of(await self._journal.ledger.open_calls(self._thread_id), self._id)
        if standing.parked is not None:
            raise ParkedError(f"run {self._id!r} waits for a person: see `antiphon parked`")
        if len(standing.again) >= _RECOVERIES:
            reason = f"it was begun {len(standing.again) + 1} times, and never ended"
            time = await self._unused(partial(park_id, self._id), 1)
            await self._park_row(self._id, {"reason": reason, "to": "program"}, time)
            raise ParkedError(f"run {self._id!r} waits for a person: {reason}")
        attempt = await self._unused(partial(again_id, self._id), len(standing.again) + 2)
        row = again_id(self._id, attempt)
        said: dict[str, Json] = {"attempt": attempt, "cause": "recovered", "reason": "the program was started again"}
        again = begun(AGAIN, row, thread_id=self._thread_id, parent_id=self._id, arguments=said)
        summary = await self._journal.ledger.thread(self._thread_id)
        was_stopped = summary is not None and summary.status == STOPPED
        await self._journal.write(self._thread_id, [again], **({"status": GOES_ON} if was_stopped else {}))
        forgiven, agents = await self._history(run.seq)
        rows = (*standing.again, row)
        more = {"forgiven": forgiven, "agents": agents, "began": run.recorded_at, "was_stopped": was_stopped}
        return self._opened(attempt, again=rows, **more)

    async def _history(self, since: int) -> tuple[frozenset[str], frozenset[str]]:
        """Return the failed effects that were the last of the run: they are retried, where that is safe, or a person says so.

        An earlier failure stays: the program has seen it and gone on. Also return the runs of agents: the courses with a model
        request.
        """
        reopened: set[str] = set()
        harmless: set[str] = set()
        agents: set[str] = set()
        failed: set[str] = set()
        async for record in self._journal.ledger.read(self._thread_id, since):
            message, payload = record.message, record.message.payload
            if message.lane != "effect" or not is_below(message.invocation_id, self._id):
                continue
            if _option(message) == REOPEN:
                reopened.add(message.parent_id or "")
            elif isinstance(payload, OptionCallPayload):
                failed.clear()
                if kind_of(message) == "request":
                    agents.add(parent_of(payload.invocation_id))
                if payload.arguments.get("effects") in ("none", "idempotent"):
                    harmless.add(payload.invocation_id)
            elif isinstance(payload, OptionResultPayload) and payload.is_error and message.policy != RUNTIME_POLICY:
                failed |= harmless & {payload.invocation_id}  # what a person has recorded stays
        return frozenset(failed | reopened), frozenset(agents)

    async def _park(self, reason: str, evidence: dict[str, Json]) -> None:
        """Park an effect for a person. The other effects of the run go on."""
        await self._park_row(str(evidence["effect"]), {"reason": reason, "to": "program", **evidence})

    async def _unused(self, name: Callable[[int], str], first: int) -> int:
        return await unused(self._journal.ledger, self._thread_id, name, first)

    async def _park_row(self, about: str, evidence: dict[str, Json], time: int = 1) -> None:
        row: Message = begun(PARK, park_id(about, time), thread_id=self._thread_id, parent_id=about, arguments=evidence)
        with suppress(AppendRefusedError):  # it is parked already, for another reason
            await self._journal.write(self._thread_id, [row])
