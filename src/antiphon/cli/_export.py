"""`antiphon export`: threads in any dialect, as decisions for training, as a journal, or into another ledger."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

import typer

from antiphon import service
from antiphon.cli._input import known_dialect, offered_dialects
from antiphon.cli._journal import journal_lines
from antiphon.cli._ledger import (
    LedgerOption,
    MaybeThreadsArgument,
    is_ledger,
    ledger_in_use,
    missing_ledger,
    shown_ledger,
    with_ledger,
    with_ledgers,
)
from antiphon.cli._live import typed
from antiphon.cli._output import (
    ForceOption,
    OutputKind,
    OutputOption,
    PolicyOption,
    StrictOption,
    delivery,
    has_keys,
    is_of_dialect,
    print_json,
    report_losses,
)
from antiphon.cli._screen import bar, check_unused, fail, note, open_console, print_table
from antiphon.cli._threads import SystemOption
from antiphon.cli._verify import SignerOption, read_heads, write_heads
from antiphon.dialects import Loss
from antiphon.errors import EncodeError, RestoreRefusedError
from antiphon.messages import MediaPart

if TYPE_CHECKING:
    from antiphon.ledger import Head, Ledger, Record, ThreadSummary


def _known_target(name: str) -> str:
    return name if is_ledger(name) else known_dialect(name) or name


TargetOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="NAME",
        callback=_known_target,
        autocompletion=offered_dialects,
        help="The dialect to write (see antiphon dialects), or the ledger to move the threads to: a path or a URL.",
    ),
]
WindowOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--window", metavar="N", min=1, help="With --trajectories: observations have the latest N messages; default: all."
    ),
]
SaveHeadsOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--save-heads", metavar="FILE", help="With --journal: write the heads of these rows to this file."),
]
ProofOption: TypeAlias = Annotated[
    Path | None, typer.Option("--heads", metavar="FILE", help="With --to LEDGER: signed heads, to prove the rows.")
]
TrustOption: TypeAlias = Annotated[
    bool,
    typer.Option("--trust-source", help="With --to LEDGER: move journal rows without signed heads; you trust their writers."),
]


def export(
    threads: MaybeThreadsArgument = None,
    *,
    target: TargetOption = "house",
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="A line per decision: observation, action, result.")
    ] = False,
    window: WindowOption = None,
    journal: Annotated[
        bool, typer.Option("--journal", help="Rows with their times and hashes, for antiphon import --journal.")
    ] = False,
    save_heads: SaveHeadsOption = None,
    strict: StrictOption = False,
    with_system: SystemOption = False,
    as_policy: PolicyOption = None,
    heads: ProofOption = None,
    signer: SignerOption = None,
    trust_source: TrustOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    for_programs: Annotated[bool, typer.Option("--json", help="With --to LEDGER: print JSON.")] = False,
    ledger: LedgerOption = None,
) -> None:
    """Write threads as JSON Lines. The house format has a line per message, other dialects a line per thread.

    With --to LEDGER, move them with their times, hashes, forks and media: they are marked as moved, and continue only there.
    """
    if is_ledger(target):
        of_lines = {"--journal": journal, "--trajectories": trajectories, "--window": window, "--save-heads": save_heads}
        of_files = {"--strict": strict, "--all": with_system, "--as-policy": as_policy, "-o": output, "--force": force}
        check_unused({**of_lines, **of_files}, "does not go with --to LEDGER: threads move as they are")
        _move(ledger, target, threads or [], _proof(heads, signer), trust_source=trust_source, for_programs=for_programs)
        return
    of_move = {"--heads": heads, "--signer": signer, "--trust-source": trust_source, "--json": for_programs}
    check_unused(of_move, "goes with --to LEDGER")
    if journal:
        of_dialects = {"--to": target != "house", "--trajectories": trajectories, "--window": window, "--strict": strict}
        check_unused(
            {**of_dialects, "--as-policy": as_policy}, "does not go with --journal: a journal has rows as they are stored"
        )
        _export_journal(ledger, threads or [], _Output(output, has_keys("antiphon_journal"), force), save_heads, with_system)
        return
    check_unused({"--save-heads": save_heads}, "goes with --journal")
    check_unused({"--window": None if trajectories else window}, "goes with --trajectories")
    form = service.ExportForm(target, as_policy, trajectories, window)
    out = _Output(output, has_keys("observations") if trajectories else is_of_dialect(target), force)
    work = partial(_write, names=threads or [], with_system=with_system, form=form, strict=strict, output=out)
    if with_ledger(ledger, work) and strict:
        fail("nothing is written, because of --strict")


# ---------------------------------------------------------------- to another ledger


def _proof(heads: Path | None, signer: Path | None) -> tuple[Head, ...]:
    """Return the heads that prove rows."""
    if (heads is None) != (signer is None):
        fail("--heads and --signer go together: heads prove rows only if you trust the key that signed them", code=2)
    return () if heads is None else read_heads(heads, signer)


def _move(
    source: str | None, target: str, names: list[str], heads: tuple[Head, ...], *, trust_source: bool, for_programs: bool
) -> None:
    if (missing := missing_ledger(ledger_in_use(target))) is not None:
        to = f"sqlite:///{missing.absolute()}"
        with_ledger(source, partial(_planned, to=to, names=names, heads=heads, trust_source=trust_source))
    moved = with_ledgers(source, target, partial(_moved, names=names, heads=heads, trust_source=trust_source))
    if for_programs:
        print_json(moved)
        return
    rows = [(thread.thread_id, str(thread.messages), "was there" if thread.was_there else "moved") for thread in moved]
    print_table(open_console(), ("thread", "messages", "result"), rows)
    if not moved:
        note(f"{shown_ledger(source)} has no threads to move; `{typed(source, 'threads', '--all')}` lists them")


async def _moved(
    source: Ledger, target: Ledger, *, names: list[str], heads: tuple[Head, ...], trust_source: bool
) -> tuple[service.CopiedThread, ...]:
    with _refusals(), bar("moving") as progress:
        return await service.copy_threads(source, target, names, heads=heads, trust_source=trust_source, progress=progress)


async def _planned(source: Ledger, *, to: str, names: list[str], heads: tuple[Head, ...], trust_source: bool) -> None:
    """Check everything against an empty ledger, so that a refused copy creates none."""
    from antiphon.ledger.memory import MemoryLedger  # noqa: PLC0415 (only where it is used)

    with _refusals():
        await service.plan_copy(source, MemoryLedger(), names, heads=heads, trust_source=trust_source, to=to)


@contextmanager
def _refusals() -> Generator[None]:
    try:
        yield
    except RestoreRefusedError as exc:
        fail(f"{exc}; nothing was moved", code=2)


# ---------------------------------------------------------------- as lines


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
    threads = [thread async for thread in _chosen(ledger, names, with_system)]
    losses = _Losses(form, is_only_one=len(threads) == 1)
    lines = partial(service.export_lines, ledger, form=form, on_losses=losses.report)
    if form.trajectories:
        await _warn_of_size(ledger, threads, form)
    with bar("exporting", is_beside_output=output.path is None) as progress:
        if strict:
            await _go_through(lines, threads, lambda _line: None, progress)
        if strict and losses.threads:
            return True
        with output.open() as put:
            await _go_through(lines, threads, put, progress)
    return bool(losses.threads)


_LARGE = 1_000_000_000
"""Bytes of decisions of which a person is warned before they are written."""


async def _warn_of_size(ledger: Ledger, threads: list[ThreadSummary], form: service.ExportForm) -> None:
    size = sum([await service.trajectory_bytes(ledger, thread, form) for thread in threads])
    if size >= _LARGE:
        why = "each decision repeats the messages before it"
        note(f"this writes about {service.file_size(size)}: {why}; --window N keeps only the latest N", style="warning")


class _Losses:
    """Prints losses: all of one thread; of several threads, that each has some, and how to see them."""

    def __init__(self, form: service.ExportForm, *, is_only_one: bool) -> None:
        self._dialect = form.dialect
        self._in_full = is_only_one and not form.trajectories
        self.threads: set[str] = set()

    def report(self, thread_id: str, losses: Sequence[Loss]) -> None:
        if thread_id in self.threads:
            return
        self.threads.add(thread_id)
        if self._in_full:
            report_losses(losses, self._dialect)
        else:
            note(f"{thread_id}: {self._dialect} cannot express everything; export it alone with --to to see what is lost")


async def _go_through(
    lines: Callable[[ThreadSummary], AsyncIterator[bytes]],
    threads: list[ThreadSummary],
    put: Callable[[bytes], object],
    progress: Callable[[int, int], None],
) -> None:
    done, total = 0, sum(thread.messages for thread in threads)
    for thread in threads:
        try:
            async for line in lines(thread):
                put(line)
        except EncodeError as exc:
            fail(f"{exc.where}: {exc.reason}")
        done += thread.messages
        progress(done, total)


async def _chosen(ledger: Ledger, names: list[str], with_system: bool) -> AsyncIterator[ThreadSummary]:
    for name in dict.fromkeys(names):
        yield await service.find_thread(ledger, name)
    if not names:
        async for thread in service.list_threads(ledger, with_system=with_system, order="created_at"):
            yield thread


def _export_journal(ledger: str | None, names: list[str], output: _Output, save_heads: Path | None, with_system: bool) -> None:
    heads = with_ledger(ledger, partial(_write_journal, names=names, with_system=with_system, output=output))
    if save_heads is not None:
        write_heads(heads, save_heads, force=output.force)


async def _write_journal(ledger: Ledger, *, names: list[str], with_system: bool, output: _Output) -> list[Head]:
    """Write the rows of threads, and return the head of each as it is in the file."""
    from antiphon.ledger import Head  # noqa: PLC0415 (only where it is used)

    threads = [thread async for thread in _chosen(ledger, names, with_system)]
    heads: list[Head] = []
    remote = done = 0
    with bar("exporting", is_beside_output=output.path is None) as progress, output.open() as put:
        for thread in threads:
            # A branch without rows of its own, and an empty thread, have the head of the thread.
            head = await ledger.head(thread.thread_id)
            async for line, record in journal_lines(ledger, thread):
                put(line)
                if record is not None:
                    head = Head(thread.thread_id, record.seq, record.hash)
                    remote += _remote_media(record)
            heads.append(head)
            done += thread.messages
            progress(done, sum(every.messages for every in threads))
    if remote:
        note(f"media that messages name by URL are not in the file: {remote}")
    return heads


def _remote_media(record: Record) -> int:
    parts = record.message.parts
    return sum(isinstance(part, MediaPart) and part.url[:5].lower() != "data:" for part in parts)
