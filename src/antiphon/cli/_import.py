"""`antiphon import`: the conversations of a file, appended to threads of a ledger.

A file in the house format is read line by line, so that an export of any size can be imported; a line that begins a
conversation ends the one before. Any other file is one JSON value, or lines of them, and is read as `antiphon convert` does.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, cast

import typer

from antiphon.cli._input import FileContent, FromOption, dialect_of, fail_to_read, parse_file, read_conversation, refusals
from antiphon.cli._journal import restore
from antiphon.cli._ledger import JsonOption, LedgerOption, with_ledger
from antiphon.cli._output import print_json
from antiphon.cli._screen import bar, check_unused, fail, note, open_console, print_table
from antiphon.dialects import decode
from antiphon.errors import AppendRefusedError, DecodeError
from antiphon.messages import Conversation, Message, loads
from antiphon.messages._names import is_name

if TYPE_CHECKING:
    from antiphon.ledger import Ledger


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
    journal: Annotated[
        bool, typer.Option("--journal", help="Restore the threads of a journal (antiphon export --journal) as they were.")
    ] = False,
    heads: Annotated[
        Path | None,
        typer.Option("--heads", metavar="FILE", help="With --journal: heads that were stored elsewhere, to prove the rows."),
    ] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Append the messages of a file to threads of a ledger. A missing ledger is created. Importing twice changes nothing.

    Nothing in an imported file is executed, approved or settled. With --journal, your own threads are restored with their
    times, hashes and open calls: all of them or none.
    """
    if journal:
        of_files = {"--from": source, "--thread": thread, "--each-line": each_line, "--allow-foreign": allow_foreign}
        check_unused(of_files, "does not go with --journal: a journal has rows as they are stored")
        restore(file, heads, ledger, for_programs=for_programs)
        return
    check_unused({"--heads": heads}, "goes with --journal")
    conversations = histories(file, source, each_line=each_line)
    first = next(conversations)  # before the ledger is created: a file that cannot be read creates none
    work = partial(
        _take_in,
        conversations=chain([first], conversations),
        size=file.stat().st_size if os.path.isfile(file) else 0,
        thread=thread,
        allow_foreign=allow_foreign,
    )
    taken = with_ledger(ledger, work, create=True)
    if for_programs:
        print_json([imported._asdict() for imported in taken])
    elif taken:
        rows = [(imported.thread_id, str(imported.messages), str(imported.new)) for imported in taken]
        print_table(open_console(), ("thread", "messages", "new"), rows)
    else:
        note("no messages")


class Taken(NamedTuple):
    """What was imported into a thread."""

    thread_id: str
    messages: int
    """In the file."""
    new: int
    """Those that the thread did not have before."""
    closed: int
    """Open calls of the file that got an error result, which is not in the file."""


async def _take_in(
    ledger: Ledger, *, conversations: Iterator[History], size: int, thread: str | None, allow_foreign: bool
) -> list[Taken]:
    taken: list[Taken] = []
    with bar("importing") as progress:
        for history in conversations:
            if thread is not None and taken and history.conversation:
                fail(f"{history.place}: --thread names one thread, and here another conversation begins")
            _tell_what_stays_out(history)
            for name, messages in _by_thread(history, thread).items():
                taken.append(await _append(ledger, history, name, messages, allow_foreign))
            progress(history.end, max(history.end, size))
    return taken


def _tell_what_stays_out(history: History) -> None:
    tools, metadata = history.conversation.tools, history.conversation.metadata
    what = [f"the tools ({len(tools)})"] * bool(tools)
    for name, fields in metadata.items():
        rest = cast(
            "Mapping[str, object]", fields.get("rest", {})
        )  # where providers' dialects keep the other keys of a request
        what += [str(key) for key in rest] if rest else [f"metadata of {name}"] * bool(fields.keys() - {"shape"})
    if what:
        note(f"{history.place}: a ledger keeps messages; left out: {', '.join(what)}")


def _by_thread(history: History, thread: str | None) -> dict[str, list[Message]]:
    """Return the messages by the thread that they belong to, or all under one."""
    messages: dict[str, list[Message]] = {}
    for message in history.conversation:
        name = thread or message.thread_id or history.name
        if not is_name(name):
            fail(f"{history.place}: no thread is named in it; name one with --thread", code=2)
        placed = message if message.thread_id in (None, name) else message.model_copy(update={"thread_id": name})
        messages.setdefault(name, []).append(placed)
    return messages


