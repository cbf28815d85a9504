"""`antiphon convert`: the output, the messages on stderr, and the exit code."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import CHAT, in_terminal, run, said, save, save_house, start, type_command

from antiphon import Conversation, MediaPart, TextPart, loads
from antiphon.dialects import convert, decode, meaning, names

TARGETS = ["house", "choir", "agent-framework", "atlas", "marsys"]


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    return save(tmp_path / "chat.json", CHAT)


# ---------------------------------------------------------------- what is written


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_tool_conversation_goes_to_every_format_and_back(chat: Path, tmp_path: Path, target: str) -> None:
    """The calls, the results and the texts are the same again."""
    there, back = tmp_path / "there.json", tmp_path / "back.json"

    assert start("convert", chat, "--to", target, "-o", there).returncode == 0
    assert start("convert", there, "--from", target, "--to", "marsys", "-o", back).returncode == 0

    def told(path: Path) -> list[tuple[object, ...]]:
        facets = ("text", "call", "arguments", "answers", "result")
        return [tuple(each.get(facet) for facet in facets) for each in meaning(decode(path.read_bytes(), "marsys"))]

    assert told(back) == told(chat)


def test_the_result_is_indented_json(chat: Path) -> None:
    result = run("convert", chat, "--from", "marsys", "--to", "atlas")

    assert result.exit_code == 0
    assert result.stdout.startswith("[\n  {\n")
    assert result.stdout.endswith("]\n")
    assert json.loads(result.stdout) == convert(CHAT, source="marsys", target="atlas").value


def test_the_house_format_is_written_as_lines_that_loads_reads(chat: Path) -> None:
    result = run("convert", chat, "--from", "marsys", "--to", "house")

    assert loads(result.stdout_bytes, Conversation) == decode(CHAT, "marsys")


@pytest.mark.slow
def test_text_is_written_in_utf_8_whatever_the_locale(tmp_path: Path) -> None:
    source = save(tmp_path / "chat.json", [{"role": "user", "content": "Blåbær 🫐"}])

    done = start("convert", source, "--to", "marsys", PYTHONIOENCODING="ascii")

    assert done.returncode == 0
    assert "Blåbær 🫐" in done.stdout.decode()


def test_large_integers_stay_exact(tmp_path: Path) -> None:
    number = 2**80 + 1
    source = save(tmp_path / "chat.json", [{"role": "user", "content": "x", "metadata": {"number": number}}])

    assert json.loads(run("convert", source, "--to", "marsys").stdout)[0]["metadata"] == {"number": number}


@pytest.mark.slow
def test_stdin_is_read_and_stdout_is_written() -> None:
    done = start("convert", "-", "--from", "marsys", "--to", "marsys", "-o", "-", stdin=json.dumps(CHAT).encode())

    assert done.returncode == 0
    assert json.loads(done.stdout) == CHAT
    assert done.stderr == b""


def test_a_file_is_converted_onto_itself_only_by_force(chat: Path) -> None:
    refused = run("convert", chat, "--to", "marsys", "-o", chat)
    assert (refused.exit_code, json.loads(chat.read_text())) == (2, CHAT)
    assert refused.stderr.endswith(f"{chat}: there is a file of another kind; --force replaces it, or choose another name\n")
    assert run("convert", chat, "--to", "house", "-o", chat, "--force").exit_code == 0
    assert run("convert", chat, "--to", "marsys", "-o", chat, "--force").exit_code == 0

    assert json.loads(chat.read_text()) == CHAT


def test_the_viewpoint_is_handed_on(chat: Path) -> None:
    """Whose words are the assistant's."""
    run("convert", chat, "--from", "marsys", "--to", "house", "-o", chat, "--force")

    result = run("convert", chat, "--from", "house", "--to", "marsys", "--as-policy", "user")

    assert [unit["role"] for unit in json.loads(result.stdout) if unit["message_id"] == "m-1"] == ["assistant"]


# ---------------------------------------------------------------- what is lost


def with_film(path: Path) -> Path:
    film = MediaPart(modality="video", url="https://example.com/sky.mp4")
    return save_house(path, [said(TextPart(text="Look!"), film, id="m-7")])


@pytest.mark.slow
def test_losses_are_listed_on_stderr_and_the_rest_is_written(tmp_path: Path) -> None:
    done = start("convert", with_film(tmp_path / "x.jsonl"), "--from", "house", "--to", "marsys")

    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["content"] == "Look!"
    first, heading, row = done.stderr.decode().splitlines()
    assert first == "marsys cannot express everything; losses: 1"
    assert heading.split() == ["message", "what", "reason"]
    assert row.split()[:2] == ["m-7", "media"]


