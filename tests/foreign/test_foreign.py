"""The plugin makes agents of other tests durable, and the runner says so if there are no such tests."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests import forked

HERE = Path(__file__).parent

THEIRS = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from antiphon.durable import current_run

def test_theirs():
    agent = Agent(TestModel())
    seen = []

    @agent.tool_plain
    def look() -> str:
        seen.append(current_run())
        return "seen"

    agent.run_sync("go")
    assert seen[0].thread_id.startswith("test-")
"""


@pytest.mark.slow
def test_an_agent_of_another_test_is_durable_with_the_plugin_and_not_without(tmp_path: Path) -> None:
    theirs = tmp_path / "test_theirs.py"
    theirs.write_text(THEIRS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(theirs)]
    surroundings = {**os.environ, "PYTHONPATH": str(HERE)}
    for plugin, status in (["-p", "durable_agents"], 0), ([], 1):
        ran = forked.run([*command, *plugin], cwd=tmp_path, env=surroundings, text=True)
        assert ran.returncode == status, ran.stdout


@pytest.mark.slow
def test_without_their_tests_the_runner_says_that_it_ran_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.foreign", str(tmp_path)]
    ran = subprocess.run(command, cwd=HERE.parents[1], check=False, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr.startswith("NOT RUN: there are no tests of Pydantic AI at")) == (0, True)
