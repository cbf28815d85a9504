"""`antiphon verify`: whether everything in a ledger is as it was written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antiphon.cli._heads import read_heads, write_heads
from antiphon.cli._ledger import JsonOption, LedgerOption, with_ledger
from antiphon.cli._progress import bar
from antiphon.cli._rows import print_json
from antiphon.cli._screen import note, open_console, print_table

if TYPE_CHECKING:
    from antiphon.ledger import Head, Ledger, Verification

__all__ = ["verify"]


def verify(
    thread: Annotated[str | None, typer.Argument(metavar="THREAD", help="Only this thread; default: all.")] = None,
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
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Check every hash, position and index of a ledger. Exit 1 if anything was altered."""
    known = () if heads is None else read_heads(heads)
    found, present = with_ledger(ledger, partial(_examine, thread=thread, known=known))
    if for_programs:
        print_json(_as_json(found))
    else:
        _print(found)
    if not found.is_whole:
        raise typer.Exit(1)
    if save_heads is not None:
        write_heads(present, save_heads)


async def _examine(ledger: Ledger, *, thread: str | None, known: tuple[Head, ...]) -> tuple[Verification, tuple[Head, ...]]:
    """Return what was found, and the heads as they were before: so that what is saved has been looked at."""
    gone = await _gone(ledger, thread, known)
    if gone is not None:
        return gone, ()
    present = await ledger.heads()
    with bar("verifying") as progress:
        found = await ledger.verify(thread, heads=known, progress=progress)
    return found, present if thread is None else tuple(head for head in present if head.thread_id == thread)


async def _gone(ledger: Ledger, thread: str | None, known: tuple[Head, ...]) -> Verification | None:
    """Return what there is to say about a thread that was there once and is not: more than that nobody knows it."""
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


def _as_json(found: Verification) -> dict[str, Any]:
    return {
        "threads": found.threads,
        "messages": found.messages,
        "damages": [{"thread_id": each.thread_id, "seq": each.seq, "what": each.what} for each in found.damages],
    }
