"""Many durable runs in one process: nothing of those that ended is kept (G18)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("apsw")

ROOT = Path(__file__).parents[3]
CHAOS = os.environ.get("ANTIPHON_CHAOS", "")
RUNS = {"": 90, "ci": 10_000, "nightly": 10_000}[CHAOS]
SECONDS = 120 + RUNS
_CACHED = 4
"""Blocks of memory that a run may leave in caches that have an end: Pydantic's of texts, a journal's of threads."""

_ONCE = 120
"""Objects that are made once, at any time: of another thread of a pool, a connection, a cache. A run would leave dozens."""


@pytest.fixture(scope="module")
def growth(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, int]]:
    """Return by how many objects and blocks of memory a process has grown with so many runs of each kind."""
    url = f"sqlite:///{tmp_path_factory.mktemp('runs')}/ledger.db"
    command = [sys.executable, "-m", "tests.agents.durability.many_runs", url, str(RUNS)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=SECONDS)
    found: dict[str, tuple[int, int]] = json.loads(said.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("calls", id="tools called by grants of some calls"),
        pytest.param("agent", id="an agent with a toolkit"),
        pytest.param("pattern", id="threads of a pattern, in one system"),
    ],
)
def test_durable_runs_keep_nothing_when_they_end(growth: dict[str, tuple[int, int]], kind: str) -> None:
    """G18, S5: a grant is counted in each thread, and the count goes with the run: the ledger has it, and the rest too."""
    objects, blocks = growth[kind]
    assert objects < RUNS / 2 + _ONCE
    assert blocks < _CACHED * RUNS + 200
