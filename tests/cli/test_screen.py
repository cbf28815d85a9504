"""What reaches the terminal: everything that can be seen, and nothing that cannot."""

import io
import json
import re
import sys
import unicodedata
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies
from rich.console import Console
from tests.cli.screens import Screen
from tests.strategies import texts

from antiphon.cli._screen import THEME, cut, note, print_markdown, print_table, styled
from antiphon.cli._view import LineView, TreeView
from antiphon.service import ChainEvent, TeamStep, escaped, visible

UNSEEN = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


@pytest.mark.slow
def test_no_control_or_format_character_of_unicode_gets_through() -> None:
    every = "".join(map(chr, range(sys.maxunicode + 1)))

    assert {unicodedata.category(each) for each in visible(every)}.isdisjoint(UNSEEN)


def test_an_invisible_character_is_shown_by_its_number() -> None:
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


def table_in(columns: int, headings: Sequence[str] = HEADINGS, rows: Sequence[Sequence[str]] = ROWS) -> str:
    file = io.StringIO()
    print_table(Console(file=file, width=columns, force_terminal=True, no_color=True, theme=THEME), headings, rows)
    return re.sub(r"\x1b\[\d*m", "", file.getvalue())


@pytest.mark.parametrize("columns", range(20, 100, 4))
def test_a_table_breaks_no_word_and_goes_beyond_no_edge(columns: int) -> None:
    """It has columns where there is room, and is a block a row where there is none."""
    shown = table_in(columns)

    assert max(map(len, shown.splitlines())) <= columns
    assert all(word in shown for row in ROWS for cell in row for word in cell.split())


@pytest.mark.parametrize("columns", [60, 78, 80, 84, 100, 140])
def test_a_table_with_an_id_longer_than_its_column_loses_no_word(columns: int) -> None:
    """The losses of an export: the id is broken, the reason beside it is whole."""
    long, reason = (
        "01a1ec19-f771-765f-81d6-afba32389660/run/action/agent/action/model@said1",
        "anthropic-messages has no place for it",
    )
    shown = table_in(columns, ("message", "what", "reason"), [(long, "correlation_id", reason), ("m-1", "time", reason)])

    assert [shown.split().count(word) for word in reason.split()] == [2] * 6
    assert max(map(len, shown.splitlines())) <= columns


def test_a_narrow_terminal_gets_a_block_a_row_without_what_is_not_known() -> None:
    assert table_in(80).splitlines()[0] == "thread              status     updated (UTC)".ljust(50)
    assert set(table_in(80).splitlines()[1]) == {"─"}
    assert table_in(40) == (
        "thread         t-wvko6qsxfklkjmae\n"
        "status         completed\n"
        "updated (UTC)  2026-01-31 12:00:00\n"
        "\n"
        "thread         knowledge\n"
        "updated (UTC)  2026-01-31 12:00:00\n"
    )


def test_in_a_very_narrow_terminal_a_value_begins_below_its_name() -> None:
    shown = table_in(20)

    assert max(map(len, shown.splitlines())) <= 20
    assert shown.startswith("thread\n  t-wvko6qsxfklkjmae\nstatus\n  completed\nupdated (UTC)\n  2026-01-31\n  12:00:00\n\n")


# ---------------------------------------------------------------- cut text


@given(texts, strategies.integers(2, 60))
def test_cut_text_fits_and_is_marked(text: str, width: int) -> None:
    whole = styled(" ".join(text.split()))
    shown = cut(whole, width)

    assert shown.cell_len <= width
    assert shown.plain == whole.plain or shown.plain.endswith("…")


def test_cut_text_ends_after_a_word() -> None:
    assert cut(styled("one two three four"), 12).plain == "one two …"
    assert cut(styled("one two three four"), 18).plain == "one two three four"
    assert cut(styled("http://example.org/a/very/long/path"), 12).plain == "http://exa …"


# ---------------------------------------------------------------- answers


def drawn(text: str, columns: int = 60) -> str:
    file = io.StringIO()
    print_markdown(Console(file=file, width=columns, force_terminal=True, no_color=True, theme=THEME), text)
    return file.getvalue()


def test_an_answer_is_drawn_as_markdown() -> None:
    shown = re.sub(r"\x1b\[[\d;]*m", "", drawn("# Tea\n\n- *green*, **hot**\n- black\n\n1. [shop](https://example.com)"))

    assert [line.rstrip() for line in shown.splitlines()] == [
        "Tea", "", " • green, hot", " • black", "", " 1 shop (https://example.com)"
    ]  # fmt: skip


def test_html_in_an_answer_is_text_and_a_link_says_where_it_leads() -> None:
    """A link may not hide its target, as OSC 8 would have it."""
    shown = drawn("<b>x</b> <script>alert(1)</script>\n\n<div>\ny\n</div>\n\n[bank](https://evil.example)")

    assert "<b>x</b> <script>alert(1)</script>" in shown
    assert "<div>" in shown
    assert "bank" in shown
    assert "https://evil.example" in shown
    assert "\x1b]8" not in shown


