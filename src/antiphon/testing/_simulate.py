"""simulate: runs a whole system in virtual time, with faults that a seed determines.

    simulate(7, host=spawn_my_actors, drive=talk_to_them)

The system is killed several times, at any point, and started again on the same ledger. What the client sends, and what comes
back, is lost, duplicated, delayed and reordered on the way; appends are slow and may fail. When the client is done and the
faults are over, the world must come to rest: no call is open unless it is parked. The same seed gives the same run, to the
last byte of the ledger.

System and ledger are real, with faults added. The faults are drawn from the seed, and counted where they happen.

    simulate_runs(7, program=my_durable_run, freeze=(Point.STARTING, 0))

Several processes run the same program on one ledger, without systems. The first is frozen at a given point of an effect, or
after a given step, past its lease. Another takes its work over. Then it wakes.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from random import Random  # noqa: TID251 (seeded)
from typing import Any, TypeAlias, TypeVar, cast

from antiphon.errors import DeliveryError, FencedError, LedgerError, LedgerUnavailableError, OwnedError
from antiphon.ledger import Epoch, Ledger, Record, TakenThread, Woken, heads_of
from antiphon.ledger import Host as LedgerHost
from antiphon.ledger.memory import MemoryLedger
from antiphon.messages import Message, current_port, use_port
from antiphon.protocol import Notice, Reply, Request
from antiphon.runtime import Settings, System
from antiphon.runtime._points import Point, stop_at
from antiphon.testing._events import Event, What, content_of
from antiphon.testing._virtual_time import Node, StuckError, VirtualLoop, VirtualPort, current_node

# ---------------------------------------------------------------- faults


@dataclass(frozen=True, slots=True)
class Faults:
    """The kinds of faults and their rates. Chances are from 0 to 1, times are in virtual seconds."""

    crashes: int = 3
    """How often the system is killed; the times in between are random."""
    uptime: float = 4.0
    """The average time from a start to the next kill."""
    downtime: float = 2.0
    """The longest time from a kill to the next start."""
    loss: float = 0.1
    """The chance that a message from the client, or an answer to it, is lost."""
    duplication: float = 0.1
    """The chance that it arrives twice."""
    delay: float = 0.5
    """The longest time that it takes; so parcels overtake each other."""
    ledger_delay: float = 0.05
    """The longest time that the ledger takes: half of it before it writes, half after."""
    ledger_failure: float = 0.02
    """The chance that an append fails, before or after it is written. With several systems, other writes may fail too."""
    sleeps: int = 3
    """With several systems, how often at most each of them sleeps, between two starts."""
    sleep: float = 15.0
    """The longest time that it sleeps: longer than its lease."""
    lost_wake_up: float = 0.2
    """With several systems, the chance that a check for posted messages finds none although there are some."""


class FaultyLine:
    """The way between the client and the systems, with faults."""

    def __init__(self, loop: VirtualLoop, random: Random, faults: Faults, landed: Counter[str]) -> None:
        self._loop = loop
        self._random = random
        self._faults = faults
        self._landed = landed
        self.is_calm = False
        """Whether the faults are over."""

    def carry(self, arrive: Callable[[], object]) -> None:
        """Call a function when a message arrives: perhaps twice, perhaps never."""
        copies = 1
        if not self.is_calm:
            if self._happens("loss", self._faults.loss):
                copies = 0
            elif self._happens("duplication", self._faults.duplication):
                copies = 2
        for _ in range(copies):
            self._loop.call_later(self._random.random() * self._faults.delay, arrive)

    def _happens(self, what: str, chance: float) -> bool:
        happens = self._random.random() < chance
        self._landed[what] += happens
        return happens


class FaultyLedger:
    """A ledger that is slow and sometimes fails, before or after it has written."""

    def __init__(self, ledger: Ledger, random: Random, faults: Faults, landed: Counter[str]) -> None:
        self._ledger = ledger
        self._random = random
        self._faults = faults
        self._landed = landed
        self.is_calm = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def append(self, thread_id: str, messages: Iterable[Message], **options: Any) -> tuple[Record, ...]:
        chance = self._random.random()
        is_before = chance < 0.5  # noqa: PLR2004 (as likely as not)
        fails = not self.is_calm and self._random.random() < self._faults.ledger_failure
        if is_before:
            await self._wait()
            if fails:
                self._landed["append failed, not written"] += 1
                raise LedgerUnavailableError("simulated", thread_id)
        records = await self._ledger.append(thread_id, messages, **options)
        if not is_before:
            await self._wait()
            if fails:
                self._landed["append failed, but written"] += 1
                raise LedgerUnavailableError("simulated", thread_id)
        return records

    async def claim(self, thread_id: str, **options: Any) -> Epoch:
        await self._wait()
        return await self._ledger.claim(thread_id, **options)

    async def find(self, **names: Any) -> Sequence[Record]:
        await self._wait()
        return await self._ledger.find(**names)

    async def _wait(self) -> None:
        await asyncio.sleep(self._random.random() * self._faults.ledger_delay)


# ---------------------------------------------------------------- the world

Host: TypeAlias = Callable[[System], Awaitable[None] | None]
"""Spawns the actors, or registers their kinds; called at each start of the system, before it recovers."""

ReplyT = TypeVar("ReplyT", bound=Reply)
OutcomeT = TypeVar("OutcomeT")

_PATIENT = 24 * 3600.0
_RESEND = 0.5
"""Seconds after which the client sends a message again; doubled each time, up to `_LONGEST`."""
_LONGEST = 10.0
_TICK = 1e-9


@dataclass(frozen=True, slots=True)
class Simulated:
    """The outcome of a simulation."""

    seed: int
    hash: str
    """A hash over all threads of the ledger: the same for the same seed."""
    seconds: float
    """The virtual time that it took."""
    landed: Counter[str]
    """The number of faults that happened, by kind."""
    ledger: Ledger
    events: tuple[Event, ...] = ()
    """With several systems, the appends and claims in the order in which they happened."""


class World:
    """The simulated world, as the client sees it."""

    def __init__(self, seed: int, loop: VirtualLoop, faults: Faults) -> None:
        self.seed = seed
        self.landed: Counter[str] = Counter()
        self.events: list[Event] = []
        """With several systems, the appends and claims; a test adds its own events with `say`."""
        self.ledger = MemoryLedger()
        """The ledger without faults, as it is on disk."""
        random = Random(seed)  # noqa: S311 (not for secrets)
        self._random = random
        self._loop = loop
        self._faults = faults
        self._slow = FaultyLedger(self.ledger, random, faults, self.landed)
        self._line = FaultyLine(loop, random, faults, self.landed)
        self._living: dict[int, tuple[Node, System]] = {}
        """The systems that the client can reach, by number."""
        self._asked: list[tuple[Node, asyncio.Task[None]]] = []
        """Everything that the client has asked a system."""
        self._failed: asyncio.Future[None] = loop.create_future()
        """Set when the system itself has failed."""

    # ------------------------------------------------------------ the client

    async def ask(
        self,
        to: str,
        request: Request[ReplyT],
        *,
        thread_id: str | None = None,
        id: str | None = None,
        sender: str = "client",
    ) -> ReplyT:
        """Ask, and repeat the same message until there is an answer, or an error that a retry does not remove.

        Raises:
            DeliveryError: the answer is an error.
        """
        own_id = current_port().new_id() if id is None else id
        return await self._send(
            lambda system: system.ask(to, request, thread_id=thread_id, id=own_id, sender=sender, within=_PATIENT)
        )

    async def tell(self, to: str, notice: Notice, *, thread_id: str | None = None) -> None:
        """Tell, until a system confirms that the message has arrived.

        Raises:
            DeliveryError: it cannot be delivered.
        """
        own_id = current_port().new_id()
        await self._send(lambda system: system.tell(to, notice, thread_id=thread_id, id=own_id, within=_PATIENT))

    async def _send(self, begin: Callable[[System], Coroutine[Any, Any, OutcomeT]]) -> OutcomeT:
        """Send a message to any system, again and again, until an outcome comes back that a retry does not change."""
        outcome: asyncio.Future[OutcomeT] = self._loop.create_future()
        patience = _RESEND
        try:
            while not outcome.done():
                self._line.carry(partial(self._arrive, begin, outcome))
                await asyncio.wait((outcome,), timeout=patience)
                patience = min(_LONGEST, 2 * patience)
            return outcome.result()
        finally:
            outcome.cancel()  # an answer that is still on the way finds nobody

    def _arrive(self, begin: Callable[[System], Coroutine[Any, Any, OutcomeT]], outcome: asyncio.Future[OutcomeT]) -> None:
        living = [life for life in self._living.values() if life[0].is_alive]
        if living:
            node, system = living[int(self._random.random() * len(living))]
            self._asked.append((node, self._loop.start_in(node, self._serve(partial(begin, system), outcome))))

    async def _serve(self, begin: Callable[[], Coroutine[Any, Any, OutcomeT]], outcome: asyncio.Future[OutcomeT]) -> None:
        """Wait for what a system answers, and send it back. An error that passes is not sent: the client asks again."""
        try:
            answer = await begin()  # here: the world may end before this task has started
        except Exception as exc:  # noqa: BLE001 (it is raised where the client waits)
            if not _passes(exc):
                self._line.carry(partial(_settle, outcome.set_exception, exc, outcome))
        else:
            self._line.carry(partial(_settle, outcome.set_result, answer, outcome))

    def say(self, what: What, **details: Any) -> None:
        """Record an event. Events at the same moment keep their order."""
        self.events.append(
            Event(what=what, at=self._loop.time() + len(self.events) * _TICK, who=current_node().name, **details)
        )

    @property
    def beside(self) -> Ledger:
        """The ledger with its faults, as a program beside the systems uses it: one in which a person answers approvals."""
        return cast("Ledger", self._slow)

    # ------------------------------------------------------------ the faults

    async def run(self, host: Host, drive: Drive, settings: Settings, limit: float) -> None:
        """Run the whole simulation."""
        chaos = asyncio.create_task(self._lives(host, settings))
        driving = asyncio.create_task(self._drive(drive, chaos))
        try:
            await asyncio.wait((driving, self._failed), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if self._failed.done():
                self._failed.result()
            if not driving.done():
                raise StuckError(f"after {limit:g} s it is not at rest: {await self._open()}")
            await driving
        finally:
            for task in (chaos, driving):
                task.cancel()
            await asyncio.gather(chaos, driving, return_exceptions=True)

    async def _drive(self, drive: Drive, chaos: asyncio.Task[None]) -> None:
        await drive(self)
        await chaos
        while await self._open():  # noqa: ASYNC110 (no event says when a ledger is at rest)
            await asyncio.sleep(1.0)

    async def _lives(self, host: Host, settings: Settings) -> None:
        """Start and kill the system as often as `faults` demands, then start it for the last time."""
        for number in range(self._faults.crashes):
            node = self._begin(number, host, settings)
            await asyncio.sleep(self._random.expovariate(1 / self._faults.uptime))
            node.is_alive = False
            self.landed["crash"] += 1
            await asyncio.sleep(self._random.random() * self._faults.downtime)
        self._line.is_calm = self._slow.is_calm = True
        self._begin(self._faults.crashes, host, settings)

    def _begin(self, number: int, host: Host, settings: Settings) -> Node:
        node = Node(f"life {number}")
        named = replace(settings, host=settings.host or f"life-{number}")  # rows name the host: the same in every simulation
        self._loop.start_in(node, self._life(node, host, named))
        return node

    async def _life(self, node: Node, host: Host, settings: Settings) -> None:
        """Run the system until it is killed."""
        ledger = cast("Ledger", self._slow)
        try:
            async with System(ledger, settings=settings) as system:
                hosted = host(system)
                if inspect.isawaitable(hosted):
                    await hosted
                await system.recover()
                self._living[0] = node, system
                await asyncio.Event().wait()
        except Exception as exc:  # noqa: BLE001 (it is raised where the world is run)
            self._failed.set_exception(exc)

    async def _open(self) -> list[str]:
        """Return the calls that are open and not parked, without tool calls of a model that never started."""
        calls: list[str] = []
        for head in await heads_of(self.ledger):
            rows = [record.message for record in await self.ledger.open_calls(head.thread_id)]
            parked = {row.parent_id for row in rows if getattr(row.payload, "option_name", "") == "PARK"}
            open_rows = [row for row in rows if row.lane != "talk" or row.to]
            due = [row for row in open_rows if parked.isdisjoint((row.invocation_id, row.parent_id))]
            calls += [f"{head.thread_id}: {row.invocation_id}" for row in due]
        return calls


Drive: TypeAlias = Callable[[World], Awaitable[None]]
"""The program of the client; it ends when the client is done."""


# ---------------------------------------------------------------- several systems on one ledger


TAKEN_FROM_THE_LIVING = "taken from a host that lives"
RELEASED_BY_ANOTHER = "released by a host that does not own it"


class SharedLedger(FaultyLedger):
    """A ledger of several hosts: every verb is slow and may fail, and every append and claim is recorded as an event."""

    def __init__(self, world: HostsWorld, ledger: Ledger, random: Random, faults: Faults) -> None:
        super().__init__(ledger, random, faults, world.landed)
        self._world = world
        self._leases: dict[str, tuple[Node, float]] = {}
        """By host, its process and the end of its lease: a second record, to compare with the ledger's decisions."""
        self._owners: dict[str, str] = {}
        """By thread, its host."""

    async def append(
        self, thread_id: str, messages: Iterable[Message], *, epoch: int = 0, **options: Any
    ) -> tuple[Record, ...]:
        messages = tuple(messages)
        await self._before("append")
        records = await self._ledger.append(thread_id, messages, epoch=epoch, **options)
        self._written(records, epoch)
        await self._after("append")
        return records

    async def post(self, thread_id: str, message: Message, **options: Any) -> Record:
        await self._before("post")
        record = await self._ledger.post(thread_id, message, **options)
        self._written((record,), 0)
        await self._after("post")
        return record

    def _written(self, records: Iterable[Record], epoch: int) -> None:
        """Record the rows that the ledger has written. The host may never learn of them, but the next owner relies on them."""
        for record in records:
            message = record.message
            facts = {"thread": message.thread_id or "", "id": message.id}
            self._world.say("inv", **facts, content=content_of(message), epoch=epoch)
            self._world.say("ok", **facts)

    async def claim(self, thread_id: str, **options: Any) -> Epoch:
        await self._before("claim")
        epoch = await self._ledger.claim(thread_id, **options)
        self._claimed(thread_id, epoch, options["by"])
        await self._after("claim")
        return epoch

    async def take(self, by: LedgerHost, **options: Any) -> tuple[TakenThread, ...]:
        await self._before("take")
        threads = await self._ledger.take(by, **options)
        for taken in threads:
            self._claimed(taken.thread_id, taken.epoch, by)
            self._landed[f"taken over: {taken.why}"] += 1
        await self._after("take")
        return threads

    async def release(self, thread_id: str, **options: Any) -> None:
        await self._before("release")
        await self._ledger.release(thread_id, **options)
        owner = self._owners.pop(thread_id, None)
        if owner is None or self._leases[owner][0] is not current_node():
            self._landed[RELEASED_BY_ANOTHER] += 1
        await self._after("release")

    async def beat(self, host: LedgerHost) -> Any:
        await self._before("beat")
        until = await self._ledger.beat(host)
        self._leases[host.name] = current_node(), asyncio.get_running_loop().time() + host.lease
        return until

    async def leave(self, host: LedgerHost) -> None:
        await self._ledger.leave(host)
        self._leases[host.name] = current_node(), 0.0

    def _claimed(self, thread_id: str, epoch: int, by: LedgerHost) -> None:
        self._world.say("claim", thread=thread_id, epoch=epoch)
        owner = self._owners.get(thread_id, by.name)
        node, ends = self._leases[owner]
        if owner != by.name and asyncio.get_running_loop().time() < ends and (node.is_alive or node.is_far):
            self._landed[TAKEN_FROM_THE_LIVING] += 1
        self._owners[thread_id] = by.name

    async def woken(self, by: LedgerHost, **options: Any) -> tuple[Woken, ...]:
        await self._before("woken")
        if not self.is_calm and self._random.random() < self._faults.lost_wake_up:
            self._landed["wake-up lost"] += 1
            return ()
        return await self._ledger.woken(by, **options)

    async def _before(self, verb: str) -> None:
        await self._wait()
        self._fail(verb, "not written")

    async def _after(self, verb: str) -> None:
        await self._wait()
        self._fail(verb, "but written")

    def _fail(self, verb: str, how: str) -> None:
        if not self.is_calm and self._random.random() < self._faults.ledger_failure / 2:
            self._landed[f"{verb} failed, {how}"] += 1
            raise LedgerUnavailableError("simulated")


