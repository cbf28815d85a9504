"""How threads, files and misspelt names are understood, and what the shell completes."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests.cli.ledgers import append, text, with_chat
from tests.cli.running import CHAT, run, save, start
from tests.cli.screens import Terminal

pytest.importorskip("apsw")


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A ledger with a chat, and two threads whose names begin the same."""
    url = with_chat(tmp_path)
    append(url, "order-41", text("Where is my parcel?"))
    append(url, "order-42", text("May I send it back?"))
    return url


# ---------------------------------------------------------------- threads


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", [("show",), ("status",), ("verify",), ("export",), ("tail", "--from-start", "--count", "1")]
)
def test_a_thread_may_be_named_by_its_beginning_or_as_the_last(url: str, command: tuple[str, ...]) -> None:
    for short, whole in (("order-42", "order-42"), ("order-41", "order-41"), ("last", "order-42")):
        assert run(*command, short, "--ledger", url).stdout == run(*command, whole, "--ledger", url).stdout
    append(url, "refunds", text("ho"))

    assert run(*command, "refu", "--ledger", url).stdout == run(*command, "refunds", "--ledger", url).stdout
    assert run(*command, "last", "--ledger", url).stdout == run(*command, "refunds", "--ledger", url).stdout


def test_two_threads_may_be_compared_by_their_beginnings(url: str) -> None:
    append(url, "refunds", text("ho"))

    assert run("diff", "refu", "last", "--ledger", url).exit_code == 0
    assert "--- refunds\n" in run("diff", "refu", "order-41", "--ledger", url).stdout


def test_a_beginning_of_several_threads_names_them(url: str) -> None:
    result = run("status", "order-", "--ledger", url)

    assert result.exit_code == 2
    assert result.stderr == "2 threads begin with 'order-': order-42, order-41; type more of the id\n"


def test_a_text_too_short_for_a_prefix_is_a_name(url: str) -> None:
    """A short text is rather a new thread's name, and `import` and teams make one of it."""
    assert run("status", "ord", "--ledger", url).stderr.startswith("no thread is called 'ord'")


def test_the_knowledge_of_a_ledger_is_not_the_last_thread(url: str, tmp_path: Path) -> None:
    (tmp_path / "tea.md").write_text("Green tea is steeped at 80 degrees.")
    assert run("knowledge", "add", tmp_path / "tea.md", "--ledger", url).exit_code == 0

    assert "order-42" in run("status", "last", "--ledger", url).stdout


# ---------------------------------------------------------------- names


@pytest.mark.slow
def test_a_new_thread_may_be_given_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("run", "What is 17 * 23?", "--model", "scripted", "--json", "--name", "sums")
    assert json.loads(run(*asked).stdout)["thread_id"] == "sums"

    again = run(*asked)
    assert again.exit_code == 2
    assert again.stderr.startswith("there is a thread called 'sums'; choose another name, or ask in that one with --thread")
    more = run("run", "And 2 * 3?", "--model", "scripted", "--json", "--thread", "last")
    assert json.loads(more.stdout)["thread_id"] == "sums"


@pytest.mark.parametrize("name", ["last", "-", "", "--x"])
def test_a_name_that_could_not_be_typed_is_refused(name: str) -> None:
    assert run("run", "Why?", "--model", "scripted", f"--name={name}").exit_code == 2
    assert run("chat", "--model", "scripted", f"--name={name}").exit_code == 2


def test_a_name_is_for_a_new_thread(url: str) -> None:
    result = run("run", "Why?", "--name", "x", "--thread", "chat", "--ledger", url)

    assert (result.exit_code, result.stderr) == (
        2,
        "--name is for a new thread, --thread for one that exists; give one of them\n",
    )


# ---------------------------------------------------------------- stdin


