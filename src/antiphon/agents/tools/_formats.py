"""Formats of files that the file tools read: pages of Markdown, tables in CSV, and mailboxes.

Anyone may have written such a file, so each is read in time in proportion to its size, or refused.

**Markdown.** The problems of a page: broken links, headings out of order, open fences. Pages are read by a CommonMark parser
that takes linear time.

**Tables.** The columns of a CSV file, and sums by group, exact to six decimal places. Rows are kept as written, and not padded
to the number of columns: a header of thousands of columns above as many empty lines would become millions of cells. A table
that is too large for a model, or takes too long, is refused.

**Mailboxes** (mbox): the list of messages, called letters here, and the text of one of them. Letters are parsed here, and not
by the standard library: its parser takes time quadratic in the length of a header or in the depth of parts. It parses only the
headers of letters and parts, cut to a length.
"""

from __future__ import annotations

import csv
import decimal
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from email.errors import MessageError
from email.header import decode_header, make_header
from email.message import Message
from email.parser import BytesHeaderParser
from email.utils import parsedate_to_datetime
from itertools import chain, islice
from typing import Any, Final, Literal, TypeAlias, TypeVar
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pydantic_ai import ModelRetry

# ---------------------------------------------------------------- pages of Markdown

Anchors: TypeAlias = frozenset[str] | Literal["unknown"] | None
"""The anchors of a page, made from its headings; None if there is no such page."""

_OUTSIDE: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//|/", re.IGNORECASE)
_TODO: Final = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
_SIGN: Final = re.compile(r"[^\w\- ]")
_LONGEST_SHOWN: Final = 100
"""The maximum length of a shown title, target, name or value, in characters."""
_PARSER: Final = MarkdownIt("commonmark")


@dataclass
class _Page:
    headings: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    """Line, level, text."""
    links: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Line, target."""
    bare_images: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    """Line and target of images without a description."""
    todos: set[int] = field(default_factory=set[int])
    open_fence: int | None = None


def problems_of(text: str, anchors: Callable[[str], Anchors]) -> list[str]:
    """Return the problems of a page, line by line. `anchors` returns the anchors of a link's target."""
    page = _read_page(text)
    problems = sorted((*_headings(page), *_links(page, anchors), *_rest(page)))
    return [f"line {line}: {what}" for line, what in problems]


def anchors_of(text: str) -> frozenset[str]:
    """Return the anchors of a page."""
    return _anchors(_read_page(text))


# ---------------------------------------------------------------- Markdown: the parser


def _read_page(text: str) -> _Page:
    page, level = _Page(), 0
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")  # as the parser counts them
    for token in _PARSER.parse(text):
        line = token.map[0] + 1 if token.map else 1
        match token.type:
            case "heading_open":
                level = int(token.tag[1:])
            case "inline":
                if level:
                    page.headings.append((line, level, token.content))
                _read_inline(page, line, token.children or [])
                level = 0
            case "fence":
                page.open_fence = page.open_fence or (None if _is_closed(lines, token) else line)
            case "html_block":
                page.todos |= {line + at for at, text_line in enumerate(token.content.split("\n")) if _TODO.search(text_line)}
            case _:
                pass
    return page


def _read_inline(page: _Page, line: int, tokens: list[Token]) -> None:
    """Read the inline content of a paragraph that starts at a line."""
    for token in tokens:
        match token.type:
            case "softbreak" | "hardbreak":
                line += 1
            case "link_open":
                page.links.append((line, str(token.attrGet("href") or "")))
            case "image":
                target = str(token.attrGet("src") or "")
                page.links.append((line, target))
                if not token.content.strip():
                    page.bare_images.append((line, target))
            case "text" | "html_inline":
                page.todos |= {line} if _TODO.search(token.content) else set()
                line += token.content.count("\n")
            case _:
                pass


def _is_closed(lines: list[str], token: Token) -> bool:
    """Whether a code block ends with a fence, and not with the page or its container."""
    first, end = token.map or [0, 0]
    last = lines[end - 1].strip(" \t>") if end - first > 1 else ""
    return last.startswith(token.markup) and not last.strip(token.markup[0])


# ---------------------------------------------------------------- Markdown: problems


