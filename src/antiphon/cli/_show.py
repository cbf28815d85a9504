"""`antiphon show`: a conversation for people to read, from a file or a ledger."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.console import Console
from rich.text import Text

from antiphon.cli._input import FromOption, read_conversation, read_file
from antiphon.cli._ledger import VARIABLE, JsonOption, LedgerOption, known_thread, ledger_in_use, with_ledger
from antiphon.cli._rows import print_json
from antiphon.cli._screen import fail, open_console
from antiphon.cli._transcript import Line, transcript
from antiphon.messages import Conversation, dumps

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

__all__ = ["show"]

_STEP = "  "
"""The margin of one level."""
_FURTHER = 3 * _STEP
"""Where a line goes on: deeper than any label below it, so that it cannot be taken for one."""
_NARROW = 20
"""Columns that text always gets, however deep it stands."""


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FILE-OR-THREAD", help="JSON or JSON Lines; - reads from stdin. With a ledger, the id of a thread."
        ),
    ],
    source: FromOption = None,
    *,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Show a conversation: who says what, each result under its call."""
    conversation = _from_ledger(name, ledger) if _is_thread(name, source, ledger) else _from_file(name, source)
    if for_programs:
        print_json([orjson.Fragment(dumps(message)) for message in conversation])
        return
    console = open_console()
    for line in transcript(conversation):
        _print(console, line)


# ---------------------------------------------------------------- a file or a thread


def _is_thread(name: str, source: str | None, ledger: str | None) -> bool:
    """Whether a thread is meant: because the ledger is named, or it is known and there is no such file."""
    if ledger is not None and source is not None:
        fail("--from is the dialect of a file, and --ledger is where threads are; give one of them", code=2)
    if ledger is not None:
        return True
    return ledger_in_use() is not None and source is None and name != "-" and not Path(name).exists()


def _from_file(name: str, source: str | None) -> Conversation:
    if name != "-" and not Path(name).exists():
        fail(f"{name}: there is no such file; if it is a thread, give --ledger or set {VARIABLE}", code=2)
    return read_conversation(read_file(Path(name)), source)


def _from_ledger(name: str, ledger: str | None) -> Conversation:
    return with_ledger(ledger, partial(_replayed, name=name, may_be_file=ledger is None))


async def _replayed(ledger: Ledger, *, name: str, may_be_file: bool) -> Conversation:
    if may_be_file and await ledger.thread(name) is None:
        fail(f"{name}: there is no such file, and no such thread; `antiphon threads` lists the threads", code=2)
    await known_thread(ledger, name)
    return await ledger.replay(name)


# ---------------------------------------------------------------- on the screen


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
