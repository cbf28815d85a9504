"""The ledger: appending alone and together, long threads, their size, reading, opening a large file, listing threads.

Wall clock, because what counts is the wait for the disk. What others do to the disk comes in bursts, so samples are short and
rounds are many: then a burst hits all candidates. The files are where Python keeps temporary ones; `TMPDIR` says where.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, closing
from decimal import Decimal
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from antiphon import Message, MessageBuilder, OptionResultBuilder
from antiphon.ledger import Host, Ledger, MasterKey, ThreadFilter, open_ledger, replay
from antiphon.ledger._encryption import Mastering
from antiphon.service import list_approvals
from benchmarks._harness import Goal, Sample, Table, waited, worked
from benchmarks._messages import Said, cases
from benchmarks.peers import raw_pydantic
from benchmarks.stores._store import Store, bytes_in, talk
from benchmarks.stores.antiphon_ import AntiphonStore
from benchmarks.stores.dbos_ import DbosStore
from benchmarks.stores.eventsourcing_ import EventsourcingStore
from benchmarks.stores.langgraph_ import LangGraphStore
from benchmarks.stores.openai_agents_ import OpenAIAgentsStore
from benchmarks.stores.raw_sqlite import RawStore

__all__ = ["tables"]

ANTIPHON, RAW, AGENTS, LANGGRAPH = "antiphon", "raw SQLite", "OpenAI Agents", "LangGraph"
EVENTSOURCING, DBOS = "eventsourcing", "DBOS"
PAYLOAD = "the messages themselves"

SHORT = 10
"""Messages of a conversation, where many are measured: LangGraph writes all of them with each one."""
WRITERS = 100
LONG, LONGER = 1_000, 10_000
MORE = 10
"""Messages that are appended to a long thread in a sample."""
SNAPSHOTS = 300
"""Messages in the thread whose size is measured for LangGraph: its file grows with the square, to 600 MB at 1,000."""
SETTLING = 500
"""Messages that are written ten times over before anything is measured: 6 MB, and a log begins anew after 4."""
MILLION = 1_000_000
MANY = 100_000
"""Threads of which a page is listed."""
ROUNDS = 45
PLAIN, ENCRYPTED = "not encrypted", "encrypted"
APPENDS = 100
"""Appends in a sample."""

StoreT = TypeVar("StoreT", bound=Store)


def tables(part: str = "") -> Iterator[Table]:
    """Make the tables with `part` in their names, one by one."""
    for name, make in {
        "append, one writer": _one_writer,
        "append of 1 KB, encrypted": _encrypted,
        f"append, {WRITERS} conversations at once": _many_writers,
        f"append to a thread of {LONG:,}": _long_thread,
        f"append to a thread of {LONGER:,}": _longer_thread,
        f"append with {LONG:,} calls open": _open_calls,
        f"size of a thread of {LONG:,}": _size,
        f"size of a thread of {LONGER:,}": _larger_size,
        f"read a thread of {LONG:,}": _read,
        "open a ledger of a million": _open_million,
        f"list {MANY:,} threads": _list_many,
        f"list {MANY:,} threads in memory": _list_many,
    }.items():
        if part in name:
            with Stores() as stores:
                table = make(name, stores)
                gc.collect()
                gc.freeze()  # what the peers have imported need not be looked through before every sample
                yield table


class Stores(ExitStack):
    """The stores of a table, each in a folder of its own; closed and removed after it."""

    def open(self, kind: Callable[[Path, Sequence[Said]], StoreT], messages: int) -> StoreT:
        return self.enter_context(closing(kind(self.folder(), talk(messages))))

    def settled(self, kind: Callable[[Path, Sequence[Said]], StoreT], messages: int) -> StoreT:
        """Open a store whose write-ahead log has its full size: while it grows, every wait for the disk is much longer."""
        store = self.open(kind, max(messages, SETTLING))
        for number in range(10) if kind is not DbosStore else ():  # which has no such log
            store.fill(f"settling-{number}", SETTLING)
        return store

    def folder(self) -> Path:
        return Path(self.enter_context(TemporaryDirectory(prefix="antiphon-bench-")))


def _names(number: int, names: int) -> list[str]:
    return [f"t{number}-{each}" for each in range(names)]


# ---------------------------------------------------------------- appending


def _one_writer(name: str, stores: Stores) -> Table:
    kinds: dict[str, Callable[[Path, Sequence[Said]], Store]] = {
        ANTIPHON: AntiphonStore,
        RAW: RawStore,
        EVENTSOURCING: EventsourcingStore,
        AGENTS: OpenAIAgentsStore,
        LANGGRAPH: LangGraphStore,
        DBOS: DbosStore,
    }
    return Table(
        name=name,
        unit="us a message",
        scale=1e6,
        baseline=RAW,
        candidates={each: _one_by_one(stores.settled(kind, SHORT)) for each, kind in kinds.items()},
        goals=(Goal(ANTIPHON, 1.4, RAW), Goal(ANTIPHON, 1 / 5, DBOS)),
        notes=(
            "every message is on the disk before the next is given: WAL, synchronous=FULL (DBOS: a rollback journal)",
            f"conversations of {SHORT} messages; raw SQLite and eventsourcing get bytes that were made before",
        ),
        rounds=ROUNDS,
    )


def _one_by_one(store: Store, conversations: int = 1) -> Sample:
    """Return a sample of new conversations in a store, one after the other."""

    def append(number: int) -> None:
        for name in _names(number, conversations):
            store.append(name, 0, SHORT)

    return waited(append, conversations * SHORT, lambda number: store.begin(_names(number, conversations)))


def _encrypted(name: str, stores: Stores) -> Table:
    master = MasterKey.from_text(MasterKey.generate())
    keys: dict[str, Mastering] = {PLAIN: "off", ENCRYPTED: master}
    return Table(
        name=name,
        unit="us of CPU time a message",
        scale=1e6,
        baseline=PLAIN,
        candidates={each: _one_kilobyte(stores, key) for each, key in keys.items()},
        goals=(Goal(ENCRYPTED, 1.15, PLAIN),),
        notes=(
            "one writer, a message of 1 KB after the other, each on the disk before the next; an owned thread",
            "CPU time of the process: the wait for the disk, which is the same for both, would hide the difference",
        ),
        rounds=ROUNDS,
    )


def _one_kilobyte(stores: Stores, key: Mastering) -> Sample:
    """Return a sample of appends to one thread."""
    runner = stores.enter_context(asyncio.Runner())
    ledger = runner.run(_opened(stores, runner, f"sqlite:///{stores.folder()}/ledger.db", key))
    epoch = runner.run(ledger.claim("t", by=None))
    text = "a kilobyte of text, " * 51

    async def work() -> None:
        for _ in range(APPENDS):
            message = MessageBuilder(policy="agent").add_text(text).to_message()
            await ledger.append("t", (message,), epoch=epoch)

    return worked(lambda: runner.run(work()), APPENDS)


async def _opened(stores: Stores, runner: asyncio.Runner, url: str, key: Mastering) -> Ledger:
    opening = open_ledger(url, master_key=key)
    ledger = await opening.__aenter__()
    stores.callback(lambda: runner.run(opening.__aexit__(None, None, None)))
    return ledger


def _many_writers(name: str, stores: Stores) -> Table:
    ledger, raw, agents, langgraph = (
        stores.settled(kind, SHORT) for kind in (AntiphonStore, RawStore, OpenAIAgentsStore, LangGraphStore)
    )

    def together(append: Callable[[Sequence[str], int], None], store: Store) -> Sample:
        return waited(
            lambda number: append(_names(number, WRITERS), SHORT),
            WRITERS * SHORT,
            lambda number: store.begin(_names(number, WRITERS)),
        )

    return Table(
        name=name,
        unit="us a message",
        scale=1e6,
        baseline=RAW,
        candidates={
            ANTIPHON: together(ledger.append_together, ledger),
            "antiphon, messages made too": together(ledger.make_together, ledger),
            RAW: _one_by_one(raw, 10),
            f"{RAW}, {WRITERS} to a commit": together(raw.append_together, raw),
            AGENTS: together(agents.append_together, agents),
            LANGGRAPH: together(langgraph.append_together, langgraph),
        },
        against=(AGENTS, LANGGRAPH),
        goals=(Goal(ANTIPHON, 1 / 9, RAW), Goal(ANTIPHON, 1 / 12, AGENTS), Goal(ANTIPHON, 1 / 15, LANGGRAPH)),
        notes=(
            f"conversations of {SHORT} messages; in each, a message is on the disk before the next is given",
            "raw SQLite: one writer, one commit a message",
        ),
        rounds=ROUNDS // 2,
    )


# ---------------------------------------------------------------- long threads


def _long_thread(name: str, stores: Stores) -> Table:
    first = LONG * 9 // 10
    ledger, raw, agents, langgraph = (
        stores.settled(kind, LONG) for kind in (AntiphonStore, RawStore, OpenAIAgentsStore, LangGraphStore)
    )

    def filled(store: Store) -> Callable[[int], object]:
        return lambda number: (store.begin([f"long-{number}", f"new-{number}"]), store.fill(f"long-{number}", first))

    def at_the_end(store: Store) -> Sample:
        return waited(lambda number: store.append(f"long-{number}", first, first + MORE), MORE, filled(store))

    def at_the_start(store: Store) -> Sample:
        """Another thread was filled just before this one, too: the disk is busy with that for a while."""
        return waited(lambda number: store.append(f"new-{number}", 0, MORE), MORE, filled(store))

    return Table(
        name=name,
        unit="us a message",
        scale=1e6,
        baseline=_NEW,
        candidates={
            _NEW: at_the_start(ledger),
            "antiphon, the last tenth": at_the_end(ledger),
            f"{RAW}, the first tenth": at_the_start(raw),
            f"{RAW}, the last tenth": at_the_end(raw),
            f"{AGENTS}, the first tenth": at_the_start(agents),
            f"{AGENTS}, the last tenth": at_the_end(agents),
            f"{LANGGRAPH}, the first tenth": at_the_start(langgraph),
            f"{LANGGRAPH}, the last tenth": at_the_end(langgraph),
        },
        goals=(Goal("antiphon, the last tenth", 1.3, _NEW),),
        rounds=ROUNDS,
    )


_NEW = "antiphon, the first tenth"


def _longer_thread(name: str, stores: Stores) -> Table:
    """Make a table of one thread that goes on growing: to fill one for each sample would take too long."""
    kinds: dict[str, Callable[[Path, Sequence[Said]], Store]] = {
        ANTIPHON: AntiphonStore,
        RAW: RawStore,
        EVENTSOURCING: EventsourcingStore,
    }
    candidates: dict[str, Sample] = {}
    for each, kind in kinds.items():
        store = stores.settled(kind, LONGER)
        store.fill("long", LONGER * 9 // 10)
        candidates[f"{each}, the first tenth"] = _one_by_one(store)
        candidates[f"{each}, the last tenth"] = _going_on(store, LONGER * 9 // 10)
    return Table(
        name=name,
        unit="us a message",
        scale=1e6,
        baseline=_NEW,
        candidates=candidates,
        goals=(Goal("antiphon, the last tenth", 1.3, _NEW),),
        rounds=ROUNDS,
    )


def _going_on(store: Store, first: int) -> Sample:
    places = count(first, MORE)

    def append(_: int) -> None:
        place = next(places)
        store.append("long", place, place + MORE)

    return waited(append, MORE)


def _open_calls(name: str, stores: Stores) -> Table:
    """Make a table of processor time: what is open costs none of the disk's."""
    return Table(
        name=name,
        unit="us a message",
        scale=1e6,
        baseline=_NONE_OPEN,
        candidates={
            _NONE_OPEN: _called_and_answered(stores),
            _MANY_OPEN: _called_and_answered(stores, LONG),
        },
        goals=(Goal(_MANY_OPEN, 1.1, _NONE_OPEN),),
        notes=("one thread: a call is made and appended, then its result, each on the disk before the next is given",),
        rounds=ROUNDS,
    )


