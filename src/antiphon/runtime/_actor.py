"""Context: what a handler can do besides computing. Everything it says through here follows from the message it handles.

Thread, exchange, deadline and the number of hops travel by themselves; a deadline can only shrink.

Actor: what a user writes. A class with a method for each thing that it can be told or asked.

| what is sent | what runs |
|---|---|
| a request or notice for whose class there is a handler | the handler, with the request as its model |
| a core message that says such a thing | the handler, after the data was validated |
| anything else | `hear`, with the core message |
| anything else, where there is no `hear` | `receive`, with the protocol's envelope: by default, the type is unknown |
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, Union, cast, get_args, get_origin, overload

from antiphon.errors import DeliveryError
from antiphon.messages import Json, Message
from antiphon.protocol import ErrorCode, Heartbeat, HeartbeatResponse, Notice, Reply, Request, Response, Retry
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._effects import Course, Effect, Effects, Run
from antiphon.runtime._envelope import Envelope, inside, outside
from antiphon.runtime._results import answer_to, outcome_of, to_wire

if TYPE_CHECKING:
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._observer import Operation
    from antiphon.runtime._state import ActorState
    from antiphon.runtime._system import Kernel, System

ReplyT = TypeVar("ReplyT", bound=Reply)
StateT = TypeVar("StateT")


CAPACITY = 1000
"""Messages that may wait for an actor, unless it says otherwise."""


class Context:
    """A handler's view of the system, for one message."""

    __slots__ = ("_cell", "_envelope")

    def __init__(self, cell: Cell, envelope: Envelope | None) -> None:
        self._cell = cell
        self._envelope = envelope

    # ------------------------------------------------------------ what there is

    @property
    def system(self) -> System:
        return self._cell.kernel.system

    @property
    def kernel(self) -> Kernel:
        """The machinery, for actors that are part of it."""
        return self._cell.kernel

    def is_current(self, actor: Actor) -> bool:
        """Whether an actor is still the one that lives here."""
        return self._cell.actor is actor

    @property
    def address(self) -> str:
        """Where the actor lives."""
        return self._cell.address

    @property
    def message(self) -> Message:
        """The message that is handled.

        Raises:
            RuntimeError: none is: the actor is just beginning.
        """
        return self._handled.message

    @property
    def thread_id(self) -> str | None:
        """The thread that the message is of; None: what is said here is not written down."""
        return None if self._envelope is None else self._envelope.thread_id

    @property
    def seq(self) -> int:
        """The place of the message in its thread, from 1; outside of threads, 0."""
        return 0 if self._envelope is None else self._envelope.seq

    @property
    def is_answered(self) -> bool:
        """Whether the message was answered, or passed on."""
        return self._handled.is_settled

    @property
    def attempt(self) -> int:
        """Which delivery of the message this is, from 1."""
        return self._handled.attempt

    @property
    def remaining(self) -> float | None:
        """How many seconds are left until the answer is worthless; None: as many as it takes."""
        deadline = None if self._envelope is None else self._envelope.deadline
        return None if deadline is None else max(0.0, deadline - self._cell.kernel.loop.time())

    @property
    def uptime(self) -> float:
        """Seconds since the actor began."""
        return self._cell.kernel.loop.time() - self._cell.began

    @property
    def load(self) -> float:
        """How full the mailbox is, from 0 to 1."""
        return self._cell.load

    @property
    def course(self) -> Course:
        """What effects in the handling of this message are part of."""
        return self._handled

    @property
    def _handled(self) -> Envelope:
        if self._envelope is None:
            raise RuntimeError(f"{self.address}: an actor that is just beginning has no message")
        return self._envelope

    # ------------------------------------------------------------ saying

    @overload
    async def ask(self, to: str, said: Request[ReplyT], *, within: float | None = None, key: str | None = None) -> ReplyT: ...
    @overload
    async def ask(self, to: str, said: Message, *, within: float | None = None, key: str | None = None) -> Message: ...
    async def ask(
        self, to: str, said: Request[Any] | Message, *, within: float | None = None, key: str | None = None
    ) -> Reply | Message:
        """Ask an actor and wait for its answer, at most for `within` seconds and until the own deadline.

        In a thread, a handler that runs again after a crash gets the answer that is there instead of asking again. What it
        asks is known by its number; give it a `key` where the order is left to chance.

        Raises:
            DeliveryError: there is no answer, or an error; the class says what to do.
            LedgerError: it could not be written down.
        """
        envelope = self._envelope_for(to, said, key)
        handled = None if to == self.address else self._envelope  # what it asks itself is done by its own handler
        if handled is not None:
            handled.wait(1)
        try:
            return answer_to(said, envelope, await self._cell.kernel.post.ask(envelope, within))
        except DeliveryError as exc:
            exc.message_id = envelope.id
            raise
        finally:
            if handled is not None:
                handled.wait(-1)

    async def work_out(self, said: Request[ReplyT], *, key: str | None = None) -> ReplyT:
        """Have the own handler answer something that takes thinking and nothing else, and return what it answers.

        It is an ask of oneself that costs no append: question and answer are written down together with whatever is said
        next. Until then nobody has acted on them, so after a crash it is worked out anew.

        Raises:
            DeliveryError: it is refused.
            RuntimeError: the handler says or does something.
            LedgerError: the ledger cannot be read.
        """
        envelope = self._envelope_for(self.address, said, key)
        return cast("ReplyT", answer_to(said, envelope, await self._cell.kernel.post.work_out(envelope)))

    def mark(self, *, status: str, pattern: str | None = None) -> None:
        """Have lists of threads show where this one is, from the next row on that is written in the course of the message."""
        more = {} if pattern is None else {"pattern": pattern}
        self._handled.marks = {"status": status, **more}

    async def tell(
        self, to: str, said: Request[Any] | Notice | Message, *, within: float | None = None, key: str | None = None
    ) -> None:
        """Tell an actor something, and wait only until it is in its mailbox (in a thread: written down before).

        Raises:
            DeliveryError: it cannot be delivered.
            LedgerError: it could not be written down.
        """
        await self._cell.kernel.post.tell(self._envelope_for(to, said, key), within)

    async def reply(self, outcome: Any) -> None:
        """Answer the message now, and go on; what the handler returns is then no answer any more.

        Raises:
            LedgerError: it could not be written down.
        """
        await self._cell.kernel.post.answer(self._handled, outcome)

    async def forward(self, to: str) -> None:
        """Pass the message on to another actor, which answers it instead.

        Raises:
            DeliveryError: it cannot be delivered.
        """
        await self._cell.kernel.post.forward(self._handled, to)

    async def retry(self, request: Retry) -> Reply | None:
        """Handle the message that a RETRY names as if it came now.

        Raises:
            RefusedError: it was tried often enough, or nobody has it.
        """
        original = await self.kernel.post.original(request, self.thread_id)
        outcome = await self._cell.run(Envelope(original, original.policy, self.address), self)
        if isinstance(outcome, Message):
            await self.reply(outcome)
        return outcome if isinstance(outcome, Reply) else None

    # ------------------------------------------------------------ doing

    async def effect(
        self,
        key: str,
        arguments: Mapping[str, Json],
        run: Run,
        *,
        effects: Effects = "once",
        operation: Operation | None = None,
    ) -> Any:
        """Do something to the world once, and return what came of it, as JSON; when the handler runs again, the same.

        `run` is given a key that stays the same over all tries. Outside of a thread it is simply run.
        `operation` says what it is, for whoever watches.

        Raises:
            EffectFailedError: `run` raised.
            ParkedError: nobody knows whether it was done, and it must not be done twice; a person settles it.
            HistoryMismatchError: the handler did something else the last time it ran.
            LedgerError: it could not be written down.
        """
        effect = Effect(self.kernel.journal, self._handled, key, arguments, effects=effects, park=self.park)
        effect.operation = operation
        try:
            return await effect.perform(run)
        except asyncio.CancelledError:
            self._handled.is_unsure = True  # it may have been written down that it is begun, or not
            raise

    async def park(self, reason: str, evidence: dict[str, Json]) -> None:
        """Leave the message to a person, who settles it.

        Raises:
            LedgerError: it could not be written down.
        """
        await self.kernel.post.durable.again.park(self._handled, reason, evidence)

    async def remind(self, after: float, notice: Notice, *, key: str | None = None) -> None:
        """Have this actor told something after some seconds; in a thread, even by another process.

        Raises:
            LedgerError: it could not be written down.
        """
        await self.kernel.timers.set(self._handled, self.address, after, notice, key)

    async def state(self, state: ActorState[StateT]) -> StateT:
        """Return what the thread amounts to, up to and including the message that is handled.

        Raises:
            RuntimeError: the message is of no thread.
            LedgerError: it cannot be read.
        """
        if self.thread_id is None:
            raise RuntimeError("a message of no thread has no history: ask in a thread")
        return await self.kernel.states.get(self.thread_id, self._handled.seq, state)

    # ------------------------------------------------------------ others, and oneself

    def monitor(self, address: str) -> None:
        """Be told once, by a `Down`, when an actor ends."""
        self._cell.kernel.bonds.monitor(self.address, address)

    def link(self, address: str) -> None:
        """Fail when another actor fails, and have it fail when this one does."""
        self._cell.kernel.bonds.link(self.address, address)

    def stop(self, reason: str = "it is done") -> None:
        """End after this message; an actor that is `permanent` begins anew."""
        self._cell.kernel.start(self._cell.kernel.care.leave(self._cell, reason))

    def rest(self) -> None:
        """Say that the actor has nothing left to do: once it is idle it is let go of, and made anew for the next message.

        An actor that was spawned stays.
        """
        self._cell.wants_rest = True

    def _envelope_for(self, to: str, said: Request[Any] | Notice | Message, key: str | None) -> Envelope:
        if self._envelope is None:
            return outside(to, said, None, self.address, None)
        return inside(to, said, self._envelope, self.address, key)


