"""Documents: the text of files, and passages, which are readable pieces of a text with their headings and lines.

**Files** are Markdown, plain text, HTML, PDF, DOCX, tables and source code, alone or in a folder. A reader returns text with
the headings that its format has. It runs no code of a file, fetches nothing, and reads a limited number of bytes, pages and
characters. Text and HTML take time in proportion to their size. PDF and DOCX files, whose readers are packages of others, are
read in a process of their own with limits of time and memory. Text is only data. A file that cannot be read raises an error
that names the file and says what to do; the other files of a folder are still read.

**A passage** is a run of whole lines. A heading starts a passage, and belongs to it, as do the headings above it without text.
Paragraphs are joined up to a usual length. A code block, a table or a list is cut only if it is too long. A paragraph that is
too long is cut between lines, else after a sentence, else between words. In source code the headings are the classes and
functions; in a table with columns they are the names of the columns.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from math import ceil
from pathlib import Path, PurePath
from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from antiphon.errors import DocumentError
from antiphon.retrieval._html import read_html

# ---------------------------------------------------------------- kinds of text, and pieces of it

Kind: TypeAlias = Literal["markdown", "code", "table", "pages"]
"""How a text is divided: Markdown and plain text; source code; a table with one row per line, the first with the columns;
pages, with a form feed on a line of its own between them."""

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_CODE: Final = """
.bash .c .cc .cfg .cpp .cs .css .go .h .hpp .ini .java .js .json .jsx .kt .lua .php .pl .ps1 .py .pyi .r .rb .rs .scala .scss
.sh .sql .swift .toml .ts .tsx .xml .yaml .yml .zsh
"""
CODE_SUFFIXES: Final = frozenset(_CODE.split())
TABLE_SUFFIXES: Final = frozenset({".csv", ".tsv"})

_USUAL: Final = 1000
"""The length up to which paragraphs are joined, in characters."""
_LONGEST: Final = 2000
_DEEPEST: Final = 8
"""The maximum number of headings of a passage."""
_LONGEST_HEADING: Final = 120
_FENCE: Final = re.compile(r"\s{0,3}(`{3,}|~{3,})")
_ATX: Final = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_SETEXT: Final = re.compile(r" {0,3}(=+|-{3,})\s*")
_NUMBERED: Final = re.compile(r"(\d{1,2}(?:\.\d{1,2})*\.?)[ \t]+[^\W\d_][^\n]{0,70}(?<![.,;:!?])")
"""A heading of a plain text: a number and a title."""
_CAPITALS: Final = re.compile(r"(?=[^\W\d_])(?=.*[^\W\d_]{3})[^a-zß-öø-ÿ\n|]{3,60}(?<![.,;!?])")
"""A heading of a plain text in capital letters."""
_SENTENCE_END: Final = re.compile(r"[.!?\u3002\uff01\uff1f][\"'»”)\]]*\s")
_DEFINITION: Final = re.compile(
    r"(?P<indent>\s*)(?:(?:export|default|pub|public|private|protected|static|final|abstract|async|unsafe|const)\s+)*"
    r"(?P<what>def|class|function|func|fn|struct|enum|trait|interface|impl|module|type)\s+(?P<name>[^\s({:<]+)"
)


@dataclass(frozen=True, slots=True)
class TextPiece:
    """A passage of a text that is not stored yet."""

    text: str
    heading: tuple[str, ...]
    """The headings above it, from the title to the nearest one."""
    first: int
    """The number of its first line, from 1."""
    last: int


class _Block(NamedTuple):
    """Lines that belong together."""

    first: int
    last: int
    level: int
    """The level of a heading, from 1; 0 for other text."""
    title: str = ""


def kind_of(source: str) -> Kind:
    """Return how the text of a file is divided, by its file name suffix."""
    suffix = PurePath(source).suffix.casefold()
    return "code" if suffix in CODE_SUFFIXES else "table" if suffix in TABLE_SUFFIXES else "markdown"


_FEWEST: Final = 1000
_SHORTEST: Final = 100
"""A text has up to `_FEWEST` passages, and one more for each `_SHORTEST` characters. Storing one takes as long as reading a
kilobyte: without a limit, 160 kB of headings would take as long as a library."""


def passages_of(text: str, kind: Kind = "markdown") -> list[TextPiece]:
    """Return the passages of a text. Only the space between them is left out.

    A text that would have absurdly many is divided into paragraphs alone, whatever its headings.
    """
    lines = text.replace("\r\n", "\n").split("\n")
    most = _FEWEST + len(text) // _SHORTEST
    pieces = list(islice(_divided(lines, kind), most + 1))
    return pieces if len(pieces) <= most else list(_joined(lines, _paragraphs(lines)))


def _divided(lines: Sequence[str], kind: Kind) -> Iterator[TextPiece]:
    if kind == "table":
        return _rows(lines)
    if kind == "pages":
        return _paged(lines)
    blocks = list(_code_blocks(lines) if kind == "code" else _blocks(lines))
    if kind == "markdown" and not any(block.level for block in blocks):
        blocks = list(_with_headings(lines, blocks))
    return _joined(lines, iter(blocks))


# ---------------------------------------------------------------- blocks


def _is_blank(line: str) -> bool:
    return not line or line.isspace()


def _blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Yield headings, and runs of lines without an empty one; a fenced block is one run."""
    start: int | None = None
    fence = ""
    for number, line in enumerate(lines):
        if fence:
            fence = "" if line.strip().startswith(fence) else fence
        elif (opening := _FENCE.match(line)) and any(
            below.strip().startswith(opening[1]) for below in lines[number + 1 : number + _FURTHEST]
        ):
            fence = opening[1]
            start = number if start is None else start
        elif _is_blank(line):
            if start is not None:
                yield _Block(start, number - 1, 0)
            start = None
        elif heading := _ATX.match(line):
            if start is not None:
                yield _Block(start, number - 1, 0)
            start = None
            yield _Block(number, number, len(heading[1]), _title(heading[2]))
        elif start == number - 1 and _SETEXT.fullmatch(line) and "|" not in lines[number - 1]:
            yield _Block(number - 1, number, 1 if line.strip().startswith("=") else 2, _title(lines[number - 1]))
            start = None
        else:
            start = number if start is None else start
    if start is not None:
        yield _Block(start, len(lines) - 1, 0)


