"""Workers whose process is killed with SIGKILL before and after each row: nothing is lost, nothing is done twice."""

import os
from pathlib import Path

import pytest
from tests.patterns.killed import check_survives

pytest.importorskip("apsw")

IS_LONG = bool(os.environ.get("ANTIPHON_CHAOS"))
PROGRAM = Path(__file__).parent / "program.py"


@pytest.mark.slow
def test_workers_survive_being_killed_anywhere(tmp_path: Path) -> None:
    """F13, G6, G7, G9: in each flow; a person settles `once` calls, and then it continues."""
    check_survives(PROGRAM, tmp_path, within=("pay", "look", "model") if IS_LONG else ("pay",))
