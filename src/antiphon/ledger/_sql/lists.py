"""Lists: heads, open calls by page, snapshots, and the order of all threads."""

from __future__ import annotations

from typing import NamedTuple

from antiphon.errors import LedgerCorruptError, UnknownThreadError
from antiphon.ledger._admission import new_state
from antiphon.ledger._encryption import WrappedKey, is_sealed, not_searchable
from antiphon.ledger._listing import head_of
from antiphon.ledger._records import Record, snapshot_hash
from antiphon.ledger._sql.keys import blinded, check_remembered, find_key, thread_key
from antiphon.ledger._sql.rows import (
    BEGINNING,
    END,
    MESSAGES,
    CommitPlace,
    PlacedRecord,
    find_open_calls,
    find_thread,
    line_to,
    lineage,
    link_at,
    open_from,
    option_key,
    page_of_thread,
    place_in,
    records_by_number,
    records_of,
)
from antiphon.ledger._sql.statements import Row, Spelled, Verb, row, rows, value
from antiphon.ledger._stored import PageOfThread, PageRequest, ThreadSegment
from antiphon.ledger._values import CallPage, Head, ThreadSummary
from antiphon.messages import Json
from antiphon.messages._json_values import parse

# ---------------------------------------------------------------- threads


def head(thread_id: str) -> Verb[Head]:
    """Return the head of a thread, which may not exist."""
    thread = yield from find_thread(thread_id)
    return head_of(new_state(thread_id, 0) if thread is None else thread.state)


def summary(thread_id: str) -> Verb[ThreadSummary | None]:
    """Return the summary of a thread, if there is one."""
    thread = yield from find_thread(thread_id)
    return None if thread is None else thread.summary


def is_redacted(thread_id: str) -> Verb[bool | None]:
    """Return whether a thread is redacted; None if there is none."""
    thread = yield from find_thread(thread_id)
    return None if thread is None else bool(thread.state.is_redacted)


def wrapped_key(thread_id: str) -> Verb[WrappedKey | None]:
    """Return the wrapped key of a thread, if it is encrypted."""
    thread = yield from find_thread(thread_id)
    return None if thread is None else (yield from find_key(thread.key))


def page(thread_id: str, request: PageRequest) -> Verb[PageOfThread | None]:
    """Return the next messages of a thread."""
    thread = yield from find_thread(thread_id)
    if request.key is not None and (thread is None or thread.key != request.key):
        raise UnknownThreadError("it was deleted while it was read", thread_id)
    records = [placed.record for placed in (yield from page_of_thread(thread, request))]
    return PageOfThread(thread.key, thread.state.seq, records) if thread is not None and records else None


def first_open(thread_id: str, seq: int) -> Verb[int | None]:
    """Return the place of the first call since no call was open, as of a message."""
    thread = yield from find_thread(thread_id)
    return None if thread is None else (yield from open_from(thread, seq))


_SNAPSHOT = """
SELECT seq, hash, state FROM antiphon.snapshots WHERE tenant = $1 AND thread = $2 AND fold = $3 AND seq <= $4
"""


def snapshot(thread_id: str, fold: str, upto: int | None) -> Verb[tuple[int, Json] | None]:
    """Return the place and the state of a fold's latest snapshot, or of the latest up to a message."""
    thread = yield from find_thread(thread_id)
    upto = thread.state.seq if upto is None and thread is not None else upto or 0
    for holder in [] if thread is None else (yield from line_to(thread.key, 0)):
        columns = yield from row(_SNAPSHOT, holder.key, fold, upto)
        if columns is not None:
            seq, digest, state = columns
            link = yield from link_at(holder.key, seq)
            if link is None or snapshot_hash(link, fold, state) != digest:
                raise LedgerCorruptError(f"the snapshot of {fold!r} was altered", thread_id, seq)
            key = (yield from thread_key(holder.key)) if is_sealed(state) else None
            return seq, parse(state if key is None else key.open_snapshot(fold, seq, state))
        upto = min(upto, holder.base_seq)
    return None


# ---------------------------------------------------------------- lookups


def by_name(kind: str, name: str, thread_id: str | None) -> Verb[tuple[Record, ...]]:
    """Return the messages of an invocation or a correlation, of all threads or one."""
    segments = None
    if thread_id is not None:
        thread = yield from find_thread(thread_id)
        segments = [] if thread is None else (yield from lineage(thread))
    records = yield from records_by_number(kind, [name], segments)
    return tuple(record for record in records if getattr(record.message, f"{kind}_id") == name)


def open_calls(thread_id: str) -> Verb[tuple[Record, ...]]:
    """Return the calls of a thread that have no result."""
    thread = yield from find_thread(thread_id)
    if thread is None:
        return ()
    calls = (yield from find_open_calls([thread])).get(thread.key, [])
    if not calls:
        yield from check_remembered(thread)
    records: list[Record] = []
    for call in calls:
        records += [placed.record for placed in (yield from page_of_thread(thread, PageRequest(None, call.seq, call.seq)))]
    return tuple(records)


_CALLS = """
SELECT m.thread, m.seq, m.era, m.xid, m.ord, m.recorded_at, m.hash, m.media, m.body, p.hash AS previous
FROM antiphon.open_calls AS o <index>
JOIN antiphon.messages AS m ON <same>
LEFT JOIN antiphon.messages AS p ON p.tenant = m.tenant AND p.thread = m.thread AND p.seq = m.seq - 1
WHERE o.tenant = $1 AND o.option_key = $2 AND (o.era, o.xid, o.ord) > ($3, $4, $5)
ORDER BY o.era, o.xid, o.ord LIMIT $6
"""