def _tell_what_was_made(history: History, additions: list[Message]) -> int:
    """Print how messages of the thread differ from those of the file. Return how many open calls got an error result."""
    from antiphon.ledger import is_foreign, is_not_executed  # noqa: PLC0415 (only where a ledger is used)

    if rows := sum(map(is_foreign, additions)):
        note(f"{history.place}: messages of a file are talk; rows of other lanes are kept as foreign history: {rows}")
    closed = sum(map(is_not_executed, additions))
    if closed == 1:
        note(f"{history.place}: 1 call has no result in the file; an error result (not_executed) was added for it")
    elif closed:
        note(f"{history.place}: {closed} calls have no result in the file; an error result (not_executed) was added for each")
    return closed


async def _append(ledger: Ledger, history: History, name: str, messages: list[Message], allow_foreign: bool) -> Taken:
    """Append all messages of a thread in one append: all of them or none."""
    before = await ledger.head(name)
    try:
        records = await ledger.append(name, messages, allow_foreign=allow_foreign, outside=True)
    except AppendRefusedError as exc:
        hint = "`antiphon repair` fixes what it can, --allow-foreign accepts it unchanged"
        fail(f"{history.place}: message {exc.message_id!r}: {exc.reason} ({exc.code}); {hint}")
    after = await ledger.head(name)
    ids = {message.id for message in messages}
    new = [record.message for record in records if record.seq > before.seq]
    closed = _tell_what_was_made(history, [message for message in new if message.id not in ids])
    return Taken(name, len(messages), after.seq - before.seq - closed, closed)


# ---------------------------------------------------------------- the conversations of a file

_BEGINNINGS = (b'{"antiphon":', b'\xef\xbb\xbf{"antiphon":')
"""How a file begins that is read line by line; the second has a byte order mark."""


@dataclass(frozen=True, slots=True)
class History:
    """A conversation, and its place in a file."""

    place: str
    """The file, and the line if it is one of several."""
    name: str
    """The thread, if its messages do not name one; empty if the file has no name either."""
    conversation: Conversation
    end: int
    """Bytes of the file up to its end."""


def histories(path: Path, dialect: str | None, *, each_line: bool) -> Iterator[History]:
    """Yield the conversations of a file; with `each_line`, every line is one."""
    is_stdin = path == Path("-")
    name, stem = ("stdin", "") if is_stdin else (str(path), path.stem)
    try:
        with nullcontext(sys.stdin.buffer) if is_stdin else path.open("rb") as file:
            first = file.readline()
            if dialect in (None, "house") and first.startswith(_BEGINNINGS) and not each_line:
                yield from _house(name, stem, chain([first], file))
            else:
                yield from _whole(name, stem, first + file.read(), dialect, each_line)
    except OSError as exc:
        fail_to_read(name, exc)


# ---------------------------------------------------------------- the house format, line by line


def _house(name: str, stem: str, lines: Iterable[bytes]) -> Iterator[History]:
    header, begun, end = Conversation(), 1, 0
    messages: list[Message] = []
    for number, line in enumerate(lines, start=1):
        unit = _read_line(f"{name}: line {number}", line) if line.strip() else None
        if isinstance(unit, Conversation):
            if number > 1:
                yield History(f"{name}: line {begun}", stem, header.extend(messages), end)
            header, begun, messages = unit, number, []
        elif unit is not None:
            messages.append(unit)
        end += len(line)
    yield History(f"{name}: line {begun}", stem, header.extend(messages), end)


def _read_line(place: str, line: bytes) -> Message | Conversation:
    try:
        return loads(line.removeprefix(_BEGINNINGS[1][:3]).strip())
    except DecodeError as exc:
        fail(": ".join(filter(None, (place, exc.where, exc.reason))))


# ---------------------------------------------------------------- everything else


def _whole(name: str, stem: str, text: bytes, dialect: str | None, each_line: bool) -> Iterator[History]:
    content = parse_file(name, text)
    if not each_line or not content.lines:
        yield History(name, stem, read_conversation(content, dialect), len(text))
        return
    source = dialect_of(replace(content, value=content.value[0], lines=()), dialect)
    for number, value in zip(content.lines, content.value, strict=True):
        with refusals(FileContent(f"{content.name}: line {number}", b"", value)):
            conversation = decode(value, source)
        yield History(f"{name}: line {number}", f"{stem}-{number}" if stem else "", conversation, len(text))
