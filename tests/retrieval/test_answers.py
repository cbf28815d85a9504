"""Answers by words: which quote of which passage answers a question, and when none does."""

import pytest

from antiphon.ledger.memory import MemoryLedger
from antiphon.retrieval import LIKELY, FoundAnswer, KnowledgeBase, Passage, find_answers
from antiphon.retrieval._answers import rate_answers

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
def test_the_kind_of_thing_that_a_question_asks_for_must_be_in_the_quote() -> None:
    heavy = rate("How heavy is the radio mast?", PARTS, "Manual", "Parts")
    price = rate("How much does the radio mast cost?", PARTS, "Manual", "Parts")
    often = rate("How often is the copper screen cleaned?", PARTS, "Manual", "Care")

    assert heavy.quote.text == "| radio mast | 3.2 kg | no |"
    assert not price.is_likely
    assert often.quote.text == "Clean the copper screen every three months."


@pytest.mark.slow
@pytest.mark.parametrize(
    ("language", "question", "answer", "other"),
    [
        ("de", "Was kostet die Fahrt?", "Die Fahrt ist kostenlos.", "Die Fahrt beginnt am Sägewerk."),
        ("de", "Wie schnell fährt die Bahn?", "Die Bahn fährt mit 10 km/h.", "Die Bahn fährt durch den Wald."),
        ("de", "In welchem Jahr kam die Brücke?", "Die Brücke kam 1911.", "Die Brücke kam aus Granit."),
        ("de", "Welche Farbe hat das Tor?", "Das Tor ist dunkelgrün.", "Das Tor ist breit und aus Holz."),
        (
            "fr",
            "À quelle vitesse tourne la roue ?",
            "La roue tourne à sept tours par minute.",
            "La roue tourne dans la rivière.",
        ),
        ("fr", "Combien pèse la meule ?", "La meule a 1 100 kilogrammes.", "La meule est scellée dans le plancher."),
        ("fr", "Quel jour le marché ouvre-t-il ?", "Le marché ouvre le samedi.", "Le marché ouvre sur la grande place."),
        ("en", "How long does the battery last?", "The battery lasts 31 days.", "The battery lasts if it is warm."),
        ("en", "How deep is the harbour?", "The harbour is 4 m deep.", "The harbour is a quiet place."),
        ("en", "How many readings are kept?", "400 readings are kept.", "All readings are kept in the head."),
    ],
)
def test_a_kind_of_thing_is_known_in_three_languages(language: str, question: str, answer: str, other: str) -> None:
    assert rate(question, f"{other} {answer}", language=language).quote.text == answer
    assert rate(question, other, language=language).score <= rate(question, answer, language=language).score * 0.6 + 0.01


def test_a_word_that_names_a_kind_of_thing_in_another_language_does_not_count() -> None:
    """`an` is a year in French, `car` is a reason."""
    assert not rate("How long does the battery last?", "A battery lasts in an old lamp.").is_likely
    assert rate("Why is the yard closed?", "The yard is closed for a car.").score < 0.9


def test_the_thing_that_is_asked_for_must_be_in_a_sentence_about_it() -> None:
    text = "The bridge is 340 metres long. The mill stands beside the river."
    about = "The mill stands beside the river. It is 340 metres wide."

    assert not rate("How wide is the river at the mill?", text).is_likely
    assert rate("How wide is the river at the mill?", about).is_likely


@pytest.mark.parametrize(
    ("language", "question", "text"),
    [
        ("en", "Who took the boat?", "Mr Ito takes the boat."),
        ("en", "Who is told about the fault?", "The fault is reported to Mr Ito."),
        ("de", "Wie viel passt in den Kessel?", "Der Kessel fasst 900 Liter."),
        ("de", "Wer nimmt das Boot?", "Das Boot hat Herr Ito genommen."),
        ("fr", "Qui tient la caisse ?", "La caisse a été tenue par Odile Roy."),
    ],
)
def test_irregular_forms_of_a_word_are_the_same_word_and_have_the_same_synonyms(
    language: str, question: str, text: str
) -> None:
    assert rate(question, text, language=language).score > 0.8


def test_a_word_of_the_question_is_not_another_word_for_the_next_one() -> None:
    """*Version* stands for a *release*; here it stands for itself."""
    assert not rate("When is the release of version two?", "The version of the text is two.").is_likely