@pytest.mark.slow
def test_strict_writes_nothing_where_something_would_be_lost(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("as it was")

    to_file = start("convert", with_film(tmp_path / "x.jsonl"), "--to", "marsys", "--strict", "-o", out)
    to_stdout = start("convert", with_film(tmp_path / "x.jsonl"), "--to", "marsys", "--strict")

    assert (to_file.returncode, to_stdout.returncode) == (1, 1)
    assert out.read_text() == "as it was"
    assert to_stdout.stdout == b""
    assert b"media" in to_stdout.stderr
    assert to_stdout.stderr.endswith(b"nothing is written, because of --strict\n")


@pytest.mark.usefixtures("twin")
def test_strict_lists_everything_that_would_be_lost(chat: Path) -> None:
    result = run("convert", chat, "--from", "marsys", "--to", "twin", "--strict")

    assert (result.exit_code, result.stdout) == (1, "")
    assert len(result.stderr.splitlines()) == 5


def test_strict_writes_what_loses_nothing_and_says_nothing(chat: Path) -> None:
    result = run("convert", chat, "--from", "marsys", "--to", "house", "--strict")

    assert result.exit_code == 0
    assert result.stdout.startswith('{"antiphon":')
    assert result.stderr == ""


@pytest.mark.usefixtures("twin")
def test_losses_are_shown_as_they_are_said(chat: Path) -> None:
    """No markup, no control character and no cut line, whatever text a loss quotes."""
    result = run("convert", chat, "--from", "marsys", "--to", "twin", "--as-policy", "ada")

    assert json.loads(result.stdout)["as"] == "ada"
    assert result.stderr.splitlines()[1:] == [
        "message         what                            reason",
        "m-1             the tone of [bold]voice[/bold]  it is only written",
        "(conversation)  the ⟨U+001B⟩[31mroom⟨U+202E⟩    nobody says where they are :smile:",
    ]


@pytest.mark.usefixtures("twin")
def test_a_refusal_of_a_dialect_to_write_is_one_line(tmp_path: Path) -> None:
    source = save(tmp_path / "chat.json", [{"role": "user", "content": "the unspeakable"}])

    result = run("convert", source, "--from", "marsys", "--to", "twin")

    assert result.exit_code == 1
    assert (result.stdout, result.stderr) == ("", f"{source}: message m-1: it cannot be said at all\n")


@pytest.mark.slow
def test_in_a_terminal_losses_are_a_table_and_json_hides_nothing(tmp_path: Path) -> None:
    film = MediaPart(modality="video", url="https://example.com/sky.mp4")
    source = save_house(tmp_path / "x.jsonl", [said(TextPart(text="a\u202eb\x9b31m\x7f\U000e0041\u3000"), film, id="m-7")])

    shown = in_terminal("convert", source, "--from", "house", "--to", "marsys")

    assert re.search(r"^\S*m-7\b", shown, re.MULTILINE)
    assert r'"a\u202eb\u009b31m\u007f\udb40\udc41　"' in shown
    assert json.loads(shown[shown.index("[\n") :])[0]["content"] == "a\u202eb\x9b31m\x7f\U000e0041\u3000"


REQUEST = {
    "model": "gpt-5",
    "messages": [{"role": "user", "content": "Hello"}],
    "temperature": 1.5,
    "max_tokens": 300,
    "top_p": 0.9,
    "stop": ["END"],
    "seed": 7,
}


@pytest.mark.slow
def test_settings_of_a_request_are_carried_over_and_a_person_sees_what_is_not(tmp_path: Path) -> None:
    """Typed in a terminal: what has another value, and what is lost."""
    source, out = save(tmp_path / "request.json", REQUEST), tmp_path / "out.json"

    seen = type_command("convert", source, "--to", "anthropic-messages", "-o", out)

    assert seen.code == 0
    assert json.loads(out.read_text()) == {
        "temperature": 1,
        "max_tokens": 300,
        "top_p": 0.9,
        "stop_sequences": ["END"],
        "messages": REQUEST["messages"],
    }
    assert "anthropic-messages cannot express everything; losses: 3" in seen.said
    assert "'gpt-5' is a model of openai-chat; name one for anthropic-messages" in seen.said
    assert "temperature 1.5 is written as 1: anthropic-messages takes 0 to 1" in seen.said
    assert "settings of a request are not carried over: seed" in seen.said
    assert seen.said.endswith("--model NAME names a model for anthropic-messages")


@pytest.mark.parametrize(("without", "code"), [(("seed", "temperature"), 0), (("seed",), 1), (("temperature",), 1)])
def test_strict_counts_settings(tmp_path: Path, without: tuple[str, ...], code: int) -> None:
    request = {key: value for key, value in REQUEST.items() if key not in without}
    source = save(tmp_path / "request.json", request)

    result = run("convert", source, "--to", "anthropic-messages", "--strict", "--model", "claude-opus-5-5")

    assert result.exit_code == code
    assert (json.loads(result.stdout)["model"] if code == 0 else result.stdout) == ("claude-opus-5-5" if code == 0 else "")


def test_strict_counts_the_model_unless_one_is_named(tmp_path: Path) -> None:
    source = save(tmp_path / "request.json", {"model": "gpt-5", "messages": REQUEST["messages"], "stop": "END"})

    assert run("convert", source, "--to", "anthropic-messages", "--strict").exit_code == 1
    assert run("convert", source, "--to", "anthropic-messages", "--strict", "--model", "m").exit_code == 0


def test_a_model_cannot_be_named_where_there_are_no_requests(chat: Path) -> None:
    result = run("convert", chat, "--to", "atlas", "--model", "m")

    assert (result.exit_code, result.stderr) == (2, "--model: atlas has no requests, so no model can be named\n")


@pytest.mark.slow
def test_each_line_may_be_a_conversation(tmp_path: Path) -> None:
    """Typed in a terminal: each becomes a line, and a loss names its line."""
    source, out = tmp_path / "many.jsonl", tmp_path / "out.jsonl"
    said = [{"messages": [{"role": "user", "content": each}], "seed": 7} for each in ("one", "two")]
    source.write_text("\n".join(map(json.dumps, said)))

    refused = type_command("convert", source, "--to", "gemini", "-o", out)
    seen = type_command("convert", source, "--to", "gemini", "-o", out, "--each-line")

    assert (refused.code, refused.said.endswith("--each-line, which import, convert, check and repair have")) == (2, True)
    assert seen.code == 0
    assert "losses: 2" in seen.said
    assert "line 2: (conversation)" in seen.said
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines == [{"contents": [{"role": "user", "parts": [{"text": each}]}]} for each in ("one", "two")]
    assert run("convert", source, "--to", "gemini", "-o", out, "--each-line").exit_code == 0  # over its own output
    assert run("convert", source, "--to", "gemini", "--each-line", "--strict").stdout == ""
    house = run("convert", source, "--to", "house", "--each-line").stdout
    assert [len(line) > 0 for line in house.splitlines()] == [True] * 4
    assert run("convert", save(tmp_path / "one.json", said[0]), "--to", "gemini", "--each-line").stdout.count("\n") == 1


# ---------------------------------------------------------------- which format it is


HELLO = [{"role": "user", "content": "Hello", "message_id": "m-1"}]


@pytest.mark.parametrize("target", names())
@pytest.mark.parametrize("said", [CHAT, HELLO], ids=["tools", "hello"])
def test_show_reads_whatever_convert_has_written(tmp_path: Path, target: str, said: list[Any]) -> None:
    """A plain conversation of Anthropic's is the same JSON as one of Chat Completions, and reads the same."""
    out = tmp_path / "out.json"
    run("convert", save(tmp_path / "chat.json", said), "--from", "marsys", "--to", target, "-o", out)

    result = run("show", out)

    assert (result.exit_code, said[0]["content"] in result.stdout) == (0, True)
    same = "openai-chat" if target == "anthropic-messages" and said is HELLO else target
    assert f"read as {same} (" in result.stderr


@pytest.mark.slow
def test_a_format_that_is_not_named_is_detected_and_said(chat: Path) -> None:
    done = start("convert", chat, "--to", "house")

    assert done.returncode == 0
    assert done.stderr.decode().startswith(f"{chat}: read as marsys (")


@pytest.mark.parametrize("source", TARGETS)
def test_each_format_is_detected_from_what_we_write(chat: Path, tmp_path: Path, source: str) -> None:
    there = tmp_path / "there.json"
    run("convert", chat, "--from", "marsys", "--to", source, "-o", there)

    result = run("convert", there, "--to", "house")

    assert result.exit_code == 0
    assert f"read as {source} (" in result.stderr


def test_a_format_that_cannot_be_told_asks_for_from() -> None:
    result = run("convert", "-", "--to", "house", stdin='{"hello": "world"}')

    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr == f"stdin: none of {', '.join(names())} looks like this; name the dialect with --from\n"


@pytest.mark.usefixtures("twin")
def test_a_format_that_may_be_two_asks_for_from(chat: Path) -> None:
    result = run("convert", chat, "--to", "house")

    assert result.exit_code == 2
    assert "marsys or twin" in result.stderr
    assert result.stderr.endswith("name the dialect with --from, one of marsys, twin\n")


@pytest.mark.parametrize("option", ["--from", "--to"])
def test_an_unknown_dialect_is_named_with_those_there_are(chat: Path, option: str) -> None:
    others = {"--from": "marsys", "--to": "house", option: "marsis"}

    result = run("convert", chat, "--from", others["--from"], "--to", others["--to"])

    assert result.exit_code == 2
    sentence = " ".join(result.stderr.split())
    assert "no dialect is called 'marsis'" in sentence
    assert "marsys" in sentence.partition("there are")[0]  # the nearest one is suggested
    assert f"there are {', '.join(names())}" in sentence


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("command", ["convert", "show"])
@pytest.mark.slow
def test_data_that_is_wrong_is_one_line_and_no_traceback(tmp_path: Path, command: str) -> None:
    source = save(tmp_path / "chat.json", [{"role": "user", "content": "hi"}, {"role": "user", "content": 5}])
    rest = ["--to", "house"] if command == "convert" else []

    done = start(command, source, "--from", "marsys", *rest)

    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.decode() == f"{source}: [1].content: expected text, found a number\n"


@pytest.mark.parametrize("place", ["nowhere/out.json", "."])
def test_an_output_file_that_cannot_be_written_is_reported(chat: Path, tmp_path: Path, place: str) -> None:
    result = run("convert", chat, "--from", "marsys", "--to", "house", "-o", tmp_path / place)

    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path / place}: ")
    assert result.stdout == ""