def _headings(page: _Page) -> Iterator[tuple[int, str]]:
    if not page.headings or page.headings[0][1] != 1:
        yield 1, "the page does not begin with a title"
    last, seen = 0, set[str]()
    for line, level, title in page.headings:
        if last and level > last + 1:
            yield line, f"heading {_short(title)!r} is {level - last} levels below the one before it"
        if title in seen:
            yield line, f"heading {_short(title)!r} is there twice"
        last = level
        seen.add(title)


def _links(page: _Page, anchors: Callable[[str], Anchors]) -> Iterator[tuple[int, str]]:
    for line, target in page.bare_images:
        yield line, f"image {_short(unquote(target))} has no description"
    page_anchors = _anchors(page)
    for line, target in page.links:
        if _OUTSIDE.match(target):
            continue
        name, _, anchor = unquote(target).partition("#")
        target_anchors = anchors(name) if name else page_anchors
        if target_anchors is None:
            yield line, f"link to {_short(name)} leads nowhere"
        elif anchor and target_anchors != "unknown" and anchor not in target_anchors:
            yield line, f"link to {_short(unquote(target))} names a heading that is not there"


def _rest(page: _Page) -> Iterator[tuple[int, str]]:
    if page.open_fence is not None:
        yield page.open_fence, "the code block that begins here does not end"
    for line in page.todos:
        yield line, "something is left to do"


def _anchors(page: _Page) -> frozenset[str]:
    return frozenset(_SIGN.sub("", title.lower()).strip().replace(" ", "-") for _, _, title in page.headings)


def _short(value: str) -> str:
    return value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…"


# ---------------------------------------------------------------- tables

How: TypeAlias = Literal["count", "sum", "mean", "min", "max"]

_MOST_COLUMNS: Final = 500
_MOST_CELLS: Final = 1_000_000
_LONGEST_LINE: Final = 100_000
_LONGEST_NUMBER: Final = 50
"""The maximum length of a number in characters, and its largest power of ten in both directions. A longer number is text."""
_MOST_GROUPS: Final = 100
_MOST_SHOWN: Final = 10
_MOST_SUMMED: Final = 20
"""The maximum number of different values of a column by which totals are grouped."""
_MOST_TOTALS: Final = 12
"""The maximum number of lines of totals."""
_DELIMITERS: Final = ",;\t|"
_QUOTED: Final = re.compile(r'"[^"]*"')
_CONTEXT: Final = decimal.Context(prec=4 * _LONGEST_NUMBER)
"""Sums are exact: numbers have at most 50 digits before the point and 100 after it."""

_HOW: Mapping[How, Callable[[Sequence[Decimal]], Decimal]] = {
    "count": lambda values: Decimal(len(values)),
    "sum": lambda values: sum(values, Decimal(0)),
    "mean": lambda values: sum(values, Decimal(0)) / len(values),
    "min": min,
    "max": max,
}


def columns_of(text: str) -> dict[str, Any]:
    """Return the number of rows, and a summary of each column.

    Raises:
        ModelRetry: it is not a table, or too large.
    """
    rows, names = _rows(text)
    with decimal.localcontext(_CONTEXT):
        summaries = {_short(name): _column([_cell(row, place) for row in rows]) for name, place in names.items()}
    return {"rows": len(rows), "columns": summaries}


def grouped(text: str, by: str, column: str, how: How) -> dict[str, str]:
    """Return a number for each value of one column: the count, sum and so on of the numbers in another column.

    Raises:
        ModelRetry: it is not a table, or too large, or there is no such column.
    """
    rows, names = _rows(text)
    for name in (by, column):
        if name not in names:
            listed = ", ".join(_short(name_of_column) for name_of_column in [*names][:_MOST_GROUPS])
            raise ModelRetry(f"there is no column {_short(name)!r}; there are {listed}")
    values: dict[str, list[Decimal]] = {}
    for row in rows:
        cell = _cell(row, names[column])
        number = Decimal(1) if how == "count" and cell else _number(cell)
        if number is not None:
            values.setdefault(_cell(row, names[by]), []).append(number)
    with decimal.localcontext(_CONTEXT):
        numbers_by_group = {group: _HOW[how](numbers) for group, numbers in values.items()}
        largest = sorted(numbers_by_group.items(), key=lambda item: (-item[1], item[0]))[:_MOST_GROUPS]
        return {_short(group): _shown(number) for group, number in largest}


