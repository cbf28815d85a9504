"""Answers: finds the text of passages that answers a question, and scores it; by words alone, without a model.

The words of a question are its content: question words do not count, and common words ("need") count little. Each word counts
more if few of the passages that were found have it, so that the language and the subject of the documents do not matter. The
word after "which" names what is asked for, and counts most. A word may be in the quote itself, in a heading above it, in the
head of its table, next to it, or elsewhere in the passage: each counts less than the previous one. Another form of a word also
counts, a synonym, and a part of a longer word: *Lokomotive* is in *Diesellokomotive*.

Some questions imply the kind of their answer: a price, a mass, a person, a reason. The word that implies it ("heavy") is
seldom in the answer. So it does not count as a word; instead, a quote without such a thing ("3.2 kg") counts less.

Words that are far apart in a long quote count less, and so do the quotes of a passage that the search ranks far behind the
best one. If no passage contains the thing or the name that the question asks for, all quotes count less.

`words.toml` has the words of three languages. A quote with less than `LIKELY` of the question is not an answer: then the
sources do not have one.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import log, sqrt
from pathlib import PurePath
from typing import Final, NamedTuple, TypeAlias

from antiphon.retrieval._language import (
    LANGUAGES,
    NO_LANGUAGE,
    RelatedStems,
    detect_language,
    is_form_of,
    light_stems,
    parts_of,
    related_to,
    stem_of,
    telling_words,
    terms_in,
    word_lists,
    words_in,
)
from antiphon.retrieval._quotes import Quote, QuoteUnit, shown, units_of
from antiphon.retrieval._retriever import Passage, Retriever

LIKELY: Final = 0.55
"""The share of a question from which on a quote counts as its answer. Chosen with the questions of `benchmarks/answers`."""

_LOOKED_AT: Final = 30
"""The number of passages from which the rarity of a word is computed."""
_LONGEST_QUESTION, _MOST_WORDS = 5_000, 64
"""Characters and words of a question that count."""
_RATED: Final = 30
"""Passages that are searched for an answer."""
_MOST_UNITS: Final = 3
"""The maximum number of units in a quote of sentences; a row is one unit."""
_MOST_ANNOUNCED: Final = 4
"""The maximum number of sentences that are quoted after a colon."""
_PRICE: Final = 0.12
"""The penalty for each further sentence of a quote."""
_HEADING, _TITLE, _COLUMN, _BESIDE, _ELSEWHERE, _WITHIN = 0.9, 0.75, 0.9, 0.5, 0.2, 0.7
"""The weights of a word in the nearest heading, in one above that, in the head of a table, next to the quote, elsewhere, or
within a longer word."""
_SHORTEST_PART: Final = 5
"""The least length of a word that is searched within longer ones, in letters."""
_CODE: Final = 0.85
"""The weight of a line of code: it has names, but states nothing."""
_LEAST: Final = 0.5
"""The least weight of a word, however many passages have it: they were found because they have it."""
_LIGHT, _NO_NOUN, _FOCUS = 0.35, 0.7, 1.5
"""The weights of a common word, of a German word that is not a noun, and of the word that the question asks for."""
_NO_NOUNS: Final = {
    "en": re.compile(r"\w{3,}(?:ed|ly|able|ible|ful|ous|less)"),
    "fr": re.compile(r"\w{2,}(?:er|ir|oir|dre|tre|ées?|és?|ables?|ibles?|euse?s?|elles?|ment)"),
}
"""The endings of words that are seldom nouns."""
_SAME, _FORM, _REFERRED = 0.7, 0.85, 0.8
"""The weights of a synonym, of another form of a word, and of a word that a pronoun may refer to."""
_SHORTEST_HEAD: Final = 4
"""The least length of a word that compounds end with, in letters."""
_COMPOUNDING: Final = frozenset({"de", "nl", NO_LANGUAGE})
"""The languages that write compounds as one word: an English `consent` is not a kind of `sent`."""
_LONG, _LONGEST = 0.06, 400
"""The penalty of a quote with this many characters: of two equal quotes, the shorter one wins."""
_NEAR, _FAR, _SCATTERED = 24, 48, 0.3
"""The distance in words within which the words of a question are close, the distance that is too far, and its penalty."""
_LITERAL: Final = re.compile(r"--[\w-]+\w|\w+(?:_\w+)+")
_MISSPELLED: Final = 0.8
"""The weight of a quote that has the words of an identifier, but not the identifier."""
_UNKNOWN: Final = 0.85
"""The weight of quotes if no passage has the word that the question asks for, or a name."""
_BEHIND: Final = 0.25
"""The penalty of an answer whose passage the search ranks lowest."""
_FOREIGN: Final = 0.85
"""The weight of a quote in another language than the question: words that look alike often mean something else."""
_OWN, _BARE = 0.5, 0.2
"""The share of the found words that should be in the quote itself, and the penalty if none is."""
_LONGEST_TITLE: Final = 120
"""The maximum length of a heading, in characters."""
_SHORTEST: Final = 12
"""The least length of a meaningful quote, in characters."""
_TARGET: Final = re.compile(r"\]\([^)\s]*\)")
"""The target of a link: its words do not count."""


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """Text of a passage about a question."""

    passage: Passage
    quote: Quote
    score: float
    """The share of the question that it covers, from 0 to 1."""

    @property
    def is_likely(self) -> bool:
        """Whether it counts as an answer."""
        return self.score >= LIKELY


async def find_answers(retriever: Retriever, question: str, limit: int = 5) -> tuple[FoundAnswer, ...]:
    """Return quotes of a retriever's passages about a question, the best first, one for each passage."""
    return rate_answers(question, await retriever.search(question, _LOOKED_AT))[:limit]


