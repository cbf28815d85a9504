"""Opening a run: who owns its thread, whether it was begun before, and how it ended then.

A run is a course of effects outside of actors. `RunPart` is a part of it that numbers its effects for itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Self, TypeVar, cast
from weakref import WeakKeyDictionary

from typing_extensions import override

from antiphon.agents._budget import kind_of
from antiphon.errors import AppendRefusedError, FencedError, HistoryMismatchError, ParkedError, WithdrawnError
from antiphon.ledger import Ledger, Record
from antiphon.messages import Json, Message, OptionCallPayload, OptionResultPayload, current_port
from antiphon.messages.keys import again_id, as_key, counted, is_below, parent_of, park_id
from antiphon.runtime import Admit, Budget, Observer, Settings
from antiphon.runtime.extending import (
    AGAIN,
    PARK,
    Course,
    Journal,
    Park,
    Standing,
    begun,
    ended,
    observe,
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

RUN: Final = "RUN"
"""What the journal calls a run."""

_RECOVERIES = Settings().recoveries


class _Owned(Journal):
    """The journal of a thread that is claimed once: after a takeover by another process, it never claims the thread back.

    To claim it back would mean to execute effects that the new owner has begun.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, Budget())

    @override
    def has_had_owners(self, thread_id: str) -> bool:
        return False  # it claims once, and a run that was begun before is a further attempt

    def passing(self, admit: Admit | None, observer: Observer | None) -> Self:
        """Return the journal for one of the runs, with the `admit` and the observer of that run."""
        own = copy(self)
        own.admit = admit or self.admit
        observe(own, observer)
        return own


class _Finished(Journal):
    """The journal of a finished run. It is only read, so the thread is not claimed."""

    @override
    async def own(self, thread_id: str) -> int:
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
    again: tuple[str, ...] = ()
    """The rows that record further attempts."""
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

    async def close(self) -> None:
        """Write the end of the run, if this process owns it."""
        if self.tenure is None or self.is_finished:
            return
        thread_id, invocation_id = self.course.thread_id or "", self.course.invocation_id
        rows = [_abandoned(intent, thread_id) for intent in await self._open_effects(thread_id)]
        rows += [ended(RUN, invocation_id, thread_id=thread_id)]
        rows += [ended(AGAIN, row, thread_id=thread_id, parent_id=invocation_id) for row in self.again]
        await self.journal.write(thread_id, rows)

    async def _open_effects(self, thread_id: str) -> Sequence[Message]:
        """Return effects that began and did not end, here or in a process that died, and that this attempt did not reach."""
        if not self.again:
            return self.course.open_effects
        await self.journal.settle(thread_id)
        rows = [record.message for record in await self.journal.ledger.open_calls(thread_id)]
        parked = {row.parent_id for row in rows if _option(row) == PARK}
        own = [row for row in rows if row.lane == "effect" and is_below(row.invocation_id, self.root)]
        return [row for row in own if _option(row) != PARK and row.invocation_id not in parked]

    def leave(self) -> None:
        """Release the thread, if it was claimed for this run."""
        if self.tenure is not None:
            self.tenure.leave(self.course.invocation_id)


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

    def __init__(self, ledger: Ledger) -> None:
        self.journal = _Owned(ledger)
        self.at_work: set[str] = set()

    def leave(self, invocation_id: str) -> None:
        """Remove one run."""
        self.at_work.discard(invocation_id)


_tenures: WeakKeyDictionary[Ledger, dict[str, Tenure]] = WeakKeyDictionary()
"""By ledger and thread: the runs of a thread share its epoch. A thread without running runs is claimed again."""


def _tenure(ledger: Ledger, thread_id: str) -> Tenure:
    threads = _tenures.setdefault(ledger, {})
    for other in [name for name, tenure in threads.items() if not tenure.at_work]:
        del threads[other]
    return threads.setdefault(thread_id, Tenure(ledger))


