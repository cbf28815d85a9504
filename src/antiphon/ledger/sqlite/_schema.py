"""The tables of a ledger's file, and the comparison of a file with them.

`messages` is the source of truth; every other table can be computed from it, and `verify` does so. A row holds the house bytes
and the link of the chain. Ids, invocations and correlations are indexed by numbers (see `_sql/rows.py`). Rows are in commit
order, and the numbers of invocations and correlations grow with time. So a batch for a hundred threads fills a few pages and
not a hundred.

`position` is never used twice (AUTOINCREMENT), even when the last rows are deleted: it is the cursor of `tail`. The tables for
search, and the indexes for filters, are created when they are first needed, so that a small ledger is a small file.

The file belongs to the ledger alone. A trigger, an additional or missing index, or a view in place of a table changes the
effect of statements. So the schema is compared with the expected one when the file is opened, when another process has changed
it, and by `verify`. The expected schema is that of an empty database in memory.

A column that cannot be computed from other data belongs to a checksum, too (see `_checksums`). A change of the tables needs
another `FORMAT`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Final, TypeAlias

import apsw

from antiphon.errors import LedgerCorruptError, LedgerFormatError
from antiphon.ledger.sqlite._sql import Connection

APPLICATION_ID: Final = 0x616E7470
"""`antp`: marks a file as a ledger."""
FORMAT: Final = 1
"""The format of the tables, in the file as `user_version`."""
OTHER_FILE = "check the path, or import a conversation into a new ledger: `antiphon import FILE --ledger NEW.db`"
"""What to do with a file that is not a ledger."""

TABLES = """
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
    is_redacted INTEGER NOT NULL,
    owner INTEGER,
    kind TEXT,
    due_at INTEGER,
    posted INTEGER NOT NULL,
    unfit TEXT,
    open_calls INTEGER NOT NULL,
    base INTEGER,
    base_seq INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE INDEX threads_by_update ON threads (updated_at);
CREATE INDEX threads_by_creation ON threads (created_at);
CREATE INDEX threads_owned ON threads (owner, posted) WHERE owner IS NOT NULL;
CREATE INDEX threads_due ON threads (kind, due_at) WHERE owner IS NULL AND due_at IS NOT NULL;

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
    body BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE UNIQUE INDEX messages_by_seq ON messages (thread, seq);
CREATE UNIQUE INDEX messages_by_id ON messages (thread, id_key);
CREATE INDEX messages_by_invocation ON messages (invocation_key) WHERE invocation_key IS NOT NULL;
CREATE INDEX messages_by_correlation ON messages (correlation_key) WHERE correlation_key IS NOT NULL;

CREATE TABLE media (hash BLOB NOT NULL UNIQUE, text BLOB NOT NULL);
CREATE TABLE media_uses (
    thread INTEGER NOT NULL, seq INTEGER NOT NULL, place INTEGER NOT NULL, hash BLOB NOT NULL, PRIMARY KEY (thread, seq, place)
) WITHOUT ROWID;

CREATE TABLE open_calls (
    thread INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    option_key INTEGER NOT NULL,
    call BLOB NOT NULL,
    position INTEGER NOT NULL,
    PRIMARY KEY (thread, seq)
) WITHOUT ROWID;
CREATE INDEX open_calls_by_option ON open_calls (option_key, position);

CREATE TABLE snapshots (
    thread INTEGER NOT NULL,
    fold TEXT NOT NULL,
    seq INTEGER NOT NULL,
    hash BLOB NOT NULL,
    state BLOB NOT NULL,
    PRIMARY KEY (thread, fold)
) WITHOUT ROWID;

CREATE TABLE hosts (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL,
    instance TEXT NOT NULL,
    build TEXT NOT NULL,
    kinds TEXT NOT NULL,
    lease REAL NOT NULL,
    boot TEXT NOT NULL,
    ends REAL NOT NULL,
    since INTEGER NOT NULL,
    beaten_at INTEGER NOT NULL,
    left_at INTEGER,
    checksum INTEGER NOT NULL
);

