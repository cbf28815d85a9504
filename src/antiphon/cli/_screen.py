"""The terminal: one theme, notes, errors, tables, answers and progress.

Text is never interpreted, an answer's Markdown apart: that is drawn, but HTML in it is text, and a link shows where it leads.
Invisible characters become numbers. Words are not broken, but for those that are longer than the line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import dropwhile
from typing import TYPE_CHECKING, Final, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from antiphon.service import LinePiece, Tone, visible, visible_lines

if TYPE_CHECKING:
    from markdown_it.token import Token
    from rich.markdown import Markdown

_LEAST = 12
"""Columns that text has at least, also in a narrower terminal."""
_BESIDE = 20
"""Columns that a value has at least beside its name; with fewer, it stands below."""
_WORD = 40
"""Columns beyond which a word may be broken: an id is shorter, a URL is not."""
_SHOWN = r"⟨U\+[0-9A-F]{4,6}⟩"
_WIDE: Final = 100
"""Columns of an answer in a wider terminal: longer lines are hard to read."""
_TONES: Final[dict[Tone, str]] = {
    "plain": "",
    "speaker": "name",
    "aside": "aside",
    "odd": "warning",
    "bad": "bad",
    "heading": "heading",
    "media": "media",
    "reasoning": "words",
}
THEME: Final = Theme(
    {
        "name": "bold cyan",
        "tool": "blue",
        "words": "dim italic",
        "aside": "dim",
        "heading": "bold",
        "good": "green",
        "warning": "yellow",
        "bad": "bold red",
        "media": "magenta",
        "hidden": "black on yellow",
        "markdown.h1": "bold",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.code": "cyan",
        "markdown.block_quote": "italic",
        "markdown.item.bullet": "cyan",
        "markdown.item.number": "cyan",
        "markdown.link": "cyan",
        "markdown.link_url": "cyan underline",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)


def open_console(*, stderr: bool = False) -> Console:
    """Return a console that prints text as it is: no markup, no :emoji:, no highlighting."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False, theme=THEME)


def styled(text: str, style: str = "") -> Text:
    """Return lines of text that are safe to print; the numbers of invisible characters are highlighted."""
    shown = Text(visible_lines(text), style=style)
    shown.highlight_regex(_SHOWN, "hidden")
    return shown


def rendered(pieces: Sequence[LinePiece]) -> Text:
    """Return pieces of a transcript in their styles."""
    return Text.assemble(*(styled(piece.text, _TONES[piece.tone]) for piece in pieces))


def cut(text: Text, width: int) -> Text:
    """Return text that fits on a line: a longer one ends after a word, with an ellipsis."""
    if text.cell_len <= width:
        return text
    short = text.copy()
    short.truncate(max(width - 2, 0))
    start = short.plain.rstrip().rfind(" ")
    if start > width // 2 and text.plain[len(short.plain) : len(short.plain) + 1] not in ("", " "):
        short.right_crop(len(short.plain) - start)
    short.rstrip()
    short.append(" …" if short.plain else "…")
    return short


def note(message: str, style: str = "", *, command: str | None = None, has_lines: bool = False) -> None:
    """Print one line about the work, not its result, to stderr. A terminal that is too narrow gets several, between words.

    `command` is one to copy: it stands at the end of the line, or unbroken on the next one. `has_lines`: the message has lines
    of its own, such as a difference; otherwise a break in it, perhaps in a name, is shown by its number.
    """
    if has_lines:
        *first, message = message.split("\n")
        for part in first:
            note(part, style)
    console, text = note_console(), Text(visible(message), style=style)
    copied = "" if command is None else visible(command)
    if not console.is_terminal or not message or text.cell_len + cell_len(copied) < console.width:
        console.print(Text.assemble(text, " " if copied and message else "", copied), soft_wrap=True)
        return
    for line in _wrapped(console, text, console.width):
        line.rstrip()
        console.print(line, soft_wrap=True)
    if copied:
        console.print(Text(f"  {copied}"), soft_wrap=True)


