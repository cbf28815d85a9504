"""Reporting: what the runtime tells the outside. Failures as data, logs, calls of the observer, and dead letters.

**Logs** have structured fields, and never the content of a message. The text of an exception may quote a message, so only the
code or the class of an actor's error is logged, with the lines of code. Errors of the ledger name threads, ids and files, and
may be quoted.

**Hooks** are the one place that calls the observer, so that nothing an observer does can harm an actor. Every part of the
runtime that reports something has an optional `Hooks`. Without an observer it is None, and each report costs one comparison.
An observer that raises is not called again.

`DeadLetters` keeps the latest messages that no actor will handle, and counts all of them.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from contextvars import Token
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from antiphon.errors import DeliveryError, FailedError, LedgerError, UnknownOutcomeError
from antiphon.ledger import Redaction
from antiphon.messages import Json, Message, OptionResultPayload, Usage, current_port
from antiphon.protocol import Heartbeat
from antiphon.runtime._delivery import Course, DeliveryState
from antiphon.runtime._observer import (
    Activity,
    AgentOperation,
    DeadLetter,
    Delivery,
    EffectRun,
    ModelOperation,
    Observer,
    Operation,
    RunOperation,
    ToolOperation,
    WatchedSystem,
    current,
)
from antiphon.runtime._rows import text_of

_MOST_TEXT = 2000
"""Characters that are kept of an error's text."""


@dataclass(frozen=True, slots=True)
class ActorFailure:
    """Why an actor failed."""

    address: str
    incarnation: int
    """Which actor of the cell failed, from 1: a later one is not restarted for it."""
    error_type: str
    error_message: str
    where: str
    """The file and line that raised."""
    message_id: str | None = None

    @classmethod
    def of(cls, error: BaseException, address: str, incarnation: int, message_id: str | None) -> ActorFailure:
        """Return an exception as data."""
        frames = traceback.extract_tb(error.__traceback__)
        where = f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
        return cls(address, incarnation, type(error).__qualname__, _text_of(error), where, message_id)


def _text_of(error: BaseException) -> str:
    return text_of(error)[:_MOST_TEXT].encode(errors="replace").decode()


BLOCKED: Final = "LOOP_BLOCKED"
"""The error code of an actor that blocks the event loop."""


LOG = logging.getLogger("antiphon.runtime")


def log_fields(
    subject: DeliveryState | str = "", *, thread_id: str | None = None, error: BaseException | str | None = None
) -> dict[str, str]:
    """Return the fields of a log record, named as in traces; `subject` is a delivery, or the address of an actor."""
    found: dict[str, str | None] = {"antiphon.thread.id": thread_id}
    if isinstance(subject, str):
        found["antiphon.actor.address"] = str(subject) or None
    else:
        found["antiphon.actor.address"] = str(subject.to)
        found["antiphon.message.id"] = subject.id
        found["antiphon.message.type"] = subject.type
        found["antiphon.thread.id"] = subject.thread_id
    if error is not None:
        found["error.type"] = error if isinstance(error, str) else _class(error)
    return {name: value for name, value in found.items() if value is not None}


