"""`antiphon threads`: what is in a ledger, the newest first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from antiphon.cli._ledger import JsonOption, LedgerOption, with_ledger
from antiphon.cli._rows import print_json, shown_time
from antiphon.cli._screen import note, open_console, print_table

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, ThreadOrder, ThreadSummary

__all__ = ["SystemOption", "every_thread", "summary_as_json", "threads"]

SystemOption = Annotated[bool, typer.Option("--all", help="Include the threads of the system.")]


def threads(
    *,
    with_system: SystemOption = False,
    status: Annotated[str | None, typer.Option("--status", metavar="STATUS", help="Only threads with this status.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="At most N threads.")] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """List the threads of a ledger, most recent first."""
    found = with_ledger(ledger, partial(_list, with_system=with_system, status=status, limit=limit))
    if for_programs:
        print_json([summary_as_json(each) for each in found])
    elif found:
        print_table(open_console(), ("thread", "status", "messages", "updated (UTC)", "cost"), [_row(each) for each in found])
    else:
        note("no threads" if with_system else "no threads; with --all, those of the system are listed too")


async def _list(ledger: Ledger, *, with_system: bool, status: str | None, limit: int | None) -> list[ThreadSummary]:
    found: list[ThreadSummary] = []
    async for each in every_thread(ledger, with_system=with_system, status=status):
        found.append(each)
        if len(found) == limit:
            break
    return found


async def every_thread(
    ledger: Ledger, *, with_system: bool, status: str | None = None, order: ThreadOrder = "-updated_at"
) -> AsyncIterator[ThreadSummary]:
    """Go through all threads, page by page."""
    from antiphon.ledger import ThreadFilter  # noqa: PLC0415 (only where a ledger is used)

    wanted = ThreadFilter(status=status, system=None if with_system else False)
    page = await ledger.threads(wanted, order)
    while True:
        for each in page.threads:
            yield each
        if page.next is None:
            return
        page = await ledger.threads(wanted, order, page.next)


def _row(thread: ThreadSummary) -> tuple[str, ...]:
    cost = f"{thread.cost:f}" if thread.cost else ""
    return thread.thread_id, thread.status or "", str(thread.messages), shown_time(thread.updated_at), cost


def summary_as_json(thread: ThreadSummary) -> dict[str, Any]:
    """Return what a thread amounts to as an object."""
    return {
        "thread_id": thread.thread_id,
        "status": thread.status,
        "messages": thread.messages,
        "created_at": thread.created_at,
        "updated_at": thread.updated_at,
        "cost": orjson.Fragment(f"{thread.cost:f}"),  # every digit of it
        "pattern": thread.pattern,
        "open_calls": thread.open_calls,
        "input_tokens": thread.input_tokens,
        "output_tokens": thread.output_tokens,
        "forked_from": thread.forked_from,
        "forked_at": thread.forked_at,
    }
