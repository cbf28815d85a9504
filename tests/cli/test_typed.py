"""Commands as a person types them, in a real terminal of 80 columns: what is seen, and the exit code."""

import io
import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.cli.fake_openai import WRONG, fake_openai
from tests.cli.ledgers import append, text, with_chat
from tests.cli.running import COMMAND, PLAIN, Seen, start, type_command

from antiphon.cli._live import program_name
from antiphon.cli._screen import THEME, print_table

pytest.importorskip("apsw")
pytest.importorskip("openai")

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
    assert seen.said == (
        "team.toml: an approval rule names tool 'calcualtor', and toolkit 'toolkit' has none of that name; is it 'calculator'?"
    )
    assert seen.code == 2


@pytest.mark.slow
def test_input_that_is_not_utf_8_is_reported_and_a_plain_locale_reads_utf_8() -> None:
    """Whatever the locale: arguments are bytes, and a person types UTF-8."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [*COMMAND, "run", "--model", "scripted", "--quiet"]

    def typed(question: bytes, **environment: str) -> tuple[int, bytes]:
        given = {"env": {**PLAIN, **environment}, "capture_output": True}
        done: subprocess.CompletedProcess[bytes] = subprocess.run([*command, question], check=False, **given)
        return done.returncode, done.stderr

    assert typed(b"caf\xe9") == (2, b"antiphon: an argument is not text in UTF-8: caf\\xe9, byte 3\n")
    assert typed("Grüße?".encode(), **plain) == (0, b"")
    shown = start("threads", "--json")
    assert json.loads(shown.stdout)[0]["title"] == "Grüße?"


@pytest.mark.slow
def test_a_wrong_option_is_answered_without_a_broken_word(folder: Path) -> None:
    seen = type_command("convert", "x.json", "--to", "openai-chatt", columns=60)
    assert seen.code == 2
    assert "did you mean openai-chat? there are house, choir, marsys, agent-framework, atlas, openai-chat," in seen.said
    assert all(len(line) <= 60 for line in seen.text.splitlines())
    words = ("openai-responses,", "anthropic-messages,", "pydantic-ai")
    assert all(any(word in line.split() for line in seen.text.splitlines()) for word in words)


@pytest.mark.slow
def test_a_printed_command_can_be_typed_whatever_the_thread_is_called() -> None:
    """A name with a space, and one with a quote: every command that is printed is one that a shell takes."""
    for name in ("two words", "ada's"):
        stopped = type_command("run", "Hi?", "--model", "scripted", "--budget", "requests=2", "--name", name)
        assert stopped.code == 4
        commands = [line for line in stopped.text.splitlines() if "antiphon resume" in line]
        assert len(commands) == 2
        for line in commands:
            words = shlex.split(line[line.index("antiphon resume") :])
            assert words[2] == name
        done = type_command("resume", name, "--budget", "requests=20")
        assert done.code == 0
        tried = [shlex.split(line) for line in done.text.splitlines() if line.startswith("  ") and "antiphon" in line]
        assert [words[-1] for words in tried[-4:]] == [name, name, name, "threads"]


@pytest.mark.slow
def test_a_replay_and_a_resume_show_the_question_and_break_no_word() -> None:
    asked = type_command("run", "What is 17 * 23?", "--model", "scripted", "--name", "sum", "--budget", "requests=2")
    assert asked.code == 4
    done = type_command("resume", "sum", "--budget", "requests=20")
    assert done.code == 0
    assert "\nWhat is 17 * 23?\n├ ✓ action" in f"\n{done.text}"
    assert "[1] calculator(expression='17 * 23'): 391\n" in done.text  # the id of the call is for programs
    branch = type_command("fork", "sum", "--at", "yield", "--quiet").said
    assert re.fullmatch(r"t-[a-z2-7]{16}", branch)  # as short as the others: a list has room for the question
    played = type_command("replay", "sum", columns=60)
    assert played.code == 0
    assert played.text.count("calculator(expression='17 * 23') gave 391 [1]") == 1
    assert played.text.count("0 passages found") == 1
    assert "[1] calculator(expression='17 * 23'): 391" in played.text
    whole = type_command("fork", "sum", "--quiet").said
    assert re.search(rf"^{whole} +not run ", type_command("threads").text, re.MULTILINE)
    resumed = type_command("resume", whole)  # a branch of a thread that is completed is completed, under its own id
    assert f"antiphon show {whole}\n" in resumed.text
    assert all(len(line) <= 60 for line in played.text.splitlines())


# ---------------------------------------------------------------- providers


@pytest.mark.slow
@pytest.mark.parametrize("protocol", WRONG)
@pytest.mark.parametrize("more", [(), ("--team", "team.toml")], ids=["six phases", "team"])
def test_a_server_of_another_protocol_is_asked_three_times_and_then_reported(protocol: str, more: tuple[str, ...]) -> None:
    """The thread is stopped, not failed: it goes on when the address is right."""
    with fake_openai() as fake:
        fake.failure = protocol
        seen = type_command("run", "Hello?", "--model", "openai-chat:fake", *more, **fake.environment())

    assert (seen.code, len(fake.asked)) == (4, 3)
    assert "does its server speak the protocol of this model?" in seen.said
    assert "nothing is lost; when that is put right, go on with: " in seen.said


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("--team", "team.toml")], ids=["six phases", "team"])
def test_events_are_lines_of_json_when_a_thread_runs_and_when_it_is_resumed(folder: Path, more: tuple[str, ...]) -> None:
    """Nothing else is on stdout; the last line is the report. What was done before the stop is no event of the resume."""
    (folder / "team.toml").write_text(TEAM.replace('approvals = ["calculator"]', ""))

    def events(*command: str, **environment: str) -> tuple[list[dict[str, Any]], int]:
        done = start(*command, "--json-events", **environment)
        assert done.stderr == b""
        return [json.loads(line) for line in done.stdout.splitlines()], done.returncode

    with fake_openai() as fake:
        fake.failure, fake.fails_after = "500", 0 if more else 2
        first, stopped = events("run", "Hello?", "--model", "openai-chat:fake", "--name", "t1", *more, **fake.environment())
        fake.failure = None
        second, completed = events("resume", "t1", **fake.environment())

    assert (stopped, completed) == (4, 0)
    for lines, status in ((first, "stopped"), (second, "completed")):
        *told, report = lines
        assert (report["kind"], report["status"], report["thread_id"]) == ("report", status, "t1")
        assert told
        assert all(each.keys() == {"kind", "thread_id", "agent", "text", "data", "seq"} for each in told)
        assert {each["thread_id"] for each in told} == {"t1"}
        places = [each["seq"] for each in told if each["seq"] is not None]
        assert places == sorted(places)
    assert max(each["seq"] or 0 for each in first[:-1]) < max(each["seq"] or 0 for each in second[:-1])
    if not more:
        ended = [[each["agent"] for each in lines if each["kind"] == "phase_ended"] for lines in (first, second)]
        assert [*ended[0], *ended[1]] == ["action", "experience", "intention", "observation", "understanding", "yield"]


@pytest.mark.slow
def test_a_thread_that_has_ended_is_reported_before_a_model_is_looked_for() -> None:
    """Its provider's key may be gone, and it needs no model any more."""
    question = ("Hello?", "--model", "openai-chat:fake")
    with fake_openai() as fake:
        assert type_command("run", *question, "--name", "done", **fake.environment()).code == 0
        fake.failure = "500"
        assert type_command("run", *question, "--name", "ended", **fake.environment()).code == 4
    assert type_command("terminate", "ended").code == 0
    why = "thread ended is terminated, and does not continue; `antiphon show ended` prints it, "
    for words in (("resume", "ended"), ("resume", "ended", "--model", "openai:gpt-4o"), ("run", "And?", "--thread", "ended")):
        seen = type_command(*words, columns=140)
        assert (seen.code, seen.said) == (1, f"{why}`antiphon fork ended --at PLACE` makes a branch from before its end"), (
            words
        )
    branch = type_command("fork", "ended", "--into", "again", columns=140)
    assert "the branch is terminated too, and does not continue; --at PLACE makes one from before the end" in branch.said
    assert "waits for" not in type_command("status", "ended").text
    seen = type_command("resume", "done")
    assert (seen.code, "thread done: completed" in seen.said) == (0, True)
    assert type_command("fork", "ended", "--at", "action", "--into", "before").code == 0
    assert type_command("resume", "before", "--model", "scripted").code == 0


