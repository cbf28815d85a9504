"""The input of a command: a file, stdin or a thread; JSON or JSON Lines, in a dialect that is named or detected."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeAlias, cast

import typer

from antiphon import service
from antiphon.checks import TARGETS
from antiphon.cli._ledger import VARIABLE, ledger_in_use, missing_ledger, with_ledger
from antiphon.cli._screen import fail, note
from antiphon.dialects import decode, detect, names
from antiphon.errors import DialectError
from antiphon.messages import Conversation
from antiphon.messages._json_values import JsonError, parse

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")
_SAMPLE = 20
"""Messages that are enough to detect a format."""
_IN_LINE = re.compile(r": line 1 column (\d+) \(char \d+\)$")
_UNIT = re.compile(r"\[(\d+)\]\.?")


def known_dialect(name: str | None) -> str | None:
    """Return the name of a dialect, unchanged."""
    if name is not None and name not in names():
        raise typer.BadParameter(f"no dialect is called {name!r}{_near(name, names())} there are {', '.join(names())}")
    return name


def _near(name: str, choices: Sequence[str]) -> str:
    """Return a suggestion for a misspelt name: those that begin with it or are like it; a semicolon if there is none."""
    wrong = name.casefold().replace("_", "-")
    begun = [choice for choice in choices if choice.startswith(wrong)] if wrong else []
    matches = begun or get_close_matches(wrong, choices, n=2) or [choice for choice in choices if wrong and wrong in choice]
    return f": did you mean {' or '.join(matches)}?" if matches else ";"


def offered_dialects(incomplete: str) -> list[str]:
    """Return the dialects for the shell to offer."""
    return [name for name in names() if name.startswith(incomplete)]


def _offered_targets(incomplete: str) -> list[str]:
    return [name for name in TARGETS if name.startswith(incomplete)]


FileArgument: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="JSON or JSON Lines; - reads from stdin.")]
FromOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="NAME",
        callback=known_dialect,
        autocompletion=offered_dialects,
        help="The dialect of FILE; default: detected.",
    ),
]


def _known_target(name: str | None) -> str | None:
    if name is not None and name not in TARGETS:
        raise typer.BadParameter(f"no target is called {name!r}{_near(name, tuple(TARGETS))} there are {', '.join(TARGETS)}")
    return name


ForOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--for",
        metavar="NAME",
        callback=_known_target,
        autocompletion=_offered_targets,
        help="The provider that must accept it; default: that of FILE's format, or any.",
    ),
]


def target_of(dialect: str, target: str | None) -> str | None:
    """Return the target that is named; without one, the dialect of the file, if it is a target."""
    return target or (dialect if dialect in TARGETS else None)


@dataclass(frozen=True, slots=True)
class FileContent:
    """The content of a file, parsed but not decoded."""

    name: str
    """Its name in error messages."""
    text: bytes
    value: Any
    """The JSON value; for JSON Lines, the list of values."""
    lines: tuple[int, ...] = ()
    """For JSON Lines, the line number of each value."""
    number: int | None = None
    """Its own line, if each line of the file is a conversation."""

    @property
    def label(self) -> str:
        """The file, and the line if each line is a conversation."""
        return self.name if self.number is None else f"{self.name}: line {self.number}"

    def place(self, where: str) -> str:
        """Return a place in the data as people look for it: in JSON Lines, by the line number."""
        unit = _UNIT.match(where) if self.lines else None
        if unit is None:
            return where
        rest = where[unit.end() :]
        return f"line {self.lines[int(unit[1])]}" + (f", {rest}" if rest else "")

    def each_line(self) -> list[FileContent]:
        """Return each line as a file of its own."""
        values = zip(self.lines, self.value, strict=True) if self.lines else [(1, self.value)]
        return [FileContent(self.name, b"", value, number=number) for number, value in values]

    def line_of(self, path: Sequence[str | int]) -> int | None:
        """Return the line on which a value of the file begins; None if the file has one line only."""
        if self.number is not None:
            return self.number
        if self.lines:
            return self.lines[path[0]] if path and isinstance(path[0], int) else None
        return _line_in(self.text, tuple(path)) if b"\n" in self.text.strip() else None


def read_file(path: Path) -> FileContent:
    """Read JSON or JSON Lines."""
    is_stdin = path == Path("-")
    name = "stdin" if is_stdin else str(path)
    try:
        text = sys.stdin.buffer.read() if is_stdin else path.read_bytes()
    except OSError as exc:
        fail_to_read(name, exc)
    return parse_file(name, text)


def fail_to_read(name: str, error: OSError) -> NoReturn:
    """Print why a file cannot be read, and exit."""
    reason = "it is a folder; name a file in it" if isinstance(error, IsADirectoryError) else error.strerror or str(error)
    fail(f"{name}: {reason}", code=2)


def read_text(text: str, what: str) -> str:
    """Return a text that is given on the command line; `-` reads it from stdin."""
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n")
    except UnicodeDecodeError as exc:
        fail(f"stdin: {what} is not text in UTF-8: byte {exc.start}; convert it first", code=2)


def parse_file(name: str, text: bytes) -> FileContent:
    """Read JSON or JSON Lines from the text of a file."""
    text = text.removeprefix(_BOM)
    _check_encoding(name, text)
    if not text.strip():
        fail(f"{name}: it is empty; expected JSON or JSON Lines", code=2)
    try:
        return FileContent(name, text, parse(text))
    except JsonError as exc:
        lines = [(number, line) for number, line in enumerate(text.split(b"\n"), start=1) if line.strip()]
        if len(lines) < 2 or not _is_json(lines[0][1]):  # noqa: PLR2004 (JSON Lines have two lines or more, and the first is valid)
            _refuse(name, exc)
    return FileContent(name, text, [_parsed_line(name, *line) for line in lines], tuple(number for number, _ in lines))


def _check_encoding(name: str, text: bytes) -> None:
    """Refuse a file that is not text in UTF-8, with what it seems to be."""
    try:
        text.decode()
    except UnicodeDecodeError as exc:
        if text.startswith(_UTF_16):
            return  # the parser says so
        if b"\0" in text:
            fail(f"{name}: this is a binary file; JSON is text in UTF-8", code=2)
        line = text.count(b"\n", 0, exc.start) + 1
        file = "" if name == "stdin" else f" {shlex.quote(name)}"
        fail(f"{name}: line {line}: not text in UTF-8; if it is Latin-1: iconv -f latin1 -t utf-8{file}", code=2)


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


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')


def _line_in(text: bytes, place: tuple[str | int, ...]) -> int | None:
    """Return the line on which the value at a path begins, in JSON that was parsed before."""
    path: list[str | int] = []
    is_key = False
    for token in _TOKEN.finditer(text):
        match symbol := token[0]:
            case b"}" | b"]":
                path.pop()
                is_key = False
            case b"," if isinstance(last := path[-1], int):
                path[-1] = last + 1
            case b",":
                is_key = True
            case b":":
                is_key = False
            case _ if is_key:
                path[-1] = parse(symbol)
            case _:
                if len(path) == len(place) and tuple(path) == place:
                    return text.count(b"\n", 0, token.start()) + 1
                if symbol in (b"{", b"["):
                    path.append("" if symbol == b"{" else 0)
                    is_key = symbol == b"{"
    return None


def _refuse(name: str, error: JsonError) -> NoReturn:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.path).removeprefix(".")
    fail(": ".join(filter(None, (name, path, error.reason))), code=2)


@contextmanager
def refusals(content: FileContent) -> Generator[None]:
    """Print an error of a dialect in one line, `file: where: reason`, and exit with 1."""
    try:
        yield
    except DialectError as exc:
        hint = _each_line_hint(content, exc.dialect)
        fail(": ".join(filter(None, (content.label, content.place(exc.where), exc.reason))) + hint)


def read_conversation(content: FileContent, dialect: str | None) -> Conversation:
    """Decode the content of a file, from the dialect that is named or detected."""
    source = dialect_of(content, dialect)
    with refusals(content):
        # House lines are read as they are, each within the limits of one message, and keep their numbers.
        return decode(content.text.rstrip() if content.lines and source == "house" else content.value, source)


def read_conversations(
    content: FileContent, dialect: str | None, *, each_line: bool
) -> Iterator[tuple[FileContent, Conversation]]:
    """Yield the conversations of a file: one, or with `each_line` one for each line, in the dialect of the first."""
    files = content.each_line() if each_line else [content]
    source = dialect_of(files[0], dialect)
    yield from ((file, read_conversation(file, source)) for file in files)


def dialect_of(content: FileContent, dialect: str | None) -> str:
    """Return the dialect that is named; without one, detect it, and print which it is and why."""
    with refusals(content):
        return dialect or _detected(content)


def _detected(content: FileContent) -> str:
    units = cast("list[Any]", content.value)[:_SAMPLE] if isinstance(content.value, list) else content.value
    detected = detect(units)
    if detected.name is None:
        alone = detect(cast("list[Any]", content.value)[0]).name if content.lines else None
        if hint := _each_line_hint(content, alone):
            fail(f"{content.label}: a list of these is no conversation{hint}", code=2)
        choice = (
            f", one of {', '.join(detected.candidates)}" if detected.candidates else ""
        )  # otherwise the reason names them all
        fail(f"{content.label}: {detected.reason}; name the dialect with --from{choice}", code=2)
    note(f"{content.name}: read as {detected.name} ({detected.reason})")
    return detected.name


def _each_line_hint(content: FileContent, dialect: str | None) -> str:
    """Return a hint, if each line of a file seems to be a conversation of its own."""
    first = content.value[0] if content.lines else None
    if dialect not in names() or not (isinstance(first, list) or _is_body(first, dialect)):
        return ""
    return f"; each line seems to be a conversation of {dialect}: --each-line, which import, convert, check and repair have"


def _is_body(value: object, dialect: str) -> bool:
    """Whether a value is a whole request or response."""
    try:
        return decode(value, dialect).metadata.get(dialect, {}).get("shape") in ("request", "response")
    except DialectError:
        return False


EachLineOption: TypeAlias = Annotated[bool, typer.Option("--each-line", help="Each line of FILE is a separate conversation.")]

# ---------------------------------------------------------------- a file or a thread


def find_conversation(name: str, source: str | None, ledger: str | None) -> Conversation:
    """Return the conversation of a file or a thread.

    With `--ledger` the name is that of a thread, with `--from` that of a file. Otherwise it is a file, if there is one of
    that name, or else a thread of the ledger in use.
    """
    if ledger is not None and source is not None:
        fail("--from is the dialect of a file, and --ledger is where threads are; give one of them", code=2)
    if ledger is not None:
        return with_ledger(ledger, partial(_read_thread, name=name))
    if source is not None or name == "-" or is_file(name):
        return read_conversation(read_file(Path(name)), source)
    missing = missing_ledger(ledger_in_use(None))
    if missing is not None:
        nor = f"no ledger {missing} in which it could be a thread"
        fail(f"{name}: {_not_a_file(name)}, and {nor}; --ledger or {VARIABLE} names another", code=2)
    return with_ledger(None, partial(_read_thread_if_known, name=name))


def _not_a_file(name: str) -> str:
    return "it is a folder, not a file" if os.path.isdir(name) else "there is no such file"


def is_file(name: str) -> bool:
    """Whether there is a file of that name. A folder does not count: a thread may have the same name."""
    return os.path.exists(name) and not os.path.isdir(name)


async def _read_thread(ledger: Ledger, *, name: str) -> Conversation:
    return await service.read_thread(ledger, await service.resolve_thread(ledger, name))


async def _read_thread_if_known(ledger: Ledger, *, name: str) -> Conversation:
    thread_id = await service.resolve_thread(ledger, name)
    if await ledger.thread(thread_id) is None:
        fail(f"{name}: {_not_a_file(name)}, and no such thread; `antiphon threads` lists the threads", code=2)
    return await service.read_thread(ledger, thread_id)
