"""Answers by words: which quote of which passage answers a question, and when none does."""

import pytest

from antiphon.ledger.memory import MemoryLedger
from antiphon.retrieval import LIKELY, FoundAnswer, KnowledgeBase, Passage, find_answers, rate_answers

PARTS = """# Manual

## Parts

| part | mass | spare |
|---|---|---|
| sensor head | 1.9 kg | yes |
| radio mast | 3.2 kg | no |

The mast carries the antenna of the radio. Gulls like to sit on the mast.

## Care

Clean the copper screen every three months. Use a brush.
"""


def rate(question: str, text: str, *heading: str, language: str = "en") -> FoundAnswer:
    (found,) = rate_answers(question, [Passage("p1", "notes.md", text, heading, (11, 20), language)])
    return found


def test_the_row_of_a_table_answers_with_the_words_of_its_head_and_of_its_heading() -> None:
    """The head of a table is never quoted by itself, and a row is quoted alone."""
    found = rate("Which spare sensor head of the parts is there?", PARTS.partition("\n\nThe mast")[0], "Manual", "Parts")

    assert found.quote.text == "| sensor head | 1.9 kg | yes |"
    assert found.quote.lines == (17, 17)
    assert found.is_likely


# Mutant: a question for a mass is taken by its words alone -> the sentence about the mast and the radio is quoted.
def test_what_a_question_asks_for_must_be_in_the_quote() -> None:
    heavy = rate("How heavy is the radio mast?", PARTS, "Manual", "Parts")
    price = rate("How much does the radio mast cost?", PARTS, "Manual", "Parts")
    often = rate("How often is the copper screen cleaned?", PARTS, "Manual", "Care")

    assert heavy.quote.text == "| radio mast | 3.2 kg | no |"
    assert not price.is_likely
    assert often.quote.text == "Clean the copper screen every three months."


@pytest.mark.parametrize(
    ("question", "answer", "other"),
    [
        ("Was kostet die Fahrt?", "Die Fahrt ist kostenlos.", "Die Fahrt beginnt am Sägewerk."),
        ("Wie schnell fährt die Bahn?", "Die Bahn fährt mit 10 km/h.", "Die Bahn fährt durch den Wald."),
        ("In welchem Jahr wurde die Brücke gebaut?", "Die Brücke wurde 1911 gebaut.", "Die Brücke wurde aus Granit gebaut."),
        ("À quelle vitesse tourne la roue ?", "La roue tourne à sept tours par minute.", "La roue tourne dans la rivière."),
        ("Combien pèse la meule ?", "La meule a 1 100 kilogrammes.", "La meule est scellée dans le plancher."),
        ("À quelle température stocker le grain ?", "Stocker le grain à 18 degrés.", "Stocker le grain au deuxième étage."),
        ("How long does the battery last?", "The battery lasts 31 days.", "The battery lasts if it is warm."),
        ("How deep is the harbour?", "The harbour is 4 m deep.", "The harbour is a quiet place."),
        ("How many readings are kept?", "400 readings are kept.", "All readings are kept in the head."),
    ],
)
def test_a_kind_of_thing_is_known_in_three_languages(question: str, answer: str, other: str) -> None:
    assert rate(question, f"{other} {answer}").quote.text == answer
    assert rate(question, other).score <= rate(question, answer).score / 2 + 0.01


def test_a_word_within_a_longer_one_counts() -> None:
    text = "Der Dachs ist eine Diesellokomotive."
    found = rate("Welche Lokomotive ist der Dachs?", text, language="de")
    without = rate("Welche Lokomotive ist der Dachs?", "Der Dachs ist ein Wagen.", language="de")

    assert without.score == pytest.approx(0.5, abs=0.01)
    assert found.score == pytest.approx((1 + 0.7) / 2, abs=0.01)
    assert without.score < LIKELY < found.score


def test_the_heading_above_a_quote_counts_for_it_and_the_target_of_a_link_does_not() -> None:
    above = rate("Which message checks whether an actor is alive?", "Checks if an actor is alive:", "Messages", "HEARTBEAT")
    linked = Passage("p", "see.md", "See [this](message-checks-actor-alive.md) page, please.")

    assert above.score > 0.9
    assert above.passage.heading[-1] == "HEARTBEAT"
    assert [each.score for each in rate_answers("Which message checks whether an actor is alive?", [linked])] == [0.0]


def test_a_quote_is_as_short_as_it_can_be() -> None:
    text = "Refunds are paid within 14 days. We ship to Spain. Parcels are heavy."

    assert rate("Within how many days are refunds paid?", text).quote.text == "Refunds are paid within 14 days."


def test_a_word_that_few_passages_have_counts_more() -> None:
    """All passages are about the mill; only one is about its owner."""
    mill = [Passage(f"p{number}", "mill.md", f"The mill of the valley has part {number}.") for number in range(9)]
    owner = Passage("own", "mill.md", "Aubert is the owner.")

    assert rate_answers("Who is the owner of the mill of the valley?", [*mill[:7], owner])[0].passage is owner


async def test_answers_are_found_in_documents_the_best_first_and_without_any_there_are_none() -> None:
    documents = KnowledgeBase(MemoryLedger())
    assert await find_answers(documents, "How heavy is the radio mast?") == ()
    await documents.add("parts.md", PARTS)
    await documents.add("tea.md", "Green tea is steeped at 80 degrees.")

    found = await find_answers(documents, "How heavy is the radio mast?", 2)
    unknown = await find_answers(documents, "Who invented the radio?")

    assert [each.passage.source for each in found][:1] == ["parts.md"]
    assert (found[0].quote.text, found[0].quote.lines, found[0].passage.heading) == (
        "| radio mast | 3.2 kg | no |",
        (8, 8),
        ("Manual", "Parts"),
    )
    assert len(found) <= 2
    assert not any(each.is_likely for each in unknown)
