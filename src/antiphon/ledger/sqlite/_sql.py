"""A connection that runs each statement to its end, with typed rows; and the checksums of rows.

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast
from zlib import crc32

import apsw

from antiphon.errors import LedgerCorruptError
from antiphon.ledger._admission import State
from antiphon.ledger._encryption import Keyring

# ---------------------------------------------------------------- the connection

NO_KEYS = Keyring()
"""Opens no encrypted thread."""

Values: TypeAlias = Sequence[Any] | Mapping[str, Any]


class Connection(apsw.Connection):
    """A connection whose methods return when their statement has ended, except `each`."""

    def __init__(self, path: str, flags: int, vfs: str | None = None) -> None:
        super().__init__(path, flags=flags, vfs=vfs)
        # Only this class has casts: the package does not provide all its types for each version of Python.
        cursor = self.cursor()  # shared by all methods except `each`: making a cursor takes as long as a short statement
        self._run = cast("Callable[[str, Values], Iterator[tuple[Any, ...]]]", cursor.execute)
        self._run_all = cast("Callable[[str, Sequence[Values]], object]", cursor.executemany)
        self.keyring = NO_KEYS
        """The keys of encrypted threads."""

    def run(self, sql: str, values: Values = ()) -> None:
        """Run a statement, and ignore its rows."""
        for _ in self._run(sql, values):
            pass

    def run_all(self, sql: str, values: Sequence[Values]) -> None:
        """Run a statement that returns no rows, once for each of the values."""
        if len(values) == 1:
            self._run(sql, values[0])
        else:
            self._run_all(sql, values)

    def rows(self, sql: str, values: Values = ()) -> list[tuple[Any, ...]]:
        """Return all rows."""
        return list(self._run(sql, values))

    def row(self, sql: str, values: Values = ()) -> tuple[Any, ...] | None:
        """Return the first row, if there is one."""
        return next(iter(self.rows(sql, values)), None)

    def value(self, sql: str, values: Values = ()) -> Any:
        """Return the first value of the first row, if there is one."""
        row = self.row(sql, values)
        return None if row is None else row[0]

    def setting(self, name: str, value: object = None) -> Any:
        """Set one of SQLite's settings, or return it."""
        pragma = cast("Callable[..., Any]", self.pragma)
        return pragma(name) if value is None else pragma(name, value)

    def define(self, name: str, function: Callable[[Any], Any]) -> None:
        """Define a pure function of one value for statements and views."""
        make = cast("Callable[..., None]", self.create_scalar_function)
        make(name, function, 1, deterministic=True, flags=apsw.SQLITE_INNOCUOUS)

    def each(self, sql: str, values: Values = ()) -> Iterator[tuple[Any, ...]]:
        """Return rows one by one, while the statement runs."""
        found = self.execute(sql, values)  # pyright: ignore[reportUnknownMemberType]
        return cast("Iterator[tuple[Any, ...]]", found)


# ---------------------------------------------------------------- checksums

COUNTERS = (
    "searchable",
    "repeated",
    "unchecked",
    "removed messages",
    "removed threads",
    "removed hosts",
    "redaction",
    "limits",
)
"""All counters. `unchecked` is the last position from before checksums existed; `redaction` is a digest (see `Redaction`)."""

NO_CHECKSUM = -(2**31)
"""The value until the checksum is known; it has the size of a checksum."""


_OWNERSHIP = State._fields.index("owner")
"""The index of the first field of a state that format 4 added; all later fields are of format 4 too."""
_UNOWNED = tuple(State._field_defaults[name] for name in State._fields[_OWNERSHIP:])
_OWNER = """
UPDATE threads SET epoch = ?, owner = ?, kind = ?, due_at = ?, posted = ?, unfit = ?, checksum = ? WHERE key = ?
"""


def message_checksum(position: int, digest: bytes) -> int:
    """Return the checksum of a row of `messages`. The row's hash covers everything except the position."""
    return crc32(digest, position & 0xFFFFFFFF) - 2**31


def state_checksum(key: int, state: State) -> int:
    """Return the part of a thread's checksum that most appends do not change.

    Add a later column here. Hash it only if its value differs from that of older rows, so that their checksums stay valid.
    """
    covered = (key, state.thread_id, state.epoch, state.status, state.pattern, state.created_at)
    digest = crc32(b"%a %a %a %a %a %a" % covered)  # as `ascii`: what `repr` escapes depends on the version of Python
    if state.is_redacted is not None:
        digest = crc32(b" %d" % state.is_redacted, digest)
    ownership = state[_OWNERSHIP:]
    return digest if ownership == _UNOWNED else crc32(b" %a %a %a %a %a" % ownership, digest)


def thread_checksum(part: int, updated_at: int) -> int:
    """Return the checksum of a row of `threads`: `state_checksum`, and the time."""
    return crc32(updated_at.to_bytes(8, "big", signed=True), part) - 2**31


def set_checksum(connection: Connection, key: int, state: State) -> None:
    """Give a thread's row its checksum."""
    checksum = thread_checksum(state_checksum(key, state), state.updated_at)
    connection.run("UPDATE threads SET checksum = ? WHERE key = ?", (checksum, key))
    check_written(connection.changes(), 1)


def set_owner(connection: Connection, key: int, state: State) -> None:
    """Write a thread's epoch, owner, kind, due time and unfit builds, with its checksum."""
    checksum = thread_checksum(state_checksum(key, state), state.updated_at)
    connection.run(_OWNER, (state.epoch, *state[_OWNERSHIP:], checksum, key))
    check_written(connection.changes(), 1)


def host_checksum(row: Sequence[object]) -> int:
    """Return the checksum of a row of `hosts` or `limits`; `row` has all other columns."""
    return crc32(ascii(tuple(row)).encode()) - 2**31


def note_removed(connection: Connection, table: str, rows: int) -> None:
    """Count rows that were removed from a numbered table."""
    _count(connection, f"removed {table}", rows)


def _count(connection: Connection, name: str, value: int) -> None:
    connection.run("UPDATE counters SET value = value + ? WHERE name = ?", (value, name))
    check_written(connection.changes(), 1)


def check_written(written: int, expected: int) -> None:
    """Check that SQLite has written the expected number of rows.

    Raises:
        LedgerCorruptError: it has not; something in the file prevents it, such as a trigger.
    """
    if written != expected:
        reason = f"{written} rows were written where {expected} should have been"
        raise LedgerCorruptError(f"{reason}: a trigger swallows or adds rows, or a row is missing; run verify")
