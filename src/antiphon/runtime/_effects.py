"""Effects of handlers, and state of actors. Both are rebuilt from the thread after a crash.

The intent is appended, then the effect runs, then its outcome is appended. A handler that runs again after a crash gets the
stored outcome. If there is only the intent, it is unknown whether the effect has happened. Then `effects` decides:

| `effects` | the effect | with an intent and no outcome |
|---|---|---|
| `none` | only reads | runs again |
| `idempotent` | may run twice under the same key | runs again, under the same key |
| `once` | must not run twice | is parked: a person records the outcome |

**Every start follows a row.** Before the first start, that is the intent. Before each further start, it is the row of that
attempt. The ledger compares the owner's epoch in the transaction that writes the row, so a process that has lost the thread
starts nothing.
A look-up before the row counts only if the thread was owned without interruption from the look-up until the row was written.
Otherwise another owner may have run the effect in between, and it is looked up again.

**What waits for a person stops its course.** After an effect was parked, no other effect of the same handler or run starts in
this attempt, whoever caught the error: the program, a framework, a tool. Each raises the same `ParkedError`, and an effect
around the parked one gets no outcome. Otherwise a caller that tries again would do under the next key what may be done.
So would a caller that gives up waiting: after the function of a `once` effect has ended without an outcome, because it was
cancelled or its ledger was gone, nothing that changes something starts in this attempt (`OpenWork.doubt`). The next one finds
out what was done.
Recorded outcomes are still returned, and effects that had started beside it record theirs.

An outcome that is too large for a row is cut and marked. The handler gets the stored value, as in a later run. A failure is
always recorded, however long its text is, because a `once` effect without an outcome would be parked. A `once` effect that
returned what cannot be stored has happened, so it is parked with what it returned, and did not fail.

**State** (`ActorState`) is never stored by itself. It is a fold over the messages of a thread, so a new actor, in this
process or the next, has the state of the old one. A snapshot only saves time; one of an older version is migrated step by
step.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, NoReturn, TypeAlias, TypeVar, cast

from pydantic import ValidationError

from antiphon import errors
from antiphon.errors import AppendConflictError
from antiphon.ledger import Fold, replay
from antiphon.messages import Json, Message, OptionCallPayload, OptionResultPayload, current_port, thaw
from antiphon.messages._keys import child_id, renamed
from antiphon.messages._unchecked import MUCH
from antiphon.runtime._points import Point, reached
from antiphon.runtime._reporting import EffectRun
from antiphon.runtime._rows import (
    attempted,
    begun,
    cut_result,
    effect_rows,
    ended,
    error_fields,
    error_of,
    error_text,
    is_withdrawn,
    says_the_same,
    stored_code,
    text_of,
)

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from antiphon.runtime._course import Course
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._reporting import Operation

Effects: TypeAlias = Literal["none", "idempotent", "once"]
Run: TypeAlias = Callable[[str], Awaitable[Json]]
"""Runs the effect. It gets an idempotency key, which is the same in every attempt."""
_MOST_WORDS = 2000
"""The maximum length of the stored reason why an outcome is unknown, in characters."""
_OWN = 2
"""The number of arguments of an intent that identify its effect."""
_MOST_READ = 64 * 1024
"""The number of characters of it that are searched for secrets."""
_MOST_SHOWN = 500
"""The maximum length of a result that cannot be stored, as it is shown to a person, in characters."""
Park: TypeAlias = Callable[[str, dict[str, Json]], Awaitable[None]]
"""Parks the current work, with a reason and evidence."""


ReturnT = TypeVar("ReturnT")


class GivenUp(Exception):  # noqa: N818 (raised by `run`, caught by the effect, never seen outside)
    """Raised in `run`: the effect has failed too often, and is parked for a person, whatever the value of `effects`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def check_function(key: str, run: object) -> None:
    """Refuse a function that cannot be called with an idempotency key: later, the error would be the outcome of the effect."""
    if not callable(run):
        raise TypeError(f"the function of effect {key!r} is a function of one argument, its key, not {run!r}")
    try:
        signature = inspect.signature(run)
    except ValueError:  # a function of C that does not tell its arguments
        return
    try:
        signature.bind("")
    except TypeError as exc:
        reason = f"the function of effect {key!r} is called with one argument, its key: {exc}"
        raise TypeError(f"{reason}. Nothing was recorded or started") from None


