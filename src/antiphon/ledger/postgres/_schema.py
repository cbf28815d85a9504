"""The tables of a ledger in PostgreSQL, and the checks when a database is opened.

All tables are in the schema `antiphon`, and every key begins with the tenant. Row-level security is a second barrier behind
the condition `tenant = $1` of each statement: a connection sees only rows of the tenant in its setting `antiphon.tenant`.

**Order.** A message has a *place*: the era of the database, the id of the transaction that wrote it, and its number within the
transaction. A writer locks all threads of a transaction before it writes, so transaction ids follow the order of each thread.
A reader stays below the oldest running transaction, so no message appears later at an earlier place. Transaction ids start
again when a dump is restored into another database: `open_era` detects that, and starts a new era. Places of a new era follow
those of the old one.

**Updates in place.** A row of `threads` changes with every append. PostgreSQL updates no index if the indexed columns of a row
stay the same. So the time of the last message is indexed in steps of eight seconds (`active_at`), and sorted within a step.

**Formats (G25).** `format` is the format of the tables, `oldest` the oldest format whose programs may still use them. A change
that only adds raises `format`; only a change that breaks earlier programs raises `oldest`.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from antiphon.errors import LedgerCorruptError, LedgerFormatError, LedgerUnavailableError
from antiphon.ledger.postgres._connection import Connection

FORMAT: Final = 1
"""The format of the tables below."""

_TABLES = """
CREATE TABLE antiphon.ledger (
    format integer NOT NULL,
    oldest integer NOT NULL,
    era integer NOT NULL,
    columns text NOT NULL,
    name text NOT NULL
);

CREATE TABLE antiphon.threads (
    tenant text NOT NULL,
    key bigint GENERATED ALWAYS AS IDENTITY,
    thread_id text COLLATE "C" NOT NULL,
    seq bigint NOT NULL,
    hash bytea NOT NULL,
    epoch bigint NOT NULL,
    run bigint NOT NULL,
    open_from bigint,
    status text,
    pattern text,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost text NOT NULL,
    forked_from text,
    forked_at bigint,
    is_redacted boolean NOT NULL,
    owner bigint,
    kind text,
    due_at bigint,
    posted bigint NOT NULL,
    unfit text,
    open_calls bigint NOT NULL,
    base bigint,
    base_seq bigint NOT NULL,
    active_at bigint GENERATED ALWAYS AS (updated_at / 8000000) STORED,
    PRIMARY KEY (tenant, key),
    UNIQUE (tenant, thread_id)
) WITH (fillfactor = 80);
CREATE INDEX threads_by_activity ON antiphon.threads (tenant, active_at);
CREATE INDEX threads_by_creation ON antiphon.threads (tenant, created_at);
CREATE INDEX threads_by_status ON antiphon.threads (tenant, status) WHERE status IS NOT NULL;
CREATE INDEX threads_by_pattern ON antiphon.threads (tenant, pattern) WHERE pattern IS NOT NULL;
CREATE INDEX threads_by_kind ON antiphon.threads (tenant, kind) WHERE kind IS NOT NULL;
CREATE INDEX threads_by_fork ON antiphon.threads (tenant, forked_from) WHERE forked_from IS NOT NULL;
CREATE INDEX threads_by_base ON antiphon.threads (tenant, base) WHERE base IS NOT NULL;
CREATE INDEX threads_unfit ON antiphon.threads (tenant) WHERE unfit IS NOT NULL;
CREATE INDEX threads_owned ON antiphon.threads (tenant, owner, posted) WHERE owner IS NOT NULL;
CREATE INDEX threads_due ON antiphon.threads (tenant, kind, due_at) WHERE owner IS NULL AND due_at IS NOT NULL;

CREATE TABLE antiphon.messages (
    tenant text NOT NULL,
    thread bigint NOT NULL,
    seq bigint NOT NULL,
    era integer NOT NULL,
    xid bigint NOT NULL,
    ord integer NOT NULL,
    id_key bigint NOT NULL,
    invocation_key bigint,
    correlation_key bigint,
    open_from bigint,
    recorded_at bigint NOT NULL,
    hash bytea NOT NULL,
    media integer,
    body bytea NOT NULL,
    PRIMARY KEY (tenant, thread, seq)
);
CREATE UNIQUE INDEX messages_by_id ON antiphon.messages (tenant, thread, id_key);
CREATE UNIQUE INDEX messages_by_place ON antiphon.messages (tenant, era, xid, ord);
CREATE INDEX messages_by_invocation ON antiphon.messages (tenant, invocation_key) WHERE invocation_key IS NOT NULL;
CREATE INDEX messages_by_correlation ON antiphon.messages (tenant, correlation_key) WHERE correlation_key IS NOT NULL;

