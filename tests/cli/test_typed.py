"""Commands as a person types them, in a real terminal of 80 columns: what is seen, and the exit code."""

from pathlib import Path

import pytest
from tests.cli.running import type_command

pytest.importorskip("apsw")

TEAM = """
pattern = "peers"
model = "scripted:script.toml"
approvals = ["calculator"]
approvers = ["grace"]
[[agents]]
name = "ada"
role = "leader"
tools = ["calculator"]
"""
SCRIPT = 'turns = [{ calls = [{ tool = "calculator", arguments = { expression = "17*23" } }] }, { text = "it is {result}" }]'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team.toml").write_text(TEAM)
    (tmp_path / "script.toml").write_text(SCRIPT)
    return tmp_path


# ---------------------------------------------------------------- names


@pytest.mark.slow
def test_a_misspelt_approval_is_an_error_and_nothing_runs(folder: Path) -> None:
    (folder / "team.toml").write_text(TEAM.replace('approvals = ["calculator"]', 'approvals = ["calcualtor"]'))
    seen = type_command("run", "--team", "team.toml", "Calculate.")
    assert seen.text == (
        "team.toml: an approval rule names tool 'calcualtor', and toolkit 'toolkit' has none of that name; "
        "is it 'calculator'?\n"
    )
    assert seen.code == 2
