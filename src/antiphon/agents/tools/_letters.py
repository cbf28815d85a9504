"""What is in a mailbox file (mbox): who writes what when, and the words of one letter."""

from __future__ import annotations

import mailbox
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from pydantic_ai import ModelRetry

__all__ = ["letter_in", "letters_in"]

_MOST_LETTERS = 200
_MOST_CHARACTERS = 10_000


def letters_in(path: Path, words: str = "") -> list[dict[str, Any]]:
    """Return the letters of a mailbox, in order, each with its number; only those with any of the words, if there are some."""
    wanted = [word.casefold() for word in words.split()]
    return [
        _about(number, letter)
        for number, letter in enumerate(_letters(path), 1)
        if not wanted or any(word in _said(letter) for word in wanted)
    ][:_MOST_LETTERS]


def letter_in(path: Path, number: int) -> dict[str, Any]:
    """Return one letter with its words.

    Raises:
        ModelRetry: there is none of the number.
    """
    letters = _letters(path)
    if not 1 <= number <= len(letters):
        raise ModelRetry(f"there is no letter {number}; there are {len(letters)}")
    letter = letters[number - 1]
    return _about(number, letter) | {"text": _words(letter)[:_MOST_CHARACTERS]}


def _letters(path: Path) -> list[Message]:
    box = mailbox.mbox(path, create=False)
    try:
        return list(box)
    finally:
        box.close()


def _said(letter: Message) -> str:
    return f"{_header(letter, 'Subject')} {_words(letter)}".casefold()


def _about(number: int, letter: Message) -> dict[str, Any]:
    return {
        "number": number,
        "from": _header(letter, "From"),
        "subject": _header(letter, "Subject"),
        "date": _date(letter),
        "words": len(_words(letter).split()),
    }


def _header(letter: Message, name: str) -> str:
    value = letter.get(name, "")
    try:
        return str(make_header(decode_header(value)))
    except (LookupError, UnicodeDecodeError, ValueError):
        return str(value)


def _date(letter: Message) -> str | None:
    try:
        return parsedate_to_datetime(letter.get("Date", "")).isoformat()
    except (TypeError, ValueError):
        return None


def _words(letter: Message) -> str:
    plain = (part for part in letter.walk() if part.get_content_type() == "text/plain")
    part = next(plain, None)
    if part is None:
        return ""
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        return ""
    try:
        return payload.decode(part.get_content_charset() or "utf-8", errors="replace")
    except LookupError:
        return payload.decode("utf-8", errors="replace")