def _calls(sql: str) -> Spelled:
    in_postgres = "m.tenant = o.tenant AND m.era = o.era AND m.xid = o.xid AND m.ord = o.ord"
    return Spelled(
        sql.replace("<index>", "").replace("<same>", in_postgres),
        sql.replace("<index>", "INDEXED BY open_calls_by_option").replace("<same>", "m.position = o.position"),
    )


CALLS = _calls(_CALLS)
CALLS_BACK = _calls(
    _CALLS.replace(" > (", " < (").replace("ORDER BY o.era, o.xid, o.ord", "ORDER BY o.era DESC, o.xid DESC, o.ord DESC")
)


def open_calls_of(option_name: str, is_reversed: bool, start: CommitPlace | None, limit: int) -> Verb[CallPage]:
    """Return a page of the open calls of one option."""
    first = (END if is_reversed else BEGINNING) if start is None else start
    sql = CALLS_BACK if is_reversed else CALLS
    call_rows = list((yield from rows(sql, option_key(option_name), *first, limit + 1)))
    if (hidden := (yield from blinded(option_name))) is not None:
        call_rows += yield from rows(sql, option_key(hidden), *first, limit + 1)
        call_rows.sort(key=lambda row: (*place_in(row), row[0]), reverse=is_reversed)
    records = yield from records_of(call_rows[:limit])
    after = str(records[-1].place) if len(call_rows) > limit > 0 and records else None
    return CallPage(tuple(placed.record for placed in records), after)


def searched_segments(thread_id: str) -> Verb[list[ThreadSegment]]:
    """Return the segments of a thread whose words are searched."""
    thread = yield from find_thread(thread_id)
    if thread is not None and (yield from find_key(thread.key)) is not None:
        raise not_searchable(thread_id)
    return [] if thread is None else (yield from lineage(thread))


# ---------------------------------------------------------------- order of all threads

BELOW_HORIZON = """
(m.era < (SELECT era FROM antiphon.ledger) OR m.xid < pg_snapshot_xmin(pg_current_snapshot())::text::bigint)
"""
"""No running transaction can write a message with a smaller place. In a file, a committed message is the next one."""
_MOST_TAILED = 256
_SINCE_PLACE = "m.tenant = $1 AND (m.era, m.xid, m.ord) > ($2, $3, $4)"
SINCE = Spelled(
    f"{MESSAGES} WHERE {_SINCE_PLACE} AND {BELOW_HORIZON} ORDER BY m.era, m.xid, m.ord LIMIT {_MOST_TAILED}",
    f"{MESSAGES} WHERE {_SINCE_PLACE} ORDER BY m.era, m.xid, m.ord LIMIT {_MOST_TAILED}",
)
_OF_THREAD = f"AND m.thread = $5 AND m.seq BETWEEN $6 AND $7 ORDER BY m.seq LIMIT {_MOST_TAILED}"
_SINCE_IN = Spelled(
    f"{MESSAGES} WHERE {_SINCE_PLACE} AND {BELOW_HORIZON} {_OF_THREAD}", f"{MESSAGES} WHERE {_SINCE_PLACE} {_OF_THREAD}"
)
_ABOVE = Spelled(
    f"SELECT 1 FROM antiphon.messages AS m WHERE {_SINCE_PLACE} AND NOT {BELOW_HORIZON} LIMIT 1",  # noqa: S608
    "SELECT 1 WHERE $2 + $3 + $4 IS NULL",
)
_LAST = Spelled(
    f"""
SELECT m.era, m.xid, m.ord FROM antiphon.messages AS m WHERE m.tenant = $1 AND {BELOW_HORIZON}
ORDER BY m.era DESC, m.xid DESC, m.ord DESC LIMIT 1
""",  # noqa: S608 (a condition of ours)
    "SELECT 0, 0, coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'messages'",
)
_HELD_BACK = Spelled(
    f"SELECT min(m.recorded_at) FROM antiphon.messages AS m WHERE {_SINCE_PLACE} AND NOT {BELOW_HORIZON}",  # noqa: S608
    "SELECT NULL WHERE $2 + $3 + $4 IS NULL",
)


class TailPage(NamedTuple):
    """The next messages of a tail."""

    records: list[PlacedRecord]
    upto: CommitPlace
    """The place of the last message that was read: those of forgotten threads are left out of the result."""
    is_more_coming: bool
    """Whether a running transaction holds back committed messages."""


def horizon() -> Verb[CommitPlace]:
    """Return the place of the last message that all readers have at the same place."""
    place = yield from row(_LAST)
    return BEGINNING if place is None else CommitPlace(*place)


def tail_lag(now: int) -> Verb[float]:
    """Return the age of the oldest message that a running transaction holds back; 0 if there is none."""
    oldest = yield from value(_HELD_BACK, *(yield from horizon()))
    return 0.0 if oldest is None else max(0.0, (now - int(oldest)) / 1e6)


def since(place: CommitPlace, thread_id: str | None) -> Verb[TailPage]:
    """Return the next messages after a place, of all threads or one."""
    message_rows: list[Row] = []
    if thread_id is None:
        message_rows = yield from rows(SINCE, *place)
    else:
        thread = yield from find_thread(thread_id)
        for segment in [] if thread is None else (yield from lineage(thread)):
            message_rows += yield from rows(_SINCE_IN, *place, *segment)
    message_rows = message_rows[:_MOST_TAILED]
    records = yield from records_of(message_rows, with_forgotten=thread_id is not None)
    is_more = not message_rows and bool((yield from value(_ABOVE, *place)))
    upto = (
        records[-1].place if records else place_in(message_rows[-1]) if message_rows else place
    )  # all of them are of forgotten threads
    return TailPage(records, upto, is_more)
