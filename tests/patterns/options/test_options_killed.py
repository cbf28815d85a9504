"""A program of policies and options is killed at any row that it writes, and the next process finishes it."""

from pathlib import Path

import pytest
from tests.patterns.killed import check_survives

pytest.importorskip("apsw")


@pytest.mark.slow
def test_a_run_that_is_killed_anywhere_goes_on_and_does_nothing_twice(tmp_path: Path) -> None:
    """OP-063; G6, G7: options run at least once, every call has one result, and no `once` option is repeated."""
    check_survives(Path(__file__).parent / "program.py", tmp_path)
