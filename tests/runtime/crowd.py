"""A crowd: real hosts on one ledger, in virtual time, each with a handle of its own that counts what it calls.

The ledger is in memory, and a handle adds the time that a database takes. Hints between the hosts are those of a ledger in
PostgreSQL (`ledger._signals`), with a carrier that loses none. A driver posts threads. A thread does some steps, which take as
long as a model does, and its host asks for a permit for each, if a limit is given. When a thread has ended, the next comes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, cast

from tests.nats import LocalSignals

from antiphon.ledger import Host, Ledger, Limit
from antiphon.ledger._signals import ANYBODY, ProcessHints
from antiphon.ledger._sql.hosts import all_hosts
from antiphon.ledger._sql.rows import find_thread
from antiphon.ledger._sql.statements import Verb
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, OptionCallPayload, use_port
from antiphon.protocol import Reply, Request
from antiphon.runtime import Actor, Context, Settings, System, handles
from antiphon.testing._virtual_time import VirtualLoop, VirtualPort

__all__ = ["Crowd", "Seen", "simulate_crowd"]

STEPS = 6


class Ended(Reply, frozen=True, type="CROWD_ENDED"):
    pass


class Job(Request[Ended], frozen=True, type="CROWD_JOB"):
    posted_at: float


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many hosts there are, and what they do."""

    hosts: int
    in_hand: int = 8
    """Threads of each host."""
    thinks: float = 1.0
    """Seconds that a step takes."""
    seconds: float = 10.0
    """How long it is watched, after a time to begin."""
    latency: float = 0.002
    """Seconds that a call of the ledger takes."""
    limit: int | None = None
    """How many steps of all hosts may be at work at once."""


@dataclass(slots=True)
class Seen:
    """What was seen of a crowd while it was watched."""

    calls: Counter[str] = field(default_factory=Counter[str])
    """By verb of the ledger."""
    signals: int = 0
    ended: int = 0
    """Threads."""
    waited: list[float] = field(default_factory=list[float])
    """Seconds from the post to the handler."""

    def clear(self) -> None:
        """Begin anew."""
        self.calls.clear()
        self.waited.clear()
        self.signals = self.ended = 0


