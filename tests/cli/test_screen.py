"""What reaches the terminal: everything that can be seen, and nothing that cannot."""

import io
import json
import sys
import unicodedata

import pytest
from hypothesis import given
from rich.console import Console
from tests.strategies import texts

from antiphon.cli._screen import print_table, styled
from antiphon.service import escaped, visible

UNSEEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


@pytest.mark.slow
def test_no_control_or_format_character_of_unicode_gets_through() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))

    assert {unicodedata.category(each) for each in visible(every)}.isdisjoint(UNSEEN)


def test_what_cannot_be_seen_is_shown_by_its_number() -> None:
    assert visible("a\u202eb\x1b[31m\x00\U000e0041") == "a⟨U+202E⟩b⟨U+001B⟩[31m⟨U+0000⟩⟨U+E0041⟩"
    assert visible("a\nb\tc") == "a⟨U+000A⟩b⟨U+0009⟩c"


def test_spaces_and_every_script_stay_as_they_are() -> None:
    text = "Blåbær, 蓝莓　und\u00a0зрелый — שלום 🫐"

    assert visible(text) == text


def test_lines_stay_lines() -> None:
    assert styled("a\r\nb\tc\rd").plain == "a\nb\tc⟨U+000D⟩d"


def test_markup_is_text() -> None:
    assert styled("[bold]x[/bold] :smile: [link=https://example.com]y").plain == (
        "[bold]x[/bold] :smile: [link=https://example.com]y"
    )


@given(texts)
def test_escaped_json_says_the_same(text: str) -> None:
    written = json.dumps([text], ensure_ascii=False, indent=2)

    assert json.loads(escaped(written)) == [text]
    assert {unicodedata.category(each) for each in escaped(written) if each != "\n"}.isdisjoint(UNSEEN)


# ---------------------------------------------------------------- tables

HEADINGS = ("thread", "status", "updated (UTC)")
ROWS = [("t-wvko6qsxfklkjmae", "completed", "2026-01-31 12:00:00"), ("knowledge", "", "2026-01-31 12:00:00")]


def table_in(columns: int) -> str:
    file = io.StringIO()
    print_table(Console(file=file, width=columns, force_terminal=True, no_color=True), HEADINGS, ROWS)
    return file.getvalue().replace("\x1b[1m", "").replace("\x1b[0m", "")


@pytest.mark.parametrize("columns", range(20, 100, 4))
def test_a_table_breaks_no_word_and_goes_beyond_no_edge(columns: int) -> None:
    """It has borders where there is room, fewer where there is less, and is a block a row where there is none."""
    shown = table_in(columns)

    assert max(map(len, shown.splitlines())) <= max(columns, 35)  # a label and the least that text gets
    assert all(word in shown for row in ROWS for cell in row for word in cell.split())


def test_a_narrow_terminal_gets_a_block_a_row_without_what_is_not_known() -> None:
    assert "┃" in table_in(80)
    assert table_in(40) == (
        "thread         t-wvko6qsxfklkjmae\n"
        "status         completed\n"
        "updated (UTC)  2026-01-31 12:00:00\n"
        "\n"
        "thread         knowledge\n"
        "updated (UTC)  2026-01-31 12:00:00\n"
    )