class HostsWorld(World):
    """Several systems that host the threads of one ledger. Each is killed, sleeps or closes, at its own times."""

    def __init__(self, seed: int, loop: VirtualLoop, faults: Faults, systems: int) -> None:
        super().__init__(seed, loop, faults)
        self._count = systems
        self._shared = SharedLedger(self, self.ledger, self._random, faults)

    @property
    def beside(self) -> Ledger:
        return cast("Ledger", self._shared)

    async def _lives(self, host: Host, settings: Settings) -> None:
        await asyncio.gather(*(self._slot(slot, host, settings) for slot in range(self._count)))

    async def _drive(self, drive: Drive, chaos: asyncio.Task[None]) -> None:
        await super()._drive(drive, chaos)
        await asyncio.sleep(2 * self._faults.sleep)
        waiting = [node.name for node, task in self._asked if node.is_alive and not task.done()]
        if waiting:
            raise StuckError(f"everything is answered in the ledger, and callers still wait in {waiting}")

    async def _slot(self, slot: int, host: Host, settings: Settings) -> None:
        """Start and end one of the systems as often as `faults` demands, then start it for the last time.

        When all systems have passed their last time of faults, the ledger has no more faults either.
        """
        random, faults = self._random, self._faults
        for number in range(faults.crashes):
            node, life = self._start(f"{slot}.{number}", slot, host, settings)
            await self._trouble(node)
            if random.random() < _CLOSES:
                life.cancel()
                await asyncio.wait((life,))
                self.landed["closed"] += 1
            else:
                self.landed["crash, unseen" if node.is_far else "crash"] += 1
            node.is_alive = False
            self._living.pop(slot, None)
            await asyncio.sleep(random.random() * faults.downtime)
        node, _ = self._start(f"{slot}.{faults.crashes}", slot, host, settings)
        await self._trouble(node)  # also after the last start: no later restart repairs a fault of this time
        self._calm_slots += 1
        self._shared.is_calm = self._line.is_calm = self._calm_slots == self._count

    _calm_slots = 0

    async def _trouble(self, node: Node) -> None:
        """Let a system run for a while, with sleeps in between."""
        for _ in range(int(self._random.random() * (self._faults.sleeps + 1))):
            await asyncio.sleep(self._random.expovariate(1 / self._faults.uptime))
            node.is_asleep = True
            self.landed["sleep"] += 1
            await asyncio.sleep(self._random.random() * self._faults.sleep)
            self._loop.wake(node)
        await asyncio.sleep(self._random.expovariate(1 / self._faults.uptime))

    def _start(self, name: str, slot: int, host: Host, settings: Settings) -> tuple[Node, asyncio.Task[None]]:
        node = Node(name, is_far=self._random.random() < _FAR)
        return node, self._loop.start_in(node, self._host_life(node, slot, host, replace(settings, host=f"host-{name}")))

    async def _host_life(self, node: Node, slot: int, host: Host, settings: Settings) -> None:
        try:
            async with System(cast("Ledger", self._shared), settings=settings) as system:
                hosted = host(system)
                if inspect.isawaitable(hosted):
                    await hosted
                self._living[slot] = node, system
                while True:
                    try:
                        await system.host()
                    except LedgerUnavailableError:
                        await asyncio.sleep(1.0)
        except Exception as exc:  # noqa: BLE001 (it is raised where the world is run)
            if not self._failed.done():
                self._failed.set_exception(exc)