class _Signals(LocalSignals):
    """Signals that are counted, and are heard in a later turn of the loop. Nobody listens for commits."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def send(self, subject: str, data: bytes) -> None:
        self._seen.signals += 1
        if data[:1] == b"w":
            asyncio.get_running_loop().call_soon(super().send, subject, data)


class _Slow:
    """The verbs of a ledger, or of a part of it, each after a call."""

    def __init__(self, verbs: Any, call: Callable[[str], Awaitable[None]]) -> None:
        self._verbs, self._call = verbs, call

    def __getattr__(self, name: str) -> Any:
        verb = getattr(self._verbs, name)
        if not inspect.iscoroutinefunction(verb):
            return verb

        async def called(*values: Any, **more: Any) -> Any:
            await self._call(name)
            return await verb(*values, **more)

        setattr(self, name, called)
        return called


class _Handle:
    """The ledger as one process has it."""

    def __init__(self, ledger: MemoryLedger, carrier: _Signals, seen: Seen, latency: float) -> None:
        self._ledger, self._seen, self._latency = ledger, seen, latency
        self.hints = self._hints = ProcessHints(carrier, "crowd", is_scarce=True)
        self._slow, self.limits = _Slow(ledger, self._call), _Slow(ledger.limits, self._call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._slow, name)

    async def _call(self, verb: str) -> None:
        self._seen.calls[verb] += 1
        await asyncio.sleep(self._latency)

    async def read(self, thread_id: str, *values: Any, **more: Any) -> AsyncIterator[Any]:
        await self._call("read")
        async for record in self._ledger.read(thread_id, *values, **more):
            yield record

    async def append(self, thread_id: str, *values: Any, **more: Any) -> Any:
        await self._call("append")
        records = await self._ledger.append(thread_id, *values, **more)
        self._hints.note_commit()
        return records

    async def post(self, thread_id: str, message: Message, **more: Any) -> Any:
        await self._call("post")
        record = await self._ledger.post(thread_id, message, **more)
        thread = await self._ledger._read(partial(find_thread, thread_id))
        owner = None if thread is None else thread.state.owner
        self._hints.note_commit()
        self._hints.note_work(ANYBODY if owner is None else str(owner))
        return record

    async def beat(self, host: Host) -> Any:
        await self._call("beat")
        until = await self._ledger.beat(host)
        self._hints.note_host(host, *await self._ledger._read(partial(_place, host)))
        return until


def _place(host: Host) -> Verb[tuple[int, int]]:
    """Return the key of a host, and how many hosts there are."""
    found = yield from all_hosts()
    return next((each.key for each in found if each.host.name == host.name), 0), len(found)


class _Worker(Actor):
    def __init__(self, system: System, crowd: Crowd, seen: Seen, ended: asyncio.Queue[None]) -> None:
        self._permits, self._crowd, self._seen, self._ended = system._kernel.lease.permits, crowd, seen, ended

    @handles
    async def work(self, job: Job, context: Context) -> Ended:
        self._seen.waited.append(asyncio.get_running_loop().time() - job.posted_at)

        async def step(key: str) -> str:
            if self._crowd.limit is None:
                await asyncio.sleep(self._crowd.thinks)
            else:
                async with self._permits.hold(["model"], lambda: Decimal(0)):
                    await asyncio.sleep(self._crowd.thinks)
            return key

        for number in range(STEPS):
            await context.effect(f"step-{number}", {}, step, effects="none")
        self._seen.ended += 1
        self._ended.put_nowait(None)
        return Ended()


def simulate_crowd(crowd: Crowd) -> Seen:
    """Run a crowd in virtual time, and return what was seen of it."""
    loop = VirtualLoop()
    try:
        with use_port(VirtualPort(loop)):
            seen = cast("Seen", loop.run_until_complete(_watched(crowd)))
        assert not loop.errors, loop.errors
    finally:
        loop.close()
    return seen


async def _watched(crowd: Crowd) -> Seen:
    ledger, seen, ended = MemoryLedger(redaction="off"), Seen(), asyncio.Queue[None]()
    carrier = _Signals(seen)
    if crowd.limit is not None:
        await ledger.limits.set(Limit("model", at_once=crowd.limit))
    hosting: list[asyncio.Task[None]] = []
    for number in range(crowd.hosts):
        await asyncio.sleep(2.0 / crowd.hosts)  # hosts do not begin all at once
        settings = Settings(host=f"host-{number}", build="1", block_limit=None, thread_limit=crowd.in_hand)
        system = System(cast("Ledger", _Handle(ledger, carrier, seen, crowd.latency)), settings=settings)
        await system.__aenter__()
        system.register("worker", lambda system=system: _Worker(system, crowd, seen, ended), concurrency=1000)
        hosting.append(asyncio.ensure_future(system.host()))
    driving = asyncio.ensure_future(_drive(_Handle(ledger, carrier, seen, crowd.latency), crowd, ended))
    await asyncio.sleep(1.5 * STEPS * crowd.thinks)
    seen.clear()
    await asyncio.sleep(crowd.seconds)
    for task in (driving, *hosting):
        if task.done():
            await task  # it has failed
    return Seen(Counter(seen.calls), seen.signals, seen.ended, list(seen.waited))


async def _drive(ledger: _Handle, crowd: Crowd, ended: asyncio.Queue[None]) -> None:
    """Post threads, as many as the hosts can have in hand, spread over the time that one takes."""
    number, loop = 0, asyncio.get_running_loop()
    pause = STEPS * crowd.thinks / (crowd.hosts * crowd.in_hand)
    while True:
        if number < crowd.hosts * crowd.in_hand:
            await asyncio.sleep(pause)
        else:
            await ended.get()
        number += 1
        data = Job(posted_at=loop.time()).to_data()
        call = OptionCallPayload(invocation_id=f"t-{number}", option_name=Job.message_type, arguments=data)
        asyncio.ensure_future(  # noqa: RUF006 (the loop keeps it)
            ledger.post(f"t-{number}", Message(policy="client", payload=call, to=("worker/1",), lane="control"))
        )
