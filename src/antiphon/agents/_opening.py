"""Opening a run: claim its thread, find its earlier attempts, and read how they ended.

A run is a course of effects outside of actors. `RunPart` is a part of it that numbers its own effects.

**Owner.** The runs of a process on one ledger are one host (`ProcessHost`). The first run of a thread claims it, further runs
share it, and the last one releases it. If this process was suspended past its lease and another host took over the thread, the
thread is lost for all its runs here: they write and start nothing more (`RunCourse.evicted`), and only a run that is opened
after they have ended claims it again. A finished run is read without a claim, by any number of readers at once.

**Busy.** A run is busy while it is open elsewhere in this process, or another living host owns its thread. A second caller
that joins waits without a claim, and polls: when the run has ended, it reads the recorded run; when the owner has died or
released the thread with the run open, it claims the thread and continues the run. It never waits for an enclosing block,
because that block waits for it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, cast, get_args
from weakref import WeakKeyDictionary

import httpx2
from pydantic import ValidationError
from pydantic_ai.exceptions import ContentFilterError, ModelAPIError, ModelHTTPError, UnexpectedModelBehavior
from typing_extensions import TypedDict, Unpack, override

from antiphon.agents._budget import kind_of
from antiphon.errors import (
    AppendRefusedError,
    BudgetExceededError,
    EffectFailedError,
    FencedError,
    HistoryMismatchError,
    LedgerError,
    LocalModelError,
    MissingExtraError,
    MissingKeyError,
    OwnedError,
    ParkedError,
    RefusedError,
    StoppedError,
    ToolServerError,
    WithdrawnError,
)
from antiphon.ledger import Ledger, Record, command_line
from antiphon.messages import (
    RUNTIME_POLICY,
    Json,
    Message,
    OptionCallPayload,
    OptionResultPayload,
    current_port,
    is_name,
    thaw,
)
from antiphon.messages.keys import again_id, as_key, base_of, child_id, counted, failed_id, is_below, parent_of, park_id
from antiphon.protocol import ErrorCode
from antiphon.runtime import Admit, Budget, Observer, Settings
from antiphon.runtime.extending import (
    AGAIN,
    APPROVE,
    GOES_ON,
    LIFE,
    PARK,
    REOPEN,
    RUN,
    STOPPED,
    Course,
    CoursePart,
    Journal,
    Lease,
    Park,
    Standing,
    begun,
    ended,
    has_other_build,
    is_of_this_process,
    observe,
    process_host,
    says_the_same_value,
    text_of,
    unfit_reason,
    unused,
)

# ---------------------------------------------------------------- failures outside

_RETRYABLE: Final = frozenset({408, 409, 425, 429})
_FIXABLE: Final = frozenset({401, 402, 403, 404, 407})
"""Status codes for problems that a person can fix: the key, the account, the address of the server."""
_SERVER: Final = 500
"""From this status code on, the server is at fault."""
_BROKEN: Final = (ModelAPIError, UnexpectedModelBehavior, OSError, httpx2.HTTPError, json.JSONDecodeError, ValidationError)
"""The exceptions of a request if the provider cannot be reached, or gives an invalid answer."""
_MISSING: Final = (MissingKeyError, MissingExtraError, LocalModelError, ToolServerError, StoppedError)
"""The errors for something that is missing on this machine, not in the thread."""


def is_outside(error: Exception) -> bool:
    """Whether a model request failed because of something outside: the same request may succeed after that is fixed."""
    if isinstance(error, ModelHTTPError):
        return error.status_code in _RETRYABLE | _FIXABLE or error.status_code >= _SERVER
    return isinstance(error, (*_BROKEN, *_MISSING)) and not isinstance(error, ContentFilterError)


def may_pass(error: Exception) -> bool:
    """Whether such a request may succeed soon, without a person."""
    is_fixable = isinstance(error, ModelHTTPError) and error.status_code in _FIXABLE
    return is_outside(error) and not is_fixable and not isinstance(error, _MISSING)


def _stops(error: Exception) -> bool:
    """Whether a program that ended with an error can be continued unchanged, after something outside is fixed."""
    if isinstance(error, BudgetExceededError):
        return error.limit is not None
    is_of_model = isinstance(error, ModelAPIError) and is_outside(error)
    return is_of_model or isinstance(error, (*_MISSING, httpx2.HTTPError))


# ---------------------------------------------------------------- courses


class EffectKeys:
    """Numbers effects of the same name, so that each has its own key."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next_key(self, name: str | None = None) -> str:
        """Return the key of the next effect of a name."""
        key = as_key(name or "effect")
        self._counts[key] += 1
        count = self._counts[key]
        return counted(key, count)

    def peek_key(self, name: str) -> str:
        """Return the key that the next effect of a name will have, without counting it."""
        key = as_key(name)
        return counted(key, self._counts[key] + 1)


