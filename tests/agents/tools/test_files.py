"""Tools that read the files of a folder, and nothing else."""

import asyncio
import mailbox
from collections.abc import Mapping
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.agents import Toolkit
from antiphon.agents.tools import file_tools
from antiphon.agents.tools._markdown import problems_of
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
        ("link.txt", "outside of the folder"),
        ("nowhere.md", "there is no file"),
        (".", "there is no file"),
        ("leaf.png", "no text in UTF-8"),
    ],
)
def test_what_is_not_a_text_of_the_folder_is_not_read(root: Path, path: str, says: str) -> None:
    (root.parent / "secret.txt").write_text("secret")
    (root / "link.txt").symlink_to(root.parent / "secret.txt")
    payload = called(root, "read_file", {"path": path})
    assert payload.is_error
    assert says in (payload.error_message or "")


def test_patterns_do_not_lead_out_of_the_folder(root: Path) -> None:
    (root.parent / "secret.txt").write_text("secret")
    assert result_of(root, "list_files", pattern="../*.txt") == []


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


def test_a_link_to_a_file_that_is_no_text_leads_somewhere(root: Path) -> None:
    (root / "one.md").write_text("# One\n\n[leaf](leaf.png)\n")
    assert result_of(root, "check_markdown", path="one.md")["problems"] == []


def test_a_code_block_that_does_not_end_is_found() -> None:
    found = problems_of("# A\n\n```\ncode\n", lambda name: None)
    assert found == ["line 3: the code block that begins here does not end"]


@given(st.text())
def test_whatever_a_page_says_it_can_be_checked(text: str) -> None:
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


def test_a_column_that_is_not_there_is_said_with_those_that_are(root: Path) -> None:
    payload = called(root, "csv_group", {"path": "sales.csv", "by": "town", "column": "price"})
    assert "there are city, item, price" in (payload.error_message or "")


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


def test_what_files_say_was_written_by_strangers(root: Path) -> None:
    """S4: a turn that has read a file may not use a tool that does not allow it."""
    assert all(
        tool.metadata == {"antiphon": {"effects": "none", "untrusted": True, "allows_untrusted": True}}
        for tool in file_tools(root)
    )


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is no folder"):
        file_tools(tmp_path / "nowhere")