@pytest.mark.parametrize(
    "text", ["a\u202eb", "a&#x202E;b", "`a\u202eb`", "```\na\u202eb\n```", "[x](https://e.org/\u202eb)", "a\x1b[31mb"]
)
def test_no_control_character_of_an_answer_reaches_the_terminal(text: str) -> None:
    """Also none that Markdown makes of `&#x202E;`."""
    shown = re.sub(r"\x1b\[[\d;]*m", "", drawn(text))

    assert {unicodedata.category(each) for each in shown if each != "\n"}.isdisjoint(UNSEEN)
    assert "⟨U+" in shown or "%E2%80%AE" in shown


@pytest.mark.parametrize("columns", [40, 80, 140])
def test_no_word_of_an_answer_is_broken(columns: int) -> None:
    words = "The knowledge base answers in sentences that are longer than a terminal of eighty columns, which is usual. " * 3
    lines = re.sub(r"\x1b\[[\d;]*m", "", drawn(f"{words}\n\n- {words}", columns)).splitlines()

    assert set(" ".join(lines).split()) == {*words.split(), "•"}
    assert max(map(len, lines)) <= min(columns, 100)


def test_a_line_that_is_noted_while_a_run_is_shown_stays_above_it() -> None:
    """The command that continues a run must not be drawn over."""
    written = io.StringIO()
    console = Console(file=written, force_terminal=True, width=80, height=40, markup=False, theme=THEME)
    view = TreeView(console, "How hot is tea?")
    view.start()
    note("thread t; if it is interrupted, go on with:", command="antiphon resume t")
    view.stop()

    screen = Screen(80)
    screen.write(written.getvalue().replace("\n", "\r\n"))
    assert screen.lines[0] == "thread t; if it is interrupted, go on with: antiphon resume t"


# ---------------------------------------------------------------- what an earlier process has begun

RESUMED = (
    ChainEvent("t", "status", text="processing", data={"current_phase": "experience"}),
    ChainEvent("t", "tool_called", None, "calculator", {"expression": "6*7"}),  # whose it is was said to another process
    ChainEvent("t", "tool_returned", None, "calculator", {"result": 42}),
)
ENDED = ChainEvent("t", "phase_ended", "experience", data={"processing_time": 1.5, "output": {"passages": []}})


def a_view(written: io.StringIO) -> TreeView:
    return TreeView(Console(file=written, force_terminal=True, width=80, height=40, no_color=True, markup=False, theme=THEME))


def drawn_by(view: TreeView) -> list[str]:
    return [str(line) for line in view.picture().renderables]


def test_a_phase_that_is_resumed_is_shown_at_work_and_not_as_done_earlier() -> None:
    view = a_view(io.StringIO())
    for event in RESUMED:
        view.take(event)
    done, running, tool, waiting, *_ = drawn_by(view)
    assert re.fullmatch(r"├ ✓ action +done earlier +", done)
    assert re.fullmatch(r"├ [⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏] experience +0\.\d s +", running)
    assert tool == '│   ✓ calculator(expression="6*7") = 42'
    assert waiting.split() == ["├", "·", "intention"]

    view.take(ENDED)
    view.take(ChainEvent("t", "phase_began", "intention"))
    assert [line.split()[1:3] for line in drawn_by(view)[:2]] == [["✓", "action"], ["✓", "experience"]]
    assert "done earlier" not in drawn_by(view)[1]


def test_a_phase_that_is_resumed_before_it_began_is_one_line() -> None:
    view = a_view(io.StringIO())
    for event in (*RESUMED[:1], ChainEvent("t", "phase_began", "experience")):
        view.take(event)
    assert sum("experience" in line for line in drawn_by(view)) == 1


@pytest.mark.parametrize("begun", [(), (ChainEvent("t", "phase_began", "experience"),)])
def test_a_phase_that_is_resumed_without_a_terminal_has_its_heading_once(begun: tuple[ChainEvent, ...]) -> None:
    written = io.StringIO()
    view = LineView(Console(file=written, width=80, theme=THEME))
    for event in (RESUMED[0], *begun, *RESUMED[1:], ENDED):
        view.take(event)
    assert written.getvalue().splitlines()[:2] == ["● experience", '  → calculator(expression="6*7")']
    assert written.getvalue().splitlines()[-1].startswith("  ✓ 1.5 s")


def test_an_agent_that_an_earlier_process_asked_is_done_when_it_has_answered() -> None:
    view = a_view(io.StringIO())
    view.take_step(TeamStep("said", "ada", "it is 391"))
    view.take_step(TeamStep("answered", "ada", id="asked-earlier"))
    assert drawn_by(view)[0].split()[:3] == ["└", "✓", "ada"]