def rate_answers(question: str, passages: Sequence[Passage]) -> tuple[FoundAnswer, ...]:
    """Return quotes of some passages, given the best first, about a question: one for each, the best first."""
    asked = _asked(question, passages)
    most = max((passage.score for passage in passages), default=0.0)
    answers: list[FoundAnswer] = []
    for passage in passages[:_RATED]:
        # The answers of a passage count less, the further it is behind the best one of its search.
        standing = 1.0 if most <= 0 else 1.0 - _BEHIND * (1.0 - max(passage.score, 0.0) / most)
        answer = _best(asked, passage, standing)
        answers += [] if answer is None else [answer]
    return tuple(sorted(answers, key=lambda answer: _length(answer.quote.text) - answer.score))  # the sort is stable


def _length(text: str) -> float:
    """Return the penalty for the length of a quote."""
    return _LONG * min(len(text), _LONGEST) / _LONGEST


# ---------------------------------------------------------------- word lists


class _Kind(NamedTuple):
    """A kind of thing that a question may ask for."""

    asks: re.Pattern[str]
    named: Mapping[str, re.Pattern[str]]
    """The pattern for such a thing, by the language of the text."""
    without: float
    """The weight of a quote without such a thing."""
    is_general: bool
    """Whether it gives way to another kind in the question."""
    is_interrogative: bool
    """Whether a word like "when" asks for it, which may also begin a clause."""

    def without_asking(self, question: str) -> str:
        """Return a question without the words that ask for such a thing, except nouns that a text about it has, too."""
        return self.asks.sub(lambda match: match.groupdict().get("noun") or " ", question)

    def is_in(self, text: str, language: str) -> bool:
        """Whether a text in a language contains such a thing."""
        return self.named.get(language, self.named[NO_LANGUAGE]).search(_TARGET.sub("]", text)) is not None


class _Words(NamedTuple):
    """The content of `words.toml`."""

    pronouns: Mapping[str, frozenset[str]]
    focus: Mapping[str, re.Pattern[str]]
    """By language, the pattern for the word that a question asks for."""
    kinds: tuple[_Kind, ...]


_NUMBER: Final = (
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|sixty|hundred"
    r"|thousand|million|once|twice|half|dozen|\w+teen|\w+ty|einmal|zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn"
    r"|elf|zwölf|\w+zehn|\w+zig|dreißig|hundert|tausend|halbe?|deux|trois|quatre|cinq|sept|huit"
    r"|neuf|dix|onze|douze|quinze|vingt|trente|quarante|cinquante|soixante|cent|mille|tiers|moitié)\b"
)


