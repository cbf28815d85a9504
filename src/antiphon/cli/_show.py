"""`antiphon show`: a conversation for people to read."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from antiphon.cli._input import FileArgument, FromOption, read_conversation, read_file
from antiphon.cli._screen import open_console
from antiphon.cli._transcript import Line, transcript

__all__ = ["show"]

_STEP = "  "
"""The margin of one level."""
_FURTHER = 3 * _STEP
"""Where a line goes on: deeper than any label below it, so that it cannot be taken for one."""
_NARROW = 20
"""Columns that text always gets, however deep it stands."""


def show(file: FileArgument, source: FromOption = None) -> None:
    """Show a conversation: who says what, each result under its call."""
    conversation = read_conversation(read_file(file), source)
    console = open_console()
    for line in transcript(conversation):
        _print(console, line)


def _print(console: Console, line: Line) -> None:
    """Print a line of the transcript, wrapped to the terminal; where there is none, as long as it is."""
    first, others = ("│ ", "│ ") if line.quoted else ("", _FURTHER)
    margin = _STEP * line.level
    width = max(console.width - len(margin + others), _NARROW)
    pieces = [
        piece
        for row in line.text.split("\n", allow_blank=True)
        for piece in (row.wrap(console, width) if console.is_terminal else [row])
    ]
    for number, piece in enumerate(pieces):
        shown = Text.assemble(margin, others if number else first, piece)
        shown.rstrip()
        console.print(shown, soft_wrap=True)
