"""`antiphon show`: a conversation for people to read, from a file or a ledger."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.text import Text

from antiphon import service
from antiphon.cli._input import FromOption, find_conversation, is_file
from antiphon.cli._knowledge import is_passage, show_source
from antiphon.cli._ledger import JsonOption, LedgerOption, offered_threads, with_ledger
from antiphon.cli._live import print_sources
from antiphon.cli._output import print_json, print_json_line, shown_time
from antiphon.cli._screen import fail, note, open_console, rendered, styled
from antiphon.ledger import is_foreign
from antiphon.messages import Conversation, Message, dumps

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

_STEP = "  "
"""The margin of one level."""
_FURTHER = 3 * _STEP
"""The margin of a wrapped line: deeper than any label below it, so that it cannot be taken for one."""
_NARROW = 20
"""Columns that text has at least, however deep it is indented."""


def _offered(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the threads and files for the shell to offer."""
    begun = Path(incomplete)
    folder, start = (begun, "") if incomplete.endswith("/") else (begun.parent, begun.name)
    try:
        paths = sorted(path for path in folder.iterdir() if path.name.startswith(start))
    except OSError:
        paths = []
    files = [(f"{path}/" if path.is_dir() else str(path), "") for path in paths if start or not path.name.startswith(".")]
    return [*offered_threads(context, incomplete), *files]


def show(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FILE-OR-THREAD",
            autocompletion=_offered,
            help="JSON or JSON Lines; - reads from stdin. If there is no such file, the id of a thread.",
        ),
    ],
    source: FromOption = None,
    *,
    with_all: Annotated[bool, typer.Option("--all", help="Include the messages between actors and the journal.")] = False,
    by_step: Annotated[bool, typer.Option("--by-step", help="Group messages, calls and results by step.")] = False,
    as_sequence: Annotated[
        bool, typer.Option("--sequence", help="A line per message of a thread: sender, receivers and time, nested by call.")
    ] = False,
    as_timeline: Annotated[
        bool, typer.Option("--timeline", help="A line per call of a thread: when it started, and how long it took.")
    ] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Print a conversation in readable form, each result under its call; or the source around a cited passage."""
    if as_sequence or as_timeline:
        _check_alone(as_sequence, as_timeline, by_step, source)
        show_all = partial(_show_steps if as_sequence else _show_spans, thread=name, for_programs=for_programs)
        with_ledger(ledger, show_all)
        return
    if is_passage(name) and source is None and not is_file(name):
        show_source(name, ledger, for_programs=for_programs)
        return
    conversation = find_conversation(name, source, ledger)
    if for_programs:
        print_json(_steps(conversation) if by_step else _rows(conversation))
        return
    shown = conversation if with_all else _spoken(conversation)
    console = open_console()
    for line in service.transcript_by_step(shown) if by_step else service.transcript(shown):
        _print(console, line)
    if cited := () if with_all else service.cited_sources(conversation):
        print_sources(console, cited)
    if len(shown) < len(conversation):
        rest = len(conversation) - len(shown)
        note(f"messages of the protocol and the journal that are not shown: {rest}; --all shows them", style="aside")
    if source is None and name != "-" and not is_file(name):
        report = with_ledger(ledger, partial(_status_of, name=name))
        if (why := report.waits_for if report.status == "stopped" else report.error) is not None:
            note(f"{report.status}: {why}", style="warning")


async def _status_of(ledger: Ledger, *, name: str) -> service.StatusValue:
    return await service.thread_status(ledger, thread_id=await service.resolve_thread(ledger, name))


def _rows(messages: Iterable[Message]) -> list[orjson.Fragment]:
    return [orjson.Fragment(dumps(message)) for message in messages]


def _steps(conversation: Conversation) -> list[dict[str, Any]]:
    steps = service.steps_in(conversation)
    return [{"step": step, "messages": _rows(conversation[place] for place in places)} for step, places in steps]


def _spoken(conversation: Conversation) -> Conversation:
    """Return what agents and people say and do, without foreign history; if that is nothing, return all messages."""
    native = [message for message in conversation if not is_foreign(message)]
    talk = [message for message in native if message.lane == "talk" or service.is_approval(message)]
    spoken = service.phase_talk(native) if service.has_phases(conversation) else talk
    return Conversation(spoken, tools=conversation.tools, metadata=conversation.metadata) if spoken else conversation


# ---------------------------------------------------------------- on the screen


def _print(console: Console, line: service.TranscriptLine) -> None:
    """Print a line of the transcript, wrapped to the terminal; without a terminal, as long as it is."""
    first, rest = ("│ ", "│ ") if line.quoted else ("", _FURTHER)
    margin = _STEP * line.level
    width = max(console.width - len(margin + rest), _NARROW)
    pieces = [
        piece
        for row in rendered(line.pieces).split("\n", allow_blank=True)
        for piece in (row.wrap(console, width) if console.is_terminal else [row])
    ]
    for number, piece in enumerate(pieces):
        shown = Text.assemble(margin, rest if number else first, piece)
        shown.rstrip()
        console.print(shown, soft_wrap=True)


# ---------------------------------------------------------------- sequence and timeline


def _check_alone(as_sequence: bool, as_timeline: bool, by_step: bool, source: str | None) -> None:
    if as_sequence and as_timeline:
        fail("--sequence and --timeline are two views; give one of them", code=2)
    if by_step or source is not None:
        fail("--sequence and --timeline are views of a thread: leave out --by-step and --from", code=2)


async def _show_steps(ledger: Ledger, *, thread: str, for_programs: bool) -> None:
    async for step in service.every_step(ledger, await service.resolve_thread(ledger, thread)):
        if for_programs:
            print_json_line(step)
            continue
        to = f" → {', '.join(step.receivers)}" if step.receivers else ""
        marks = "".join(f"  [{mark}]" for mark in (_state(step), service.mark_words(step)) if mark)
        head = f"{step.seq}  {shown_time(step.at)}  {_STEP * step.depth}"
        _put(Text.assemble((head, "aside"), styled(f"{step.sender}{to}", "name"), "  ", styled(step.text)), marks)


def _state(step: service.SequenceStep) -> str:
    if step.kind == "called":
        return "open" if step.pair is None else ""
    return "" if step.seconds is None else f"{step.seconds:.3f} s"


async def _show_spans(ledger: Ledger, *, thread: str, for_programs: bool) -> None:
    async for span in service.every_span(ledger, await service.resolve_thread(ledger, thread)):
        if for_programs:
            print_json_line(span)
            continue
        took = "" if span.outcome == "said" else "open" if span.seconds is None else f"{span.seconds:.3f} s"
        failed = "failed" if span.outcome == "failed" else ""
        marks = "".join(f"  [{mark}]" for mark in (took, failed, service.mark_words(span)) if mark)
        began = f"{shown_time(span.began_at)}.{span.began_at.microsecond // 1000:03}"
        head = f"{span.seq}  {began}  {_STEP * span.depth}"
        _put(Text.assemble((head, "aside"), styled(span.worker, "name"), "  ", styled(span.text)), marks)


def _put(line: Text, marks: str) -> None:
    """Print a line and its marks; in a terminal that is too narrow, the line is cut before them."""
    console, behind = open_console(), styled(marks, "warning")
    if console.is_terminal:
        line.truncate(console.width - behind.cell_len, overflow="ellipsis")
    console.print(line + behind, soft_wrap=True)