class Effect:
    """One effect of a handler or a run."""

    operation: Operation | None = None
    """Its description for an observer."""
    is_told: bool = True
    """Whether it is reported to an observer."""
    asked: Mapping[str, Json] = MappingProxyType({})
    """What its intent records of how it was asked for. It does not identify the effect."""

    def __init__(
        self,
        journal: Journal,
        course: Course,
        key: str,
        arguments: Mapping[str, Json],
        *,
        effects: Effects,
        park: Park,
        option: str | None = None,
        parent_id: str | None = None,
        forgiven: Collection[str] = (),
    ) -> None:
        """Make it.

        `option` is its name in rows, by default its key. `parent_id` is the call that caused it, by default the course.
        `forgiven` has the invocations whose failure is not final.
        """
        self.journal = journal
        self.course = course
        self.arguments = arguments
        self._option = option or key
        self._effects: Effects = effects
        self._park = park
        self._parent_id = parent_id or course.invocation_id
        self._forgiven = forgiven
        self._notes: tuple[str, ...] = ()
        """Those of the error of an effect in it: how a person can have that one made again."""
        self.thread_id = course.thread_id or ""
        self.evidence: dict[str, Json] = {}
        """What a person is shown of it, if it is parked, besides the reason."""
        self.id: str = child_id(course.invocation_id, course.next_key(key))
        """Its invocation."""
        self.key = self.id
        """The idempotency key that `run` gets. It stays when the effect is done again under another invocation: the receiver
        may have got it after all, from a process that was suspended right at the start."""
        self._epoch = 0
        """The epoch under which it was admitted."""
        self._around = _started.get()
        """The effect whose function asks for it, through whatever object of its run."""

    async def perform(self, run: Run) -> Any:
        """Run the effect, or return the recorded outcome.

        Raises:
            EffectFailedError: it raised, now or in an earlier run.
            RefusedError: it failed with a code of its own, now or in an earlier run.
            ParkedError: it is unknown whether the effect has happened, and it must not run twice.
            HistoryMismatchError: the thread has another effect under this id.
        """
        if self.journal.hooks is not None and self.is_told:
            effect = EffectRun(self._option, self._effects, self.arguments)
            run = self.journal.hooks.effect(self.course, effect, run, self.operation)
        self.course.wait(1)
        try:
            return await (run(current_port().new_id()) if self.course.thread_id is None else self._perform(run))
        finally:
            self.course.wait(-1)

    async def _perform(self, run: Run) -> Any:
        await self.check_order()
        while True:
            self._check_at_work()
            epoch = await self.journal.own(self.thread_id)
            with self._noting_cancelled():
                intent, outcome = await self._find_recorded() if self._may_be_recorded() else (None, None)
            if outcome is not None:
                if self.operation is not None and self.journal.hooks is not None:
                    self.journal.hooks.replayed()
                return _value(outcome, self.course.to)
            if intent is not None and self._effects == "once":
                reason = f"nobody knows whether {self.shown_name!r} was done, and it must not be done twice"
                return await self._end(run, intent, await self._unknown(reason))
            if intent is not None:
                with self._noting_parked():
                    await self.check_parked()
            intent = await self._admitted(intent)
            # The same epoch before the look-up and after the row: nobody else can have run the effect in between. Otherwise
            # look up again; a `once` effect that another owner has started is then parked, and does not run twice.
            if self.journal.epoch(self.thread_id) == epoch:
                self._epoch = epoch
                await self.confirm()
                return await self._run(run, intent)

    async def confirm(self) -> None:
        """Check, right before a start, that this process still owns the thread. Nothing may await between this and the start.

        `perform` does it before it calls `run`. A `run` that awaits before it starts something starts it through `confirmed`.

        Raises:
            FencedError: another host has the thread.
            WithdrawnError: its handler or its run has ended.
            LedgerError: the lease cannot be renewed.
        """
        reached(Point.STARTING, self.thread_id, self.id)
        await self.journal.confirm(self.thread_id, self._epoch)
        self._check_at_work()  # a handler that still runs under an old epoch must not start the new owner's effects
        reached(Point.STARTED, self.thread_id, self.id)

    def may_start(self) -> bool:
        """Whether it may start at this moment, in any thread. If not, `confirm` finds out why."""
        reached(Point.STARTING, self.thread_id, self.id)
        is_ended = self.course.is_over or self.course.evicted is not None
        if is_ended or not self.journal.is_confirmed(self.thread_id, self._epoch):
            return False
        reached(Point.STARTED, self.thread_id, self.id)
        return True

    # ------------------------------------------------------------ what subclasses may override

    @property
    def shown_name(self) -> str:
        """Its name in texts for people."""
        return self._option

    async def check_order(self) -> None:
        """Refuse the effect, if its course has recorded another one at this place."""

    async def begin(self) -> Message:
        """Append the intent, and return it."""
        intent = self.intent()
        await self.journal.write(self.thread_id, [intent])
        return intent

    async def end(self, outcome: Message) -> Message:
        """Append the outcome, and return the row as it is stored."""
        (record,) = await self.journal.write(self.thread_id, [outcome])
        return record.message

    def is_same(self, intent: Message) -> bool:
        """Whether a recorded intent belongs to this effect."""
        payload = intent.payload
        if isinstance(payload, OptionCallPayload) and len(payload.arguments) > _OWN:
            self.asked = {name: value for name, value in payload.arguments.items() if name not in ("effects", "arguments")}
        else:
            self.asked = {}
        return says_the_same(payload, self.intent().payload)

    async def counts(self, intent: Message, outcome: OptionResultPayload | None) -> bool:
        """Whether the recorded effect under this id counts as this one. If not, this effect has taken another id."""
        if self.is_same(intent):
            return True
        reason = f"the handler does {self._option!r} otherwise than thread {self.thread_id!r} says, in {self.id!r}"
        raise errors.HistoryMismatchError(reason, self.course.to)

    def skip(self) -> None:
        """Take the next invocation: what was recorded under this one does not count. Its receiver gets the same key."""
        self.id = renamed(self.id)

    def intent(self, arguments: Mapping[str, Json] | None = None) -> Message:
        """Return the intent; `arguments` are added to those that identify the effect.

        Raises:
            TypeError: the arguments cannot be stored.
        """
        values = self.arguments if arguments is None else arguments
        try:
            return begun(
                self._option,
                self.id,
                thread_id=self.thread_id,
                parent_id=self._parent_id,
                arguments={"effects": self._effects, "arguments": values, **self.asked},
                policy=self.course.to,
            )
        except ValidationError as exc:
            reason = f"the arguments of effect {self.shown_name!r} cannot be stored: {_first_problem(exc)}"
            raise TypeError(f"{reason}. Nothing was recorded or started") from None

    async def unknown(self, reason: str) -> Message:
        """Return the outcome of a `once` effect that may have happened, if it can be determined; otherwise park the effect.

        Raises:
            ParkedError: a person must record the outcome.
        """
        return await self.parked(reason)

    async def parked(self, reason: str) -> NoReturn:
        """Park it.

        Raises:
            ParkedError: always.
        """
        await self._park(reason, {"effect": self.id, "option": self._option, **self.evidence})
        raise errors.ParkedError(reason, self.course.to)

    async def check_parked(self) -> None:
        """Refuse another attempt of an effect that waits for a person. An effect of a handler waits with its message."""

    def outcome(self, **outcome: Any) -> Message:
        """Return the row of the outcome."""
        return ended(
            self._option, self.id, thread_id=self.thread_id, parent_id=self._parent_id, policy=self._option, **outcome
        )

    # ------------------------------------------------------------ common to all effects

    def _may_be_recorded(self) -> bool:
        """Whether the ledger may have rows of it. The thread is owned, so no other process starts it meanwhile."""
        return self.journal.has_had_owners(self.thread_id) or self.course.attempt > 1

    def _check_at_work(self) -> None:
        """Refuse to start what is not wanted any more. The new owner, or the next attempt, does the same work.

        A handler or a run that has ended may have left the task behind that asks for the effect.
        """
        if self.course.evicted is not None:
            raise errors.FencedError(*self.course.evicted.args)
        if self.course.is_over:
            reason = f"the work that asked for {self.shown_name!r} has ended: nothing more of it starts. Await its tasks in it"
            raise errors.WithdrawnError(reason, self.course.to)

    async def _find_recorded(self) -> tuple[Message | None, OptionResultPayload | None]:
        """Return the recorded intent and outcome; of the last attempt, if there were several."""
        intent, outcome = await self._recorded()
        while outcome is not None and outcome.is_error:
            does_count = not is_withdrawn(outcome) and self.id not in self._forgiven
            last = self.id, intent, outcome
            self.skip()
            intent, outcome = await self._recorded()
            if intent is None and does_count:
                self.id, intent, outcome = last
                break
        return intent, outcome

    async def _recorded(self) -> tuple[Message | None, OptionResultPayload | None]:
        await self.journal.settle(self.thread_id)  # an outcome may still wait to be written
        while True:
            rows = [row.message for row in await effect_rows(self.journal.ledger, self.thread_id, self.id)]
            if not rows:
                return None, None
            last = rows[-1].payload if len(rows) > 1 else None
            outcome = last if isinstance(last, OptionResultPayload) else None
            if await self.counts(rows[0], outcome):
                return rows[0], outcome

    async def _admitted(self, intent: Message | None) -> Message:
        """Append the intent, or the row of another attempt, as soon as the thread admits new effects."""
        self._check_course()
        async with self.journal.admit(self.thread_id):
            self._check_course()  # it may have waited
            reached(Point.INTENT_SENT, self.thread_id, self.id)
            if intent is None:
                intent = await self.begin()
            else:
                await self._write_attempt(None)
            reached(Point.INTENT_STORED, self.thread_id, self.id)
        return intent

    def _check_course(self) -> None:
        """Refuse to start while another effect of the handler or run waits for a person."""
        if (doubt := self.course.work.doubt) is not None and self._effects != "none":
            self._note_parked(doubt)
        if (parked := self.course.work.parked) is not None:
            raise errors.ParkedError(parked.reason, parked.address)

    @contextmanager
    def _noting_parked(self) -> Generator[None, None, None]:
        try:
            yield
        except errors.ParkedError as exc:
            self._note_parked(exc)
            raise

    @contextmanager
    def _noting_cancelled(self) -> Generator[None, None, None]:
        """A caller that gives up before it is known whether an earlier attempt has done the effect leaves the same doubt."""
        try:
            yield
        except asyncio.CancelledError as exc:
            self._note_open(exc)
            raise

    def _note_parked(self, error: errors.ParkedError) -> None:
        """Let nothing more of its course start, and leave the effects around it without an outcome."""
        inside, around = [*self.course.inside], self._around
        while around is not None:
            inside.append(around.id)
            around = around._around
        self.course.work.note_parked(error, inside)

    def _note_open(self, error: BaseException) -> None:
        """Note that its function has ended without an outcome. A caller that catches the error does not know it."""
        if isinstance(error, errors.ParkedError) and not isinstance(error, errors.StoppedError):
            self._note_parked(error)  # of another run, or of an actor that it has asked
        elif self._effects == "once":
            end = "was cancelled" if isinstance(error, asyncio.CancelledError) else f"ended with {type(error).__name__}"
            reason = f"{self.shown_name!r} {end}, and must not be done twice: start again to find out whether it was done"
            self.course.work.note_doubt(errors.ParkedError(reason, self.course.to))

    async def _unknown(self, reason: str) -> Message:
        with self._noting_parked(), self._noting_cancelled():
            return await self.unknown(reason)

    async def _write_attempt(self, failure: str | None) -> None:
        records = await self.journal.ledger.find(correlation_id=self.id, thread_id=self.thread_id)
        number = 2 + sum(record.message.lane == "effect" for record in records)
        row = attempted(self.id, number, thread_id=self.thread_id, policy=self.course.to, failure=failure)
        await self.journal.write(self.thread_id, [row])  # before the start: see "Every start follows a row" above

    async def begin_after(self, failure: str) -> None:
        """Append the row of another attempt, in `run`, after an attempt that failed and may be repeated.

        Raises:
            FencedError: another process has the thread.
            LedgerError: it could not be stored.
        """
        async with self.journal.admit(self.thread_id):
            await self._write_attempt(failure)
        await self.confirm()

    async def _run(self, run: Run, intent: Message) -> Any:
        self.course.work.open_effects += (intent,)  # if the handler ends first, the intent is ended with it
        started = _started.set(self)
        try:
            outcome = await self._recordable(await self._call(run), intent)
        except asyncio.CancelledError as exc:
            self._note_open(exc)
            if not isinstance(exc, FinishedLateError):
                raise
            await self._end_late(exc.work, intent)
            raise asyncio.CancelledError from None
        except GivenUp as exc:
            self._is_no_longer_open(intent)  # it is parked, and must not be parked or ended again with the handler
            with self._noting_parked():
                await self.parked(exc.reason)
        except errors.UnknownOutcomeError as exc:
            if self._effects == "once":
                self._is_no_longer_open(intent)  # it is parked, or has an outcome
                reason = f"nobody knows whether {self.shown_name!r} was done: {text_of(exc)[:_MOST_WORDS]}"
                outcome = await self._unknown(reason)
            else:
                outcome = self._error(text_of(exc), errors.EffectFailedError.code, retryable=True)
        # The second and third are of an effect in it, or of an actor that it has asked.
        except (errors.FailedError, errors.EffectFailedError, errors.RefusedError) as exc:
            self._notes = tuple(getattr(exc, "__notes__", ()))
            outcome = self._error(exc.reason, stored_code(exc), retryable=exc.retryable, details=exc.details)
        except (errors.DeliveryError, errors.LedgerError) as exc:
            self._note_open(exc)
            raise  # not an error of the effect: the intent stays open, and the handler gets the error
        except Exception as exc:  # noqa: BLE001 (its outcome; `_end` raises it as an EffectFailedError)
            outcome = self._failure(exc)
        except BaseException as exc:  # such as SystemExit
            self._note_open(exc)
            raise
        finally:
            _started.reset(started)
        return await self._end(run, intent, outcome)

    async def _call(self, run: Run) -> Json:
        """Run the function. If an effect in it was parked, this one has no outcome, whatever the function makes of that."""
        try:
            returned = await run(self.key)
        except Exception as exc:
            if self.id in self.course.work.parked_in and not isinstance(exc, errors.ParkedError | errors.LedgerError):
                self._check_course()
            raise
        if self.id in self.course.work.parked_in:
            self._check_course()
        return returned

    async def _recordable(self, value: Json, intent: Message) -> Message:
        """Return the row of a result; if it cannot be stored, that of a failure, or park an effect that must not repeat."""
        try:
            return self._result(value)
        except ValidationError as exc:
            problem = _first_problem(exc)
        if self._effects != "once":
            return self._failure(TypeError(f"its result cannot be written down: {problem}"))
        self._is_no_longer_open(intent)
        self.evidence = {"returned": (returned := await self.shown(value))}
        reason = f"{self.shown_name!r} was done, and its result cannot be recorded ({problem})"
        return await self._unknown(f"{reason}: it returned {returned['value']}")

    async def shown(self, value: object) -> dict[str, Json]:
        """Return what a person needs to know of a value that cannot be stored: its type and its beginning, redacted."""
        try:
            text = repr(value)
        except Exception:  # noqa: BLE001 (a class of the program, and the value is only shown)
            text = "(its text cannot be read)"
        if (rules := await self.journal.redaction_of(self.thread_id)) is not None:
            text = rules.text(text[:_MOST_READ])  # before it is cut to what is shown, which could cut a secret in two
        return {"type": type(value).__qualname__, "value": text[:_MOST_SHOWN].encode(errors="replace").decode()}

    async def _end(self, run: Run, intent: Message, outcome: Message) -> Any:
        """Append the outcome and return its value; if a person has recorded that the effect did not happen, run it."""
        # It counts as open until the outcome is stored: if the append fails, the end of the handler must end or park this
        # effect.
        reached(Point.ENDED, self.thread_id, self.id)
        payload = (await self.end(outcome)).payload
        reached(Point.OUTCOME_QUEUED, self.thread_id, self.id)
        self._is_no_longer_open(intent)
        assert isinstance(payload, OptionResultPayload)  # noqa: S101 (it was made so)
        if is_withdrawn(payload):
            self.skip()
            return await self._perform(run)
        try:
            return _value(payload, self.course.to)
        except errors.DeliveryError as exc:
            for note in self._notes:
                exc.add_note(note)
            raise

    async def _end_late(self, work: asyncio.Future[Any], intent: Message) -> None:
        """Record the outcome of work that has ended although its caller was cancelled. The caller gets the cancellation."""
        if work.cancelled() or self.id in self.course.work.parked_in:
            return
        error = work.exception()
        if isinstance(error, (errors.DeliveryError, errors.LedgerError, NotConfirmedError)):
            return
        if error is None and isinstance(result := work.result(), Coroutine):
            result.close()  # it has not begun
            return
        try:
            outcome = self._result(work.result()) if error is None else self._failure(cast("Exception", error))
        except ValidationError:
            return  # the intent stays open, and is parked with its handler
        with suppress(errors.LedgerError):
            await asyncio.shield(asyncio.ensure_future(self.end(outcome)))
            self._is_no_longer_open(intent)

    def _is_no_longer_open(self, intent: Message) -> None:
        self.course.work.open_effects = tuple(row for row in self.course.work.open_effects if row is not intent)

    def _result(self, value: Json) -> Message:
        """Return the row of a result, cut if it is large. Most results are small, and are not measured."""
        try:
            outcome = self.outcome(result=value)
        except ValidationError:
            shorter = cut_result(value)
            if shorter is value:
                raise
            return self.outcome(result=shorter)
        if outcome.payload.__weight__() <= MUCH or (shorter := cut_result(value)) is value:
            return outcome
        return self.outcome(result=shorter)

    def _error(self, reason: str, code: str, *, retryable: bool, details: object = None) -> Message:
        """Return the row of a failure. It is recorded even if its details cannot be stored."""
        try:
            return self.outcome(**error_fields(reason, code, retryable=retryable, details=details))
        except ValidationError:
            return self.outcome(**error_fields(reason, code, retryable=retryable))

    def _failure(self, error: Exception) -> Message:
        retryable = bool(getattr(error, "retryable", False))
        return self._error(error_text(error), errors.EffectFailedError.code, retryable=retryable)


