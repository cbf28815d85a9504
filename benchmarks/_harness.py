"""The clock: candidates are sampled in turns, and only ratios within one round are believed.

A table has a baseline, candidates and goals. In each round every candidate is sampled once, in shuffled order; a ratio is
the median over the rounds of (candidate / baseline), so that a machine which is slow for a while is slow for both. Five
things that have produced wrong numbers are kept out:

- the garbage collector is off while a sample runs *and* while its length is chosen, and collects between the samples;
- a sample lasts at least `SAMPLE_SECONDS` and `LEAST_CALLS` calls, and begins with calls that are not timed;
- time is the CPU time of this thread (of all threads, where peers have some): what other processes do does not count. Only
  what waits for a disk is measured by the clock on the wall;
- freed memory is kept. Else the C library gives a large block back at once, and whether the next call pays for fetching it
  again (up to twice the time of writing 250 KB) depends on what ran before;
- the baseline runs a second time, under another name (A/A). If the two differ, the table says nothing, and fails.
"""

from __future__ import annotations

import ctypes
import gc
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, repeat
from statistics import median
from time import perf_counter, process_time, thread_time
from typing import TypeVar

__all__ = [
    "Goal",
    "Outcome",
    "Sample",
    "Table",
    "clocked",
    "clocked_on",
    "keep_freed_memory",
    "run",
    "waited",
    "worked",
]

ROUNDS = 9
SAMPLE_SECONDS = 0.02
LEAST_CALLS = 25
PREPARED_CALLS = 200
SEED = 20260131
SAME = (0.9, 1.1)
"""Within this the baseline must stay of itself."""

_MIB = 1024 * 1024
_TRIM_THRESHOLD = -1  # from malloc.h
_MMAP_THRESHOLD = -3

Made = TypeVar("Made")

Sample = Callable[[], float]
"""Takes one sample and returns the seconds of one unit of work."""


@dataclass(frozen=True)
class Goal:
    """A candidate takes at most so many times what another takes."""

    candidate: str
    at_most: float
    of: str


@dataclass(frozen=True)
class Table:
    """What is compared."""

    name: str
    unit: str
    """What the column of times is in."""
    scale: float
    """How many of the unit make a second."""
    baseline: str
    candidates: Mapping[str, Sample]
    against: tuple[str, ...] = ()
    """Further candidates that get a column of ratios."""
    absent: tuple[str, ...] = ()
    """Shown with a dash: cannot express the case."""
    floor: str | None = None
    """The candidate that does nothing: its median is taken off all others, and it gets no row."""
    goals: tuple[Goal, ...] = ()
    notes: tuple[str, ...] = ()
    rounds: int = ROUNDS

    @property
    def control(self) -> str:
        """The name of the baseline's clone."""
        return f"{self.baseline}, again (A/A)"


@dataclass(frozen=True)
class Outcome:
    """What was measured: the seconds of each candidate, round by round."""

    table: Table
    seconds: dict[str, list[float]] = field(repr=False)
    attempts: int

    def ratio(self, candidate: str, of: str) -> float:
        return median(a / b for a, b in zip(self.seconds[candidate], self.seconds[of], strict=True))

    def absolute(self, candidate: str) -> float:
        """Return the time of the fastest round, which was disturbed least. Only for orientation: ratios are what counts."""
        return min(self.seconds[candidate]) * self.table.scale

    def meets(self, goal: Goal) -> bool:
        return self.ratio(goal.candidate, goal.of) <= goal.at_most

    @property
    def is_steady(self) -> bool:
        """Whether the baseline is as fast as itself."""
        return SAME[0] <= self.ratio(self.table.control, self.table.baseline) <= SAME[1]


def keep_freed_memory() -> None:
    """Tell the C library not to give memory back. Only glibc can be told; elsewhere nothing happens."""
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_TRIM_THRESHOLD, 256 * _MIB)
        mallopt(_MMAP_THRESHOLD, 32 * _MIB)  # the most it takes


def run(table: Table) -> Outcome:
    """Measure a table; once more if A/A says that the first time was worth nothing."""
    outcome = Outcome(table, _measure(table), attempts=1)
    return outcome if outcome.is_steady else Outcome(table, _measure(table), attempts=2)


def _measure(table: Table) -> dict[str, list[float]]:
    samples = {**table.candidates, table.control: table.candidates[table.baseline]}
    seconds: dict[str, list[float]] = {name: [] for name in samples}
    order, shuffle = list(samples), random.Random(SEED).shuffle
    for _ in range(table.rounds):
        shuffle(order)
        for name in order:
            seconds[name].append(samples[name]())
    return seconds if table.floor is None else _above(seconds, table.floor)


def _above(seconds: dict[str, list[float]], floor: str) -> dict[str, list[float]]:
    ground = median(seconds[floor])
    return {name: [each - ground for each in found] for name, found in seconds.items() if name != floor}


# ---------------------------------------------------------------- samples


def clocked(function: Callable[[], object], units: int = 1) -> Sample:
    """Return a sample of a function that does `units` units of work in a call."""
    calls = _calls_that_last(function)

    def sample() -> float:
        with no_garbage_collection():
            _seconds(function, LEAST_CALLS // 5)
            return _seconds(function, calls) / (calls * units)

    return sample


def clocked_on(prepare: Callable[[], Made], function: Callable[[Made], object]) -> Sample:
    """Return a sample of a function that needs something made for each call; the making is not timed."""

    def sample() -> float:
        with no_garbage_collection():
            for _ in repeat(None, LEAST_CALLS // 5):
                function(prepare())
            return sum(_seconds(partial(function, prepare()), 1) for _ in repeat(None, PREPARED_CALLS)) / PREPARED_CALLS

    return sample


def worked(work: Callable[[], object], units: int) -> Sample:
    """Return a sample of work that is long enough by itself: the CPU time of the whole process, all its threads together."""

    def sample() -> float:
        with no_garbage_collection():
            start = process_time()
            work()
            return (process_time() - start) / units

    sample()  # cold
    return sample


_NUMBERS = count()


def waited(work: Callable[[int], object], units: int, before: Callable[[int], object] = lambda _: None) -> Sample:
    """Return a sample of work that waits. It is told a number that no other sample has; so is `before`."""

    def sample() -> float:
        number = next(_NUMBERS)
        before(number)
        with no_garbage_collection():
            start = perf_counter()
            work(number)
            return (perf_counter() - start) / units

    sample()  # cold: tables, caches and threads are made
    return sample


def _calls_that_last(function: Callable[[], object]) -> int:
    """Return how often to call a function so that a sample is long enough."""
    with no_garbage_collection():
        _seconds(function, LEAST_CALLS)
        calls = LEAST_CALLS
        while (taken := _seconds(function, calls)) < SAMPLE_SECONDS:
            calls = max(2 * calls, round(1.1 * calls * SAMPLE_SECONDS / taken)) if taken > SAMPLE_SECONDS / 10 else 4 * calls
    return calls


def _seconds(function: Callable[[], object], calls: int) -> float:
    start = thread_time()
    for _ in repeat(None, calls):
        function()
    return thread_time() - start


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Have the garbage collector off in the block, after it has looked once."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
