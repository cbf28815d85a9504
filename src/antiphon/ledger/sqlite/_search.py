"""The index of words in a file, which the first search creates.

Appends do not update it. A search first brings it up to date, in steps that are small enough for appends in between. The index
stores no text: the words of a message are read from its bytes when a snippet needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.ledger._encryption import not_searchable
from antiphon.ledger._listing import Term, terms_of
from antiphon.ledger._records import Record
from antiphon.ledger._sql.keys import find_key
from antiphon.ledger._sql.rows import MESSAGES, all_records_of, find_thread, lineage
from antiphon.ledger._sql.statements import Verb, rows
from antiphon.ledger._stored import ThreadSegment
from antiphon.ledger._values import Hit
from antiphon.ledger.sqlite._driver import run
from antiphon.ledger.sqlite._schema import SEARCH_TABLES
from antiphon.ledger.sqlite._sql import Connection

_STEP = 2000
"""Messages that are indexed in one change."""

_FIND = """
SELECT rowid, rank, snippet(search, 0, '«', '»', '…', 16) FROM search WHERE search MATCH ? ORDER BY rank, rowid LIMIT ?
"""
_FIND_IN = """
SELECT rowid, rank, snippet(search, 0, '«', '»', '…', 16) FROM search
WHERE search MATCH ? AND rowid IN (SELECT position FROM messages WHERE thread = ? AND seq BETWEEN ? AND ?)
ORDER BY rank, rowid LIMIT ?
"""


def index_words(connection: Connection) -> bool:
    """Add the next messages to the index, and return whether there are more."""
    if not connection.value("SELECT count(*) FROM sqlite_schema WHERE name = 'search'"):
        connection.run(SEARCH_TABLES)
    done = connection.value("SELECT value FROM counters WHERE name = 'searchable'")
    last = connection.value(
        "SELECT max(position) FROM (SELECT position FROM messages WHERE position > ? ORDER BY position LIMIT ?)", (done, _STEP)
    )
    if last is None:
        return False
    connection.run(
        "INSERT INTO search (rowid, words) SELECT position, words FROM said WHERE position > ? AND position <= ?", (done, last)
    )
    connection.run("UPDATE counters SET value = ? WHERE name = 'searchable'", (last,))
    return True


def find_words(connection: Connection, typed: str, thread_id: str | None, limit: int) -> tuple[Hit, ...]:
    """Return the best matches, of all threads or one."""
    terms = terms_of(typed)
    if not terms:
        return ()
    match = " AND ".join(map(_sought, terms))
    if thread_id is None:
        matches = connection.rows(_FIND, (match, limit))
    else:
        thread = run(connection, find_thread(thread_id))
        if thread is not None and run(connection, find_key(thread.key)) is not None:
            raise not_searchable(thread_id)
        segments: list[ThreadSegment] = [] if thread is None else run(connection, lineage(thread))
        matches_by_segment = (connection.rows(_FIND_IN, (match, *segment, limit)) for segment in segments)
        matches = sorted((row for rows in matches_by_segment for row in rows), key=lambda row: (row[1], row[0]))[:limit]
    records = run(connection, records_at([position for position, _, _ in matches]))
    return tuple(Hit(records[position], snippet) for position, _, snippet in matches if position in records)


_AT = f"{MESSAGES} WHERE m.tenant = $1 AND m.position = ANY($2::bigint[]) ORDER BY m.position"


def records_at(positions: Sequence[int]) -> Verb[dict[int, Record]]:
    """Return the messages at some positions, without those of forgotten threads.

    Raises:
        LedgerCorruptError: one of them was altered.
    """
    records = yield from all_records_of((yield from rows(_AT, list(positions))))
    return {placed.place.ord: placed.record for placed in records}


def _sought(term: Term) -> str:
    """Return a term as FTS5 strings. FTS5 splits and folds their words in the same way as the words of messages.

    FTS5 does not treat ß and ss as equal, so the term has both; and `mas*` may be a prefix of `Maße`.
    """
    plain = term.typed.removesuffix("*")
    sharp = plain.casefold().replace("ss", "ß")
    spellings = [plain, sharp.replace("ß", "ss"), sharp]
    if term.is_beginning and sharp.endswith("s"):
        spellings.append(f"{sharp[:-1]}ß")
    return f"({' OR '.join(_quoted(spelling, term.is_beginning) for spelling in dict.fromkeys(spellings))})"


def _quoted(typed: str, is_beginning: bool) -> str:
    plain = typed.replace('"', " ").replace("\0", " ")
    return f'"{plain}"' + ("*" if is_beginning else "")
