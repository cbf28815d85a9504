"""The indexes of words and terms in a file, as far as a deletion changes them: FTS5 removes words only if it gets them again.

`term_entries` has the terms of each message, and the FTS5 table `terms` finds them; its content is that table, so an entry is
removed from both by its position. `term_indexes` has one row for each index: the version of its function, the position up to
which messages were examined, and the figures for a ranking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from antiphon.ledger._sql.statements import Row, Verb, row, rows, value, write, write_one
from antiphon.ledger._stored import checksum_of

HAS_TERMS = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'term_indexes')"
_STATE = "SELECT version, upto, entries, length FROM term_indexes WHERE name = $2"
_WORDS = "SELECT position, words_of(body) FROM messages WHERE thread = $2 AND position <= $3"
_OF_THREAD = """
SELECT position, heading, body, name FROM term_entries
WHERE position IN (SELECT position FROM messages WHERE thread = $2)
"""
_DELETED = "INSERT INTO terms (terms, rowid, heading, body) VALUES ('delete', $2, $3, $4)"


class IndexState(NamedTuple):
    """The progress of an index."""

    version: str
    upto: int
    entries: int
    length: int


def unindex(threads: Iterable[int]) -> Verb[None]:
    """Remove the words and terms of threads, before their messages are deleted."""
    searchable = yield from value("SELECT value FROM counters WHERE name = 'searchable'")
    has_terms = yield from value(HAS_TERMS)
    for key in threads:
        for position, words in (yield from rows(_WORDS, key, searchable)):
            yield from write("INSERT INTO search (search, rowid, words) VALUES ('delete', $2, $3)", position, words)
        entries = (yield from rows(_OF_THREAD, key)) if has_terms else []
        for name in {entry[3] for entry in entries}:
            lengths = yield from remove_entries([entry[:3] for entry in entries if entry[3] == name])
            version, upto, count, length = (yield from rows(_STATE, name))[0]
            yield from set_state(name, IndexState(version, upto, count - len(lengths), length - sum(lengths)))


def remove_entries(entries: Iterable[Row]) -> Verb[list[int]]:
    """Remove entries of an index of terms, and return the length of each."""
    lengths: list[int] = []
    for position, heading, body in entries:
        yield from write(_DELETED, position, heading, body)
        yield from write_one("DELETE FROM term_entries WHERE position = $2", position)
        yield from write("DELETE FROM term_vectors WHERE position = $2", position)
        lengths.append(len(heading.split()) + len(body.split()))
    return lengths


def state_of(name: str) -> Verb[IndexState | None]:
    """Return the progress of an index; None if it has none."""
    columns = (yield from row(_STATE, name)) if (yield from value(HAS_TERMS)) else None
    return None if columns is None else IndexState(*columns)


def set_state(name: str, state: IndexState) -> Verb[None]:
    """Store the progress of an index."""
    columns = (name, *state)
    yield from write_one("INSERT OR REPLACE INTO term_indexes VALUES ($2, $3, $4, $5, $6, $7)", *columns, checksum_of(columns))


def entry_checksum(digest: bytes, columns: Sequence[Any]) -> int:
    """Return the checksum of an entry, and of the message that its terms are from."""
    return crc32(ascii(tuple(columns)).encode(), crc32(digest)) - 2**31