_CLOSES = 0.3
"""The chance that a system closes instead of being killed."""
_FAR = 0.5
"""The chance that the other systems cannot see that a system was killed: its threads wait for the end of the lease."""


def _settle(settle: Callable[[Any], None], outcome: object, waiting: asyncio.Future[Any]) -> None:
    if not waiting.done():
        settle(outcome)


def _passes(error: Exception) -> bool:
    """Whether an error is transient: a retry may have another outcome. Who owns a thread concerns no caller outside of it."""
    is_of_owner = isinstance(error, FencedError | OwnedError)
    return (isinstance(error, LedgerError) and not is_of_owner) or (isinstance(error, DeliveryError) and error.retryable)


def simulate(
    seed: int,
    *,
    host: Host,
    drive: Drive,
    faults: Faults = Faults(),  # noqa: B008 (frozen)
    settings: Settings = Settings(),  # noqa: B008 (frozen)
    limit: float = 3600.0,
    systems: int = 1,
) -> Simulated:
    """Run a system with its faults, and return the outcome.

    With several `systems`, all of them host the threads of one ledger, and the client uses any of them.

    Raises:
        AssertionError: the client found a fault, or the world did not come to rest; the text has the seed.
    """
    loop = VirtualLoop(seed)  # type: ignore[abstract]
    world = World(seed, loop, faults) if systems == 1 else HostsWorld(seed, loop, faults, systems)
    try:
        with use_port(VirtualPort(loop, seed)):
            loop.run_until_complete(world.run(host, drive, settings, limit))
            digest = loop.run_until_complete(_digest(world.ledger))
        return Simulated(seed, digest, loop.time(), world.landed, world.ledger, tuple(world.events))
    except Exception as exc:
        raise AssertionError(f"seed {seed}: {exc}") from exc
    finally:
        loop.close()


