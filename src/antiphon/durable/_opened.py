"""An opened run: its journal, its course, what its parts share, and the rows with which it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from typing_extensions import override

from antiphon.durable._course import RunCourse
from antiphon.durable._history import FAILED, FAILED_STATUS, PROGRAM, Recorded
from antiphon.durable._outages import Outages
from antiphon.durable._tenure import Tenure
from antiphon.errors import HistoryMismatchError, LedgerError, ParkedError, WithdrawnError
from antiphon.ledger import Owners, Record
from antiphon.messages import Json, Message, OptionCallPayload
from antiphon.messages._keys import failed_id, is_below, park_id
from antiphon.runtime._course import Course
from antiphon.runtime._effects import Park
from antiphon.runtime._journal import Journal
from antiphon.runtime._lease import Lease
from antiphon.runtime._rows import AGAIN, PARK, RUN, begun, ended, option_of, text_of
from antiphon.runtime._settings import STOPPED, Budget, Settings

OnChange: TypeAlias = Literal["stop", "continue", "restart"]
"""The behaviour of a run if the program differs from a recorded step: stop, use the recorded outcome, or repeat the step."""
SharedT = TypeVar("SharedT")
_LONGEST_ERROR: Final = 2000
"""The maximum length of a recorded error, in characters."""


class UnrecordedStepError(HistoryMismatchError):
    """The program does something that its finished run did not do."""


class FinishedJournal(Journal):
    """The journal of a finished run. It is only read, so the thread is not claimed."""

    def __init__(self, ledger: Owners) -> None:
        super().__init__(Lease(ledger, Settings(), tuple), Budget())  # a lease that never begins

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
            raise self._unrecorded(thread_id, f", in {missing[0].parent_id!r}")
        return tuple(written[row.id] for row in rows)

    @override
    async def confirm(self, thread_id: str, epoch: int) -> None:
        raise self._unrecorded(thread_id)  # nothing may start

    def _unrecorded(self, thread_id: str, where: str = "") -> UnrecordedStepError:
        return UnrecordedStepError(
            f"the run is finished in thread {thread_id!r}, and this program does more{where}; give it another id"
        )

    @override
    async def write_soon(self, thread_id: str, messages: Sequence[Message]) -> Sequence[Message]:
        return [record.message for record in await self.write(thread_id, messages)]


@dataclass(frozen=True)
class Opened:
    """An opened run: its journal, its course, and the objects that its parts share."""

    journal: Journal
    course: Course
    park: Park
    root: str
    """The invocation id of the whole run."""
    recorded: Recorded
    """What the ledger had of it."""
    tenure: Tenure | None = field(default=None, repr=False)
    """The ownership of the thread; None for a part, a finished run, and the work of a handler."""
    kind: str = ""
    """The kind of the thread, if the thread was claimed for this run."""
    on_change: OnChange | None = None
    """The behaviour if the program differs from a recorded step; None: the setting of the agent."""
    is_program: bool = False
    """Whether it is a run of a program, not the work of a handler."""
    shared: dict[type[Any], Any] = field(default_factory=dict[type[Any], Any], repr=False)
    """Objects that all parts of the run share, by class."""

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended in an earlier process: nothing is started."""
        return isinstance(self.journal, FinishedJournal)

    def within(self, course: Course) -> Opened:
        """Return a copy for a part of the run."""
        return replace(self, course=course, tenure=None)

    def share(self, cls: type[SharedT]) -> SharedT:
        """Return the object of a class that all parts of the run share."""
        if cls not in self.shared:
            self.shared[cls] = cls()
        return cast("SharedT", self.shared[cls])

    async def give_up(self, error: HistoryMismatchError) -> None:
        """Release the thread for another build, if it was claimed for this run: this program differs from the records."""
        if self.tenure is not None and not self.is_finished:
            await self.tenure.give_up(error)

    async def close(self, returned: Mapping[str, Json] | None = None) -> None:
        """Write the end of the run with the return value of its program, if this process owns it.

        Raises:
            ParkedError: the run has left a `once` effect open. It ends when a person has settled that.
        """
        if self.tenure is None or self.is_finished:
            return
        self._end_course()  # before its open effects are read: one that starts after that would have no outcome
        thread_id, invocation_id = self.course.thread_id or "", self.course.invocation_id
        rows = [_abandoned(intent, thread_id) for intent in await self._open_effects(thread_id)]
        if parked := [row for row in rows if option_of(row) == PARK]:
            await self.journal.write(thread_id, parked)
            raise ParkedError(_reason(parked[0]), self.course.to)
        rows += [ended(RUN, invocation_id, thread_id=thread_id, result=returned)]
        rows += [ended(AGAIN, row, thread_id=thread_id, parent_id=invocation_id) for row in self.recorded.again]
        await self.journal.write(thread_id, rows, status="completed" if self.recorded.had_stopped else None)

    async def end_waiting(self) -> None:
        """Record that this attempt ended because the run waits for a person, if this process owns the run.

        Its row ends, as those of a message that a closing system leaves: attempts that died or failed count, waiting does not.
        An attempt that wrote nothing has no row: see `_Opening._again`.
        """
        if self.tenure is None or self.is_finished or not self.recorded.again or self.journal.deferred:
            return
        thread_id, run = self.course.thread_id or "", self.course.invocation_id
        with suppress(LedgerError, HistoryMismatchError):  # the caller gets its own error
            rows = [_abandoned(intent, thread_id) for intent in await self._open_effects(thread_id)]
            parked = [row for row in rows if option_of(row) == PARK]  # no attempt may ever ask for them again
            await self.journal.write(
                thread_id, [*parked, ended(AGAIN, self.recorded.again[-1], thread_id=thread_id, parent_id=run)]
            )

    async def fail(self, error: Exception) -> None:
        """Record the error that ended the program, if this process owns the run: the run has failed, or is stopped."""
        if self.tenure is None or self.is_finished:
            return
        thread_id, run = self.course.thread_id or "", self.course.invocation_id
        text = f"{type(error).__qualname__}: {text_of(error)}"[:_LONGEST_ERROR].encode(errors="replace").decode()
        is_stopped = self.share(Outages).stop(error)
        arguments: dict[str, Json] = {"error": text, "attempt": self.course.attempt}
        if is_stopped:
            arguments[STOPPED] = True
        row = begun(FAILED, failed_id(run, self.course.attempt), thread_id=thread_id, parent_id=run, arguments=arguments)
        with suppress(LedgerError, HistoryMismatchError):  # the caller gets its own error
            summary = await self.journal.ledger.thread(thread_id)
            status = STOPPED if is_stopped else FAILED_STATUS
            sets_own = summary is not None and summary.pattern is not None  # a pattern, of its thread
            await self.journal.write(thread_id, [row], status=None if sets_own else status)

    async def _open_effects(self, thread_id: str) -> Sequence[Message]:
        """Return effects that started and did not end, here or in a process that died, and that this attempt did not reach."""
        if not self.recorded.again:
            return self.course.open_effects
        await self.journal.settle(thread_id)
        rows = [record.message for record in await self.journal.ledger.open_calls(thread_id)]
        parked = {row.parent_id for row in rows if option_of(row) == PARK}
        effects = [row for row in rows if row.lane == "effect" and is_below(row.invocation_id, self.root)]
        return [row for row in effects if option_of(row) != PARK and row.invocation_id not in parked]

    async def leave(self) -> None:
        """Release the thread, if it was claimed for this run and no other run here needs it."""
        if self.tenure is not None:
            self._end_course()
            self.journal.end(block_ended(self.course.thread_id or ""))
            await self.tenure.leave(self.course.invocation_id, self.kind)

    def _end_course(self) -> None:
        """Let nothing more of it start. Its thread may still be owned here, for another run."""
        if isinstance(self.course, RunCourse):
            self.course.is_over = True


