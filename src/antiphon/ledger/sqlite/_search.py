"""The index of words in a file, which the first search creates.

Appends do not update it. A search first brings it up to date, in steps that are small enough for appends in between. The index
stores no text: the words of a message are read from its bytes when a snippet needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.ledger._listing import Term, terms_of
from antiphon.ledger._records import Record
from antiphon.ledger._sql.lists import searched_segments
from antiphon.ledger._sql.rows import MESSAGES, CommitPlace, all_records_of
from antiphon.ledger._sql.statements import Row, Verb, rows, value, write
from antiphon.ledger._values import Hit
from antiphon.ledger.sqlite._schema import SEARCH_TABLES

_STEP = 2000
"""Messages that are indexed in one change."""

_FIND = """
SELECT rowid, rank, snippet(search, 0, '«', '»', '…', 16) FROM search WHERE search MATCH $2 ORDER BY rank, rowid LIMIT $3
"""
_FIND_IN = """
SELECT rowid, rank, snippet(search, 0, '«', '»', '…', 16) FROM search
WHERE search MATCH $2 AND rowid IN (SELECT position FROM messages WHERE thread = $3 AND seq BETWEEN $4 AND $5)
ORDER BY rank, rowid LIMIT $6
"""
_LAST_OF_STEP = """
SELECT max(position) FROM (SELECT position FROM messages WHERE position > $2 ORDER BY position LIMIT $3)
"""
_ADD_WORDS = "INSERT INTO search (rowid, words) SELECT position, words FROM said WHERE position > $2 AND position <= $3"


def index_words(after: CommitPlace | None) -> Verb[CommitPlace | None]:
    """Add the next messages to the index; return where to continue, or None if it has all of them."""
    if not (yield from value("SELECT count(*) FROM sqlite_schema WHERE name = 'search'")):
        yield from write(SEARCH_TABLES)
    # Not from `after`: another process may have added messages meanwhile.
    done = yield from value("SELECT value FROM counters WHERE name = 'searchable'")
    last = yield from value(_LAST_OF_STEP, done, _STEP)
    if last is None:
        return None
    yield from write(_ADD_WORDS, done, last)
    yield from write("UPDATE counters SET value = $2 WHERE name = 'searchable'", last)
    return CommitPlace(0, 0, last)


def find_words(typed: str, thread_id: str | None, limit: int) -> Verb[tuple[Hit, ...]]:
    """Return the best matches, of all threads or one."""
    terms = terms_of(typed)
    if not terms:
        return ()
    match = " AND ".join(map(_sought, terms))
    matches: list[Row] = []
    if thread_id is None:
        matches = yield from rows(_FIND, match, limit)
    else:
        for segment in (yield from searched_segments(thread_id)):
            matches += yield from rows(_FIND_IN, match, *segment, limit)
        matches = sorted(matches, key=lambda row: (row[1], row[0]))[:limit]
    records = yield from records_at([position for position, _, _ in matches])
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