def log_text(error: BaseException) -> str:
    """Return what may be logged of an error."""
    return str(error) if isinstance(error, LedgerError) else _class(error)


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an error without its text."""
    return "".join(traceback.format_tb(error.__traceback__)).rstrip()


def _class(error: BaseException) -> str:
    return error.code if isinstance(error, DeliveryError) else type(error).__qualname__


# ---------------------------------------------------------------- the observer


UNKNOWN_OUTCOME: Final = "UNKNOWN_OUTCOME"
"""The error type of an effect whose outcome is unknown."""

ResultT = TypeVar("ResultT")
Rules: TypeAlias = "Callable[[str], Awaitable[Redaction | None]]"


class DeclaresTypes(Protocol):
    """A cell: knows the types of messages that its actor handles."""

    def declares(self, message_type: str) -> bool:
        """Whether there is a handler for messages of a type."""
        ...


class Hooks:
    """Calls an observer, and catches what it raises."""

    def __init__(self, observer: Observer, now: Callable[[], float], rules: Rules) -> None:
        """Make it; `rules` returns the redaction rules of a thread."""
        self._observer = observer
        self._rules = rules
        self.now = now

    @property
    def records_content(self) -> bool:
        """Whether the observer records content."""
        return self._observer.records_content

    def opened(self, system: WatchedSystem) -> None:
        self.tell(self._observer.opened, system)

    def closed(self, system: WatchedSystem) -> None:
        self.tell(self._observer.closed, system)

    def said(self, delivery: DeliveryState) -> None:
        """Set the trace of a message that is sent from outside."""
        if delivery.parent is None and delivery.origin is None:
            origin = self.tell(self._observer.origin)
            if origin is not None:
                delivery.set_origin(origin)

    def accepted(self, delivery: DeliveryState) -> None:
        delivery.accepted_at = self.now()
        self.tell(self._observer.accepted, Delivery(delivery))

    def restarted(self, address: str, incarnation: int) -> None:
        self.tell(self._observer.restarted, str(address), incarnation)

    def parked(self, delivery: DeliveryState) -> None:
        self.tell(self._observer.parked, Delivery(delivery))

    def died(self, letter: DeadLetter) -> None:
        self.tell(self._observer.died, letter)

    async def run(self, cell: DeclaresTypes, delivery: DeliveryState, running: Awaitable[ResultT]) -> ResultT:
        """Await the handling of a message, and tell the observer. Heartbeats are not reported."""
        if delivery.type == Heartbeat.message_type:
            return await running
        activity = Activity(delivery.thread_id, str(delivery.to), Delivery(delivery))
        if delivery.accepted_at is not None:
            activity.waited, delivery.accepted_at = self.now() - delivery.accepted_at, None
        delivery.activity = activity
        await self._redact(activity)
        with _Watched(self, activity):
            try:
                outcome = activity.outcome = await running
            finally:
                activity.is_declared = cell.declares(delivery.type) or delivery.is_command
        return outcome

    def effect(
        self, course: Course, effect: EffectRun, run: Callable[[str], Awaitable[Json]], operation: Operation | None
    ) -> Callable[[str], Awaitable[Json]]:
        """Return `run` wrapped so that the observer is told."""
        handled = Delivery(course) if isinstance(course, DeliveryState) else None

        async def watched(key: str) -> Json:
            activity, around = Activity(course.thread_id, str(course.to), handled, effect, operation=operation), current.get()
            await self._redact(activity)
            try:
                with _Watched(self, activity):
                    result = activity.outcome = await run(key)
            finally:
                _count(activity, around)
            return result

        return watched

    async def operation(self, course: Course, operation: Operation, running: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run something that has effects of its own, such as an agent, and tell the observer."""
        activity, around = Activity(course.thread_id, str(course.to), operation=operation), current.get()
        await self._redact(activity)
        with _Watched(self, activity):
            try:
                return await running()
            finally:
                if isinstance(activity.operation, AgentOperation):
                    activity.operation = replace(activity.operation, usage=activity.usage)
                if around is not None and isinstance(around.operation, RunOperation):
                    around.done += activity.done
                    around.replayed += activity.replayed

    def replayed(self) -> None:
        """Count a request or a tool call whose recorded outcome is used: it is not made, and has no activity."""
        if (around := current.get()) is not None:
            around.replayed += 1

    async def _redact(self, activity: Activity) -> None:
        """Give an activity the redaction rules of its thread. If they cannot be read, the standard ones stay."""
        if self.records_content and activity.thread_id is not None:
            with suppress(LedgerError):
                activity.redaction = await self._rules(activity.thread_id)

    def begin(self, activity: Activity) -> None:
        self.tell(self._observer.began, activity)

    def end(self, activity: Activity) -> None:
        self.tell(self._observer.ended, activity)

    def tell(self, hear: Callable[..., ResultT], *what: Any) -> ResultT | None:
        """Call the observer, and return its answer. One that raises is replaced by an observer that does nothing."""
        try:
            return hear(*what)
        except Exception as exc:  # noqa: BLE001 (an observer must not harm an actor)
            failure = ActorFailure.of(exc, "", 0, None)
            name = type(self._observer).__qualname__
            self._observer = Observer()
            text = "the observer %s is switched off: it raised %s at %s"
            LOG.error(text, name, failure.error_type, failure.where, extra=log_fields(error=exc))  # noqa: TRY400 (no message text)
            return None