def totals(text: str) -> str:
    """Return the sums of every column of numbers by every column of words, a line each: `- revenue by city: Oslo 3, Rome 2`.

    A column of words with too many different values has no groups. Without any groups, it is the sum of all rows.

    Raises:
        ModelRetry: it is not a table, too large, or has no column of numbers.
    """
    rows, names = _rows(text)
    cells = {name: [cell for row in rows if (cell := _cell(row, place))] for name, place in names.items()}
    numbers = [name for name, there in cells.items() if there and all(_number(cell) is not None for cell in there)]
    if not numbers:
        there = ", ".join(_short(name_of_column) for name_of_column in [*names][:_MOST_GROUPS])
        raise ModelRetry(f"there is no column of numbers; there are {there}")
    words = [name for name in names if name not in numbers and 0 < len(set(cells[name])) <= _MOST_SUMMED]
    pairs = [(column, by) for column in numbers for by in words][:_MOST_TOTALS]
    if not pairs:
        with decimal.localcontext(_CONTEXT):
            sums = {name: sum((Decimal(cell.strip()) for cell in cells[name]), Decimal(0)) for name in numbers[:_MOST_TOTALS]}
            return "\n".join(f"- {_short(name)}: {_shown(number)}" for name, number in sums.items())
    return "\n".join(f"- {_short(column)} by {_short(by)}: {_line(grouped(text, by, column, 'sum'))}" for column, by in pairs)


def _line(sums: Mapping[str, str]) -> str:
    return ", ".join(f"{group or '(empty)'} {number}" for group, number in sums.items())


def _rows(text: str) -> tuple[list[list[str]], dict[str, int]]:
    """Return the rows, and the position of each column in a row."""
    lines = _lines(text)
    first = next(lines, "")
    plain = _QUOTED.sub("", first)
    delimiter = max(_DELIMITERS, key=plain.count)
    is_spaced = 0 < plain.count(delimiter) == plain.count(f"{delimiter} ")
    reader = csv.reader(chain([first], lines), delimiter=delimiter, skipinitialspace=is_spaced)
    cells, rows = 0, list[list[str]]()
    try:
        header = next(reader, list[str]())
        for row in reader:
            cells += max(len(row), 1)
            if cells > _MOST_CELLS:
                raise ModelRetry(f"the table has more than {_MOST_CELLS} cells")
            if row:
                rows.append(row)
    except csv.Error as exc:
        raise ModelRetry(f"this is no table: {exc}") from exc
    names = {name: place for place, name in enumerate(header) if name}
    if not names:
        raise ModelRetry("this is no table: its first line has no names")
    if len(names) > _MOST_COLUMNS or len(names) * len(rows) > _MOST_CELLS:
        limits = f"at most {_MOST_COLUMNS} columns and {_MOST_CELLS} cells are read"
        raise ModelRetry(f"the table has {len(names)} columns and {len(rows)} rows; {limits}")
    return rows, names


def _lines(text: str) -> Iterator[str]:
    """Yield lines for the CSV reader. It parses a whole line at once, and blocks the event loop meanwhile."""
    for line in io.StringIO(text, newline=""):
        if len(line) > _LONGEST_LINE:
            raise ModelRetry(f"this is no table: a line has more than {_LONGEST_LINE} characters")
        yield line


def _cell(row: list[str], place: int) -> str:
    return row[place] if place < len(row) else ""


def _column(values: list[str]) -> dict[str, Any]:
    filled = [value for value in values if value]
    different = set(filled)
    numbers = [number for value in filled if (number := _number(value)) is not None]
    summary: dict[str, Any] = {"empty": len(values) - len(filled), "different": len(different)}
    if numbers and len(numbers) == len(filled):
        return summary | {how: _shown(_HOW[how](numbers)) for how in ("sum", "mean", "min", "max")}
    if len(different) <= _MOST_SHOWN:
        summary["values"] = sorted(_short(value) for value in different)
    return summary


def _number(value: str) -> Decimal | None:
    """Return a number; None if it is not one, or if its decimal form would be too long."""
    plain = value.strip()
    if len(plain) > _LONGEST_NUMBER:
        return None
    try:
        number = Decimal(plain)
    except InvalidOperation:
        return None
    return number if number.is_finite() and abs(number.adjusted()) <= _LONGEST_NUMBER else None


def _shown(number: Decimal) -> str:
    return f"{(round(number, 6) + 0).normalize():f}"  # zero has no sign