_started: ContextVar[Effect | None] = ContextVar("antiphon.runtime.started", default=None)
"""The effect that is being executed."""


async def confirmed(start: Callable[[], Awaitable[ReturnT]]) -> ReturnT:
    """Start something, right after a check that this process still owns the thread of the current effect.

    Whatever has waited since the check of the effect itself, for a slot, a server or a validation, starts its work through
    this. Work that starts in a thread checks again there (`start_confirmed`), and is confirmed again if it may not start.

    Raises:
        FencedError: another host has the thread.
        LedgerError: the lease cannot be renewed.
    """
    effect = _started.get()
    while True:
        if effect is not None:
            await effect.confirm()
        try:
            return await start()
        except NotConfirmedError:
            continue  # nothing has started


async def call_plain(function: Callable[..., ReturnT], *arguments: object) -> ReturnT:
    """Call a function that is not `async` in a thread, so that the event loop goes on while it works.

    A cancelled caller waits for its end: the function cannot be stopped, and its outcome must not be lost. In virtual time
    there are no threads.

    Raises:
        FencedError: another host has the thread.
        LedgerError: the lease cannot be renewed.
        FinishedLateError: the caller was cancelled; it has the outcome.
    """
    return await confirmed(partial(_in_thread, function, *arguments))


async def _in_thread(function: Callable[..., ReturnT], *arguments: object) -> ReturnT:
    loop = asyncio.get_running_loop()
    if getattr(loop, "is_virtual", False):
        return function(*arguments)
    work = loop.run_in_executor(_executor(), copy_context().run, partial(start_confirmed, function, *arguments))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        try:
            await asyncio.wait((work,))
        except asyncio.CancelledError:  # a second one: the program does not want to wait
            work.cancel()
            raise
        raise FinishedLateError(work) from None


