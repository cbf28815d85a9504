"""`antiphon replay`: a thread played back from the ledger, step by step. No model is called."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from antiphon.cli._chains import ConfigOption, Show
from antiphon.cli._ledger import JsonOption, LedgerOption, known_thread, with_ledger
from antiphon.cli._output import deliver
from antiphon.cli._rows import print_json
from antiphon.cli._screen import fail, note
from antiphon.cli._threads import every_thread
from antiphon.errors import AntiphonError, LedgerError
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from datetime import datetime

    from antiphon.ledger import Ledger
    from antiphon.patterns.postchain import ChainEvent

__all__ = ["replay"]


def replay(
    thread: Annotated[
        str | None,
        typer.Argument(metavar="THREAD", help="The id of a thread; with --against, default: all that have ended."),
    ] = None,
    *,
    speed: Annotated[
        float | None,
        typer.Option("--speed", metavar="X", min=0.01, help="Speed, relative to the original; default: without waiting."),
    ] = None,
    by_step: Annotated[bool, typer.Option("--step", help="Wait for Enter after each step.")] = False,
    is_against: Annotated[
        bool,
        typer.Option("--against", help="Run stored threads again on the installed code, and report the first difference."),
    ] = False,
    config: ConfigOption = None,
    for_programs: JsonOption = False,
    ledger: LedgerOption = None,
) -> None:
    """Replay a thread: its phases, tools and answers, in their order."""
    if is_against:
        _against(ledger, thread, config, for_programs=for_programs)
        return
    if thread is None:
        fail("which thread? `antiphon threads` lists them", code=2)
    events = with_ledger(ledger, partial(_events, thread=thread))
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


def _against(ledger: str | None, thread: str | None, config: Path | None, *, for_programs: bool) -> None:
    """Run threads again as they are stored, on the code that is installed; exit 1 if one goes otherwise now."""
    found = with_ledger(ledger, partial(_reruns, thread=thread, config=config))
    parted = [each for each in found if each["parts_at"] is not None]
    if for_programs:
        print_json(found)
    else:
        for each in parted:
            note(f"{each['thread_id']} parts at message {each['parts_at']}, {each['what']}: {each['reason']}")
        note(f"threads: {len(found)}; that go otherwise now: {len(parted)}")
    if parted:
        raise typer.Exit(1)


async def _reruns(ledger: Ledger, *, thread: str | None, config: Path | None) -> list[dict[str, Any]]:
    from antiphon.patterns.postchain import ChainConfig, Divergence, rerun  # noqa: PLC0415 (only where it is used)

    chosen: dict[str, Any] = {} if config is None else {"config": ChainConfig.read(config)}
    found: list[dict[str, Any]] = []
    for thread_id in [thread] if thread else await _ended(ledger):
        await known_thread(ledger, thread_id)
        try:
            parts = await rerun(ledger, thread_id, **(chosen or await _as_it_was_run(ledger, thread_id)))
        except ValueError as exc:
            fail(str(exc), code=2)
        except LedgerError:
            raise
        except (AntiphonError, TimeoutError) as exc:  # one that cannot be run again is no reason not to try the others
            parts = Divergence(1, "it cannot be run again", str(exc) or "it does not come to an end")
        fields = (None, None, None) if parts is None else (parts.seq, parts.what, parts.reason)
        found.append({"thread_id": thread_id, **dict(zip(("parts_at", "what", "reason"), fields, strict=True))})
    return found


async def _as_it_was_run(ledger: Ledger, thread_id: str) -> dict[str, Any]:
    """Return how a thread is set up that nobody has set up: with the local model, there is not much."""
    from antiphon.cli._small import for_small_model  # noqa: PLC0415 (only where it is used)
    from antiphon.messages import OptionResultPayload, thaw  # noqa: PLC0415

    async for record in ledger.read(thread_id, reverse=True):
        payload = record.message.payload if record.message.lane == "control" else None
        if isinstance(payload, OptionResultPayload) and payload.option_name == "PREPARE_CONTEXT" and not payload.is_error:
            prepared: Any = thaw(payload.result)
            is_small = prepared["context"]["metadata"]["agent"].get("model") == "local"
            return for_small_model(ledger) if is_small else {}
    return {}


async def _ended(ledger: Ledger) -> list[str]:
    threads = [each async for each in every_thread(ledger, with_system=False, order="created_at")]
    return [each.thread_id for each in threads if each.pattern == "postchain" and each.status in ("completed", "failed")]


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