@cache
def _words() -> _Words:
    lists = word_lists()
    return _Words(
        {language: frozenset(text.split()) for language, text in lists["pronouns"].items()},
        {code: re.compile(text, re.IGNORECASE) for code, text in lists["focus"].items()},
        tuple(_kind(**kind) for kind in lists["kinds"]),
    )


def _kind(
    name: str,
    asks: str,
    without: float,
    *,
    named: str = "",
    is_case_sensitive: bool = False,
    is_general: bool = False,
    is_interrogative: bool = False,
    **languages: str,
) -> _Kind:
    """Return a kind of thing. A text in an unknown language may name it in any."""
    flags = re.NOFLAG if is_case_sensitive else re.IGNORECASE
    patterns = {code: (named, text) for code, text in languages.items()} | {NO_LANGUAGE: (named, *languages.values())}
    patterns_of = {
        code: re.compile("|".join(filter(None, alternatives)).replace("NUMBER", _NUMBER), flags)
        for code, alternatives in patterns.items()
    }
    return _Kind(re.compile(asks, re.IGNORECASE), patterns_of, without, is_general, is_interrogative)


# ---------------------------------------------------------------- the question


@dataclass(frozen=True, slots=True)
class _Asked:
    """An analysed question."""

    words: tuple[str, ...]
    weights: tuple[float, ...]
    language: str
    kind: _Kind | None
    """The kind of the answer, if the question implies one."""
    literals: tuple[str, ...]
    """Its identifiers and options, as they are spelled: `THREAD_RESULT`, `--port`."""
    doubt: float = 1.0
    """The weight of all quotes: less if no passage has the word that the question asks for."""

    def concepts(self, language: str) -> tuple[Concept, ...]:
        """Return the stems of each word in a text of a language."""
        return tuple(_concept(word, self.language, language) for word in self.words)


def _asked(question: str, passages: Sequence[Passage]) -> _Asked:
    lists, question = _words(), question[:_LONGEST_QUESTION]
    language = detect_language(question)
    kind = _kind_asked(lists.kinds, question)
    content = question if kind is None else kind.without_asking(question)
    focus = lists.focus[language].search(question) if language in lists.focus else None
    rarity = _rarity(passages, language)
    weights: dict[str, float] = {}
    for word in telling_words(content, language)[:_MOST_WORDS]:
        for part in parts_of(word):
            focus_weight = _FOCUS if focus is not None and focus[1] == word else 1.0
            weights.setdefault(part, rarity(part) * _importance(part, language) * focus_weight)
    named = [focus[1]] if focus is not None and focus[1] in weights and _importance(focus[1], language) == 1.0 else []
    if language != "de":  # where every noun has a capital letter
        first = next(words_in(question), "")
        named += [word for word in weights if word != first and any(letter.isupper() for letter in word)]
    is_unknown = any(not _is_known(word, language, passages) for word in named)
    doubt = _UNKNOWN if is_unknown else 1.0
    return _Asked(tuple(weights), tuple(weights.values()), language, kind, tuple(_LITERAL.findall(question)), doubt)


def _kind_asked(kinds: Iterable[_Kind], question: str) -> _Kind | None:
    """Return the kind that a question asks for: the first one, unless that is general and a later one says more."""
    places = [(match.start(), kind) for kind in kinds if (match := kind.asks.search(question))]
    asked = [kind for _, kind in sorted(places, key=lambda pair: pair[0])]  # the sort is stable
    if asked and asked[0].is_general:
        return next((kind for kind in asked[1:] if not kind.is_interrogative), asked[0])
    return asked[0] if asked else None


Shares: TypeAlias = tuple[float, ...]
"""How much of each word of a question is present, from 0 to 1."""


class Concept(NamedTuple):
    """A word of a question, as a text may have it."""

    stems: tuple[str, ...]
    related: RelatedStems
    language: str


