"""SupervisorActor: looks after the managers of agents, and takes note of errors that others only report."""

from __future__ import annotations

from antiphon.protocol import Error, ErrorAcknowledged
from antiphon.runtime import Context, Supervisor, handles

__all__ = ["SUPERVISOR", "SupervisorActor"]

SUPERVISOR = "supervisor/agents"


class SupervisorActor(Supervisor):
    """The supervisor of a chain's agents."""

    @handles
    async def note(self, error: Error, context: Context) -> ErrorAcknowledged:
        """Take note of an error that is nobody's failure: it is in the ledger, and nothing is done about it."""
        return ErrorAcknowledged(actor_id=context.message.policy, action_taken="ignore", error_logged=True)
