"""`antiphon reward`: how good a message was, recorded for those who learn from the thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from antiphon.cli._approve import NameOption
from antiphon.cli._ledger import LedgerOption, ThreadArgument, known_thread, with_ledger
from antiphon.cli._screen import fail, note

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

__all__ = ["reward"]


def reward(
    thread: ThreadArgument,
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The id of a message: see antiphon show --json.")],
    value: Annotated[float, typer.Argument(metavar="NUMBER", help="The rating; write -- before a negative number.")],
    *,
    name: NameOption,
    reason: Annotated[str | None, typer.Option("--note", metavar="TEXT", help="A note, recorded in the ledger.")] = None,
    ledger: LedgerOption = None,
) -> None:
    """Rate a message, for antiphon export --trajectories. The last rating of a message counts."""
    with_ledger(ledger, partial(_record, thread=thread, message=message, value=value, name=name, reason=reason))
    note(f"recorded: {value:g} for {message}")


async def _record(ledger: Ledger, *, thread: str, message: str, value: float, name: str, reason: str | None) -> None:
    from antiphon.ledger import record_reward  # noqa: PLC0415 (only where it is used)

    await known_thread(ledger, thread)
    try:
        await record_reward(ledger, thread, message, value, by=name, note=reason)
    except ValueError as exc:
        fail(str(exc))