async def _digest(ledger: Ledger) -> str:
    digest = sha256()
    for head in await heads_of(ledger):
        digest.update(f"{head.thread_id} {head.seq} {head.hash}\n".encode())
    return digest.hexdigest()


# ---------------------------------------------------------------- durable runs of several processes


Program: TypeAlias = Callable[["RunsWorld", Ledger], Coroutine[Any, Any, None]]
"""A durable run, with the ledger as its process has it; it is called once in each process."""
Freeze: TypeAlias = tuple[Point | None, int]
"""Where the first process is frozen: the point, or None for any step of its tasks; and how many of them it passes before."""


class _OwnLedger:
    """A ledger as one process has it: its runs there are a host of their own."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)


class RunsWorld(HostsWorld):
    """Several processes that run one program. The first of them is frozen once; then the others begin."""

    async def run_programs(self, program: Program, freeze: Freeze | None, limit: float) -> None:
        """Run the whole simulation."""
        node = Node("first")
        self._frozen = asyncio.Event()
        self._passed = Counter[Point | None]()
        node.after_step = lambda: self._pass(node, None, freeze)

        def stop(point: Point, thread_id: str, effect_id: str) -> None:
            if current_node() is node:
                self._pass(node, point, freeze)

        with stop_at(stop):
            processes: list[asyncio.Task[None]] = [self._loop.start_in(node, program(self, self._own()))]
            waiting = asyncio.create_task(self._frozen.wait())
            await asyncio.wait((processes[0], waiting), return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            numbers = range(1, self._count)
            processes += [self._loop.start_in(Node(f"other {number}"), program(self, self._own())) for number in numbers]
            done, open_ = await asyncio.wait(processes, timeout=limit)
        for process in done:
            process.result()
        if open_:
            raise StuckError(f"after {limit:g} s it is not at rest: {await self._open()}")

    def _own(self) -> Ledger:
        return cast("Ledger", _OwnLedger(self.beside))

    def _pass(self, node: Node, point: Point | None, freeze: Freeze | None) -> None:
        """Count a point or a step of the first process, and freeze it there, if it is the one."""
        self._passed[point] += 1
        self.landed[f"passed {point or 'step'}"] += 1
        if freeze is None or freeze != (point, self._passed[point] - 1):
            return
        self.landed["frozen"] += 1
        self._frozen.set()
        seconds = self._faults.sleep * (0.5 + self._random.random())
        if point is not None:
            self._loop.freeze(seconds)
        else:
            node.is_asleep = True
            self._loop.call_later(seconds, self._loop.wake, node, context=Context())


def simulate_runs(
    seed: int,
    *,
    program: Program,
    freeze: Freeze | None = None,
    faults: Faults = Faults(ledger_failure=0.0),  # noqa: B008 (frozen)
    limit: float = 3600.0,
    processes: int = 2,
) -> Simulated:
    """Run a program in several processes, of which the first is frozen once, and return the outcome.

    It is frozen for half of `faults.sleep` up to one and a half times as long. `landed` counts what the first process has
    passed: `passed step`, `passed claimed` and so on.

    Raises:
        AssertionError: a program has failed or has not ended; the text has the seed.
    """
    loop = VirtualLoop(seed)  # type: ignore[abstract]
    world = RunsWorld(seed, loop, faults, processes)
    try:
        with use_port(VirtualPort(loop, seed)):
            loop.run_until_complete(world.run_programs(program, freeze, limit))
            digest = loop.run_until_complete(_digest(world.ledger))
        return Simulated(seed, digest, loop.time(), world.landed, world.ledger, tuple(world.events))
    except Exception as exc:
        raise AssertionError(f"seed {seed}, frozen at {freeze}: {exc}") from exc
    finally:
        loop.close()
