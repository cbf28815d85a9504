"""An opened run: its journal, its course, what its parts share, the runs of agents in it, and the rows with which it ends.

A run of an agent has its id from the agent's name (`AgentRuns`). One after the other, the runs of a name have their ids in
order. Side by side, they may begin in another order when the program runs again, so each takes the recorded run with its
question, or a new id. The question is known a moment after the agent has started: until then, it has a provisional id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast

from typing_extensions import override

from antiphon.durable._course import RunCourse
from antiphon.durable._history import FAILED, FAILED_STATUS, PROGRAM, Recorded
from antiphon.durable._tenure import Tenure
from antiphon.errors import (
    BudgetExceededError,
    HistoryMismatchError,
    LedgerError,
    LocalModelError,
    MissingExtraError,
    MissingKeyError,
    ParkedError,
    StoppedError,
    ToolServerError,
    WithdrawnError,
)
from antiphon.ledger import Owners, Record
from antiphon.messages import Json, Message, OptionCallPayload, current_port
from antiphon.messages._keys import as_key, base_of, counted, failed_id, is_below, last_key, parent_of, park_id
from antiphon.runtime._course import Course
from antiphon.runtime._effects import Park
from antiphon.runtime._journal import Journal
from antiphon.runtime._lease import Lease
from antiphon.runtime._rows import AGAIN, PARK, RUN, begun, ended, error_text, option_of, park_reason
from antiphon.runtime._settings import STOPPED, Budget, Settings

OnChange: TypeAlias = Literal["stop", "continue", "restart"]
"""The behaviour of a run if the program differs from a recorded step: stop, use the recorded outcome, or repeat the step."""
SharedT = TypeVar("SharedT")
_LONGEST_ERROR: Final = 2000
"""The maximum length of a recorded error, in characters."""


MISSING: Final = (MissingKeyError, MissingExtraError, LocalModelError, ToolServerError, StoppedError)
"""The errors for something that is missing on this machine, not in the thread."""
Outage: TypeAlias = Callable[[Exception], bool]
"""Whether an exception is an outage of a provider: the same request may succeed after it is over."""


class Outages:
    """The outages that a run can have, by what takes part in it. All parts of the run share this object."""

    def __init__(self) -> None:
        self._outages: set[Outage] = set()

    def add(self, outage: Outage) -> None:
        """Add those of a provider."""
        self._outages.add(outage)

    def stop(self, error: Exception) -> bool:
        """Whether a program that ended with an error can be continued unchanged, after something outside is fixed."""
        if isinstance(error, BudgetExceededError):
            return error.limit is not None
        return isinstance(error, MISSING) or any(is_outage(error) for is_outage in self._outages)


class UnrecordedStepError(HistoryMismatchError):
    """The program does something that its finished run did not do."""

    @classmethod
    def in_thread(cls, thread_id: str, where: str = "") -> UnrecordedStepError:
        """Return the error of a run that is finished in a thread."""
        return cls(f"the run is finished in thread {thread_id!r}, and this program does more{where}; give it another id")


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
            raise UnrecordedStepError.in_thread(thread_id, f", in {missing[0].parent_id!r}")
        return tuple(written[row.id] for row in rows)

    @override
    async def confirm(self, thread_id: str, epoch: int) -> None:
        raise UnrecordedStepError.in_thread(thread_id)  # nothing may start

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
            raise ParkedError(park_reason(parked[0]), self.course.to)
        rows += [ended(RUN, invocation_id, thread_id=thread_id, result=returned)]
        rows += [ended(AGAIN, row, thread_id=thread_id, parent_id=invocation_id) for row in self.recorded.again]
        await self.journal.write(thread_id, rows, status="completed" if self.recorded.had_stopped else None)

    async def end_waiting(self) -> None:
        """Record that this attempt ended because the run waits for a person, if this process owns the run.

        Its row ends, as those of a message that a closing system leaves: attempts that died or failed count, waiting does not.
        An attempt that wrote nothing has no row: see `Opening._again`.
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
        text = error_text(error)[:_LONGEST_ERROR].encode(errors="replace").decode()
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
            return self.course.work.open_effects
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


