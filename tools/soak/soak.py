"""A soak: hosts on a ledger in PostgreSQL under load, with a fault every few seconds, and a table of what was lost.

Orders keep coming to threads. Each order has a `once` effect. Every process writes its attempts, their outcomes and its
effects to a file of its own, the *witness*; each line is on the disk before the process continues. After the run,
`check_witness` compares these files with the ledger. It finds messages that were acknowledged and are not there, rows in the
wrong order, and effects that started twice.

Every tenth order needs an approval. This process answers each after a random time, and denies some. Afterwards,
`check_approvals` finds approved orders that were not paid once, and paid orders that were not approved.

The faults are real: SIGKILL of one host or of all, SIGSTOP past the lease and within it, SIGTERM, crashes of the database, cut
connections. A quarter of the time there is none. A host that is killed is replaced. `host.py` is the program of a host.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random  # noqa: TID251 (which fault comes next is chosen by a seed, not by the port)
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from tools.soak import host as host_program
from tools.soak.host import APPROVER, PROCESS, Order
from tools.soak.witness import Breach, Evidence, Witness, check_witness, gather_evidence, read_events

from antiphon.agents.toolkit import answer, pending_approvals
from antiphon.errors import LedgerError, NotWaitingError, SetupError
from antiphon.ledger import Ledger, Record, heads_of, open_ledger
from antiphon.messages import Message, OptionCallPayload
from antiphon.service._up import LOCK, LocalDatabase, locked, place_database
from antiphon.testing import Event
from antiphon.testing._events import content_of

ResultT = TypeVar("ResultT")

ROOT: Final = Path(__file__).parents[2]
"""The checkout: the program of a host is in its `tools`."""

HEARTBEAT: Final = 0.5
LEASE: Final = 3 * HEARTBEAT
STUCK: Final = 30.0
"""Seconds after the last fault in which everything must end (G16)."""
_PATIENCE: Final = 60.0
"""Seconds that a host has to end after SIGTERM."""
_FAULTY: Final = 0.75
"""The share of the time in which there are faults."""
_APPROVED: Final = 10
"""Every order of this number needs an approval, if an answer comes."""
_THINKS: Final = 5.0
"""Seconds that the person takes for an answer, at most."""
_DENIES: Final = 0.25
"""The share of the approvals that the person denies."""
_LOOK: Final = 0.2
"""Seconds between two looks for approvals that wait."""
_LOGGED: Final = 20
"""Lines of the hosts' log that a result keeps."""
_COMMAND: Final = "make soak"
_PREFIX: Final = "antiphon-soak-"
"""How the temporary folder of a soak is called."""
_REPORT: Final = 10.0
"""Seconds between two lines about the progress."""

# ---------------------------------------------------------------- hosts, orders, and what must hold


class _PostedLedger:
    """A ledger that records what is posted to it."""

    def __init__(self, ledger: Ledger, events: list[Event]) -> None:
        self._ledger = ledger
        self._events = events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    async def post(self, thread_id: str, message: Message) -> Record:
        """Post a message; record the attempt before it, and that it was acknowledged."""
        attempt = Event(what="inv", at=Witness.now(), thread=thread_id, id=message.id, content=content_of(message))
        self._events.append(attempt)
        record = await self._ledger.post(thread_id, message)
        self._events.append(Event(what="ok", at=Witness.now(), thread=thread_id, id=message.id))
        return record


class Judgement(NamedTuple):
    """What the witnesses and the ledger say."""

    breaches: list[Breach]
    window: int
    """How many effects began in the documented window: a host compares its epoch, is stopped, loses the thread, and then
    begins the effect."""
    parked: set[tuple[str, str]]
    """The parked calls, each with its thread."""


