"""System: the public interface of the runtime. It is an `async with` block; none of its tasks outlives the block.

`Ref` is a reference to an actor with the interface of the protocol: `response = await actor.receive(message)`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from antiphon._listeners import Listener, listener
from antiphon.errors import DeliveryError, RefusedError, UndeliverableError
from antiphon.ledger._unopened import check_opened
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Json, Message
from antiphon.messages._arguments import check_type
from antiphon.messages._keys import kind_of
from antiphon.protocol import (
    ErrorCode,
    Notice,
    PauseThread,
    Reply,
    Request,
    Response,
    ResumeThread,
    TerminateThread,
    ThreadPaused,
    ThreadResumed,
    ThreadStatus,
    ThreadTerminated,
)
from antiphon.protocol import Message as WireMessage
from antiphon.protocol.flows import Flow, Verdict
from antiphon.runtime._actor import Actor, context_in, props_of
from antiphon.runtime._delivery import DeliveryState, Envelope
from antiphon.runtime._elsewhere import INBOX, Inbox
from antiphon.runtime._exchange import answer_to, error_response, from_wire, named_thread, outside, response_to
from antiphon.runtime._gates import LIFE_ACTOR
from antiphon.runtime._kernel import Kernel
from antiphon.runtime._life import LifeActor, Settle, is_parked, not_found, read_status
from antiphon.runtime._recovery import Parked, Recovered
from antiphon.runtime._redelivery import last_failure
from antiphon.runtime._settings import SYSTEM, Address, RestartWhen, Settings, Supervision
from antiphon.runtime._supervision import Supervisor
from antiphon.runtime._topics import FlowReporter, Start, Subscription, Topic, subscribe

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, Record
    from antiphon.runtime._gates import Gates
    from antiphon.runtime._journal import Admit
    from antiphon.runtime._life import LookOwn
    from antiphon.runtime._reporting import DeadLetter, Observer


class Ref:
    """A reference to an actor by its address."""

    def __init__(self, system: System, address: str) -> None:
        self._system = system
        self.address = address

    async def receive(self, message: WireMessage, *, within: float | None = None) -> Response:
        """Send the actor a message, and return its response; a failure is an error response.

        In a handler of this system, the message follows from the handled one (`Context.send_message`). Outside, a message
        whose data names a thread is journaled there, and a duplicate gets the same response.
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
"""The root supervisor, which supervises all actors that have no other supervisor."""

ReplyT = TypeVar("ReplyT", bound=Reply)


@dataclass(frozen=True, slots=True)
class ActorView:
    """The state of an actor at one moment."""

    address: str
    supervisor: str
    """Empty for the root supervisor."""
    state: str
    """active; suspended, while it is restarted or stopped; or stopped."""
    restarts: int
    waiting: int
    """The number of messages in its mailbox."""
    load: float
    """How full the mailbox is, from 0 to 1."""


