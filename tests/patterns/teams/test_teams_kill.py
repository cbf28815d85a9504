"""A team whose process is killed at any row: nothing is lost, no `once` call is repeated, and it continues."""

from pathlib import Path

import pytest
from tests.patterns.killed import check_survives


@pytest.mark.slow
def test_a_team_survives_its_process_wherever_it_is_killed(tmp_path: Path) -> None:
    """G10, G12: plan, steps side by side, script, syntheses, answer; looks that are `none`, writes that are `once`."""
    check_survives(Path(__file__).with_name("program.py"), tmp_path)
