"""`antiphon trust`: code of a team file is shown before it runs, and runs only as it was shown. Typed in a terminal."""

import json
from pathlib import Path

import pytest
from tests.cli.running import run, type_command

pytest.importorskip("apsw")

TEAM = """
pattern = "peers"
model = "scripted:script.toml"
[[agents]]
name = "ada"
role = "leader"
tools = ["mytools.py:lookup"]
"""
SCRIPT = """turns = [
    { calls = [{ tool = "lookup", arguments = { city = "Oslo" } }] }, { text = "it is {result}" }, { text = "still" }
]"""
CODE = '''from pathlib import Path

Path("started").touch()


def lookup(city: str) -> str:
    """Return the height of a city."""
    return f"23 m in {city}"
'''
REFUSED = (
    "team.toml: its tools run mytools.py, and you have not trusted that file as it is now; "
    "`antiphon trust team.toml` shows it first"
)


TAKES = "`antiphon trust` takes a team file, or a Python file (.py)"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "team.toml").write_text(TEAM)
    (tmp_path / "script.toml").write_text(SCRIPT)
    (tmp_path / "mytools.py").write_text(CODE)
    return tmp_path


def type_here(*arguments: str, typed: str = "") -> tuple[str, int]:
    seen = type_command(*arguments, typed=typed, XDG_CONFIG_HOME=str(Path.cwd() / "config"))
    return seen.said, seen.code


@pytest.mark.slow
def test_code_runs_after_a_person_has_seen_it_and_said_yes(folder: Path) -> None:
    """And no more when it is changed, until they say so again."""
    assert type_here("run", "--team", "team.toml", "How high?") == (REFUSED, 2)
    assert not (folder / "started").exists()

    shown, code = type_here("trust", "team.toml", typed="n\n")
    assert code == 1
    assert '7 """Return the height of a city."""' in shown
    assert shown.endswith("Let it run? [y/N] nothing is trusted")
    assert type_here("run", "--team", "team.toml", "How high?")[1] == 2

    shown, code = type_here("trust", "team.toml", typed="y\n")
    assert (code, shown.endswith("team.toml, mytools.py: trusted as they are now")) == (0, True)
    assert not (folder / "started").exists()  # looking at it is not running it
    shown, code = type_here("run", "--team", "team.toml", "How high?", "--name", "heights")
    assert code == 0
    assert "it is 23 m in Oslo" in shown

    (folder / "mytools.py").write_text(CODE.replace("23", "24"))
    assert type_here("run", "--team", "team.toml", "How high?", "--thread", "heights") == (REFUSED, 2)


@pytest.mark.slow
def test_a_thread_of_a_ledger_runs_no_code_that_is_not_trusted(folder: Path) -> None:
    """The thread names the team file, and the team file the code; the trust is kept elsewhere."""
    assert run("trust", "team.toml", "--yes").exit_code == 0
    assert run("run", "--team", "team.toml", "How high?", "--name", "heights").exit_code == 0
    assert run("trust", "mytools.py", "--remove").exit_code == 0

    assert type_here("run", "--thread", "heights", "And now?")[1] == 2
    assert run("trust", "mytools.py", "--yes").exit_code == 0
    assert type_here("run", "--thread", "heights", "And now?")[1] == 0
    assert run("trust", "team.toml", "--remove").exit_code == 0
    said, code = type_here("run", "--thread", "heights", "And then?")
    assert (code, "runs code, and you have not run or trusted it" in said) == (2, True)


def test_without_a_terminal_nobody_can_say_yes() -> None:
    refused = run("trust", "mytools.py")

    assert refused.exit_code == 2
    assert "def lookup" in refused.stdout
    assert refused.stderr == "nothing is trusted yet; look at it, then: antiphon trust mytools.py --yes\n"
    assert run("trust").stderr == "nothing is trusted yet; `antiphon trust FILE` shows a file and trusts it\n"


def test_trusted_files_are_listed_and_removed(folder: Path) -> None:
    assert run("trust", "team.toml", "--yes").exit_code == 0
    listed = run("trust").stdout.splitlines()
    assert [line.split()[0] for line in listed] == ["path", str(folder / "team.toml"), str(folder / "mytools.py")]
    assert [each["path"] for each in json.loads(run("trust", "--json").stdout)] == [line.split()[0] for line in listed[1:]]

    again = run("trust", "team.toml")
    assert (again.exit_code, again.stdout, again.stderr) == (0, "", "team.toml, mytools.py: trusted before\n")
    assert run("trust", "mytools.py", "--remove").stderr == "mytools.py: not trusted any more\n"
    assert run("trust", "mytools.py", "--remove").exit_code == 2
    assert len(json.loads(run("trust", "--json").stdout)) == 1


def test_code_hides_nothing_and_commands_are_shown(folder: Path) -> None:
    (folder / "mytools.py").write_text("x = 'a\u202eb\x1b[2K'\n\ndef lookup(): ...\n")
    (folder / "team.toml").write_text(f'{TEAM}\n[mcp.files]\ncommand = ["rm", "-r", "my files"]\n')

    shown = run("trust", "team.toml").stdout

    assert "  starts: rm -r 'my files'\n" in shown
    assert "1  x = 'a⟨U+202E⟩b⟨U+001B⟩[2K'\n" in shown


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("nothere.py",), f"nothere.py: there is no such file; {TAKES}\n"),
        (("nothere.toml",), f"nothere.toml: there is no such file; {TAKES}\n"),
        (("config",), "config: it is a folder; name a team file or a Python file in it\n"),
        (("binary.py",), f"binary.py: this is a binary file; {TAKES}\n"),
        (("binary.toml",), f"binary.toml: this is a binary file; {TAKES}\n"),
        (("latin.toml",), f"latin.toml: this is a binary file; {TAKES}\n"),
        (("notes.txt",), f"notes.txt: it is not TOML; {TAKES}\n"),
        (("team.toml/x",), f"team.toml/x: Not a directory; {TAKES}\n"),
        (("--yes",), "name the FILE that it is about\n"),
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused_with_the_reason(
    folder: Path, arguments: tuple[str, ...], error: str
) -> None:
    (folder / "config").mkdir()
    for name in ("binary.py", "binary.toml"):
        (folder / name).write_bytes(b"\x7fELF\0\1\2")
    (folder / "latin.toml").write_bytes("# Gr\xfc\xdfe".encode("latin-1"))
    (folder / "notes.txt").write_text("Buy milk.")

    refused = run("trust", *arguments)

    assert (refused.exit_code, refused.stdout, refused.stderr) == (2, "", error)


def test_a_file_that_may_not_be_read_says_how_to_allow_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refuse)  # root may read every file

    refused = run("trust", "team.toml")

    assert (refused.exit_code, refused.stderr) == (2, "team.toml: you may not read it; allow it first: chmod u+r team.toml\n")


def test_a_team_file_without_code_needs_no_trust(folder: Path) -> None:
    """It asks nothing, and records nothing."""
    (folder / "plain.toml").write_text('pattern = "peers"\n[[agents]]\nname = "ada"\nrole = "leader"\n')

    for more in ((), ("--yes",), ("--json",)):
        done = run("trust", "plain.toml", *more)
        assert (done.exit_code, done.stdout) == (0, "[]\n" if more == ("--json",) else "")
        assert done.stderr == "plain.toml: it runs no code and starts no command, so it needs no trust\n"
    assert json.loads(run("trust", "--json").stdout) == []
