"""`antiphon delete`: threads that must go."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli._ledger import LedgerOption, known_thread, with_ledger
from antiphon.cli._output import deliver
from antiphon.cli._screen import fail, note, visible

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, ThreadSummary

__all__ = ["delete"]


def delete(
    threads: Annotated[list[str], typer.Argument(metavar="THREAD", help="The ids of threads; see antiphon threads.")],
    *,
    with_branches: Annotated[bool, typer.Option("--with-branches", help="Delete their branches too.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    ledger: LedgerOption = None,
) -> None:
    """Delete threads permanently, after a confirmation, and print their ids. Backups keep their copies."""
    doomed = with_ledger(ledger, partial(_doomed, names=threads))
    branches = [name for name in doomed if name not in threads]
    if branches and not with_branches:
        fail(f"these branches share their messages: {', '.join(branches)}; with --with-branches they are deleted too")
    if not yes:
        _ask(doomed.values())
    with_ledger(ledger, partial(_delete, names=[*reversed(doomed)]))


async def _doomed(ledger: Ledger, *, names: Sequence[str]) -> dict[str, ThreadSummary]:
    """Return the threads, and every branch of theirs, and of those; each before its branches."""
    found: dict[str, ThreadSummary] = {}
    waiting = [await known_thread(ledger, name) for name in names]
    while waiting:
        thread = waiting.pop()
        if thread.thread_id not in found:
            found[thread.thread_id] = thread
            waiting += await _branches(ledger, thread.thread_id)
    return found


async def _branches(ledger: Ledger, name: str) -> list[ThreadSummary]:
    from antiphon.ledger import ThreadFilter  # noqa: PLC0415 (only where a ledger is used)

    page = await ledger.threads(ThreadFilter(forked_from=name))
    found = list(page.threads)
    while page.next is not None:
        page = await ledger.threads(ThreadFilter(forked_from=name), page=page.next)
        found += page.threads
    return found


def _ask(threads: Iterable[ThreadSummary]) -> None:
    """Go on only if somebody says yes. All of it is on stderr: stdout is for the ids of what is gone."""
    for each in threads:
        note(f"{each.thread_id}  ({each.messages} messages)")
    typer.echo("Delete this for good? [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer:
        typer.echo(err=True)
        fail("nothing is deleted: nobody has said yes; with --yes it is not asked")
    if answer.strip().lower() not in ("y", "yes"):
        fail("nothing is deleted")


async def _delete(ledger: Ledger, *, names: Sequence[str]) -> None:
    """Remove threads, each after its branches: a branch that has come into being since they were listed stops it."""
    for name in names:
        try:
            await ledger.delete(name)
        except ValueError:
            fail(f"{name}: it has got a branch just now; look again, then decide")
        deliver(f"{visible(name)}\n".encode(), None)