CREATE TABLE antiphon.media (tenant text NOT NULL, hash bytea NOT NULL, text bytea NOT NULL, PRIMARY KEY (tenant, hash));
CREATE TABLE antiphon.media_uses (
    tenant text NOT NULL,
    thread bigint NOT NULL,
    seq bigint NOT NULL,
    place integer NOT NULL,
    hash bytea NOT NULL,
    PRIMARY KEY (tenant, thread, seq, place)
);
CREATE INDEX media_uses_by_medium ON antiphon.media_uses (tenant, hash);

CREATE TABLE antiphon.open_calls (
    tenant text NOT NULL,
    thread bigint NOT NULL,
    seq bigint NOT NULL,
    option_key bigint NOT NULL,
    call bytea NOT NULL,
    era integer NOT NULL,
    xid bigint NOT NULL,
    ord integer NOT NULL,
    PRIMARY KEY (tenant, thread, seq)
);
CREATE INDEX open_calls_by_option ON antiphon.open_calls (tenant, option_key, era, xid, ord);

CREATE TABLE antiphon.snapshots (
    tenant text NOT NULL,
    thread bigint NOT NULL,
    fold text NOT NULL,
    seq bigint NOT NULL,
    hash bytea NOT NULL,
    state bytea NOT NULL,
    PRIMARY KEY (tenant, thread, fold)
);

CREATE TABLE antiphon.hosts (
    tenant text NOT NULL,
    key bigint GENERATED ALWAYS AS IDENTITY,
    name text COLLATE "C" NOT NULL,
    instance text NOT NULL,
    build text NOT NULL,
    kinds text NOT NULL,
    lease double precision NOT NULL,
    boot text NOT NULL,
    ends double precision NOT NULL,
    since bigint NOT NULL,
    beaten_at bigint NOT NULL,
    left_at bigint,
    checksum integer NOT NULL,
    PRIMARY KEY (tenant, key)
);
CREATE UNIQUE INDEX hosts_by_instance ON antiphon.hosts (tenant, name, instance) WHERE left_at IS NULL;

CREATE TABLE antiphon.indexed (
    tenant text NOT NULL,
    name text NOT NULL,
    version text NOT NULL,
    era integer NOT NULL,
    xid bigint NOT NULL,
    ord integer NOT NULL,
    PRIMARY KEY (tenant, name)
);
CREATE TABLE antiphon.words (
    tenant text NOT NULL, thread bigint NOT NULL, seq bigint NOT NULL, words tsvector NOT NULL,
    PRIMARY KEY (tenant, thread, seq)
);
CREATE INDEX words_found ON antiphon.words USING gin (words);

CREATE TABLE antiphon.term_sources (
    tenant text NOT NULL, name text NOT NULL, source text NOT NULL, version bigint NOT NULL,
    PRIMARY KEY (tenant, name, source)
);
CREATE TABLE antiphon.term_entries (
    tenant text NOT NULL,
    name text NOT NULL,
    thread bigint NOT NULL,
    seq bigint NOT NULL,
    source text NOT NULL,
    version bigint NOT NULL,
    heading text NOT NULL,
    body text NOT NULL,
    length bigint NOT NULL,
    terms text[] NOT NULL,
    vector bytea,
    PRIMARY KEY (tenant, name, thread, seq)
);
CREATE INDEX term_entries_by_source ON antiphon.term_entries (tenant, name, source);
CREATE INDEX term_entries_found ON antiphon.term_entries USING gin (terms);
CREATE TABLE antiphon.vector_spaces (
    tenant text NOT NULL, name text NOT NULL, model text NOT NULL, dimension integer NOT NULL, PRIMARY KEY (tenant, name)
);

