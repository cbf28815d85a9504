"""The questions of `benchmarks/answers`: every gold sentence is in its document, and words alone find most of them."""

import re
from collections import Counter

import pytest
from benchmarks.answers._questions import SETS, Question, plain, read_documents, read_questions

from antiphon.ledger.memory import MemoryLedger
from antiphon.retrieval import KnowledgeBase, find_answers

QUESTIONS = read_questions()
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def sections(text: str) -> list[tuple[str, str]]:
    """Return each heading with the text up to the next one, after the text without a heading; a comment in code is none."""
    masked = _CODE.sub(lambda found: found[0].replace("#", " "), text)
    found = list(_HEADING.finditer(masked))
    ends = [*(each.start() for each in found), len(text)]
    return [("", text[: ends[0]]), *((each[1], text[each.end() : end]) for each, end in zip(found, ends[1:], strict=True))]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "question"),
    [pytest.param(name, each, id=each.id) for name in SETS for each in read_questions(name) if each.gold],
)
def test_the_gold_sentence_is_in_its_document_below_its_heading(name: str, question: Question) -> None:
    documents = read_documents(name)

    for gold in question.gold:
        below = [text for heading, text in sections(documents[gold.document]) if heading == gold.heading]
        assert any(plain(gold.sentence) in plain(text) for text in below)


def test_half_of_the_fifty_questions_have_no_answer_in_three_languages() -> None:
    languages = Counter(each.language for each in QUESTIONS)
    parts = Counter((each.part, bool(each.gold)) for each in QUESTIONS)

    assert len({each.id for each in QUESTIONS}) == len(QUESTIONS) == 50
    assert sum(not each.gold for each in QUESTIONS) == 25
    assert sorted(languages) == ["de", "en", "fr"]
    assert min(languages.values()) >= 14
    assert min(parts.values()) >= 10
    assert {part for part, _ in parts} == {"tune", "check"}


def test_half_of_the_sixty_questions_that_are_held_out_have_no_answer() -> None:
    questions = read_questions("held_out")
    languages = Counter(each.language for each in questions)

    assert len({each.id for each in (*questions, *QUESTIONS)}) == 110
    assert sum(not each.gold for each in questions) == 30
    assert sorted(languages) == ["de", "en", "fr"]


def test_half_of_the_second_set_that_is_held_out_have_no_answer() -> None:
    questions = read_questions("second")

    assert len(questions) == 72
    assert sum(not each.gold for each in questions) == 36
    assert sorted({each.language for each in questions}) == ["de", "en", "fr"]


def test_half_of_the_third_set_and_of_each_of_its_halves_have_no_answer() -> None:
    questions = read_questions("third")

    for part in ("third-tune", "third-check"):
        assert Counter(bool(each.gold) for each in questions if each.part == part) == {True: 15, False: 15}
    assert sorted({each.language for each in questions}) == ["de", "en", "fr"]


def test_half_of_the_fourth_set_have_no_answer_in_each_language() -> None:
    questions = read_questions("fourth")

    assert Counter((each.language, bool(each.gold)) for each in questions) == {
        (language, has_answer): 5 for language in ("de", "en", "fr") for has_answer in (True, False)
    }
    assert {each.part for each in questions} == {"fourth"}


def test_each_question_has_an_id_of_its_own() -> None:
    ids = Counter(each.id for name in SETS for each in read_questions(name))

    assert ids.total() == len(ids) == 50 + 60 + 72 + 60 + 30


@pytest.mark.slow
@pytest.mark.parametrize(("name", "first", "refused"), [("questions", 23, 23), ("held_out", 25, 28), ("second", 25, 29)])
async def test_words_alone_find_most_answers(name: str, first: int, refused: int) -> None:
    """Most of each set; `make bench ARGS=answers` asks threads. The documents are of one day, so the counts do not move."""
    documents = KnowledgeBase(MemoryLedger())
    for document, text in read_documents(name).items():
        await documents.add(document, text)

    counted = Counter[str]()
    for question in read_questions(name):
        found = [each for each in await find_answers(documents, question.text) if each.is_likely][:1]
        counted["refused"] += not question.gold and not found
        counted["first"] += any(
            (best.passage.source, best.passage.heading[-1]) == (gold.document, gold.heading)
            and plain(gold.sentence).strip("| ") in plain(best.quote.text)
            for best in found
            for gold in question.gold
        )

    assert counted["first"] >= first
    assert counted["refused"] >= refused