def start_confirmed(function: Callable[..., ReturnT], *arguments: object, **named: object) -> ReturnT:
    """Call a function, if the current effect may start at this moment. It is called in the thread of the function.

    Raises:
        NotConfirmedError: it may not, or nobody knows.
    """
    effect = _started.get()
    if effect is not None and not effect.may_start():
        raise NotConfirmedError("the lease may have ended before the function started")
    try:
        return function(*arguments, **named)
    except StopIteration as exc:  # a future cannot hold it, and its caller would wait for ever
        raise RuntimeError("the function raised StopIteration") from exc


_THREADS = 64
"""Plain functions that run at once. Others wait for a thread."""


@cache
def _executor() -> Executor:
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 (most programs have no such function)

    return ThreadPoolExecutor(_THREADS, "antiphon-function")


os.register_at_fork(after_in_child=_executor.cache_clear)  # a child has none of the threads


class NotConfirmedError(Exception):
    """Raised in a thread instead of a start, and caught by `confirmed`."""


class FinishedLateError(asyncio.CancelledError):
    """Raised by a cancelled `run` whose work has ended all the same: the effect records the outcome, and is cancelled then."""

    def __init__(self, work: asyncio.Future[Any]) -> None:
        super().__init__()
        self.work = work


def _first_problem(error: ValidationError) -> str:
    return str(error.errors(include_input=False, include_url=False)[0]["msg"])