def errors_in(error: BaseException) -> list[BaseException]:
    """Return an error, or the errors in a group, at any depth."""
    if not isinstance(error, BaseExceptionGroup):
        return [error]
    group = cast("BaseExceptionGroup[BaseException]", error)
    return [cause for inner in group.exceptions for cause in errors_in(inner)]


# ---------------------------------------------------------------- the runs of agents in a run


@dataclass(frozen=True, slots=True)
class Namesake:
    """Another run of an agent with the same name."""

    id: str
    is_at_work: bool
    has_same_question: bool


class AgentBegin(NamedTuple):
    """How a run of an agent begins."""

    id: str
    """Its id in the thread."""
    run_id: str
    """Its id for the agent and in its messages: the same, unless the program has named it."""
    asked: Mapping[str, Json]
    """How the program asked for it, as its first intent records it; empty: after the steps before it."""


class AgentRuns:
    """The runs of agents in a run of a program, or in a part of it."""

    def __init__(self) -> None:
        self._expected: dict[str, Mapping[str, Json]] = {}
        """By provisional id, how the program asked for the agent."""
        self._begun: set[str] = set()
        self._active: dict[str, object] = {}
        """The active runs of agents, each with its question."""

    def expect(self, parent: str, asked: Mapping[str, Json]) -> str:
        """Return a provisional id for a run that starts now. No message of an earlier attempt has it."""
        run_id = f"{parent}/{current_port().new_id()}"
        self._expected[run_id] = asked
        return run_id

    def begin(self, opened: Opened, parent: str, run_id: str, name: str, question: str | None) -> AgentBegin:
        """Return the id of a run in the thread. A run that the program has named itself keeps its name."""
        asked = self._expected.pop(run_id, None)
        if asked is not None:
            agent = run_id = self._choose(opened, parent, name, question, is_beside=bool(asked))
        else:
            agent = run_id if run_id.startswith(f"{parent}/") else f"{parent}/{as_key(run_id)}"
        self._begun.add(agent)
        return AgentBegin(agent, run_id, asked or {})

    def _choose(self, opened: Opened, parent: str, name: str, question: str | None, *, is_beside: bool) -> str:
        agents = [step for step in opened.recorded.steps if step.is_agent]
        recorded = [step for step in agents if step.course == parent and last_key(step.id) == as_key(name)]
        free = [step for step in recorded if step.id not in self._begun]
        if not is_beside:
            if in_order := [step for step in free if step.mark is None] or free:
                return in_order[0].id
        elif same := [step for step in free if opened.recorded.agents[step.id] == question]:
            return same[0].id
        elif free and len(free) == len(recorded):
            return free[0].id  # none was matched: the questions have changed, and the first request says how
        taken = {step.id for step in recorded} | self._begun
        numbered = (f"{parent}/{counted(as_key(name), number)}" for number in count(1))
        return next(agent for agent in numbered if agent not in taken)

    @contextmanager
    def active(self, id: str, question: object) -> Generator[None, None, None]:
        """Register a run and its question while it is active."""
        self._active[id] = question
        try:
            yield
        finally:
            self._active.pop(id, None)

    def namesakes(self, opened: Opened, id: str) -> list[Namesake]:
        """Return the other runs of a name: those that are recorded or active."""
        runs = dict.fromkeys((*sorted(opened.recorded.agents), *self._active))
        same = [run for run in runs if run != id and parent_of(run) == parent_of(id) and last_key(run) == last_key(id)]
        question = self._active.get(id)
        return [Namesake(run, run in self._active, run in self._active and self._active[run] == question) for run in same]

    def check(self, opened: Opened, deed: str, agents: Collection[str]) -> None:
        """Refuse to continue or to end without an agent that ran before."""
        prefix = f"{opened.course.invocation_id}/"
        # A restarted agent has the name of the one before it.
        absent = [agent for agent in agents if agent.startswith(prefix) and base_of(agent) not in self._begun]
        missing = sorted(
            agent for agent in absent if agent in opened.recorded.agents and "/" not in agent.removeprefix(prefix)
        )
        if missing:
            reason = f"the program {deed}, and thread {opened.course.thread_id!r} says that {missing[0]!r} ran before that"
            advice = "a choice of the program, such as a time limit, is made in run.effect(…)"
            raise HistoryMismatchError(
                f"{reason}. Run the same agents: {advice}. For other work, give the run another id", opened.course.to
            )
