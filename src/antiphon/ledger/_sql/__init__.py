"""What a ledger in a SQL database does: every verb once, as a generator of statements (see `statements`)."""