def _value(outcome: OptionResultPayload, address: str) -> Any:
    if outcome.is_error:
        raise error_of(outcome, address)
    return thaw(outcome.result)


# ---------------------------------------------------------------- state


StateT = TypeVar("StateT")


@dataclass(frozen=True)  # no slots: with slots, `ActorState[int](...)` raises before Python 3.13
class ActorState(Generic[StateT]):
    """A fold over the messages of a thread."""

    name: str
    initial: StateT
    step: Callable[[StateT, Message], StateT]
    """Returns the state after one more message; must be pure."""
    dump: Callable[[StateT], Json]
    load: Callable[[Any], StateT]
    version: int = 1
    """The version of the output of `dump`; increase it when that output changes."""
    migrations: Mapping[int, Callable[[Any], Any]] = field(default_factory=dict[int, Callable[[Any], Any]])
    """By version, the function that migrates a dump to the next version."""
    every: int = 100
    """The number of messages between two snapshots."""

    def fold(self) -> Fold[StateT]:
        """Return it as a `Fold`, which a ledger replays."""
        return Fold(self.name, self.initial, self.step, self._dump, self._load)

    def _dump(self, state: StateT) -> Json:
        return {"version": self.version, "state": self.dump(state)}

    def _load(self, stored: Json) -> StateT:
        """Read a snapshot.

        Raises:
            ValueError: it has a later version, or there is no migration path from its version to this one.
        """
        form: Any = thaw(stored)
        version, state = form["version"], form["state"]
        if version > self.version:
            raise ValueError(f"the snapshot of {self.name!r} is of version {version}, later than {self.version}")
        for number in range(version, self.version):
            if number not in self.migrations:
                raise ValueError(f"there is no migration of {self.name!r} from version {number} to {number + 1}")
            state = self.migrations[number](state)
        return self.load(state)


