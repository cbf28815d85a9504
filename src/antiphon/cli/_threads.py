"""Threads of a ledger: `antiphon threads`, `search`, `tail`, `reward` and `delete`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias, cast

import typer
from rich.cells import cell_len
from rich.text import Text

from antiphon import service
from antiphon.cli._knowledge import search_passages
from antiphon.cli._ledger import (
    JsonOption,
    LedgerOption,
    MaybeThreadArgument,
    ThreadArgument,
    known_threads,
    thread_argument,
    thread_option,
    with_ledger,
)
from antiphon.cli._live import typed
from antiphon.cli._output import deliver, print_json, print_json_line, print_list, short_time, shown_age, shown_time
from antiphon.cli._screen import ask_yes, check_unused, cut, fail, note, open_console, print_table, rendered, styled, wheel
from antiphon.errors import PlaceError, UnknownThreadError
from antiphon.messages import current_port
from antiphon.service import visible

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from antiphon.ledger import Hit, Ledger, Record
    from antiphon.service import ThreadValue

SystemOption = Annotated[bool, typer.Option("--all", help="Include system threads.")]
NameOption: TypeAlias = Annotated[str, typer.Option("--as", metavar="NAME", help="Your name, recorded in the thread.")]


_WITH_QUESTION = 500
"""Threads whose question is read: the most recent ones."""


def threads(
    *,
    with_system: SystemOption = False,
    status: Annotated[str | None, typer.Option("--status", metavar="STATUS", help="Only threads with this status.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most N threads.")] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """List the threads of a ledger, most recent first, each with its first question."""
    listed = with_ledger(ledger, partial(_list, with_system=with_system, status=status, limit=limit))
    if for_programs:
        print_json([thread.model_copy(update={"title": question}) for thread, question in listed])
    elif listed:
        _print_threads(listed)
    else:
        note("no threads" if with_system else "no threads; --all lists those of the system too")


async def _list(
    ledger: Ledger, *, with_system: bool, status: str | None, limit: int | None
) -> list[tuple[ThreadValue, str | None]]:
    listed: list[tuple[ThreadValue, str | None]] = []
    async for thread in service.list_with_runs(ledger, with_system=with_system, status=status):
        asked = await service.question_of(ledger, thread.thread_id) if len(listed) < _WITH_QUESTION else None
        listed.append((thread, asked))
        if len(listed) == limit:
            break
    return listed


def _print_threads(listed: Sequence[tuple[ThreadValue, str | None]]) -> None:
    """Print a table, with owner and age if there are open runs, and what they wait for.

    In a terminal the question takes the room that the other columns leave, and dates are short.
    """
    console, now = open_console(), current_port().now()
    has_runs = any(thread.runs for thread, _ in listed)
    headings = ["thread", "status", *(("owner", "age") if has_runs else ()), "messages", "updated (UTC)", "cost", "question"]
    rows = [[*_row(thread, has_runs), " ".join((asked or "").split())] for thread, asked in listed]
    if console.is_terminal:
        for row, (thread, _) in zip(rows, listed, strict=True):
            row[-3] = short_time(thread.updated_at, now)
        headings[-3] = "updated"
        used = [column for column in zip(headings, *rows, strict=True) if any(column[1:])]  # without those that are empty
        *fixed, last = used
        room = console.width - sum(max(map(cell_len, column)) + 2 for column in fixed)
        if last[0] == "question" and room >= len("question"):
            used = [*fixed, tuple(cut(Text(visible(cell)), room).plain for cell in last)]
        headings, *rows = map(list, zip(*used, strict=True))
    print_table(console, headings, rows)
    for thread, _ in listed:
        for unfit in thread.unfit:
            note(f"{thread.thread_id} cannot continue on build {unfit.build}: {unfit.reason}", style="warning")
        if (moved := service.moved_reason(thread.moved_to)) is not None:
            note(f"{thread.thread_id}: {moved}", style="warning")
        if thread.waits_for is not None:
            note(f"{thread.thread_id} waits: {thread.waits_for}", style="warning")
        for run in thread.runs:
            if run.reason is not None and run.status != "stopped":
                note(f"{thread.thread_id} run {run.id} is {run.status}: {run.reason}", style="warning")


def _row(thread: ThreadValue, has_runs: bool) -> tuple[str, ...]:
    runs = thread.runs
    cost = f"{thread.cost:f}" if thread.cost else ""
    run = (runs[0].owner or "", shown_age(runs[0].age)) if runs else ("", "")
    columns = run if has_runs else ()
    return thread.thread_id, thread.status or "not run", *columns, str(thread.messages), shown_time(thread.updated_at), cost


# ---------------------------------------------------------------- search


def search(
    words: Annotated[
        list[str], typer.Argument(metavar="WORDS", help='Words to find; "a phrase" in quotes; begin* for a prefix.')
    ],
    *,
    in_documents: Annotated[
        bool, typer.Option("--documents", help="Find passages of documents that fit a question, as the tool of agents does.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option("--in", metavar="PATTERN", help="With --documents: only documents of these names: 'docs/*.md'."),
    ] = None,
    thread: Annotated[str | None, thread_option("Only messages of this thread.")] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="At most N messages (default: 20), or passages (5).")
    ] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Find messages that contain all the words; or passages of documents. Best match first."""
    if in_documents:
        check_unused({"--thread": thread}, "does not go with --documents: documents are not messages")
        limit = _PASSAGES if limit is None else limit
        search_passages(" ".join(words), ledger, limit=limit, source=source, for_programs=for_programs)
        return
    check_unused({"--in": source}, "goes with --documents")
    _search_messages(words, ledger, thread, _MESSAGES if limit is None else limit, for_programs=for_programs)


