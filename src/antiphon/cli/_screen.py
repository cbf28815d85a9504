"""How anything gets onto a terminal: nothing in it is interpreted, and what cannot be seen is shown by its number."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import NoReturn

import typer
from rich.box import HEAVY_HEAD, SIMPLE_HEAD, Box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from antiphon.messages._names import HIDDEN

__all__ = ["escaped", "fail", "note", "open_console", "print_pairs", "print_table", "styled", "visible"]

_NARROW = 20
"""Columns that text always gets."""
_WORD = 40
"""Columns beyond which a word may be broken: an id is shorter, a URL is not."""
_SHOWN = r"⟨U\+[0-9A-F]{4,6}⟩"


def open_console(*, stderr: bool = False) -> Console:
    """Return a console that takes text for text: no markup, no :emoji:, no guesses about colour."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def visible(text: str, keep: str = "") -> str:
    """Return text with every control and invisible character as `⟨U+202E⟩`, but for those to keep.

    A space of whatever width is seen as one, and stays.
    """
    return HIDDEN.sub(lambda found: found[0] if _is_seen(found[0], keep) else f"⟨U+{ord(found[0]):04X}⟩", text)


def escaped(text: str) -> str:
    """Return JSON text that says the same, with every control and invisible character in it as an escape of JSON."""
    return HIDDEN.sub(lambda found: found[0] if _is_seen(found[0], "\n") else _escape(found[0]), text)


def _is_seen(character: str, keep: str) -> bool:
    return character in keep or unicodedata.category(character) == "Zs"


def _escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def styled(text: str, style: str = "") -> Text:
    """Return lines of text that are safe to print, with what was made visible set apart."""
    shown = Text(visible(text.replace("\r\n", "\n"), keep="\n\t"), style=style)
    shown.highlight_regex(_SHOWN, "black on yellow")
    return shown


def note(message: str, style: str = "") -> None:
    """Say one line about the work, not the result: on stderr."""
    open_console(stderr=True).print(Text(visible(message), style=style), soft_wrap=True)


def fail(message: str, code: int = 1) -> NoReturn:
    """Say why not, and stop: 1 for what was given, 2 for how the command was used."""
    note(message, style="red")
    raise typer.Exit(code)


def print_table(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; where there is no terminal, aligned lines that are never wrapped or cut.

    In a terminal that is too narrow for it, each row is a block of lines, a column a line.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    if not console.is_terminal:
        _print_plain(console, [list(headings), *cells])
    elif (box := _box(console.width, [list(headings), *cells])) is not None:
        _print_boxed(console, headings, cells, box)
    else:
        for number, row in enumerate(cells):
            if number:
                console.print()
            print_pairs(console, list(zip(headings, row, strict=True)))


def print_pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """Print what is known of one thing, a line each; what is not known is left out."""
    known = [(visible(name), visible(value)) for name, value in pairs if value]
    margin = max(cell_len(name) for name, _ in known) + 2
    for name, value in known:
        text = Text(value)
        lines = text.wrap(console, max(console.width - margin, _NARROW)) if console.is_terminal else [text]
        for number, line in enumerate(lines):
            label = "" if number else name
            console.print(Text.assemble((label.ljust(margin), "bold"), line), soft_wrap=True)


def _box(width: int, rows: Sequence[Sequence[str]]) -> Box | None:
    """Return the richest box in which no word must be broken; None if there is none. A very long word may be."""
    words = [[min(cell_len(word), _WORD) for cell in column for word in cell.split()] for column in zip(*rows, strict=True)]
    least = [max(lengths, default=0) for lengths in words]
    for box, beside, around in ((HEAVY_HEAD, 3, 1), (SIMPLE_HEAD, 2, 2)):
        if sum(least) + beside * len(least) + around <= width:
            return box
    return None


def _print_boxed(console: Console, headings: Sequence[str], cells: Sequence[Sequence[str]], box: Box) -> None:
    table = Table(box=box)
    for heading in headings:
        table.add_column(heading, overflow="fold")
    names = [cell_len(row[0]) for row in cells]
    table.columns[0].no_wrap = max(names, default=0) <= console.width // 2  # to be copied from there in one piece
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_plain(console: Console, rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        console.print(Text("  ".join(padded).rstrip()), soft_wrap=True)
