"""Python tools of a team file: from its folder only, and only if the caller lets exactly these bytes run."""

from pathlib import Path
from typing import Any

import pytest
from tests.patterns.team_files.test_team_files import done, team_file

from antiphon.agents.toolkit import Toolkit
from antiphon.errors import ConfigError
from antiphon.patterns.cast import Pattern
from antiphon.patterns.team_files import open_team
from antiphon.patterns.team_files._team_file import TeamFile

SCRIPT = 'turns = [{ calls = [{ tool = "lookup", arguments = { city = "Oslo" } }] }, { text = "it is {result}" }]'
CODE = '''
from __future__ import annotations
from dataclasses import dataclass
from pathlib import Path

from pydantic_ai import Tool

Path("started").touch()

@dataclass
class City:
    name: str

def lookup(city: str) -> str:
    """Return the height of a city."""
    return f"23 m in {City(city).name}"

other = Tool(lookup, metadata={"antiphon": {"effects": "none"}})
'''


def team(*tools: str, more: str = "") -> str:
    agent = f'[[agents]]\nname = "ada"\nrole = "leader"\ntools = {list(tools)!r}\n'
    return f'pattern = "peers"\nmodel = "scripted:script.toml"\n{more}\n{agent}'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.toml").write_text(SCRIPT)
    (tmp_path / "mytools.py").write_text(CODE)
    return tmp_path


def everything(path: Path, data: bytes) -> bool:
    return True


def opened(path: Path, **more: Any) -> Pattern:
    return open_team(path, may_run=everything, **more)


def kit(pattern: Pattern) -> Toolkit:
    toolkit = pattern.cast_options.get("toolkit")
    assert toolkit is not None
    return toolkit


def test_a_function_of_a_python_file_is_a_tool(folder: Path) -> None:
    outcome = done(team_file(folder, team("mytools.py:lookup")), "How high?", may_run=everything)

    assert (outcome.status, outcome.response) == ("completed", "it is 23 m in Oslo")


def test_the_bytes_that_were_judged_are_those_that_run(folder: Path) -> None:
    """A file that is changed between the decision and the run does not run."""

    def judge(path: Path, data: bytes) -> bool:
        assert (path, data) == (folder / "mytools.py", CODE.encode())
        path.write_text("raise RuntimeError('not this')")
        return True

    assert done(team_file(folder, team("mytools.py:lookup")), "How high?", may_run=judge).response == "it is 23 m in Oslo"


def test_a_file_of_which_the_caller_says_nothing_or_no_does_not_run(folder: Path) -> None:
    path = team_file(folder, team("mytools.py:lookup"))
    for more in ({}, {"may_run": lambda path, data: False}):
        with pytest.raises(ConfigError, match=r"team.toml: its tools run mytools.py, and nobody has allowed that file"):
            open_team(path, **more)  # type: ignore[arg-type]
    assert not (folder / "started").exists()


def test_no_file_runs_if_one_of_them_may_not(folder: Path) -> None:
    (folder / "others.py").write_text(CODE)
    with pytest.raises(ConfigError, match=r"its tools run others.py"):
        open_team(
            team_file(folder, team("mytools.py:lookup", "others.py:other")), may_run=lambda path, _: path.stem == "mytools"
        )
    assert not (folder / "started").exists()


@pytest.mark.parametrize(
    "tool", ["../mytools.py:lookup", "/etc/mytools.py:lookup", "sub/mytools.py:lookup", "mytools:lookup", "mytools.py:", ":f"]
)
def test_only_files_in_the_folder_of_the_team_file_are_named(folder: Path, tool: str) -> None:
    with pytest.raises(ConfigError, match=r"a Python tool is FILE.py:FUNCTION, with a file in the folder of the team file"):
        TeamFile.read(team_file(folder, team(tool)))


def test_a_link_that_leads_out_of_the_folder_is_refused(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "link.py").symlink_to(folder / "mytools.py")
    (folder / "sub" / "script.toml").write_text(SCRIPT)
    path = team_file(folder / "sub", team("link.py:lookup"))

    with pytest.raises(ConfigError, match=r"link.py is a link that leads out of the folder of the team file; copy the file"):
        opened(path)
    (folder / "here.py").symlink_to("mytools.py")
    opened(team_file(folder, team("here.py:lookup")))


def test_a_team_file_behind_a_link_has_its_tools_where_it_is(folder: Path) -> None:
    path = team_file(folder, team("mytools.py:lookup"))
    (folder / "sub").mkdir()
    link = folder / "sub" / "linked.toml"
    link.symlink_to(path)

    assert done(link, "How high?", may_run=everything).response == "it is 23 m in Oslo"


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        ("def lokup(): ...", "mytools.py has no function 'lookup'; is it 'lokup'?"),
        ("class lookup: ...", "mytools.py has no function 'lookup'"),
        ("def lookup(:", "mytools.py cannot be run: SyntaxError: "),
        ("import sys; sys.exit(3)", "mytools.py cannot be run: SystemExit: 3"),
        ("import no_such_package", "mytools.py cannot be run: ModuleNotFoundError: No module named 'no_such_package'"),
    ],
)
def test_code_that_cannot_be_used_says_why(folder: Path, code: str, problem: str) -> None:
    (folder / "mytools.py").write_text(code)
    with pytest.raises(ConfigError, match=f"^{folder}/team.toml: {problem.replace('?', '.')}"):
        opened(team_file(folder, team("mytools.py:lookup")))


def test_a_missing_file_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"team.toml: nothere.py: No such file or directory"):
        opened(team_file(folder, team("nothere.py:lookup")))


def test_approvals_and_grants_name_the_function_either_way(folder: Path) -> None:
    for name in ("lookup", "mytools.py:lookup"):
        rest = f'[[grants]]\nagent = "ada"\ntool = "{name}"\n'
        path = team_file(folder, team("mytools.py:lookup", more=f'approvals = ["{name}"]') + rest)
        assert [rule.tool for rule in kit(opened(path)).policy.rules] == ["lookup"]
    path = team_file(folder, team("mytools.py:lookup", more='approvals = ["lokup"]'))
    with pytest.raises(ConfigError, match="is it 'lookup'"):
        opened(path)


async def test_a_tool_of_pydantic_ai_keeps_its_settings_and_has_the_name_of_the_variable(folder: Path) -> None:
    found = await kit(opened(team_file(folder, team("mytools.py:other")))).tools()
    assert (found["other"].effects, found["other"].description) == ("none", "Return the height of a city.")


def test_two_functions_of_one_name_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="have the same name; rename one of the functions"):
        TeamFile.read(team_file(folder, team("mytools.py:lookup", "others.py:lookup")))
