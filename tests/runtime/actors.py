"""Actors and requests for the tests of the runtime, and an event loop in which nobody really waits."""

import asyncio
from collections.abc import Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from antiphon.errors import RefusedError
from antiphon.ledger import Host, Ledger
from antiphon.messages import Message, OptionCallPayload, OptionResultPayload, current_port, use_port
from antiphon.protocol import Notice, Reply, Request
from antiphon.runtime import Actor, Context, System, handles
from antiphon.testing._virtual_time import VirtualLoop, VirtualPort

ResultT = TypeVar("ResultT")


def virtually(main: Coroutine[Any, Any, ResultT], seed: int | None = None) -> ResultT:
    """Run in virtual time, and see to it that nothing was left over and nothing failed unseen."""
    loop = VirtualLoop(seed)
    try:
        with use_port(VirtualPort(loop)):
            result: ResultT = loop.run_until_complete(main)
        left = [task for task in asyncio.all_tasks(loop) if not task.done()]
        assert not left, left
        assert not loop.errors, loop.errors
    finally:
        loop.close()
    return result


class SetClock:
    """A clock that a person sets."""

    def __init__(self) -> None:
        self._port, self.ahead = current_port(), timedelta()

    def new_id(self) -> str:
        return self._port.new_id()

    def now(self) -> datetime:
        return self._port.now() + self.ahead


class Pong(Reply, frozen=True, type="TEST_PONG"):
    text: str


class Ping(Request[Pong], frozen=True, type="TEST_PING"):
    text: str


class Note(Notice, frozen=True, type="TEST_NOTE"):
    text: str


class Done(Reply, frozen=True, type="TEST_DONE"):
    said: tuple[str, ...] = ()


class Do(Request[Done], frozen=True, type="TEST_DO"):
    what: Literal["fail", "refuse", "wait", "nothing", "list", "cancel"]
    seconds: float = 0.0


class Via(Request[Pong], frozen=True, type="TEST_VIA"):
    to: str
    text: str
    how: Literal["ask", "forward"] = "ask"
    within: float | None = None


class Probe(Actor):
    """Does what a message says, and remembers its messages; `made` counts how often one was made."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.heard: list[str] = []

    @handles
    async def ping(self, ping: Ping, context: Context) -> Pong:
        self.heard.append(ping.text)
        return Pong(text=f"{ping.text}!")

    @handles
    async def note(self, note: Note, context: Context) -> None:
        self.heard.append(note.text)

    @handles
    async def via(self, request: Via, context: Context) -> Pong | None:
        if request.how == "forward":
            return await context.forward(request.to)
        return await context.ask(request.to, Ping(text=request.text), within=request.within)

    @handles
    async def do(self, request: Do, context: Context) -> Done:
        match request.what:
            case "fail":
                raise ValueError("as told")
            case "refuse":
                raise RefusedError("not today", "NOT_TODAY", details={"day": "monday"}, retryable=True)
            case "wait":
                try:
                    await asyncio.sleep(request.seconds)
                except asyncio.CancelledError:
                    self.heard.append("cancelled")
                    raise
            case "cancel":
                raise asyncio.CancelledError
            case _:
                pass
        return Done(said=tuple(self.heard))


class Stubborn(Actor):
    """Speaks the core: hears any message."""

    async def hear(self, message: Message, context: Context) -> Any:
        if isinstance(message.payload, OptionCallPayload):
            return {"heard": message.payload.option_name}
        return None


async def rows(ledger: Ledger, thread_id: str) -> list[str]:
    """Return a thread as one word a message: `CALL`, `=CALL` for its result, `!CODE` for an error, `"` for what is told."""
    return [_word(record.message) async for record in ledger.read(thread_id)]


def _word(message: Message) -> str:
    match message.payload:
        case OptionCallPayload(option_name=name):
            return name
        case OptionResultPayload(is_error=True, error_type=code):
            return f"!{code}"
        case OptionResultPayload(option_name=name):
            return f"={name}"
        case _:
            return '"'


# ---------------------------------------------------------------- other hosts


async def taken_by_another(ledger: Ledger, thread_id: str) -> int:
    """Have another live host take a thread over, as after a sleep of its owner past the lease; return the epoch."""
    other = Host("another", "build", lease=24 * 3600.0, instance="another/1")
    await ledger.beat(other)
    await ledger.claim(thread_id)
    return await ledger.claim(thread_id, by=other)


async def left_by_the_dead(ledger: Ledger, thread_id: str, kind: str, messages: Sequence[Message] = ()) -> None:
    """Write to a thread as a host that dies afterwards."""
    dead = Host("dead", "build", (kind,), instance="dead/1")
    await ledger.beat(dead)
    await ledger.append(thread_id, messages, epoch=await ledger.claim(thread_id, by=dead, kind=kind))
    await ledger.leave(dead)


async def lease_is_over(system: System) -> None:
    """End the lease of a system that continues, as if it had slept past it."""
    await system.ledger.leave(await system._kernel.lease.host())