class Site:
    """A ledger, the processes that host its threads, and the orders that come."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.events: list[Event] = []
        """The witness of this process, which posts the orders."""
        self._children: list[subprocess.Popen[str]] = []
        self._has_ended = False

    def start(self, name: str, *, heartbeat: float = HEARTBEAT, seconds: float = 0.1) -> subprocess.Popen[str]:
        """Start a host, and wait until it is ready.

        Raises:
            SetupError: it has ended before.
        """
        arguments = (sys.executable, "-m", host_program.__name__, str(self.folder), name, str(heartbeat), str(seconds))
        environment = {**os.environ, "ANTIPHON_LEDGER": self.url}
        with self._log.open("ab") as log:
            child = subprocess.Popen(  # noqa: S603 (this program)
                arguments,
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self.started(child)

    @property
    def _log(self) -> Path:
        """The warnings of all hosts: under faults there are many."""
        return self.folder / "hosts.log"

    def log_lines(self) -> tuple[str, ...]:
        """Return the last lines that hosts have logged."""
        found = self._log.read_text(errors="replace").splitlines() if self._log.exists() else []
        return tuple(found[-_LOGGED:])

    def started(self, child: subprocess.Popen[str]) -> subprocess.Popen[str]:
        """Wait until a host is ready; from now on it ends with the site.

        Raises:
            SetupError: it has ended before.
        """
        self._children.append(child)
        if self._has_ended:  # after the line above: `end` kills what is in the list
            child.kill()
        if child.stdout is None or not any(line.strip() == "ready" for line in child.stdout):
            raise SetupError(
                f"a host of the soak has not started: {next(reversed(self.log_lines()), 'it has logged nothing')}"
            )
        return child

    def end(self) -> None:
        """Kill all hosts, and those that another thread is starting."""
        self._has_ended = True
        for child in self._children:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()

    async def post_order(self, ledger: Ledger, number: int, thread_id: str, *, needs_approval: bool = False) -> None:
        """Post an order to a thread.

        Raises:
            LedgerError: the ledger cannot be used; whether it has the order is not known.
        """
        arguments = Order(what=f"book {number}", needs_approval=needs_approval).to_data()
        payload = OptionCallPayload(invocation_id=f"m{number}", option_name=Order.message_type, arguments=arguments)
        message = Message(policy="client", payload=payload, to=("shop/1",), lane="control", id=f"m{number}")
        await self.posting(ledger).post(thread_id, message)

    def posting(self, ledger: Ledger) -> Ledger:
        """Return a ledger whose posted messages are in the witness of this process."""
        return cast("Ledger", _PostedLedger(ledger, self.events))

    def ledger(self) -> AbstractAsyncContextManager[Ledger]:
        """Open the ledger."""
        return open_ledger(self.url)

    async def wait(self, holds: Callable[[Ledger], Awaitable[bool]], limit: float = 120.0) -> None:
        """Wait until something holds of the ledger.

        Raises:
            TimeoutError: it does not, in time.
        """
        async with self.ledger() as ledger, asyncio.timeout(limit):
            while not await holds(ledger):  # noqa: ASYNC110 (other processes tell nobody)
                await asyncio.sleep(0.05)

    def witnessed(self) -> list[Event]:
        """Return what the hosts have recorded, in the order of time."""
        return read_events(sorted(self.folder.glob("*.witness")))

    async def judge(self, seen: Sequence[Event]) -> Judgement:
        """Compare what was witnessed with the ledger."""
        evidence, parked = await self._gather()
        parking = [Event(what="park", at=0, thread=thread, id=call) for thread, call in parked]
        events = [*self.events, *_written_by(seen), *parking]
        found = check_witness(events, evidence).breaches
        window = [each for each in found if "after it had lost the thread" in each.what]
        compared = {(event.thread, event.id.partition("@")[0], event.epoch) for event in events if event.what == "ok"}
        began = {(event.thread, event.id): event.epoch for event in events if event.what == "fx"}
        late = [each for each in window if (each.thread, each.id, began[each.thread, each.id]) not in compared]
        rest = [each for each in found if each not in window or each in late]
        return Judgement(rest, len(window) - len(late), set(parked))

    async def _gather(self) -> tuple[Evidence, list[tuple[str, str]]]:
        """Return the rows of the ledger, and its open calls: after the run, only parked calls are open."""
        async with self.ledger() as ledger:
            if not (await ledger.verify()).is_whole:
                raise SetupError("the ledger does not verify: `antiphon verify` says where")
            evidence = await gather_evidence(ledger)
            rows = [row if row.invocation.endswith("/pay") else replace(row, lane="runtime") for row in evidence.rows]
            calls = [
                (head.thread_id, record.message.invocation_id or "")
                for head in await heads_of(ledger)
                for record in await ledger.open_calls(head.thread_id)
            ]
            return Evidence(rows, evidence.statuses), calls


def _written_by(events: Sequence[Event]) -> list[Event]:
    """Leave out attempts that others than the writer of a row made: they were refused, or cut off.

    A host that lost a thread and got it back may try a row again. The row began with the first attempt, and has the epoch and
    the content of the last one.
    """
    written = {(event.thread, event.id): event for event in reversed(events) if event.what == "ok"}
    content = {
        (event.thread, event.id): event.content
        for event in events
        if event.what == "inv"
        and (row := written.get((event.thread, event.id))) is not None
        and event.who == row.who
        and event.at <= row.at
    }
    kept, last = list[Event](), dict[tuple[str, str], Event]()
    for event in events:
        row = written.get((event.thread, event.id))
        if event.what == "inv" and row is not None:
            said = content.get((event.thread, event.id), event.content)
            kept += [replace(event, epoch=row.epoch, content=said)] if event.who == row.who else []
        elif event.what == "inv":
            first = last.get((event.thread, event.id), event)
            last[event.thread, event.id] = replace(event, at=first.at)  # cut off: nobody knows which attempt was written
        elif event.what != "fail" or (row is not None and row.who == event.who and row.at < event.at):
            kept.append(event)
    return [*kept, *last.values()]


def check_approvals(
    asked: Mapping[str, str], answers: Mapping[str, bool], seen: Iterable[Event], parked: Iterable[tuple[str, str]]
) -> list[Breach]:
    """Return the orders that were not paid as they were answered.

    `asked` has the thread of each order that needs an approval, `answers` whether it was approved. A payment whose host was
    killed after its intent is parked, and may not have started.
    """
    paid = Counter((event.thread, event.id.partition("/")[0]) for event in seen if event.what == "fx")
    unsure = {(thread, call.partition("/")[0]) for thread, call in parked}
    found = list[Breach]()
    for order, thread in asked.items():
        number, is_approved = paid[thread, order], answers.get(order)
        if is_approved and number != 1 and (number or (thread, order) not in unsure):
            found.append(Breach("A1", thread, order, f"it was approved, and its payment started {number} times"))
        elif not is_approved and number:
            word = "not answered" if is_approved is None else "denied"
            found.append(Breach("A2", thread, order, f"it was {word}, and its payment started"))
    return found


async def is_at_rest(ledger: Ledger) -> bool:
    """Whether nothing is open but parked calls."""
    for head in await heads_of(ledger):
        rows = [record.message for record in await ledger.open_calls(head.thread_id)]
        parks = [row for row in rows if isinstance(row.payload, OptionCallPayload) and row.payload.option_name == "PARK"]
        parked = {row.parent_id for row in parks}
        if not all(row.invocation_id in parked or row.parent_id in parked for row in rows):
            return False
    return True


# ---------------------------------------------------------------- faults


class Database(Protocol):
    """A PostgreSQL server that can be crashed."""

    @property
    def url(self) -> str: ...
    def start(self) -> None: ...
    def stop(self, mode: str = ...) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakPlan:
    """What a soak does."""

    seconds: float = 60.0
    """How long there are faults."""
    every: float = 5.0
    """Seconds between two faults."""
    hosts: int = 3
    rate: float = 10.0
    """Orders per second."""
    threads: int = 200
    seed: int = 0
    """Chooses the faults."""


@dataclass(frozen=True, slots=True)
class SoakResult:
    """What a soak has found."""

    figures: dict[str, int]
    """Counts of orders, effects, broken rules and faults, by name."""
    breaches: tuple[Breach, ...]
    is_clean: bool
    """Whether no rule is broken, no thread is stuck, and no host has ended by itself."""
    log: tuple[str, ...] = ()
    """The last lines that hosts have logged."""


class Soak(Site):
    """Hosts, orders that keep coming, and faults."""

    def __init__(self, folder: Path, database: Database, *, seed: int = 0) -> None:
        super().__init__(folder, database.url)
        self.database = database
        self._random = random.Random(seed)  # noqa: S311 (no secret)
        self.hosts: dict[str, subprocess.Popen[str]] = {}
        self.faults: Counter[str] = Counter()
        self._thinking = random.Random(f"answers {seed}")  # noqa: S311 (its own: the faults follow from the seed alone)
        self.asked: dict[str, str] = {}
        """The orders that need an approval, each with its thread."""
        self.answers: dict[str, bool] = {}
        """By order, whether it was approved."""
        self.orders = 0
        self.stuck = 0
        self.ended = 0
        """Hosts that have ended by themselves."""

    def add_host(self) -> str:
        """Start another host, and return its name."""
        name = f"h{len(self._children)}"
        self.hosts[name] = self.start(name)
        return name

    async def order_until(self, stop: asyncio.Event, every: float, threads: int, *, with_approvals: bool = False) -> None:
        """Post orders to threads in turn, until an event is set. One that fails has an unknown outcome, as for any client."""

        async def order(ledger: Ledger) -> None:
            number, thread_id = self.orders, f"t{self.orders % threads}"
            needs_approval = with_approvals and number % _APPROVED == 0
            if needs_approval:
                self.asked[f"m{number}"] = thread_id
            with suppress(LedgerError):
                await self.post_order(ledger, number, thread_id, needs_approval=needs_approval)
            self.orders += 1

        await self._repeat_until(stop, every, order)

    async def answer_until(self, stop: asyncio.Event) -> None:
        """Approve or deny the orders that wait, each after some seconds, until an event is set.

        The decision is made once. If the ledger cannot be used, the same answer is given again.
        """
        due: dict[str, float] = {}

        async def answer_some(ledger: Ledger) -> None:
            for approval in await pending_approvals(ledger):
                if due.setdefault(approval.id, Witness.now() + self._thinking.uniform(0, _THINKS)) > Witness.now():
                    continue
                order = f"m{str(approval.arguments['what']).rpartition(' ')[2]}"
                approved = self.answers.setdefault(order, self._thinking.random() >= _DENIES)
                try:
                    await answer(self.posting(ledger), approval.id, principal=APPROVER, approved=approved)
                except NotWaitingError as exc:
                    if exc.code != "ALREADY_ANSWERED":  # an answer that was not acknowledged
                        raise

        await self._repeat_until(stop, _LOOK, answer_some)

    async def _repeat_until(self, stop: asyncio.Event, every: float, work: Callable[[Ledger], Awaitable[None]]) -> None:
        """Do something with the ledger again and again, until an event is set. A fault may prevent even the opening."""
        while not stop.is_set():
            with suppress(LedgerError):
                async with self.ledger() as ledger:
                    while not stop.is_set():
                        with suppress(LedgerError):
                            await work(ledger)
                        await asyncio.sleep(every)
            await asyncio.sleep(_LOOK)

    def _any_host(self) -> str:
        return self._random.choice(sorted(self.hosts))

    def _replace_ended(self) -> None:
        """Count the hosts that have ended by themselves, which no fault may cause, and start as many."""
        for name in [name for name, host in self.hosts.items() if host.poll() is not None]:
            del self.hosts[name]
            self.ended += 1
            self.add_host()

    def kill(self) -> None:
        """SIGKILL a host, and start another."""
        self._killed(self._any_host())
        self.add_host()

    def kill_all(self) -> None:
        """SIGKILL all hosts, and start as many."""
        names = sorted(self.hosts)
        for name in names:
            self._killed(name)
        for _ in names:
            self.add_host()

    def _killed(self, name: str) -> None:
        host = self.hosts.pop(name)
        host.kill()
        host.wait()

    def end_politely(self) -> None:
        """SIGTERM a host, and start another."""
        host = self.hosts.pop(self._any_host())
        host.terminate()
        host.wait(_PATIENCE)
        self.add_host()

    def pause(self, seconds: float = 1.5 * LEASE) -> None:
        """SIGSTOP a host past its lease, then let it continue."""
        host = self.hosts[self._any_host()]
        with suppress(ProcessLookupError):  # it is counted as one that has ended by itself
            os.kill(host.pid, signal.SIGSTOP)
            time.sleep(seconds)
            os.kill(host.pid, signal.SIGCONT)

    def hesitate(self) -> None:
        """SIGSTOP a host for a third of its lease."""
        self.pause(LEASE / 3)

    def crash_database(self) -> None:
        """Stop PostgreSQL without a checkpoint, as a power cut does, and start it."""
        self.database.stop("immediate")
        self.database.start()

    def cut_connections(self) -> None:
        """End all connections of the database (`pg_terminate_backend`)."""
        asyncio.run(_cut_connections(self.url))

    def do(self, fault: Callable[[], None]) -> None:
        """Cause a fault, and count it."""
        self._replace_ended()
        fault()
        self.faults[fault.__name__] += 1

    async def in_thread(self, work: Callable[[], object]) -> None:
        """Do something in another thread. If the caller is cancelled, end the hosts first: the thread may wait for one."""
        await _in_thread(work, self.end)

    async def suffer(self, seconds: float, every: float, stop: asyncio.Event) -> None:
        """Cause a fault every few seconds, a quarter of the time none; until the time is over, or `stop` is set."""
        faults = (
            self.kill,
            self.kill_all,
            self.end_politely,
            self.pause,
            self.hesitate,
            self.crash_database,
            self.cut_connections,
        )
        until = Witness.now() + seconds
        while (began := Witness.now()) < until and not stop.is_set():
            if self._random.random() < _FAULTY:
                await self.in_thread(partial(self.do, self._random.choice(faults)))
            pause = min(began + every, until) - Witness.now()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), max(0.0, pause))

    async def rest(self) -> None:
        """Wait until nothing is open but parked calls; count it if something is still open after `STUCK` seconds."""
        self._replace_ended()
        try:
            await self.wait(is_at_rest, STUCK)
        except TimeoutError:
            self.stuck += 1
            for name in sorted(self.hosts):  # what they write while the ledger is judged would count as never said
                self._killed(name)

    async def result(self) -> SoakResult:
        """Compare the witnesses with the ledger."""
        seen = self.witnessed()
        breaches, window, parked = await self.judge(_without_old_claims(seen))
        breaches = [*breaches, *check_approvals(self.asked, self.answers, seen, parked)]
        rules = Counter(each.rule for each in breaches)
        orders = {event.id for event in self.events if event.what == "ok" and event.id.startswith("m")}
        figures = {
            "orders acknowledged": len(orders),
            "orders approved": sum(self.answers.values()),
            "orders denied": len(self.answers) - sum(self.answers.values()),
            "effects started": sum(event.what == "fx" for event in seen),
            "acknowledged messages lost (R1, R2, R12)": rules["R1"] + rules["R2"] + rules["R12"],
            "messages out of order (R3, R4, R8)": rules["R3"] + rules["R4"] + rules["R8"],
            "once effects started twice, or before their intent (R6, R7)": rules["R6"] + rules["R7"],
            "orders neither answered nor parked (R10)": rules["R10"],
            "approved orders that were not paid once (A1)": rules["A1"],
            "orders paid without an approval (A2)": rules["A2"],
            f"stuck {STUCK:.0f} s after the last fault": self.stuck,
            "hosts that ended by themselves": self.ended,
            "threads with a parked call": len({thread for thread, _ in parked}),
            "effects started in the documented window": window,
            **{f"fault: {name.replace('_', ' ')}": number for name, number in sorted(self.faults.items())},
        }
        return SoakResult(figures, tuple(breaches), is_clean=not (breaches or self.stuck or self.ended), log=self.log_lines())


async def _cut_connections(url: str) -> None:
    import asyncpg  # noqa: PLC0415 (needs the extra `postgres`)

    connection = await asyncpg.connect(url)
    try:
        with suppress(asyncpg.PostgresError):  # another fault may end this connection
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
    finally:
        connection.terminate()


def _without_old_claims(events: Sequence[Event]) -> list[Event]:
    """Leave out claims that a host reports late: it was stopped before the report, and others have claimed since."""
    highest: Counter[str] = Counter()
    kept = list[Event]()
    for event in events:
        if event.what == "claim":
            if event.epoch <= highest[event.thread]:
                continue
            highest[event.thread] = event.epoch
        kept.append(event)
    return kept


async def suffer_under_load(soak: Soak, plan: SoakPlan, stop: asyncio.Event | None = None) -> None:
    """Let orders come and faults happen; then wait until everything has ended."""
    no_orders, no_answers = asyncio.Event(), asyncio.Event()
    ordering = asyncio.ensure_future(soak.order_until(no_orders, 1 / plan.rate, plan.threads, with_approvals=True))
    answering = asyncio.ensure_future(soak.answer_until(no_answers))
    try:
        try:
            await soak.suffer(plan.seconds, plan.every, stop or asyncio.Event())
        finally:
            no_orders.set()
            await ordering
        await soak.rest()  # with answers: an order that waits for one has not ended
    finally:
        no_answers.set()
        await answering


async def _in_thread(work: Callable[[], ResultT], if_cancelled: Callable[[], None] | None = None) -> ResultT:
    """Do something in another thread. If the caller is cancelled, wait until the thread has done it.

    Otherwise a host or a database that the thread starts would be left behind.
    """
    doing = asyncio.ensure_future(asyncio.to_thread(work))
    try:
        return await asyncio.shield(doing)
    except asyncio.CancelledError:
        if if_cancelled is not None:
            if_cancelled()
        await asyncio.gather(doing, return_exceptions=True)
        raise


def _place_database(folder: Path) -> LocalDatabase:
    if os.geteuid() == 0:
        folder.chmod(0o711)  # the user that PostgreSQL runs as must be able to enter it
    return place_database(folder, _COMMAND)


@asynccontextmanager
async def _soaking(folder: Path, seed: int, begin: Callable[[], None]) -> AsyncGenerator[Soak]:
    """Start a database, and end it and the hosts at the end of the block. `begin` is called before it is started."""
    with locked(folder):
        database = await _in_thread(partial(_place_database, folder))
        begin()
        soak = Soak(folder, database, seed=seed)
        try:
            await _in_thread(database.start)
            yield soak
        finally:
            soak.end()
            database.stop("immediate")  # nobody needs its data


def _remove_left(told: Callable[[str], None]) -> None:
    """End what soaks that were killed have left: their databases, and hosts that were suspended. Remove their folders.

    Other hosts of a killed soak end by themselves, its database does not. The kernel releases the lock of a dead process.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with ExitStack() as stack:
            try:
                if folder.lstat().st_uid != os.geteuid() or not (folder / LOCK).exists():
                    continue
                stack.enter_context(locked(folder))
            except (OSError, SetupError):  # it is in use, or another soak has just removed it
                continue
            try:
                _kill_hosts(folder)
                if (folder / "postgres" / "data" / "postmaster.pid").exists():
                    place_database(folder, _COMMAND).stop("immediate")
                shutil.rmtree(folder)
            except (OSError, SetupError) as exc:
                reason = f"{folder} is of a soak that was killed, and cannot be removed: {exc}"
                told(f"{reason}; end the PostgreSQL in it, and delete it")
            else:
                told(f"removed {folder}: it is of a soak that was killed")