MethodT = TypeVar("MethodT", bound=Callable[..., Awaitable[Any]])

_MARK = "__antiphon_handles__"


class Handler(NamedTuple):
    """A method, and what it is for."""

    method: Callable[..., Awaitable[Any]]
    said: type[Request[Any]] | type[Notice]
    reply: type[Reply] | None
    """What it returns; None where no answer is due."""


def handles(method: MethodT) -> MethodT:
    """Mark a method as the handler of what its first parameter is annotated with: a `Request` or a `Notice`.

    It is `async def name(self, request: Ping, context: Context) -> Pong`, where `Pong` is the reply of `Ping`; or
    `-> None` if it answers by `context.reply` or `context.forward`.
    """
    setattr(method, _MARK, True)
    return method


class Actor:
    """Something with an address that handles one message at a time, and is made by a factory, again after each restart."""

    concurrency: ClassVar[int] = 1
    """How many messages it handles at once. More than one is for actors without state of their own; messages of the same
    thread (outside of threads: of the same sender) still come one after the other, unless `ordering_key` says otherwise.
    """
    capacity: ClassVar[int] = CAPACITY
    """How many messages may wait; further senders wait until there is room, or until their deadline."""
    handlers: ClassVar[Mapping[type | str, Handler]] = {}
    """By class and by type, what the methods marked with `handles` are for."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.handlers = {**cls.handlers, **_handlers_in(cls)}

    @classmethod
    def ordering_key(cls, message: Message) -> str | None:
        """Return what a message has in common with those that it must not be handled beside; None: its thread or sender.

        Only asked where `concurrency` is more than one. It looks at nothing but the message, and does not raise.
        """
        return None

    async def started(self, context: Context) -> None:
        """Begin: called before the first message of each new actor."""

    async def stopped(self, reason: str) -> None:
        """End: called when the actor stops or makes room for a new one; not when it has failed."""

    async def hear(self, message: Message, context: Context) -> Any:
        """Take a message for which there is no handler; of a call, return the result: JSON, a `Reply`, or a message."""
        return outcome_of(await self.receive(to_wire(message)))

    async def receive(self, message: WireMessage) -> Response:
        """Take a message of the protocol for which there is no handler, and return the response."""
        return message.reply_error(f"Unknown message type: {message.type}", ErrorCode.UNKNOWN_MESSAGE_TYPE)

    @handles
    async def heartbeat(self, request: Heartbeat, context: Context) -> HeartbeatResponse:
        """Say that the actor lives."""
        return HeartbeatResponse(uptime=context.uptime, load=context.load)

    @handles
    async def retry(self, request: Retry, context: Context) -> Reply | None:
        """Try a message again that failed, and answer as it is answered."""
        return await context.retry(request)


def _handlers_in(cls: type) -> dict[type | str, Handler]:
    found: dict[type | str, Handler] = {}
    for name, method in vars(cls).items():
        if hasattr(method, _MARK):
            handler = _handler(f"{cls.__qualname__}.{name}", method)
            found[handler.said] = found[handler.said.message_type] = handler
    return found


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
        wanted = "None" if reply is None else reply.__name__
        raise TypeError(f"{name}: it is annotated to return {returned}, not {wanted}")


Actor.handlers = _handlers_in(Actor)
