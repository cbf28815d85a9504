"""How a Pydantic AI agent is made durable: its operations as effects in a thread."""

from antiphon.agents._observers import Delta, listen
from antiphon.agents.durability._capability import LedgerDurability
from antiphon.agents.durability._tool_call import NotDone, Reconcile, Unsettled

__all__ = ["Delta", "LedgerDurability", "NotDone", "Reconcile", "Unsettled", "listen"]
