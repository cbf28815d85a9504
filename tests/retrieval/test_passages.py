"""A document is cut into passages that have their headings and their lines, and lose nothing."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.retrieval._documents import TextPiece, kind_of, passages_of

SHOP = """# Returns

Refunds are paid within 14 days. Send the goods back first.

# Shipping

We ship to France and Spain. Parcels to islands take longer.
"""
PROTOCOL = """# Protocol

## System

How actors are looked after.

### HEARTBEAT

Checks if an actor is alive:

```python
# not a heading

Message(type="HEARTBEAT")
```

Setext
------

Below it.
"""
CODE = """import os

class Store:
    kept = 1

    def open(self):
        return os

def close():
    pass
"""


def texts(text: str) -> list[str]:
    return [piece.text for piece in passages_of(text)]


@pytest.mark.slow
def test_a_book_in_one_paragraph_is_cut_in_time_in_proportion_to_its_size() -> None:
    """G21: 10 MB; to copy the rest for each passage would take seconds."""
    began = time.process_time()
    assert len(texts("word " * 2_000_000)) == 5_000
    assert time.process_time() - began < 1.0


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r"), max_size=6000))
def test_passages_are_the_whole_text_but_for_space(text: str) -> None:
    passages = texts(text)

    assert "".join("".join(passages).split()) == "".join(text.split())
    assert all(0 < len(passage) <= 2000 for passage in passages)


def test_a_text_is_cut_at_headings_and_paragraphs_and_a_long_one_between_words() -> None:
    assert texts(SHOP) == [half.strip() for half in SHOP.split("\n# Shipping")[:1]] + [
        "# Shipping\n\nWe ship to France and Spain. Parcels to islands take longer."
    ]
    words = texts("word " * 1000)
    assert all(set(passage.split()) == {"word"} for passage in words)
    assert texts("x" * 4500) == ["x" * 2000, "x" * 2000, "x" * 500]


def test_a_passage_has_the_headings_above_it_and_its_lines() -> None:
    pieces = passages_of(PROTOCOL)

    assert [(each.heading, each.first, each.last) for each in pieces] == [
        (("Protocol", "System"), 1, 5),
        (("Protocol", "System", "HEARTBEAT"), 7, 15),
        (("Protocol", "Setext"), 17, 20),
    ]


@given(st.text(alphabet="ab #`-=\n|.", max_size=400))
def test_the_lines_of_a_passage_are_those_of_the_document(text: str) -> None:
    """Whatever the text is: each passage is found at its lines, and no line is in two passages."""
    lines = text.split("\n")
    last = 0
    for piece in passages_of(text):
        assert "\n".join(lines[piece.first - 1 : piece.last]).rstrip() == piece.text
        assert last < piece.first <= piece.last
        last = piece.last


def test_a_long_paragraph_is_cut_between_lines_and_sentences_and_keeps_count_of_its_lines() -> None:
    rows = passages_of("\n".join(f"row {number} " + "x" * 90 for number in range(60)))
    assert [(each.first, each.last) for each in rows] == [(1, 20), (21, 40), (41, 60)]
    sentences = passages_of("This is said. " * 300)
    assert all(each.text.endswith("said.") for each in sentences)


def test_source_code_has_its_classes_and_functions_as_headings() -> None:
    pieces = passages_of(CODE, "code")

    assert [(each.heading, each.first, each.last) for each in pieces] == [
        ((), 1, 1),
        (("class Store",), 3, 4),
        (("class Store", "def open"), 6, 7),
        (("def close",), 9, 10),
    ]


def test_a_table_has_its_columns_as_heading_of_every_passage() -> None:
    pieces = passages_of("city,price\n" + "\n".join(f"Oslo{number},{number}" for number in range(45)) + "\n", "table")

    assert [each.heading for each in pieces] == [("city price",)] * 3
    assert (pieces[1].first, pieces[1].text.split("\n")[0]) == (21, "Oslo19,19")


@pytest.mark.parametrize(
    ("name", "kind"), [("a/b.py", "code"), ("x.CSV", "table"), ("y.md", "markdown"), ("notes", "markdown")]
)
def test_the_kind_of_a_text_is_that_of_its_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_a_fence_without_an_end_is_no_code_block() -> None:
    assert [each.heading for each in passages_of("```\n\n# Real\n\ntext")] == [(), ("Real",)]
    assert passages_of("") == passages_of(" \n\t\n") == passages_of("\n", "table") == []
    assert passages_of("a") == [TextPiece("a", (), 1, 1)]


MANUAL_PAGE = """NAME
       mirror - copy a folder

EXIT STATUS
       0      Both sides are equal.

       1      SOURCE IS GONE.
"""
NOTE = """Network Notes

1.  Introduction

   A lamp finds its keeper.

2.  Messages

2.1.  The call

   A lamp sends a CALL.  2019 was wet.

3 lamps are enough.
"""


def test_a_manual_page_and_a_numbered_note_have_headings() -> None:
    """They have no marks for headings: capital letters or a number on a line of its own make one."""
    page = [(piece.heading, piece.first, piece.last) for piece in passages_of(MANUAL_PAGE)]
    note = [piece.heading for piece in passages_of(NOTE)]

    assert page == [(("NAME",), 1, 2), (("EXIT STATUS",), 4, 7)]
    assert note == [(), ("1. Introduction",), ("2. Messages", "2.1. The call")]


def test_a_text_with_marks_for_headings_has_no_others() -> None:
    (piece,) = passages_of("# Steps\n\n1. Install\n\nWARNING\n\n   It is loud.")

    assert piece.heading == ("Steps",)


def test_numbered_lines_that_follow_each_other_are_a_list() -> None:
    (piece,) = passages_of("To start:\n\n1. Open the lid\n\n2. Press the button\n\n3. Wait")

    assert piece.heading == ()
