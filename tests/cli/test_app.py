"""The app as a whole: its name, its extras, and that all of it is documented."""

import asyncio
import contextlib
import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import typer
from tests.cli.running import COMMAND, PLAIN, in_terminal, run, start
from tests.forked import shell_command

import antiphon
from antiphon.cli import app
from antiphon.cli._app import OVERVIEW
from antiphon.dialects import get, names

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "cli.md"
COMMANDS = typer.main.get_command(app).commands
BLOCK = re.compile(r"(?<=```console\n)(?:.*\n)*?(?=```)")
TIME = re.compile(r"\b20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\b")
"""Of an append, and so another on every run; the page shows one for all."""


@pytest.mark.slow
def test_the_version_is_that_of_the_package() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, check=False)

    assert (done.returncode, done.stdout.decode()) == (0, f"antiphon {antiphon.__version__}\n")
    assert run("--version").stdout == done.stdout.decode()


def test_without_a_command_it_says_what_there_is() -> None:
    result = run()

    assert result.exit_code == 2
    assert all(f"\n  {name} " in result.output for name in COMMANDS)
    assert run("--help").exit_code == 0


def test_the_overview_has_every_command_once_and_cuts_none_off() -> None:
    listed = [name for section in OVERVIEW.values() for name in section]

    assert sorted(listed) == sorted(COMMANDS)
    shown = run("--help").stdout
    assert max(map(len, shown.splitlines())) <= 80
    for section, commands in OVERVIEW.items():
        assert f"\n{section}:\n" in shown
        assert all(f"{about}\n" in shown for about in commands.values())


@pytest.mark.slow
def test_without_the_extra_it_says_what_to_install() -> None:
    """As a message of one line where it is run, as an error where it is imported."""
    hide = "import sys; sys.modules['typer'] = None; "
    ran = python(f"{hide}from antiphon.__main__ import main; main()")
    imported = python(f"{hide}import antiphon.cli")

    advice = 'the command line needs Typer and Rich: pip install "antiphon[all]", or "antiphon[cli]" for work on files only'
    assert (ran.returncode, ran.stderr.decode()) == (1, f"antiphon: {advice}\n")
    assert imported.returncode == 1
    assert imported.stderr.decode().endswith(f"ModuleNotFoundError: {advice}\n")


def python(code: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)


