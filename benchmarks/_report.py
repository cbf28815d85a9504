"""What is printed and what is kept: a table for people, JSON for machines, and the machine's name with both."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks._harness import SAME, Goal, Outcome

__all__ = ["machine", "render", "summary", "versions", "write_json"]

PACKAGES = (
    "antiphon",
    "pydantic",
    "pydantic-core",
    "orjson",
    "msgspec",
    "pydantic-ai-slim",
    "langchain-core",
    "autogen-core",
    "litellm",
    "apsw",
    "dbos",
    "eventsourcing",
    "langgraph-checkpoint-sqlite",
    "openai-agents",
    "pykka",
    "thespian",
)
RESULTS = Path(__file__).parent / "results"


def machine() -> list[str]:
    """Name the machine and the Python."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return [f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}, {python}"]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def versions() -> list[str]:
    """Name the version of every package that is measured."""
    return [", ".join(f"{package} {version(package)}" for package in PACKAGES)]


# ---------------------------------------------------------------- for people


def render(outcome: Outcome) -> str:
    """Return an outcome as a table: a row a candidate, its time, its ratios, its goals."""
    table = outcome.table
    columns = (table.baseline, *table.against)
    rows = [["", table.unit, *(f"x {name}" for name in columns), "goal"]]
    rows += [_row(outcome, name, columns) for name in outcome.seconds]
    rows += [[name, *("-" for _ in range(len(columns) + 1)), ""] for name in table.absent]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [_line(row, widths) for row in rows]
    return "\n".join((table.name, *lines, *_steadiness(outcome), *(f"  ({note})" for note in table.notes)))


def _row(outcome: Outcome, name: str, columns: Iterable[str]) -> list[str]:
    goals = (_verdict(outcome, goal) for goal in outcome.table.goals if goal.candidate == name)
    ratios = (f"{outcome.ratio(name, of):.2f}" for of in columns)
    return [name, f"{outcome.absolute(name):.2f}", *ratios, "; ".join(goals)]


def _line(row: list[str], widths: list[int]) -> str:
    cells = [
        f"{row[0]:<{widths[0]}}",
        *(f"{cell:>{width}}" for cell, width in zip(row[1:-1], widths[1:-1], strict=True)),
        row[-1],
    ]
    return ("  " + "  ".join(cells)).rstrip()


def _verdict(outcome: Outcome, goal: Goal) -> str:
    found = outcome.ratio(goal.candidate, goal.of)
    return f"{found:.2f} x {goal.of}, at most {goal.at_most:.2f}: {'met' if outcome.meets(goal) else 'MISSED'}"


def _steadiness(outcome: Outcome) -> list[str]:
    if not outcome.is_steady:
        return [f"  FAILED: A/A left {SAME[0]} to {SAME[1]} twice; nothing above can be believed"]
    return [] if outcome.attempts == 1 else ["  (measured twice: the first time A/A was out of range)"]


def summary(outcomes: list[Outcome]) -> str:
    """Return every goal with its verdict, and the tables that failed themselves."""
    goals = [f"  {outcome.table.name}: {_verdict(outcome, goal)}" for outcome in outcomes for goal in outcome.table.goals]
    failed = [f"  {outcome.table.name}: FAILED its A/A control" for outcome in outcomes if not outcome.is_steady]
    return "\n".join(("\ngoals", *goals, *failed))


# ---------------------------------------------------------------- for machines


def write_json(name: str, outcomes: list[Outcome]) -> None:
    """Write the outcomes to `results/<name>.json`."""
    RESULTS.mkdir(exist_ok=True)
    report = {
        "machine": machine(),
        "versions": {p: version(p) for p in PACKAGES},
        "tables": [_plain(each) for each in outcomes],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _plain(outcome: Outcome) -> dict[str, Any]:
    table = outcome.table
    return {
        "name": table.name,
        "unit": table.unit,
        "attempts": outcome.attempts,
        "steady": outcome.is_steady,
        "rows": {
            name: {
                "time": outcome.absolute(name),
                "ratios": {of: outcome.ratio(name, of) for of in (table.baseline, *table.against)},
                "seconds": outcome.seconds[name],
            }
            for name in outcome.seconds
        },
        "absent": list(table.absent),
        "goals": [
            {
                "candidate": goal.candidate,
                "at_most": goal.at_most,
                "of": goal.of,
                "found": outcome.ratio(goal.candidate, goal.of),
                "met": outcome.meets(goal),
            }
            for goal in table.goals
        ],
        "notes": list(table.notes),
    }
