"""Verifies the index of words, and examines the server and its settings: durability, readers, locks, tenants, the clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from antiphon.ledger._listing import fold_words, words_of
from antiphon.ledger._sql.lists import tail_lag
from antiphon.ledger._sql.statements import Verb, rows
from antiphon.ledger._stored import Thread
from antiphon.ledger._values import Damage, Diagnosis
from antiphon.ledger._verification import StoredRow
from antiphon.ledger.postgres._search import vector_of

_WORDS = """
SELECT w.seq, w.words = v.words::tsvector FROM antiphon.words AS w JOIN unnest($3::bigint[], $4::text[]) AS v (seq, words)
    ON v.seq = w.seq WHERE w.tenant = $1 AND w.thread = $2
"""


def words_damage(thread: Thread, stored: Sequence[StoredRow]) -> Verb[Damage | None]:
    """Compare the index of words with the messages, where it has them."""
    texts = [vector_of(fold_words(words_of(row.body))) for row in stored]
    comparison = yield from rows(_WORDS, thread.key, [row.seq for row in stored], texts)
    wrong = [seq for seq, is_same in comparison if not is_same]
    return Damage(thread.state.thread_id, min(wrong), "the index of words has other words for it") if wrong else None


# ---------------------------------------------------------------- diagnosis

_OLDEST_SERVER = 130_000
_OPEN_TOO_LONG = 60.0
"""Seconds: a transaction that is open for longer delays `tail` noticeably."""
_FEW_LOCKS = 64 * 50
"""Locks of all transactions together; a group of appends takes up to 200."""

_LOOK = """
WITH open AS MATERIALIZED (
    SELECT xact_start AS since, application_name || ' (process ' || pid || ')' AS who
    FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
    UNION ALL
    SELECT prepared, 'the prepared transaction ' || gid FROM pg_prepared_xacts
)
SELECT
    current_setting('server_version_num')::integer AS number,
    current_setting('server_version') AS version,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('synchronous_standby_names') AS standby_names,
    current_setting('max_locks_per_transaction')::integer * current_setting('max_connections')::integer AS locks,
    (SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user) AS is_above_rules,
    (SELECT count(*) FROM pg_stat_replication) AS standbys,
    (SELECT extract(epoch FROM max(clock_timestamp() - since))::double precision FROM open) AS oldest,
    (SELECT who FROM open ORDER BY since LIMIT 1) AS who,
    (SELECT count(*) FROM open WHERE since IS NULL) AS hidden,
    pg_size_pretty(pg_database_size(current_database())) AS size
WHERE $1::text IS NOT NULL
"""
"""An ordinary user sees that another user's transaction is open, and not since when."""


def diagnose(skew: timedelta, now: int) -> Verb[tuple[Diagnosis, ...]]:
    """Examine the server; `skew` is how far its clock is from this machine's."""
    (figures,) = yield from rows(_LOOK)
    return tuple(_diagnoses(figures, skew, (yield from tail_lag(now))))


def _diagnoses(row: Any, skew: timedelta, lag: float) -> Iterator[Diagnosis]:
    is_old = row["number"] < _OLDEST_SERVER
    yield Diagnosis("PostgreSQL", row["version"], "upgrade the server to 13 or later" if is_old else None)
    for name, danger in (
        ("fsync", "a power cut can destroy the whole database"),
        ("full_page_writes", "a power cut can damage pages"),
        ("synchronous_commit", "a crash loses appends that were acknowledged"),
    ):
        is_off = row[name] in ("off", "local") if name == "synchronous_commit" else row[name] == "off"
        yield Diagnosis(name, row[name], f"set {name} = on in postgresql.conf: without it, {danger}" if is_off else None)
    oldest = row["oldest"] or 0.0
    open_transactions = f"{row['who']} has had a transaction open for {oldest:.0f} s" if oldest else "none is open"
    open_transactions += (
        f"; and {row['hidden']} of other users, for a time that only pg_read_all_stats shows" if row["hidden"] else ""
    )
    yield Diagnosis(
        "oldest transaction",
        open_transactions,
        "end it, or set idle_in_transaction_session_timeout: it holds every tail back" if oldest > _OPEN_TOO_LONG else None,
    )
    yield Diagnosis(
        "tail",
        f"held back for {lag:.0f} s" if lag else "up to date",
        "end the transaction that holds it back: a superuser sees it in pg_stat_activity or pg_prepared_xacts"
        if lag > _OPEN_TOO_LONG
        else None,
    )
    few = "raise max_locks_per_transaction or max_connections: a group of appends takes up to 200 locks"
    yield Diagnosis("locks", str(row["locks"]), few if row["locks"] < _FEW_LOCKS else None)
    yield Diagnosis(
        "user",
        "not bound by row-level security" if row["is_above_rules"] else "bound by row-level security",
        "use an ordinary user, so that row-level security keeps tenants apart" if row["is_above_rules"] else None,
    )
    standbys = f"{row['standbys']} standbys, synchronous: {row['standby_names'] or 'none'}"
    yield Diagnosis("replication", standbys)  # a single server may suffice, so this gives no advice
    yield Diagnosis("disk", f"{row['size']} used; only the machine of the server shows how much is free")
    seconds = abs(skew.total_seconds())
    yield Diagnosis(
        "clock",
        f"{seconds:.1f} s from this machine's",
        "set the clock of this machine: times are taken from the database until then" if seconds > 1 else None,
    )
