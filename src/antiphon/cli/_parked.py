"""`antiphon parked`: what waits for a person, with the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from antiphon.cli._ledger import JsonOption, LedgerOption, with_ledger
from antiphon.cli._rows import print_json, shown_time
from antiphon.cli._screen import note, open_console, styled
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from datetime import datetime

    from antiphon.ledger import Ledger
    from antiphon.runtime import Parked

__all__ = ["parked"]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """Something that is parked, and what the ledger says about it."""

    parked: Parked
    option: str
    arguments: Any
    began: datetime | None


def parked(*, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """List parked calls: calls that must not run twice and may have run, and messages that failed too often."""
    found = with_ledger(ledger, _find)
    if for_programs:
        print_json([_as_json(each) for each in found])
    elif found:
        _print(found)
    else:
        note("nothing is parked")


async def _find(ledger: Ledger) -> list[_Waiting]:
    from antiphon.runtime import System  # noqa: PLC0415 (only where it is used)

    async with System(ledger) as system:
        return [await _about(ledger, each) for each in await system.parked()]


async def _about(ledger: Ledger, parked: Parked) -> _Waiting:
    """Return what was begun: the effect whose outcome nobody knows, or else the message itself."""
    from antiphon.messages import OptionCallPayload, thaw  # noqa: PLC0415 (only where it is used)

    about = str(parked.evidence.get("effect") or parked.invocation_id)
    records = await ledger.by_invocation(about, thread_id=parked.thread_id)
    for record in records:
        if isinstance(record.message.payload, OptionCallPayload):
            payload = record.message.payload
            return _Waiting(parked, payload.option_name, thaw(payload.arguments), record.recorded_at)
    return _Waiting(parked, "", None, None)


def _as_json(each: _Waiting) -> dict[str, Any]:
    return {
        "thread_id": each.parked.thread_id,
        "invocation_id": each.parked.invocation_id,
        "reason": each.parked.reason,
        "option": each.option,
        "arguments": each.arguments,
        "began_at": each.began,
        "evidence": each.parked.evidence,
    }


def _print(found: Sequence[_Waiting]) -> None:
    console = open_console()
    for each in found:
        console.print(styled(f"{each.parked.thread_id}  {each.parked.invocation_id}", "bold"), soft_wrap=True)
        began = "" if each.began is None else f", begun {shown_time(each.began)} UTC"
        console.print(styled(f"  {each.option}{began}: {each.parked.reason}"), soft_wrap=True)
        if each.arguments:
            console.print(styled(f"  {write(each.arguments).decode()}"), soft_wrap=True)
    note("look into what became of each, then: antiphon settle THREAD INVOCATION --result JSON | --error TEXT | --retry")