@contextmanager
def observed_run(observer: Observer, operation: RunOperation, thread_id: str) -> Generator[Activity, None, None]:
    """Tell an observer about a run of a program, for a `with` block. Its content is that of its effects."""

    async def no_rules(thread_id: str) -> None:
        return None

    hooks = Hooks(observer, asyncio.get_running_loop().time, no_rules)
    activity = Activity(thread_id, operation.name, operation=operation)
    with _Watched(hooks, activity):
        yield activity


class _Watched:
    """The block of an activity."""

    __slots__ = ("_activity", "_began", "_hooks", "_token")

    def __init__(self, hooks: Hooks, activity: Activity) -> None:
        self._hooks = hooks
        self._activity = activity

    def __enter__(self) -> None:
        self._token: Token[Activity | None] = current.set(self._activity)
        self._began = self._hooks.now()
        self._hooks.begin(self._activity)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        activity = self._activity
        activity.seconds = self._hooks.now() - self._began
        activity.error_type = _error_in(activity) if error is None else _error_type(error, activity.delivery)
        self._hooks.end(activity)
        with suppress(ValueError):  # a coroutine that is closed after its event loop runs in another context
            current.reset(self._token)


def _error_type(error: BaseException, delivery: Delivery | None) -> str:
    if isinstance(error, asyncio.CancelledError) and delivery is not None and delivery.withdrawn is not None:
        return delivery.withdrawn
    if isinstance(error, UnknownOutcomeError):
        return UNKNOWN_OUTCOME
    return error.code if isinstance(error, DeliveryError | FailedError) else type(error).__qualname__


def _count(activity: Activity, around: Activity | None) -> None:
    """Count a request or a tool call for the activity around it."""
    if around is not None and activity.operation is not None:
        around.done += 1
        if isinstance(activity.operation, ModelOperation):
            around.usage = added(around.usage, activity.operation.usage)


def _error_in(activity: Activity) -> str | None:
    if isinstance(activity.operation, ToolOperation) and activity.operation.error_type is not None:
        return activity.operation.error_type
    payload = activity.outcome.payload if isinstance(activity.outcome, Message) else activity.outcome
    if isinstance(payload, OptionResultPayload) and payload.is_error:
        return payload.error_type or "ERROR"
    return None


def added(one: Usage | None, other: Usage | None) -> Usage | None:
    """Return the sum of two usages; None if neither is known."""
    if one is None or other is None:
        return one or other
    return Usage(
        input_tokens=_sum(one.input_tokens, other.input_tokens),
        output_tokens=_sum(one.output_tokens, other.output_tokens),
        cache_read_tokens=_sum(one.cache_read_tokens, other.cache_read_tokens),
        cache_write_tokens=_sum(one.cache_write_tokens, other.cache_write_tokens),
        reasoning_tokens=_sum(one.reasoning_tokens, other.reasoning_tokens),
    )


def _sum(one: int | None, other: int | None) -> int | None:
    return one if other is None else other if one is None else one + other


class DeadLetters:
    """The latest dead letters, and the number of all by code."""

    def __init__(self, limit: int, hooks: Hooks | None = None) -> None:
        self._hooks = hooks
        self._kept: deque[DeadLetter] = deque(maxlen=limit)
        self.counts: Counter[str] = Counter()

    def add(self, delivery: DeliveryState, code: str, reason: str) -> None:
        """Keep a message that no actor will handle. Its content is not logged."""
        self.counts[code] += 1
        letter = DeadLetter(delivery.message, delivery.to, code, reason, current_port().now())
        self._kept.append(letter)
        if self._hooks is not None:
            self._hooks.died(letter)
        fields = log_fields(delivery, error=code)
        LOG.warning("dead letter: %s to %s: %s", delivery.type or "talk", delivery.to, code, extra=fields)

    def add_unless_asked(self, delivery: DeliveryState, error: DeliveryError) -> None:
        """Keep a message that ends with an error, if no caller gets it."""
        if delivery.waiter is None and not delivery.is_call:
            self.add(delivery, error.code, error.reason)

    @property
    def kept(self) -> tuple[DeadLetter, ...]:
        return tuple(self._kept)
