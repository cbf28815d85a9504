"""Checksums of what nothing else in the file accounts for.

Most of a ledger's columns can be computed again from the messages, and `verify` does that. The rest gets a checksum when it
is written:

- `messages.checksum` covers the position of a row: the order of commits across threads.
- `threads.checksum` covers the key, name, epoch, status, pattern and times of a thread, and whether it is redacted.
- A counter holds a sum over the numbers of all outbox entries.
- Counters say how many messages, threads and outbox entries were removed. Numbers are given out without a gap and never
  twice, so what is there and what was removed is as much as was ever given out; a row that was taken out is missed.

They are signed numbers of 32 bits, which SQLite writes in four bytes: a row that changes but keeps its size is overwritten in
place, and a row of `threads` changes with every append.

There is no key in them: they find accidents and edits by SQL. Anyone who knows this file can compute them again; against
that only heads help that were kept somewhere else.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

from antiphon.errors import LedgerCorruptError
from antiphon.ledger._admission import State
from antiphon.ledger.sqlite._sql import Connection

COUNTERS = ("searchable", "repeated", "unchecked", "entries", "removed messages", "removed threads", "removed outbox")
"""All counters. `unchecked` is the last position that was written before there were checksums, `entries` is the sum."""

NO_CHECKSUM = -(2**31)
"""What a row has until its checksum is known: as long as one."""


def message_checksum(position: int, digest: bytes) -> int:
    """Return the checksum of a row of `messages`, whose hash accounts for everything but the position."""
    return crc32(digest, position & 0xFFFFFFFF) - 2**31


def state_checksum(key: int, state: State) -> int:
    """Return the part of a thread's checksum that most appends leave as it is.

    A later column goes in here. Append it to what is hashed only where it has another value than rows had before it, so
    that the checksums of those stay true.
    """
    covered = (key, state.thread_id, state.epoch, state.status, state.pattern, state.created_at)
    digest = crc32(b"%a %a %a %a %a %a" % covered)  # as `ascii`: what `repr` escapes depends on the version of Python
    return digest if state.is_redacted is None else crc32(b" %d" % state.is_redacted, digest)


def thread_checksum(part: int, updated_at: int) -> int:
    """Return the checksum of a row of `threads`: `state_checksum`, and the time."""
    return crc32(updated_at.to_bytes(8, "big", signed=True), part) - 2**31


def set_checksum(connection: Connection, key: int, state: State) -> None:
    """Give a thread's row its epoch and its checksum."""
    checksum = thread_checksum(state_checksum(key, state), state.updated_at)
    connection.run("UPDATE threads SET epoch = ?, checksum = ? WHERE key = ?", (state.epoch, checksum, key))
    check_written(connection.changes(), 1)


def entry_checksum(position: int, digest: bytes) -> int:
    """Return what an outbox entry adds to the sum over all entries."""
    return crc32(ascii((position, digest)).encode())


def add_entries(connection: Connection, entries: Iterable[tuple[int, bytes]], *, removed: bool = False) -> None:
    """Take outbox entries, by position and hash, into the sum, or out of it."""
    value = sum(entry_checksum(*entry) for entry in entries)
    _count(connection, "entries", -value if removed else value)


def note_removed(connection: Connection, table: str, rows: int) -> None:
    """Count rows that were removed from a numbered table."""
    _count(connection, f"removed {table}", rows)


def _count(connection: Connection, name: str, value: int) -> None:
    connection.run("UPDATE counters SET value = value + ? WHERE name = ?", (value, name))
    check_written(connection.changes(), 1)


def check_written(written: int, expected: int) -> None:
    """Make sure that SQLite has written as many rows as it was given.

    Raises:
        LedgerCorruptError: it has not; something in the file keeps it from doing so.
    """
    if written != expected:
        reason = f"{written} rows were written where {expected} should have been"
        raise LedgerCorruptError(f"{reason}: a trigger swallows or adds rows, or a row is missing; run verify")
