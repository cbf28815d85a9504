"""What commands take in: JSON, JSON Lines, and what is wrong with either."""

from pathlib import Path

import pytest
from tests.cli.running import CHAT, run, said, save

from antiphon import Conversation, TextPart, dumps
from antiphon.cli._input import read_conversation, read_file

USER, ASSISTANT = '{"role":"user","content":"hi"}', '{"role":"assistant","content":"ho"}'
SHOWN = "user\n  │ hi\n\nassistant\n  │ ho\n"


@pytest.mark.parametrize(
    "text",
    [
        f"[{USER},{ASSISTANT}]",
        f"[{USER}\n,{ASSISTANT}]",
        f"{USER}\n{ASSISTANT}",
        f"{USER}\n\n{ASSISTANT}\n",
        f"\n  {USER}\r\n{ASSISTANT}\r\n",
        f"\ufeff[{USER},{ASSISTANT}]",
        f"\ufeff{USER}\n{ASSISTANT}",
    ],
    ids=["list", "list over lines", "lines", "blank line", "line ends of Windows", "byte order mark", "mark and lines"],
)
def test_json_and_json_lines_are_the_same(text: str) -> None:
    result = run("show", "-", "--from", "marsys", stdin=text)

    assert (result.exit_code, result.stdout, result.stderr) == (0, SHOWN, "")


def test_a_single_message_is_a_conversation_of_one() -> None:
    assert run("show", "-", "--from", "marsys", stdin=USER).stdout == "user\n  │ hi\n"


def test_a_list_of_house_lines_is_the_house_format_too(tmp_path: Path) -> None:
    """And so is a file of one line."""
    written = dumps(Conversation([said(TextPart(text="hi"), policy="user")])).decode()
    as_list = f"[{','.join(written.splitlines())}]"

    assert run("show", "-", stdin=as_list).stdout == run("show", "-", stdin=written).stdout == "user\n  │ hi\n"
    assert run("show", "-", stdin=f"{written}\r\n\n").stdout == "user\n  │ hi\n"
    assert run("show", "-", stdin=written.splitlines()[1]).stdout == "user\n  │ hi\n"
    assert run("show", "-", stdin=written.splitlines()[0]).stdout == "(no messages)\n"


@pytest.mark.slow
def test_a_house_file_may_be_longer_than_one_json_value(tmp_path: Path) -> None:
    """The limit is on each message, not on their number."""
    count = 12_000
    path = tmp_path / "long.jsonl"
    path.write_bytes(dumps(Conversation([said(TextPart(text="hi"), id=f"m-{number}") for number in range(count)])))

    assert len(read_conversation(read_file(path), None)) == count


@pytest.mark.parametrize(
    ("text", "said", "code"),
    [
        ("", "stdin: it is empty; expected JSON or JSON Lines\n", 2),
        ("  \n \n", "stdin: it is empty; ", 2),
        ("{", "stdin: not JSON: ", 2),
        ("[\n1,\n", "stdin: not JSON: ", 2),
        ('{"a":[{"b":1,"b":2}]}', "stdin: a[0]: the key 'b' stands twice", 2),
        ("[" * 10_000 + "]" * 10_000, "stdin: not JSON: depth limit", 2),
        (USER.encode("utf-16"), "stdin: not UTF-8 (it looks like UTF-16", 2),
        (
            b'{"role":"user","content":"\xe9"}',
            "stdin: line 1: not text in UTF-8; if it is Latin-1: iconv -f latin1 -t utf-8",
            2,
        ),
        (f"{USER}\n{{", "stdin: line 2: not JSON: ", 2),
        (f'{USER}\n\n{{"a":[{{"b":1,"b":2}}]}}', "stdin: line 3: a[0]: the key 'b' stands twice", 2),
        (f'{USER}\n\n{{"role":"king","content":""}}', "stdin: line 3, role: unknown role 'king'", 1),
        (f"{USER}\n[]", "stdin: line 2: expected an object, found a list", 1),
        ("5", "stdin: expected an object, found a number", 1),
        ('{"role":"user","content":"\\u001b[31m","tool_calls":{"\\u202e":1}}', "stdin: tool_calls: expected a list", 1),
    ],
)
def test_a_fault_is_reported_with_its_place(text: str | bytes, said: str, code: int) -> None:
    """A file that is not JSON cannot be read (2); JSON may violate its format (1)."""
    result = run("show", "-", "--from", "marsys", stdin=text)

    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith(said)
    assert result.stderr.count("\n") == 1


def test_a_broken_line_says_its_own_column() -> None:
    assert run("show", "-", stdin=f"{USER}\n{{]").stderr.endswith("at column 2\n")


def test_house_lines_keep_their_numbers() -> None:
    written = dumps(Conversation([said(TextPart(text="hi")), said(TextPart(text="ho"))])).decode()

    result = run("show", "-", stdin=written.replace('"text":"ho"', '"text":7'))

    assert result.exit_code == 1
    assert result.stderr.splitlines()[1].startswith("stdin: line 3: payload")


def test_a_place_in_the_data_cannot_write_to_the_terminal() -> None:
    result = run("show", "-", "--from", "marsys", stdin='{"role":"\\u001b]0;x\\u0007","content":"hi"}')

    assert result.exit_code == 1
    assert "\x1b" not in result.stderr
    assert "\x07" not in result.stderr


@pytest.mark.parametrize("name", ["nothing.json", "."])
@pytest.mark.parametrize("command", [("show",), ("convert", "--to", "house")])
def test_an_unreadable_file_is_reported(tmp_path: Path, name: str, command: tuple[str, ...]) -> None:
    result = run(*command, tmp_path / name)

    assert result.exit_code == 2
    assert result.stderr.startswith(f"{tmp_path / name}: ")
    assert result.stderr.count("\n") == 1


def test_a_folder_is_reported(tmp_path: Path) -> None:
    assert run("check", tmp_path).stderr == f"{tmp_path}: it is a folder; name a file in it\n"


def test_only_the_beginning_decides_what_it_is(tmp_path: Path) -> None:
    """The first messages decide the format; that format then reports later faults."""
    source = save(tmp_path / "chat.json", [CHAT[0]] * 30 + [{"role": "king", "content": "x"}])

    result = run("show", source)

    assert result.exit_code == 1
    assert "read as marsys" in result.stderr
    assert "[30].role: unknown role 'king'" in result.stderr
