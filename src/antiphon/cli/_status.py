"""`antiphon status`: where a thread is. Nothing is written, so it may be asked while another process runs the thread."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument, known_thread, with_ledger
from antiphon.cli._rows import print_json, shown_time
from antiphon.cli._screen import open_console, print_pairs

if TYPE_CHECKING:
    from antiphon.ledger import Ledger
    from antiphon.patterns.postchain import ThreadLife

__all__ = ["status"]


def status(thread: ThreadArgument, *, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """Show the state of a thread. For a thread of six phases: which are completed, and which remain."""
    found = with_ledger(ledger, partial(_status, thread=thread))
    if for_programs:
        print_json(found)
    else:
        print_pairs(open_console(), [(name.replace("_", " "), _text(name, value)) for name, value in found.items()])


def _text(name: str, value: Any) -> str:
    if name.endswith("_at") and value is not None:  # the life of a thread has times as the protocol writes them
        return f"{shown_time(value if isinstance(value, datetime) else datetime.fromisoformat(value))} UTC"
    return ", ".join(cast("tuple[str, ...]", value)) if isinstance(value, tuple) else str(value or "")


async def _status(ledger: Ledger, *, thread: str) -> dict[str, Any]:
    summary = await known_thread(ledger, thread)
    life = await _life(ledger, thread)
    if life is None:
        about = ("thread_id", "status", "pattern", "messages", "open_calls", "created_at", "updated_at")
        return {name: getattr(summary, name) for name in about}
    from antiphon.patterns.postchain import waiting_for  # noqa: PLC0415 (only where it is used)

    waiting = await waiting_for(ledger, thread)
    return {
        "thread_id": thread,
        "status": life.status,
        "current_phase": life.current_phase,
        "turn": life.turn,
        "created_at": life.created_at,
        "updated_at": life.updated_at,
        "phases_completed": life.completed,
        "phases_remaining": life.remaining,
        **({} if waiting is None else {"waits_for": waiting.text}),
    }


async def _life(ledger: Ledger, thread: str) -> ThreadLife | None:
    """Return the life of a thread of six phases; None of any other."""
    try:
        from antiphon.patterns.postchain import LIFE  # noqa: PLC0415 (only where it is used)
    except ModuleNotFoundError:  # whoever has no agents has no such threads
        return None
    life = await ledger.replay(thread, LIFE.fold())
    return None if life.status == "none" else life
