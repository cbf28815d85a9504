"""`antiphon replay`: a thread played back from the ledger, step by step. No model is called."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from antiphon.cli._chains import DEFAULT, Show
from antiphon.cli._ledger import JsonOption, LedgerOption, ThreadArgument, known_thread, ledger_in_use, with_ledger
from antiphon.cli._output import deliver
from antiphon.cli._screen import note
from antiphon.messages._json import write

if TYPE_CHECKING:
    from datetime import datetime

    from antiphon.ledger import Ledger
    from antiphon.patterns.postchain import ChainEvent

__all__ = ["replay"]


def replay(
    thread: ThreadArgument,
    *,
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="X", min=0.01, help="So many times as fast as it was; at once, if not given."),
    ] = None,
    by_step: Annotated[bool, typer.Option("--step", help="Wait for Enter after each step.")] = False,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Play a thread back: its phases, tools and answers, in the order in which they were."""
    events = with_ledger(ledger or ledger_in_use() or DEFAULT, partial(_events, thread=thread))
    show, before = Show(), events[0][0] if events else None
    for at, event in events:
        if speed is not None and before is not None:
            time.sleep(max(0.0, (at - before).total_seconds() / speed))
        before = at
        _put(event, at, show, for_programs=for_programs)
        if by_step and not for_programs:
            typer.prompt("", default="", show_default=False, prompt_suffix="", err=True)
    if not events:
        note("nothing that can be played back; `antiphon show` shows what is there")


async def _events(ledger: Ledger, *, thread: str) -> list[tuple[datetime, ChainEvent]]:
    from antiphon.patterns.postchain import event_of  # noqa: PLC0415 (only where it is used)

    await known_thread(ledger, thread)
    found: list[tuple[datetime, ChainEvent]] = []
    phase: Any = None
    async for record in ledger.read(thread):
        event = event_of(record.message, record.seq, phase)
        if event is not None:
            phase = event.phase or phase
            found.append((record.recorded_at, event))
    return found


def _put(event: ChainEvent, at: datetime, show: Show, *, for_programs: bool) -> None:
    if for_programs:
        said = {
            "seq": event.seq,
            "at": at,
            "kind": event.kind,
            "phase": event.phase,
            "text": event.text,
            "data": dict(event.data),
        }
        deliver(write(said, orjson.OPT_UTC_Z) + b"\n", None)
        return
    show.take(event)
    if event.kind == "phase_ended":
        note(f"  {event.text.partition(chr(10))[0]}", style="dim")
    elif event.kind == "ended":
        deliver(f"{event.data.get('response') or event.data.get('error_message') or event.text}\n".encode(), None)