class States:
    """A cache of the states of threads, so that each message is folded once."""

    def __init__(self, journal: Journal, limit: int = 1000) -> None:
        self._journal = journal
        self._limit = limit
        self._known: dict[tuple[str, str], tuple[int, Any]] = {}

    async def get(self, thread_id: str, upto: int, state: ActorState[StateT]) -> StateT:
        """Return the state of a thread, up to and including a message."""
        key = (thread_id, state.name)
        # The state is removed and put back: two concurrent reads then fold twice, but never store a half-folded state.
        cached: tuple[int, StateT] = self._known.pop(key, (0, state.initial))
        seq, value = cached
        if not 0 < seq <= upto:
            value = await replay(self._journal.ledger, thread_id, state.fold(), upto=upto)
        else:
            async for record in self._journal.ledger.read(thread_id, seq, upto + 1):
                value = state.step(value, record.message)
        self._known[key] = (upto, value)
        if len(self._known) > self._limit:
            del self._known[next(iter(self._known))]
        if upto // state.every > seq // state.every:
            await self._keep(thread_id, upto, state, value)
        return value

    def forget(self, thread_id: str) -> None:
        """Drop the states of a thread that another host owns."""
        for key in [key for key in self._known if key[0] == thread_id]:
            del self._known[key]

    async def _keep(self, thread_id: str, upto: int, state: ActorState[StateT], value: StateT) -> None:
        """Make a snapshot, unless the thread has grown meanwhile: then the next snapshot is early enough."""
        with suppress(AppendConflictError):
            await self._journal.write(thread_id, (), expected_version=upto, snapshot=state.fold().snapshot(value))
