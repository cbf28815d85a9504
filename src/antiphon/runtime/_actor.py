"""Actor: the base class of user actors, and `Context`, with which handlers send messages, run effects and reach the system.

**Actor.** A class with a method for each type of message that it handles.

| what is sent | what runs |
|---|---|
| a request or notice that has a handler | the handler, with the request |
| a core message with the type of such a request or notice | the handler, after the data was validated |
| anything else | `hear`, with the core message |
| anything else, if `hear` is not overridden | `receive`, with the protocol's message; by default an error: unknown type |

**Context.** Everything that a handler sends follows from the message that it handles: it inherits the thread, the exchange,
the deadline and the hop count. A deadline can only become shorter. Each message gets a context, which has only the cell and
the delivery. `Services` has the parts of the system that contexts need; all contexts of a system share it. Its fields are
protocols: the parts that implement them import this file. So the import graph has no cycle, and the protocols say exactly what
a handler can reach.

**`begin_handling`** sets the context of the message that is being handled, for code without a context parameter:
`Actor.context`, `send_message`. It is a context variable and not an attribute of the actor, because an actor may handle
several messages at once, each in its own task. A task that a handler starts inherits the variable and may outlive the handler.
So a context ends with its handler, and messages that such a task sends later count as sent from outside.

`Lifetime` is the event loop of a system, its background tasks, and whether it is closing.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar, Token, copy_context
from dataclasses import dataclass
from functools import lru_cache, partial
from types import FunctionType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    overload,
)
from weakref import WeakSet

from antiphon.errors import AntiphonError, DeliveryError, WithdrawnError
from antiphon.messages import Json, JsonObject, Message, OptionResultPayload
from antiphon.messages._arguments import check_type
from antiphon.protocol import ErrorCode, Heartbeat, HeartbeatResponse, Notice, Reply, Request, Response, Retry
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._course import Handling
from antiphon.runtime._delivery import DeliveryState, Envelope
from antiphon.runtime._effects import Effect, Effects, Run, check_function
from antiphon.runtime._exchange import (
    accepted,
    answer_to,
    inside,
    message_of,
    outside,
    response_to,
    response_type,
    sent_inside,
    to_wire,
)
from antiphon.runtime._reporting import report_own_failure

if TYPE_CHECKING:
    from datetime import datetime

    from antiphon.errors import ParkedError
    from antiphon.ledger import Ledger
    from antiphon.runtime._course import Course
    from antiphon.runtime._delivery import OrderingKey
    from antiphon.runtime._effects import ActorState, States
    from antiphon.runtime._exchange import StoredIds
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._reporting import Operation
    from antiphon.runtime._settings import Address, RestartWhen, Supervision


class Lifetime:
    """The event loop of a system, its background tasks, and whether it is closing."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = copy_context()
        """The context variables of handlers: they see the port of the system, and not the variables of their sender."""
        self.failure: AntiphonError | None = None
        """Why the whole system has failed."""
        self._owner = asyncio.current_task()
        self._tasks: dict[asyncio.Task[None], None] = {}
        """Background tasks: decisions, commands, heartbeats."""
        self._closing_since: float | None = None

    def open(self) -> None:
        """Register the system, so that a signal closes it gracefully."""
        OPEN.add(self)

    def begin_closing(self) -> None:
        """Start no more work. From now on, cancelled messages of threads stay open for the next system."""
        if self._closing_since is None:
            self._closing_since = self.loop.time()

    @property
    def is_closing(self) -> bool:
        """Whether the system is closing."""
        return self._closing_since is not None

    def remaining_grace(self, grace: float) -> float:
        """Return the remaining grace of an actor.

        When the system closes, the grace of all actors starts at the same moment.
        """
        return grace if self._closing_since is None else max(0.0, self._closing_since + grace - self.loop.time())

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a background task until it ends, or the system closes."""
        task = self.loop.create_task(work, context=self.context.copy())
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            report_own_failure(error)

    def fail_system(self, failure: AntiphonError) -> None:
        """Fail the whole system: the root supervisor has given up."""
        if self.failure is None:
            self.failure = failure
            if self._owner is not None:
                self._owner.cancel()

    def forget(self) -> None:
        """Ignore signals from now on. This needs no event loop, because the loop may be closed."""
        OPEN.discard(self)

    async def close(self) -> None:
        """Cancel the background tasks and wait for them, including tasks that a cancelled task has started."""
        self.forget()
        while tasks := tuple(self._tasks):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


OPEN: WeakSet[Lifetime] = WeakSet()
"""The open systems, of all event loops."""


# ---------------------------------------------------------------- shared by all contexts


ReplyT = TypeVar("ReplyT", bound=Reply)


class Receiver(Protocol):
    """An actor as others see it."""

    async def receive(self, message: WireMessage, *, within: float | None = None) -> Response: ...


class ActorSystem(Protocol):
    """The system of an actor, as its handlers see it.

    Messages sent with `ask` and `tell` follow from no message. Messages sent with `send_message`, or to an actor from
    `get_actor`, follow from the handled message.
    """

    @property
    def ledger(self) -> Ledger: ...

    @overload
    async def ask(
        self,
        to: str,
        said: Request[ReplyT],
        *,
        within: float | None = None,
        thread_id: str | None = None,
        sender: str = "client",
        id: str | None = None,
    ) -> ReplyT: ...
    @overload
    async def ask(
        self,
        to: str,
        said: Message,
        *,
        within: float | None = None,
        thread_id: str | None = None,
        sender: str = "client",
        id: str | None = None,
    ) -> Message: ...

    async def tell(
        self,
        to: str,
        said: Request[Any] | Notice | Message,
        *,
        within: float | None = None,
        thread_id: str | None = None,
        sender: str = "client",
        id: str | None = None,
    ) -> None: ...

    async def send_message(self, message: WireMessage, *, within: float | None = None) -> Response: ...

    async def get_actor(self, address: str) -> Receiver: ...

    def spawn(
        self,
        address: str,
        factory: Callable[[], Any],
        *,
        supervisor: str | Supervision = ...,
        restart: RestartWhen = "permanent",
        grace: float = 5.0,
        concurrency: int | None = None,
        capacity: int | None = None,
    ) -> Address: ...

    def register(
        self,
        kind: str,
        factory: Callable[[], Any],
        *,
        supervisor: str | Supervision = ...,
        restart: RestartWhen = "permanent",
        grace: float = 5.0,
        concurrency: int | None = None,
        capacity: int | None = None,
    ) -> None: ...

    def supervise(self, address: str, supervision: Supervision, *, supervisor: str = ...) -> Address: ...


class Messenger(Protocol):
    """Carries messages to actors."""

    async def ask(self, delivery: DeliveryState, within: float | None) -> Any: ...
    async def tell(self, delivery: DeliveryState, within: float | None) -> None: ...
    async def work_out(self, delivery: DeliveryState, handle: Callable[[DeliveryState], Awaitable[Any]]) -> Any: ...
    async def forward(self, delivery: DeliveryState, to: str) -> None: ...
    async def original(self, request: Retry, thread_id: str | None) -> Message: ...
    def knows(self, address: str) -> bool: ...


class Ends(Protocol):
    """Ends messages, or leaves them open."""

    async def answer(self, delivery: DeliveryState, outcome: Any) -> None: ...
    def leave_open(self, delivery: DeliveryState, error: AntiphonError) -> None: ...


class Parking(Protocol):
    """Parks messages until a person settles them."""

    async def park(self, delivery: DeliveryState, reason: str, evidence: dict[str, Json]) -> None: ...


class Reminders(Protocol):
    """Sets timers."""

    async def set(
        self, delivery: DeliveryState, address: str, after: float | datetime, notice: Notice, key: str | None
    ) -> None: ...


class Ties(Protocol):
    """Manages monitors and links."""

    def monitor(self, watcher: str, watched: str) -> None: ...
    def link(self, one: str, other: str) -> None: ...


class OpenWork(Protocol):
    """Delivers the open messages of threads."""

    async def thread(self, thread_id: str, *, is_resumed: bool = False) -> object: ...
    async def message(self, thread_id: str, invocation_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """The parts of a system that its contexts use."""

    system: ActorSystem
    lifetime: Lifetime
    journal: Journal
    states: States
    stored_ids: StoredIds
    messenger: Messenger
    outcomes: Ends
    parking: Parking
    reminders: Reminders
    ties: Ties
    open_work: OpenWork


# ---------------------------------------------------------------- the parameter of handlers


StateT = TypeVar("StateT")
AnswerT = TypeVar("AnswerT")


class HasServices(Protocol):
    """What the cells of a system share."""

    @property
    def services(self) -> Services: ...


class Home(Protocol):
    """The cell that an actor lives in."""

    @property
    def address(self) -> str: ...
    @property
    def parts(self) -> HasServices: ...
    def load(self, besides: DeliveryState | None) -> float: ...
    @property
    def began(self) -> float: ...
    @property
    def actor(self) -> object: ...

    wants_rest: bool

    async def run(self, delivery: DeliveryState, context: Context) -> Any: ...
    async def run_at_once(self, delivery: DeliveryState) -> Any: ...
    def stop_after_message(self, reason: str) -> None: ...


class Context:
    """A handler's view of the system, for one message.

    Whatever reads or writes a thread raises `LedgerError` if the ledger refuses, or cannot be used.
    """

    __slots__ = ("__weakref__", "_cell", "_delivery", "_services", "is_over")

    def __init__(self, cell: Home, delivery: DeliveryState | None) -> None:
        self._cell = cell
        self._services = cell.parts.services
        self._delivery = delivery
        self.is_over = False
        """Whether the handler has ended."""

    # ------------------------------------------------------------ properties

    @property
    def system(self) -> ActorSystem:
        return self._services.system

    @property
    def ledger(self) -> Ledger:
        return self._services.system.ledger

    @property
    def journal(self) -> Journal:
        """The journal of the system, for subclasses of `Effect`."""
        return self._services.journal

    @property
    def is_closing(self) -> bool:
        """Whether the system is closing: unfinished work of threads is left to the next system."""
        return self._services.lifetime.is_closing

    def knows(self, address: str) -> bool:
        """Whether there is an actor at an address, or one would be made for a message."""
        return self._services.messenger.knows(address)

    def is_current(self, actor: object) -> bool:
        """Whether an actor is still the current one of this cell: it has not been restarted."""
        return self._cell.actor is actor

    @property
    def address(self) -> str:
        """The address of the actor."""
        return self._cell.address

    @property
    def message(self) -> Message:
        """The message that is handled.

        Raises:
            RuntimeError: the actor is starting, and handles no message.
        """
        return self._handled.message

    @property
    def thread_id(self) -> str | None:
        """The thread of the message; None: what the handler sends is not journaled."""
        return None if self._delivery is None else self._delivery.thread_id

    @property
    def seq(self) -> int:
        """The position of the message in its thread, from 1; outside of threads, 0."""
        return 0 if self._delivery is None else self._delivery.seq

    @property
    def is_answered(self) -> bool:
        """Whether the message was answered or forwarded."""
        return self._handled.is_settled

    @property
    def attempt(self) -> int:
        """The number of this delivery of the message, from 1."""
        return self._handled.attempt

    @property
    def remaining(self) -> float | None:
        """Seconds left until the deadline; None: there is no deadline."""
        deadline = None if self._delivery is None else self._delivery.deadline
        return None if deadline is None else max(0.0, deadline - self._services.lifetime.loop.time())

    @property
    def uptime(self) -> float:
        """Seconds since the actor was started."""
        return self._services.lifetime.loop.time() - self._cell.began

    @property
    def load(self) -> float:
        """How busy the actor is, from 0 to 1: how full its mailbox is, or how many other handlers are at work."""
        return self._cell.load(self._delivery)

    @property
    def course(self) -> Course:
        """The course of the effects of this handler."""
        return Handling(self._handled, self)

    @property
    def _handled(self) -> DeliveryState:
        if self._delivery is None:
            raise RuntimeError(f"{self.address}: an actor that is just beginning has no message")
        return self._delivery

    # ------------------------------------------------------------ messages

    @overload
    async def ask(self, to: str, said: Request[ReplyT], *, within: float | None = None, key: str | None = None) -> ReplyT: ...
    @overload
    async def ask(self, to: str, said: Message, *, within: float | None = None, key: str | None = None) -> Message: ...
    async def ask(
        self, to: str, said: Request[Any] | Message, *, within: float | None = None, key: str | None = None
    ) -> Reply | Message:
        """Ask an actor and wait for its answer, at most `within` seconds and at most until the deadline of this message.

        In a thread, a handler that runs again after a crash gets the stored answer instead of asking again. Questions are
        identified by their number; give a `key` if their order may differ between two runs.

        Raises:
            DeliveryError: there is no answer, or it is an error; the class tells what the caller can do.
            LedgerError: it could not be journaled.
        """
        delivery = self._delivery_of(to, said, key)
        try:
            return answer_to(said, delivery, await self._services.messenger.ask(delivery, within))
        except DeliveryError as exc:
            exc.message_id = delivery.id
            raise

    async def send_message(self, message: WireMessage, *, within: float | None = None) -> Response:
        """Send a message of the protocol, and return the response.

        It belongs to the thread of the handled message, unless its data names another thread, and to the same exchange. A
        handler that runs again after a crash gets the stored response. A failure is an error response.

        Raises:
            ValueError: it has no receiver.
            LedgerError: it could not be journaled.
        """
        if self._delivery is None:
            return await self.system.send_message(message, within=within)
        if not message.receiver:
            raise ValueError("Message must have a receiver")
        return await response_to(message, partial(self._send, message, self._delivery, within))

    async def _send(self, message: WireMessage, handled: DeliveryState, within: float | None) -> Message | None:
        delivery = sent_inside(message, handled, self.address, self._services.stored_ids)
        if not delivery.is_call:
            await self._services.messenger.tell(delivery, within)
            return None
        try:
            return message_of(delivery, await self._services.messenger.ask(delivery, within))
        except DeliveryError as exc:
            exc.message_id = delivery.id
            raise

    async def work_out(self, said: Request[ReplyT], *, key: str | None = None) -> ReplyT:
        """Ask this actor a question that its handler answers without effects, and return the answer.

        It costs no append: the question and the answer are written together with the next row of this handler. Until then
        nothing depends on them, so after a crash the answer is computed again.

        Raises:
            DeliveryError: it is refused.
            RuntimeError: the handler sends a message or runs an effect.
            LedgerError: the ledger cannot be read.
        """
        delivery = self._delivery_of(self.address, said, key)
        return cast(
            "ReplyT", answer_to(said, delivery, await self._services.messenger.work_out(delivery, self._cell.run_at_once))
        )

    def mark(self, *, status: str, pattern: str | None = None, unless_held: bool = False) -> None:
        """Set the status of the thread in lists of threads; it is written with the next row of this handler.

        With `unless_held`, the status is not written if the thread is paused or terminated by then.
        """
        marks = {} if pattern is None else {"pattern": pattern}
        self._handled.work.marks = {"status_unless_held" if unless_held else "status": status, **marks}

    async def tell(
        self, to: str, said: Request[Any] | Notice | Message, *, within: float | None = None, key: str | None = None
    ) -> None:
        """Tell an actor something, and wait only until it is in the mailbox; in a thread, it is journaled first.

        Raises:
            DeliveryError: it cannot be delivered.
            LedgerError: it could not be journaled.
        """
        await self._services.messenger.tell(self._delivery_of(to, said, key), within)

    async def reply(self, outcome: Any) -> None:
        """Answer the message now, and continue; the return value of the handler is then ignored."""
        await self._services.outcomes.answer(self._handled, outcome)

    async def forward(self, to: str) -> None:
        """Forward the message to another actor, which answers it.

        Raises:
            DeliveryError: it cannot be delivered.
        """
        await self._services.messenger.forward(self._handled, to)

    async def retry(self, request: Retry) -> Reply | None:
        """Handle the message that a RETRY names as if it arrived now.

        Raises:
            RefusedError: it was tried too often, or is unknown.
        """
        original = await self._services.messenger.original(request, self.thread_id)
        outcome = await self._cell.run(
            DeliveryState(Envelope.of(original, original.policy, self.address), may_be_known=False), self
        )
        if isinstance(outcome, Message):
            await self.reply(_retried(outcome))
        return outcome if isinstance(outcome, Reply) else None

    # ------------------------------------------------------------ effects, timers and state

    async def effect(
        self,
        key: str,
        arguments: Mapping[str, Json],
        run: Run,
        *,
        effects: Effects = "once",
        operation: Operation | None = None,
    ) -> Any:
        """Run a side effect once, and return its result as JSON. A handler that runs again gets the recorded result.

        `run` gets an idempotency key, which is the same in every attempt. Outside of a thread, `run` is called without a
        journal. `operation` describes the effect to an observer.

        Raises:
            TypeError: `run` does not take one argument, or the arguments cannot be stored.
            EffectFailedError: `run` raised.
            ParkedError: it is unknown whether the effect has happened, and it must not run twice; a person settles it. After
                that, the handler starts no other effect.
            HistoryMismatchError: the handler did something else in an earlier run.
            LedgerError: it could not be journaled.
        """
        check_function(key, run)
        effect = Effect(self.journal, self.course, key, arguments, effects=effects, park=self.park)
        effect.operation = operation
        try:
            return await effect.perform(run)
        except asyncio.CancelledError:
            self.expect_leftovers()  # it is unknown whether the row of its intent was written
            raise

    def expect_leftovers(self) -> None:
        """Note that this handler may have unknown open rows: an effect was cancelled while its row was written.

        When the message ends, the open calls of its thread are read, and those that belong to it are ended with it.
        """
        self._handled.work.is_unsure = True

    async def park(self, reason: str, evidence: dict[str, Json]) -> None:
        """Park the message until a person settles it."""
        await self._services.parking.park(self._handled, reason, evidence)

    async def remind(self, after: float, notice: Notice, *, key: str | None = None) -> None:
        """Tell this actor something after some seconds; in a thread, the timer survives the process."""
        await self._services.reminders.set(self._handled, self.address, after, notice, key)

    async def remind_at(self, moment: datetime, notice: Notice, *, key: str | None = None) -> None:
        """Tell this actor something at a time of the clock; in a thread, the timer survives the process.

        If the clock is set back behind this moment of setting it, the actor is told at once: let it look at the clock again.
        """
        await self._services.reminders.set(self._handled, self.address, moment, notice, key)

    async def state(self, state: ActorState[StateT]) -> StateT:
        """Return the state of the thread, up to and including the handled message.

        Raises:
            RuntimeError: the message is not in a thread.
            LedgerError: it cannot be read.
        """
        if self.thread_id is None:
            raise RuntimeError("a message of no thread has no history: ask in a thread")
        return await self.state_at(self.thread_id, self._handled.seq, state)

    async def state_at(self, thread_id: str, seq: int, state: ActorState[StateT]) -> StateT:
        """Return the state of a thread, up to and including a message."""
        return await self._services.states.get(thread_id, seq, state)

    def leave_open(self, error: AntiphonError) -> None:
        """Leave the message open in its thread, to be redelivered later; the caller gets the error.

        It is redelivered when something happens in the thread: an answer is posted, a question expires, another message ends,
        or another host takes it.
        """
        self._services.outcomes.leave_open(self._handled, error)

    def wait_for_decision(self, error: ParkedError) -> None:
        """Let this handler go on after a question of it was parked: it waits for the person itself.

        It must ask again with the id of the parked message (`error.message_id`): another message would do the same twice.
        """
        self._handled.work.resume_parked(error)

    async def recover_thread(self, thread_id: str) -> None:
        """Deliver the open messages of a thread and set its timers, even if a failure outside has stopped the thread."""
        await self._services.open_work.thread(thread_id, is_resumed=True)

    async def recover_message(self, thread_id: str, invocation_id: str) -> None:
        """Deliver one message of a thread, if it is open."""
        await self._services.open_work.message(thread_id, invocation_id)

    # ------------------------------------------------------------ other actors, and stopping this one

    def monitor(self, address: str) -> None:
        """Get a `Down` notice once, when an actor ends."""
        self._services.ties.monitor(self.address, address)

    def link(self, address: str) -> None:
        """Link this actor and another one: each fails when the other fails."""
        self._services.ties.link(self.address, address)

    def stop(self, reason: str = "it is done") -> None:
        """Stop after this message; a `permanent` actor is restarted."""
        self._cell.stop_after_message(reason)

    def rest(self) -> None:
        """Passivate this actor as soon as it is idle; the next message makes a new one. States of the thread are dropped.

        Only actors of a registered kind are passivated; spawned actors stay.
        """
        self._cell.wants_rest = True
        self._services.states.forget(self.thread_id or "")

    def _delivery_of(self, to: str, said: Request[Any] | Notice | Message, key: str | None) -> DeliveryState:
        if self._delivery is None:
            return outside(to, said, None, self.address, None)
        if self.is_over and self.thread_id is not None:
            reason = f"the handler of {self._delivery.type or 'the message'} has ended: await its tasks in it"
            raise WithdrawnError(reason, self.address)
        return inside(to, said, self._delivery, self._cell.address, key)


def _retried(result: Message) -> Message | Response:
    """Return the result of a retried message, with the response type of that message."""
    payload = result.payload
    if not isinstance(payload, OptionResultPayload) or payload.is_error or not isinstance(payload.result, JsonObject):
        return result
    return Response(type=response_type(result), data=payload.result)


# ---------------------------------------------------------------- the message that is being handled


_current: ContextVar[Context | None] = ContextVar("antiphon.runtime.handled", default=None)


begin_handling: Callable[[Context], Token[Context | None]] = _current.set
"""Start to handle a message in this task; return the token for `end_handling`."""


def end_handling(context: Context, begun: Token[Context | None]) -> None:
    """End the handling of a message. Tasks that it has started and that still run have no context from now on."""
    outer = begun.old_value
    if outer is not context:  # otherwise this is a RETRY: the outer handler continues with the same context
        context.is_over = True
    if isinstance(outer, Context) and not outer.is_over:
        _current.set(outer)  # an actor has asked itself: the outer handler continues


def context_in(system: object) -> Context | None:
    """Return the context of the message that a handler of this system handles in this task; else None."""
    context = _current.get()
    return None if context is None or context.is_over or context.system is not system else context


class CurrentContext:
    """The attribute `context` of an actor. A program may assign a context of its own to it."""

    @overload
    def __get__(self, actor: None, owner: type) -> Self: ...
    @overload
    def __get__(self, actor: object, owner: type) -> Context: ...
    def __get__(self, actor: Any, owner: type) -> Self | Context:
        if actor is None:
            return self
        context = _current.get()
        if context is None:
            raise RuntimeError(f"{owner.__qualname__}.context: this actor handles no message here")
        return context


# ---------------------------------------------------------------- the base class of actors


MethodT = TypeVar("MethodT", bound=Callable[..., Awaitable[Any]])

CAPACITY = 1000
"""How many messages may wait for an actor, by default."""

_MARK = "__antiphon_handles__"


class Handler(NamedTuple):
    """A handler method, and the types that it takes and returns."""

    method: Callable[..., Awaitable[Any]]
    said: type[Request[Any]] | type[Notice]
    reply: type[Reply] | None
    """The type of the answer; None if no answer is due."""


def handles(method: MethodT) -> MethodT:
    """Mark a method as the handler of the `Request` or `Notice` that its first parameter is annotated with.

    Its signature is `async def name(self, request: Ping, context: Context) -> Pong`, where `Pong` is the reply of `Ping`; or
    `-> None` if it answers with `context.reply` or `context.forward`.

    Raises:
        TypeError: it is not a method: write `@handles`, without arguments.
    """
    check_type("what @handles marks", method, FunctionType, "a method `async def ping(self, request: Ping, context: Context)`")
    setattr(method, _MARK, True)
    return method


class Actor:
    """An object with an address that handles one message at a time.

    A factory makes it, and makes a new one after each restart.
    """

    concurrency: ClassVar[int] = 1
    """How many messages it handles at once. Use more than one only for actors without state of their own. Messages of the same
    thread (outside of threads: of the same sender) are still handled in order, unless `ordering_key` returns another key. """
    capacity: ClassVar[int] = CAPACITY
    """How many messages may wait. Further senders wait for room, at most until their deadline."""
    handlers: ClassVar[Mapping[type | str, Handler]] = {}
    """The methods marked with `handles`, by class and by type of message."""
    context = CurrentContext()
    """The context of the handled message, for methods without a context parameter; in `started`, the context of the actor."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.handlers = {**cls.handlers, **_handlers_in(cls)}

    @classmethod
    def ordering_key(cls, message: Message) -> str | None:
        """Return the ordering key: messages with the same key are handled in order. None: the thread, or the sender.

        It is used only if `concurrency` is more than one. It must depend on nothing but the message, and must not raise.
        """
        return None

    async def started(self, context: Context) -> None:
        """Called before the first message of each new actor."""

    async def stopped(self, reason: str) -> None:
        """Called when the actor stops or is restarted; not after a failure."""

    async def hear(self, message: Message, context: Context) -> Any:
        """Handle a message that has no handler method; for a call, return the result: JSON, a `Reply`, or a message."""
        return accepted(await self.receive(to_wire(message)))

    async def receive(self, message: WireMessage) -> Response:
        """Handle a message of the protocol that has no handler method, and return the response.

        Messages that it sends with `self.context.send_message`, or with `send_message` of the system, follow from this one.
        """
        return message.reply_error(f"Unknown message type: {message.type}", ErrorCode.UNKNOWN_MESSAGE_TYPE)

    @handles
    async def heartbeat(self, request: Heartbeat, context: Context) -> HeartbeatResponse:
        """Answer a heartbeat."""
        return HeartbeatResponse(uptime=context.uptime, load=context.load)

    @handles
    async def retry(self, request: Retry, context: Context) -> Reply | None:
        """Try a failed message again, and return its answer."""
        return await context.retry(request)


