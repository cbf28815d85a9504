"""Quotes: the smallest run of whole sentences, rows or code lines of a passage that holds the answer to a question.

A passage is divided into units: the sentences of its paragraphs and list items, the rows of its tables, the lines of its code.
Each unit has some of the question's words. A word counts more if few units have it, and hardly if a heading has it: a heading
applies to all of them. The quote is the run with the highest score; a longer run must add enough for each further unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from antiphon.retrieval._documents import Kind, is_capital_heading
from antiphon.retrieval._language import concepts_in, detect_language, term_set, terms_in

_MOST_UNITS: Final = 4
"""The maximum number of units in a quote."""
_PRICE: Final = 0.15
"""The share of the question's words that a further unit must add."""
_LONGEST: Final = 600
"""Characters of a quote; a longer sentence is cut, and marked."""
_SHORTEST: Final = 12
"""The least length of a unit that can be a quote on its own, in characters."""
_FENCE: Final = re.compile(r"\s*(`{3,}|~{3,})")
_HEADING: Final = re.compile(r"\s{0,3}#{1,6}\s")
_RULE: Final = re.compile(r"[\s|:=*_-]+")
_ITEM: Final = re.compile(r"\s*(?:[-*+•]|\d{1,3}[.)])\s+")
_END: Final = re.compile(r"[.!?…][\"'»”\u2019)\]*_`]*\s+(?=[\"'«“„(\[*_`¿¡]*[^\Wa-zß-öø-ÿ_])|[\u3002\uff01\uff1f]\s*")
_SHORT_FORM: Final = re.compile(
    r"(?:^|[\s(])(?:[^\W\d_]|e\.g|i\.e|z\.B|d\.h|u\.a|bzw|ca|etc|usw|vgl|Abs|Art|Nr|Bd|Dr|Mr|Mrs|Ms|Prof|St|Fig|No|vs|cf|al"
    r"|p|pp|Mme|Sr|Sra|Sig|dott|ex|env|approx|resp|ggf|inkl|min|max|Jan|Feb|Apr|Jun|Jul|Aug|Sep|Sept|Okt|Oct|Nov|Dez|Dec)\.$"
)
"""Abbreviations: a dot that does not end a sentence."""
_AFTER_ORDINAL: Final = re.compile(
    r"(?:Januar|Jänner|Februar|März|April|Mai|Juni|Juli|August|September|Oktober|November|Dezember|Jahrhundert)\w*\b"
)
"""Words after a German ordinal number: its dot does not end a sentence."""


@dataclass(frozen=True, slots=True)
class QuoteUnit:
    """A sentence, a row or a line of code; `first` and `last` are its lines in the passage, from 0."""

    text: str
    first: int
    last: int
    kind: Literal["sentence", "row", "code", "heading"]


@dataclass(frozen=True, slots=True)
class Quote:
    """Verbatim text of a passage."""

    text: str
    """Each sentence on one line; rows and lines of code unchanged."""
    lines: tuple[int, int]
    """The first and the last line in the document, or in the passage if its place is unknown; from 1."""
    coverage: float
    """The share of the question's words that it has, including its headings; from 0 to 1."""


def quote(
    question: str,
    text: str,
    *,
    heading: Sequence[str] = (),
    first_line: int = 1,
    kind: Kind = "markdown",
    language: str | None = None,
) -> Quote:
    """Return the smallest run of whole sentences, rows or code lines that holds the answer to a question.

    `first_line` is the number of the first line of the text in its document.
    """
    every = units_of(text, kind)
    units = [unit for unit in every if unit.kind != "heading"] or every
    if not units:
        return Quote("", (first_line, first_line), 0.0)
    code = language or detect_language(text)
    concepts = concepts_in(question)
    above = set(terms_in("\n".join((*heading, *(unit.text for unit in every if unit.kind == "heading"))), code))
    there = [set(terms_in(unit.text, code)) for unit in units]
    is_in_heading = [any(term in above for term in concept) for concept in concepts]
    has = [[any(term in terms for term in concept) for concept in concepts] for terms in there]
    weights: list[float] = []
    for number, in_heading in enumerate(is_in_heading):
        count = sum(row[number] for row in has)
        # A word counts less if many units have it, and hardly if a heading has it: a heading applies to all of them.
        weights.append((0.2 if in_heading else 1.0) / (1 + count / len(has)) if count else 0.0)
    start, end = _best(units, has, weights)
    covered = [is_in_heading[number] or any(row[number] for row in has[start : end + 1]) for number in range(len(concepts))]
    share = sum(covered) / len(concepts) if concepts else 0.0
    lines = (first_line + units[start].first, first_line + units[end].last)
    return Quote(shown(units[start : end + 1]), lines, round(share, 3))


def relevance(question: str, text: str, *, heading: Sequence[str] = (), language: str | None = None) -> float:
    """Return the share of the significant words of a question that a text has, including its headings; from 0 to 1."""
    concepts = concepts_in(question)
    if not concepts:
        return 0.0
    there = term_set("\n".join((*heading, text)), language or detect_language(text))
    return round(sum(any(term in there for term in concept) for concept in concepts) / len(concepts), 3)


