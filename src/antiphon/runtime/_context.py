"""Context: what a handler can do besides computing. Everything it says through here follows from the message it handles.

Thread, exchange, deadline and the number of hops travel by themselves; a deadline can only shrink.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload

from antiphon.errors import DeliveryError
from antiphon.messages import Json, JsonObject, Message, OptionResultPayload
from antiphon.protocol import Message as WireMessage
from antiphon.protocol import Notice, Reply, Request, Response, Retry
from antiphon.runtime._effects import Course, Effect, Effects, Run
from antiphon.runtime._entry import inside, outside, sent_inside
from antiphon.runtime._envelope import Envelope
from antiphon.runtime._ref import response_to
from antiphon.runtime._results import answer_to, message_of, response_type
from antiphon.runtime._retry import find_original

if TYPE_CHECKING:
    from antiphon.runtime._actor import Actor
    from antiphon.runtime._cell import Cell
    from antiphon.runtime._kernel import Kernel
    from antiphon.runtime._operations import Operation
    from antiphon.runtime._state import ActorState
    from antiphon.runtime._system import System

__all__ = ["Context"]

ReplyT = TypeVar("ReplyT", bound=Reply)
StateT = TypeVar("StateT")
AnswerT = TypeVar("AnswerT")


class Context:
    """A handler's view of the system, for one message."""

    __slots__ = ("_cell", "_envelope", "is_over")

    def __init__(self, cell: Cell, envelope: Envelope | None) -> None:
        self._cell = cell
        self._envelope = envelope
        self.is_over = False
        """Whether the handler has ended."""

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
        return await self._answer(envelope, within, partial(answer_to, said))

    async def send_message(self, message: WireMessage, *, within: float | None = None) -> Response:
        """Send a message of the protocol in the course of the one that is handled, and return the response.

        It is in the same thread, unless its data names another, and in the same exchange. A handler that runs again after a
        crash gets the response that is there. Whatever goes wrong is an error response.

        Raises:
            ValueError: it has no receiver.
            LedgerError: it could not be written down.
        """
        if self._envelope is None:
            return await self.system.send_message(message, within=within)
        if not message.receiver:
            raise ValueError("Message must have a receiver")
        return await response_to(message, partial(self._send, message, self._envelope, within))

    async def _send(self, message: WireMessage, handled: Envelope, within: float | None) -> Message | None:
        envelope = sent_inside(message, handled, self.address, self.kernel.recent)
        if envelope.is_call:
            return await self._answer(envelope, within, message_of)
        await self.kernel.post.tell(envelope, within)
        return None

    async def _answer(self, envelope: Envelope, within: float | None, read: Callable[[Envelope, Any], AnswerT]) -> AnswerT:
        """Deliver a message, wait for its outcome, and return what that reads as."""
        handled = None if envelope.to == self.address else self._envelope  # what it asks itself is done by its own handler
        if handled is not None:
            handled.wait(1)
        try:
            return read(envelope, await self._cell.kernel.post.ask(envelope, within))
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
        original = await find_original(self.kernel, request, self.thread_id)
        outcome = await self._cell.run(Envelope(original, original.policy, self.address), self)
        if isinstance(outcome, Message):
            await self.reply(_retried(outcome))
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


def _retried(result: Message) -> Message | Response:
    """Return the result of a message that was tried again, with the type of response that is due to that message."""
    payload = result.payload
    if not isinstance(payload, OptionResultPayload) or payload.is_error or not isinstance(payload.result, JsonObject):
        return result
    return Response(type=response_type(result), data=payload.result)