_FURTHEST: Final = 400
"""The number of lines in which the end of a fence is searched: without an end, the rest of a page would be one block."""


def _with_headings(lines: Sequence[str], blocks: Sequence[_Block]) -> Iterator[_Block]:
    """Yield the blocks of a text without marks for headings; a line that looks like a heading is one.

    Numbered lines of one level that follow each other without a text between them are a list, or a table of contents.
    """
    levels = [_numbered_level(lines, block) for block in blocks]
    for place, (block, level) in enumerate(zip(blocks, levels, strict=True)):
        first = lines[block.first]
        if level and level not in levels[max(0, place - 1) : place] + levels[place + 1 : place + 2]:
            yield block._replace(level=level, title=_title(" ".join(first.split())))
        elif is_capital_heading(lines, block.first):
            yield _Block(block.first, block.first, 1, _title(first))
            if block.first < block.last:
                yield block._replace(first=block.first + 1)
        else:
            yield block


def _numbered_level(lines: Sequence[str], block: _Block) -> int:
    """Return the level of a line with a number and a title: 2 for `3.1.  The offer`; 0 for other blocks."""
    match = _NUMBERED.fullmatch(lines[block.first]) if block.first == block.last else None
    return 0 if match is None else 1 + match[1].rstrip(".").count(".")


def is_capital_heading(lines: Sequence[str], number: int) -> bool:
    """Whether a line is a heading in capital letters, as in a manual page: the line below it is indented or empty."""
    line = lines[number]
    if not line.isupper() or _CAPITALS.fullmatch(line) is None:
        return False
    below = lines[number + 1] if number + 1 < len(lines) else ""
    return _is_blank(below) or below.startswith((" ", "\t"))


def _title(text: str) -> str:
    return text.strip().rstrip("#").strip(" \t*_")[:_LONGEST_HEADING]


def _code_blocks(lines: Sequence[str]) -> Iterator[_Block]:
    """Yield definitions as headings, and the runs of lines between empty ones."""
    start: int | None = None
    for number, line in enumerate(lines):
        definition = _DEFINITION.match(line)
        if definition or _is_blank(line):
            if start is not None:
                yield _Block(start, number - 1, 0)
            start = None
        if definition:
            level = 1 + len(definition["indent"].expandtabs(4)) // 4
            yield _Block(number, number, level, f"{definition['what']} {definition['name']}"[:_LONGEST_HEADING])
        elif start is None and not _is_blank(line):
            start = number
    if start is not None:
        yield _Block(start, len(lines) - 1, 0)


# ---------------------------------------------------------------- passages


