"""Services: what the parts of a system share. The lifetime of the system, and what handlers use of it, as protocols.

`Context` is the only user of most protocols. The parts that implement them are defined above this file and import it. So the
protocols keep the import graph free of cycles, and say exactly what a handler can reach.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import copy_context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload
from weakref import WeakSet

from antiphon.errors import AntiphonError
from antiphon.messages import Json, Message
from antiphon.protocol import Message as WireMessage
from antiphon.protocol import Notice, Reply, Request, Response, Retry
from antiphon.runtime._reporting import LOG, log_fields, log_text, traceback_of

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.runtime._delivery import DeliveryState
    from antiphon.runtime._effects import States
    from antiphon.runtime._exchange import StoredIds
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._settings import Address, RestartWhen, Supervision


class Lifetime:
    """The event loop of a system, its background tasks, and whether it is closing."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.context = copy_context()
        """The context of handlers: they see the port of the system, and not the variables of their sender."""
        self.failure: AntiphonError | None = None
        """Why the whole system has failed."""
        self._owner = asyncio.current_task()
        self._tasks: dict[asyncio.Task[None], None] = {}
        """Background tasks: decisions, commands, heartbeats."""
        self._closing_since: float | None = None

    def open(self) -> None:
        """Open: from now on, a signal closes it gracefully."""
        OPEN.add(self)

    def begin_closing(self) -> None:
        """Start no more work. From now on, messages of threads that are cancelled stay open for the next system."""
        if self._closing_since is None:
            self._closing_since = self.loop.time()

    @property
    def is_closing(self) -> bool:
        """Whether the system is closing."""
        return self._closing_since is not None

    def remaining_grace(self, grace: float) -> float:
        """Return the rest of an actor's grace. When the system closes, the grace of all actors runs from the same moment."""
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
            LOG.error(
                "the runtime itself has failed: %s\n%s", log_text(error), traceback_of(error), extra=log_fields(error=error)
            )

    def fail_system(self, failure: AntiphonError) -> None:
        """Fail the whole system: the root supervisor has given up."""
        if self.failure is None:
            self.failure = failure
            if self._owner is not None:
                self._owner.cancel()

    def forget(self) -> None:
        """Ignore signals from now on. It needs no event loop, which may be gone."""
        OPEN.discard(self)

    async def close(self) -> None:
        """Cancel the background tasks, and wait for them."""
        self.forget()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


OPEN: WeakSet[Lifetime] = WeakSet()
"""The open systems, of all event loops."""


# ---------------------------------------------------------------- what handlers use


ReplyT = TypeVar("ReplyT", bound=Reply)


class Receiver(Protocol):
    """An actor as others see it."""

    async def receive(self, message: WireMessage, *, within: float | None = None) -> Response: ...


class ActorSystem(Protocol):
    """The system of an actor, as its handlers see it.

    What is asked and told through it follows from no message. What is sent through it, by `send_message` or by an actor
    that `get_actor` gave, follows from the one that is handled.
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
    """Carries messages to actors, and outcomes back."""

    async def ask(self, delivery: DeliveryState, within: float | None) -> Any: ...
    async def tell(self, delivery: DeliveryState, within: float | None) -> None: ...
    async def work_out(self, delivery: DeliveryState, handle: Callable[[DeliveryState], Awaitable[Any]]) -> Any: ...
    async def answer(self, delivery: DeliveryState, outcome: Any) -> None: ...
    async def forward(self, delivery: DeliveryState, to: str) -> None: ...
    async def park(self, delivery: DeliveryState, reason: str, evidence: dict[str, Json]) -> None: ...
    def abandon(self, delivery: DeliveryState, error: AntiphonError) -> None: ...
    async def original(self, request: Retry, thread_id: str | None) -> Message: ...
    def knows(self, address: str) -> bool: ...


class Reminders(Protocol):
    """Sets timers."""

    async def set(self, delivery: DeliveryState, address: str, after: float, notice: Notice, key: str | None) -> None: ...


class Ties(Protocol):
    """Has monitors and links."""

    def monitor(self, watcher: str, watched: str) -> None: ...
    def link(self, one: str, other: str) -> None: ...


class OpenWork(Protocol):
    """Delivers the open messages of threads."""

    async def thread(self, thread_id: str, *, is_resumed: bool = False) -> object: ...
    async def message(self, thread_id: str, invocation_id: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Services:
    """What the contexts of a system share."""

    system: ActorSystem
    lifetime: Lifetime
    journal: Journal
    states: States
    stored_ids: StoredIds
    messenger: Messenger
    reminders: Reminders
    ties: Ties
    open_work: OpenWork
