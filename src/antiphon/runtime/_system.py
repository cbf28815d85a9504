"""System: what a user has of the runtime. It is an `async with` block, and at its end no task of it is left.

`Ref` is an actor as others see it, with the surface of the protocol: `response = await actor.receive(message)`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from antiphon.errors import DeliveryError, UndeliverableError
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Json, Message
from antiphon.protocol import Message as WireMessage
from antiphon.protocol import Notice, Reply, Request, Response
from antiphon.protocol.flows import Flow, Verdict
from antiphon.runtime._actor import Actor, props_of
from antiphon.runtime._address import SYSTEM, Address
from antiphon.runtime._bus import Remote
from antiphon.runtime._context import context_in
from antiphon.runtime._envelope import DeliveryState, Envelope, outside
from antiphon.runtime._kernel import Kernel
from antiphon.runtime._recovery import Parked, Recovered
from antiphon.runtime._redelivery import Outcome, settle
from antiphon.runtime._results import answer_to, error_response, from_wire, named_thread, response_to
from antiphon.runtime._settings import Settings
from antiphon.runtime._supervision import RestartWhen, Supervision
from antiphon.runtime._supervisor import Supervisor
from antiphon.runtime._topics import FlowReporter, Start, Subscription, Topic, subscribe

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, Record
    from antiphon.runtime._bus import Bus
    from antiphon.runtime._journal import Admit
    from antiphon.runtime._observer import DeadLetter, Observer


class Ref:
    """An actor, by its address."""

    def __init__(self, system: System, address: str) -> None:
        self._system = system
        self.address = address

    async def receive(self, message: WireMessage, *, within: float | None = None) -> Response:
        """Have the actor handle a message, and return its response; whatever goes wrong is an error response.

        Within a handler of this system, the message follows from the one that is handled there (`Context.send_message`).
        Otherwise a message whose data names a thread is journaled there, and the same message again gets the same response.
        """
        addressed = message.model_copy(update={"receiver": str(self.address)})
        context = context_in(self._system)
        if context is not None:
            return await context.send_message(addressed, within=within)
        return await response_to(message, partial(self._send, addressed, within))

    async def _send(self, wire: WireMessage, within: float | None) -> Message | None:
        message = from_wire(wire, named_thread(wire))
        if message.kind == "option_call":
            return await self._system.ask(self.address, message, within=within, sender=message.policy)
        await self._system.tell(self.address, message, within=within, sender=message.policy)
        return None


ROOT = Address(SYSTEM, "root")
"""The first supervisor, which looks after everybody that has no other."""

ReplyT = TypeVar("ReplyT", bound=Reply)


class System:
    """Actors by address, with a ledger."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        *,
        supervision: Supervision = Supervision(beyond="stop"),  # noqa: B008 (frozen)
        settings: Settings = Settings(),  # noqa: B008 (frozen)
        observer: Observer | None = None,
        admit: Admit | None = None,
    ) -> None:
        """Make a system; within a running event loop, of which it is from then on.

        Without a ledger it has one in memory. `supervision` is that of the actors that have no other supervisor. An
        `observer` is told what happens. `admit` is what effects of a thread pass when they begin, so that a thread can be
        held: nothing of it is begun while it waits in there, and once it is left, the intent is written down.
        """
        self._kernel = Kernel(self, MemoryLedger() if ledger is None else ledger, settings, observer, admit)
        self._kernel.tree.spawn(
            ROOT, props_of(partial(Supervisor, supervision), supervisor="", concurrency=Supervisor.concurrency)
        )

    async def __aenter__(self) -> Self:
        self._kernel.open()
        if self._kernel.hooks is not None:
            self._kernel.hooks.opened(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit:  # the event loop is gone: nobody can be waited for
            self._kernel.close_without_loop()
            return
        await self.close()
        failure = self._kernel.lifetime.failure
        if failure is not None:
            task = asyncio.current_task()
            if task is not None and isinstance(error, asyncio.CancelledError):
                task.uncancel()
            raise failure

    def admit(self, admit: Admit) -> None:
        """Have effects of threads pass something when they begin, as if the system had been made with it."""
        self._kernel.journal.admit = admit

    async def join(self, bus: Bus, name: str) -> None:
        """Be reached by other systems on a bus, and reach them. Spawn the actors, or register their kinds, before.

        Raises:
            ValueError: another system has the name, or a kind of actors.
        """
        remote = Remote(self._kernel.lifetime, self._kernel.dispatcher, bus, name)
        await remote.open(self._kernel.tree.kinds())
        self._kernel.remote = self._kernel.dispatcher.remote = remote

    async def close(self) -> None:
        """Stop all actors, those begun last first. What threads have not finished is there for the next `recover`."""
        kernel = self._kernel
        kernel.lifetime.begin_closing()
        try:
            if kernel.remote is not None:
                await kernel.remote.close()
            kernel.dispatcher.close()
            await kernel.lifecycle.stop(kernel.tree.at(ROOT), "the system ends", is_shutdown=True)
        finally:
            await kernel.close()
        if kernel.hooks is not None:
            kernel.hooks.closed(self)

    @property
    def ledger(self) -> Ledger:
        return self._kernel.journal.ledger

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The latest messages that nobody will handle."""
        return self._kernel.dead.kept

    @property
    def waiting(self) -> Counter[str]:
        """How many messages wait in mailboxes, by the kind of their actors. May be looked at from another thread."""
        found: Counter[str] = Counter()
        for cell in tuple(self._kernel.tree.cells.values()):
            if cell.mailbox is not None:
                found[cell.address.partition("/")[0]] += cell.mailbox.waiting
        return found

    # ------------------------------------------------------------ actors

    def spawn(
        self,
        address: str,
        factory: Callable[[], Actor],
        *,
        supervisor: str | Supervision = ROOT,
        restart: RestartWhen = "permanent",
        grace: float = 5.0,
        concurrency: int | None = None,
        capacity: int | None = None,
    ) -> Address:
        """Begin an actor. The factory, usually its class, is called for the first message, and again after each restart.

        A `supervisor` that is a `Supervision` is one for the kind of the actor, at `supervisor/KIND`, begun with its first.

        Raises:
            ValueError: somebody lives there, the supervisor does not exist or has other rules, or the address is none.
        """
        parsed = Address.parse(address)
        made = props_of(
            factory,
            supervisor=self._supervisor_of(parsed.kind, supervisor),
            restart=restart,
            grace=grace,
            concurrency=concurrency,
            capacity=capacity,
        )
        self._kernel.tree.spawn(parsed, made)
        return parsed

    def register(
        self,
        kind: str,
        factory: Callable[[], Actor],
        *,
        supervisor: str | Supervision = ROOT,
        restart: RestartWhen = "permanent",
        grace: float = 5.0,
        concurrency: int | None = None,
        capacity: int | None = None,
    ) -> None:
        """Say how the actors of a kind are made: each is begun when the first message for its address comes.

        Raises:
            ValueError: `supervisor` is a `Supervision`, and the supervisor of the kind has other rules.
        """
        made = props_of(
            factory,
            supervisor=self._supervisor_of(kind, supervisor),
            restart=restart,
            grace=grace,
            concurrency=concurrency,
            capacity=capacity,
        )
        self._kernel.tree.register(kind, made)

    def supervise(self, address: str, supervision: Supervision, *, supervisor: str = ROOT) -> Address:
        """Begin a supervisor, to be named when its children are spawned.

        Raises:
            ValueError: somebody lives there, or its own supervisor does not exist.
        """
        return self.spawn(address, partial(Supervisor, supervision), supervisor=supervisor, concurrency=Supervisor.concurrency)

    def _supervisor_of(self, kind: str, supervisor: str | Supervision) -> str:
        """Return the address of a supervisor; of one that is given by its rules, after it was begun."""
        if isinstance(supervisor, str):
            return supervisor
        address = Address("supervisor", kind)
        known = self._kernel.tree.cells.get(address)
        if known is None or known.state == "stopped":
            return self.supervise(address, supervisor)
        if getattr(known.props.factory, "args", ()) != (supervisor,):
            raise ValueError(f"{address!r} is there with other rules; give {kind!r} the address of a supervisor instead")
        return address

    # ------------------------------------------------------------ saying

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
    async def ask(
        self,
        to: str,
        said: Request[Any] | Message,
        *,
        within: float | None = None,
        thread_id: str | None = None,
        sender: str = "client",
        id: str | None = None,
    ) -> Reply | Message:
        """Ask an actor from outside, and wait for its answer.

        In a thread, everything that follows is written down before it acts. The same `id` again gives the same answer.

        Raises:
            DeliveryError: there is no answer, or an error; the class says what to do.
            LedgerError: it could not be written down.
        """
        delivery = outside(to, said, thread_id, sender, id)
        try:
            return answer_to(said, delivery, await self._kernel.dispatcher.ask(delivery, within))
        except DeliveryError as exc:
            exc.message_id = delivery.id
            raise

    async def append_history(self, thread_id: str, messages: Iterable[Message]) -> tuple[Record, ...]:
        """Append messages from outside, such as a decoded history, to a thread of this system, which claims it if need be.

        They are talk that nothing acts on. A call that is open in them gets an error result, and is never executed; see
        `outside` of `Ledger.append`. Messages that the thread has already are not written again.

        Raises:
            AppendRefusedError: they name a call that is open in the thread.
            FencedError: another system takes the thread over at the same time.
            LedgerError: they cannot be written.
        """
        journal = self._kernel.journal
        journal.reclaim(thread_id)
        return await journal.write(thread_id, tuple(messages), allow_foreign=True, outside=True)

    async def tell(
        self,
        to: str,
        said: Request[Any] | Notice | Message,
        *,
        within: float | None = None,
        thread_id: str | None = None,
        sender: str = "client",
        id: str | None = None,
    ) -> None:
        """Tell an actor something from outside, and wait only until it is in its mailbox (in a thread: written down before).

        Raises:
            DeliveryError: it cannot be delivered.
            LedgerError: it could not be written down.
        """
        await self._kernel.dispatcher.tell(outside(to, said, thread_id, sender, id), within)

    # ------------------------------------------------------------ watching

    def watch(self, watcher: Callable[[Record], None]) -> None:
        """Have a function called with each message of a thread, as it was written down, right after that."""
        self._kernel.journal.watchers.append(watcher)

    def watch_flow(self, flow: Flow, report: Callable[[str, Verdict], None], **roles: str) -> None:
        """Have a function called with the thread and the verdict when a message is not what a flow says should come.

        `roles` binds roles of the flow to names or kinds of actors. Threads that began before are not judged.
        """
        self.watch(FlowReporter(flow, report, roles))

    def subscribe(self, *topics: Topic, cursor: str | None = None, start: Start = "beginning") -> Subscription:
        """Follow the messages of all threads that fit one of some topics, from a cursor that the ledger keeps by its name.

        See `antiphon.runtime.subscribe`, which a process that has no system may use.
        """
        return subscribe(self.ledger, *topics, cursor=cursor, start=start)

    # ------------------------------------------------------------ after a crash

    async def recover(self) -> Recovered:
        """Take up what another process left open in the ledger. Spawn the actors, or register their kinds, before.

        Raises:
            LedgerError: the ledger cannot be read or written.
        """
        return await self._kernel.recovery.all()

    async def parked(self) -> tuple[Parked, ...]:
        """Return the messages that wait for a person.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        return await self._kernel.recovery.parked()

    async def settle(
        self, thread_id: str, invocation_id: str, *, result: Json = None, error: str | None = None, retry: bool = False
    ) -> None:
        """Say what becomes of a parked message: its result, an error, or that it shall be tried again.

        Where the outcome of an effect is not known, it is the effect's, and `retry` says that it was not done.

        Raises:
            ValueError: it is not parked.
            LedgerError: it could not be written down.
        """
        await settle(self._kernel.journal, thread_id, invocation_id, Outcome(result=result, error=error, retry=retry))
        await self._kernel.recovery.message(thread_id, invocation_id)

    # ------------------------------------------------------------ the protocol's own surface

    async def get_actor(self, address: str) -> Ref:
        """Return the actor at an address.

        Raises:
            UndeliverableError: nobody lives there.
        """
        return Ref(self, self._kernel.tree.at(address).address)

    async def send_message(self, message: WireMessage, *, within: float | None = None) -> Response:
        """Send a message of the protocol to its receiver, and return the response.

        Within a handler of this system it follows from the message that is handled there (see `Context.send_message`).

        Raises:
            ValueError: it has no receiver.
        """
        if not message.receiver:
            raise ValueError("Message must have a receiver")
        try:
            actor = await self.get_actor(message.receiver)
        except UndeliverableError as exc:
            self._kernel.dead.add(
                DeliveryState(Envelope.of(from_wire(message, None), message.sender or "unknown", message.receiver)),
                exc.code,
                exc.reason,
            )
            return error_response(message, exc)
        return await actor.receive(message, within=within)