def _best(units: Sequence[QuoteUnit], has: Sequence[Sequence[bool]], weights: Sequence[float]) -> tuple[int, int]:
    """Return the first and the last unit of the quote."""
    total = sum(weights) or 1.0
    best, best_worth = (0, 0), float("-inf")
    for start in range(len(units)):
        for end in range(start, min(start + _MOST_UNITS, len(units))):
            if end > start and units[end].kind != units[start].kind:
                break
            covered = sum(weight for number, weight in enumerate(weights) if any(row[number] for row in has[start : end + 1]))
            short = units[start].kind == "sentence" and sum(len(unit.text) for unit in units[start : end + 1]) < _SHORTEST
            worth = covered / total - _PRICE * (end - start) - (0.3 if short else 0.0)
            if worth > best_worth + 1e-9:  # of equal ones, the first
                best, best_worth = (start, end), worth
    return best


def shown(units: Sequence[QuoteUnit]) -> str:
    """Return units for display: sentences on one line, rows and lines of code unchanged; cut if they are long."""
    separator = " " if units[0].kind == "sentence" else "\n"
    text = separator.join(unit.text for unit in units)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1].rstrip()}…"


# ---------------------------------------------------------------- units


def units_of(text: str, kind: Kind = "markdown") -> list[QuoteUnit]:
    """Return the sentences, rows and code lines of a text, in order."""
    lines = text.split("\n")
    if kind in ("markdown", "pages"):
        return list(_units(lines))
    of_line: Literal["row", "code"] = "row" if kind == "table" else "code"
    return [QuoteUnit(line.rstrip(), number, number, of_line) for number, line in enumerate(lines) if line.strip()]


def _units(lines: Sequence[str]) -> Iterator[QuoteUnit]:
    paragraph: list[tuple[int, str]] = []
    fence = _open_fence(lines)
    for number, line in enumerate(lines):
        opening = _FENCE.match(line)
        is_heading = bool(_HEADING.match(line)) or is_capital_heading(lines, number)
        is_text = not fence and not opening and not is_heading and not _is_row(line) and bool(line.strip())
        if not is_text or _ITEM.match(line):
            yield from _sentences(paragraph)
            paragraph = []
        if is_text:
            paragraph.append((number, line))
        elif opening:
            fence = "" if fence and line.strip().startswith(fence) else fence or opening[1]
        elif fence and line.strip():
            yield QuoteUnit(line.rstrip(), number, number, "code")
        elif is_heading:
            yield QuoteUnit(line.strip().strip("#").strip(), number, number, "heading")
        elif _is_row(line) and not _RULE.fullmatch(line):
            # The names of the columns apply to every row, like a heading.
            is_head = number + 1 < len(lines) and _is_row(lines[number + 1]) and bool(_RULE.fullmatch(lines[number + 1]))
            yield QuoteUnit(line.strip(), number, number, "heading" if is_head else "row")
    yield from _sentences(paragraph)


def _open_fence(lines: Sequence[str]) -> str:
    """Return the fence that a text begins within: the rest of long code, whose only fence is its end. Else, nothing."""
    fences = [(number, line.strip()) for number, line in enumerate(lines) if _FENCE.match(line)]
    if len(fences) % 2 == 0 or fences[0][0] == 0:
        return ""
    return fences[0][1] if not fences[0][1].strip("`~") else ""


def _is_row(line: str) -> bool:
    plain = line.strip()
    return plain.startswith("|") and plain.count("|") > 1


def _sentences(paragraph: Iterable[tuple[int, str]]) -> Iterator[QuoteUnit]:
    """Yield the sentences of some lines; a list item without its mark."""
    rows = list(paragraph)
    if not rows or all(_RULE.fullmatch(line) for _, line in rows):
        return
    if len(rows) > 1 and _RULE.fullmatch(rows[-1][1]):  # a heading and the line below it
        yield QuoteUnit(" ".join(line.strip() for _, line in rows[:-1]), rows[0][0], rows[-1][0], "heading")
        return
    starts: list[tuple[int, int]] = []
    text = ""
    for number, line in rows:
        plain = line.strip()
        item = _ITEM.match(line) if not text else None
        plain = line[item.end() :].strip() if item else plain.lstrip("> ") if plain.startswith(">") else plain
        starts.append((len(text), number))
        text += f"{plain} "
    begin = 0
    for end in [*_ends(text), len(text)]:
        sentence = text[begin:end].strip()
        if sentence:
            yield QuoteUnit(
                sentence, _line_at(starts, begin), _line_at(starts, begin + len(text[begin:end].rstrip()) - 1), "sentence"
            )
        begin = end


def _ends(text: str) -> Iterator[int]:
    for match in _END.finditer(text):
        is_date = text[match.start() - 1].isdigit() and _AFTER_ORDINAL.match(text, match.end())
        if not is_date and not _SHORT_FORM.search(text[max(0, match.start() - 12) : match.start() + 1]):
            yield match.end()


def _line_at(starts: Sequence[tuple[int, int]], place: int) -> int:
    return next((number for begin, number in reversed(starts) if begin <= place), starts[0][1])