def test_words_of_another_language_that_look_alike_count_less() -> None:
    asked = "Wann war der Transport?"

    assert rate(asked, "The transport was on Monday.").score < rate(asked, "Der Transport war am Montag.", language="de").score


def test_a_word_within_a_longer_one_counts() -> None:
    text = "Der Dachs ist eine Diesellokomotive."
    found = rate("Welche Lokomotive ist der Dachs?", text, language="de")
    without = rate("Welche Lokomotive ist der Dachs?", "Der Dachs ist ein Wagen.", language="de")

    assert without.score < LIKELY < found.score < 1


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


# Mutant: common words count like others -> the sentence without an answer is as good.
@pytest.mark.parametrize(
    ("question", "text", "language"),
    [
        ("What do we need to use the blue boat?", "The blue boat has a key.", "en"),
        ("Was braucht man für das blaue Boot?", "Für das blaue Boot gibt es einen Schlüssel.", "de"),
        ("Que faut-il utiliser pour le bateau ?", "Le bateau est fermé à clé.", "fr"),
    ],
)
def test_common_words_that_an_answer_does_not_have_count_little(question: str, text: str, language: str) -> None:
    assert rate(question, text, language=language).is_likely


def test_a_thing_that_no_source_names_counts_in_full() -> None:
    assert not rate("What do we need for the submarine?", "The blue boat has a key.").is_likely


@pytest.mark.parametrize(
    ("question", "text", "language"),
    [
        ("Who repaired the boat?", "The boat was mended by Mr Ito.", "en"),
        ("Wie bezahlt man den Wagen?", "Das Auto bezahlt man bar.", "de"),
        ("Quel sentier prendre ?", "On prend le chemin du bois.", "fr"),
    ],
)
def test_another_word_for_the_same_thing_counts(question: str, text: str, language: str) -> None:
    without = text.replace("mended", "seen").replace("Auto", "Rad").replace("chemin", "train")

    assert rate(question, text, language=language).score > rate(question, without, language=language).score + 0.1


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Wann wurde der Kessel ausgewaschen?", "Am Montag kann man den Kessel auswaschen."),
        ("Wer hat das Haus gebaut?", "Das Haus bauen die Maurer."),
        ("Wann verlässt der Zug den Bahnhof?", "Um acht muss der Zug den Bahnhof verlassen."),
        ("Welches Holz nimmt man?", "Man nimmt Buchenholz."),
    ],
)
def test_other_forms_of_a_german_word_are_the_same_word(question: str, text: str) -> None:
    assert rate(question, text, language="de").score > 0.8


# Mutant: the word after "which" counts like the others -> the row is taken for the camera.
def test_the_thing_that_a_question_asks_for_must_be_there() -> None:
    text = "| part | mount |\n|---|---|\n| guide scope | on the tube |"

    assert not rate("Which camera is mounted on the scope?", text).is_likely
    assert rate("Which mount has the guide scope?", text).is_likely


def test_a_sentence_that_begins_with_a_pronoun_is_about_the_one_before() -> None:
    about = "The ash goes into a bin. It may be put on the compost after three days."
    other = "The ash goes into a bin. Leaves may be put on the compost after three days."
    question = "When may the ash be put on the compost?"

    assert rate(question, about).score > rate(question, other).score
    assert rate(question, about).quote.text.startswith("It may")


def test_of_two_quotes_that_say_the_same_the_shorter_one_is_taken() -> None:
    long = "A child that hangs, and that has missed many of its messages in a row, is an actor that somebody restarts."
    passages = [
        Passage("p1", "a.md", long, (), (1, 1), "en"),
        Passage("p2", "b.md", "RESTART restarts an actor.", (), (1, 1), "en"),
    ]

    assert rate_answers("What restarts an actor?", passages)[0].passage.id == "p2"


def test_the_text_after_a_colon_is_quoted_with_it() -> None:
    text = "A failure of a peer is never an exception:\n\n- it is a message\n- it has a code\n\n```python\nask()\n```"
    found = rate("What is a failure of a peer?", text)

    assert found.quote.text == "A failure of a peer is never an exception: it is a message it has a code"
    assert found.quote.lines == (11, 14)


