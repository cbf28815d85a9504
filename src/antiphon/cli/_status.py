"""`antiphon status`: where a thread is. Nothing is written, so it may be asked while another process runs the thread."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from antiphon.cli._chains import DEFAULT
from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument, known_thread, ledger_in_use, with_ledger
from antiphon.cli._rows import print_json
from antiphon.cli._screen import open_console, print_table

if TYPE_CHECKING:
    from antiphon.ledger import Ledger

__all__ = ["status"]


def status(thread: ThreadArgument, *, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """Say where a thread is: which phases are completed, and which remain."""
    found = with_ledger(ledger or ledger_in_use() or DEFAULT, partial(_status, thread=thread))
    if for_programs:
        print_json(found)
        return
    rows = [(name.replace("_", " "), _text(value)) for name, value in found.items()]
    print_table(open_console(), ("", ""), rows)


def _text(value: str | int | tuple[str, ...] | None) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value or "")


async def _status(ledger: Ledger, *, thread: str) -> dict[str, Any]:
    from antiphon.patterns.postchain import LIFE  # noqa: PLC0415 (only where it is used)

    await known_thread(ledger, thread)
    life = await ledger.replay(thread, LIFE.fold())
    return {
        "thread_id": thread,
        "status": life.status,
        "current_phase": life.current_phase,
        "turn": life.turn,
        "created_at": life.created_at,
        "updated_at": life.updated_at,
        "phases_completed": life.completed,
        "phases_remaining": life.remaining,
    }
