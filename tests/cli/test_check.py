"""`antiphon check` and `antiphon repair`: what they say about a file, how they end, and what is written."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import CHAT, in_terminal, run, save, start, tool_call, type_command

from antiphon import Conversation, decode, dumps, loads
from antiphon.checks import check

BROKEN: list[dict[str, Any]] = [
    {"role": "user", "content": "Is it warm in Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": [tool_call("c-1", "get_weather", city="Oslo")]},
    {"role": "user", "content": "Hello?"},
]
"""A history of Chat Completions whose call nobody answered."""
ANSWER = "An assistant message with 'tool_calls' must be followed by tool messages"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return save(tmp_path / "broken.json", BROKEN)


# ---------------------------------------------------------------- check


def test_a_finding_reads_like_a_linters(broken: Path) -> None:
    """Where, the code, what is wrong; then what the provider answers, how to mend it, and the sum."""
    result = run("check", broken, "--from", "openai-chat")
    first, answer, help_, summary = result.stdout.splitlines()

    assert result.exit_code == 1
    assert first.startswith(
        f"{broken}: message 1: AP101 error: the call 'c-1' of 'get_weather' has no result (id openai-chat-1-"
    )
    assert answer.startswith(f"    OpenAI Chat Completions answers: “{ANSWER}")
    assert help_ == "    help: Add a result. If the result is unknown, add an error that says so."
    assert summary == f"Found 1 error for openai-chat. `antiphon repair {broken} --from openai-chat` fixes errors."
    assert result.stderr == ""


@pytest.mark.slow
def test_a_finding_breaks_no_word_in_a_terminal(broken: Path) -> None:
    seen = type_command("check", broken, "--from", "openai-chat", columns=80)

    assert f"“{ANSWER} responding to each 'tool_call_id'." in seen.said


def test_the_target_may_be_another_than_the_format(broken: Path) -> None:
    result = run("check", broken, "--from", "openai-chat", "--for", "gemini")

    assert "Gemini generateContent answers: “Please ensure" in result.stdout
    assert "1 error for gemini" in result.stdout


def test_a_format_that_is_no_providers_is_checked_for_anybody(tmp_path: Path) -> None:
    chat = save(tmp_path / "chat.json", CHAT)
    result = run("check", chat, "--from", "marsys")

    assert (result.exit_code, result.stdout) == (0, "Nothing is wrong.\n")


def test_warnings_alone_are_no_failure(tmp_path: Path) -> None:
    chat = save(tmp_path / "chat.json", CHAT)
    result = run("check", chat, "--from", "marsys", "--for", "anthropic-messages")

    assert result.exit_code == 0
    assert result.stdout.endswith("Found 1 warning for anthropic-messages.\n")


def test_more_than_one_is_counted_so(tmp_path: Path) -> None:
    worse = save(tmp_path / "worse.json", [BROKEN[1], *BROKEN])
    result = run("check", worse, "--from", "openai-chat", "--for", "anthropic-messages")

    assert "Found 2 errors and 2 warnings for anthropic-messages." in result.stdout


CLAUDE = """{
  "max_tokens": 9,
  "system": "Be brief.",
  "messages": [
    {"role": "user", "content": "Is it [warm], \\"or\\" {cold}?"},
    {"role": "assistant", "content": [
      {"type": "text", "text": "I look."},
      {"type": "tool_use", "id": "c-1", "name": "f", "input": {}}
    ]},
    {"role": "user", "content": "Hello?"}
  ]
}
"""


@pytest.mark.slow
def test_a_message_is_named_by_the_index_and_the_line_of_the_file(tmp_path: Path) -> None:
    """Typed in a terminal. The call is the fourth message of ours, and the second one of the file."""
    file = tmp_path / "claude.json"
    file.write_text(CLAUDE)

    seen = type_command("check", file)
    (row,) = json.loads(run("check", file, "--format", "json").stdout)

    assert seen.code == 1
    assert "messages[1], line 6: AP101 error: the call 'c-1' of 'f' has no result" in seen.said
    assert (row["position"], row["path"], row["line"]) == (3, ["messages", 1], 6)
    assert run("check", file, "--format", "github").stdout.startswith(f"::error file={file},line=6,title=AP101::messages[1], ")


def test_a_message_of_json_lines_is_named_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text("\n\n".join(map(json.dumps, BROKEN)))
    house = tmp_path / "house.jsonl"
    house.write_bytes(dumps(decode(BROKEN, "openai-chat")))

    assert run("check", file, "--from", "openai-chat").stdout.startswith(f"{file}: line 3: AP101 error: ")
    assert run("check", house, "--for", "gemini").stdout.startswith(f"{house}: line 3: AP101 error: ")


def test_each_line_may_be_a_conversation(tmp_path: Path) -> None:
    """And without --each-line, the error says that it is there."""
    file = tmp_path / "many.jsonl"
    file.write_text("".join(json.dumps({"messages": each, "seed": 1}) + "\n" for each in (BROKEN[:1], BROKEN, BROKEN)))
    hint = "each line seems to be a conversation of openai-chat: --each-line, which import, convert, check and repair have"

    result = run("check", file, "--each-line")
    refused = run("check", file)

    assert result.exit_code == 1
    assert result.stdout.startswith(f"{file}: line 2, messages[1]: AP101 error: ")
    assert f"\n{file}: line 3, messages[1]: AP101 error: " in result.stdout
    repair = f"antiphon repair {file} --each-line"
    assert result.stdout.endswith(f"Found 2 errors for openai-chat. `{repair}` fixes errors.\n")
    assert (refused.exit_code, refused.stderr) == (2, f"{file}: a list of these is no conversation; {hint}\n")
    assert run("check", file, "--from", "openai-chat").stderr.endswith(f"; {hint}\n")
    assert run("check", file, "--each-line", "--flow", "collaboration").exit_code == 2
    rows = json.loads(run("check", file, "--each-line", "--format", "json").stdout)
    assert [(row["line"], row["path"]) for row in rows] == [(2, ["messages", 1]), (3, ["messages", 1])]


def test_a_wrong_line_among_messages_is_not_taken_for_a_conversation(tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text("\n".join(map(json.dumps, [*BROKEN, {"role": "king"}])))

    assert "--each-line" not in run("check", file, "--from", "openai-chat").stderr


def test_a_fault_of_the_whole_conversation_has_no_place(tmp_path: Path) -> None:
    empty = save(tmp_path / "empty.json", {"messages": []})
    result = run("check", empty, "--from", "openai-chat")

    assert result.stdout.startswith(f"{empty}: AP305 error: the conversation is empty\n")


def test_findings_as_json_are_a_list(broken: Path) -> None:
    """The fields are those of a `Finding`, and the file; nothing else is on stdout."""
    result = run("check", broken, "--from", "openai-chat", "--format", "json")
    (row,) = json.loads(result.stdout)
    (finding,) = check(decode(BROKEN, "openai-chat"), "openai-chat")

    assert result.exit_code == 1
    assert row == {
        "file": str(broken),
        "code": "AP101",
        "severity": "error",
        "position": 1,
        "message_id": finding.message_id,
        "problem": finding.problem,
        "answer": finding.answer,
        "hint": finding.hint,
        "path": [1],
        "line": None,
    }


def test_no_findings_as_json_are_an_empty_list(tmp_path: Path) -> None:
    result = run("check", save(tmp_path / "chat.json", CHAT), "--from", "marsys", "--format", "json")

    assert (result.exit_code, result.stdout) == (0, "[]\n")


def test_findings_for_github_are_annotations(tmp_path: Path) -> None:
    """Separators and percent signs are escaped."""
    file = save(tmp_path / "a,b.json", [BROKEN[0], {**BROKEN[1], "tool_calls": [tool_call("c1", "50%")]}])
    result = run("check", file, "--from", "openai-chat", "--format", "github")
    first, second = result.stdout.splitlines()
    begin = f"::error file={str(file).replace(',', '%2C')},title="

    assert result.exit_code == 1
    assert first.startswith(f"{begin}AP101::message 1: the call 'c1' of '50%25' has no result. OpenAI Chat")
    assert second.startswith(f"{begin}AP202::message 1: ")


def test_an_annotation_of_the_whole_has_no_place(tmp_path: Path) -> None:
    empty = save(tmp_path / "empty.json", {"messages": []})
    result = run("check", empty, "--from", "openai-chat", "--format", "github")

    assert "title=AP305::the conversation is empty. OpenAI Chat Completions refuses it. Add" in result.stdout


EVIL = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": [{"type": "\x1b[31m\n::error::_tool_result", "tool_use_id": "s"}]},
    {"role": "user", "content": "Hello"},
]
"""A block whose type is meant for a terminal, or for GitHub."""


def test_message_text_cannot_end_an_annotation(tmp_path: Path) -> None:
    """S8: a line end is written by its number."""
    file = save(tmp_path / "evil.json", EVIL)
    (line,) = run("check", file, "--from", "anthropic-messages", "--format", "github").stdout.splitlines()

    assert "the \x1b[31m%0A::error::_tool_result of 's' has no call before it" in line


def test_message_text_does_not_reach_the_terminal_as_a_command(tmp_path: Path) -> None:
    """S8: a control character is shown by its number."""
    file = save(tmp_path / "evil.json", EVIL)
    result = run("check", file, "--from", "anthropic-messages")

    assert "the ⟨U+001B⟩[31m⟨U+000A⟩::error::_tool_result of 's' has no call before it" in result.stdout
    assert "\x1b" not in result.stdout


def test_an_unknown_target_is_refused(broken: Path) -> None:
    for command in ("check", "repair"):
        result = run(command, broken, "--for", "openai")
        assert result.exit_code == 2
        assert "no target is called 'openai': did you mean openai-chat or openai-responses? there are " in result.stderr


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    nothing = save(tmp_path / "nothing.json", {"hello": "world"})

    assert run("check", tmp_path / "no.json").exit_code == 2
    assert run("check", nothing).exit_code == 2
    assert run("check", nothing, "--from", "openai-chat").exit_code == 1


@pytest.mark.parametrize("command", ["check", "repair"])
def test_a_file_that_is_not_json_is_not_reported_as_a_history_with_errors(tmp_path: Path, command: str) -> None:
    """Exit code 1 says that a provider refuses the history; here nothing could be checked."""
    file = tmp_path / "cut.json"
    file.write_text('[{"role": "user", "content": "Hel')
    result = run(command, file, "--from", "openai-chat")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{file}: not JSON: ")


@pytest.mark.slow
def test_in_a_terminal_it_is_coloured(broken: Path) -> None:
    shown = in_terminal("check", broken, "--from", "openai-chat", columns=200)

    assert "\x1b[1;31merror\x1b[0m" in shown


@pytest.mark.slow
def test_the_format_is_detected_and_stdin_is_read() -> None:
    body = {"model": "m", "messages": BROKEN, "tools": []}
    done = start("check", "-", stdin=json.dumps(body).encode())

    assert done.returncode == 1
    assert done.stderr.decode().startswith("stdin: read as openai-chat (")
    assert done.stdout.decode().startswith("stdin: messages[1]: AP101 error: ")


# ---------------------------------------------------------------- repair


def test_a_repaired_file_is_in_its_own_format(broken: Path) -> None:
    """With the changes on stderr, and nothing wrong with it any more."""
    result = run("repair", broken, "--from", "openai-chat")
    written = json.loads(result.stdout)

    assert result.exit_code == 0
    assert [message["role"] for message in written] == ["user", "assistant", "tool", "user"]
    assert (written[:2], written[3]) == (BROKEN[:2], BROKEN[2])
    assert "repaired: 1\nmessage" in result.stderr
    assert "AP101  an error result of type 'interrupted' is added by the runtime" in result.stderr
    assert check(decode(written, "openai-chat"), "openai-chat") == []


def test_a_file_may_be_repaired_in_place_and_then_needs_nothing(broken: Path) -> None:
    assert run("repair", broken, "--from", "openai-chat", "--for", "anthropic-messages", "-o", broken, "--force").stdout == ""
    again = run("repair", broken, "--from", "openai-chat", "--for", "anthropic-messages")

    assert again.stderr.splitlines()[0] == "nothing needed a repair"
    assert again.stdout == broken.read_text()
    assert run("check", broken, "--from", "openai-chat", "--for", "anthropic-messages").exit_code == 0


def test_a_repaired_file_may_go_to_another_format(broken: Path) -> None:
    """What it cannot say is reported, as in `convert`."""
    result = run("repair", broken, "--from", "openai-chat", "--for", "anthropic-messages", "--to", "anthropic-messages")
    written = json.loads(result.stdout)

    assert check(decode(written, "anthropic-messages"), "anthropic-messages") == []
    assert "anthropic-messages cannot express everything" in result.stderr
    assert "; --to" not in result.stderr


def test_a_repair_for_another_target_says_that_the_format_stays(broken: Path) -> None:
    """One line on stderr: the file still needs a conversion."""
    line = "written as openai-chat; --to anthropic-messages writes it for the target"
    other = run("repair", broken, "--from", "openai-chat", "--for", "anthropic-messages")

    assert other.stderr.splitlines().count(line) == 1
    for own in ((), ("--for", "openai-chat")):
        assert "; --to" not in run("repair", broken, "--from", "openai-chat", *own).stderr


def test_in_the_house_format_the_marks_are_kept(broken: Path) -> None:
    result = run("repair", broken, "--from", "openai-chat", "--to", "house")
    conversation = loads(result.stdout_bytes, Conversation)

    assert conversation[2].metadata["checks"] == {"added": "AP101"}


def test_changes_to_the_whole_are_listed_as_such(tmp_path: Path) -> None:
    empty = save(tmp_path / "empty.json", {"messages": []})
    result = run("repair", empty, "--from", "openai-chat")

    assert "(conversation)  AP305  a user message '.' is added" in result.stderr


def test_each_line_may_be_repaired_as_a_conversation(tmp_path: Path) -> None:
    """Each becomes a line again, and a change names its line."""
    file, out = tmp_path / "many.jsonl", tmp_path / "out.jsonl"
    whole, broken = {"messages": BROKEN[:1]}, {"messages": BROKEN}
    file.write_text("".join(json.dumps(each) + "\n" for each in (whole, broken, broken)))

    done = run("repair", file, "--each-line", "-o", out)

    assert done.exit_code == 0
    assert "repaired: 2\n" in done.stderr
    assert [line.split(": ")[0] for line in done.stderr.splitlines() if "AP101" in line] == ["line 2", "line 3"]
    first, *others = [json.loads(line) for line in out.read_text().splitlines()]
    assert first == whole
    assert [len(each["messages"]) for each in others] == [len(BROKEN) + 1] * 2
    assert run("check", out, "--each-line").exit_code == 0
    assert run("repair", out, "--each-line").stderr.endswith("nothing needed a repair\n")