async def open_run(
    ledger: Ledger, thread_id: str, id: str, admit: Admit | None = None, observer: Observer | None = None
) -> Opened:
    """Begin or continue a run. `admit` is called before each effect, and the observer is notified of each.

    Raises:
        ParkedError: it was continued too often, and a person must look at it.
        FencedError: another process has taken the thread over while other runs of it are running in this one.
        RuntimeError: it is running in this process.
        LedgerError: the ledger cannot be used.
    """
    tenure, invocation_id = _tenure(ledger, thread_id), f"{thread_id}/{as_key(id)}"
    if invocation_id in tenure.at_work:
        raise RuntimeError(f"run {id!r} of thread {thread_id!r} is open in this process; give the other run another id")
    tenure.at_work.add(invocation_id)
    try:
        return await _Opening(tenure, thread_id, invocation_id, admit, observer).open()
    except BaseException:
        tenure.leave(invocation_id)
        raise


class _Opening:
    """The steps that open a run."""

    def __init__(
        self, tenure: Tenure, thread_id: str, invocation_id: str, admit: Admit | None, observer: Observer | None
    ) -> None:
        self._tenure = tenure
        self._journal = tenure.journal.passing(admit, observer)
        self._observer = observer
        self._thread_id = thread_id
        self._id = invocation_id

    async def open(self) -> Opened:
        await self._journal.own(self._thread_id)
        records = await self._journal.ledger.by_invocation(self._id, thread_id=self._thread_id)
        rows = [record for record in records if record.message.lane == "effect"]
        if not rows:
            await self._journal.write_soon(self._thread_id, [begun(RUN, self._id, thread_id=self._thread_id)])
            return self._opened(1, began=current_port().now())
        if len(rows) == 1:
            return await self._again(rows[0])
        finished = _Finished(self._journal.ledger, Budget())
        observe(finished, self._observer)
        return replace(self._opened(2, began=rows[0].recorded_at), journal=finished)

    def _opened(self, attempt: int, **more: Any) -> Opened:
        course = RunCourse(self._thread_id, self._id, "program", attempt)
        return Opened(self._journal, course, self._park, tenure=self._tenure, root=self._id, **more)

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
        await self._journal.write(self._thread_id, [again])
        forgiven, agents = await self._history(run.seq)
        rows = (*standing.again, row)
        return self._opened(attempt, again=rows, forgiven=forgiven, agents=agents, began=run.recorded_at)

    async def _history(self, since: int) -> tuple[frozenset[str], frozenset[str]]:
        """Return the failed effects that were the last of the run: they are retried, where that is safe.

        An earlier failure stays: the program has seen it and gone on. Also return the runs of agents: the courses with a model
        request.
        """
        harmless: set[str] = set()
        agents: set[str] = set()
        failed: set[str] = set()
        async for record in self._journal.ledger.read(self._thread_id, since):
            message, payload = record.message, record.message.payload
            if message.lane != "effect" or not is_below(message.invocation_id, self._id):
                continue
            if isinstance(payload, OptionCallPayload):
                failed.clear()
                if kind_of(message) == "request":
                    agents.add(parent_of(payload.invocation_id))
                if payload.arguments.get("effects") in ("none", "idempotent"):
                    harmless.add(payload.invocation_id)
            elif isinstance(payload, OptionResultPayload) and payload.is_error and payload.invocation_id in harmless:
                failed.add(payload.invocation_id)
        return frozenset(failed), frozenset(agents)

    async def _park(self, reason: str, evidence: dict[str, Json]) -> None:
        """Park an effect for a person. The other effects of the run go on."""
        await self._park_row(str(evidence["effect"]), {"reason": reason, "to": "program", **evidence})

    async def _unused(self, name: Callable[[int], str], first: int) -> int:
        return await unused(self._journal.ledger, self._thread_id, name, first)

    async def _park_row(self, about: str, evidence: dict[str, Json], time: int = 1) -> None:
        row: Message = begun(PARK, park_id(about, time), thread_id=self._thread_id, parent_id=about, arguments=evidence)
        with suppress(AppendRefusedError):  # it is parked already, for another reason
            await self._journal.write(self._thread_id, [row])
