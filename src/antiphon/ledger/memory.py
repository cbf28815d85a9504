"""A ledger in memory."""

from antiphon.ledger._memory import MemoryLedger

__all__ = ["MemoryLedger"]
