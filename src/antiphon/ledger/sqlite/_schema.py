"""The tables, as numbered steps from an empty file to the present form.

`messages` is the truth; every other table can be computed from it, and `verify` does. A row holds the house bytes and the
link of the chain. Ids, invocations and correlations are in the bytes already: what is indexed is a 32-bit number made from
them (see `_rows`), a tenth of the usual text, and whoever finds a row by such a number compares the message itself. Rows are
in the order of commits, so a batch for a hundred threads fills a few pages and not a hundred.

`position` is never used twice (AUTOINCREMENT), even when the last rows are deleted: it is the cursor of `tail`. The tables for
media and for search are made when they are first needed (see `_media`, `_search`), so that a small ledger is a small file.
"""

from __future__ import annotations

from collections.abc import Callable

from antiphon.errors import LedgerCorruptError, LedgerFormatError
from antiphon.ledger.sqlite._sql import Connection

__all__ = ["APPLICATION_ID", "MIGRATIONS", "migrate"]

APPLICATION_ID = 0x616E7470
"""`antp`: how a file says that it is a ledger."""

_FIRST = """
CREATE TABLE threads (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    thread_id TEXT NOT NULL UNIQUE,
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL,
    epoch INTEGER NOT NULL,
    run INTEGER NOT NULL,
    open_from INTEGER,
    status TEXT,
    pattern TEXT,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    cost TEXT NOT NULL,
    forked_from TEXT,
    forked_at INTEGER,
    open_calls INTEGER NOT NULL,
    base INTEGER,
    base_seq INTEGER NOT NULL
);

CREATE TABLE messages (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    thread INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    id_key INTEGER NOT NULL,
    invocation_key INTEGER,
    correlation_key INTEGER,
    open_from INTEGER,
    recorded_at INTEGER NOT NULL,
    hash BLOB NOT NULL,
    media INTEGER,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX messages_by_seq ON messages (thread, seq);
CREATE UNIQUE INDEX messages_by_id ON messages (thread, id_key);
CREATE INDEX messages_by_invocation ON messages (invocation_key) WHERE invocation_key IS NOT NULL;
CREATE INDEX messages_by_correlation ON messages (correlation_key) WHERE correlation_key IS NOT NULL;

CREATE TABLE open_calls (
    thread INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    is_effect INTEGER NOT NULL,
    invocation_id TEXT NOT NULL,
    option_name TEXT NOT NULL,
    turn NOT NULL,
    PRIMARY KEY (thread, seq)
) WITHOUT ROWID;

CREATE TABLE snapshots (
    thread INTEGER NOT NULL,
    fold TEXT NOT NULL,
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (thread, fold)
) WITHOUT ROWID;

CREATE TABLE outbox (position INTEGER PRIMARY KEY AUTOINCREMENT,
    thread_id TEXT NOT NULL,
    hash BLOB NOT NULL,
    body BLOB NOT NULL
);

CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES ('searchable', 0), ('repeated', 0);
"""

MIGRATIONS: tuple[str | Callable[[Connection], None], ...] = (_FIRST,)
"""From each version to the next, beginning with nothing. What was released is never changed; a new step is added."""


def migrate(connection: Connection, path: str) -> None:
    """Bring a file to the present form; a new one is filled, a later one refused.

    Raises:
        LedgerCorruptError: its version was altered.
        LedgerFormatError: it is another program's, or a later version's.
    """
    if _version(connection, path) == len(MIGRATIONS):
        return
    connection.run("BEGIN IMMEDIATE")
    for step in MIGRATIONS[_version(connection, path) :]:
        if callable(step):
            step(connection)
        else:
            connection.run(step)
    connection.setting("application_id", APPLICATION_ID)
    connection.setting("user_version", len(MIGRATIONS))
    connection.run("COMMIT")


def _version(connection: Connection, path: str) -> int:
    version, application = connection.setting("user_version"), connection.setting("application_id")
    if application != APPLICATION_ID:
        tables = connection.value("SELECT count(*) FROM sqlite_schema")
        if tables or version:
            raise LedgerFormatError(f"{path!r} is a SQLite file of something else, not a ledger")
    elif version < 1:
        raise LedgerCorruptError(f"{path!r} says it has ledger format {version}, which there never was; go back to a backup")
    if version > len(MIGRATIONS):
        raise LedgerFormatError(
            f"{path!r} has ledger format {version}, and this antiphon knows up to {len(MIGRATIONS)}: upgrade it"
        )
    return int(version)
