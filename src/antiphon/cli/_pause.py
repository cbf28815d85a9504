"""`antiphon pause`: no model call and no tool of a thread begins until it is resumed."""

from __future__ import annotations

from antiphon.cli._chains import moved
from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument

__all__ = ["pause"]


def pause(thread: ThreadArgument, *, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """Pause a thread, also one that another process runs. Running calls finish and are recorded."""
    moved(ledger, {"type": "PAUSE_THREAD", "data": {"thread_id": thread}}, for_programs=for_programs)
