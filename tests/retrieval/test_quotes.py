"""A quote is the smallest run of whole sentences, rows or code lines that holds the answer, with its lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.retrieval.texts import PROTOCOL, TEXTS

from antiphon.retrieval import quote
from antiphon.retrieval._quotes import relevance, units_of

TABLE = """## Prices

| trip | adults | children |
|---|---|---|
| valley | 12 | 6 |
| summit | 30 | 15 |
"""
CODE = """Start the server like this:

```python
server = Server(port=80)
server.start()
server.stop(grace=5)
```
"""
PROSE = """# Refunds

Refunds are paid within 14 days, e.g. by card. Send the goods back first, in
the original
box. Dr. Smith decides in doubt! Is that fair? We think so.

- Parcels to islands take longer.
- Heavy parcels cost 5.50 euros more.
"""


@pytest.mark.parametrize(
    ("question", "text", "expected", "lines"),
    [
        ("When are refunds paid?", PROSE, "Refunds are paid within 14 days, e.g. by card.", (3, 3)),
        ("In which box do I send goods back?", PROSE, "Send the goods back first, in the original box.", (3, 5)),
        ("Who decides in doubt?", PROSE, "Dr. Smith decides in doubt!", (5, 5)),
        ("How much do heavy parcels cost?", PROSE, "Heavy parcels cost 5.50 euros more.", (8, 8)),
        ("What do children pay for the summit?", TABLE, "| summit | 30 | 15 |", (6, 6)),
        ("How is the server stopped?", CODE, "server.stop(grace=5)", (6, 6)),
        ("Which message checks whether an actor is alive?", PROTOCOL, "Checks if an actor is alive:", (17, 17)),
    ],
)
def test_the_smallest_run_that_holds_the_answer_is_quoted(
    question: str, text: str, expected: str, lines: tuple[int, int]
) -> None:
    found = quote(question, text)

    assert (found.text, found.lines) == (expected, lines)
    assert quote(question, text, first_line=100).lines == (lines[0] + 99, lines[1] + 99)


@pytest.mark.parametrize("language", TEXTS)
def test_another_form_of_a_word_is_quoted_in_each_language(language: str) -> None:
    text, question, answer = TEXTS[language]

    assert answer in quote(question, text).text
    assert relevance(question, text) > relevance(question, "Completely different words stand here.")


def test_two_sentences_are_quoted_if_each_has_a_part_of_the_answer() -> None:
    text = "The tea is green. It is steeped at eighty degrees. Nobody knows why. Cups are white."

    found = quote("At how many degrees is green tea steeped?", text)

    assert (found.text, found.coverage) == ("The tea is green. It is steeped at eighty degrees.", 1.0)


def test_a_heading_holds_for_every_sentence_below_it() -> None:
    text = "It answers a question. It is the message by which an actor is asked to stop."

    assert quote("Which message is STOP?", text, heading=("Messages", "STOP")).coverage == 1.0
    assert relevance("STOP", text, heading=("STOP",)) == 1.0
    assert relevance("", text) == 0.0


def test_code_and_tables_are_quoted_by_lines() -> None:
    assert quote("close", "def open():\n    pass\n\ndef close():\n    return", kind="code").lines == (4, 4)
    assert quote("Oslo", "city,price\nRome,1\nOslo,2", kind="table").text == "Oslo,2"
    assert quote("x", "").text == quote("x", "---\n").text == ""
    assert quote("title", "# Only a title").text == "Only a title"


def test_a_sentence_without_an_end_is_cut_and_marked() -> None:
    found = quote("word", "word " * 1000).text

    assert (len(found), found[-1]) == (600, "…")


@given(st.text(alphabet="ab. !\n#|-`*1)", max_size=300), st.sampled_from(["a", "b a", "1"]))
def test_a_quote_is_verbatim_at_its_lines(text: str, question: str) -> None:
    """Whatever the text is: the words of the quote are in the lines that it names, in the same order."""
    found = quote(question, text)
    lines = " ".join(" ".join(text.split("\n")[found.lines[0] - 1 : found.lines[1]]).split())
    place = 0
    for word in found.text.split():
        place = lines.index(word, place) + len(word)


@given(st.text(alphabet="ab. !\n|-1)", max_size=300))
def test_units_are_in_order_and_lose_no_letter(text: str) -> None:
    units = units_of(text)

    assert [each.first for each in units] == sorted(each.first for each in units)
    assert sorted("".join(each.text for each in units).count(letter) for letter in "ab") == sorted(map(text.count, "ab"))


def test_the_rest_of_code_whose_beginning_is_in_another_passage_is_code() -> None:
    text = "    total = add(1, 2)\n    print(total)\n```\n\nThe sum is printed. It is three."
    units = units_of(text)

    assert [each.kind for each in units] == ["code", "code", "sentence", "sentence"]
    assert [each.kind for each in units_of("See:\n\n```text\nabc\n")] == ["sentence", "code"]


def test_the_dot_of_a_date_does_not_end_a_sentence() -> None:
    text = "Die Saison dauert vom 15. Juni bis zum 31. August. Im 19. Jahrhundert war der Preis 30. Danach stieg er."

    assert [unit.text for unit in units_of(text)] == [
        "Die Saison dauert vom 15. Juni bis zum 31. August.",
        "Im 19. Jahrhundert war der Preis 30.",
        "Danach stieg er.",
    ]


def test_a_heading_of_a_manual_page_is_not_part_of_the_sentence_below_it() -> None:
    found = [(unit.kind, unit.text) for unit in units_of("OPTIONS\n       -n     Change nothing.")]

    assert found == [("heading", "OPTIONS"), ("sentence", "-n     Change nothing.")]
