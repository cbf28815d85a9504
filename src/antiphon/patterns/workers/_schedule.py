"""Tasks: the requests that carry them, the limits of workers, the order in which a worker runs its tasks, and their deadlines.

Requests carry structured messages of Atlas. A request has no timestamp: a handler that runs again must write the same request.
Its time is that of the ledger row.

A worker runs `at_once` tasks in parallel. The next one is the waiting task with the highest priority; among equals, the one
that was assigned first. Every tenth time it is the task that has waited longest, so a task with a low priority never starves.
A running task is not interrupted for a more urgent one.

Order and deadline follow from the row of the task (its metadata, and when it was recorded), so they are the same after a
restart: nothing starts while a system recovers open work; after that, the most urgent task starts first.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field

from antiphon.dialects.atlas import StructuredMessage
from antiphon.errors import RefusedError
from antiphon.messages import current_port, thaw
from antiphon.protocol import ErrorCode, Reply, Request
from antiphon.protocol._values import Object

# ---------------------------------------------------------------- requests

PATTERN: Final = "workers"
"""The name of the pattern in lists of threads."""


class Answered(Reply, frozen=True, type="WORKERS_ANSWERED"):
    """The answer of an agent to a client."""

    message: Object


class AskAgent(Request[Answered], frozen=True, type="WORKERS_MESSAGE"):
    """A message of a client to the controller, or to a worker."""

    message: Object


class WorkerTaskDone(Reply, frozen=True, type="WORKERS_TASK_DONE"):
    """The end of a task: a result, or an error."""

    message: Object
    handed_on: bool = False
    """Whether another worker has finished it; then its answer is already in the thread."""
    untrusted: str | None = None
    """The source of untrusted content that it has read, if any."""


class DoWorkerTask(Request[WorkerTaskDone], frozen=True, type="WORKERS_TASK"):
    """A task for a worker, from the controller or from another worker."""

    message: Object
    untrusted: str | None = None
    """The source of untrusted content that the sender has read, if any."""
    history: str | None = None
    """The worker reads the history of the thread before this message; None: there is none."""


# ---------------------------------------------------------------- limits


class WorkerLimits(BaseModel):
    """How much an agent of this pattern may do for one message, and in parallel."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rounds: int = Field(default=8, ge=1)
    """How many requests to a model one answer may take."""
    at_once: int = Field(default=1, ge=1)
    """How many tasks each worker does in parallel."""


# ---------------------------------------------------------------- messages as JSON


def to_wire(message: StructuredMessage) -> dict[str, Any]:
    """Return a message for a request: without its time."""
    return {name: value for name, value in message.to_dict().items() if name != "timestamp"}


def from_wire(data: Any, asked_at: datetime | None) -> StructuredMessage:
    """Return the message that `to_wire` wrote, with the time of the request."""
    time = {} if asked_at is None else {"timestamp": asked_at.timestamp()}
    return StructuredMessage.from_dict({**time, **thaw(data)})


# ---------------------------------------------------------------- priorities and deadlines

PRIORITIES: Final = {"low": 0, "normal": 1, "medium": 1, "high": 2, "urgent": 3, "critical": 3}
_NORMAL: Final = 1
_FAIR: Final = 10
"""The interval, in starts, at which the task that has waited longest is chosen."""
_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_SPAN: Final = re.compile(
    r"(\d+(?:\.\d+)?)\s*(ms|s(?:ec(?:ond)?s?)?|m(?:in(?:ute)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:eeks?)?)(?![a-z])\s*"
)
_FIRST_TIME: Final = 1e8
"""From this number on, a number is a Unix time; a smaller one is a duration in seconds."""


def priority_of(message: StructuredMessage) -> float:
    """Return the priority of a message: higher is more urgent. Any value except a known word or a number is normal."""
    priority: Any = message.metadata.get("priority")
    if isinstance(priority, str):
        return PRIORITIES.get(priority.strip().lower(), _NORMAL)
    return priority if isinstance(priority, int | float) and not isinstance(priority, bool) else _NORMAL


def due_at(message: StructuredMessage) -> float | None:
    """Return the deadline of the work on a message, in seconds since 1970; None if there is no deadline."""
    deadline: Any = message.metadata.get("deadline")
    match deadline:
        case None:
            return None
        case str():
            return _read(deadline.strip(), message.timestamp)
        case datetime():
            return _seconds(deadline)
        case date():
            return _seconds(datetime(deadline.year, deadline.month, deadline.day, tzinfo=UTC) + timedelta(days=1))
        case int() | float() if not isinstance(deadline, bool):
            return deadline if deadline >= _FIRST_TIME else message.timestamp + deadline
        case _:
            raise _unreadable(deadline)


def _read(text: str, since: float) -> float:
    if text and not _SPAN.sub("", text.lower()):
        spans = _SPAN.findall(text.lower())
        return since + sum(float(number) * _UNITS["ms" if unit == "ms" else unit[0]] for number, unit in spans)
    try:
        if len(text) == len("2026-01-31"):
            return _seconds(datetime.combine(date.fromisoformat(text), datetime.min.time()) + timedelta(days=1))
        return _seconds(datetime.fromisoformat(text))
    except ValueError:
        raise _unreadable(text) from None


