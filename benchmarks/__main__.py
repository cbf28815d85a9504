"""Run benchmarks by name: `python -m benchmarks`, `… codec`, `… codec:load`. Exit code 1: an A/A control failed."""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks._harness import Outcome, keep_freed_memory, run
from benchmarks._report import machine, render, summary, versions, write_json

BENCHMARKS = (
    "agents",
    "codec",
    "convert",
    "hosts",
    "imports",
    "ledger",
    "postchain",
    "postgres",
    "providers",
    "retrieval",
    "runtime",
    "telemetry",
)
"""Modules here, imported when asked for: some peers take seconds."""
REPORTS = {
    "answers": "benchmarks.answers.asking",
    "capacity": "benchmarks.capacity",
    "cluster": "benchmarks.cluster",
    "page": "benchmarks.page",
    "server": "benchmarks.server",
}
"""Benchmarks that measure no ratios: their modules print what they have found."""


def main(asked: list[str]) -> int:
    unknown = [each for each in asked if each.partition(":")[0] not in (*BENCHMARKS, *REPORTS)]
    if unknown:
        there = ", ".join((*BENCHMARKS, *REPORTS))
        print(f"no benchmark {unknown[0]!r}; there are: {there}; codec:load is the tables with load in the name")
        return 2
    keep_freed_memory()
    print(*machine(), *versions(), sep="\n")
    chosen = [each.partition(":")[::2] for each in asked or (*BENCHMARKS, *REPORTS)]
    outcomes = [outcome for name, part in chosen if name in BENCHMARKS for outcome in _run_one(name, part)]
    if any(name in BENCHMARKS for name, _ in chosen):
        print(summary(outcomes) if outcomes else "no table has that in its name")
    for name, part in chosen:
        if name in REPORTS:
            import_module(REPORTS[name]).report(part)
    is_well = bool(outcomes) or all(name in REPORTS for name, _ in chosen)
    return 0 if is_well and all(outcome.is_steady for outcome in outcomes) else 1


def _run_one(name: str, part: str) -> list[Outcome]:
    """Run the tables of a benchmark."""
    outcomes: list[Outcome] = []
    for table in import_module(f"benchmarks.{name}").tables(part):
        outcomes.append(run(table))
        print("\n" + render(outcomes[-1]), flush=True)
    if not part:
        write_json(name, outcomes)
    return outcomes


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