CREATE TABLE antiphon.thread_keys (
    tenant text NOT NULL, thread bigint NOT NULL, master text NOT NULL, wrapped bytea, checksum integer NOT NULL,
    PRIMARY KEY (tenant, thread)
);
CREATE TABLE antiphon.redaction_rules (tenant text PRIMARY KEY, digest bigint NOT NULL);
CREATE TABLE antiphon.limits (
    tenant text NOT NULL, model text COLLATE "C" NOT NULL, state text NOT NULL, checksum integer NOT NULL,
    PRIMARY KEY (tenant, model)
);
"""

_WALLED = (
    "threads",
    "messages",
    "media",
    "media_uses",
    "open_calls",
    "snapshots",
    "hosts",
    "indexed",
    "words",
    "term_sources",
    "term_entries",
    "vector_spaces",
    "thread_keys",
    "redaction_rules",
    "limits",
)
"""The tables that have a tenant."""

_WALL = """
ALTER TABLE antiphon.{0} ENABLE ROW LEVEL SECURITY;
ALTER TABLE antiphon.{0} FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON antiphon.{0} USING (tenant = current_setting('antiphon.tenant', true));
"""

ERA = f"(SELECT era FROM antiphon.ledger WHERE oldest <= {FORMAT})"  # noqa: S608 (a number of ours)
"""The era for a new row; NULL, which PostgreSQL refuses, if a newer antiphon has made the tables unusable for this one."""

_STATISTICS = """
INSERT INTO antiphon.threads (
    tenant, key, thread_id, seq, hash, epoch, run, created_at, updated_at, input_tokens, output_tokens, cost, is_redacted,
    posted, open_calls, base_seq
) OVERRIDING SYSTEM VALUE
SELECT current_setting('antiphon.tenant'), -n, n::text, 0, '', 0, 0, 0, 0, 0, 0, '', true, 0, 0, 0
FROM generate_series(1, 100) AS n;
INSERT INTO antiphon.messages (tenant, thread, seq, era, xid, ord, id_key, recorded_at, hash, body)
SELECT current_setting('antiphon.tenant'), -n, 0, 0, 0, n, 0, 0, '', '' FROM generate_series(1, 100) AS n;
INSERT INTO antiphon.open_calls (tenant, thread, seq, option_key, call, era, xid, ord)
SELECT current_setting('antiphon.tenant'), -n, 0, 0, '', 0, 0, 0 FROM generate_series(1, 100) AS n;
ANALYZE antiphon.threads (tenant), antiphon.messages (tenant), antiphon.open_calls (tenant);
TRUNCATE antiphon.threads, antiphon.messages, antiphon.open_calls;
"""
"""Tells the planner, before there are rows, that many rows have the same tenant.

Without statistics, the planner expects 200 tenants, so in a small table any index on the tenant seems to find one row. It then
reads all threads of a tenant to find one, and a prepared statement keeps that plan while the table grows. `TRUNCATE` keeps the
statistics, and forgets the size.
"""

_COLUMNS = """
SELECT coalesce(string_agg(line, E'\n' ORDER BY line COLLATE "C"), '') FROM (
    SELECT format('%s.%s %s %s', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull) AS line
    FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid
    WHERE c.relnamespace = 'antiphon'::regnamespace AND c.relkind IN ('r', 'v', 'p', 'm') AND a.attnum > 0
        AND NOT a.attisdropped
    UNION ALL
    SELECT format('trigger %s %s', c.relname, t.tgname)
    FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_class AS c ON c.oid = t.tgrelid
    WHERE c.relnamespace = 'antiphon'::regnamespace AND NOT t.tgisinternal
    UNION ALL
    SELECT format('rule %s %s', c.relname, r.rulename)
    FROM pg_catalog.pg_rewrite AS r JOIN pg_catalog.pg_class AS c ON c.oid = r.ev_class
    WHERE c.relnamespace = 'antiphon'::regnamespace
) AS lines
"""
"""The result of a statement depends on the columns, triggers and rules of its tables. Most indexes only change its speed."""

_GUARDS = """
SELECT format('the row-level security of antiphon.%s', c.relname) AS what FROM pg_catalog.pg_class AS c
WHERE c.relnamespace = 'antiphon'::regnamespace AND c.relkind = 'r'
    AND EXISTS (SELECT 1 FROM pg_catalog.pg_attribute AS a WHERE a.attrelid = c.oid AND a.attname = 'tenant')
    AND (c.relrowsecurity AND c.relforcerowsecurity AND ARRAY['tenant'::name] = (
        SELECT array_agg(p.polname) FROM pg_catalog.pg_policy AS p WHERE p.polrelid = c.oid AND 0 = ANY(p.polroles)
    )) IS NOT TRUE
UNION ALL
SELECT format('the unique index antiphon.%s', wanted.name) FROM unnest($1::text[]) AS wanted (name) WHERE NOT EXISTS (
    SELECT 1 FROM pg_catalog.pg_index AS i JOIN pg_catalog.pg_class AS c ON c.oid = i.indexrelid
    WHERE c.relnamespace = 'antiphon'::regnamespace AND c.relname = wanted.name AND i.indisunique AND i.indisvalid
)
ORDER BY what
"""
"""The missing parts of the barriers between tenants, and of the indexes that writers rely on.

