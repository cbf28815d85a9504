"""`antiphon convert`: what is written, what is said about it, and how it ends."""

import json
from pathlib import Path

import pytest
from tests.cli.running import CHAT, in_terminal, run, said, save, save_house, start

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
def test_what_is_lost_is_listed_on_stderr_and_the_rest_is_written(tmp_path: Path) -> None:
    done = start("convert", with_film(tmp_path / "x.jsonl"), "--from", "house", "--to", "marsys")

    assert done.returncode == 0
    assert json.loads(done.stdout)[0]["content"] == "Look!"
    first, heading, row = done.stderr.decode().splitlines()
    assert first == "marsys cannot say everything; lost on the way: 1"
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
    """No markup, no control character, no line cut: whatever a dialect says about what somebody said."""
    result = run("convert", chat, "--from", "marsys", "--to", "twin", "--as-policy", "ada")

    assert json.loads(result.stdout)["as"] == "ada"
    assert result.stderr.splitlines()[1:] == [
        "message         what                            reason",
        "m-1             the tone of [bold]voice[/bold]  it is only written",
        "(conversation)  the ⟨U+001B⟩[31mroom⟨U+202E⟩    nobody says where they are :smile:",
    ]


@pytest.mark.usefixtures("twin")
def test_what_a_dialect_refuses_to_write_is_one_line(tmp_path: Path) -> None:
    source = save(tmp_path / "chat.json", [{"role": "user", "content": "the unspeakable"}])

    result = run("convert", source, "--from", "marsys", "--to", "twin")

    assert result.exit_code == 1
    assert (result.stdout, result.stderr) == ("", f"{source}: message m-1: it cannot be said at all\n")


@pytest.mark.slow
def test_in_a_terminal_losses_are_a_table_and_json_hides_nothing(tmp_path: Path) -> None:
    film = MediaPart(modality="video", url="https://example.com/sky.mp4")
    source = save_house(tmp_path / "x.jsonl", [said(TextPart(text="a\u202eb\x9b31m\x7f\U000e0041\u3000"), film, id="m-7")])

    shown = in_terminal("convert", source, "--from", "house", "--to", "marsys")

    assert "│ m-7" in shown
    assert r'"a\u202eb\u009b31m\u007f\udb40\udc41　"' in shown
    assert json.loads(shown[shown.index("[\n") :])[0]["content"] == "a\u202eb\x9b31m\x7f\U000e0041\u3000"


# ---------------------------------------------------------------- which format it is


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
    assert result.stderr.startswith("stdin: none of house, ")
    assert result.stderr.endswith(f"name the dialect with --from, one of {', '.join(names())}\n")


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
    assert f"no dialect is called 'marsis'; there are {', '.join(names())}" in " ".join(result.stderr.split())


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
def test_a_file_that_cannot_be_written_is_said(chat: Path, tmp_path: Path, place: str) -> None:
    result = run("convert", chat, "--from", "marsys", "--to", "house", "-o", tmp_path / place)

    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path / place}: ")
    assert result.stdout == ""
