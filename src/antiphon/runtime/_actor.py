"""Actor: what a user writes. A class with a method for each thing that it can be told or asked.

| what is sent | what runs |
|---|---|
| a request or notice for whose class there is a handler | the handler, with the request as its model |
| a core message that says such a thing | the handler, after the data was validated |
| anything else | `hear`, with the core message |
| anything else, where there is no `hear` | `receive`, with the protocol's envelope: by default, the type is unknown |
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias, TypeVar, Union, cast, get_args, get_origin

from antiphon.protocol import ErrorCode, Heartbeat, HeartbeatResponse, Notice, Reply, Request, Response, Retry
from antiphon.protocol import Message as WireMessage
from antiphon.runtime._context import Context, CurrentContext
from antiphon.runtime._results import accepted, to_wire

if TYPE_CHECKING:
    from antiphon.messages import Message
    from antiphon.runtime._supervision import RestartWhen

MethodT = TypeVar("MethodT", bound=Callable[..., Awaitable[Any]])

CAPACITY = 1000
"""Messages that may wait for an actor, unless it says otherwise."""

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
    context = CurrentContext()
    """The context of the message that is handled here, for methods that are not given one; while the actor begins, its own."""

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
        return accepted(await self.receive(to_wire(message)))

    async def receive(self, message: WireMessage) -> Response:
        """Take a message of the protocol for which there is no handler, and return the response.

        What it sends by `self.context.send_message`, or by `send_message` of the system, follows from this message.
        """
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


# ---------------------------------------------------------------- how an actor is made


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