def test_stems_of_another_language_do_not_make_two_words_one() -> None:
    """`logo` has the stem `log` in French."""
    assert rate("Where is the logo?", "Where the log is, nobody knows.").score < LIKELY


@pytest.mark.parametrize(
    ("question", "answer", "other"),
    [
        ("Why is the path closed?", "The path is closed because of ice.", "The path is closed with a gate."),
        ("À quelle heure sert-on le repas ?", "On sert le repas à 19 heures.", "On sert le repas dans la salle."),
        ("Wie lange ruht der Teig?", "Der Teig ruht vier Stunden.", "Der Teig ruht in einem Topf."),
        ("Who wrote the book?", "The book was written by Ada Lovelace.", "The book was written in the summer of rain."),
    ],
)
def test_reasons_people_hours_and_durations_are_kinds_of_things(question: str, answer: str, other: str) -> None:
    assert rate(question, f"{other} {answer}").quote.text == answer


def test_words_that_are_far_from_each_other_count_less() -> None:
    """A long row of a table has a word of everything."""
    filler = "; ".join(f"case {letter}" for letter in "abcdefghijklmnopqrstuvwxyz")
    near, far = f"The key opens the cellar; {filler}.", f"The key is new; {filler}; it is for the cellar."

    assert rate("Is there a key for the cellar?", near).score - rate("Is there a key for the cellar?", far).score > 0.1


@pytest.mark.parametrize(
    ("known", "unknown"),
    [
        ("Which lamp hangs on the north gate of the yard?", "Which camera hangs on the north gate of the yard?"),
        ("How is the gate moved by rail to Ostend?", "How is the gate moved by rail to Brest?"),
    ],
)
def test_a_thing_or_a_name_that_no_passage_has_is_a_reason_to_refuse(known: str, unknown: str) -> None:
    text = "The lamp hangs on the north gate of the yard. The gate is moved to Ostend by rail."

    assert rate(known, text).score > 0.9
    assert rate(unknown, text).score < 0.7  # 0.73 and 0.75 by its other words alone


def test_a_verb_after_what_is_not_the_thing_that_is_asked_for() -> None:
    text = "A copper screen over the hole keeps mussels out."

    assert (
        rate("What cleans the hole of mussels?", text).score
        > rate("Which cleaner does the hole have for mussels?", text).score
    )


def test_how_large_asks_for_a_number() -> None:
    text = "The wheel is round and large. The wheel has 27 MB. The wheel is old."

    assert rate("How large is the wheel?", text).quote.text == "The wheel has 27 MB."


def test_of_two_passages_that_say_the_same_the_one_counts_that_the_search_prefers() -> None:
    first, second = (
        Passage(f"p{number}", f"{number}.md", "The ferry leaves at noon.", ("Ferry",), (1, 1), "en", score=score)
        for number, score in ((1, 8.0), (2, 2.0))
    )
    found = rate_answers("When does the ferry leave?", [second, first])

    assert [each.passage.id for each in found] == ["p1", "p2"]
    assert found[0].score > found[1].score


def test_a_quote_needs_words_of_the_question_and_not_only_a_heading_that_has_them() -> None:
    """Both sentences are below a heading with every word of the question."""
    text = "It rains. The lease of a host lasts ten seconds."
    found = rate("What is the lease of a host?", text, "The lease of a host")

    assert found.quote.text == "The lease of a host lasts ten seconds."
    assert rate("What is the lease of a host?", "It rains there.", "The lease of a host").score < 0.8


@pytest.mark.parametrize(
    ("language", "question", "answer", "other"),
    [
        ("en", "Who pays the fee of the boat?", "Peter pays the fee of the boat.", "The fee of the boat is $ 5 to pay."),
        ("de", "Bis wann ist der Kurs zu bezahlen?", "Der Kurs ist bis Mai zu bezahlen.", "Der Kurs ist mit 5 € zu bezahlen."),
        ("en", "How many boats sail when it rains?", "Four boats sail in rain.", "Boats sail in rain if they must."),
        ("en", "How much does a large boat cost?", "A large boat costs $ 50.", "A large boat costs us 3 men."),
    ],
)
def test_the_kind_that_a_question_asks_for_first_counts(language: str, question: str, answer: str, other: str) -> None:
    """A number gives way to a price, and not to a condition."""
    assert rate(question, f"{other} {answer}", language=language).quote.text == answer