def _seconds(time: datetime) -> float:
    return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp()


def _unreadable(value: object) -> ValueError:
    forms = "'2h', '1h 30m', a date and time such as '2026-01-31T12:00:00+00:00', or seconds"
    return ValueError(f"metadata.deadline: {value!r} is no deadline; write {forms}")


# ---------------------------------------------------------------- deadlines


def time_left(message: StructuredMessage, within: float | None = None) -> float | None:
    """Return how many seconds of work a message has left, at most `within`; None: there is no deadline."""
    due = due_at(message)
    if due is None:
        return within
    seconds = max(0.0, due - current_port().now().timestamp())
    return seconds if within is None else min(seconds, within)


def late() -> RefusedError:
    """Return the error of work that is not started because its deadline has passed."""
    return RefusedError("the deadline passed before the work began", ErrorCode.TIMEOUT)


@asynccontextmanager
async def within_deadline(message: StructuredMessage) -> AsyncGenerator[None]:
    """Run the block until the deadline of a message. Late work is not started; running work is cancelled.

    Raises:
        RefusedError: the deadline has passed (TIMEOUT), or is invalid.
    """
    try:
        seconds = time_left(message)
    except ValueError as exc:
        raise RefusedError(str(exc), ErrorCode.VALIDATION_ERROR) from exc
    if seconds is None:
        yield
        return
    if not seconds:
        raise late()
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            yield
    except TimeoutError as exc:
        if not limit.expired():
            raise
        raise RefusedError("the deadline passed, and the work was stopped", ErrorCode.TIMEOUT) from exc


# ---------------------------------------------------------------- slots


class Ticket:
    """A task that waits for a slot, or has one. It runs in the `async with` block."""

    def __init__(self, slots: Slots, message: StructuredMessage, number: int) -> None:
        self._slots = slots
        self.assigned_at = message.timestamp, number
        self.rank = -priority_of(message), *self.assigned_at
        self._slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lent = 0
        """The number of answers from the team that its work waits for."""

    def start(self) -> None:
        """Give it a slot."""
        if not self._slot.done():
            self._slot.set_result(None)

    async def __aenter__(self) -> Self:
        await self._slot
        self._token = _at_work.set(self)
        return self

    async def __aexit__(self, *raised: object) -> None:
        _at_work.reset(self._token)
        self._slots.leave(self)

    def lend(self, change: int) -> None:
        """Count an answer that the work starts or stops to wait for: while it waits, another task gets the slot."""
        was_lent, self._lent = self._lent > 0, self._lent + change
        self._slots.change(int(self._lent > 0) - int(was_lent))


_at_work: ContextVar[Ticket | None] = ContextVar("antiphon.patterns.workers.ticket", default=None)


@contextmanager
def lent_slot() -> Generator[None]:
    """Lend the slot of the current task to another in the block: a tool may ask its own team, and wait.

    After the block the work continues immediately, so more than `at_once` tasks may run for a moment.
    """
    ticket = _at_work.get()
    if ticket is None:
        yield
        return
    ticket.lend(1)
    try:
        yield
    finally:
        ticket.lend(-1)


class Slots:
    """The slots of a worker: at most `at_once` tasks run, the most urgent first."""

    def __init__(self, at_once: int) -> None:
        self._free = at_once
        self._waiting: list[Ticket] = []
        self._at_work: set[Ticket] = set()
        self._count = self._starts = 0
        self._is_held = False

    @property
    def waiting(self) -> int:
        """How many tasks wait."""
        return len(self._waiting)

    @contextmanager
    def held(self) -> Generator[None]:
        """Start no task in the block, so that the most urgent of all that arrive starts first."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
            self._start_next()

    @contextmanager
    def ticket(self, message: StructuredMessage) -> Generator[Ticket]:
        """Return the ticket of a message, which waits from now on. The ticket is released when the block ends.

        A handler takes it before its first write, so that the order does not depend on the duration of writes.
        """
        self._count += 1
        ticket = Ticket(self, message, self._count)
        self._waiting.append(ticket)
        self._start_next()
        try:
            yield ticket
        finally:
            self.leave(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Release a ticket and its slot. A second call does nothing."""
        if ticket in self._at_work:
            self._at_work.remove(ticket)
            self.change(1)
        elif ticket in self._waiting:
            self._waiting.remove(ticket)

    def change(self, free: int) -> None:
        """Add or remove free slots."""
        self._free += free
        self._start_next()

    def _start_next(self) -> None:
        while self._free > 0 and self._waiting and not self._is_held:
            self._starts += 1
            is_fair = self._starts % _FAIR == 0
            ticket = min(self._waiting, key=lambda waiting: waiting.assigned_at if is_fair else waiting.rank)
            self._waiting.remove(ticket)
            self._at_work.add(ticket)
            self._free -= 1
            ticket.start()
