"""`antiphon export`: threads as JSON Lines, in any dialect, as decisions for training, or as a journal to restore."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from antiphon import service
from antiphon.cli._input import known_dialect, offered_dialects
from antiphon.cli._ledger import LedgerOption, MaybeThreadsArgument, with_ledger
from antiphon.cli._output import ForceOption, OutputKind, OutputOption, delivery, has_keys, is_of_dialect, report_losses
from antiphon.cli._restore import journal_lines
from antiphon.cli._screen import bar, fail, note
from antiphon.cli._threads import SystemOption
from antiphon.cli._verify import write_heads
from antiphon.dialects import Loss
from antiphon.errors import EncodeError
from antiphon.messages import MediaPart

if TYPE_CHECKING:
    from antiphon.ledger import Head, Ledger, Record, ThreadSummary


def export(
    threads: MaybeThreadsArgument = None,
    *,
    target: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="NAME",
            callback=known_dialect,
            autocompletion=offered_dialects,
            help="The dialect to write: see antiphon dialects.",
        ),
    ] = "house",
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="A line per decision: observation, action, result.")
    ] = False,
    window: Annotated[
        int | None,
        typer.Option(
            "--window", metavar="N", min=1, help="With --trajectories: observations have the latest N messages; default: all."
        ),
    ] = None,
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
    force: ForceOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Write threads as JSON Lines. The house format has a line per message, other dialects a line per thread."""
    if journal:
        if target != "house" or trajectories or strict or as_policy is not None or window is not None:
            left = "--to, --trajectories, --window, --strict and --as-policy"
            fail(f"a journal has rows as they are stored: leave out {left}", code=2)
        out = _Output(output, has_keys("antiphon_journal"), force)
        found = with_ledger(ledger, partial(_write_journal, names=threads or [], with_system=with_system, output=out))
        if save_heads is not None:
            write_heads(found, save_heads, force=force)
        return
    if save_heads is not None:
        fail("--save-heads goes with --journal", code=2)
    if window is not None and not trajectories:
        fail("--window goes with --trajectories", code=2)
    form = service.ExportForm(target, as_policy, trajectories, window)
    out = _Output(output, has_keys("observations") if trajectories else is_of_dialect(target), force)
    work = partial(_write, names=threads or [], with_system=with_system, form=form, strict=strict, output=out)
    lossy = with_ledger(ledger, work)
    if lossy and strict:
        fail("nothing is written, because of --strict")


class _Output(NamedTuple):
    """Where the lines go."""

    path: Path | None
    kind: OutputKind
    force: bool

    def open(self) -> AbstractContextManager[Callable[[bytes], object]]:
        """Return the block that gives the function which writes."""
        return delivery(self.path, kind=self.kind, force=self.force)


async def _write(
    ledger: Ledger, *, names: list[str], with_system: bool, form: service.ExportForm, strict: bool, output: _Output
) -> bool:
    """Write the threads, and return whether anything was lost. With `strict`, first look whether anything would be."""
    chosen = [each async for each in _chosen(ledger, names, with_system)]
    losses = _Losses(form, is_only_one=len(chosen) == 1)
    lines = partial(service.export_lines, ledger, form=form, hear=losses.tell)
    if form.trajectories:
        await _warn_of_size(ledger, chosen, form)
    with bar("exporting", is_beside_output=output.path is None) as progress:
        if strict:
            await _go_through(lines, chosen, lambda _line: None, progress)
        if strict and losses.told:
            return True
        with output.open() as put:
            await _go_through(lines, chosen, put, progress)
    return bool(losses.told)


_LARGE = 1_000_000_000
"""Bytes of decisions of which a person is warned before they are written."""


async def _warn_of_size(ledger: Ledger, chosen: list[ThreadSummary], form: service.ExportForm) -> None:
    size = sum([await service.trajectory_bytes(ledger, each, form) for each in chosen])
    if size >= _LARGE:
        why = "each decision repeats the messages before it"
        note(f"this writes about {service.file_size(size)}: {why}; --window N keeps only the latest N", style="warning")


class _Losses:
    """Prints losses: all of one thread; of several threads, that each has some, and how to see them."""

    def __init__(self, form: service.ExportForm, *, is_only_one: bool) -> None:
        self._dialect = form.dialect
        self._in_full = is_only_one and not form.trajectories
        self.told: set[str] = set()

    def tell(self, thread_id: str, losses: Sequence[Loss]) -> None:
        if thread_id in self.told:
            return
        self.told.add(thread_id)
        if self._in_full:
            report_losses(losses, self._dialect)
        else:
            note(f"{thread_id}: {self._dialect} cannot express everything; export it alone with --to to see what is lost")


async def _go_through(
    lines: Callable[[ThreadSummary], AsyncIterator[bytes]],
    chosen: list[ThreadSummary],
    put: Callable[[bytes], object],
    progress: Callable[[int, int], None],
) -> None:
    done, total = 0, sum(each.messages for each in chosen)
    for each in chosen:
        try:
            async for line in lines(each):
                put(line)
        except EncodeError as exc:
            fail(f"{exc.where}: {exc.reason}")
        done += each.messages
        progress(done, total)


async def _chosen(ledger: Ledger, names: list[str], with_system: bool) -> AsyncIterator[ThreadSummary]:
    for name in dict.fromkeys(names):
        yield await service.find_thread(ledger, name)
    if not names:
        async for each in service.list_threads(ledger, with_system=with_system, order="created_at"):
            yield each


async def _write_journal(ledger: Ledger, *, names: list[str], with_system: bool, output: _Output) -> list[Head]:
    """Write the rows of threads, and return the head of each as it is in the file."""
    from antiphon.ledger import Head  # noqa: PLC0415 (only where it is used)

    chosen = [each async for each in _chosen(ledger, names, with_system)]
    found: list[Head] = []
    remote = done = 0
    with bar("exporting", is_beside_output=output.path is None) as progress, output.open() as put:
        for each in chosen:
            # A branch without rows of its own, and an empty thread, have the head of the thread.
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
