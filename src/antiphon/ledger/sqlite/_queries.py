"""Queries: threads and open calls by page, heads, hosts, snapshots, and full-text search.

Appending does not wait for the index of words: a search first brings it up to date, in steps small enough to let appends in
between. The index holds no text of its own: the words of a message are read from its bytes where a snippet needs them.
"""

from __future__ import annotations

from antiphon.errors import LedgerCorruptError
from antiphon.ledger._admission import State
from antiphon.ledger._chain import to_micros
from antiphon.ledger._listing import SYSTEM_PATTERN, Term, head_of, order_of, page_of, page_start, summary_of, terms_of
from antiphon.ledger._values import Head, Hit, ThreadFilter, ThreadOrder, ThreadPage
from antiphon.ledger.sqlite._appends import snapshot_hash
from antiphon.ledger.sqlite._rows import ThreadSegment, find_thread, line_to, lineage, link_at, record_at
from antiphon.ledger.sqlite._schema import SEARCH_TABLES
from antiphon.ledger.sqlite._sql import Connection
from antiphon.messages import Json
from antiphon.messages.json_values import parse

# ---------------------------------------------------------------- lists

_STATE = """
SELECT thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens, output_tokens, cost,
    forked_from, forked_at, is_redacted
FROM threads ORDER BY thread_id
"""

_THREADS = """
SELECT key, :sign * CASE :field WHEN 'updated_at' THEN updated_at ELSE created_at END AS place, open_calls,
    thread_id, seq, hash, epoch, run, open_from, status, pattern, created_at, updated_at, input_tokens, output_tokens, cost,
    forked_from, forked_at, is_redacted
FROM threads
WHERE (:status IS NULL OR status = :status)
    AND (:pattern IS NULL OR pattern = :pattern)
    AND (:system IS NULL OR (pattern IS :system_pattern) = :system)
    AND (:forked_from IS NULL OR forked_from = :forked_from)
    AND (:updated_after IS NULL OR updated_at > :updated_after)
    AND (:updated_before IS NULL OR updated_at < :updated_before)
    AND (:start IS NULL OR (place, :sign * key) > (:start, :start_key))
ORDER BY place, :sign * key LIMIT :limit
"""


def threads(connection: Connection, filter: ThreadFilter, order: ThreadOrder, page: str | None, limit: int) -> ThreadPage:
    """Return a page of threads."""
    field, is_reversed = order_of(order)
    sign = -1 if is_reversed else 1
    start, start_key = (None, None) if page is None else page_start(page)
    asked = {
        "field": field,
        "sign": sign,
        "status": filter.status,
        "pattern": filter.pattern,
        "system": filter.system,
        "system_pattern": SYSTEM_PATTERN,
        "forked_from": filter.forked_from,
        "updated_after": None if filter.updated_after is None else to_micros(filter.updated_after),
        "updated_before": None if filter.updated_before is None else to_micros(filter.updated_before),
        "start": None if start is None else sign * start,
        "start_key": None if start_key is None else sign * start_key,
        "limit": limit + 1,
    }
    rows = connection.rows(_THREADS, asked)
    after = page_of(sign * rows[limit - 1][1], rows[limit - 1][0]) if len(rows) > limit > 0 else None
    return ThreadPage(tuple(summary_of(State(*row[3:]), row[2]) for row in rows[:limit]), after)


def heads(connection: Connection) -> tuple[Head, ...]:
    """Return where every thread ends."""
    return tuple(head_of(State(*row)) for row in connection.rows(_STATE))


def snapshot(connection: Connection, thread_id: str, fold: str, upto: int) -> tuple[int, Json] | None:
    """Return the place and the state of a fold's snapshot that is not after a message.

    Raises:
        LedgerCorruptError: it is not as it was written.
    """
    thread = find_thread(connection, thread_id)
    sql = "SELECT seq, hash, state FROM snapshots WHERE thread = ? AND fold = ? AND seq <= ?"
    for holder in [] if thread is None else line_to(connection, thread.key, 0):
        if row := connection.row(sql, (holder.key, fold, upto)):
            seq, digest, state = row
            link = link_at(connection, holder.key, seq)
            if link is None or snapshot_hash(link, fold, state) != digest:
                raise LedgerCorruptError(f"the snapshot of {fold!r} is not what was written", thread_id, seq)
            return seq, parse(state)
        upto = min(upto, holder.base_seq)
    return None


# ---------------------------------------------------------------- search

_STEP = 500
"""Messages that are indexed in one change."""

_FIND = """
SELECT rowid, rank, snippet(search, 0, '«', '»', '…', 16) FROM search WHERE search MATCH ? ORDER BY rank, rowid LIMIT ?
"""
_FIND_IN = """
SELECT rowid, rank, snippet(search, 0, '«', '»', '…', 16) FROM search
WHERE search MATCH ? AND rowid IN (SELECT position FROM messages WHERE thread = ? AND seq BETWEEN ? AND ?)
ORDER BY rank, rowid LIMIT ?
"""


def index_some(connection: Connection) -> bool:
    """Add the next messages to the index, and return whether there are more."""
    if not connection.value("SELECT count(*) FROM sqlite_schema WHERE name = 'search'"):
        connection.run(SEARCH_TABLES)
    done = connection.value("SELECT value FROM counters WHERE name = 'searchable'")
    rows = connection.rows("SELECT position, words FROM said WHERE position > ? ORDER BY position LIMIT ?", (done, _STEP))
    for row in rows:
        connection.run("INSERT INTO search (rowid, words) VALUES (?, ?)", row)
    if rows:
        connection.run("UPDATE counters SET value = ? WHERE name = 'searchable'", (rows[-1][0],))
    return len(rows) == _STEP


def find(connection: Connection, typed: str, thread_id: str | None, limit: int) -> tuple[Hit, ...]:
    """Return the messages that fit best, of all threads or one."""
    terms = terms_of(typed)
    if not terms:
        return ()
    wanted = " AND ".join(map(_sought, terms))
    if thread_id is None:
        found = connection.rows(_FIND, (wanted, limit))
    else:
        thread = find_thread(connection, thread_id)
        segments: list[ThreadSegment] = [] if thread is None else lineage(connection, thread)
        several = (connection.rows(_FIND_IN, (wanted, *segment, limit)) for segment in segments)
        found = sorted((row for rows in several for row in rows), key=lambda row: (row[1], row[0]))[:limit]
    hits = ((record_at(connection, position), snippet) for position, _, snippet in found)
    return tuple(Hit(record, snippet) for record, snippet in hits if record is not None)


def _sought(term: Term) -> str:
    """Return a term as FTS5 takes it: strings, whose words it takes apart and folds as it did those of the messages.

    It does not know that ß and ss are the same letters, so both are asked for; and `mas*` may be the beginning of `Maße`.
    """
    plain = term.typed.removesuffix("*")
    sharp = plain.casefold().replace("ss", "ß")
    spellings = [plain, sharp.replace("ß", "ss"), sharp]
    if term.is_beginning and sharp.endswith("s"):
        spellings.append(f"{sharp[:-1]}ß")
    return f"({' OR '.join(_quoted(each, term.is_beginning) for each in dict.fromkeys(spellings))})"


def _quoted(typed: str, is_beginning: bool) -> str:
    plain = typed.replace('"', " ").replace("\0", " ")
    return f'"{plain}"' + ("*" if is_beginning else "")
