"""`antiphon terminate`: a thread ends for good."""

from __future__ import annotations

from typing import Annotated

import typer

from antiphon.cli._chains import moved
from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument

__all__ = ["terminate"]


def terminate(
    thread: ThreadArgument,
    *,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The reason, recorded in the thread.")
    ] = "user_request",
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """End a thread permanently, also one that another process runs. Running calls are cancelled; no new call starts."""
    message = {"type": "TERMINATE_THREAD", "data": {"thread_id": thread, "reason": reason}}
    moved(ledger, message, for_programs=for_programs)