Mark: TypeAlias = Literal["beside", "unwinding"]
"""How a step was asked for, if not in the order of its course: by another task, or while an exception ended the work."""
MARK: Final = "asked"
_OUTCOMES: Final = (EffectFailedError, RefusedError)
"""The errors that are recorded outcomes of steps: a program that runs again gets the same one at the same place."""


class Place:
    """Where the work of a course is done: in one task, whose steps come one after the other."""

    def __init__(self) -> None:
        self._task = _current()
        self._error = sys.exc_info()[1]
        """The exception that is handled around the work, such as by a program that starts a run again."""

    def mark(self) -> Mark | None:
        """Return how the current task asks for a step; None: after the steps before it."""
        task, own = asyncio.current_task(), self._task()
        if own is None or own.done():  # a block without `async` does each of its steps in a task of its own
            self._task = _current()
        elif own is not task:
            return "beside"
        error = sys.exc_info()[1]
        is_unwinding = error is not None and error is not self._error and not isinstance(error, _OUTCOMES)
        return "unwinding" if is_unwinding or (task is not None and task.cancelling()) else None


def _current() -> Callable[[], asyncio.Task[Any] | None]:
    task = asyncio.current_task()
    return (lambda: None) if task is None else weakref.ref(task)


class RunCourse(EffectKeys):
    """A run: the effects of a program in a thread, outside of actors."""

    def __init__(self, thread_id: str, invocation_id: str, to: str, attempt: int) -> None:
        super().__init__()
        self.thread_id: str | None = thread_id
        self.invocation_id = invocation_id
        self.to = to
        self.attempt = attempt
        self.open_effects: tuple[Message, ...] = ()
        self.evicted: FencedError | None = None
        self.is_over = False
        self.cancelled: tuple[Message, ...] = ()
        self.parked: ParkedError | None = None
        self.parked_in: set[str] = set()
        self.place = Place()
        self.reached: set[str] = set()
        """The effects that the program has reached in this attempt."""

    @override
    def next_key(self, name: str | None = None) -> str:
        key = super().next_key(name)
        self.reached.add(child_id(self.invocation_id, key))
        return key

    def note_parked(self, error: ParkedError, inside: tuple[str, ...] = ()) -> None:
        """Note that an effect of it waits for a person: nothing more of it starts in this attempt."""
        self.parked = self.parked or error
        self.parked_in.update(inside)

    def wait(self, change: int) -> None:
        """Do nothing: a run has no mailbox whose waiting is counted."""


class RunPart(EffectKeys, CoursePart):
    """A part of a course that numbers its own effects: the run of one agent, or the work of one tool."""

    def __init__(self, whole: Course, invocation_id: str, to: str, *, is_agent: bool = False) -> None:
        """Make it; `is_agent`: an agent decides about its steps, so their order is not that of a program."""
        EffectKeys.__init__(self)
        CoursePart.__init__(self, whole)
        self.place = None if is_agent else Place()
        self.invocation_id = invocation_id
        self.to = to
        self.reached: set[str] = getattr(whole, "reached", set())

    @override
    def next_key(self, name: str | None = None) -> str:
        key = super().next_key(name)
        self.reached.add(child_id(self.invocation_id, key))
        return key

    @override
    def note_parked(self, error: ParkedError, inside: tuple[str, ...] = ()) -> None:
        """Note it in the whole course, with the effect or agent that this part is."""
        super().note_parked(error, (*inside, self.invocation_id))

    @override
    def __repr__(self) -> str:
        return f"<Part {self.invocation_id!r}>"


class RetriedCourse(RunPart):
    """The course of a message that failed, continued by the handler of a RETRY: what the ledger has of it counts."""

    @property
    @override
    def attempt(self) -> int:
        """At least the second, so that recorded effects are looked up."""
        return self._whole.attempt + 1


# ---------------------------------------------------------------- opening

