"""Lists: threads by page, heads, outbox entries, snapshots."""

from __future__ import annotations

from antiphon.errors import LedgerCorruptError
from antiphon.ledger._chain import to_micros
from antiphon.ledger._door import State
from antiphon.ledger._summaries import SYSTEM_PATTERN, head_of, order_of, page_of, page_start, summary_of
from antiphon.ledger._values import Head, ThreadFilter, ThreadOrder, ThreadPage, Undelivered
from antiphon.ledger.sqlite._appends import is_as_written, snapshot_hash
from antiphon.ledger.sqlite._rows import find_thread, line_to, link_at
from antiphon.ledger.sqlite._sql import Connection
from antiphon.messages import Json, Message, loads
from antiphon.messages._json import parse
from antiphon.messages._limits import NO_LIMITS

__all__ = ["heads", "snapshot", "threads", "undelivered"]

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


def undelivered(connection: Connection, limit: int) -> tuple[Undelivered, ...]:
    """Return the oldest outbox entries.

    Raises:
        LedgerCorruptError: one of them is not as it was written.
    """
    rows = connection.rows("SELECT position, thread_id, hash, body FROM outbox ORDER BY position LIMIT ?", (limit,))
    return tuple(_entry(*row) for row in rows)


def _entry(position: int, name: str, digest: bytes, body: bytes) -> Undelivered:
    if not is_as_written(name, digest, body):
        raise LedgerCorruptError(f"outbox entry {position} is not what was written; go back to a backup", name)
    return Undelivered(position, name, loads(body, Message, limits=NO_LIMITS))


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
