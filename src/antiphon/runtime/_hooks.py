"""Hooks: where the runtime tells its observer what happens, so that nothing the observer does can harm an actor."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import Token
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from antiphon.errors import DeliveryError, LedgerError
from antiphon.ledger import Redaction
from antiphon.messages import Json, Message, OptionResultPayload
from antiphon.protocol import Heartbeat, Restart, Stop
from antiphon.runtime._effects import FailedError, UnknownOutcomeError
from antiphon.runtime._envelope import Envelope
from antiphon.runtime._failure import Failure
from antiphon.runtime._logs import LOG, about
from antiphon.runtime._observer import Activity, Delivery, EffectRun, Observer, current
from antiphon.runtime._operations import AgentOperation, ModelOperation, ToolOperation, added

if TYPE_CHECKING:
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._dead import DeadLetter
    from antiphon.runtime._effects import Course, Run
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._operations import Operation
    from antiphon.runtime._system import System

__all__ = ["UNKNOWN_OUTCOME", "Hooks", "observe"]

UNKNOWN_OUTCOME: Final = "UNKNOWN_OUTCOME"
"""The code of an effect whose outcome nobody knows: what must not be done twice is then parked."""

ResultT = TypeVar("ResultT")
Rules: TypeAlias = "Callable[[str], Awaitable[Redaction | None]]"


class Hooks:
    """An observer, behind something that catches what it raises."""

    def __init__(self, observer: Observer, now: Callable[[], float], rules: Rules) -> None:
        """Make it; `rules` are those by which what is said in a thread is redacted."""
        self._observer = observer
        self._rules = rules
        self.now = now

    @property
    def records_content(self) -> bool:
        """Whether the observer keeps what is said."""
        return self._observer.records_content

    def opened(self, system: System) -> None:
        self.tell(self._observer.opened, system)

    def closed(self, system: System) -> None:
        self.tell(self._observer.closed, system)

    def said(self, envelope: Envelope) -> None:
        """Note in which trace something is said, if that is not in the course of a message."""
        if envelope.parent is None and envelope.origin is None:
            origin = self.tell(self._observer.origin)
            if origin is not None:
                envelope.come_from(origin)

    def accepted(self, envelope: Envelope) -> None:
        envelope.accepted_at = self.now()
        self.tell(self._observer.accepted, Delivery(envelope))

    def restarted(self, cell: Cell) -> None:
        self.tell(self._observer.restarted, str(cell.address), cell.incarnation)

    def parked(self, envelope: Envelope) -> None:
        self.tell(self._observer.parked, Delivery(envelope))

    def died(self, letter: DeadLetter) -> None:
        self.tell(self._observer.died, letter)

    async def run(self, cell: Cell, envelope: Envelope, running: Awaitable[ResultT]) -> ResultT:
        """Have a message handled, and tell the observer. Heartbeats are nobody's concern."""
        if envelope.type == Heartbeat.message_type:
            return await running
        activity = Activity(envelope.thread_id, str(envelope.to), Delivery(envelope))
        if envelope.accepted_at is not None:
            activity.waited, envelope.accepted_at = self.now() - envelope.accepted_at, None
        envelope.activity = activity
        await self._redact(activity)
        with _Watched(self, activity):
            try:
                outcome = activity.outcome = await running
            finally:
                activity.is_declared = _is_declared(cell, envelope.type)
        return outcome

    def effect(self, course: Course, effect: EffectRun, run: Run, operation: Operation | None) -> Run:
        """Return what does an effect and tells the observer."""
        delivery = Delivery(course) if isinstance(course, Envelope) else None

        async def watched(key: str) -> Json:
            activity, around = Activity(course.thread_id, str(course.to), delivery, effect, operation=operation), current.get()
            await self._redact(activity)
            try:
                with _Watched(self, activity):
                    result = activity.outcome = await run(key)
            finally:
                _count(activity, around)
            return result

        return watched

    async def operation(self, course: Course, operation: Operation, running: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Have something done that effects are part of, such as a run of an agent, and tell the observer."""
        activity = Activity(course.thread_id, str(course.to), operation=operation)
        await self._redact(activity)
        with _Watched(self, activity):
            try:
                return await running()
            finally:
                if isinstance(activity.operation, AgentOperation):
                    activity.operation = replace(activity.operation, usage=activity.usage)

    def replayed(self) -> None:
        """Count a request or a tool call whose outcome the ledger has: it is not made, and has no activity."""
        if (around := current.get()) is not None:
            around.replayed += 1

    async def _redact(self, activity: Activity) -> None:
        """Give an activity the rules of its thread. If they cannot be read, the usual ones stay: nothing fails for this."""
        if self.records_content and activity.thread_id is not None:
            with suppress(LedgerError):
                activity.redaction = await self._rules(activity.thread_id)

    def begin(self, activity: Activity) -> None:
        self.tell(self._observer.began, activity)

    def end(self, activity: Activity) -> None:
        self.tell(self._observer.ended, activity)

    def tell(self, hear: Callable[..., ResultT], *what: Any) -> ResultT | None:
        """Tell the observer something, and return what it says; one that raises is not told anything any more."""
        try:
            return hear(*what)
        except Exception as exc:  # noqa: BLE001 (whatever it is, it is the observer's own)
            failure = Failure.of(exc, "", 0, None)
            name = type(self._observer).__qualname__
            self._observer = Observer()
            text = "the observer %s is switched off: it raised %s at %s"
            LOG.error(text, name, failure.error_type, failure.where, extra=about(error=exc))
            return None


def observe(journal: Journal, observer: Observer | None) -> Hooks | None:
    """Have an observer told of what is done in the threads of a journal, and return by what; with None, nobody is."""
    now = asyncio.get_running_loop().time
    journal.hooks = None if observer is None else Hooks(observer, now, journal.redaction_of)
    return journal.hooks


class _Watched:
    """A block in which an activity goes on."""

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
        with suppress(ValueError):  # a coroutine whose event loop is gone is closed in another context
            current.reset(self._token)


def _is_declared(cell: Cell, type_: str) -> bool:
    known = cell.actor is not None and type_ in cell.actor.handlers
    return known or type_ in (Restart.message_type, Stop.message_type)


def _error_type(error: BaseException, delivery: Delivery | None) -> str:
    if isinstance(error, asyncio.CancelledError) and delivery is not None and delivery.withdrawn is not None:
        return delivery.withdrawn
    if isinstance(error, UnknownOutcomeError):
        return UNKNOWN_OUTCOME
    return error.code if isinstance(error, DeliveryError | FailedError) else type(error).__qualname__


def _count(activity: Activity, around: Activity | None) -> None:
    """Count a request or a tool call for what it is part of."""
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