class System:
    """Actors by address, with a ledger for their threads."""

    def __init__(
        self,
        ledger: Ledger | None = None,
        *,
        supervision: Supervision = Supervision(beyond="stop"),  # noqa: B008 (frozen)
        settings: Settings = Settings(),  # noqa: B008 (frozen)
        observer: Observer | None = None,
        admit: Admit | None = None,
    ) -> None:
        """Make a system. It belongs to the running event loop.

        Without a ledger, it uses one in memory. `supervision` applies to actors that have no other supervisor. An `observer`
        receives events. `admit` is the block in which an effect of a thread writes its intent: while it waits there, the
        effect does not start.

        Raises:
            TypeError: the ledger is not open, or is not a ledger.
        """
        if ledger is not None:
            check_opened(ledger)
        check_type("settings", settings, Settings, "Settings(within=60)")
        check_type("supervision", supervision, Supervision, "Supervision(intensity=3)")
        self._kernel = Kernel(self, MemoryLedger() if ledger is None else ledger, settings, observer, admit)
        self._kernel.tree.spawn(
            ROOT, props_of(partial(Supervisor, supervision), supervisor="", concurrency=Supervisor.concurrency)
        )
        self._kernel.tree.spawn(INBOX, props_of(Inbox, supervisor=ROOT, concurrency=Inbox.concurrency))
        life = partial(LifeActor, self._kernel.lives, self._kernel.termination)
        self._kernel.tree.spawn(LIFE_ACTOR, props_of(life, supervisor=ROOT, concurrency=LifeActor.concurrency))

    async def __aenter__(self) -> Self:
        self._kernel.open()
        if self._kernel.hooks is not None:
            self._kernel.hooks.opened(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is GeneratorExit:  # the event loop is closed: nothing can be awaited
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
        """Set `admit`, as in the constructor."""
        self._kernel.admit(admit)

    async def close(self) -> None:
        """Stop all actors, the youngest first. Unfinished messages of threads stay open for the next `recover`."""
        kernel = self._kernel
        kernel.lifetime.begin_closing()
        try:
            kernel.sender.close()
            await kernel.lifecycle.stop(kernel.tree.at(ROOT), "the system ends", is_shutdown=True)
        finally:
            await kernel.close()
        if kernel.hooks is not None:
            kernel.hooks.closed(self)

    @property
    def ledger(self) -> Ledger:
        return self._kernel.ledger

    @property
    def host_name(self) -> str:
        """The name of this system as a host of threads. `Ledger.hosts` lists it once the system has claimed a thread."""
        return self._kernel.lease.name

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of threads that its actors can run; `Settings.kinds` may restrict them."""
        return self._kernel.tree.kinds()

    @property
    def dead_letters(self) -> tuple[DeadLetter, ...]:
        """The latest messages that no actor will handle."""
        return self._kernel.dead.kept

    @property
    def waiting(self) -> Counter[str]:
        """How many messages wait in mailboxes, by kind of actor. It may be read from another OS thread."""
        counts: Counter[str] = Counter()
        for cell in tuple(self._kernel.tree.cells.values()):
            if cell.mailbox is not None:
                counts[kind_of(cell.address)] += cell.mailbox.waiting
        return counts

    @property
    def dead_letter_counts(self) -> Mapping[str, int]:
        """The number of all dead letters by error code, including those that are no longer kept."""
        return dict(self._kernel.dead.counts)

    # ------------------------------------------------------------ actors

    def actors(self) -> tuple[ActorView, ...]:
        """Return all actors in the order in which they were spawned.

        Unloaded actors are not listed: the next message makes them again. It may be called from another OS thread.
        """
        cells = tuple(self._kernel.tree.cells.values())
        return tuple(
            ActorView(
                address=str(cell.address),
                supervisor=str(cell.props.supervisor),
                state=cell.state,
                restarts=cell.incarnation - 1,
                waiting=0 if cell.mailbox is None else cell.mailbox.waiting,
                load=cell.load(None),
            )
            for cell in cells
        )

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
        """Spawn an actor. The factory, usually its class, is called for the first message, and again after each restart.

        A `supervisor` given as a `Supervision` is one supervisor for the kind, at `supervisor/KIND`.

        Raises:
            ValueError: the address is taken or malformed, or the supervisor does not exist or has other rules.
        """
        parsed = Address.parse(address)
        props = props_of(
            factory,
            supervisor=supervisor if isinstance(supervisor, str) else self._supervisor_of(parsed.kind, supervisor),
            restart=restart,
            grace=grace,
            concurrency=concurrency,
            capacity=capacity,
        )
        self._kernel.tree.spawn(parsed, props)
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
        """Register a kind of actor: each actor is made when the first message for its address arrives.

        Raises:
            ValueError: `supervisor` is a `Supervision`, and the kind has a supervisor with other rules.
        """
        props = props_of(
            factory,
            supervisor=supervisor if isinstance(supervisor, str) else self._supervisor_of(kind, supervisor),
            restart=restart,
            grace=grace,
            concurrency=concurrency,
            capacity=capacity,
        )
        self._kernel.tree.register(kind, props)

    def supervise(self, address: str, supervision: Supervision, *, supervisor: str = ROOT) -> Address:
        """Spawn a supervisor; pass its address when you spawn its children.

        Raises:
            ValueError: the address is taken, or its own supervisor does not exist.
        """
        return self.spawn(address, partial(Supervisor, supervision), supervisor=supervisor, concurrency=Supervisor.concurrency)

    def _supervisor_of(self, kind: str, supervisor: Supervision) -> str:
        """Return the address of the supervisor of a kind; it is spawned if it is missing."""
        address = Address("supervisor", kind)
        cell = self._kernel.tree.cells.get(address)
        if cell is None or cell.state == "stopped":
            return self.supervise(address, supervisor)
        if getattr(cell.props.factory, "args", ()) != (supervisor,):
            raise ValueError(f"{address!r} is there with other rules; give {kind!r} the address of a supervisor instead")
        return address

    # ------------------------------------------------------------ messages

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
        """Ask an actor, and wait for its answer.

        In a thread, the question and everything that follows from it are journaled. The same `id` gets the same answer.

        Raises:
            DeliveryError: there is no answer, or it is an error; the class tells what the caller can do.
            LedgerError: it could not be journaled.
        """
        delivery = outside(to, said, thread_id, sender, id)
        try:
            return answer_to(said, delivery, await self._kernel.sender.ask(delivery, within))
        except DeliveryError as exc:
            exc.message_id = delivery.id
            raise

    async def append_history(self, thread_id: str, messages: Iterable[Message]) -> tuple[Record, ...]:
        """Append messages from outside, such as a decoded history, to a thread of this system; claim the thread if necessary.

        They are talk that triggers nothing. An open call in them gets an error result, and is never executed; see `outside` of
        `Ledger.append`. Messages that the thread already has are not written again.

        Raises:
            AppendRefusedError: they name a call that is open in the thread.
            FencedError: another host takes over the thread at the same time.
            OwnedError: another living host owns the thread.
            LedgerError: they cannot be written.
        """
        return await self._kernel.journal.write(thread_id, tuple(messages), allow_foreign=True, outside=True)

    async def append_note(self, thread_id: str, note: Message) -> Record:
        """Append a note of the program to the journal of a thread of this system; claim the thread if necessary.

        Raises:
            FencedError: another host takes over the thread at the same time.
            OwnedError: another living host owns the thread.
            LedgerError: it cannot be written.
        """
        (record,) = await self._kernel.journal.write(thread_id, (note,))
        return record

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
        """Tell an actor something, and wait only until it is in the mailbox; in a thread, it is journaled first.

        Raises:
            DeliveryError: it cannot be delivered.
            LedgerError: it could not be journaled.
        """
        await self._kernel.sender.tell(outside(to, said, thread_id, sender, id), within)

    # ------------------------------------------------------------ following threads

    def watch(self, watcher: Callable[[Record], None]) -> None:
        """Call a function with each record of a thread, right after this system has written it."""
        self._kernel.journal.watchers.append(Listener(watcher))

    def on_evicted(self, forget: Callable[[str], None]) -> None:
        """Call a function with each thread that this system has lost, given up or released, so that it drops its caches.

        Another host may change the thread from then on. The function is called before any handler of the thread runs here
        again.
        """
        self._kernel.eviction.watchers.append(Listener(forget))

    def watch_flow(self, flow: Flow, report: Callable[[str, Verdict], None], **roles: str) -> None:
        """Call a function with the thread and the verdict when a message breaks a flow.

        `roles` binds roles of the flow to names or kinds of actors. Threads that exist already are not checked.
        """
        self.watch(FlowReporter(flow, Listener(report), roles))

    def subscribe(self, *topics: Topic, cursor: str | None = None, start: Start = "beginning") -> Subscription:
        """Follow the messages of all threads that match a topic, from a named cursor that the ledger keeps.

        See `antiphon.runtime.subscribe`, for a process without a system.
        """
        return subscribe(self.ledger, *topics, cursor=cursor, start=start)

    # ------------------------------------------------------------ after a crash

    async def recover(self, thread_id: str | None = None) -> Recovered:
        """Continue the open threads that no living host has and that this system can run; with a `thread_id`, that one.

        Spawn or register the actors before. A thread that stopped because something outside failed is continued only if its id
        is given: that means that the failure was fixed.

        Raises:
            OwnedError: another living host owns the thread.
            LedgerError: the ledger cannot be read or written.
        """
        if thread_id is not None:
            return await self._kernel.recovery.thread(thread_id, is_resumed=True)
        return await self._kernel.hosting.take()

    async def register_host(self) -> None:
        """Register this system with the ledger as a host before it has a thread. Otherwise its first claim does that.

        Raises:
            HostError: another living host has the name.
            LedgerError: the ledger cannot be written.
        """
        await self._kernel.lease.host()

    async def host(self, *, stop: asyncio.Event | None = None, draining: Callable[[int], None] | None = None) -> None:
        """Take threads that are due and have no living owner, and run them, until this is cancelled or `stop` is set.

        Hosts on one ledger share them: each takes a few at a time, and at most `Settings.thread_limit`.

        After `stop`, it takes no more threads. When the system is then closed, its threads are free for other hosts. During a
        deployment, a living host has another build, which may be unable to continue them. Then this continues until the active
        threads have ended, for at most `Settings.drain` seconds; `draining` is called with their number before.

        Raises:
            LedgerError: this host cannot be registered; an unreachable ledger is retried, at the start for ten seconds.
            ValueError: that limit is less than 1.
        """
        await self._kernel.hosting.take_on(stop, listener(draining))

    async def parked(self) -> tuple[Parked, ...]:
        """Return the parked messages, which wait for a person."""
        return await self._kernel.recovery.parked()

    async def settle(
        self, thread_id: str, invocation_id: str, *, result: Json = None, error: str | None = None, retry: bool = False
    ) -> None:
        """Record the outcome of a parked message: a result, an error, or another try.

        If the message is parked because the outcome of an effect is unknown, this records the outcome of the effect, and
        `retry` means that the effect did not happen. `retry` also accepts an effect whose failure ended a run: the run tries
        it again. If another host owns the thread, that host is asked.

        Raises:
            ValueError: it is neither parked nor such a failure.
            DeliveryError: the owner does not answer.
            LedgerError: it could not be journaled.
        """
        not_parked = f"{invocation_id!r} is not parked in thread {thread_id!r}"
        place = self.ledger, thread_id, invocation_id
        if not await is_parked(*place) and (not retry or await last_failure(*place) is None):
            raise ValueError(not_parked)
        outcome: dict[str, Any] = {"retry": True} if retry else {"result": result} if error is None else {"error": error}
        request = Settle(thread_id=thread_id, invocation_id=invocation_id, **outcome)
        try:
            await self.ask(LIFE_ACTOR, request, thread_id=thread_id)
        except RefusedError as exc:
            if exc.code != ErrorCode.INVALID_STATE:
                raise
            raise ValueError(not_parked) from exc  # another person was faster

    # ------------------------------------------------------------ the life of a thread

    async def pause(self, thread_id: str) -> ThreadPaused:
        """Pause a thread: no effect starts until it is resumed. Running effects may finish, and are recorded.

        Raises:
            RefusedError: there is no such thread, or it is terminated.
            DeliveryError, LedgerError: as `ask` does.
        """
        return await self._move(thread_id, PauseThread(thread_id=thread_id))

    async def resume(self, thread_id: str) -> ThreadResumed:
        """Resume a paused thread, and continue calls that another process left open in it.

        Raises:
            RefusedError: there is no such thread, or it is terminated.
            DeliveryError, LedgerError: as `ask` does.
        """
        return await self._move(thread_id, ResumeThread(thread_id=thread_id))

    async def terminate(self, thread_id: str, reason: str = "user_request") -> ThreadTerminated:
        """End a thread for good: no effect starts any more, handlers are cancelled, and open calls get an error result.

        A running effect that must not run twice is parked.

        Raises:
            RefusedError: there is no such thread.
            DeliveryError, LedgerError: as `ask` does.
        """
        return await self._move(thread_id, TerminateThread(thread_id=thread_id, reason=reason))

    async def status(self, thread_id: str) -> ThreadStatus:
        """Return the status of a thread from the ledger, without a write.

        Raises:
            RefusedError: there is no such thread.
            LedgerError: the ledger cannot be read.
        """
        return await read_status(self.ledger, thread_id)

    async def _move(self, thread_id: str, request: Request[ReplyT]) -> ReplyT:
        if await self.ledger.thread(thread_id) is None:
            raise not_found(thread_id)  # a request in the thread would create the thread
        return await self.ask(LIFE_ACTOR, request, thread_id=thread_id)

    @property
    def gates(self) -> Gates:
        """The gates of threads, for patterns that pause threads by their own rules."""
        return self._kernel.lives.gates

    def add_life(self, look: LookOwn, address: Callable[[str], str]) -> None:
        """Let the actor at `address` control the threads for which `look` returns a gate, in place of the built-in actor."""
        self._kernel.lives.add(look, address)

    # ------------------------------------------------------------ messages of the protocol

    async def get_actor(self, address: str) -> Ref:
        """Return the actor at an address.

        Raises:
            UndeliverableError: there is none.
        """
        return Ref(self, self._kernel.tree.at(address).address)

    async def send_message(self, message: WireMessage, *, within: float | None = None) -> Response:
        """Send a message of the protocol to its receiver, and return the response.

        In a handler of this system it follows from the handled message (see `Context.send_message`).

        Raises:
            ValueError: it has no receiver.
        """
        if not message.receiver:
            raise ValueError("Message must have a receiver")
        try:
            actor = await self.get_actor(message.receiver)
        except UndeliverableError as exc:
            self._kernel.dead.add(
                DeliveryState(
                    Envelope.of(from_wire(message, None), message.sender or "unknown", message.receiver), may_be_known=False
                ),
                exc.code,
                exc.reason,
            )
            return error_response(message, exc)
        return await actor.receive(message, within=within)
