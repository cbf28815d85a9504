"""`antiphon approvals`: which calls of tools wait for a person."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from antiphon.cli._ledger import JsonOption, LedgerOption, with_ledger
from antiphon.cli._rows import print_json, shown_time
from antiphon.cli._screen import note, open_console, print_table
from antiphon.messages.json_values import write

if TYPE_CHECKING:
    from antiphon.agents.toolkit import Approval
    from antiphon.ledger import Ledger

__all__ = ["approvals"]


def approvals(*, for_programs: JsonOption = False, ledger: LedgerOption = None) -> None:
    """List the tool calls that wait for an approval, with what is needed to decide."""
    waiting = with_ledger(ledger, _waiting)
    if for_programs:
        print_json([_as_json(each) for each in waiting])
    elif waiting:
        _print(waiting)
    else:
        note("nothing waits for an approval")


async def _waiting(ledger: Ledger) -> Sequence[Approval]:
    from antiphon.agents.toolkit import pending_approvals  # noqa: PLC0415 (only where it is used)

    return await pending_approvals(ledger)


def _print(waiting: Sequence[Approval]) -> None:
    rows = [
        (each.id, each.thread_id, each.agent, f"{each.tool} {_shown(each)}", each.reason, shown_time(each.expires_at))
        for each in waiting
    ]
    print_table(open_console(), ("id", "thread", "agent", "call", "why", "until (UTC)"), rows)


def _shown(approval: Approval) -> str:
    """Return all of the arguments: what is not shown cannot be approved."""
    return write(dict(approval.arguments)).decode()


def _as_json(approval: Approval) -> dict[str, Any]:
    return {
        "id": approval.id,
        "thread_id": approval.thread_id,
        "agent": approval.agent,
        "tool": approval.tool,
        "arguments": dict(approval.arguments),
        "reason": approval.reason,
        "digest": approval.digest,
        "expires_at": approval.expires_at,
        "approvers": list(approval.approvers),
    }
