"""A ledger in one SQLite file."""

__all__: list[str] = []
