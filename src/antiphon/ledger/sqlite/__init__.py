"""A ledger in one SQLite file."""

from antiphon.ledger.sqlite._ledger import SqliteLedger

__all__ = ["SqliteLedger"]
