"""`antiphon fork`: a branch of a thread, to go another way from some place in it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument, with_ledger
from antiphon.cli._output import deliver
from antiphon.cli._rows import print_json
from antiphon.cli._screen import fail, note
from antiphon.cli._threads import summary_as_json

if TYPE_CHECKING:
    from antiphon.ledger import Ledger, ThreadSummary

__all__ = ["fork"]


def fork(
    thread: ThreadArgument,
    *,
    at: Annotated[
        int | None, typer.Option("--at", metavar="SEQ", min=0, help="The last message that is shared; the end, if not given.")
    ] = None,
    at_step: Annotated[
        int | None, typer.Option("--at-step", metavar="STEP", help="Share everything up to the last message of this step.")
    ] = None,
    into: Annotated[
        str | None, typer.Option("--into", metavar="NAME", help="The id of the branch; a new one, if not given.")
    ] = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Begin a branch that shares a thread's messages up to some place, and print its id."""
    branch = with_ledger(ledger, partial(_begin, thread=thread, at=at, at_step=at_step, into=into))
    if for_programs:
        print_json(summary_as_json(branch))
        return
    closed = branch.messages - (branch.forked_at or 0)
    also = f"; calls that were open there, and are closed in the branch: {closed}" if closed else ""
    note(f"a branch of {thread} after message {branch.forked_at}{also}")
    deliver(f"{branch.thread_id}\n".encode(), None)


async def _begin(ledger: Ledger, *, thread: str, at: int | None, at_step: int | None, into: str | None) -> ThreadSummary:
    try:
        return await ledger.fork(thread, at=at, at_step=at_step, into=into)
    except ValueError as exc:
        fail(str(exc).replace("give at or at_step", "give --at or --at-step"), code=2)