def _joined(lines: Sequence[str], blocks: Iterator[_Block]) -> Iterator[TextPiece]:
    """Yield blocks joined to passages."""
    path: list[tuple[int, str]] = []
    first = last = -1
    size = 0
    has_text = False
    for block in blocks:
        length = sum(len(line) + 1 for line in lines[(last if first >= 0 else block.first - 1) + 1 : block.last + 1])
        above = path[-1][0] if path else 0
        is_apart = bool(block.level) and (has_text or block.level <= above)
        is_full = not block.level and has_text and size + length > _USUAL
        if first >= 0 and (is_apart or is_full or size + length > _LONGEST):
            yield from _cut(lines, first, last, path)
            first, size, has_text = -1, 0, False
            length = sum(len(line) + 1 for line in lines[block.first : block.last + 1])
        if block.level:
            path = [*(entry for entry in path if entry[0] < block.level), (block.level, block.title)]
        first = block.first if first < 0 else first
        last, size, has_text = block.last, size + length, has_text or not block.level
    if first >= 0:
        yield from _cut(lines, first, last, path)


def _cut(lines: Sequence[str], first: int, last: int, path: Sequence[tuple[int, str]]) -> Iterator[TextPiece]:
    """Yield some lines as one passage, or as several if they are too long."""
    heading = tuple(title for _, title in path if title)[-_DEEPEST:]
    text = "\n".join(lines[first : last + 1])
    number = first + 1
    for piece in _pieces(text):
        yield TextPiece(piece.text, heading, number + piece.line, number + piece.line + piece.text.count("\n"))


def _paged(lines: Sequence[str]) -> Iterator[TextPiece]:
    """Yield the passages of each page, with its number as heading."""
    breaks = [number for number, line in enumerate(lines) if line.strip(" ") == "\f"]
    for page, (start, end) in enumerate(zip([-1, *breaks], [*breaks, len(lines)], strict=True), start=1):
        for piece in _joined(lines[start + 1 : end], _paragraphs(lines[start + 1 : end])):
            yield TextPiece(piece.text, (f"page {page}",), piece.first + start + 1, piece.last + start + 1)


def _paragraphs(lines: Sequence[str]) -> Iterator[_Block]:
    """Yield runs of lines without an empty one: a page of a printed text has no marks for headings."""
    start: int | None = None
    for number, line in enumerate([*lines, ""]):
        if _is_blank(line):
            if start is not None:
                yield _Block(start, number - 1, 0)
            start = None
        elif start is None:
            start = number


class _Cut(NamedTuple):
    text: str
    line: int
    """The number of lines before it."""


def _pieces(text: str) -> Iterator[_Cut]:
    """Yield a text in pieces that are short enough. The rest is not copied for each: it may be a whole book."""
    start, line = 0, 0
    while start < len(text):
        end = start + _LONGEST if len(text) - start > _LONGEST else len(text)
        if end < len(text):
            end = _place(text, start, end)
        piece = text[start:end]
        content = piece.rstrip()
        # Lines without text at the beginning are left out; the margin of the first line with text is kept.
        empty = len(content) - len(content.lstrip())
        skipped = content.rfind("\n", 0, empty) + 1
        if content:
            yield _Cut(content[skipped:], line + content.count("\n", 0, skipped))
        line += piece.count("\n")
        start = end


def _place(text: str, start: int, end: int) -> int:
    """Return the position of the cut: after a line, else after a sentence, else between words, else anywhere."""
    middle = start + _LONGEST // 2
    if (cut := text.rfind("\n", middle, end)) >= 0:
        return cut + 1
    ends = [match.end() for match in _SENTENCE_END.finditer(text, middle, end)]
    if ends:
        return ends[-1]
    cut = max(text.rfind(" ", start, end), text.rfind("\n", start, end))
    return cut + 1 if cut > start else end


_ROWS: Final = 20
"""Rows of a table in one passage."""


def _rows(lines: Sequence[str]) -> Iterator[TextPiece]:
    """Yield the rows of a table; the columns are the heading of each passage."""
    full = [number for number, line in enumerate(lines) if not _is_blank(line)]
    if not full:
        return
    heading = (" ".join(re.split(r"[,;\t]", lines[full[0]].replace('"', ""))).strip()[:_LONGEST_HEADING],)
    numbers: list[int] = []
    size = 0
    for number in full:
        if numbers and (len(numbers) == _ROWS or size + len(lines[number]) > _USUAL):
            yield from _cut(lines, numbers[0], numbers[-1], [(1, heading[0])])
            numbers, size = [], 0
        numbers.append(number)
        size += len(lines[number]) + 1
    yield from _cut(lines, numbers[0], numbers[-1], [(1, heading[0])])


# ---------------------------------------------------------------- files

