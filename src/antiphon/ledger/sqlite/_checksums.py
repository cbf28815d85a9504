"""Checksums of what nothing else in the file accounts for.

Most of a ledger's columns can be computed again from the messages, and `verify` does that. The rest gets a checksum when it
is written:

- `messages.checksum` covers the position of a row: the order of commits across threads.
- `threads.checksum` covers the epoch, status, pattern and times of a thread, and whether it is redacted.
- Counters hold a sum over all threads and one over all outbox entries, so that a row that was taken out is missed, and the
  largest number that each numbered table had used when rows were last removed, so that no number is given out twice.

There is no key in them: they find accidents and edits by SQL. Somebody who knows this file can compute them again; against
that only heads help that were kept somewhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from antiphon.errors import LedgerCorruptError
from antiphon.ledger._door import State
from antiphon.ledger.sqlite._sql import Connection

__all__ = [
    "COUNTERS",
    "add_entries",
    "add_threads",
    "check_written",
    "entry_checksum",
    "message_checksum",
    "name_checksum",
    "note_numbers",
    "state_checksum",
    "thread_checksum",
]

COUNTERS = (
    "searchable",
    "repeated",
    "unchecked",
    "threads",
    "entries",
    "last of messages",
    "last of threads",
    "last of outbox",
)
"""All counters.

`unchecked` is the last position that was written before there were checksums, `threads` and `entries` are the sums, and
`last of …` the largest number that a table had used when rows of it were last removed.
"""

_LAST = """
UPDATE counters SET value = (
    SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE 'last of ' || sqlite_sequence.name = counters.name
) WHERE name LIKE 'last of %'
"""


def message_checksum(position: int, digest: bytes) -> int:
    """Return the checksum of a row of `messages`, whose hash accounts for everything but the position."""
    return crc32(digest, position & 0xFFFFFFFF)


def state_checksum(state: State) -> int:
    """Return the part of a thread's checksum that most appends leave as it is.

    A later column goes in here. Add it to the tuple only where it has another value than rows had before it, so that
    the checksums of those stay true.
    """
    covered: tuple[object, ...] = (state.thread_id, state.epoch, state.status, state.pattern, state.created_at)
    if state.is_redacted is not None:
        covered += (int(state.is_redacted),)
    return crc32(ascii(covered).encode())  # `ascii`, because what `repr` escapes depends on the version of Python


def thread_checksum(state: State, part: int | None = None) -> int:
    """Return the checksum of a row of `threads`."""
    return crc32(b"%a" % (state.updated_at,), state_checksum(state) if part is None else part)


def name_checksum(key: object, thread_id: object) -> int:
    """Return what a thread adds to the sum over all threads."""
    return crc32(ascii((key, thread_id)).encode())


def entry_checksum(position: object, digest: object) -> int:
    """Return what an outbox entry adds to the sum over all entries."""
    return crc32(ascii((position, digest)).encode())


def add_threads(connection: Connection, added: Iterable[tuple[object, object]], *, removed: bool = False) -> None:
    """Take threads, by key and name, into the sum, or out of it."""
    _add(connection, "threads", sum(name_checksum(*each) for each in added), removed=removed)


def add_entries(connection: Connection, added: Iterable[tuple[object, object]], *, removed: bool = False) -> None:
    """Take outbox entries, by position and hash, into the sum, or out of it."""
    _add(connection, "entries", sum(entry_checksum(*each) for each in added), removed=removed)


def _add(connection: Connection, name: str, value: int, *, removed: bool) -> None:
    connection.run("UPDATE counters SET value = value + ? WHERE name = ?", (-value if removed else value, name))
    check_written(connection.changes(), 1)


def note_numbers(connection: Connection) -> None:
    """Remember which numbers were used, before or after rows are removed: what is there does not show it any longer."""
    connection.run(_LAST)


def check_written(written: int, expected: int) -> None:
    """Make sure that SQLite has written as many rows as it was given.

    Raises:
        LedgerCorruptError: it has not; something in the file keeps it from doing so.
    """
    if written != expected:
        reason = f"{written} rows were written where {expected} should have been"
        raise LedgerCorruptError(f"{reason}: a trigger swallows or adds rows, or a row is missing; run verify")
