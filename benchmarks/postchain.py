"""Threads of six durable steps: PostChain beside LangGraph, with the same agents on the same model, each on one SQLite file.

The model says a word and waits for nothing, so what is measured is what stands around it: for us six phases with their
messages, contexts and effects in the ledger, for LangGraph six nodes with a checkpoint after each. The clock on the wall,
because the disk is waited for. Many threads run at once, as in a server.
"""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from benchmarks._chains import Chain, Graph, Threads
from benchmarks._harness import Sample, Table, no_garbage_collection, waited

__all__ = ["tables"]

ANTIPHON, LANGGRAPH, BARE = "antiphon PostChain", "LangGraph, AsyncSqliteSaver", "six agents, nothing durable"
STEPS = "a thread of six durable steps"
FEW, MANY, VERY_MANY = 100, 1_000, 10_000
HELD = 200
"""Threads whose memory is measured."""
TURNS, BESIDE = 30, 10
"""How long a long thread is, and how many of them run beside each other."""
ROUNDS = 3


def tables(part: str = "") -> Iterator[Table]:
    """Make the tables with `part` in their names, one by one; that of ten thousand threads only where it is named."""
    logging.disable(logging.WARNING)
    for name, make in {
        f"{STEPS}, 10 at once": _at_once(10),
        f"{STEPS}, {FEW} at once": _at_once(FEW),
        f"{STEPS}, as threads become more": _growth(MANY),
        f"{STEPS}, {VERY_MANY:,} at once": _growth(VERY_MANY),
        f"memory of {HELD} threads": _memory,
        f"a thread of {TURNS} turns": _long,
    }.items():
        if part in name and (f"{VERY_MANY:,}" in part or f"{VERY_MANY:,}" not in name):
            with ExitStack() as stack:
                yield make(name, stack)


def _open(stack: ExitStack) -> tuple[Chain, Graph]:
    folder = Path(stack.enter_context(TemporaryDirectory()))
    return stack.enter_context(closing(Chain(folder))), stack.enter_context(closing(Graph(folder)))


def _at_once(number: int) -> Callable[[str, ExitStack], Table]:
    def make(name: str, stack: ExitStack) -> Table:
        ours, peer = _open(stack)
        return Table(
            name=name,
            unit="ms a thread",
            scale=1_000,
            baseline=LANGGRAPH,
            candidates={
                ANTIPHON: waited(lambda sample: ours.run(number, sample), number),
                LANGGRAPH: waited(lambda sample: peer.run(number, sample), number),
                BARE: waited(lambda _: peer.run_bare(number), number),
            },
            against=(BARE,),
            notes=(
                f"a thread of ours has {ours.rows()} rows: messages, contexts, effects, talk",
                "a graph's state is the six answers, and the turns",
            ),
            rounds=ROUNDS,
        )

    return make


def _growth(most: int) -> Callable[[str, ExitStack], Table]:
    """Return what makes the table of how a thread's time grows with their number: linear is a ratio of one."""

    def make(name: str, stack: ExitStack) -> Table:
        ours, peer = _open(stack)
        candidates = {
            f"{ANTIPHON}, {FEW} at once": waited(lambda sample: ours.run(FEW, sample), FEW),
            f"{LANGGRAPH}, {FEW} at once": waited(lambda sample: peer.run(FEW, sample), FEW),
            f"{ANTIPHON}, {most:,} at once": _warm(ours, most),
        }
        if most == MANY:
            candidates[f"{LANGGRAPH}, {most:,} at once"] = _warm(peer, most)
        return Table(
            name=name,
            unit="ms a thread",
            scale=1_000,
            baseline=f"{ANTIPHON}, {FEW} at once",
            candidates=candidates,
            notes=("as many again in each round, in the same file",),
            rounds=2 if most == MANY else 1,
        )

    return make


def _warm(threads: Threads, number: int) -> Sample:
    """Return a sample that is not run once before: it takes a minute, and the smaller ones have warmed everything."""
    sample = iter(range(10**9, 2 * 10**9))

    def measured() -> float:
        with no_garbage_collection():
            start = perf_counter()
            threads.run(number, next(sample))
            return (perf_counter() - start) / number

    return measured


# ---------------------------------------------------------------- memory


def _memory(name: str, _: ExitStack) -> Table:
    return Table(
        name=name,
        unit="KB a thread",
        scale=1 / 1_000,
        baseline=f"{LANGGRAPH}, at work",
        candidates={
            f"{label}, {when}": _resident(kind, when)
            for label, kind in ((ANTIPHON, "chain"), (LANGGRAPH, "graph"))
            for when in ("at work", "ended")
        },
        notes=(
            "what a process of its own has grown by, as the system counts it: while the last step of each waits for its model,"
            " and after all have ended, when as many had run before",
        ),
        rounds=2,
    )


def _resident(kind: str, when: str) -> Sample:
    command = [sys.executable, "-m", "benchmarks._chains", kind, when, str(HELD)]
    return lambda: float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


# ---------------------------------------------------------------- a long thread


def _long(name: str, stack: ExitStack) -> Table:
    ours, peer = _open(stack)

    def turn(threads: Threads, number: int) -> Sample:
        def before(sample: int) -> None:
            threads.begin_turns(BESIDE, sample)
            for _ in range(number - 1):
                threads.turn()

        return waited(lambda _: threads.turn(), BESIDE, before)

    return Table(
        name=name,
        unit="ms a turn",
        scale=1_000,
        baseline=f"{LANGGRAPH}, first turn",
        candidates={
            f"{label}, {which}": turn(threads, number)
            for label, threads in ((ANTIPHON, ours), (LANGGRAPH, peer))
            for which, number in (("first turn", 1), (f"turn {TURNS}", TURNS))
        },
        against=(f"{ANTIPHON}, first turn",),
        notes=(f"{BESIDE} such threads beside each other; an agent is told the last six turns",),
        rounds=ROUNDS,
    )
