"""`antiphon export`: threads as JSON Lines, in any dialect, or as decisions to learn from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli._heads import write_heads
from antiphon.cli._input import known_dialect
from antiphon.cli._ledger import LedgerOption, known_thread, with_ledger
from antiphon.cli._lines import Form, Lines
from antiphon.cli._output import OutputOption, delivery
from antiphon.cli._progress import bar
from antiphon.cli._restore import journal_lines
from antiphon.cli._screen import fail, note
from antiphon.cli._threads import SystemOption, every_thread
from antiphon.messages import MediaPart

if TYPE_CHECKING:
    from antiphon.ledger import Head, Ledger, Record, ThreadSummary

__all__ = ["export"]


def export(
    threads: Annotated[list[str] | None, typer.Argument(metavar="THREAD", help="The ids of threads; default: all.")] = None,
    *,
    target: Annotated[
        str, typer.Option("--to", metavar="NAME", callback=known_dialect, help="The dialect to write: see antiphon dialects.")
    ] = "house",
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="A line per decision: observation, action, result.")
    ] = False,
    journal: Annotated[
        bool, typer.Option("--journal", help="Rows with their times and hashes, for antiphon restore: see antiphon heads.")
    ] = False,
    save_heads: Annotated[
        Path | None,
        typer.Option("--save-heads", metavar="FILE", help="With --journal: write the heads of these rows to this file."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="If anything would be lost, write nothing and exit 1.")] = False,
    with_system: SystemOption = False,
    as_policy: Annotated[
        str | None, typer.Option("--as-policy", metavar="NAME", help="The participant who becomes the assistant.")
    ] = None,
    output: OutputOption = None,
    ledger: LedgerOption = None,
) -> None:
    """Write threads as JSON Lines. The house format has a line per message, other dialects a line per thread."""
    if journal:
        if target != "house" or trajectories or strict or as_policy is not None:
            fail("a journal has rows as they are stored: leave out --to, --trajectories, --strict and --as-policy", code=2)
        found = with_ledger(ledger, partial(_write_journal, names=threads or [], with_system=with_system, output=output))
        if save_heads is not None:
            write_heads(found, save_heads)
        return
    if save_heads is not None:
        fail("--save-heads goes with --journal", code=2)
    form = Form(target, as_policy, trajectories)
    work = partial(_write, names=threads or [], with_system=with_system, form=form, strict=strict, output=output)
    lossy = with_ledger(ledger, work)
    if lossy and strict:
        fail("nothing is written, because of --strict")


async def _write(
    ledger: Ledger, *, names: list[str], with_system: bool, form: Form, strict: bool, output: Path | None
) -> bool:
    """Write the threads, and return whether anything was lost; if nothing may be, first see whether it would."""
    chosen = [each async for each in _chosen(ledger, names, with_system)]
    lines = Lines(ledger, form, is_only_one=len(chosen) == 1)
    with bar("exporting", is_beside_output=output is None) as progress:
        if strict:
            await _go_through(lines, chosen, lambda _line: None, progress)
        if strict and lines.is_lossy:
            return True
        with delivery(output) as put:
            await _go_through(lines, chosen, put, progress)
    return lines.is_lossy


async def _write_journal(ledger: Ledger, *, names: list[str], with_system: bool, output: Path | None) -> list[Head]:
    """Write the rows of threads, and return where each ends in the file."""
    from antiphon.ledger import Head  # noqa: PLC0415 (only where it is used)

    chosen = [each async for each in _chosen(ledger, names, with_system)]
    found: list[Head] = []
    remote = done = 0
    with bar("exporting", is_beside_output=output is None) as progress, delivery(output) as put:
        for each in chosen:
            # Of a branch without rows of its own, and of an empty thread, the head is that of the thread.
            head = await ledger.head(each.thread_id)
            async for line, record in journal_lines(ledger, each):
                put(line)
                if record is not None:
                    head = Head(each.thread_id, record.seq, record.hash)
                    remote += _remote_media(record)
            found.append(head)
            done += each.messages
            progress(done, sum(every.messages for every in chosen))
    if remote:
        note(f"media that messages name by URL are not in the file: {remote}")
    return found


def _remote_media(record: Record) -> int:
    parts = record.message.parts
    return sum(isinstance(part, MediaPart) and part.url[:5].lower() != "data:" for part in parts)


async def _go_through(
    lines: Lines, chosen: list[ThreadSummary], put: Callable[[bytes], object], progress: Callable[[int, int], None]
) -> None:
    done, total = 0, sum(each.messages for each in chosen)
    for each in chosen:
        async for line in lines.of(each):
            put(line)
        done += each.messages
        progress(done, total)


async def _chosen(ledger: Ledger, names: list[str], with_system: bool) -> AsyncIterator[ThreadSummary]:
    for name in dict.fromkeys(names):
        yield await known_thread(ledger, name)
    if not names:
        async for each in every_thread(ledger, with_system=with_system, order="created_at"):
            yield each