A second policy for all users also opens the barrier: a row that one of them allows is visible. One for an auditor does not.
"""
_UNIQUE = ("threads_pkey", "threads_tenant_thread_id_key", "messages_pkey", "messages_by_id", "messages_by_place")
"""The indexes that refuse a thread, a message or a place that already exists."""

_CREATION_LOCK = 0x616E7470
"""`antp`: the advisory lock of processes that create the tables, or start an era."""
_STATE = "SELECT format, oldest, columns FROM antiphon.ledger"
_EXISTS = "SELECT to_regclass('antiphon.ledger') IS NOT NULL"
_LATER = """
SELECT EXISTS (
    SELECT 1 FROM antiphon.messages WHERE era = (SELECT era FROM antiphon.ledger)
        AND xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
)
"""
"""Whether messages of this era have transaction ids that this database has not assigned yet."""

_State: TypeAlias = tuple[int, int, str]


async def prepare(connection: Connection, *, create: bool) -> str:
    """Create the tables if there are none, check them, and return the name that the ledger was given when it was created.

    Raises:
        LedgerCorruptError: the tables were altered.
        LedgerFormatError: another version made them, and this one cannot use them.
        LedgerUnavailableError: there is no ledger, and `create` is False.
    """
    if not await connection.fetchval(_EXISTS):
        if not create:
            raise LedgerUnavailableError("the database has no ledger; leave out `create=False`, or check the URL")
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _CREATION_LOCK)
            if not await connection.fetchval(_EXISTS):  # under the lock: another process may have created them in between
                await _create(connection)
    await _check(connection)
    await _open_era(connection)
    return str(await connection.fetchval("SELECT name FROM antiphon.ledger"))


async def _create(connection: Connection) -> None:
    await connection.execute("CREATE SCHEMA IF NOT EXISTS antiphon")
    await connection.execute(_TABLES + "".join(_WALL.format(table) for table in _WALLED))
    async with connection.transaction():  # in the transaction that has created a table, `TRUNCATE` keeps its size
        await connection.execute(_STATISTICS)
    columns = await connection.fetchval(_COLUMNS)
    await connection.execute("INSERT INTO antiphon.ledger VALUES ($1, $1, 1, $2, gen_random_uuid()::text)", FORMAT, columns)


async def check_format(connection: Connection) -> None:
    """Refuse a database that a newer antiphon has upgraded to a format that this one cannot use.

    Raises:
        LedgerFormatError: it has.
    """
    stored, oldest, _ = await _state(connection)
    if not oldest <= FORMAT <= stored:
        raise LedgerFormatError(
            f"the database has ledger format {stored}, which needs an antiphon of at least {oldest}, and this one has "
            f"{FORMAT}: use the antiphon that wrote it, or bring it over: `antiphon export` there, and `antiphon import` here"
        )


async def _state(connection: Connection) -> _State:
    rows = await connection.fetch(_STATE)
    if len(rows) != 1:
        raise LedgerCorruptError("the table antiphon.ledger does not have its one row; restore a dump")
    return rows[0]["format"], rows[0]["oldest"], rows[0]["columns"]


async def _check(connection: Connection) -> None:
    """Compare the tables with those that `_create` creates."""
    await check_format(connection)
    stored, _, expected = await _state(connection)
    actual = await connection.fetchval(_COLUMNS)
    if actual != expected:
        differing = sorted(set(actual.split("\n")) ^ set(expected.split("\n")))
        raise LedgerCorruptError(
            f"the tables of the ledger (format {stored}) were altered: {', '.join(differing[:3])}; "
            "undo that, or restore a dump"
        )
    if missing := await connection.fetch(_GUARDS, list(_UNIQUE)):
        raise LedgerCorruptError(
            f"the tables of the ledger (format {stored}) were altered: {missing[0][0]} is not what it was; "
            "undo that, or restore a dump"
        )


async def _open_era(connection: Connection) -> None:
    """Start a new era if the transaction ids of the database have started again, as after a restored dump.

    Each tenant checks its own messages, so another one may be writing. This waits for its transactions, because readers treat
    an earlier era as complete.
    """
    if not await connection.fetchval(_LATER):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", _CREATION_LOCK)
        if await connection.fetchval(_LATER):
            await connection.execute("LOCK TABLE antiphon.messages IN SHARE MODE")
            await connection.execute("UPDATE antiphon.ledger SET era = era + 1")
