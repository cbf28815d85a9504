"""What a thread waits for: a person who approves or settles a call, or a failure outside; and the commands to type.

It is read from the open calls of the thread, so any process can determine it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from antiphon.durable._approvals import Approval
from antiphon.errors import BudgetExceededError
from antiphon.ledger import Owners, Record
from antiphon.ledger._open import command_line
from antiphon.messages import OptionCallPayload, current_port
from antiphon.protocol import PHASES
from antiphon.runtime._rows import PARK, stopped_error, stops_in


@dataclass(frozen=True, slots=True)
class Waiting:
    """The reason why a thread waits, and the commands to run."""

    reason: str
    commands: tuple[str, ...]
    """The commands to run, in order; if there are alternatives, only the first."""
    is_answered: bool = False
    """Whether it can continue without a decision: the approval has expired, and the model gets that; or the failure may be
    fixed."""
    stopped_by: str | None = None
    """The code of the failure outside that has stopped it; None: a person must decide something."""

    @property
    def text(self) -> str:
        """All of it, in one line."""
        return f"{self.reason}: {', then '.join(f'`{command}`' for command in self.commands)}"

    def to_json(self) -> dict[str, Any]:
        """Return it for a message."""
        return {"reason": self.reason, "commands": list(self.commands)}


async def waiting_for(ledger: Owners, thread_id: str) -> Waiting | None:
    """Return the reason why a thread waits; None: it does not wait.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    rows = await ledger.open_calls(thread_id)
    return _approval(rows, ledger, thread_id) or _settlement(rows, ledger, thread_id) or _stop(rows, ledger, thread_id)


def _approval(rows: Sequence[Record], ledger: Owners, thread_id: str) -> Waiting | None:
    approvals = [approval for row in rows if (approval := Approval.of((row,), thread_id)) is not None]
    in_time = [approval for approval in approvals if not approval.is_late(current_port().now())]
    resume = command_line(ledger, "resume", thread_id)
    if in_time:
        calls = " and ".join(f"{_call(approval)} ({approval.reason})" for approval in in_time)
        commands = (*(approval.command(ledger) for approval in in_time), resume)
        return Waiting(f"a person must approve {calls}, or deny it", commands)
    if approvals:
        return Waiting(f"nobody has approved {approvals[0].tool!r} in time", (resume,), is_answered=True)
    return None


def _call(approval: Approval) -> str:
    if approval.agent in PHASES:
        return f"{approval.tool!r} in the {approval.agent} phase"
    return f"{approval.tool!r} of {approval.agent!r}"


def _settlement(rows: Sequence[Record], ledger: Owners, thread_id: str) -> Waiting | None:
    for row in rows:
        payload = row.message.payload
        if isinstance(payload, OptionCallPayload) and payload.option_name == PARK:
            reason = f"{payload.arguments['reason']}; find out its outcome, and record it"
            settle = command_line(ledger, "settle", thread_id, row.message.parent_id or "", "--result", "JSON")
            return Waiting(reason, (settle, command_line(ledger, "resume", thread_id)))
    return None


def _stop(rows: Sequence[Record], ledger: Owners, thread_id: str) -> Waiting | None:
    """Return the reason why a thread was stopped. After a spent budget, it needs a new one."""
    for row in stops_in(rows):
        error = stopped_error(row.message)
        budget = "--budget NAME=NUMBER" if error.cause == BudgetExceededError.code else ""
        command = command_line(ledger, "resume", thread_id, options=budget)
        return Waiting(error.reason, (command,), is_answered=True, stopped_by=error.cause)
    return None
