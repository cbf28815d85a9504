"""The indexes of words and terms in a file, as far as a deletion changes them: FTS5 removes words only if it gets them again.

`term_entries` has the terms of each message, and the FTS5 table `terms` finds them; its content is that table, so an entry is
removed from both by its position. `term_indexes` has one row for each index: the version of its function, the position up to
which messages were examined, and the figures for a ranking.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from antiphon.ledger._sql.statements import check_written
from antiphon.ledger._stored import checksum_of
from antiphon.ledger.sqlite._sql import Connection

HAS_TERMS = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE name = 'term_indexes')"
_STATE = "SELECT version, upto, entries, length FROM term_indexes WHERE name = ?"
_OF_THREAD = """
SELECT position, heading, body, name FROM term_entries
WHERE position IN (SELECT position FROM messages WHERE thread = ?)
"""
_DELETED = "INSERT INTO terms (terms, rowid, heading, body) VALUES ('delete', ?, ?, ?)"


class IndexState(NamedTuple):
    """The progress of an index."""

    version: str
    upto: int
    entries: int
    length: int


def unindex(connection: Connection, threads: Iterable[int]) -> None:
    """Remove the words and terms of threads, before their messages are deleted."""
    searchable = connection.value("SELECT value FROM counters WHERE name = 'searchable'")
    words_of = "SELECT position, words_of(body) FROM messages WHERE thread = ? AND position <= ?"
    has_terms = connection.value(HAS_TERMS)
    for key in threads:
        for position, words in connection.rows(words_of, (key, searchable)):
            connection.run("INSERT INTO search (search, rowid, words) VALUES ('delete', ?, ?)", (position, words))
        rows = connection.rows(_OF_THREAD, (key,)) if has_terms else []
        for name in {row[3] for row in rows}:
            lengths = remove_entries(connection, [row[:3] for row in rows if row[3] == name])
            version, upto, entries, length = connection.rows(_STATE, (name,))[0]
            set_state(connection, name, IndexState(version, upto, entries - len(lengths), length - sum(lengths)))


def remove_entries(connection: Connection, rows: Iterable[tuple[int, str, str]]) -> list[int]:
    """Remove entries of an index of terms, and return the length of each."""
    lengths: list[int] = []
    for position, heading, body in rows:
        connection.run(_DELETED, (position, heading, body))
        connection.run("DELETE FROM term_entries WHERE position = ?", (position,))
        check_written(connection.changes(), 1)
        connection.run("DELETE FROM term_vectors WHERE position = ?", (position,))
        lengths.append(len(heading.split()) + len(body.split()))
    return lengths


def state_of(connection: Connection, name: str) -> IndexState | None:
    """Return the progress of an index; None if it has none."""
    row = connection.row(_STATE, (name,)) if connection.value(HAS_TERMS) else None
    return None if row is None else IndexState(*row)


def set_state(connection: Connection, name: str, state: IndexState) -> None:
    """Store the progress of an index."""
    row = (name, *state)
    connection.run("INSERT OR REPLACE INTO term_indexes VALUES (?, ?, ?, ?, ?, ?)", (*row, checksum_of(row)))
    check_written(connection.changes(), 1)


def entry_checksum(digest: bytes, row: Sequence[Any]) -> int:
    """Return the checksum of an entry, and of the message that its terms are from."""
    return crc32(ascii(tuple(row)).encode(), crc32(digest)) - 2**31