# ---------------------------------------------------------------- mailboxes

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
    r"|gb(k|2312|18030)|big5|euc-(jp|kr)|shift[_-]jis|iso-2022-jp",
    re.IGNORECASE,
)
"""Accepted character sets. Python has other codecs, which are not for text, or take quadratic time."""


def text_in(data: bytes, charset: str) -> str:
    """Return the text that a stranger sent, and says to be in a character set; in UTF-8, if that is none that is accepted."""
    try:
        return data.decode(charset if _CHARSET.fullmatch(charset) else "utf-8", errors="replace")
    except LookupError:  # it only looks like one, such as iso-8859-99
        return data.decode(errors="replace")


def letters_in(data: bytes, words: str = "") -> list[dict[str, Any]]:
    """Return the letters of a mailbox, in order, each with its number; with words, only letters that contain one of them.

    Raises:
        ModelRetry: there are too many.
    """
    sought = list(dict.fromkeys(word.casefold() for word in words.split()))[:_MOST_WORDS]
    letters = (
        _about(number, letter, text)
        for number, (letter, text) in enumerate(map(_taken_apart, _letters(data)), 1)
        if not sought or any(word in f"{_header(letter, 'Subject')} {text}".casefold() for word in sought)
    )
    return list(islice(letters, _MOST_LETTERS))


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
    begins = [line.span() for line in islice(_FROM.finditer(data), _MOST_LOOKED_AT + 1)]
    if len(begins) > _MOST_LOOKED_AT:
        raise ModelRetry(f"the mailbox has more than {_MOST_LOOKED_AT} letters")
    ends = [*(begin for begin, _ in begins[1:]), len(data)]
    return [data[begin:end] for (_, begin), end in zip(begins, ends, strict=False)]


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
        decoded = str(make_header(decode_header(value)))
        decoded.encode()  # bytes that are not text are kept as lone surrogates, which cannot be stored
    except (LookupError, MessageError, ValueError):
        return str(value).encode("ascii", errors="replace").decode()
    return decoded


def _date(letter: Message) -> str | None:
    try:
        return parsedate_to_datetime(letter.get("Date", "")).isoformat()
    except (IndexError, OverflowError, TypeError, ValueError):
        return None


# ---------------------------------------------------------------- mailboxes: the parts of a letter


def _taken_apart(data: bytes) -> tuple[Message, str]:
    """Return the header of a letter, and the text of its first part that is plain text."""
    head, body = _divided(data)
    texts = (
        _decoded(part, text)
        for part, text in islice(_parts(head, body, 0), _MOST_PARTS)
        if part.get_content_type() == "text/plain"
    )
    return head, next(texts, "")


def _parts(head: Message, body: bytes, depth: int) -> Iterator[tuple[Message, bytes]]:
    """Yield the parts of a letter, including nested ones, each with its header."""
    boundary = _read_text(head.get_boundary) if head.get_content_maintype() == "multipart" else None
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
    for boundary_line in line.finditer(body):
        if begin is not None:
            yield body[begin : boundary_line.start()]
        if boundary_line[1]:
            return
        begin = boundary_line.end() + 1
    if begin is not None and begin < len(body):
        yield body[begin:]


def _divided(data: bytes) -> tuple[Message, bytes]:
    """Return the header of a letter or a part, as far as it is needed, and its body."""
    data = data.replace(b"\r\n", b"\n")
    head, _, body = (b"", b"", data[1:]) if data.startswith(b"\n") else data.partition(b"\n\n")
    headers = BytesHeaderParser().parsebytes(head[:_LONGEST_HEAD])
    head_of_part = Message()
    for name in _HEADERS:
        if (value := headers.get(name)) is not None:
            head_of_part[name] = str(value)[:_LONGEST_HEADER]
    return head_of_part, body


def _decoded(part: Message, body: bytes) -> str:
    part.set_payload(body.decode("ascii", errors="surrogateescape"))
    payload = _read_text(lambda: part.get_payload(decode=True))
    charset = _read_text(part.get_content_charset) or "utf-8"
    data = payload if isinstance(payload, bytes) else b""
    return text_in(data, charset)


def _read_text(find: Callable[[], FoundT]) -> FoundT | None:
    """Return the result of the standard library's parser; None if it raises."""
    try:
        return find()
    except (LookupError, MessageError, TypeError, ValueError):
        return None