def _kill_hosts(folder: Path) -> None:
    """Kill the hosts of a folder that still run. A running host has locked its file, so the process id in it is its own."""
    for path in folder.glob(f"*{PROCESS}"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                with suppress(ValueError, ProcessLookupError):  # it is just starting, or has just ended
                    os.kill(int(file.read()), signal.SIGKILL)


async def _report(soak: Soak, tell: Callable[[str], None]) -> None:
    while True:
        await asyncio.sleep(_REPORT)
        tell(f"{soak.orders} orders, {sum(soak.faults.values())} faults")


async def run_soak(plan: SoakPlan, *, tell: Callable[[str], None], stop: asyncio.Event) -> SoakResult:
    """Run hosts on a PostgreSQL of their own under load, with faults, and return what was lost.

    Nothing outside of a temporary folder is touched. If an earlier soak was killed, its database and its folder are removed
    first. `tell` is called with a line about the progress. When `stop` is set, no further fault is caused, and the result
    covers the time until then.

    Raises:
        SetupError: the database or a host cannot be started.
    """
    await _in_thread(partial(_remove_left, tell))
    load = f"{plan.hosts} hosts on PostgreSQL, {plan.rate:g} orders a second"
    begin = partial(tell, f"{load}, a fault about every {plan.every:g} s, for {plan.seconds:g} s")
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX))
        soak = await stack.enter_async_context(_soaking(Path(folder), plan.seed, begin))
        if stop.is_set():
            return SoakResult({}, (Breach("R0", "", "", "it was stopped before the first order"),), is_clean=False)
        for _ in range(plan.hosts):
            if not stop.is_set():
                await soak.in_thread(soak.add_host)
        reporting = asyncio.ensure_future(_report(soak, tell))
        try:
            await suffer_under_load(soak, plan, stop)
        finally:
            reporting.cancel()
        tell("comparing what each process recorded with the ledger")
        return await soak.result()
