"""Actor: what a user writes. A class with a method for each type of message that it handles.

| what is sent | what runs |
|---|---|
| a request or notice that has a handler | the handler, with the request |
| a core message with the type of such a request or notice | the handler, after the data was validated |
| anything else | `hear`, with the core message |
| anything else, if `hear` is not overridden | `receive`, with the protocol's message; by default an error: unknown type |
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, Union, cast, get_args, get_origin

from antiphon.protocol import ErrorCode, Heartbeat, HeartbeatResponse, Notice, Reply, Request, Response, Retry
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._context import Context, CurrentContext
from antiphon.runtime._exchange import accepted, to_wire

if TYPE_CHECKING:
    from antiphon.messages import Message
    from antiphon.runtime._queues import OrderingKey
    from antiphon.runtime._settings import RestartWhen

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

    It is `async def name(self, request: Ping, context: Context) -> Pong`, where `Pong` is the reply of `Ping`; or
    `-> None` if it answers by `context.reply` or `context.forward`.
    """
    setattr(method, _MARK, True)
    return method


class Actor:
    """Something with an address that handles one message at a time. A factory makes it, again after each restart."""

    concurrency: ClassVar[int] = 1
    """How many messages it handles at once. More than one is for actors without state of their own. Messages of the same
    thread (outside of threads: of the same sender) are still handled in order, unless `ordering_key` says otherwise.
    """
    capacity: ClassVar[int] = CAPACITY
    """How many messages may wait. Further senders wait for room, at most until their deadline."""
    handlers: ClassVar[Mapping[type | str, Handler]] = {}
    """The methods marked with `handles`, by class and by type of message."""
    context = CurrentContext()
    """The context of the handled message, for methods that are not given one; in `started`, that of the actor."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.handlers = {**cls.handlers, **_handlers_in(cls)}

    @classmethod
    def ordering_key(cls, message: Message) -> str | None:
        """Return the ordering key: messages with the same key are handled in order. None: the thread, or the sender.

        Only used if `concurrency` is more than one. It depends on nothing but the message, and does not raise.
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

        Messages that it sends by `self.context.send_message`, or by `send_message` of the system, follow from this one.
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


# ---------------------------------------------------------------- how an actor is made


@dataclass(frozen=True, slots=True)
class Props:
    """How an actor is made and supervised."""

    factory: Callable[[], Actor]
    supervisor: str
    restart: RestartWhen
    grace: float
    """Seconds that its handlers have to end when it stops."""
    concurrency: int
    capacity: int
    ordering_key: OrderingKey | None = None
    """None if the class does not override it."""
    may_rest: bool = False
    """Whether it may be passivated: its kind is registered, so the next message makes a new one."""


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
    """Return the props of an actor. Defaults are those of its class, if the factory is a class or a partial of one."""
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
    """Return the ordering key of a class, if it overrides it. The default needs no core message to be made."""
    found = getattr(made, "ordering_key", None)
    is_default = getattr(found, "__module__", "") == "antiphon.runtime._actor"
    return None if found is None or is_default else found
