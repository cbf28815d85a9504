"""Peers whose process is killed at any row, and that the next process takes up. G6, G7, G9."""

from pathlib import Path

import pytest
from tests.patterns.killed import check_survives

pytest.importorskip("apsw")


@pytest.mark.slow
def test_peers_survive_a_kill_at_any_row(tmp_path: Path) -> None:
    """Calls side by side, a refused one, letters, and tools that must not be done twice: nothing is lost, nothing doubled."""
    check_survives(Path(__file__).parent / "program.py", tmp_path)