_tasks: set[asyncio.Task[None]] = set()


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Await something to its end, even if the caller is cancelled: once, or at every await, as AnyIO scopes do."""
    task = asyncio.create_task(work)
    _tasks.add(task)  # a task without a reference may be garbage-collected
    task.add_done_callback(_tasks.discard)
    await asyncio.shield(task)


SharedT = TypeVar("SharedT")
OnChange: TypeAlias = Literal["stop", "continue", "restart"]
"""The behaviour of a run if the program differs from a recorded step: stop, use the recorded outcome, or repeat the step."""

PROGRAM: Final = "program"
"""The name of the program in the rows of a run."""
FAILED: Final = "RUN_FAILED"
"""A call that is open from the failure of a run until the run is continued."""
FAILED_STATUS: Final = "failed"
_LONGEST_ERROR = 2000
"""The maximum length of a recorded error, in characters."""

_RECOVERIES = Settings().recoveries


QUESTION: Final = "question"
"""What the intent of an agent's first request records besides its arguments: a digest of the question."""
RETURNED: Final = "returned"
"""The key of a program's return value in the end of its run."""


class UnrecordedStepError(HistoryMismatchError):
    """The program does something that its finished run did not do."""


class _Finished(Journal):
    """The journal of a finished run. It is only read, so the thread is not claimed."""

    def __init__(self, ledger: Ledger) -> None:
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
    forgiven: Collection[str] = ()
    agents: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    """The runs of agents that an earlier attempt of this run has recorded, each with the digest of its question."""
    steps: Sequence[RecordedStep] = ()
    """The steps of programs, tools and agents' runs that earlier attempts of this run have recorded, in order."""
    tenure: Tenure | None = field(default=None, repr=False)
    kind: str = ""
    """The kind of the thread, if the thread was claimed for this run."""
    again: tuple[str, ...] = ()
    """The rows that record further attempts."""
    had_stopped: bool = False
    """Whether the thread had the status stopped or failed before."""
    root: str = ""
    """The invocation id of the whole run."""
    began: datetime | None = None
    """When the first attempt started."""
    on_change: OnChange | None = None
    """The behaviour if the program differs from a recorded step; None: the setting of the agent."""
    is_program: bool = False
    """Whether it is a run of a program, not the work of a handler."""
    input: Json = None
    """The input of the run, as stored."""
    returned: Mapping[str, Any] | None = None
    """The return value of the program of a finished run, under `RETURNED`; None if there is none."""
    shared: dict[type[Any], Any] = field(default_factory=dict[type[Any], Any], repr=False)
    """Objects that all parts of the run share, by class."""

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended in an earlier process: nothing is started."""
        return isinstance(self.journal, _Finished)

    def within(self, course: Course) -> Opened:
        """Return a copy for a part of the run."""
        return Opened(
            self.journal,
            course,
            self.park,
            self.forgiven,
            self.agents,
            self.steps,
            again=self.again,
            root=self.root,
            began=self.began,
            on_change=self.on_change,
            is_program=self.is_program,
            input=self.input,
            shared=self.shared,
        )

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
        """Write the end of the run with the return value of its program, if this process owns it."""
        if self.tenure is None or self.is_finished:
            return
        self._end_course()  # before its open effects are read: one that starts after that would have no outcome
        thread_id, invocation_id = self.course.thread_id or "", self.course.invocation_id
        rows = [_abandoned(intent, thread_id) for intent in await self._open_effects(thread_id)]
        rows += [ended(RUN, invocation_id, thread_id=thread_id, result=returned)]
        rows += [ended(AGAIN, row, thread_id=thread_id, parent_id=invocation_id) for row in self.again]
        await self.journal.write(thread_id, rows, **({"status": "completed"} if self.had_stopped else {}))

    async def end_waiting(self) -> None:
        """Record that this attempt ended because the run waits for a person, if this process owns the run.

        Its row ends, as those of a message that a closing system leaves: attempts that died or failed count, waiting does not.
        An attempt that wrote nothing has no row: see `_Opening._again`.
        """
        if self.tenure is None or self.is_finished or not self.again or self.journal.deferred:
            return
        thread_id, run = self.course.thread_id or "", self.course.invocation_id
        with suppress(LedgerError, HistoryMismatchError):  # the caller gets its own error
            await self.journal.write(thread_id, [ended(AGAIN, self.again[-1], thread_id=thread_id, parent_id=run)])

    async def fail(self, error: Exception) -> None:
        """Record the error that ended the program, if this process owns the run: the run has failed, or is stopped."""
        if self.tenure is None or self.is_finished:
            return
        thread_id, run = self.course.thread_id or "", self.course.invocation_id
        text = f"{type(error).__qualname__}: {text_of(error)}"[:_LONGEST_ERROR].encode(errors="replace").decode()
        said: dict[str, Json] = {"error": text, "attempt": self.course.attempt}
        is_stopped = _stops(error)
        if is_stopped:
            said[STOPPED] = True
        row = begun(FAILED, failed_id(run, self.course.attempt), thread_id=thread_id, parent_id=run, arguments=said)
        with suppress(LedgerError, HistoryMismatchError):  # the caller gets its own error
            found = await self.journal.ledger.thread(thread_id)
            has_own_status = found is None or found.pattern is None  # a pattern sets the status of its thread itself
            status = STOPPED if is_stopped else FAILED_STATUS
            await self.journal.write(thread_id, [row], **({"status": status} if has_own_status else {}))

    async def _open_effects(self, thread_id: str) -> Sequence[Message]:
        """Return effects that started and did not end, here or in a process that died, and that this attempt did not reach."""
        if not self.again:
            return self.course.open_effects
        await self.journal.settle(thread_id)
        rows = [record.message for record in await self.journal.ledger.open_calls(thread_id)]
        parked = {row.parent_id for row in rows if _option(row) == PARK}
        own = [row for row in rows if row.lane == "effect" and is_below(row.invocation_id, self.root)]
        return [row for row in own if _option(row) != PARK and row.invocation_id not in parked]

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


def _option(call: Message) -> str | None:
    return call.payload.option_name if isinstance(call.payload, OptionCallPayload) else None


def _failures(rows: Sequence[Record], run: str) -> list[str]:
    """Return the open rows that record the failure of a run."""
    about = [row.message for row in rows if row.message.lane == "effect" and row.message.parent_id == run]
    return [row.invocation_id or "" for row in about if _option(row) == FAILED]


def _waits(rows: Sequence[Record], run: str) -> bool:
    """Whether a run waits for a person, by the open calls of its thread: for an approval, or for the outcome of a call."""
    waiting = [row.message for row in rows if _option(row.message) in (APPROVE, PARK)]
    return any(is_below(each, run) for row in waiting for each in (row.invocation_id, row.parent_id))


def _shown_option(option: str) -> str:
    """Return the name of an effect for display; for a tool call, the name of the tool."""
    return option.rpartition(".call_tool:")[2]


def _abandoned(intent: Message, thread_id: str) -> Message:
    """Return the row that closes an effect which the run has left open. A `once` effect is parked for a person."""
    payload = intent.payload
    assert isinstance(payload, OptionCallPayload)  # noqa: S101 (it was made so)
    effect, option = payload.invocation_id, payload.option_name
    if payload.arguments.get("effects") == "once":
        reason = f"nobody knows whether {_shown_option(option)!r} was done: the run did not wait for it"
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
        self.journal = Journal(self._host.lease, Budget(), has_attempts=True)
        self.journal.on_lost = self._evict
        self._at_work: dict[str, RunCourse | None] = {}
        """By invocation; None until the run is open."""
        self._ends: dict[str, asyncio.Event] = {}
        """By invocation of a running run that others wait for; set when it leaves."""
        self._lost: FencedError | None = None

    @property
    def is_over(self) -> bool:
        """Whether no run is active."""
        return not self._at_work

    def has(self, invocation_id: str) -> bool:
        """Whether a run is active."""
        return invocation_id in self._at_work

    async def until_left(self, invocation_id: str) -> None:
        """Wait until an active run of this process has left."""
        await self._ends.setdefault(invocation_id, asyncio.Event()).wait()

    async def until_over(self) -> None:
        """Wait until no run is active here."""
        while self._at_work:
            await self.until_left(next(iter(self._at_work)))

    async def refusal(self) -> OwnedError:
        """Return the error for a run that is active in this process."""
        name, now = self._host.lease.name, current_port().now()
        until = [each.until for each in await self.journal.ledger.hosts() if each.host.name == name and each.is_alive]
        return OwnedError(self._thread_id, name, until[0] if until else now + timedelta(seconds=_LEASE), _BUSY)

    async def join(self, invocation_id: str, kind: str) -> None:
        """Add a run."""
        self._at_work[invocation_id] = None
        await self._host.join(kind)

    def begin(self, course: RunCourse) -> None:
        """Set the course of a run: it is evicted when the thread is lost."""
        course.evicted = self._lost
        self._at_work[course.invocation_id] = course

    async def leave(self, invocation_id: str, kind: str) -> None:
        """Remove a run. After the last one, the thread is free for other hosts.

        Call it with `to_the_end`: if it is cancelled half-way, this process owns a thread that it does not run, and no other
        host can run it until this process ends.
        """
        # First: a pending claim of a cancelled caller would take effect after the release, or fence a run that is opened next.
        await self.journal.until_claimed(self._thread_id)
        del self._at_work[invocation_id]
        try:
            await self._host.leave(self._release if self.is_over else None, kind=kind)
        finally:  # after the release: a waiting caller must not find the thread owned by a leaving host
            if (end := self._ends.pop(invocation_id, None)) is not None:
                end.set()

    async def give_up(self, error: HistoryMismatchError) -> None:
        """Release the thread for another build, unless other runs here need it: this program cannot continue it."""
        thread_id, journal = self._thread_id, self.journal
        if len(self._at_work) > 1 or not journal.epoch(thread_id):
            return
        with suppress(LedgerError, HistoryMismatchError):  # the program gets the error, and the thread is released at the end
            await journal.settle(thread_id)
            if not await has_other_build(journal.ledger, thread_id, self._host.lease.build):
                await journal.write(thread_id, (), status=STOPPED)
            await journal.release(thread_id, unfit=self._host.lease.build, reason=unfit_reason(error))

    async def _release(self) -> None:
        await self.journal.release(self._thread_id)

    def _evict(self, thread_id: str, error: FencedError) -> None:
        """Stop all runs of the thread here: another host owns it, and continues them."""
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


def check_choice(name: str, given: str | None, choices: object) -> None:
    """Refuse a value that is not one of the choices.

    Raises:
        ValueError: it is not one of them.
    """
    words: tuple[str, ...] = get_args(choices)
    if given is not None and given not in words:
        *others, last = map(repr, words)
        raise ValueError(f"{name} is {', '.join(others)} or {last}, not {given!r}")


OnBusy: TypeAlias = Literal["join", "raise"]
"""The behaviour of a caller if the run is already open, or another process owns the thread: wait for it, or raise."""

_BUSY = "wait until it has ended (on_busy='join'), or run in another thread"
_OWN_SYSTEM = "a system of this program has it: in a handler, use ledger_run(context)"
_LEASE = Settings().heartbeat * 3
_FIRST_LOOK = 0.02
_LONGEST_PAUSE = 0.5
"""The longest time between two polls of a busy thread, in seconds. The first pauses are shorter, because most repeated runs
are short."""


async def open_run(
    ledger: Ledger,
    thread_id: str,
    id: str,
    *,
    name: str | None = None,
    admit: Admit | None = None,
    observer: Observer | None = None,
    on_busy: OnBusy = "join",
    input: Json = None,
) -> Opened:
    """Start or continue a run. `admit` is called before each effect, and the observer is notified of each.

    `input` is recorded when a run starts. For a run that was started before, it must be the same, or None.

    Raises:
        HistoryMismatchError: the run was started with another input.
        ParkedError: it was continued too often, and a person must settle it.
        OwnedError: it is already open, or another living process owns the thread; only with `on_busy="raise"`.
        FencedError: another process has taken over the thread while other runs of it are active here; only with
            `on_busy="raise"`.
        RefusedError: the thread is paused.
        WithdrawnError: the thread is terminated.
        LedgerError: the ledger cannot be used.
    """
    invocation_id = f"{thread_id}/{as_key(id)}"
    kind = f"{RUN_KIND}/{program_name() if name is None else name}"
    while True:
        if (finished := await _finished(ledger, thread_id, invocation_id, observer)) is not None:
            _check_input(finished.input, input, invocation_id)
            return finished
        tenure = _tenure(ledger, thread_id)
        if tenure.has(invocation_id):
            if on_busy == "raise":
                raise await tenure.refusal()
            await tenure.until_left(invocation_id)
            continue
        # No await between the check of the tenure and this line: two callers must not both start the run.
        opening = _Opening(tenure, thread_id, invocation_id, kind, admit=admit, observer=observer, input=input)
        try:
            await tenure.join(invocation_id, kind)
            return await opening.open()
        except OwnedError as exc:
            await to_the_end(tenure.leave(invocation_id, kind))
            await _check_may_wait(ledger, exc, on_busy)
            await _until_free(ledger, thread_id, invocation_id)
        except FencedError:
            await to_the_end(tenure.leave(invocation_id, kind))
            if on_busy == "raise":
                raise
            # The thread is lost for all runs here, and can be claimed again only after they have ended.
            await tenure.until_over()
        except BaseException:
            await to_the_end(tenure.leave(invocation_id, kind))
            raise


async def _check_may_wait(ledger: Ledger, busy: OwnedError, on_busy: OnBusy) -> None:
    """Refuse to wait, if the caller does not allow it, or if the owner may wait for the caller.

    Raises:
        OwnedError: waiting is not allowed.
    """
    if on_busy == "raise":
        raise OwnedError(busy.thread_id or "", busy.owner, busy.until, _BUSY) from None
    for each in await ledger.hosts():
        is_own = each.host.name == busy.owner and is_of_this_process(each.host)
        if is_own and not any(kind.startswith(f"{RUN_KIND}/") for kind in each.host.kinds):
            # Its handler may be the caller: it would wait until its deadline, because the thread is not released before.
            raise OwnedError(busy.thread_id or "", busy.owner, busy.until, _OWN_SYSTEM) from None


async def _until_free(ledger: Ledger, thread_id: str, invocation_id: str) -> None:
    """Wait until a run has ended, or no living host owns its thread.

    It only reads: even a refused claim would take the write lock of a file.
    """
    pause = _FIRST_LOOK
    while True:
        await asyncio.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE)
        found = await ledger.thread(thread_id)
        if found is None or found.owner is None or await _rows_end(ledger, thread_id, invocation_id):
            return
        if not any(each.is_alive and each.host.name == found.owner for each in await ledger.hosts()):
            return


async def _run_rows(ledger: Ledger, thread_id: str, invocation_id: str) -> list[Record]:
    """Return the rows that record the start and the end of a run."""
    records = await ledger.by_invocation(invocation_id, thread_id=thread_id)
    return [record for record in records if record.message.lane == "effect"]


async def _rows_end(ledger: Ledger, thread_id: str, invocation_id: str) -> bool:
    rows = await _run_rows(ledger, thread_id, invocation_id)
    return bool(rows) and rows[-1].message.kind == "option_result"


async def _finished(ledger: Ledger, thread_id: str, invocation_id: str, observer: Observer | None) -> Opened | None:
    """Return a finished run, which is only read, without a claim of the thread. None if the run has not ended."""
    rows = await _run_rows(ledger, thread_id, invocation_id)
    if not rows or rows[-1].message.kind != "option_result":
        return None
    journal = _Finished(ledger)
    observe(journal, observer)
    course = RunCourse(thread_id, invocation_id, "program", 2)
    own: _Recorded = {"began": rows[0].recorded_at, "input": _input_of(rows[0]), "returned": _returned_by(rows[-1])}
    if own["returned"] is None:  # otherwise no code runs that could ask for a step
        history = await _History.read(ledger, thread_id, invocation_id, rows[0].seq)
        own |= {"agents": history.agents, "steps": history.steps}
    return Opened(journal, course, _no_park, root=invocation_id, **own)


def _input_of(run: Record) -> Json:
    payload = run.message.payload
    return payload.arguments.get("input") if isinstance(payload, OptionCallPayload) else None


class _Recorded(TypedDict, total=False):
    """What the rows of a run say of it."""

    began: datetime | None
    input: Json
    returned: Mapping[str, Any] | None
    again: tuple[str, ...]
    forgiven: Collection[str]
    agents: Mapping[str, str | None]
    steps: Sequence[RecordedStep]
    had_stopped: bool


def _returned_by(end: Record) -> Mapping[str, Any] | None:
    payload = end.message.payload
    said = thaw(payload.result) if isinstance(payload, OptionResultPayload) and not payload.is_error else None
    return cast("Mapping[str, Any]", said) if isinstance(said, Mapping) and RETURNED in said else None


def _check_input(recorded: Json, given: Json, run: str) -> None:
    """Refuse an input that differs from the recorded one. The thread is not marked: the caller is wrong, not the program.

    Raises:
        HistoryMismatchError: it differs.
    """
    if given is not None and not says_the_same_value(recorded, given):
        raise HistoryMismatchError(f"run {run!r} was begun with another input: give this one another id", "program")


async def _no_park(reason: str, evidence: dict[str, Json]) -> None:
    """Park nothing: a finished run starts nothing, so no outcome can be unknown."""


RUN_KIND: Final = "run"
"""Threads of runs have the kind `run/NAME` in the ledger."""


def program_name() -> str:
    """Return the name of this program: the name of its main module or file, or `program`."""
    main = sys.modules.get("__main__")
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    found = spec.name.removesuffix(".__main__") if spec is not None else Path(file).stem if file else ""
    return found if is_name(found) else "program"


def _passing(journal: Journal, admit: Admit | None, observer: Observer | None) -> Journal:
    """Return the journal for one run, with the `admit` and the observer of that run."""
    own = copy(journal)
    own.deferred = []
    own.admit = admit or journal.admit
    observe(own, observer)
    return own


class RecordedStep(NamedTuple):
    """A step that an earlier attempt of a run has asked for."""

    id: str
    """Its invocation, before any renaming; for an agent, that of its run."""
    course: str
    """The invocation of the course that it belongs to."""
    mark: Mark | None
    is_agent: bool = False
    is_once: bool = False


class _History:
    """What earlier attempts of a run have done, as far as the next one needs to know it when it starts."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._reopened: set[str] = set()
        self._harmless: set[str] = set()
        self._failed: set[str] = set()
        self._steps: list[RecordedStep] = []
        self._places: dict[str, int] = {}
        """By course inside of the run, the place of its first step."""
        self._requested: set[str] = set()
        """The courses with a model request: the runs of agents."""
        self._questions: dict[str, str] = {}

    @classmethod
    async def read(cls, ledger: Ledger, thread_id: str, run: str, since: int) -> _History:
        """Read the rows of a run.

        Raises:
            LedgerError: the thread cannot be read.
        """
        own = cls(run)
        async for record in ledger.read(thread_id, since):
            if record.message.lane == "effect" and is_below(record.message.invocation_id, run):
                own._hear(record.message)
        return own

    @property
    def forgiven(self) -> frozenset[str]:
        """The failed effects that ended the run: they are retried, if that is safe or a person has requested it.

        An earlier failure stays: the program has seen it and continued.
        """
        return frozenset(self._failed | self._reopened)

    @property
    def agents(self) -> Mapping[str, str | None]:
        """The runs of agents in the order in which they began, each with the digest of its question."""
        return {part: self._questions.get(part) for part in self._places if part in self._requested}

    @property
    def steps(self) -> Sequence[RecordedStep]:
        """The recorded steps in order, and the runs of agents at the place of their first step."""
        return tuple(step for step in self._steps if not step.is_agent or step.id in self._requested)

    def _hear(self, message: Message) -> None:
        payload = message.payload
        if _option(message) == REOPEN:
            self._reopened.add(message.parent_id or "")
        elif isinstance(payload, OptionCallPayload):
            self._failed.clear()
            if kind_of(message) == "request":
                self._requested.add(parent_of(payload.invocation_id))
            if payload.arguments.get("effects") in ("none", "idempotent"):
                self._harmless.add(payload.invocation_id)
            if "effects" in payload.arguments:
                self._hear_step(payload)
        elif isinstance(payload, OptionResultPayload) and payload.is_error and message.policy != RUNTIME_POLICY:
            self._failed |= self._harmless & {payload.invocation_id}  # an outcome that a person has recorded stays

    def _hear_step(self, payload: OptionCallPayload) -> None:
        id = base_of(payload.invocation_id)  # noqa: A001 (that of the step)
        part, said = parent_of(id), payload.arguments.get(MARK)
        mark = cast("Mark | None", said if said in get_args(Mark) else None)
        if part != self._run and part not in self._places:
            self._places[part] = len(self._steps)
            self._steps.append(RecordedStep(part, parent_of(part), None, is_agent=True))
        if isinstance(question := payload.arguments.get(QUESTION), str):
            self._questions[part] = question
            if part in self._places:  # the mark is that of the agent's whole run
                self._steps[self._places[part]] = RecordedStep(part, parent_of(part), mark, is_agent=True)
        if id == payload.invocation_id:  # a further attempt has the place of the first
            self._steps.append(RecordedStep(id, part, mark, is_once=payload.arguments.get("effects") == "once"))


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
        input: Json,
    ) -> None:
        self._input = input
        self._tenure = tenure
        self._journal = _passing(tenure.journal, admit, observer)
        self._observer = observer
        self._thread_id = thread_id
        self._id = invocation_id
        self._kind = kind

    async def open(self) -> Opened:
        """Claim the thread, and start or continue the run. If another host has ended the run meanwhile, it is read.

        Raises:
            OwnedError: another living host has the thread.
        """
        if await self._journal.own(self._thread_id, self._kind) > 1:
            await self._check_held()  # checked as the owner: no other host can pause it now
        rows = await _run_rows(self._journal.ledger, self._thread_id, self._id)  # no other host can start or end it
        if not rows:
            return await self._first()
        _check_input(_input_of(rows[0]), self._input, self._id)
        if len(rows) == 1:
            return await self._again(rows[0])
        finished = _Finished(self._journal.ledger)
        observe(finished, self._observer)
        own: _Recorded = {"began": rows[0].recorded_at, "input": _input_of(rows[0]), "returned": _returned_by(rows[-1])}
        history = await _History.read(self._journal.ledger, self._thread_id, self._id, rows[0].seq)
        own |= {"agents": history.agents, "steps": history.steps}
        return replace(self._opened(2, **own), journal=finished)

    async def _first(self) -> Opened:
        began, program = current_port().now(), self._kind.removeprefix(f"{RUN_KIND}/")
        if self._input is None:
            await self._journal.write_soon(self._thread_id, [begun(RUN, self._id, thread_id=self._thread_id)])
            return self._opened(1, began=began)
        # Stored before anything else: then another program can continue the run, wherever this one dies.
        said: dict[str, Json] = {"program": program, "input": self._input}
        row = begun(RUN, self._id, thread_id=self._thread_id, arguments=said)
        (record,) = await self._journal.write(self._thread_id, [row])
        return self._opened(1, began=began, input=_input_of(record))  # as stored: a later process gets the same value

    async def _check_held(self) -> None:
        """Refuse a paused or terminated thread: this process has nothing that could resume it."""
        held = (await self._journal.ledger.replay(self._thread_id, LIFE.fold())).held
        if held == "terminated":
            raise WithdrawnError(f"thread {self._thread_id!r} is terminated")
        if held == "paused":
            command = command_line(self._journal.ledger, "resume", self._thread_id)
            reason = f"thread {self._thread_id!r} is paused: resume it first, with `{command}`"
            raise RefusedError(reason, ErrorCode.INVALID_STATE)

    def _opened(self, attempt: int, **recorded: Unpack[_Recorded]) -> Opened:
        course = RunCourse(self._thread_id, self._id, PROGRAM, attempt)
        self._tenure.begin(course)
        return Opened(self._journal, course, self._park, tenure=self._tenure, kind=self._kind, root=self._id, **recorded)

    async def _again(self, run: Record) -> Opened:
        rows = await self._journal.ledger.open_calls(self._thread_id)
        standing = Standing.of(rows, self._id)
        if standing.parked is not None:
            command = command_line(self._journal.ledger, "parked")
            raise ParkedError(f"run {self._id!r} waits for a person: see `{command}`")
        if len(standing.again) >= _RECOVERIES:
            reason = f"it was begun {len(standing.again) + 1} times, and never ended"
            time = await self._unused(partial(park_id, self._id), 1)
            await self._park_row(self._id, {"reason": reason, "to": "program"}, time)
            command = command_line(self._journal.ledger, "settle", self._thread_id, self._id, options="--retry")
            raise ParkedError(f"run {self._id!r} waits for a person: {reason}; to start it again: `{command}`")
        attempt = await self._unused(partial(again_id, self._id), len(standing.again) + 2)
        row = again_id(self._id, attempt)
        failures = [ended(FAILED, each, thread_id=self._thread_id, parent_id=self._id) for each in _failures(rows, self._id)]
        said: dict[str, Json] = {"attempt": attempt, "cause": "recovered", "reason": "the program was started again"}
        said |= await self._journal.tenure(self._thread_id)
        again = begun(AGAIN, row, thread_id=self._thread_id, parent_id=self._id, arguments=said)
        summary = await self._journal.ledger.thread(self._thread_id)
        own = (STOPPED,) if summary is None or summary.pattern is not None else (STOPPED, FAILED_STATUS)
        had_stopped = summary is not None and summary.status in own
        if _waits(rows, self._id) and not (failures or had_stopped or standing.again):
            # Deferred until the attempt writes something else: a caller that asks again and again must not lengthen a thread
            # that waits for a person. An earlier attempt came to this point and ended well, so nothing need count that this
            # one was begun; after the answer, every attempt is counted again.
            self._journal.deferred = [again]
        else:
            await self._journal.write(self._thread_id, [*failures, again], **({"status": GOES_ON} if had_stopped else {}))
        history = await _History.read(self._journal.ledger, self._thread_id, self._id, run.seq)
        own_rows: _Recorded = {"began": run.recorded_at, "input": _input_of(run), "again": (*standing.again, row)}
        own_rows |= {
            "forgiven": history.forgiven,
            "agents": history.agents,
            "steps": history.steps,
            "had_stopped": had_stopped,
        }
        return self._opened(attempt, **own_rows)

    async def _park(self, reason: str, evidence: dict[str, Json]) -> None:
        """Park an effect for a person. The other effects of the run continue."""
        await self._park_row(str(evidence["effect"]), {"reason": reason, "to": "program", **evidence})

    async def _unused(self, name: Callable[[int], str], first: int) -> int:
        return await unused(self._journal.ledger, self._thread_id, name, first)

    async def _park_row(self, about: str, evidence: dict[str, Json], time: int = 1) -> None:
        row: Message = begun(PARK, park_id(about, time), thread_id=self._thread_id, parent_id=about, arguments=evidence)
        with suppress(AppendRefusedError):  # it is already parked, for another reason
            await self._journal.write(self._thread_id, [row])
