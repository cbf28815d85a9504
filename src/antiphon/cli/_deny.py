"""`antiphon deny`: a person's no to a call."""

from __future__ import annotations

from antiphon.cli._approve import ApprovalArgument, NameOption, ReasonOption, give_answer
from antiphon.cli._ledger import LedgerOption

__all__ = ["deny"]


def deny(id: ApprovalArgument, *, name: NameOption, reason: ReasonOption = None, ledger: LedgerOption = None) -> None:
    """Deny a waiting call under your name. The caller gets the reason."""
    give_answer(id, name, reason, ledger, approved=False)