_NONE_OPEN, _MANY_OPEN = "no other call open", f"{LONG:,} other calls open"


def _called_and_answered(stores: Stores, beside: int = 0) -> Sample:
    """Return a sample of calls and their results, beside calls that stay open."""
    runner = stores.enter_context(asyncio.Runner())
    opened = open_ledger(f"sqlite:///{stores.folder()}/ledger.db")
    ledger = runner.run(opened.__aenter__())
    stores.callback(lambda: runner.run(opened.__aexit__(None, None, None)))

    async def work() -> None:
        for _ in range(SHORT):
            call = _call()
            await ledger.append("calls", [call])
            await ledger.append("calls", [OptionResultBuilder.response_to(call).success({"busy": True})])

    runner.run(ledger.append("calls", [_call() for _ in range(beside)]))
    return worked(lambda: runner.run(work()), 2 * SHORT)


def _call() -> Message:
    return MessageBuilder(policy="assistant").add_option_call("ferry", {"day": 1}).last_option_call


# ---------------------------------------------------------------- size


def _size(name: str, stores: Stores) -> Table:
    kinds: dict[str, Callable[[Path, Sequence[Said]], Store]] = {
        ANTIPHON: AntiphonStore,
        _SEARCHED: AntiphonStore,
        RAW: RawStore,
        EVENTSOURCING: EventsourcingStore,
        AGENTS: OpenAIAgentsStore,
    }
    sizes = {each: _bytes(stores, kind, LONG, one_by_one=True, index=each == _SEARCHED) for each, kind in kinds.items()}
    sizes[f"{LANGGRAPH}, {SNAPSHOTS} messages"] = _bytes(stores, LangGraphStore, SNAPSHOTS, one_by_one=True)
    return _sizes(name, {PAYLOAD: _payload(stores, LONG), **sizes})