def block_ended(thread_id: str) -> str:
    """Return the error text for a task or a stream that continues after its block."""
    return (
        f"the block of ledger_run({thread_id!r}) has ended: nothing can be recorded any more; "
        "read a stream inside of the block, or give it to durable_stream"
    )


class OpenAnswers:
    """The answers of a run that are being streamed, with the name of the agent of each."""

    def __init__(self) -> None:
        self._recordings: dict[asyncio.Future[Any], str] = {}

    def add(self, recording: asyncio.Future[Any], agent: str) -> None:
        """Add one. It is forgotten when it is recorded."""
        self._recordings[recording] = agent
        recording.add_done_callback(self._recordings.pop)

    @property
    def agents(self) -> Sequence[str]:
        """The agents whose streams have not been read to their end."""
        return tuple(self._recordings.values())


def _reason(parked: Message) -> str:
    payload = parked.payload
    assert isinstance(payload, OptionCallPayload)  # noqa: S101 (it was made so)
    return str(payload.arguments["reason"])


def _abandoned(intent: Message, thread_id: str) -> Message:
    """Return the row that closes an effect which the run has left open. A `once` effect is parked for a person."""
    payload = intent.payload
    assert isinstance(payload, OptionCallPayload)  # noqa: S101 (it was made so)
    effect, option = payload.invocation_id, payload.option_name
    if payload.arguments.get("effects") == "once":
        name = option.rpartition(".call_tool:")[2]  # of a tool call, the name of the tool
        reason = f"nobody knows whether {name!r} was done: the run did not wait for it"
        evidence: dict[str, Json] = {"reason": reason, "to": PROGRAM, "effect": effect, "option": option}
        return begun(PARK, park_id(effect), thread_id=thread_id, parent_id=effect, arguments=evidence)
    return ended(
        option,
        effect,
        thread_id=thread_id,
        parent_id=intent.parent_id,
        is_error=True,
        error_type=WithdrawnError.code,
        error_message="the run did not wait for it",
        retryable=True,
    )