_MESSAGES = 20
_PASSAGES = 5


def _search_messages(words: list[str], ledger: str | None, thread: str | None, limit: int, *, for_programs: bool) -> None:
    with wheel("searching"):
        # The words as they were typed: the shell has removed the quotes around a phrase.
        text = " ".join(f'"{word}"' if " " in word and '"' not in word else word for word in words)
        hits, unsearched = with_ledger(ledger, partial(_find, text=text, thread=thread, limit=limit + 1))
    if unsearched and not for_programs:
        reading = typed(ledger, "show", "THREAD")
        note(f"not searched, because they are encrypted: {unsearched} threads; `{reading}` reads one")
    if for_programs:
        print_json([service.HitValue.of(hit) for hit in hits[:limit]])
    else:
        print_list(hits[:limit], ("thread", "seq", "by", "found"), _hit_row, for_programs=False, otherwise="nothing found")
    if len(hits) > limit and not for_programs:
        place = () if thread is None else ("--thread", thread)
        command = typed(ledger, "search", *words, *place, "--limit", str(limit * 5))
        note(f"the first {limit}; there are more:", command=command)


async def _find(ledger: Ledger, *, text: str, thread: str | None, limit: int) -> tuple[tuple[Hit, ...], int]:
    """Return what was found, and how many threads were not searched."""
    hits = await service.search_threads(ledger, text, thread_id=thread, limit=limit)
    return hits, await service.unsearched_threads(ledger) if thread is None else 0


def _hit_row(hit: Hit) -> tuple[str, ...]:
    record = hit.record
    return service.thread_of(record), str(record.seq), record.message.policy, " ".join(hit.snippet.split())


# ---------------------------------------------------------------- tail


