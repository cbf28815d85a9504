"""Relevance as arithmetic over words: how much of a question a text has, which words name things, which sentence says most.

No model is asked: the same words always get the same number, and anybody can see why.
"""

from __future__ import annotations

import re
from collections import Counter

__all__ = ["entities_in", "goals_in", "quote_of", "relevance", "significant"]

_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*")
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z`\"(])|\n\s*\n|\n(?=\s*[-|#*\d])")
"""Where a sentence ends: not where a line is wrapped."""
_MARKS = re.compile(r"^[\s#>|*-]+|[\s|]+$")
"""What Markdown has around a sentence."""
_NAME = re.compile(r"`([^`\s]{2,60})`|\b([A-Z][\w-]+(?:[ ][A-Z][\w-]+){0,3})\b|\b(\w+_\w+)\b")
_SHORTEST_STEM = 4
_SHORTEST_QUOTE = 20
_LONGEST_QUOTE = 240
_MOST_GOALS = 20
_EMPTY = frozenset(
    _WORD.findall(
        "a about all also an and any are as at be been but by can could did do does for from had has have he her his how i if"
        " in into is it its just many may me more most much must my no not of on one or our out over please s say says she"
        " should so some such t tell than that the their them then there these they this those to under up us use used uses"
        " using was we were what when where which while who whom whose why will with within without would you your"
    )
)
"""Words that say nothing about what a text is about."""


def significant(text: str) -> tuple[str, ...]:
    """Return the words that a text is about, each once, shortened so that one of several is several's."""
    words = (word.casefold() for word in _WORD.findall(text))
    return tuple(dict.fromkeys(_stem(word) for word in words if word not in _EMPTY))


def relevance(question: str, text: str) -> float:
    """Return which share of the words that a question is about a text has, from 0 to 1."""
    wanted = significant(question)
    if not wanted:
        return 0.0
    there = set(significant(text))
    return round(sum(word in there for word in wanted) / len(wanted), 3)


def quote_of(question: str, text: str) -> str:
    """Return the sentence of a text that says most about a question: its words as they are, on one line, cut if long."""
    sentences = [_MARKS.sub("", " ".join(each.split())) for each in _SENTENCE.split(text)]
    whole = [each for each in sentences if len(each) >= _SHORTEST_QUOTE] or [" ".join(text.split())]
    best = max(whole, key=lambda each: relevance(question, each))  # of equal ones, the first
    return best if len(best) <= _LONGEST_QUOTE else f"{best[: _LONGEST_QUOTE - 1].rstrip()}…"


def goals_in(question: str) -> tuple[str, ...]:
    """Return what somebody wants, a sentence each, of many the first ones; the first is the primary one."""
    found = (each.strip() for each in re.split(r"(?<=[.!?])\s+|\n+", question))
    return tuple(dict.fromkeys(each for each in found if significant(each)))[:_MOST_GOALS] or (question.strip(),)


def entities_in(text: str, limit: int) -> tuple[str, ...]:
    """Return the names in a text, the most frequent first: what is in backticks, capitalised, or an identifier."""
    found = Counter(name for match in _NAME.finditer(text) if (name := _named(match)) is not None)
    return tuple(name for name, _ in found.most_common(limit))


def _named(match: re.Match[str]) -> str | None:
    name = next(group for group in match.groups() if group)
    return name if name.casefold() not in _EMPTY and len(name) > 1 else None


def _stem(word: str) -> str:
    return word.removesuffix("s") if len(word) >= _SHORTEST_STEM else word
