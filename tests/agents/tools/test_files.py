"""Tools that read the files of a folder, and nothing else."""

import asyncio
import contextlib
import mailbox
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from email.message import EmailMessage
from fnmatch import translate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import ModelRetry

from antiphon.agents.toolkit import Toolkit
from antiphon.agents.tools import file_tools
from antiphon.agents.tools._files import FilePattern, Folder
from antiphon.agents.tools._formats import letter_in, letters_in, problems_of
from antiphon.messages import OptionResultPayload, thaw

PAGE = """# Tea

See [water](water.md), [hot](water.md#hot-water), [cold](water.md#cold), [tea](#tea), [out](https://example.com), [g](gone.md).

### Too deep

![](leaf.png)

```
[not](a-link.md) TODO
```

TODO: say how hot.
"""


def called(root: Path, tool: str, arguments: Mapping[str, Any]) -> OptionResultPayload:
    toolkit = Toolkit(file_tools(root))
    toolkit.grant("reader")
    return asyncio.run(toolkit.call("reader", tool, arguments))


def result_of(root: Path, tool: str, **arguments: Any) -> Any:
    payload = called(root, tool, arguments)
    assert not payload.is_error, payload.error_message
    return thaw(payload.result)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tea.md").write_text(PAGE)
    (tmp_path / "water.md").write_text("# Water\n\n## Hot water\n\nIt is hot.\n")
    (tmp_path / ".hidden.md").write_text("# Hidden\n")
    (tmp_path / "leaf.png").write_bytes(b"\x89PNG")
    (tmp_path / "sales.csv").write_text("city,item,price\nOslo,tea,1.10\nOslo,tea,2.20\nRome,cup,0.1\nRome,,0.2\n")
    return tmp_path


def test_files_are_listed_without_hidden_ones(root: Path) -> None:
    assert result_of(root, "list_files") == ["leaf.png", "sales.csv", "tea.md", "water.md"]
    assert result_of(root, "list_files", pattern="*.md") == ["tea.md", "water.md"]


