"""Checksums of the data that cannot be computed from the messages.

`verify` computes most of a ledger's columns again from the messages. The other columns get a checksum when they are written:

- `messages.checksum` covers the position of a row: the order of commits across threads.
- `threads.checksum` covers the key, name, epoch, status, pattern and times of a thread, whether it is redacted, its owner and
  kind, when it is due, and the builds that are unfit for it.
- `hosts.checksum` covers a row of `hosts`, and `limits.checksum` a row of `limits`.
- Counters hold how many messages, threads and hosts were removed. Keys are assigned without a gap and never twice. So the
  number of rows and of removed rows must add up to the last key, and a row that was removed by other means is noticed.

They are signed numbers of 32 bits, which SQLite writes in four bytes. So a changed row keeps its size and is overwritten in
place, which matters because a row of `threads` changes with every append.

The checksums have no key. They detect accidents and edits by SQL. An attacker can compute them again; only heads that were
kept elsewhere detect that.
"""

from __future__ import annotations

from antiphon.ledger._admission import State
from antiphon.ledger._sql.statements import check_written
from antiphon.ledger._stored import OWNERSHIP, state_checksum, thread_checksum
from antiphon.ledger.sqlite._sql import Connection

COUNTERS = (
    "searchable",
    "repeated",
    "removed messages",
    "removed threads",
    "removed hosts",
    "redaction",
    "limits",
)
"""All counters. `redaction` is a digest (see `Redaction`)."""

NO_CHECKSUM = -(2**31)
"""The value until the checksum is known; it has the size of a checksum."""


_OWNER = """
UPDATE threads SET epoch = ?, owner = ?, kind = ?, due_at = ?, posted = ?, unfit = ?, checksum = ? WHERE key = ?
"""


def set_checksum(connection: Connection, key: int, state: State) -> None:
    """Give a thread's row its checksum."""
    checksum = thread_checksum(state_checksum(key, state), state.updated_at)
    connection.run("UPDATE threads SET checksum = ? WHERE key = ?", (checksum, key))
    check_written(connection.changes(), 1)


def set_owner(connection: Connection, key: int, state: State) -> None:
    """Write a thread's epoch, owner, kind, due time and unfit builds, with its checksum."""
    checksum = thread_checksum(state_checksum(key, state), state.updated_at)
    connection.run(_OWNER, (state.epoch, *state[OWNERSHIP:], checksum, key))
    check_written(connection.changes(), 1)


def note_removed(connection: Connection, table: str, rows: int) -> None:
    """Count rows that were removed from a numbered table."""
    _count(connection, f"removed {table}", rows)


def _count(connection: Connection, name: str, value: int) -> None:
    connection.run("UPDATE counters SET value = value + ? WHERE name = ?", (value, name))
    check_written(connection.changes(), 1)