def test_wie_hoch_asks_for_any_amount() -> None:
    found = rate("Wie hoch ist die Kaution für das Ruderboot?", "Die Kaution für das Ruderboot beträgt 50 €.", language="de")
    height = rate("Wie hoch liegt die Hütte?", "Die Hütte liegt seit 1950 am See.", language="de")

    assert found.is_likely
    assert not height.is_likely


def test_a_maximum_asks_for_a_number_with_a_limit() -> None:
    text = "The lock had two boats at its opening. The lock takes no more than six boats."

    assert rate("What is the maximum number of boats in the lock?", text).quote.text.endswith("no more than six boats.")


def test_a_noun_that_asks_for_a_length_is_looked_for_too() -> None:
    """Another length of the same thing is not an answer."""
    question = "Quelle est la longueur du bateau ?"

    assert rate(question, "Le bateau a une longueur de 12 m.", language="fr").is_likely
    assert not rate(question, "Le bateau fait 40 km en une heure.", language="fr").is_likely


def test_the_thing_that_is_counted_is_what_a_question_asks_for() -> None:
    """Both sentences have one word of the question, and a number."""
    counted, other = (rate("How many pears were stolen?", text) for text in ("We have 640 pears.", "We have 640 stolen."))

    assert counted.score > other.score


@pytest.mark.parametrize(
    ("question", "thing", "verb", "language"),
    [
        ("Peut-on transporter un chien ?", "Un chien est admis partout.", "On peut transporter une valise.", "fr"),
        ("Is the engine tested?", "The engine is looked at.", "A wheel was tested.", "en"),
    ],
)
def test_a_thing_counts_more_than_what_is_done_with_it(question: str, thing: str, verb: str, language: str) -> None:
    """An answer often has another verb, but it names the same thing."""
    assert rate(question, thing, language=language).score > rate(question, verb, language=language).score


@pytest.mark.parametrize(
    ("question", "text"),
    [("Is the office closed at the weekend?", "The office is closed this week."), ("What was sent?", "What was the consent?")],
)
def test_english_words_that_only_look_alike_are_two_words(question: str, text: str) -> None:
    same = rate(question, text.replace("week", "weekend").replace("consent", "sent"))

    assert rate(question, text).score < same.score - 0.3


@pytest.mark.parametrize(
    ("question", "text", "language"),
    [
        ("When does the course start?", "The course began in May.", "en"),
        ("Où est la nouvelle clé ?", "La clé neuve est ici.", "fr"),
    ],
)
def test_an_irregular_form_of_a_synonym_counts(question: str, text: str, language: str) -> None:
    assert rate(question, text, language=language).is_likely


def test_an_irregular_form_of_a_common_word_is_common() -> None:
    text = "The key is in the drawer."

    assert rate("Where has the key gone?", text).score == rate("Where does the key go?", text).score


def test_a_word_in_the_title_of_the_document_counts_less_than_one_in_the_nearest_heading() -> None:
    text = "Opened every day until dusk."
    near, far = (rate("When is the garden open?", text, *path) for path in (("Manual", "Garden"), ("Garden", "Manual")))

    assert near.score > far.score


def test_an_identifier_of_the_question_must_be_in_the_quote_as_it_is_spelled() -> None:
    question = "Who receives THREAD_RESULT?"

    assert rate(question, "The client receives the result of the thread.").score < 0.9
    assert rate(question, "The client receives THREAD_RESULT.").score == 1.0


def test_headings_of_plain_text_and_names_of_columns_are_not_quoted() -> None:
    plain = Passage("p1", "note.txt", "3.1.  The lease of a host\n\n   It lasts ten seconds.", ("3.1. The lease of a host",))
    table = Passage("p2", "fruit.csv", "kind,harvest\npear,August", ("kind harvest",), kind="table")

    assert [each.quote.text for each in rate_answers("How long is the lease of a host?", [plain])] == ["It lasts ten seconds."]
    assert [each.quote.text for each in rate_answers("Which kind has a harvest?", [table])] == ["pear,August"]
