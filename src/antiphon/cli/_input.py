"""What a command is given: a file or stdin, JSON or JSON Lines, in a dialect that is named or detected."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeAlias, cast

import typer

from antiphon.checks import TARGETS
from antiphon.cli._screen import fail, note
from antiphon.dialects import decode, detect, names
from antiphon.errors import DialectError
from antiphon.messages import Conversation
from antiphon.messages.json_values import JsonError, parse

__all__ = [
    "FileArgument",
    "ForOption",
    "FromOption",
    "Given",
    "dialect_of",
    "known_dialect",
    "parse_file",
    "read_conversation",
    "read_file",
    "refusals",
    "target_of",
]

_BOM = b"\xef\xbb\xbf"
_SAMPLE = 20
"""Units that are enough to tell a format."""
_IN_LINE = re.compile(r": line 1 column (\d+) \(char \d+\)$")
_UNIT = re.compile(r"\[(\d+)\]\.?")


def known_dialect(name: str | None) -> str | None:
    """Return the name of a dialect as it was given.

    Raises:
        BadParameter: there is none of that name.
    """
    if name is not None and name not in names():
        raise typer.BadParameter(f"no dialect is called {name!r}; there are {', '.join(names())}")
    return name


FileArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="JSON or JSON Lines; - reads from stdin.")]
FromOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--from", metavar="NAME", callback=known_dialect, help="The dialect of FILE; default: detected."),
]


def _known_target(name: str | None) -> str | None:
    if name is not None and name not in TARGETS:
        raise typer.BadParameter(f"no target is called {name!r}; there are {', '.join(TARGETS)}")
    return name


ForOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="NAME",
        callback=_known_target,
        help="The provider that must accept it; default: that of FILE's format, or any.",
    ),
]


def target_of(dialect: str, target: str | None) -> str | None:
    """Return the target that is named; of none, the dialect of the file, if it is a target."""
    return target or (dialect if dialect in TARGETS else None)


@dataclass(frozen=True, slots=True)
class Given:
    """What was read, before it is known what it says."""

    name: str
    """What to call it in messages."""
    text: bytes
    value: Any
    """The JSON; of JSON Lines, the list of them."""
    lines: tuple[int, ...] = ()
    """Of JSON Lines, the number of the line that each value stands in."""

    def place(self, where: str) -> str:
        """Return a place in the data as people look for it: in JSON Lines, a unit is a line."""
        unit = _UNIT.match(where) if self.lines else None
        if unit is None:
            return where
        rest = where[unit.end() :]
        return f"line {self.lines[int(unit[1])]}" + (f", {rest}" if rest else "")


def read_file(path: Path) -> Given:
    """Read JSON or JSON Lines."""
    is_stdin = path == Path("-")
    name = "stdin" if is_stdin else str(path)
    try:
        text = sys.stdin.buffer.read() if is_stdin else path.read_bytes()
    except OSError as exc:
        fail(f"{name}: {exc.strerror or exc}", code=2)
    return parse_file(name, text)


def parse_file(name: str, text: bytes) -> Given:
    """Read JSON or JSON Lines from the text of a file."""
    text = text.removeprefix(_BOM)
    try:
        return Given(name, text, parse(text))
    except JsonError as exc:
        lines = [(number, line) for number, line in enumerate(text.split(b"\n"), start=1) if line.strip()]
        if len(lines) < 2 or not _is_json(lines[0][1]):  # noqa: PLR2004 (JSON Lines: the first, which is not all, is whole)
            _refuse(name, exc)
    return Given(name, text, [_parsed_line(name, *line) for line in lines], tuple(number for number, _ in lines))


def _is_json(text: bytes) -> bool:
    try:
        parse(text)
    except JsonError:
        return False
    return True


def _parsed_line(name: str, number: int, line: bytes) -> Any:
    try:
        return parse(line.rstrip())
    except JsonError as exc:
        _refuse(f"{name}: line {number}", JsonError(_IN_LINE.sub(r" at column \1", exc.reason), exc.path))


def _refuse(name: str, error: JsonError) -> NoReturn:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.path).removeprefix(".")
    fail(": ".join(filter(None, (name, path, error.reason))), code=2)


@contextmanager
def refusals(given: Given) -> Generator[None]:
    """Turn what a dialect refuses into one line, `file: where: reason`, and exit code 1."""
    try:
        yield
    except DialectError as exc:
        fail(": ".join(filter(None, (given.name, given.place(exc.where), exc.reason))))


def read_conversation(given: Given, dialect: str | None) -> Conversation:
    """Decode what was read, from the dialect that is named or detected."""
    source = dialect_of(given, dialect)
    with refusals(given):
        # House lines are read as they are, each within the limits of one message, and keep their numbers.
        return decode(given.text.rstrip() if given.lines and source == "house" else given.value, source)


def dialect_of(given: Given, dialect: str | None) -> str:
    """Return the dialect that is named; of none, the one that is detected, and say on stderr which and why."""
    with refusals(given):
        return dialect or _detected(given)


def _detected(given: Given) -> str:
    units = cast("list[Any]", given.value)[:_SAMPLE] if isinstance(given.value, list) else given.value
    found = detect(units)
    if found.name is None:
        choice = ", ".join(found.candidates or names())
        fail(f"{given.name}: {found.reason}; name the dialect with --from, one of {choice}", code=2)
    note(f"{given.name}: read as {found.name} ({found.reason})")
    return found.name
