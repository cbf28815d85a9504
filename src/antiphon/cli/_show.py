"""`antiphon show`: a conversation for people to read, from a file or a ledger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.text import Text

from antiphon.cli._input import FromOption
from antiphon.cli._ledger import JsonOption, LedgerOption
from antiphon.cli._named import find_conversation
from antiphon.cli._rows import print_json
from antiphon.cli._screen import note, open_console
from antiphon.cli._transcript import Line, steps_in, transcript, transcript_by_step
from antiphon.ledger import is_foreign
from antiphon.messages import Conversation, Message, dumps

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
            metavar="FILE-OR-THREAD",
            help="JSON or JSON Lines; - reads from stdin. If there is no such file, the id of a thread.",
        ),
    ],
    source: FromOption = None,
    *,
    with_all: Annotated[bool, typer.Option("--all", help="Include the messages between actors and the journal.")] = False,
    by_step: Annotated[bool, typer.Option("--by-step", help="Group messages, calls and results by step.")] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Print a conversation: who says what, each result under its call."""
    conversation = find_conversation(name, source, ledger)
    if for_programs:
        print_json(_steps(conversation) if by_step else _rows(conversation))
        return
    shown = conversation if with_all else _spoken(conversation)
    console = open_console()
    for line in transcript_by_step(shown) if by_step else transcript(shown):
        _print(console, line)
    if len(shown) < len(conversation):
        rest = len(conversation) - len(shown)
        note(f"messages of the protocol and the journal that are not shown: {rest}; --all shows them", style="dim")


def _rows(messages: Iterable[Message]) -> list[orjson.Fragment]:
    return [orjson.Fragment(dumps(message)) for message in messages]


def _steps(conversation: Conversation) -> list[dict[str, Any]]:
    steps = steps_in(conversation)
    return [{"step": step, "messages": _rows(conversation[place] for place in places)} for step, places in steps]


def _spoken(conversation: Conversation) -> Conversation:
    """Return what agents and people say and do, without foreign history; where they are silent, everything."""
    spoken = [message for message in conversation if message.lane == "talk" and not is_foreign(message)]
    return Conversation(spoken, tools=conversation.tools, metadata=conversation.metadata) if spoken else conversation


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