CREATE TABLE limits (model TEXT PRIMARY KEY, state TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE thread_keys (thread INTEGER PRIMARY KEY, master TEXT NOT NULL, wrapped BLOB, checksum INTEGER NOT NULL);

CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO counters VALUES
    ('searchable', 0), ('repeated', 0), ('removed messages', 0), ('removed threads', 0), ('removed hosts', 0),
    ('redaction', 0), ('limits', 0);
"""
"""Each index returns its rows in the order of its second column; SQLite appends the primary key to every index."""

SEARCH_TABLES = """
CREATE VIEW said AS SELECT position, words_of(body) AS words FROM messages;
CREATE VIRTUAL TABLE search USING fts5 (
    words, content = 'said', content_rowid = 'position', tokenize = 'unicode61 remove_diacritics 2'
);
INSERT INTO search (search, rank) VALUES ('secure-delete', 1);
"""
"""Created by the first search: a ledger that is never searched does not pay for it."""

TERM_TABLES = """
CREATE TABLE term_indexes (
    name TEXT PRIMARY KEY,
    version TEXT NOT NULL,
    upto INTEGER NOT NULL,
    entries INTEGER NOT NULL,
    length INTEGER NOT NULL,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE term_entries (
    position INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    source TEXT NOT NULL,
    version INTEGER NOT NULL,
    heading TEXT NOT NULL,
    body TEXT NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE INDEX term_entries_by_source ON term_entries (name, source);
CREATE VIRTUAL TABLE terms USING fts5 (
    heading, body, content = 'term_entries', content_rowid = 'position', tokenize = 'ascii'
);
INSERT INTO terms (terms, rank) VALUES ('secure-delete', 1);
CREATE VIRTUAL TABLE term_counts USING fts5vocab ('terms', 'row');
CREATE TABLE vector_spaces (
    name TEXT PRIMARY KEY, model TEXT NOT NULL, dimension INTEGER NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE term_vectors (position INTEGER PRIMARY KEY, vector BLOB NOT NULL, checksum INTEGER NOT NULL);
"""
"""Created by the first search of a retriever (see `_terms`). The tokenizer splits only at what no term has: it keeps every
letter beyond ASCII, while `unicode61` treats some of them as separators."""

FILTER_INDEXES = """
CREATE INDEX IF NOT EXISTS threads_by_status ON threads (status) WHERE status IS NOT NULL;
CREATE INDEX IF NOT EXISTS threads_by_pattern ON threads (pattern) WHERE pattern IS NOT NULL;
CREATE INDEX IF NOT EXISTS threads_by_kind ON threads (kind) WHERE kind IS NOT NULL;
CREATE INDEX IF NOT EXISTS threads_by_fork ON threads (forked_from) WHERE forked_from IS NOT NULL;
CREATE INDEX IF NOT EXISTS threads_unfit ON threads (unfit) WHERE unfit IS NOT NULL;
CREATE INDEX IF NOT EXISTS threads_by_tokens ON threads (input_tokens + output_tokens) WHERE input_tokens + output_tokens > 0;
CREATE INDEX IF NOT EXISTS threads_by_cost ON threads (CAST(cost AS REAL)) WHERE cost <> '0';
"""
"""Created by the first list with a filter in a file with many threads; with few threads, all are examined. None of the indexes
has the time of the last message: an append writes only the index of these times, however many filters there are."""
FILTER_INDEX_STATEMENTS = [statement.strip() for statement in FILTER_INDEXES.split(";") if statement.strip()]


def prepare(connection: Connection, path: str) -> None:
    """Create the tables in a new file; compare those of an existing one.

    Raises:
        LedgerCorruptError: its schema was altered.
        LedgerFormatError: another program wrote it, or another version.
    """
    connection.run("BEGIN")  # one snapshot for all that is read: another process may be creating the tables at the same time
    try:
        is_new = _is_empty(connection, path)
        if not is_new:
            check_schema(connection, path)
    finally:
        connection.run("COMMIT")
    if is_new:
        connection.run("BEGIN IMMEDIATE")
        if _is_empty(connection, path):  # under the write lock: another process may have created the tables in between
            connection.run(TABLES)
            connection.setting("application_id", APPLICATION_ID)
            connection.setting("user_version", FORMAT)
        connection.run("COMMIT")


def _is_empty(connection: Connection, path: str) -> bool:
    """Whether a file has nothing in it.

    Raises:
        LedgerFormatError: it is not a ledger, or one of another format.
    """
    if connection.setting("application_id") == APPLICATION_ID:
        check_format(connection, path)
        return False
    if connection.value("SELECT count(*) FROM sqlite_schema") or connection.setting("user_version"):
        raise LedgerFormatError(f"{path!r} is a SQLite file of something else, not a ledger; {OTHER_FILE}")
    return True


def check_format(connection: Connection, path: str) -> None:
    """Refuse a file of another format: also one that another version changes while this process has it open.

    Call it inside the transaction that reads or writes. It must come before everything that compares rows or declarations with
    the expected ones: to this version, those of another one look damaged.

    Raises:
        LedgerFormatError: the file has another format.
    """
    if (version := connection.value("PRAGMA user_version")) != FORMAT:
        raise LedgerFormatError(
            f"{path!r} has ledger format {version}, and this antiphon has {FORMAT}: open it with the antiphon that wrote it, "
            "or bring it over: `antiphon export` there, and `antiphon import` here"
        )


# ------------------------------------------------------------ comparison

_Schema: TypeAlias = dict[tuple[str, str], str]
"""The schema of a file: by kind (`table`, `index`, `trigger`, `view`) and name, the statement that created it."""

_OBJECTS = "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema"
_STATISTICS = re.compile("sqlite_stat[0-9]")
"""SQLite's own tables, with the statistics of ANALYZE. They change the speed of a statement, not its result."""
_SHADOW = re.compile("(search|terms)_[a-z]+")
"""Tables of the indexes of words and of terms: the extension decides how they are declared."""


def check_schema(connection: Connection, path: str) -> None:
    """Refuse a file whose schema is not that of a ledger.

    Raises:
        LedgerCorruptError: it is not; the text has the differences.
    """
    altered = list(differences(connection))
    if altered:
        raise LedgerCorruptError(
            f"the schema of {path!r} was altered: {'; '.join(altered[:5])}; drop what is not the ledger's, "
            "or restore a backup, and run verify on it"
        )


def differences(connection: Connection) -> Iterator[str]:
    """Yield the differences of a file's schema from that of a ledger: tables, indexes, triggers and views."""
    declared = _schema_of(connection)
    expected, *on_demand = _expected()
    for tables in on_demand:  # made when first needed: either all of them are there, or none
        expected = expected | tables if declared.keys() & tables.keys() else expected
    for kind, name in sorted(declared.keys() - expected.keys()):
        yield f"the {kind} {name!r} is not the ledger's"
    for kind, name in sorted(expected.keys() - declared.keys()):
        yield f"the {kind} {name!r} is missing"
    for kind, name in sorted(declared.keys() & expected.keys()):
        if declared[kind, name] != expected[kind, name]:
            yield f"the {kind} {name!r} is declared otherwise"


@lru_cache(maxsize=1)
def _expected() -> tuple[_Schema, ...]:
    """Return the schema of a new file, and the additions of each group of tables that is created on demand."""
    connection = Connection(":memory:", apsw.SQLITE_OPEN_READWRITE)
    schemas: list[_Schema] = [{}]
    try:
        for tables in (TABLES, SEARCH_TABLES, TERM_TABLES, FILTER_INDEXES):
            connection.run(tables)
            schemas.append(_schema_of(connection))
    finally:
        connection.close()
    return tuple({key: sql for key, sql in after.items() if key not in before} for before, after in pairwise(schemas))


def _schema_of(connection: Connection) -> _Schema:
    rows = connection.rows(_OBJECTS)
    objects = ((kind, name, table, sql) for kind, name, table, sql in rows if not _STATISTICS.fullmatch(str(name)))
    return {
        (str(kind), str(name)): f"{table}: {'' if _SHADOW.fullmatch(str(name)) else ' '.join(str(sql).split())}"
        for kind, name, table, sql in objects
    }