def tail(
    thread: MaybeThreadArgument = None,
    *,
    after: Annotated[
        str | None, typer.Option("--after", metavar="CURSOR", help="Continue after the cursor of an earlier tail.")
    ] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Start with the stored messages.")] = False,
    count: Annotated[int | None, typer.Option("--count", metavar="N", min=1, help="Stop after N messages.")] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Print new messages, one per line, until Ctrl-C."""
    if after is not None and from_start:
        fail("--after and --from-start are two places to begin; give one of them", code=2)

    def put_json(cursor: str, record: Record) -> None:
        print_json_line({"cursor": cursor, **dict(service.RecordValue.of(record))})

    reader = _Reader(thread, "" if from_start else after, count, put_json if for_programs else _put)
    place = () if thread is None else (thread,)

    async def read(opened: Ledger) -> None:
        try:
            await reader.read(opened)
        except PlaceError as exc:
            command = typed(ledger, "tail", *place, "--from-start")
            fail(f"--after: {exc}; to start with the stored messages: `{command}`", code=2)

    try:
        with_ledger(ledger, read)
    except KeyboardInterrupt:  # the usual end
        if reader.cursor is not None:
            note("continue from here with:", command=typed(ledger, "tail", *place, "--after", reader.cursor))


class _Reader:
    """Prints records, and remembers the cursor of the last one."""

    def __init__(self, thread: str | None, after: str | None, count: int | None, put: Callable[[str, Record], None]) -> None:
        """Make it; `after` is a cursor, None for the present, or empty for the beginning."""
        self._thread, self._after, self._left, self._put = thread, after, count, put
        self.cursor: str | None = None

    async def read(self, ledger: Ledger) -> None:
        if self._thread is not None and await ledger.thread(self._thread) is None:
            raise UnknownThreadError("there is no such thread", self._thread)
        self.cursor = await ledger.horizon() if self._after is None else self._after or None
        followed = service.follow(ledger, self._thread, self.cursor)
        async with aclosing(cast("AsyncGenerator[service.Followed, None]", followed)) as stream:
            async for item in stream:
                if item.record is not None and item.cursor is not None:
                    self._put(item.cursor, item.record)
                    self.cursor = item.cursor
                self._left = None if self._left is None else self._left - 1
                if self._left == 0:
                    return


def _put(_cursor: str, record: Record) -> None:
    line = Text.assemble(
        (shown_time(record.recorded_at), "aside"),
        "  ",
        styled(service.thread_of(record)),
        f" {record.seq}  ",
        styled(record.message.policy, "name"),
        "  ",
        rendered(service.in_one_line(record.message)),
    )
    console = open_console()
    if console.is_terminal:
        line.truncate(console.width, overflow="ellipsis")
    console.print(line, soft_wrap=True)


# ---------------------------------------------------------------- reward


def reward(
    thread: ThreadArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The id of a message: see antiphon show --json.")],
    value: Annotated[float, typer.Argument(metavar="NUMBER", help="The rating; write -- before a negative number.")],
    *,
    name: NameOption,
    reason: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="A note, recorded in the ledger.")] = None,
    ledger: LedgerOption = None,
) -> None:
    """Rate a message, for antiphon export --trajectories. A later rating replaces an earlier one."""
    work = partial(_rate, thread=thread, message=message, value=value, name=name, reason=reason, place=ledger)
    with_ledger(ledger, work)
    note(f"recorded: {value:g} for {message}")


async def _rate(
    ledger: Ledger, *, thread: str, message: str, value: float, name: str, reason: str | None, place: str | None
) -> None:
    try:
        await service.rate_message(ledger, thread, message, value, by=name, note=reason)
    except PlaceError as exc:
        lanes = {record.message.id: record.message.lane async for record in ledger.read(thread)}
        if lanes.get(message) == "talk":  # the number or the name is wrong
            fail(str(exc), code=2)
        fail(_not_rated(thread, message, lanes, typed(place, "show", thread, "--json")), code=2)


def _not_rated(thread: str, message: str, lanes: Mapping[str, str], show: str) -> str:
    """Return why a message cannot be rated, and which one may be meant. `lanes` are those of the thread's messages."""
    talk = [message_id for message_id, lane in lanes.items() if lane == "talk"]
    if not talk:
        return f"thread {thread!r} has no message that can be rated: it has only rows of its journal; `{show}` prints them"
    near = [message_id for message_id in talk if message_id.startswith(message)] or get_close_matches(message, talk, 1)
    meant = f"is it {near[0]!r}?" if near else f"its last one is {talk[-1]!r};"
    why = "is of the journal, and only talk is rated" if message in lanes else "does not exist"
    return f"thread {thread!r}: message {message!r} {why}; {meant} `{show}` prints all messages with their ids"


# ---------------------------------------------------------------- delete


def delete(
    threads: Annotated[list[str], thread_argument("The ids of threads; see antiphon threads.", callback=known_threads)],
    *,
    with_branches: Annotated[bool, typer.Option("--with-branches", help="Delete their branches too.")] = False,
    keep_chain: Annotated[
        bool,
        typer.Option("--keep-chain", help="Of encrypted threads, destroy only the keys: the chain of hashes can be verified."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    ledger: LedgerOption = None,
) -> None:
    """Delete threads permanently, after a confirmation, and print their ids. Backups keep their copies.

    With --keep-chain, copies of encrypted threads cannot be read either, unless they have the keys.
    """
    listed = service.forgettable if keep_chain else service.with_branches
    doomed = with_ledger(ledger, lambda opened: listed(opened, threads))
    branches = [thread.thread_id for thread in doomed if thread.thread_id not in threads]
    if branches and not with_branches:
        fail(f"these branches share their messages: {', '.join(branches)}; with --with-branches they are deleted too")
    if not yes:  # on stderr: stdout has only the ids of the threads
        for thread in doomed:
            note(f"{thread.thread_id}  ({thread.messages} messages)")
        what = "Destroy their keys" if keep_chain else "Delete this"
        ask_yes(f"{what} for good?", "nothing is deleted", "--yes deletes without a question")
    with_ledger(ledger, partial(_delete, names=[thread.thread_id for thread in reversed(doomed)], keep_chain=keep_chain))


async def _delete(ledger: Ledger, *, names: Sequence[str], keep_chain: bool) -> None:
    deleted = service.forget_threads(ledger, names) if keep_chain else service.delete_threads(ledger, names)
    async for thread_id in deleted:
        deliver(f"{visible(thread_id)}\n".encode(), None)