@pytest.mark.slow
def test_an_imported_thread_has_nothing_to_resume_and_takes_a_question(folder: Path) -> None:
    (folder / "chat.json").write_text('[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]')
    assert type_command("import", "chat.json", "--from", "openai-chat").code == 0
    why = "thread chat has nothing to continue: it was not run; `antiphon run --thread chat QUESTION` asks something more"
    assert type_command("resume", "chat", columns=140) == (f"{why}\n", 1)
    assert type_command("pause", "chat").code == 0
    assert type_command("resume", "chat", columns=140) == (f"{why}\n", 1)
    assert type_command("run", "And?", "--thread", "chat", "--model", "scripted", "--quiet").code == 0


# ---------------------------------------------------------------- files


@pytest.mark.slow
def test_a_full_disk_keeps_the_old_file(folder: Path) -> None:
    """A process that may write no larger file stands for a full disk."""
    url = with_chat(folder)
    append(url, "long", *(text("x" * 50_000) for _ in range(20)))
    out = folder / "out.jsonl"
    out.write_text('{"antiphon":1}\n')

    limited = f"ulimit -f 500; exec {shlex.join(COMMAND)} export -o out.jsonl --ledger {url}"
    done = subprocess.run(["/bin/bash", "-c", limited], env=PLAIN, capture_output=True, check=False, text=True)

    assert (done.returncode, done.stderr) == (2, "out.jsonl: File too large; the file is as it was\n")
    assert out.read_text() == '{"antiphon":1}\n'
    assert not list(folder.glob(".antiphon*"))