def _larger_size(name: str, stores: Stores) -> Table:
    kinds = {ANTIPHON: AntiphonStore, _SEARCHED: AntiphonStore, RAW: RawStore}
    sizes = {each: _bytes(stores, kind, LONGER, index=each == _SEARCHED) for each, kind in kinds.items()}
    return _sizes(name, {PAYLOAD: _payload(stores, LONGER), **sizes})


_SEARCHED = "antiphon, with the search index"


def _sizes(name: str, sizes: dict[str, float]) -> Table:
    return Table(
        name=name,
        unit="bytes a message",
        scale=1,
        baseline=PAYLOAD,
        candidates={each: _constant(size) for each, size in sizes.items()},
        goals=(Goal(ANTIPHON, 1.6, PAYLOAD), Goal(_SEARCHED, 2.1, PAYLOAD)),
        notes=(
            "the file after it was closed; the messages themselves: their bytes in the house format, with the thread's id",
        ),
        rounds=1,
    )


def _constant(value: float) -> Sample:
    return lambda: value


def _payload(stores: Stores, messages: int) -> float:
    store = stores.open(AntiphonStore, messages)
    store.fill("thread", messages)
    return sum(len(record.body) for record in store.read("thread")) / messages


def _bytes(
    stores: Stores,
    kind: Callable[[Path, Sequence[Said]], Store],
    messages: int,
    *,
    one_by_one: bool = False,
    index: bool = False,
) -> float:
    folder = stores.folder()
    with closing(kind(folder, talk(messages))) as store:
        store.begin(["thread"])
        if one_by_one:
            store.append("thread", 0, messages)
        else:
            store.fill("thread", messages)
        if index and isinstance(store, AntiphonStore):
            store.index()
    return bytes_in(folder) / messages


