"""Answers: which words of which passage answer a question, and how much of it; by words alone, without a model.

The words of a question are its content: question words and words without one ("happens") do not count. Each word counts
more if few of the passages that were found have it, so that the language and the subject of the documents do not matter. A
word may be in the quote itself, in a heading above it, in the head of its table, beside it, or elsewhere in the passage: each
counts less than the one before. A word within a longer one counts too: *Lokomotive* is in *Diesellokomotive*.

Some questions say what kind of thing answers them: a price, a mass, a speed, a number. The word that says so ("heavy") is
seldom in the answer. So it does not count as a word; instead, a quote without such a thing ("3.2 kg") counts half.

A quote that has less than `LIKELY` of the question is no answer: then the sources do not say it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import log, sqrt
from pathlib import PurePath
from typing import Final, NamedTuple, TypeAlias

from antiphon.retrieval._language import concepts_in, detect_language, terms_in
from antiphon.retrieval._quotes import Quote, QuoteUnit, shown, units_of
from antiphon.retrieval._retriever import Passage, Retriever

LIKELY: Final = 0.57
"""The share of a question from which on a quote is taken for its answer. Fitted to the questions of `benchmarks/answers`."""

_LOOKED_AT: Final = 30
"""Passages by which it is judged how rare a word is."""
_RATED: Final = 8
"""Passages that are searched for an answer."""
_MOST_UNITS: Final = 3
"""In a quote of sentences; a row is one."""
_PRICE: Final = 0.12
"""What a quote loses for each further sentence."""
_HEADING, _COLUMN, _BESIDE, _ELSEWHERE, _WITHIN = 0.9, 0.9, 0.5, 0.2, 0.7
"""What a word counts that is in a heading, in the head of a table, beside the quote, elsewhere, or within a longer word."""
_SHORTEST_PART: Final = 5
"""Letters of a word that is looked for within longer ones."""
_CODE: Final = 0.9
"""What a line of code counts: it has names, and no statement."""
_OTHER_KIND: Final = 0.5
"""What a quote counts that has not the kind of thing that was asked for."""
_SHORTEST: Final = 12
"""Characters of a quote that says something."""
_TARGET: Final = re.compile(r"\]\([^)\s]*\)")
"""The target of a link: its words are not said."""

Concept: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """Words of a passage that say something about a question."""

    passage: Passage
    quote: Quote
    score: float
    """How much of the question they have, from 0 to 1."""

    @property
    def is_likely(self) -> bool:
        """Whether they are taken for an answer."""
        return self.score >= LIKELY


async def find_answers(retriever: Retriever, question: str, limit: int = 5) -> tuple[FoundAnswer, ...]:
    """Return what the passages of a retriever say about a question, the best first, one quote of each passage.

    Raises:
        LedgerError: the passages cannot be read.
    """
    return rate_answers(question, await retriever.search(question, _LOOKED_AT))[:limit]


def rate_answers(question: str, passages: Sequence[Passage]) -> tuple[FoundAnswer, ...]:
    """Return what some passages, the best first, say about a question: one quote of each, the best first."""
    asked = _asked(question, passages)
    found = (_best(asked, passage) for passage in passages[:_RATED])
    return tuple(sorted((each for each in found if each is not None), key=lambda each: -each.score))  # stable


# ---------------------------------------------------------------- what is asked

_NUMBER: Final = (
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|sixty|hundred"
    r"|thousand|million|once|twice|half|dozen|ein(?:e[mnrs]?|mal)?|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf"
    r"|vierzehn|fünfzehn|zwanzig|dreißig|vierzig|fünfzig|sechzig|hundert|tausend|halbe?|une?|deux|trois|quatre|cinq|sept|huit"
    r"|neuf|dix|onze|douze|quinze|vingt|trente|quarante|cinquante|soixante|cent|mille|tiers|moitié)\b"
)
_ASKED: Final = (
    (  # a price
        r"\bhow much\b(?=.*\b(?:pay|charge)\b)|\b(?:costs?|prices?|fees?|expensive|kostet|kosten|preis\w*|gebühr\w*|teuer"
        r"|coût\w*|prix|tarifs?)\b",
        r"[€$£¥]|\b(?:euros?|dollars?|cents?|francs?|eur|usd|gbp|chf|pounds?|free|gratis|kostenlos\w*|umsonst|gratuit\w*)\b",
    ),
    (  # how often
        r"\bhow (?:often|frequently)\b|\bwie (?:oft|häufig)\b|\b(?:combien de fois|à quelle fréquence)\b",
        r"\b(?:every|each|per|once|twice|times?|daily|weekly|monthly|yearly|hourly|always|never|alle|jede[mnrs]?|täglich"
        r"|wöchentlich|monatlich|jährlich|stündlich|pro|mal|immer|nie|tou(?:s|tes)|chaque|par|fois|jamais)\b",
    ),
    (  # a mass
        r"\b(?:how heavy|weighs?|weight|wie schwer|wiegt|gewicht|poids|pèsen?t?|lourde?)\b",
        r"(?:\d|\b)\s*(?:kg|g|mg|t|lbs?|oz)\b|\b(?:kilo\w*|gram\w*|ton\w*|pounds?|pfund|zentner)\b",
    ),
    (  # a speed
        r"\b(?:how fast|speed|wie schnell|geschwindigkeit|vitesse)\b",
        r"km/h|mph|m/s|/s\b|\b(?:per|pro|par)\s+\w+|\bknots?\b",
    ),
    (  # a temperature
        r"\b(?:how (?:hot|warm|cold)|temperatures?|wie (?:heiß|warm|kalt)|temperatur\w*|températures?)\b",
        r"°|\b(?:degrees?|grad|degrés?|celsius|kelvin|fahrenheit)\b",
    ),
    (  # a length
        r"\b(?:how (?:high|tall|deep|wide|far|thick)|wie (?:hoch|tief|breit|weit|dick)|longueur|largeur|hauteur|profondeur)\b",
        r"\d\s*(?:mm|cm|m|km|ft|in)\b|\b(?:\w*met(?:er|re)s?|\w*mètres?|\w*metern?|feet|foot|inch(?:es)?|miles?)\b",
    ),
    (r"\b(?:how long|wie lange?|combien de temps)\b", rf"{_NUMBER}|\b(?:until|bis|jusqu)"),  # a time or a length
    (r"\bhow (?:many|much)\b|\bwie ?viele?\b|\bcombien\b", _NUMBER),  # a number
    (r"\b(?:which|what) year\b|\bwelche[mns]? jahr\b|\bquelle année\b", r"\b1\d\d\d\b|\b20\d\d\b"),  # a year
)
"""Kinds of things: the words of a question that ask for one, and what a quote has that names one. The first counts."""
_KINDS: Final = tuple((re.compile(asking, re.IGNORECASE), re.compile(thing, re.IGNORECASE)) for asking, thing in _ASKED)
_NO_CONTENT: Final = re.compile(
    r"\b(?:happens?|happened|means?|called|made|becomes?|geschieht|passiert|bedeutet|heißt|heißen|dürfen|darf|dürfte|macht|gilt"
    r"|arrive|passe|signifie|appelle|appellent|existe|existent)\b",
    re.IGNORECASE,
)
"""Words of a question that say nothing about its answer."""


class _Asked(NamedTuple):
    """What a question asks for."""

    concepts: tuple[Concept, ...]
    """Its words, each with its stems in all languages."""
    weights: tuple[float, ...]
    kind: re.Pattern[str] | None
    """What an answer has, if the question says so."""


def _asked(question: str, passages: Sequence[Passage]) -> _Asked:
    asking, thing = next(((asking, thing) for asking, thing in _KINDS if asking.search(question)), (None, None))
    content = _NO_CONTENT.sub(" ", question if asking is None else asking.sub(" ", question))
    concepts = tuple(concepts_in(content, detect_language(question)))
    return _Asked(concepts, tuple(map(_rarity(passages), concepts)), thing)


def _rarity(passages: Sequence[Passage]) -> Callable[[Concept], float]:
    """Return a function that says what a word counts: the fewer of the passages have it, the more.

    A word that none has counts as one that a single passage has: it may be there under another name.
    """
    there = [set(terms_in("\n".join((*each.heading, each.text)), _language(each))) for each in passages]
    number = max(len(there), _LOOKED_AT)

    def weight(concept: Concept) -> float:
        count = max(1, sum(not terms.isdisjoint(concept) for terms in there))
        return sqrt(log(1 + (number - count + 0.5) / (count + 0.5)))

    return weight


def _language(passage: Passage) -> str:
    return passage.language or detect_language(passage.text)


# ---------------------------------------------------------------- what a passage says about it


def _best(asked: _Asked, passage: Passage) -> FoundAnswer | None:
    """Return the run of units of a passage that has most of a question; None if the passage has no unit."""
    every = units_of(passage.text, passage.kind)
    units = [each for each in every if each.kind != "heading"] or every
    language = _language(passage)
    heads = _heads(every, language)
    there = [frozenset(terms_in(_TARGET.sub("]", each.text), language)) for each in units]
    above = frozenset(terms_in("\n".join((*passage.heading, PurePath(passage.source).stem)), language))
    whole = frozenset[str]().union(*there)
    best, best_score = None, float("-inf")
    for start, end in _runs(units):
        beside = frozenset[str]().union(*there[max(start - 1, 0) : start], *there[end : end + 1])
        column = heads.get(units[start].first, frozenset())
        places = ((1.0, frozenset[str]().union(*there[start:end])), (_HEADING, above), (_COLUMN, column))
        worth = 0.0 if units[start].kind == "row" else _BESIDE  # what is beside a row is about something else
        score = _score(asked, (*places, (worth, beside), (_ELSEWHERE, whole)), units[start:end])
        if score > best_score + 1e-9:  # of equal ones, the first and shortest
            best, best_score = (start, end), score
    if best is None:
        return None
    run, first = units[slice(*best)], 1 if passage.lines is None else passage.lines[0]
    score = round(max(best_score, 0.0), 3)
    return FoundAnswer(passage, Quote(shown(run), (first + run[0].first, first + run[-1].last), score), score)


def _runs(units: Sequence[QuoteUnit]) -> Iterator[tuple[int, int]]:
    """Yield the runs that may be quoted, as the first unit and the one after the last: several sentences, or one row."""
    for start, unit in enumerate(units):
        for end in range(start + 1, min(start + (1 if unit.kind == "row" else _MOST_UNITS), len(units)) + 1):
            if units[end - 1].kind != unit.kind:
                break
            yield start, end


def _heads(units: Sequence[QuoteUnit], language: str) -> dict[int, frozenset[str]]:
    """Return the terms in the heads of tables, by the lines of the rows below them."""
    found: dict[int, frozenset[str]] = {}
    head = frozenset[str]()
    for unit in units:
        if unit.kind == "row":
            found[unit.first] = head
        else:
            is_head = unit.kind == "heading" and unit.text.startswith("|")
            head = frozenset(terms_in(unit.text, language) if is_head else ())
    return found


def _score(asked: _Asked, places: Sequence[tuple[float, frozenset[str]]], run: Sequence[QuoteUnit]) -> float:
    """Return how much of a question a run of units has. A place has a worth, and the terms that are there."""
    counted = zip(asked.concepts, asked.weights, strict=True)
    got = sum(weight * max(worth * _has(concept, terms) for worth, terms in places) for concept, weight in counted)
    score = got / (sum(asked.weights) or 1.0)
    text = shown(run)
    if run[0].kind == "code":
        score *= _CODE
    if asked.kind is not None and not asked.kind.search(text):
        score *= _OTHER_KIND
    return score - _PRICE * (len(run) - 1) - (0.3 if len(text) < _SHORTEST else 0.0)


def _has(concept: Concept, terms: frozenset[str]) -> float:
    """Return 1 if one of the terms is the word, less if the word is within one, and 0 otherwise."""
    if not terms.isdisjoint(concept):
        return 1.0
    is_within = any(len(stem) >= _SHORTEST_PART and any(stem in term for term in terms) for stem in concept)
    return _WITHIN if is_within else 0.0