def test_without_the_extra_the_import_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_cli(monkeypatch)
    for name in [name for name in sys.modules if name.startswith("rich.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)

    with pytest.raises(ModuleNotFoundError, match=r'pip install "antiphon\[all\]"') as raised:
        import antiphon.cli  # noqa: F401

    assert str(raised.value.name).startswith("rich")


def test_another_module_that_is_missing_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    forget_cli(monkeypatch)
    monkeypatch.setitem(sys.modules, "antiphon.dialects", None)

    with pytest.raises(ModuleNotFoundError, match=r"antiphon\.dialects"):
        import antiphon.cli  # noqa: F401


def forget_cli(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command line imported anew, and put back as it was after the test."""
    monkeypatch.delattr(antiphon, "cli")
    for name in [name for name in sys.modules if name.startswith("antiphon.cli")]:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.slow
def test_the_package_runs_as_a_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Under its own name, whatever the file is called."""
    monkeypatch.setattr(sys, "argv", ["whatever", "convert"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("antiphon", run_name="__main__")

    assert ended.value.code == 2
    assert "Usage: antiphon convert" in capsys.readouterr().err


def test_main_without_the_extra_ends_with_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.__main__ import main

    forget_cli(monkeypatch)
    monkeypatch.setitem(sys.modules, "typer", None)
    with pytest.raises(SystemExit, match=r"pip install"):
        main()


def test_ctrl_c_while_it_starts_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.__main__ import main

    class Impatient:
        def find_spec(self, name: str, *more: object) -> None:
            if name == "antiphon.cli":
                raise KeyboardInterrupt

    forget_cli(monkeypatch)
    monkeypatch.setattr(sys, "meta_path", [Impatient(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 130


def test_ctrl_c_while_commands_are_made_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.__main__ import main

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(typer.main, "get_command", interrupt)
    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 130


def test_ctrl_c_in_the_last_step_of_the_event_loop_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop stops twice then, and asyncio raises a RuntimeError while it closes the loop."""
    from antiphon.__main__ import main

    def interrupt() -> None:
        raise KeyboardInterrupt

    async def count() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)  # so that closing it takes the loop more than one step

    counting = count()

    async def work() -> None:
        await anext(counting)
        asyncio.get_running_loop().call_soon(interrupt)  # it runs after this task, and before the loop learns that it ended

    def get_command(*_: object) -> object:
        return lambda *_, **__: asyncio.run(work())

    monkeypatch.setattr(typer.main, "get_command", get_command)
    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 130


# ---------------------------------------------------------------- antiphon help dialects


def test_the_dialects_are_listed_with_their_summaries() -> None:
    result = run("help", "dialects")

    rows = [line.split(maxsplit=1) for line in result.stdout.splitlines()]
    assert rows == [["name", "summary"], *([name, get(name).summary] for name in names())]
    assert result.stderr == ""


@pytest.mark.usefixtures("twin")
def test_a_dialect_of_another_package_is_listed() -> None:
    row = run("help", "dialects").stdout.splitlines()[-1]

    assert row.split(maxsplit=1) == ["twin", "a [red]twin[/red] of MARSYS⟨U+0007⟩"]


@pytest.mark.usefixtures("broken")
def test_a_broken_dialect_of_another_package_hides_no_other() -> None:
    rows = run("help", "dialects").stdout.splitlines()

    assert len(rows) == 1 + len(names())
    assert rows[-1].split(maxsplit=1)[0] == "broken"
    assert "cannot be loaded: No module named" in rows[-1]


def test_a_table_shows_what_was_said_as_it_is(twin: None) -> None:
    """No markup is interpreted, and no control character is passed on."""
    shown = run("help", "dialects", FORCE_COLOR="1", TERM="xterm", COLUMNS="80").stdout

    assert "\ntwin " in shown
    assert "a [red]twin[/red] of MARSYS⟨U+0007⟩" in shown


@pytest.mark.slow
def test_output_may_go_into_a_variable() -> None:
    with contextlib.redirect_stdout(io.StringIO()) as caught:
        app(["help", "dialects"], standalone_mode=False)

    assert caught.getvalue() == run("help", "dialects").stdout


@pytest.mark.slow
def test_the_dialects_are_a_table_in_a_terminal_and_plain_elsewhere() -> None:
    assert "───" in in_terminal("help", "dialects")

    plain = start("help", "dialects").stdout.decode()
    assert "───" not in plain
    assert "\x1b" not in plain


# ---------------------------------------------------------------- the page of the docs


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_is_documented_with_every_option(name: str) -> None:
    section = re.search(rf"^## `antiphon {name}`$(.*?)(?=^## )", PAGE.read_text(), re.DOTALL | re.MULTILINE)

    assert section, f"docs/cli.md has no section `antiphon {name}`"
    for parameter in COMMANDS[name].params:
        for option in parameter.opts if parameter.param_type_name == "option" else [parameter.metavar]:
            assert option == "--help" or f"`{option}" in section[1], option


@pytest.mark.slow
def test_the_page_shows_exactly_what_is_printed(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Each console block is run in a shell, with `chat.json` as the page has it; `--update-examples` writes what it prints.

    One after the other, in one folder, with the ledger of that folder.
    """
    page = PAGE.read_text()
    chat = re.search(r"```json\n(.*?)```", page, re.DOTALL)
    assert chat
    (tmp_path / "chat.json").write_text(chat[1])
    shell_command(tmp_path / "antiphon")

    shown = BLOCK.sub(lambda block: printed(block[0].splitlines()[0], tmp_path), page)

    if request.config.getoption("update_examples"):
        PAGE.write_text(shown)
    assert PAGE.read_text() == shown


def printed(line: str, folder: Path) -> str:
    """Return a line of the shell and what it prints, on stdout and stderr."""
    environment = {**PLAIN, "PATH": f"{folder}:{PLAIN['PATH']}"}
    shell = ["/bin/sh", "-c", f"{{ {line.removeprefix('$ ')}; }} 2>&1"]
    done = subprocess.run(shell, cwd=folder, env=environment, capture_output=True, check=False)
    return f"{line}\n{TIME.sub('2026-01-31 12:00:00', done.stdout.decode())}"


@pytest.mark.slow
@pytest.mark.parametrize("closed", [">&-", "<&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_no_traceback(tmp_path: Path, closed: str) -> None:
    """As a service manager may start it. What a command writes there is lost, and no file gets its descriptor."""
    (tmp_path / "chat.json").write_text('[{"role": "user", "content": "Hi"}]')
    own = shlex.join(COMMAND)
    script = f"{own} convert chat.json --from openai-chat --to house {closed} && {own} help dialects {closed}"
    done = subprocess.run(["bash", "-c", script], check=False, capture_output=True, cwd=tmp_path, env=PLAIN)
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(tmp_path.iterdir()) == [tmp_path / "chat.json"]


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("status", "t", "--all"), "--all is about the hosts: leave out THREAD\n"),
        (("search", "tea", "--in", "*.md"), "--in goes with --documents\n"),
        (
            ("search", "tea", "--documents", "--thread", "t"),
            "--thread does not go with --documents: documents are not messages\n",
        ),
        (("local", "--from", "weights.gguf"), "--from goes with --install\n"),
    ],
)
def test_an_option_without_effect_is_refused(words: tuple[str, ...], refusal: str, tmp_path: Path) -> None:
    result = run(*words, ANTIPHON_LEDGER=f"sqlite:///{tmp_path}/none.db")

    assert (result.exit_code, result.stderr) == (2, refusal)
