"""`antiphon chat`, typed in a real terminal: editing, history, several lines, commands, and Ctrl-C."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.cli.running import run
from tests.cli.screens import Terminal

pytest.importorskip("apsw")
pytest.importorskip("prompt_toolkit")

ROOT = Path(__file__).parent.parent.parent
ENTER, CTRL_C, CTRL_D, UP, TAB, ALT_ENTER, LEFT = "\r", "\x03", "\x04", "\x1b[A", "\t", "\x1b\r", "\x1b[D"


@contextmanager
def chat(folder: Path, *more: str, held: bool = False) -> Iterator[Terminal]:
    """A chat in a terminal. A held one has a model that does not answer while the file `hold` is there."""
    where = {"ANTIPHON_TEST_HELD": str(folder), "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"} if held else {}
    start = (sys.executable, "-m", "tests.patterns.held_command") if held else ()
    with Terminal(*start, "chat", "--model", "scripted", *more, folder=folder, **where) as terminal:
        waits(terminal, 1)
        yield terminal


def waits(terminal: Terminal, prompts: int) -> str:
    """Wait until the chat has asked so many times, and waits for a line."""
    return terminal.until_seen(
        lambda text: f"\n{text}".count("\n>") >= prompts and text.rstrip().endswith(">"), f"prompt {prompts}"
    )


def asked(folder: Path) -> list[str]:
    shown = run("threads", "--json", "--ledger", folder / "antiphon.db").stdout
    return [part.split('"')[3] for part in shown.splitlines() if '"title"' in part]


@pytest.mark.slow
def test_a_line_is_edited_and_asked_and_ctrl_d_ends_the_chat(tmp_path: Path) -> None:
    with chat(tmp_path) as terminal:
        terminal.type(f"What is 17 * 32?{LEFT * 2}\x7f3{ENTER}")  # 32 becomes 32 without its 3, and with another
        terminal.until("gave 544")
        text = waits(terminal, 2)
        assert text.count("gave 544 [1]") == 1
        assert "Sources\n[1] calculator" in text
        terminal.type(CTRL_D)
        code, text = terminal.ended()

    assert code == 0
    assert "try next:" in text
    assert "Traceback" not in text
    assert asked(tmp_path) == ["What is 17 * 32?"]


@pytest.mark.slow
def test_ctrl_c_before_the_prompt_ends_the_chat_without_a_traceback(tmp_path: Path) -> None:
    """Again and again, from the first moment on: while modules are imported, commands are made, and the ledger is opened."""
    with Terminal("chat", "--model", "scripted", folder=tmp_path) as terminal:
        while terminal.process.poll() is None:
            terminal.type(CTRL_C)
            terminal.until_seen(lambda _: True, "anything")
            time.sleep(0.02)
        code, text = terminal.ended()

    assert code in (0, 130)
    assert "Traceback" not in text
    assert "KeyboardInterrupt" not in text


@pytest.mark.slow
def test_ctrl_c_stops_the_answer_and_not_the_chat(tmp_path: Path) -> None:
    """What was stopped goes on with /resume, and the chat with it."""
    (tmp_path / "hold").touch()
    with chat(tmp_path, held=True) as terminal:
        terminal.type(f"What is 17 * 23?{ENTER}")
        terminal.until(" action ")
        terminal.type(CTRL_C)
        terminal.until("stopped; /resume goes on with it")
        waits(terminal, 2)
        (tmp_path / "hold").unlink()
        terminal.type(f"/resume{ENTER}")
        terminal.until("gave 391")
        waits(terminal, 3)
        terminal.type(CTRL_C)  # in an empty line
        code, text = terminal.ended()

    assert (code, len(asked(tmp_path))) == (0, 1)
    assert "Traceback" not in text


@pytest.mark.slow
def test_a_question_after_a_stopped_answer_goes_on_from_before_it(tmp_path: Path) -> None:
    """In a branch: the thread with the stopped answer keeps it."""
    with chat(tmp_path, "--name", "sums", held=True) as terminal:
        terminal.type(f"What is 17 * 23?{ENTER}")
        terminal.until("gave 391")
        waits(terminal, 2)
        (tmp_path / "hold").touch()
        terminal.type(f"What is 2 * 3?{ENTER}")
        terminal.until_seen(lambda text: text.count(" action ") == 2, "the second turn")
        terminal.type(CTRL_C)
        terminal.until("stopped; /resume goes on with it")
        waits(terminal, 3)
        (tmp_path / "hold").unlink()
        terminal.type(f"What is 5 * 7?{ENTER}")
        text = waits(terminal, 4)
        assert [part.split()[0] for part in text.split(" gave ")[1:]] == ["391", "35"]
        assert "a branch of sums, without the stopped answer: " in " ".join(text.split())
        terminal.type(CTRL_D)
        assert terminal.ended()[0] == 0

    shown = run("threads", "--ledger", tmp_path / "antiphon.db").stdout
    assert ("paused" in shown, "completed" in shown) == (True, True)


@pytest.mark.slow
def test_history_several_lines_commands_and_completion(tmp_path: Path) -> None:
    assert run("run", "What is 6 * 7?", "--model", "scripted", "--ledger", tmp_path / "antiphon.db").exit_code == 0
    with chat(tmp_path) as terminal:
        terminal.type(f"{UP}{ENTER}")  # the question of the earlier thread
        terminal.until("gave 42")
        waits(terminal, 2)
        terminal.type(f"What is{ALT_ENTER}2 * 4?{ENTER}")
        assert "> What is\n… 2 * 4?" in waits(terminal, 3)
        terminal.type("/hel")
        terminal.until("list these commands")  # in the menu
        terminal.type(TAB)
        terminal.until("> /help")
        terminal.type(ENTER)
        terminal.until("go on with the answer that was stopped")
        waits(terminal, 4)
        terminal.type(f"/modle x{ENTER}")
        terminal.until("no command is called /modle; did you mean /model?")
        waits(terminal, 5)
        terminal.type(f"/model loacl{ENTER}")
        terminal.until("perhaps 'local'")
        waits(terminal, 6)
        terminal.type("something")
        terminal.until("> something")
        terminal.type(CTRL_C)  # clears the line
        waits(terminal, 6)
        terminal.type(f"/model scripted{ENTER}")
        terminal.until("scripted answers from now on")
        waits(terminal, 7)
        terminal.type(f"/new{ENTER}")
        terminal.until("begins another thread")
        waits(terminal, 8)
        terminal.type(f"What is 3 * 3?{ENTER}")
        terminal.until("gave 9 ")
        waits(terminal, 9)
        terminal.type(f"/thread{ENTER}")
        terminal.until("this is thread t-")
        waits(terminal, 10)
        terminal.type(f"/quit{ENTER}")
        code, text = terminal.ended()

    assert code == 0
    assert "Traceback" not in text
    assert sorted(asked(tmp_path)) == ["What is 3 * 3?", "What is 6 * 7?", "What is 6 * 7?"]