def _handlers_in(cls: type) -> dict[type | str, Handler]:
    handlers: dict[type | str, Handler] = {}
    for name, method in vars(cls).items():
        if hasattr(method, _MARK):
            handler = _handler(f"{cls.__qualname__}.{name}", method)
            handlers[handler.said] = handlers[handler.said.message_type] = handler
    return handlers


def _handler(name: str, method: Callable[..., Awaitable[Any]]) -> Handler:
    try:
        signature = inspect.signature(method, eval_str=True)
    except NameError as exc:
        raise TypeError(f"{name}: its annotations must be known where the class is defined: {exc}") from exc
    match [parameter.annotation for parameter in signature.parameters.values()]:
        case [_, type() as said, _] if issubclass(said, Request | Notice):
            reply = cast("type[Reply]", said.reply_class()) if issubclass(said, Request) else None
            _check_return(name, signature.return_annotation, reply)
            return Handler(method, cast("type[Request[Any]] | type[Notice]", said), reply)
        case _:
            raise TypeError(f"{name}: a handler is (self, request: SomeRequest, context: Context) -> SomeReply")


def _check_return(name: str, returned: Any, reply: type[Reply] | None) -> None:
    options = get_args(returned) if get_origin(returned) in (Union, UnionType) else (returned or NoneType,)
    if not set(options) <= {NoneType, reply}:
        expected = "None" if reply is None else reply.__name__
        raise TypeError(f"{name}: it is annotated to return {returned}, not {expected}")


