"""The tables, as numbered migration steps from an empty file to the current format.

`messages` is the source of truth; every other table can be computed from it, and `verify` does so. A row holds the house bytes
and the link of the chain. The bytes already contain ids, invocations and correlations. The index has a number computed from
each (see `_rows`), a tenth of the usual text, and a lookup by such a number compares the message itself. Rows are in commit
order, and the numbers of invocations and correlations grow with time. So a batch for a hundred threads fills a few pages and
not a hundred.

`position` is never used twice (AUTOINCREMENT), even when the last rows are deleted: it is the cursor of `tail`. The tables for
media and for search, and the indexes for filters, are created when they are first needed, so that a small ledger is a small
file.

The file belongs to the ledger alone. A trigger, an additional or missing index, or a view in place of a table changes the
effect of statements. So the schema is compared with the expected one when the file is opened, when another process has changed
it, and by `verify`. The expected schema is the result of the same steps on an empty database in memory.

To add a step, append it to `MIGRATIONS`, as SQL or as a function over a connection. The migration of every earlier version,
the expected schema and the version in the file follow from that. Add a column that cannot be computed from other data to a
checksum, too (see `_sql`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TypeAlias

import apsw
import orjson

from antiphon.errors import LedgerCorruptError, LedgerFormatError
from antiphon.ledger._admission import State
from antiphon.ledger.sqlite._checksums import set_checksum, set_owner
from antiphon.ledger.sqlite._sql import Connection
from antiphon.messages import is_name
from antiphon.messages.keys import kind_of

APPLICATION_ID = 0x616E7470
"""`antp`: marks a file as a ledger."""
OTHER_FILE = "check the path, or import a conversation into a new ledger: `antiphon import FILE --ledger NEW.db`"
"""What to do with a file that is not a ledger."""

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

_SECOND = """
ALTER TABLE messages ADD COLUMN checksum INTEGER;
ALTER TABLE threads ADD COLUMN checksum INTEGER;
INSERT INTO counters VALUES
    ('unchecked', (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages')),
    ('entries', 0),
    ('removed messages',
        (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages') - (SELECT count(*) FROM messages)),
    ('removed threads',
        (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'threads') - (SELECT count(*) FROM threads)),
    ('removed outbox',
        (SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'outbox') - (SELECT count(*) FROM outbox));
"""

MEDIA_TABLES = """
CREATE TABLE IF NOT EXISTS media (key INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, text BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS media_uses (
    position INTEGER NOT NULL, place INTEGER NOT NULL, media INTEGER NOT NULL, PRIMARY KEY (position, place)
) WITHOUT ROWID;
"""
"""Created with the first medium; rows without media are never looked up in them."""

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
"""
"""Created by the first search of a retriever (see `_terms`). The tokenizer splits only at what no term has: it keeps every
letter beyond ASCII, while `unicode61` treats some of them as separators."""
VECTOR_TABLES = """
CREATE TABLE vector_spaces (
    name TEXT PRIMARY KEY, model TEXT NOT NULL, dimension INTEGER NOT NULL, checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE term_vectors (position INTEGER PRIMARY KEY, vector BLOB NOT NULL, checksum INTEGER NOT NULL);
"""
"""Created with the first vector of an entry in `term_entries`."""
_HAS_TERMS = 6
"""The first format whose files may have them."""

KEY_TABLES = """
CREATE TABLE thread_keys (thread INTEGER PRIMARY KEY, master TEXT NOT NULL, wrapped BLOB, checksum INTEGER NOT NULL);
"""
"""Created with the first encrypted thread (see `_keys`)."""
_HAS_KEYS = 7
"""The first format whose files may have it."""

LIMIT_TABLES = """
CREATE TABLE limits (model TEXT PRIMARY KEY, state TEXT NOT NULL, checksum INTEGER NOT NULL) WITHOUT ROWID;
"""
"""Created with the first limit (see `_permits` of the ledger)."""
_HAS_LIMITS = 9
"""The first format whose files may have it."""

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
_HAS_FILTERS = 5
"""The first format whose files may have them."""

_STATES = """
SELECT key, thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens,
    output_tokens, cost, forked_from, forked_at
FROM threads
"""


def _add_checksums(connection: Connection) -> None:
    """Give every thread its checksum. Old messages get none: rewriting gigabytes could fill the disk."""
    connection.run(_SECOND)
    for key, *columns in connection.rows(_STATES):
        set_checksum(connection, key, State(*columns))


_THIRD = "ALTER TABLE threads ADD COLUMN is_redacted INTEGER"
"""NULL for older threads: unknown (see `LedgerRedaction`)."""

_FOURTH = """
DROP TABLE outbox;
DELETE FROM counters WHERE name IN ('entries', 'removed outbox');
INSERT INTO counters VALUES ('removed hosts', 0);

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

ALTER TABLE threads ADD COLUMN owner INTEGER;
ALTER TABLE threads ADD COLUMN kind TEXT;
ALTER TABLE threads ADD COLUMN due_at INTEGER;
ALTER TABLE threads ADD COLUMN posted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE threads ADD COLUMN unfit TEXT;
CREATE INDEX threads_by_update ON threads (updated_at);
CREATE INDEX threads_by_creation ON threads (created_at);
CREATE INDEX threads_owned ON threads (owner, posted) WHERE owner IS NOT NULL;
CREATE INDEX threads_due ON threads (kind, due_at) WHERE owner IS NULL AND due_at IS NOT NULL;

ALTER TABLE open_calls ADD COLUMN position INTEGER NOT NULL DEFAULT 0;
UPDATE open_calls SET position = coalesce(
    (SELECT position FROM messages WHERE messages.thread = open_calls.thread AND messages.seq = open_calls.seq), 0
);
CREATE INDEX open_calls_by_option ON open_calls (option_name, position);
"""
"""Each index returns its rows in the order of its second column; SQLite appends the primary key to every index."""

_ABANDONED = """
SELECT key, thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens,
    output_tokens, cost, forked_from, forked_at, is_redacted
FROM threads WHERE epoch > 0 AND open_calls > 0
"""
_ASKED = """
SELECT body FROM open_calls JOIN messages USING (thread, seq) WHERE open_calls.thread = ? AND is_effect = 0 ORDER BY seq
"""


def _add_hosts(connection: Connection) -> None:
    """Add hosts, owners and due times, and drop the outbox.

    A claimed thread has no host yet, and it is unknown whether its owner still runs. So a thread with open calls is due since
    its last message; its kind is that of the actor whose open call is the oldest.

    Raises:
        LedgerCorruptError: messages were removed from the outbox by other means.
        LedgerFormatError: there are messages in the outbox.
    """
    if left := connection.value("SELECT count(*) FROM outbox"):
        raise LedgerFormatError(
            f"{connection.filename!r} has {left} messages in its outbox, which this version of antiphon does not have; "
            "deliver them with the version that wrote them, or delete their threads there"
        )
    if connection.value("SELECT value FROM counters WHERE name = 'entries'"):
        raise LedgerCorruptError(f"the outbox of {connection.filename!r} was altered; restore a backup")
    connection.run(_FOURTH)
    for key, *columns in connection.rows(_ABANDONED):
        state = State(*columns)
        receivers = (_receiver(body) for (body,) in connection.rows(_ASKED, (key,)))
        kind = next((kind_of(receiver) for receiver in receivers if receiver), None)
        set_owner(connection, key, state._replace(kind=kind, due_at=state.updated_at))


def _receiver(body: object) -> str | None:
    """Return the first receiver of a stored message; None if it has none, or cannot be read (`verify` reports that)."""
    try:
        found = orjson.loads(body if isinstance(body, bytes) else b"").get("to")
    except (ValueError, AttributeError):
        return None
    return found[0] if found and is_name(found[0]) else None


_FIFTH = "SELECT 1"
"""Files of this format may have `FILTER_INDEXES`; earlier versions, which do not know them, refuse such a file."""

_SIXTH = "SELECT 1"
"""Files of this format may have `TERM_TABLES`; earlier versions, which do not know them, refuse such a file."""

_SEVENTH = "SELECT 1"
"""Files of this format may have `KEY_TABLES`; earlier versions, which do not know them, refuse such a file."""

_EIGHTH = "INSERT INTO counters VALUES ('redaction', 0)"
"""The digest of the redaction rules of the hosts; 0: none yet."""

_NINTH = "INSERT INTO counters VALUES ('limits', 0)"
"""The number of limits, so that a row that was removed by other means is noticed. Files of this format may have
`LIMIT_TABLES`."""

_TENTH = """
ALTER TABLE messages RENAME COLUMN invocation_key TO invocation_number;
ALTER TABLE messages RENAME COLUMN correlation_key TO correlation_number;
"""
"""New rows have numbers that grow with time (see `number_of`). The new names stop a process of an earlier version that has
the file open: it would not find the new rows."""

Step: TypeAlias = str | Callable[[Connection], None]

MIGRATIONS: tuple[Step, ...] = (
    _FIRST,
    _add_checksums,
    _THIRD,
    _add_hosts,
    _FIFTH,
    _SIXTH,
    _SEVENTH,
    _EIGHTH,
    _NINTH,
    _TENTH,
)
"""The steps from each version to the next, beginning with an empty file. Never change a released step; append a new one."""


def migrate(connection: Connection, path: str) -> None:
    """Migrate a file to the current format; create the tables in a new file.

    Raises:
        LedgerCorruptError: its version or its schema was altered.
        LedgerFormatError: another program wrote it, or a later version.
    """
    connection.run("BEGIN")  # one snapshot for all that is read: another process may be creating the tables at the same time
    try:
        is_current = _version(connection, path) == len(MIGRATIONS)
    finally:
        connection.run("COMMIT")
    if is_current:
        check_schema(connection, path)
        return
    # Read the version again under the write lock: another process may have migrated the file in between.
    connection.run("BEGIN IMMEDIATE")
    version = _version(connection, path)
    check_schema(connection, path, version)
    for step in MIGRATIONS[version:]:
        _take(connection, step)
    connection.setting("application_id", APPLICATION_ID)
    connection.setting("user_version", len(MIGRATIONS))
    connection.run("COMMIT")


def _take(connection: Connection, step: Step) -> None:
    if callable(step):
        step(connection)
    else:
        connection.run(step)


def _version(connection: Connection, path: str) -> int:
    version, application = connection.setting("user_version"), connection.setting("application_id")
    if application != APPLICATION_ID:
        tables = connection.value("SELECT count(*) FROM sqlite_schema")
        if tables or version:
            raise LedgerFormatError(f"{path!r} is a SQLite file of something else, not a ledger; {OTHER_FILE}")
    elif version < 1:
        raise LedgerCorruptError(f"{path!r} has ledger format {version}, which does not exist; restore a backup")
    check_format(connection, path)
    return int(version)


def check_format(connection: Connection, path: str) -> None:
    """Refuse a file that a later version has written: also one that it upgrades while this process has it open.

    Call it inside the transaction that reads or writes. It must come before everything that compares rows or declarations with
    the expected ones: to this version, those of a later one look damaged.

    Raises:
        LedgerFormatError: the format of the file is later than this version knows.
    """
    if (version := connection.value("PRAGMA user_version")) > len(MIGRATIONS):
        raise LedgerFormatError(
            f"a newer antiphon has upgraded {path!r} to ledger format {version}, and this one knows up to {len(MIGRATIONS)}: "
            "upgrade it, and start it again"
        )


# ------------------------------------------------------------ comparison

_Schema: TypeAlias = dict[tuple[str, str], str]
"""The schema of a file: by kind (`table`, `index`, `trigger`, `view`) and name, the statement that created it."""

_OBJECTS = "SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema"
_OWN = re.compile("sqlite_stat[0-9]")
"""SQLite's own tables, with the statistics of ANALYZE. They change the speed of a statement, not its result."""
_SHADOW = re.compile("(search|terms)_[a-z]+")
"""Tables of the indexes of words and of terms: the extension decides how they are declared."""


def check_schema(connection: Connection, path: str, version: int | None = None) -> None:
    """Refuse a file whose schema is not that of a version, by default the current one.

    Raises:
        LedgerCorruptError: it is not; the text has the differences.
    """
    found = list(differences(connection, version))
    if found:
        raise LedgerCorruptError(
            f"the schema of {path!r} was altered: {'; '.join(found[:5])}; drop what is not the ledger's, "
            "or restore a backup, and run verify on it"
        )


def differences(connection: Connection, version: int | None = None) -> Iterator[str]:
    """Yield the differences of a file's schema from that of a version: tables, indexes, triggers and views."""
    there = _schema_of(connection)
    whole, *later = _expected(MIGRATIONS[:version])
    for tables in later:  # made when first needed: either all of them are there, or none
        whole = whole | tables if there.keys() & tables.keys() else whole
    for kind, name in sorted(there.keys() - whole.keys()):
        yield f"the {kind} {name!r} is not the ledger's"
    for kind, name in sorted(whole.keys() - there.keys()):
        yield f"the {kind} {name!r} is missing"
    for kind, name in sorted(there.keys() & whole.keys()):
        if there[kind, name] != whole[kind, name]:
            yield f"the {kind} {name!r} is declared otherwise"


@lru_cache(maxsize=8)
def _expected(steps: tuple[Step, ...]) -> tuple[_Schema, ...]:
    """Return the schema after some steps, and the additions of each group of tables that is created on demand."""
    if not steps:
        return ({},)
    connection = Connection(":memory:", apsw.SQLITE_OPEN_READWRITE)
    try:
        for step in steps:
            _take(connection, step)
        made = [_schema_of(connection)]
        later = [FILTER_INDEXES] if len(steps) >= _HAS_FILTERS else []
        later += [TERM_TABLES, VECTOR_TABLES] if len(steps) >= _HAS_TERMS else []
        later += [KEY_TABLES] if len(steps) >= _HAS_KEYS else []
        later += [LIMIT_TABLES] if len(steps) >= _HAS_LIMITS else []
        for tables in (MEDIA_TABLES, SEARCH_TABLES, *later):
            connection.run(tables)
            made.append(_schema_of(connection))
    finally:
        connection.close()
    before: list[_Schema] = [{}, *made]
    return tuple(
        {key: sql for key, sql in after.items() if key not in then} for then, after in zip(before, made, strict=False)
    )


def _schema_of(connection: Connection) -> _Schema:
    rows = connection.rows(_OBJECTS)
    kept = ((kind, name, table, sql) for kind, name, table, sql in rows if not _OWN.fullmatch(str(name)))
    return {(str(kind), str(name)): _normal(str(name), str(table), str(sql)) for kind, name, table, sql in kept}


def _normal(name: str, table: str, sql: str) -> str:
    """Return a declaration with normalised white space."""
    return f"{table}: {'' if _SHADOW.fullmatch(name) else ' '.join(sql.split())}"
