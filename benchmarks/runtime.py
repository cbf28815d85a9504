"""Actors: asking one and many, spawning, what an idle one takes, fanning out, and asking in threads on the disk.

CPU time of the whole process, because Pykka has threads. Requests and replies are made before: what is measured is the way.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks._harness import Goal, Sample, Table, waited, worked
from benchmarks.actors._troupe import Troupe
from benchmarks.actors.antiphon_ import AntiphonTroupe, MessageTroupe
from benchmarks.actors.asyncio_ import AsyncioTroupe
from benchmarks.actors.autogen_ import AutogenTroupe, RoutedTroupe
from benchmarks.actors.durable import DurableAsks, RawRows
from benchmarks.actors.pykka_ import PykkaTroupe
from benchmarks.actors.thespian_ import ThespianTroupe

__all__ = ["tables"]

ANTIPHON, MESSAGES = "antiphon", "antiphon, core messages"
LIMIT, ROUTED, PLAIN = "raw asyncio", "autogen-core", "autogen-core, BaseAgent"
PYKKA, THESPIAN = "Pykka", "Thespian"

TROUPES: dict[str, Callable[[], Troupe]] = {
    ANTIPHON: AntiphonTroupe,
    MESSAGES: MessageTroupe,
    LIMIT: AsyncioTroupe,
    ROUTED: RoutedTroupe,
    PLAIN: AutogenTroupe,
    PYKKA: PykkaTroupe,
    THESPIAN: ThespianTroupe,
}

IN_TURN, TOGETHER = 2_000, 1_000
ASKS_EACH = 10
"""How often each of many clients asks, so that what is measured is not how they begin."""
MANY = TOGETHER * ASKS_EACH
OTHERS = 100
SPAWNED, THREADS = 1_000, 100
IDLE, IDLE_THREADS = 100_000, 1_000
CLIENTS, ASKS = 100, 10
ROUNDS = 11


def tables(part: str = "") -> Iterator[Table]:
    """Make the tables with `part` in their names, one by one."""
    for name, make in {
        "ask, one in flight": _in_turn,
        f"ask, {TOGETHER:,} in flight": _together,
        f"ask {MANY:,} actors, one in flight": _many_in_turn,
        f"ask {MANY:,} actors, {TOGETHER:,} in flight": _many_together,
        f"fan out to {OTHERS} and back": _fan_out,
        "spawn": _spawn,
        "spawn and ask": _spawn_and_ask,
        f"memory of {IDLE:,} idle actors": _idle,
        f"durable asks, {CLIENTS} in flight": _durable,
        f"durable asks, {CLIENTS} in flight, CPU time": _durable_work,
    }.items():
        if part in name:
            with Stage() as stage:
                table = make(name, stage)
                gc.collect()
                gc.freeze()  # what the peers have imported need not be looked through before every sample
                yield table


class Stage(ExitStack):
    """The troupes of a table, and folders; closed and removed after it."""

    def troupes(self, *without: str) -> dict[str, Troupe]:
        """Open a troupe of each kind."""
        return {name: self.enter_context(closing(make())) for name, make in TROUPES.items() if name not in without}

    def folder(self) -> Path:
        return Path(self.enter_context(TemporaryDirectory(prefix="antiphon-bench-")))


def _names(number: int) -> list[str]:
    return [str(each) for each in range(number)]


# ---------------------------------------------------------------- asking


def _table(name: str, samples: dict[str, Sample], goals: tuple[Goal, ...], *notes: str, unit: str = "us an ask") -> Table:
    return Table(
        name=name,
        unit=unit,
        scale=1e6,
        baseline=LIMIT,
        candidates=samples,
        against=(ROUTED, PLAIN),
        absent=tuple(kind for kind in TROUPES if kind not in samples and kind != MESSAGES),
        goals=goals,
        notes=notes,
        rounds=ROUNDS,
    )


def _in_turn(name: str, stage: Stage) -> Table:
    def sample(troupe: Troupe) -> Sample:
        handles = [*troupe.begin(["one"])] * IN_TURN
        return worked(lambda: troupe.ask(handles), IN_TURN)

    return _table(
        name,
        {kind: sample(troupe) for kind, troupe in stage.troupes().items()},
        (Goal(ANTIPHON, 2.2, LIMIT), Goal(ANTIPHON, 1 / 8, ROUTED)),
        f"{MESSAGES}: made for each ask, validated on arrival, answered by a message; the others send what was made before",
        f"{LIMIT}: a deque, a task and a future; {PYKKA}: threads, and only what they compute, not their waits for each other",
        f"{THESPIAN}: simpleSystemBase, which calls the actor in the thread of whoever asks",
    )


def _together(name: str, stage: Stage) -> Table:
    def sample(troupe: Troupe) -> Sample:
        clients = [[*troupe.begin(["one"])] * ASKS_EACH] * TOGETHER
        return worked(lambda: troupe.ask_together(clients), TOGETHER * ASKS_EACH)

    return _table(
        name,
        {kind: sample(troupe) for kind, troupe in stage.troupes().items()},
        (Goal(ANTIPHON, 1 / 15, ROUTED),),
        f"{TOGETHER:,} clients of one actor, each of which asks {ASKS_EACH} times",
    )


def _many_in_turn(name: str, stage: Stage) -> Table:
    def sample(troupe: Troupe) -> Sample:
        handles = troupe.begin(_names(MANY))
        return worked(lambda: troupe.ask(handles), MANY)

    return _table(
        name,
        {kind: sample(troupe) for kind, troupe in stage.troupes(MESSAGES, PYKKA).items()},
        (),
        _NO_THREADS,
    )


def _many_together(name: str, stage: Stage) -> Table:
    def sample(troupe: Troupe) -> Sample:
        handles = troupe.begin(_names(MANY))
        clients = [handles[first::TOGETHER] for first in range(TOGETHER)]
        return worked(lambda: troupe.ask_together(clients), MANY)

    return _table(
        name,
        {kind: sample(troupe) for kind, troupe in stage.troupes(MESSAGES, PYKKA).items()},
        (Goal(ANTIPHON, 1 / 12, ROUTED),),
        f"{TOGETHER:,} clients, each of which asks {ASKS_EACH} of the actors, one after the other",
        _NO_THREADS,
    )


_NO_THREADS = f"{PYKKA} would need {MANY:,} threads"


def _fan_out(name: str, stage: Stage) -> Table:
    def sample(troupe: Troupe) -> Sample:
        leader, *others = troupe.begin(_names(OTHERS + 1))
        return worked(lambda: [troupe.fan_out(leader, others) for _ in range(10)], 10 * OTHERS)

    return _table(
        name,
        {kind: sample(troupe) for kind, troupe in stage.troupes(MESSAGES).items()},
        (),
        "an actor is asked, asks the others at once, and answers when it has their answers",
        unit="us an answer",
    )


# ---------------------------------------------------------------- being there


def _spawn(name: str, stage: Stage) -> Table:
    def sample(kind: str, troupe: Troupe) -> Sample:
        actors, numbers = _crowd(kind), count()
        return worked(lambda: troupe.begin(_fresh(actors, numbers)), actors)

    return _table(
        name,
        {kind: sample(kind, troupe) for kind, troupe in stage.troupes(MESSAGES).items()},
        (Goal(ANTIPHON, 1 / 10, ROUTED),),
        f"{ANTIPHON} makes the place, and the actor itself for its first message; the others make the actor",
        unit="us an actor",
    )


def _spawn_and_ask(name: str, stage: Stage) -> Table:
    def sample(kind: str, troupe: Troupe) -> Sample:
        actors, numbers = _crowd(kind), count()
        return worked(lambda: troupe.ask(troupe.begin(_fresh(actors, numbers))), actors)

    return _table(
        name, {kind: sample(kind, troupe) for kind, troupe in stage.troupes(MESSAGES).items()}, (), unit="us an actor"
    )


def _crowd(kind: str) -> int:
    return THREADS if kind == PYKKA else SPAWNED


def _fresh(actors: int, numbers: Iterator[int]) -> list[str]:
    return [str(next(numbers)) for _ in range(actors)]


def _idle(name: str, _: Stage) -> Table:
    return Table(
        name=name,
        unit="bytes an actor",
        scale=1,
        baseline=ROUTED,
        candidates={
            ANTIPHON: _resident("antiphon", IDLE),
            _ASKED: _resident("antiphon", IDLE, "asked"),
            LIMIT: _resident("asyncio", IDLE),
            ROUTED: _resident("autogen-routed", IDLE),
            PLAIN: _resident("autogen", IDLE),
            _THREADS: _resident("pykka", IDLE_THREADS),
            THESPIAN: _resident("thespian", IDLE),
        },
        against=(PLAIN, _THREADS),
        goals=(Goal(_ASKED, 1.0, ROUTED), Goal(_ASKED, 1 / 30, _THREADS)),
        notes=(
            "what a process of its own has grown by, as the system counts it; the name and an actor without state of its own",
            f"{ANTIPHON}: no message has come; the others have made the actor",
        ),
        rounds=2,
    )


_ASKED = "antiphon, asked once"
_THREADS = f"{PYKKA}, {IDLE_THREADS:,} threads"


def _resident(kind: str, actors: int, *more: str) -> Sample:
    command = [sys.executable, "-m", "benchmarks.actors._idle", kind, str(actors), *more]
    return lambda: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# ---------------------------------------------------------------- on the disk


def _durable(name: str, stage: Stage) -> Table:
    works = _asks_on_disk(stage)
    return Table(
        name=name,
        unit="us an ask",
        scale=1e6,
        baseline=_ONE_COMMIT,
        candidates={kind: waited(work, asks) for kind, (work, asks) in works.items()},
        against=(_SHARED,),
        goals=(Goal(ANTIPHON, 1 / 9, _ONE_COMMIT),),
        notes=(
            f"{CLIENTS} clients, each of which asks {ASKS} times in a new thread",
            "an ask is a call and a result, and each of the two is on the disk before anything follows from it",
            "raw SQLite writes the same bytes, made before; WAL, synchronous=FULL; time on the wall",
        ),
        rounds=3 * ROUNDS,
    )


def _durable_work(name: str, stage: Stage) -> Table:
    numbers = count()

    def sample(work: Callable[[int], object], asks: int) -> Sample:
        return worked(lambda: work(next(numbers)), asks)

    return Table(
        name=name,
        unit="us an ask",
        scale=1e6,
        baseline=_LEDGER,
        candidates={kind: sample(work, asks) for kind, (work, asks) in _asks_on_disk(stage).items()},
        against=(_SHARED,),
        notes=("the same as CPU time, the thread that writes included: what it takes where the disk is no hindrance",),
        rounds=ROUNDS,
    )


_SHARED = f"raw SQLite, {CLIENTS} rows to a commit"
_ONE_COMMIT = "raw SQLite, a commit a row"
_LEDGER = "antiphon, the ledger alone"


def _asks_on_disk(stage: Stage) -> dict[str, tuple[Callable[[int], object], int]]:
    """Return by kind what to do with a new number, and how many asks that is."""
    asks = stage.enter_context(closing(DurableAsks(stage.folder())))
    rows = asks.rows(ASKS)
    said = [row.message.model_copy(update={"thread_id": None}) for row in rows]
    raw = stage.enter_context(closing(RawRows(stage.folder(), rows)))
    return {
        ANTIPHON: (lambda number: asks.converse(_threads("a", number), ASKS), CLIENTS * ASKS),
        "antiphon, a thread an ask": (lambda number: asks.converse(_threads("b", number), 1), CLIENTS),
        _LEDGER: (lambda number: asks.append(_threads("c", number), said), CLIENTS * ASKS),
        _SHARED: (lambda number: raw.append_together(_threads("d", number), 2 * ASKS), CLIENTS * ASKS),
        _ONE_COMMIT: (lambda number: raw.append(f"e{number}", 0, 2 * ASKS), ASKS),
    }


def _threads(kind: str, number: int) -> Sequence[str]:
    return [f"{kind}{number}-{client}" for client in range(CLIENTS)]
