"""Props: how an actor is made and looked after, shared by all actors that are made alike.

Mailbox: the messages that wait for an actor, in order, and the senders that wait for room.

Messages of the system come first, however full it is. Where an actor handles several messages at once, those of the
same thread (outside of threads: of the same sender) still follow each other: while one is handled, the next ones are
held back.

Cell: the place at an address where an actor lives. It keeps the mailbox, runs the handlers, and outlives the actor.

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
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from antiphon.errors import DeliveryError, FencedError, LedgerUnavailableError, RefusedError, ReplyTimeoutError
from antiphon.protocol import ErrorCode
from antiphon.runtime._actor import CAPACITY, Context
from antiphon.runtime._failures import LOG, Failure, about, words
from antiphon.runtime._results import result_of

if TYPE_CHECKING:
    from antiphon.messages import Message
    from antiphon.protocol import Notice, Request
    from antiphon.runtime._actor import Actor, Handler
    from antiphon.runtime._envelope import Envelope
    from antiphon.runtime._system import Kernel

RestartWhen: TypeAlias = Literal["permanent", "transient", "temporary"]
"""When an actor is begun anew after it has ended: always; only if it failed; never."""

OrderingKey: TypeAlias = "Callable[[Message], str | None]"
"""Says what a message must not be handled beside."""


@dataclass(frozen=True, slots=True)
class Props:
    """How an actor is made and looked after."""

    factory: Callable[[], Actor]
    supervisor: str
    restart: RestartWhen
    grace: float
    """How many seconds it may go on with what it is doing when it has to stop."""
    concurrency: int
    capacity: int
    ordering_key: OrderingKey | None = None
    """Where the class has one of its own."""
    may_rest: bool = False
    """Whether it is made anew when a message finds it missing, and so need not be kept."""


@lru_cache(maxsize=256)  # so that actors which are made alike share it
def props_of(
    factory: Callable[[], Actor],
    *,
    supervisor: str,
    restart: RestartWhen = "permanent",
    grace: float = 5.0,
    concurrency: int | None = None,
    capacity: int | None = None,
) -> Props:
    """Return how an actor is made; what is not said is what its class says, if the factory is one, or calls one."""
    made: Any = getattr(factory, "func", factory)  # of a partial, what it calls
    return Props(
        factory=factory,
        supervisor=supervisor,
        restart=restart,
        grace=grace,
        concurrency=getattr(made, "concurrency", 1) if concurrency is None else concurrency,
        capacity=getattr(made, "capacity", CAPACITY) if capacity is None else capacity,
        ordering_key=_own_ordering_key(made),
    )


def _own_ordering_key(made: Any) -> OrderingKey | None:
    """Return the ordering key of a class, unless it is the one that every actor has: that needs no message to be made."""
    found = getattr(made, "ordering_key", None)
    is_everybodys = getattr(found, "__module__", "") == "antiphon.runtime._actor"
    return None if found is None or is_everybodys else found


class Mailbox:
    """What waits for an actor. The queues are made when needed, and given back when they are empty."""

    __slots__ = ("_box", "_busy", "_capacity", "_holders", "_ready", "_senders", "_urgent", "waiting")

    def __init__(self, capacity: int, *, is_keyed: bool) -> None:
        self._capacity = capacity
        self.waiting = 0
        """How many messages have been taken in and not handed out, or have room taken for them; the system's apart."""
        self._box: deque[Envelope] | None = None
        self._urgent: deque[Envelope] | None = None
        self._senders: deque[asyncio.Future[None]] | None = None
        self._busy: dict[str, deque[Envelope]] | None = {} if is_keyed else None
        """By key, what waits for the message of that key that is being handled."""
        self._holders: dict[str, Envelope] | None = {} if is_keyed else None
        """By key, the message that is being handled."""
        self._ready: deque[str] = deque() if is_keyed else _NOTHING
        """Keys whose message was handled, and which have another."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, nothing is being handled, and nobody waits for room."""
        return not (self.waiting or self._urgent or self._holders or self._senders)

    def reserve(self) -> bool:
        """Take room for a message, if there is any and nobody waits for it."""
        if self.waiting >= self._capacity or self._senders:
            return False
        self.waiting += 1
        return True

    async def room(self) -> None:
        """Wait until there is room, and take it; whoever waits longest comes first."""
        if self._senders is None:
            self._senders = deque()
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._senders.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._senders:
                self._senders.remove(turn)
            elif turn.done() and not turn.cancelled():
                self.release()
            raise

    def release(self) -> None:
        """Give room back that is not needed: a message was handed out, or is not coming."""
        self.waiting -= 1
        while self._senders:
            turn = self._senders.popleft()
            if not turn.done():
                self.waiting += 1
                turn.set_result(None)
                break

    def put(self, envelope: Envelope) -> None:
        """Take a message in, behind those that wait. Room for it was taken before."""
        if self._box is None:
            self._box = deque()
        self._box.append(envelope)

    def offer(self, envelope: Envelope) -> bool:
        """Take a message in, if there is room and nobody waits for it; say whether that could be done."""
        if self.waiting >= self._capacity or self._senders:
            return False
        self.waiting += 1
        if self._box is None:
            self._box = deque((envelope,))
        else:
            self._box.append(envelope)
        return True

    def put_last(self, envelope: Envelope) -> None:
        """Take a message in that must not be refused, however full it is."""
        self.waiting += 1
        self.put(envelope)

    def put_first(self, envelope: Envelope) -> None:
        """Take a message back that was handed out, before all that wait."""
        held = None if self._busy is None else self._busy.get(envelope.key)
        if held is not None:
            held.appendleft(envelope)
        elif self._box is None:
            self._box = deque((envelope,))
        else:
            self._box.appendleft(envelope)
        self.waiting += 1

    def put_urgent(self, envelope: Envelope) -> None:
        """Take a message of the system in."""
        if self._urgent is None:
            self._urgent = deque()
        envelope.is_urgent = True
        self._urgent.append(envelope)

    def next(self) -> Envelope | None:
        """Hand out the next message that may be handled; None if there is none at present."""
        if self._urgent:
            return self._urgent.popleft()
        envelope = self._next_free() if self._busy is not None else self._box.popleft() if self._box else None
        if envelope is None:
            self._box = self._box or None
            self._urgent = None
            return None
        if self._senders:
            self.release()
        else:
            self.waiting -= 1
        return envelope

    def _next_free(self) -> Envelope | None:
        busy, holders = self._busy, self._holders
        assert busy is not None and holders is not None  # noqa: S101, PT018 (only asked where messages have keys)
        if self._ready:
            key = self._ready.popleft()
            envelope = holders[key] = busy[key].popleft()
            return envelope
        while self._box:
            envelope = self._box.popleft()
            if (held := busy.get(envelope.key)) is None:
                busy[envelope.key], holders[envelope.key] = deque(), envelope
                return envelope
            held.append(envelope)
        return None

    def done(self, envelope: Envelope) -> None:
        """Let the next message of the same thread or sender follow. To say it twice does no harm."""
        if self._busy is None or self._holders is None or self._holders.get(envelope.key) is not envelope:
            return
        del self._holders[envelope.key]
        if self._busy[envelope.key]:
            self._ready.append(envelope.key)
        else:
            del self._busy[envelope.key]

    def close(self) -> list[Envelope]:
        """Hand out everything at once, and let all senders go on."""
        held = [envelope for queue in (self._busy or {}).values() for envelope in queue]
        found = [*(self._urgent or ()), *held, *(self._box or ())]
        self._urgent = self._box = None
        self._ready.clear()
        if self._busy is not None:
            self._busy = {key: deque() for key in self._busy}
        self.waiting = 0
        while self._senders:
            self.release()
        return found


_NOTHING: deque[str] = deque(maxlen=0)


State: TypeAlias = Literal["active", "suspended", "stopped", "resting"]

_LATE = "it would come too late: others wait"

_FRESH = 5.0
"""Seconds for which it is believed that a message takes as long as the last ones did."""

_LEDGER_PAUSE = 1.0
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

    def suspend(self) -> None:
        """Begin with no further message."""
        if self.state == "active":
            self.state = "suspended"

    def resume(self) -> None:
        """Handle messages again."""
        if self.state == "suspended":
            self.state, self.has_failed = "active", False
            if self.mailbox is not None:
                for _ in range(min(self.props.concurrency, self.mailbox.waiting + 1)):
                    self.wake()
            if self.kernel.tree.children(self.address):
                self.begin_early()

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
                await actor.started(Context(self, None))
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
        if isinstance(error, asyncio.CancelledError) and task.cancelling():
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
        await asyncio.sleep(_LEDGER_PAUSE)
        if not self.has_failed:
            self.resume()

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
