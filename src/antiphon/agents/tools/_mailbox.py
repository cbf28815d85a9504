"""Mailbox files (mbox): the list of messages, called letters here, and the text of one of them.

Letters are parsed here, and not by the standard library: its parser takes time quadratic in the length of a header or in the
depth of parts. It parses only the headers of letters and parts, cut to a length.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import parsedate_to_datetime
from itertools import islice
from typing import Any, Final, TypeVar

from pydantic_ai import ModelRetry

FoundT = TypeVar("FoundT")

_MOST_LETTERS: Final = 200
"""The maximum length of a list."""
_MOST_LOOKED_AT: Final = 5_000
_MOST_WORDS: Final = 50
_MOST_CHARACTERS: Final = 10_000
_LONGEST_HEAD: Final = 20_000
"""The maximum size of all headers together, in bytes."""
_LONGEST_HEADER: Final = 1_000
_DEEPEST: Final = 10
"""The maximum nesting depth of parts."""
_MOST_PARTS: Final = 100
"""The maximum number of parts of a letter that are searched for its text."""
_FROM: Final = re.compile(rb"^From [^\n]*\n?", re.MULTILINE)
_HEADERS: Final = ("From", "Subject", "Date", "Content-Type", "Content-Transfer-Encoding")
_CHARSET: Final = re.compile(
    r"(us-)?ascii|utf-?(8|16|16-?[lb]e)|iso-?8859-?\d{1,2}|latin-?\d|(windows|cp)-?125\d|koi8-[ru]"
    r"|gb(k|2312|18030)|big5|euc-(jp|kr)|shift_jis|iso-2022-jp"
)
"""Accepted character sets. Python has other codecs, which are not for text, or take quadratic time."""


def letters_in(data: bytes, words: str = "") -> list[dict[str, Any]]:
    """Return the letters of a mailbox, in order, each with its number; with words, only letters that contain one of them.

    Raises:
        ModelRetry: there are too many.
    """
    wanted = list(dict.fromkeys(word.casefold() for word in words.split()))[:_MOST_WORDS]
    found = (
        _about(number, letter, text)
        for number, (letter, text) in enumerate(map(_taken_apart, _letters(data)), 1)
        if not wanted or _has_one(f"{_header(letter, 'Subject')} {text}".casefold(), wanted)
    )
    return list(islice(found, _MOST_LETTERS))


def letter_in(data: bytes, number: int) -> dict[str, Any]:
    """Return one letter with its text.

    Raises:
        ModelRetry: no letter has the number.
    """
    letters = _letters(data)
    if not 1 <= number <= len(letters):
        raise ModelRetry(f"there is no letter {number}; there are {len(letters)}")
    letter, text = _taken_apart(letters[number - 1])
    return _about(number, letter, text) | {"text": text[:_MOST_CHARACTERS]}


def _letters(data: bytes) -> list[bytes]:
    """Return the letters of a mailbox: each starts with a line that starts with `From `."""
    begins = [found.span() for found in islice(_FROM.finditer(data), _MOST_LOOKED_AT + 1)]
    if len(begins) > _MOST_LOOKED_AT:
        raise ModelRetry(f"the mailbox has more than {_MOST_LOOKED_AT} letters")
    ends = [*(begin for begin, _ in begins[1:]), len(data)]
    return [data[begin:end] for (_, begin), end in zip(begins, ends, strict=False)]


def _has_one(text: str, words: list[str]) -> bool:
    return any(word in text for word in words)


def _about(number: int, letter: Message, text: str) -> dict[str, Any]:
    return {
        "number": number,
        "from": _header(letter, "From"),
        "subject": _header(letter, "Subject"),
        "date": _date(letter),
        "words": len(text.split()),
    }


def _header(letter: Message, name: str) -> str:
    value = letter.get(name, "")
    try:
        found = str(make_header(decode_header(value)))
        found.encode()  # bytes that are not text are kept as lone surrogates, which cannot be stored
    except (LookupError, MessageError, ValueError):
        return str(value).encode("ascii", errors="replace").decode()
    return found


def _date(letter: Message) -> str | None:
    try:
        return parsedate_to_datetime(letter.get("Date", "")).isoformat()
    except (IndexError, OverflowError, TypeError, ValueError):
        return None


# ---------------------------------------------------------------- parts


def _taken_apart(data: bytes) -> tuple[Message, str]:
    """Return the header of a letter, and the text of its first part that is plain text."""
    head, body = _divided(data)
    texts = (_decoded(part, text) for part, text in islice(_parts(head, body, 0), _MOST_PARTS) if _is_plain(part))
    return head, next(texts, "")


def _parts(head: Message, body: bytes, depth: int) -> Iterator[tuple[Message, bytes]]:
    """Yield the parts of a letter, including nested ones, each with its header."""
    boundary = _read(head.get_boundary) if head.get_content_maintype() == "multipart" else None
    if boundary is None:
        yield head, body
        return
    yield head, b""  # so that it is counted
    if depth < _DEEPEST:
        for part in _between(body, boundary.encode(errors="replace")):
            yield from _parts(*_divided(part), depth + 1)


def _between(body: bytes, boundary: bytes) -> Iterator[bytes]:
    """Yield the parts between boundary lines, up to the final one."""
    line = re.compile(rb"^--" + re.escape(boundary) + rb"(--)?[ \t]*$", re.MULTILINE)
    begin: int | None = None
    for found in line.finditer(body):
        if begin is not None:
            yield body[begin : found.start()]
        if found[1]:
            return
        begin = found.end() + 1
    if begin is not None and begin < len(body):
        yield body[begin:]


def _divided(data: bytes) -> tuple[Message, bytes]:
    """Return the header of a letter or a part, as far as it is needed, and its body."""
    data = data.replace(b"\r\n", b"\n")
    head, _, body = (b"", b"", data[1:]) if data.startswith(b"\n") else data.partition(b"\n\n")
    given = BytesHeaderParser().parsebytes(head[:_LONGEST_HEAD])
    kept = Message()
    for name in _HEADERS:
        if (value := given.get(name)) is not None:
            kept[name] = str(value)[:_LONGEST_HEADER]
    return kept, body


def _is_plain(part: Message) -> bool:
    return part.get_content_type() == "text/plain"


def _decoded(part: Message, body: bytes) -> str:
    part.set_payload(body.decode("ascii", errors="surrogateescape"))
    payload = _read(lambda: part.get_payload(decode=True))
    charset = _read(part.get_content_charset) or "utf-8"
    found = payload if isinstance(payload, bytes) else b""
    return found.decode(charset if _CHARSET.fullmatch(charset) else "utf-8", errors="replace")


def _read(find: Callable[[], FoundT]) -> FoundT | None:
    """Return the result of the standard library's parser; None if it raises."""
    try:
        return find()
    except (LookupError, MessageError, TypeError, ValueError):
        return None