@lru_cache(maxsize=10_000)
def _concept(word: str, asked: str, language: str) -> Concept:
    """Return a word of a question in a text: its stems in the languages of both, or in all if one of them is unknown."""
    codes = LANGUAGES if NO_LANGUAGE in (asked, language) else (asked, language)
    stems = tuple(dict.fromkeys(term for code in (*codes, NO_LANGUAGE) for term in terms_in(word, code)))
    related = related_to(stem_of(word, asked), asked) if language in (asked, NO_LANGUAGE) else RelatedStems()
    return Concept(stems, related, asked)


def _importance(word: str, language: str) -> float:
    """Return the weight of a word: less for a common word and, in German, for a word that is not a noun."""
    if stem_of(word, language) in light_stems(language):
        return _LIGHT
    # A word that is probably a verb or an adjective: an answer often has another one, where a thing keeps its name.
    is_no_noun = word.islower() and (language == "de" or bool(language in _NO_NOUNS and _NO_NOUNS[language].fullmatch(word)))
    return _NO_NOUN if is_no_noun else 1.0


def _rarity(passages: Sequence[Passage], asked: str) -> Callable[[str], float]:
    """Return a function that returns the weight of a word: the fewer passages have it, the higher.

    A word that no passage has counts like one that a single passage has: a synonym may be there.
    """
    there = [
        (language, set(terms_in("\n".join((*passage.heading, passage.text)), language)))
        for passage in passages
        for language in (_language(passage),)
        if not _is_foreign(asked, language)  # whose words only look alike
    ]
    number = max(len(there), _LOOKED_AT)

    def weight(word: str) -> float:
        count = max(1, sum(not terms.isdisjoint(_concept(word, asked, language).stems) for language, terms in there))
        return max(_LEAST, sqrt(log(1 + (number - count + 0.5) / (count + 0.5))))

    return weight


def _is_known(word: str, asked: str, passages: Sequence[Passage]) -> bool:
    """Whether one of the passages has a word, or one that is related to it."""
    for passage in passages:
        language = _language(passage)
        terms = frozenset(terms_in("\n".join((*passage.heading, passage.source, passage.text)), language))
        if any(_likeness(_concept(word, asked, language), term) for term in terms):
            return True
    return False


def _language(passage: Passage) -> str:
    return passage.language or detect_language(passage.text)


def _is_foreign(asked: str, language: str) -> bool:
    """Whether a question and a text are in two languages."""
    return asked != language and NO_LANGUAGE not in (asked, language)


# ---------------------------------------------------------------- the quotes of a passage


@dataclass(frozen=True, slots=True)
class _Text:
    """A passage that is searched for an answer. Shares say how much of each word of the question is present, from 0 to 1."""

    language: str
    units: Sequence[QuoteUnit]
    terms: Sequence[Sequence[str]]
    """Of each unit, in order."""
    exact: Sequence[frozenset[str]]
    """The terms that are a word of the question, for each word."""
    shares: Sequence[Shares]
    """Of each unit."""
    above: Shares
    """Of the nearest heading."""
    title: Shares
    """Of the headings above that one, and of the name of the document."""
    anywhere: Shares
    columns: Mapping[int, Shares]
    """Of the head of its table, by the line of a row."""

    def shares_beside(self, unit: int) -> Shares:
        return self.shares[unit] if 0 <= unit < len(self.units) else self.none

    @property
    def none(self) -> Shares:
        return (0.0,) * len(self.above)

    def refers(self, unit: int) -> bool:
        """Whether a sentence begins with a word that stands for something in the one before."""
        first = next(words_in(self.units[unit].text), "").casefold()
        return first in _words().pronouns.get(self.language, ())