def test_some_lines_of_a_file_are_read(root: Path) -> None:
    assert result_of(root, "read_file", path="water.md", first_line=3, lines=1) == "## Hot water"


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("../secret.txt", "outside of the folder"),
        ("/etc/passwd", "outside of the folder"),
        ("link.txt", "links are not followed"),
        ("near.md", "links are not followed"),
        ("folder/tea.md", "links are not followed"),
        ("water.md/x", "there is no file"),
        (".hidden.md", "hidden files are not read"),
        (".git/config", "hidden files are not read"),
        ("a/../.env", "hidden files are not read"),
        ("a/../../secret.txt", "outside of the folder"),
        ("..", "outside of the folder"),
        ("", "there is no file"),
        ("a\0b", "no name of a file"),
        ("a" * 300, "there is no file"),
        ("pipe", "there is no file"),
        ("socket", "there is no file"),
        ("nowhere.md", "there is no file"),
        (".", "there is no file"),
        ("leaf.png", "no text in UTF-8"),
    ],
)
def test_only_text_files_of_the_folder_are_read(root: Path, path: str, says: str) -> None:
    (root.parent / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(root.parent / "secret.txt")
    (root / "near.md").symlink_to("tea.md")
    (root / "folder").symlink_to(".", target_is_directory=True)
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as unix, contextlib.chdir(root):
        unix.bind("socket")
    payload = called(root, "read_file", {"path": path})
    assert payload.is_error
    assert says in (payload.error_message or "")


@pytest.mark.parametrize("pattern", ["../*.txt", "a/../../*", "/*", "//x/*", "C:/*", "\\*", "..", "**/../*", "a\\..\\b"])
def test_patterns_do_not_lead_out_of_the_folder(root: Path, pattern: str) -> None:
    payload = called(root, "list_files", {"pattern": pattern})
    assert "leads out of the folder" in (payload.error_message or "")


@pytest.mark.parametrize("pattern", ["", "/".join("a" * 51), "a" * 501, "."])
def test_an_invalid_pattern_is_refused(root: Path, pattern: str) -> None:
    assert "is no pattern such as **/*.md" in (called(root, "list_files", {"pattern": pattern}).error_message or "")


PATTERNS = st.lists(st.sampled_from(["**", "*", "a", "b*", "?", "[ab]", "*.md", "a*b"]), min_size=1, max_size=4)
PLACES = st.lists(st.sampled_from(["a", "b", "ab", "bb", "c.md"]), min_size=1, max_size=4)


@given(PATTERNS, PLACES)
def test_a_pattern_fits_what_the_pattern_says(parts: list[str], place: list[str]) -> None:
    """Compared with a regular expression for the whole path."""
    said = [r"(?:[^/]+/)*" if part == "**" else f"{translate(part)[4:-3].replace('.', '[^/]')}/" for part in parts]
    whole = "".join(said[:-1]) + (r"(?:[^/]+/)+" if parts[-1] == "**" else said[-1])
    if "*.md" in parts:  # its point is not any sign
        whole = whole.replace("\\[^/]md", r"\.md")
    pattern = FilePattern("/".join(parts))
    places = pattern.beginning
    for name in place:
        places = pattern.after(places, name)
    assert pattern.fits(places) == bool(re.fullmatch(whole, "/".join(place) + "/"))


def test_hidden_files_are_listed_and_read_where_that_is_allowed(root: Path) -> None:
    """S7: a secret in `.env` stays there unless the program allows hidden files."""
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("token")
    assert not any("git" in name or "hidden" in name for name in result_of(root, "list_files", pattern="**/*"))
    assert result_of(root, "list_files", pattern=".git/*") == []
    toolkit = Toolkit(file_tools(root, hidden=True))
    toolkit.grant("reader")
    listed = asyncio.run(toolkit.call("reader", "list_files", {"pattern": ".*/*"}))
    read = asyncio.run(toolkit.call("reader", "read_file", {"path": ".git/config"}))
    assert (thaw(listed.result), read.result) == ([".git/config"], "token")


def test_links_pipes_and_names_that_are_no_text_are_not_listed(root: Path) -> None:
    (root / "near.md").symlink_to("tea.md")
    (root / "outside").symlink_to("/etc", target_is_directory=True)
    os.mkfifo(root / "pipe.md")
    Path(os.fsdecode(os.fsencode(root) + b"/\xff.md")).touch()
    assert result_of(root, "list_files", pattern="**/*.md") == ["tea.md", "water.md"]


@pytest.mark.slow
def test_a_list_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "/".join("d" * 40)
    deep.mkdir(parents=True)
    (deep / "deep.txt").touch()
    for number in range(510):
        (tmp_path / f"{number:03}.txt").touch()
    assert result_of(tmp_path, "list_files") == [f"{number:03}.txt" for number in range(500)]
    assert result_of(tmp_path, "list_files", pattern="**/deep.txt") == []
    monkeypatch.setattr("antiphon.agents.tools._files._MOST_ENTRIES", 100)
    assert "more than 100 files; name a folder" in (called(tmp_path, "list_files", {}).error_message or "")


def test_a_file_that_is_larger_than_it_says_is_read_up_to_the_limit(tmp_path: Path) -> None:
    """A file of /proc reports no size; one that grows reports too little. Neither is read without end."""
    large = tmp_path / "large.txt"
    with large.open("wb") as file:
        file.truncate(10_000_000_000)
    assert "larger than 5 MB" in (called(tmp_path, "read_file", {"path": "large.txt"}).error_message or "")
    assert "Linux" in Folder("/proc").text("version")


READS = {"": 300, "ci": 10_000, "nightly": 100_000}[os.environ.get("ANTIPHON_CHAOS", "")]
SWAP = """
import itertools, os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
for turn in itertools.count():
    inside = turn % 2
    (os.link if inside else os.symlink)("fine" if inside else "../outside/secret", "next")
    os.replace("next", "page")
    os.rename("folder", "parked") if not inside else os.unlink("folder")
    os.symlink("../outside", "folder") if not inside else os.rename("parked", "folder")
"""


@pytest.mark.slow
def test_a_link_that_is_swapped_in_meanwhile_gives_nothing_out(tmp_path: Path) -> None:
    """S4, S7: another process swaps a file, and a folder on the way to one, for links that lead out: 0 leaks."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "folder").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (outside / "other").write_text("secret")
    for name in ("fine", "folder/secret", "page"):
        (root / name).write_text("fine")
    (root / "page").unlink()
    os.link(root / "fine", root / "page")
    folder = Folder(root)
    said: Counter[str] = Counter()

    def look(place: str) -> None:
        try:
            said[folder.text(place)] += 1
        except ModelRetry:
            said["refused"] += 1

    with subprocess.Popen([sys.executable, "-c", SWAP, root], stdout=subprocess.PIPE) as swapping:
        try:
            assert swapping.stdout is not None
            assert swapping.stdout.readline() == b"ready\n"
            while said.total() < READS or len(said) < 2:
                assert swapping.poll() is None
                look("page")
                look("folder/secret")
                assert "folder/other" not in folder.names("**/*")
        finally:
            swapping.kill()
    assert set(said) == {"fine", "refused"}


def test_pages_are_checked_line_by_line(root: Path) -> None:
    found = result_of(root, "check_markdown")
    assert found["pages"] == ["tea.md", "water.md"]
    assert found["problems"] == [
        "tea.md, line 3: link to gone.md leads nowhere",
        "tea.md, line 3: link to water.md#cold names a heading that is not there",
        "tea.md, line 5: heading 'Too deep' is 2 levels below the one before it",
        "tea.md, line 7: image leaf.png has no description",
        "tea.md, line 13: something is left to do",
    ]


def test_a_link_to_an_existing_binary_file_is_no_dead_link(root: Path) -> None:
    (root / "one.md").write_text("# One\n\n[leaf](leaf.png)\n")
    assert result_of(root, "check_markdown", path="one.md")["problems"] == []


def test_a_code_block_that_does_not_end_is_found() -> None:
    found = problems_of("# A\n\n```\ncode\n", lambda name: None)
    assert found == ["line 3: the code block that begins here does not end"]


def test_pages_are_read_as_markdown_and_not_line_by_line() -> None:
    text = "Title\n=====\n\n[a][b] and\n`[c](gone.md)` and [d](<two words.md>)\n\n    [e](code.md)\n\n[b]: gone.md\n"
    assert problems_of(text, lambda name: None) == [
        "line 4: link to gone.md leads nowhere",
        "line 5: link to two words.md leads nowhere",
    ]
    assert problems_of("# A\n\n> ```\n> code\n> ```\n\n<!-- TODO\nTODO -->\n", lambda name: None) == [
        "line 7: something is left to do",
        "line 8: something is left to do",
    ]


def test_many_problems_are_cut_and_large_pages_are_named(root: Path) -> None:
    (root / "many.md").write_text("# A\n\n" + "TODO\n" * 600)
    (root / "large.md").write_text("# A\n" * 70_000)
    (root / "to.md").write_text("# A\n\n[large](large.md#b)\n")
    found = result_of(root, "check_markdown", path="many.md")
    assert (len(found["problems"]), found["problems_left_out"]) == (500, 100)
    assert result_of(root, "check_markdown", path="large.md")["problems"] == [
        "large.md, line 1: the page is larger than 250 kB, and is not checked"
    ]
    assert result_of(root, "check_markdown", path="to.md")["problems"] == []


def test_pages_that_take_too_long_together_are_given_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("antiphon.agents.tools._files._MOST_SECONDS", 0.0)
    assert "name fewer pages" in (called(root, "check_markdown", {}).error_message or "")


@given(st.text())
def test_any_page_can_be_checked(text: str) -> None:
    assert all(problem.startswith("line ") for problem in problems_of(text, lambda name: None))


def test_columns_are_summed_up(root: Path) -> None:
    assert result_of(root, "csv_columns", path="sales.csv") == {
        "rows": 4,
        "columns": {
            "city": {"empty": 0, "different": 2, "values": ["Oslo", "Rome"]},
            "item": {"empty": 1, "different": 2, "values": ["cup", "tea"]},
            "price": {"empty": 0, "different": 4, "sum": "3.6", "mean": "0.9", "min": "0.1", "max": "2.2"},
        },
    }


def test_numbers_are_added_up_by_group_exactly(root: Path) -> None:
    """0.1 + 0.2 is 0.3 here."""
    given = {"path": "sales.csv", "by": "city", "column": "price"}
    assert result_of(root, "csv_group", **given) == {"Oslo": "3.3", "Rome": "0.3"}
    assert result_of(root, "csv_group", **given, how="mean") == {"Oslo": "1.65", "Rome": "0.15"}
    assert result_of(root, "csv_group", path="sales.csv", by="city", column="item", how="count") == {"Oslo": "2", "Rome": "1"}


def test_a_whole_table_is_added_up(root: Path, tmp_path: Path) -> None:
    by_item = "- price by item: tea 3.3, (empty) 0.2, cup 0.1"
    assert result_of(root, "csv_totals", path="sales.csv") == f"- price by city: Oslo 3.3, Rome 0.3\n{by_item}"
    (tmp_path / "mine.csv").write_text("a,b\n1,2\n0.5,3\n")
    assert result_of(tmp_path, "csv_totals", path="**/*.csv") == "- a: 1.5\n- b: 5"
    (tmp_path / "mine.csv").write_text("a,b\nx,y\n")
    payload = called(tmp_path, "csv_totals", {"path": "*.csv"})
    assert "there is no column of numbers; there are a, b" in (payload.error_message or "")


def test_a_pattern_stands_for_the_first_file_that_fits(root: Path) -> None:
    assert result_of(root, "csv_columns", path="**/s*.csv") == result_of(root, "csv_columns", path="sales.csv")
    for tool, pattern in (("csv_totals", "*.tsv"), ("list_letters", "**/*.mbox")):
        payload = called(root, tool, {"path": pattern})
        assert f"there is no file like '{pattern}'; list_files says what there is" in (payload.error_message or "")


def test_an_unknown_column_is_reported_with_the_known_ones(root: Path) -> None:
    payload = called(root, "csv_group", {"path": "sales.csv", "by": "town", "column": "price"})
    assert "there are city, item, price" in (payload.error_message or "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a;b\n1;2", {"a": "1", "b": "2"}),
        ('"a;b;c",d\n1,2', {"a;b;c": "1", "d": "2"}),
        ("a, b\n1, 2", {"a": "1", "b": "2"}),
        ("a\n1e20\n0.000001", {"a": "100000000000000000000.000001"}),
        ("a\n-0.0000001", {"a": "0"}),
        ("a,a\n1,2", {"a": "2"}),
        ("a,b\n1\n\n2,3,4\n", {"a": "3", "b": "3"}),
    ],
)
def test_a_table_is_read_whatever_divides_it(tmp_path: Path, text: str, says: dict[str, str]) -> None:
    (tmp_path / "t.csv").write_text(text)
    columns = result_of(tmp_path, "csv_columns", path="t.csv")["columns"]
    assert {name: about["sum"] for name, about in columns.items()} == says


@pytest.mark.parametrize("number", ["1e51", "1e999999999", "9" * 51, "nan", "1e-51", "Infinity"])
def test_a_number_that_nobody_can_write_out_is_a_text(tmp_path: Path, number: str) -> None:
    (tmp_path / "t.csv").write_text(f"a\n{number}\n")
    assert result_of(tmp_path, "csv_columns", path="t.csv")["columns"]["a"]["values"] == [number]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (",".join(f"c{n}" for n in range(501)), "501 columns and 0 rows; at most 500 columns"),
        (",".join(f"c{n}" for n in range(500)) + "\n1" * 2_001, "500 columns and 2001 rows; at most 500 columns"),
        ("a\n" + "," * 1_000_001, "a line has more than 100000 characters"),
        ("a\n" + f"{',' * 999}\n" * 1_001, "more than 1000000 cells"),
        ("\n1", "its first line has no names"),
        ("", "its first line has no names"),
    ],
)
def test_a_table_that_is_too_large_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    assert says in (called(tmp_path, "csv_columns", {"path": "t.csv"}).error_message or "")


@pytest.mark.parametrize(
    ("letter", "subject", "text"),
    [
        ("Subject: =?utf-8?b?R3I=?=\n\nHello.\n", "Gr", "Hello.\n"),
        ("Subject: =?utf-8?b?a?=\n\nHello.\n", "=?utf-8?b?a?=", "Hello.\n"),
        ("Subject: =?nonsense?q?a?=\n\nHello.\n", "=?nonsense?q?a?=", "Hello.\n"),
        ("Content-Type: text/plain; charset=idna\n\nHello.\n", "", "Hello.\n"),
        ("Content-Type: text/plain; charset=iso-8859-99\n\nHello.\n", "", "Hello.\n"),
        ("Content-Type: text/plain; charset=windows-1259\n\nHello.\n", "", "Hello.\n"),
        ("Content-Type: text/plain; charset*=x; charset*0=y\n\nHello.\n", "", "Hello.\n"),
        ("Content-Type: text/plain; charset=latin-1\nContent-Transfer-Encoding: base64\n\n5A==\n", "", "ä"),
        ("Content-Transfer-Encoding: base64\n\n%%%\n", "", ""),
        ("Date: 99999999999999999999\n\nHello.\n", "", "Hello.\n"),
        (
            "Content-Type: multipart/mixed; boundary=b\n\nbefore\n--b\nContent-Type: a/b\n\nx\n--b\n\nHello.\n--b--\nend\n",
            "",
            "Hello.\n",
        ),
        ("Content-Type: multipart/mixed; boundary=b\r\n\r\n--b\r\n\r\nHello.\r\n", "", "Hello.\n"),
        ("Content-Type: multipart/mixed\n\n--b\n", "", ""),
        ("Content-Type: multipart/mixed; boundary*=x; boundary*0=y\n\n--b\n", "", ""),
    ],
)
def test_a_letter_is_read_whatever_its_headers_say(tmp_path: Path, letter: str, subject: str, text: str) -> None:
    """G21: what the standard library stumbles over is passed over."""
    (tmp_path / "in.mbox").write_bytes(b"junk\nFrom ada\n" + letter.encode())
    found = result_of(tmp_path, "read_letter", path="in.mbox", number=1)
    assert (found["subject"], found["text"]) == (subject, text)


@given(
    st.lists(
        st.sampled_from(
            [
                b"From ",
                b"\n",
                b"\n\n",
                b"--b",
                b"Content-Type: multipart/mixed; boundary=b",
                b"Subject: ",
                b"=?",
                b"?q?",
                b"?=",
                b"Date: ",
                b"charset*0*=",
                b";",
                b'"',
                b"\xff",
                b"1",
                b"punycode",
            ]
        ),
        max_size=30,
    ).map(b"".join)
)
def test_any_mailbox_can_be_listed(data: bytes) -> None:
    data = b"From a\n" + data
    for letter in letters_in(data):
        assert letter.items() <= letter_in(data, letter["number"]).items()


def test_a_mailbox_of_too_many_letters_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.mbox").write_bytes(b"From a\n" * 5_001)
    assert "more than 5000 letters" in (called(tmp_path, "list_letters", {"path": "in.mbox"}).error_message or "")


@pytest.mark.slow
def test_a_mailbox_is_listed_and_read(tmp_path: Path) -> None:
    box = mailbox.mbox(tmp_path / "in.mbox")
    for number, subject in enumerate(("Größe", "Second"), 1):
        letter = EmailMessage()
        letter["From"], letter["Subject"] = f"ada{number}@example.com", subject
        letter["Date"] = "Mon, 02 Nov 2026 10:00:00 +0000"
        letter.set_content(f"Letter {number}.\nFrom here on.\n")
        box.add(letter)
    box.close()
    listed = result_of(tmp_path, "list_letters", path="in.mbox")
    assert listed[0] == {
        "number": 1,
        "from": "ada1@example.com",
        "subject": "Größe",
        "date": "2026-11-02T10:00:00+00:00",
        "words": 5,
    }
    assert [each["number"] for each in result_of(tmp_path, "list_letters", path="in.mbox", words="second größe")] == [1, 2]
    assert [each["number"] for each in result_of(tmp_path, "list_letters", path="in.mbox", words="Second nothing")] == [2]
    assert "Letter 2." in result_of(tmp_path, "read_letter", path="in.mbox", number=2)["text"]
    assert "there are 2" in (called(tmp_path, "read_letter", {"path": "in.mbox", "number": 3}).error_message or "")


def test_the_content_of_files_is_untrusted(root: Path) -> None:
    """S4: a turn that has read a file may not use a tool that does not allow it."""
    assert all(
        tool.metadata == {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": True}}
        for tool in file_tools(root)
    )


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        file_tools(tmp_path / "nowhere")
