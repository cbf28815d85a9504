"""Compare this tree with an earlier commit: `make since COMMIT=v0.1.0 ARGS="codec runtime:ask"`.

Each tree runs its own benchmarks on its own sources, in processes of its own that take turns: new, old, old, new.
A row's ratio is the median over the turns of (new / old), of the fastest round in each turn. The rows `raw …` do not depend on
antiphon: they are the control, and should say 1.00.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

HERE = Path(__file__).parent.parent
TURNS = 5
AT_MOST = 1.05
PEERS = "langgraph autogen dbos litellm pykka thespian eventsourcing openai langchain pydantic-ai jsonschema msgspec"
"""Rows with these words are left out: they take time, and say nothing about us."""

TURN = """
import json, sys
from importlib import import_module
from benchmarks._harness import keep_freed_memory
keep_freed_memory()
name, part, peers, rounds = sys.argv[1], sys.argv[2], sys.argv[3].split(), int(sys.argv[4])
for table in import_module(f"benchmarks.{name}").tables(part):
    rows = {row: take for row, take in table.candidates.items() if not any(peer in row.lower() for peer in peers)}
    seconds = {row: [] for row in rows}
    for _ in range(rounds):
        for row, take in rows.items():
            seconds[row].append(take())
    print("turn", json.dumps([table.name, {row: min(found) for row, found in seconds.items()}]), flush=True)
"""

Rows = dict[tuple[str, str], float]


def main(since: str, asked: list[str]) -> int:
    """Print a table a benchmark, and return 1 where a row of ours takes more than `AT_MOST` times as long."""
    slower: list[str] = []
    with _checked_out(since) as old:
        for each in asked:
            name, _, part = each.partition(":")
            print(f"\n{each}: this tree / {since}", flush=True)
            for row, ratio in _ratios(old, name, part).items():
                is_slower = ratio > AT_MOST and not row[1].startswith("raw ")
                slower += [" | ".join(row)] * is_slower
                print(f"  {ratio:5.2f}  {row[0]} | {row[1]}{'  SLOWER' * is_slower}", flush=True)
    print(f"\n{len(slower)} rows above {AT_MOST}", *slower, sep="\n  ")
    return int(bool(slower))


def _ratios(old: Path, name: str, part: str) -> dict[tuple[str, str], float]:
    pairs: list[tuple[Rows, Rows]] = []
    for turn in range(TURNS):
        if turn % 2:
            before, now = _turn(old, name, part), _turn(HERE, name, part)
        else:
            now, before = _turn(HERE, name, part), _turn(old, name, part)
        pairs.append((before, now))
    rows = [row for row in pairs[0][1] if row in pairs[0][0]]
    return {row: median(now[row] / before[row] for before, now in pairs) for row in rows}


def _turn(tree: Path, name: str, part: str) -> Rows:
    command = [sys.executable, "-c", TURN, name, part, PEERS, "3"]
    paths = os.pathsep.join((str(tree), str(tree / "src")))
    said = subprocess.run(
        command, cwd=tree, env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.PIPE, text=True, check=True, timeout=1800
    )
    tables = [json.loads(line.removeprefix("turn ")) for line in said.stdout.splitlines() if line.startswith("turn ")]
    return {(table, row): seconds for table, rows in tables for row, seconds in rows.items()}


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
