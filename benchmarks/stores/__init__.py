"""Ways to keep conversations on a disk, one file each: antiphon's ledger, its peers, and SQLite itself."""
