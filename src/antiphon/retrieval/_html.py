"""HTML as Markdown, in time in proportion to its size, whatever a page says.

The tokens are those of the HTML standard (https://html.spec.whatwg.org/#tokenization): a comment, a tag, a quoted attribute or
a script that has no end takes the rest of the page, as in a browser. So no part of a page is searched twice. The expressions
that could go back are possessive: they never do.

There is no tree: its construction takes time quadratic in the depth of a page, in every parser. The writer handles one token
after the other. It knows the open lists and quotes, of which it shows the first few, and the open table row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from html import unescape
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"""(?P<text>(?:[^<]++|<(?![a-zA-Z/!?]))++)
    |<(?P<end>/?)(?P<name>[a-zA-Z][^\t\n\r\f />]*+)
        (?P<attributes>(?:[^>=]++|=[\t\n\r\f ]*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))?)*+)>
    |<!--(?P<comment>)
    |<[!/?][^>]*+>""",
    re.VERBOSE,
)
"""What matches nothing has no end."""
_COMMENT_END: Final = re.compile("--!?>")
_HREF: Final = re.compile(r"""(?<![^\s"'/])href\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s>]++))""", re.IGNORECASE)
_HUGE_NUMBER: Final = re.compile("&#(?:[xX][0-9a-fA-F]{9,}|[0-9]{9,});?")
"""No character has such a number, and `int` refuses the longest ones."""
_SPACE: Final = re.compile(r"[\t\n\r\f ]++")
_BACKTICKS: Final = re.compile("`{3,}+")

_RAW: Final = {
    name: re.compile(rf"</{name}(?=[\t\n\r\f />])", re.IGNORECASE)
    for name in ("script", "style", "xmp", "iframe", "noembed", "noframes", "title", "textarea")
}
"""Elements whose content has no tags."""
_LEFT_OUT: Final = frozenset({"script", "style", "iframe", "noembed", "noframes", "template", "noscript", "nav", "svg"})
_BLOCKS: Final = frozenset(
    [
        "address",
        "aside",
        "body",
        "caption",
        "center",
        "dd",
        "details",
        "dialog",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "header",
        "hgroup",
        "hr",
        "html",
        "legend",
        "optgroup",
        "option",
        "p",
        "search",
        "section",
        "select",
        "summary",
        "textarea",
        "xmp",
    ]
)
_HEADINGS: Final = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_LISTS: Final = frozenset({"ul", "ol", "menu", "dir"})
_NESTED: Final = _LISTS | {"li", "blockquote"}
_TABLE: Final = frozenset({"table", "tr", "td", "th"})
_PARTS: Final = ("main", "article")
_MARKS: Final = {"b": "**", "strong": "**", "i": "*", "em": "*", "code": "`", "kbd": "`", "samp": "`"}
_DEEPEST: Final = 8
"""The number of lists and quotes inside each other that are shown: each is a margin of every line."""
_LONGEST_LINK: Final = 2000
_LONGEST_TITLE: Final = 500


class HtmlPage(NamedTuple):
    """A page of HTML as Markdown."""

    title: str
    text: str


def read_html(html: str, *, with_links: bool = False) -> HtmlPage:
    """Return the title and the content of a page: of its `main` or first `article`, if it has one.

    Scripts, styles, menus and pictures are left out. `with_links`: links have their addresses, else only their text. Marks are
    not escaped: the text is searched by words, and quoted unchanged.
    """
    writer = _Writer(with_links=with_links)
    for token in _tokens(html):
        writer.take(token)
    return writer.page()


def table_text(rows: Sequence[Iterable[str]]) -> str:
    """Return a table in Markdown; the first row has the names of its columns."""
    cells = [[" ".join(cell.split()).replace("|", "/") for cell in row] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([*lines[:1], f"|{'---|' * len(cells[0])}", *lines[1:]]) if cells else ""


class _Token(NamedTuple):
    """A tag, or text if it has no name."""

    name: str = ""
    is_end: bool = False
    text: str = ""
    """The text, or the attributes of a tag."""


def _tokens(html: str) -> Iterator[_Token]:
    place = 0
    while (match := _TOKEN.match(html, place)) is not None:
        place, text, name = match.end(), match["text"], match["name"]
        if text is not None:
            yield _Token(text=_characters(text))
        elif name is not None:
            name = name.lower()
            yield _Token(name, bool(match["end"]), match["attributes"])
            if name in _RAW and not match["end"]:
                end = _RAW[name].search(html, place)
                stop = len(html) if end is None else end.start()
                yield _Token(text=_characters(html[place:stop]) if name in ("title", "textarea") else html[place:stop])
                place = stop
            elif name == "plaintext":
                yield _Token(text=html[place:])
                return
        elif match["comment"] is not None:
            end = _COMMENT_END.search(html, match.start() + 2)
            if end is None:
                return
            place = end.end()


def _characters(text: str) -> str:
    return unescape(_HUGE_NUMBER.sub("\ufffd", text)) if "&" in text else text


class _Mark(NamedTuple):
    """Marks around words, such as emphasis."""

    before: str
    after: str


class _Writer:
    """Writes tokens as Markdown."""

    def __init__(self, *, with_links: bool) -> None:
        self._with_links = with_links
        self._title: str | None = None
        self._blocks: list[str] = []
        """What is written, each with the empty line before it."""
        self._text: list[str] = []
        """The text of the current paragraph, cell or code block."""
        self._heading = ""
        self._is_code = False
        self._is_title = False
        self._skipped = ""
        """The element that is left out."""
        self._skipped_depth = 0
        self._waiting: dict[str, _Mark] = {}
        """Marks by tag that are written before the next word: without a word they are left out."""
        self._marks: dict[str, _Mark] = {}
        """Marks by tag that were begun."""
        self._open: list[tuple[str, bool]] = []
        """Open lists, items and quotes, and whether each has a margin."""
        self._count: Counter[str] = Counter()
        """How many of them are open, by name."""
        self._numbers: list[int] = []
        """By open list, the number of its last item; -1: a list without numbers."""
        self._margins: list[str] = []
        """What stands before each line."""
        self._bullets: dict[int, str] = {}
        """By the place of a margin, what stands in the next line instead of it."""
        self._is_in_list = False
        """Whether the last block was in a list."""
        self._tables = 0
        self._rows: list[list[str]] = []
        self._row: list[str] | None = None
        """The cells before the current one; None outside of cells."""
        self._parts: dict[str, list[int]] = {}
        """By name, where each outer `main` and `article` begins and ends in the blocks, in turn."""
        self._part_depth: Counter[str] = Counter()

    def page(self) -> HtmlPage:
        """Return what was written."""
        self._end_code()
        self._end_table()
        self._break()
        for name in _PARTS:
            match self._parts.get(name):
                case [start, *ends] if len(ends) <= 1:  # one of many articles is not the content of the page
                    if text := "".join(self._blocks[start : ends[0] if ends else None]).strip():
                        return HtmlPage(self._title or "", text)
                case _:
                    pass
        return HtmlPage(self._title or "", "".join(self._blocks).strip())

    def take(self, token: _Token) -> None:  # noqa: C901, PLR0912 (a table)
        """Write a token."""
        name, is_end, text = token
        if self._skipped and not self._is_after_skipped(name, is_end=is_end):
            return
        if not name:
            self._add(text)
        elif self._is_code:
            if name == "br":
                self._text.append("\n")
            elif name == "pre" and is_end:
                self._end_code()
        elif name in _MARKS or name == "a":
            self._mark(name, text, is_end=is_end)
        elif name in _LEFT_OUT:
            if not is_end and not (name == "svg" and text.endswith("/")):
                self._skipped, self._skipped_depth = name, 1
        elif name == "title":
            self._is_title = not is_end
        elif name == "br":
            self._text.append("\n")
        elif name in _HEADINGS:
            self._break()
            self._heading = "" if is_end else _HEADINGS[name]
        elif name in _NESTED:
            self._nest(name, is_end=is_end)
        elif name in _TABLE:
            self._table(name, is_end=is_end)
        elif name in _PARTS:
            self._part(name, is_end=is_end)
        elif name == "pre":
            self._break()
            self._is_code = self._row is None and not is_end
        elif name in _BLOCKS:
            self._break()

    def _is_after_skipped(self, name: str, *, is_end: bool) -> bool:
        if name == self._skipped:
            self._skipped_depth += -1 if is_end else 1
            if not self._skipped_depth:
                self._skipped = ""
        elif self._skipped == "svg" and name in _BLOCKS:  # the standard ends a picture there
            self._skipped = ""
            return True
        return False

    # ------------------------------------------------------------ words

    def _add(self, text: str) -> None:
        if self._is_title:
            self._title = " ".join(text.split())[:_LONGEST_TITLE] if self._title is None else self._title
            return
        if self._is_code:
            self._text.append(text)
            return
        text = _SPACE.sub(" ", text)
        if self._waiting and (word := text.lstrip(" ")):
            self._text.append(" " * (len(word) < len(text)) + "".join(mark.before for mark in self._waiting.values()))
            self._marks.update(self._waiting)
            self._waiting.clear()
            text = word
        self._text.append(text)

    def _mark(self, name: str, attributes: str, *, is_end: bool) -> None:
        if is_end:
            if self._waiting.pop(name, None) is None and (mark := self._marks.pop(name, None)) is not None:
                self._end_mark(mark)
        elif name in _MARKS:
            if name not in self._marks:
                self._waiting[name] = _Mark(_MARKS[name], _MARKS[name])
        elif self._with_links and name not in self._marks and (href := _HREF.search(attributes)) is not None:
            address = _characters(href[1] or href[2] or href[3] or "").strip()
            if 0 < len(address) <= _LONGEST_LINK:
                self._waiting[name] = _Mark("[", f"]({address})")

    def _end_mark(self, mark: _Mark) -> None:
        text = self._text.pop()
        words = text.rstrip(" ")
        self._text += (words, mark.after, " " * (len(words) < len(text)))

    def _lines(self) -> list[str]:
        """Take the text of the paragraph or cell as lines."""
        # The marks do not go on in the next paragraph: a long link around many would be repeated in each.
        for mark in reversed(self._marks.values()):
            self._end_mark(mark)
        self._marks.clear()
        lines = "".join(self._text).split("\n")
        self._text = []
        return [words for line in lines if (words := (_SPACE.sub(" ", line) if "  " in line else line).strip(" "))]

    # ------------------------------------------------------------ blocks

    def _break(self) -> None:
        """End the paragraph; in a cell, the line."""
        if self._row is not None:
            self._text.append("\n")
        elif self._text and (lines := self._lines()):
            self._write([self._heading + " ".join(lines)] if self._heading else lines)

    def _write(self, lines: Iterable[str]) -> None:
        if not self._margins:
            self._blocks.append("\n\n" + "\n".join(lines))
            self._is_in_list = False
            return
        margin = "".join(self._margins)
        first = "".join([self._bullets.get(place, text) for place, text in enumerate(self._margins)])
        # An item stands right below what is before it in its list.
        gap = "\n" if self._bullets and self._is_in_list else "\n\n"
        self._blocks.append(gap + first + f"\n{margin}".join(lines))
        self._bullets.clear()
        self._is_in_list = bool(self._numbers)

    def _end_code(self) -> None:
        if not self._is_code:
            return
        self._is_code = False
        code = "".join(self._text).removeprefix("\n").rstrip()
        self._text = []
        if code:
            fence = max(("```", *(run + "`" for run in _BACKTICKS.findall(code))), key=len)
            self._write([fence, *code.split("\n"), fence])

    def _part(self, name: str, *, is_end: bool) -> None:
        self._break()
        places = self._parts.setdefault(name, [])
        if not is_end:
            if not self._part_depth[name]:
                places.append(len(self._blocks))
            self._part_depth[name] += 1
        elif self._part_depth[name]:
            self._part_depth[name] -= 1
            if not self._part_depth[name]:
                places.append(len(self._blocks))

    def _nest(self, name: str, *, is_end: bool) -> None:
        """Begin or end a list, an item or a quote; in a cell it is only a line."""
        self._break()
        if self._row is not None:
            return
        if is_end:
            # An element that is not open is not looked for: each search would go through all open ones.
            while self._count[name] and self._leave() != name:
                pass
            return
        if name == "li" and self._open and self._open[-1][0] == "li":
            self._leave()
        margin = "> " if name == "blockquote" else ""
        if name in _LISTS:
            self._numbers.append(0 if name == "ol" else -1)
        elif name == "li" and (not self._numbers or self._numbers[-1] < 0):
            margin = "- "
        elif name == "li":
            self._numbers[-1] += 1
            margin = f"{self._numbers[-1]}. "
        has_margin = bool(margin) and len(self._margins) < _DEEPEST
        if has_margin and name == "li":
            self._bullets[len(self._margins)] = margin
            margin = " " * len(margin)
        if has_margin:
            self._margins.append(margin)
        self._open.append((name, has_margin))
        self._count[name] += 1

    def _leave(self) -> str:
        """End the innermost list, item or quote, and return its name."""
        name, has_margin = self._open.pop()
        self._count[name] -= 1
        if name in _LISTS:
            self._numbers.pop()
        if has_margin:
            self._margins.pop()
            self._bullets.pop(len(self._margins), None)
        return name

    # ------------------------------------------------------------ tables

    def _table(self, name: str, *, is_end: bool) -> None:
        """Begin or end a table, a row or a cell. A table in a cell stands between the rows of the outer one."""
        if name == "table":
            self._end_table()
            self._break()
            self._tables = max(0, self._tables + (-1 if is_end else 1))
        elif not self._tables:
            self._break()
        elif name == "tr":
            self._end_row()
        elif not is_end:
            if self._row is None:
                self._break()
                self._row = []
            else:
                self._row.append("\n".join(self._lines()))

    def _end_row(self) -> None:
        if self._row is not None:
            self._rows.append([*self._row, "\n".join(self._lines())])
            self._row = None

    def _end_table(self) -> None:
        """Write the rows. A row with one cell is text: pages are often laid out with tables."""
        self._end_row()
        table: list[list[str]] = []
        for row in (*self._rows, []):
            if len(row) > 1:
                table.append(row)
                continue
            if table:
                self._write(table_text(table).split("\n"))
                table = []
            if row and row[0]:
                self._write(row[0].split("\n"))
        self._rows = []
