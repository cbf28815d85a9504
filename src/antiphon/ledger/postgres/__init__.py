"""A ledger in PostgreSQL, for any number of processes on any number of machines."""

__all__: list[str] = []