def _text(asked: _Asked, passage: Passage) -> _Text:
    every, language = units_of(passage.text, passage.kind), _language(passage)
    titles = [tuple(words_in(title)) for title in passage.heading]
    units = [unit for unit in every if not _is_heading(unit, titles)] or every
    terms = [tuple(terms_in(_TARGET.sub("]", unit.text), language)) for unit in units]
    heads = _heads(every, language)
    above = frozenset(terms_in("\n".join(passage.heading[-1:]), language))
    title = frozenset(terms_in("\n".join((*passage.heading[:-1], PurePath(passage.source).stem)), language))
    there = frozenset[str]().union(above, title, *terms, *heads.values())
    concepts = asked.concepts(language)
    words = frozenset(stem for concept in concepts for stem in concept.stems)
    likeness = [  # a term that is one word of the question is not a synonym of another
        {term: like for term in there if (like := _likeness(concept, term)) and (like == 1.0 or term not in words)}
        for concept in concepts
    ]

    def shares(terms: Iterable[str]) -> Shares:
        present = frozenset(terms)
        return tuple(max((like for term, like in likes.items() if term in present), default=0.0) for likes in likeness)

    return _Text(
        language,
        units,
        terms,
        [frozenset(concept.stems) for concept in concepts],
        [shares(unit_terms) for unit_terms in terms],
        shares(above),
        shares(title),
        shares(itertools.chain(*terms)),
        {line: shares(head) for line, head in heads.items()},
    )


def _is_heading(unit: QuoteUnit, titles: Sequence[Sequence[str]]) -> bool:
    """Whether a unit is a heading: one of a plain text, or the names of the columns of a table, says nothing by itself."""
    if unit.kind in ("heading", "code") or len(unit.text) > _LONGEST_TITLE:
        return unit.kind == "heading"
    words = tuple(words_in(unit.text))
    return any(words in (title[: len(words)], title[-len(words) :]) for title in titles)


def _best(asked: _Asked, passage: Passage, standing: float) -> FoundAnswer | None:
    """Return the run of units of a passage that covers most of a question; None if the passage has no unit."""
    text = _text(asked, passage)
    best, best_score, best_worth = None, 0.0, float("-inf")
    for start, end in _runs(text.units):
        score = _score(asked, text, start, end) * _closeness(text, start, end)
        worth = score - _length(shown(text.units[start:end]))
        if worth > best_worth + 1e-9:  # of equal ones, the first and shortest
            best, best_score, best_worth = (start, end), score, worth
    if best is None:
        return None
    run = [*text.units[slice(*best)], *_announced(text.units, best[1])]
    first = 1 if passage.lines is None else passage.lines[0]
    score = max(best_score, 0.0) * standing * (_FOREIGN if _is_foreign(asked.language, text.language) else 1.0)
    score = round(score, 3)
    return FoundAnswer(passage, Quote(shown(run), (first + run[0].first, first + run[-1].last), score), score)


def _announced(units: Sequence[QuoteUnit], end: int) -> Sequence[QuoteUnit]:
    """Return the sentences after a quote that ends with a colon: the items of a list, as many as fit."""
    if units[end - 1].kind != "sentence" or not units[end - 1].text.endswith(":"):
        return ()
    following = itertools.takewhile(lambda unit: unit.kind == "sentence", units[end : end + _MOST_ANNOUNCED])
    sizes = itertools.accumulate(len(unit.text) for unit in units[end : end + _MOST_ANNOUNCED])
    return [unit for unit, size in zip(following, sizes, strict=False) if size <= _LONGEST]


def _runs(units: Sequence[QuoteUnit]) -> Iterator[tuple[int, int]]:
    """Yield the runs that may be quoted, as the first unit and the one after the last: several sentences, or one row."""
    for start, unit in enumerate(units):
        for end in range(start + 1, min(start + (1 if unit.kind == "row" else _MOST_UNITS), len(units)) + 1):
            if units[end - 1].kind != unit.kind:
                break
            yield start, end


def _heads(units: Sequence[QuoteUnit], language: str) -> dict[int, frozenset[str]]:
    """Return the terms in the heads of tables, by the lines of the rows below them."""
    by_line: dict[int, frozenset[str]] = {}
    head = frozenset[str]()
    for unit in units:
        if unit.kind == "row":
            by_line[unit.first] = head
        else:
            is_head = unit.kind == "heading" and unit.text.startswith("|")
            head = frozenset(terms_in(unit.text, language) if is_head else ())
    return by_line


