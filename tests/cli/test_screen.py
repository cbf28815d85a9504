"""What reaches the terminal: everything that can be seen, and nothing that cannot."""

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from tests.strategies import texts

from antiphon.cli._screen import escaped, styled, visible

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
