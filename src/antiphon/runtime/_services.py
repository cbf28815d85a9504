"""Services: what the handlers of a system use of it, as protocols.

`Context` is the only user of most of these. The parts that implement them are defined above this file and import it. So the
protocols keep the import graph free of cycles, and say exactly what a handler can reach.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from antiphon.messages import Json, Message
from antiphon.protocol import Message as WireMessage
from antiphon.protocol import Notice, Reply, Request, Response, Retry

if TYPE_CHECKING:
    from antiphon.errors import AntiphonError
    from antiphon.ledger import Ledger
    from antiphon.runtime._address import Address
    from antiphon.runtime._envelope import DeliveryState
    from antiphon.runtime._journal import Journal
    from antiphon.runtime._results import StoredIds
    from antiphon.runtime._run import Lifetime
    from antiphon.runtime._state import States
    from antiphon.runtime._supervision import RestartWhen, Supervision

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

    async def thread(self, thread_id: str) -> object: ...
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