def note_console() -> Console:
    """Return the console for what goes to stderr: above the progress, if some is shown."""
    return _in_use[-1] if _in_use else open_console(stderr=True)


def fail(message: str, code: int = 1, *, has_lines: bool = False) -> NoReturn:
    """Print an error, and exit: 1 if the data is wrong, 2 if the command was used wrongly."""
    note(message, style="bad", has_lines=has_lines)
    raise typer.Exit(code)


def check_unused(options: Mapping[str, object], why: str) -> None:
    """Refuse options that have no effect here; `why` says with what they have one."""
    for name, value in options.items():
        if value:
            fail(f"{name} {why}", code=2)


def ask_yes(question: str, otherwise: str, hint: str) -> None:
    """Go on only after a yes; else print that nothing is done (`otherwise`), and exit. The question goes to stderr.

    `hint` is for a caller without a terminal, who cannot answer.
    """
    try:
        typer.echo(f"{question} [y/N] ", nl=False, err=True)
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        typer.echo(err=True)
        fail(otherwise, code=130)
    if not answer:
        typer.echo(err=True)
        fail(f"{otherwise}: there was no answer; {hint}")
    if answer.strip().lower() not in ("y", "yes"):
        fail(otherwise)


def print_table(console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; without a terminal, aligned lines that are never wrapped or cut.

    In a terminal that is too narrow for it, each row is a block of lines, a line per column.
    """
    cells = [[visible(cell) for cell in row] for row in rows]
    if not console.is_terminal:
        _print_plain(console, [list(headings), *cells])
    elif _fits(console.width, [list(headings), *cells]):
        _print_columns(console, headings, cells)
    else:
        for number, row in enumerate(cells):
            if number:
                console.print()
            print_pairs(console, list(zip(headings, row, strict=True)))


def print_pairs(console: Console, pairs: Sequence[tuple[str, str]]) -> None:
    """Print names and values, each from a line of its own on; empty values are left out.

    Further lines of a value stand below its first one, so that none of them can be taken for a name. In a terminal with too
    little room beside the names, a value begins below its name.
    """
    shown = [(visible(name), visible(value, keep="\n")) for name, value in pairs if value]
    margin = max(cell_len(name) for name, _ in shown) + 2
    if console.is_terminal and console.width - margin < _BESIDE:
        for name, value in shown:
            console.print(Text(name, style="heading"), soft_wrap=True)
            for part in value.split("\n"):
                print_indented(console, Text(part), "  ")
        return
    for name, value in shown:
        lines = [line for row in value.split("\n") for line in _wrapped(console, Text(row), console.width - margin)]
        for number, line in enumerate(lines):
            label = "" if number else name
            console.print(Text.assemble((label.ljust(margin), "heading"), line), soft_wrap=True)


def _fits(width: int, rows: Sequence[Sequence[str]]) -> bool:
    """Whether a terminal is so wide that columns break no word, very long ones aside."""
    return sum(longest + 2 for longest in _longest_words(rows)) <= width + 2


def _longest_words(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the length of the longest word of each column; a very long one may be broken."""
    columns = zip(*rows, strict=True)
    return [max((min(cell_len(word), _WORD) for cell in column for word in cell.split()), default=0) for column in columns]


def _print_columns(console: Console, headings: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    table = Table(
        box=SIMPLE_HEAD, header_style="heading", border_style="aside", show_edge=False, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for heading, width in zip(headings, _column_widths(console.width, [headings, *cells]), strict=True):
        table.add_column(
            heading, overflow="fold", width=width
        )  # Rich's own widths break words, or cut what is beyond the edge
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def _column_widths(room: int, rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the widths of columns that fit: none is narrower than its longest word, and the rest of the room is shared."""
    widest, widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)], _longest_words(rows)
    room_left = room - sum(widths) - 2 * (len(widths) - 1)
    if widest[0] <= room // 2 and widest[0] - widths[0] <= room_left:  # so that a name can be copied in one piece
        room_left, widths[0] = room_left - widest[0] + widths[0], widest[0]
    wanting = sorted(range(len(widths)), key=lambda place: widest[place] - widths[place])
    for number, place in enumerate(wanting):
        extra = min(widest[place] - widths[place], room_left // (len(wanting) - number))
        room_left, widths[place] = room_left - extra, widths[place] + extra
    return widths


def _print_plain(console: Console, rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        padded = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        console.print(Text("  ".join(padded).rstrip()), soft_wrap=True)


# ---------------------------------------------------------------- answers


def print_markdown(console: Console, text: str) -> None:
    """Print an answer: as Markdown in a terminal, else as it is."""
    if console.is_terminal:
        options = console.options.update(width=min(console.width, _WIDE))
        lines = console.render_lines(_drawn(text), options, pad=False)
        shown = dropwhile(lambda line: not any(piece.text.strip() for piece in line), lines)  # a list begins with an empty one
        for line in shown:
            console.print(Text.assemble(*((piece.text.rstrip("\n"), piece.style or "") for piece in line)), soft_wrap=True)
    else:
        console.print(Text(text), soft_wrap=True)


def _drawn(text: str) -> Markdown:
    """Return Markdown to print. HTML in it is text, and a link shows where it leads."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 (and Rich's own need a tenth of a second, only where they are used)
    from rich.markdown import Markdown  # noqa: PLC0415

    answer = Markdown("", code_theme="ansi_dark", hyperlinks=False)
    parser = MarkdownIt("commonmark", {"html": False, "breaks": True})  # a line of the answer is a line on the screen
    answer.parsed = parser.enable(["table", "strikethrough"]).parse(text)
    _reveal(answer.parsed)
    return answer


def _reveal(tokens: Sequence[Token]) -> None:
    """Make invisible characters visible: after the parser, which turns `&#x202E;` into the character."""
    for token in tokens:
        token.content = visible_lines(token.content)
        token.attrs = {name: visible(value) if isinstance(value, str) else value for name, value in token.attrs.items()}
        if token.tag == "h1":  # which Rich would write in the middle of the line
            token.tag = "h2"
        _reveal(token.children or ())


def print_numbered(console: Console, heading: str, items: Sequence[tuple[str, str]]) -> None:
    """Print numbered items below a heading: of each, a name and words."""
    console.print(Text(heading, style="heading"))
    margin = len(f"[{len(items)}] ")
    for number, (name, words) in enumerate(items, 1):
        text = Text.assemble(styled(name, "name"), styled(f": {' '.join(words.split())}" if words else ""))
        for place, line in enumerate(_wrapped(console, text, min(console.width, _WIDE) - margin)):
            label = "" if place else f"[{number}]"
            line.rstrip()
            console.print(Text.assemble((label.ljust(margin), "aside"), line), soft_wrap=True)


def print_indented(console: Console, text: Text, margin: str) -> None:
    """Print a text behind a margin, wrapped between words; without a terminal, in one line."""
    for line in _wrapped(console, text, console.width - len(margin)):
        line.rstrip()
        console.print(Text.assemble(margin, line), soft_wrap=True)


def _wrapped(console: Console, text: Text, width: int) -> Sequence[Text]:
    """Return the lines of a text in a terminal; without one, it is one line."""
    return list(text.wrap(console, max(width, _LEAST))) if console.is_terminal else [text]


# ---------------------------------------------------------------- progress

_in_use: list[Console] = []
"""The consoles that show progress now: a line from another console would end up in the middle of it."""


@contextmanager
def shown_on(console: Console, progress: Progress | Live) -> Generator[None]:
    """Show progress in a block. Lines that are noted meanwhile come above it."""
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
    with shown_on(console, progress):
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def wheel(what: str) -> Generator[None]:
    """Show a spinner on stderr, if that is a terminal, for work of unknown length."""
    console = open_console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    progress = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    with shown_on(console, progress):
        progress.add_task(what, total=None)
        yield
