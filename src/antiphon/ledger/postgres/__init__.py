"""A ledger in PostgreSQL, for any number of processes on any number of machines."""

from antiphon.ledger.postgres._ledger import PostgresLedger

__all__ = ["PostgresLedger"]