@pytest.mark.slow
def test_a_file_of_another_kind_is_replaced_only_by_force(folder: Path) -> None:
    url = with_chat(folder)
    notes = folder / "notes.txt"
    notes.write_text("Buy milk.\n")
    refusal = "notes.txt: there is a file of another kind; --force replaces it, or choose another name"

    seen = type_command("export", "-o", "notes.txt", "--ledger", url)
    assert (seen.said.startswith(refusal), seen.code) == (True, 2)
    assert notes.read_text() == "Buy milk.\n"
    assert type_command("export", "-o", "notes.txt", "--force", "--ledger", url).code == 0
    assert type_command("export", "-o", "notes.txt", "--ledger", url).code == 0  # now it is an earlier export
    assert notes.read_bytes().startswith(b'{"antiphon":')


# ---------------------------------------------------------------- how it ended

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_an_answer_that_rests_on_failed_tools_says_so_and_is_no_success(folder: Path) -> None:
    (folder / "none").mkdir()
    triage = EXAMPLES / "triage_mailbox" / "team.toml"
    seen = type_command("run", "--team", triage, "--files", "none", "What is in the mailbox?")
    assert seen.code == 1
    assert "the answer rests on failed tools:\n  list_letters: there is no file like '**/*.mbox'; list_files" in seen.text


@pytest.mark.slow
def test_the_exit_code_says_that_a_thread_waits_for_a_person_or_was_terminated(folder: Path) -> None:
    waiting = type_command("run", "--team", "team.toml", "--thread", "t", "Calculate.")
    assert waiting.code == 3
    typed = [shlex.split(line) for line in waiting.text.splitlines() if line.startswith("  ") and " --as " in line]
    assert [(words[-4], words[-2:]) for words in typed] == [("approve", ["--as", "grace"]), ("deny", ["--as", "grace"])]
    assert 'may ada call calculator(expression="17*23")?' in waiting.said
    assert "⟨U+" not in waiting.text
    assert type_command("terminate", "t").code == 0
    again = type_command("run", "--team", "team.toml", "--thread", "t", "Calculate.")
    assert again.code == 1


@pytest.mark.slow
def test_the_exit_codes_are_explained() -> None:
    seen = type_command("help", "exit-codes")
    assert seen.code == 0
    assert all(word in seen.text for word in ("completed", "failed", "waits for a person", "stopped before its end", "130"))
    assert type_command("help", "exit-code") == ("there is no topic 'exit-code'; is it 'exit-codes'?\n", 2)


# ---------------------------------------------------------------- files that are no JSON