# ---------------------------------------------------------------- reading


def _read(name: str, stores: Stores) -> Table:
    kinds: dict[str, Callable[[Path, Sequence[Said]], Store]] = {
        RAW: RawStore,
        EVENTSOURCING: EventsourcingStore,
        AGENTS: OpenAIAgentsStore,
        LANGGRAPH: LangGraphStore,
    }
    ledger = stores.open(AntiphonStore, LONG)
    ledger.fill("thread", LONG)
    candidates = {
        "antiphon, read": waited(lambda _: ledger.read("thread"), LONG),
        "antiphon, replay": waited(lambda _: replay(ledger, "thread"), LONG),
    }
    for each, kind in kinds.items():
        store = stores.open(kind, LONG)
        store.fill("thread", LONG)
        candidates[each] = waited(_reading(store), LONG)
    (case,) = (case for case in cases() if case.is_stream)
    parse = raw_pydantic.work(case).load
    candidates[_PARSED] = waited(lambda _: [parse() for _ in range(LONG // len(case.messages))], LONG)
    return Table(
        name=name,
        unit="us a message",
        scale=1e6,
        baseline=_PARSED,
        candidates=candidates,
        against=(RAW,),
        goals=(Goal("antiphon, replay", 0.8, _PARSED),),
        notes=(
            "antiphon, read: bytes, with every hash checked; replay: messages; raw SQLite and eventsourcing: bytes, unchecked",
            f"{_PARSED}: the same messages from one JSON array in memory; {LANGGRAPH}: one checkpoint",
        ),
        rounds=15,
    )


_PARSED = "raw pydantic, from memory"


def _reading(store: Store) -> Callable[[int], object]:
    return lambda _: store.read("thread")


# ---------------------------------------------------------------- opening


def _open_million(name: str, stores: Stores) -> Table:
    small, large = (_filled(stores.folder(), messages) for messages in (LONG, MILLION))
    return Table(
        name=name,
        unit="ms",
        scale=1e3,
        baseline=_SMALL,
        candidates={
            _SMALL: waited(lambda _: asyncio.run(_first_answer(small)), 1),
            "a million messages": waited(lambda _: asyncio.run(_first_answer(large)), 1),
            _LIMIT: _constant(5.0),
        },
        goals=(Goal("a million messages", 1.0, _LIMIT),),
        notes=("open the file, list a hundred threads, read the last twenty messages of one, close it",),
        rounds=15,
    )


_SMALL = "a thousand messages"
_LIMIT = "five seconds"
_A_THREAD = 1_000
_LATEST = 20


def _filled(folder: Path, messages: int) -> str:
    """Return the URL of a ledger with so many messages, in threads of a thousand."""
    url = f"sqlite:///{folder}/ledger.db"
    said = [MessageBuilder().add_text(f"How busy was the ferry on day {day}?").to_message() for day in range(_A_THREAD)]
    asyncio.run(_fill(url, said, messages // _A_THREAD))
    return url


async def _fill(url: str, said: Sequence[Message], threads: int) -> None:
    async with open_ledger(url) as ledger:
        for number in range(threads):
            await ledger.append(f"t{number}", said)


async def _first_answer(url: str) -> None:
    async with open_ledger(url, create=False) as ledger:
        page = await ledger.threads(limit=100)
        latest = await _latest(ledger, page.threads[-1].thread_id)
        assert len(latest) == _LATEST


async def _latest(ledger: Ledger, thread: str) -> list[Message]:
    last = (await ledger.head(thread)).seq
    return [record.message async for record in ledger.read(thread, after=last - _LATEST)]


# ---------------------------------------------------------------- listing


def _list_many(name: str, stores: Stores) -> Table:
    """Make a table of what a front page asks for: a page of threads, approvals, parked effects, and what is due."""
    runner = stores.enter_context(asyncio.Runner())
    is_in_memory = name.endswith("memory")
    opened = open_ledger("memory:" if is_in_memory else f"sqlite:///{stores.folder()}/ledger.db")
    ledger = runner.run(opened.__aenter__())
    stores.callback(lambda: runner.run(opened.__aexit__(None, None, None)))
    host = Host("benchmark", "1", ("agent",), lease=24 * 3600.0)
    runner.run(_begin_many(ledger, host))
    asked: dict[str, Callable[[], Coroutine[None, None, object]]] = {
        _PAGE: lambda: ledger.threads(limit=_SHOWN),
        "a page of threads, oldest first": lambda: ledger.threads(order="created_at", limit=_SHOWN),
        "threads with open calls": lambda: ledger.threads(ThreadFilter(open_calls=True), limit=_SHOWN),
        "threads of a rare status": lambda: ledger.threads(ThreadFilter(status="stopped"), limit=_SHOWN),
        "threads of a status that none has": lambda: ledger.threads(ThreadFilter(status="lost"), limit=_SHOWN),
        "threads of a usual status": lambda: ledger.threads(ThreadFilter(status="completed"), limit=_SHOWN),
        "threads with a high cost": lambda: ledger.threads(ThreadFilter(min_cost=Decimal(1)), limit=_SHOWN),
        "branches of a thread": lambda: ledger.threads(ThreadFilter(forked_from="t0"), limit=_SHOWN),
        "threads of a kind that none has": lambda: ledger.threads(ThreadFilter(kind="agent"), limit=_SHOWN),
        "threads that a build cannot continue": lambda: ledger.threads(ThreadFilter(unfit=True), limit=_SHOWN),
        _APPROVALS: lambda: ledger.open_calls(option="APPROVE", limit=_SHOWN),
        "every approval, read": lambda: list_approvals(ledger),
        _PARKED: lambda: ledger.open_calls(option="PARK", order="-recorded_at", limit=_SHOWN),
        "take, with nothing due": lambda: ledger.take(host),
        "woken, with nothing posted": lambda: ledger.woken(host),
    }
    return Table(
        name=name,
        unit="ms",
        scale=1e3,
        baseline=_PAGE,
        candidates={
            **{what: waited(lambda _, ask=ask: runner.run(ask()), 1) for what, ask in asked.items()},
            _QUICK: _constant(0.020),
        },
        goals=tuple(Goal(what, 1.0, _QUICK) for what in (_FRONT_PAGE if is_in_memory else asked)),
        notes=(f"{_SHOWN} of each; a fifth of a percent of the threads wait for an approval, as many have a parked effect",),
        rounds=15,
    )


_PAGE, _QUICK = "a page of threads", "twenty milliseconds"
_APPROVALS, _PARKED = "approvals", "parked effects, newest first"
_FRONT_PAGE = (_PAGE, _APPROVALS, _PARKED)
"""In memory, a filter that few threads fit looks at all of them, and has no goal."""
_SHOWN = 50
_AT_ONCE = 1_000
_RARE = 500
"""Of so many threads, one waits for an approval and one has a parked effect."""


async def _begin_many(ledger: Ledger, host: Host) -> None:
    await ledger.beat(host)
    for first in range(0, MANY, _AT_ONCE):
        numbers = range(first, first + _AT_ONCE)
        await asyncio.gather(*(ledger.append(f"t{each}", _begun(each), status=_status(each)) for each in numbers))


def _status(number: int) -> str:
    return "completed" if number % _RARE else "stopped"


def _begun(number: int) -> list[Message]:
    said = MessageBuilder().add_text(f"How busy was the ferry on day {number}?").to_message()
    option = {0: "APPROVE", 1: "PARK"}.get(number % _RARE)
    return [said] if option is None else [said, MessageBuilder(policy="agent").add_option_call(option, {}).last_option_call]