@pytest.mark.slow
def test_a_question_or_a_document_may_be_piped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = run("run", "-", "--model", "scripted", "-q", stdin="What is 17 * 23?\n")
    assert "gave 391 [1]" in asked.stdout
    cited = run(
        "run", "How hot is oolong?", "--add", "-", "--model", "scripted", "-q", stdin="Oolong is steeped at 90 degrees."
    )
    assert "stdin" in cited.stdout
    assert "Oolong is steeped at 90 degrees." in cited.stdout
    assert run("knowledge", "add", "-", "--json", stdin="Oolong is steeped at 90 degrees.").exit_code == 0


def test_piped_input_must_be_text_and_be_used_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("run", "-", stdin=b"\xff").stderr == "stdin: the question is not text in UTF-8: byte 0; convert it first\n"
    assert run("run", "-", "--add", "-", stdin="x").exit_code == 2
    assert run("run", "-", stdin="  \n").stderr == "the question is empty; ask something\n"


# ---------------------------------------------------------------- misspelt names


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rnu", "hi"), "No such command 'rnu'. Did you mean 'run'?"),
        (("thraeds",), "Did you mean 'threads'"),
        (("convert", "chat.json", "--to", "openai"), "did you mean openai-chat or openai-responses?"),
        (("convert", "chat.json", "--to", "openai_chat"), "did you mean openai-chat?"),
        (("show", "chat.json", "--from", "antropic-mesages"), "did you mean anthropic-messages?"),
        (("check", "chat.json", "--for", "responses"), "did you mean openai-responses?"),
        (("run", "hi", "--model", "openai"), "perhaps 'openai:"),
        (("run", "hi", "--model", "gpt-4o"), "perhaps 'openai:gpt-4o' or"),
        (("run", "hi", "--model", "opnai:gpt-4o"), "perhaps 'openai:gpt-4o'"),
        (("run", "hi", "--model", "skripted"), "perhaps 'scripted'"),
        (("run", "hi", "--modle", "scripted"), "--model"),
    ],
)
def test_a_misspelt_name_is_answered_with_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "chat.json", CHAT)
    result = run(*arguments)

    assert result.exit_code == 2
    assert says in result.stderr


# ---------------------------------------------------------------- the shell


def completed(*words: str, **environment: str) -> list[str]:
    """Return what the command gives bash to offer, for a line of which the last word is being typed."""
    asked = {
        "_ANTIPHON_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(("antiphon", *words)),
        "COMP_CWORD": str(len(words)),
    }
    return start(**asked, **environment).stdout.decode().split()


@pytest.mark.slow
def test_the_shell_completes_threads_dialects_models_and_commands(url: str, tmp_path: Path) -> None:
    assert completed("thr") == ["threads"]
    assert completed("status", "or", ANTIPHON_LEDGER=url) == ["order-42", "order-41"]
    assert completed("resume", "--ledger", str(tmp_path / "ledger.db"), "ch") == ["chat"]
    assert completed("convert", "x", "--to", "open") == ["openai-chat", "openai-responses"]
    assert completed("run", "x", "--model", "scr") == ["scripted"]
    assert "openai:gpt-4o" in completed("run", "x", "--model", "openai:gpt-4")
    assert completed("status", "or", ANTIPHON_LEDGER="none.db") == []


@pytest.mark.slow
def test_tab_in_a_shell_completes_the_id_of_a_thread(url: str, tmp_path: Path) -> None:
    """Typed in a real bash, with the script that `antiphon --show-completion` prints."""
    command = tmp_path / "antiphon"
    command.write_text(f"#!/bin/sh\nexec '{sys.executable}' -m antiphon \"$@\"\n", encoding="utf-8")
    command.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    # Typer asks the system which shell it is, and a test may have been started by none: it is told. Typer reads that when it
    # builds its commands, so they are not forked from a process that has built them.
    told = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "PATH": path, "PS1": "$ ", "ANTIPHON_LEDGER": url}
    with Terminal("bash", "--norc", "--noprofile", folder=tmp_path, **told) as shell:
        shell.until("$")
        shell.type('eval "$(antiphon --show-completion bash)"; echo ready\r')
        shell.until("\nready")
        shell.type("antiphon status ch\t\r")
        assert "thread id" in shell.until("messages")
    assert "antiphon status chat" in shell.screen.text