@pytest.mark.slow
def test_a_file_in_another_encoding_says_so(folder: Path) -> None:
    (folder / "old.json").write_bytes('[\n{"role": "user", "content": "Grüße"}]'.encode("latin-1"))
    seen = type_command("check", "old.json")
    assert " ".join(seen.text.split()) == (
        "old.json: line 2: not text in UTF-8; if it is Latin-1: iconv -f latin1 -t utf-8 old.json"
    )
    assert seen.code == 2
    (folder / "picture.json").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    said = "picture.json: this is a binary file; JSON is text in UTF-8\n"
    assert type_command("convert", "picture.json", "--to", "house") == (said, 2)


# ---------------------------------------------------------------- a call that must not run twice

TILL = '''
"""A till whose process is killed while it charges a card."""
import os
import pathlib
import signal


def charge(euros: int) -> str:
    """Charge a card."""
    with pathlib.Path("charges").open("a") as charges:
        charges.write(f"{euros}\\n")
    os.kill(os.getpid(), signal.SIGKILL)
    return "a receipt"
'''


@pytest.mark.slow
def test_a_call_that_was_killed_is_settled_by_the_command_that_is_printed(folder: Path) -> None:
    """G7: it is never started again; a person reads what to type, types it, and the thread goes on."""
    team = TEAM.replace('approvals = ["calculator"]\napprovers = ["grace"]\n', "").replace('"calculator"', '"till.py:charge"')
    (folder / "team.toml").write_text(team)
    script = 'turns = [{ calls = [{ tool = "charge", arguments = { euros = 7 } }] }, { text = "paid: {result}" }]'
    (folder / "script.toml").write_text(script)
    (folder / "till.py").write_text(TILL)
    assert type_command("trust", "team.toml", "--yes").code == 0
    assert type_command("run", "--team", "team.toml", "--name", "order-42", "Charge 7 euros.").code == -9
    assert type_command("threads").text.splitlines()[-1].split()[:2] == ["order-42", "stopped"]
    assert type_command("threads", "--status", "processing").said == "no threads; --all lists those of the system too"

    waiting = type_command("resume", "order-42")
    assert waiting.code == 3
    lines = waiting.text.splitlines()
    commands = [line.split("antiphon ")[1] for line in lines if " settle order-42 " in line]
    assert [each.split()[3:] for each in commands] == [["--result", "JSON"], ["--error", "TEXT"], ["--retry"]], waiting.text
    assert "" not in lines
    assert all(len(line) <= 80 for line in lines), waiting.text
    parked = type_command("parked", columns=60)
    assert "must not be done twice" in parked.said
    assert all(len(line) <= 60 for line in parked.text.splitlines()), parked.text
    typed = shlex.split(commands[0].replace("JSON", "'\"a receipt\"'"))
    assert type_command(*typed).code == 0

    done = type_command("resume", "order-42")
    assert done.code == 0
    assert "paid: a receipt" in done.text
    assert re.search(r"^Charge 7 euros\.\n└ ✓ ada ", done.text, re.MULTILINE), done.text
    assert (folder / "charges").read_text() == "7\n"


# ---------------------------------------------------------------- branches and times


@pytest.mark.slow
def test_the_command_that_a_fork_prints_continues_the_branch(folder: Path) -> None:
    """In the middle of the phases it is resumed; after them, it takes the next question."""
    own = ("--ledger", "own.db")
    assert type_command("run", "What is 17 * 23?", "--model", "scripted", "--name", "sum", *own).code == 0
    for place, verb in (("yield", "resume"), (None, "run")):
        forked = type_command("fork", "sum", *(("--at", place) if place else ()), *own)
        command = (
            forked.said.partition("continue it with: ")[2].partition("antiphon ")[2].removesuffix(forked.said.split()[-1])
        )
        assert command.startswith(f"{verb} "), forked.said
        assert type_command(*shlex.split(command)).code == 0
        if place:
            compared = type_command("diff", "sum", forked.said.split()[-1], *own)
            assert (compared.code, compared.text.count("the same\n")) == (1, 6)
            assert "the answers are the same, other messages differ: --messages compares those" in compared.said

    times = type_command("show", "sum", "--timeline", *own).text.splitlines()
    assert sum(line.endswith(" s]") for line in times) > 20
    assert all(len(line) <= 80 for line in times)


# ---------------------------------------------------------------- keys