Actor.handlers = _handlers_in(Actor)


# ---------------------------------------------------------------- making an actor


@dataclass(frozen=True, slots=True)
class Props:
    """How an actor is made and supervised."""

    factory: Callable[[], Actor]
    supervisor: str
    restart: RestartWhen
    grace: float
    """Seconds that its handlers have to finish when it stops."""
    concurrency: int
    capacity: int
    ordering_key: OrderingKey | None = None
    """None if the class does not override it."""
    may_rest: bool = False
    """Whether it may be passivated: its kind is registered, so the next message makes a new one."""


@lru_cache(maxsize=256)  # cached, so that actors with the same arguments share it
def props_of(
    factory: Callable[[], Actor],
    *,
    supervisor: str,
    restart: RestartWhen = "permanent",
    grace: float = 5.0,
    concurrency: int | None = None,
    capacity: int | None = None,
) -> Props:
    """Return the props of an actor. Defaults are those of its class, if the factory is a class or a partial of one."""
    cls: Any = getattr(factory, "func", factory)  # the function inside a partial
    ordering_key = getattr(cls, "ordering_key", None)
    if getattr(ordering_key, "__module__", "") == Actor.__module__:
        ordering_key = None  # the default, which does not need the core message
    return Props(
        factory=factory,
        supervisor=supervisor,
        restart=restart,
        grace=grace,
        concurrency=getattr(cls, "concurrency", 1) if concurrency is None else concurrency,
        capacity=getattr(cls, "capacity", CAPACITY) if capacity is None else capacity,
        ordering_key=ordering_key,
    )
