"""Search: an index of words that follows the messages when somebody searches.

Appending does not wait for the index; a search first brings it up to date, in steps small enough to let appends in between. It
holds no text of its own: the words of a message are read from its bytes where a snippet needs them.
"""

from __future__ import annotations

from antiphon.ledger._values import Hit
from antiphon.ledger._words import Term, terms_of
from antiphon.ledger.sqlite._rows import Segment, find_thread, lineage, record_at
from antiphon.ledger.sqlite._sql import Connection

__all__ = ["SEARCH_TABLES", "find", "index_some"]

_STEP = 500
"""Messages that are indexed in one change."""

SEARCH_TABLES = """
CREATE VIEW said AS SELECT position, words_of(body) AS words FROM messages;
CREATE VIRTUAL TABLE search USING fts5 (
    words, content = 'said', content_rowid = 'position', tokenize = 'unicode61 remove_diacritics 2'
);
INSERT INTO search (search, rank) VALUES ('secure-delete', 1);
"""
"""Made when somebody first searches: a ledger that nobody searches does not pay for it."""

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
        segments: list[Segment] = [] if thread is None else lineage(connection, thread)
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
