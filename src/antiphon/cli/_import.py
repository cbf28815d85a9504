"""`antiphon import`: histories from files into the threads of a ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from antiphon.cli._histories import History, histories
from antiphon.cli._input import FromOption
from antiphon.cli._ledger import JsonOption, LedgerOption, with_ledger
from antiphon.cli._progress import bar
from antiphon.cli._rows import print_json
from antiphon.cli._screen import fail, note, open_console, print_table
from antiphon.errors import AppendRefusedError
from antiphon.messages import Message, is_name

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

__all__ = ["import_"]


def import_(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON or JSON Lines; - reads from stdin.")],
    *,
    source: FromOption = None,
    thread: Annotated[
        str | None,
        typer.Option(
            "--thread",
            metavar="NAME",
            help="The thread to append to; default: the thread that the messages name, or the file name.",
        ),
    ] = None,
    each_line: Annotated[bool, typer.Option("--each-line", help="Each line of FILE is a separate conversation.")] = False,
    allow_foreign: Annotated[
        bool, typer.Option("--allow-foreign", help="Accept calls, results and ids that do not match.")
    ] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Append the messages of a file to threads of a ledger. A missing ledger is created. Importing twice changes nothing.

    Imported messages are talk: nothing in them is executed, approved or settled. To restore your own threads, use antiphon
    export --journal and antiphon restore.
    """
    found = histories(file, source, each_line=each_line)
    first = next(found)  # before there is a ledger: a file that cannot be read makes none
    work = partial(_take_in, found=chain([first], found), size=_size(file), thread=thread, allow_foreign=allow_foreign)
    taken = with_ledger(ledger, work, create=True)
    if for_programs:
        print_json([each._asdict() for each in taken])
    elif taken:
        print_table(open_console(), ("thread", "messages", "new"), [tuple(map(str, each)) for each in taken])
    else:
        note("no messages")


class Taken(NamedTuple):
    """What became of a thread."""

    thread_id: str
    messages: int
    """In the file."""
    new: int
    """Those that were not there before."""


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


async def _take_in(
    ledger: Ledger, *, found: Iterator[History], size: int, thread: str | None, allow_foreign: bool
) -> list[Taken]:
    taken: list[Taken] = []
    with bar("importing") as progress:
        for history in found:
            if thread is not None and taken and history.conversation:
                fail(f"{history.place}: --thread names one thread, and here another conversation begins")
            _tell_what_stays_out(history)
            for name, messages in _by_thread(history, thread).items():
                taken.append(await _append(ledger, history, name, messages, allow_foreign))
            _tell(progress, history.end, size)
    return taken


def _tell(progress: Callable[[int, int], None], done: int, size: int) -> None:
    progress(done, max(done, size))


def _tell_what_stays_out(history: History) -> None:
    tools, metadata = history.conversation.tools, history.conversation.metadata
    what = [f"the tools ({len(tools)})"] * bool(tools)
    for name, said in metadata.items():
        rest = cast("Mapping[str, object]", said.get("rest", {}))  # where providers' dialects keep the other keys of a request
        what += [str(key) for key in rest] if rest else [f"metadata of {name}"] * bool(said.keys() - {"shape"})
    if what:
        note(f"{history.place}: a ledger keeps messages; left out: {', '.join(what)}")


def _by_thread(history: History, thread: str | None) -> dict[str, list[Message]]:
    """Return the messages under the threads that they belong to, or all under one."""
    found: dict[str, list[Message]] = {}
    for message in history.conversation:
        name = thread or message.thread_id or history.name
        if not is_name(name):
            fail(f"{history.place}: no thread is named in it; name one with --thread", code=2)
        own = message if message.thread_id in (None, name) else message.model_copy(update={"thread_id": name})
        found.setdefault(name, []).append(own)
    return found


def _tell_what_was_made(history: History, made: list[Message]) -> None:
    """Say what stands in the thread that is not in the file."""
    from antiphon.ledger import is_foreign, is_not_executed  # noqa: PLC0415 (only where a ledger is used)

    if rows := sum(map(is_foreign, made)):
        note(f"{history.place}: what comes from a file is talk; rows of other lanes are kept as foreign history: {rows}")
    if closed := sum(map(is_not_executed, made)):
        note(f"{history.place}: calls that were open, and got an error result: {closed}")


async def _append(ledger: Ledger, history: History, name: str, messages: list[Message], allow_foreign: bool) -> Taken:
    """Append all messages of a thread as one: they are there as a whole or not at all."""
    before = await ledger.head(name)
    try:
        records = await ledger.append(name, messages, allow_foreign=allow_foreign, outside=True)
    except AppendRefusedError as exc:
        hint = "`antiphon repair` mends what it can, --allow-foreign takes it as it is"
        fail(f"{history.place}: message {exc.message_id!r}: {exc.reason} ({exc.code}); {hint}")
    after = await ledger.head(name)
    given = {message.id for message in messages}
    new = [record.message for record in records if record.seq > before.seq]
    _tell_what_was_made(history, [message for message in new if message.id not in given])
    return Taken(name, len(messages), after.seq - before.seq)
