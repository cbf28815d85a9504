"""Compare this tree with an earlier commit: `make since COMMIT=v0.1.0 ARGS="codec runtime:ask"`.

Each tree runs its own benchmarks on its own sources, in a process of its own. The two processes take turns, sample by sample:
a machine that is slower for a while is slower for both. A row has two ratios (new / old): the median over the pairs of
samples, and that of the fastest samples. A row is slower if both are above `AT_MOST`. The rows `raw …` do not depend on
antiphon: they are the control, and should say 1.00.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

HERE = Path(__file__).parent.parent
AT_MOST = 1.05
PAIRS = 21
"""Pairs of samples a row, at most."""
LEAST_PAIRS = 7
SECONDS = 3.0
"""For one row; a slow row has fewer pairs."""
PEERS = "langgraph autogen dbos litellm pykka thespian eventsourcing openai langchain pydantic-ai jsonschema msgspec"
"""Rows with these words are left out: they take time, and say nothing about us."""

SAMPLER = """
import json, sys
from importlib import import_module
from benchmarks._harness import keep_freed_memory
keep_freed_memory()
name, part, peers = sys.argv[1], sys.argv[2], sys.argv[3].split()
answers, sys.stdout = sys.stdout, sys.stderr
def answer(value):
    print(json.dumps(value), file=answers, flush=True)
for table in import_module(f"benchmarks.{name}").tables(part):
    rows = {row: take for row, take in table.candidates.items() if not any(peer in row.lower() for peer in peers)}
    answer([table.name, list(rows)])
    for line in sys.stdin:
        if line == "next\\n":
            break
        answer(rows[json.loads(line)]())
answer(None)
"""


class Ratio(NamedTuple):
    """How a row compares with the same row of the other tree."""

    of_pairs: float
    of_fastest: float

    @property
    def is_slower(self) -> bool:
        """Whether both say so: one alone may be noise."""
        return min(self) > AT_MOST


def main(since: str, asked: list[str]) -> int:
    """Print a table a benchmark, and return 1 where a row of ours takes more than `AT_MOST` times as long."""
    slower: list[str] = []
    with _checked_out(since) as old:
        for each in asked:
            name, _, part = each.partition(":")
            print(f"\n{each}: this tree / {since} (pairs, fastest)", flush=True)
            for row, ratio in _ratios(old, name, part):
                is_slower = ratio.is_slower and "| raw " not in row
                slower += [row] * is_slower
                print(f"  {ratio.of_pairs:5.2f} {ratio.of_fastest:5.2f}  {row}{'  SLOWER' * is_slower}", flush=True)
    print(f"\n{len(slower)} rows above {AT_MOST}", *slower, sep="\n  ")
    return int(bool(slower))


def _ratios(old: Path, name: str, part: str) -> Iterator[tuple[str, Ratio]]:
    with ExitStack() as stack:
        new_tree = stack.enter_context(_sampler(HERE, name, part))
        old_tree = stack.enter_context(_sampler(old, name, part))
        while (before := old_tree.read()) is not None:
            while (now := new_tree.read()) is not None and now[0] != before[0]:
                new_tree.say("next")  # a table that only this tree has
            if now is None:
                raise RuntimeError(f"this tree has no table {before[0]!r} any more: name the tables after it")
            for row in (row for row in now[1] if row in before[1]):
                yield f"{now[0]} | {row}", _compared(new_tree, old_tree, row)
            new_tree.say("next")
            old_tree.say("next")


def _compared(new_tree: _Sampler, old_tree: _Sampler, row: str) -> Ratio:
    new_tree.sample(row), old_tree.sample(row)  # warms both up
    pairs: list[tuple[float, float]] = []
    until = time.monotonic() + SECONDS
    while len(pairs) < PAIRS and (len(pairs) < LEAST_PAIRS or time.monotonic() < until):
        if len(pairs) % 2:
            before, now = old_tree.sample(row), new_tree.sample(row)
        else:
            now, before = new_tree.sample(row), old_tree.sample(row)
        pairs.append((now, before))
    fastest = min(now for now, _ in pairs) / min(before for _, before in pairs)
    return Ratio(median(now / before for now, before in pairs), fastest)


class _Sampler:
    """A process that takes samples of one tree."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout

    def say(self, line: str) -> None:
        """Tell it what to do."""
        print(line, file=self._input, flush=True)

    def read(self) -> Any:
        """Return its next answer."""
        line = self._output.readline()
        if not line:
            raise RuntimeError("a benchmark has ended early: see above")
        return json.loads(line)

    def sample(self, row: str) -> float:
        """Return the seconds of one sample."""
        self.say(json.dumps(row))
        seconds: float = self.read()
        return seconds


@contextmanager
def _sampler(tree: Path, name: str, part: str) -> Iterator[_Sampler]:
    paths = os.pathsep.join((str(tree), str(tree / "src")))
    process = subprocess.Popen(
        [sys.executable, "-c", SAMPLER, name, part, PEERS],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield _Sampler(process)
    finally:
        process.kill()
        process.wait()


@contextmanager
def _checked_out(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "old")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, commit], cwd=HERE, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=HERE, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
