"""Cell: the place at an address where an actor lives. It keeps the mailbox, runs the handlers, and outlives the actor.

**Nothing while idle.** A cell has no task until a message comes. Then a task, the drain, handles messages until none is
left, and ends. There are at most `concurrency` drains; each handles one message at a time. The actor is made for the first
message; one that supervises others is made with its first child, because it may have to watch that one.

**States.** A cell is *active*; *suspended* from a failure until its supervisor has decided, while messages wait;
*stopped* for good; or *resting*: nobody needed it, the system has let go of it, and the next message is given to a new one.
A restart drops the actor and makes a new one from the factory; the mailbox stays.

**The order of a message.** The handler runs; its outcome is journaled, if the message is of a thread; then whoever
waits gets it. A crash between two of these leaves the call open in the ledger, and recovery delivers it again.

**Who is to blame.** This is the only place that catches `BaseException`, and only from a handler. An error of delivery
is an answer. A cancellation that somebody asked of the drain (`task.cancelling()` counts them) is the end of one
message that nobody wants any more, or the end of the drain. Everything else is a failure of the actor, whatever its
class.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from antiphon.errors import (
    ActorStoppedError,
    DeliveryError,
    FencedError,
    LedgerUnavailableError,
    RefusedError,
    ReplyTimeoutError,
)
from antiphon.protocol import ErrorCode
from antiphon.runtime._context import Context
from antiphon.runtime._failure import Failure
from antiphon.runtime._handling import Handling
from antiphon.runtime._lifecycle import resume
from antiphon.runtime._logs import LOG, about, words
from antiphon.runtime._mailbox import Mailbox
from antiphon.runtime._results import result_of

if TYPE_CHECKING:
    from antiphon.protocol import Notice, Request
    from antiphon.runtime._actor import Actor, Handler
    from antiphon.runtime._envelope import Envelope
    from antiphon.runtime._kernel import Kernel
    from antiphon.runtime._props import Props

__all__ = ["Cell"]

State: TypeAlias = Literal["active", "suspended", "stopped", "resting"]

_LATE = "it would come too late: others wait"

_FRESH = 5.0
"""Seconds for which it is believed that a message takes as long as the last ones did."""

_PAUSE = 1.0
"""Seconds to wait for a ledger that cannot be used."""

_TURN = 64
"""How many messages a drain handles before it lets others have a turn."""


class _BeginError(Exception):
    """The actor could not be made or begun. It is not the fault of the message that came next."""


class Cell:
    """The place where an actor lives."""

    __slots__ = (
        "actor",
        "address",
        "began",
        "beginning",
        "drains",
        "has_failed",
        "held",
        "incarnation",
        "kernel",
        "mailbox",
        "measured",
        "props",
        "state",
        "usual",
        "wants_rest",
    )

    def __init__(self, kernel: Kernel, address: str, props: Props) -> None:
        self.kernel = kernel
        self.address = address
        self.props = props
        self.state: State = "active"
        self.actor: Actor | None = None
        self.mailbox: Mailbox | None = None
        self.drains: dict[asyncio.Task[None], Envelope | None] | None = None
        """The tasks that handle messages, and what each handles at present."""
        self.beginning: asyncio.Lock | None = None
        """Held while the actor is made and begins, so that there is only one of it."""
        self.has_failed = False
        """Whether the actor is there only until its supervisor has decided."""
        self.held = 0
        """How many have a message for it that is not in the mailbox yet: it must stay, or there would be two of it."""
        self.wants_rest = False
        """Whether the actor has nothing left to do, and need not be kept once it is idle."""
        self.incarnation = 1
        """Which actor this is, counted from 1."""
        self.began = kernel.loop.time()
        self.usual = 0.0
        """Seconds that it has taken to handle a message of late."""
        self.measured = self.began
        """When the last one was handled."""

    @property
    def box(self) -> Mailbox:
        """The mailbox, made for the first message."""
        if self.mailbox is None:
            self.mailbox = Mailbox(self.props.capacity, is_keyed=self.props.concurrency > 1)
        return self.mailbox

    @property
    def load(self) -> float:
        """How full the mailbox is, from 0 to 1."""
        return 0.0 if self.mailbox is None else min(1.0, self.mailbox.waiting / self.props.capacity)

    @property
    def is_untouched(self) -> bool:
        """Whether no message has ever come."""
        return self.mailbox is None and self.actor is None and not self.kernel.tree.children(self.address)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do, nobody is about to give it something, and nobody depends on it."""
        has_work = bool(self.drains) or not (self.mailbox is None or self.mailbox.is_idle)
        return not (has_work or self.held or self.has_failed or self.kernel.tree.children(self.address))

    @property
    def is_waiting(self) -> bool:
        """Whether everything that it handles waits for an answer or an effect, each of which has its own time limit."""
        handled = (self.drains or {}).values()
        return bool(handled) and all(envelope is not None and envelope.waits for envelope in handled)

    def begin_early(self) -> None:
        """Have the actor made without a message, if there is none."""
        if self.actor is None and self.beginning is None and self.state == "active":
            self.beginning = asyncio.Lock()  # at once: more children may follow before it runs
            self.kernel.start(self._begin_or_fail())

    def wake(self) -> None:
        """Have messages handled that were put into the mailbox."""
        drains = self.drains
        if drains is None:
            drains = self.drains = {}
        if len(drains) < self.props.concurrency and self.state == "active":
            # Made directly: a task factory that starts tasks at once would run the handler inside its sender.
            context = self.kernel.context.copy()
            task = asyncio.Task(self._drain(drains), loop=self.kernel.loop, name=self.address, context=context)
            drains[task] = None

    def withdraw(self, envelope: Envelope) -> None:
        """Stop handling a message that nobody wants any more."""
        if envelope.task is not None:
            self.kernel.loop.call_soon(_cancel, envelope)  # not at once: the handler itself may be the one that asks for it

    # ------------------------------------------------------------ handling

    async def _drain(self, drains: dict[asyncio.Task[None], Envelope | None]) -> None:
        task = asyncio.current_task()
        mailbox = self.mailbox
        assert task is not None and mailbox is not None  # noqa: S101, PT018 (made by wake)
        handled, incarnation, was_used = 0, self.incarnation, False
        try:
            while self.state == "active" and self.incarnation == incarnation and (envelope := mailbox.next()) is not None:
                drains[task] = envelope
                await self._handle(envelope, task)
                drains[task] = None
                mailbox.done(envelope)
                was_used = was_used or not envelope.is_urgent
                handled += 1
                if handled % _TURN == 0:
                    await asyncio.sleep(0)
        finally:
            del drains[task]
            if not drains and self.drains is drains:
                self.drains = None  # an idle actor keeps next to nothing
        if self.incarnation != incarnation:
            self.wake()  # what waited for this message is for the next actor's drains, which may have ended
        elif self.props.may_rest and self.drains is None:
            self.kernel.rests.idle(self, was_used=was_used)

    async def _handle(self, envelope: Envelope, task: asyncio.Task[None]) -> None:
        began = self.kernel.loop.time()
        if envelope.withdrawn is not None or self._is_too_late(envelope, began):
            await self.kernel.post.put_away(envelope, envelope.withdrawn or ReplyTimeoutError(_LATE, self.address))
            return
        envelope.task = task
        try:
            hooks, running = self.kernel.hooks, self.run(envelope, Context(self, envelope))
            outcome = await (running if hooks is None else hooks.run(self, envelope, running))
            envelope.task = None  # what it came to is being written down, which nobody may stop half way
            if envelope.is_left:
                raise asyncio.CancelledError  # noqa: TRY301 (its handler has gone on without what it waited for)
            if not envelope.is_settled:
                if envelope.thread_id is None:
                    envelope.settle(outcome)
                else:
                    await self.kernel.post.answer(envelope, outcome)
            self._measure(began)
        except BaseException as exc:  # noqa: BLE001 (what a handler raised: see above)
            envelope.task = None
            await self._caught(envelope, exc, task)
        finally:
            envelope.task = None
            if envelope.was_cancelled:
                envelope.was_cancelled = False
                task.uncancel()

    def _measure(self, began: float) -> None:
        self.measured = self.kernel.loop.time()
        self.usual += (self.measured - began - self.usual) / 4

    def _is_too_late(self, envelope: Envelope, now: float) -> bool:
        """Whether a message cannot be handled in time while others wait that may.

        Without this, an actor under overload would spend all its time on messages that are given up half way.
        """
        if envelope.deadline is None or self.mailbox is None or not self.mailbox.waiting:
            return False
        return envelope.deadline - now < self.usual and now - self.measured < _FRESH

    async def run(self, envelope: Envelope, context: Context) -> Any:
        """Have the actor handle a message; return a `Reply`, a message with a result, or None."""
        with Handling(context):
            return await self._run(envelope, context)

    async def _run(self, envelope: Envelope, context: Context) -> Any:
        actor = self.actor
        if actor is None:
            actor = await self._begin()
        said = envelope.said
        handler = actor.handlers.get(envelope.type if said is None else type(said))
        if handler is None:
            outcome = await actor.hear(envelope.message, context)
            return result_of(envelope, outcome) if envelope.is_call and not context.is_answered else None
        outcome = await handler.method(actor, _read(handler, envelope) if said is None else said, context)
        if handler.reply is not None and not isinstance(outcome, handler.reply) and not context.is_answered:
            raise TypeError(f"{handler.method.__qualname__} returned {type(outcome).__name__}, not {handler.reply.__name__}")
        return outcome

    async def _begin(self) -> Actor:
        incarnation = self.incarnation
        lock = self.beginning = self.beginning or asyncio.Lock()
        async with lock:
            if self.actor is not None:
                return self.actor  # another drain has begun it
            try:
                actor = self.props.factory()
                context = Context(self, None)
                with Handling(context):
                    await actor.started(context)
            except Exception as exc:
                raise _BeginError from exc
            if self.incarnation == incarnation:  # else this one came too late
                self.actor, self.beginning = actor, None
            return actor

    async def _begin_or_fail(self) -> None:
        try:
            await self._begin()
        except _BeginError as exc:
            self.state, self.has_failed = "suspended", True
            self.kernel.care.report(self, Failure.of(exc.__cause__ or exc, self.address, self.incarnation, None))

    # ------------------------------------------------------------ what a handler raised

    async def _caught(self, envelope: Envelope, error: BaseException, task: asyncio.Task[None]) -> None:
        if isinstance(error, GeneratorExit) and not _is_current(task):
            raise error  # the event loop is gone, and this coroutine is being closed
        if envelope.is_left and not task.cancelling():
            await self.kernel.post.durable.leave(envelope, ActorStoppedError("the system ends", self.address))
        elif isinstance(error, asyncio.CancelledError) and task.cancelling():
            if envelope.withdrawn is None or not envelope.was_cancelled:
                raise error
            await self.kernel.post.put_away(envelope, envelope.withdrawn)
        elif isinstance(error, DeliveryError):
            await self._refuse(envelope, error)
        elif isinstance(error, FencedError):
            self.kernel.post.durable.let_go(envelope, error)
        elif isinstance(error, LedgerUnavailableError):
            self._wait_for_ledger(envelope, error)
        else:
            await self._fail(envelope, error)

    async def _refuse(self, envelope: Envelope, error: DeliveryError) -> None:
        try:
            await self.kernel.post.put_away(envelope, error)
        except ValueError as exc:  # what it says cannot be written down
            await self._fail(envelope, exc)

    def _wait_for_ledger(self, envelope: Envelope, error: LedgerUnavailableError) -> None:
        """Begin anew in a while: nobody is to blame, and nothing can be written down at present."""
        LOG.warning("%s waits for the ledger: %s", self.address, words(error), extra=about(envelope, error=error))
        self.state, self.actor = "suspended", None
        if envelope.thread_id is None or envelope.is_settled:
            envelope.fail(error)
        else:
            self.kernel.post.durable.again.put_back(self, envelope)
        self.kernel.start(self._go_on())

    async def _go_on(self) -> None:
        await asyncio.sleep(_PAUSE)
        if not self.has_failed:
            resume(self)

    async def _fail(self, envelope: Envelope, error: BaseException) -> None:
        self.state, self.has_failed = "suspended", True
        if isinstance(error, _BeginError):
            cause = error.__cause__ or error
            self.box.put_first(envelope)
            failure = Failure.of(cause, self.address, self.incarnation, None)
        else:
            failure = Failure.of(error, self.address, self.incarnation, envelope.id)
            await self.kernel.post.failed(envelope, f"{failure.error_type}: {failure.error_message}", error)
        self.kernel.care.report(self, failure)


def _read(handler: Handler, envelope: Envelope) -> Request[Any] | Notice:
    try:
        return handler.said.from_data(envelope.data)
    except ValueError as exc:
        raise RefusedError(str(exc), ErrorCode.VALIDATION_ERROR, address=envelope.to) from exc


def _is_current(task: asyncio.Task[None]) -> bool:
    try:
        return asyncio.current_task() is task
    except RuntimeError:
        return False


def _cancel(envelope: Envelope) -> None:
    if envelope.task is not None and not envelope.is_settled and not envelope.is_interrupted:
        envelope.was_cancelled = True
        envelope.task.cancel()
