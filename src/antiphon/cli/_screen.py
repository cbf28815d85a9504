"""The terminal: notes, errors, tables and progress. Text is never interpreted; invisible characters become numbers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, NoReturn

import typer
from rich.box import HEAVY_HEAD, SIMPLE_HEAD, Box
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from antiphon.service import LinePiece, Tone, visible, visible_lines

_NARROW = 20
"""Columns that text has at least."""
_WORD = 40
"""Columns beyond which a word may be broken: an id is shorter, a URL is not."""
_SHOWN = r"⟨U\+[0-9A-F]{4,6}⟩"
_STYLES: Final[dict[Tone, str]] = {
    "plain": "",
    "speaker": "bold cyan",
    "aside": "dim",
    "odd": "yellow",
    "bad": "bold red",
    "heading": "bold",
    "media": "magenta",
    "reasoning": "dim italic",
}


def open_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is: no markup, no :emoji:, no highlighting."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def styled(text: str, style: str = "") -> Text:
    """Return lines of text that are safe to print; the numbers of invisible characters are highlighted."""
    shown = Text(visible_lines(text), style=style)
    shown.highlight_regex(_SHOWN, "black on yellow")
    return shown


def rendered(pieces: Sequence[LinePiece]) -> Text:
    """Return pieces of a transcript in their styles."""
    return Text.assemble(*(styled(piece.text, _STYLES[piece.tone]) for piece in pieces))


def note(message: str, style: str = "") -> None:
    """Print one line about the work, not its result, to stderr; above the progress, if some is shown."""
    console = _in_use[-1] if _in_use else open_console(stderr=True)
    console.print(Text(visible(message), style=style), soft_wrap=True)


def fail(message: str, code: int = 1) -> NoReturn:
    """Print an error, and exit: 1 if the data is wrong, 2 if the command was used wrongly."""
    note(message, style="red")
    raise typer.Exit(code)


def print_table(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; without a terminal, aligned lines that are never wrapped or cut.

    In a terminal that is too narrow for it, each row is a block of lines, a line per column.
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
    """Print names and values, a line each; empty values are left out."""
    known = [(visible(name), visible(value)) for name, value in pairs if value]
    margin = max(cell_len(name) for name, _ in known) + 2
    for name, value in known:
        text = Text(value)
        lines = text.wrap(console, max(console.width - margin, _NARROW)) if console.is_terminal else [text]
        for number, line in enumerate(lines):
            label = "" if number else name
            console.print(Text.assemble((label.ljust(margin), "bold"), line), soft_wrap=True)


def _box(width: int, rows: Sequence[Sequence[str]]) -> Box | None:
    """Return the richest box in which no word is broken, very long ones aside; None if there is none."""
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
    table.columns[0].no_wrap = max(names, default=0) <= console.width // 2  # so that it can be copied in one piece
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_plain(console: Console, rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        console.print(Text("  ".join(padded).rstrip()), soft_wrap=True)


# ---------------------------------------------------------------- progress

_in_use: list[Console] = []
"""The consoles that show progress now: a line from another console would end up in the middle of it."""


@contextmanager
def _shown_on(console: Console, progress: Progress) -> Generator[None]:
    with progress:
        _in_use.append(console)
        try:
            yield
        finally:
            _in_use.remove(console)


@contextmanager
def bar(what: str, *, is_beside_output: bool = False) -> Generator[Callable[[int, int], None]]:
    """Show a progress bar on stderr, if that is a terminal. The block gets a function: how much is done, of how much.

    `is_beside_output`: the result goes to stdout meanwhile, so there is no bar if that is the same terminal.
    """
    console = open_console(stderr=True)
    is_hidden = not console.is_terminal or (is_beside_output and sys.stdout.isatty())
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=console, disable=is_hidden, transient=True)
    with _shown_on(console, progress):
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def wheel(what: str) -> Generator[None]:
    """Show a spinner on stderr, if that is a terminal, for work of unknown length."""
    console = open_console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    with _shown_on(console, progress):
        progress.add_task(what, total=None)
        yield
