"""Histories to be taken into a ledger: what is in a file, conversation by conversation.

A file in the house format is read line by line, so that an export of any size can be taken in; a line that begins a
conversation ends the one before. Everything else is one JSON value, or lines of them, and is read as `antiphon convert` does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from antiphon.cli._input import Given, dialect_of, parse_file, read_conversation, refusals
from antiphon.cli._screen import fail
from antiphon.dialects import decode
from antiphon.errors import DecodeError
from antiphon.messages import Conversation, Message, loads

__all__ = ["History", "histories"]

_BEGINNINGS = (b'{"antiphon":', b'\xef\xbb\xbf{"antiphon":')
"""How a file begins that is read line by line: the second has a byte order mark."""


@dataclass(frozen=True, slots=True)
class History:
    """A conversation, and where it is from."""

    place: str
    """The file, and the line where it is one of several."""
    name: str
    """What to call its thread if its messages do not say; empty if nobody knows."""
    conversation: Conversation
    end: int
    """Bytes of the file up to here."""


def histories(path: Path, dialect: str | None, *, each_line: bool) -> Iterator[History]:
    """Yield the conversations of a file; with `each_line`, every line is one."""
    is_stdin = path == Path("-")
    name, stem = ("stdin", "") if is_stdin else (str(path), path.stem)
    try:
        with nullcontext(sys.stdin.buffer) if is_stdin else path.open("rb") as file:
            first = file.readline()
            if dialect in (None, "house") and first.startswith(_BEGINNINGS) and not each_line:
                yield from _house(name, stem, chain([first], file))
            else:
                yield from _whole(name, stem, first + file.read(), dialect, each_line)
    except OSError as exc:
        fail(f"{name}: {exc.strerror or exc}", code=2)


# ---------------------------------------------------------------- the house format, line by line


def _house(name: str, stem: str, lines: Iterable[bytes]) -> Iterator[History]:
    header, begun, end = Conversation(), 1, 0
    messages: list[Message] = []
    for number, line in enumerate(lines, start=1):
        found = _read(f"{name}: line {number}", line) if line.strip() else None
        if isinstance(found, Conversation):
            if number > 1:
                yield History(f"{name}: line {begun}", stem, header.extend(messages), end)
            header, begun, messages = found, number, []
        elif found is not None:
            messages.append(found)
        end += len(line)
    yield History(f"{name}: line {begun}", stem, header.extend(messages), end)


def _read(place: str, line: bytes) -> Message | Conversation:
    try:
        return loads(line.removeprefix(_BEGINNINGS[1][:3]).strip())
    except DecodeError as exc:
        fail(": ".join(filter(None, (place, exc.where, exc.reason))))


# ---------------------------------------------------------------- everything else


def _whole(name: str, stem: str, text: bytes, dialect: str | None, each_line: bool) -> Iterator[History]:
    given = parse_file(name, text)
    if not each_line or not given.lines:
        yield History(name, stem, read_conversation(given, dialect), len(text))
        return
    source = dialect_of(replace(given, value=given.value[0], lines=()), dialect)
    for number, value in zip(given.lines, given.value, strict=True):
        yield History(f"{name}: line {number}", _numbered(stem, number), _one(given, number, value, source), len(text))


def _numbered(stem: str, number: int) -> str:
    return f"{stem}-{number}" if stem else ""


def _one(given: Given, number: int, value: object, dialect: str) -> Conversation:
    with refusals(Given(f"{given.name}: line {number}", b"", value)):
        return decode(value, dialect)
