"""Answers over documents: how often the right passage is cited, and how often a question without an answer is refused.

Every question is a thread of six phases, as `antiphon run` makes it, over the same documents. It is asked by a user of its
own, so that no thread finds the observations of another. What is counted:

- *cited first*: the first citation is the gold passage, by its document and heading;
- *in the answer*: the gold sentence is in the answer, word for word; a refusal that shows it as the nearest does not count;
- *refused*: a question without an answer in the sources is answered with "Not in the sources.";
- *seconds*: from the question to the answer, on the clock on the wall; the first one also starts the model's server.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from antiphon import open_ledger, service
from antiphon.patterns.postchain._retrieval import NOT_IN_SOURCES
from benchmarks.answers._questions import HERE, SETS, Gold, Question, plain, read_documents, read_questions

__all__ = ["report"]

CANDIDATES = {"local": "local", "lexical fallback alone": f"scripted:{HERE / 'first.toml'}"}
"""What is asked, with the name of its model. The script always takes the first, so that words alone decide."""
SLOWEST = 10.0
_MARKS = re.compile(r"[*|]+")
"""What Markdown has around words, and a quote need not have."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, and what came back."""

    question: Question
    answer: str
    citations: tuple[Mapping[str, Any], ...]
    seconds: float

    @property
    def is_refused(self) -> bool:
        return self.answer.startswith(NOT_IN_SOURCES)

    @property
    def is_cited_first(self) -> bool:
        return bool(self.citations) and any(_is_from(self.citations[0], gold) for gold in self.question.gold)

    @property
    def has_gold(self) -> bool:
        return not self.is_refused and any(_words(gold.sentence) in _words(self.answer) for gold in self.question.gold)

    @property
    def is_right(self) -> bool:
        return self.has_gold and self.is_cited_first if self.question.gold else self.is_refused


def _is_from(citation: Mapping[str, Any], gold: Gold) -> bool:
    if citation["source"] != gold.document:
        return False
    if not gold.heading:
        return _words(gold.sentence) in _words(citation["quote"])
    headings: Sequence[str] = citation.get("heading") or ()
    return bool(headings) and headings[-1] == gold.heading


def _words(text: str) -> str:
    return plain(_MARKS.sub(" ", text))


# ---------------------------------------------------------------- asking


async def _ask_all(model: str, name: str, questions: Sequence[Question]) -> list[Asked]:
    """Ask every question of a set, one after the other."""
    with TemporaryDirectory() as folder:
        async with open_ledger(f"sqlite:///{folder}/answers.db") as ledger:
            await service.add_documents(ledger, read_documents(name))
            config = None if model == "local" else HERE / "quotes.toml"
            service.import_model(model)
            async with service.open_chain(ledger, model=model, config=config) as runner:
                return [await _ask(runner, each) for each in questions]


async def _ask(runner: service.ChainRunner, question: Question) -> Asked:
    began = perf_counter()
    done = await runner.ask(question.text, user_id=question.id)
    return Asked(question, done.answer or done.error_message or "", done.citations, perf_counter() - began)


# ---------------------------------------------------------------- the report

Count = Callable[[Asked], bool]
COLUMNS: tuple[tuple[str, bool, Count, float], ...] = (
    ("cited first", True, lambda each: each.is_cited_first, 0.85),
    ("in the answer", True, lambda each: each.has_gold, 0.80),
    ("refused", False, lambda each: each.is_refused, 0.80),
)
"""The name of a column, whether its questions have an answer, what is counted, and the goal."""


def report(part: str = "") -> bool:
    """Print the figures; with a part (`check`, `held-out`, `second`, `de`, an id), of its questions, each with its answer.

    The result says whether `local` meets its goals in every set.
    """
    chosen = {
        name: [each for each in read_questions(name) if part in ("", name, each.part, each.language, each.id)] for name in SETS
    }
    is_met = True
    for name, questions in chosen.items():
        if questions:
            found = {each: asyncio.run(_ask_all(model, name, questions)) for each, model in CANDIDATES.items()}
            without = sum(not each.gold for each in questions)
            print(f"\nanswers, {name}: {len(questions)} questions, {without} of them without an answer")
            for candidate, asked in found.items():
                _print_rows(candidate, asked)
                _print_wrong(asked, everything=bool(part))
            is_met &= _print_goals(found["local"])
    return is_met


def _print_rows(name: str, asked: Sequence[Asked]) -> None:
    groups = {"all": asked}
    for key in ("language", "part"):
        values = dict.fromkeys(getattr(each.question, key) for each in asked)
        groups |= {value: [each for each in asked if getattr(each.question, key) == value] for value in values}
    print(f"\n  {name:<24}" + "".join(f"{column:>20}" for column, *_ in COLUMNS) + f"{'median s':>10}{'slowest s':>11}")
    for group, those in groups.items():
        cells = "".join(f"{_share(those, has_answer, count):>20}" for _, has_answer, count, _ in COLUMNS)
        seconds = [each.seconds for each in those]
        print(f"    {group:<22}{cells}{median(seconds):>10.1f}{max(seconds):>11.1f}")


def _counted(asked: Iterable[Asked], has_answer: bool, count: Count) -> tuple[int, int]:
    those = [each for each in asked if bool(each.question.gold) is has_answer]
    return sum(map(count, those)), len(those)


def _share(asked: Iterable[Asked], has_answer: bool, count: Count) -> str:
    right, all_ = _counted(asked, has_answer, count)
    return f"{right}/{all_} = {right / all_:.0%}" if all_ else "-"


def _print_wrong(asked: Iterable[Asked], *, everything: bool) -> None:
    """Print the wrong answers, or all."""
    for each in asked:
        if everything or not each.is_right:
            print(f"    {'right' if each.is_right else 'WRONG'} {each.question.id}: {each.question.text}")
            print(f"      {plain(each.answer)[:200]}")


def _print_goals(asked: Sequence[Asked]) -> bool:
    print("\ngoals of `local`")
    is_met = True
    for name, has_answer, count, goal in COLUMNS:
        right, all_ = _counted(asked, has_answer, count)
        is_here = not all_ or right / all_ >= goal
        is_met &= is_here
        print(f"  {name}: {_share(asked, has_answer, count)}, at least {goal:.0%}: {'met' if is_here else 'MISSED'}")
    taken = median(each.seconds for each in asked)
    is_quick = taken <= SLOWEST
    print(f"  median: {taken:.1f} s, at most {SLOWEST:.0f} s: {'met' if is_quick else 'MISSED'}")
    return is_met and is_quick
