"""`antiphon verify`, `antiphon heads` and `antiphon backup`: check a ledger, keep proof of it elsewhere, copy it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import orjson
import typer

from antiphon import service
from antiphon.cli._input import read_file
from antiphon.cli._ledger import JsonOption, LedgerOption, MaybeThreadArgument, MaybeThreadsArgument, with_ledger
from antiphon.cli._output import ForceOption, OutputOption, deliver, has_keys, print_json
from antiphon.cli._screen import bar, fail, note, open_console, print_table, wheel
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from antiphon.ledger import Head, Ledger, Verification


def verify(
    thread: MaybeThreadArgument = None,
    *,
    heads: Annotated[
        Path | None,
        typer.Option("--heads", metavar="FILE", help="Heads that were saved earlier: also detect truncated threads."),
    ] = None,
    save_heads: Annotated[
        Path | None,
        typer.Option(
            "--save-heads", metavar="FILE", help="If the check passes, write the heads to this file, for a later --heads."
        ),
    ] = None,
    force: ForceOption = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Check every hash, position and index of a ledger. Exit 1 if anything was altered."""
    known = () if heads is None else read_heads(heads)
    found, present = with_ledger(ledger, partial(_examine, thread=thread, known=known))
    if for_programs:
        print_json(_verification_json(found))
    else:
        _print(found)
    if not found.is_whole:
        raise typer.Exit(1)
    if save_heads is not None:
        write_heads(present, save_heads, force=force)


async def _examine(ledger: Ledger, *, thread: str | None, known: tuple[Head, ...]) -> tuple[Verification, tuple[Head, ...]]:
    """Return what was found, and the heads as they were before: only heads that were checked are saved."""
    gone = await _gone(ledger, thread, known)
    if gone is not None:
        return gone, ()
    present = await ledger.heads()
    with bar("verifying") as progress:
        found = await ledger.verify(thread, heads=known, progress=progress)
    return found, present if thread is None else tuple(head for head in present if head.thread_id == thread)


async def _gone(ledger: Ledger, thread: str | None, known: tuple[Head, ...]) -> Verification | None:
    """Return the damage, if a thread that the heads prove does not exist any more."""
    from antiphon.ledger import Damage, Verification  # noqa: PLC0415 (only where a ledger is used)

    heads = [head for head in known if head.thread_id == thread]
    if not heads or await ledger.thread(heads[0].thread_id) is not None:
        return None
    return Verification(0, 0, (Damage(thread, 1, f"it had {heads[0].seq} messages once, and is gone"),))


def _print(found: Verification) -> None:
    looked_at = f"threads: {found.threads}, messages: {found.messages}"
    if found.is_whole:
        open_console().print(f"{looked_at}; all is as it was written", soft_wrap=True)
        return
    rows = [(each.thread_id or "", "" if each.seq is None else str(each.seq), each.what) for each in found.damages]
    print_table(open_console(), ("thread", "seq", "damage"), rows)
    note(f"{looked_at}; damaged: {len(rows)}. What comes before a damage in its thread is good; a backup may have the rest.")


def _verification_json(found: Verification) -> dict[str, Any]:
    return {
        "threads": found.threads,
        "messages": found.messages,
        "damages": [{"thread_id": each.thread_id, "seq": each.seq, "what": each.what} for each in found.damages],
    }


def heads(
    threads: MaybeThreadsArgument = None,
    *,
    output: OutputOption = None,
    force: ForceOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Print the end of each thread and the hash of all its rows. Keep it elsewhere: it is the proof for verify and restore."""
    write_heads(with_ledger(ledger, partial(_heads, names=threads or [])), output, force=force)


async def _heads(ledger: Ledger, *, names: list[str]) -> tuple[Head, ...]:
    for name in names:
        await service.find_thread(ledger, name)
    return tuple(head for head in await ledger.heads() if not names or head.thread_id in names)


def write_heads(found: Iterable[Head], output: Path | None, *, force: bool = False) -> None:
    """Write heads to a file, or to stdout."""
    rows = [{"thread_id": head.thread_id, "seq": head.seq, "hash": head.hash} for head in found]
    text = write(rows, orjson.OPT_INDENT_2) + b"\n"
    deliver(text, output, kind=has_keys("thread_id", "seq", "hash"), force=force)


def read_heads(path: Path) -> tuple[Head, ...]:
    """Read a file of heads."""
    from antiphon.ledger import Head  # noqa: PLC0415 (only where a ledger is used)

    given = read_file(path)
    found: list[Head] = []
    for row in cast("list[Any]", given.value if isinstance(given.value, list) else [given.value]):
        match row:
            case {"thread_id": str(name), "seq": int(seq), "hash": str(link)}:
                found.append(Head(name, seq, link))
            case _:
                fail(f"{given.name}: not a file of heads, as `antiphon verify --save-heads` writes it")
    return tuple(found)


def backup(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write; it must not exist.")],
    *,
    ledger: LedgerOption = None,
) -> None:
    """Write a consistent copy of a ledger to a new file."""
    if not out.parent.is_dir():
        fail(f"{out}: there is no folder {str(out.parent)!r}; make it, or look at the path", code=2)
    with wheel("copying"):
        with_ledger(ledger, partial(_copy, out=out))
    note(f"{out}: {service.file_size(out.stat().st_size)}; open it with --ledger sqlite:///{out}")


async def _copy(ledger: Ledger, *, out: Path) -> None:
    try:
        await ledger.backup(out)
    except (OSError, ValueError) as exc:
        fail(f"{out}: {exc.strerror}" if isinstance(exc, OSError) and exc.strerror else str(exc), code=2)
