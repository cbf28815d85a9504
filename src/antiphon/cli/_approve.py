"""`antiphon approve`: a person's yes to one exact call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from antiphon.cli._ledger import LedgerOption, with_ledger
from antiphon.cli._output import deliver
from antiphon.cli._screen import fail, note

if TYPE_CHECKING:
    from antiphon.agents.toolkit import Approval
    from antiphon.ledger import Ledger

__all__ = ["ApprovalArgument", "NameOption", "ReasonOption", "approve", "give_answer"]

ApprovalArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="ID", help="The id of the approval: see antiphon approvals.")
]
NameOption: TypeAlias = Annotated[str, typer.Option("--as", metavar="NAME", help="Your name, recorded in the thread.")]
ReasonOption: TypeAlias = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="The reason, recorded in the thread.")
]


def approve(id: ApprovalArgument, *, name: NameOption, reason: ReasonOption = None, ledger: LedgerOption = None) -> None:
    """Approve a waiting call under your name. The thread continues when its program runs again."""
    give_answer(id, name, reason, ledger, approved=True)


def give_answer(id: str, name: str, reason: str | None, ledger: str | None, *, approved: bool) -> None:
    """Write an answer down, and print the thread that can go on now."""
    given = with_ledger(ledger, partial(_answer, id=id, name=name, reason=reason, approved=approved))
    word = "approved" if approved else "denied"
    note(f"{word}: {given.tool} by {given.agent}, in thread {given.thread_id}")
    deliver(f"{given.thread_id}\n".encode(), None)


async def _answer(ledger: Ledger, *, id: str, name: str, reason: str | None, approved: bool) -> Approval:
    from antiphon.agents.toolkit import answer  # noqa: PLC0415 (only where it is used)

    try:
        return await answer(ledger, id, principal=name, approved=approved, reason=reason)
    except ValueError as exc:
        fail(str(exc))