@pytest.mark.slow
def test_a_thread_whose_key_is_missing_says_so_and_is_not_failed() -> None:
    with fake_openai() as fake:
        fake.failure = "500"
        given = fake.environment()
        assert type_command("run", "Hello?", "--model", "openai-chat:fake", "--name", "t1", **given).code == 4
        missing = type_command("resume", "t1", **{**given, "OPENAI_API_KEY": ""})
    assert (missing.code, "set OPENAI_API_KEY" in missing.said) == (2, True)


# ---------------------------------------------------------------- output that cannot be written


@pytest.mark.slow
def test_output_that_cannot_be_written_is_one_line_and_an_exit_code_of_ours(folder: Path) -> None:
    given: dict[str, Any] = {"env": PLAIN, "text": True}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([*COMMAND, "help", "dialects"], check=False, stdout=full, stderr=subprocess.PIPE, **given)
    assert (done.returncode, done.stderr) == (2, "the output cannot be written: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*COMMAND, "threads"], check=False, stdout=subprocess.PIPE, stderr=writer, **given)
    os.close(writer)
    assert (done.returncode, done.stdout) == (1, "")


# ---------------------------------------------------------------- hosts, schedules and limits


@pytest.mark.slow
def test_a_schedule_says_what_is_missing_and_who_asks() -> None:
    assert type_command("schedule", "add", "report", "Why?") == Seen(
        "say when, by one of the two: --cron LINE, again and again, or --at TIME, once\n", 2
    )
    passed = type_command("schedule", "add", "report", "Why?", "--at", "2020-01-01")
    assert (passed.code, passed.said) == (2, "2020-01-01 00:00 UTC has passed; choose a time that comes")
    added = type_command("schedule", "add", "report", "Why?", "--at", "2999-01-01", "--ledger", "own.db")
    assert "UTC, if a host runs then no host runs now; `" in added.said
    assert added.said.endswith("antiphon host --ledger own.db` starts one")
    for name in ("nothing", "report", "report"):
        removed = type_command("schedule", "remove", name, "--ledger", "own.db")
    assert removed.code == 2
    assert removed.said.startswith("there is no schedule 'report'; `")
    assert removed.said.endswith("antiphon schedule list --ledger own.db` lists them")


@pytest.mark.slow
def test_a_limit_is_refused_in_the_words_of_the_command(folder: Path) -> None:
    """Without its quotes, a shell replaces `*` by the names of files: no file becomes a model."""
    (folder / "limits.toml").write_text("")
    for words, reason in (
        (("gpt-5", "--cost-per-day", "-2"), "--cost-per-day is an amount of US dollars, such as 20 or 0.50, not '-2'"),
        (("gpt-5", "--cost-per-day", "NaN"), "--cost-per-day is an amount of US dollars, such as 20 or 0.50, not 'NaN'"),
        (("team.toml", "--at-once", "2"), "'team.toml' is a file in this folder: for all models together, write '*'"),
        (("gpt-5", "--file", "limits.toml"), "--file sets the limits of all models: leave out MODEL"),
    ):
        seen = type_command("limits", *words)
        assert (seen.code, seen.said.startswith(reason)) == (2, True), seen
    assert type_command("limits", "gpt-5", "--at-once", "2").code == 0
    seen = type_command("limits", "gpt-6", "--remove")
    assert (seen.code, seen.said) == (2, f"'gpt-6' has no limits; `{program_name()} limits` lists those that there are")
    assert type_command("limits", "gpt-5", "--remove").said == (
        f"no model is limited; `{program_name()} limits MODEL --at-once N` sets a limit for all hosts"
    )


def test_a_table_breaks_no_word_that_has_room() -> None:
    """A long list beside a name: the list is divided between its words, and the name is not divided."""
    console = Console(file=io.StringIO(), width=80, force_terminal=True, theme=THEME)
    kinds = "client thread agent action experience intention observation understanding yield schedule supervisor delegate"
    row = ("vm-17515-1", "antiphon-0.1.0-9b3774251158", kinds, "2026-11-17 22:19:00", "0")
    print_table(console, ("host", "build", "kinds", "alive until (UTC)", "threads"), [row])
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in text for word in ("antiphon-0.1.0-9b3774251158", *kinds.split()))
    assert all(len(line) <= 80 for line in re.sub(r"\x1b\[[\d;]*m", "", text).splitlines())