def _score(asked: _Asked, text: _Text, start: int, end: int) -> float:
    """Return the share of a question that a run of units covers."""
    run, is_row = text.units[start:end], text.units[start].kind == "row"
    in_quote = _most(text.shares[start:end])
    meant = text.shares_beside(start - 1) if not is_row and text.refers(start) else text.none
    places = [
        (1.0, in_quote),
        (_REFERRED, meant),
        (_HEADING, text.above),
        (_TITLE, text.title),
        (_COLUMN, text.columns.get(run[0].first, text.none)),
        (_ELSEWHERE, text.anywhere),
    ]
    if not is_row:  # text next to a row is about something else
        places += [(_BESIDE, text.shares_beside(start - 1)), (_BESIDE, text.shares_beside(end))]
    got = _weighed(asked, places)
    direct = _weighed(asked, places[:2])
    score = got * (1.0 - _BARE * (1.0 - direct / (_OWN * got)) if direct < _OWN * got else 1.0)
    if run[0].kind == "code":
        score *= _CODE
    if asked.kind is not None and not any(asked.kind.is_in(unit.text, text.language) for unit in _telling(text, start, end)):
        score *= asked.kind.without
    if any(literal not in shown(run) for literal in asked.literals):
        score *= _MISSPELLED
    return score * asked.doubt - _PRICE * (len(run) - 1) - (0.3 if len(shown(run)) < _SHORTEST else 0.0)


def _most(shares: Iterable[Shares]) -> Shares:
    return tuple(map(max, zip(*shares, strict=True)))


def _weighed(asked: _Asked, places: Sequence[tuple[float, Shares]]) -> float:
    """Return the share of a question that some places cover together. Each place has a weight."""
    best = _most(tuple(worth * share for share in shares) for worth, shares in places)
    return sum(weight * share for weight, share in zip(asked.weights, best, strict=True)) / (sum(asked.weights) or 1.0)


def _telling(text: _Text, start: int, end: int) -> Iterator[QuoteUnit]:
    """Yield the units of a run in which the thing that is asked for counts: a sentence beside them may name another one."""
    for number in range(start, end):
        if end - start == 1 or any(text.shares[number]) or text.refers(number):
            yield text.units[number]


def _closeness(text: _Text, start: int, end: int) -> float:
    """Return 1 if the words of a question are close to each other in a quote, and less if they are scattered over it."""
    terms = list(itertools.chain(*text.terms[start:end]))
    if len(terms) <= _NEAR:
        return 1.0
    latest: dict[int, int] = {}
    hits = [(place, number) for place, term in enumerate(terms) for number, exact in enumerate(text.exact) if term in exact]
    needed, span = len({number for _, number in hits}), len(terms)
    for place, number in hits:
        latest[number] = place
        if len(latest) == needed:
            span = min(span, place - min(latest.values()) + 1)
    is_one = needed <= 1
    return 1.0 if is_one else 1.0 - _SCATTERED * min(1.0, max(0, span - _NEAR) / _FAR)


@lru_cache(maxsize=100_000)
def _likeness(concept: Concept, term: str) -> float:
    """Return how much a term has of a word: it may be the word, another form of it, another word for it, or a part of it."""
    if term in concept.stems:
        return 1.0
    language, has_compounds = concept.language, concept.language in _COMPOUNDING
    if term in concept.related.forms or any(is_form_of(stem, term, language) for stem in concept.stems):
        return _FORM
    # A compound names a thing of a kind: a `Buchenholz` is a `Holz`.
    if has_compounds and any(len(stem) >= _SHORTEST_HEAD and term.endswith(stem) for stem in concept.stems):
        return _FORM
    if any(is_form_of(stem, term, language) for stem in concept.related.same):
        return _SAME
    # A word within a longer one: anywhere in the text's, or as the last part of the question's.
    is_within = any(len(stem) >= _SHORTEST_PART and stem in term for stem in concept.stems)
    is_last = len(term) >= _SHORTEST_PART and any(stem.endswith(term) for stem in concept.stems)
    return _WITHIN if is_within or is_last else 0.0