LARGEST_DOCUMENT: Final = 20_000_000
"""The maximum size of a file in bytes, and of its text in characters; a book has one million."""
_INSTALL: Final = 'pip install "antiphon[documents]"'

TEXT_SUFFIXES: Final = frozenset({".md", ".markdown", ".mdx", ".txt", ".text", ".rst", ".adoc", ".org", ".log"})
HTML_SUFFIXES: Final = frozenset({".html", ".htm", ".xhtml"})
DOCUMENT_SUFFIXES: Final = TEXT_SUFFIXES | HTML_SUFFIXES | CODE_SUFFIXES | TABLE_SUFFIXES | {".pdf", ".docx"}
"""The file name suffixes that are read from a folder."""
_LEFT_OUT: Final = frozenset({"__pycache__", "node_modules"})
"""Folders without documents; folders whose name starts with a dot are also skipped."""


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a file."""

    text: str
    kind: Kind


def read_document(data: bytes, name: str, *, encoding: str = "utf-8-sig") -> Document:
    """Return the text of a file, by its file name suffix.

    Raises:
        DocumentError: it has no text, is too large, is damaged, or is in another encoding; or the package that reads its
            format is not installed.
    """
    if len(data) > LARGEST_DOCUMENT:
        raise DocumentError(f"more than {LARGEST_DOCUMENT // 1_000_000} MB; divide it", name)
    suffix = Path(name).suffix.casefold()
    if suffix == ".pdf" or data.startswith(b"%PDF-"):
        document = _read_apart(data, "pdf", name)
    elif suffix == ".docx":
        document = _read_apart(data, "docx", name)
    else:
        text = _decoded(data, name, encoding)
        if suffix in HTML_SUFFIXES:
            document = Document(read_html(text).text, "markdown")
        else:
            kind: Kind = "code" if suffix in CODE_SUFFIXES else "table" if suffix in TABLE_SUFFIXES else "markdown"
            document = Document(text, kind)
    if not document.text.strip():
        raise DocumentError(_NO_TEXT.get(suffix, "the file has no text"), name)
    return document if len(document.text) <= LARGEST_DOCUMENT else Document(document.text[:LARGEST_DOCUMENT], document.kind)


_NO_TEXT: Final = {".pdf": "the PDF has no text, perhaps only pictures of pages; recognise the text first (OCR)"}


def _decoded(data: bytes, name: str, encoding: str) -> str:
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as exc:
        asked = "UTF-8" if encoding.startswith("utf-8") else encoding
        raise DocumentError(f"not text in {asked}; convert it first, or name its encoding", name) from exc
    except LookupError as exc:
        raise DocumentError(f"there is no encoding {encoding!r}; utf-8, utf-16 and cp1252 are some", name) from exc
    if "\0" in text:
        raise DocumentError("the file has no text", name)
    return text


_PACKAGES: Final = {"pdf": "pypdf", "docx": "docx"}
_SECONDS: Final = 5.0
"""Processor time for a file, and for each megabyte of it again. A long book takes a few seconds."""
_BUSY: Final = 6
"""How much longer it may take on a busy machine."""


def _read_apart(data: bytes, form: str, name: str) -> Document:
    """Read a file in a process of its own, which may take only so much time and memory (see `_reader`)."""
    package = _PACKAGES[form]
    if find_spec(package) is None:
        raise DocumentError(f"to read it, {package} is needed: {_INSTALL}", name)
    seconds = ceil(_SECONDS * (1 + len(data) / 1_000_000))
    # -P: a `docx.py` in the current folder is not the package.
    command = [sys.executable, "-P", "-m", "antiphon.retrieval._reader", form, str(seconds)]
    try:
        ended = subprocess.run(command, input=data, capture_output=True, timeout=seconds * _BUSY, check=False)  # noqa: S603 (no shell)
    except subprocess.TimeoutExpired as exc:
        raise DocumentError(_TOO_MUCH, name) from exc
    if ended.returncode:
        raise DocumentError(_TOO_MUCH, name)
    answer = json.loads(ended.stdout)
    if "error" in answer:
        raise DocumentError(answer["error"], name)
    return Document(answer["text"], answer["kind"])


_TOO_MUCH: Final = "reading it takes too much time or memory; divide it, or convert it to text first"


# ---------------------------------------------------------------- folders


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder and its folders that can be read, in order; hidden ones and links are left out."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(child for child in folders if not child.startswith(".") and child not in _LEFT_OUT)
        for name in sorted(names):
            path = Path(place, name)
            with suppress(OSError):
                if not name.startswith(".") and path.suffix.casefold() in DOCUMENT_SUFFIXES and not path.is_symlink():
                    yield path
