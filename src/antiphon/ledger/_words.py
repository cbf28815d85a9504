"""What can be searched for: the words of a message, and what somebody types to find them.

An index takes words out by being told them again. So whoever changes what `words_of` gives adds a migration that drops it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import orjson

__all__ = ["Term", "fold_words", "terms_of", "words_of"]

_MOST_TERMS = 32
"""Terms of a search that are looked at; a person types fewer."""
_SHOWN = ("text", "data", "value", "arguments", "result", "option_name", "error_message", "title", "quote", "prompt_hint")
"""The fields of a payload that say something; the others name, prove or point."""
_NESTED = ("parts", "citations")
_TYPED = re.compile(r'"([^"]*)"?|(\S+)')
_WORD = re.compile(r"[^\W_]+")


class Term(NamedTuple):
    """Words that must follow each other."""

    typed: str
    words: tuple[str, ...]
    """The same, without case and accents."""
    is_beginning: bool
    """Whether the last word may go on."""


def terms_of(typed: str) -> tuple[Term, ...]:
    """Return what somebody who typed this looks for: every word, and words in quotes as they follow each other."""
    terms: list[Term] = []
    for quoted, plain in _TYPED.findall(typed):
        typed_term = quoted or plain
        words = tuple(fold_words(typed_term))
        if words:
            terms.append(Term(typed_term, words, is_beginning=bool(plain) and plain.endswith("*")))
    return tuple(terms[:_MOST_TERMS])


def fold_words(text: str) -> list[str]:
    """Return the words of a text without case and accents."""
    plain = unicodedata.normalize("NFKD", text.casefold())
    return _WORD.findall("".join(letter for letter in plain if not unicodedata.combining(letter)))


def words_of(body: bytes) -> str:
    """Return what a stored message says, line by line; nothing, if it cannot be read."""
    try:
        form = orjson.loads(body)
        return "\n".join(_said(form["payload"]))
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


def _said(fields: dict[str, Any]) -> Iterator[str]:
    for name in _NESTED:
        for each in fields.get(name, ()):
            yield from _said(each)
    for name in _SHOWN:
        yield from _texts(fields.get(name))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from _texts(each)
    elif isinstance(value, dict):
        for each in cast("dict[str, Any]", value).values():
            yield from _texts(each)
